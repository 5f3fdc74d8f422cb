//! Several servers with OSTs are one file system: it grows while it is used, goes on where a
//! server comes back, and takes nothing from a client that was evicted.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::copies::content;
use support::disk::{Disk, Frozen};
use support::load::Load;
use support::paths::quoted;
use support::random::Random;
use support::stalls::Stalls;
use support::*;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// A directory in which files lie on all OSTs.
fn wide(mount: &Path) -> PathBuf {
    let directory = mount.join("wide");
    fs::create_dir(&directory).unwrap();
    run(glint().args(["setstripe", "-c", "0", "-S", "64K", text(&directory)]));
    directory
}

#[test]
fn a_file_system_grows_while_it_is_used() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let server = world.serve(port, &["--osts", "2"]);
    let (one, a) = world.mount(port, "a", &[]);
    let before = wide(&a);
    fs::write(before.join("old"), bytes(1, 1_000_000)).unwrap();

    let first = world.oss(1, ports[0], port, &["--osts", "3"]);
    let (two, b) = world.mount(port, "b", &[]);
    let second = world.oss(2, ports[1], port, &[]);
    for (n, mount) in [&a, &b, &a, &b].into_iter().enumerate() {
        fs::write(mount.join(format!("wide/new{n}")), bytes(n as u64, 3_000_000)).unwrap();
        for small in 0..20 {
            let content = format!("{n} {small}");
            fs::write(mount.join(format!("small{n}-{small}")), content).unwrap();
        }
    }
    for mount in [&a, &b] {
        assert!(fs::read(mount.join("wide/old")).unwrap() == bytes(1, 1_000_000));
        for n in 0..4 {
            assert!(fs::read(mount.join(format!("wide/new{n}"))).unwrap() == bytes(n, 3_000_000));
            for small in 0..20 {
                let content = fs::read_to_string(mount.join(format!("small{n}-{small}"))).unwrap();
                assert_eq!(content, format!("{n} {small}"));
            }
        }
        sh(mount, "sync -f .");
    }
    for oss in [1, 2] {
        assert!(objects(&world.oss_data(oss)).1 > 1_000_000, "OSS {oss} has its part");
    }
    let layout = |name: &str| sh(&b, &format!("getfattr --only-values -n glint.layout {name}"));
    assert!(layout("wide/old").contains("stripe_count=2"), "{}", layout("wide/old"));
    assert!(layout("wide/new1").contains("stripe_count=6"), "{}", layout("wide/new1"));
    let status = sh(&b, "getfattr --only-values -n glint.status .");
    assert!(status.contains(&address(ports[0])) && status.contains(&address(ports[1])), "{status}");
    // All OSTs are on one disk, which counts once.
    let blocks = |directory: &Path| sh(directory, "df -k --output=size . | tail -1");
    assert_eq!(blocks(&b), blocks(&world.path("")));

    // Everything is as before when all have started again, in another order.
    for process in [one, two] {
        process.stop();
    }
    second.stop();
    server.stop();
    first.stop();
    let starting = {
        let (data, listen, mds) = (world.oss_data(1), address(ports[0]), address(port));
        let arguments =
            ["oss", "--insecure", "--data", text(&data), "--listen", &listen, "--mds", &mds];
        Process::start(&arguments, world.path("early.log"), None)
    };
    std::thread::sleep(Duration::from_millis(500));
    let server = world.serve(port, &[]);
    let second = world.oss(2, ports[1], port, &[]);
    let (one, c) = world.mount(port, "c", &[]);
    for n in 0..4 {
        assert!(fs::read(c.join(format!("wide/new{n}"))).unwrap() == bytes(n, 3_000_000));
    }
    sh(&c, "rm -r wide small*");
    for oss in [1, 2] {
        eventually("the space is free", || objects(&world.oss_data(oss)).1 == 0);
    }
    one.stop();
    starting.stop();
    second.stop();
    server.stop();
    world.assert_sound();
    world.assert_sound_at(&world.oss_data(1));
}

/// Longest time in which `glint up` ends with data for a server that is dead: it waits for 5 s for
/// calls, and for its client.
const DEAD_END_MAX: Duration = Duration::from_secs(20);

