//! Memory that was freed goes back to the system. The allocator of the C library keeps pages that
//! are free between others in use, and a thread takes none from the heap of another.

/// Cores that share a heap: some threads of a program seldom wait for each other there.
#[cfg(target_env = "gnu")]
const CORES_PER_HEAP: usize = 4;

/// Gives free pages of all arenas back. Takes the lock of each in turn, for about a millisecond for
/// every 10 MB that are given back, so it is to be called often while much is freed.
#[cfg(target_env = "gnu")]
pub fn give_back_free_pages() {
    // SAFETY: may be called by any thread at any time, and touches nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Limits the heaps of this process to one for every four cores, for programs whose caches are filled by
/// all threads: each heap grows to what its threads have ever held, and the free memory of all adds up.
/// Does not merge heaps that are there, so it is to be called before threads start.
#[cfg(target_env = "gnu")]
pub fn share_heaps() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let heaps = libc::c_int::try_from(cores.div_ceil(CORES_PER_HEAP)).unwrap_or(libc::c_int::MAX);
    // SAFETY: sets a number that the allocator reads when a thread allocates for the first time.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, heaps) };
}

/// Other allocators do it by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back_free_pages() {}

/// Other allocators share them by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn share_heaps() {}
