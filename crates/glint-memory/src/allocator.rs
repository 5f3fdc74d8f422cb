//! Memory that was freed goes back to the system. The allocator of the C library keeps pages that
//! are free between others in use.

/// Gives free pages of all arenas back. Takes the lock of each in turn, for about a millisecond for
/// every 10 MB that are given back, so it is to be called often while much is freed.
#[cfg(target_env = "gnu")]
pub fn give_back_free_pages() {
    // SAFETY: may be called by any thread at any time, and touches nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators do it by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back_free_pages() {}
