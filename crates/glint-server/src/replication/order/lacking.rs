//! Objects of which members have made a change, and had nothing before that the head had: they may
//! have lost them.
//!
//! Where [`begins`](super::begins) says for sure that a member which serves has lost one, that is
//! taken out. Where it cannot tell that from a new object of which the member lacked the begin, the
//! head gives it the whole object before the change is acknowledged.
//!
//! Heal gives a member that is synced what it lacks as others know it, and nobody else knows of a
//! lost object. A change makes it anew there, with a hole in the place of the rest, and the member
//! would serve with that: so heal is to give it whole. If it was not there because heal has not
//! come to it yet, that costs a little. The member may begin to serve just then: it is taken out
//! again ([`LateFinds`]).

use crate::replication::touched::{Key, UNNUMBERED};
use crate::replication::{CopyFault, Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::ObjectId;
use glint_proto::chain::{Chain, MemberState, Touched};
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
        if let Some(found) = self.0.lock().get_mut(&key) {
            found.push(object);
        }
    }
}

/// Whether one of these members is synced.
pub(super) fn is_one_synced(row: &Chain, members: &[u16]) -> bool {
    synced(row, members).next().is_some()
}

fn synced<'a>(row: &'a Chain, members: &'a [u16]) -> impl Iterator<Item = u16> + 'a {
    let is_synced = move |member: &u16| row.state_of(*member) == Some(MemberState::Syncing);
    members.iter().copied().filter(is_synced)
}

impl Replication {
    /// These members may have lost an object, which the head has: gives it to those that serve,
    /// and has heal give it to others.
    pub(super) async fn give_whole<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        object: ObjectId,
        members: &[u16],
    ) {
        let whole = [Touched::whole(object)];
        for member in members.iter().copied() {
            if row.readable().any(|other| other == member)
                && self.copy(here, (head, row), member, (object, &whole), None).await.is_ok()
            {
                continue;
            }
            let key = (row.id.target(), member);
            self.pending.note(key, whole.iter().copied(), UNNUMBERED);
            self.take_out_late(here, key, vec![object]).await;
        }
    }

    /// A change was made by the head, which had something of its object, and by these members,
    /// which had nothing of it. Has heal give all of it to those that are synced. Returns whether
    /// the chain is the same still.
    pub(super) async fn unless_begun_in_synced<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        object: ObjectId,
        empty_at: &[u16],
    ) -> bool {
        let whole = Touched::whole(object);
        for member in synced(row, empty_at) {
            let key = (row.id.target(), member);
            if self.pending.parts_of(key, object).contains(&whole) {
                continue;
            }
            // Whatever the row is by now: made once more, the change finds nothing.
            self.pending.note(key, std::iter::once(whole), UNNUMBERED);
            self.lost.late.note(key, object);
            if self.tell_pending(here, row, member, &[whole]).await.is_err() {
                return false;
            }
            let now = self.rows.get(key.0);
            if now.is_none_or(|now| now.state_of(member) != Some(MemberState::Syncing)) {
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
