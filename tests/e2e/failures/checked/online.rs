//! `glint fsck --online`: a namespace is checked while it is used.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use futures_lite::future::block_on;
use glint_kv::local::LocalKv;
use glint_kv::{Batch, Keyspace, Kv};
use glint_server::data_dir::DataDir;
use glint_server::{Settings, engine_options};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use support::load::Load;
use support::*;

/// Findings, and the summary, of a check that ends with this code.
fn check(online: &str, code: i32) -> (Vec<String>, Value) {
    let output = glint().args(["fsck", "--json", "--online", online]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}{output:?}");
    let mut lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().expect("a summary");
    let findings = lines.iter().map(|line| line["finding"].as_str().unwrap().to_owned());
    (findings.collect(), summary)
}

/// Makes, links, moves and removes files and directories.
fn move_around(dir: &Path, end: &AtomicBool) {
    let (one, two) = (dir.join("one"), dir.join("two"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    for n in 0.. {
        if end.load(Ordering::Relaxed) {
            break;
        }
        let (made, moved) = (one.join(format!("d{n}")), two.join(format!("d{n}")));
        fs::create_dir(&made).unwrap();
        fs::write(made.join("f"), b"words").unwrap();
        fs::hard_link(made.join("f"), one.join(format!("f{n}"))).unwrap();
        fs::rename(&made, &moved).unwrap();
        if n % 3 == 0 {
            fs::remove_dir_all(&moved).unwrap();
        }
        if n % 2 == 0 {
            fs::remove_file(one.join(format!("f{n}"))).unwrap();
        }
    }
}

#[test]
fn nothing_is_found_in_what_others_change() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "2"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let load = Load::start([&a, &b]);
    let end = Arc::<AtomicBool>::default();
    let (its_end, its_dir) = (end.clone(), a.clone());
    let mover = std::thread::spawn(move || move_around(&its_dir, &its_end));
    let (server_here, inside) = (address(port), a.join("one"));
    let places = [server_here.as_str(), text(&b), text(&inside)];
    for place in places.into_iter().cycle().take(at_length(3, 20) as usize) {
        let (findings, summary) = check(place, 0);
        assert!(findings.is_empty() && summary["findings"] == 0, "{findings:?} {summary}");
        assert!(summary["inodes"].as_u64() > Some(0), "{summary}");
        assert!(summary["entries"].as_u64() > Some(0), "{summary}");
    }
    end.store(true, Ordering::Relaxed);
    mover.join().unwrap();
    load.end(100);
    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn damage_is_found_while_the_server_runs() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    fs::create_dir(dir.join("d")).unwrap();
    for name in ["kept", "lost", "named"] {
        fs::write(dir.join("d").join(name), name).unwrap();
    }
    fs::hard_link(dir.join("d/named"), dir.join("d/twice")).unwrap();
    mount.stop();
    server.stop();
    world.assert_sound();
    remove_entries(&world.data(), &["lost", "twice"]);

    let server = world.serve(port, &[]);
    let (mut found, summary) = check(&address(port), 4);
    assert_eq!(summary["unrepaired"], 2, "{summary}");
    found.sort_by_key(|one| one.ends_with("has no name"));
    assert!(found[0].ends_with("has link count 2, should be 1"), "{found:?}");
    assert!(found[1].ends_with("has no name"), "{found:?}");
    let said = glint().args(["fsck", "--online", &address(port)]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("2 findings; `glint fsck --repair`"), "{said}");
    server.stop();
    let data = world.data();
    let repair = glint().args(["fsck", "--repair", text(&data)]).output().unwrap();
    assert_eq!(repair.status.code(), Some(1), "{repair:?}");
    let server = world.serve(port, &[]);
    for place in [address(port).as_str(), text(&data)] {
        assert!(check(place, 0).0.is_empty(), "{place}");
    }
    server.stop();

    let away = glint().args(["fsck", "--online", &address(port)]).output().unwrap();
    assert_eq!(away.status.code(), Some(8), "{away:?}");
    let both = glint().args(["fsck", "--repair", "--online", &address(port)]).output().unwrap();
    assert_eq!(both.status.code(), Some(16), "{both:?}");
}

#[test]
fn ends_of_files_without_copies_are_missed() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--scrub-bandwidth", "0"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let files = ["cut", "lost", "whole"].map(|name| dir.join(name));
    files.iter().for_each(|file| fs::write(file, [b'x'; 5000]).unwrap());
    // All of it is a hole, and its end is an object all the same.
    fs::File::create(dir.join("hole")).unwrap().set_len(1 << 20).unwrap();
    let objects = files.each_ref().map(|file| {
        let start = format!("{:016x}.", fs::metadata(file).unwrap().ino());
        move |name: &str| name.starts_with(&start)
    });
    mount.stop();
    assert!(check(&address(port), 0).0.is_empty());
    let top = world.data().join("ost0/objects");
    let stored = fs::read_dir(&top).unwrap().flatten();
    let stored: Vec<_> =
        stored.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten()).collect();
    let [cut, lost, _] = objects.map(|is_its| {
        let its = stored.iter().find(|entry| is_its(entry.file_name().to_str().unwrap()));
        its.expect("an object").path()
    });
    // A server remembers the size of an object that it has open.
    server.stop();
    fs::File::options().write(true).open(&cut).unwrap().set_len(1000).unwrap();
    fs::remove_file(&lost).unwrap();
    let server = world.serve(port, &["--scrub-bandwidth", "0"]);
    let (mut found, summary) = check(&address(port), 4);
    assert_eq!((found.len(), &summary["unrepaired"]), (2, &2.into()), "{found:?}");
    found.sort_by_key(|one| one.contains("is missing"));
    let cut = "on OST 0 has lost its end: 1000 of 5000 bytes are left; restore the file";
    assert!(found[0].contains(cut), "{found:?}");
    let missing = "is missing on OST 0: 5000 bytes, to the file's end; restore the file";
    assert!(found[1].contains(missing), "{found:?}");
    let said = glint().args(["fsck", "--online", &address(port)]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("2 findings, 2 that --repair cannot put right; 2 files"), "{said}");
    assert!(said.contains("restore those files first"), "{said}");
    server.stop();
}

