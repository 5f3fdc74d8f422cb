//! What holds for any run of the simulation. Not beside its code, where the simulation would be built
//! a second time for the tests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

/// Seeds that are run twice, and threads that do so.
const SEEDS: u64 = 40;
const THREADS: u64 = 2;

fn is_the_same_again(seed: u64) {
    let first = glint_sim::run(seed, false);
    assert!(first.is_ok(), "seed {seed}: {first:?}");
    assert_eq!(first, glint_sim::run(seed, false), "seed {seed}");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    std::thread::scope(|scope| {
        for part in 0..THREADS {
            let seeds = (part..SEEDS).step_by(THREADS as usize);
            scope.spawn(move || seeds.for_each(is_the_same_again));
        }
    });
}

#[test]
fn what_a_hostile_client_says_concerns_nobody_else() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..random.usize(0..6000)).map(|_| random.u8(..)).collect();
        glint_sim::fuzz::hostile(&bytes);
    }
}
