//! Where a starting point is: what `glint find`, `glint du` and `glint ls` look at is what the mount
//! at that path shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::process::Command;
use support::*;

fn bind(from: &Path, to: &Path) {
    run(Command::new("mount").arg("--bind").arg(from).arg(to));
}

fn unmount(path: &Path) {
    run(Command::new("umount").arg(path));
}

/// What a command prints of a path; its words come before that.
fn printed(words: &[&str], path: &Path) -> String {
    String::from_utf8(run(glint().args(words).arg(path)).stdout).unwrap()
}

#[test]
fn a_path_is_looked_at_in_the_mount_that_shows_it() {
    let (world, other) = (World::new(), World::new());
    let (port, other_port) = (free_port(), free_port());
    let (_server, _other_server) = (world.serve(port, &[]), other.serve(other_port, &[]));
    let (_mount, below) = world.mount(port, "below", &[]);
    let (_other_mount, above) = other.mount(other_port, "above", &[]);
    for (dir, name) in [(&below, "of-the-lower"), (&above, "of-the-upper")] {
        fs::create_dir(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("file"), b"").unwrap();
        fs::write(dir.join("both"), name).unwrap();
    }

    // Two file systems on one directory: the one mounted last is seen there.
    let place = world.path("place");
    fs::create_dir_all(place.join("inner")).unwrap();
    let inner = place.join("inner");
    bind(&below, &inner);
    bind(&above, &inner);
    for words in [&["ls"][..], &["du", "-a"], &["find"]] {
        let shown = printed(words, &inner);
        assert!(shown.contains("of-the-upper") && !shown.contains("of-the-lower"), "{shown}");
    }
    let shown = printed(&["status"], &inner);
    assert!(shown.contains(&address(other_port)) && !shown.contains(&address(port)), "{shown}");
    run(glint().arg("find").arg(&inner).args(["-name", "both", "-delete"]));
    assert!(below.join("both").exists() && !above.join("both").exists());

    // Both are hidden by what is mounted on the directory above them.
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&place));
    fs::create_dir(&inner).unwrap();
    for command in ["ls", "du", "find"] {
        let said = refused(glint().arg(command).arg(&inner));
        assert!(said.contains("is not in a Glint mount"), "{said}");
        let said = refused(glint().arg(command).arg(inner.join("of-the-upper")));
        assert!(said.contains("No such file or directory"), "{said}");
        assert!(!said.contains("mount"), "{said}");
    }
    // And are there again when that is gone.
    unmount(&place);
    unmount(&inner);
    let shown = printed(&["ls"], &inner);
    assert!(shown.contains("of-the-lower"), "{shown}");
    unmount(&inner);
}

#[test]
fn a_mount_that_begins_elsewhere_than_the_certificate_is_told() {
    let world = World::new();
    let ca = world.path("ca");
    run(glint().args(["cert", "init", text(&ca)]));
    run(glint().args(["cert", "issue", text(&ca), "server", "--host", "127.0.0.1"]));
    run(glint().args(["cert", "issue", text(&ca), "admin", "--client"]));
    run(glint().args(["cert", "issue", text(&ca), "bound", "--client", "--subtree", "/part"]));
    let port = free_port();
    let _server = world.serve(port, &["--cert", text(&ca.join("server"))]);
    let (_admin, top) = world.mount(port, "admin", &["--cert", text(&ca.join("admin"))]);
    for dir in ["same", "part/same"] {
        fs::create_dir_all(top.join(dir)).unwrap();
        fs::write(top.join(dir).join("file"), dir).unwrap();
    }
    let (_bound, part) = world.mount(port, "bound", &["--cert", text(&ca.join("bound"))]);
    let asked = |command: &str, cert: &str, path: &Path| {
        let mut asked = glint();
        asked.arg(command).arg(path).env("GLINT_CERT", ca.join(cert)).output().unwrap()
    };
    for command in ["ls", "du", "find"] {
        for path in [part.clone(), part.join("same"), part.join("same/file")] {
            let output = asked(command, "admin", &path);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("shows another file"), "{command} {path:?}: {said}");
            assert!(!output.status.success() && output.stdout.is_empty(), "{command} {output:?}");
            let output = asked(command, "bound", &path);
            assert!(output.status.success(), "{command} {output:?}");
            let output = asked(command, "admin", &top.join("same"));
            assert!(output.status.success(), "{command} {output:?}");
        }
    }
}
