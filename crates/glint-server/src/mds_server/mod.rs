//! The server with the MDS, and with OSTs of its own.

mod administration;
mod balancing;
mod chains;
mod draining;
mod filling;
mod losses;
mod objects;
mod places;
mod sessions;
mod targets;

use crate::oss_registry::OssRegistry;
use crate::rates::{Rates, Totals};
use crate::records::{Records, StartError};
use crate::repairs::Repairs;
use crate::replication::peers::ClusterPeers;
use crate::replication::{Here, Replication};
use crate::scrubbing::Scrubbing;
use crate::settings::{Drawn, Settings};
use crate::units::human_bytes;
use crate::warm_start::WarmStart;
use filling::Filling;
use glint_kv::Kv;
use glint_kv::local::LocalKv;
use glint_mds::{Config, Mds};
use glint_net::capability::Key;
use glint_net::{Cluster, PeerRequests, Service, Transport};
use glint_ost::disk::{Disk, LocalDisk};
use glint_ost::{DiskWatch, OstSet};
use glint_proto::chain::ChainPolicy;
use glint_proto::limits::reserve_metadata;
use glint_proto::{ClientId, FsResult, ObjectId, Owner, Session, SpaceInfo, clock};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An MDS and its OSTs. Whoever has it runs [`MdsServer::rounds`].
pub struct MdsServer<K: Kv = LocalKv, D: Disk = LocalDisk> {
    mds: Mds<K>,
    key: Key,
    osts: OstSet<D>,
    replication: Replication,
    /// Last change of the table of chains that it knows.
    rows_known: AtomicU64,
    /// OSTs that others could not reach, and since when.
    suspects: Mutex<HashMap<u16, chains::Suspicion>>,
    watch: Mutex<chains::MemberWatch>,
    /// OSTs that were the last that served of a chain, and have restarted since. Held while rows
    /// change for a restart, or because somebody has looked who is there.
    restarted: futures_util::lock::Mutex<BTreeSet<u16>>,
    filling: Filling,
    /// Held by the walk that clears former members.
    clearing: futures_util::lock::Mutex<()>,
    repairs: Repairs,
    turn: Mutex<balancing::Turn>,
    moving: Mutex<draining::FilesMoving>,
    scrubbing: Scrubbing,
    warm_start: WarmStart,
    osses: OssRegistry,
    records: Arc<dyn Records>,
    /// Whether this run is noted as one that serves.
    noted: AtomicBool,
    boot_verifier: u64,
    /// Of the client that shares this process, if there is one.
    in_process: Arc<Session>,
    settings: Settings,
    started: Instant,
    /// Totals of the last two seconds.
    totals: Mutex<[Totals; 2]>,
}

impl<K: Kv, D: Disk> Service for MdsServer<K, D> {
    type Metadata = Mds<K>;

    fn metadata(&self) -> &Mds<K> {
        &self.mds
    }
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Starts on an engine and OSTs.
    pub async fn start(
        kv: K,
        osts: OstSet<D>,
        records: Arc<dyn Records>,
        settings: Settings,
        drawn: Drawn,
    ) -> Result<MdsServer<K, D>, StartError> {
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
        let replication = Replication::load(&records, false, settings.heal_bandwidth)?;
        // In the run before they may have restarted, too.
        let restarted = mds.chains().last_serving(1);
        let own = Owner { certificate: None, secret: drawn.secret };
        let server = MdsServer {
            key: Key::new(mds.secret()),
            mds,
            replication,
            rows_known: AtomicU64::new(0),
            suspects: Mutex::default(),
            watch: Mutex::default(),
            restarted: restarted.into(),
            filling: Filling::default(),
            clearing: futures_util::lock::Mutex::default(),
            repairs: Repairs::default(),
            scrubbing: Scrubbing::new(&*records, settings.scrub_bandwidth),
            turn: Mutex::default(),
            moving: Mutex::default(),
            warm_start: WarmStart::new(settings.warm_start, true, osts.count()),
            osts,
            osses,
            records,
            noted: AtomicBool::new(false),
            boot_verifier: drawn.boot_verifier,
            in_process: Session::new(ClientId::IN_PROCESS, drawn.session, Some(own)),
            settings,
            started: clock::now(),
            totals: Mutex::new([Totals::now(); 2]),
        };
        if let Some((min_replicas, min_replicas_fails)) = server.settings.min_replicas {
            let set = |before| ChainPolicy { min_replicas, min_replicas_fails, ..before };
            server.mds.set_chain_policy(set).await.map_err(StartError::Chains)?;
        }
        server.replication.set_policy(server.mds.chain_policy());
        let replaced = server.records.replaced()?;
        if !replaced.is_empty() {
            server.empty_osts(0, &replaced).await?;
            server.records.forget_replaced()?;
        }
        // Whether this host lost power or not, what was under way may differ between copies.
        server.on_restarted(0..server.osts.count()).await.map_err(StartError::Chains)?;
        server.place_chains().await;
        Ok(server)
    }

