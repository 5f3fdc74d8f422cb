//! Files with copies outlive the loss of a server, and all copies are the same afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::copies::{content, wait_until_equal};
use support::load::Load;
use support::random::Random;
use support::*;

/// Longest time in which calls wait for a server that is lost.
const LOST_MAX: Duration = Duration::from_secs(15);

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// Noting that an object is changed wakes no thread: the one that makes the change does it. An object
/// without copies is changed by the thread that was asked.
#[test]
fn a_small_write_is_handed_to_one_thread_for_each_copy() {
    const WRITES: u64 = 300;
    let world = World::new();
    let process = world.up(&["--osts", "3", "--replicas", "3"]);
    let mount = world.mount_point();
    wait_until_whole(text(&mount));
    let alone = mount.join("alone");
    fs::create_dir(&alone).unwrap();
    run(glint().args(["setstripe", "-r", "1", text(&alone)]));
    let handed_over = || {
        let output = run(glint().args(["status", "--json", text(&mount)]));
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["counters"]["hand_overs"].as_u64().unwrap()
    };
    let write = |dir: &Path, from: u64| {
        let write = "dd if=/dev/zero of=f$n oflag=direct bs=4096 count=1 status=none";
        sh(dir, &format!("for n in $(seq {from} {}); do {write}; done", from + WRITES - 1));
    };
    for (dir, least) in [(&mount, 3.0), (&alone, 0.0)] {
        // Space is asked for at first.
        write(dir, 0);
        // Beside them, what was written is made stable every half second. A disk that was slow just
        // now, since others use it, has its writes handed over: not always.
        let is_as_few = (1..=5).any(|round| {
            let before = handed_over();
            write(dir, round * WRITES);
            let each = (handed_over() - before) as f64 / WRITES as f64;
            println!("{each:.2} hand-overs for each small write to {}", dir.display());
            assert!(each >= least, "{each}");
            each < least + 0.6
        });
        assert!(is_as_few, "more than one for each copy");
    }
    process.stop();
    world.assert_sound();
}

/// A file system on three servers, of which each has a copy of everything.
struct Copies {
    world: World,
    port: u16,
    ports: [u16; 2],
}

impl Copies {
    fn new() -> Copies {
        Copies { world: World::new(), port: free_port(), ports: [free_port(), free_port()] }
    }

    fn serve(&self) -> Process {
        self.world.serve(self.port, &["--replicas", "3"])
    }

    fn oss(&self, n: u16) -> Process {
        self.world.oss(n, self.ports[usize::from(n) - 1], self.port, &[])
    }

    fn dirs(&self) -> [PathBuf; 3] {
        [self.world.data(), self.world.oss_data(1), self.world.oss_data(2)]
    }

    /// Waits until all copies are the same, and no server knows of one that lacks something.
    fn must_be_equal(&self) {
        wait_until_equal(&self.dirs().map(|dir| dir.join("ost0")), false);
    }

    /// Ends it all. Objects of removed files are destroyed before: who is stopped amid that, after
    /// others, has some that they have not, until it is back.
    fn stop(self, processes: Vec<Process>) {
        self.must_be_equal();
        processes.into_iter().for_each(Process::stop);
        self.must_be_equal();
        self.world.assert_sound_with(&self.world.data(), &[1, 2]);
    }
}

#[test]
fn calls_go_on_while_servers_are_lost_and_come_back() {
    let copies = Copies::new();
    let server = copies.serve();
    let mut osses = [Some(copies.oss(1)), Some(copies.oss(2))];
    let (one, a) = copies.world.mount(copies.port, "a", &[]);
    let (two, b) = copies.world.mount(copies.port, "b", &[]);
    let dirs = [a.join("one"), b.join("two")];
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let load = Load::start(&dirs);
    for round in 0..at_length(3, 4) as u16 {
        load.go_on();
        let lost = usize::from(round % 2);
        osses[lost].take().unwrap().kill();
        let begun = Instant::now();
        load.go_on();
        assert!(begun.elapsed() < LOST_MAX, "{:?} without OSS {lost}", begun.elapsed());
        osses[lost] = Some(copies.oss(lost as u16 + 1));
        copies.is_whole(&a);
    }
    load.end(4);
    sh(&a, "sync -f .");
    sh(&b, "sync -f .");
    copies.must_be_equal();
    let [first, second] = osses.map(Option::unwrap);
    copies.stop(vec![one, two, first, second, server]);
}

