//! Copies that are lost or damaged are noticed, are not read, and come back from the others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use support::copies::{content, wait_until_equal};
use support::load::Load;
use support::random::Random;
use support::*;

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.below(256) as u8).collect()
}

/// Puts an empty directory in the place of an OST, as a new disk is.
fn exchange(ost: &Path) {
    fs::remove_dir_all(ost).unwrap();
    fs::create_dir(ost).unwrap();
}

/// Damages an object of an OST.
fn flip(ost: &Path, object: &Path) {
    let file = ost.join("objects").join(object);
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 150_000).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 150_000).unwrap();
}

/// Three OSTs of one server, each with a copy of everything.
struct OneServer {
    world: World,
}

impl OneServer {
    const OPTIONS: [&str; 4] = ["--osts", "3", "--replicas", "3"];

    fn up(&self, more: &[&str]) -> Process {
        self.world.up(&[&OneServer::OPTIONS[..], more].concat())
    }

    /// Stops once all is on stable storage. All copies serve soon after the next start: nothing is to
    /// be made equal any more.
    fn stop_stable(&self, up: Process) {
        let recent = self.world.data().join("recent.log");
        eventually("all is on stable storage", || fs::metadata(&recent).unwrap().len() == 0);
        up.stop();
    }

    fn osts(&self) -> Vec<PathBuf> {
        (0..3).map(|n| self.world.data().join(format!("ost{n}"))).collect()
    }

    fn write(&self, files: u64) {
        for n in 0..files {
            let path = self.world.mount_point().join(format!("file{n}"));
            fs::write(&path, bytes(n, 200_000)).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
        }
    }

    fn must_read(&self, files: u64) {
        for n in 0..files {
            let read = fs::read(self.world.mount_point().join(format!("file{n}"))).unwrap();
            assert!(read == bytes(n, 200_000), "file{n} is another one");
        }
    }

    /// A start over this directory is refused. Returns how.
    fn refused(&self) -> String {
        let (data, mount) = (self.world.data(), self.world.mount_point());
        refused(glint().args(["up", "--data", text(&data), "--mount", text(&mount)]))
    }
}

