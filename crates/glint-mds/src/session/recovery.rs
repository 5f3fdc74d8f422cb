//! After a restart: clients of the last run come back, say what they have open and, where
//! the disk lost what was not synced, do again what they remember.
//!
//! Invariants:
//! - Until all clients of the last run have come back, or their time is over, nothing new
//!   is executed where transactions may be missing: it could take the place of what is
//!   still to be replayed. That holds for the runs that follow, until one ends the wait.
//! - Nor is anything where clients hold locks: nobody is given what another one still has, and
//!   says again.
//! - Until then nothing that a client may still have open is removed.
//! - What belonged to the last run – replays, locks, directories of one's own – is taken only from
//!   clients that are waited for: others would name as theirs what is not.
//! - A client is waited for until it has said everything, or can do nothing any more: while it is
//!   being evicted, the others go on waiting.

use crate::background::reaper::Targets;
use crate::error::errno;
use crate::service::Mds;
use crate::session::context::Context;
use crate::session::sessions::SessionInfo;
use crate::store::keys;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::watch::{Moment, Watch};
use glint_proto::{ClientId, Errno, FsResult, Ino, MdsReply, MdsRequest, PosixLock, PosixLockHow};
use glint_telemetry::event;
use glint_wait::Monitor;
use parking_lot::MutexGuard;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// For how many leases a client is waited for that goes on speaking.
const LEASES_MAX: u32 = 10;

/// A client that is waited for.
struct Returning {
    /// Time until which it has to speak, or is evicted.
    until: Moment,
    is_evicted: bool,
}

#[derive(Default)]
struct AwaitedClients {
    waiting: HashMap<ClientId, Returning>,
    /// How long a client may be silent, and until when all have to be done.
    patience: Duration,
    end: Moment,
}

/// Clients of the last run that may still reclaim.
#[derive(Default)]
pub(crate) struct Recovery {
    watch: Arc<Watch>,
    /// Somebody is waited for.
    active: AtomicBool,
    /// New requests wait, too.
    blocks: AtomicBool,
    /// META_REPLAYING is on disk and has to be deleted.
    replayed: AtomicBool,
    /// Clients that are awaited; new requests wait here.
    state: Monitor<AwaitedClients>,
}

impl Recovery {
    /// Clients are late by this watch.
    pub(crate) fn new(watch: Arc<Watch>) -> Recovery {
        Recovery { watch, ..Recovery::default() }
    }

