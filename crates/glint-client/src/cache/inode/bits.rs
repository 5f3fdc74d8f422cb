//! Bits that a client holds on an inode, and from when on answers may be believed.
//!
//! Invariants:
//! - The mark of what was sent never falls, and is no older than the last number that was heard of,
//!   of bits or of data: who forgets the inode when all requests before the mark are answered
//!   forgets no number that tells a late answer from a new one.
//! - An answer says something of the names that lead to an inode only if it was read under ENTRY, that
//!   is held, and was not lost since it was asked for: it may have been given to others, and back.

use crate::cache::attrs::Tick;
use crate::cache::inode::InodeState;
use glint_lock::held::HeldBits;
use glint_proto::lock::Bits;

/// Bits on one inode, and what was heard of them when.
#[derive(Default)]
pub(crate) struct InodeBits {
    held: HeldBits,
    /// Requests sent before this may bring locks under numbers below the last one heard of; see
    /// [`Flight`](glint_lock::flight::Flight).
    sent_mark: u64,
    /// When ENTRY was lost last.
    entry_lost: Tick,
}

impl InodeBits {
    /// Those that may be used.
    pub(crate) fn held(&self) -> Bits {
        self.held.bits()
    }

    /// Whether all of these may be used.
    pub(crate) fn has(&self, bits: Bits) -> bool {
        self.held.has(bits)
    }

    /// The highest number of a grant that has come.
    pub(crate) fn granted(&self) -> u64 {
        self.held.granted()
    }

    /// Requests that must be answered before the inode is forgotten: those sent before this mark.
    pub(crate) fn sent_mark(&self) -> u64 {
        self.sent_mark
    }

    /// Whether the answer to what was asked then, read under ENTRY, says which names lead to the inode.
    pub(crate) fn believes_names(&self, asked: Tick) -> bool {
        self.held.has(Bits::ENTRY) && !self.lost_names_since(asked)
    }

    /// Whether ENTRY was lost since this was asked.
    pub(crate) fn lost_names_since(&self, asked: Tick) -> bool {
        !self.entry_lost.is_before(asked)
    }

    /// A number of a lock was heard of, and the mark was taken after that.
    pub(crate) fn on_number(&mut self, sent_mark: u64) {
        // Marks that threads have taken come here in any order.
        self.sent_mark = self.sent_mark.max(sent_mark);
    }

    /// A grant has come. Returns what of it may be used, and which of that was not held before.
    pub(crate) fn on_grant(&mut self, bits: Bits, number: u64, sent_mark: u64) -> (Bits, Bits) {
        self.on_number(sent_mark);
        let before = self.held.bits();
        let usable = self.held.grant(bits, number);
        (usable, usable & !before)
    }

    /// Bits are recalled.
    pub(crate) fn on_recall(&mut self, bits: Bits, number: u64, sent_mark: u64) {
        self.on_number(sent_mark);
        self.held.recall(bits, number);
        self.note_lost(bits);
    }

    /// The servers may give all bits to others, and this client is not asked.
    pub(crate) fn on_silence(&mut self) {
        self.held.drop_all();
        self.note_lost(Bits::ALL);
    }

    /// The servers have forgotten all bits, and count numbers of another run perhaps.
    pub(crate) fn on_locks_forgotten(&mut self) {
        self.held = HeldBits::default();
        self.note_lost(Bits::ALL);
    }

    /// Returns all bits, as the inode is forgotten: the value is what the servers are to be told.
    pub(crate) fn return_all(&mut self) -> Option<(Bits, u64)> {
        self.note_lost(Bits::ALL);
        self.held.return_all()
    }

    fn note_lost(&mut self, bits: Bits) {
        if bits.contains(Bits::ENTRY) {
            self.entry_lost = Tick::now();
        }
    }
}

impl InodeState {
    /// Believes no answer about the attributes that was asked for before this.
    pub(crate) fn doubt_answers(&mut self) {
        self.attrs.disturb();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_lock::flight::Flight;
    use proptest::prelude::*;

    /// Requests of one inode, and what is heard of its bits.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask,
        Answer(usize),
        TakeMark,
        Number(usize),
        Grant(Bits, usize),
        Recall(Bits, usize),
        Silence,
        Forgotten,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let some = prop_oneof![Just(Bits::ENTRY), Just(Bits::ATTR), Just(Bits::ALL)];
        let step = prop_oneof![
            3 => Just(Step::Ask),
            2 => (0usize..8).prop_map(Step::Answer),
            2 => Just(Step::TakeMark),
            1 => (0usize..8).prop_map(Step::Number),
            3 => (some.clone(), 0usize..8).prop_map(|(bits, mark)| Step::Grant(bits, mark)),
            2 => (some, 0usize..8).prop_map(|(bits, mark)| Step::Recall(bits, mark)),
            1 => Just(Step::Silence),
            1 => Just(Step::Forgotten),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Marks come in any order, as threads have taken them.
        #[test]
        fn late_answers_are_told_from_new_ones(steps in steps()) {
            let (mut bits, mut flight, mut number) = (InodeBits::default(), Flight::default(), 0);
            // Requests under way, and when they were asked.
            let mut under_way: Vec<(u64, Tick)> = Vec::new();
            let mut marks = vec![0];
            // Of the requests under way, those that were sent before a number was heard of, or
            // before ENTRY was lost.
            let (mut before_number, mut before_loss) = (Vec::new(), Vec::new());
            let mut held = Bits::NONE;
            for step in steps {
                let mut heard = None;
                let mut lost = Bits::NONE;
                number += 1;
                match step {
                    Step::Ask => under_way.push((flight.begin(), Tick::ask())),
                    Step::Answer(at) if at < under_way.len() => {
                        let (sent, asked) = under_way.remove(at);
                        flight.end(sent);
                        before_number.retain(|other| *other != asked);
                    }
                    Step::Answer(_) => {}
                    Step::TakeMark => marks.push(flight.sent_mark()),
                    Step::Number(at) => {
                        heard = Some(marks[at % marks.len()]);
                        heard.into_iter().for_each(|mark| bits.on_number(mark));
                    }
                    Step::Grant(some, at) => {
                        let mark = marks[at % marks.len()];
                        let (usable, new) = bits.on_grant(some, number, mark);
                        prop_assert_eq!((usable, new), (some, some & !held));
                        held |= some;
                        heard = Some(mark);
                    }
                    Step::Recall(some, at) => {
                        let mark = marks[at % marks.len()];
                        bits.on_recall(some, number, mark);
                        (heard, lost) = (Some(mark), some);
                    }
                    Step::Silence => {
                        bits.on_silence();
                        lost = Bits::ALL;
                    }
                    Step::Forgotten => {
                        bits.on_locks_forgotten();
                        lost = Bits::ALL;
                    }
                }
                held = held & !lost;
                if lost.contains(Bits::ENTRY) {
                    before_loss.extend(under_way.iter().map(|(_, asked)| *asked));
                }
                if let Some(mark) = heard {
                    let sent_before = under_way.iter().filter(|(sent, _)| *sent < mark);
                    before_number.extend(sent_before.map(|(_, asked)| *asked));
                }
                prop_assert_eq!(held.contains(Bits::ENTRY), bits.has(Bits::ENTRY));
                prop_assert!(before_number.is_empty() || !flight.is_past(bits.sent_mark()));
                for (_, asked) in &under_way {
                    let is_so = bits.has(Bits::ENTRY) && !before_loss.contains(asked);
                    prop_assert_eq!(bits.believes_names(*asked), is_so);
                }
            }
        }
    }
}
