//! Changes that a client makes by itself in directories that it has for itself: nobody can
//! tell, whoever looks, and whatever dies.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};
use support::namespace::Host;
use support::random::Random;
use support::stalls::Stalls;
use support::*;

/// Everything about a tree that must be the same wherever it lies.
fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let kind = meta.file_type();
            let content = match () {
                () if kind.is_dir() => {
                    left.push(path.clone());
                    String::new()
                }
                () if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                () => format!("{:x}", crc32c::crc32c(&fs::read(&path).unwrap())),
            };
            let size = if kind.is_dir() { 0 } else { meta.len() };
            // Times that were set are whole seconds of long ago.
            let old = meta.mtime() < 1_000_000;
            let mtime = if old { meta.mtime() } else { -1 };
            let owner = format!("{}:{}", meta.uid(), meta.gid());
            let mode = format!("{:o} {owner} {}", meta.mode(), meta.nlink());
            let line = format!("{mode} {size} {mtime} {content}");
            all.insert(path.strip_prefix(root).unwrap().to_owned(), line);
        }
    }
    all
}

/// One operation on paths below `root`; what it said.
fn operate(root: &Path, step: u64, what: &[u64; 6]) -> Result<(), Option<i32>> {
    let [what, a, b, c, d, amount] = *what;
    let path = |x: u64, y: u64| match x {
        0..=2 => root.join(format!("n{y}")),
        3..=8 => root.join(format!("d{x}/n{y}")),
        _ => root.join(format!("d3/d{x}/n{y}")),
    };
    let (one, two) = (path(a, b), path(c, d));
    let result = match what {
        0 => {
            let name = if a > 8 { format!("d3/d{a}") } else { format!("d{a}") };
            fs::create_dir(root.join(name))
        }
        1..=3 => fs::write(&one, vec![step as u8; amount as usize]),
        4 => File::create_new(&one).map(drop),
        5 => OpenOptions::new().append(true).open(&one).and_then(|mut file| {
            file.write_all(&vec![step as u8; amount as usize])?;
            file.write_all(b"end")
        }),
        6 => {
            // Set-id bits in three of four cases.
            let mode = 0o400 + amount % 0o400 + b % 4 * 0o2000;
            fs::set_permissions(&one, fs::Permissions::from_mode(mode as u32))
        }
        7 => File::options().write(true).open(&one).and_then(|file| {
            file.write_all_at(b"before a time is set", amount)?;
            file.set_modified(UNIX_EPOCH + Duration::from_secs(amount))
        }),
        8 | 9 => fs::rename(&one, &two),
        // Names at the top have no parent that could be moved.
        10 | 12 if a < 3 || c < 3 => return Ok(()),
        10 => fs::rename(one.parent().unwrap(), two.parent().unwrap()),
        11 => fs::remove_file(&one),
        12 => fs::remove_dir(one.parent().unwrap()),
        13 => symlink("somewhere", &one),
        14 => fs::hard_link(&one, &two),
        15 => File::options().write(true).open(&one).and_then(|file| file.set_len(amount / 2)),
        16 => fs::create_dir(&one),
        17 => File::open(&one).and_then(|file| file.sync_all()),
        18 | 19 => {
            let (uid, gid) = (amount as u32 % 3, b as u32 % 3);
            lchown(&one, (c > 3 || d < 2).then_some(uid), (d > 1).then_some(gid))
        }
        _ => File::options().write(true).create(true).truncate(true).open(&one).and_then(|file| {
            // The file loses its name while it is open.
            file.write_all_at(b"x", amount)?;
            fs::rename(&one, &two)?;
            file.write_all_at(b"y", amount + 1)?;
            fs::set_permissions(&two, fs::Permissions::from_mode(0o640))
        }),
    };
    result.map_err(|error| error.raw_os_error())
}

