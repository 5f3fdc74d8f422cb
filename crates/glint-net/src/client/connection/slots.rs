//! The slots of a connection, which are few: who gets one.
//!
//! Invariants:
//! - Whatever waits at the MDS for other clients, requests for data find a slot, and what waits for
//!   a lock needs none. So nobody who could let another client go on waits for a slot that is held
//!   until that has happened.
//! - Whatever streams, requests to the MDS find a slot: data never has all of them. For the same use
//!   slots are given in the order in which they were asked for.
//! - Within a slot xids rise as long as the client lives. A number of a connection that is free
//!   again goes on where it ended.

use crate::client::connection::left::LeftConnection;
use glint_proto::limits::{
    CONNECTIONS_PER_CLIENT_MAX, SLOTS_FOR_DATA, SLOTS_FOR_METADATA, SLOTS_PER_CONNECTION,
};
use glint_wait::Turns;
use std::cell::{Cell, RefCell};

/// Slots, and behind them places for requests that need none.
pub(crate) struct Slots {
    table: RefCell<SlotTable>,
    turns: Turns<Use>,
    free_places: RefCell<Vec<u16>>,
    places: Cell<u16>,
}

/// Purpose of a request that takes a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Data,
    Metadata,
}

struct SlotTable {
    free: Vec<u16>,
    /// By slot.
    uses: [Use; SLOTS_PER_CONNECTION as usize],
    /// Slots that are taken for each use.
    taken: [u16; 2],
}

impl Use {
    /// How many slots it may have.
    const fn slots_max(self) -> u16 {
        match self {
            Use::Data => SLOTS_PER_CONNECTION - SLOTS_FOR_METADATA,
            Use::Metadata => SLOTS_PER_CONNECTION - SLOTS_FOR_DATA,
        }
    }
}

impl SlotTable {
    fn take(&mut self, wanted: Use) -> Option<u16> {
        if self.taken[wanted as usize] >= wanted.slots_max() {
            return None;
        }
        let slot = self.free.pop()?;
        self.uses[usize::from(slot)] = wanted;
        self.taken[wanted as usize] += 1;
        Some(slot)
    }

    fn give(&mut self, slot: u16) {
        self.taken[self.uses[usize::from(slot)] as usize] -= 1;
        self.free.push(slot);
    }
}

impl Default for Slots {
    fn default() -> Slots {
        let table = SlotTable {
            free: (0..SLOTS_PER_CONNECTION).rev().collect(),
            uses: [Use::Data; SLOTS_PER_CONNECTION as usize],
            taken: [0; 2],
        };
        Slots {
            table: table.into(),
            turns: Turns::default(),
            free_places: RefCell::default(),
            places: Cell::new(SLOTS_PER_CONNECTION),
        }
    }
}

impl Slots {
    /// A slot.
    pub(crate) async fn take(&self, wanted: Use) -> u16 {
        self.turns.take(wanted, || self.table.borrow_mut().take(wanted)).await
    }

    /// Takes a slot, of which there are all still, for a change of data that had it before.
    pub(super) fn take_again(&self, slot: u16) {
        let mut table = self.table.borrow_mut();
        table.free.retain(|free| *free != slot);
        table.uses[usize::from(slot)] = Use::Data;
        table.taken[Use::Data as usize] += 1;
    }

    /// A place for a request that needs no slot.
    pub(crate) fn take_place(&self) -> u16 {
        self.free_places.borrow_mut().pop().unwrap_or_else(|| {
            let next = self.places.get();
            self.places.set(next + 1);
            next
        })
    }

    /// A slot, or such a place, is free again.
    pub(crate) fn give(&self, slot: u16) {
        if slot >= SLOTS_PER_CONNECTION {
            self.free_places.borrow_mut().push(slot);
            return;
        }
        self.table.borrow_mut().give(slot);
        self.turns.call(&Use::Data);
        self.turns.call(&Use::Metadata);
    }
}

/// ConnectionNumbers of the connections of a client, which their slots stand for.
#[derive(Default)]
pub(crate) struct ConnectionNumbers {
    next: u16,
    free: Vec<(u16, u64)>,
    left: Vec<LeftConnection>,
}

impl ConnectionNumbers {
    /// One, and its first xid; `None` if all are taken.
    pub(crate) fn take(&mut self) -> Option<(u16, u64)> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        let number = self.next;
        self.next += u16::from(number < CONNECTIONS_PER_CLIENT_MAX);
        (number < CONNECTIONS_PER_CLIENT_MAX).then_some((number, 1))
    }

    /// The thread that had it is gone; this is the next xid.
    pub(crate) fn give_back(&mut self, number: u16, xid: u64) {
        self.free.push((number, xid));
    }

    /// The thread is gone, and not all that has to be answered is.
    pub(super) fn leave(&mut self, connection: LeftConnection) {
        self.left.push(connection);
    }

    /// Connections that were left so, for who goes on with them.
    pub(super) fn take_left(&mut self) -> Vec<LeftConnection> {
        std::mem::take(&mut self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::pin::pin;

    fn all_of(slots: &Slots, wanted: Use) -> Vec<u16> {
        std::iter::from_fn(|| slots.take(wanted).now_or_never()).collect()
    }

    #[test]
    fn data_and_metadata_find_slots_whatever_the_others_do() {
        for (first, second) in [(Use::Data, Use::Metadata), (Use::Metadata, Use::Data)] {
            let slots = Slots::default();
            let mut taken = all_of(&slots, first);
            assert_eq!(taken.len(), usize::from(first.slots_max()));
            let others = all_of(&slots, second);
            assert_eq!(others.len(), usize::from(SLOTS_PER_CONNECTION - first.slots_max()));
            assert!(slots.take_place() >= SLOTS_PER_CONNECTION);
            others.into_iter().for_each(|slot| slots.give(slot));
            assert!(slots.take(first).now_or_never().is_none());
            slots.give(taken.pop().unwrap());
            assert!(slots.take(first).now_or_never().is_some());
        }
    }

    #[test]
    fn who_gives_a_slot_back_does_not_take_it_from_who_waits() {
        let slots = Slots::default();
        let taken = all_of(&slots, Use::Data);
        let mut waits = pin!(slots.take(Use::Data));
        assert!(waits.as_mut().now_or_never().is_none());
        slots.give(taken[0]);
        assert!(slots.take(Use::Data).now_or_never().is_none());
        assert_eq!(waits.now_or_never(), Some(taken[0]));
    }

    #[test]
    fn numbers_of_connections_are_of_one_thread_at_a_time() {
        let mut numbers = ConnectionNumbers::default();
        let all: Vec<u16> = std::iter::from_fn(|| numbers.take()).map(|(n, _)| n).collect();
        assert_eq!(all, (0..CONNECTIONS_PER_CLIENT_MAX).collect::<Vec<_>>());
        for _ in 0..70_000 {
            assert_eq!(numbers.take(), None);
        }
        numbers.give_back(3, 77);
        assert_eq!(numbers.take(), Some((3, 77)), "it goes on where it ended");
    }
}
