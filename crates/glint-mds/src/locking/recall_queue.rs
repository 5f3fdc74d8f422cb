//! What one client has still to return, in the order in which it was asked to.
//!
//! Invariants:
//! - A recall stays until it is answered, and is sent again to a client that listens anew.
//! - What an answer costs, and the next recalls to send, does not depend on how many wait: a client that
//!   was away for a while may owe some hundred thousand.

use glint_proto::Ino;
use glint_proto::lock::{Recall, Return};
use glint_proto::watch::Moment;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// How many times as long as others a client may take for its answer while it writes data: what it was
/// asked for may have to wait for data that it has, and is behind other data.
const WRITING_BITS: u32 = 4;
const WRITING_DATA: u32 = 16;

struct PendingRecall {
    recall: Recall,
    asked: Moment,
}

/// The recalls of one client.
#[derive(Default)]
pub(super) struct RecallQueue {
    /// By the order of asking.
    pending: BTreeMap<u64, PendingRecall>,
    /// Which of them are about an inode.
    by_inode: HashMap<Ino, SmallVec<[u64; 1]>>,
    /// The last one, and the last one that was sent to who listens.
    last: u64,
    sent: u64,
    /// Names the connection that listens.
    listening: u64,
    /// Write-back epoch of the client, if it makes changes by itself and tells them later.
    pub(super) epoch: Option<u64>,
    /// When it last wrote data, which may be what it was asked for.
    wrote: Option<Moment>,
}

impl RecallQueue {
    /// The client has to return something more.
    pub(super) fn push(&mut self, recall: Recall, asked: Moment) {
        self.last += 1;
        self.by_inode.entry(ino_of(&recall)).or_default().push(self.last);
        self.pending.insert(self.last, PendingRecall { recall, asked });
    }

    /// The client has answered.
    pub(super) fn answer(&mut self, returned: &Return) {
        let ino = match *returned {
            Return::Bits { ino, .. } | Return::Data { ino, .. } | Return::Glimpse { ino, .. } => {
                ino
            }
        };
        let Some(numbers) = self.by_inode.get_mut(&ino) else { return };
        numbers.retain(|number| {
            let answered = |pending: &PendingRecall| is_answer(&pending.recall, returned);
            let is_answered = self.pending.get(number).is_none_or(answered);
            if is_answered {
                self.pending.remove(number);
            }
            !is_answered
        });
        if numbers.is_empty() {
            self.by_inode.remove(&ino);
        }
    }

    /// The client listens on this connection from now on.
    pub(super) fn listen(&mut self, listening: u64) {
        (self.listening, self.sent) = (listening, 0);
    }

    /// Names the connection that listens.
    pub(super) fn listening(&self) -> u64 {
        self.listening
    }

    /// The next recalls to send, at most so many.
    pub(super) fn take_unsent(&mut self, most: usize) -> Vec<Recall> {
        let mut taken = Vec::new();
        for (number, pending) in self.pending.range(self.sent + 1..).take(most) {
            taken.push(pending.recall);
            self.sent = *number;
        }
        taken
    }

    /// The client writes data, perhaps because it was asked to.
    pub(super) fn note_write(&mut self, now: Moment) {
        if !self.pending.is_empty() {
            self.wrote = Some(now);
        }
    }

    /// Whether an answer is late: whether more than `limit` `is_over` since the client was asked. While
    /// it writes data it has more time for what may have to wait for that.
    pub(super) fn is_late(
        &self,
        limit: Duration,
        is_over: impl Fn(Moment, Duration) -> bool,
    ) -> bool {
        let writes = self.wrote.is_some_and(|wrote| !is_over(wrote, limit));
        let old = self.pending.values().take_while(|pending| is_over(pending.asked, limit));
        old.map(|pending| (pending, more_time(&pending.recall)))
            .any(|(pending, times)| !writes || is_over(pending.asked, times * limit))
    }
}

fn ino_of(recall: &Recall) -> Ino {
    match *recall {
        Recall::Bits { ino, .. } | Recall::Data { ino, .. } | Recall::Glimpse { ino, .. } => ino,
    }
}