    /// Begins to wait for `clients`.
    pub(crate) fn begin(
        &self,
        clients: HashSet<ClientId>,
        time: Duration,
        replays: bool,
        locks: bool,
    ) {
        if clients.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let (now, until) = (self.watch.now(), self.watch.now() + time);
        let returning = |client| (client, Returning { until, is_evicted: false });
        state.waiting = clients.into_iter().map(returning).collect();
        state.patience = time;
        state.end = now + time * LEASES_MAX;
        self.blocks.store(replays || locks, Ordering::Release);
        self.replayed.store(replays, Ordering::Release);
        self.active.store(true, Ordering::Release);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Whether a client of the last run is waited for.
    pub(crate) fn waits_for(&self, client: ClientId) -> bool {
        self.is_active() && self.state.lock().waiting.contains_key(&client)
    }

    /// Whether a client of the last run is still to say what it had; with `replays`, also what
    /// it did and was lost. While it does, it is waited for.
    fn admit(&self, client: ClientId, replays: bool) -> bool {
        if !self.is_active() || (replays && !self.replayed.load(Ordering::Acquire)) {
            return false;
        }
        let mut state = self.state.lock();
        let until = state.end.min(self.watch.now() + state.patience);
        let returning = state.waiting.get_mut(&client).filter(|returning| !returning.is_evicted);
        returning.map(|returning| returning.until = until).is_some()
    }

    /// A client that is waited for writes again what was lost: it has not said everything, and is
    /// not late.
    pub(crate) fn note_at_work(&self, client: ClientId) {
        self.admit(client, false);
    }

    /// A client has come back and said everything.
    pub(crate) fn returned(&self, client: ClientId) {
        self.forget(client, false);
    }

    /// An evicted client can do nothing any more.
    fn evicted(&self, client: ClientId) {
        self.forget(client, true);
    }

    fn forget(&self, client: ClientId, is_evicted: bool) {
        let mut state = self.state.lock();
        if state.waiting.get(&client).is_none_or(|returning| returning.is_evicted != is_evicted) {
            return;
        }
        state.waiting.remove(&client);
        if state.waiting.is_empty() {
            self.end(state);
        }
    }

    fn end(&self, state: MutexGuard<'_, AwaitedClients>) {
        self.active.store(false, Ordering::Release);
        self.blocks.store(false, Ordering::Release);
        drop(state);
        self.state.wake();
    }

    /// Clients that did not come in time, or `are_silent` meanwhile. They are waited for until
    /// they are fenced.
    fn overdue(&self, are_silent: impl Fn(ClientId) -> bool) -> Vec<ClientId> {
        if !self.is_active() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let mut overdue = Vec::new();
        for (client, returning) in &mut state.waiting {
            // Messages of a live client may lie with a thread that stands still.
            returning.is_evicted |= self.watch.is_over(returning.until, Duration::ZERO)
                || (self.watch.is_silent(returning.until, Duration::ZERO) && are_silent(*client));
            overdue.extend(returning.is_evicted.then_some(*client));
        }
        overdue.sort_unstable();
        overdue
    }

    /// Parks a new request until it may be executed.
    pub(crate) async fn permits_new(&self) {
        let is_free = || !self.blocks.load(Ordering::Acquire);
        if !is_free() {
            self.state.until(|_| is_free().then_some(())).await;
        }
    }
}

impl<K: Kv> Mds<K> {
    /// Waits until a request may be executed, or says that it may not.
    pub(crate) async fn admit(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
    ) -> FsResult<()> {
        let is_replay = context.is_replay();
        let is_admitted = || self.recovery.admit(context.client, is_replay);
        match request {
            _ if is_replay => is_admitted().then_some(()).ok_or(Errno::ESTALE),
            // A client that makes changes by itself after the restart begins with asking for
            // numbers.
            MdsRequest::ReclaimDelegation { .. }
            | MdsRequest::WritesBack { .. }
            | MdsRequest::Lock { reclaim: true, .. }
            | MdsRequest::PosixLock(PosixLock { how: PosixLockHow::Reclaim, .. }) => {
                is_admitted().then_some(()).ok_or(Errno::ESTALE)
            }
            // Clients also send it when they go on after an eviction, and when OPEN is recalled.
            // Inodes that are to be replayed are not there yet.
            MdsRequest::Reopen { ino, .. } | MdsRequest::AddOpens { ino, .. } => {
                let is_there = is_admitted() || self.find_inode(*ino).await?.is_some();
                is_there.then_some(()).ok_or(Errno::ENOENT)
            }
            _ => {
                self.recovery.permits_new().await;
                Ok(())
            }
        }
    }

    /// The batch of a create survived, but that it left the file open did not; nor that a close is one
    /// open less than its client has said, who has not heard of it.
    pub(crate) async fn recover_open(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
        reply: &FsResult<MdsReply>,
    ) -> FsResult<()> {
        context.begin()?;
        let opened = self.recover_known(context, request, reply);
        context.end();
        let Some((ino, write)) = opened else { return Ok(()) };
        // Others may have been told since that nobody writes the file.
        let add = async || self.add_opened(context, ino, write).await;
        self.claiming(context, request, add).await.map(drop)
    }