#[test]
fn a_server_without_an_address_is_checked_through_its_mount() {
    let world = World::new();
    let up = world.up(&[]);
    fs::write(world.mount_point().join("lost"), b"words").unwrap();
    up.stop();
    remove_entries(&world.data(), &["lost"]);

    let up = world.up(&[]);
    let (found, summary) = check(text(&world.mount_point()), 4);
    assert_eq!(summary["unrepaired"], 1, "{summary}");
    assert!(found[0].ends_with("has no name"), "{found:?}");
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(glint().get_program());
    let said = refused(other.args(["fsck", "--online", text(&world.mount_point())]));
    assert!(said.contains("as the user who mounted it"), "{said}");
    let data = world.data();
    let said = refused(glint().args(["fsck", "--online", text(&data)]));
    assert!(said.contains("where it is mounted"), "{said}");
    up.stop();
}

/// Starts a check, interrupts it as soon as it listens for that, and returns how it ends.
fn interrupted(online: &str) -> Output {
    let mut command = Command::new("env");
    // The tests may be run where it is ignored.
    command.arg("--default-signal=INT").arg(glint().get_program());
    command.args(["fsck", "--json", "--online", online]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let threads = format!("/proc/{}/task", child.id());
    eventually("the check listens for signals", || {
        let mut threads = fs::read_dir(&threads).unwrap().flatten();
        threads.any(|thread| {
            let name = fs::read_to_string(thread.path().join("comm"));
            name.is_ok_and(|name| name.trim() == "signals")
        })
    });
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn ctrl_c_ends_a_check() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let output = interrupted(&address(port));
    // A machine that has much else to do may need longer than it is waited for.
    if output.status.signal() != Some(2) {
        assert_eq!(output.status.code(), Some(8), "{output:?}");
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(summary["error"], "ended before all was checked", "{summary}");
    }
    // Nobody waits for a server that does not answer, nor for a mount that waits for it.
    server.halt(true);
    let outputs = [address(port).as_str(), text(&dir)].map(interrupted);
    server.halt(false);
    for output in outputs {
        assert_eq!(output.status.signal(), Some(2), "{output:?}");
    }
    mount.stop();
    server.stop();
}

/// Removes names from the store of a stopped server.
fn remove_entries(data: &Path, names: &[&str]) {
    let data = DataDir::open(data).unwrap();
    let kv = LocalKv::open(&data.mds(), engine_options(&data, &Settings::default()).unwrap());
    let kv = kv.unwrap();
    let all = block_on(kv.scan(Keyspace::Entry, &[], &[0xff; 9], usize::MAX)).unwrap();
    let mut batch = Batch::new();
    for (key, _) in all {
        // Behind the directory and the hash.
        if names.iter().any(|name| key[16..] == *name.as_bytes()) {
            batch.delete(Keyspace::Entry, &key);
        }
    }
    block_on(kv.commit(batch, &[])).unwrap();
    block_on(kv.sync()).unwrap();
}
