//! Parts of objects that are in doubt: a head that was lost had them under way, and each copy may
//! have something else there.
//!
//! Invariants:
//! - A member answers no read of a part that it has in doubt. At the head a part is in doubt until it
//!   is the same in all copies, on stable storage; at another member until the head says that.
//! - A member that serves has in doubt at least what its head has.
//! - All members have noted as recent what is in doubt, until nothing of the chain is: so the next head
//!   finds it, whoever is lost meanwhile.
//! - What one takeover has found is not ended by word of an earlier one, also if both are by the same
//!   row: it is in the list before it is noted, and notes are forgotten under the lock of the list.
//! - What a takeover has found does not come into the list once more after word that it is decided:
//!   nobody would say that again.
//!
//! Changes do not wait: the copy of the head is what all others get, now or later, and whatever comes
//! in between is made by all. Only where the head has no object it is found out first whether it has
//! lost that ([`lost`](super::lost)).

use crate::replication::order::ranges::{RangeTurn, RangeTurns};
use glint_proto::chain::Touched;
use glint_proto::{ObjectId, OstRequest};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

/// Parts begin and end where pieces do that are copied at once.
const PIECE: u64 = crate::replication::copy::PIECE;

/// A takeover: version of the row that it is by, and its number at that head. A head takes over anew by
/// the same row if a change may be in some copies only.
pub(in crate::replication) type Takeover = (u32, u64);

/// Range of an object that a reader wants, which is empty if the size is all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::replication) struct Wanted {
    pub(in crate::replication) object: ObjectId,
    pub(in crate::replication) start: u64,
    pub(in crate::replication) end: u64,
}

/// What is in doubt, of all chains.
#[derive(Default)]
pub(in crate::replication) struct Doubts {
    state: Mutex<DoubtTable>,
    /// Whether anything is.
    is_any: AtomicBool,
    /// Turns of those who decide the same.
    turns: RangeTurns,
}

#[derive(Default)]
struct DoubtTable {
    chains: BTreeMap<u16, ChainDoubts>,
    /// Last takeover of each chain of which it was said that nothing is in doubt any more.
    ended: BTreeMap<u16, Takeover>,
    /// Lists of doubts that ever came, and takeovers of heads here.
    lists: u64,
}

/// What is in doubt of a chain.
struct ChainDoubts {
    /// The last one: what was ordered before it is in doubt.
    takeover: Takeover,
    /// Number of the last list that it comes from.
    list: u64,
    objects: BTreeMap<ObjectId, Doubt>,
    /// At the head: those of them that it had noted itself before it took over.
    of_head: BTreeSet<ObjectId>,
    /// The last one that [`Doubts::some`] has named.
    last: Option<ObjectId>,
}

/// What is in doubt of an object.
#[derive(Default)]
struct Doubt {
    /// All copies have the same size.
    is_sized: bool,
    /// In their order, and apart.
    parts: Vec<(u64, u64)>,
}

/// Something to be decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::replication) struct Undecided {
    pub(in crate::replication) object: ObjectId,
    /// Parts of the object in their order; none if its size is all.
    pub(in crate::replication) parts: Vec<Touched>,
    list: u64,
}

impl Wanted {
    /// What a request reads that changes nothing; `None` if it is about no object.
    pub(in crate::replication) fn of(request: &OstRequest) -> Option<Wanted> {
        let object = request.object()?;
        let (start, end) = match *request {
            OstRequest::Read { offset, len, .. } => (offset, offset.saturating_add(len.into())),
            OstRequest::Stat { .. } => (0, 0),
            _ => (0, u64::MAX),
        };
        Some(Wanted { object, start, end })
    }
}

impl Doubt {
    /// Parts, no longer than they have to be, that are in doubt within a range.
    fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        let start = start / PIECE * PIECE;
        let end = end.checked_next_multiple_of(PIECE).unwrap_or(u64::MAX);
        let parts = self.parts.iter().map(|(from, to)| ((*from).max(start), (*to).min(end)));
        parts.filter(|(from, to)| from < to).collect()
    }

    fn subtract(&mut self, start: u64, end: u64) {
        let cut = |(from, to): (u64, u64)| {
            [(from, to.min(start)), (from.max(end), to)].into_iter().filter(|(from, to)| from < to)
        };
        self.parts = std::mem::take(&mut self.parts).into_iter().flat_map(cut).collect();
    }

    fn is_over(&self) -> bool {
        self.is_sized && self.parts.is_empty()
    }

    fn add(&mut self, start: u64, end: u64) {
        self.is_sized = false;
        if start < end {
            self.parts.push((start, end));
            self.parts.sort_unstable();
            self.parts.dedup_by(|part, before| {
                let overlaps = part.0 <= before.1;
                if overlaps {
                    before.1 = before.1.max(part.1);
                }
                overlaps
            });
        }
    }
}