    /// Recovers what asks nobody. Returns what has been opened.
    fn recover_known(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
        reply: &FsResult<MdsReply>,
    ) -> Option<(Ino, bool)> {
        let write = match request {
            MdsRequest::Create { open: Some(flags), .. } => flags.write,
            MdsRequest::Open { flags, .. } => flags.write,
            MdsRequest::Tmpfile { .. } => true,
            MdsRequest::Batch { changes, .. } => {
                if let Ok(MdsReply::Batched { done, .. }) = reply {
                    self.recover_batch(context, changes, *done);
                }
                return None;
            }
            MdsRequest::Release { ino, write, .. } => {
                if reply.is_ok() && self.opens.remove(context.client, *ino, *write, None).gone {
                    self.orphans.fetch_add(1, Ordering::AcqRel);
                }
                return None;
            }
            _ => return None,
        };
        match reply {
            Ok(MdsReply::Opened { attr, .. } | MdsReply::Attr(attr)) => Some((attr.ino, write)),
            _ => None,
        }
    }

    /// A client has come back and said everything.
    pub fn recovered(&self, client: ClientId) {
        self.recovery.returned(client);
    }

    /// Clients of the last run that are waited for.
    pub fn awaited(&self) -> Vec<SessionInfo> {
        let awaited: HashSet<_> = self.recovery.state.lock().waiting.keys().copied().collect();
        let mut infos = self.sessions();
        infos.retain(|info| awaited.contains(&info.client));
        infos.sort_unstable_by_key(|info| info.client);
        infos
    }

    /// Whether clients of the last run are waited for.
    pub fn is_recovering(&self) -> bool {
        self.recovery.is_active()
    }

