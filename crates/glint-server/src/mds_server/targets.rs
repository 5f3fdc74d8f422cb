//! The OSTs of all servers, as the MDS orders them about.

use super::MdsServer;
use glint_kv::Kv;
use glint_mds::Targets;
use glint_ost::disk::Disk;
use glint_proto::{FsResult, Ino, Layout, ObjectId};

impl<K: Kv, D: Disk> Targets for MdsServer<K, D> {
    async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
        let own = self.osts.count();
        let objects_of = |(ino, layout): &(Ino, Layout)| {
            let (ino, layout) = (*ino, *layout);
            let stripes = 0..layout.stripe_count.max(1);
            stripes.map(move |stripe| (layout.ost_of(stripe, own), ObjectId { ino, stripe }))
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            files.iter().flat_map(objects_of).partition(|(ost, _)| *ost < own);
        let (change, failed) = self.osts.destroy(&here);
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
}
