//! A server with OSTs only (an OSS), beside the one with the MDS. Clients come with the
//! session that the MDS has named, and the MDS says which ones are good.
//!
//! Invariants:
//! - Nothing is executed for a session that the MDS has not said to be good, or has fenced.
//! - Nothing is executed before this run has heard of the MDS, which says which OSTs are here.
//! - Nothing is executed while the MDS was not heard of for half a lease: it may have given the
//!   client up, and its locks to others.
//! - Objects that are to be destroyed are gone from stable storage before the MDS hears of it.

mod administration;
mod boot_history;
mod clients;
mod liaison;
mod objects;
mod sessions;

use crate::records::{Records, RecordsError};
use crate::repairs::Repairs;
use crate::replication::peers::{AsksMds, ClusterPeers};
use crate::replication::{Asked, Here, Replication};
use crate::scrubbing::Scrubbing;
use crate::settings::Settings;
use crate::units::human_bytes;
use crate::warm_start::WarmStart;
use boot_history::BootHistory;
use glint_net::capability::Key;
use glint_net::{Address, Cluster, PeerRequests, Service, Transport, host};
use glint_ost::OstSet;
use glint_ost::disk::{Disk, LocalDisk};
use glint_proto::capability::SECRET_BYTES;
use glint_proto::chain::{Chain, ChainVersion, MemberEvent};
use glint_proto::limits::SESSIONS_HELD_UP_MAX;
use glint_proto::oss::{ObjectPage, Orders, OssReply, OssRequest, ReplacedOst};
use glint_proto::{Errno, FsResult, Ino, Layout, NoNamespace, ObjectId, SpaceInfo, clock};
use glint_wait::WaitList;
use liaison::Liaison;
use parking_lot::Mutex;
use sessions::Sessions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How soon the MDS is asked again whether nobody acts by an older row of a chain.
const ASK_AGAIN: Duration = Duration::from_millis(30);

/// An OSS. Whoever has it runs what it does beside requests: [`Oss::talk`],
/// [`Oss::destroy_ordered`], [`Oss::rounds`].
pub struct Oss<D: Disk = LocalDisk> {
    osts: OstSet<D>,
    replication: Replication,
    scrubbing: Scrubbing,
    warm_start: WarmStart,
    repairs: Repairs,
    records: Arc<dyn Records>,
    settings: Settings,
    boot_verifier: u64,
    boot_history: BootHistory,
    sessions: Sessions,
    liaison: Liaison,
    /// OSTs here that were put in the place of others, until the MDS knows.
    replaced: Mutex<Vec<ReplacedOst>>,
    /// File system, and number of the first OST here; once the MDS has said so.
    joined: OnceLock<(u128, u16)>,
    /// Requests that wait for that.
    until_joined: WaitList,
    /// Key that capabilities are checked with; from then on, too.
    key: OnceLock<Key>,
    stop: AtomicBool,
    /// Work that waits for others, which may have ended before it.
    until_stopping: WaitList,
    started: Instant,
}

impl<D: Disk> Service for Oss<D> {
    type Metadata = NoNamespace;

    fn metadata(&self) -> &NoNamespace {
        &NoNamespace
    }
}

impl<D: Disk> Oss<D> {
    /// Starts on OSTs, for the file system whose MDS is at `mds`. Clients reach it at
    /// `advertised`. Copies of its objects lie in other failure domains; without a name its own is
    /// one.
    pub fn start(
        osts: OstSet<D>,
        records: Arc<dyn Records>,
        settings: Settings,
        boot_verifier: u64,
        mds: Address,
        advertised: String,
        failure_domain: String,
    ) -> Result<Oss<D>, RecordsError> {
        let survived = !records.is_after_loss() && !settings.after_power_loss;
        let boot_history = BootHistory::begin(&*records, boot_verifier, survived)?;
        records.note_served()?;
        Ok(Oss {
            sessions: Sessions::new(osts.count()),
            replication: Replication::load(&records, true, settings.heal_bandwidth)?,
            warm_start: WarmStart::new(settings.warm_start, false, osts.count()),
            osts,
            replaced: Mutex::new(records.replaced()?),
            scrubbing: Scrubbing::new(&*records, settings.scrub_bandwidth),
            records,
            settings,
            boot_verifier,
            boot_history,
            repairs: Repairs::default(),
            liaison: Liaison::new(mds, advertised, failure_domain),
            joined: OnceLock::new(),
            until_joined: WaitList::default(),
            key: OnceLock::new(),
            stop: AtomicBool::new(false),
            until_stopping: WaitList::default(),
            started: clock::now(),
        })
    }