    /// Evicts clients that did not come back.
    pub(crate) async fn end_recovery(&self, targets: &impl Targets) -> FsResult<()> {
        let lost = self.recovery.replayed.load(Ordering::Acquire);
        if !self.recovery.is_active() && self.recovery.replayed.swap(false, Ordering::AcqRel) {
            let mut batch = Batch::new();
            batch.delete(Keyspace::Meta, keys::META_REPLAYING);
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        let loss = match lost {
            true => "what it had not synced before the server lost power is lost",
            false => "nothing that was acknowledged is lost",
        };
        let lease = self.config.lease;
        let overdue = self.recovery.overdue(|client| self.is_silent(client, lease));
        for client in overdue.iter().copied() {
            if !self.is_ending(client)
                && let Some(SessionInfo { host, mount_point, .. }) = self.session(client)
            {
                tracing::warn!(
                    event = event::CLIENT_EVICTED, %client, host, mount_point,
                    "client did not come back within {} s and is evicted: {loss}; its open files \
                     are closed", lease.as_secs()
                );
                self.evict(client, targets);
            }
        }
        self.forget_quiet(targets).await?;
        for client in overdue.into_iter().filter(|client| !self.is_ending(*client)) {
            self.recovery.evicted(client);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Config;
    use futures_lite::future::{block_on, poll_once};
    use glint_kv::memory::MemoryKv;
    use glint_proto::MetadataService;
    use glint_proto::clock;
    use glint_proto::{Arrival, Attr, Cred, Ino, Layout, OpenFlags, Owner, RequestId, Session};
    use std::time::Instant;

    /// Time passes for a recovery that goes on for ten seconds.
    struct Time {
        recovery: Recovery,
        now: Instant,
    }

    impl Time {
        fn begin() -> Time {
            let now = Instant::now();
            clock::simulate(Some(now));
            let recovery = Recovery::default();
            let clients = HashSet::from([ClientId(1), ClientId(2)]);
            recovery.begin(clients, Duration::from_secs(10), false, true);
            Time { recovery, now }
        }

        fn pass(&mut self, seconds: u64) {
            for _ in 0..2 * seconds {
                self.now += Duration::from_millis(500);
                clock::simulate(Some(self.now));
                self.recovery.watch.look();
            }
        }
    }

    #[test]
    fn new_requests_wait_for_all_who_may_come_back() {
        let mut time = Time::begin();
        assert!(time.recovery.admit(ClientId(1), false), "it is waited for");
        assert!(!time.recovery.admit(ClientId(1), true), "nothing was lost");
        assert!(!time.recovery.admit(ClientId(3), false), "it was not there");
        assert!(block_on(poll_once(&mut Box::pin(time.recovery.permits_new()))).is_none());
        time.recovery.returned(ClientId(1));
        assert!(block_on(poll_once(&mut Box::pin(time.recovery.permits_new()))).is_none());
        assert!(time.recovery.overdue(|_| false).is_empty());
        time.pass(11);
        assert_eq!(time.recovery.overdue(|_| false), [ClientId(2)]);
        let mut new = Box::pin(time.recovery.permits_new());
        time.recovery.returned(ClientId(3));
        time.recovery.returned(ClientId(2));
        assert!(block_on(poll_once(&mut new)).is_none(), "before it is fenced");
        time.recovery.evicted(ClientId(2));
        assert!(block_on(poll_once(&mut new)).is_some());
        assert!(!time.recovery.is_active());
        clock::simulate(None);
    }

    #[test]
    fn who_writes_again_what_was_lost_is_waited_for() {
        let mut time = Time::begin();
        for _ in 0..3 {
            time.pass(8);
            time.recovery.note_at_work(ClientId(1));
        }
        assert_eq!(time.recovery.overdue(|_| false), [ClientId(2)]);
        time.pass(11);
        assert_eq!(time.recovery.overdue(|_| false), [ClientId(1), ClientId(2)]);
        clock::simulate(None);
    }

    #[test]
    fn who_goes_on_speaking_is_waited_for() {
        let mut time = Time::begin();
        time.pass(8);
        assert!(time.recovery.admit(ClientId(1), false));
        time.pass(8);
        assert_eq!(time.recovery.overdue(|_| false), [ClientId(2)]);
        for _ in 0..20 {
            time.pass(8);
            time.recovery.admit(ClientId(1), false);
        }
        assert_eq!(time.recovery.overdue(|_| false), [ClientId(1), ClientId(2)], "not for ever");
        clock::simulate(None);
    }

    /// A run of an MDS on this disk.
    fn start(kv: &Arc<MemoryKv>, boot_verifier: u64, after_power_loss: bool) -> Mds<Arc<MemoryKv>> {
        let config = Config {
            osts: 2,
            lease: Duration::from_secs(30),
            layout: Layout::default(),
            commit_sync: false,
            after_power_loss,
            mounted: false,
            locks: true,
            hash_seed: Some(1),
            boot_verifier,
        };
        block_on(Mds::start(kv.clone(), config)).unwrap()
    }

    fn connect(mds: &Mds<Arc<MemoryKv>>, client: u64) -> Arc<Session> {
        let owner = Owner { certificate: None, secret: 0 };
        block_on(mds.connect(ClientId(client), owner, "", "")).unwrap().1
    }

    #[test]
    fn a_replay_makes_only_what_was_lost() {
        let kv = Arc::new(MemoryKv::default());
        let xid = std::cell::Cell::new(0);
        let ask = |mds: &Mds<_>, session: &Session, name: &[u8], replay: Option<MdsReply>| {
            xid.set(xid.get() + 1);
            let id = Some(RequestId { client: session.client(), slot: 0, xid: xid.get() });
            let (session, digest) = (Some(session), xid.get() as u32);
            let arrival = Arrival { session, id, digest, replay, ..Arrival::default() };
            let request = MdsRequest::Create {
                parent: Ino::ROOT,
                name,
                mode: 0o100644,
                umask: 0,
                rdev: 0,
                target: b"",
                open: None,
                exclusive: true,
            };
            block_on(mds.handle(&arrival, &Cred::ROOT, &request)).reply
        };
        let attr = |reply: FsResult<MdsReply>| match reply {
            Ok(MdsReply::Attr(attr)) => attr,
            other => panic!("{other:?}"),
        };

        let mds = start(&kv, 100, false);
        let client = connect(&mds, 7);
        let kept = attr(ask(&mds, &client, b"kept", None));
        block_on(mds.sync()).unwrap();
        let lost = attr(ask(&mds, &client, b"lost", None));
        let replay = |ino, osts| {
            let layout = Layout { osts, ..lost.layout };
            Some(MdsReply::Attr(Attr { ino, layout, ..lost.clone() }))
        };
        assert_eq!(
            ask(&mds, &client, b"x", replay(lost.ino, 2)),
            Err(Errno::ESTALE),
            "no recovery"
        );
        drop(mds);

        kv.lose_power();
        let mds = start(&kv, 200, true);
        let client = connect(&mds, 7);
        let stranger = connect(&mds, 8);
        assert_eq!(ask(&mds, &stranger, b"x", replay(lost.ino, 2)), Err(Errno::ESTALE));
        for ino in [0, 1, 1 << 40, 1 << 63, u64::MAX - (1 << 19), u64::MAX] {
            assert_eq!(ask(&mds, &client, b"x", replay(Ino(ino), 2)), Err(Errno::EINVAL), "{ino}");
        }
        assert_eq!(ask(&mds, &client, b"x", replay(kept.ino, 2)), Err(Errno::EEXIST));
        assert_eq!(ask(&mds, &client, b"x", replay(lost.ino, 3)), Err(Errno::EINVAL), "two OSTs");
        mds.client_locks.recalls.expect(client.client());
        assert_eq!(attr(ask(&mds, &client, b"lost", replay(lost.ino, 2))), lost);
        assert_eq!(mds.lock_counts(), (0, 0), "others may reclaim theirs");
        mds.recovered(ClientId(7));
        attr(ask(&mds, &client, b"new", None));
        assert_eq!(mds.lock_counts(), (1, 0));
        assert_eq!(ask(&mds, &client, b"y", replay(Ino(lost.ino.0 + 1), 2)), Err(Errno::ESTALE));
    }

    /// A client says first what it has open now, and then what it did before.
    #[test]
    fn a_replayed_close_leaves_open_what_was_opened_after_it() {
        let kv = Arc::new(MemoryKv::default());
        let xid = std::cell::Cell::new(0);
        let ask = |mds: &Mds<_>, session: &Session, request: MdsRequest<'_>, replay| {
            xid.set(xid.get() + 1);
            let id = Some(RequestId { client: session.client(), slot: 0, xid: xid.get() });
            let (session, digest) = (Some(session), xid.get() as u32);
            let arrival = Arrival { session, id, digest, replay, ..Arrival::default() };
            block_on(mds.handle(&arrival, &Cred::ROOT, &request)).reply.unwrap()
        };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let create = |open| MdsRequest::Create {
            parent: Ino::ROOT,
            name: b"f",
            mode: 0o100644,
            umask: 0,
            rdev: 0,
            target: b"",
            open,
            exclusive: true,
        };
        let mds = start(&kv, 100, false);
        let client = connect(&mds, 7);
        let made = ask(&mds, &client, create(Some(flags)), None);
        let MdsReply::Opened { attr, .. } = &made else { panic!("{made:?}") };
        let ino = attr.ino;
        let release = MdsRequest::Release { ino, write: true, wrote: Some((1, None)) };
        let open = MdsRequest::Open { ino, flags };
        ask(&mds, &client, release.clone(), None);
        let opened = ask(&mds, &client, open.clone(), None);
        drop(mds);

        kv.lose_power();
        let mds = start(&kv, 200, true);
        let client = connect(&mds, 7);
        let reopen = MdsRequest::Reopen { ino, readers: 0, writers: 1, capability: None };
        ask(&mds, &client, reopen, None);
        ask(&mds, &client, create(Some(flags)), Some(made));
        ask(&mds, &client, release.clone(), Some(MdsReply::Done));
        ask(&mds, &client, open, Some(opened));
        mds.recovered(ClientId(7));
        ask(&mds, &client, MdsRequest::Unlink { parent: Ino::ROOT, name: b"f" }, None);
        let attr = ask(&mds, &client, MdsRequest::Getattr { ino }, None);
        assert!(matches!(attr, MdsReply::Attr(Attr { nlink: 0, .. })), "{attr:?}");
        ask(&mds, &client, release, None);
        assert!(!mds.opens.is_open(ino));
    }

    #[test]
    fn what_an_earlier_run_asked_for_names_no_lock_of_this_one() {
        use glint_proto::lock::{Bits, Grant, Return};
        let kv = Arc::<MemoryKv>::default();
        let client = ClientId(7);
        let grant = |mds: &Mds<_>| {
            mds.client_locks.recalls.expect(client);
            let Some(Grant::Bits { number, .. }) =
                mds.client_locks.grant(client, Ino(5), Bits::ATTR)
            else {
                panic!("it is not given")
            };
            let lock = mds.client_locks.shard(Ino(5)).lock().extents.try_all(client, Ino(5), true);
            (number, lock.unwrap().number)
        };
        let mut mds = start(&kv, 100, false);
        let mut old = (0, 0);
        for _ in 0..100 {
            old = grant(&mds);
            mds.client_locks.shard(Ino(5)).lock().extents.evict(client, &mut vec![], &mut vec![]);
        }
        drop(mds);
        kv.lose_power();
        mds = start(&kv, 200, true);
        let new = grant(&mds);
        assert!(new > old, "{new:?} after {old:?}");
        mds.return_locks(
            client,
            &[
                Return::Bits { ino: Ino(5), bits: Bits::ALL, number: old.0 },
                Return::Data { ino: Ino(5), number: old.1 },
            ],
        );
        assert_eq!(mds.lock_counts(), (1, 1), "both are still held");
    }

    /// Servers of OSTs that do at once what they are told.
    struct Obedient;

    impl Targets for Obedient {
        async fn destroy(&self, _: &[(Ino, Layout)]) -> FsResult<u64> {
            Ok(0)
        }

        fn durable(&self) -> u64 {
            0
        }

        fn left(&self) -> Vec<Ino> {
            Vec::new()
        }

        fn fence(&self, _: u64) {}

        fn is_fenced(&self, _: u64) -> bool {
            true
        }
    }

    #[test]
    fn an_eviction_is_durable_before_others_have_its_locks() {
        let kv = Arc::<MemoryKv>::default();
        let mds = start(&kv, 100, false);
        let (a, b, c) = (connect(&mds, 7), connect(&mds, 8), connect(&mds, 9));
        block_on(mds.sync()).unwrap();
        let lock = |session: &Session| {
            let mut shard = mds.client_locks.shard(Ino(5)).lock();
            shard.extents.try_all(session.client(), Ino(5), true)
        };
        assert!(lock(&a).is_some() && lock(&b).is_none());
        let executing = c.enter().unwrap();
        for gone in [&c, &a] {
            mds.evict(gone.client(), &Obedient);
        }
        assert!(lock(&b).is_none(), "it is not forgotten yet");
        block_on(mds.forget_quiet(&Obedient)).unwrap();
        assert!(lock(&b).is_some());
        let is_moving = |session: &Session| mds.is_moving(&[], session.client());
        assert!(is_moving(&c) && !is_moving(&a), "what it still writes is not to be removed yet");
        drop((mds, executing));
        kv.lose_power();
        let mds = start(&kv, 200, true);
        assert!(!mds.knows(a.client()), "it would take its lock again");
        assert!(mds.knows(b.client()) && mds.knows(c.client()));
    }

    #[test]
    fn what_a_client_had_is_taken_only_in_a_recovery() {
        let mds = start(&Arc::default(), 100, false);
        let session = connect(&mds, 7);
        let id = Some(RequestId { client: session.client(), slot: 0, xid: 1 });
        let arrival = Arrival { session: Some(&session), id, ..Arrival::default() };
        let (ino, range, capability) = (Ino(5), glint_proto::lock::Range::ALL, None);
        let lock = MdsRequest::Lock { ino, range, write: true, reclaim: true, capability };
        let reopen = MdsRequest::Reopen { ino, readers: 1, writers: 1, capability };
        for (request, errno) in [
            (MdsRequest::ReclaimDelegation { ino: Ino::ROOT }, Errno::ESTALE),
            (MdsRequest::WritesBack { epoch: 1 }, Errno::ESTALE),
            (lock, Errno::ESTALE),
            (reopen, Errno::ENOENT),
        ] {
            let reply = block_on(mds.handle(&arrival, &Cred::ROOT, &request)).reply;
            assert_eq!(reply, Err(errno), "{request:?}");
        }
        assert!(!mds.opens.is_open(Ino(5)));
    }
}
