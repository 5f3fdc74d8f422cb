//! The slots of a connection, which are few: who gets one.
//!
//! Invariants:
//! - Whatever waits at the MDS for other clients, requests for data find a slot, and what waits for
//!   a lock needs none. So nobody who could let another client go on waits for a slot that is held
//!   until that has happened.
//! - Within a slot xids rise as long as the client lives. A number of a connection that is free
//!   again goes on where it ended.

use glint_proto::limits::{CONNECTIONS_PER_CLIENT_MAX, SLOTS_FOR_DATA, SLOTS_PER_CONNECTION};
use glint_wait::WaitList;
use std::cell::{Cell, RefCell};

/// Slots, and behind them places for requests that need none.
pub(crate) struct Slots {
    free: RefCell<Vec<u16>>,
    /// Waiters for a slot: requests for data, and others.
    waiting: [WaitList; 2],
    free_places: RefCell<Vec<u16>>,
    places: Cell<u16>,
}

/// A request that waits for a slot. Once it has one, or is dropped, the next one may find another.
struct Turn<'a>(&'a Slots);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.call_next();
    }
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            free: RefCell::new((0..SLOTS_PER_CONNECTION).rev().collect()),
            waiting: Default::default(),
            free_places: RefCell::default(),
            places: Cell::new(SLOTS_PER_CONNECTION),
        }
    }
}

impl Slots {
    /// A slot.
    pub(crate) async fn take(&self, for_data: bool) -> u16 {
        let reserve = if for_data { 0 } else { usize::from(SLOTS_FOR_DATA) };
        let take_free = || {
            let mut free = self.free.borrow_mut();
            if free.len() > reserve { free.pop() } else { None }
        };
        if let Some(slot) = take_free() {
            return slot;
        }
        let _turn = Turn(self);
        self.waiting[usize::from(!for_data)].until(take_free).await
    }

    /// Has those look for a slot whom the free ones are enough for: data first.
    fn call_next(&self) {
        let free = self.free.borrow().len();
        let [data, others] = &self.waiting;
        if free > 0 && !data.is_empty() {
            data.wake_one();
        } else if free > usize::from(SLOTS_FOR_DATA) && !others.is_empty() {
            others.wake_one();
        }
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
        self.free.borrow_mut().push(slot);
        self.call_next();
    }
}

/// ConnectionNumbers of the connections of a client, which their slots stand for.
#[derive(Default)]
pub(crate) struct ConnectionNumbers {
    next: u16,
    free: Vec<(u16, u64)>,
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn data_finds_a_slot_whatever_waits() {
        let slots = Slots::default();
        let mut taken: Vec<u16> = std::iter::from_fn(|| slots.take(false).now_or_never()).collect();
        assert_eq!(taken.len(), usize::from(SLOTS_PER_CONNECTION - SLOTS_FOR_DATA));
        let data = slots.take(true).now_or_never().unwrap();
        assert!(slots.take_place() >= SLOTS_PER_CONNECTION);
        slots.give(data);
        assert!(slots.take(false).now_or_never().is_none());
        slots.give(taken.pop().unwrap());
        assert!(slots.take(false).now_or_never().is_some());
    }

    #[test]
    fn the_turn_of_one_that_is_dropped_is_not_lost() {
        let slots = Slots::default();
        let taken: Vec<u16> = std::iter::from_fn(|| slots.take(true).now_or_never()).collect();
        let mut data: Vec<_> = taken.iter().map(|_| Box::pin(slots.take(true))).collect();
        assert!(data.iter_mut().all(|take| take.as_mut().now_or_never().is_none()));
        let mut other = pin!(slots.take(false));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        assert!(other.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        taken.into_iter().for_each(|slot| slots.give(slot));
        assert!(!woken.0.load(Ordering::Relaxed), "data comes first");
        drop(data);
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(other.now_or_never().is_some());
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
