//! The state of an OSS.

use super::Oss;
use crate::replication::Here;
use glint_net::AdminService;
use glint_ost::disk::Disk;
use glint_proto::message::{NamespacePage, NamespaceQuery};
use glint_proto::{Session, SpaceInfo, clock};
use serde_json::json;
use std::sync::Arc;

impl<D: Disk> AdminService for Oss<D> {
    fn status(&self) -> String {
        // Before it has joined nobody knows the numbers of its OSTs.
        let first = self.joined.get().map(|(_, first)| *first);
        let here = first.map(|first| Here { osts: &self.osts, first });
        let space = SpaceInfo::sum(self.osts.spaces());
        let client = |(session, connections): &(Arc<Session>, usize)| json!({"id": session.client().to_string(), "connections": connections});
        json!({
            "role": "oss",
            "version": env!("CARGO_PKG_VERSION"),
            "data": self.records.name(),
            "uuid": format!("{:032x}", self.fs_uuid()),
            "mds": {"address": self.liaison.mds().to_string(), "reached": self.sessions.is_valid(clock::now())},
            "uptime_s": clock::since(self.started).as_secs(),
            "pid": std::process::id(),
            "failure": self.failure(),
            "space": {
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
            },
            "joined": first.is_some(),
            "osts": first.map(|first| crate::status::osts(&self.osts, first, &self.repairs, &self.warm_start)),
            "pending": here.map(|here| crate::status::pending(&self.replication, here)),
            "heal": crate::status::heal(&self.replication),
            "clients": self.sessions.all().iter().map(client).collect::<Vec<_>>(),
        })
        .to_string()
    }

    fn scrub(&self, begins: bool) {
        self.scrubbing.ask(&self.osts, begins);
    }

    async fn check_namespace(&self, query: NamespaceQuery) -> Result<NamespacePage, String> {
        let (_, first) = self.joined.get().ok_or("it does not know the numbers of its OSTs yet")?;
        self.osts.check_stored(*first, query).await
    }
}