/// Random operations on a small tree, in runs through one mount and then another, beside the
/// same ones on a local file system: the same answers, and from every mount the same tree.
#[test]
fn random_operations_on_a_tree_through_three_mounts() {
    let seed = std::env::var("SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
    let rounds = std::env::var("ROUNDS").map_or(150, |rounds| rounds.parse().unwrap());
    println!("seed {seed}");
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "2"]);
    let mounts: Vec<(Process, PathBuf)> =
        (0..3).map(|n| world.mount(port, &format!("m{n}"), &[])).collect();
    let local = world.path("local");
    fs::create_dir(&local).unwrap();
    let mut random = Random(seed);
    let mut step = 0;
    for round in 0..rounds {
        let who = random.below(3) as usize;
        for _ in 0..random.below(40) {
            step += 1;
            let limits = [21, 12, 6, 12, 6, 3000];
            let what = limits.map(|limit| random.below(limit));
            let expected = operate(&local, step, &what);
            let found = operate(&mounts[who].1, step, &what);
            assert_eq!(found, expected, "step {step} of seed {seed}: {what:?} on mount {who}");
        }
        let looks = random.below(3) as usize;
        let (found, expected) = (tree(&mounts[looks].1), tree(&local));
        assert!(
            found == expected,
            "round {round}, step {step} of seed {seed}: mount {looks} after {who}: {:#?}",
            difference(&found, &expected)
        );
        if random.below(8) == 0 {
            // A new beginning, so that directories are made again.
            let victim = format!("d{}", 3 + random.below(6));
            let _ = fs::remove_dir_all(local.join(&victim));
            let _ = fs::remove_dir_all(mounts[who].1.join(&victim));
        }
    }
    for (mount, _) in mounts {
        mount.stop();
    }
    server.stop();
    world.assert_sound();
}

fn difference(
    found: &BTreeMap<PathBuf, String>,
    expected: &BTreeMap<PathBuf, String>,
) -> Vec<String> {
    let paths: BTreeSet<&PathBuf> = found.keys().chain(expected.keys()).collect();
    let differs = |path: &&PathBuf| found.get(*path) != expected.get(*path);
    let say = |path: &PathBuf| {
        format!("{}: {:?}, not {:?}", path.display(), found.get(path), expected.get(path))
    };
    paths.into_iter().filter(differs).map(say).collect()
}

/// Requests that the server executed, by operation.
fn requests(address: &str) -> BTreeMap<String, u64> {
    let output = run(glint().args(["stats", address, "--json"]));
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    rows.filter(|row| row["process"] == "server")
        .filter(|row| row["layer"] == "handler" || row["layer"] == "object_io")
        .map(|row| (row["op"].as_str().unwrap().to_owned(), row["count"].as_u64().unwrap()))
        .collect()
}

#[test]
fn small_files_cost_one_request_with_data_and_a_part_of_one() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, a) = world.mount(port, "a", &[]);
    let (direct, b) = world.mount(port, "b", &["-o", "nowbmeta"]);
    let make = |directory: &Path| {
        let begun = Instant::now();
        fs::create_dir(directory).unwrap();
        let before = requests(&address(port));
        for i in 0..1000 {
            fs::write(directory.join(format!("f{i}")), vec![7; 5000]).unwrap();
        }
        File::open(directory).unwrap().sync_all().unwrap();
        let after = requests(&address(port));
        // Changes for which nobody waits are sent after half a second.
        let by_itself = 4 * begun.elapsed().as_secs();
        let counted = after
            .into_iter()
            .map(|(op, count)| {
                let old = before.get(&op).copied().unwrap_or(0);
                (op, count - old)
            })
            .filter(|(_, count)| *count > 0)
            .collect::<BTreeMap<_, _>>();
        (counted, by_itself)
    };
    let (deferred, by_itself) = make(&a.join("d"));
    println!("{deferred:?}");
    let count = |all: &BTreeMap<String, u64>, op: &str| all.get(op).copied().unwrap_or(0);
    assert_eq!(count(&deferred, "create") + count(&deferred, "release"), 0, "{deferred:?}");
    assert!(count(&deferred, "batch") < 50 + by_itself, "{deferred:?}");
    assert_eq!(count(&deferred, "obj_write"), 1000, "{deferred:?}");
    assert!(deferred.values().sum::<u64>() < 1100 + by_itself, "nothing else: {deferred:?}");
    let (at_once, _) = make(&b.join("e"));
    assert_eq!((count(&at_once, "create"), count(&at_once, "batch")), (1000, 0), "{at_once:?}");
    mount.stop();
    direct.stop();
    server.stop();
    world.assert_sound();
}

