//! Values of virtual attributes between the two calls of getxattr(2) that read one: the first asks
//! for the length, the second has a buffer of that length. The text changes all the time, so the
//! second is answered with the value of the first.
//!
//! Invariants:
//! - A value is given only to the thread (or, where the kernel does not say it, the user) that
//!   asked for its length, once, and no later than [`SNAPSHOT_MS_MAX`] after that.
//! - At most [`SNAPSHOTS_MAX`] values of [`XATTR_VALUE_BYTES_MAX`] are kept. No user pushes out those of
//!   another who has fewer.

use crate::vfs::Caller;
use glint_proto::Ino;
use glint_proto::limits::{SNAPSHOT_MS_MAX, SNAPSHOTS_MAX, XATTR_VALUE_BYTES_MAX};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The reader of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reader {
    ino: Ino,
    name: &'static [u8],
    uid: u32,
    /// Thread; 0 if it is of another namespace than the mount, where the user stands for all.
    thread: u32,
}

impl Reader {
    pub(crate) fn new(caller: &Caller, ino: Ino, name: &'static [u8]) -> Reader {
        Reader { ino, name, uid: caller.cred.uid, thread: caller.pid }
    }
}

struct Snapshot {
    reader: Reader,
    taken: Instant,
    value: Vec<u8>,
}

/// The values that are kept, oldest first.
#[derive(Default)]
pub(crate) struct Snapshots(Mutex<VecDeque<Snapshot>>);

impl Snapshots {
    /// Keeps a value whose length the reader is told, or which its buffer is too small for.
    pub(crate) fn keep(&self, reader: Reader, value: &[u8], now: Instant) {
        let mut kept = self.0.lock();
        drop_old(&mut kept, now);
        if reader.thread != 0 {
            // A thread has one read under way.
            kept.retain(|snapshot| snapshot.reader != reader);
        }
        // The kernel hands out no longer one.
        if value.len() > XATTR_VALUE_BYTES_MAX {
            return;
        }
        if kept.len() == SNAPSHOTS_MAX {
            drop_of_busiest(&mut kept);
        }
        kept.push_back(Snapshot { reader, taken: now, value: value.to_vec() });
    }

    /// Takes the value that was kept for this reader and fits into `room` bytes. Of several, which
    /// programs of one user have, it is one of exactly this length if there is one.
    pub(crate) fn take(&self, reader: Reader, room: usize, now: Instant) -> Option<Vec<u8>> {
        let mut kept = self.0.lock();
        drop_old(&mut kept, now);
        let fits = |s: &Snapshot| s.reader == reader && s.value.len() <= room;
        let longest = kept.iter().enumerate().filter(|(_, snapshot)| fits(snapshot));
        let (at, _) = longest.max_by_key(|(_, snapshot)| snapshot.value.len())?;
        kept.remove(at).map(|snapshot| snapshot.value)
    }

    /// Drops the values of an attribute that is being set.
    pub(crate) fn forget(&self, name: &[u8]) {
        self.0.lock().retain(|snapshot| snapshot.reader.name != name);
    }
}

/// Drops the oldest value of the user that has most.
fn drop_of_busiest(kept: &mut VecDeque<Snapshot>) {
    let count = |uid| kept.iter().filter(|snapshot| snapshot.reader.uid == uid).count();
    let most = kept.iter().map(|snapshot| count(snapshot.reader.uid)).max();
    let oldest = kept.iter().position(|snapshot| Some(count(snapshot.reader.uid)) == most);
    if let Some(at) = oldest {
        kept.remove(at);
    }
}

fn drop_old(kept: &mut VecDeque<Snapshot>, now: Instant) {
    let is_old = |snapshot: &Snapshot| {
        now.saturating_duration_since(snapshot.taken) > Duration::from_millis(SNAPSHOT_MS_MAX)
    };
    while kept.front().is_some_and(is_old) {
        kept.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Cred;

    const NAME: &[u8] = b"glint.stats";

    fn reader(uid: u32, thread: u32) -> Reader {
        let cred = Cred { uid, gid: 0, groups: None };
        Reader::new(&Caller { cred, pid: thread }, Ino::ROOT, NAME)
    }

    #[test]
    fn a_user_pushes_out_nobody_who_has_fewer() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        kept.keep(reader(1, 1), b"one", now);
        for thread in 0..2 * SNAPSHOTS_MAX as u32 {
            kept.keep(reader(2, 1 + thread), b"many", now);
        }
        assert_eq!(kept.take(reader(1, 1), 3, now), Some(b"one".to_vec()));
        assert_eq!(kept.take(reader(2, 1), 4, now), None);
        assert_eq!(kept.take(reader(2, 2 * SNAPSHOTS_MAX as u32), 4, now), Some(b"many".to_vec()));
    }

    #[test]
    fn each_thread_is_given_its_own_value_once() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        kept.keep(reader(0, 1), b"one", now);
        kept.keep(reader(0, 2), b"second", now);
        assert_eq!(kept.take(reader(0, 3), 100, now), None);
        assert_eq!(kept.take(reader(7, 1), 100, now), None, "of another user");
        assert_eq!(kept.take(reader(0, 2), 6, now), Some(b"second".to_vec()));
        assert_eq!(kept.take(reader(0, 2), 6, now), None);
        assert_eq!(kept.take(reader(0, 1), 100, now), Some(b"one".to_vec()), "a larger buffer");
    }

    #[test]
    fn the_last_question_of_a_thread_counts() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        for value in [&b"a long one"[..], b"short", b"shorter"] {
            kept.keep(reader(0, 1), value, now);
        }
        assert_eq!(kept.take(reader(0, 1), 3, now), None, "the buffer is too small");
        assert_eq!(kept.take(reader(0, 1), 100, now), Some(b"shorter".to_vec()));
        assert_eq!(kept.take(reader(0, 1), 100, now), None);
    }

    #[test]
    fn threads_without_a_number_are_told_apart_by_the_length() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        for value in [&b"12345"[..], b"123", b"1234567"] {
            kept.keep(reader(0, 0), value, now);
        }
        for len in [5, 7, 3] {
            assert_eq!(kept.take(reader(0, 0), len, now).map(|value| value.len()), Some(len));
        }
    }

    #[test]
    fn values_are_few_short_and_soon_forgotten() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        for thread in 1..=SNAPSHOTS_MAX as u32 + 1 {
            kept.keep(reader(0, thread), b"value", now);
        }
        assert_eq!(kept.0.lock().len(), SNAPSHOTS_MAX);
        assert_eq!(kept.take(reader(0, 1), 5, now), None, "the oldest went");
        assert!(kept.take(reader(0, 2), 5, now).is_some());
        kept.keep(reader(0, 2), &vec![0; XATTR_VALUE_BYTES_MAX + 1], now);
        assert_eq!(kept.take(reader(0, 2), usize::MAX, now), None, "too long");
        let later = now + Duration::from_millis(SNAPSHOT_MS_MAX + 1);
        assert_eq!(kept.take(reader(0, 3), 5, later), None, "too late");
        assert!(kept.0.lock().is_empty());
    }

    #[test]
    fn setting_an_attribute_drops_its_values() {
        let (kept, now) = (Snapshots::default(), Instant::now());
        kept.keep(reader(0, 1), b"value", now);
        kept.forget(b"glint.layout");
        kept.forget(NAME);
        assert_eq!(kept.take(reader(0, 1), 5, now), None);
    }
}
