//! The server's table of inode bits.
//!
//! A client gets bits with the answer that told it what they protect, and keeps them until
//! somebody else changes that. Most are only ever shared: a change does not hold them, it
//! makes sure that no other client does, and that none is given while it lasts.
//!
//! Invariants:
//! - While a change of some bits goes on, only the client that changes may hold them.
//! - Where a client holds [`Bits::DELEGATION`], nobody else holds anything.
//! - Who waits to change is not overtaken: bits that are wanted are given to nobody.
//! - A grant has a number, and a recall ends all grants with lower numbers. So it
//!   does not matter in which order a client hears of the two.

use glint_proto::lock::{Bits, Recall};
use glint_proto::{ClientId, Ino};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

struct BitsHolder {
    client: ClientId,
    bits: Bits,
    /// Recalled and not yet returned.
    asked: Bits,
    /// Of the last grant.
    granted: u64,
    /// Of each bit, the number of its last recall; `None` before the first, which for most inodes never
    /// comes.
    asked_by: Option<Box<[u64; Bits::COUNT]>>,
}

impl BitsHolder {
    /// Bits that recall `number` and those before it ask for. A recall that is said again, to a
    /// client that listens anew, is answered twice, and the second answer says nothing of what was
    /// granted and recalled since the first.
    fn asked_until(&self, number: u64) -> Bits {
        let asked_by = self.asked_by.iter().flat_map(|asked_by| asked_by.iter().enumerate());
        let asked = asked_by.filter(|(_, asked_by)| **asked_by <= number);
        asked.fold(Bits::NONE, |sum, (at, _)| sum | Bits(1 << at)) & self.asked
    }
}

/// Who holds bits of an inode: hardly ever more than one.
type Holders = SmallVec<[BitsHolder; 1]>;

/// Changes of an inode that go on, and that wait, each with its bits.
#[derive(Default)]
struct BitsInChange {
    changing: SmallVec<[Bits; 2]>,
    wanted: SmallVec<[Bits; 2]>,
}

/// A recall, and the client to send it to.
pub type Message = (ClientId, Recall);

/// The table.
///
/// A server has an entry for each inode that a client has cached, so it is small; changes, of which
/// there are few at a time, are apart.
#[derive(Default)]
pub struct BitTable {
    held: HashMap<Ino, Holders>,
    changes: HashMap<Ino, BitsInChange>,
    next: u64,
}

fn union(all: &[Bits]) -> Bits {
    all.iter().fold(Bits::NONE, |sum, bits| sum | *bits)
}

fn remove_one(all: &mut SmallVec<[Bits; 2]>, bits: Bits) {
    if let Some(at) = all.iter().position(|other| *other == bits) {
        all.swap_remove(at);
    }
}

impl BitTable {
    /// Bits that others hold.
    fn held_by_others(&self, client: ClientId, ino: Ino) -> Bits {
        let holders = self.held.get(&ino).into_iter().flatten();
        let others = holders.filter(|holder| holder.client != client);
        others.fold(Bits::NONE, |sum, holder| sum | holder.bits)
    }

    /// Numbers are above this one from now on.
    pub fn number_from(&mut self, number: u64) {
        self.next = self.next.max(number);
    }

    /// Gives `client` those of `bits` that it may have. Returns them, and the grant's number.
    pub fn grant(&mut self, client: ClientId, ino: Ino, bits: Bits) -> (Bits, u64) {
        self.next += 1;
        let in_change = self.changes.get(&ino);
        let in_change = in_change.map(|all| union(&all.changing) | union(&all.wanted));
        let mut refused = in_change.unwrap_or(Bits::NONE);
        let others = self.held_by_others(client, ino);
        if others.contains(Bits::DELEGATION) {
            refused = Bits::ALL;
        } else if !others.is_empty() {
            refused |= Bits::DELEGATION;
        }
        let bits = bits & !refused;
        if bits.is_empty() {
            return (Bits::NONE, self.next);
        }
        let holders = self.held.entry(ino).or_default();
        let known = holders.iter().position(|holder| holder.client == client);
        let at = known.unwrap_or_else(|| {
            let (bits, asked) = (Bits::NONE, Bits::NONE);
            holders.push(BitsHolder { client, bits, asked, granted: 0, asked_by: None });
            holders.len() - 1
        });
        let holder = &mut holders[at];
        // Recalled bits are returned before they are granted again.
        let bits = bits & !holder.asked;
        if bits.is_empty() {
            // The client does not hear of this number, so its returns stay below it.
            return (bits, self.next);
        }
        holder.bits |= bits;
        holder.granted = self.next;
        (bits, self.next)
    }

