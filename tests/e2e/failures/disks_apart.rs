//! Files without copies on a server whose OSTs have disks of their own: one that stands still holds up
//! nobody who needs the others, and one that is full nobody who needs space elsewhere. Where there is one
//! disk nothing is handed over to threads of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::disk::{Disk, Frozen, fill, move_ost};
use support::paths::quoted;
use support::stalls::Stalls;
use support::*;

/// In how many seconds a client has to give back what others want, and how long a disk stands still
/// here: longer than it takes to be called so, than that, and than other servers take to be called lost.
const LEASE: &str = "6";
const STILL: Duration = Duration::from_secs(9);
/// Until programs that write have begun.
const LOCKED: Duration = Duration::from_millis(500);
/// Longest time of a call that needs other disks.
const BESIDE_MAX: Duration = Duration::from_secs(2);
/// Programs that wait for the disk: more than a server has threads.
const HANGING: usize = 12;

/// Which server has the two OSTs.
#[derive(Clone, Copy, PartialEq)]
enum Owner {
    Mds,
    Oss,
}

/// Makes files in a directory until there are so many on an OST.
fn files_on(ost: u16, directory: &Path, count: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for n in 0.. {
        let path = directory.join(format!("f{ost}-{n}"));
        fs::write(&path, b"before").unwrap();
        let get = format!("getfattr --only-values -n glint.layout {}", quoted(&path));
        if sh(directory, &get).contains(&format!("first_ost={ost}")) {
            found.push(path);
        }
        if found.len() == count {
            break;
        }
    }
    found
}

