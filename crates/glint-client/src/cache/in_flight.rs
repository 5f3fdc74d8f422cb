//! Requests of a client that are under way, whose answers may bring locks, and what those answers may
//! be believed to say.
//!
//! Invariant: what an answer says is learned only if it was read under the lock that protects it: the
//! answer itself brought that, or this client held it when it asked; and if the lock was not lost since
//! then. An answer that was read before another client's change, and so without the lock, may come
//! after one that was read after it and has brought the lock.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use crate::cache::inode::CachedInode;
use glint_lock::flight::Flight;
use glint_proto::lock::{Bits, Grant};
use glint_proto::{Ino, Timestamp};
use glint_wait::Monitor;
use smallvec::SmallVec;
use std::sync::Arc;

/// What was asked: when, and the bits under which its answer was read.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(crate) at: Tick,
    /// Inodes that it is about.
    about: SmallVec<[Ino; 2]>,
    /// The inode that the answer is about: it is not forgotten, with the locks that came, before that is
    /// learned.
    kept: Option<Arc<CachedInode>>,
    /// Sorted.
    bits: SmallVec<[(Ino, Bits); 4]>,
    changed: Vec<ChangedDirectory>,
}

/// Directory whose entries a request has changed: its links then, and the time of that.
#[derive(Clone, Copy)]
pub(crate) struct ChangedDirectory {
    pub(crate) ino: Ino,
    pub(crate) nlink: u32,
    pub(crate) time: Timestamp,
}

impl Asked {
    /// A question is about to be sent.
    pub(crate) fn now() -> Asked {
        Asked::about([])
    }

    /// A question about these inodes is about to be sent.
    pub(crate) fn about(inos: impl IntoIterator<Item = Ino>) -> Asked {
        let (about, bits) = (inos.into_iter().collect(), SmallVec::new());
        Asked { at: Tick::ask(), about, kept: None, bits, changed: Vec::new() }
    }

    /// Notes the bits that are held when it is sent: its answer is read under them.
    pub(crate) fn on_sent(&mut self, cache: &Cache) {
        let held = |ino: &Ino| Some((*ino, cache.find(*ino)?.lock().held()));
        self.bits.extend(self.about.iter().filter_map(held));
        self.bits.sort_unstable_by_key(|(ino, _)| *ino);
    }

    /// A question whose answer is read under all bits of these.
    #[cfg(test)]
    pub(crate) fn under(inos: &[Ino]) -> Asked {
        let mut asked = Asked::now();
        asked.bits.extend(inos.iter().map(|ino| (*ino, Bits::ALL)));
        asked
    }

    /// The answer has brought these.
    pub(crate) fn brought(&mut self, grants: &[Grant]) {
        for grant in grants {
            match *grant {
                Grant::Bits { ino, bits, .. } => self.bits.push((ino, bits)),
                Grant::Changed { ino, nlink, time } => {
                    self.changed.push(ChangedDirectory { ino, nlink, time });
                }
                Grant::Data { .. } | Grant::Capability { .. } | Grant::Layout { .. } => {}
            }
        }
        self.bits.sort_unstable_by_key(|(ino, _)| *ino);
    }

    /// The directories whose entries the request has changed, as the answer says.
    pub(crate) fn changed(&self) -> &[ChangedDirectory] {
        &self.changed
    }

    /// Keeps an inode until the answer is learned.
    pub(crate) fn keep(&mut self, inode: Option<Arc<CachedInode>>) {
        self.kept = inode;
    }

    /// Whether the answer was read under all of these. They may have been lost since.
    pub(crate) fn is_under(&self, ino: Ino, bits: Bits) -> bool {
        let first = self.bits.partition_point(|(other, _)| *other < ino);
        let of_inode = self.bits[first..].iter().take_while(|(other, _)| *other == ino);
        of_inode.fold(Bits::NONE, |all, (_, bits)| all | *bits).contains(bits)
    }
}

/// Requests on their way, and who waits until some of them are answered.
pub(crate) type RequestsInFlight = Monitor<Flight>;

/// A request on its way; what its answer grants is known when this is dropped.
pub(crate) struct InFlightGuard<'a>(&'a Cache, u64);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.flight.change(|flight| flight.end(self.1));
    }
}

