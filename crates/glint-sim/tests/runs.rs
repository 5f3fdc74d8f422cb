//! What holds for any run of the simulation. Not beside its code, where the simulation would be built
//! a second time for the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_sim::{Lapse, Outcome};
use std::sync::Mutex;

/// Seeds that are run twice, and threads that do so.
const SEEDS: u64 = 40;
const THREADS: u64 = 2;
/// Seeds of which one must find a fault that is put in on purpose.
const SEEDS_TO_FIND: u64 = 2_000;

fn is_the_same_again(seed: u64) -> Outcome {
    let first = glint_sim::run(seed, false);
    assert!(first.is_ok(), "seed {seed}: {first:?}");
    assert_eq!(first, glint_sim::run(seed, false), "seed {seed}");
    first.unwrap()
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let total = Mutex::new(Outcome::default());
    let run = |seed| {
        let outcome = is_the_same_again(seed);
        total.lock().unwrap().add(&outcome);
    };
    std::thread::scope(|scope| {
        for part in 0..THREADS {
            let seeds = (part..SEEDS).step_by(THREADS as usize);
            scope.spawn(move || seeds.for_each(run));
        }
    });
    let total = total.into_inner().unwrap();
    assert!(total.read_in_kernel > 0 && total.stored_in_kernel > 0, "{total:?}");
    assert!(total.moved > 0, "{total:?}");
}

/// Runs seeds with a fault until one finds it. Returns what that says.
fn find(lapse: Lapse) -> String {
    let found = (0..SEEDS_TO_FIND).find_map(|seed| glint_sim::run_with(seed, lapse).err());
    found.unwrap_or_else(|| panic!("{lapse:?} is not found in {SEEDS_TO_FIND} seeds"))
}

#[test]
fn pages_that_are_kept_past_their_lock_are_found() {
    let found = find(Lapse::PagesKept);
    assert!(found.contains(" of the tree is "), "{found}");
}

#[test]
fn an_absent_name_that_is_not_forgotten_is_found() {
    let found = find(Lapse::AbsentNamesKept);
    let is_it = ["another client ", "of a dead client: "].iter().any(|by| found.starts_with(by));
    assert!(is_it, "{found}");
}

#[test]
fn what_a_hostile_client_says_concerns_nobody_else() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..random.usize(0..6000)).map(|_| random.u8(..)).collect();
        glint_sim::fuzz::hostile(&bytes);
    }
}
