//! Random bytes, on a thread that simulates: its seed's, and not the kernel's.
//!
//! std and others ask the C library for them, which looks here first. Above all hash tables are
//! iterated in an order that they decide, and so is what happens next.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on the seed decides on this thread. `None` ends that.
pub(crate) fn simulate(seed: Option<u64>) {
    STATE.set(seed);
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// getrandom(2), in place of the C library's, which std looks for by this name so that others may
/// take its place.
///
/// # Safety
///
/// `buffer` has room for `len` bytes.
// SAFETY: nothing else in this program defines the name; what it does is what getrandom(2) does.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: c_uint) -> isize {
    let Some(mut state) = STATE.get() else {
        // SAFETY: the caller's promise is what the system call asks for.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, len, flags) } as isize;
    };
    // SAFETY: the caller promises the room, and a byte may hold anything.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), len) };
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&next(&mut state).to_le_bytes()[..chunk.len()]);
    }
    STATE.set(Some(state));
    len as isize
}