    /// `client` begins to change what `bits` protect, unless somebody else holds them.
    pub fn begin_change(&mut self, client: ClientId, ino: Ino, bits: Bits) -> bool {
        if !self.is_free(client, ino, bits) {
            return false;
        }
        self.changes.entry(ino).or_default().changing.push(bits);
        true
    }

    /// The change is made.
    pub fn end_change(&mut self, ino: Ino, bits: Bits) {
        self.end(ino, bits, |all| &mut all.changing);
    }

    /// `client` waits to change: nobody is given these bits any more, and who holds them is
    /// asked. Ends with [`BitTable::unwant`].
    pub fn want(&mut self, client: ClientId, ino: Ino, bits: Bits, out: &mut Vec<Message>) {
        self.changes.entry(ino).or_default().wanted.push(bits);
        let holders = self.held.get_mut(&ino).into_iter().flatten();
        for holder in holders.filter(|holder| holder.client != client) {
            let ask = holder.bits & bits & !holder.asked;
            if ask.is_empty() {
                continue;
            }
            self.next += 1;
            holder.asked |= ask;
            for (at, asked_by) in holder.asked_by.get_or_insert_default().iter_mut().enumerate() {
                if ask.contains(Bits(1 << at)) {
                    *asked_by = self.next;
                }
            }
            out.push((holder.client, Recall::Bits { ino, bits: ask, number: self.next }));
        }
    }

    /// Whether nobody but `client` holds any of these.
    pub fn is_free(&self, client: ClientId, ino: Ino, bits: Bits) -> bool {
        (self.held_by_others(client, ino) & bits).is_empty()
    }

    /// Ends a wait for `bits` of `ino`.
    pub fn unwant(&mut self, ino: Ino, bits: Bits) {
        self.end(ino, bits, |all| &mut all.wanted);
    }

    fn end(
        &mut self,
        ino: Ino,
        bits: Bits,
        of: impl FnOnce(&mut BitsInChange) -> &mut SmallVec<[Bits; 2]>,
    ) {
        if let Entry::Occupied(mut all) = self.changes.entry(ino) {
            remove_one(of(all.get_mut()), bits);
            if all.get().changing.is_empty() && all.get().wanted.is_empty() {
                all.remove();
            }
        }
    }

    /// `client` returns bits: because they were recalled, or by itself, and then only what it was
    /// granted up to `number`: a later grant is on its way to it.
    pub fn return_locks(&mut self, client: ClientId, ino: Ino, bits: Bits, number: u64) {
        let Entry::Occupied(mut held) = self.held.entry(ino) else { return };
        let holders = held.get_mut();
        if let Some(at) = holders.iter().position(|holder| holder.client == client) {
            let holder = &mut holders[at];
            let returned = match holder.granted <= number {
                true => bits,
                false => bits & holder.asked_until(number),
            };
            holder.bits = holder.bits & !returned;
            holder.asked = holder.asked & !returned;
            if holder.bits.is_empty() {
                holders.swap_remove(at);
            }
        }
        if holders.is_empty() {
            held.remove();
        }
    }

    /// A client is gone. Returns the inodes it held bits of.
    pub fn evict(&mut self, client: ClientId) -> Vec<Ino> {
        let mut freed = Vec::new();
        self.held.retain(|ino, holders| {
            let before = holders.len();
            holders.retain(|holder| holder.client != client);
            if holders.len() < before {
                freed.push(*ino);
            }
            !holders.is_empty()
        });
        // What many clients had is not kept for those that are left.
        self.held.shrink_to(2 * self.held.len());
        freed
    }

    /// Bits that a client holds of an inode.
    pub fn held(&self, client: ClientId, ino: Ino) -> Bits {
        let mut holders = self.held.get(&ino).into_iter().flatten();
        holders.find(|holder| holder.client == client).map_or(Bits::NONE, |holder| holder.bits)
    }

    /// Bits that recall `number` and those before it ask a client for, and that it has not returned.
    pub fn owed(&self, client: ClientId, ino: Ino, number: u64) -> Bits {
        let mut holders = self.held.get(&ino).into_iter().flatten();
        let holder = holders.find(|holder| holder.client == client);
        holder.map_or(Bits::NONE, |holder| holder.asked_until(number))
    }

    /// Inodes with holders, changes or waiters.
    pub fn len(&self) -> usize {
        let only_changed = self.changes.keys().filter(|ino| !self.held.contains_key(ino)).count();
        self.held.len() + only_changed
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty() && self.changes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);
    const INO: Ino = Ino(9);

