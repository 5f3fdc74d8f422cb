//! Several servers as one transport: that of the MDS, and those that have OSTs beside it.
//!
//! Invariants:
//! - At every server this client is the same one, in the session that the MDS has named. When the
//!   MDS evicts it, nothing from before that is sent to an OSS any more.
//! - At the end all servers are told at the same time: many that do not answer take no longer than
//!   one.

mod chain_calls;
mod head_retry;
mod many_reads;
mod settle;

use crate::client::chain_rows::ChainRows;
use crate::client::cluster::head_retry::HeadRetry;
use crate::client::moved::{MovedChange, WaitingChange};
use crate::client::recovery::abandoned::ObjectToSync;
use crate::client::recovery::resent::ResentChange;
use crate::client::remote::{Remote, RemoteOptions};
use crate::client::transport::{Durability, MdsSession, OstRequests, PeerRequests, Transport};
use crate::transport::stream::Address;
use crate::{host, tls};
use futures_util::future::join_all;
use glint_proto::chain::{ChainId, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::message::{ObjectRead, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{
    Bulk, Capability, ClientId, Errno, FsResult, Ino, LocalObject, ObjectId, OstReply, OstRequest,
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Pauses before a member of a chain is asked again that has not heard of the row.
const AGAIN_MIN: Duration = Duration::from_millis(5);
const AGAIN_MAX: Duration = Duration::from_millis(200);
/// After this time it is looked whether a chain that has not answered has another head.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

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

impl Oss {
    fn has(&self, ost: u16) -> bool {
        (self.first_ost..self.first_ost + self.osts).contains(&ost)
    }
}

/// All servers of a file system; `M` leads to the one of the MDS.
pub struct Cluster<M> {
    mds: M,
    welcome: Welcome,
    tls: Option<tls::TlsIdentity>,
    mount_point: String,
    osses: RwLock<Vec<Oss>>,
    rows: Arc<ChainRows>,
    /// By chain: held while that is sent again which an old head of the chain may lose.
    sending_moved: Mutex<HashMap<u16, Arc<futures_util::lock::Mutex<()>>>>,
}

impl<M> Drop for Cluster<M> {
    fn drop(&mut self) {
        self.osses.get_mut().iter().for_each(|oss| oss.remote.stop());
    }
}

impl<M: Transport> Cluster<M> {
    /// The servers of the file system that `mds` leads to. The others are spoken to as `tls`,
    /// if that is given.
    pub fn new(mds: M, tls: Option<tls::TlsIdentity>, mount_point: String) -> Cluster<M> {
        let welcome = mds.mds().welcome();
        let (osses, rows, sending_moved) = Default::default();
        let cluster =
            Cluster { mds, welcome: welcome.clone(), tls, mount_point, osses, rows, sending_moved };
        cluster.mds.share_rows(&cluster.rows);
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
                Ok(remote) => {
                    remote.share_rows(&self.rows);
                    known.push(Oss {
                        first_ost: oss.first_ost,
                        osts: oss.osts,
                        remote: Arc::new(remote),
                    });
                }
                Err(error) => tracing::error!(
                    server = oss.address, %error,
                    "could not connect to a server of OSTs; its files cannot be read or written"
                ),
            }
        }
    }

    fn find(&self, ost: u16) -> Option<Arc<Remote>> {
        self.osses.read().iter().find(|oss| oss.has(ost)).map(|oss| oss.remote.clone())
    }

    /// The first OST of the server that has this one, as far as that is known.
    fn server_of(&self, ost: u16) -> u16 {
        let osses = self.osses.read();
        match osses.iter().find(|oss| oss.has(ost)) {
            Some(oss) => oss.first_ost,
            None if ost < self.welcome.own_osts => 0,
            None => ost,
        }
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
        to: Destination,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        match ChainId::of_target(to.ost) {
            Some(_) => self.ask_chain(to.ost, request, capability, bulk, is_held).await,
            None => self.ask_ost(to, request, capability, bulk, is_held).await,
        }
    }

    async fn read_objects(&self, reads: Vec<ObjectRead>, says: &dyn Fn(usize, FsResult<Vec<u8>>)) {
        self.read_of_servers(reads, says).await;
    }

    async fn hand_out(&self, ost: u16, object: ObjectId) -> FsResult<Option<Arc<dyn LocalObject>>> {
        if ost < self.welcome.own_osts { self.mds.hand_out(ost, object).await } else { Ok(None) }
    }
}

impl<M: Transport + PeerRequests> PeerRequests for Cluster<M> {
    async fn forward(
        &self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        if to.ost < self.welcome.own_osts {
            return self.mds.forward(to, forward, request, bulk).await;
        }
        self.oss_of(to.ost).await?.forward(to, forward, request, bulk).await
    }

    async fn peer(&self, ost: u16, request: PeerRequest) -> FsResult<PeerReply> {
        if ost < self.welcome.own_osts {
            return self.mds.peer(ost, request).await;
        }
        self.oss_of(ost).await?.peer(ost, request).await
    }
}

impl<M: Transport> Cluster<M> {
    /// Asks the server of an OST.
    async fn ask_ost(
        &self,
        to: Destination,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        let answer = match to.ost < self.welcome.own_osts {
            true => self.mds.ost(to, request, capability, bulk, is_held).await,
            false => self.oss_of(to.ost).await?.ost(to, request, capability, bulk, is_held).await,
        };
        if let (Ok(_), OstRequest::Sync { .. }, Some(by)) = (&answer, request, to.chain) {
            self.rows.resent.on_synced((to.ost, by));
        }
        answer
    }

    /// Has everything of this client at an OSS be on stable storage, or be sent elsewhere: one that
    /// was the head of chains may never come back.
    async fn commit_at(&self, remote: &Remote) -> FsResult<()> {
        let moved = async {
            while remote.has_uncommitted() {
                host::sleep(LOOK_AGAIN).await;
                self.ask_rows(Duration::ZERO).await?;
                self.send_to_moving().await;
            }
            Ok(())
        };
        futures_lite::future::or(remote.until_stable(), moved).await
    }

    /// The same for the server of the MDS, which is waited for until it is back.
    async fn commit_at_mds(&self) -> FsResult<()> {
        let moved = async {
            loop {
                host::sleep(LOOK_AGAIN).await;
                // The commit sees what fails here.
                let _ = self.ask_rows(Duration::ZERO).await;
                self.send_to_moving().await;
            }
        };
        futures_lite::future::or(self.mds.until_stable(), moved).await
    }

    /// Waits, and asks the MDS for the rows of the chains if nobody has just done so.
    async fn ask_rows(&self, pause: Duration) -> FsResult<()> {
        // Whoever waits for one of these asks for rows meanwhile.
        self.adopt_left_everywhere();
        if self.rows.is_due(pause) {
            let inquiry = self.rows.inquire();
            let mut servers = None;
            if inquiry.is_one_waiting() {
                servers = self.mds().osses().await.ok().map(|osses| {
                    let own = std::iter::once(0..self.welcome.own_osts);
                    let osts = osses.iter().map(|oss| oss.first_ost..oss.first_ost + oss.osts);
                    own.chain(osts).collect::<Vec<Range<u16>>>()
                });
            }
            let told = self.mds().chains().await;
            let servers = servers.as_deref().filter(|_| told.is_ok());
            self.rows.hear(&inquiry, servers, told.clone().unwrap_or_default());
            told?;
        }
        host::sleep(pause).await;
        Ok(())
    }

    /// Sends to a chain what its old head may lose, before anything else is sent to it.
    async fn send_moved(&self, target: u16) {
        if self.rows.moved.is_moving(target) {
            let sending = self.sending_moved.lock().entry(target).or_default().clone();
            let _sending = sending.lock().await;
            let Some(moves) = self.rows.moved.moves_of(target) else { return };
            self.mds.move_chain(target);
            self.osses.read().iter().for_each(|oss| oss.remote.move_chain(target));
            if self.send_all_moved(target).await && self.settle_abandoned(target).await {
                self.rows.moved.on_sent(target, moves);
            }
        }
    }

    /// Sends it. Returns whether that was all. What other members have, too, is not sent, but brought to
    /// stable storage once ([`Cluster::settle_server_of`]). (A file may be gone since, and nobody must make
    /// its objects anew.)
    async fn send_all_moved(&self, target: u16) -> bool {
        let moved = &self.rows.moved;
        let mut retry = HeadRetry::new();
        // What had come here when the server settled.
        let mut settled = 0;
        while let Some(WaitingChange { number, change: waiting }) = moved.first(target) {
            let object = waiting.object;
            let Some(change) = MovedChange::of(waiting) else {
                moved.remove(target, number);
                continue;
            };
            let is_there = change.chain.is_some_and(|chain| self.rows.is_intact(chain));
            if is_there && number <= settled {
                moved.remove(target, number);
                continue;
            }
            let last = moved.last();
            let (request, bulk) = match is_there {
                true => (OstRequest::Sync { object: object.1 }, Bulk::None),
                false => (change.request, change.bulk()),
            };
            let near = |ost| self.is_near(ost);
            let Some(to) = self.rows.destination(target, &request, near) else {
                if !self.rows.is_lost(target) {
                    return false;
                }
                moved.give_up(target, number, object.1, Errno::ENXIO);
                continue;
            };
            // Not for a client that has been evicted meanwhile.
            let is_held = || moved.is_there(target, number);
            let sent = async {
                // One that was dropped might come after this, and after what is newer.
                if let Some(by) = to.chain {
                    self.rows.until_none_resent(by).await;
                }
                let row = to.chain.filter(|_| !is_there);
                let of = ObjectToSync { object: object.1, capability: change.capability };
                let resent = row.map(|by| ResentChange::new(&self.rows, (to.ost, by), of));
                if is_there {
                    // By one row, before and after: the head has taken over, and is the head still.
                    self.ask_ost(to, request, change.capability, Bulk::None, &is_held).await?;
                    self.settle_server_of(to.ost).await?;
                }
                let answer = self.ask_ost(to, request, change.capability, bulk, &is_held).await;
                drop(resent);
                answer
            };
            match self.answer_of_head(target, &request, to, &mut retry, sent).await {
                None => {}
                Some(Ok(_)) => {
                    if is_there {
                        settled = last;
                    }
                    moved.remove(target, number);
                }
                Some(Err(errno)) => moved.give_up(target, number, object.1, errno),
            }
        }
        // One of a file whose lock is being returned waits here no more, and may still be made.
        self.until_none_resent(target).await;
        true
    }

    /// Whether an OST is read before others: it is in this process.
    fn is_near(&self, ost: u16) -> bool {
        self.mds().identity().is_in_process() && ost < self.welcome.own_osts
    }
}

impl<M: Transport> Durability for Cluster<M> {
    async fn commit(&self) -> FsResult<()> {
        loop {
            self.send_to_moving().await;
            // What comes here and leaves meanwhile may reach a server after it has committed.
            let sent = self.rows.moved.last_if_empty();
            self.commit_everywhere().await?;
            match self.rows.moved.last_if_empty() {
                Some(last) if sent == Some(last) => return Ok(()),
                Some(_) => continue,
                None => {}
            }
            host::sleep(LOOK_AGAIN).await;
            self.ask_rows(Duration::ZERO).await?;
        }
    }

    fn has_uncommitted(&self) -> bool {
        let osses = self.osses.read();
        self.mds.has_uncommitted()
            || !self.rows.moved.is_empty()
            || osses.iter().any(|oss| oss.remote.has_uncommitted())
    }

    async fn send_again(&self) {
        self.send_to_moving().await;
        if !self.rows.moved.moving().is_empty() {
            // Nobody is the head of some chain. What fails here is asked again.
            let _ = self.ask_rows(LOOK_AGAIN).await;
        }
    }

    fn unstable(&self, ino: Ino) -> Vec<(u16, ObjectId)> {
        let mut objects = self.mds.unstable(ino);
        objects.extend(self.rows.moved.objects_of(ino));
        for oss in &*self.osses.read() {
            objects.extend(oss.remote.unstable(ino));
        }
        objects
    }

    // All sessions of a process have one budget.
    fn limit_uncommitted(&self, steps: u32) {
        self.mds.limit_uncommitted(steps);
    }

    fn uncommitted_steps(&self) -> u32 {
        self.mds.uncommitted_steps()
    }

    async fn abandon(&self, ino: Ino) {
        self.abandon_kept(ino).await;
        self.until_answered(Some(ino)).await;
        // Once more after none was seen, waited for or not: one that was answered since its server was
        // looked at is in the log there, and was noted as sent again until it was. Sends nothing.
        self.abandon_kept(ino).await;
    }

    async fn until_answered(&self, ino: Option<Ino>) {
        let is_meant = |of: Ino| ino.is_none_or(|ino| ino == of);
        if !self.rows.is_resent(is_meant) {
            return;
        }
        if let Some(ino) = ino {
            tracing::warn!(
                %ino,
                "a change that is sent again to the head of a chain has no answer; the lock of its \
                file is not returned before that, or before another head has taken over"
            );
        }
        // Apart from the state of each return: it is rare, and has much more.
        Box::pin(self.until_not_resent(is_meant)).await;
    }

    fn take_failure(&self, ino: Ino) -> Option<Errno> {
        let osses = self.osses.read();
        let of_osses = || osses.iter().find_map(|oss| oss.remote.take_failure(ino));
        let moved = || self.rows.moved.take_failure(ino);
        self.mds.take_failure(ino).or_else(moved).or_else(of_osses)
    }
}

impl<M: Transport> Cluster<M> {
    async fn commit_everywhere(&self) -> FsResult<()> {
        // One that has nothing of this client is not waited for, and no failure skips the MDS.
        let all: Vec<Arc<Remote>> = {
            let osses = self.osses.read();
            let has = |remote: &Arc<Remote>| remote.has_uncommitted();
            osses.iter().map(|oss| oss.remote.clone()).filter(has).collect()
        };
        let osses = join_all(all.iter().map(|remote| self.commit_at(remote))).await;
        self.commit_at_mds().await.and(osses.into_iter().collect())
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