impl ChainDoubts {
    fn undecided(&self, object: ObjectId, parts: Vec<(u64, u64)>) -> Undecided {
        let part = |(start, end)| Touched { object, start, end };
        Undecided { object, parts: parts.into_iter().map(part).collect(), list: self.list }
    }
}

impl DoubtTable {
    fn add(&mut self, target: u16, takeover: Takeover, parts: &[Touched]) {
        if parts.is_empty() {
            return;
        }
        self.lists += 1;
        let list = self.lists;
        let (objects, of_head, last) = Default::default();
        let none = ChainDoubts { takeover, list, objects, of_head, last };
        let chain = self.chains.entry(target).or_insert(none);
        (chain.takeover, chain.list) = (takeover.max(chain.takeover), list);
        for part in parts {
            chain.objects.entry(part.object).or_default().add(part.start, part.end);
        }
    }
}

impl Doubts {
    /// The head of a chain, whose row has this version, has found these parts to be in doubt, and all
    /// that are; it had noted those of `own` itself. Returns what the takeover is called.
    pub(in crate::replication) fn begin(
        &self,
        target: u16,
        version: u32,
        parts: &[Touched],
        own: BTreeSet<ObjectId>,
    ) -> Takeover {
        let mut state = self.state.lock();
        state.lists += 1;
        let takeover = (version, state.lists);
        state.chains.remove(&target);
        state.add(target, takeover, parts);
        if let Some(chain) = state.chains.get_mut(&target) {
            chain.of_head = own;
        }
        self.is_any.store(!state.chains.is_empty(), Ordering::Release);
        takeover
    }

    /// The head of a chain says of some parts that they are in doubt. Returns false if that comes late:
    /// what this takeover has found is decided.
    pub(in crate::replication) fn add(
        &self,
        target: u16,
        takeover: Takeover,
        parts: &[Touched],
    ) -> bool {
        let mut state = self.state.lock();
        if state.ended.get(&target).is_some_and(|ended| *ended >= takeover) {
            return false;
        }
        state.add(target, takeover, parts);
        self.is_any.store(!state.chains.is_empty(), Ordering::Release);
        true
    }

    /// What is in doubt of that which somebody wants; `None` if nothing is.
    pub(in crate::replication) fn of(&self, target: u16, wanted: Wanted) -> Option<Undecided> {
        if !self.is_any.load(Ordering::Acquire) {
            return None;
        }
        let state = self.state.lock();
        let chain = state.chains.get(&target)?;
        let doubt = chain.objects.get(&wanted.object)?;
        let parts = doubt.within(wanted.start, wanted.end);
        let is_decided = doubt.is_sized && parts.is_empty();
        (!is_decided).then(|| chain.undecided(wanted.object, parts))
    }

    /// Whether an object is in doubt that the head, which asks, had changed itself, or was to.
    pub(in crate::replication) fn is_of_head(&self, target: u16, object: ObjectId) -> bool {
        let state = self.state.lock();
        let is_of_head = |chain: &ChainDoubts| {
            chain.objects.contains_key(&object) && chain.of_head.contains(&object)
        };
        state.chains.get(&target).is_some_and(is_of_head)
    }

    /// Some of what is in doubt of a chain, of so many objects: the next ones each time.
    pub(in crate::replication) fn some(&self, target: u16, most: usize) -> Vec<Undecided> {
        let mut state = self.state.lock();
        let Some(chain) = state.chains.get_mut(&target) else { return Vec::new() };
        let last = chain.last;
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = chain.objects.range((from, Bound::Unbounded));
        let first = chain.objects.iter().take_while(|one| last.is_some_and(|last| *one.0 <= last));
        let some = next.chain(first).take(most);
        let some: Vec<Undecided> =
            some.map(|(object, doubt)| chain.undecided(*object, doubt.parts.clone())).collect();
        chain.last = some.last().map(|one| one.object);
        some
    }

