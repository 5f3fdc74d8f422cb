//! Changes that find an object empty at some members only: these have lost it, which the others
//! have.
//!
//! No member is asked before: each says after a change whether the object had bytes before it,
//! which costs no round trip and no flag on the way. Several first changes of a new object may be
//! under way at once, and reach each member in another order. Then one of them has found the object
//! empty here and another one there. So a change that has found it empty at some members only waits
//! for the changes of the object that began before its end: one that made the first bytes at any
//! member is among them. What they have found, all together, says who has lost the object: who was
//! found empty, while another was not.
//!
//! Invariants:
//! - Where every member made its first bytes by changes that are looked at together, none is said
//!   to have lost the object. A change of which it is not known what each of them found when it
//!   made it first, or an attempt of which begins while the object is in doubt, has nobody said so
//!   beside it. Whoever may have lost it is given all of it then ([`lacking`](super::lacking)).
//! - A member says of a change that comes once more what it found when that came first. Of one that
//!   is attempted anew, by another row, the head remembers it ([`found`](super::found)).
//! - A change that finds a lost object is not acknowledged before its member is taken out, to get
//!   all of the object from the others, or the MDS has said that the file is gone.

use crate::replication::{Here, Replication};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::ObjectId;
use glint_proto::chain::{Chain, ChainVersion, MemberState};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Pause before the MDS is asked again that does not answer.
const AGAIN: Duration = Duration::from_millis(100);
/// Forwarded changes that are remembered, with those that were given up.
const FORWARDED_MAX: usize = 1 << 14;

/// Changes of objects that heads here have under way, and at which members they have found nothing.
#[derive(Default)]
pub(crate) struct Begins {
    objects: Mutex<HashMap<ObjectId, ObjectBegin>>,
    ended: WaitList,
}

/// The same of one object.
#[derive(Default)]
struct ObjectBegin {
    next: u64,
    /// Numbers of changes that are not over, but for those that wait for others.
    under_way: BTreeSet<u64>,
    /// How many are not over.
    count: usize,
    /// Members at which it was empty.
    empty_at: BTreeSet<u16>,
    /// Somebody may have made the first bytes at a member and does not know it.
    is_unsure: bool,
}

/// A change that is under way, until it is dropped.
pub(super) struct Beginning<'a> {
    of: &'a Begins,
    object: ObjectId,
    number: u64,
    /// All members have said whether they had any bytes before it.
    is_sure: bool,
}

/// A change that a head forwards to a member here: the OST, and its number by a row.
type ForwardedChange = (u16, ChainVersion, u64);

/// What changes that heads forward find at members here, until they are answered. One that comes
/// once more, because the connection was lost meanwhile, says what it found first.
#[derive(Default)]
pub(crate) struct ForwardedChanges(Mutex<HashMap<ForwardedChange, Arc<AtomicBool>>>);

impl ForwardedChanges {
    /// Whether the object of a change was empty before it, which is to be found out.
    pub(super) fn enter(&self, change: ForwardedChange) -> Arc<AtomicBool> {
        let (_, _, sequence) = change;
        if sequence == 0 {
            // It is no change that the head has just ordered.
            return Arc::default();
        }
        let mut all = self.0.lock();
        if all.len() >= FORWARDED_MAX {
            // Most will not come again.
            all.clear();
        }
        all.entry(change).or_default().clone()
    }

    /// A change is answered, and the answer is kept.
    pub(super) fn end(&self, change: ForwardedChange) {
        self.0.lock().remove(&change);
    }
}

impl Begins {
    /// A change of an object begins: it was made nowhere yet.
    pub(super) fn enter(&self, object: ObjectId) -> Beginning<'_> {
        let mut objects = self.objects.lock();
        let its = objects.entry(object).or_default();
        let number = its.next;
        its.next += 1;
        its.count += 1;
        its.under_way.insert(number);
        Beginning { of: self, object, number, is_sure: false }
    }
}

