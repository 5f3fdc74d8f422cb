//! Changes of objects that are made apart, in the order in which they came.
//!
//! Invariants:
//! - Of changes of one object that are made [after others](Changing::after_others), each begins when
//!   those that came before it are over, whichever threads they came from and are made by.
//! - Changes of different objects do not wait for each other, but for a place among
//!   [`AT_ONCE_MAX`]: threads of the disk are left for reads and flushes, however many changes wait.
//!   Places are given in the order in which changes came to the head of their objects.
//! - A change that waits for either has begun nothing, and holds nothing that others wait for but its
//!   turn.

use crate::disk::threads::THREADS_MAX;
use glint_proto::ObjectId;
use glint_wait::{Sharded, Turns};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes of one disk that are made at once for those who wait here for their turns. Each keeps a
/// copy of its data until it is made.
const AT_ONCE_MAX: usize = THREADS_MAX / 2;
const SHARDS: usize = 64;

/// Objects of a disk that are changed apart just now.
#[derive(Clone)]
pub(super) struct Changing(Arc<ChangingObjects>);

struct ChangingObjects {
    shards: Sharded<Shard>,
    places: Places,
}

/// Some of the objects, and by how many each is changed.
#[derive(Default)]
struct Shard {
    changes: Mutex<HashMap<ObjectId, usize>>,
    /// How many there are in `changes`, as far as is known without the lock.
    objects: AtomicUsize,
    turns: Turns<ObjectId>,
}

#[derive(Default)]
struct Places {
    taken: AtomicUsize,
    turns: Turns,
}

/// A change of an object that is made apart, until it is dropped.
pub(super) struct ObjectChange {
    of: Changing,
    object: ObjectId,
    has_place: bool,
}

impl Default for Changing {
    fn default() -> Changing {
        let shards = Sharded::new(SHARDS);
        Changing(Arc::new(ChangingObjects { shards, places: Places::default() }))
    }
}

impl Changing {
    fn shard(&self, object: ObjectId) -> &Shard {
        self.0.shards.of(object.ino.0 ^ u64::from(object.stripe))
    }

    /// Whether no change of an object is made apart, nor waits for its turn: none that comes now goes
    /// before one that came earlier. Without a lock where that is so of all objects beside it.
    pub(super) fn is_free(&self, object: ObjectId) -> bool {
        let shard = self.shard(object);
        shard.turns.is_empty()
            && (shard.objects.load(Ordering::Acquire) == 0
                || !shard.changes.lock().contains_key(&object))
    }

    /// A change whose order among others somebody else sees to.
    pub(super) fn beside_others(&self, object: ObjectId) -> ObjectChange {
        let shard = self.shard(object);
        let mut changes = shard.changes.lock();
        *changes.entry(object).or_default() += 1;
        shard.objects.store(changes.len(), Ordering::Release);
        drop(changes);
        ObjectChange { of: self.clone(), object, has_place: false }
    }

    /// A change that begins when those before it are over.
    pub(super) async fn after_others(&self, object: ObjectId) -> ObjectChange {
        let shard = self.shard(object);
        let take = || {
            let mut changes = shard.changes.lock();
            match changes.entry(object) {
                Entry::Occupied(_) => return None,
                Entry::Vacant(free) => _ = free.insert(1),
            }
            shard.objects.store(changes.len(), Ordering::Release);
            Some(())
        };
        shard.turns.take(object, take).await;
        ObjectChange { of: self.clone(), object, has_place: false }
    }

    /// The same, with a place among the changes that are made at once.
    pub(super) async fn in_turn(&self, object: ObjectId) -> ObjectChange {
        let mut change = self.after_others(object).await;
        let Places { taken, turns } = &self.0.places;
        let more = |taken: usize| (taken < AT_ONCE_MAX).then_some(taken + 1);
        let take = || taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok();
        turns.take((), take).await;
        change.has_place = true;
        change
    }
}

