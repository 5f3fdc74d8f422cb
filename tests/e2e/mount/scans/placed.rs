//! Tests of `glint find` that find(1) does not have: extended attributes, layouts, OSTs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use rustix::fs::XattrFlags;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use support::*;

/// Names that text tools trip over.
const ODD: [&[u8]; 8] =
    [b"a\nb", b"\xff\xfe", b" ", b"-ost", b"*", b"quote'\"", b".hidden", b"back\\slash"];

/// An attribute whose name text tools trip over.
const ODD_XATTR: &[u8] = b"user.a=b\n\xff*";

/// User without rights of his own.
const USER: &str = "1234";

/// Inodes of files.
type Found = BTreeSet<u64>;

/// Runs `glint find -printf '%i '` as a user.
fn find(uid: &str, start: &OsStr, expression: &[&[u8]]) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", uid, "--regid", uid, "--clear-groups"]);
    command.arg(glint().get_program()).arg("find").arg(start);
    command.args(expression.iter().map(|word| OsStr::from_bytes(word)));
    command.args(["-printf", "%i "]).output().unwrap()
}

fn inodes(output: &Output) -> Found {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.split_whitespace().map(|ino| ino.parse().unwrap()).collect()
}

/// All files below a directory that a mount shows.
fn all_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.symlink_metadata().unwrap().is_dir() {
            found.extend(all_below(&path));
        }
        found.push(path);
    }
    found
}

fn set_xattr(path: &Path, name: &[u8]) {
    rustix::fs::lsetxattr(path, name, b"value", XattrFlags::empty()).unwrap();
}

fn xattrs(path: &Path) -> Vec<Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names).unwrap();
    names[..len].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

fn make_tree(tree: &Path) {
    for (name, layout) in [
        ("plain", &["-c", "1"][..]),
        ("striped", &["-c", "2", "-S", "128K"]),
        ("wide", &["-c", "0", "-S", "1M"]),
        ("copies", &["-r", "2"]),
        ("locked", &["-c", "2"]),
    ] {
        let directory = tree.join(name);
        fs::create_dir_all(&directory).unwrap();
        run(glint().arg("setstripe").args(layout).arg(&directory));
        for (n, odd) in ODD.iter().enumerate() {
            let file = directory.join(OsStr::from_bytes(odd));
            fs::write(&file, vec![b'x'; n * 70_000]).unwrap();
            if n % 2 == 0 {
                set_xattr(&file, b"user.project");
            }
            if n % 3 == 0 {
                set_xattr(&file, ODD_XATTR);
            }
            if n == 5 {
                set_xattr(&file, b"trusted.x");
            }
        }
        symlink("*", directory.join("link")).unwrap();
        set_xattr(&directory, format!("user.{name}").as_bytes());
    }
    // Files that must not be looked at have names that may be read.
    fs::set_permissions(tree.join("locked"), fs::Permissions::from_mode(0o744)).unwrap();
}

/// What is found as root and as a user, at a mount and at the server, is what was expected of all
/// files, but for those that the user must not look at.
fn must_find(tree: &Path, on_server: &str, expression: &[&[u8]], expected: &Found) {
    let shown: Vec<_> = expression.iter().map(|word| String::from_utf8_lossy(word)).collect();
    let locked: Found = all_below(&tree.join("locked")).iter().map(|path| ino_of(path)).collect();
    for start in [tree.as_os_str(), OsStr::new(on_server)] {
        let all = find("0", start, expression);
        let said = String::from_utf8_lossy(&all.stderr);
        assert!(all.status.success(), "{shown:?}: {said}");
        assert_eq!(&inodes(&all), expected, "{shown:?} at {start:?}");
        let allowed = find(USER, start, expression);
        let said = String::from_utf8_lossy(&allowed.stderr);
        let expected = expected.difference(&locked).copied().collect();
        assert_eq!(inodes(&allowed), expected, "{shown:?} as a user at {start:?}");
        assert_eq!(allowed.status.code(), Some(1), "{shown:?}: {said}");
        assert_eq!(said.matches("Permission denied").count(), locked.len(), "{shown:?}: {said}");
    }
}

