//! Files with copies on disks that differ or fail: one member's disk keeps nobody else from going on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::disk::{Disk, Frozen, fill, move_ost};
use support::stalls::Stalls;
use support::*;

/// A disk whose largest file is smaller than that of the others.
#[test]
fn the_smallest_limit_of_all_members_counts() {
    let world = World::new();
    let options = ["--osts", "2", "--replicas", "2"];
    world.up(&options).stop();
    let at = world.path("disk");
    // Small ones have blocks of 1 KiB, and so files of 4 TiB at most.
    let disk = Disk::new(&world.path("image"), &at, "ext4", 100);
    move_ost(&world.data(), 1, &at);
    let process = world.up(&options);
    let mount: PathBuf = world.mount_point();
    wait_until_whole(text(&mount));
    // Either OST is the head of some.
    for n in 0..8 {
        let path = mount.join(format!("file{n}"));
        fs::write(&path, b"before").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let error = file.set_len(6 << 40).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
        file.set_len(1 << 40).unwrap();
        file.set_len(6).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
    }
    let chains = chains(text(&mount));
    assert_eq!(chains["count"], chains["whole"], "{chains}");
    process.assert_no(event::MEMBER_TAKEN_OUT);
    process.stop();
    world.assert_sound();
    drop(disk);
}

/// Longest time in which a call waits here for a disk that stands still: three seconds until it is
/// called so, and what its chains need to go on. The promise is 5 s, which
/// `glint bench copies --row dies` measures on a machine that does nothing else. Here other tests
/// run at the same time, with ten threads for each core that want it, and each of the messages by
/// which chains go on waits its turn.
const STILL_MAX: Duration = Duration::from_secs(8);

