//! Servers that came back with less than they had promised to keep: what cannot be done again is
//! said in the log of the mount, and by the next fsync of the file or directory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use support::disk::{Disk, move_ost};
use support::*;

/// Nothing is synced by itself.
const NEVER: [&str; 2] = ["--commit", "60000"];

/// Lines of a log about an event that have a field.
fn lines_with(log: &str, event: &str, field: &str) -> usize {
    log.lines().filter(|line| events::count(line, event) > 0 && line.contains(field)).count()
}

/// File that takes all room of a disk.
const FILLER: &str = "filler";

fn fill(at: &Path) {
    let mut filler = File::create(at.join(FILLER)).unwrap();
    let full = std::io::copy(&mut std::io::repeat(1), &mut filler);
    assert_eq!(full.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
}

/// Removes what a disk that lost its power has of objects: the kernel has written them by itself if
/// anybody on this machine has called sync(2) meanwhile.
fn lose_objects(at: &Path) {
    sh(at, "find ost0/objects -type f -delete");
}

/// Bytes of one write.
const PIECE: usize = 256 << 10;

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
    lose_objects(&at);
    fill(&at);
    mount.assert_no(event::REPLAY_FAILED);
    let server = world.serve(port, &[&NEVER[..], &["--after-power-loss"]].concat());
    mount.wait_for_event(event::REPLAY_FAILED);
    let log = mount.log();
    assert!(lines_with(&log, event::REPLAY_FAILED, "ost=") > 0, "{log}");
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    // And it can be written again when there is room.
    fs::remove_file(at.join(FILLER)).unwrap();
    eventually("there is room again", || write().is_ok());
    file.sync_all().unwrap();
    drop(file);
    assert!(fs::read(&path).unwrap() == written);
    mount.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}

/// The same of a file with copies, which its client sends to the chain again.
#[test]
fn data_with_copies_that_has_no_room_any_more_is_named() {
    let world = World::new();
    let (at, port) = ([0, 1].map(|n| world.path(&format!("disk{n}"))), free_port());
    let options = [&NEVER[..], &["--osts", "2", "--replicas", "2"]].concat();
    world.serve(port, &options).stop();
    let disks = [0, 1].map(|n| {
        let disk = Disk::new(&world.path(&format!("image{n}")), &at[n], "ext4", 200);
        move_ost(&world.data(), n as u16, &at[n]);
        disk
    });
    let server = world.serve(port, &options);
    let (mount, dir) = world.mount(port, "m", &[]);
    wait_until_whole(text(&dir));
    let path = dir.join("f");
    let mut file = fs::OpenOptions::new();
    let file = file.create(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let (file, written) = (Arc::new(file), Arc::new(AtomicU64::new(0)));
    let write = |file: &File, n: u64| file.write_all_at(&[n as u8; PIECE], n * PIECE as u64);
    // Copies are brought to stable storage twice a second: what was sent last is not there yet.
    let (its, count) = (file.clone(), written.clone());
    let writer = thread::spawn(move || {
        loop {
            if let Err(error) = write(&its, count.load(Ordering::Relaxed)) {
                return error;
            }
            count.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(5));
        }
    });
    let has = || objects(&world.data()).1;
    eventually("the server has much", || has() > 32 << 20);
    let much = has();
    eventually("it has just been sent more", || has() > much);
    let mut server = Some(server);
    for disk in &disks {
        disk.lose_power(|| server.take().into_iter().for_each(Process::kill));
    }
    at.iter().for_each(|at| fill(at));
    mount.assert_no(event::REPLAY_FAILED);
    let server = world.serve(port, &[&options[..], &["--after-power-loss"]].concat());
    mount.wait_for_event(event::REPLAY_FAILED);
    let log = mount.log();
    assert!(lines_with(&log, event::REPLAY_FAILED, "target=") > 0, "{log}");
    let error = writer.join().unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    at.iter().for_each(|at| fs::remove_file(at.join(FILLER)).unwrap());
    let written = written.load(Ordering::Relaxed);
    for n in 0..written {
        eventually("there is room again", || write(&file, n).is_ok());
    }
    file.sync_all().unwrap();
    drop(file);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, written * PIECE as u64);
    assert!((0..).zip(bytes.chunks(PIECE)).all(|(n, piece)| piece == [n as u8; PIECE]));
    wait_until_whole(text(&dir));
    mount.stop();
    server.stop();
    world.assert_sound();
    drop(disks);
}
