//! Data that moves to other layouts while it is used.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use support::random::Random;
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
