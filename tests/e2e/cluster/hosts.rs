//! Several mounts under load, with servers that are killed and hosts that are cut off: still one
//! file system.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::namespace::Host;
use support::pair::pair;
use support::random::Random;
use support::*;

/// Random operations as fsx makes them, on several mounts at once: each goes through another mount,
/// open in another way, and reads must find the last write.
#[test]
fn random_operations_on_one_file_through_four_mounts() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "3"]);
    let mounts: Vec<(Process, PathBuf)> =
        (0..4).map(|n| world.mount(port, &format!("m{n}"), &[])).collect();
    sh(&mounts[0].1, "setfattr -n glint.layout -v 'stripe_count=3 stripe_size=65536' .");
    let seed = std::env::var("SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = Random(seed);
    let mut model: Vec<u8> = Vec::new();
    let size_max = 600_000;
    File::create(mounts[0].1.join("f")).unwrap();
    let open = |mount: &Path, how: u64| {
        let mut options = OpenOptions::new();
        match how {
            0 => options.read(true),
            1 => options.write(true),
            _ => options.read(true).write(true),
        };
        options.open(mount.join("f")).unwrap()
    };
    // Files that stay open: to read, to write, and both, on each mount.
    let files: Vec<[File; 3]> =
        mounts.iter().map(|(_, mount)| [0, 1, 2].map(|how| open(mount, how))).collect();
    for step in 0..3000u64 {
        let who = random.below(4) as usize;
        let offset = random.below(size_max) as usize;
        let len = 1 + random.below(70_000) as usize;
        match random.below(10) {
            0..=3 => {
                let end = (offset + len).min(size_max as usize);
                let data: Vec<u8> = (offset..end).map(|at| (at as u64 + step) as u8).collect();
                let how = 1 + random.below(2) as usize;
                files[who][how].write_all_at(&data, offset as u64).unwrap();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&data);
            }
            4 => {
                let size = random.below(size_max);
                files[who][1 + random.below(2) as usize].set_len(size).unwrap();
                model.resize(size as usize, 0);
            }
            5 => {
                let size = fs::metadata(mounts[who].1.join("f")).unwrap().len();
                assert_eq!(size, model.len() as u64, "step {step}: the size on mount {who}");
            }
            6 => {
                let all = fs::read(mounts[who].1.join("f")).unwrap();
                assert!(all == model, "step {step}: all of it on mount {who}");
            }
            _ => {
                let how = if random.below(2) == 0 { 0 } else { 2 };
                let mut found = vec![0; len];
                let n = read_at_most(&files[who][how], &mut found, offset as u64);
                let expected = model.get(offset..).unwrap_or_default();
                let expected = &expected[..expected.len().min(len)];
                assert_eq!(n, expected.len(), "step {step}: how much is read on mount {who}");
                assert!(found[..n] == *expected, "step {step}: {n} bytes at {offset} on {who}");
            }
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at_most(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64).unwrap() {
            0 => break,
            n => done += n,
        }
    }
    done
}

/// Many clients create, rename and remove the same few names; what they were told must fit
/// one order of all operations, checked name by name: a name is created and removed in turns.
#[test]
fn a_history_of_creates_and_removals_has_an_order() {
    let pair = pair();
    fs::create_dir(pair.a.join("d")).unwrap();
    let clock = std::sync::atomic::AtomicU64::new(0);
    // (name, whether it was created, begin, end) of operations that succeeded.
    let history = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let directory = if thread % 2 == 0 { pair.a.join("d") } else { pair.b.join("d") };
            let (clock, history) = (&clock, &history);
            scope.spawn(move || {
                let mut random = Random(thread + 7);
                let now = || clock.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                for _ in 0..400 {
                    let name = random.below(3);
                    let path = directory.join(format!("n{name}"));
                    let creates = random.below(2) == 0;
                    let begin = now();
                    let result = match creates {
                        true => File::create_new(&path).map(drop),
                        false => fs::remove_file(&path),
                    };
                    let end = now();
                    match result {
                        Ok(()) => history.lock().unwrap().push((name, creates, begin, end)),
                        Err(error) => assert!(
                            matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound),
                            "{error}"
                        ),
                    }
                }
            });
        }
    });
    let mut history = history.into_inner().unwrap();
    history.sort_unstable_by_key(|(name, _, begin, _)| (*name, *begin));
    for name in 0..3 {
        let of: Vec<_> = history.iter().filter(|entry| entry.0 == name).collect();
        let (created, removed): (Vec<_>, Vec<_>) = of.iter().partition(|entry| entry.1);
        let exists = pair.a.join(format!("d/n{name}")).exists();
        assert_eq!(created.len(), removed.len() + usize::from(exists), "they take turns");
        // The n-th removal cannot have ended before the n-th creation began, nor the next
        // creation before that removal began.
        let ordered = |all: &[&&(u64, bool, u64, u64)]| {
            let mut ends: Vec<u64> = all.iter().map(|entry| entry.3).collect();
            let mut begins: Vec<u64> = all.iter().map(|entry| entry.2).collect();
            ends.sort_unstable();
            begins.sort_unstable();
            (begins, ends)
        };
        let ((create_begins, create_ends), (remove_begins, remove_ends)) =
            (ordered(&created), ordered(&removed));
        for n in 0..removed.len() {
            assert!(create_begins[n] < remove_ends[n], "name {name}: removed before it was made");
            if n + 1 < created.len() {
                assert!(remove_begins[n] < create_ends[n + 1], "name {name}: made twice");
            }
        }
    }
}