/// Overwrites a file in a process of its own, and waits until that is on stable storage.
fn overwrites(path: &Path) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", "printf later! | dd of=\"$0\" conv=notrunc,fsync"]).arg(path);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn go_on_without_one_disk(owner: Owner) {
    let world = World::new();
    let (port, own) = (free_port(), free_port());
    let (osts, data) = match owner {
        Owner::Mds => ("2", world.data()),
        Owner::Oss => ("1", world.oss_data(1)),
    };
    let serve = || world.serve(port, &["--osts", osts, "--lease", LEASE]);
    let oss = || (owner == Owner::Oss).then(|| world.oss(1, own, port, &["--osts", "2"]));
    let (before, other) = (serve(), oss());
    other.into_iter().for_each(Process::stop);
    before.stop();
    let at = [world.path("disk0"), world.path("disk1")];
    let disk = |n: usize| Disk::new(&world.path(&format!("image{n}")), &at[n], "ext4", 400);
    let disks = [disk(0), disk(1)];
    move_ost(&data, 0, &at[0]);
    move_ost(&data, 1, &at[1]);
    let (server, other) = (serve(), oss());
    let first = if owner == Owner::Mds { 0 } else { 1 };

    // Who needs the disk that is to stand still, who does not, and somebody who reads what that one
    // writes.
    let (hangs, a) = world.mount(port, "a", &[]);
    let (writes, b) = world.mount(port, "b", &[]);
    let (reads, c) = world.mount(port, "c", &[]);
    let directory = |top: &Path, name: &str| {
        let made = top.join(name);
        fs::create_dir(&made).unwrap();
        made
    };
    let still = files_on(first + 1, &directory(&a, "still"), HANGING);
    let beside = files_on(first, &directory(&b, "beside"), 4);
    for top in [&a, &b] {
        sh(top, "sync -f .");
    }
    let seen: Vec<PathBuf> =
        beside.iter().map(|path| c.join(path.strip_prefix(&b).unwrap())).collect();
    assert!(seen.iter().all(|path| fs::read(path).unwrap() == b"before"));

    let frozen = Frozen::new(&at[1]);
    let (begun, stalls) = (Instant::now(), Stalls::start());
    let mut hanging: Vec<Child> = still.iter().map(|path| overwrites(path)).collect();
    std::thread::sleep(LOCKED);
    let (mut longest, mut round) = (Duration::ZERO, 0_u32);
    while begun.elapsed() < STILL {
        round += 1;
        let text = format!("{round:06}");
        let (path, seen) = (&beside[round as usize % 4], &seen[round as usize % 4]);
        let ((), took) = stalls.timed(|| {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(text.as_bytes(), 0).unwrap();
            file.sync_all().unwrap();
        });
        let (read, seen_after) = stalls.timed(|| fs::read_to_string(seen).unwrap());
        assert_eq!(read, text);
        let (_, named) = stalls.timed(|| {
            let made = b.join(format!("name{round}"));
            fs::create_dir(&made).unwrap();
            fs::rename(&made, b.join(format!("other{round}"))).unwrap();
            fs::metadata(c.join(format!("other{round}"))).unwrap()
        });
        longest = longest.max(took).max(seen_after).max(named);
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = hanging.iter_mut().filter_map(|child| child.try_wait().unwrap()).count();
    frozen.thaw();
    assert!(ended == 0, "the disk stood still all the time");
    assert!(longest < BESIDE_MAX, "{longest:?} for files on the disk that goes on");
    for (mut child, path) in hanging.into_iter().zip(&still) {
        assert!(child.wait().unwrap().success());
        assert_eq!(fs::read(path).unwrap(), b"later!");
    }
    server.assert_no(event::CLIENT_EVICTED);
    for mount in [&hangs, &writes, &reads] {
        for event in [event::SESSION_LOST, event::DATA_LOST, event::CHANGES_LOST] {
            mount.assert_no(event);
        }
    }
    for mount in [hangs, writes, reads] {
        mount.stop();
    }
    other.into_iter().for_each(Process::stop);
    server.stop();
    match owner {
        Owner::Mds => world.assert_sound(),
        Owner::Oss => world.assert_sound_with(&world.data(), &[1]),
    }
    drop(disks);
}

#[test]
fn one_disk_of_the_server_with_the_mds_stands_still_and_the_other_goes_on() {
    go_on_without_one_disk(Owner::Mds);
}

#[test]
fn one_disk_of_a_server_of_osts_stands_still_and_the_other_goes_on() {
    go_on_without_one_disk(Owner::Oss);
}

/// Counts what is handed over to other threads while so many files are written, on two OSTs that are
/// beside the tables, or on a disk of their own.
fn hand_overs(files: u64, apart: bool) -> u64 {
    let world = World::new();
    let (port, metrics) = (free_port(), address(free_port()));
    let start = || world.serve(port, &["--osts", "2", "--metrics", &metrics]);
    start().stop();
    let at = world.path("disk");
    let disk = apart.then(|| Disk::new(&world.path("image"), &at, "ext4", 400));
    if apart {
        (0..2).for_each(|ost| move_ost(&world.data(), ost, &at));
    }
    let server = start();
    let (mount, directory) = world.mount(port, "m", &[]);
    let counted = || -> u64 {
        let scraped = scrape(&metrics);
        let mut lines = scraped.lines();
        let value = lines.find_map(|line| line.strip_prefix("glint_hand_overs_total "));
        value.unwrap().trim().parse().unwrap()
    };
    let before = counted();
    for n in 0..files {
        fs::write(directory.join(format!("f{n}")), vec![7; 5000]).unwrap();
    }
    sh(&directory, "sync -f .");
    let handed_over = counted() - before;
    mount.stop();
    server.stop();
    drop(disk);
    handed_over
}

#[test]
fn changes_are_handed_over_only_where_there_are_several_file_systems() {
    const FILES: u64 = 1000;
    // Each second data is settled, and in the end all is flushed.
    let together = hand_overs(FILES, false);
    assert!(together < FILES / 10, "{together} for {FILES} files on one file system");
    let apart = hand_overs(FILES, true);
    assert!(apart >= FILES, "{apart} for {FILES} files beside another file system");
}

/// The tables are on another disk than the first OST.
#[test]
fn names_are_made_while_the_disk_of_the_first_ost_is_full() {
    let world = World::new();
    let port = free_port();
    let serve = || world.serve(port, &["--osts", "2"]);
    serve().stop();
    let at = world.path("disk");
    let disk = Disk::new(&world.path("image"), &at, "ext4", 100);
    move_ost(&world.data(), 0, &at);
    let server = serve();
    let (mount, directory) = world.mount(port, "m", &["-o", "nowbmeta"]);
    let filler = at.join("filler");
    fill(&filler);
    // The server looks at its space ten times a second.
    std::thread::sleep(Duration::from_secs(1));
    for n in 0..100 {
        let made = directory.join(format!("d{n}"));
        fs::create_dir(&made).unwrap();
        fs::write(made.join("f"), b"data").unwrap();
        assert_eq!(fs::read(made.join("f")).unwrap(), b"data");
    }
    sh(&directory, "sync -f .");
    fs::remove_file(&filler).unwrap();
    mount.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}
