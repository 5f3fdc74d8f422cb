//! Actions of `glint find` and find(1) do the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use support::*;

/// Expressions that change nothing, in words that a space ends; `~` is a space.
const EXPRESSIONS: [&str; 15] = [
    "-ls",
    "-name f1* -ls -o -type l -ls",
    "-type f -exec echo x{}y {} ;",
    "-exec test -d {} ; -print",
    "! -exec test -d {} ; -print",
    "-name f1 -exec echo one ; -exec echo two ;",
    "-name f2 -printf before\\n -exec echo within ; -printf after\\n",
    "-exec false ; -print",
    "-name f1 -exec false ;",
    "-name f1 -exec /no/such/program {} ;",
    "-name f1 -exec /no/such/program {} +",
    "-name f1 -exec false {} +",
    "-name f* -exec printf %s\\n first~word {} +",
    "-type d -exec sh -c exit~3 ; -o -name f3 -print",
    "-depth -name f1 -exec echo {} ; , -name f2 -print",
];

fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("deep/er/empty")).unwrap();
    for i in 0..300 {
        fs::write(tree.join(format!("deep/er/f{i}")), vec![b'x'; i * 100]).unwrap();
    }
    for name in ["a\nb", " ", "-name", "quote\"", "back\\slash"] {
        fs::write(tree.join(name), b"odd").unwrap();
    }
    symlink("deep/er", tree.join("link")).unwrap();
    run(Command::new("mknod").arg(tree.join("null")).args(["c", "1", "3"]));
    run(Command::new("touch").args(["-d", "2020-02-03 04:05:06"]).arg(tree.join("deep/er/f7")));
    // Of Debian's coreutils: later than now, and longer ago than half a year.
    run(Command::new("touch").args(["-d", "next month"]).arg(tree.join("deep/er/f8")));
}

fn words(expression: &str) -> Vec<String> {
    expression.split(' ').map(|word| word.replace('~', " ")).collect()
}

/// Both commands, in a directory.
fn both(at: [&Path; 2], start: &str, expression: &str) -> [Output; 2] {
    let (mut theirs, mut ours) = (Command::new("find"), glint());
    ours.arg("find");
    theirs.current_dir(at[0]);
    ours.current_dir(at[1]);
    [theirs, ours].map(|mut command| {
        command
            .arg(start)
            .args(words(expression))
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            .output()
            .unwrap()
    })
}

/// Lines in their order if `ordered`, exit code, and what was said.
fn told(output: &Output, ordered: bool) -> (Vec<Vec<u8>>, Option<i32>, BTreeSet<String>) {
    let mut lines: Vec<Vec<u8>> =
        output.stdout.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if !ordered {
        lines.sort();
    }
    let said = String::from_utf8_lossy(&output.stderr).replace(['\'', '"'], "");
    let said = said.lines().map(|line| line.replace("glint find: ", "find: ")).collect();
    (lines, output.status.code(), said)
}

