//! Tests of the locks that a client holds, in single steps.

use super::*;
use glint_proto::lock::Bits;

#[test]
fn an_old_grant_brings_nothing_back() {
    let mut held = HeldBits::default();
    assert!(held.grant(Bits::ATTR | Bits::ENTRY, 5).contains(Bits::ATTR));
    assert_eq!(held.recall(Bits::ATTR, 8), Bits::ATTR);
    assert_eq!(held.grant(Bits::ATTR | Bits::NEGATIVE, 7), Bits::NEGATIVE);
    assert!(!held.has(Bits::ATTR));
    assert_eq!(held.grant(Bits::ATTR, 9), Bits::ATTR);
    assert_eq!(held.recall(Bits::OPEN, 10), Bits::NONE);
}

#[test]
fn pages_are_filled_while_they_are_waited_for_and_not_after_that() {
    let mut held = HeldData::default();
    let lock = DataLock { number: 3, range: Range::ALL, write: false };
    let fill = |at| Use::Fill(Range::of(at, 1));
    let id = held.add(lock, false).unwrap();
    assert_eq!(held.begin(Range::ALL, false, fill(0)), Some(id));
    assert!(held.begin(Range::of(0, 9), true, Use::Call).is_none(), "it is to read");
    assert_eq!(held.recall(3), Some(id));
    assert!(held.begin(Range::of(0, 9), false, Use::Call).is_none());
    assert!(held.begin(Range::ALL, false, fill(0)).is_none() && held.is_draining());
    assert_eq!(held.drain(id), Some(Drain::Forget(Range::ALL)), "whoever uses it");
    assert!(held.drain(id).is_none(), "somebody does it");
    assert_eq!(held.begin(Range::ALL, false, fill(8)), Some(id));
    assert!(held.begin(Range::ALL, true, Use::Bring).is_none());
    held.forgot(id);
    assert!(held.begin(Range::ALL, false, fill(4)).is_none(), "nobody waits for it");
    assert_eq!(held.drain(id), Some(Drain::Forget(Range::of(8, 1))), "it was filled again");
    assert!(held.begin(Range::ALL, false, fill(4)).is_none(), "it is elsewhere");
    held.forgot(id);
    assert!(held.drain(id).is_none(), "it is used");
    assert!(!held.end(id) && held.end(id));
    assert_eq!(held.drain(id), Some(Drain::Closed));
    assert!(held.begin(Range::ALL, false, fill(0)).is_none());
    assert_eq!(held.remove(id), Some(3));
    assert_eq!(held.drain(id), Some(Drain::Gone));
    assert!(held.recall(4).is_none(), "it is on its way");
    let late = held.add(DataLock { number: 4, ..lock }, true).unwrap();
    assert_eq!(held.begin(Range::ALL, false, fill(0)), Some(late), "whom it was given to");
    assert!(!held.end(late) && held.begin(Range::ALL, false, fill(1)).is_none());
    assert_eq!(held.drain(late), Some(Drain::Forget(Range::ALL)));
}

#[test]
fn pages_that_are_put_into_the_kernel_go_with_the_lock() {
    let mut held = HeldData::default();
    let lock = DataLock { number: 3, range: Range::ALL, write: true };
    let id = held.add(lock, true).unwrap();
    held.begin_change(id);
    assert!(held.begin(Range::ALL, false, Use::Store).is_none(), "somebody may write just now");
    held.end_change(id);
    assert!(!held.end(id));
    assert_eq!(held.begin(Range::ALL, false, Use::Store), Some(id));
    assert!(held.is_storing() && !held.is_unused());
    assert_eq!(held.recall(3), Some(id));
    assert!(held.begin(Range::ALL, false, Use::Store).is_none(), "it is recalled");
    assert_eq!(held.drain(id), Some(Drain::Forget(Range::ALL)));
    held.forgot(id);
    assert!(held.drain(id).is_none() && held.is_draining(), "some are still to come");
    let fill = Use::Fill(Range::of(0, 1));
    assert_eq!(held.begin(Range::ALL, false, fill), Some(id), "storing may wait for it");
    assert!(!held.end(id));
    assert_eq!(held.drain(id), Some(Drain::Forget(Range::ALL)));
    // They come while others are forgotten.
    held.stored(id);
    assert!(!held.is_storing());
    held.forgot(id);
    assert_eq!(held.drain(id), Some(Drain::Forget(Range::ALL)));
    held.forgot(id);
    assert_eq!(held.drain(id), Some(Drain::Closed));
}

