//! Data that moves to other layouts while it is used, also of a large file that is written all the
//! time, and to a server that stands still.

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

/// Size of a block of the large file, and how many it has: under a lock on all of it, copying would take
/// longer than others wait with this lease.
const SMALL: usize = 4 << 10;
const SMALLS: u64 = 64 << 10;

fn small(number: u64, version: u32) -> Vec<u8> {
    (number << 32 | u64::from(version)).to_le_bytes().repeat(SMALL / 8)
}

fn check_small(file: &File, number: u64, version: u32) {
    let mut found = vec![0; SMALL];
    file.read_exact_at(&mut found, number * SMALL as u64).unwrap();
    assert!(found == small(number, version), "block {number} is not version {version}");
}

/// One command is enough for each move. It is made by the other mount.
#[test]
fn a_large_file_moves_while_it_is_written_all_the_time() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "3", "--lease", "5"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let name = b.join("file");
    let writer = OpenOptions::new().read(true).write(true).create_new(true).open(&name).unwrap();
    let many = 256;
    for first in (0..SMALLS).step_by(many) {
        let data: Vec<u8> = (first..first + many as u64).flat_map(|n| small(n, 0)).collect();
        writer.write_all_at(&data, first * SMALL as u64).unwrap();
    }
    let reader = File::open(a.join("file")).unwrap();
    let moves = AtomicBool::new(true);
    let end = SMALLS * SMALL as u64;
    std::thread::scope(|scope| {
        let used = scope.spawn(|| {
            let (mut random, mut version) = (Random(11), vec![0u32; SMALLS as usize]);
            for n in 0.. {
                if !moves.load(Ordering::Acquire) {
                    break;
                }
                let block = random.below(SMALLS);
                let version = &mut version[block as usize];
                *version += 1;
                writer.write_all_at(&small(block, *version), block * SMALL as u64).unwrap();
                match n % 64 {
                    0 => check_small(&reader, block, *version),
                    // What was behind the end must not come back with a longer file.
                    32 => {
                        writer.set_len(end + 3 * SMALL as u64).unwrap();
                        writer.write_all_at(&[7; SMALL], end + SMALL as u64).unwrap();
                        writer.set_len(end).unwrap();
                    }
                    _ => {}
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            version
        });
        let layouts = ["-r 1 -c 3", "-r 2 -c 2", "-r 1 -c 1"].map(|words| words.split(' '));
        let moved = layouts.map(|layout| {
            glint().arg("restripe").args(layout).arg(a.join("file")).output().unwrap()
        });
        moves.store(false, Ordering::Release);
        moved.iter().for_each(|output| assert!(output.status.success(), "{output:?}"));
        let version = used.join().unwrap();
        writer.set_len(end + 3 * SMALL as u64).unwrap();
        let mut behind = vec![1; 3 * SMALL];
        reader.read_exact_at(&mut behind, end).unwrap();
        assert!(behind.iter().all(|byte| *byte == 0), "what was cut off is there again");
        (0..SMALLS).for_each(|n| check_small(&reader, n, version[n as usize]));
    });
    server.assert_no(event::CLIENT_EVICTED);
    drop((reader, writer));
    [one, two, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}
