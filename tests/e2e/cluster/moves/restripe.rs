//! Data that moves to other layouts while it is used, and to a server that stands still.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::random::Random;
use support::stalls::Stalls;
use support::*;

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 48;

/// Content of a block in its version.
fn block(number: u64, version: u8) -> Vec<u8> {
    let mut random = Random(number << 8 | u64::from(version));
    (0..BLOCK).map(|_| random.below(256) as u8).collect()
}

fn check(file: &File, number: u64, version: u8) {
    let mut found = vec![0; BLOCK];
    file.read_exact_at(&mut found, number * BLOCK as u64).unwrap();
    assert!(found == block(number, version), "block {number} is not version {version}");
}

#[test]
fn data_moves_while_two_mounts_write_and_read_it() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "3"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let name = a.join("file");
    let writer = OpenOptions::new().read(true).write(true).create_new(true).open(&name).unwrap();
    (0..BLOCKS).for_each(|n| writer.write_all_at(&block(n, 0), n * BLOCK as u64).unwrap());
    let reader = File::open(b.join("file")).unwrap();
    let moves = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let used = scope.spawn(|| {
            // Handles from before all moves, and each write is read at the other mount.
            let (mut random, mut version) = (Random(7), vec![0u8; BLOCKS as usize]);
            while moves.load(Ordering::Acquire) {
                let n = random.below(BLOCKS);
                let version = &mut version[n as usize];
                *version = version.wrapping_add(1);
                writer.write_all_at(&block(n, *version), n * BLOCK as u64).unwrap();
                check(&reader, n, *version);
            }
            version
        });
        let (mut moved, mut last) = (0, 0);
        for layout in [["-r", "2"], ["-c", "3"], ["-S", "128K"], ["-r", "3"], ["-r", "1"]] {
            for at in [&a, &b] {
                let path = at.join("file");
                let done = glint().arg("restripe").args(layout).arg(&path).output().unwrap();
                // A file that is in use all the time may be given up.
                last = done.status.code().unwrap();
                moved += u32::from(last == 0);
            }
        }
        moves.store(false, Ordering::Release);
        let version = used.join().unwrap();
        assert!(moved >= 3, "{moved} moves, the last one ended with {last}");
        (0..BLOCKS).for_each(|n| check(&reader, n, version[n as usize]));
    });
    run(glint().args(["restripe", "-r", "2", "-c", "1", text(&name)]));
    let shown = sh(&a, "getfattr --only-values -n glint.layout file");
    assert!(shown.contains("replicas=2") && shown.contains("stripe_count=1"), "{shown}");
    drop((reader, writer));
    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

/// The mount that moves the file gives its lock up in time, and is not evicted.
#[test]
fn a_file_is_read_while_its_move_to_a_server_stands_still() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "5"]);
    let oss = world.oss(1, free_port(), port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let content: Vec<u8> = (0..BLOCKS).flat_map(|n| block(n, 0)).collect();
    let is_on_first = |name: &String| {
        fs::write(a.join(name), &content).unwrap();
        let layout = sh(&a, &format!("getfattr --only-values -n glint.layout {name}"));
        layout.contains("stripe_count=1 ") && layout.contains("first_ost=0 ")
    };
    let name = (0..32).map(|n| format!("file{n}")).find(is_on_first).unwrap();
    sh(&a, "sync -f .");
    oss.halt(true);
    let mut restripe = glint();
    restripe.args(["restripe", "-c", "2", text(&a.join(&name))]);
    let mut mover = restripe.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(mover.try_wait().unwrap().is_none(), "the move does not stand still");
    let (read, waited) = Stalls::start().timed(|| fs::read(b.join(&name)).unwrap());
    assert!(read == content);
    assert!(!mover.wait().unwrap().success());
    oss.halt(false);
    assert!(waited < Duration::from_secs(4), "read after {waited:?}");
    server.assert_no(event::CLIENT_EVICTED);
    run(glint().args(["restripe", "-c", "2", text(&a.join(&name))]));
    assert!(fs::read(b.join(&name)).unwrap() == content);
    [one, two, oss, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}
