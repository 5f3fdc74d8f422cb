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

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// How many heaps the allocator has, as it says itself.
    fn heaps() -> usize {
        let (mut text, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: the stream is closed before its text is read, and that is freed once, after that.
        unsafe {
            let stream = libc::open_memstream(&raw mut text, &raw mut len);
            assert!(!stream.is_null());
            libc::malloc_info(0, stream);
            libc::fclose(stream);
            let said = std::slice::from_raw_parts(text.cast::<u8>(), len);
            let heaps = said.windows(9).filter(|part| *part == b"<heap nr=").count();
            libc::free(text.cast());
            heaps
        }
    }

    #[test]
    fn many_threads_share_few_heaps() {
        const THREADS: usize = 32;
        share_heaps();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let most = heaps().max(cores.div_ceil(CORES_PER_HEAP));
        let all = Barrier::new(THREADS);
        std::thread::scope(|threads| {
            for _ in 0..THREADS {
                threads.spawn(|| {
                    let held = vec![7u8; 1000];
                    all.wait();
                    drop(held);
                });
            }
        });
        assert!((1..=most).contains(&heaps()), "{} of {most}", heaps());
    }
}