#[test]
fn an_emptied_ost_is_refused_replaced_and_filled_while_heal_rests_and_goes_on() {
    let one = OneServer { world: World::new() };
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let up = one.up(&[]);
    one.write(40);
    fs::create_dir(mount.join("alone")).unwrap();
    run(glint().args(["setstripe", "-r", "1", "-c", "3", text(&mount.join("alone"))]));
    fs::write(mount.join("alone/file"), bytes(99, 10_000_000)).unwrap();
    run(glint().args(["heal", "pause", text(&mount)]));
    up.stop();

    exchange(&osts[1]);
    let said = one.refused();
    assert!(said.contains(text(&osts[1])) && said.contains("glint ost replace"), "{said}");
    assert!(fs::read_dir(&osts[1]).unwrap().next().is_none(), "nothing was made there");
    let said = refused(glint().args(["ost", "replace", text(&osts[0])]));
    assert!(said.contains("belongs there"), "{said}");
    run(glint().args(["ost", "replace", text(&osts[1])]));

    let metrics = address(free_port());
    let up = one.up(&["--metrics", &metrics]);
    let list = || {
        let output = run(glint().args(["ost", "list", text(&mount)]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    eventually("the others know what it lacks", || {
        list().contains("1 file without copies LOST DATA")
    });
    assert!(list().contains("fails with ost1"), "each is a failure domain: {}", list());
    let info = || {
        let output = run(glint().args(["heal", "info", "--json", text(&mount)]));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let rows = info();
    let row = |line| -> serde_json::Value { serde_json::from_str(line).unwrap() };
    let lacking = rows.lines().map(row).find(|row| row["ost"] == 1).unwrap();
    let objects = lacking["objects"].as_u64().unwrap();
    assert!(lacking["paused"] == true && objects >= 40, "{lacking}");
    assert!(list().contains(&format!(", lacks {objects} objects of ")), "{}", list());
    assert!(list().contains(", heal rests"), "{}", list());
    let scraped = scrape(&metrics);
    for wanted in [
        format!("glint_heal_pending_objects{{ost=\"1\"}} {objects}"),
        "glint_heal_paused 1".into(),
        "glint_chains{whole=\"yes\"} 0".into(),
        "glint_ost_lost_files{ost=\"1\"} 1".into(),
    ] {
        assert!(scraped.lines().any(|line| line == wanted), "{wanted} is not in {scraped}");
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(content(&osts[1]).is_empty(), "heal rests");
    // New changes reach those that serve, and are read from them.
    fs::write(mount.join("file0"), bytes(0, 200_000)).unwrap();
    one.must_read(40);
    up.stop();

    let up = one.up(&[]);
    assert!(!info().is_empty(), "it rests also after a restart");
    run(glint().args(["heal", "resume", text(&mount)]));
    wait_until_whole(text(&mount));
    assert_eq!(info(), "", "nothing is lacking");
    one.must_read(40);
    fs::remove_dir_all(mount.join("alone")).unwrap();
    wait_until_equal(&osts, true);
    up.stop();
    one.world.assert_sound();
}

#[test]
fn damage_is_never_read_and_repaired_from_another_copy() {
    let one = OneServer { world: World::new() };
    let (osts, mount) = (one.osts(), one.world.mount_point());
    // The end of a server gives all objects their checksums.
    let up = one.up(&[]);
    one.write(12);
    one.stop_stable(up);
    let good = content(&osts[0]);
    wait_until_equal(&osts, true);
    // Each object is damaged in one copy, and in some of them in two.
    for (n, path) in good.keys().enumerate() {
        for ost in [Some(n % 3), (n % 4 == 0).then_some((n + 1) % 3)].into_iter().flatten() {
            flip(&osts[ost], path);
        }
    }
    let up = one.up(&[]);
    wait_until_whole(text(&mount));
    one.must_read(12);
    let scrub = run(glint().args(["scrub", "--json", text(&mount)]));
    let rows = String::from_utf8_lossy(&scrub.stdout);
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let repaired = |row: &serde_json::Value| row["repaired"].as_u64().unwrap();
    assert!(rows.iter().map(repaired).sum::<u64>() > 0, "{rows:?}");
    wait_until_equal(&osts, true);
    wait_until_whole(text(&mount));
    assert!(content(&osts[2]) == good, "the good bytes are everywhere");
    one.must_read(12);
    up.stop();
    one.world.assert_sound();
}

/// As e2fsck does it, which moves files to lost+found while the server is stopped.
#[test]
fn an_object_that_one_copy_has_lost_is_neither_read_as_a_hole_nor_changed_into_one() {
    let one = OneServer { world: World::new() };
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let up = one.up(&[]);
    one.write(12);
    one.stop_stable(up);
    wait_until_equal(&osts, true);
    for (n, path) in content(&osts[0]).keys().enumerate() {
        fs::remove_file(osts[n % 3].join("objects").join(path)).unwrap();
    }
    let up = one.up(&[]);
    wait_until_whole(text(&mount));
    let mut wanted: Vec<Vec<u8>> = (0..12).map(|n| bytes(n, 200_000)).collect();
    for (n, wanted) in wanted.iter_mut().enumerate() {
        let path = mount.join(format!("file{n}"));
        if n % 2 == 0 {
            assert!(fs::read(&path).unwrap() == *wanted, "file{n} is another one");
        }
        let mut options = File::options();
        let file = if n % 3 == 0 { options.append(true) } else { options.write(true) };
        let file = file.open(&path).unwrap();
        match n % 3 {
            0 => {
                (&file).write_all(b"more").unwrap();
                wanted.extend(b"more");
            }
            1 => {
                file.write_all_at(b"changed", 190_000).unwrap();
                wanted[190_000..190_007].copy_from_slice(b"changed");
            }
            _ => {
                file.set_len(300_000).unwrap();
                wanted.resize(300_000, 0);
            }
        }
        file.sync_all().unwrap();
    }
    let must_read = || {
        for (n, wanted) in wanted.iter().enumerate() {
            let read = fs::read(mount.join(format!("file{n}"))).unwrap();
            assert!(read == *wanted, "file{n} is another one, of {} bytes", read.len());
        }
    };
    must_read();
    wait_until_equal(&osts, true);
    wait_until_whole(text(&mount));
    up.stop();
    one.world.assert_sound();
    let up = one.up(&[]);
    must_read();
    up.stop();
}

#[test]
fn a_file_that_is_damaged_in_all_copies_is_the_only_one_that_fails() {
    let one = OneServer { world: World::new() };
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let file = mount.join("lost");
    let read = || fs::read(&file).map_err(|error| error.raw_os_error());
    let up = one.up(&[]);
    one.write(12);
    fs::write(&file, bytes(99, 200_000)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    let object = format!("{:016x}.", fs::metadata(&file).unwrap().ino());
    one.stop_stable(up);
    wait_until_equal(&osts, true);
    // One copy of it is lost with its disk.
    let object =
        content(&osts[0]).into_keys().find(|path| path.to_string_lossy().contains(&object));
    osts[..2].iter().for_each(|ost| flip(ost, object.as_ref().unwrap()));
    exchange(&osts[2]);
    run(glint().args(["ost", "replace", text(&osts[2])]));

    let up = one.up(&[]);
    wait_until_whole(text(&mount));
    one.must_read(12);
    assert_eq!(read(), Err(Some(libc::EIO)));
    let begun = std::time::Instant::now();
    let scrub = glint().args(["scrub", "--json", text(&mount)]).output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "it waits for what cannot be");
    let rows = String::from_utf8_lossy(&scrub.stdout).into_owned();
    let rows: Vec<serde_json::Value> =
        rows.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    let sum = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("damaged"), sum("repaired")), (3, 0), "{rows:?}");
    assert_eq!(read(), Err(Some(libc::EIO)));
    let now = chains(text(&mount));
    assert_eq!(now["count"], now["whole"], "nobody is taken out for it");
    // Written anew, it is a file like any other.
    fs::write(&file, bytes(98, 200_000)).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    wait_until_whole(text(&mount));
    wait_until_equal(&osts, true);
    assert!(read().unwrap() == bytes(98, 200_000));
    up.stop();
    one.world.assert_sound();
}

#[test]
fn servers_are_used_while_the_disk_of_one_is_exchanged() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let server = world.serve(port, &["--replicas", "3", "--heal-bandwidth", "50M"]);
    let oss = |n: u16| world.oss(n, ports[usize::from(n) - 1], port, &[]);
    let (first, second) = (oss(1), oss(2));
    let (client, a) = world.mount(port, "a", &[]);
    for n in 0..30 {
        fs::write(a.join(format!("file{n}")), bytes(n, 300_000)).unwrap();
    }
    fs::create_dir(a.join("load")).unwrap();
    sh(&a, "sync -f .");
    let load = Load::start(&[a.join("load")]);
    load.go_on();
    second.kill();
    let lost = world.oss_data(2).join("ost0");
    exchange(&lost);
    run(glint().args(["ost", "replace", text(&lost)]));
    load.go_on();
    let second = oss(2);
    load.go_on();
    wait_until_whole(&address(port));
    load.go_on();
    load.end(1);
    sh(&a, "sync -f .");
    let dirs = [world.data(), world.oss_data(1), world.oss_data(2)];
    wait_until_equal(&dirs.map(|dir| dir.join("ost0")), true);
    // The filled copy alone has everything.
    first.kill();
    for n in 0..30 {
        assert!(fs::read(a.join(format!("file{n}"))).unwrap() == bytes(n, 300_000));
    }
    let first = oss(1);
    wait_until_whole(&address(port));
    [client, first, second, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

#[test]
fn the_last_copy_is_given_up_only_on_demand() {
    let one = OneServer { world: World::new() };
    let mount = one.world.mount_point();
    let up = one.up(&[]);
    one.write(6);
    run(glint().args(["heal", "pause", text(&mount)]));
    up.stop();
    // After a start of its only server one member of each chain serves, and the others wait for heal.
    one.up(&[]).stop();
    let osts = one.osts();
    exchange(&osts[2]);
    run(glint().args(["ost", "replace", text(&osts[2])]));
    let said = one.refused();
    assert!(said.contains("OST 2 is the last that has all data of"), "{said}");
    assert!(one.refused().contains("is the last that has all data of"), "and again");
    run(glint().args(["ost", "replace", "--lose-last-copies", text(&osts[2])]));
    let up = one.up(&[]);
    one.must_read(6);
    run(glint().args(["heal", "resume", text(&mount)]));
    wait_until_whole(text(&mount));
    wait_until_equal(&osts, true);
    one.must_read(6);
    up.stop();
    one.world.assert_sound();
}

#[test]
fn changes_wait_or_fail_where_there_are_fewer_copies_than_asked_for() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let server = world.serve(port, &["--replicas", "3", "--min-replicas", "2:fail"]);
    let oss = |n: u16| world.oss(n, ports[usize::from(n) - 1], port, &[]);
    let (first, second) = (oss(1), oss(2));
    let (client, a) = world.mount(port, "a", &[]);
    let write = |name: &str| -> std::io::Result<()> {
        fs::write(a.join(name), bytes(1, 10_000))?;
        File::open(a.join(name))?.sync_all()
    };
    write("three").unwrap();
    second.kill();
    write("two").unwrap();
    first.kill();
    let errno = write("one").unwrap_err().raw_os_error();
    assert_eq!(errno, Some(rustix::io::Errno::ROFS.raw_os_error()));
    let (first, second) = (oss(1), oss(2));
    wait_until_whole(&address(port));
    write("again").unwrap();
    assert!(fs::read(a.join("two")).unwrap() == bytes(1, 10_000));
    [client, first, second, server].into_iter().for_each(Process::stop);
}

/// A change waits while one of two copies is away, and is made when that is back.
#[test]
fn a_change_waits_until_there_are_as_many_copies_as_asked_for() {
    let world = World::new();
    let (port, at) = (free_port(), free_port());
    let server = world.serve(port, &["--replicas", "2", "--min-replicas", "2"]);
    let oss = world.oss(1, at, port, &[]);
    let (client, a) = world.mount(port, "a", &[]);
    let write = |path: &Path| {
        fs::write(path, bytes(1, 10_000)).unwrap();
        File::open(path).unwrap().sync_all().unwrap();
    };
    write(&a.join("two"));
    // It says that it leaves, so nobody waits for it.
    oss.stop();
    let path = a.join("one");
    let waits = std::thread::spawn(move || write(&path));
    std::thread::sleep(Duration::from_secs(1));
    assert!(!waits.is_finished(), "one copy is not enough");
    let oss = world.oss(1, at, port, &[]);
    eventually("it is written", || waits.is_finished());
    waits.join().unwrap();
    assert!(fs::read(a.join("one")).unwrap() == bytes(1, 10_000));
    [client, oss, server].into_iter().for_each(Process::stop);
}