#[test]
fn a_server_is_killed_while_clients_flush() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    for round in 0..5u64 {
        let data: Vec<u8> = (0..20_000_000u64).map(|i| (i * 7 + round) as u8).collect();
        let path = a.join("f");
        let writer = {
            let (path, data) = (path.clone(), data.clone());
            std::thread::spawn(move || {
                let file = File::create(&path).unwrap();
                for (index, chunk) in data.chunks(300_000).enumerate() {
                    file.write_all_at(chunk, index as u64 * 300_000).unwrap();
                }
                file.sync_all().unwrap();
            })
        };
        std::thread::sleep(Duration::from_millis(5 + 7 * round));
        server.kill();
        server = world.serve(port, &[]);
        writer.join().unwrap();
        assert!(fs::read(b.join("f")).unwrap() == data, "round {round}");
        fs::remove_file(b.join("f")).unwrap();
    }
    // Locks of programs stay held.
    let lock = |path: &Path| {
        let file = File::create(path).unwrap();
        let held = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
        (file, held)
    };
    let (held, first) = lock(&a.join("l"));
    first.unwrap();
    server.kill();
    server = world.serve(port, &[]);
    assert!(lock(&b.join("l")).1.is_err(), "it is locked on the other mount");
    rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
    lock(&b.join("l")).1.unwrap();
    drop(held);
    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

/// A host is cut off while its kernel has cached what another one changes: the other one goes
/// on when the lease is over, and the one that was cut off shows nothing old.
#[test]
fn a_host_is_cut_off_while_it_holds_locks() {
    let world = World::new();
    let host = Host::new();
    let address = format!("{}:{}", host.address, free_port());
    let server = world.serve_at(&address, &["--insecure", "--lease", "8"]);
    let (stays, b) = world.mount_from(&address, "b", &[]);
    let (cut_off, a) = host.mount(&world, &address);

    fs::write(a.join("f"), b"old").unwrap();
    fs::write(a.join("gone"), b"").unwrap();
    assert_eq!(fs::read(b.join("f")).unwrap(), b"old");
    assert_eq!(fs::read(a.join("f")).unwrap(), b"old");
    assert!(a.join("gone").exists());
    let started = Instant::now();
    host.connect(false);
    fs::write(b.join("f"), b"newer").unwrap();
    fs::remove_file(b.join("gone")).unwrap();
    assert!(started.elapsed() > Duration::from_secs(1), "it had to wait for the lease");
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    // Whatever the other host says now, it must not be what was.
    let asking = {
        let (f, gone) = (a.join("f"), a.join("gone"));
        std::thread::spawn(move || (fs::metadata(f).map(|meta| meta.len()), fs::metadata(gone)))
    };
    std::thread::sleep(Duration::from_secs(1));
    host.connect(true);
    let (size, gone) = asking.join().unwrap();
    cut_off.wait_for_event(event::SESSION_LOST);
    // A call that was under way when the client was evicted may fail, as the lock was lost.
    let is_lost =
        |error: &std::io::Error| matches!(error.raw_os_error(), Some(libc::ESTALE | libc::EIO));
    assert!(size.as_ref().map_or_else(is_lost, |size| *size == 5), "{size:?}");
    let is_absent = |error: &std::io::Error| error.kind() == std::io::ErrorKind::NotFound;
    assert!(gone.as_ref().is_err_and(|error| is_absent(error) || is_lost(error)), "{gone:?}");
    eventually("it goes on as a new client", || match fs::read(a.join("f")) {
        Ok(content) => {
            assert_eq!(content, b"newer");
            true
        }
        Err(error) => {
            assert!(is_lost(&error), "{error}");
            false
        }
    });
    assert!(fs::metadata(a.join("gone")).is_err_and(|error| is_absent(&error)));
    // Each of its connections may fail what was under way when it hears of it.
    eventually("it writes again", || fs::write(a.join("f"), b"and back").is_ok());
    assert_eq!(fs::read(b.join("f")).unwrap(), b"and back");
    cut_off.stop();
    stays.stop();
    server.stop();
    world.assert_sound();
}
