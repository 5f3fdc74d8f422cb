//! The state of the server, and what other servers of OSTs say and ask.

use super::MdsServer;
use crate::status;
use glint_kv::Kv;
use glint_net::AdminService;
use glint_ost::disk::Disk;
use glint_proto::FsResult;
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::watch::Beat;

impl<K: Kv, D: Disk> AdminService for MdsServer<K, D> {
    fn status(&self) -> String {
        status::status(self).to_string()
    }

    fn scrub(&self, begins: bool) {
        self.scrubbing.ask(&self.osts, begins);
    }

    async fn execute_oss(&self, name: Option<&str>, request: OssRequest) -> FsResult<OssReply> {
        match request {
            OssRequest::Heartbeat(beat) => {
                let orders = self.osses.beat(&*self.records, name, beat)?;
                self.mds.note_ost_count(self.osses.osts(self.osts.count()));
                Ok(OssReply::Orders { orders, secret: *self.mds.secret() })
            }
            OssRequest::CheckSession { client, session, owner } => {
                // The client of this process has shown its certificate to nobody here.
                let own = self.in_process.owner().map(|own| (self.in_process.number(), own.secret));
                let of_this_process = self.settings.mounted && own == Some((session, owner.secret));
                let is_good = of_this_process || self.mds.has_session(client, session, &owner);
                Ok(OssReply::SessionIsGood(is_good))
            }
        }
    }

    fn knows_oss(&self, name: Option<&str>, request: &OssRequest) -> bool {
        match request {
            OssRequest::Heartbeat(beat) => self.osses.knows(name, beat),
            OssRequest::CheckSession { .. } => true,
        }
    }

    fn beat(&self) -> Option<Beat> {
        Some(self.mds.beat())
    }
}
