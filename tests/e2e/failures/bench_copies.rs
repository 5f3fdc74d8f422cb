//! `glint bench copies` on files that are few and small: the figures of its rows, and that nothing
//! is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::binary::interrupted;
use support::*;

/// A directory for the servers.
fn stage(world: &World) -> PathBuf {
    let stage = world.path("stage");
    fs::create_dir(&stage).unwrap();
    stage
}

/// On few files.
fn copies(stage: &Path, more: &[&str]) -> Command {
    let mut bench = glint();
    bench.args(["bench", "copies", "--json", "--data", text(stage)]);
    bench.args(["--files", "40,600", "--changed", "20", "--users-seconds", "1"]).args(more);
    bench
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

/// Measures these rows. Asserts what is so of each figure, however busy the machine is.
fn measure(rows: &[&str]) -> Vec<Value> {
    let world = World::new();
    let stage = stage(&world);
    let output = run(copies(&stage, rows).args(["--rounds", "1", "--size", "2M"]));
    let said = std::str::from_utf8(&output.stdout).unwrap();
    let lines: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &lines {
        assert_eq!(line["bench"], "copies", "{line}");
        // Rounded: it may be hardly anything.
        assert!(line["value"].as_f64().unwrap() >= 0.0, "{line}");
        assert_eq!(line["reach"].is_null(), line["is_reached"].is_null(), "{line}");
        for (name, part) in line["parts"].as_object().unwrap() {
            // A rebuild of so little may be over before a call of users.
            let is_done = part.as_f64().unwrap() > 0.0 || name == "calls_per_s";
            assert!(is_done, "{name}: {line}");
        }
    }
    assert!(is_empty(&stage), "nothing is left");
    lines
}

fn part(line: &Value, name: &str) -> f64 {
    line["parts"][name].as_f64().unwrap()
}

#[test]
#[ignore = "make long: alone, for it drops all caches"]
fn copies_of_streams_and_a_rebuild_are_measured_against_what_they_are_to_reach() {
    let lines = measure(&["--row", "streams", "--row", "rebuild"]);
    let rows: Vec<_> = lines.iter().map(|line| line["row"].as_str().unwrap()).collect();
    assert_eq!(rows, ["streams", "streams", "rebuild", "rebuild"]);
    for line in &lines[..2] {
        let ratio = part(line, "copies_3_mib_per_s") / part(line, "copies_1_mib_per_s");
        assert!((line["value"].as_f64().unwrap() / ratio - 1.0).abs() < 0.05, "{line}");
    }
    // Three large files, and those of four users.
    assert!(part(&lines[2], "mib") >= 3.0 * 2.0 + 4.0 * 16.0, "{}", lines[2]);
    let (pace, alone) = (part(&lines[3], "pace_per_s"), part(&lines[3], "alone_per_s"));
    assert!((pace / alone - 0.5).abs() < 0.01, "{}", lines[3]);
}

#[test]
#[ignore = "make long: waits as long as the row of deaths, and heals are tested without it"]
fn copies_of_few_files_among_many_are_healed_and_timed() {
    let lines = measure(&["--row", "heal"]);
    let figures: Vec<_> = lines.iter().map(|line| line["figure"].as_str().unwrap()).collect();
    let of_all = ["20 changed files of 40", "20 changed files of 600", "20 of 600 against of 40"];
    assert_eq!(figures[..3], of_all);
    assert_eq!(figures[3..], ["glint heal info"]);
}

#[test]
fn copies_are_used_by_calls_of_both_roles_when_their_server_dies() {
    let lines = measure(&["--row", "dies"]);
    assert_eq!(lines.len(), 5);
    for line in &lines[..4] {
        assert!(part(line, "calls_after_the_kill") >= 1.0, "{line}");
    }
    let errors = &lines[4];
    assert_eq!((&errors["value"], &errors["is_reached"]), (&0.0.into(), &true.into()), "{errors}");
}

#[test]
#[ignore = "make long: waits for each server as the row of deaths does, which is tested without it"]
fn copies_are_written_while_servers_are_stopped_and_while_they_stand_still() {
    let lines = measure(&["--row", "stops", "--row", "freezes", "--database", "8M"]);
    let rows: Vec<_> = lines.iter().map(|line| line["row"].as_str().unwrap()).collect();
    assert_eq!(rows[..5], ["freezes"; 5]);
    assert_eq!(rows[5..], ["stops"; 3]);
    for errors in [&lines[4], &lines[7]] {
        assert_eq!(errors["value"], 0.0, "{errors}");
    }
    for line in &lines[..4] {
        assert!(part(line, "calls_after_the_halt") >= 1.0, "{line}");
    }
    for line in &lines[5..7] {
        assert!(part(line, "calls") >= 1.0, "{line}");
    }
}

#[test]
fn copies_that_are_interrupted_leave_nothing() {
    let world = World::new();
    let stage = stage(&world);
    let more = ["--row", "streams", "--rounds", "10000", "--size", "2M"];
    let mounted = || sh(&stage, "find . -name mount -exec mountpoint {} \\; || true");
    let is_mounted = || mounted().contains("is a mountpoint");
    interrupted(copies(&stage, &more), "there is a mount", is_mounted);
    assert!(is_empty(&stage), "no mount and no data is left");
}

#[test]
fn copies_refuse_a_disk_that_is_too_small() {
    let world = World::new();
    let stage = stage(&world);
    let output = copies(&stage, &["--size", "9999T"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(why.contains("GiB free, and this experiment needs"), "{why}");
    assert!(is_empty(&stage), "nothing was made");
}
