//! Locks inside one MDS: the directory (shared for creates), the name (exclusive),
//! the inode.
//!
//! Invariants:
//! - All locks of one operation are taken in one order (class, then stripe), so
//!   there is no deadlock. [`Locks::acquire`] sorts; a second call by the same
//!   operation may only ask for a higher class.
//! - A lock is given in the order it was asked for: nobody starves.
//! - Waiting parks the operation and never its thread.
//!
//! Keys are hashed onto a fixed number of stripes. Two keys on one stripe wait for
//! each other without need, which costs time and never correctness.

use glint_proto::Ino;
use glint_telemetry::{Layer, Span};
use glint_wait::WaitList;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const STRIPES_PER_CLASS: usize = 1024;
const CLASSES: usize = 4;

/// Thing that is locked. The order of the variants is the order of acquisition.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key {
    /// The shape of the tree: held by a rename that moves a directory.
    Tree,
    /// A directory: its attributes, and that it exists.
    Dir(Ino),
    /// A name in a directory, by its cookie.
    Name(Ino, u64),
    /// The attributes of an inode that is not a directory.
    Inode(Ino),
}

impl Key {
    /// Tells keys apart, but for one in 2^64.
    pub(crate) fn fingerprint(self) -> u64 {
        let (class, ino, cookie) = match self {
            Key::Tree => (0, 0, 0),
            Key::Dir(ino) => (1, ino.0, 0),
            Key::Name(ino, cookie) => (2, ino.0, cookie),
            Key::Inode(ino) => (3, ino.0, 0),
        };
        let mut bytes = [0; 17];
        bytes[0] = class;
        bytes[1..9].copy_from_slice(&ino.to_le_bytes());
        bytes[9..].copy_from_slice(&cookie.to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}

/// A lock to take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) key: Key,
    exclusive: bool,
    /// An operation that depends on the change depends on the locked thing; see
    /// [`crate::locking::commit_on_sharing`].
    pub(crate) shares: bool,
}

impl Want {
    pub(crate) fn shared(key: Key) -> Want {
        Want { key, exclusive: false, shares: false }
    }

    pub(crate) fn exclusive(key: Key) -> Want {
        Want { key, exclusive: true, shares: true }
    }

    /// A directory whose times and link count change with its names.
    pub(crate) fn parent(directory: Ino) -> Want {
        Want { key: Key::Dir(directory), exclusive: true, shares: false }
    }
}

fn stripe_of(key: Key) -> usize {
    let mix =
        |value: u64| (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % STRIPES_PER_CLASS;
    match key {
        Key::Tree => 0,
        Key::Dir(ino) => STRIPES_PER_CLASS + mix(ino.0),
        Key::Name(ino, cookie) => 2 * STRIPES_PER_CLASS + mix(ino.0 ^ cookie),
        Key::Inode(ino) => 3 * STRIPES_PER_CLASS + mix(ino.0),
    }
}

struct Waiter {
    exclusive: bool,
    granted: AtomicBool,
    turn: WaitList,
}

#[derive(Default)]
struct Stripe {
    readers: u32,
    writer: bool,
    queue: VecDeque<Arc<Waiter>>,
}

impl Stripe {
    fn admits(&self, exclusive: bool) -> bool {
        !self.writer && (!exclusive || self.readers == 0)
    }

    fn take(&mut self, exclusive: bool) {
        if exclusive {
            self.writer = true;
        } else {
            self.readers += 1;
        }
    }

    /// Gives the lock to as many from the head of the queue as it admits.
    fn grant(&mut self) {
        while let Some(head) = self.queue.front() {
            if !self.admits(head.exclusive) {
                return;
            }
            let exclusive = head.exclusive;
            if let Some(head) = self.queue.pop_front() {
                head.granted.store(true, Ordering::Release);
                head.turn.wake();
            }
            self.take(exclusive);
        }
    }

    fn release(&mut self, exclusive: bool) {
        if exclusive {
            self.writer = false;
        } else {
            self.readers -= 1;
        }
        self.grant();
    }
}

/// The lock table.
pub(crate) struct Locks {
    stripes: Box<[Mutex<Stripe>]>,
}

/// Locks held; released when dropped.
pub(crate) struct Held<'a> {
    locks: &'a Locks,
    held: SmallVec<[(usize, bool); 4]>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for &(stripe, exclusive) in self.held.iter().rev() {
            self.locks.stripes[stripe].lock().release(exclusive);
        }
    }
}