impl Beginning<'_> {
    pub(super) fn object(&self) -> ObjectId {
        self.object
    }

    fn with<R>(&self, look: impl FnOnce(&mut ObjectBegin) -> R) -> R {
        look(self.of.objects.lock().entry(self.object).or_default())
    }

    /// Notes members at which the object was empty.
    pub(super) fn note(&self, empty_at: impl Iterator<Item = u16>) {
        let mut empty_at = empty_at.peekable();
        if empty_at.peek().is_some() {
            self.with(|its| its.empty_at.extend(empty_at));
        }
    }

    /// Says whether it is known of all members what they had before it.
    pub(super) fn is_known_of_all(&mut self, is_known: bool) {
        self.is_sure = is_known;
    }

    /// Waits for changes that began before now, and returns at which members the object was empty
    /// before all of them; `None` if that is not known.
    async fn empty_at(&self) -> Option<BTreeSet<u16>> {
        let limit = self.with(|its| {
            its.under_way.remove(&self.number);
            its.next
        });
        self.of.ended.wake();
        let are_over = || {
            self.with(|its| {
                let is_over = its.under_way.range(..limit).next().is_none();
                let is_known = !its.is_unsure && self.is_sure;
                is_over.then(|| is_known.then(|| its.empty_at.clone()))
            })
        };
        self.of.ended.until(are_over).await
    }
}

impl Drop for Beginning<'_> {
    fn drop(&mut self) {
        let mut objects = self.of.objects.lock();
        if let Some(its) = objects.get_mut(&self.object) {
            its.under_way.remove(&self.number);
            its.is_unsure |= !self.is_sure;
            its.count -= 1;
            if its.count == 0 {
                objects.remove(&self.object);
            }
        }
        drop(objects);
        self.of.ended.wake();
    }
}

/// Whether some of the members that serve, and not all of them, are among these.
pub(super) fn are_some(row: &Chain, empty_at: impl Fn(u16) -> bool) -> bool {
    let empty = row.readable().filter(|member| empty_at(*member)).count();
    empty > 0 && empty < row.readable().count()
}

/// What became of an object that a change has found empty at some members only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BegunObject {
    /// Nobody has lost it: changes that came at once have found it empty elsewhere, or its file is
    /// gone.
    Whole,
    /// Who had lost it is taken out.
    Lost,
    /// Some changes that came at once are not known of all members.
    Unknown,
}

