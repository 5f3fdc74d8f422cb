//! `glint fsck` of files with copies: what is wrong is named, and nothing else, and heal puts it right.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use support::random::Random;
use support::*;

const FILES: u64 = 12;
const BYTES: usize = 200_000;

pub(super) fn bytes(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..BYTES).map(|_| random.below(256) as u8).collect()
}

/// Objects of an OST: paths below its directory, and content.
pub(super) fn content(ost: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let top = ost.join("objects");
    for folder in fs::read_dir(&top).unwrap().flatten() {
        for object in fs::read_dir(folder.path()).unwrap().flatten() {
            let path = object.path();
            let name = path.strip_prefix(&top).unwrap().to_owned();
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

pub(super) fn flip(ost: &Path, object: &Path, at: u64) {
    let path = ost.join("objects").join(object);
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

pub(super) fn name(object: &Path) -> &str {
    object.file_name().unwrap().to_str().unwrap()
}

/// Waits until servers with these directories have nothing to make equal any more: a member that ends
/// before that lacks it, for all that is known.
pub(super) fn until_stable(dirs: &[PathBuf]) {
    eventually_none("all is on stable storage", || {
        let logs = dirs.iter().map(|dir| (dir, fs::read(dir.join("recent.log")).unwrap()));
        let (dir, log) = logs.into_iter().find(|(_, log)| !log.is_empty())?;
        // docs/format.md draws a record.
        let number = |at: usize, len: usize| {
            let bytes = log[at..].iter().take(len).rev();
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Some(format!("{}: chain {:#x}, inode {:#x}", text(dir), number(0, 2), number(8, 8)))
    });
}

/// What `glint fsck` says.
struct Report {
    findings: Vec<Value>,
    copies: Value,
}

impl Report {
    /// Of a check that ends with this code.
    fn new(data: &Path, more: &[&str], code: i32) -> Report {
        let output = glint().args(["fsck", "--json"]).arg(data).args(more).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}{error}");
        let rows = said.lines().map(|line| serde_json::from_str(line).unwrap());
        let (findings, rest): (Vec<Value>, Vec<Value>) =
            rows.partition(|row: &Value| row["finding"].is_string());
        Report { findings, copies: rest[0]["copies"].clone() }
    }

    fn count(&self, what: &str) -> u64 {
        self.copies[what].as_u64().unwrap()
    }

    fn outstanding(&self) -> BTreeMap<u64, u64> {
        let rows = self.copies["outstanding"].as_array().unwrap().iter();
        rows.map(|row| (row["ost"].as_u64().unwrap(), row["objects"].as_u64().unwrap())).collect()
    }

    /// The finding about an object on an OST, which `--repair` puts right.
    fn finding(&self, object: &Path, ost: usize) -> &str {
        let (object, ost) = (name(object), format!("on OST {ost}"));
        let is_meant = |row: &&Value| {
            let text = row["finding"].as_str().unwrap();
            text.contains(object) && text.contains(&ost)
        };
        let found = self.findings.iter().find(is_meant);
        let found = found.unwrap_or_else(|| panic!("{object} {ost}: {:?}", self.findings));
        assert_eq!(found["repairable"], true, "{found}");
        found["finding"].as_str().unwrap()
    }
}

/// Three OSTs of one server, each with a copy of everything.
struct OneServer {
    world: World,
}

impl OneServer {
    /// It is stopped, and has files that are on stable storage in all copies.
    fn filled() -> OneServer {
        let one = OneServer { world: World::new() };
        let (up, mount) = (one.up(), one.world.mount_point());
        for n in 0..FILES {
            fs::write(mount.join(format!("file{n}")), bytes(n)).unwrap();
            File::open(mount.join(format!("file{n}"))).unwrap().sync_all().unwrap();
        }
        one.stop(up);
        one
    }

    fn up(&self) -> Process {
        self.world.up(&["--osts", "3", "--replicas", "3"])
    }

    fn osts(&self) -> [PathBuf; 3] {
        [0, 1, 2].map(|n| self.world.data().join(format!("ost{n}")))
    }

    fn check(&self, more: &[&str], code: i32) -> Report {
        Report::new(&self.world.data(), more, code)
    }

    /// Waits until nothing is to be made equal any more, and stops.
    fn stop(&self, up: Process) {
        until_stable(&[self.world.data()]);
        up.stop();
    }

    fn must_be_equal(&self) {
        let [one, two, three] = self.osts().map(|ost| content(&ost));
        assert!(one == two && two == three, "copies differ");
    }
}

#[test]
fn wrong_copies_are_named_and_healed_and_what_the_index_names_is_outstanding() {
    let one = OneServer::filled();
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let sound = one.check(&[], 0);
    assert_eq!((sound.count("objects"), sound.count("copies")), (FILES, 3 * FILES));
    assert_eq!((sound.count("elsewhere"), sound.count("in_doubt")), (0, 0));
    assert!(sound.outstanding().is_empty());

    let objects: Vec<PathBuf> = content(&osts[0]).into_keys().collect();
    flip(&osts[1], &objects[0], 150_000);
    fs::remove_file(osts[2].join("objects").join(&objects[1])).unwrap();
    let report = one.check(&[], 4);
    assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    let said = report.finding(&objects[0], 1);
    assert!(said.contains("bytes 131072..196608 do not match their checksum"), "{said}");
    assert!(said.contains("--repair has heal copy it from OST"), "{said}");
    let said = report.finding(&objects[1], 2);
    assert!(said.contains("is missing"), "{said}");
    let report = one.check(&["--skip-data"], 4);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    report.finding(&objects[1], 2);
    assert_eq!(one.check(&["--repair"], 1).findings.len(), 2);
    let report = one.check(&[], 0);
    assert_eq!(report.outstanding(), BTreeMap::from([(1, 1), (2, 1)]));
    let said = run(glint().arg("fsck").arg(one.world.data())).stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("OST 2: healing outstanding of 1 objects"), "{said}");
    assert!(said.contains("sound"), "{said}");
    let up = one.up();
    wait_until_whole(text(&mount));
    run(glint().args(["heal", "pause", text(&mount)]));
    one.stop(up);
    one.must_be_equal();
    assert!(one.check(&[], 0).outstanding().is_empty());

    // After a start of its only server one member of each chain serves, and the others wait for heal.
    let up = one.up();
    for n in 0..FILES {
        let file = File::options().write(true).open(mount.join(format!("file{n}"))).unwrap();
        file.write_all_at(b"changed", 1000).unwrap();
        file.sync_all().unwrap();
    }
    up.stop();
    let report = one.check(&[], 0);
    let lagging = report.outstanding();
    assert!(lagging.values().sum::<u64>() > 0, "{lagging:?}");
    // Beside what the index names, damage is none the less.
    let copies = osts.each_ref().map(|ost| content(ost));
    let differs = |(ost, object): &(usize, &PathBuf)| {
        let others = [(ost + 1) % 3, (ost + 2) % 3];
        others.iter().all(|other| copies[*other][*object] != copies[*ost][*object])
    };
    let mut all = (0..3).flat_map(|ost| objects.iter().map(move |object| (ost, object)));
    let (ost, object) = all.find(differs).unwrap();
    assert!(lagging.contains_key(&(ost as u64)), "{lagging:?} without {ost}");
    flip(&osts[ost], object, 150_000);
    let report = one.check(&[], 4);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    report.finding(object, ost);
    assert_eq!(one.check(&["--repair"], 1).findings.len(), 1);
    assert_eq!(one.check(&[], 0).outstanding(), lagging);
    let up = one.up();
    run(glint().args(["heal", "resume", text(&mount)]));
    wait_until_whole(text(&mount));
    for n in 0..FILES {
        let mut wanted = bytes(n);
        wanted[1000..1007].copy_from_slice(b"changed");
        assert!(fs::read(mount.join(format!("file{n}"))).unwrap() == wanted, "file{n}");
    }
    one.stop(up);
    one.must_be_equal();
    assert!(one.check(&[], 0).outstanding().is_empty());
}

#[test]
fn a_copy_that_is_lost_is_named_while_the_servers_run() {
    let one = OneServer::filled();
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let objects: Vec<PathBuf> = content(&osts[0]).into_keys().collect();
    fs::remove_file(osts[2].join("objects").join(&objects[1])).unwrap();

    let up = one.up();
    wait_until_whole(text(&mount));
    let check = |more: &[&str], code| {
        let mut command = glint();
        command.args(["fsck", "--json", "--online", text(&mount)]).args(more);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}{output:?}");
        let rows = said.lines().map(|line| serde_json::from_str(line).unwrap());
        rows.collect::<Vec<Value>>()
    };
    let found = check(&[], 4);
    assert_eq!(found.len(), 2, "{found:?}");
    let (ino, _) = name(&objects[1]).split_once('.').unwrap();
    let ino = u64::from_str_radix(ino, 16).unwrap();
    let said = found[0]["finding"].as_str().unwrap();
    let lost = format!("OST 2 lacks its copy of file {ino:#x}: object {}", name(&objects[1]));
    assert!(said.starts_with(&lost) && found[0]["repairable"] == true, "{found:?}");
    assert_eq!((&found[1]["objects"], &found[1]["untold"]), (&FILES.into(), &0.into()));
    let left_alone = check(&["--skip-data"], 0);
    assert!(left_alone[0]["objects"].is_null(), "{left_alone:?}");
    one.stop(up);
    assert_eq!(one.check(&["--repair"], 1).findings.len(), 1);
    let up = one.up();
    wait_until_whole(text(&mount));
    assert_eq!(check(&[], 0).len(), 1);
    one.stop(up);
    one.must_be_equal();
}

#[test]
fn a_change_that_one_copy_alone_has_after_a_loss_of_power_is_found_without_a_note_of_it() {
    let one = OneServer::filled();
    let (osts, mount) = (one.osts(), one.world.mount_point());
    // As the kernel leaves it that has written the data back, and not the log.
    let objects: Vec<PathBuf> = content(&osts[0]).into_keys().collect();
    for (ost, object) in osts.iter().zip(&objects) {
        flip(ost, object, 150_000);
        run(Command::new("setfattr")
            .args(["-x", "user.glint.sums"])
            .arg(ost.join("objects").join(object)));
    }
    let run_once = || {
        let up = one.up();
        wait_until_whole(text(&mount));
        one.stop(up);
    };
    run_once();
    let differ = |object: &PathBuf| {
        let [one, two, three] =
            osts.each_ref().map(|ost| fs::read(ost.join("objects").join(object)));
        let (one, two, three) = (one.unwrap(), two.unwrap(), three.unwrap());
        one != two || two != three
    };
    assert_eq!(objects.iter().filter(|object| differ(object)).count(), 3, "no power was lost");
    fs::write(one.world.data().join("boot_id"), "another one").unwrap();
    run_once();
    one.must_be_equal();
    let report = one.check(&[], 0);
    assert_eq!((report.count("objects"), report.count("copies")), (FILES, 3 * FILES));
}

#[test]
fn a_repair_gives_no_copy_up_that_no_other_replaces() {
    let one = OneServer::filled();
    let (osts, mount) = (one.osts(), one.world.mount_point());
    // No member of a chain has all of its objects: files take turns at the six chains.
    let before = content(&osts[0]);
    for (n, object) in (0..FILES).zip(before.keys()) {
        let lost: &[usize] = if n < FILES / 2 { &[0, 1] } else { &[2] };
        for ost in lost {
            fs::remove_file(osts[*ost].join("objects").join(object)).unwrap();
        }
    }
    let output = glint().args(["fsck", "--repair"]).arg(one.world.data()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("--repair leaves them all"), "{said}");
    let up = one.up();
    run(glint().args(["heal", "resume", text(&mount)]));
    wait_until_whole(text(&mount));
    one.stop(up);
    let after = osts.each_ref().map(|ost| content(ost));
    for (object, data) in &before {
        assert!(after.iter().any(|ost| ost.get(object) == Some(data)), "{}", name(object));
    }
}

/// As after a clean end of several servers, one after the other.
#[test]
fn what_only_members_have_that_lag_behind_and_lack_nothing_of_it_is_copied_from_these() {
    let one = OneServer::filled();
    let (osts, mount) = (one.osts(), one.world.mount_point());
    let up = one.up();
    wait_until_whole(text(&mount));
    run(glint().args(["heal", "pause", text(&mount)]));
    one.stop(up);
    // From here on the last member of each chain serves alone.
    let up = one.up();
    one.stop(up);
    let before = content(&osts[2]);
    for object in before.keys() {
        fs::remove_file(osts[2].join("objects").join(object)).unwrap();
    }
    let report = one.check(&[], 4);
    assert_eq!(report.findings.len(), before.len(), "{:?}", report.findings);
    let copied = "which lags behind and lacks nothing of it";
    let says = |row: &Value, text: &str| row["finding"].as_str().unwrap().contains(text);
    assert!(report.findings.iter().any(|row| says(row, copied)), "{:?}", report.findings);
    assert_eq!(one.check(&["--repair"], 1).findings.len(), before.len());
    one.check(&[], 0);
    let after = content(&osts[2]);
    assert!(!after.is_empty(), "no chain has a copy there");
    assert!(after.iter().all(|(object, data)| before.get(object) == Some(data)));

    // What nobody lacks and differs is not taken from the one that happened to serve.
    let object = after.keys().next().unwrap();
    flip(&osts[1], object, 150_000);
    let path = osts[1].join("objects").join(object);
    run(Command::new("setfattr").args(["-x", "user.glint.sums"]).arg(&path));
    for more in [&[][..], &["--repair"]] {
        let report = one.check(more, 4);
        assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
        let said = "nothing says which one is right";
        assert!(says(&report.findings[0], said), "{:?}", report.findings);
    }
    flip(&osts[1], object, 150_000);
    let up = one.up();
    run(glint().args(["heal", "resume", text(&mount)]));
    wait_until_whole(text(&mount));
    for n in 0..FILES {
        assert!(fs::read(mount.join(format!("file{n}"))).unwrap() == bytes(n), "file{n}");
    }
    one.stop(up);
    one.must_be_equal();
}

#[test]
fn nothing_is_named_after_a_crash() {
    let one = OneServer { world: World::new() };
    let mount = one.world.mount_point();
    for round in 0..at_length(4, 20) {
        let up = one.up();
        wait_until_whole(text(&mount));
        let goes_on = AtomicBool::new(true);
        // By what is mounted there now: nothing is made below it once it is killed.
        let root = File::open(&mount).unwrap();
        let held = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (mount, goes_on) = (&held, &goes_on);
                scope.spawn(move || {
                    let mut random = Random(round << 8 | worker);
                    while goes_on.load(Ordering::Acquire) {
                        let path = mount.join(format!("file{worker}.{}", random.below(20)));
                        // It is killed meanwhile.
                        let file =
                            File::options().create(true).truncate(false).write(true).open(&path);
                        let Ok(file) = file else { continue };
                        let _ = file.write_all_at(&bytes(round)[..5000], random.below(1 << 20));
                        let _ = file.set_len(random.below(1 << 20));
                        if random.below(8) == 0 {
                            let _ = fs::remove_file(&path);
                        }
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(1500));
            up.kill();
            goes_on.store(false, Ordering::Release);
        });
        let report = one.check(&[], 0);
        assert!(report.count("objects") > 0 && report.findings.is_empty());
    }
    let up = one.up();
    wait_until_whole(text(&mount));
    up.stop();
    assert!(one.check(&[], 0).outstanding().is_empty());
}

#[test]
fn copies_on_other_servers_are_compared_where_these_are_named() {
    let world = World::new();
    let (port, ports) = (free_port(), [free_port(), free_port()]);
    let serve = || world.serve(port, &["--replicas", "3"]);
    let oss = |n: u16| world.oss(n, ports[usize::from(n) - 1], port, &[]);
    let (server, first, second) = (serve(), oss(1), oss(2));
    let (client, dir) = world.mount(port, "a", &[]);
    for n in 0..FILES {
        fs::write(dir.join(format!("file{n}")), bytes(n)).unwrap();
    }
    sh(&dir, "sync -f .");
    let dirs = [world.data(), world.oss_data(1), world.oss_data(2)];
    client.stop();
    until_stable(&dirs);
    [first, second, server].into_iter().for_each(Process::stop);
    let osts = dirs.each_ref().map(|data| data.join("ost0"));
    let all = ["--oss", text(&dirs[1]), "--oss", text(&dirs[2])];
    let report = Report::new(&dirs[0], &all, 0);
    assert_eq!((report.count("copies"), report.count("elsewhere")), (3 * FILES, 0));

    let objects: Vec<PathBuf> = content(&osts[1]).into_keys().collect();
    fs::remove_file(osts[1].join("objects").join(&objects[3])).unwrap();
    flip(&osts[2], &objects[4], 5);
    let report = Report::new(&dirs[0], &[], 0);
    assert_eq!((report.count("copies"), report.count("elsewhere")), (FILES, 2 * FILES));
    let report = Report::new(&dirs[0], &all, 4);
    assert_eq!(report.findings.len(), 2, "{:?}", report.findings);
    report.finding(&objects[3], 1);
    report.finding(&objects[4], 2);
    let said = refused(glint().args(["fsck", "--oss", text(&dirs[1])]).arg(&dirs[2]));
    assert!(said.contains("goes with the directory of the server with the MDS"), "{said}");
    Report::new(&dirs[0], &[&all[..], &["--repair"]].concat(), 1);
    Report::new(&dirs[0], &all, 0);
    let (server, first, second) = (serve(), oss(1), oss(2));
    wait_until_whole(&address(port));
    let [one, two, three] = osts.each_ref().map(|ost| content(ost));
    assert!(one == two && two == three, "copies differ");
    [first, second, server].into_iter().for_each(Process::stop);
    Report::new(&dirs[0], &all, 0);
}
