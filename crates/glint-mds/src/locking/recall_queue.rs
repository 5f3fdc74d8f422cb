//! What one client has still to return, in the order in which it was asked to.
//!
//! Invariants:
//! - A recall stays until it is answered, and is sent again to a client that listens anew.
//! - What an answer costs, the next recalls to send, and whether one is late, grows with the logarithm of
//!   how many wait: a client that was away for a while may owe some hundred thousand.

use glint_proto::Ino;
use glint_proto::lock::{Recall, Return};
use glint_proto::watch::Moment;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How many times as long as others a client may take for its answer while it writes data: what it was
/// asked for may have to wait for data that it has, and is behind other data.
const WRITING_BITS: u32 = 4;
const WRITING_DATA: u32 = 16;

struct PendingRecall {
    recall: Recall,
    asked: Moment,
}

/// What a client is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Bits,
    Data,
    Glimpse,
}

/// Inode, kind and number of a recall, or of the lock that it is about.
type About = (Ino, Kind, u64);

/// The recalls of one client.
#[derive(Default)]
pub(super) struct RecallQueue {
    /// By the order of asking.
    pending: BTreeMap<u64, PendingRecall>,
    /// The same by what they are about, and by their kinds.
    by_inode: BTreeSet<(About, u64)>,
    by_kind: BTreeSet<(Kind, u64)>,
    /// The last one, and the last one that was sent to who listens.
    last: u64,
    sent: u64,
    /// Names the connection that listens.
    listening: u64,
    /// Write-back epoch of the client, if it makes changes by itself and tells them later.
    pub(super) epoch: Option<u64>,
    /// When it last wrote data, which may be what it was asked for.
    wrote: Option<Moment>,
    /// When something held it up last that it cannot help.
    held: Option<Moment>,
}

impl RecallQueue {
    /// The client has to return something more.
    pub(super) fn push(&mut self, recall: Recall, asked: Moment) {
        self.last += 1;
        let about = about(&recall);
        self.by_inode.insert((about, self.last));
        self.by_kind.insert((about.1, self.last));
        self.pending.insert(self.last, PendingRecall { recall, asked });
    }

    /// The client has answered.
    pub(super) fn answer(&mut self, returned: &Return) {
        match *returned {
            // Bits that were granted under this number or one before.
            Return::Bits { ino, bits, number } => {
                let of_inode = ((ino, Kind::Bits, 0), 0)..=((ino, Kind::Bits, number), u64::MAX);
                let is_answered = |(_, at): &&(About, u64)| match self.pending.get(at) {
                    Some(PendingRecall { recall: Recall::Bits { bits: asked, .. }, .. }) => {
                        bits.contains(*asked)
                    }
                    _ => true,
                };
                let answered: Vec<_> =
                    self.by_inode.range(of_inode).filter(is_answered).copied().collect();
                answered.into_iter().for_each(|(about, at)| self.remove(about, at));
            }
            Return::Data { ino, number } => self.take((ino, Kind::Data, number)),
            Return::Glimpse { ino, number, .. } => self.take((ino, Kind::Glimpse, number)),
        }
    }

    /// Nobody waits for this glimpse any more.
    pub(super) fn take_glimpse(&mut self, ino: Ino, number: u64) {
        self.take((ino, Kind::Glimpse, number));
    }

    /// Takes out all about this.
    fn take(&mut self, about: About) {
        while let Some((about, at)) = self.by_inode.range((about, 0)..=(about, u64::MAX)).next() {
            self.remove(*about, *at);
        }
    }