impl Copies {
    /// Waits until all members of all chains serve.
    fn is_whole(&self, mount: &Path) {
        eventually("all members serve again", || {
            let status = sh(mount, "getfattr --only-values -n glint.status .");
            let status: serde_json::Value = serde_json::from_str(&status).unwrap();
            status["chains"]["count"] == status["chains"]["whole"]
        });
    }
}

#[test]
fn one_that_stands_still_is_left_out_and_given_what_it_missed() {
    let copies = Copies::new();
    let server = copies.serve();
    let (first, second) = (copies.oss(1), copies.oss(2));
    let (one, a) = copies.world.mount(copies.port, "a", &[]);
    let write = |name: &str, seed: u64| {
        let path = a.join(name);
        fs::write(&path, bytes(seed, 3_000_000)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    };
    (0..8).for_each(|n| write(&format!("file{n}"), n));
    second.halt(true);
    let begun = Instant::now();
    // Each chain has another head: some of these wait for the one that stands still.
    for n in 0..8 {
        let file = File::options().write(true).open(a.join(format!("file{n}"))).unwrap();
        file.write_all_at(b"changed", 1_000_000).unwrap();
        file.sync_all().unwrap();
    }
    assert!(begun.elapsed() < LOST_MAX, "{:?}", begun.elapsed());
    fs::remove_file(a.join("file7")).unwrap();
    write("new", 99);
    second.halt(false);
    copies.is_whole(&a);
    for n in 0..7 {
        let mut expected = bytes(n, 3_000_000);
        expected[1_000_000..1_000_007].copy_from_slice(b"changed");
        assert!(fs::read(a.join(format!("file{n}"))).unwrap() == expected);
    }
    copies.must_be_equal();
    copies.stop(vec![one, first, second, server]);
}

/// Longest time for the end of a server beside a writer, or of a mount.
const STOP_MAX: Duration = Duration::from_secs(5);

#[test]
fn the_server_with_the_mds_stops_soon_beside_a_writer() {
    let copies = Copies::new();
    let server = copies.serve();
    let (first, second) = (copies.oss(1), copies.oss(2));
    let (one, a) = copies.world.mount(copies.port, "a", &[]);
    copies.is_whole(&a);
    let dir = a.join("small");
    fs::create_dir(&dir).unwrap();
    let load = Load::start([&dir]);
    load.go_on();
    let begun = Instant::now();
    server.stop();
    let stopped = begun.elapsed();
    let server = copies.serve();
    load.go_on();
    load.end(4);
    assert!(stopped < STOP_MAX, "{stopped:?}");
    copies.is_whole(&a);
    one.stop();
    copies.must_be_equal();
    println!("the server has stopped after {stopped:?}");
    server.stop();
    copies.stop(vec![first, second]);
}

/// What a mount of `up` wrote last is stable once an OSS has asked the server in the same process.
#[test]
fn a_mount_of_up_ends_soon_with_changes_that_an_oss_has() {
    const FILES: usize = 8;
    let world = World::new();
    let (port, oss_port) = (free_port(), free_port());
    let up = world.up(&["--listen", &address(port), "--insecure", "--replicas", "2"]);
    let oss = world.oss(1, oss_port, port, &[]);
    let mount = world.mount_point();
    wait_until_whole(text(&mount));
    // Of chains with either head.
    for n in 0..FILES {
        fs::write(mount.join(format!("file{n}")), b"written last").unwrap();
    }
    let begun = Instant::now();
    up.stop();
    let stopped = begun.elapsed();
    assert!(stopped < STOP_MAX, "{stopped:?}");
    oss.stop();
    let copies = [world.data(), world.oss_data(1)].map(|data| content(&data.join("ost0")));
    assert!(copies[0].len() == FILES && copies[0] == copies[1], "{copies:?}");
    assert!(copies[0].values().all(|bytes| bytes == b"written last"), "{copies:?}");
    world.assert_sound_with(&world.data(), &[1]);
}

/// Longest of these calls, each with an fsync, on files of all chains, until `end`.
fn slowest_write(files: &[File], end: Instant) -> Duration {
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        for file in files {
            let begun = Instant::now();
            file.write_all_at(b"x", 0).unwrap();
            file.sync_data().unwrap();
            slowest = slowest.max(begun.elapsed());
        }
    }
    slowest
}