#[test]
fn pages_are_put_into_the_kernel_while_others_read_and_not_while_anybody_may_write() {
    let mut held = HeldData::default();
    let lock = DataLock { number: 3, range: Range::ALL, write: true };
    let id = held.add(lock, false).unwrap();
    let fill = Use::Fill(Range::of(0, 1));
    assert_eq!(held.begin(Range::ALL, false, fill), Some(id));
    assert_eq!(held.begin(Range::ALL, false, Use::Store), Some(id));
    assert_eq!(held.begin(Range::ALL, false, Use::Store), Some(id), "of other pages");
    assert_eq!(held.begin(Range::of(0, 9), true, Use::Call), Some(id), "it waits for both");
    held.begin_change(id);
    held.stored(id);
    assert!(held.is_storing() && held.begin(Range::ALL, false, Use::Store).is_none());
    held.stored(id);
    assert!(!held.is_storing() && held.begin(Range::ALL, false, Use::Store).is_none());
    // The lock that takes its place is used by both, too.
    held.add(DataLock { number: 4, ..lock }, false).unwrap();
    assert!(held.begin(Range::ALL, false, Use::Store).is_none());
    held.end_change(id);
    assert!(!held.end(id) && held.begin(Range::ALL, false, Use::Store).is_some(), "one reads");
}

/// The servers take both for one lock, and so does who changes the data: it waits.
#[test]
fn a_lock_that_takes_the_place_of_one_with_pages_on_their_way_has_them() {
    let mut held = HeldData::default();
    let lock = DataLock { number: 3, range: Range::ALL, write: false };
    let id = held.add(lock, false).unwrap();
    assert_eq!(held.begin(Range::ALL, false, Use::Store), Some(id));
    let joined = held.add(DataLock { number: 4, write: true, ..lock }, true).unwrap();
    held.begin_change(joined);
    assert!(held.is_storing());
    held.stored(id);
    assert!(!held.is_storing() && held.begin(Range::ALL, false, Use::Store).is_none());
    held.end_change(joined);
    assert!(!held.end(joined) && held.begin(Range::ALL, false, Use::Store).is_some());
}

#[test]
fn a_restart_of_the_servers_does_not_lose_who_uses_a_lock() {
    let mut held = HeldData::default();
    let lock = DataLock { number: 7, range: Range::ALL, write: true };
    let used = held.add(lock, true).unwrap();
    assert_eq!(held.lose(), [lock]);
    assert!(held.begin(Range::ALL, true, Use::Call).is_none());
    // The servers count from the beginning.
    held.found(DataLock { number: 1, ..lock });
    assert_eq!(held.recall(1), Some(used));
    assert!(held.idle(used).is_none(), "it is still used");
    assert!(held.end(used) && held.idle(used).is_some());
    held.lose();
    assert_eq!(held.remove(used), None, "there is nobody to tell");
    assert!(!held.end(used));
    held.add(lock, false);
    held.lose();
    held.forget_lost();
    assert!(held.is_empty());
}

#[test]
fn locks_that_touch_are_one_for_all_who_use_them() {
    let mut held = HeldData::default();
    let part = |number, start, end| DataLock { number, range: Range { start, end }, write: true };
    let (a, b) = (held.add(part(1, 0, 4), true).unwrap(), held.add(part(2, 8, 12), true).unwrap());
    // The servers join all three.
    let all = held.add(part(3, 0, 12), true).unwrap();
    assert_eq!((all, held.locks.len(), held.locks[0].users), (a, 1, 3));
    assert_eq!(held.recall(3), Some(a));
    assert!(!held.end(b) && !held.end(a) && held.idle(a).is_none());
    assert!(held.end(all) && held.drain(a) == Some(Drain::Closed));
    assert_eq!(held.remove(a), Some(3));
    assert_eq!(held.add(part(2, 8, 12), false), None, "an answer that comes late");
    assert!(held.is_empty());
}