impl Drop for ObjectChange {
    fn drop(&mut self) {
        let shard = self.of.shard(self.object);
        let mut changes = shard.changes.lock();
        if let Entry::Occupied(mut its) = changes.entry(self.object) {
            *its.get_mut() -= 1;
            if *its.get() == 0 {
                its.remove();
            }
        }
        shard.objects.store(changes.len(), Ordering::Release);
        drop(changes);
        shard.turns.call(&self.object);
        if self.has_place {
            let Places { taken, turns } = &self.of.0.places;
            taken.fetch_sub(1, Ordering::AcqRel);
            turns.call(&());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use glint_proto::Ino;
    use std::pin::pin;
    use std::thread;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    /// Whether the change comes at once.
    fn comes(change: impl Future<Output = ObjectChange>) -> Option<ObjectChange> {
        block_on(poll_once(pin!(change)))
    }

    #[test]
    fn changes_of_an_object_begin_in_the_order_in_which_they_came() {
        let changing = Changing::default();
        let first = changing.in_turn(object(1));
        let first = comes(first).unwrap();
        let (mut second, mut third) =
            (Box::pin(changing.in_turn(object(1))), Box::pin(changing.in_turn(object(1))));
        assert!(block_on(poll_once(second.as_mut())).is_none());
        assert!(block_on(poll_once(third.as_mut())).is_none());
        assert!(comes(changing.in_turn(object(2))).is_some(), "of another object");
        assert!(!changing.is_free(object(1)));
        drop(first);
        assert!(!changing.is_free(object(1)), "two have come before");
        // Neither one that looks sooner, nor one that has just come.
        assert!(block_on(poll_once(third.as_mut())).is_none());
        assert!(comes(changing.after_others(object(1))).is_none());
        let second = block_on(poll_once(second.as_mut())).unwrap();
        assert!(block_on(poll_once(third.as_mut())).is_none());
        drop(second);
        assert!(block_on(poll_once(third.as_mut())).is_some());
    }

    #[test]
    fn a_change_that_nobody_waits_for_any_more_is_passed_over() {
        let changing = Changing::default();
        let first = comes(changing.in_turn(object(1))).unwrap();
        let (mut second, mut third) =
            (Box::pin(changing.in_turn(object(1))), Box::pin(changing.in_turn(object(1))));
        assert!(block_on(poll_once(second.as_mut())).is_none());
        assert!(block_on(poll_once(third.as_mut())).is_none());
        drop(first);
        drop(second);
        let third = block_on(poll_once(third.as_mut())).unwrap();
        drop(third);
        let beside = changing.beside_others(object(1));
        assert!(comes(changing.after_others(object(1))).is_none());
        drop(beside);
        assert!(comes(changing.after_others(object(1))).is_some());
    }

    #[test]
    fn only_so_many_are_made_at_once_and_the_others_in_the_order_in_which_they_came() {
        let changing = Changing::default();
        let most = AT_ONCE_MAX as u64;
        let mut made: Vec<_> =
            (0..most).map(|n| comes(changing.in_turn(object(n))).unwrap()).collect();
        let (mut next, mut last) =
            (Box::pin(changing.in_turn(object(most))), Box::pin(changing.in_turn(object(999))));
        assert!(block_on(poll_once(next.as_mut())).is_none());
        assert!(block_on(poll_once(last.as_mut())).is_none());
        assert!(comes(changing.after_others(object(1000))).is_some(), "it needs no place");
        made.pop();
        assert!(block_on(poll_once(last.as_mut())).is_none());
        assert!(block_on(poll_once(next.as_mut())).is_some());
        assert!(block_on(poll_once(last.as_mut())).is_some());
    }

    #[test]
    fn threads_change_an_object_one_at_a_time_and_each_is_called() {
        const CHANGES: usize = 2000;
        let (changing, under_way) = (Changing::default(), [(); 3].map(|()| AtomicUsize::new(0)));
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..CHANGES {
                        let change = block_on(changing.in_turn(object(n as u64 % 3)));
                        let count = &under_way[n % 3];
                        assert_eq!(count.fetch_add(1, Ordering::AcqRel), 0);
                        thread::yield_now();
                        count.fetch_sub(1, Ordering::AcqRel);
                        drop(change);
                    }
                });
            }
        });
        let is_empty = |shard: &Shard| shard.changes.lock().is_empty();
        assert!(changing.0.shards.iter().all(is_empty));
        assert!((0..3).all(|n| changing.is_free(object(n))));
        assert_eq!(changing.0.places.taken.load(Ordering::Acquire), 0);
    }
}
