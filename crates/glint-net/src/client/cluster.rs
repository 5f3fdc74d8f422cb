//! Several servers as one transport: that of the MDS, and those that have OSTs beside it.
//!
//! Invariant: at every server this client is the same one, in the session that the MDS has
//! named. When the MDS evicts it, nothing from before that is sent to an OSS any more.

use crate::client::remote::{Remote, RemoteOptions};
use crate::client::transport::{Durability, MdsSession, OstRequests, Transport};
use crate::tls;
use crate::transport::stream::Address;
use futures_util::future::join_all;
use glint_proto::message::Welcome;
use glint_proto::oss::OssInfo;
use glint_proto::{
    Bulk, Capability, ClientId, Errno, FsResult, Ino, ObjectId, OstReply, OstRequest,
};
use parking_lot::RwLock;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Identity of a client.
#[derive(Clone)]
pub struct ClientIdentity {
    pub(crate) client: ClientId,
    /// As the MDS has named it last.
    pub(crate) session: Arc<AtomicU64>,
    /// See [`glint_proto::Owner`].
    pub(crate) secret: u128,
    /// The client shares its process with the MDS.
    pub(crate) in_process: bool,
}

impl ClientIdentity {
    /// A client whose session nobody has named yet.
    pub fn new(client: ClientId) -> ClientIdentity {
        ClientIdentity { client, session: Arc::default(), secret: 0, in_process: false }
    }

    /// The client.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Whether it shares its process with the MDS.
    pub fn is_in_process(&self) -> bool {
        self.in_process
    }
}

/// One server of OSTs beside the one of the MDS.
struct Oss {
    first_ost: u16,
    osts: u16,
    remote: Arc<Remote>,
}

/// All servers of a file system; `M` leads to the one of the MDS.
pub struct Cluster<M> {
    mds: M,
    welcome: Welcome,
    tls: Option<tls::TlsIdentity>,
    mount_point: String,
    osses: RwLock<Vec<Oss>>,
}

impl<M: Transport> Cluster<M> {
    /// The servers of the file system that `mds` leads to. The others are spoken to as `tls`,
    /// if that is given.
    pub fn new(mds: M, tls: Option<tls::TlsIdentity>, mount_point: String) -> Cluster<M> {
        let welcome = mds.mds().welcome();
        let cluster =
            Cluster { mds, welcome: welcome.clone(), tls, mount_point, osses: RwLock::default() };
        cluster.learn(welcome.osses);
        cluster
    }

    /// There are these servers.
    fn learn(&self, osses: Vec<OssInfo>) {
        let mut known = self.osses.write();
        for oss in osses {
            if known.iter().any(|old| old.first_ost == oss.first_ost) {
                continue;
            }
            let options = RemoteOptions {
                address: Address::parse_as(&oss.address, self.tls.clone()),
                mount_point: self.mount_point.clone(),
            };
            match Remote::oss(options, &self.mds().identity(), self.welcome.clone()) {
                Ok(remote) => known.push(Oss {
                    first_ost: oss.first_ost,
                    osts: oss.osts,
                    remote: Arc::new(remote),
                }),
                Err(error) => tracing::error!(
                    server = oss.address, %error,
                    "could not connect to a server of OSTs; its files cannot be read or written"
                ),
            }
        }
    }

    fn find(&self, ost: u16) -> Option<Arc<Remote>> {
        let known = self.osses.read();
        let oss = known.iter().find(|oss| (oss.first_ost..oss.first_ost + oss.osts).contains(&ost));
        oss.map(|oss| oss.remote.clone())
    }

    async fn oss_of(&self, ost: u16) -> FsResult<Arc<Remote>> {
        if let Some(remote) = self.find(ost) {
            return Ok(remote);
        }
        // The OSS has joined since this client came.
        self.learn(self.mds().osses().await?);
        self.find(ost).ok_or(Errno::ENXIO)
    }
}

impl<M: Transport> OstRequests for Cluster<M> {
    async fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        if ost < self.welcome.own_osts {
            return self.mds.ost(ost, request, capability, bulk, is_held).await;
        }
        self.oss_of(ost).await?.ost(ost, request, capability, bulk, is_held).await
    }
}

impl<M: Transport> Durability for Cluster<M> {
    async fn commit(&self) -> FsResult<()> {
        // One that has nothing of this client is not waited for, and no failure skips the MDS.
        let all: Vec<Arc<Remote>> = {
            let osses = self.osses.read();
            let has = |remote: &Arc<Remote>| remote.has_uncommitted();
            osses.iter().map(|oss| oss.remote.clone()).filter(has).collect()
        };
        let osses = join_all(all.iter().map(|remote| remote.commit())).await;
        self.mds.commit().await.and(osses.into_iter().collect())
    }

    fn has_uncommitted(&self) -> bool {
        let osses = self.osses.read();
        self.mds.has_uncommitted() || osses.iter().any(|oss| oss.remote.has_uncommitted())
    }

    fn unstable(&self, ino: Ino) -> Vec<(u16, ObjectId)> {
        let mut objects = self.mds.unstable(ino);
        for oss in &*self.osses.read() {
            objects.extend(oss.remote.unstable(ino));
        }
        objects
    }

    fn abandon(&self, ino: Ino) {
        // Changes that the MDS lost with OSTs of its own are replayed before it lets others in.
        self.osses.read().iter().for_each(|oss| oss.remote.abandon(ino));
    }

    fn take_failure(&self, ino: Ino) -> Option<Errno> {
        let osses = self.osses.read();
        let of_osses = || osses.iter().find_map(|oss| oss.remote.take_failure(ino));
        self.mds.take_failure(ino).or_else(of_osses)
    }
}

impl<M: Transport> Transport for Cluster<M> {
    type Mds = M::Mds;

    fn mds(&self) -> &M::Mds {
        self.mds.mds()
    }

    fn is_away(&self) -> bool {
        self.mds.is_away() || self.osses.read().iter().any(|oss| oss.remote.is_away())
    }
}
