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

/// A file of so many blocks of one size.
#[derive(Clone, Copy)]
struct Blocks {
    size: usize,
    count: u64,
}

const LARGE: Blocks = Blocks { size: 64 << 10, count: 48 };
/// Copying under a lock on all of such a file takes longer than others wait with a short lease.
const SMALL: Blocks = Blocks { size: 4 << 10, count: 64 << 10 };

impl Blocks {
    /// Content of a block in its version, with the place in the block in each word.
    fn content(self, number: u64, version: u32) -> Vec<u8> {
        let mut content = Vec::with_capacity(self.size);
        for place in 0..(self.size / 8) as u64 {
            let word = place << 48 | number << 32 | u64::from(version);
            content.extend_from_slice(&word.to_le_bytes());
        }
        content
    }

    fn write(self, file: &File, number: u64, version: u32) {
        file.write_all_at(&self.content(number, version), number * self.size as u64).unwrap();
    }

    /// Writes the first version of all blocks, 1 MiB at once.
    fn fill(self, file: &File) {
        let many = (1 << 20) / self.size as u64;
        for first in (0..self.count).step_by(many as usize) {
            let data: Vec<u8> = (first..first + many).flat_map(|n| self.content(n, 0)).collect();
            file.write_all_at(&data, first * self.size as u64).unwrap();
        }
    }

    fn check(self, file: &File, number: u64, version: u32) {
        let mut found = vec![0; self.size];
        file.read_exact_at(&mut found, number * self.size as u64).unwrap();
        let is_right = found == self.content(number, version);
        assert!(is_right, "block {number} is not version {version}");
    }
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
    LARGE.fill(&writer);
    let reader = File::open(b.join("file")).unwrap();
    let moves = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let used = scope.spawn(|| {
            // Handles from before all moves, and each write is read at the other mount.
            let (mut random, mut version) = (Random(7), vec![0u32; LARGE.count as usize]);
            while moves.load(Ordering::Acquire) {
                let n = random.below(LARGE.count);
                let version = &mut version[n as usize];
                *version += 1;
                LARGE.write(&writer, n, *version);
                LARGE.check(&reader, n, *version);
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
        (0..LARGE.count).for_each(|n| LARGE.check(&reader, n, version[n as usize]));
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
    let content: Vec<u8> = (0..LARGE.count).flat_map(|n| LARGE.content(n, 0)).collect();
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

/// Large files are copied before they are locked, when nobody waits: the command ends all the same.
#[test]
fn a_move_to_a_server_that_stands_still_is_given_up() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "5"]);
    let oss = world.oss(1, free_port(), port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let large = vec![7; 24 << 20];
    let is_on_first = |name: &String| {
        fs::write(a.join(name), b"").unwrap();
        let layout = sh(&a, &format!("getfattr --only-values -n glint.layout {name}"));
        layout.contains("stripe_count=1 ") && layout.contains("first_ost=0 ")
    };
    let mut names = (0..64).map(|n| format!("file{n}")).filter(is_on_first);
    for content in [&large[..], &large[..1000]] {
        let path = a.join(names.next().unwrap());
        fs::write(&path, content).unwrap();
        sh(&a, "sync -f .");
        oss.halt(true);
        let (said, took) =
            Stalls::start().timed(|| refused(glint().args(["restripe", "-c", "2", text(&path)])));
        assert!(said.contains("an OST did not answer"), "{said}");
        assert!(took < Duration::from_secs(9), "given up after {took:?}");
        oss.halt(false);
        run(glint().args(["restripe", "-c", "2", text(&path)]));
        assert!(fs::read(&path).unwrap() == content);
    }
    server.assert_no(event::CLIENT_EVICTED);
    [one, oss, server].into_iter().for_each(Process::stop);
    world.assert_sound();
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
    SMALL.fill(&writer);
    let reader = File::open(a.join("file")).unwrap();
    let moves = AtomicBool::new(true);
    let block_bytes = SMALL.size as u64;
    let end = SMALL.count * block_bytes;
    std::thread::scope(|scope| {
        let used = scope.spawn(|| {
            let (mut random, mut version) = (Random(11), vec![0u32; SMALL.count as usize]);
            for n in 0.. {
                if !moves.load(Ordering::Acquire) {
                    break;
                }
                let block = random.below(SMALL.count);
                let version = &mut version[block as usize];
                *version += 1;
                SMALL.write(&writer, block, *version);
                match n % 64 {
                    0 => SMALL.check(&reader, block, *version),
                    // What was behind the end must not come back with a longer file.
                    32 => {
                        writer.set_len(end + 3 * block_bytes).unwrap();
                        writer.write_all_at(&[7; SMALL.size], end + block_bytes).unwrap();
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
        writer.set_len(end + 3 * block_bytes).unwrap();
        let mut behind = vec![1; 3 * SMALL.size];
        reader.read_exact_at(&mut behind, end).unwrap();
        assert!(behind.iter().all(|byte| *byte == 0), "what was cut off is there again");
        (0..SMALL.count).for_each(|n| SMALL.check(&reader, n, version[n as usize]));
    });
    server.assert_no(event::CLIENT_EVICTED);
    drop((reader, writer));
    [one, two, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}
