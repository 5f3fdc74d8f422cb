//! `glint find` and find(1) on the mount find the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use support::*;

/// Names that text tools trip over.
const ODD: [&[u8]; 8] =
    [b"a\nb", b"\xff\xfe", b" ", b"-name", b"*", b"quote'\"", b".hidden", b"back\\slash"];

/// Expressions, in words that a space ends; `~` is a space.
const EXPRESSIONS: &str = "
-print0
-name * -print0
-name .* -print0
-name [ab]* -print0
-name \\* -print0
-iname DEEP* -print0
-path */deep/* -print0
-ipath *DEEP* ! -name f* -print0
-lname *one -print0
-type f -print0
-type d,l -print0
-type s -print0
-type p -print0
-size 0 -print0
-size +1k -print0
-size -2M -type f -print0
-size 9c -print0
-links 2 -print0
-links +2 -type f -print0
-perm 600 -print0
-perm -u+x,g+x -print0
-perm /022 -print0
-user root -print0
-uid 1234 -print0
-nouser -print0
-group 0 -gid -5 -print0
-empty -print0
-empty -type d -print0
-mtime +10 -print0
-mtime -1 -print0
-mmin -10 -print0
-mtime -0.5 -print0
-mtime +0.5 -print0
-mmin +0.5 -type d,s -print0
-perm -a+X -print0
-perm /u+X,g=s -print0
-perm g=u -print0
-newermt 2020-02-04 -print0
! -newermt 2020-02-03T04:05:07 -print0
-newercm old -print0
! -newermc old -print0
-newerat @1600000000 -print0
-xdev -mount -print0
-newer old -print0
-maxdepth 1 -print0
-mindepth 2 -maxdepth 3 -print0
-depth -print0
-name deep -prune -o -print0
( -type d -o -name f* ) ! -name f1* -print0
-type f , -name deep -print0
-name nothing -print0
-false -o -true -print0
-printf %p|%f|%h|%P|%H|%d\\0
-type f ! -name open -printf %b|%k|%p\\0
-printf %s~%m~%M~%n~%i~%u~%g~%U~%G~%y~%l\\0
-printf %t|%a|%c|%T@|%T+|%TS|%TY-%Tm\\0
-printf %TA|%Ta|%TB|%Tb|%Th|%Td|%Te|%Tj|%Tm|%Ty|%TY|%Tu|%TU|%Tw|%TW|%Tg|%TC\\0
-printf %TH|%TI|%Tk|%Tl|%TM|%Tp|%TP|%TS|%TR|%TT|%Tr|%TD|%Tx|%Tc|%Tz|%TZ|%T@|%T+\\0
-printf %AA|%Ac|%Aj|%CA|%Cc|%Cj|%C@|%9TA|%-11TB|%.3TA\\0
-printf %F|%+d|%#m|%.3f|%-8.2f|%TX|%Ts|%TF|%Tr|%TG-%TV\\0
! -type l ! -name open -printf %S|%p\\0
-printf [%12s][%-12f][%05d][%06m]%%\\t\\101\\0
";

fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("deep/er/est")).unwrap();
    for name in ODD {
        fs::write(tree.join(OsStr::from_bytes(name)), b"odd bytes").unwrap();
        fs::create_dir(tree.join("deep").join(OsStr::from_bytes(name))).unwrap();
    }
    fs::write(tree.join(OsString::from_vec(vec![b'n'; 255])), b"").unwrap();
    fs::hard_link(tree.join("*"), tree.join("deep/er/link")).unwrap();
    symlink("no such one", tree.join("deep/dangling")).unwrap();
    symlink("er", tree.join("deep/to")).unwrap();
    drop(UnixListener::bind(tree.join("socket")).unwrap());
    run(Command::new("mkfifo").arg(tree.join("fifo")));
    let sparse = fs::File::create(tree.join("deep/sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    for i in 0..700 {
        let path = tree.join(format!("deep/er/f{i}"));
        fs::write(&path, vec![b'x'; i * 3]).unwrap();
        if i % 7 == 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
        }
    }
    std::os::unix::fs::chown(tree.join("deep/er/f1"), Some(1234), Some(4321)).unwrap();
    fs::set_permissions(tree.join("deep/er/f2"), fs::Permissions::from_mode(0o600)).unwrap();
    run(Command::new("touch").args(["-d", "2020-02-03 04:05:06.789"]).arg(tree.join("old")));
}

/// Output in the order of its records, which end with 0 or are all of it.
fn sorted(output: &Output) -> Vec<Vec<u8>> {
    let mut records: Vec<Vec<u8>> =
        output.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    records.sort();
    records
}

fn words(expression: &str) -> Vec<String> {
    expression.split_whitespace().map(|word| word.replace('~', " ")).collect()
}

#[test]
fn glint_find_finds_what_find_does() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "first", &[]);
    make_tree(&dir.join("tree"));
    // A mount estimates the space of what it wrote itself.
    mount.stop();
    let (_mount, dir) = world.mount(port, "second", &[]);
    let tree = dir.join("tree");
    // Written and not closed: the mount has it, and servers have to ask.
    let open = fs::File::create(tree.join("open")).unwrap();
    open.write_all_at(b"written", 40_000).unwrap();
    let on_server = format!("{}/tree", address(port));
    // What reading changes it has changed before anything is compared.
    run(Command::new("find").arg(&tree).args(["-printf", "%l%t"]));
    let starts = [(OsStr::new("."), &tree), (tree.as_os_str(), &dir), (OsStr::new("tree/"), &dir)];
    let lines = EXPRESSIONS.lines().filter(|line| !line.is_empty());
    for (nth, expression) in lines.enumerate() {
        let mut expression = words(expression);
        // These depend on how the starting point was said; of the others each has one in turns.
        let is_of_start = expression.iter().any(|word| word.contains("path") || word.contains('%'));
        let turn = at_length(nth as u64 % 3, 3);
        let is_its = |which: usize| is_of_start || turn == 3 || which as u64 == turn;
        if let Some(at) = expression.iter().position(|word| word == "old") {
            expression[at] = tree.join("old").to_str().unwrap().to_owned();
        }
        let find = |start: &OsStr, at: &Path| {
            let mut theirs = Command::new("find");
            let mut ours = glint();
            ours.arg("find");
            for command in [&mut theirs, &mut ours] {
                command.arg(start).args(&expression).current_dir(at).env("LC_ALL", "C");
            }
            (theirs.output().unwrap(), ours.output().unwrap())
        };
        for (_, &(start, at)) in starts.iter().enumerate().filter(|(which, _)| is_its(*which)) {
            let (theirs, ours) = find(start, at);
            let said = String::from_utf8_lossy(&ours.stderr);
            assert_eq!(
                theirs.status.code(),
                ours.status.code(),
                "{start:?} {expression:?}: {said}"
            );
            assert!(
                sorted(&theirs) == sorted(&ours),
                "{start:?} {expression:?}: {said}\n{}\n---\n{}",
                String::from_utf8_lossy(&theirs.stdout),
                String::from_utf8_lossy(&ours.stdout)
            );
        }
        // At the server by its address: paths begin with that.
        if !is_of_start {
            let theirs = Command::new("find").arg(&tree).args(&expression).output().unwrap();
            let ours = run(glint().arg("find").arg(&on_server).args(&expression));
            let strip = |output: &Output, start: &str| -> Vec<Vec<u8>> {
                let rows = sorted(output);
                rows.iter()
                    .map(|row| row.strip_prefix(start.as_bytes()).unwrap_or(row).to_vec())
                    .collect()
            };
            assert!(
                strip(&theirs, tree.to_str().unwrap()) == strip(&ours, &on_server),
                "{expression:?}"
            );
        }
    }
    drop(open);

    // A directory is before what is in it, and with -depth after.
    for (depth, first) in [(None, true), (Some("-depth"), false)] {
        let found = run(glint().arg("find").arg(&tree).args(depth).arg("-print0"));
        let rows: Vec<&[u8]> = found.stdout.split(|byte| *byte == 0).collect();
        let at = |name: &str| {
            let path = tree.join(name);
            rows.iter().position(|row| *row == path.as_os_str().as_bytes()).unwrap()
        };
        for (outer, inner) in
            [("deep", "deep/er"), ("deep/er", "deep/er/f3"), ("deep/er", "deep/er/est")]
        {
            assert_eq!(at(outer) < at(inner), first, "{outer} {inner} {depth:?}");
        }
    }
    let one = run(glint().arg("find").arg(&tree).args(["-name", "f1", "-print", "-quit"]));
    assert_eq!(one.stdout, format!("{}/deep/er/f1\n", tree.display()).into_bytes());
    let rows = run(glint().args(["find", "--json", text(&tree), "-name", "f3"]));
    let row: serde_json::Value = serde_json::from_slice(&rows.stdout).unwrap();
    assert_eq!((&row["size"], &row["type"]), (&9.into(), &"f".into()));

    let missing = refused(glint().arg("find").arg(tree.join("missing")));
    assert!(missing.contains("missing: No such file"), "{missing}");
    for start in ["deep/to/", "deep/to/.", "deep/er//", "old/", "deep/dangling/", "deep/to"] {
        let theirs = Command::new("find").args([start, "-print0"]).current_dir(&tree).output();
        let ours = glint().args(["find", start, "-print0"]).current_dir(&tree).output();
        let (theirs, ours) = (theirs.unwrap(), ours.unwrap());
        assert_eq!(sorted(&theirs), sorted(&ours), "{start}");
        assert_eq!(theirs.status.code(), ours.status.code(), "{start}");
        // At the server, too.
        let start = format!("{on_server}/{start}");
        let at_server = glint().args(["find", &start, "-print0"]).output().unwrap();
        assert_eq!(at_server.status.code(), theirs.status.code(), "{start}");
        assert_eq!(sorted(&at_server).len(), sorted(&theirs).len(), "{start}");
    }
    let file = refused(glint().args(["find", &format!("{on_server}/old/")]));
    assert!(file.contains("old/: Not a directory"), "{file}");

    // A name with a colon is one of the current directory, if it is there.
    fs::write(tree.join("2024:10"), b"").unwrap();
    let here = run(glint().args(["find", "-P", "2024:10"]).current_dir(&tree));
    assert_eq!(here.stdout, b"2024:10\n");
    // A server that is away is told, and the rest is found.
    let away = format!("127.0.0.1:{}/x", free_port());
    let mut command = glint();
    let output = command.args(["find", &away, text(&tree.join("old")), &away]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, format!("{}/old\n", tree.display()).into_bytes());
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("no server listens").count(), 1);

    let wrong = refused(glint().arg("find").arg(&tree).arg("-nmae"));
    assert!(wrong.starts_with("glint find: -nmae is no test"), "{wrong}");
    let late = refused(glint().arg("find").arg(&tree).arg("--json"));
    assert!(late.starts_with("glint find: --json comes before the paths"), "{late}");
    let elsewhere = refused(glint().args(["find", "/proc"]));
    assert!(elsewhere.contains("not in a Glint mount"), "{elsewhere}");
}

/// What both commands say of the same tree: output, exit code, and the paths that could not be
/// looked at, each as often as it is told.
fn told(output: &Output) -> (Vec<Vec<u8>>, Option<i32>, Vec<String>) {
    let errors = String::from_utf8_lossy(&output.stderr).replace(['\'', '"'], "");
    let mut errors: Vec<String> =
        errors.lines().map(|line| line.replace("glint find: ", "find: ")).collect();
    errors.sort();
    (sorted(output), output.status.code(), errors)
}

/// Memory that an ordinary user may lock here: less than one io_uring of the usual size takes.
const LOCKED_BYTES_MAX: &str = "--memlock=100000";

/// `glint find` and find(1), as an ordinary user who is in no group but his own and may lock little
/// memory.
fn as_user(uid: &str, arguments: &[&str], at: &Path) -> [Output; 2] {
    let ours = glint();
    ["find".into(), ours.get_program().to_owned()].map(|program| {
        let mut command = Command::new("prlimit");
        command.args([LOCKED_BYTES_MAX, "setpriv"]);
        command.args(["--reuid", uid, "--regid", uid, "--clear-groups"]).arg(&program);
        if program != "find" {
            command.arg("find");
        }
        command.args(arguments).current_dir(at).env("LC_ALL", "C").output().unwrap()
    })
}

#[test]
fn an_ordinary_user_finds_what_a_mount_shows_him() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &[]);
    let (_mount, dir) = world.mount(port, "mount", &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    super::make_with_rights(&dir.join("tree"), 1234);
    for expression in [
        "-print0",
        "-depth -print0",
        "-name file -print0",
        "-name link -o -print0",
        "-type f -print0",
        "-type d -print0",
        "-type l -print0",
        "-size +0 -print0",
        "! -size +0 -print0",
        "-size +0 -o -print0",
        "-user root -print0",
        "-lname file -print0",
        "-empty -print0",
        "! -empty -print0",
        "-inum +1 -print0",
        "-printf %p|%f|%h|%d\\0",
        "-printf %p|%y\\0",
        "-printf %p|%i\\0",
        "-printf %p|%l\\0",
        "-printf %p|%s|%m\\0",
        "-mindepth 2 -print0",
        "-maxdepth 1 -print0",
        "-name sub -prune -o -print0",
        "-name file -prune -o -print0",
    ] {
        for (uid, start) in [("1234", "tree"), ("4321", "tree"), ("1234", "tree/read/link")] {
            let mut arguments = vec![start];
            arguments.extend(expression.split(' '));
            let [theirs, ours] = as_user(uid, &arguments, &dir).map(|output| told(&output));
            assert_eq!(theirs, ours, "{uid} {arguments:?}");
        }
    }
    // Asked by its address, the server refuses the same.
    let on_server = format!("{}/tree/read", address(port));
    let [_, ours] = as_user("1234", &[&on_server, "-name", "file", "-printf", "%s"], &dir);
    let (output, code, errors) = told(&ours);
    assert_eq!((output, code), (vec![Vec::new()], Some(1)), "{errors:?}");
    let [_, ours] = as_user("1234", &[&format!("{on_server}/link"), "-printf", "%l"], &dir);
    assert_eq!((ours.status.code(), ours.stdout.len()), (Some(1), 0));
}