    /// Has objects that a scrub found damaged written anew from other copies.
    pub(crate) async fn repair_some(&self) {
        let layout_of = async |object: ObjectId| self.mds.layout_of(object.ino).await;
        self.repairs.begin(self.here(), &self.replication, layout_of).await;
    }

    /// Damaged objects that are repaired.
    pub(crate) fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// OSTs that are filled, or were.
    pub(crate) fn filling(&self) -> &Filling {
        &self.filling
    }

    /// OSTs here, as members of chains.
    pub(crate) fn here(&self) -> Here<'_, D> {
        Here { osts: &self.osts, first: 0 }
    }

    /// Replication, as this server takes part in it.
    pub(crate) fn replication(&self) -> &Replication {
        &self.replication
    }

    /// Reaches the other servers through this, for copies.
    pub fn reach_peers(self: &Arc<Self>, cluster: Cluster<impl Transport + PeerRequests>) {
        let server = Arc::downgrade(self);
        self.replication.set_peers(Some(Arc::new(ClusterPeers { cluster, server })));
    }

    /// Reaches no other server any more.
    pub fn leave_peers(&self) {
        self.replication.set_peers(None);
    }

    /// Takes over chains that have got their head here, once what may differ in them was found.
    pub(crate) async fn take_over(&self) {
        self.replication.search(&self.osts).await;
        self.replication.take_over(self.here()).await;
    }

    /// Makes copies equal that a lost head may have left different. Returns whether there is more to do
    /// at once.
    pub(crate) async fn decide_some(&self) -> bool {
        self.replication.decide_some(self.here()).await
    }

    /// Looks after the chains. Returns whether there is more to do at once.
    pub(crate) async fn tend_chains(&self) -> bool {
        self.replication.tend(self.here()).await
    }

    /// Evicts clients whose time is over. What fails is tried again with the next call.
    pub(crate) async fn expire(&self) {
        if let Err(errno) = self.mds.expire(self).await {
            tracing::error!(
                %errno,
                "could not evict clients whose lease is over; it is tried again"
            );
        }
    }

    /// Begins to bring data to stable storage and to seal objects that were left alone for `idle`,
    /// every commit interval.
    pub(crate) async fn settle(&self, idle: Duration) {
        self.replication.settle_osts(&self.osts, idle).await;
    }

    /// Looks how the disks of the OSTs here are. Waits for nothing.
    pub(crate) fn look_at_disks(&self) {
        self.replication.look_at_disks(self.here());
    }

    /// Whether the disk of an OST here stands still.
    pub fn has_still_disk(&self) -> bool {
        let mut watches = (0..self.osts.count()).filter_map(|index| self.osts.watch(index));
        watches.any(DiskWatch::stands_still)
    }

    /// Has members here taken out of their chains whose disks stand still.
    pub(crate) async fn give_up_still(&self) {
        self.replication.give_up_still(self.here()).await;
    }

    /// Compares some more data with its checksums. Returns whether there is more to do at once.
    pub(crate) fn scrub_some(&self) -> bool {
        self.scrubbing.step(&self.osts, &*self.records)
    }

    /// Loads some of what was read most before the start, and keeps what is read most.
    pub(crate) async fn warm_some(&self) {
        self.warm_start.step_tables(&*self.records, &self.mds).await;
        self.warm_start.step_objects(&*self.records, &self.osts);
    }

    /// The warm start.
    pub(crate) fn warm_start(&self) -> &WarmStart {
        &self.warm_start
    }

    /// Takes the totals of now, for [`MdsServer::rates`]; every second or so.
    pub(crate) fn note_totals(&self) {
        let mut totals = self.totals.lock();
        *totals = [totals[1], Totals::now()];
    }

    /// Removes what deleted files left, and watches the space. Returns whether there may be more
    /// to do at once.
    pub(crate) async fn keep_house(&self) -> bool {
        if !self.mds.is_recovering()
            && !self.noted.swap(true, Ordering::AcqRel)
            && let Err(error) = self.records.note_served()
        {
            tracing::error!(
                %error,
                "could not note that this host serves the directory; it is tried again"
            );
        }
        self.watch_space();
        self.osts.retain_grants(|c| c == ClientId::IN_PROCESS || self.mds.knows(c));
        self.mds.reap(self).await.unwrap_or_else(|errno| {
            tracing::error!(%errno, "could not remove deleted files; it is tried again");
            false
        })
    }

    /// Has the MDS know what space there is, and which OSTs are not heard of.
    pub(crate) fn watch_space(&self) {
        self.avoid_absent();
        if let Some(space) = self.records.table_space().or_else(|| self.osts.first_space()) {
            self.mds.set_full(space.free < reserve_metadata(space.total));
        }
    }

    /// Has new files avoid OSTs that are not heard of, full, given up, or drained.
    fn avoid_absent(&self) {
        let own = (0..).zip(self.osts.spaces()).filter(|(_, space)| space.is_full());
        let absent = own.map(|(ost, _)| ost).chain(self.osses.absent()).collect();
        self.mds.set_absent(absent, &self.osses.given_up().concat());
    }

    /// Longest time between two calls of [`MdsServer::settle`].
    pub(crate) fn commit_interval(&self) -> Duration {
        self.settings.commit_interval
    }

    /// Keeps what is read most for the next start.
    pub(crate) async fn keep_hot(&self) {
        self.warm_start.keep(&*self.records, self.mds.heat(), &self.osts).await;
    }

    /// The last thing for the OSTs here.
    pub async fn settle_last(&self) -> FsResult<()> {
        self.replication.settle_last(&self.osts).await
    }

    /// Rates per second, over the last one or two seconds before `now`.
    pub fn rates(&self, now: &Totals) -> Rates {
        now.since(&self.totals.lock()[0])
    }

    /// The metadata server.
    pub fn mds(&self) -> &Mds<K> {
        &self.mds
    }

    /// Space of all OSTs, of all servers.
    pub fn space(&self) -> SpaceInfo {
        let elsewhere = self.osses.infos_for_clients().into_iter().flat_map(|oss| oss.space);
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
        self.mds.failure().or_else(|| self.replication.failure(self.here()))
    }

    /// Whether an OST here has failed and is used again only by the next run.
    pub fn has_failed_ost(&self) -> bool {
        self.osts.has_failed_one()
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(self.space().available);
        let (inodes, clients) = (self.mds.inode_count(), self.mds.sessions().len());
        format!("available {available}  inodes {inodes}  clients {clients}")
    }

    /// OSTs of the MDS's own server.
    pub fn osts(&self) -> &OstSet<D> {
        &self.osts
    }

    /// Records of the server.
    pub fn records(&self) -> &dyn Records {
        &*self.records
    }

    /// Time since the start.
    pub fn uptime(&self) -> Duration {
        clock::since(self.started)
    }
}
