//! Sessions of clients and the locks that they keep: both are the MDS's.

use super::MdsServer;
use glint_kv::Kv;
use glint_net::{LockService, SessionService};
use glint_ost::disk::Disk;
use glint_proto::limits::{CACHE_MS_ALONE, CACHE_MS_SHARED};
use glint_proto::lock::{Recall, Return};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::{ClientId, FsResult, Ino, Owner, Session};
use std::sync::Arc;

impl<K: Kv, D: Disk> SessionService for MdsServer<K, D> {
    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.records.uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.mds.osts(),
            own_osts: self.osts.count(),
            osses: self.osses.infos_for_clients(),
            session: 0,
            commit_sync: self.settings.commit_sync,
            lease_ms: self.settings.lease.as_millis() as u64,
            locks: self.settings.shared,
            cache_ms: if self.settings.shared { CACHE_MS_SHARED } else { CACHE_MS_ALONE },
            root: Ino::ROOT,
            survived: Survived::ALL,
            capabilities: false,
            evicted: false,
        }
    }

    async fn connect(
        &self,
        client: ClientId,
        hello: &Hello,
        owner: Owner,
    ) -> FsResult<(bool, Arc<Session>)> {
        self.mds.connect(client, owner, &hello.host, &hello.mount_point).await
    }

    fn knows(&self, client: ClientId) -> bool {
        self.mds.knows(client)
    }

    fn in_process(&self) -> Arc<Session> {
        self.in_process.clone()
    }

    fn renew_lease(&self, session: &Session) {
        self.mds.heard(session);
    }

    fn end_recovery(&self, session: &Session) {
        self.mds.recovered(session.client());
    }

    async fn goodbye(&self, session: &Session) {
        if let Err(errno) = self.mds.goodbye(session).await {
            let client = session.client();
            tracing::warn!(
                %client, %errno,
                "could not forget a client that ended; it is evicted when its lease is over"
            );
        }
    }

    fn disconnect(&self, session: &Session) {
        self.mds.disconnect(session);
    }
}

impl<K: Kv, D: Disk> LockService for MdsServer<K, D> {
    fn return_locks(&self, session: &Session, returns: &[Return]) {
        self.mds.return_locks(session.client(), returns);
    }

    fn listen(&self, session: &Session) -> u64 {
        self.mds.listen(session.client())
    }

    async fn recalls(&self, session: &Session, listening: u64) -> Option<Vec<Recall>> {
        self.mds.recalls(session.client(), listening).await
    }
}
