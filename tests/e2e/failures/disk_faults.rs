//! Failures below the server: few descriptors, disks that cannot be written, that are full, that
//! stand still. Nothing that was called durable is lost, and what is not durable is not called so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::disk::{Disk, Frozen, Memory};
use support::paths::quoted;
use support::stalls::Stalls;
use support::*;

/// `glint serve` as the child of a command that limits or burdens it.
fn serve_under(world: &World, port: u16, mut command: Command, more: &[&str]) -> Process {
    let (data, address) = (world.data(), address(port));
    command.args(["serve", "--data", text(&data), "--listen", &address, "--insecure"]).args(more);
    let log = world.new_log("serve.log");
    let process = Process::start_as(&mut command, log, None);
    process.wait_for_event(event::SERVING);
    process
}

/// `glint` with so many descriptors, as `soft:hard`.
fn with_descriptors(limits: &str) -> Command {
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limits}")).arg(binary::glint());
    command
}

fn is_errno(error: &std::io::Error, errno: i32) -> bool {
    error.raw_os_error() == Some(errno)
}

/// More files than the process may have open, over four OSTs: all are written, and all are there.
#[test]
fn the_usual_limit_of_descriptors_is_enough() {
    let world = World::new();
    let port = free_port();
    let server = serve_under(&world, port, with_descriptors("1024:1024"), &["--osts", "4"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let content = |n: u32| format!("file {n}").into_bytes();
    for n in 0..1500 {
        fs::write(dir.join(format!("f{n}")), content(n)).unwrap();
    }
    let (other, seen) = world.mount(port, "o", &[]);
    for n in 0..1500 {
        assert_eq!(fs::read(seen.join(format!("f{n}"))).unwrap(), content(n), "file {n}");
    }
    mount.assert_no(event::DATA_LOST);
    mount.assert_no(event::CHANGES_LOST);
    mount.stop();
    other.stop();
    server.stop();
    world.assert_sound();
}

/// The soft limit is for others, and where the hard one is too low the server says so.
#[test]
fn the_soft_limit_is_raised_and_too_low_a_hard_one_is_refused() {
    let world = World::new();
    let port = free_port();
    let server = serve_under(&world, port, with_descriptors("100:4000"), &[]);
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("4000"), "{line}");
    server.stop();
    let mut few = with_descriptors("150:150");
    let data = world.data();
    let said = refused(few.args(["serve", "--data", text(&data)]));
    assert!(said.contains("150 files open") && said.contains("LimitNOFILE"), "{said}");
}

/// A library that fails calls of a process which is started with it, once a file says so.
struct Saboteur {
    library: PathBuf,
    /// File with a part of the path of the files whose flush fails, once.
    order: PathBuf,
}

impl Saboteur {
    fn new(world: &World) -> Saboteur {
        // The loader splits LD_PRELOAD at spaces and colons, which the path of a build may have.
        let (source, library) = (world.path("saboteur.c"), world.short("saboteur.so"));
        assert!(!text(&library).contains([' ', ':']), "not a path to preload: {library:?}");
        let order = world.path("order");
        let text = r#"
            #define _GNU_SOURCE
            #include <dlfcn.h>
            #include <errno.h>
            #include <fcntl.h>
            #include <stdio.h>
            #include <stdlib.h>
            #include <string.h>
            #include <unistd.h>
            static int fails(int fd) {
                char part[256] = "", link[64], path[4096] = "";
                int order = open(getenv("ORDER"), O_RDONLY);
                if (order < 0) return 0;
                ssize_t n = read(order, part, sizeof part - 1);
                close(order);
                snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
                if (n <= 0 || readlink(link, path, sizeof path - 1) < 0) return 0;
                if (!strstr(path, part)) return 0;
                unlink(getenv("ORDER"));
                errno = EIO;
                return 1;
            }
            int fdatasync(int fd) {
                static int (*real)(int);
                if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
                return fails(fd) ? -1 : real(fd);
            }
        "#;
        fs::write(&source, text).unwrap();
        let flags = ["-shared", "-fPIC", "-o"];
        run(Command::new("cc").args(flags).arg(&library).arg(&source).arg("-ldl"));
        Saboteur { library, order }
    }

    fn command(&self) -> Command {
        let mut command = glint();
        command.env("LD_PRELOAD", &self.library).env("ORDER", &self.order);
        command
    }

    fn fail(&self, part: &str) {
        let draft = self.order.with_extension("draft");
        fs::write(&draft, part).unwrap();
        fs::rename(draft, &self.order).unwrap();
    }
}

/// The journal cannot be flushed, once: nobody is told that anything is durable, and the server
/// ends. Whoever waits for the flush waits for the next server, where all is there.
#[test]
fn a_server_whose_journal_cannot_be_flushed_ends() {
    let world = World::new();
    let (port, saboteur) = (free_port(), Saboteur::new(&world));
    // Flushed only when somebody asks for it.
    let server = serve_under(&world, port, saboteur.command(), &["--commit", "60000"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    fs::create_dir(dir.join("before")).unwrap();
    File::open(&dir).unwrap().sync_all().unwrap();
    saboteur.fail("journal-");
    // An error, or the answer of the next server.
    let waiter = std::thread::spawn({
        let dir = dir.clone();
        move || {
            fs::create_dir(dir.join("after")).unwrap();
            File::open(dir).unwrap().sync_all()
        }
    });
    let log = server.log_path();
    let status = server.ends();
    assert_eq!(status.code(), Some(1), "{status}");
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("flushing the journal") && said.contains("start it again"), "{said}");
    let server = world.serve(port, &[]);
    waiter.join().unwrap().unwrap();
    for name in ["before", "after"] {
        assert!(dir.join(name).is_dir(), "{name}");
    }
    fs::create_dir(dir.join("later")).unwrap();
    File::open(&dir).unwrap().sync_all().unwrap();
    mount.stop();
    server.stop();
    world.assert_sound();
}

/// The disk under the disk is full, so that what was written cannot go there. Clients keep
/// what they were not told to be durable, and it is all there when the disk is.
#[test]
fn a_server_whose_objects_cannot_be_flushed_ends_and_clients_do_it_again() {
    let world = World::new();
    let below = world.path("below");
    let memory = Memory::new(&below, 220);
    let (at, port) = (world.data(), free_port());
    let disk = Disk::new(&below.join("image"), &at, "ext4", 320);
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    fs::write(dir.join("before"), b"before").unwrap();
    File::open(dir.join("before")).unwrap().sync_all().unwrap();
    memory.fill();
    let content: Vec<u8> = (0..24 << 20).map(|at: u32| (at >> 12) as u8).collect();
    // The write may wait for the next server, if this one ends before all of it is there.
    let writer = std::thread::spawn({
        let (path, content) = (dir.join("after"), content.clone());
        move || fs::write(path, content).unwrap()
    });
    let status = server.ends();
    assert_eq!(status.code(), Some(1), "{status}");
    let said = fs::read_to_string(world.path("serve.log")).unwrap();
    // Objects or tables of metadata, whichever was to be flushed first.
    let is_said = ["This server ends", "start it again"].map(|part| said.contains(part));
    assert_eq!(is_said, [true; 2], "{said}");
    memory.empty();
    disk.repair();
    let server = world.serve(port, &["--after-power-loss"]);
    // Its log goes with the next one's.
    assert!(writer.join().is_ok(), "the write failed; the server that ended: {said}");
    assert_eq!(fs::read(dir.join("before")).unwrap(), b"before");
    File::open(dir.join("after")).unwrap().sync_all().unwrap();
    assert!(fs::read(dir.join("after")).unwrap() == content, "what was written is lost");
    mount.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
    drop(memory);
}

/// A journal without blocks on a full disk is an error at the start, and no death by a signal.
#[test]
fn a_sparse_journal_on_a_full_disk_is_an_error_at_the_start() {
    let world = World::new();
    let data = world.data();
    let memory = Memory::new(&data, 300);
    let port = free_port();
    world.serve(port, &[]).stop();
    let segment = data.join("mds/journal-2");
    let len = segment.metadata().unwrap().len();
    fs::remove_file(&segment).unwrap();
    File::create(&segment).unwrap().set_len(len).unwrap();
    memory.fill();
    let mut serve = glint();
    serve.args(["serve", "--data", text(&data)]);
    let said = refused(&mut serve);
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(serve.output().unwrap().status.code(), Some(1), "also the second time");
    memory.empty();
    world.serve(port, &[]).stop();
    assert!(segment.metadata().unwrap().blocks() * 512 >= len);
    world.assert_sound();
    drop(memory);
}

/// Data that has its blocks can be overwritten on a full disk; space that statfs(2) shows can be
/// allocated.
fn in_place_on_a_full_disk(kind: &str) {
    let world = World::new();
    let at = world.data();
    let disk = Disk::new(&world.path("image"), &at, kind, 320);
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let path = dir.join("data base");
    fs::write(&path, vec![1; 1 << 20]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let allocate = |file: &File, from: u64, len: u64| {
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), from, len)
    };
    allocate(&file, 1 << 20, 4 << 20).unwrap();
    file.sync_all().unwrap();
    let all = File::create(dir.join("all")).unwrap();
    let vfs = rustix::fs::statvfs(&dir).unwrap();
    allocate(&all, 0, vfs.f_bavail * vfs.f_frsize).unwrap();
    // And whatever is left beside it.
    let full = (0..10_000).find_map(|n| {
        let result = fs::write(dir.join(format!("more{n}")), vec![2; 256 << 10]);
        result.err()
    });
    assert!(full.is_some_and(|error| is_errno(&error, libc::ENOSPC)));
    let new = File::options().write(true).open(&path).unwrap();
    let full = (0..20_000).find_map(|n| new.write_all_at(&[3; 4096], (64 << 20) + n * 4096).err());
    assert!(full.is_some_and(|error| is_errno(&error, libc::ENOSPC)));
    file.write_all_at(&[4; 4096], 8192).unwrap();
    file.write_all_at(&[5; 65536], 3 << 20).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let (other, seen) = world.mount(port, "o", &[]);
    let content = fs::read(seen.join("data base")).unwrap();
    assert!(content.len() >= 5 << 20);
    assert!(content[8192..12288].iter().all(|byte| *byte == 4), "over what was there");
    assert!(content[3 << 20..][..65536].iter().all(|byte| *byte == 5), "into what was allocated");
    mount.stop();
    other.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}

#[test]
fn a_full_ext4_is_written_in_place() {
    in_place_on_a_full_disk("ext4");
}

#[test]
#[ignore = "make long: the same as on ext4"]
fn a_full_xfs_is_written_in_place() {
    in_place_on_a_full_disk("xfs");
}

/// Names and values of others are nobody else's to read, also where an older version let them.
#[test]
fn others_see_nothing_of_a_data_directory() {
    let world = World::new();
    let (data, port) = (world.data(), free_port());
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    fs::write(dir.join("secret"), b"secret").unwrap();
    mount.stop();
    server.stop();
    let is_open = |path: &Path| path.metadata().unwrap().mode() & 0o077 != 0;
    assert!(!is_open(&data));
    let open = sh(&data, "find . -perm /077 | sort");
    assert_eq!(open, "", "files that others could read");
}

/// Ends who works until it is said, also when a test fails: a scope waits for its threads.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A disk stands still for longer than the lease: clients are heard all the time, so that one
/// that needs nothing goes on, nobody is evicted and nothing is lost.
#[test]
fn clients_are_heard_while_the_disk_stands_still() {
    let world = World::new();
    let at = world.data();
    let disk = Disk::new(&world.path("image"), &at, "ext4", 400);
    let port = free_port();
    let lease = Duration::from_secs(8);
    let server = world.serve(port, &["--lease", "8"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let (other, idle) = world.mount(port, "o", &[]);
    fs::write(idle.join("known"), b"known").unwrap();
    File::open(idle.join("known")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read(idle.join("known")).unwrap(), b"known");
    // Apart from what the other one looks at.
    let dir = dir.join("busy");
    fs::create_dir(&dir).unwrap();
    assert!(fs::metadata(idle.join("busy")).unwrap().is_dir());
    let stop = AtomicBool::new(false);
    let counts: [AtomicU32; 6] = Default::default();
    let content = |n: u32| vec![n as u8; 300_000];
    // Each has a thread of the server wait for the disk, and more than it has threads.
    let longest = std::thread::scope(|scope| {
        for (writer, files) in counts.iter().enumerate() {
            let (dir, stop) = (&dir, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let n = files.load(Ordering::Relaxed);
                    let path = dir.join(format!("f{writer}-{n}"));
                    fs::write(&path, content(n)).unwrap();
                    File::open(&path).unwrap().sync_all().unwrap();
                    fs::rename(&path, dir.join(format!("g{writer}-{n}"))).unwrap();
                    files.store(n + 1, Ordering::Relaxed);
                }
            });
        }
        let _ends = Stop(&stop);
        eventually("all write", || counts.iter().all(|files| files.load(Ordering::Relaxed) > 0));
        let frozen = Frozen::new(&at);
        let start = Instant::now();
        let (mut longest, stalls) = (Duration::ZERO, Stalls::start());
        while start.elapsed() < lease + Duration::from_secs(2) {
            let (known, took) = stalls.timed(|| fs::read(idle.join("known")).unwrap());
            assert_eq!(known, b"known");
            longest = longest.max(took);
            std::thread::sleep(Duration::from_millis(50));
        }
        frozen.thaw();
        longest
    });
    assert!(longest < Duration::from_secs(2), "waited {longest:?} for what was known");
    for (writer, files) in counts.into_iter().enumerate() {
        for n in 0..files.into_inner() {
            let found = fs::read(idle.join(format!("busy/g{writer}-{n}"))).unwrap();
            assert!(found == content(n), "file {n} of writer {writer}");
        }
    }
    server.assert_no(event::CLIENT_EVICTED);
    for client in [&mount, &other] {
        for event in [event::SESSION_LOST, event::DATA_LOST, event::CHANGES_LOST] {
            client.assert_no(event);
        }
    }
    mount.stop();
    other.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}

/// A disk stands still, and with it a request of a client that lives: one that is gone is evicted all
/// the same, and others have what it had locked.
#[test]
fn a_disk_that_stands_still_keeps_no_locks_of_who_is_gone() {
    let world = World::new();
    let port = free_port();
    let start = || world.serve(port, &["--lease", "6", "--osts", "2"]);
    start().stop();
    let at = world.data().join("ost1");
    let disk = Disk::new(&world.path("image"), &at, "ext4", 400);
    run(glint().args(["ost", "replace", text(&at)]));
    let server = start();
    let (gone, a) = world.mount(port, "a", &[]);
    let (hangs, b) = world.mount(port, "b", &["-o", "nowbmeta"]);
    let made_on = |ost: u16| {
        let made = (0..).map(|n| b.join(format!("f{ost}-{n}"))).find(|path| {
            fs::write(path, b"first").unwrap();
            let get = format!("getfattr --only-values -n glint.layout {}", quoted(path));
            sh(&b, &get).contains(&format!("first_ost={ost}"))
        });
        made.unwrap()
    };
    let (locked, frozen_there) = (made_on(0), made_on(1));
    sh(&b, "sync -f .");
    let (known, seen) = (fs::read(&locked).unwrap(), a.join(locked.file_name().unwrap()));
    assert_eq!(known, b"first");
    // Processes of their own have the files open: each that this one starts closes copies of its
    // descriptors, and a close is told to the mount, which does not answer any more.
    let run = |script: &str, path: &Path| {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(path).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut holds = run("exec 3<>\"$0\"; printf LAST! >&3; echo written; exec sleep 1000", &seen);
    let mut said = [0; 8];
    holds.stdout.take().unwrap().read_exact(&mut said).unwrap();
    gone.halt(true);
    let frozen = Frozen::new(&at);
    let mut hanging = run("printf later | dd of=\"$0\" conv=notrunc,fsync", &frozen_there);
    server.wait_for_event(event::CLIENT_EVICTED);
    // A client that comes now is served by threads that run.
    let (_comes, c) = world.mount(port, "c", &[]);
    let content = fs::read(c.join(locked.file_name().unwrap())).unwrap();
    // Data that the evicted client had not sent is lost.
    assert!(content == b"first" || content == b"LAST!", "{content:?}");
    assert!(hanging.try_wait().unwrap().is_none(), "the disk stood still all the time");
    frozen.thaw();
    assert!(hanging.wait().unwrap().success());
    hangs.assert_no(event::SESSION_LOST);
    assert_eq!(server.events(event::CLIENT_EVICTED), 1, "{}", server.log());
    gone.halt(false);
    holds.kill().unwrap();
    holds.wait().unwrap();
    drop(disk);
}