/// The data of a file that was just closed may be on its way, or there, with a time of its own.
#[test]
fn times_of_files_that_were_just_closed_are_seen_at_once_and_stay() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, a) = world.mount(port, "a", &[]);
    let (other, b) = world.mount(port, "b", &[]);
    let directory = a.join("d");
    fs::create_dir(&directory).unwrap();
    let noon = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
    let times = Timestamps { last_access: noon, last_modification: noon };
    let look = |at: &Path, i: usize, when: &str| {
        let metadata = fs::metadata(at.join(format!("d/f{i}"))).unwrap();
        assert_eq!(metadata.mtime(), noon.tv_sec, "f{i} {when}");
    };
    for i in 0..50 {
        let path = directory.join(format!("f{i}"));
        let file = File::create(&path).unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        if i % 2 == 0 {
            // Its objects have a time.
            file.sync_data().unwrap();
        }
        drop(file);
        if i % 3 == 0 {
            // Closed by a request of its own.
            OpenOptions::new().append(true).open(&path).unwrap().write_all(b"more").unwrap();
        }
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        if i % 5 < 3 {
            look(&b, i, "at once");
        }
    }
    File::open(&directory).unwrap().sync_all().unwrap();
    for i in 0..50 {
        look(&a, i, "where it was set");
        look(&b, i, "elsewhere");
    }
    [mount, other, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

#[test]
fn a_server_is_killed_while_changes_are_sent() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    for round in 0..6u64 {
        let top = format!("r{round}");
        let written = Arc::new(AtomicU64::new(0));
        let writer = {
            let (top, written) = (a.join(&top), written.clone());
            std::thread::spawn(move || {
                fs::create_dir(&top).unwrap();
                for d in 0..20 {
                    let directory = top.join(format!("d{d}"));
                    fs::create_dir(&directory).unwrap();
                    for f in 0..60 {
                        let path = directory.join(format!("f{f}"));
                        fs::write(&path, format!("{d} {f}")).unwrap();
                        match f % 4 {
                            0 => fs::remove_file(&path).unwrap(),
                            1 => fs::rename(&path, directory.join(format!("g{f}"))).unwrap(),
                            _ => {}
                        }
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                }
            })
        };
        // Out of 1 200.
        let some = 100 + 150 * round;
        eventually("files are written", || written.load(Ordering::Relaxed) >= some);
        server.kill();
        server = world.serve(port, &[]);
        writer.join().unwrap();
        let look = if round % 2 == 0 { &b } else { &a };
        for d in 0..20 {
            let directory = look.join(&top).join(format!("d{d}"));
            assert_eq!(fs::read_dir(&directory).unwrap().count(), 45, "round {round}, {d}");
            for f in 0..60 {
                let name = match f % 4 {
                    0 => continue,
                    1 => format!("g{f}"),
                    _ => format!("f{f}"),
                };
                let content = fs::read_to_string(directory.join(name)).unwrap();
                assert_eq!(content, format!("{d} {f}"), "round {round}");
            }
        }
    }
    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

/// A file that was made under a delegation, and has no name any more, is open as long as its client
/// says so, also to a server that has started again.
#[test]
fn a_removed_file_that_is_open_outlives_a_server() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let (mount, a) = world.mount(port, "a", &[]);
    let directory = a.join("d");
    fs::create_dir(&directory).unwrap();
    let path = directory.join("f");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"kept").unwrap();
    sh(&a, "sync -f .");
    fs::remove_file(&path).unwrap();
    sh(&a, "sync -f .");
    server.kill();
    server = world.serve(port, &[]);
    // Nothing is before the recovery has ended.
    copies::wait_until_destroyed(&a, &world.data().join("ost0"));
    file.write_all(b"more").unwrap();
    file.sync_all().unwrap();
    sh(&a, "echo 3 > /proc/sys/vm/drop_caches");
    let mut content = [0; 8];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"keptmore");
    drop(file);
    mount.stop();
    server.stop();
    world.assert_sound();
}

/// Changes that were synced before a client died are there; others are there or not, but whole.
#[test]
fn a_client_is_killed_with_changes_that_it_has_not_sent() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "6"]);
    let (stays, b) = world.mount(port, "b", &[]);
    for round in 0..at_length(2, 3) {
        let (dies, a) = world.mount(port, &format!("a{round}"), &[]);
        let d = format!("d{round}");
        fs::create_dir(a.join(&d)).unwrap();
        for i in 0..300 {
            fs::write(a.join(&d).join(format!("f{i}")), b"content").unwrap();
        }
        File::open(a.join(&d)).unwrap().sync_all().unwrap();
        for i in 300..400 + 200 * round {
            fs::write(a.join(&d).join(format!("f{i}")), b"content").unwrap();
        }
        dies.kill();
        let counted = || fs::read_dir(b.join(&d)).unwrap().count();
        let (names, took) = Stalls::start().timed(counted);
        assert!(took < Duration::from_secs(60), "{took:?}");
        assert!(names >= 300, "{names} of 300 that were synced");
        for i in 0..names {
            let content = fs::read(b.join(&d).join(format!("f{i}")));
            let content = content.unwrap_or_else(|error| panic!("f{i} of {names}: {error}"));
            let whole = content == b"content" || (i >= 300 && content.is_empty());
            assert!(whole, "f{i} of {names}: {content:?}");
        }
        fs::write(b.join(&d).join("more"), b"").unwrap();
        let _ = rustix::mount::unmount(&a, rustix::mount::UnmountFlags::DETACH);
    }
    stays.stop();
    server.stop();
    world.assert_sound();
}

