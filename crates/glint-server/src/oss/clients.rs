//! Clients that come to an OSS: whom the MDS knows, it lets in.

use super::Oss;
use glint_net::{LockService, SessionService};
use glint_ost::disk::Disk;
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::{ClientId, Errno, FsResult, Ino, Owner, Session, clock};
use std::sync::Arc;

impl<D: Disk> SessionService for Oss<D> {
    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.fs_uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.osts.count(),
            own_osts: self.osts.count(),
            osses: Vec::new(),
            session: 0,
            commit_sync: self.settings.commit_sync,
            lease_ms: self.settings.lease.as_millis() as u64,
            locks: false,
            cache_ms: 0,
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
        let number = hello.session;
        if !self.sessions.has(client, number, &owner) {
            let question = OssRequest::CheckSession { client, session: number, owner };
            match self.liaison.ask(question).await? {
                OssReply::SessionIsGood(true) => {}
                _ => return Err(Errno::ESTALE),
            }
        }
        Ok((false, self.sessions.admit(client, number, owner)?))
    }

    fn knows(&self, client: ClientId) -> bool {
        self.sessions.knows(client)
    }

    fn in_process(&self) -> Arc<Session> {
        // Nobody shares the process of an OSS.
        Session::new(ClientId::IN_PROCESS, self.boot_verifier, None)
    }

    async fn goodbye(&self, session: &Session) {
        self.sessions.end(session.number());
    }

    fn disconnect(&self, session: &Session) {
        self.sessions.disconnect(session, clock::now());
    }
}

/// An OSS gives no locks.
impl<D: Disk> LockService for Oss<D> {}
