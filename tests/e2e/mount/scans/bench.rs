//! `glint bench scan` on a small tree: all its rows, its report, and that nothing is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::binary::interrupted;
use support::host::memory_limit::MemoryLimit;
use support::*;

/// Where control groups that limit memory are, by their version.
const GROUPS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// A limit of memory, on a host where control groups can be made.
fn limit() -> &'static str {
    if MemoryLimit::new("probe", 192 << 20).is_some() { "192M" } else { "off" }
}

/// A bench on few files, whose streams do not take long.
fn scan(stage: &Path, more: &[&str]) -> Command {
    let mut bench = glint();
    bench.args(["bench", "scan", "--json", "--data", text(stage), "--memory", limit()]);
    bench.args(["--stream-bytes", "16M", "--stream-rate", "40M"]).args(more);
    bench
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The command line of a process that names this and the stage; arguments are apart by spaces.
fn process_of(stage: &Path, part: &str) -> Option<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        // One that has ended meanwhile has none.
        .filter_map(|process| fs::read(process.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .find(|line| line.contains(part) && line.contains(&format!("{}/", text(stage))))
}

/// Asserts that no process, file, group or loop device of a bench is there any more.
fn assert_nothing_is_left(stage: &Path, bench: u32) {
    assert_eq!(process_of(stage, ""), None, "a process is left");
    assert!(fs::read_dir(stage).unwrap().next().is_none(), "nothing is left");
    let own = format!("glint-bench-{bench}-");
    for entry in GROUPS.iter().filter_map(|top| fs::read_dir(top).ok()).flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        assert!(!name.starts_with(&own), "a control group is left: {name}");
    }
    let devices = || sh(stage, "losetup --list --noheadings --output BACK-FILE");
    eventually("no loop device is left", || !devices().contains(text(stage)));
}

#[test]
fn the_experiment_scans_in_all_phases_and_writes_its_report() {
    let world = World::new();
    let (stage, report) = (world.path("stage"), world.path("report"));
    fs::create_dir(&stage).unwrap();
    let more = ["--experiment", "lustre-2011", "--files", "2000", "--rounds", "1"];
    let mut bench = scan(&stage, &more);
    let bench = bench.args(["--report", text(&report)]).stdout(Stdio::piped());
    let bench = bench.stderr(Stdio::piped()).spawn().unwrap();
    let pid = bench.id();
    let output = bench.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("GiB that are free") && said.contains("takes about"), "{said}");
    let lines = lines(&output);
    let (scans, memory): (Vec<_>, Vec<_>) = lines.iter().partition(|line| line["scan"].is_string());
    for line in &scans {
        assert!(line["files_per_s"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["is_cut"] == false && line["failure"].is_null(), "{line}");
        let is_streamed = line["phase"].as_str().unwrap().contains("streamed");
        assert_eq!(line["streams_mb_per_s"].is_number(), is_streamed, "{line}");
        assert_eq!(line["stat_ms_max"].is_number(), line["scan"] == "stat", "{line}");
    }
    // Five scans of each variant and four local ones, in four phases, and once without a limit.
    let unlimited = if limit() == "off" { 0 } else { 4 };
    assert_eq!(scans.len(), 2 * 5 * 4 + 4 * 4 + unlimited, "{scans:?}");
    let servers: BTreeSet<_> = memory.iter().map(|line| line["servers"].as_str()).collect();
    assert_eq!(servers, BTreeSet::from([Some("policy"), Some("common")]));
    for line in memory {
        for of in ["server_bytes", "mount_bytes", "mount_bytes_each_inode"] {
            assert!(line[of].as_f64().unwrap() > 0.0, "{of}: {line}");
        }
        if line["servers"] == "common" {
            assert!(line["passed_above_bytes"].is_null(), "all stays in memory: {line}");
        }
    }
    let written = fs::read_to_string(report.join("lustre-2011.md")).unwrap();
    for part in ["| scan | servers |", "longest stat", "Again with `glint bench scan --exp"] {
        assert!(written.contains(part), "{part}: {written}");
    }
    for plot in ["warm", "streamed", "restarted", "restarted-streamed"] {
        assert!(report.join(format!("lustre-2011-{plot}.svg")).exists(), "{plot}");
    }
    assert_nothing_is_left(&stage, pid);
}

#[test]
fn a_scan_that_is_interrupted_leaves_nothing() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let bench = scan(&stage, &["--files", "500", "--rounds", "10000", "--streams"]);
    let has_streams = || process_of(&stage, "scan-stream").is_some();
    let (number, output) = interrupted(bench, "there are streams", has_streams);
    assert!(output.stdout.is_empty());
    assert_nothing_is_left(&stage, number);
}

#[test]
fn a_scan_refuses_a_disk_that_is_too_small() {
    let world = World::new();
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    let output = scan(&stage, &["--files", "99999999999"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("GiB free, and this experiment needs"), "{why}");
    assert!(fs::read_dir(&stage).unwrap().next().is_none(), "nothing was made");
}
