//! The server with the MDS, and with OSTs of its own.

use crate::oss_registry::OssRegistry;
use crate::rates::{Rates, Totals};
use crate::records::Records;
use crate::settings::{Drawn, Settings};
use crate::units::human_bytes;
use crate::{pace, status};
use glint_kv::Kv;
use glint_kv::local::LocalKv;
use glint_mds::{Config, Mds, MdsError, Targets};
use glint_net::Service;
use glint_net::capability::Key;
use glint_ost::OstSet;
use glint_ost::disk::{Disk, LocalDisk};
use glint_proto::limits::{CACHE_MS_ALONE, CACHE_MS_SHARED, reserve_metadata};
use glint_proto::lock::{Recall, Return};
use glint_proto::message::{Hello, Survived, Welcome};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::watch::Beat;
use glint_proto::{
    Answer, Arrival, Bulk, ClientId, Committed, Cred, FsResult, Ino, Layout, MdsReply, MdsRequest,
    ObjectId, OstReply, OstRequest, Owner, Session, SpaceInfo, clock,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// An MDS and its OSTs. Whoever has it calls what looks after it: [`MdsServer::expire`],
/// [`MdsServer::keep_house`], [`MdsServer::settle`], and [`Mds::time_passes`].
pub struct MdsServer<K: Kv = LocalKv, D: Disk = LocalDisk> {
    mds: Mds<K>,
    key: Key,
    osts: OstSet<D>,
    osses: OssRegistry,
    records: Arc<dyn Records>,
    /// This run is noted as one that serves.
    noted: AtomicBool,
    boot_verifier: u64,
    /// Of the client that shares this process, if there is one.
    in_process: Arc<Session>,
    settings: Settings,
    started: Instant,
    /// Totals of the last two seconds.
    totals: Mutex<[Totals; 2]>,
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Starts on an engine and OSTs.
    pub async fn start(
        kv: K,
        osts: OstSet<D>,
        records: Arc<dyn Records>,
        settings: Settings,
        drawn: Drawn,
    ) -> Result<MdsServer<K, D>, MdsError> {
        let osses = OssRegistry::new(&*records, drawn.boot_verifier, settings.lease);
        let config = Config {
            osts: osses.osts(osts.count()),
            lease: settings.lease,
            layout: settings.layout,
            commit_sync: settings.commit_sync,
            after_power_loss: records.is_after_loss() || settings.after_power_loss,
            mounted: settings.mounted,
            locks: settings.shared,
            hash_seed: drawn.hash_seed,
            boot_verifier: drawn.boot_verifier,
        };
        let mds = Mds::start(kv, config).await?;
        let own = Owner { certificate: None, secret: drawn.secret };
        Ok(MdsServer {
            key: Key::new(mds.secret()),
            mds,
            osts,
            osses,
            records,
            noted: AtomicBool::new(false),
            boot_verifier: drawn.boot_verifier,
            in_process: Session::new(ClientId::IN_PROCESS, drawn.session, Some(own)),
            settings,
            started: clock::now(),
            totals: Mutex::new([Totals::now(); 2]),
        })
    }

    /// Gives up clients whose time is over. What fails is tried again with the next call.
    pub async fn expire(&self) {
        if let Err(errno) = self.mds.expire(self).await {
            tracing::error!(%errno, "giving up clients");
        }
    }

    /// Brings data to stable storage and seals objects that were left alone for `idle`, every
    /// commit interval. May take long.
    pub fn settle(&self, idle: Duration) {
        self.osts.settle(idle);
    }

    /// Takes the totals of now, for [`MdsServer::rates`]; every second or so.
    pub fn note_totals(&self) {
        let mut totals = self.totals.lock();
        *totals = [totals[1], Totals::now()];
    }

    /// Removes what deleted files left, and watches the space. Returns whether there may be more
    /// to do at once.
    pub async fn keep_house(&self) -> bool {
        if !self.mds.is_recovering()
            && !self.noted.swap(true, Ordering::AcqRel)
            && let Err(error) = self.records.note_served()
        {
            tracing::error!(%error, "noting that this host serves the directory");
        }
        self.watch_space();
        self.osts.retain_grants(|c| c == ClientId::IN_PROCESS || self.mds.knows(c));
        self.mds.reap(self).await.unwrap_or_else(|errno| {
            tracing::error!(%errno, "removing deleted files");
            false
        })
    }

    /// Has the MDS know what space there is, and which OSTs are not heard of.
    pub fn watch_space(&self) {
        self.mds.set_absent(self.osses.absent());
        // The tables lie beside the first one.
        if let Some(space) = self.osts.first_space() {
            self.mds.set_full(space.free < reserve_metadata(space.total));
        }
    }

    /// Longest time between two calls of [`MdsServer::settle`].
    pub fn commit_interval(&self) -> Duration {
        self.settings.commit_interval
    }

    /// The last thing before the end: everything accepted is on stable storage after it.
    pub async fn shut_down(&self) -> FsResult<()> {
        self.osts.settle_last()?;
        self.mds.shut_down().await
    }

    /// What happens per second, over the last one or two seconds before `now`.
    pub fn rates(&self, now: &Totals) -> Rates {
        now.since(&self.totals.lock()[0])
    }

    /// The metadata server.
    pub fn mds(&self) -> &Mds<K> {
        &self.mds
    }

    /// Space of all OSTs, of all servers.
    pub fn space(&self) -> SpaceInfo {
        let elsewhere = self.osses.infos().into_iter().flat_map(|oss| oss.space);
        SpaceInfo::sum(self.osts.spaces().into_iter().chain(elsewhere))
    }

    /// Space of each OST of this server.
    pub fn ost_spaces(&self) -> Vec<SpaceInfo> {
        self.osts.spaces()
    }

    /// The other servers of OSTs.
    pub fn other_servers(&self) -> &OssRegistry {
        &self.osses
    }

    /// Why nothing can be called durable any more, if that is so; then the server should end.
    pub fn failure(&self) -> Option<String> {
        self.mds.failure().or_else(|| self.osts.failure())
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(self.space().available);
        let (inodes, clients) = (self.mds.inode_count(), self.mds.sessions().len());
        format!("available {available}  inodes {inodes}  clients {clients}")
    }

    /// Its own OSTs.
    pub fn osts(&self) -> &OstSet<D> {
        &self.osts
    }

    /// What it remembers.
    pub fn records(&self) -> &dyn Records {
        &*self.records
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        clock::since(self.started)
    }
}

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

impl<K: Kv, D: Disk> Service for MdsServer<K, D> {
    async fn mds(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        let answer = self.mds.handle(arrival, cred, request).await;
        let (id, is_replay) = (arrival.id, arrival.replay.is_some());
        tracing::trace!(?id, is_replay, ?request, ?answer, "metadata");
        answer
    }

    async fn ost(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        pace(&self.osts, ost, &request, &bulk).await;
        let client = session.client();
        let _running = match session.enter() {
            Ok(running) => running,
            Err(errno) => return Answer::unchanged(Err(errno)),
        };
        if self.settings.shared && request.is_write() {
            self.mds.wrote(client);
        }
        let answer = self.osts.handle(client, ost, request, bulk).await;
        tracing::trace!(%client, ost, ?request, ?answer, "data");
        answer
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: self.records.uuid(),
            boot_verifier: self.boot_verifier,
            osts: self.mds.osts(),
            own_osts: self.osts.count(),
            osses: self.osses.infos(),
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

    async fn oss(&self, name: Option<&str>, request: OssRequest) -> FsResult<OssReply> {
        match request {
            OssRequest::Heartbeat(beat) => {
                let orders = self.osses.beat(&*self.records, name, beat)?;
                self.mds.note_ost_count(self.osses.osts(self.osts.count()));
                Ok(OssReply::Orders { orders, secret: *self.mds.secret() })
            }
            OssRequest::IsSession { client, session, owner } => {
                // That of this process has shown its certificate to nobody here.
                let own = self.in_process.owner().map(|own| (self.in_process.number(), own.secret));
                let of_this_process = self.settings.mounted && own == Some((session, owner.secret));
                let is = of_this_process || self.mds.has_session(client, session, &owner);
                Ok(OssReply::Is(is))
            }
        }
    }

    fn knows(&self, client: ClientId) -> bool {
        self.mds.knows(client)
    }

    fn knows_oss(&self, name: Option<&str>, request: &OssRequest) -> bool {
        match request {
            OssRequest::Heartbeat(beat) => self.osses.knows(name, beat),
            OssRequest::IsSession { .. } => true,
        }
    }

    fn in_process(&self) -> Arc<Session> {
        self.in_process.clone()
    }

    fn disconnect(&self, session: &Session) {
        self.mds.disconnect(session);
    }

    async fn resolve(&self, path: &str) -> FsResult<Ino> {
        self.mds.resolve(path).await
    }

    async fn is_within(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        self.mds.is_within(top, ino).await
    }

    fn key(&self) -> Option<&Key> {
        Some(&self.key)
    }

    fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        self.mds.survived(boot_verifier)
    }

    fn heard(&self, session: &Session) {
        self.mds.heard(session);
    }

    fn recovered(&self, session: &Session) {
        self.mds.recovered(session.client());
    }

    async fn goodbye(&self, session: &Session) {
        if let Err(errno) = self.mds.goodbye(session).await {
            let client = session.client();
            tracing::warn!(%client, %errno, "forgetting a client that ended");
        }
    }

    async fn commit(&self) -> FsResult<()> {
        self.osts.commit().await?;
        self.mds.sync().await
    }

    fn committed(&self) -> Committed {
        Committed { mds: self.mds.committed(), ost: self.osts.committed() }
    }

    fn return_locks(&self, session: &Session, returns: &[Return]) {
        self.mds.return_locks(session.client(), returns);
    }

    fn listen(&self, session: &Session) -> u64 {
        self.mds.listen(session.client())
    }

    async fn recalls(&self, session: &Session, listening: u64) -> Option<Vec<Recall>> {
        self.mds.recalls(session.client(), listening).await
    }

    fn status(&self) -> String {
        status::status(self).to_string()
    }

    fn beat(&self) -> Option<Beat> {
        Some(self.mds.beat())
    }
}
