//! An OST that is drained while it is used, and taken away; nothing is lost, and nobody sees it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::load::Load;
use support::*;

const FILES: usize = 40;

/// Files of several sizes and layouts below two directories, one of them with copies.
fn make(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    fs::create_dir(dir.join("copies")).unwrap();
    fs::create_dir(dir.join("striped")).unwrap();
    run(glint().args(["setstripe", "-r", "2"]).arg(dir.join("copies")));
    fs::create_dir(dir.join("wide")).unwrap();
    run(glint().args(["setstripe", "-c", "2", "-S", "64K"]).arg(dir.join("striped")));
    run(glint().args(["setstripe", "-c", "0", "-S", "64K"]).arg(dir.join("wide")));
    for n in 0..FILES {
        for below in ["", "copies", "striped", "wide"] {
            let path = dir.join(below).join(format!("file{n}"));
            // Empty ones, too: what is written there later must not come to the OST.
            let content: Vec<u8> =
                (0..n * 9000).map(|at| (at * 7 + n * 13 + at / 251) as u8).collect();
            fs::write(&path, &content).unwrap();
            files.insert(path, content);
        }
    }
    let odd = dir.join(OsStr::from_bytes(b"odd \xff\nname"));
    fs::write(&odd, b"odd").unwrap();
    files.insert(odd, b"odd".into());
    files
}

fn must_be(files: &BTreeMap<PathBuf, Vec<u8>>) {
    for (path, content) in files {
        assert!(&fs::read(path).unwrap() == content, "{} is another one", path.display());
    }
}

fn ost(words: &[&str], dir: &Path) -> Output {
    run(glint().arg("ost").args(words).arg(dir))
}

/// What `glint ost list` says of the OST.
fn row(dir: &Path) -> Value {
    let listed = ost(&["list", "--json"], dir).stdout;
    let parsed = |line: &str| -> Value { serde_json::from_str(line).unwrap() };
    let mut rows = std::str::from_utf8(&listed).unwrap().lines().map(parsed);
    rows.find(|row| row["ost"] == 3).unwrap()
}

fn signal(process: &Child, signal: &str) {
    run(Command::new("kill").args([signal, &process.id().to_string()]));
}

fn listed(dir: &Path) -> usize {
    String::from_utf8_lossy(&ost(&["files", "3", "--json"], dir).stdout).lines().count()
}