impl Cache {
    /// A request is about to be sent.
    pub(crate) fn begin_request(&self) -> InFlightGuard<'_> {
        InFlightGuard(self, self.flight.lock().begin())
    }

    /// Names this moment, for [`Cache::past`].
    pub(crate) fn sent_mark(&self) -> u64 {
        self.flight.lock().sent_mark()
    }

    /// Until all requests sent before a mark are answered.
    pub(crate) async fn past(&self, sent_mark: u64) {
        self.flight.until(|flight| flight.is_past(sent_mark).then_some(())).await;
    }

    /// Whether all requests sent before a mark are answered.
    pub(crate) fn is_past(&self, sent_mark: u64) -> bool {
        self.flight.lock().is_past(sent_mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::Valid;
    use glint_proto::{Attr, Timestamp};
    use std::time::Duration;

    const FILE: Ino = Ino(7);

    /// Both answers are about attributes, the first question is answered last.
    #[test]
    fn an_answer_that_a_recall_and_a_new_grant_overtook_is_not_believed() {
        let cache = Cache::new(Arc::default());
        let grant = |number| {
            cache.learn_grants(
                &[Grant::Bits { ino: FILE, bits: Bits::ALL, number }],
                cache.generation(),
            )
        };
        let of_size = |size| Attr { size, ..Attr::new(FILE, 0o100_644, Timestamp::default()) };
        for by_name in [false, true] {
            let learn = |size, asked| match by_name {
                true => cache.learn_name(Ino::ROOT, b"f", &of_size(size), &asked, true),
                false => cache.learn(of_size(size), &asked),
            };
            let first = Asked::under(&[FILE]);
            let inode = cache.inode(FILE);
            inode.lock().on_recall(Bits::ALL, 6, 0);
            let second = Asked::under(&[FILE]);
            grant(7);
            assert_eq!(learn(2, second).attr.size, 2);
            grant(5);
            let found = learn(1, first);
            assert_eq!((found.attr.size, found.valid.attr), (2, Valid::FOREVER));
            assert_eq!(cache.attributes(FILE).map(|found| found.attr.size), Some(2));
        }
    }

    /// Two questions of two threads, between which another client makes a name: the first was read
    /// before that, without a lock, the second brought one with another name.
    #[test]
    fn an_answer_that_was_read_without_a_lock_is_not_believed_under_a_later_one() {
        let cache = Cache::new(Arc::default());
        let (early, late) = (Asked::now(), Asked::under(&[Ino::ROOT, FILE]));
        let grants =
            [Ino::ROOT, FILE].map(|ino| Grant::Bits { ino, bits: Bits::SHARED, number: 1 });
        cache.learn_grants(&grants, cache.generation());
        cache.learn_negative(Ino::ROOT, b"free", &late);
        cache.learn_negative(Ino::ROOT, b"made", &early);
        assert!(cache.is_free(Ino::ROOT, b"free") && !cache.is_free(Ino::ROOT, b"made"));
        let of_size = |size| Attr { size, ..Attr::new(FILE, 0o100_644, Timestamp::default()) };
        cache.learn_name(Ino::ROOT, b"new", &of_size(2), &late, true);
        let found = cache.learn_name(Ino::ROOT, b"old", &of_size(1), &early, true);
        assert_eq!((found.attr.size, found.valid.entry), (2, Duration::ZERO));
        assert_eq!(cache.child(Ino::ROOT, b"old"), None);
        cache.learn(of_size(1), &early);
        assert_eq!(cache.attributes(FILE).map(|found| found.attr.size), Some(2));
        // Under a lock that was held all the time it is as good as with one.
        cache.learn_negative(Ino::ROOT, b"free too", &Asked::now());
        assert!(cache.is_free(Ino::ROOT, b"free too"));
    }

    #[test]
    fn an_answer_to_an_update_is_not_believed_under_a_later_lock() {
        let of_size = |size| Attr { size, ..Attr::new(FILE, 0o100_644, Timestamp::default()) };
        let grants = [Grant::Bits { ino: FILE, bits: Bits::SHARED, number: 1 }];
        for held in [false, true] {
            let cache = Cache::new(Arc::default());
            if held {
                cache.learn_grants(&grants, cache.generation());
            }
            let update = cache.begin_update(&[FILE]);
            cache.learn_grants(&grants, cache.generation());
            update.learn(&of_size(1));
            drop(update);
            assert_eq!(cache.attributes(FILE).is_some(), held);
        }
    }
}
