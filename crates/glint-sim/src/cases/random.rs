//! Random bytes of a thread that simulates.

use crate::world::chance::simulate;
use std::hash::{BuildHasher, RandomState};

/// Hash tables have the same order in each run of a seed.
pub fn hash_tables_of_a_seed_are_the_same() {
    let of_seed = |seed| {
        let thread = std::thread::spawn(move || {
            simulate(seed);
            RandomState::new().hash_one(7)
        });
        thread.join().unwrap()
    };
    assert_eq!(of_seed(Some(1)), of_seed(Some(1)));
    assert_ne!(of_seed(Some(1)), of_seed(Some(2)));
    assert_ne!(of_seed(None), of_seed(None));
}
