//! Files that move to an OST that has joined, while they are used, until all are about as full.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::disk::Disk;
use support::load::Load;
use support::*;

const MEGABYTES: u64 = 450;
const FILES: usize = 150;
const MIB: usize = 1 << 20;
const WITHIN: f64 = 3.0;

fn content(n: usize) -> Vec<u8> {
    (0..MIB).map(|at| (at * 7 + n * 13 + at / 251) as u8).collect()
}

/// Files without copies, with copies, and over two OSTs.
fn make(dir: &Path) -> BTreeMap<PathBuf, usize> {
    for (below, options) in
        [("copies", ["-r", "2"]), ("striped", ["-c", "2"]), ("plain", ["-c", "1"])]
    {
        fs::create_dir(dir.join(below)).unwrap();
        run(glint().arg("setstripe").args(options).arg(dir.join(below)));
    }
    let below = |n: usize| match n % 10 {
        0 | 1 => "copies",
        2 => "striped",
        _ => "plain",
    };
    let paths = (0..FILES).map(|n| (dir.join(below(n)).join(format!("file{n}")), n));
    paths.inspect(|(path, n)| fs::write(path, content(*n)).unwrap()).collect()
}

fn must_be(files: &BTreeMap<PathBuf, usize>) {
    for (path, n) in files {
        assert!(fs::read(path).unwrap() == content(*n), "{} is another one", path.display());
    }
}