#[test]
fn calls_go_on_after_the_loss_of_a_head_whatever_was_written_before_it() {
    // All copies are read in the end, holes, too.
    let sparse_bytes = at_length(256 << 20, 8 << 30);
    let database_bytes = at_length(256 << 20, 3 << 30);
    let copies = Copies::new();
    let server = copies.serve();
    let (first, second) = (copies.oss(1), copies.oss(2));
    let (one, a) = copies.world.mount(copies.port, "a", &[]);
    let (two, b) = copies.world.mount(copies.port, "b", &[]);
    let file = |name: &str, n: u64| {
        let (path, mut options) = (a.join(format!("{name}{n}")), File::options());
        options.write(true).create(true).truncate(false).open(path).unwrap()
    };
    (0..8).for_each(|n| file("other", n).sync_all().unwrap());
    let open = |n| File::options().write(true).open(b.join(format!("other{n}"))).unwrap();
    let others: Vec<File> = (0..8).map(open).collect();
    for n in 0..8 {
        let sparse = file("sparse", n);
        sparse.write_all_at(b"a", 0).unwrap();
        sparse.write_all_at(b"z", sparse_bytes - 1).unwrap();
    }
    first.kill();
    let slowest = slowest_write(&others, Instant::now() + LOST_MAX / 2);
    println!("beside sparse files: {slowest:?} after a kill");
    // A server that is killed is heard of no more for 3 s.
    assert!(slowest < Duration::from_secs(6), "{slowest:?}");
    for n in 0..8 {
        fs::remove_file(a.join(format!("sparse{n}"))).unwrap();
    }
    let first = copies.oss(1);
    copies.is_whole(&a);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let databases: Vec<File> = (0..4).map(|n| file("database", n)).collect();
    let slowest = std::thread::scope(|scope| {
        let (databases, stop) = (&databases, &stop);
        scope.spawn(move || {
            let (mut random, page) = (Random(1), bytes(1, 8192));
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let at = random.below(database_bytes / 8192) * 8192;
                databases[random.below(4) as usize].write_all_at(&page, at).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let before = slowest_write(&others, Instant::now() + Duration::from_secs(at_length(1, 3)));
        let stopping = scope.spawn(|| first.stop());
        let slowest = slowest_write(&others, Instant::now() + Duration::from_secs(4));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        stopping.join().unwrap();
        println!("beside databases: {before:?}, {slowest:?} after a clean stop");
        slowest
    });
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    for n in 0..4 {
        fs::remove_file(a.join(format!("database{n}"))).unwrap();
    }
    drop((databases, others));
    let first = copies.oss(1);
    copies.is_whole(&a);
    copies.stop(vec![two, one, first, second, server]);
}

#[test]
fn what_was_synced_outlives_the_end_of_all_servers_at_once() {
    let copies = Copies::new();
    let server = copies.serve();
    let (first, second) = (copies.oss(1), copies.oss(2));
    let (one, a) = copies.world.mount(copies.port, "a", &[]);
    for n in 0..20 {
        let path = a.join(format!("file{n}"));
        fs::write(&path, bytes(n, 200_000)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
    fs::write(a.join("unsynced"), bytes(99, 5_000_000)).unwrap();
    for process in [first, second, server] {
        process.kill();
    }
    let server = copies.serve();
    let (first, second) = (copies.oss(1), copies.oss(2));
    copies.is_whole(&a);
    for n in 0..20 {
        assert!(fs::read(a.join(format!("file{n}"))).unwrap() == bytes(n, 200_000));
    }
    // The client was there all the time, so nothing at all is lost.
    assert!(fs::read(a.join("unsynced")).unwrap() == bytes(99, 5_000_000));
    sh(&a, "sync -f .");
    copies.must_be_equal();
    copies.stop(vec![one, first, second, server]);
}

#[test]
fn a_directory_says_how_many_copies_its_files_get() {
    let world = World::new();
    let mount = world.mount_point();
    let process = world.up(&["--osts", "3"]);
    fs::create_dir(mount.join("two")).unwrap();
    run(glint().args(["setstripe", "-r", "2", text(&mount.join("two"))]));
    fs::write(mount.join("two/file"), bytes(1, 3_000_000)).unwrap();
    fs::write(mount.join("one"), bytes(2, 1000)).unwrap();
    let shown = |path: &str| sh(&mount, &format!("getfattr --only-values -n glint.layout {path}"));
    assert!(shown("two/file").contains("replicas=2"), "{}", shown("two/file"));
    assert!(!shown("one").contains("replicas"), "{}", shown("one"));
    sh(&mount, "sync -f .");
    let many = (0..3).filter(|n| {
        let top = world.data().join(format!("ost{n}/objects"));
        sh(&top, "find . -size +1M").lines().count() == 1
    });
    assert_eq!(many.count(), 2);
    let said = refused(glint().args(["setstripe", "-r", "4", text(&mount.join("two"))]));
    assert!(said.contains("4 copies need 4 failure domains"), "{said}");
    process.stop();
    world.assert_sound();
}