#[test]
fn a_mount_of_up_ends_in_time_with_data_for_a_server_that_is_dead() {
    const FILES: usize = 8;
    let world = World::new();
    let (port, oss_port) = (free_port(), free_port());
    let listen = address(port);
    let more = ["--listen", &listen, "--insecure"];
    let up = world.up(&more);
    let oss = world.oss(1, oss_port, port, &[]);
    let mount = world.mount_point();
    let path = |n: usize| mount.join(format!("file{n}"));
    let mut files = Vec::new();
    eventually("files lie at the other server", || {
        for n in files.len()..files.len() + FILES {
            let file = File::create(path(n)).unwrap();
            file.write_all_at(b"synced", 0).unwrap();
            file.sync_all().unwrap();
            files.push(file);
        }
        !content(&world.oss_data(1).join("ost0")).is_empty()
    });
    files.iter().for_each(|file| file.write_all_at(b"unsent", 0).unwrap());
    oss.kill();
    let count = files.len();
    drop(files);
    let begun = Instant::now();
    up.stop();
    let stopped = begun.elapsed();
    println!("up has ended after {stopped:?}");
    assert!(stopped < DEAD_END_MAX, "{stopped:?}");

    // What was synced is there when both are.
    let up = world.up(&more);
    let oss = world.oss(1, oss_port, port, &[]);
    for n in 0..count {
        let found = fs::read(path(n)).unwrap();
        assert!([&b"synced"[..], b"unsent"].contains(&&found[..]), "{n}: {found:?}");
    }
    up.stop();
    oss.stop();
}

#[test]
fn new_files_avoid_a_server_that_is_away() {
    let world = World::new();
    let (port, oss_port) = (free_port(), free_port());
    let server = world.serve(port, &[]);
    let oss = world.oss(1, oss_port, port, &[]);
    // The second makes nothing by itself.
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &["-o", "nowbmeta"]);
    fs::create_dir(a.join("own")).unwrap();
    oss.kill();
    // Made without being opened: whoever opens one there waits for it.
    let made_here = |n: u64| {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let path = b.join(format!("probe{n}"));
        mknodat(CWD, &path, FileType::RegularFile, Mode::RUSR, 0).unwrap();
        let script = format!("getfattr --only-values -n glint.layout probe{n}");
        let first_ost = sh(&b, &script);
        fs::remove_file(&path).unwrap();
        first_ost.contains("first_ost=0")
    };
    // Every second one would be there.
    eventually("it is missed", || (0..4).all(made_here));
    // A client mounted now is told so with the numbers for what it makes by itself.
    let (three, c) = world.mount(port, "c", &[]);
    fs::create_dir(c.join("own2")).unwrap();
    for n in 0..8 {
        for directory in [b.clone(), c.join("own2")] {
            let path = directory.join(format!("file{n}"));
            fs::write(&path, bytes(n, 100_000)).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }
    let oss = world.oss(1, oss_port, port, &[]);
    for process in [one, two, three, oss, server] {
        process.stop();
    }
    world.assert_sound();
}

