//! Positions of entries in a listing (telldir(3)): what an MDS gives out, and a client that lists a
//! directory from memory.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Cookie of ".", so that listing can go on after it.
pub const COOKIE_DOT: u64 = 1;
/// Cookie of "..".
pub const COOKIE_DOT_DOT: u64 = 2;
const COOKIE_FIRST: u64 = 16;

/// Position of a name in its directory: a hash, so it stays the same whatever
/// else is added or removed (telldir(3)), and positive as an `off_t`.
pub fn cookie(name: &[u8], seed: u64) -> u64 {
    (xxh3_64_with_seed(name, seed) >> 1).max(COOKIE_FIRST)
}
