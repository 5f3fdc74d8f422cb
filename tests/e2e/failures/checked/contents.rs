//! `glint fsck --online` of files with copies on three servers: what differs behind the servers' backs
//! is named, and nothing that is only being changed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::copies::{bytes, content, flip, name, until_stable};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::random::Random;
use support::*;

const FILES: u64 = 6;
/// Attribute of an object with its checksums (docs/format.md).
const SUMS: &str = "user.glint.sums";
/// So no scrub repairs what is to be found.
const NO_SCRUB: [&str; 2] = ["--scrub-bandwidth", "0"];

/// Three servers with one OST each, and a copy of everything on each.
struct ThreeServers {
    world: World,
    port: u16,
    ports: [u16; 2],
}

impl ThreeServers {
    fn new() -> ThreeServers {
        ThreeServers { world: World::new(), port: free_port(), ports: [free_port(), free_port()] }
    }

    /// Starts them. Those with OST 1 and OST 2 end first.
    fn start(&self) -> [Process; 3] {
        let [one, two] = self.ports;
        let serve = ["--replicas", "3", NO_SCRUB[0], NO_SCRUB[1]];
        let server = self.world.serve(self.port, &serve);
        let others = [(1, one), (2, two)];
        let [one, two] = others.map(|(n, port)| self.world.oss(n, port, self.port, &NO_SCRUB));
        wait_until_whole(&address(self.port));
        [one, two, server]
    }

    fn dirs(&self) -> [PathBuf; 3] {
        [self.world.data(), self.world.oss_data(1), self.world.oss_data(2)]
    }

    fn osts(&self) -> [PathBuf; 3] {
        self.dirs().map(|dir| dir.join("ost0"))
    }

    fn stop(&self, servers: [Process; 3]) {
        until_stable(&self.dirs());
        servers.into_iter().for_each(Process::stop);
    }

    /// Findings, and the summary, of a check while they run that ends with this code.
    fn check_online(&self, code: i32) -> (Vec<Value>, Value) {
        check(glint().args(["fsck", "--json", "--online", &address(self.port)]), code)
    }

    /// The same of all directories.
    fn check_stopped(&self, more: &[&str], code: i32) -> (Vec<Value>, Value) {
        let [data, one, two] = self.dirs();
        let mut command = glint();
        command.args(["fsck", "--json", "--oss", text(&one), "--oss", text(&two)]);
        check(command.args(more).arg(data), code)
    }
}

fn check(command: &mut Command, code: i32) -> (Vec<Value>, Value) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}{output:?}");
    let mut rows: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = rows.pop().expect("a summary");
    (rows, summary)
}

/// The object of a file, as every OST has it.
fn object_of(file: &Path, ost: &Path) -> PathBuf {
    let start = format!("{:016x}.", fs::metadata(file).unwrap().ino());
    let is_its = |object: &PathBuf| name(object).starts_with(&start);
    content(ost).into_keys().find(is_its).expect("an object")
}

/// The finding about an object and an OST, and whether `--repair` puts that right.
fn about<'a>(findings: &'a [Value], object: &Path, ost: &str) -> (&'a str, bool) {
    let is_meant = |row: &&Value| {
        let text = row["finding"].as_str().unwrap();
        text.contains(name(object)) && text.contains(ost)
    };
    let row = findings.iter().find(is_meant);
    let row = row.unwrap_or_else(|| panic!("{} {ost}: {findings:?}", name(object)));
    (row["finding"].as_str().unwrap(), row["repairable"] == true)
}

