//! A member fails, comes back, and gets what it missed, again and again, while files with two and
//! three copies are used through two mounts: calls go on, nothing that was acknowledged is lost or
//! old, nothing that is damaged is read, and all copies are the same afterwards.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::cold::Cold;
use super::crew::{Course, Crew, Worker};
use super::faults::Fault::{
    self, CutOff, CutOffFromMds, Fill, Freeze, Halt, Kill, Slow, Spoil, Stop,
};
use super::faults::Strike;
use super::oss_hosts::{Cluster, OSSES};
use super::programs::{Fio, Fsx};
use super::tree::Sources;
use super::verified::Changer;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::random::Random;
use support::*;

/// After so many rounds the load rests, and all is compared.
const REST_AFTER: usize = 25;

fn seed(usual: u64) -> u64 {
    std::env::var("SEED").map_or(usual, |seed| seed.parse().unwrap())
}

/// A directory with a layout, as both mounts have it.
fn directory(cluster: &Cluster<'_>, name: &str, layout: &[&str]) -> [PathBuf; 2] {
    let dirs = cluster.dirs.each_ref().map(|top| top.join(name));
    fs::create_dir(&dirs[0]).unwrap();
    run(glint().arg("setstripe").args(layout).arg(&dirs[0]));
    dirs
}

/// Strikes members, one after the other, under load.
fn under_load(seed: u64, kind: &str, strikes: impl Iterator<Item = Strike>) {
    let world = World::new();
    let places: [PathBuf; OSSES] = [1, 2, 3].map(|n| world.path(&format!("disk{n}")));
    let mut cluster = Cluster::start(&world, &places, kind);
    let course = Course::new(seed);
    let dir = |name: &str, layout: &[&str]| directory(&cluster, name, layout);
    let (two, three) = (["-r", "2"], ["-r", "3"]);
    let striped = dir("striped", &["-r", "2", "-c", "3", "-S", "64K"]);
    let cold = Cold::new(&dir("cold two", &two), &dir("cold three", &three), seed);
    let cold = Arc::new(Mutex::new(cold));
    let workers: Vec<Box<dyn Worker>> = vec![
        Box::new(cold.clone()),
        Box::new(Changer::new(dir("changed two", &two), 24, seed + 1)),
        Box::new(Changer::new(dir("changed three", &three), 24, seed + 2)),
        Box::new(Sources::new(dir("sources", &three), seed + 3)),
        Box::new(Fio { dirs: dir("fio", &three), scratch: world.path(""), runs: 0 }),
        Box::new(Fsx::new(striped, &world.path(""), seed)),
    ];
    let crew = Crew::start(course, workers);
    let course = &crew.course;
    cluster.wait_until_whole(course);
    for (round, strike) in (1_usize..).zip(strikes) {
        course.comes_to(&format!("round {round}: {}", strike.text()));
        strike.carry_out(&mut cluster, &cold, course);
        cluster.wait_until_whole(course);
        if round.is_multiple_of(REST_AFTER) {
            crew.rest(|| cluster.must_be_sound(course));
        }
    }
    course.comes_to("the end");
    let course = course.clone();
    crew.end();
    cluster.must_be_sound(&course);
    cluster.end(&course);
}

/// These strikes, with the milliseconds that each lasts.
fn each(strikes: &[(Fault, u16, u64)]) -> impl Iterator<Item = Strike> {
    strikes.iter().map(|(fault, member, millis)| Strike {
        fault: *fault,
        member: *member,
        lasts: Duration::from_millis(*millis),
    })
}

#[test]
fn servers_die_stand_still_and_are_cut_off_in_turns() {
    let strikes = [
        (Kill, 1, 500),
        (Stop, 2, 500),
        (Halt, 3, 4_000),
        (CutOffFromMds, 2, 4_500),
        (CutOff, 1, 4_500),
    ];
    under_load(seed(20_261_128), "ext4", each(&strikes));
}

#[test]
fn disks_lose_what_they_have_stand_still_are_slow_and_full_in_turns() {
    let strikes = [
        (Spoil, 2, 0),
        (Freeze, 1, 4_000),
        (Slow, 2, 2_000),
        (Fill, 2, 2_000),
        // Who was full has just become the head of its chains again.
        (Stop, 1, 0),
    ];
    under_load(seed(20_261_129), "ext4", each(&strikes));
}

#[test]
#[ignore = "make long: 500 rounds, an hour and more"]
fn members_fail_at_random() {
    let seed = seed(fastrand::u64(1..1_000_000));
    let rounds: usize = std::env::var("ROUNDS").map_or(500, |rounds| rounds.parse().unwrap());
    let mut random = Random(seed);
    let strikes = std::iter::repeat_with(|| Strike::any(&mut random)).take(rounds);
    under_load(seed, "xfs", strikes);
}