/// A place in a queue; left when the operation is dropped while it waits.
struct Place<'a> {
    stripe: &'a Mutex<Stripe>,
    waiter: Option<Arc<Waiter>>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let mut stripe = self.stripe.lock();
        if waiter.granted.load(Ordering::Acquire) {
            stripe.release(waiter.exclusive);
        } else {
            stripe.queue.retain(|other| !Arc::ptr_eq(other, &waiter));
            stripe.grant();
        }
    }
}

impl Locks {
    pub(crate) fn new() -> Locks {
        let stripes = (0..CLASSES * STRIPES_PER_CLASS).map(|_| Mutex::default());
        Locks { stripes: stripes.collect() }
    }

    /// Takes all of `wanted`, waiting in order.
    pub(crate) async fn acquire(&self, wanted: &[Want]) -> Held<'_> {
        let mut order: SmallVec<[(usize, bool); 4]> =
            wanted.iter().map(|want| (stripe_of(want.key), want.exclusive)).collect();
        // Exclusive first among equals, so that dedup keeps the stronger mode.
        order.sort_unstable_by_key(|&(stripe, exclusive)| (stripe, !exclusive));
        order.dedup_by_key(|(stripe, _)| *stripe);
        let mut held = Held { locks: self, held: SmallVec::new() };
        for (stripe, exclusive) in order {
            self.acquire_one(stripe, exclusive).await;
            held.held.push((stripe, exclusive));
        }
        held
    }

    async fn acquire_one(&self, index: usize, exclusive: bool) {
        let stripe = &self.stripes[index];
        let waiter = {
            let mut state = stripe.lock();
            if state.queue.is_empty() && state.admits(exclusive) {
                return state.take(exclusive);
            }
            let (granted, turn) = Default::default();
            let waiter = Arc::new(Waiter { exclusive, granted, turn });
            state.queue.push_back(waiter.clone());
            waiter
        };
        let _span = Span::part(Layer::LockWait);
        let mut place = Place { stripe, waiter: Some(waiter.clone()) };
        waiter.turn.until(|| waiter.granted.load(Ordering::Acquire).then_some(())).await;
        place.waiter = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use std::sync::atomic::AtomicU32;

    #[test]
    fn creates_in_one_directory_run_in_parallel() {
        let locks = Locks::new();
        let want =
            |cookie| [Want::shared(Key::Dir(Ino(1))), Want::exclusive(Key::Name(Ino(1), cookie))];
        let _one = block_on(locks.acquire(&want(1)));
        let _two = block_on(poll_once(locks.acquire(&want(2)))).expect("another name is free");
        assert!(block_on(poll_once(locks.acquire(&want(1)))).is_none(), "the same name is not");
        let rmdir = [Want::exclusive(Key::Dir(Ino(1)))];
        assert!(block_on(poll_once(locks.acquire(&rmdir))).is_none());
    }

    #[test]
    fn a_dropped_waiter_lets_the_next_one_in() {
        let locks = Locks::new();
        let dir = Key::Dir(Ino(1));
        let reader = block_on(locks.acquire(&[Want::shared(dir)]));
        let wanted = [Want::exclusive(dir)];
        let mut writer = Box::pin(locks.acquire(&wanted));
        assert!(block_on(poll_once(&mut writer)).is_none());
        drop(writer);
        block_on(poll_once(locks.acquire(&[Want::shared(dir)]))).expect("nobody waits any more");
        drop(reader);
        block_on(poll_once(locks.acquire(&wanted))).expect("free");
    }

    #[test]
    fn exclusion_holds_and_nobody_is_forgotten() {
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        let locks = Arc::new(Locks::new());
        let threads: Vec<_> = (0..4u64)
            .map(|thread| {
                let locks = locks.clone();
                std::thread::spawn(move || {
                    for i in 0..2000 {
                        let (a, b) = if thread % 2 == 0 { (1, 2) } else { (2, 1) };
                        let want = [
                            Want::exclusive(Key::Dir(Ino(a))),
                            Want::exclusive(Key::Dir(Ino(b))),
                            Want::shared(Key::Inode(Ino(i))),
                        ];
                        let held = block_on(locks.acquire(&want));
                        assert_eq!(INSIDE.fetch_add(1, Ordering::SeqCst), 0);
                        INSIDE.fetch_sub(1, Ordering::SeqCst);
                        drop(held);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
