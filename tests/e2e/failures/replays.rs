//! Servers that came back with less than they had promised to keep: what cannot be done again is
//! said in the log of the mount, and by the next fsync of the file or directory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use support::disk::{Disk, move_ost};
use support::*;

/// Nothing is synced by itself.
const NEVER: [&str; 2] = ["--commit", "60000"];

/// Lines of a log about an event that have a field.
fn lines_with(log: &str, event: &str, field: &str) -> usize {
    log.lines().filter(|line| events::count(line, event) > 0 && line.contains(field)).count()
}

fn sync(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

/// A snapshot of the data directory is restored that is older than what was synced.
#[test]
fn what_an_old_snapshot_lacks_is_named() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &NEVER);
    let (mount, dir) = world.mount(port, "m", &["-o", "nowbmeta"]);
    fs::write(dir.join("before"), b"before").unwrap();
    sync(&dir.join("before")).unwrap();
    sync(&dir).unwrap();
    let (data, snapshot) = (world.data(), world.path("snapshot"));
    server.halt(true);
    run(Command::new("cp").arg("-a").arg(&data).arg(&snapshot));
    server.halt(false);
    // Durable, so this client keeps nothing to do it again.
    let d = dir.join("d");
    fs::create_dir(&d).unwrap();
    let directory = File::open(&d).unwrap();
    directory.sync_all().unwrap();
    sync(&dir).unwrap();
    // Not durable, and impossible where there is no `d`.
    fs::create_dir(d.join("sub")).unwrap();
    mount.assert_no(event::REPLAY_FAILED);
    server.kill();
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&snapshot, &data).unwrap();
    let server = world.serve(port, &[&NEVER[..], &["--after-power-loss"]].concat());
    mount.wait_for_event(event::REPLAY_FAILED);
    assert_eq!(fs::read(dir.join("before")).unwrap(), b"before", "others go on");
    let log = mount.log();
    assert_eq!(lines_with(&log, event::REPLAY_FAILED, "op="), 1, "the operation: {log}");
    assert!(lines_with(&log, event::REPLAY_FAILED, "ino=") > 0, "its directory: {log}");
    directory.sync_all().unwrap_err();
    drop(directory);
    mount.stop();
    server.stop();
    world.assert_sound();
}

/// Data that was answered and not synced is lost with the power, and its disk is full afterwards.
#[test]
fn data_that_has_no_room_any_more_is_named() {
    let world = World::new();
    let (at, port) = (world.path("disk"), free_port());
    world.serve(port, &NEVER).stop();
    let disk = Disk::new(&world.path("image"), &at, "ext4", 200);
    move_ost(&world.data(), 0, &at);
    let server = world.serve(port, &NEVER);
    let (mount, dir) = world.mount(port, "m", &[]);
    // Around the cache of the kernel; this client sends it when it is old.
    let path = dir.join("f");
    let mut file = fs::OpenOptions::new();
    let file = file.create(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let written = vec![7; 8 << 20];
    let write = || file.write_all_at(&written, 0);
    write().unwrap();
    eventually("the server has it", || objects(&world.data()).1 == written.len() as u64);
    disk.lose_power(|| server.kill());
    let filler = at.join("filler");
    let full = std::io::copy(&mut std::io::repeat(1), &mut File::create(&filler).unwrap());
    assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    mount.assert_no(event::REPLAY_FAILED);
    let server = world.serve(port, &[&NEVER[..], &["--after-power-loss"]].concat());
    mount.wait_for_event(event::REPLAY_FAILED);
    let log = mount.log();
    assert!(lines_with(&log, event::REPLAY_FAILED, "ost=") > 0, "{log}");
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    // And it can be written again when there is room.
    fs::remove_file(&filler).unwrap();
    eventually("there is room again", || write().is_ok());
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(&path).unwrap() == written);
    mount.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}
