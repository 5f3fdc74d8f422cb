//! What holds for any run of the simulation. Not beside its code, where the simulation would be built
//! a second time for the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_sim::{Lapse, Outcome};
use std::sync::Mutex;

/// Seeds that are run twice, and threads that do so.
const SEEDS: u64 = 40;
const THREADS: u64 = 2;
/// Seeds in which files are cut off while rows of chains change: each takes longer than others.
const TRUNCATIONS: u64 = 12;
/// Seeds in which a server loses its power while small files on it are written and read.
const POWER_LOSSES: u64 = 12;
/// Seeds of which two must have it: in most there is no other failure domain; about one in forty
/// has it.
const SEEDS_TO_TAKE_PLACES: u64 = 400;
/// Seeds of which one must find a fault that is put in on purpose.
const SEEDS_TO_FIND: u64 = 2_000;

fn is_the_same_again(seed: u64) -> Outcome {
    let first = glint_sim::run(seed, false);
    assert!(first.is_ok(), "seed {seed}: {first:?}");
    assert_eq!(first, glint_sim::run(seed, false), "seed {seed}");
    first.unwrap()
}

/// Runs so many seeds on some threads.
fn of_all(seeds: u64, run: impl Fn(u64) -> Outcome + Sync) -> Outcome {
    let total = Mutex::new(Outcome::default());
    std::thread::scope(|scope| {
        for part in 0..THREADS {
            let (total, run) = (&total, &run);
            scope.spawn(move || {
                for seed in (part..seeds).step_by(THREADS as usize) {
                    let outcome = run(seed);
                    total.lock().unwrap().add(&outcome);
                }
            });
        }
    });
    total.into_inner().unwrap()
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let total = of_all(SEEDS, is_the_same_again);
    assert!(total.read_in_kernel > 0 && total.stored_in_kernel > 0, "{total:?}");
    assert!(total.moved > 0, "{total:?}");
}

/// The first seeds in which others take the places of OSTs that were given up, and these come back.
#[test]
fn places_in_chains_are_taken_amid_harm() {
    let mut taken = 0;
    for seed in 0..SEEDS_TO_TAKE_PLACES {
        let outcome = glint_sim::run(seed, true);
        assert!(outcome.is_ok(), "make sim COPIES=1 SEED={seed}: {outcome:?}");
        taken += u64::from(outcome.unwrap().places_taken > 0);
        if taken == 2 {
            return;
        }
    }
    panic!("places were taken in {taken} of {SEEDS_TO_TAKE_PLACES} seeds");
}

#[test]
fn files_that_are_cut_off_while_rows_change_hold_what_was_written_last() {
    let total = of_all(TRUNCATIONS, |seed| {
        let outcome = glint_sim::run_truncations(seed);
        assert!(outcome.is_ok(), "make sim TRUNCATIONS=1 SEED={seed}: {outcome:?}");
        if seed == 0 {
            assert_eq!(outcome, glint_sim::run_truncations(seed), "another run of it");
        }
        outcome.unwrap()
    });
    assert!(total.rewritten > TRUNCATIONS && total.rows > TRUNCATIONS, "{total:?}");
    assert!(total.filled > 0 && total.kills > TRUNCATIONS, "{total:?}");
}

#[test]
fn small_files_of_a_server_that_loses_its_power_are_read_as_they_were_closed() {
    let total = of_all(POWER_LOSSES, |seed| {
        let outcome = glint_sim::run_power_losses(seed);
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}");
        if seed == 0 {
            assert_eq!(outcome, glint_sim::run_power_losses(seed), "another run of it");
        }
        outcome.unwrap()
    });
    assert!(total.power_losses > POWER_LOSSES && total.read_beside_lock > 0, "{total:?}");
}

/// Runs seeds with a fault until one says what it is: others may find that something else is wrong.
fn find(lapse: Lapse, is_it: impl Fn(&str) -> bool) {
    let mut others = Vec::new();
    for seed in 0..SEEDS_TO_FIND {
        match glint_sim::run_with(seed, lapse) {
            Err(found) if is_it(&found) => return,
            Err(found) => others.push((seed, found)),
            Ok(_) => {}
        }
    }
    panic!("{lapse:?} is not found in {SEEDS_TO_FIND} seeds, but {others:?}");
}

#[test]
fn pages_that_are_kept_past_their_lock_are_found() {
    find(Lapse::PagesKept, |found| found.contains(" of the tree is "));
}

#[test]
fn an_absent_name_that_is_not_forgotten_is_found() {
    let says = ["another client ", "of a dead client: "];
    find(Lapse::AbsentNamesKept, |found| says.iter().any(|say| found.starts_with(say)));
}

#[test]
fn an_old_truncation_that_comes_once_more_is_found() {
    find(Lapse::OldTruncations, |found| found.contains(" are read, and must have "));
}

#[test]
fn data_that_was_read_before_its_lock_and_written_again_since_is_found() {
    find(Lapse::UnwrittenKept, |found| found.contains(" is read as "));
}

#[test]
fn what_a_hostile_client_says_concerns_nobody_else() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..random.usize(0..6000)).map(|_| random.u8(..)).collect();
        glint_sim::fuzz::hostile(&bytes);
    }
}
