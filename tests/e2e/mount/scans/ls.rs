//! `glint ls` and ls(1) on the mount list the same.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::*;

/// Names that text tools, the shell, or a header trip over.
const ODD: [&[u8]; 14] = [
    b"a\nb",
    b"\xff\xfe",
    b" ",
    b"-name",
    b"*",
    b"quote'\"",
    b"it's",
    b".hidden",
    b"back\\slash",
    b"\x01\t",
    b"a:b",
    b"#x=y@|>",
    b"caf\xc3\xa9",
    b"~",
];

/// Options and paths, in words that a space ends; `~` is a space.
const CALLS: &str = "
.
-R .
-R
-aR .
-AR .
-lR .
-laR .
-lAR tree
-la
-ld . tree deep/to
-d .
-d deep/to tree/* tree
-1 tree
-i -R .
-is -R .
-lis -R .
-s .
-sR deep
-n tree
-g tree
-o tree
-G tree
-lG tree
-go deep/er
-lh -R .
-l --si -R deep
-lsh -R deep
-l --block-size=K -s deep
-l --block-size=1000 deep
--block-size=KiB -s deep
-lr tree
-lt tree
-lS tree
-ltr deep/er
-lSr deep/er
-t -R .
-S -R .
-rR .
-R -tS deep
-u -R tree
-lu tree
-lc tree
-c tree
-ltu tree
-ltc tree
-U tree/empty
-AX -R .
-lXr tree
-X tree/z.c tree deep tree/b.c old
--sort=extension tree
--sort=size -R deep
--sort=time -r tree
--sort=none tree/empty
--time=ctime -R tree
-l --time=atime tree
-lt --time=status tree
-c --time=use -t tree
-sk -R deep
--color=never tree
--color=auto tree
-F -R .
-p -R .
--file-type -R .
-lF -R .
-lp -R deep
-bR .
-QR .
-NR .
-qR .
-lqR .
-b -F -R tree
-Q --file-type -R tree
--quoting-style=shell -R .
--quoting-style=shell-always -R .
--quoting-style=shell-escape -R .
--quoting-style=shell-escape-always -R .
--quoting-style=locale -R .
--quoting-style=escape -l tree
-l --quoting-style=shell tree
-l --quoting-style=shell-escape -R .
-q --quoting-style=shell tree
--zero tree
--zero -lR .
--full-time tree
-l --time-style=full-iso tree
-l --time-style=long-iso tree
-l --time-style=iso tree
-l --time-style=locale tree
-l --time-style=+%Y~%j~%H:%M:%S.%N tree
-l --time-style=+%s|%3N|%%N tree
-la acl
-lR acl
tree deep
deep tree
tree deep/sparse old
-l tree deep/sparse old
-ld tree deep/sparse old
-lr tree deep old
-lt tree deep old
-lS tree deep/er old deep/sparse
-l tree/null old
-s old deep tree
-i old deep/dangling
deep/to
-l deep/to
-F deep/to
-p deep/to
deep/to/
-l deep/to/
-l deep/to/.
-R deep//
-l deep/dangling deep/to deep/up
deep/up
-a deep/er
-la deep/er/est
-la deep/er/..
tree/empty
-l tree/empty
-la tree/empty
-R tree/empty deep/er/est
-U old deep/sparse deep/er/f1
missing
missing tree
missing old
-l missing old deep/er/est
it's~none
-d missing
a/b/c
old/x
-laRF tree
-lisR --full-time tree
-t missing -- -x
";

fn make_tree(top: &Path) {
    fs::create_dir_all(top.join("deep/er/est")).unwrap();
    fs::create_dir_all(top.join("tree/empty")).unwrap();
    for name in ODD {
        fs::write(top.join("tree").join(OsStr::from_bytes(name)), b"odd bytes").unwrap();
        let directory = top.join("deep").join(OsStr::from_bytes(name));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("in"), b"").unwrap();
    }
    fs::write(top.join("tree").join(OsString::from_vec(vec![b'n'; 255])), b"").unwrap();
    for name in ["b.c", "a.tar.gz", "c.", "z.c"] {
        fs::write(top.join("tree").join(name), b"").unwrap();
    }
    fs::hard_link(top.join("tree/*"), top.join("deep/er/link")).unwrap();
    symlink("no such one", top.join("deep/dangling")).unwrap();
    symlink("er", top.join("deep/to")).unwrap();
    symlink("er/est/../f7", top.join("deep/file")).unwrap();
    symlink("../tree/*", top.join("deep/odd\n")).unwrap();
    symlink("..", top.join("deep/up")).unwrap();
    drop(UnixListener::bind(top.join("tree/socket")).unwrap());
    run(Command::new("mkfifo").arg(top.join("tree/fifo")));
    run(Command::new("mknod").arg(top.join("tree/null")).args(["c", "1", "3"]));
    run(Command::new("mknod").arg(top.join("tree/disk")).args(["b", "259", "1024"]));
    let sparse = fs::File::create(top.join("deep/sparse")).unwrap();
    sparse.write_all_at(b"end", 5 << 20).unwrap();
    for i in 0..300 {
        let path = top.join(format!("deep/er/f{i}"));
        fs::write(&path, vec![b'x'; i * 37]).unwrap();
        if i % 7 == 0 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4711)).unwrap();
        }
    }
    for i in 0..40 {
        let directory = top.join(format!("many/d{i}/sub/{}", i % 3));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("f"), b"x").unwrap();
    }
    for (name, uid, gid) in [("f1", 1234, 4321), ("f2", 1, 0), ("f3", 0, 4_000_000_000)] {
        std::os::unix::fs::chown(top.join("deep/er").join(name), Some(uid), Some(gid)).unwrap();
    }
    run(Command::new("touch").args(["-d", "2020-02-03 04:05:06.789"]).arg(top.join("old")));
    // Of Debian's coreutils: later than now, and about half a year ago.
    for (when, name) in [("next month", "~"), ("181 days ago", "it's"), ("184 days ago", " ")] {
        run(Command::new("touch").args(["-d", when]).arg(top.join("tree").join(name)));
    }
    // Of Debian's `acl`, which `make tools` installs.
    fs::create_dir_all(top.join("acl/inner")).unwrap();
    fs::write(top.join("acl/file"), b"").unwrap();
    fs::write(top.join("acl/plain"), b"").unwrap();
    run(Command::new("setfacl").args(["-m", "u:2345:r"]).arg(top.join("acl/file")));
    run(Command::new("setfacl").args(["-d", "-m", "u:2345:r"]).arg(top.join("acl/inner")));
}

/// ls(1) and `glint ls`, as root or as an ordinary user who is in no group but his own.
fn both(uid: Option<&str>, words: &[String], at: &Path) -> [Output; 2] {
    let ours = glint();
    ["ls".into(), ours.get_program().to_owned()].map(|program| {
        let mut command = Command::new("setpriv");
        if let Some(uid) = uid {
            command.args(["--reuid", uid, "--regid", uid, "--clear-groups"]);
        }
        command.arg(&program);
        if program != "ls" {
            command.arg("ls");
        }
        command.args(words).current_dir(at).env("LC_ALL", "C").env("TZ", "America/New_York");
        command.output().unwrap()
    })
}

/// Asserts that both have printed the same bytes, end with the same exit code, and have said the
/// same, in whatever order.
fn assert_same(call: &str, [theirs, ours]: [Output; 2]) {
    let lines = |output: &Output| -> Vec<String> {
        output
            .stdout
            .split(|byte| *byte == b'\n')
            .map(|line| line.escape_ascii().to_string())
            .collect()
    };
    let said = |output: &Output| -> BTreeSet<String> {
        let said = String::from_utf8_lossy(&output.stderr);
        said.lines().map(|line| line.replace("glint ls: ", "ls: ")).collect()
    };
    let differ =
        lines(&theirs).into_iter().zip(lines(&ours)).filter(|(theirs, ours)| theirs != ours);
    let differ: Vec<_> = differ.take(20).collect();
    assert!(theirs.stdout == ours.stdout, "{call}: {differ:#?}, {:?}", said(&ours));
    assert_eq!(theirs.status.code(), ours.status.code(), "{call}: {:?}", said(&ours));
    assert_eq!(said(&theirs), said(&ours), "{call}");
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').filter(|word| !word.is_empty()).map(|word| word.replace('~', " ")).collect()
}

#[test]
fn glint_ls_lists_what_ls_does() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "first", &[]);
    let top = dir.join("top");
    fs::create_dir(&top).unwrap();
    make_tree(&top);
    // A mount estimates the space of what it wrote itself.
    mount.stop();
    let (_mount, dir) = world.mount(port, "second", &[]);
    let top = dir.join("top");
    // What reading changes it has changed before anything is compared.
    run(Command::new("find").arg(&dir).args(["-printf", "%l%t"]));
    for line in CALLS.lines().filter(|line| !line.is_empty()) {
        assert_same(line, both(None, &words(line), &top));
    }
    // At the root of the mount, above which is another file system.
    for line in ["-la", "-laR", "-lia .", "-a"] {
        assert_same(line, both(None, &words(line), &dir));
    }

    // At the server by its address: only paths are others.
    let on_server = address(port);
    for options in ["-lR", "-laF", "-R", "-lid", "-bF"] {
        let mut theirs = Command::new("ls");
        theirs.arg(options).arg("top").current_dir(&dir).env("LC_ALL", "C");
        let theirs = String::from_utf8(run(&mut theirs).stdout.escape_ascii().collect()).unwrap();
        let path = format!("{on_server}/top");
        let ours = run(glint().args(["ls", options, &path]));
        let ours = String::from_utf8(ours.stdout.escape_ascii().collect()).unwrap();
        let shown = path.replace(':', if options.contains('b') { "\\\\:" } else { ":" });
        assert_eq!(theirs, ours.replace(&shown, "top"), "{options}");
    }

    // A file that is being written has the size that a mount shows.
    let open = fs::File::create(top.join("open")).unwrap();
    open.write_all_at(&vec![1; 100_000], 7).unwrap();
    assert_same("-l open", both(None, &words("-l open"), &top));
    drop(open);

    let rows = run(glint().args(["ls", "--json", "-AR", text(&top.join("tree"))]));
    let rows: Vec<serde_json::Value> = rows
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|row| !row.is_empty())
        .map(|row| serde_json::from_slice(row).unwrap())
        .collect();
    assert_eq!(rows.len(), ODD.len() + 10, "{rows:?}");
    let odd = rows.iter().find(|row| row["path_bytes"].is_array()).unwrap();
    let bytes: Vec<u8> = serde_json::from_value(odd["path_bytes"].clone()).unwrap();
    assert!(bytes.starts_with(text(&top.join("tree")).as_bytes()), "{odd}");
    assert_eq!((&odd["type"], &odd["size"]), (&"f".into(), &9.into()));
    let link = run(glint().args(["ls", "--json", "-d", text(&top.join("deep/to"))]));
    let link: serde_json::Value = serde_json::from_slice(&link.stdout).unwrap();
    assert_eq!((&link["type"], &link["target"]), (&"l".into(), &"er".into()));

    // A server that is away is told once, and the rest is listed.
    let away = format!("127.0.0.1:{}/x", free_port());
    let mut command = glint();
    let output = command.args(["ls", &away, text(&top.join("old")), &away]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, format!("{}\n", top.join("old").display()).into_bytes());
    assert_eq!(String::from_utf8_lossy(&output.stderr).matches("no server listens").count(), 1);
    // In one line, and with the exit codes of ls(1), du(1) and find(1).
    for (command, code) in [("ls", 2), ("du", 1), ("find", 1)] {
        for (wrong, why) in [("--cert=", "try `glint"), ("/proc", "not in a Glint mount")] {
            let output = glint().args([command, wrong]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{command} {wrong}: {said}");
            assert!(said.contains(why) && said.lines().count() == 1, "{said}");
        }
    }
    let said = refused(glint().args(["ls", "--color"]));
    assert!(said.contains("there are no colours; say never or auto"), "{said}");
    let said = refused(glint().args(["ls", "--sideways"]));
    assert_eq!(said, "glint ls: unexpected argument '--sideways' found; try `glint ls --help`\n");
    // A reader that has enough ends it without a word.
    let mut command = glint();
    command.args(["ls", "-lR", text(&top)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.stderr.is_empty() && !output.status.success(), "{output:?}");

    // One that reads nothing does not keep it from being ended.
    let mut command = Command::new("env");
    // The tests may be run where it is ignored.
    command.arg("--default-signal=INT").arg(glint().get_program()).args(["ls", "-lR"]);
    command.args(std::iter::repeat_n(&top, 300)).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let output = child.stdout.as_ref().unwrap();
    let is_full = || rustix::io::ioctl_fionread(output).unwrap() >= 64 << 10;
    eventually("the pipe is full", is_full);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(2));

    // Nothing that lies here is taken for the server.
    fs::create_dir(top.join(&on_server)).unwrap();
    for command in ["ls", "find", "du"] {
        run(glint().args([command, "old"]).current_dir(&top));
    }
}

#[test]
fn an_ordinary_user_is_shown_what_a_mount_lists() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &[]);
    let (_mount, dir) = world.mount(port, "mount", &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let tree = dir.join("tree");
    super::make_with_rights(&tree, 2345);
    for directory in fs::read_dir(&tree).unwrap() {
        run(Command::new("mkfifo").arg(directory.unwrap().path().join("pipe")));
    }
    fs::create_dir(tree.join("bare")).unwrap();
    fs::set_permissions(tree.join("bare"), fs::Permissions::from_mode(0o744)).unwrap();
    for (nth, options) in [
        "",
        "-R",
        "-l",
        "-lR",
        "-laR",
        "-aR",
        "-iR",
        "-lisR",
        "-sR",
        "-FR",
        "-pR",
        "-lF",
        "-tR",
        "-SR",
        "-ld",
        "-lnR",
        "-lhR",
        "--full-time",
        "-QR",
    ]
    .into_iter()
    .enumerate()
    {
        for (which, (uid, paths)) in [
            ("2345", "tree"),
            ("5432", "tree"),
            ("2345", "tree/read tree/search tree/none tree/all"),
            ("2345", "tree/read/file tree/search/file tree/none/file"),
            ("2345", "tree/bare tree/own"),
            ("2345", "tree/read/link tree/search/link tree/search/sub"),
        ]
        .into_iter()
        .enumerate()
        {
            // Each with half of the options; with all of them in `make long`.
            if (nth + which) % 2 == 1 && at_length(0, 1) == 0 {
                continue;
            }
            let line = format!("{options} {paths}");
            assert_same(&format!("{uid}: {line}"), both(Some(uid), &words(&line), &dir));
        }
    }
    // Asked by its address, the server refuses the same.
    let path = format!("{}/tree/read", address(port));
    let [_, ours] = both(Some("2345"), &words(&format!("-l {path}")), &dir);
    assert_eq!(ours.status.code(), Some(1));
    assert!(!String::from_utf8_lossy(&ours.stdout).contains("root"), "{ours:?}");
    // Objects have what a mount would show, and no more.
    let [_, rows] = both(Some("2345"), &words("--json tree/read"), &dir);
    let row = rows.stdout.split(|byte| *byte == b'\n').next().unwrap();
    let row: serde_json::Value = serde_json::from_slice(row).unwrap();
    assert_eq!((&row["path"], &row["size"]), (&"tree/read/empty".into(), &().into()));
}