    /// Whether something of it is in doubt still, by the list that it comes from.
    pub(in crate::replication) fn is_left(&self, target: u16, undecided: &Undecided) -> bool {
        let state = self.state.lock();
        let Some(chain) = state.chains.get(&target) else { return false };
        let Some(doubt) = chain.objects.get(&undecided.object) else { return false };
        let is_in_doubt = |part: &Touched| {
            doubt.parts.iter().any(|(from, to)| *from < part.end && part.start < *to)
        };
        chain.list == undecided.list && (!doubt.is_sized || undecided.parts.iter().any(is_in_doubt))
    }

    /// Waits until nobody decides the same.
    pub(in crate::replication) async fn turn(&self, undecided: &Undecided) -> RangeTurn<'_> {
        let start = undecided.parts.first().map_or(0, |part| part.start);
        let end = undecided.parts.last().map_or(0, |part| part.end);
        self.turns.take(undecided.object, start, end).await
    }

    /// This is decided, unless it came to be in doubt once more.
    pub(in crate::replication) fn decided(&self, target: u16, undecided: &Undecided) {
        let mut state = self.state.lock();
        let Some(chain) = state.chains.get_mut(&target) else { return };
        if chain.list != undecided.list {
            return;
        }
        if let Some(doubt) = chain.objects.get_mut(&undecided.object) {
            doubt.is_sized = true;
            undecided.parts.iter().for_each(|part| doubt.subtract(part.start, part.end));
            if doubt.is_over() {
                chain.objects.remove(&undecided.object);
            }
        }
    }

    /// Whether a chain has had something in doubt, and not all members know that it has not any more.
    pub(in crate::replication) fn is_any_of(&self, target: u16) -> bool {
        self.is_any.load(Ordering::Acquire) && self.state.lock().chains.contains_key(&target)
    }

    /// Chains of which something was in doubt.
    pub(in crate::replication) fn chains(&self) -> Vec<u16> {
        match self.is_any.load(Ordering::Acquire) {
            true => self.state.lock().chains.keys().copied().collect(),
            false => Vec::new(),
        }
    }

    /// The takeover of a chain of which nothing is in doubt any more, if something was.
    pub(in crate::replication) fn are_over(&self, target: u16) -> Option<Takeover> {
        let state = self.state.lock();
        let chain = state.chains.get(&target).filter(|chain| chain.objects.is_empty())?;
        Some(chain.takeover)
    }

    /// Nothing is in doubt any more that this takeover has found, or one before it: what was noted of
    /// it is forgotten. Nothing is done if there was another takeover since.
    pub(in crate::replication) fn end(
        &self,
        target: u16,
        takeover: Takeover,
        forget: impl FnOnce(),
    ) {
        let mut state = self.state.lock();
        let ended = state.ended.entry(target).or_insert(takeover);
        *ended = takeover.max(*ended);
        if state.chains.get(&target).is_some_and(|chain| chain.takeover > takeover) {
            return;
        }
        state.chains.remove(&target);
        forget();
        self.is_any.store(!state.chains.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    const CHAIN: u16 = 0xa000;
    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    fn part(start: u64, end: u64) -> Touched {
        Touched { object: OBJECT, start, end }
    }

    fn wanted(start: u64, end: u64) -> Wanted {
        Wanted { object: OBJECT, start, end }
    }

    /// Decides what somebody wants. Returns the parts.
    fn decide(doubts: &Doubts, wanted: Wanted) -> Option<Vec<Touched>> {
        let undecided = doubts.of(CHAIN, wanted)?;
        doubts.decided(CHAIN, &undecided);
        Some(undecided.parts)
    }

    #[test]
    fn a_reader_waits_for_the_size_and_for_no_more_of_a_part_than_it_reads() {
        let doubts = Doubts::default();
        let takeover = doubts.begin(CHAIN, 2, &[part(5, u64::MAX)], BTreeSet::new());
        assert_eq!(doubts.of(CHAIN + 1, wanted(0, 9)), None);
        assert_eq!(decide(&doubts, wanted(0, 0)), Some(vec![]));
        assert_eq!(decide(&doubts, wanted(0, 0)), None);
        let middle = wanted(3 * PIECE + 1, 3 * PIECE + 2);
        assert_eq!(decide(&doubts, middle), Some(vec![part(3 * PIECE, 4 * PIECE)]));
        assert_eq!(decide(&doubts, middle), None);
        let rest = vec![part(5, 3 * PIECE), part(4 * PIECE, u64::MAX)];
        assert_eq!(decide(&doubts, wanted(0, u64::MAX)), Some(rest));
        assert_eq!(doubts.are_over(CHAIN), Some(takeover));
        let mut is_forgotten = false;
        doubts.end(CHAIN, takeover, || is_forgotten = true);
        assert!(is_forgotten && !doubts.is_any_of(CHAIN));
    }

    #[test]
    fn what_comes_to_be_in_doubt_meanwhile_stays_so() {
        let doubts = Doubts::default();
        let first = doubts.begin(CHAIN, 2, &[part(0, 9)], BTreeSet::new());
        let before = doubts.of(CHAIN, wanted(0, 9)).unwrap();
        doubts.begin(CHAIN, 3, &[part(0, 9)], BTreeSet::new());
        doubts.decided(CHAIN, &before);
        assert!(doubts.of(CHAIN, wanted(0, 9)).is_some());
        doubts.end(CHAIN, first, || panic!("it is forgotten"));
        assert!(doubts.is_any_of(CHAIN), "another head has taken over since");
    }

    #[test]
    fn word_of_a_takeover_does_not_end_what_the_next_one_by_the_same_row_has_found() {
        let (head, member) = (Doubts::default(), Doubts::default());
        let first = head.begin(CHAIN, 2, &[part(0, 9)], BTreeSet::new());
        member.add(CHAIN, first, &[part(0, 9)]);
        assert!(decide(&head, wanted(0, 9)).is_some());
        assert_eq!(head.are_over(CHAIN), Some(first));
        // A change has ended while it may be in some copies only; then come the words of before.
        let second = head.begin(CHAIN, 2, &[part(20, 30)], BTreeSet::new());
        member.add(CHAIN, second, &[part(20, 30)]);
        for doubts in [&head, &member] {
            doubts.end(CHAIN, first, || panic!("it is forgotten"));
            assert!(doubts.of(CHAIN, wanted(20, 21)).is_some());
        }
        assert_eq!(head.are_over(CHAIN), None);
        assert!(decide(&head, wanted(20, 30)).is_some());
        assert_eq!(head.are_over(CHAIN), Some(second));
        for doubts in [&head, &member] {
            doubts.end(CHAIN, second, || ());
            assert!(!doubts.is_any_of(CHAIN));
        }
    }

    #[test]
    fn what_is_said_of_a_takeover_after_its_end_comes_late() {
        let (first, second) = ((2, 1), (2, 2));
        let member = Doubts::default();
        assert!(member.add(CHAIN, second, &[part(0, 9)]));
        member.end(CHAIN, second, || ());
        for late in [first, second] {
            assert!(!member.add(CHAIN, late, &[part(0, 9)]) && !member.is_any_of(CHAIN));
        }
        member.end(CHAIN, first, || ());
        assert!(!member.add(CHAIN, second, &[part(0, 9)]));
        assert!(member.add(CHAIN, (3, 1), &[part(0, 9)]), "the next head has found it");
    }

    #[test]
    fn each_look_names_the_next_objects_and_what_is_decided_is_not_left() {
        let doubts = Doubts::default();
        let of = |ino| Touched { object: ObjectId { ino: Ino(ino), stripe: 0 }, start: 0, end: 9 };
        doubts.begin(CHAIN, 2, &[of(1), of(2), of(3)], BTreeSet::new());
        let look =
            || -> Vec<u64> { doubts.some(CHAIN, 2).iter().map(|one| one.object.ino.0).collect() };
        assert_eq!([look(), look(), look()], [[1, 2], [3, 1], [2, 3]]);
        let one = doubts.some(CHAIN, 1).remove(0);
        assert!(doubts.is_left(CHAIN, &one));
        doubts.decided(CHAIN, &one);
        assert!(!doubts.is_left(CHAIN, &one));
    }

    #[test]
    fn an_object_of_which_only_the_time_was_changed_is_in_doubt() {
        let doubts = Doubts::default();
        let takeover = doubts.begin(CHAIN, 2, &[part(u64::MAX, 0)], BTreeSet::new());
        assert_eq!(decide(&doubts, wanted(0, 9)), Some(vec![]));
        assert_eq!(doubts.are_over(CHAIN), Some(takeover));
    }
}
