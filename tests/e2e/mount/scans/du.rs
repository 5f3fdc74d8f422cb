//! `glint du` and du(1) on the mount sum up the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use support::*;

/// Options and paths, in words that a space ends.
const CALLS: &str = "
.
-a .
-s .
-S .
-a -S .
-c deep tree
-h -a .
--si -a .
-k -a .
-m -a .
-a -BK .
-a -B1000 .
-a -BkB .
-a -h -k .
-d 1 .
-d 0 .
--max-depth=2 -a .
-l .
--inodes .
--inodes -a -l .
-t 8K -a .
-t -8K -a .
--inodes -t 3 .
-a --exclude f* .
--exclude deep .
-a --exclude=er/f1* .
--time -a .
--time=ctime --time-style=full-iso .
-x -a tree/
deep deep/er
deep/er deep
deep/er deep/er .
deep//
tree deep/dangling
missing tree
";

fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("deep/er/est")).unwrap();
    fs::create_dir(top.join("tree")).unwrap();
    for name in [&b"a\nb"[..], b"\xff\xfe", b" ", b"-name", b"*", b"quote'\""] {
        fs::write(top.join("tree").join(OsStr::from_bytes(name)), b"odd bytes").unwrap();
        fs::create_dir(top.join("deep").join(OsStr::from_bytes(name))).unwrap();
    }
    fs::create_dir(top.join(OsString::from_vec(vec![b'n'; 255]))).unwrap();
    for i in 0..20 {
        // Links of one file in many directories: one of them counts.
        let directory = top.join(format!("linked/d{i}/sub"));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("own"), vec![b'x'; 5000 * (i + 1)]).unwrap();
        if i > 0 {
            fs::hard_link(top.join("linked/d0/sub/own"), directory.join("first")).unwrap();
            fs::hard_link(directory.join("own"), top.join(format!("linked/d{i}/a"))).unwrap();
            fs::hard_link(directory.join("own"), top.join(format!("deep/er/l{i}"))).unwrap();
        }
    }
    symlink("no such one", top.join("deep/dangling")).unwrap();
    let sparse = fs::File::create(top.join("deep/sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    for i in 0..300 {
        fs::write(top.join(format!("deep/er/f{i}")), vec![b'x'; i * 30]).unwrap();
    }
}

/// Lines in order, and the exit code.
fn told(output: &Output) -> (Vec<Vec<u8>>, Option<i32>) {
    let mut lines: Vec<Vec<u8>> =
        output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    lines.sort();
    (lines, output.status.code())
}

/// du(1) and `glint du`, as root or as an ordinary user.
fn both(uid: Option<&str>, words: &[&str], at: &Path) -> [Output; 2] {
    let ours = glint();
    ["du".into(), ours.get_program().to_owned()].map(|program| {
        let mut command = Command::new("setpriv");
        if let Some(uid) = uid {
            command.args(["--reuid", uid, "--regid", uid, "--clear-groups"]);
        }
        command.arg(&program);
        if program != "du" {
            command.arg("du");
        }
        command.arg("-0").args(words).current_dir(at).env("LC_ALL", "C").output().unwrap()
    })
}

#[test]
fn glint_du_sums_up_what_du_does() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "first", &[]);
    make_tree(&dir);
    // A mount estimates the space of what it wrote itself.
    mount.stop();
    let (_mount, dir) = world.mount(port, "second", &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    // Newer versions of du(1) count no apparent size of directories.
    let files = ["-a", "-b", "deep/sparse", "deep/er/f7"];
    let calls = CALLS.lines().filter(|line| !line.is_empty());
    let calls = calls.map(|line| line.split(' ').collect()).chain([files.to_vec()]);
    for words in calls {
        let words: Vec<&str> = words;
        let [theirs, ours] = both(None, &words, &dir);
        let said = String::from_utf8_lossy(&ours.stderr);
        let (theirs, ours) = (told(&theirs), told(&ours));
        let differ: Vec<_> = theirs.0.iter().filter(|line| !ours.0.contains(line)).collect();
        let others: Vec<_> = ours.0.iter().filter(|line| !theirs.0.contains(line)).collect();
        let text = |lines: &[&Vec<u8>]| -> Vec<String> {
            lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
        };
        assert!(theirs == ours, "{words:?}: {said}\n{:?}\n{:?}", text(&differ), text(&others));
    }
    let on_server = address(port);
    let ours = run(glint().args(["du", "-s", "--json", &on_server]));
    let row: serde_json::Value = serde_json::from_slice(&ours.stdout).unwrap();
    let theirs = run(Command::new("du").args(["-s", "-B1", "."]).current_dir(&dir));
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    assert_eq!(format!("{}\t.\n", row["allocated"]), theirs);

    for (name, mode) in [("read", 0o744), ("search", 0o711), ("none", 0o700), ("all", 0o755)] {
        let tree = dir.join("user").join(name);
        fs::create_dir_all(tree.join("sub")).unwrap();
        fs::write(tree.join("file"), b"").unwrap();
        fs::set_permissions(&tree, fs::Permissions::from_mode(mode)).unwrap();
    }
    for words in [&["user"][..], &["-a", "user"], &["--inodes", "user/none", "user/all"]] {
        let [theirs, ours] = both(Some("1234"), words, &dir);
        assert_eq!(told(&theirs), told(&ours), "{words:?}");
        let errors = |output: &Output| {
            let text = String::from_utf8_lossy(&output.stderr).replace("glint du: ", "du: ");
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(errors(&theirs), errors(&ours), "{words:?}");
    }
}