    fn remove(&mut self, about: About, at: u64) {
        self.pending.remove(&at);
        self.by_inode.remove(&(about, at));
        self.by_kind.remove(&(about.1, at));
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

    /// The client is held up by something that it cannot help: its time begins anew.
    pub(super) fn hold(&mut self, now: Moment) {
        self.held = Some(now);
    }

    /// What answer is late, if one is: how long it may take at most, where `is_over` says whether more
    /// than a time has passed since a moment. While a client writes data it has more time for what may
    /// have to wait for that. No time counts before it was held up last.
    pub(super) fn late(
        &self,
        limit: Duration,
        is_over: impl Fn(Moment, Duration) -> bool,
    ) -> Option<Duration> {
        let is_over = |since: Moment, time| is_over(self.held.unwrap_or_default().max(since), time);
        let writes = self.wrote.is_some_and(|wrote| !is_over(wrote, limit));
        let late = [(Kind::Bits, WRITING_BITS), (Kind::Data, WRITING_DATA), (Kind::Glimpse, 1)];
        let late = late.into_iter().filter_map(|(kind, times)| {
            let (_, oldest) = self.by_kind.range((kind, 0)..=(kind, u64::MAX)).next()?;
            let allowed = if writes { limit.saturating_mul(times) } else { limit };
            is_over(self.pending.get(oldest)?.asked, allowed).then_some(allowed)
        });
        late.min()
    }
}

fn about(recall: &Recall) -> About {
    match *recall {
        Recall::Bits { ino, number, .. } => (ino, Kind::Bits, number),
        Recall::Data { ino, number } => (ino, Kind::Data, number),
        Recall::Glimpse { ino, number } => (ino, Kind::Glimpse, number),
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
        queue.late(LIMIT, |moment, limit| moment + limit < at(now)).is_some()
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
        assert!(!queue.take_unsent(9).iter().any(|recall| about(recall).0 == Ino(7)));
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
    fn who_was_held_up_has_all_of_its_time_again() {
        let mut queue = RecallQueue::default();
        queue.push(bits(1, 1), at(5));
        queue.hold(at(10));
        queue.hold(at(15));
        assert!(!is_late(&queue, 25) && is_late(&queue, 26));
        queue.answer(&returned(1, 1));
        queue.push(bits(1, 2), at(30));
        assert!(!is_late(&queue, 40) && is_late(&queue, 41), "it was held up before");
    }

    #[test]
    fn glimpses_are_answered_one_by_one_or_given_up() {
        let mut queue = RecallQueue::default();
        let ino = Ino(7);
        for number in 1..=3 {
            queue.push(Recall::Glimpse { ino, number }, at(0));
        }
        queue.push(Recall::Data { ino, number: 2 }, at(0));
        queue.answer(&Return::Glimpse { ino, number: 2, seen: None });
        queue.take_glimpse(ino, 1);
        let left = [Recall::Glimpse { ino, number: 3 }, Recall::Data { ino, number: 2 }];
        assert_eq!(queue.take_unsent(9), left);
        queue.answer(&Return::Data { ino, number: 2 });
        queue.answer(&returned(7, u64::MAX));
        assert_eq!(queue.by_inode.len(), 1);
    }

    /// It takes minutes if an answer goes through all that wait, or all of an inode.
    #[test]
    fn many_recalls_cost_no_more_each() {
        let mut queue = RecallQueue::default();
        let many = 200_000;
        (0..many).for_each(|ino| queue.push(bits(ino, 1), at(0)));
        (0..many).for_each(|number| queue.push(Recall::Glimpse { ino: Ino(1), number }, at(0)));
        let begun = std::time::Instant::now();
        let mut sent = 0;
        loop {
            let some = queue.take_unsent(4096);
            if some.is_empty() {
                break;
            }
            sent += some.len() as u64;
            for recall in some.iter().rev() {
                queue.answer(&match *recall {
                    Recall::Glimpse { ino, number } => Return::Glimpse { ino, number, seen: None },
                    _ => returned(about(recall).0.0, 1),
                });
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{sent}");
        }
        assert!(sent == 2 * many && queue.pending.is_empty());
        assert!(queue.by_inode.is_empty() && queue.by_kind.is_empty());
    }
}