/// A host is cut off with changes that it has not sent: others go on when its lease is over, and
/// then it shows what they have, not what it had.
#[test]
fn a_host_is_cut_off_with_changes_that_it_has_not_sent() {
    // A machine that is too slow for one lease has a longer one.
    let leases = [12, 40, 120];
    assert!(leases.into_iter().any(is_cut_off_with_changes), "no lease was long enough");
}

/// Returns false if the machine was too slow to make a change in the time in which a host that is
/// cut off may make some.
fn is_cut_off_with_changes(lease_seconds: u32) -> bool {
    let world = World::new();
    let host = Host::new();
    let address = format!("{}:{}", host.address, free_port());
    // Two thirds of it are the time in which it may write while it is cut off.
    let server = world.serve_at(&address, &["--insecure", "--lease", &lease_seconds.to_string()]);
    let (stays, b) = world.mount_from(&address, "b", &[]);
    let (cut_off, a) = host.mount(&world, &address);

    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("d/seen"), b"1").unwrap();
    File::open(a.join("d")).unwrap().sync_all().unwrap();
    fs::write(a.join("d/lost"), b"2").unwrap();
    host.connect(false);
    // More that nobody hears of, as long as it may think that it has the directory.
    let writing = std::thread::spawn({
        let path = a.join("d/lost too");
        move || fs::write(path, b"3")
    });
    let names = |mount: &Path| {
        let mut names: Vec<_> = fs::read_dir(mount.join("d"))?
            .map(|entry| entry.map(|entry| entry.file_name().into_string().unwrap()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        std::io::Result::Ok(names)
    };
    let found = names(&b).unwrap();
    assert!(found.contains(&"seen".to_owned()), "{found:?}");
    fs::write(b.join("d/theirs"), b"4").unwrap();
    let expected = names(&b).unwrap();
    // One that came too late waits now, and is told when the host is heard again.
    let in_time = writing.is_finished();
    host.connect(true);
    let written = writing.join().unwrap();
    if !in_time {
        println!("too slow for a lease of {lease_seconds} s: {written:?}");
        return false;
    }
    written.unwrap();
    eventually("it sees what the other has", || names(&a).is_ok_and(|names| names == expected));
    let missing = fs::metadata(a.join("d/lost too")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    eventually("it writes again", || fs::write(a.join("d/back"), b"5").is_ok());
    assert_eq!(fs::read(b.join("d/back")).unwrap(), b"5");
    cut_off.wait_for_event(event::CHANGES_LOST);
    cut_off.wait_for_event(event::DATA_LOST);
    cut_off.stop();
    stays.stop();
    server.stop();
    world.assert_sound();
    true
}

/// The inodes that a client remembers have a limit in number, and so in memory.
#[test]
#[ignore = "make long: 220 000 files"]
fn memory_of_many_cached_files() {
    const FILES: u64 = 100_000;
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, a) = world.mount(port, "a", &[]);
    let resident = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
    };
    let cached = || {
        let status = run(glint().args(["status", "--json", text(&a)])).stdout;
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
        status["client"]["cached_inodes"].as_u64().unwrap()
    };
    let make = |name: &str, files: u64| {
        let directory = a.join(name);
        fs::create_dir(&directory).unwrap();
        let directory = File::open(&directory).unwrap();
        for i in 0..files {
            let kind = rustix::fs::FileType::RegularFile;
            rustix::fs::mknodat(&directory, format!("file-{i}"), kind, 0o644.into(), 0).unwrap();
        }
    };
    let before = resident(mount.pid());
    make("first", FILES);
    assert!(cached() >= FILES);
    let each = (resident(mount.pid()) - before) / FILES;
    assert!(each < 2048, "{each} bytes for each cached file");
    make("second", FILES + 20_000);
    // The kernel gives up what nobody uses, and then the client does.
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    eventually("no more are cached than may be", || cached() <= 200_000);
    for name in ["first/file-7", "second/file-99999"] {
        assert_eq!(fs::metadata(a.join(name)).unwrap().len(), 0);
    }
    assert!(!a.join("first/file-100000").exists());
    assert_eq!(fs::read_dir(a.join("first")).unwrap().count() as u64, FILES);
    mount.stop();
    server.stop();
    world.assert_sound();
}
