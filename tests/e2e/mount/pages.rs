//! Data written is data read: stores to mapped pages, writes, direct writes, appends and
//! truncates of one file meet, on one mount and on two, and all of it is there afterwards.
//!
//! `SECONDS_OF_PAGES` is how long each of them runs, `SEED` what they draw from.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod passthrough;
mod prefetched;

use glint_telemetry::event;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::mapped::map;
use support::stalls::Stalls;
use support::tail::Tail;
use support::*;

const PAGE: usize = 4096;
const PAGES: usize = 256;
/// Which part of each page belongs to whom; a direct writer has a block of 512 bytes.
const DIRECT_AT: u64 = 2048;

fn duration() -> Duration {
    let seconds = std::env::var("SECONDS_OF_PAGES").ok().and_then(|text| text.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(at_length(1, 2) as f64))
}

fn seed() -> u64 {
    std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[repr(align(4096))]
struct Block([u8; 512]);

/// Writers of each kind, each with its own part of every page, and readers.
struct Mix<'a> {
    mounts: &'a [PathBuf],
    name: String,
    value: u64,
    slowest: Mutex<Duration>,
    /// Behind the pages, where the file grows and shrinks.
    tail: Tail,
}

impl Mix<'_> {
    fn path(&self, writer: usize) -> PathBuf {
        self.mounts[writer % self.mounts.len()].join(&self.name)
    }

    fn value(&self, page: usize) -> u64 {
        self.value + page as u64
    }

    fn timed(&self, call: impl FnOnce()) {
        let begun = Instant::now();
        call();
        let mut slowest = self.slowest.lock().unwrap();
        *slowest = (*slowest).max(begun.elapsed());
    }

    fn store(&self, writer: usize) {
        let mut mapped = map(&self.path(writer));
        for page in 0..PAGES {
            let at = page * PAGE + writer * 64;
            mapped[at..at + 8].copy_from_slice(&self.value(page).to_le_bytes());
            if page % 16 == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        self.timed(|| mapped.flush().unwrap());
    }

    fn write(&self, writer: usize, options: &OpenOptions) {
        let file = options.open(self.path(writer)).unwrap();
        for page in 0..PAGES {
            let at = (page * PAGE + writer * 64) as u64;
            self.timed(|| file.write_all_at(&self.value(page).to_le_bytes(), at).unwrap());
        }
    }

    fn write_direct(&self, writer: usize) {
        let mut options = OpenOptions::new();
        options.read(writer.is_multiple_of(2)).write(true).custom_flags(libc::O_DIRECT);
        let file = options.open(self.path(writer)).unwrap();
        let mut block = Block([0; 512]);
        for page in 0..PAGES {
            block.0[..8].copy_from_slice(&self.value(page).to_le_bytes());
            let at = (page * PAGE) as u64 + DIRECT_AT;
            self.timed(|| file.write_all_at(&block.0, at).unwrap());
        }
    }

    fn read(&self, reader: usize, ends: &AtomicBool) {
        let file = File::open(self.path(reader)).unwrap();
        let mut random = 88_172_645_463_325_252u64 + reader as u64;
        while !ends.load(Ordering::Acquire) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let at = random as usize % PAGES * PAGE;
            self.timed(|| _ = file.read_at(&mut [0; 64], at as u64).unwrap());
        }
    }

    /// Everybody at once; then everything is there, however it is looked at.
    fn round(&self) {
        let file = File::create(self.path(0)).unwrap();
        file.write_all_at(&vec![0; PAGES * PAGE], 0).unwrap();
        drop(file);
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let ends = &ends;
                scope.spawn(move || self.read(reader, ends));
            }
            let writers = [
                scope.spawn(|| self.store(0)),
                scope.spawn(|| self.store(1)),
                scope.spawn(|| self.write(2, OpenOptions::new().write(true))),
                scope.spawn(|| self.write(3, OpenOptions::new().read(true).write(true))),
                scope.spawn(|| self.write_direct(4)),
            ];
            let tails: Vec<_> = (0..2)
                .map(|n| {
                    let (path, ends) = (self.path(n), &ends);
                    scope.spawn(move || self.tail.append(&path, n as u64, ends))
                })
                .collect();
            let (paths, ends_tail) = ([self.path(0), self.path(1)], &ends);
            let cuts = scope.spawn(move || self.tail.cut(&paths, self.value ^ seed(), ends_tail));
            let ended: Vec<_> =
                writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            ends.store(true, Ordering::Release);
            let tails: Vec<_> =
                tails.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            assert!(cuts.join().is_ok() && tails.iter().all(Result::is_ok), "the tail is wrong");
            assert!(ended.iter().all(Result::is_ok), "a writer failed");
        });
        for mount in 0..self.mounts.len() {
            let path = self.path(mount);
            let (file, mapped) = (File::open(&path).unwrap(), map(&path));
            for page in 0..PAGES {
                let wanted = self.value(page).to_le_bytes();
                for part in [0, 64, 128, 192, DIRECT_AT as usize] {
                    let at = page * PAGE + part;
                    let mut found = [0; 8];
                    file.read_exact_at(&mut found, at as u64).unwrap();
                    assert_eq!(found, wanted, "read, page {page} at {part}, mount {mount}");
                    assert_eq!(mapped[at..at + 8], wanted, "mapped, page {page} at {part}");
                }
            }
        }
        std::fs::remove_file(self.path(0)).unwrap();
    }
}