#[test]
fn an_ost_is_drained_while_it_is_used_and_taken_away() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port(), free_port()]);
    let metrics = address(free_port());
    let server = world.serve(port, &["--lease", "6", "--metrics", &metrics]);
    let [first, second, third] =
        [1, 2, 3].map(|n| world.oss(n, ports[usize::from(n) - 1], port, &[]));
    let (a, dir) = world.mount(port, "a", &[]);
    let (b, other) = world.mount(port, "b", &[]);
    let files = make(&dir);
    run(Command::new("sync").arg("-f").arg(&dir));
    let before = listed(&dir);
    assert!(before > FILES / 2, "{before} files are on it");

    let said = refused(glint().args(["ost", "drain", "3", &address(port)]));
    assert!(said.contains("through a mount"), "{said}");
    let said = refused(glint().args(["ost", "drain", "9"]).arg(&dir));
    assert!(said.contains("there is no OST 9"), "{said}");
    let said = refused(glint().args(["ost", "remove", "3"]).arg(&dir));
    assert!(said.contains("OST 3 has"), "{said}");

    let load = Load::start([&dir, &other]);
    let mut moving = glint();
    moving.args(["ost", "drain", "3", "--json"]).arg(&dir).stdout(Stdio::piped());
    let mut moving = moving.spawn().unwrap();
    let mut lines = BufReader::new(moving.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("path"));
    // Others see how far it is.
    signal(&moving, "-STOP");
    let seen = row(&other);
    let left = |what: &str| seen["moving"][what].as_u64().unwrap_or(0);
    assert!(left("files") > 0 && left("bytes") > 0, "{seen}");
    let list = String::from_utf8(ost(&["list"], &other).stdout).unwrap();
    let shown = |line: &str| line.starts_with("ost 3") && line.contains(", draining: ");
    assert!(list.lines().any(shown), "{list}");
    let scraped = scrape(&metrics);
    assert!(scraped.contains("\nglint_ost_files_to_move{ost=\"3\"} "), "{scraped}");
    signal(&moving, "-CONT");
    let last = lines.last().unwrap();
    assert!(moving.wait().unwrap().success(), "{last}");
    load.end(10);
    // Files that clients made by themselves before they heard of it.
    let said = String::from_utf8(ost(&["drain", "3"], &dir).stdout).unwrap();
    assert!(said.contains("run `glint ost remove 3`, and stop its server when"), "{said}");
    assert_eq!(listed(&other), 0);
    assert!(row(&other)["moving"].is_null(), "nothing is under way");
    must_be(&files);
    let list = String::from_utf8(ost(&["list"], &dir).stdout).unwrap();
    assert!(
        list.lines().any(|line| line.starts_with("ost 3") && line.contains("DRAINED")),
        "{list}"
    );
    // New files and data in old ones go elsewhere.
    let content = vec![3; 200_000];
    for n in 0..FILES {
        fs::write(other.join(format!("new{n}")), &content).unwrap();
        fs::write(dir.join(format!("copies/new{n}")), &content).unwrap();
    }
    fs::write(dir.join("file0"), &content).unwrap();
    run(Command::new("sync").arg("-f").arg(&dir));
    assert_eq!(listed(&dir), 0);
    let data = world.oss_data(3);
    eventually("it has no objects", || objects(&data).0 == 0);

    // The MDS keeps objects with copies in mind until no copy can bring them back, half a minute.
    // Meanwhile its server has to run.
    let mut said = String::new();
    eventually("nothing is kept in mind", || {
        said = refused(glint().args(["ost", "remove", "3"]).arg(&dir));
        let waits = said.contains("moved or removed");
        assert!(!waits || said.contains("start it if it is stopped"), "{said}");
        !waits
    });
    assert!(said.contains("is heard of"), "{said}");
    third.stop();
    eventually("it is taken away", || {
        glint().args(["ost", "remove", "3"]).arg(&dir).output().unwrap().status.success()
    });
    let said = String::from_utf8(ost(&["drain", "3"], &dir).stdout).unwrap();
    assert!(said.contains("it was taken away") && !said.contains("stop its server"), "{said}");
    // A mount that knows it waits for it at its end.
    let mounts = [a, b];
    mounts.iter().for_each(|mount| mount.signal(rustix::process::Signal::INT));
    mounts.into_iter().for_each(|mount| _ = mount.ends());
    let (b, other) = world.mount(port, "c", &[]);
    let seen_by_other = |path: &PathBuf| other.join(path.strip_prefix(&dir).unwrap());
    let mut seen: BTreeMap<_, _> =
        files.iter().map(|(path, content)| (seen_by_other(path), content.clone())).collect();
    seen.insert(other.join("file0"), content.clone());
    must_be(&seen);
    fs::write(other.join("after"), &content).unwrap();
    [b, first, second, server].into_iter().for_each(Process::stop);
}

#[test]
fn an_ost_is_used_again_when_its_drain_has_ended() {
    let world = World::new();
    let server = world.up(&["--osts", "3", "--replicas", "3"]);
    let dir = world.mount_point();
    let said = refused(glint().args(["ost", "drain", "1"]).arg(&dir));
    assert!(said.contains("3 copies need 3 failure domains"), "{said}");
    server.stop();
    let world = World::new();
    let server = world.up(&["--osts", "3"]);
    let dir = world.mount_point();
    ost(&["drain", "2"], &dir);
    server.stop();
    // It outlives the run.
    let server = world.up(&["--osts", "3"]);
    let lies_there = |n: usize| {
        let path = dir.join(format!("f{n}"));
        fs::write(&path, b"x").unwrap();
        let layout = run(glint().arg("getstripe").arg(&path)).stdout;
        String::from_utf8(layout).unwrap().contains("first_ost=2")
    };
    assert!(!(0..20).any(lies_there));
    ost(&["undrain", "2"], &dir);
    let said = refused(glint().args(["ost", "remove", "2"]).arg(&dir));
    assert!(said.contains("OST 2 is not drained"), "{said}");
    assert!((20..40).any(lies_there));
    server.stop();
    world.assert_sound();
}
