//! Loss of power under load: what was synced is there, what was not is done again by clients
//! that live, and one that is gone loses that and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs;
use std::time::Duration;
use support::disk::Disk;
use support::load::Load;
use support::*;

/// The servers lose power again and again under clients that stay: no call fails, and all
/// are executed exactly once.
fn clients_do_again_what_was_lost(kind: &str, cuts: u64) {
    let world = World::new();
    let (at, port) = (world.data(), free_port());
    let disk = Disk::new(&world.path("image"), &at, kind, 800);
    let mut server = world.serve(port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let (other_mount, other_dir) = world.mount(port, "o", &[]);
    let load = Load::start([&dir, &dir, &other_dir]);
    let mut cut = 0;
    // More often if the load was too small for anything to be lost.
    while cut < cuts || (cut < 5 * cuts && !mount.has_event(event::REPLAY_STARTED)) {
        cut += 1;
        std::thread::sleep(Duration::from_millis(300 + 211 * (cut % 7)));
        load.go_on();
        disk.lose_power(|| server.kill());
        server = world.serve(port, &["--after-power-loss"]);
    }
    load.end(100);
    assert!(mount.has_event(event::REPLAY_STARTED), "nothing was lost, so nothing was tried");
    for event in [event::REPLAY_FAILED, event::REOPEN_FAILED, event::DATA_LOST] {
        mount.assert_no(event);
        other_mount.assert_no(event);
    }
    mount.stop();
    other_mount.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn clients_do_again_what_ext4_lost() {
    clients_do_again_what_was_lost("ext4", at_length(3, 6));
}

#[test]
#[ignore = "make long: the same as on ext4"]
fn clients_do_again_what_xfs_lost() {
    clients_do_again_what_was_lost("xfs", 6);
}

/// A client dies together with the power of the server: what it synced stays, and the others
/// go on when its time is over.
#[test]
fn a_client_that_does_not_come_back_is_evicted() {
    let world = World::new();
    let (at, port) = (world.data(), free_port());
    let disk = Disk::new(&world.path("image"), &at, "ext4", 400);
    // Nothing is synced by itself, and nobody evicted, however long this takes.
    let server = world.serve(port, &["--lease", "60", "--commit", "60000"]);
    let (gone, a) = world.mount(port, "a", &[]);
    let (stays, b) = world.mount(port, "b", &[]);
    fs::write(a.join("synced"), b"synced").unwrap();
    fs::File::open(a.join("synced")).unwrap().sync_all().unwrap();
    fs::File::open(&a).unwrap().sync_all().unwrap();
    fs::create_dir(a.join("directory")).unwrap();
    // Changes of b there depend on those of a, which are committed first.
    fs::write(b.join("directory/file"), b"of b").unwrap();
    fs::write(a.join("not synced"), b"x").unwrap();
    fs::write(b.join("of b"), b"again").unwrap();
    disk.lose_power(|| {
        gone.kill();
        server.kill();
    });
    let server = world.serve(port, &["--lease", "8", "--after-power-loss"]);
    assert_eq!(fs::read(b.join("synced")).unwrap(), b"synced");
    server.wait_for_event(event::CLIENT_EVICTED);
    assert!(server.log().contains("what it had not synced"), "{}", server.log());
    assert_eq!(fs::read(b.join("directory/file")).unwrap(), b"of b");
    assert_eq!(fs::read(b.join("of b")).unwrap(), b"again");
    assert!(!b.join("not synced").exists(), "nobody could have done it again");
    stays.stop();
    server.stop();
    // Its data may be on the disk, where the file system has written that and not the journal.
    world.remove_objects_without_file();
    world.assert_sound();
}

/// With `--commit sync` nothing that was answered needs a client to be done again.
#[test]
fn commit_sync_loses_nothing() {
    let world = World::new();
    let (at, port) = (world.data(), free_port());
    let disk = Disk::new(&world.path("image"), &at, "ext4", 400);
    let server = world.serve(port, &["--commit", "sync", "--lease", "8"]);
    let (gone, dir) = world.mount(port, "a", &[]);
    for n in 0..50 {
        fs::write(dir.join(format!("f{n}")), format!("content {n}")).unwrap();
    }
    disk.lose_power(|| {
        gone.kill();
        server.kill();
    });
    let server = world.serve(port, &["--lease", "8", "--after-power-loss"]);
    let (mount, dir) = world.mount(port, "b", &[]);
    for n in 0..50 {
        let text = fs::read_to_string(dir.join(format!("f{n}"))).unwrap();
        assert_eq!(text, format!("content {n}"));
    }
    mount.stop();
    server.stop();
    world.assert_sound();
}
