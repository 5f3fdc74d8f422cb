//! Tests of reads by a ring.

use super::super::watch::SEEN_CALLS_MAX;
use super::*;
use futures_lite::future::poll_once;
use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::ops::Deref;
use std::rc::Rc;

/// A buffer that says when it is freed.
struct WatchedBuffer(Vec<u8>, Rc<Cell<bool>>);

impl Deref for WatchedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for WatchedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for WatchedBuffer {
    fn drop(&mut self) {
        self.1.set(true);
    }
}

/// Runs a test on a thread with a ring, if this system lets it have one.
fn with_ring(test: impl AsyncFnOnce()) {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        if has_ring() {
            test().await;
        }
    });
}

#[test]
fn a_disk_has_no_more_reads_than_there_are_places() {
    let watch = Arc::<DiskWatch>::default();
    assert!(ReadPlace::take(&watch).is_none(), "there is no ring");
    with_ring(async || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let expected: Vec<u8> = (0..SEEN_CALLS_MAX as u8 + 1).collect();
        std::fs::write(&path, &expected).unwrap();
        let read = |at: usize| {
            let (place, file) = (ReadPlace::take(&watch), File::open(&path).unwrap());
            async move { place?.read(file, at as u64, vec![0; 2]).await }
        };
        let begun: Vec<_> = (0..=SEEN_CALLS_MAX).map(read).collect();
        let mut done = futures_util::future::join_all(begun).await;
        assert!(done.pop().unwrap().is_none(), "there was no place");
        for (at, read) in done.into_iter().enumerate() {
            let (len, data) = read.unwrap();
            assert_eq!(data[..len.unwrap()], expected[at..expected.len().min(at + 2)]);
        }
        assert_eq!(watch.seen_calls(), 0);
        let closed = File::options().write(true).open(&path).unwrap();
        let failed = ReadPlace::take(&watch).unwrap().read(closed, 0, vec![0; 2]).await;
        assert_eq!(failed.unwrap().0.unwrap_err().raw_os_error(), Some(libc::EBADF));
    });
}

/// A pipe is the disk: it stands still until something is written to it.
#[test]
fn a_read_that_nobody_waits_for_is_seen_and_keeps_its_buffer_until_it_ends() {
    with_ring(async || {
        let watch = Arc::<DiskWatch>::default();
        let (disk, mut goes_on) = std::io::pipe().unwrap();
        let freed = Rc::new(Cell::new(false));
        let buffer = WatchedBuffer(vec![0; 5], freed.clone());
        let read = ReadPlace::take(&watch).unwrap().read(disk, 0, buffer);
        assert!(poll_once(pin!(read)).await.is_none());
        for _ in 0..100 {
            watch.look();
            compio_runtime::time::sleep(LOOK).await;
            if watch.is_slow() {
                break;
            }
        }
        assert!(watch.is_slow());
        assert_eq!((freed.get(), watch.seen_calls()), (false, 1));
        goes_on.write_all(b"bytes").unwrap();
        for _ in 0..1000 {
            if watch.seen_calls() == 0 {
                break;
            }
            compio_runtime::time::sleep(LOOK).await;
        }
        assert_eq!((freed.get(), watch.seen_calls()), (true, 0));
    });
}

#[test]
fn the_buffer_of_a_read_that_outlives_its_ring_is_never_freed() {
    let freed = Rc::new(Cell::new(false));
    let (disk, mut goes_on) = std::io::pipe().unwrap();
    let watch = Arc::<DiskWatch>::default();
    with_ring(async || {
        let buffer = WatchedBuffer(vec![0; 5], freed.clone());
        let read = ReadPlace::take(&watch).unwrap().read(disk, 0, buffer);
        assert!(poll_once(pin!(read)).await.is_none());
        // Until it is at the disk.
        compio_runtime::time::sleep(LOOK / 10).await;
    });
    assert!(!freed.get());
    // Nobody is there to read it, or somebody is.
    let _ = goes_on.write_all(b"bytes");
}