    /// OSTs here, as members of chains: known once the MDS was heard of in this run.
    async fn here(&self) -> Here<'_, D> {
        let (_, first) = *self.until_joined.until(|| self.joined.get()).await;
        Here { osts: &self.osts, first }
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

    /// Whether there are files with copies.
    pub fn has_chains(&self) -> bool {
        !self.replication.is_empty()
    }

    /// Takes over chains that have got their head here, once what may differ in them was found.
    pub(crate) async fn take_over(&self) {
        self.replication.search(&self.osts).await;
        if self.joined.get().is_some() {
            self.replication.take_over(self.here().await).await;
        }
    }

    /// Makes copies equal that a lost head may have left different. Returns whether there is more to do
    /// at once.
    pub(crate) async fn decide_some(&self) -> bool {
        match self.joined.get() {
            Some(_) => self.replication.decide_some(self.here().await).await,
            None => false,
        }
    }

    /// Looks after the chains. Returns whether there is more to do at once.
    pub(crate) async fn tend_chains(&self) -> bool {
        match self.joined.get() {
            Some(_) => self.replication.tend(self.here().await).await,
            None => false,
        }
    }

    /// Ends [`Oss::talk`] soon, if it has begun.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.until_stopping.wake();
        self.liaison.stop();
    }

    /// Whether it is to end.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Waits until it is to end.
    pub(crate) async fn stopping(&self) {
        self.until_stopping.until(|| self.is_stopping().then_some(())).await;
    }

    /// Looks how the disks of the OSTs here are. Waits for nothing.
    pub(crate) fn look_at_disks(&self) {
        let first = self.joined.get().map_or(0, |(_, first)| *first);
        self.replication.look_at_disks(Here { osts: &self.osts, first });
    }

    /// Sessions with requests that may wait for a disk here that stands still.
    fn held_up(&self) -> Vec<u64> {
        match self.osts.holds_up_clients() {
            true => self.sessions.under_way(SESSIONS_HELD_UP_MAX),
            false => Vec::new(),
        }
    }

    /// Has members here taken out of their chains whose disks stand still.
    pub(crate) async fn give_up_still(&self) {
        if self.joined.get().is_some() {
            self.replication.give_up_still(self.here().await).await;
        }
    }

    /// Begins to bring data to stable storage and to seal objects that were left alone for `idle`,
    /// every commit interval.
    pub(crate) async fn settle(&self, idle: Duration) {
        self.replication.settle_osts(&self.osts, idle).await;
        self.osts.retain_grants(|client| self.sessions.knows(client));
    }

    /// Longest time between two calls of [`Oss::settle`].
    pub(crate) fn commit_interval(&self) -> Duration {
        self.settings.commit_interval
    }

    /// Compares some more data with its checksums. Returns whether there is more to do at once.
    pub(crate) fn scrub_some(&self) -> bool {
        self.scrubbing.step(&self.osts, &*self.records)
    }

    /// Loads some objects that were read most before the start, and keeps which are read most.
    pub(crate) fn warm_some(&self) {
        self.warm_start.step_objects(&*self.records, &self.osts);
    }

    /// Has objects that a scrub found damaged written anew from other copies.
    pub(crate) async fn repair_some(&self) {
        if self.joined.get().is_none() {
            return;
        }
        let layout_of = async |object: ObjectId| self.layout_of(object.ino).await;
        self.repairs.begin(self.here().await, &self.replication, layout_of).await;
    }

    /// The OSTs here.
    pub(crate) fn ost_set(&self) -> &OstSet<D> {
        &self.osts
    }

    /// Keeps what is read most for the next start.
    pub(crate) async fn keep_hot(&self) {
        self.warm_start.keep(&*self.records, None, &self.osts).await;
    }

    /// The last thing before the end: everything accepted is on stable storage after it.
    pub async fn settle_last(&self) -> FsResult<()> {
        self.keep_hot().await;
        self.replication.settle_last(&self.osts).await
    }

    /// For whom it waits before it is a part of its file system, and why.
    pub fn trouble(&self) -> String {
        self.liaison.trouble()
    }

    fn fs_uuid(&self) -> u128 {
        self.joined.get().map_or_else(|| self.records.file_system(), |(uuid, _)| *uuid)
    }

    /// The MDS has said which file system this is.
    fn joined(&self, orders: &Orders, secret: &[u8; SECRET_BYTES]) -> Result<(), String> {
        let said = (orders.fs_uuid, orders.first_ost);
        if self.records.file_system() == 0 && self.joined.get().is_none() {
            self.records.store_file_system(orders.fs_uuid).map_err(|error| error.to_string())?;
        }
        self.key.get_or_init(|| Key::new(secret));
        let is_same = *self.joined.get_or_init(|| said) == said;
        self.until_joined.wake();
        match is_same {
            true => Ok(()),
            false => Err("it serves another file system now".into()),
        }
    }

    /// The MDS knows which OSTs were replaced.
    fn replaced_is_known(&self) {
        let mut replaced = self.replaced.lock();
        if replaced.is_empty() {
            return;
        }
        match self.records.forget_replaced() {
            Ok(()) => replaced.clear(),
            Err(error) => tracing::error!(
                %error, "could not note that the MDS knows of a replaced OST; it is told again"
            ),
        }
    }

    /// Destroys objects, and whatever clients might still want to do to them. Returns those that
    /// are still there.
    async fn destroy(&self, objects: &[(u16, ObjectId)]) -> Result<Vec<ObjectId>, String> {
        let (change, failed) = self.osts.destroy(objects).await;
        let committed = self.replication.commit(self.here().await).await;
        committed.map_err(|errno| errno.to_string())?;
        self.boot_history.durable(&*self.records, change).map_err(|error| error.to_string())?;
        let removed = objects.iter().map(|(_, object)| *object);
        self.replication.are_removed(removed.filter(|object| !failed.contains(object)));
        Ok(failed)
    }

    /// Why nothing can be called durable any more, if that is so; then the server should end.
    pub fn failure(&self) -> Option<String> {
        let first = self.joined.get().map_or(0, |(_, first)| *first);
        self.replication.failure(Here { osts: &self.osts, first })
    }

    /// Whether an OST here has failed and is used again only by the next run.
    pub fn has_failed_ost(&self) -> bool {
        self.osts.has_failed_one()
    }

    /// How things are, in a few words.
    pub fn in_short(&self) -> String {
        let available = human_bytes(SpaceInfo::sum(self.osts.spaces()).available);
        format!("available {available}  clients {}", self.sessions.all().len())
    }
}

impl<D: Disk> AsksMds for Oss<D> {
    fn objects_of(&self, target: u16, after: ObjectId) -> Asked<'_, ObjectPage> {
        Box::pin(async move {
            match self.liaison.ask(OssRequest::Objects { target, after }).await? {
                OssReply::Objects(page) => Ok(page),
                _ => Err(Errno::EPROTO),
            }
        })
    }

    fn layout_of(&self, ino: Ino) -> Asked<'_, Option<Layout>> {
        Box::pin(async move {
            match self.liaison.ask(OssRequest::Layout(ino)).await? {
                OssReply::Layout(layout) => Ok(layout),
                _ => Err(Errno::EPROTO),
            }
        })
    }

    fn tell_of_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> Asked<'_, Chain> {
        Box::pin(async move {
            loop {
                match self.liaison.ask(OssRequest::Member { chain, ost, event }).await? {
                    OssReply::Chain { row, is_settled: true } => return Ok(row),
                    OssReply::Chain { .. } => host::sleep(ASK_AGAIN).await,
                    _ => return Err(Errno::EPROTO),
                }
            }
        })
    }
}
