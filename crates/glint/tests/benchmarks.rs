//! `glint bench` becomes `glint-bench`, as these tests see it by a script in its place.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Says which process it is and what it is asked for, and ends as it is asked.
const SCRIPT: &str = r#"#!/bin/sh
echo "$$" "$@"
case "$*" in *killed) kill -TERM $$ ;; esac
exit 7
"#;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `glint` in a directory where nothing else is, and not in PATH.
fn glint(directory: &Path) -> Command {
    let path = directory.join("glint");
    if !path.exists() {
        fs::hard_link(env!("CARGO_BIN_EXE_glint"), &path).unwrap();
    }
    let mut command = Command::new(path);
    command.env("PATH", "/nowhere").env_remove("GLINT_CERT");
    command
}

fn put_script(directory: &Path) {
    let path = directory.join("glint-bench");
    fs::write(&path, SCRIPT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Arguments that the script in its place is asked with.
fn asked(command: &mut Command) -> String {
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let (who, what) = said.trim_end().split_once(' ').unwrap_or((said.trim_end(), ""));
    assert_eq!(who, pid.to_string(), "it is the same process");
    what.to_owned()
}

#[test]
fn it_gets_every_word_and_the_options_of_all_commands() {
    let own = directory();
    put_script(own.path());
    for (said, heard) in [
        ("bench", ""),
        ("bench --help", "--help"),
        ("bench -h", "-h"),
        ("help bench createmany", "help createmany"),
        ("bench createmany --count 5 -h", "createmany --count 5 -h"),
        ("-vv --cert D bench ior --total 1G", "-v -v --cert D ior --total 1G"),
        ("bench -v stream --cert D", "-v stream --cert D"),
        ("bench ior -- x", "ior -- x"),
    ] {
        assert_eq!(asked(glint(own.path()).args(said.split(' '))), heard, "{said}");
    }
}

#[test]
fn its_end_is_the_end_of_the_command() {
    let own = directory();
    put_script(own.path());
    let code = glint(own.path()).args(["bench", "x"]).stdout(Stdio::null()).status().unwrap();
    assert_eq!(code.code(), Some(7));
    let killed = glint(own.path()).args(["bench", "killed"]).stdout(Stdio::null()).status();
    assert_eq!(killed.unwrap().signal(), Some(15));
}

#[test]
fn it_is_looked_for_beside_and_then_in_path() {
    let (own, other) = (directory(), directory());
    let missing = glint(own.path()).args(["bench", "ior"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    let why = String::from_utf8(missing.stderr).unwrap();
    assert!(why.contains("glint-bench") && why.contains("`make build`"), "{why}");
    put_script(other.path());
    let found = asked(glint(own.path()).env("PATH", other.path()).args(["bench", "ior"]));
    assert_eq!(found, "ior");
}
