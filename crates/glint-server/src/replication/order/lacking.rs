//! Objects of which members have made a change, and had nothing before that the head had: they may
//! have lost them.
//!
//! Where [`begins`](super::begins) says for sure that a member which serves has lost one, that is
//! taken out. Where it cannot tell that from a new object of which the member lacked the begin, the
//! head gives it the whole object before the change is acknowledged; or, where the head itself may
//! have lost it, looks whether the others have something of it that no change under way has made.
//! It is looked at once all have made the change by the newest row, and by what they had [before
//! the first attempt](super::found): a member may be synced at that one and serve at the next.
//!
//! Heal gives a member that is synced what it lacks as others know it, and nobody else knows of a
//! lost object. A change makes it anew there, with a hole in the place of the rest, and the member
//! would serve with that: so heal is to give it whole. If it was not there because heal has not
//! come to it yet, that costs a little. The member may begin to serve just then: it is taken out
//! again ([`LateFinds`]).

use super::begins::{BegunObject, are_some};
use super::found::{ChangeFindings, FoundByChange};
use crate::replication::touched::{Key, UNNUMBERED};
use crate::replication::{CopyFault, Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::ObjectId;
use glint_proto::chain::{Chain, Member, MemberState, Touched};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Objects that changes have found lost at members, each while heal makes a step after which the
/// member may serve.
#[derive(Default)]
pub(crate) struct LateFinds(Mutex<HashMap<Key, Vec<ObjectId>>>);

impl LateFinds {
    /// Heal makes such a step from now on.
    pub(in crate::replication) fn begin(&self, key: Key) {
        self.0.lock().insert(key, Vec::new());
    }

    /// It has made it. Returns what was found meanwhile.
    pub(in crate::replication) fn end(&self, key: Key) -> Vec<ObjectId> {
        self.0.lock().remove(&key).unwrap_or_default()
    }

    fn note(&self, key: Key, object: ObjectId) {
        let mut all = self.0.lock();
        if let Some(found) = all.get_mut(&key).filter(|found| !found.contains(&object)) {
            found.push(object);
        }
    }
}

fn serves(row: &Chain, member: u16) -> bool {
    row.state_of(member) == Some(MemberState::Serving)
}

impl Replication {
    /// A change was made by all members, which have found different things. Has those taken out
    /// that have surely lost its object, and heal give it to those that do not serve and may have.
    /// Returns those that serve and may have, for [`Replication::give_whole`]; `None` if the chain
    /// is another one by now.
    pub(super) async fn unless_lost<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        finding: &ChangeFindings<'_>,
    ) -> Option<Vec<u16>> {
        let may_lack = finding.found.may_lack(head, row);
        let is_empty = |member| finding.found.empty_at().any(|its| its == member);
        let (mut serving, others): (Vec<u16>, Vec<u16>) =
            may_lack.into_iter().partition(|member| serves(row, *member));
        let begun = match finding.is_known_of_all(row) && are_some(row, is_empty) {
            true => self.unless_begun_in_part(here, (head, row), &finding.beginning).await,
            false => BegunObject::Unknown,
        };
        match begun {
            BegunObject::Whole => serving.clear(),
            BegunObject::Lost => return None,
            BegunObject::Unknown if is_empty(head) => {
                for member in row.readable().filter(|member| !is_empty(*member)) {
                    let (own_and_its, all) = ((head, (member, row)), u64::MAX);
                    let object = finding.object();
                    self.unless_rest_lost_here(here, own_and_its, object, all).await.ok()?;
                }
                let is_synced = |one: &&Member| one.state == MemberState::Syncing;
                for member in row.members.iter().filter(is_synced).map(|member| member.ost) {
                    // It lacks nothing. Heal is to come to the object, and takes from the member what
                    // others have lost.
                    let none = Touched { object: finding.object(), start: u64::MAX, end: 0 };
                    if !is_empty(member) {
                        self.tell_pending(here, row, member, &[none]).await.ok()?;
                    }
                }
            }
            BegunObject::Unknown => {}
        }
        let is_noted = self.has_heal_give(here, row, finding.object(), others).await;
        // Who is synced by now has not made it.
        let now = self.rows.get(row.id.target());
        let is_same = is_noted && now.is_some_and(|now| now.version == row.version);
        is_same.then_some(serving)
    }

    /// These members may have lost an object, which the head has: gives it to those that serve,
    /// and has heal give it to others.
    pub(super) async fn give_whole<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, target): (u16, u16),
        object: ObjectId,
        members: Vec<u16>,
    ) {
        let whole = [Touched::whole(object)];
        for member in members {
            if let Some(row) = self.rows.get(target).filter(|row| serves(row, member))
                && row.head() == Some(head)
                && self.copy(here, (head, &row), member, (object, &whole), None).await.is_ok()
            {
                continue;
            }
            self.note_whole((target, member), object);
            self.take_out_late(here, (target, member), vec![object]).await;
        }
    }

    /// A change has come to an end before all had made it, perhaps because there is another head.
    /// Has those taken out that serve and may have lost its object, and heal give it to others.
    pub(super) async fn leave_to_others<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, target): (u16, u16),
        object: ObjectId,
        found: FoundByChange,
    ) {
        let Some(row) = self.rows.get(target) else { return };
        let may_lack = found.may_lack(head, &row);
        let (serving, others): (Vec<u16>, Vec<u16>) =
            may_lack.into_iter().partition(|member| serves(&row, *member));
        if !self.has_heal_give(here, &row, object, others).await {
            tracing::debug!(%object, "a lost object is left to heal");
        }
        for member in serving {
            // If that cannot be said now, the object is in doubt, and is looked at once more.
            if self.is_lost_by(here, (member, &row), object).await.is_err() {
                tracing::debug!(%object, ost = member, "an object may have been lost");
            }
        }
    }

    /// The same of one for which nobody waits any more. (Of those that serve the object is in
    /// doubt.)
    pub(super) fn leave_to_heal(&self, target: u16, head: u16, finding: &ChangeFindings<'_>) {
        let Some(row) = self.rows.get(target) else { return };
        let may_lack = finding.found.may_lack(head, &row);
        for member in may_lack.into_iter().filter(|member| !serves(&row, *member)) {
            self.note_whole((target, member), finding.object());
        }
    }

    /// Notes that a member lacks an object, also if heal is about to say that it lacks nothing.
    fn note_whole(&self, key: Key, object: ObjectId) {
        self.pending.note(key, std::iter::once(Touched::whole(object)), UNNUMBERED);
        self.lost.late.note(key, object);
    }

    /// Another member says what a member lacks.
    pub(in crate::replication) fn note_lacking(&self, key: Key, lacking: Vec<Touched>) {
        let wholes = lacking.iter().filter(|part| **part == Touched::whole(part.object));
        let wholes: Vec<ObjectId> = wholes.map(|part| part.object).collect();
        self.pending.note(key, lacking.into_iter(), UNNUMBERED);
        wholes.into_iter().for_each(|object| self.lost.late.note(key, object));
    }

    /// Has heal give all of an object to these members, which do not serve. Returns whether that is
    /// so still.
    async fn has_heal_give<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        object: ObjectId,
        members: Vec<u16>,
    ) -> bool {
        let whole = Touched::whole(object);
        for member in members {
            let key = (row.id.target(), member);
            if self.pending.parts_of(key, object).contains(&whole) {
                continue;
            }
            self.note_whole(key, object);
            if self.tell_pending(here, row, member, &[whole]).await.is_err() {
                return false;
            }
            if self.rows.get(key.0).is_none_or(|now| serves(&now, member)) {
                self.take_out_late(here, key, vec![object]).await;
                return false;
            }
        }
        true
    }

    /// A member may serve by now, and these objects were found lost there before that. If it does,
    /// it is taken out, to get all of them.
    pub(in crate::replication) async fn take_out_late<D: Disk>(
        &self,
        here: Here<'_, D>,
        (target, member): Key,
        objects: Vec<ObjectId>,
    ) {
        for object in objects {
            let repaired = self.repair(here, target, (member, object), CopyFault::Lacks).await;
            if let Err(errno) = repaired {
                // Most often it is synced still, and heal knows of it.
                tracing::debug!(%object, ost = member, %errno, "a lost object is left to heal");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use futures_lite::future::block_on;
    use glint_proto::chain::Destination;
    use glint_proto::{Bulk, ClientId, Errno, FsResult, Ino, OstRequest};
    use std::sync::Arc;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
    const SERVING: MemberState = MemberState::Serving;
    const SYNCING: MemberState = MemberState::Syncing;
    const OFFLINE: MemberState = MemberState::Offline;

    /// Three members in these states, of which the last one has lost an object, and the first has
    /// taken over.
    fn lost_by_last(states: [MemberState; 3]) -> Arc<World> {
        let world = World::new(&states);
        world.files.lock().insert(OBJECT);
        (0..2).for_each(|ost| world.write(ost, OBJECT, 0, b"good"));
        block_on(world.server(0).take_over(world.here(0)));
        world
    }

    fn change(world: &World, request: OstRequest, bulk: Bulk<'_>) -> FsResult<()> {
        let to = Destination { ost: 0, chain: Some(world.version()) };
        let (here, client) = (world.here(0), ClientId::IN_PROCESS);
        block_on(world.server(0).execute(here, client, to, request, bulk)).reply.map(drop)
    }

    /// All hear of these members when the last one has made a change, before its answer is there.
    fn will_be(world: &World, members: [(u16, MemberState); 3]) {
        let members = members.map(|(ost, state)| Member { ost, state });
        *world.before_answer.lock() = Some((2, members.to_vec()));
    }

    /// Has all who are out come back, one after the other.
    fn heal(world: &World) {
        for ost in 0..3 {
            if world.row().state_of(ost) == Some(SERVING) {
                continue;
            }
            world.next_row(|row| {
                let its = row.members.iter_mut().find(|member| member.ost == ost);
                its.unwrap().state = SYNCING;
            });
            (0..10).for_each(|_| _ = block_on(world.server(0).heal(world.here(0))));
        }
        assert_eq!(world.row().readable().count(), 3, "{:?}", world.row());
    }

    /// The first attempt makes a new object where the old one is lost, and the next one finds that.
    #[test]
    fn a_lost_object_is_found_by_a_change_during_which_the_chain_changes() {
        let rows = [
            ([SERVING, SERVING, SYNCING], [(0, SERVING), (1, SERVING), (2, SERVING)]),
            ([SERVING, SERVING, SERVING], [(0, SERVING), (1, OFFLINE), (2, SERVING)]),
            ([SERVING, OFFLINE, SYNCING], [(0, SERVING), (1, SYNCING), (2, SERVING)]),
            // It has the first place again, and is the head.
            ([SERVING, SERVING, SYNCING], [(2, SERVING), (0, SERVING), (1, SERVING)]),
        ];
        for (before, after) in rows {
            for truncates in [true, false] {
                let world = lost_by_last(before);
                will_be(&world, after);
                let made = || match truncates {
                    true => {
                        let truncate = OstRequest::Truncate { object: OBJECT, size: 5 };
                        change(&world, truncate, Bulk::None)
                    }
                    false => {
                        let (offset, mtime) = (4, None);
                        let write =
                            OstRequest::Write { object: OBJECT, offset, mtime, kept: false };
                        change(&world, write, Bulk::Out(b"\0"))
                    }
                };
                let goes_on = after[0].0 == 0;
                let expected = if goes_on { Ok(()) } else { Err(Errno::EREMCHG) };
                assert_eq!(made(), expected, "{after:?}");
                assert!(world.before_answer.lock().is_none());
                if !goes_on {
                    assert!(world.row().readable().eq([0, 1]), "{:?}", world.row());
                    world.next_row(|_| {});
                    let (head, here) = (world.server(0), world.here(0));
                    block_on(head.take_over(here));
                    made().unwrap();
                    while block_on(head.decide_some(here)) {}
                }
                heal(&world);
                for ost in 0..3 {
                    assert_eq!(world.read(ost, OBJECT, 0, 9), b"good\0", "OST {ost}: {after:?}");
                }
            }
        }
    }

    /// Nobody is accused, and nothing is copied.
    #[test]
    fn a_new_object_during_the_first_change_of_which_the_chain_changes_is_not_lost() {
        let world = World::new(&[SERVING; 3]);
        world.files.lock().insert(OBJECT);
        block_on(world.server(0).take_over(world.here(0)));
        will_be(&world, [(0, SERVING), (1, OFFLINE), (2, SERVING)]);
        let write = OstRequest::Write { object: OBJECT, offset: 4, mtime: None, kept: false };
        change(&world, write, Bulk::Out(b"!")).unwrap();
        assert!(world.row().readable().eq([0, 2]), "{:?}", world.row());
        assert!(world.server(0).pending.is_empty((world.version().target, 2)));
        heal(&world);
        (0..3).for_each(|ost| assert_eq!(world.read(ost, OBJECT, 0, 9), b"\0\0\0\0!"));
    }

    /// The next attempt finds nothing where the first one was made.
    #[test]
    fn nobody_has_lost_an_object_that_is_cut_off_while_the_chain_changes() {
        let world = World::new(&[SERVING, SERVING, OFFLINE]);
        world.files.lock().insert(OBJECT);
        (0..3).for_each(|ost| world.write(ost, OBJECT, 0, b"good"));
        block_on(world.server(0).take_over(world.here(0)));
        let serving = [0, 1, 2].map(|ost| Member { ost, state: SERVING });
        *world.before_answer.lock() = Some((1, serving.to_vec()));
        let truncate = OstRequest::Truncate { object: OBJECT, size: 0 };
        assert_eq!(change(&world, truncate, Bulk::None), Ok(()));
        assert!(world.before_answer.lock().is_none());
        assert!(world.row().readable().eq([0, 1, 2]), "{:?}", world.row());
        (0..3).for_each(|ost| assert_eq!(world.read(ost, OBJECT, 0, 9), b"", "OST {ost}"));
    }
}
