//! Objects of a chain at an OST that is no member of it any more: they go, for good.
//!
//! Invariants:
//! - They are removed by a row in which the OST is no member. Changes by older rows are over there by
//!   then, and none begins later ([`terms`](super::terms)): nothing makes an object anew.
//! - They are gone from stable storage before that is said.
//! - The logs here know nothing of a chain without a member here, nor what somebody lacks who is no
//!   member: one that comes back as a new member begins with nothing.

use crate::replication::{Here, PATIENCE_WITH_DISKS, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, PeerRequest};
use glint_proto::limits::OST_COUNT_MAX;
use glint_proto::{Errno, FsResult, ObjectId};

impl Replication {
    /// Has an OST elsewhere, which is no member of a chain by this row, remove objects of the chain:
    /// EREMCHG if there is a newer one.
    pub(crate) async fn clear_former(
        &self,
        row: Chain,
        ost: u16,
        objects: Vec<ObjectId>,
    ) -> FsResult<()> {
        let peers = self.peers()?;
        let clear = peers.ask(ost, PeerRequest::Clear { row, ost, objects });
        within(PATIENCE_WITH_DISKS, clear).await.map(drop)
    }

    /// Removes objects of an OST here that is no member of their chain.
    pub(in crate::replication) async fn clear<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
        ost: u16,
        objects: &[ObjectId],
    ) -> FsResult<()> {
        self.take_row(here, row)?;
        let chain = ChainVersion { target: row.id.target(), version: row.version };
        let entered = self.rows.enter(chain)?;
        if entered.row.state_of(ost).is_some() {
            return Err(Errno::EPROTO);
        }
        let cleared = async {
            for object in objects {
                self.remove_own(here, (ost, &entered.row), *object).await?;
            }
            here.osts.commit_one(here.index(ost).ok_or(Errno::ENXIO)?).await
        };
        self.unless_newer(chain, cleared).await
    }

    /// Has the logs forget what is of no use by a new row.
    pub(in crate::replication) fn forget_former<D: Disk>(&self, here: Here<'_, D>, row: &Chain) {
        let target = row.id.target();
        let is_here = row.members.iter().any(|member| here.index(member.ost).is_some());
        // Others than OSTs stand for the chain.
        let is_of_row = |of: u16| of >= OST_COUNT_MAX || row.state_of(of).is_some();
        self.pending.forget_members(target, |of| !is_here || !is_of_row(of));
        if !is_here {
            self.recent.forget_key((target, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use crate::replication::touched::UNNUMBERED;
    use futures_lite::future::block_on;
    use glint_proto::Ino;
    use glint_proto::chain::MemberState::{Offline, Serving};
    use glint_proto::chain::{PeerReply, Touched};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };

    /// The row after OST 5 has taken the place of this one.
    fn without(row: &Chain, gone: u16) -> Chain {
        let mut next = row.clone();
        next.members.iter_mut().filter(|member| member.ost == gone).for_each(|m| m.ost = 5);
        next.version += 1;
        next
    }

    #[test]
    fn a_former_member_has_nothing_of_the_chain_and_changes_nothing_by_an_old_row() {
        let world = World::new(&[Serving, Serving]);
        let (former, here, row) = (world.server(1), world.here(1), world.row());
        world.write(1, OBJECT, 0, b"old");
        let clear = |row: &Chain| {
            let clear = PeerRequest::Clear { row: row.clone(), ost: 1, objects: vec![OBJECT] };
            block_on(former.answer(here, clear))
        };
        assert_eq!(clear(&row), Err(Errno::EPROTO), "a member keeps what it has");
        assert_eq!(world.read(1, OBJECT, 0, 9), b"old");
        let next = without(&row, 1);
        assert_eq!(clear(&next), Ok(PeerReply::Done));
        assert_eq!(world.read(1, OBJECT, 0, 9), b"");
        let target = row.id.target();
        let old = block_on(former.terms.enter((target, 1), row.version));
        assert_eq!(old.err(), Some(Errno::EREMCHG));
        let newer = Chain { version: next.version + 1, ..next.clone() };
        former.adopt(here, &newer);
        assert_eq!(clear(&next), Err(Errno::EREMCHG), "it may be a member by that");
    }

    #[test]
    fn logs_forget_who_is_no_member() {
        let world = World::new(&[Serving, Serving, Serving]);
        let row = world.row();
        let target = row.id.target();
        let note = |server: &Replication, of| {
            let whole = std::iter::once(Touched::whole(OBJECT));
            server.pending.note((target, of), whole, UNNUMBERED);
        };
        for number in [0, 1] {
            let server = world.server(number);
            [1, 2].into_iter().for_each(|of| note(server, of));
            server.recent.note((target, 0), std::iter::once(Touched::whole(OBJECT)), UNNUMBERED);
            let mut next = without(&row, 1);
            // Another one lags.
            next.members.iter_mut().filter(|m| m.ost == 2).for_each(|m| m.state = Offline);
            server.adopt(world.here(number), &next);
            let has = |of| !server.pending.is_empty((target, of));
            assert_eq!((has(1), has(2)), (false, number == 0));
            assert_eq!(server.recent.is_empty((target, 0)), number == 1);
        }
    }
}