fn mix(mounts: &[PathBuf]) {
    let (begun, mut round) = (Instant::now(), 0);
    let mut slowest = Duration::ZERO;
    while round < 2 || begun.elapsed() < duration() {
        let mix = Mix {
            mounts,
            name: format!("mix{round}"),
            value: (round + 1) << 32 | 1 << 24,
            slowest: Mutex::default(),
            tail: Tail::behind((PAGES * PAGE) as u64),
        };
        mix.round();
        slowest = slowest.max(mix.slowest.into_inner().unwrap());
        round += 1;
    }
    println!("{round} rounds, the slowest call took {slowest:?}");
}

fn on_both_transports(test: impl Fn(&World, u16, &str)) {
    enable_uring();
    for transport in TRANSPORTS {
        let world = World::new();
        test(&world, free_port(), transport);
    }
}

#[test]
fn on_one_mount_in_process() {
    on_both_transports(|world, _, transport| {
        let up = world.up(&["-o", transport]);
        mix(&[world.mount_point()]);
        up.stop();
        world.assert_sound();
    });
}

#[test]
fn on_one_mount_and_on_two_over_tcp() {
    on_both_transports(|world, port, transport| {
        let server = world.serve(port, &[]);
        let (one, a) = world.mount(port, "a", &["-o", transport]);
        mix(std::slice::from_ref(&a));
        let (two, b) = world.mount(port, "b", &["-o", transport]);
        mix(&[a, b]);
        server.assert_no(event::CLIENT_EVICTED);
        two.stop();
        one.stop();
        server.stop();
        world.assert_sound();
    });
}

/// Every entry waits now and then for what another mount has.
#[test]
fn on_two_mounts_with_two_entries_a_queue() {
    on_both_transports(|world, port, transport| {
        let server = world.serve(port, &[]);
        let (one, a) = world.narrow_mount(port, "a", transport);
        let (two, b) = world.narrow_mount(port, "b", transport);
        mix(&[a, b]);
        server.assert_no(event::CLIENT_EVICTED);
        two.stop();
        one.stop();
        server.stop();
        world.assert_sound();
    });
}

/// One thread of each: it writes or reads blocks of a file in any order until the end.
fn uses(path: &Path, writes: bool, seed: u64, ends: &AtomicBool, calls: &AtomicU64) -> Duration {
    let file = OpenOptions::new().read(!writes).write(writes).open(path).unwrap();
    let (mut random, mut slowest) = (seed * 2 + 1, Duration::ZERO);
    let mut block = vec![seed as u8; PAGE];
    while !ends.load(Ordering::Acquire) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (random >> 33) % 1024 * PAGE as u64;
        let begun = Instant::now();
        match writes {
            true => file.write_all_at(&block, at).unwrap(),
            false => file.read_exact_at(&mut block, at).unwrap(),
        }
        slowest = slowest.max(begun.elapsed());
        calls.fetch_add(1, Ordering::Relaxed);
    }
    slowest
}

/// Writers around the pages and readers through them, on two mounts: each call ends soon, and
/// nobody is taken for dead.
#[test]
fn writers_and_readers_of_two_mounts_take_turns() {
    on_both_transports(|world, port, transport| {
        let server = world.serve(port, &["--lease", "10"]);
        let (one, a) = world.mount(port, "a", &["-o", transport]);
        let (two, b) = world.mount(port, "b", &["-o", transport]);
        let file = File::create(a.join("f")).unwrap();
        file.write_all_at(&vec![0; 1024 * PAGE], 0).unwrap();
        drop(file);
        let (ends, calls, stalls) = (AtomicBool::new(false), AtomicU64::new(0), Stalls::start());
        let slowest = std::thread::scope(|scope| {
            let (ends, calls) = (&ends, &calls);
            let threads: Vec<_> = (0..14u64)
                .map(|n| {
                    // On a: 4 writers and 8 readers. On b: one of each.
                    let path = if n < 12 { a.join("f") } else { b.join("f") };
                    scope.spawn(move || uses(&path, n < 4 || n == 12, n, ends, calls))
                })
                .collect();
            std::thread::sleep(duration());
            ends.store(true, Ordering::Release);
            threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        });
        let calls = calls.into_inner();
        println!("{transport}: {calls} calls, the slowest took {slowest:?}");
        server.assert_no(event::CLIENT_EVICTED);
        assert!(slowest < Duration::from_secs(8) + stalls.total(), "one call took {slowest:?}");
        two.stop();
        one.stop();
        server.stop();
        world.assert_sound();
    });
}
