//! `glint bench work` on trees that are small: its figures, its report, and that nothing is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::{Map, Value};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use support::binary::interrupted;
use support::*;

/// One round on small trees.
fn work(more: &[&str]) -> Command {
    let mut bench = long_work();
    bench.args(["--rounds", "1", "--large", "16M"]).args(more);
    bench
}

fn long_work() -> Command {
    let mut bench = glint();
    bench.args(["bench", "work", "--json", "--files", "120"]);
    bench
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn work_measures_all_rows_and_counts_their_requests() {
    let world = World::new();
    let (stage, report) = (world.path("stage"), world.path("report"));
    fs::create_dir(&stage).unwrap();
    let places = ["--null", "--data", text(&stage), "--report", text(&report)];
    let output = run(&mut work(&places));
    let lines = lines(&output);
    assert_eq!(lines.len(), 18);
    for line in &lines {
        // What is as small as here is read in no time on the local file system.
        assert!(line["per_s"].as_f64().unwrap() > 0.0 && line["ratio"].is_number(), "{line}");
        assert!(line["requests"].as_f64().unwrap() > 0.0, "{line}");
        // The rows of two mounts are compared with other options instead.
        let is_aimed = !line["row"].as_str().unwrap().starts_with("turns");
        assert_eq!(line["ratio_reach"].is_number(), is_aimed, "{line}");
        assert_eq!(line["is_reached"].is_boolean(), is_aimed, "{line}");
        // A null mount has the names and sizes of the trees, but no data.
        let needs_data = !is_aimed || line["row"] == "git-status";
        let null_mount = line["null_mount_per_s"].as_f64();
        assert_eq!(null_mount.is_none(), needs_data, "{line}");
        assert!(null_mount.is_none_or(|per_s| per_s > 0.0), "{line}");
        assert_eq!(line["to_null_mount"].is_number(), !needs_data, "{line}");
    }
    let of = |row: &str| lines.iter().find(|line| line["row"] == row).unwrap();
    // Every file has data that the server was asked for, and was listed, not asked for.
    assert!(of("cat")["requests_by_op"]["obj_read"].as_u64().unwrap() > 0);
    assert!(of("find")["requests"].as_f64().unwrap() < 0.5, "{}", of("find"));
    // Programs wait for the mount, and the mount for the server.
    for who in ["programs", "mount", "server"] {
        let voluntary = |line: &Value| line["switches"][who]["voluntary"].as_f64();
        assert!(lines.iter().all(|line| voluntary(line).is_some_and(|n| n >= 0.0)), "{who}");
        assert!(voluntary(of("turns-files")).is_some_and(|n| n > 0.0), "{who}: {lines:?}");
    }
    // Each file that one mount wrote is asked for by the other one.
    assert!(of("turns-files")["requests"].as_f64().unwrap() >= 1.0, "{}", of("turns-files"));
    let said = fs::read_to_string(report.join("work.md")).unwrap();
    for part in [
        "| row | what |",
        "| ratio | reach | null mount | to null | requests |",
        "| git-status | git status |",
        "| row | programs | mount | server |",
        "Again with `glint bench work",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for plot in ["files", "data"] {
        assert!(report.join(format!("work-{plot}.svg")).exists(), "{plot}");
    }
    assert!(is_empty(&stage), "nothing is left");
}

#[test]
fn work_takes_turns_between_mount_options() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let report = world.path("report");
    let options = ["-o", "prefetch=on", "-o", "prefetch=off", "cat", "--data", text(&stage)];
    let options = [&options[..], &["--report", text(&report)]].concat();
    let lines = lines(&run(&mut work(&options)));
    let options: Vec<_> = lines.iter().map(|line| line["options"].as_str().unwrap()).collect();
    assert_eq!(options, ["prefetch=on", "prefetch=off"]);
    let requests = |line: &Value| line["requests"].as_f64().unwrap();
    assert!(requests(&lines[0]) <= requests(&lines[1]), "{lines:?}");
    // An open and a read for each file.
    assert!(requests(&lines[1]) >= 1.0, "{lines:?}");
    // Without `--null` there is no such mount, and no column of it.
    assert!(lines.iter().all(|line| line["null_mount_per_s"].is_null()), "{lines:?}");
    let said = fs::read_to_string(report.join("work.md")).unwrap();
    assert!(said.contains("| ratio | reach | requests | reach | voluntary |"), "{said}");
}

#[test]
fn work_is_done_in_a_directory_that_is_mounted_afresh() {
    let world = World::new();
    let up = world.up(&[]);
    let mnt = world.mount_point();
    let (local, log) = (world.path("local"), world.path("log"));
    fs::create_dir(&local).unwrap();
    let remount = format!("echo \"$TARGET\" >> '{}'", text(&log).replace('\'', "'\\''"));
    let places = ["--target", text(&mnt), "--against", text(&local), "--remount", &remount];
    let lines = lines(&run(work(&places).args(["find", "diff", "smallfile-1", "--null"])));
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line["to_null_mount"].is_number()), "{lines:?}");
    assert!(lines.iter().all(|line| line["requests"].is_null()), "{lines:?}");
    // Whose mount it is nobody knows: programs are counted only.
    let switches = |line: &Value| line["switches"].as_object().map_or(0, Map::len);
    assert!(lines.iter().all(|line| switches(line) == 1), "{lines:?}");
    let mounted = fs::read_to_string(&log).unwrap();
    // Once for making the files, and for each row in each of two rounds.
    assert_eq!(mounted, format!("{}\n", text(&mnt)).repeat(1 + 3 * 2));
    assert!(is_empty(&mnt) && is_empty(&local), "nothing is left");
    up.stop();
    world.assert_sound();
}

#[test]
fn work_is_done_in_one_process() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let lines = lines(&run(&mut work(&["--up", "cat", "stat", "turns", "--data", text(&stage)])));
    let reach: Vec<_> = lines.iter().map(|line| &line["ratio_reach"]).collect();
    // A row of two mounts is left out.
    assert_eq!(reach, [&Value::Null, &0.6.into()], "{lines:?}");
    assert!(lines.iter().all(|line| line["requests"].is_null()), "{lines:?}");
    assert!(lines.iter().all(|line| line["switches"]["mount"].is_object()), "{lines:?}");
    let options = ["-o", "passthrough=off", "-o", "passthrough=on", "ior", "ior-opened"];
    let lines = self::lines(&run(work(&["--up", "--data", text(&stage)]).args(options)));
    let reach: Vec<_> = lines.iter().map(|line| &line["ratio_reach"]).collect();
    let (none, passed) = (&Value::Null, &Value::from(0.9));
    assert_eq!(reach, [none, none, passed, passed], "{lines:?}");
    assert!(is_empty(&stage), "nothing is left");
}

#[test]
fn work_that_is_interrupted_leaves_nothing() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let mut bench = long_work();
    bench.args(["cat", "--rounds", "10000", "--data", text(&stage)]);
    let mounted = || sh(&stage, "find . -name mnt -exec mountpoint {} \\; || true");
    let is_mounted = || mounted().contains("is a mountpoint");
    let (_, output) = interrupted(bench, "there is a mount", is_mounted);
    assert!(output.stdout.is_empty());
    assert!(is_empty(&stage), "no mount and no data is left");
}

#[test]
fn work_refuses_a_disk_that_is_too_small() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let output = long_work().args(["--large", "9999T", "--data", text(&stage)]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("GiB free, and this experiment needs"), "{why}");
    assert!(is_empty(&stage), "nothing was made");
}
