//! Memory of a mount: what it keeps where there is little, and when nobody uses it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use support::host::memory_limit::MemoryLimit;
use support::*;

const MIB: u64 = 1 << 20;

fn status(of: &str) -> Value {
    let output = run(glint().args(["status", "--json", of]));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of} is no number"))
}

fn make_files(directory: &Path, files: u64) {
    fs::create_dir(directory).unwrap();
    let directory = File::open(directory).unwrap();
    for i in 0..files {
        let kind = rustix::fs::FileType::RegularFile;
        rustix::fs::mknodat(&directory, format!("file-{i}"), kind, 0o644.into(), 0).unwrap();
    }
}

/// Mounts in a control group with this limit.
fn mount_within(world: &World, limit: &MemoryLimit, port: u16) -> (Process, std::path::PathBuf) {
    let (address, directory) = (address(port), world.short("limited"));
    fs::create_dir_all(&directory).unwrap();
    let mut mount = glint();
    mount.args(["mount", "-f", &address, text(&directory)]);
    let log = world.new_log("limited.log");
    let process = Process::start_as(&mut limit.wrap(&mount), log, Some(&directory));
    process.wait_for_event(glint_telemetry::event::MOUNTED);
    (process, directory)
}

#[test]
fn a_mount_with_little_memory_scans_many_files() {
    const FILES: u64 = 50_000;
    /// Files take some 50 MiB of a mount that keeps all of them, and 20 before they are opened.
    const ROOM: u64 = 40 * MIB;
    let Some(limit) = MemoryLimit::new("client", 1024 * MIB) else {
        eprintln!("skipped: no control groups that limit memory can be made here");
        return;
    };
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (maker, made) = world.mount(port, "made", &[]);
    for part in ["one", "two", "three", "four", "five"] {
        make_files(&made.join(part), FILES / 5);
    }
    maker.stop();

    let (mount, a) = mount_within(&world, &limit, port);
    let bytes = limit.used() + ROOM;
    limit.set(bytes).unwrap();
    fs::write(a.join("kept"), "open all the time").unwrap();
    let kept = File::open(a.join("kept")).unwrap();
    let count =
        || sh(&a, "find . -name 'file-*' -type f -links 1 -exec cat {} + | wc -c; find . | wc -l");
    for _ in 0..at_length(1, 2) {
        assert_eq!(count().split_whitespace().collect::<Vec<_>>(), ["0", "50007"]);
        let state = status(text(&a));
        let memory = &state["client"]["memory"];
        eprintln!("{} of {bytes} bytes: {}", limit.used(), state["client"]);
        assert!(number(&memory["inodes_max"]) < number(&memory["inodes_max_ample"]), "{memory}");
        assert!(number(&state["client"]["cached_inodes"]) < FILES, "{state}");
        assert_ne!(memory["data_part"], "all");
        let shown = run(glint().arg("status").arg(&a)).stdout;
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.contains("  memory   ") && shown.contains("of 393216 inodes"), "{shown}");
    }
    assert_eq!(limit.kills(), 0, "the kernel had to kill: {}", mount.log());
    let mut content = [0; 32];
    let read = rustix::io::pread(&kept, &mut content, 0).unwrap();
    assert_eq!(&content[..read], b"open all the time");
    drop(kept);
    mount.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn a_mount_that_nobody_uses_returns_its_locks() {
    const FILES: u64 = 2_000;
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (maker, made) = world.mount(port, "made", &[]);
    make_files(&made.join("files"), FILES);
    maker.stop();

    let (mount, a) = world.mount(port, "a", &["-o", "idle=5"]);
    let scan = || sh(&a, "ls -lR . | wc -l");
    scan();
    assert!(number(&status(text(&a))["client"]["cached_inodes"]) > FILES);
    let server_address = address(port);
    let locked = || number(&status(&server_address)["locks"]["inodes"]);
    assert!(locked() > FILES, "{}", locked());
    // Looking at its state is no use, and how full it is neither.
    eventually("locks are returned", || {
        run(std::process::Command::new("df").arg(&a));
        number(&status(text(&a))["client"]["cached_inodes"]) < 20 && locked() < 20
    });
    assert_eq!(status(text(&a))["client"]["memory"]["idle"], true);
    // What is asked for again is kept again.
    scan();
    let state = status(text(&a))["client"].take();
    assert!(number(&state["cached_inodes"]) > FILES, "{state}");
    assert_eq!(state["memory"]["inodes_max"], state["memory"]["inodes_max_ample"]);
    mount.stop();

    let (mount, a) = world.mount(port, "a", &["-o", "idle=0"]);
    sh(&a, "ls -lR . | wc -l");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert!(number(&status(text(&a))["client"]["cached_inodes"]) > FILES);
    mount.stop();
    server.stop();
    world.assert_sound();
}