#[test]
fn new_files_with_copies_are_on_servers_that_are_there() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let (server, at) = (world.serve(port, &[]), address(port));
    let [first, second] = [1, 2].map(|n| world.oss(n, ports[usize::from(n) - 1], port, &[]));
    let (client, mount) = world.mount(port, "a", &["-o", "nowbmeta"]);
    run(glint().args(["setstripe", "-r", "2", text(&mount)]));
    wait_until_whole(&at);
    let rows = chains(&at)["rows"].take();
    let rows = rows.as_array().unwrap();
    // Members stay in their chains.
    let is_on_second = |path: &Path| {
        let layout = sh(path.parent().unwrap(), "getfattr --only-values -n glint.layout last");
        let word = layout.split_whitespace().find_map(|word| word.strip_prefix("first_ost="));
        let id = format!("2x{}", word.unwrap());
        let row = rows.iter().find(|row| row["id"] == id.as_str()).unwrap();
        row["members"].as_array().unwrap().iter().any(|member| member["ost"] == 2)
    };
    let made_there = || {
        let path = mount.join("last");
        fs::write(&path, b"new").unwrap();
        let is_there = is_on_second(&path);
        fs::remove_file(&path).unwrap();
        is_there
    };
    assert!((0..rows.len()).any(|_| made_there()));
    second.kill();
    eventually("it is missed", || (0..rows.len()).all(|_| !made_there()));
    let second = world.oss(2, ports[1], port, &[]);
    wait_until_whole(&at);
    eventually("it is used again", made_there);
    [client, first, second, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

/// Under load a server of OSTs is killed, or loses power, again and again: no call fails, and
/// nothing that was written is lost.
fn an_oss_that_comes_back(power: bool) {
    let world = World::new();
    let (port, oss_port) = (free_port(), free_port());
    let at = world.oss_data(1);
    let disk = power.then(|| Disk::new(&world.path("image"), &at, "ext4", 400));
    let server = world.serve(port, &[]);
    let mut oss = world.oss(1, oss_port, port, &["--osts", "2"]);
    let mounts = [world.mount(port, "m", &[]), world.mount(port, "o", &[])];
    for (_, mount) in &mounts {
        sh(mount, "setfattr -n glint.layout -v 'stripe_count=3 stripe_size=65536' .");
    }
    let load = Load::start([&mounts[0].1, &mounts[1].1, &mounts[1].1]);
    let has = |event| mounts.iter().any(|(mount, _)| mount.has_event(event));
    let mut round = 0;
    // More often if the load was too small for anything to be lost.
    while round < 5 || (power && round < 25 && !has(event::REPLAY_STARTED)) {
        round += 1;
        std::thread::sleep(Duration::from_millis(300 + 211 * (round % 4)));
        load.go_on();
        match &disk {
            Some(disk) => disk.lose_power(|| oss.kill()),
            None => oss.kill(),
        }
        let more: &[&str] = if power { &["--after-power-loss"] } else { &[] };
        oss = world.oss(1, oss_port, port, more);
    }
    load.end(50);
    for (mount, _) in &mounts {
        let failures = [event::REPLAY_FAILED, event::REOPEN_FAILED, event::DATA_LOST];
        failures.into_iter().chain([event::SESSION_LOST]).for_each(|event| mount.assert_no(event));
    }
    assert!(!power || has(event::REPLAY_STARTED), "nothing was lost, so nothing was tried");
    for (mount, _) in mounts {
        mount.stop();
    }
    oss.stop();
    server.stop();
    world.assert_sound();
    world.assert_sound_at(&at);
}

#[test]
fn an_oss_is_killed_under_load() {
    an_oss_that_comes_back(false);
}

#[test]
fn an_oss_loses_power_under_load() {
    an_oss_that_comes_back(true);
}

/// The server of the MDS is killed under load: the OSSes find it again.
#[test]
fn the_mds_comes_back() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let oss = world.oss(1, free_port(), port, &["--osts", "2"]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let load = Load::start([&dir]);
    for round in 0..4 {
        std::thread::sleep(Duration::from_millis(300 + 100 * round));
        server.kill();
        server = world.serve(port, &[]);
    }
    load.end(50);
    mount.stop();
    oss.stop();
    server.stop();
    world.assert_sound();
}

/// A client is halted with data that it has not sent, evicted, and goes on: what it still has
/// must not reach the OSTs, where another client has written since.
#[test]
fn what_an_evicted_client_still_sends_is_not_taken() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "8"]);
    let oss = world.oss(1, free_port(), port, &["--osts", "3"]);
    let (halted, a) = world.mount(port, "a", &[]);
    let (stays, b) = world.mount(port, "b", &[]);
    let names: Vec<String> = (0..8).map(|n| format!("f{n}")).collect();
    let files: Vec<File> = names
        .iter()
        .map(|name| {
            fs::write(a.join(name), vec![b'-'; 100_000]).unwrap();
            OpenOptions::new().write(true).open(a.join(name)).unwrap()
        })
        .collect();
    sh(&a, "sync -f .");
    for (n, file) in files.iter().enumerate() {
        file.write_all_at(&bytes(n as u64, 100_000), 0).unwrap();
    }
    let started = Instant::now();
    halted.halt(true);
    for name in &names {
        fs::write(b.join(name), format!("of b, {name}")).unwrap();
        assert_eq!(fs::read_to_string(b.join(name)).unwrap(), format!("of b, {name}"));
    }
    assert!(started.elapsed() > Duration::from_secs(1), "it had to wait for the lease");
    // Not in a process of its own: that would first close what is open on the halted mount.
    rustix::fs::syncfs(File::open(&b).unwrap()).unwrap();
    halted.halt(false);
    halted.wait_for_event(event::SESSION_LOST);
    // Nothing of them is on its way after this, whether they hear of what is lost or not.
    for file in &files {
        let _ = file.sync_all();
    }
    for name in &names {
        assert_eq!(fs::read_to_string(b.join(name)).unwrap(), format!("of b, {name}"));
    }
    drop(files);
    eventually("it goes on", || {
        names.iter().all(|name| {
            fs::read_to_string(a.join(name)).is_ok_and(|text| text == format!("of b, {name}"))
        })
    });
    eventually("it writes again", || fs::write(a.join("new"), b"again").is_ok());
    assert_eq!(fs::read(b.join("new")).unwrap(), b"again");
    halted.stop();
    stays.stop();
    oss.stop();
    server.stop();
    world.assert_sound();
}