#[test]
fn copies_with_other_contents_are_named_while_the_servers_run_and_can_be_put_right() {
    let three = ThreeServers::new();
    let osts = three.osts();
    let servers = three.start();
    let (client, dir) = three.world.mount(three.port, "a", &[]);
    let files: Vec<PathBuf> = (0..FILES).map(|n| dir.join(format!("file{n}"))).collect();
    for (n, file) in (0..).zip(&files) {
        fs::write(file, bytes(n)).unwrap();
    }
    sh(&dir, "sync -f .");
    let objects: Vec<PathBuf> = files.iter().map(|file| object_of(file, &osts[0])).collect();
    client.stop();
    // Their end gives all objects their checksums.
    three.stop(servers);

    let [differs, cut, removed, ..] = objects.as_slice() else { panic!("{objects:?}") };
    flip(&osts[1], differs, 150_000);
    let at = |ost: &Path, object: &Path| ost.join("objects").join(object);
    run(Command::new("setfattr").args(["-x", SUMS]).arg(at(&osts[1], differs)));
    let servers = three.start();
    let (client, dir) = three.world.mount(three.port, "a", &[]);
    // A change beside it has it sealed as it is.
    let changed = File::options().write(true).open(dir.join("file0")).unwrap();
    changed.write_all_at(b"changed", 1000).unwrap();
    changed.sync_all().unwrap();
    drop(changed);
    File::options().write(true).open(at(&osts[2], cut)).unwrap().set_len(1000).unwrap();
    fs::remove_file(at(&osts[1], removed)).unwrap();
    eventually("the object is sealed again", || {
        osts.iter().all(|ost| rustix::fs::getxattr_query(at(ost, differs), SUMS).is_ok())
    });

    let (found, summary) = three.check_online(4);
    assert_eq!((found.len(), &summary["unsealed"]), (3, &0.into()), "{found:?} {summary}");
    let (said, is_repairable) = about(&found, differs, "on OST 1 differs from its copies on OST ");
    assert!(!is_repairable && said.contains("`glint status` says which server"), "{said}");
    let (said, is_repairable) = about(&found, cut, "on OST 2 has lost its end: 1000 of 200000 ");
    assert!(is_repairable && said.contains("has its copy"), "{said}");
    let (said, is_repairable) = about(&found, removed, "OST 1 lacks its copy of file ");
    assert!(is_repairable, "{said}");

    // As it says.
    client.stop();
    three.stop(servers);
    let (found, _) = three.check_stopped(&["--repair"], 5);
    assert_eq!(found.len(), 3, "{found:?}");
    let (said, is_repairable) = about(&found, differs, "on OST 1 differs");
    assert!(!is_repairable, "{said}");
    fs::remove_file(at(&osts[1], differs)).unwrap();
    assert_eq!(three.check_stopped(&["--repair"], 1).0.len(), 1);
    let servers = three.start();
    let found = three.check_online(0).0;
    assert!(found.is_empty(), "{found:?}");
    let (client, dir) = three.world.mount(three.port, "a", &[]);
    for n in 0..FILES {
        let mut wanted = bytes(n);
        if n == 0 {
            wanted[1000..1007].copy_from_slice(b"changed");
        }
        assert!(fs::read(dir.join(format!("file{n}"))).unwrap() == wanted, "file{n}");
    }
    client.stop();
    three.stop(servers);
    let [one, two, last] = osts.each_ref().map(|ost| content(ost));
    assert!(one == two && two == last, "copies differ");
    three.check_stopped(&[], 0);

    // Of two that differ none is copied: the copy would outvote the other from then on.
    flip(&osts[1], differs, 150_000);
    run(Command::new("setfattr").args(["-x", SUMS]).arg(at(&osts[1], differs)));
    fs::remove_file(at(&osts[2], differs)).unwrap();
    let (found, _) = three.check_stopped(&["--repair"], 4);
    let (said, is_repairable) = about(&found, differs, "is missing on OST 2; ");
    assert!(!is_repairable && said.ends_with("its other copies differ"), "{said}");
    let (said, is_repairable) = about(&found, differs, "differs from its copy on OST ");
    assert!(!is_repairable && said.ends_with("nothing says which one is right"), "{said}");
    assert!(found.len() == 2 && !at(&osts[2], differs).exists(), "{found:?}");
}

/// Writes, cuts and removes files until it is to end; some rest for as long as it takes to be sealed.
fn change(dir: &Path, worker: u64, goes_on: &AtomicBool) {
    let mut random = Random(worker);
    for n in 0u64.. {
        if !goes_on.load(Ordering::Acquire) {
            return;
        }
        let path = dir.join(format!("file{worker}.{}", random.below(12)));
        let file = File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        file.write_all_at(&[n as u8; 5000], random.below(1 << 19)).unwrap();
        match random.below(8) {
            0 => fs::remove_file(&path).unwrap(),
            1 | 2 => file.set_len(random.below(1 << 19)).unwrap(),
            3 => file.sync_all().unwrap(),
            _ => {}
        }
        drop(file);
        std::thread::sleep(Duration::from_millis(random.below([20, 200, 3000][worker as usize])));
    }
}

#[test]
fn copies_that_are_being_changed_are_sound() {
    let three = ThreeServers::new();
    let servers = three.start();
    let (client, dir) = three.world.mount(three.port, "a", &[]);
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (dir, goes_on) = (&dir, &goes_on);
            scope.spawn(move || change(dir, worker, goes_on));
        }
        let checks = scope.spawn(|| {
            for _ in 0..at_length(2, 20) {
                let (found, summary) = three.check_online(0);
                assert!(found.is_empty() && summary["objects"] != 0, "{found:?} {summary}");
            }
        });
        let checked = checks.join();
        goes_on.store(false, Ordering::Release);
        checked.unwrap();
    });
    client.stop();
    three.stop(servers);
    three.check_stopped(&[], 0);
}