/// How many times the limit a client that writes has for an answer.
fn more_time(recall: &Recall) -> u32 {
    match recall {
        Recall::Glimpse { .. } => 1,
        Recall::Bits { .. } => WRITING_BITS,
        Recall::Data { .. } => WRITING_DATA,
    }
}

fn is_answer(recall: &Recall, returned: &Return) -> bool {
    match (*recall, *returned) {
        (Recall::Bits { ino, bits, number }, Return::Bits { ino: i, bits: b, number: n }) => {
            ino == i && b.contains(bits) && n >= number
        }
        (Recall::Data { ino, number }, Return::Data { ino: i, number: n })
        | (Recall::Glimpse { ino, number }, Return::Glimpse { ino: i, number: n, .. }) => {
            ino == i && number == n
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::lock::Bits;

    const LIMIT: Duration = Duration::from_secs(10);

    fn at(seconds: u64) -> Moment {
        Moment::default() + Duration::from_secs(seconds)
    }

    fn bits(ino: u64, number: u64) -> Recall {
        Recall::Bits { ino: Ino(ino), bits: Bits::ATTR, number }
    }

    fn returned(ino: u64, number: u64) -> Return {
        Return::Bits { ino: Ino(ino), bits: Bits::ALL, number }
    }

    fn is_late(queue: &RecallQueue, now: u64) -> bool {
        queue.is_late(LIMIT, |moment, limit| moment + limit < at(now))
    }

    #[test]
    fn recalls_are_sent_in_order_and_in_parts_until_they_are_answered() {
        let mut queue = RecallQueue::default();
        (1..=10).for_each(|ino| queue.push(bits(ino, ino), at(0)));
        assert_eq!(queue.take_unsent(4), [1, 2, 3, 4].map(|ino| bits(ino, ino)));
        // One that was sent, one that was not, and one answer that is too old.
        [returned(2, 2), returned(6, 7), returned(7, 6)].iter().for_each(|r| queue.answer(r));
        assert_eq!(queue.take_unsent(9), [5, 7, 8, 9, 10].map(|ino| bits(ino, ino)));
        assert_eq!(queue.take_unsent(9), []);
        queue.push(bits(7, 11), at(0));
        assert_eq!(queue.take_unsent(9), [bits(7, 11)]);
        queue.listen(1);
        assert_eq!(queue.take_unsent(9).len(), 9);
        // Both of one inode.
        queue.answer(&returned(7, 11));
        queue.listen(2);
        assert!(!queue.take_unsent(9).iter().any(|recall| ino_of(recall) == Ino(7)));
        (1..=10).for_each(|ino| queue.answer(&returned(ino, u64::MAX)));
        assert!(queue.pending.is_empty() && queue.by_inode.is_empty());
    }

    #[test]
    fn who_writes_has_more_time_but_not_for_ever() {
        for (recall, times) in [
            (bits(1, 1), WRITING_BITS),
            (Recall::Data { ino: Ino(1), number: 1 }, WRITING_DATA),
            (Recall::Glimpse { ino: Ino(1), number: 1 }, 1),
        ] {
            let mut queue = RecallQueue::default();
            queue.note_write(at(1));
            queue.push(recall, at(5));
            assert!(!is_late(&queue, 15) && is_late(&queue, 16), "{recall:?}");
            let end = 5 + 10 * u64::from(times);
            for now in 6..end {
                queue.note_write(at(now));
                assert!(!is_late(&queue, now), "{recall:?} at {now}");
            }
            queue.note_write(at(end));
            assert!(is_late(&queue, end + 1), "{recall:?}");
        }
    }

    #[test]
    fn many_recalls_cost_no_more_each() {
        let mut queue = RecallQueue::default();
        let many = 300_000;
        (0..many).for_each(|ino| queue.push(bits(ino, 1), at(0)));
        let mut sent = 0;
        loop {
            let some = queue.take_unsent(4096);
            if some.is_empty() {
                break;
            }
            sent += some.len() as u64;
            for recall in some.iter().rev() {
                queue.answer(&returned(ino_of(recall).0, 1));
            }
        }
        assert!(sent == many && queue.pending.is_empty());
    }
}