impl Replication {
    /// A change was made by all members, and has found its object empty at some of them only. Has
    /// those taken out that have lost it, which ends what their head does.
    pub(super) async fn unless_begun_in_part<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        beginning: &Beginning<'_>,
    ) -> BegunObject {
        let Some(empty_at) = beginning.empty_at().await else { return BegunObject::Unknown };
        if !are_some(row, |member| empty_at.contains(&member)) {
            return BegunObject::Whole;
        }
        // The head comes last: nothing is done here any more once it is out.
        let others = row.readable().filter(|member| *member != head);
        let lost = others.chain([head]).filter(|member| empty_at.contains(member));
        for member in lost {
            let serves = || {
                let now = self.rows.get(row.id.target());
                now.is_some_and(|now| now.state_of(member) == Some(MemberState::Serving))
            };
            while serves() {
                if self.is_lost_by(here, (member, row), beginning.object).await.is_ok() {
                    // The file is gone.
                    return BegunObject::Whole;
                }
                if serves() {
                    host::sleep(AGAIN).await;
                }
            }
        }
        BegunObject::Lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use crate::replication::touched::UNNUMBERED;
    use futures_lite::future::{block_on, poll_once, yield_now};
    use futures_util::future::{join, join_all};
    use glint_proto::chain::{Destination, Touched};
    use glint_proto::{Bulk, ClientId, Errno, FsResult, Ino, OstReply, OstRequest};
    use std::pin::pin;
    use std::sync::atomic::Ordering;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    fn random(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) % below
    }

    /// Changes of an object under way at once, which reach each member in another order and end in
    /// any.
    #[test]
    fn first_changes_that_come_in_any_order_say_of_nobody_that_it_has_lost_the_object() {
        const CHANGES: u64 = 5;
        let row = &World::new(&[MemberState::Serving; 3]).row();
        let mut seed = 1;
        for lost in [None, Some(1)].repeat(500) {
            let (all, firsts) = (Begins::default(), [(); 3].map(|()| random(&mut seed, CHANGES)));
            let begins = &all;
            let changes = (0..CHANGES).map(|at| {
                let pauses = 1 + random(&mut seed, 9);
                // If one has lost it, the others had it before.
                let is_empty = move |member: u16| {
                    firsts[usize::from(member)] == at && lost.is_none_or(|its| its == member)
                };
                async move {
                    let mut change = begins.enter(OBJECT);
                    for _ in 0..pauses {
                        yield_now().await;
                    }
                    change.note((0..3).filter(|member| is_empty(*member)));
                    change.is_known_of_all(true);
                    if !are_some(row, is_empty) {
                        return false;
                    }
                    let empty_at = change.empty_at().await.unwrap();
                    are_some(row, |member| empty_at.contains(&member))
                }
            });
            let said = block_on(join_all(changes));
            assert_eq!(said.contains(&true), lost.is_some(), "{firsts:?}: {said:?}");
            assert!(all.objects.lock().is_empty());
        }
    }

    #[test]
    fn nothing_is_said_beside_a_change_of_which_not_all_is_known() {
        let begins = Begins::default();
        let (other, mut change) = (begins.enter(OBJECT), begins.enter(OBJECT));
        change.note([1].into_iter());
        change.is_known_of_all(true);
        {
            let mut waits = pin!(change.empty_at());
            assert!(block_on(poll_once(waits.as_mut())).is_none());
            let _later = begins.enter(OBJECT);
            drop(other);
            assert_eq!(block_on(waits), None);
        }
        drop(change);
        assert!(begins.objects.lock().is_empty());
    }

    #[test]
    fn a_change_that_comes_once_more_says_what_it_found_first() {
        let forwarded = ForwardedChanges::default();
        let chain = World::new(&[MemberState::Serving; 2]).version();
        let enter = |sequence| forwarded.enter((1, chain, sequence));
        enter(7).store(true, Ordering::Release);
        assert!(enter(7).load(Ordering::Acquire) && !enter(8).load(Ordering::Acquire));
        forwarded.end((1, chain, 7));
        assert!(!enter(7).load(Ordering::Acquire));
    }

    /// Three members, of which one has lost an object of a file, and the first has taken over.
    fn lost_by(ost: Option<u16>) -> Arc<World> {
        let world = World::new(&[MemberState::Serving; 3]);
        world.files.lock().insert(OBJECT);
        for other in (0..3).filter(|other| ost.is_some_and(|ost| ost != *other)) {
            world.write(other, OBJECT, 0, b"good");
        }
        block_on(world.server(0).take_over(world.here(0)));
        world
    }

    fn write_end(world: &World, head: u16) -> FsResult<OstReply> {
        let to = Destination { ost: head, chain: Some(world.version()) };
        let write = OstRequest::Write { object: OBJECT, offset: 4, mtime: None, kept: false };
        let (here, client) = (world.here(head), ClientId::IN_PROCESS);
        block_on(world.server(head).execute(here, client, to, write, Bulk::Out(b"!"))).reply
    }

    #[test]
    fn a_head_that_has_lost_an_object_is_taken_out_before_it_acknowledges_a_change_of_it() {
        let world = lost_by(Some(0));
        assert_eq!(write_end(&world, 0), Err(Errno::EREMCHG));
        assert!(world.row().readable().eq([1, 2]), "{:?}", world.row());
        let lacks = world.server(1).pending.list((world.version().target, 0));
        assert!(lacks.contains(&Touched::whole(OBJECT)), "{lacks:?}");
        for ost in [1, 2] {
            assert_eq!(world.read(ost, OBJECT, 0, 9), b"good!");
        }
    }

    #[test]
    fn a_head_that_has_lost_an_object_is_found_beside_a_change_of_which_not_all_is_known() {
        let world = lost_by(Some(0));
        let head = world.server(0);
        let other = async {
            let _other = head.lost.begins.enter(OBJECT);
            for _ in 0..50 {
                yield_now().await;
            }
        };
        let to = Destination { ost: 0, chain: Some(world.version()) };
        let write = OstRequest::Write { object: OBJECT, offset: 4, mtime: None, kept: false };
        let (here, client) = (world.here(0), ClientId::IN_PROCESS);
        let write = head.execute(here, client, to, write, Bulk::Out(b"!"));
        let ((), written) = block_on(join(other, write));
        assert_eq!(written.reply, Err(Errno::EREMCHG));
        assert!(world.row().readable().eq([1, 2]), "{:?}", world.row());
    }

    #[test]
    fn a_member_that_has_lost_an_object_is_taken_out_and_gets_all_of_it() {
        let world = lost_by(Some(2));
        write_end(&world, 0).unwrap();
        assert!(world.row().readable().eq([0, 1]), "{:?}", world.row());
        world.next_row(|row| row.members[2].state = MemberState::Syncing);
        (0..10).for_each(|_| _ = block_on(world.server(0).heal(world.here(0))));
        assert_eq!(world.row().readable().count(), 3);
        for ost in 0..3 {
            assert_eq!(world.read(ost, OBJECT, 0, 9), b"good!", "OST {ost}");
        }
    }

    #[test]
    fn a_member_that_has_lost_an_object_and_is_synced_gets_all_of_it() {
        let world = World::new(&[MemberState::Serving, MemberState::Serving, MemberState::Syncing]);
        world.files.lock().insert(OBJECT);
        (0..2).for_each(|ost| world.write(ost, OBJECT, 0, b"good"));
        block_on(world.server(0).take_over(world.here(0)));
        write_end(&world, 0).unwrap();
        assert_eq!(world.read(2, OBJECT, 0, 9), b"\0\0\0\0!");
        let key = (world.version().target, 2);
        for ost in [0, 1] {
            let lacks = world.server(ost).pending.list(key);
            assert!(lacks.contains(&Touched::whole(OBJECT)), "OST {ost}: {lacks:?}");
        }
        (0..10).for_each(|_| _ = block_on(world.server(0).heal(world.here(0))));
        assert_eq!(world.row().readable().count(), 3, "{:?}", world.row());
        assert_eq!(world.read(2, OBJECT, 0, 9), b"good!");
    }

    #[test]
    fn a_member_that_serves_before_heal_has_heard_of_a_lost_object_is_taken_out_again() {
        let world = World::new(&[MemberState::Serving, MemberState::Serving, MemberState::Syncing]);
        world.files.lock().insert(OBJECT);
        (0..2).for_each(|ost| world.write(ost, OBJECT, 0, b"good"));
        let (head, key) = (world.server(0), (world.version().target, 2));
        block_on(head.take_over(world.here(0)));
        head.lost.late.begin(key);
        write_end(&world, 0).unwrap();
        world.next_row(|row| row.members[2].state = MemberState::Serving);
        assert!(head.pending.list(key).is_empty());
        let found = head.lost.late.end(key);
        assert_eq!(found, [OBJECT]);
        block_on(head.take_out_late(world.here(0), key, found));
        assert!(world.row().readable().eq([0, 1]), "{:?}", world.row());
        let lacks = head.pending.list(key);
        assert!(lacks.contains(&Touched::whole(OBJECT)), "{lacks:?}");
        assert!(head.lost.late.end(key).is_empty());
    }

    #[test]
    fn a_member_that_may_have_lost_an_object_in_doubt_gets_all_of_it_with_the_change() {
        let world = World::new(&[MemberState::Serving; 3]);
        world.files.lock().insert(OBJECT);
        (0..2).for_each(|ost| world.write(ost, OBJECT, 0, b"good"));
        let (key, end) =
            ((world.version().target, 0), Touched { object: OBJECT, start: 4, end: 5 });
        block_on(world.server(0).recent.touch(key, end, UNNUMBERED)).unwrap();
        block_on(world.server(0).take_over(world.here(0)));
        write_end(&world, 0).unwrap();
        assert_eq!(world.row().readable().count(), 3, "{:?}", world.row());
        for ost in 0..3 {
            assert_eq!(world.read(ost, OBJECT, 0, 9), b"good!", "OST {ost}");
        }
    }

    #[test]
    fn nobody_is_taken_out_for_a_new_object_or_that_of_a_file_that_is_gone() {
        let world = lost_by(None);
        write_end(&world, 0).unwrap();
        assert_eq!(world.row().readable().count(), 3);
        let world = lost_by(Some(0));
        world.files.lock().clear();
        write_end(&world, 0).unwrap();
        assert_eq!(world.row().readable().count(), 3);
    }
}