    /// A server has one for each inode of each client.
    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<(Ino, Holders)>() <= 56, "{}", size_of::<(Ino, Holders)>());
    }

    #[test]
    fn a_second_answer_to_a_recall_returns_nothing_that_was_granted_since() {
        let (mut table, mut out) = (BitTable::default(), Vec::new());
        let (holds, wants, ino) = (ClientId(1), ClientId(2), Ino(7));
        let mut ask = |table: &mut BitTable| {
            table.want(wants, ino, Bits::ATTR, &mut out);
            let Some((_, Recall::Bits { number, .. })) = out.pop() else { panic!("not asked") };
            number
        };
        table.grant(holds, ino, Bits::ATTR);
        let first = ask(&mut table);
        table.return_locks(holds, ino, Bits::ATTR, first);
        table.unwant(ino, Bits::ATTR);
        assert_eq!(table.grant(holds, ino, Bits::ATTR).0, Bits::ATTR);
        let second = ask(&mut table);
        table.return_locks(holds, ino, Bits::ATTR, first);
        assert!(!table.is_free(wants, ino, Bits::ATTR), "it is still used");
        let owed = [first, second].map(|number| table.owed(holds, ino, number));
        assert_eq!(owed, [Bits::NONE, Bits::ATTR]);
        table.return_locks(holds, ino, Bits::ATTR, second);
        assert_eq!(table.owed(holds, ino, second), Bits::NONE);
        assert!(table.is_free(wants, ino, Bits::ATTR));
    }

    #[test]
    fn a_change_waits_for_others_and_nobody_overtakes_it() {
        let mut table = BitTable::default();
        assert_eq!(table.grant(A, INO, Bits::ATTR | Bits::ENTRY).0, Bits::ATTR | Bits::ENTRY);
        assert!(table.begin_change(A, INO, Bits::ATTR), "its own do not hinder it");
        table.end_change(INO, Bits::ATTR);
        assert!(!table.begin_change(B, INO, Bits::ATTR));
        let mut out = Vec::new();
        table.want(B, INO, Bits::ATTR, &mut out);
        let [(A, Recall::Bits { bits: Bits::ATTR, number, .. })] = out[..] else {
            panic!("{out:?}")
        };
        assert_eq!(table.grant(A, INO, Bits::ATTR).0, Bits::NONE, "it is wanted");
        table.want(B, INO, Bits::ATTR, &mut out);
        assert_eq!(out.len(), 1, "a holder is asked once");
        table.return_locks(A, INO, Bits::ATTR, number);
        assert!(table.begin_change(B, INO, Bits::ATTR));
        assert_eq!(table.grant(A, INO, Bits::ATTR).0, Bits::NONE, "it is being changed");
        table.unwant(INO, Bits::ATTR);
        table.unwant(INO, Bits::ATTR);
        table.return_locks(A, INO, Bits::ENTRY, 0);
        assert_eq!(table.held(A, INO), Bits::ENTRY, "it was given again since");
        table.end_change(INO, Bits::ATTR);
        assert_eq!(table.grant(B, INO, Bits::ATTR).0, Bits::ATTR);
        assert_eq!(table.held(A, INO), Bits::ENTRY);
        table.evict(A);
        table.evict(B);
        assert!(table.is_empty());
    }

    proptest! {
        /// Clients are granted, asked, and answer in any order; changes see no other holder.
        #[test]
        fn no_change_beside_a_holder(steps in proptest::collection::vec((0u8..6, 0u64..3, 0u8..=127), 0..200)) {
            let mut table = BitTable::default();
            let mut changing: Vec<(ClientId, Bits)> = Vec::new();
            let mut wanted: Vec<Bits> = Vec::new();
            for (step, client, bits) in steps {
                let (client, bits) = (ClientId(client + 1), Bits(bits));
                match step {
                    0 => { table.grant(client, INO, bits); }
                    1 => if table.begin_change(client, INO, bits) { changing.push((client, bits)) },
                    2 => if let Some((_, bits)) = changing.pop() { table.end_change(INO, bits) },
                    3 => { table.want(client, INO, bits, &mut Vec::new()); wanted.push(bits) }
                    4 => table.return_locks(client, INO, bits, u64::MAX),
                    _ => { table.evict(client); }
                }
                for (changer, bits) in &changing {
                    for other in [1, 2, 3].map(ClientId) {
                        if other != *changer && !(table.held(other, INO) & *bits).is_empty() {
                            // Only if both changes had begun before either held it.
                            prop_assert!(changing.iter().any(|(c, _)| *c == other));
                        }
                    }
                }
                let holds = |client| table.held(ClientId(client), INO);
                for owner in [1, 2, 3].into_iter().filter(|c| holds(*c).contains(Bits::DELEGATION)) {
                    prop_assert!([1, 2, 3].iter().all(|c| *c == owner || holds(*c).is_empty()));
                }
            }
            for (_, bits) in changing { table.end_change(INO, bits) }
            for bits in wanted { table.unwant(INO, bits) }
            for client in [1, 2, 3] { table.evict(ClientId(client)); }
            prop_assert!(table.is_empty(), "nothing is left behind");
        }
    }
}