/// Objects of an OST: sizes and content.
fn content(ost: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (top, mut found) = (ost.join("objects"), BTreeMap::new());
    for folder in fs::read_dir(&top).unwrap().flatten() {
        for object in fs::read_dir(folder.path()).unwrap().flatten() {
            // One that is removed meanwhile is not there.
            let Ok(bytes) = fs::read(object.path()) else { continue };
            found.insert(object.path().strip_prefix(&top).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// Files in which each has another head, or an OST of its own.
struct Files<'a> {
    dir: &'a Path,
    count: u64,
}

impl Files<'_> {
    fn path(&self, n: u64) -> PathBuf {
        self.dir.join(format!("file{n}"))
    }

    /// Writes all of them from their beginning, to stable storage. Returns how long the slowest took.
    fn write(&self, stalls: &Stalls, text: &str) -> Duration {
        let write = |n| {
            stalls.timed(|| {
                let path = self.path(n);
                let file = fs::File::options().create(true).write(true).truncate(false).open(path);
                let file = file.unwrap();
                file.write_all_at(text.as_bytes(), 0).unwrap();
                file.sync_all().unwrap();
            })
        };
        (0..self.count).map(|n| write(n).1).max().unwrap()
    }

    fn must_be(&self, text: &str) {
        for n in 0..self.count {
            assert_eq!(fs::read_to_string(self.path(n)).unwrap(), text, "file {n}");
        }
    }
}

/// A disk stands still, that of the head of some chains and of followers of others. All OSTs are in
/// the process that mounts.
#[test]
fn one_process_goes_on_while_one_of_its_disks_stands_still() {
    let world = World::new();
    let options = ["--osts", "3", "--replicas", "3"];
    world.up(&options).stop();
    let at = world.path("disk");
    let disk = Disk::new(&world.path("image"), &at, "ext4", 1000);
    move_ost(&world.data(), 1, &at);
    let process = world.up(&options);
    let mount = world.mount_point();
    wait_until_whole(text(&mount));
    let (files, stalls) = (Files { dir: &mount, count: 9 }, Stalls::start());
    files.write(&stalls, "before");
    let frozen = Frozen::new(&at);
    let took = files.write(&stalls, "frozen");
    assert!(took < STILL_MAX, "{took:?}");
    files.must_be("frozen");
    let again = files.write(&stalls, "again!");
    assert!(again < Duration::from_secs(1), "{again:?} for a disk that is known to stand still");
    frozen.thaw();
    wait_until_whole(text(&mount));
    files.must_be("again!");
    process.stop();
    let osts = [0, 1, 2].map(|n| content(&world.data().join(format!("ost{n}"))));
    assert!(osts[0].len() >= 9 && osts[0] == osts[1] && osts[1] == osts[2]);
    world.assert_sound();
    drop(disk);
}

/// The same with servers of their own, one of which has a second disk, which goes on.
fn servers_go_on(freezes_all: bool) {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let serve = || world.serve(port, &["--replicas", "3"]);
    let oss = |n: u16, osts: &str| world.oss(n, ports[usize::from(n) - 1], port, &["--osts", osts]);
    let (at, data) = (world.path("disk"), world.oss_data(1));
    let disk;
    let (server, first);
    if freezes_all {
        // Its logs, too.
        disk = Disk::new(&world.path("image"), &data, "ext4", 1000);
        (server, first) = (serve(), oss(1, "2"));
    } else {
        let before = serve();
        oss(1, "2").stop();
        before.stop();
        disk = Disk::new(&world.path("image"), &at, "ext4", 1000);
        move_ost(&data, 1, &at);
        (server, first) = (serve(), oss(1, "2"));
    }
    let second = oss(2, "1");
    let (client, mount) = world.mount(port, "m", &[]);
    wait_until_whole(text(&mount));
    let alone = mount.join("alone");
    fs::create_dir(&alone).unwrap();
    run(glint().args(["setstripe", "-r", "1", text(&alone)]));
    let (files, stalls) = (Files { dir: &mount, count: 12 }, Stalls::start());
    files.write(&stalls, "before");
    // Without copies, on the disks that go on.
    let layout = |path: &Path| {
        let get = ["--only-values", "-n", "glint.layout", text(path)];
        String::from_utf8(run(Command::new("getfattr").args(get)).stdout).unwrap()
    };
    let still: &[u16] = if freezes_all { &[1, 2] } else { &[2] };
    let mut others = Vec::new();
    for n in 0..8 {
        let path = alone.join(format!("alone{n}"));
        fs::write(&path, b"before").unwrap();
        let text = layout(&path);
        if !still.iter().any(|ost| text.contains(&format!("first_ost={ost}"))) {
            others.push(path);
        }
    }
    assert!(others.len() >= 2);
    sh(&mount, "sync -f .");
    // Of another client: one tells its changes of names in their order.
    let (other, seen) = world.mount(port, "o", &[]);
    for path in &mut others {
        *path = seen.join(path.strip_prefix(&mount).unwrap());
        assert_eq!(fs::read(&*path).unwrap(), b"before");
    }
    let frozen = Frozen::new(if freezes_all { &data } else { &at });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (others, stalls, stop) = (&others, &stalls, &stop);
        let beside = scope.spawn(move || {
            let (mut longest, begun) = (Duration::ZERO, Instant::now());
            // Also when the test fails.
            while !stop.load(Ordering::Relaxed) && begun.elapsed() < Duration::from_secs(60) {
                for path in others {
                    let (_, took) = stalls.timed(|| {
                        let file = fs::File::options().write(true).open(path).unwrap();
                        file.write_all_at(b"beside", 0).unwrap();
                        file.sync_all().unwrap();
                    });
                    longest = longest.max(took);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            longest
        });
        let took = files.write(stalls, "frozen");
        let again = files.write(stalls, "again!");
        stop.store(true, Ordering::Relaxed);
        let longest = beside.join().unwrap();
        assert!(took < STILL_MAX, "{took:?}");
        assert!(
            again < Duration::from_secs(2),
            "{again:?} for a disk that is known to stand still"
        );
        assert!(longest < Duration::from_secs(2), "{longest:?} for files on disks that go on");
    });
    files.must_be("again!");
    frozen.thaw();
    wait_until_whole(text(&mount));
    files.must_be("again!");
    sh(&mount, "sync -f .");
    client.stop();
    other.stop();
    first.stop();
    second.stop();
    server.stop();
    let copies = |osts: &[PathBuf]| {
        let all = osts.iter().flat_map(|ost| content(ost));
        all.filter(|(_, bytes)| bytes == b"again!").collect::<BTreeMap<_, _>>()
    };
    let its = [data.join("ost0"), data.join("ost1")];
    let all = [
        copies(&[world.data().join("ost0")]),
        copies(&its),
        copies(&[world.oss_data(2).join("ost0")]),
    ];
    assert_eq!(all[0].len(), 12);
    assert!(all[0] == all[1] && all[1] == all[2]);
    world.assert_sound();
    drop(disk);
}

#[test]
fn servers_go_on_while_one_disk_of_one_of_them_stands_still() {
    servers_go_on(false);
}

#[test]
fn servers_go_on_while_all_disks_of_one_of_them_stand_still() {
    servers_go_on(true);
}

/// Who has the OSTs: the process that mounts all three, or three servers, one of which has a second
/// OST, on the disk.
#[derive(Clone, Copy)]
enum Owner {
    Mounts,
    Serves,
}

/// Overwrites files, one after the other, while one member's disk does not do what it should.
fn goes_on_without(
    owner: Owner,
    spoil: impl FnOnce(&Path),
    mend: impl FnOnce(&Path, &Disk<'_>) -> bool,
) {
    let world = World::new();
    let [port, one, two] = [free_port(), free_port(), free_port()];
    let serve = || match owner {
        Owner::Mounts => None,
        Owner::Serves => Some(world.serve(port, &["--replicas", "3"])),
    };
    // The one with the disk.
    let start = || match owner {
        Owner::Mounts => world.up(&["--osts", "3", "--replicas", "3"]),
        Owner::Serves => world.oss(1, one, port, &["--osts", "2"]),
    };
    let data = match owner {
        Owner::Mounts => world.data(),
        Owner::Serves => world.oss_data(1),
    };
    let before = serve();
    start().stop();
    before.into_iter().for_each(Process::stop);
    let at = world.path("disk");
    let disk = Disk::new(&world.path("image"), &at, "ext4", 1000);
    move_ost(&data, 1, &at);
    let server = serve();
    let mut process = start();
    let (mut others, mut mount) = (Vec::new(), world.mount_point());
    if let Owner::Serves = owner {
        let second = world.oss(2, two, port, &[]);
        let (client, directory) = world.mount(port, "m", &[]);
        (others, mount) = (vec![client, second], directory);
    }
    wait_until_whole(text(&mount));
    let (files, stalls) = (Files { dir: &mount, count: 12 }, Stalls::start());
    files.write(&stalls, "before");
    spoil(&at);
    // Longer than what is there: it needs blocks.
    let after = "after ".repeat(10_000);
    let took = files.write(&stalls, &after);
    assert!(took < STILL_MAX, "{took:?}");
    files.must_be(&after);
    let took = files.write(&stalls, &after);
    assert!(took < STILL_MAX, "{took:?}");
    // The head of the chain says it, whoever that is.
    eventually("the member is taken out", || {
        let mut all = others.iter().chain(&server).chain([&process]);
        all.any(|process| process.has_event(event::MEMBER_TAKEN_OUT))
    });
    if mend(&at, &disk) {
        process.stop();
        disk.repair();
        process = start();
    }
    wait_until_whole(text(&mount));
    files.must_be(&after);
    others.into_iter().for_each(Process::stop);
    process.stop();
    server.into_iter().for_each(Process::stop);
    // Of the OSTs of a server each chain has one.
    let of = |osts: &[PathBuf]| {
        osts.iter().flat_map(|ost| content(ost)).collect::<BTreeMap<PathBuf, Vec<u8>>>()
    };
    let ost = |data: &Path, n: u16| data.join(format!("ost{n}"));
    let copies = match owner {
        Owner::Mounts => [0, 1, 2].map(|n| of(&[ost(&data, n)])),
        Owner::Serves => [
            of(&[ost(&world.data(), 0)]),
            of(&[ost(&data, 0), ost(&data, 1)]),
            of(&[ost(&world.oss_data(2), 0)]),
        ],
    };
    assert!(copies[0].len() >= 12 && copies[0] == copies[1] && copies[1] == copies[2]);
    match owner {
        Owner::Mounts => world.assert_sound(),
        Owner::Serves => world.assert_sound_with(&world.data(), &[1, 2]),
    }
    drop(disk);
}

fn goes_on_while_a_disk_is_full(owner: Owner) {
    goes_on_without(
        owner,
        |at| fill(&at.join("filler")),
        |at, _| {
            fs::remove_file(at.join("filler")).unwrap();
            false
        },
    );
}

/// A file system that is remounted because of an error takes no changes any more.
fn goes_on_while_a_disk_is_read_only(owner: Owner) {
    let abort = |at: &Path| {
        run(Command::new("mount").args(["-o", "remount,abort"]).arg(at));
    };
    goes_on_without(owner, abort, |_, _| true);
}

#[test]
fn one_process_goes_on_while_one_of_its_disks_is_full() {
    goes_on_while_a_disk_is_full(Owner::Mounts);
}

#[test]
fn servers_go_on_while_one_disk_of_one_of_them_is_full() {
    goes_on_while_a_disk_is_full(Owner::Serves);
}

#[test]
fn one_process_goes_on_while_one_of_its_disks_is_read_only() {
    goes_on_while_a_disk_is_read_only(Owner::Mounts);
}

#[test]
fn servers_go_on_while_one_disk_of_one_of_them_is_read_only() {
    goes_on_while_a_disk_is_read_only(Owner::Serves);
}
