//! Heaps of a process: in one of its own, because threads of other tests make some at any time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(missing_docs, reason = "what a test does is its name")]
#![cfg(target_env = "gnu")]

use glint_memory::share_heaps;
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
    let before = heaps();
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
    // One for every four cores, but those that are there stay.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!((1..=before.max(cores.div_ceil(4))).contains(&heaps()), "{} of {before}", heaps());
}
