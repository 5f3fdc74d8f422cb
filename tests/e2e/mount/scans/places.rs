//! Where a starting point is: what `glint find`, `glint du` and `glint ls` look at is what the mount
//! at that path shows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_net::tls::TlsIdentity;
use glint_net::{Address, Cluster, MdsRequests, Remote, RemoteOptions, Transport};
use glint_proto::{Cred, Errno, Ino, MdsReply, MdsRequest};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::*;

/// An authority with certificates of a server, of an administrator, and of a client that is bound to
/// the directory `part`.
fn authority(world: &World) -> PathBuf {
    let ca = world.path("ca");
    run(glint().args(["cert", "init", text(&ca)]));
    run(glint().args(["cert", "issue", text(&ca), "server", "--host", "127.0.0.1"]));
    run(glint().args(["cert", "issue", text(&ca), "admin", "--client"]));
    run(glint().args(["cert", "issue", text(&ca), "bound", "--client", "--subtree", "/part"]));
    ca
}

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
    let shown = printed(&["status", "--json"], &inner);
    assert!(shown.contains(text(&above)) && !shown.contains(text(&below)), "{shown}");
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
        assert!(!said.contains("Glint mount"), "{said}");
        let said = refused(glint().arg(command).arg("no-such-host/a").current_dir(&place));
        assert!(
            said.contains("No such file or directory; a server is said as HOST:PORT"),
            "{said}"
        );
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
    let (ca, port) = (authority(&world), free_port());
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

#[test]
fn a_bound_client_scans_all_of_its_part_and_nothing_else() {
    let world = World::new();
    let (ca, port) = (authority(&world), free_port());
    let _server = world.serve(port, &["--cert", text(&ca.join("server"))]);
    let admin_cert = ca.join("admin");
    let (_admin, top) =
        world.mount(port, "admin", &["--cert", text(&admin_cert), "-o", "nowbmeta"]);
    let made = |name: &str| {
        let path = top.join(name);
        fs::create_dir_all(path.join("inner")).unwrap();
        Ino(fs::metadata(path).unwrap().ino())
    };
    let [one, gone, moved, two] =
        ["one", "gone", "moved", "two"].map(|n| made(&format!("part/{n}")));
    let outside = made("outside");

    let identity = TlsIdentity::load(&ca.join("bound")).unwrap();
    let at = Address::parse_as(&address(port), Some(identity.clone()));
    let remote = Remote::connect(RemoteOptions { address: at, mount_point: "/by hand".into() });
    let client = Cluster::new(remote.unwrap(), Some(identity), "/by hand".into());
    let runtime = glint_net::runtime(None).unwrap();
    let scanned = |asked: &[Ino]| -> Vec<Result<usize, Errno>> {
        let directories = asked.iter().map(|ino| (*ino, 0)).collect();
        let request = MdsRequest::Scan { directories, bytes_max: 1 << 20, filter: None };
        let (reply, _) = runtime.block_on(client.mds().request(&Cred::ROOT, &request));
        let Ok(MdsReply::Scanned { pages, .. }) = reply else { panic!("{reply:?}") };
        pages.into_iter().map(|page| page.map(|page| page.entries.len())).collect()
    };
    assert_eq!(scanned(&[one, gone, moved, two]), [Ok(1); 4]);
    for other in [outside, Ino::ROOT] {
        assert_eq!(scanned(&[other, one]), [Err(Errno::EACCES)]);
        assert_eq!(scanned(&[one, other, two]), [Ok(1)]);
    }
    // Others remove one of them, and move one to where the client sees nothing.
    fs::remove_dir_all(top.join("part/gone")).unwrap();
    fs::rename(top.join("part/moved"), top.join("moved")).unwrap();
    assert_eq!(scanned(&[one, gone, moved, two]), [Ok(1)]);
    assert_eq!(scanned(&[gone, moved, two]), [Err(Errno::ESTALE)]);
    assert_eq!(scanned(&[moved, two]), [Err(Errno::EACCES)]);
    assert_eq!(scanned(&[two, one]), [Ok(1); 2]);
}

/// What allows to ask the objects how large a file is a client with less rights gets for each file.
#[test]
fn files_that_others_write_are_shown_to_a_client_whose_ids_are_mapped() {
    let world = World::new();
    let (ca, port) = (authority(&world), free_port());
    let ids = ["--map-uid", "1000:5000:10", "--map-gid", "1000:5000:10"];
    run(glint().args(["cert", "issue", text(&ca), "mapped", "--client"]).args(ids));
    let _server = world.serve(port, &["--cert", text(&ca.join("server"))]);
    let (_mount, dir) = world.mount(port, "admin", &["--cert", text(&ca.join("admin"))]);
    let mapped = ca.join("mapped");
    let at = format!("{}/d", address(port));
    fs::create_dir(dir.join("d")).unwrap();
    for (name, id) in [("its", 5000), ("other", 7777)] {
        let path = dir.join("d").join(name);
        fs::write(&path, b"text").unwrap();
        std::os::unix::fs::chown(&path, Some(id), Some(id)).unwrap();
    }
    // Their mount has told the servers of none of them, and has one of them open.
    let _open = fs::File::options().append(true).open(dir.join("d/its")).unwrap();
    let find = |words: &[&str]| {
        let found = run(glint().args(["--cert", text(&mapped), "find", &at]).args(words));
        String::from_utf8(found.stdout).unwrap()
    };
    let print = ["-printf", "%P %s %U %G\\n"];
    let its = "its 4 1000 1000\n";
    for owner in
        [&["-uid", "1000"][..], &["-gid", "1000"], &["(", "-uid", "1000", "-o", "-false", ")"]]
    {
        assert_eq!(find(&[&["-type", "f"], owner, &print].concat()), its, "{owner:?}");
    }
    assert_eq!(
        find(&[&["-type", "f", "-uid", "65534"][..], &print].concat()),
        "other 4 65534 65534\n"
    );
}