/// All that is below a directory.
fn left(tree: &Path) -> BTreeSet<Vec<u8>> {
    let found = run(Command::new("find").args([".", "-print0"]).current_dir(tree));
    found.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

#[test]
fn actions_are_those_of_find() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "first", &[]);
    for tree in ["tree", "theirs", "ours"] {
        make_tree(&dir.join(tree));
    }
    // A mount estimates the space of what it wrote itself.
    mount.stop();
    let (_mount, dir) = world.mount(port, "second", &[]);
    let (tree, pair) = (dir.join("tree"), [dir.join("theirs"), dir.join("ours")]);
    run(Command::new("find").arg(&tree).args(["-printf", "%l%t"]));
    for expression in EXPRESSIONS {
        let one = !expression.contains('*') && expression.contains("-name");
        let [theirs, ours] = both([&tree, &tree], ".", expression).map(|output| told(&output, one));
        assert_eq!(theirs, ours, "{expression}");
    }

    let on_server = |name: &str| format!("{}/{name}", address(port));
    let refusal = refused(glint().arg("find").arg(on_server("tree")).args(["-exec", "true", ";"]));
    assert!(refusal.contains("needs a path in a mount"), "{refusal}");
    for (wrong, why) in [
        ("-exec echo", "ends with"),
        ("-exec ;", "needs a command"),
        ("-exec x {} {} +", "stand once"),
        ("-name a -prune -o -delete", "-prune does nothing"),
    ] {
        let said = refused(glint().arg("find").arg(&tree).args(words(wrong)));
        assert!(said.contains(why), "{wrong}: {said}");
    }

    let [theirs, ours] = &pair;
    for expression in [
        "-name f1* -delete",
        // It is not empty.
        "-name deep -delete",
        "-type l -print -delete -printf gone\\n",
        "-name null -delete -o -name f2* -size +20k -delete",
        "-depth -name empty -prune -delete",
        "-delete",
    ] {
        let [found, its] = both([theirs, ours], ".", expression).map(|output| told(&output, false));
        assert_eq!(found, its, "{expression}");
        assert_eq!(left(theirs), left(ours), "{expression}");
    }
    assert_eq!(left(ours).len(), 2, "the starting point is left");
    run(glint().arg("find").arg(ours).arg("-delete"));
    assert!(!ours.exists());
    run(glint().arg("find").arg(on_server("tree/deep")).args(["-name", "f3", "-delete"]));
    assert!(!tree.join("deep/er/f3").exists() && tree.join("deep/er/f4").exists());

    // Whoever may not write a directory removes nothing from it.
    fs::set_permissions(&tree, fs::Permissions::from_mode(0o755)).unwrap();
    let as_user = |program: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "1234", "--regid", "1234", "--clear-groups"]).args(program);
        told(
            &command
                .arg("deep")
                .arg("-delete")
                .current_dir(&tree)
                .env("LC_ALL", "C")
                .output()
                .unwrap(),
            false,
        )
    };
    let program = glint().get_program().to_str().unwrap().to_owned();
    let before = left(&tree);
    assert_eq!(as_user(&["find"]), as_user(&[&program, "find"]));
    assert_eq!(left(&tree), before);
    // Ctrl-C that is ignored from the start, as by `&` in a script, ends nothing.
    let ignoring = |program: &[&str]| {
        let mut command = Command::new("env");
        command.arg("--ignore-signal=INT").args(program).args(["deep", "-maxdepth", "1", "-exec"]);
        command.args(["sh", "-c", "kill -INT $PPID", ";", "-print"]);
        told(&command.current_dir(&tree).env("LC_ALL", "C").output().unwrap(), false)
    };
    let (theirs, ours) = (ignoring(&["find"]), ignoring(&[&program, "find"]));
    assert_eq!((&theirs, theirs.1), (&ours, Some(0)));
    let root = refused(glint().arg("find").arg(&dir).args(["-maxdepth", "0", "-delete"]));
    assert!(root.contains("cannot delete"), "{root}");

    // A part of the file system that is mounted elsewhere is that part.
    let bound = world.path("bound");
    fs::create_dir(&bound).unwrap();
    run(Command::new("mount").arg("--bind").arg(tree.join("deep/er")).arg(&bound));
    let there = run(glint().arg("find").arg(&bound).args(["-name", "f9", "-print"]));
    assert_eq!(there.stdout, format!("{}/f9\n", bound.display()).into_bytes());
    run(glint().arg("find").arg(&bound).args(["-name", "empty", "-delete"]));
    assert!(!tree.join("deep/er/empty").exists() && tree.join("deep/er/f9").exists());
    run(Command::new("mount").args(["-o", "remount,bind,ro"]).arg(&bound));
    let said = refused(glint().arg("find").arg(&bound).args(["-name", "f9", "-delete"]));
    assert!(said.contains("Read-only file system"), "{said}");
    // A command that only reads is run there, and another one is refused by the mount.
    let read = ["-name", "f9", "-exec", "head", "-c", "3", "{}", ";"];
    let read = run(glint().arg("find").arg(&bound).args(read));
    assert_eq!(read.stdout, b"xxx");
    let remove = ["-name", "f9", "-exec", "rm", "{}", "+"];
    let said = refused(glint().arg("find").arg(&bound).args(remove).env("LC_ALL", "C"));
    assert!(said.contains("rm: ") && said.contains("Read-only file system"), "{said}");
    assert!(tree.join("deep/er/f9").exists());
    run(Command::new("umount").arg(&bound));
    // What is mounted over a directory is not to be unmounted by its removal.
    let over = tree.join("over");
    fs::create_dir(&over).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&over));
    let said = refused(glint().arg("find").arg(&tree).arg("-delete"));
    assert!(said.contains("is mounted below it"), "{said}");
    run(Command::new("umount").arg(&over));
    // A link that is followed is not what was found.
    fs::create_dir_all(tree.join("a/target")).unwrap();
    fs::create_dir(tree.join("a/jump")).unwrap();
    symlink("a/target", tree.join("jump")).unwrap();
    let said = refused(glint().args(["find", "jump/", "-delete"]).current_dir(&tree));
    assert!(said.contains("cannot delete"), "{said}");
    assert!(tree.join("a/jump").exists() && tree.join("a/target").exists());
}