fn ino_of(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

#[test]
fn attributes_and_layouts_are_those_that_a_mount_and_getstripe_show() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let _osses = [1, 2].map(|n| world.oss(n, free_port(), port, &[]));
    let (_mount, dir) = world.mount(port, "mount", &[]);
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let (tree, on_server) = (dir.join("tree"), format!("{}/tree", address(port)));
    make_tree(&tree);
    let mut files = all_below(&tree);
    files.push(tree.clone());
    let chosen = |is_meant: &dyn Fn(&Path) -> bool| -> Found {
        files.iter().filter(|path| is_meant(path)).map(|path| ino_of(path)).collect()
    };

    // Names of attributes.
    let with_name = |is_meant: &dyn Fn(&[u8]) -> bool| {
        chosen(&|path| xattrs(path).iter().any(|name| !name.is_empty() && is_meant(name)))
    };
    let project = with_name(&|name| name == b"user.project");
    assert!(project.len() == 20, "{project:?}");
    must_find(&tree, &on_server, &[b"-xattr", b"user.project"], &project);
    must_find(&tree, &on_server, &[b"-xattr", b"user.proj"], &Found::new());
    must_find(&tree, &on_server, &[b"-xattr", b"*"], &with_name(&|_| true));
    must_find(
        &tree,
        &on_server,
        &[b"-depth", b"-xattr", b"user.[sw]*"],
        &with_name(&|name| name.starts_with(b"user.s") || name.starts_with(b"user.w")),
    );
    let odd = with_name(&|name| name == ODD_XATTR);
    assert!(odd.len() == 15);
    must_find(&tree, &on_server, &[b"-xattr", b"user.a=b\n\xff\\*"], &odd);
    must_find(
        &tree,
        &on_server,
        &[b"-xattr", b"trusted.x"],
        &with_name(&|name| name == b"trusted.x"),
    );
    must_find(&tree, &on_server, &[b"-xattr", b"user.project", b"-xattr", b"user.a=*"], &{
        project.intersection(&odd).copied().collect()
    });

    // Layouts, in the words of getstripe.
    let laid_out: Vec<&PathBuf> = files.iter().filter(|path| !path.is_symlink()).collect();
    let rows = run(glint().args(["getstripe", "--json"]).args(&laid_out));
    let rows: Vec<serde_json::Value> = rows
        .stdout
        .split(|b| *b == b'\n')
        .filter_map(|row| serde_json::from_slice(row).ok())
        .collect();
    assert_eq!(rows.len(), laid_out.len());
    let with_layout = |is_meant: &dyn Fn(&serde_json::Value) -> bool| -> Found {
        let meant = laid_out.iter().zip(&rows).filter(|(_, row)| is_meant(row));
        meant.map(|(path, _)| ino_of(path)).collect()
    };
    let number = |row: &serde_json::Value, name: &str| row[name].as_u64();
    for (wanted, expected) in [
        ("stripe_count=2", with_layout(&|row| number(row, "stripe_count") == Some(2))),
        ("stripe_count=+1", with_layout(&|row| number(row, "stripe_count") > Some(1))),
        ("stripe_count=0", with_layout(&|row| number(row, "stripe_count") == Some(0))),
        ("stripe_size=128K", with_layout(&|row| number(row, "stripe_size") == Some(128 << 10))),
        ("stripe_size=-1M", with_layout(&|row| number(row, "stripe_size") < Some(1 << 20))),
        ("replicas=2", with_layout(&|row| number(row, "replicas") == Some(2))),
        ("replicas=1", with_layout(&|row| number(row, "replicas").is_none())),
        (
            "first_ost=1,stripe_count=2",
            with_layout(&|row| {
                (number(row, "first_ost"), number(row, "stripe_count")) == (Some(1), Some(2))
            }),
        ),
        ("osts=4", with_layout(&|row| number(row, "osts") == Some(4))),
    ] {
        assert!(!expected.is_empty(), "{wanted}");
        must_find(&tree, &on_server, &[b"-layout", wanted.as_bytes()], &expected);
    }
    // What getstripe prints can be asked for.
    let wide = tree.join("wide/*");
    let said = String::from_utf8(run(glint().arg("getstripe").arg(&wide)).stdout).unwrap();
    let layout = said.trim_end().rsplit_once(": ").unwrap().1;
    let same = run(glint().arg("find").arg(&wide).args(["-layout", layout, "-printf", "%i"]));
    assert_eq!(String::from_utf8(same.stdout).unwrap(), ino_of(&wide).to_string());

    // OSTs: the MDS says the same of all files.
    let mut on_any = Found::new();
    for ost in 0..4 {
        let listed = run(glint().args(["ost", "files", &ost.to_string(), "--json"]).arg(&dir));
        let listed = String::from_utf8(listed.stdout).unwrap();
        let inode =
            |row: &str| serde_json::from_str::<serde_json::Value>(row).unwrap()["ino"].as_u64();
        let listed: Found = listed.lines().map(|row| inode(row).unwrap()).collect();
        assert!(!listed.is_empty(), "no file is on OST {ost}");
        must_find(&tree, &on_server, &[b"-ost", ost.to_string().as_bytes()], &listed);
        on_any.extend(listed);
    }
    must_find(&tree, &on_server, &[b"-ost", b"0,3,1,2"], &on_any);
    assert_eq!(on_any, chosen(&|path| path.symlink_metadata().unwrap().is_file()));
    // One that is not there is told, and not that nothing is on it.
    for start in [text(&tree), &on_server] {
        let output = glint().args(["find", start, "-type", "f", "-ost", "1,4"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{output:?}");
        assert!(said.contains("-ost 4: there is no such OST") && said.contains("0 to 3"), "{said}");
    }

    for (wrong, told) in [
        (["-layout", "stripes=1"], "-layout \"stripes=1\""),
        (["-ost", "x"], "-ost \"x\""),
        (["-true", "-xattr"], "-xattr needs"),
    ] {
        let said = refused(glint().arg("find").arg(&tree).args(wrong));
        assert!(said.contains(told), "{said}");
    }
}

/// How far a walk is stands on a terminal, and is gone when it ends; nowhere else.
#[test]
fn progress_of_find_is_shown_on_a_terminal_alone() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &[]);
    let (_mount, dir) = world.mount(port, "mount", &[]);
    fs::create_dir_all(dir.join("tree/slow")).unwrap();
    fs::write(dir.join("tree/slow/file"), b"").unwrap();
    // The paths of both may have quotes.
    let command = r#""$PROGRAM" find "$TREE" -name file -exec sleep 1.3 ';' -print -o -name slow"#;
    let with_paths = |program: &str| {
        let mut command = Command::new(program);
        command.env("PROGRAM", glint().get_program()).env("TREE", dir.join("tree"));
        command
    };
    let line = format!("{}/tree/slow/file", dir.display());
    let quiet = run(with_paths("sh").args(["-c", command]));
    assert_eq!((quiet.stdout, quiet.stderr.len()), (format!("{line}\n").into_bytes(), 0));
    // Output and errors are on one terminal.
    let shown = run(with_paths("script").args(["-qec", command, "/dev/null"]));
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(" files, ") && shown.contains(" a second"), "{shown:?}");
    assert!(shown.contains(&format!("{line}\r\n")), "{shown:?}");
    let (_, rest) = shown.rsplit_once("a second").unwrap();
    assert!(rest.contains("\r\x1b[K") && !rest.contains(" files, "), "{shown:?}");
}

/// Commands that are there for their output say so if it is lost, with the exit codes of find(1), ls(1)
/// and du(1).
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &[]);
    let (_mount, dir) = world.mount(port, "mount", &[]);
    fs::write(dir.join("file"), b"").unwrap();
    let program = glint().get_program().to_owned();
    let sh = |words: &str| {
        let script = format!("\"$1\" {words}");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg("sh").arg(&program).current_dir(&dir);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (command, code) in [("find .", 1), ("ls -la", 2), ("du .", 1)] {
        for (output, why) in
            [(">&-", "Bad file descriptor"), ("> /dev/full", "No space left on device")]
        {
            let (ended, said) = sh(&format!("{command} {output}"));
            assert!(ended == Some(code) && said.contains(why), "{command} {output}: {said}");
        }
        assert_eq!(sh(&format!("{command} > /dev/null")), (Some(0), String::new()), "{command}");
    }
    // Nothing is lost where nothing is printed.
    assert_eq!(sh("find . -name none >&-"), (Some(0), String::new()));
    assert_eq!(sh("find . -name none > /dev/full"), (Some(0), String::new()));
}