fn rows(said: &[u8]) -> Vec<Value> {
    let said = String::from_utf8_lossy(said);
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Used share of each OST that is not drained, in per cent; of those that have said it.
fn used(dir: &Path) -> Vec<f64> {
    let listed = run(glint().args(["ost", "list", "--json"]).arg(dir)).stdout;
    let share = |row: &Value| {
        let (free, total) = (row["free_bytes"].as_f64()?, row["total_bytes"].as_f64()?);
        (row["drained"] == false).then_some(100.0 - 100.0 * free / total)
    };
    rows(&listed).iter().filter_map(share).collect()
}

fn furthest(used: &[f64]) -> f64 {
    let mean = used.iter().sum::<f64>() / used.len() as f64;
    used.iter().map(|one| (one - mean).abs()).fold(0.0, f64::max)
}

fn rebalance(dir: &Path) -> Command {
    let mut command = glint();
    command.args(["ost", "rebalance", "--json", "--within", "3"]).arg(dir);
    command
}

/// The first server has made chains over its own OSTs before another one joined.
#[test]
fn copies_that_fail_together_leave_each_other_once_they_can() {
    let world = World::new();
    let (port, other_port) = (free_port(), free_port());
    let server = world.serve(port, &["--osts", "2", "--replicas", "2", "--lease", "6"]);
    let (a, dir) = world.mount(port, "a", &[]);
    let make = |name: &str| {
        let write = |n: usize| fs::write(dir.join(format!("{name}{n}")), &content(n)[..100_000]);
        (0..20).for_each(|n| write(n).unwrap());
        run(Command::new("sync").arg("-f").arg(&dir));
    };
    let on = |ost: &str| {
        let said = run(glint().args(["ost", "files", ost]).arg(&dir)).stdout;
        String::from_utf8(said).unwrap().lines().count()
    };
    make("old");
    assert_eq!((on("0"), on("1")), (20, 20), "each OST is a failure domain");
    let at = address(port);
    let before = chains(&at)["count"].clone();
    let first = world.oss(1, other_port, port, &[]);
    eventually("chains over the other server", || chains(&at)["count"] != before);
    wait_until_whole(&at);
    // What is made by another mount knows them all.
    a.stop();
    let (a, _) = world.mount(port, "a", &[]);
    make("new");
    assert_eq!(on("2"), 20, "new files avoid chains of one server");
    let said = run(glint().args(["ost", "rebalance", "--within", "50", "--dry-run"]).arg(&dir));
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(
        said.contains("/old7") && !said.contains("/new") && said.contains("20 files"),
        "{said}"
    );
    run(glint().args(["ost", "rebalance", "--within", "50"]).arg(&dir));
    assert_eq!((on("0") + on("1"), on("2")), (40, 40));
    for (name, n) in ["old", "new"].into_iter().flat_map(|name| (0..20).map(move |n| (name, n))) {
        assert!(fs::read(dir.join(format!("{name}{n}"))).unwrap() == content(n)[..100_000]);
    }
    [a, first, server].into_iter().for_each(Process::stop);
    world.assert_sound_with(&world.data(), &[1]);
}

#[test]
fn files_move_to_an_ost_that_has_joined_until_all_are_as_full() {
    let world = World::new();
    let dirs = [1, 2, 3].map(|n| world.oss_data(n));
    let disks = dirs.each_ref().map(|dir| {
        let name = dir.file_name().unwrap().to_string_lossy();
        Disk::new(&world.path(&format!("{name}.image")), dir, "ext4", MEGABYTES)
    });
    let (port, ports) = (free_port(), [free_port(), free_port(), free_port()]);
    let server = world.serve(port, &["--lease", "6"]);
    let oss = |n: u16| world.oss(n, ports[usize::from(n) - 1], port, &[]);
    let (first, second) = (oss(1), oss(2));
    // That of the server is on the disk of everything else here.
    let (a, dir) = world.mount(port, "a", &[]);
    run(glint().args(["ost", "drain", "0"]).arg(&dir));
    let (b, other) = world.mount(port, "b", &[]);
    let files = make(&dir);
    run(Command::new("sync").arg("-f").arg(&dir));
    let third = oss(3);
    eventually("the new one says how much space it has", || used(&dir).len() == 3);
    let before = used(&dir);
    assert!(furthest(&before) > 2.0 * WITHIN, "{before:?}");

    let said = refused(glint().args(["ost", "rebalance", &address(port)]));
    assert!(said.contains("through a mount"), "{said}");
    let said = run(rebalance(&dir).arg("--dry-run")).stdout;
    let said = rows(&said);
    let (all, moves) = said.split_last().unwrap();
    assert!(all["balanced"] == false && all["files"] == moves.len() && moves.len() > 20, "{all}");
    assert!(moves.iter().all(|one| one["to"] == 3), "{moves:?}");
    assert!(furthest(&used(&dir)) > 2.0 * WITHIN, "nothing has moved");

    let load = Load::start([&dir, &other]);
    // Ctrl-C after the first files.
    let mut moving = rebalance(&dir).args(["--jobs", "2"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(moving.stdout.take().unwrap()).lines().map(Result::unwrap);
    let one: Value = serde_json::from_str(&lines.next().unwrap()).unwrap();
    assert!(one["path"].is_string(), "{one}");
    run(Command::new("kill").args(["-INT", &moving.id().to_string()]));
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert_eq!(moving.wait().unwrap().code(), Some(1));
    let some = last["moved"].as_u64().unwrap();
    assert!(some >= 1 && (some as usize) < moves.len(), "{last}");
    let mut moving = rebalance(&dir).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(moving.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("path"));
    run(Command::new("kill").args(["-STOP", &moving.id().to_string()]));
    let said = refused(&mut rebalance(&other));
    assert!(said.contains("another `glint ost rebalance` moves files"), "{said}");
    let said = run(glint().args(["ost", "list"]).arg(&other)).stdout;
    let said = String::from_utf8(said).unwrap();
    assert!(said.lines().any(|line| line.contains(", rebalancing: ")), "others see it: {said}");
    run(Command::new("kill").args(["-CONT", &moving.id().to_string()]));
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert!(moving.wait().unwrap().success(), "{last}");
    assert!(last["balanced"] == true && last["moved"].as_u64().unwrap() > 10, "{last}");
    load.end(10);
    let after = used(&other);
    // The load has gone on since.
    assert!(furthest(&after) < WITHIN + 2.0, "{after:?}, before {before:?}");
    must_be(&files);
    let seen = |path: &PathBuf| other.join(path.strip_prefix(&dir).unwrap());
    must_be(&files.iter().map(|(path, n)| (seen(path), *n)).collect());
    let again = rows(&run(&mut rebalance(&dir)).stdout).pop().unwrap();
    assert!(again["moved"].as_u64().unwrap() < 10, "{again}");
    [a, b, third, second, first, server].into_iter().for_each(Process::stop);
    world.assert_sound_with(&world.data(), &[1, 2, 3]);
    drop(disks);
}
