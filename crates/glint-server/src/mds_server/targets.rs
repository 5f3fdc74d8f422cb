//! The OSTs of all servers, as the MDS orders them about.

use super::MdsServer;
use glint_kv::Kv;
use glint_mds::Targets;
use glint_ost::disk::Disk;
use glint_proto::chain::ChainId;
use glint_proto::{FsResult, Ino, Layout, Session};
use std::collections::BTreeSet;

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// OSTs that may have objects of a target: itself, or all that are or were members of the chain.
    fn osts_of(&self, target: u16) -> BTreeSet<u16> {
        if ChainId::of_target(target).is_none() {
            return BTreeSet::from([target]);
        }
        let holders = self.mds.chains().holders(target);
        if holders.is_empty() {
            tracing::error!(target, "no row of a chain; objects of deleted files stay there");
        }
        holders
    }
}

impl<K: Kv, D: Disk> Targets for MdsServer<K, D> {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let own = self.osts.count();
        let objects_of = |(ino, layout): &(Ino, Layout)| {
            let (ino, layout) = (*ino, *layout);
            let stripes = 0..layout.stripe_count.max(1);
            stripes.flat_map(move |stripe| {
                let object = layout.object(ino, stripe);
                let target = layout.ost_of(stripe, own);
                self.osts_of(target).into_iter().map(move |ost| (ost, object))
            })
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            files.iter().flat_map(objects_of).partition(|(ost, _)| *ost < own);
        let (change, failed) = self.osts.destroy(&here).await;
        let removed = here.iter().map(|(_, object)| *object);
        self.replication.are_removed(removed.filter(|object| !failed.contains(object)));
        self.osses.left(failed);
        self.osses.destroy(&elsewhere, change);
        Ok(change)
    }

    fn durable(&self) -> u64 {
        self.osses.durable(self.osts.committed())
    }

    fn left(&self) -> Vec<Ino> {
        self.osses.take_left()
    }

    fn fence(&self, session: u64) {
        self.osses.fence(session);
    }

    fn is_fenced(&self, session: u64) -> bool {
        self.osses.is_fenced(session)
    }

    fn holds_up(&self, session: &Session) -> bool {
        let is_held_here = !session.is_quiet() && self.osts.holds_up_clients();
        is_held_here || self.osses.holds_up(session.number())
    }
}