/// An OSS that does not hear of the MDS does nothing for anybody, and goes on when it does.
#[test]
fn an_oss_that_does_not_hear_of_the_mds_waits() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "6"]);
    let oss = world.oss(1, free_port(), port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let there = (0..)
        .map(|n| dir.join(format!("f{n}")))
        .find(|path| {
            fs::write(path, b"first").unwrap();
            let layout =
                sh(&dir, &format!("getfattr --only-values -n glint.layout {}", quoted(path)));
            layout.contains("first_ost=1")
        })
        .unwrap();
    let file = OpenOptions::new().write(true).open(&there).unwrap();
    file.write_all_at(b"FIRST", 0).unwrap();
    file.sync_all().unwrap();
    server.halt(true);
    std::thread::sleep(Duration::from_millis(3_500));
    let writing = std::thread::spawn(move || {
        file.write_all_at(b"later", 0).unwrap();
        file.sync_data().unwrap();
    });
    std::thread::sleep(Duration::from_millis(700));
    assert!(!writing.is_finished(), "somebody else may have got the lock by now");
    server.halt(false);
    writing.join().unwrap();
    assert_eq!(fs::read(&there).unwrap(), b"later");
    mount.stop();
    oss.stop();
    server.stop();
    world.assert_sound();
}

/// A disk of an OSS stands still while objects there are to be destroyed: the OSS goes on to say that it
/// lives, so that what lies on its other disks can be used.
#[test]
fn an_oss_whose_disk_stands_still_is_heard() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--lease", "6"]);
    let data = world.oss_data(1);
    let start = || world.oss(1, free_port(), port, &["--osts", "2"]);
    start().stop();
    let at = data.join("ost1");
    let disk = Disk::new(&world.path("image"), &at, "ext4", 400);
    run(glint().args(["ost", "replace", text(&at)]));
    let oss = start();
    let (mount, dir) = world.mount(port, "m", &["-o", "nowbmeta"]);
    // The first OST is that of the MDS.
    let made_on = |ost: u16| {
        let made = (0..).map(|n| dir.join(format!("f{ost}-{n}"))).find(|path| {
            fs::write(path, bytes(1, 100_000)).unwrap();
            let get = format!("getfattr --only-values -n glint.layout {}", quoted(path));
            sh(&dir, &get).contains(&format!("first_ost={ost}"))
        });
        made.unwrap()
    };
    let (goes, stays) = (made_on(2), made_on(1));
    sh(&dir, "sync -f .");
    let there = || objects(&data).0;
    let before = there();
    let silent = || {
        let shown = run(glint().args(["status", "--json", &address(port)]));
        let status: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        Duration::from_millis(status["osses"][0]["silent_ms"].as_u64().unwrap())
    };
    let file = OpenOptions::new().read(true).write(true).open(&stays).unwrap();
    let frozen = Frozen::new(&at);
    fs::remove_file(&goes).unwrap();
    // The order to destroy the object reaches the OSS, and hangs there.
    std::thread::sleep(Duration::from_secs(1));
    let (start, stalls) = (Instant::now(), Stalls::start());
    let (mut longest, mut round) = (Duration::ZERO, 0);
    while start.elapsed() < Duration::from_secs(7) {
        round += 1;
        let content = bytes(round, 100_000);
        let ((), took) = stalls.timed(|| {
            file.write_all_at(&content, 0).unwrap();
            file.sync_all().unwrap();
        });
        longest = longest.max(took);
        let (silent, _) = stalls.timed(silent);
        assert!(silent < Duration::from_secs(2) + stalls.total(), "not heard for {silent:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(longest < Duration::from_secs(2), "{longest:?} for another disk");
    assert_eq!(there(), before, "nothing was destroyed, so nothing was tried");
    frozen.thaw();
    eventually("it is destroyed", || there() < before);
    assert_eq!(fs::read(&stays).unwrap(), bytes(round, 100_000));
    drop(file);
    mount.stop();
    oss.stop();
    drop(disk);
}

#[test]
fn what_an_oss_refuses() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let oss = world.oss(1, free_port(), port, &[]);
    oss.stop();
    let data = world.oss_data(1);
    let oss_at = |data: &Path, mds: u16, more: &[&str]| {
        let (listen, mds) = (address(free_port()), address(mds));
        refused(
            glint()
                .args(["oss", "--insecure", "--data", text(data)])
                .args(["--listen", &listen, "--mds", &mds])
                .args(more),
        )
    };
    assert!(oss_at(&data, port, &["--osts", "4"]).contains("was created with --osts 1"));
    let serve = ["serve", "--data", text(&data)];
    assert!(refused(glint().args(serve)).contains("glint oss"));
    let other = World::new();
    let other_port = free_port();
    let other_server = other.serve(other_port, &[]);
    let said = oss_at(&data, other_port, &[]);
    assert!(said.contains("another file system"), "{said}");
    other_server.stop();
    server.stop();
    assert!(oss_at(&world.data(), port, &[]).contains("glint serve"));
}
