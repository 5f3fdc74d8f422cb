//! Requests of a client that are under way, whose answers may bring locks, and what those answers may
//! be believed to say.
//!
//! Invariant: what an answer says is learned only if it was read under the lock that protects it: the
//! answer itself brought that, or this client held it when it asked; and if the lock was not lost since
//! then. An answer that was read before another client's change, and so without the lock, may come
//! after one that was read after it and has brought the lock.

use crate::cache::Cache;
use crate::cache::attrs::Tick;
use glint_lock::flight::Flight;
use glint_proto::Ino;
use glint_proto::lock::{Bits, Grant};
use glint_wait::Monitor;
use smallvec::SmallVec;

/// What was asked: when, and the bits under which its answer was read.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) at: Tick,
    /// Sorted once the answer is here.
    bits: SmallVec<[(Ino, Bits); 4]>,
}

impl Asked {
    /// A question is about to be sent.
    pub(crate) fn now() -> Asked {
        Asked { at: Tick::ask(), bits: SmallVec::new() }
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
        let bits = grants.iter().filter_map(|grant| match *grant {
            Grant::Bits { ino, bits, .. } => Some((ino, bits)),
            _ => None,
        });
        self.bits.extend(bits);
        self.bits.sort_unstable_by_key(|(ino, _)| *ino);
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
    /// A question is about to be sent of inodes some of whose bits are held.
    pub(crate) fn ask_of(&self, inos: impl IntoIterator<Item = Ino>) -> Asked {
        let mut asked = Asked::now();
        let held = |ino| Some((ino, self.find(ino)?.lock().held()));
        asked.bits.extend(inos.into_iter().filter_map(held));
        asked.bits.sort_unstable_by_key(|(ino, _)| *ino);
        asked
    }

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
