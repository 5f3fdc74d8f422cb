//! The session of a client with one server, which all of its threads share: who it is, what it has
//! open, what is not committed yet, and how far it is with a server that has started again.

mod commit;
mod eviction;
pub(crate) mod hello;
mod replaying;
mod run_log;

use crate::client::chain_rows::ChainRows;
use crate::client::cluster::ClientIdentity;
use crate::client::connection::slots::ConnectionNumbers;
use crate::client::connection::state::{Generation, RecoveryProgress};
use crate::client::opens::ClientOpens;
use crate::client::outage::Outage;
use crate::client::recovery::abandoned::LoggedChange;
use crate::client::recovery::replay::Retries;
use crate::client::recovery::replay_budget::ReplayBudget;
use crate::client::recovery::replay_log::{Kind, Object, ReplayLog};
use crate::client::remote::RemoteOptions;
use crate::client::session::hello::{hello_of, welcome_of};
use crate::transport::frame_writer::KeptFrame;
use crate::{LockClient, NetError};
use glint_proto::chain::{Chain, ChainId, SERVER_MOUNT_POINT};
use glint_proto::message::{Reply, Request, Survived, Welcome};
use glint_proto::{ClientId, Errno, Ino, clock};
use glint_wait::{Monitor, WaitList};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// Time at which a sync of an object was sent: the run of the server, and the changes that were
/// answered before.
#[derive(Clone, Copy)]
pub(crate) struct SyncMark {
    boot_verifier: u64,
    pub(crate) object: Object,
    mark: u64,
}

/// How far this client is with a server that has started again or evicted it.
pub(crate) struct Recovery {
    pub(crate) progress: RecoveryProgress,
    /// Numbering of replays that failed before.
    pub(crate) retries: Option<Retries>,
}

/// News of the welcomes that were taken last, on whichever connection.
struct Heard {
    /// Number of this session, as the MDS has named it.
    session: u64,
    /// Boot verifier of the server; 0 before the first welcome.
    boot_verifier: u64,
    /// Boot verifier under which the server said last that this client was evicted.
    evicted_in: u64,
    /// Changes of the session and of the boot verifier so far.
    changes: u64,
}

/// Mark of what was heard when a hello was sent. Neither sessions nor runs have numbers in their
/// order, so an answer that brings another one than others have brought meanwhile may be older than
/// theirs.
#[derive(Clone, Copy)]
pub(crate) struct HelloMark(u64);

/// The session of a client with one server.
pub(crate) struct ClientSession {
    pub(crate) options: RemoteOptions,
    host: String,
    /// Tells the sessions of this process apart.
    pub(crate) key: u64,
    heard: Mutex<Heard>,
    /// The number that OSSes are told. That of a new session is told them when nothing is left here
    /// of the old one: OSSes would take what is left for that of the new one.
    pub(crate) session_for_osses: Arc<AtomicU64>,
    /// Session that what is here is of, if the server is an OSS: as that was told last.
    told_session: Option<AtomicU64>,
    pub(crate) client: ClientId,
    pub(crate) secret: u128,
    pub(crate) welcome: Welcome,
    pub(crate) connection_numbers: Mutex<ConnectionNumbers>,
    pub(crate) opens: ClientOpens,
    pub(crate) replay_log: Mutex<ReplayLog>,
    /// Waiters for room in the replay log.
    room: WaitList,
    /// Waiters for the answer to a change of data that is being replayed.
    replayed: WaitList,
    /// Data of some file was lost: writes ask whether it is theirs.
    failed: AtomicBool,
    /// Boot verifier of the run of the server whose transactions are counted here.
    pub(crate) boot_verifier: AtomicU64,
    /// The largest that was heard of.
    committed: [AtomicU64; 2],
    pub(crate) recovery: futures_util::lock::Mutex<Recovery>,
    /// Counts evictions.
    pub(crate) evictions: AtomicU64,
    /// Counts silences of the server after which it was heard on another connection.
    silences: AtomicU64,
    stop: AtomicBool,
    /// The session is over, and nothing of it is sent any more: who waits for that.
    is_over: AtomicBool,
    end: WaitList,
    /// Whether it was said that calls wait for room in `replay_log`.
    pub(super) complained: AtomicBool,
    /// The server should hear of this client at once, and not at the next ping.
    pub(super) is_urgent: Monitor<bool>,
    /// When the last ping that was answered was sent.
    pub(crate) heard_at: Mutex<Instant>,
    /// Connections of threads that were lost and not yet made again.
    pub(crate) outage: Outage,
    pub(crate) lock_client: OnceLock<Weak<dyn LockClient>>,
    /// Rows of chains, of all servers together.
    pub(crate) chain_rows: OnceLock<Arc<ChainRows>>,
}

impl ClientSession {
    pub(crate) fn new(
        options: RemoteOptions,
        host: String,
        client: ClientId,
        secret: u128,
        welcome: Welcome,
        oss_of: Option<&ClientIdentity>,
        budget: Arc<ReplayBudget>,
    ) -> Arc<ClientSession> {
        static KEY: AtomicU64 = AtomicU64::new(0);
        let own = Arc::new(AtomicU64::new(welcome.session));
        Arc::new(ClientSession {
            key: KEY.fetch_add(1, Ordering::Relaxed),
            heard: Mutex::new(Heard {
                session: welcome.session,
                boot_verifier: 0,
                evicted_in: 0,
                changes: 0,
            }),
            session_for_osses: oss_of.map_or(own, |identity| identity.session.clone()),
            told_session: oss_of.map(|of| AtomicU64::new(of.session.load(Ordering::Acquire))),
            options,
            host,
            client,
            secret,
            connection_numbers: Mutex::default(),
            opens: ClientOpens::default(),
            replay_log: Mutex::new(ReplayLog::new(budget)),
            room: WaitList::default(),
            replayed: WaitList::default(),
            failed: AtomicBool::new(false),
            boot_verifier: AtomicU64::new(welcome.boot_verifier),
            committed: Default::default(),
            recovery: futures_util::lock::Mutex::new(Recovery {
                progress: RecoveryProgress::new(Generation {
                    boot_verifier: welcome.boot_verifier,
                    evictions: 0,
                }),
                retries: None,
            }),
            evictions: AtomicU64::new(0),
            silences: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            end: WaitList::default(),
            complained: AtomicBool::new(false),
            is_urgent: Monitor::default(),
            heard_at: Mutex::new(clock::now()),
            outage: Outage::default(),
            lock_client: OnceLock::new(),
            chain_rows: OnceLock::new(),
            welcome,
        })
    }

    /// Whether the server is an OSS.
    pub(crate) fn is_of_oss(&self) -> bool {
        self.told_session.is_some()
    }

    /// Whether the client is a server, which asks others for its chains alone.
    pub(crate) fn is_of_server(&self) -> bool {
        self.options.mount_point.starts_with(SERVER_MOUNT_POINT)
    }

    /// Lock client of this client.
    pub(crate) fn lock_client(&self) -> Option<Arc<dyn LockClient>> {
        self.lock_client.get().and_then(Weak::upgrade)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Has the lease end, on whatever thread it is kept: the server is told. Waits for nothing.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.hurry();
        self.end.wake();
    }

    /// Waits until it is to end.
    pub(crate) async fn until_stopping(&self) {
        self.end.until(|| self.is_stopping().then_some(())).await;
    }

    /// Ends its connections, on whatever threads they are.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        self.end.wake();
    }

    /// Waits until it is.
    pub(crate) async fn until_over(&self) {
        self.end.until(|| self.is_over.load(Ordering::Acquire).then_some(())).await;
    }

    /// Ends connections that were made before now: the server was heard on another one after it had
    /// been silent. Their requests are sent again.
    pub(crate) fn leave_connections(&self) {
        self.silences.fetch_add(1, Ordering::AcqRel);
        self.end.wake();
    }

    /// How often the server was silent, and heard again.
    pub(crate) fn silences(&self) -> u64 {
        self.silences.load(Ordering::Acquire)
    }

    /// Waits until the server was silent and heard again more often than that.
    pub(crate) async fn until_heard_again(&self, silences: u64) {
        self.end.until(|| (self.silences() != silences).then_some(())).await;
    }

    /// Waits until this client was evicted, or another run of the server was heard of, since a
    /// connection was welcomed in `then`. The end of a connection to a host that is gone comes late
    /// or never.
    pub(crate) async fn until_after(&self, then: Generation) {
        let is_over = || {
            let heard = self.heard.lock().boot_verifier;
            self.evictions.load(Ordering::Acquire) != then.evictions
                || (heard != 0 && heard != then.boot_verifier)
        };
        self.end.until(|| is_over().then_some(())).await;
    }

    /// Whether this client has said in this generation all that its server waits for. False while a
    /// connection says it.
    pub(crate) fn has_recovered(&self, now: Generation) -> bool {
        self.recovery.try_lock().is_some_and(|recovery| recovery.progress.has_recovered(now))
    }

    /// Request that is sent first on every connection of this session, and what
    /// [`on_welcome`](ClientSession::on_welcome) wants with its answer.
    pub(crate) fn hello(&self) -> (Request<'static>, HelloMark) {
        let (mut session, mark) = {
            let heard = self.heard.lock();
            (heard.session, HelloMark(heard.changes))
        };
        if let Some(today) = self.session_of_today() {
            session = today;
        }
        let boot_verifier = self.boot_verifier.load(Ordering::Acquire);
        (hello_of(self.host.clone(), &self.options, boot_verifier, session, self.secret), mark)
    }

    /// Takes the answer to a hello. One from a server of another file system says nothing of this
    /// session, and one that was overtaken by news is to be asked for again.
    pub(crate) fn on_welcome(&self, reply: Reply, asked: HelloMark) -> Result<Welcome, NetError> {
        let welcome = welcome_of(reply)?;
        if welcome.fs_uuid != self.welcome.fs_uuid {
            return Err(NetError::Refused(
                "another file system is served at this address now".into(),
            ));
        }
        let mut heard = self.heard.lock();
        // One hello says that the client was evicted, and its answer may be lost, or come after
        // that of another one: a new session says it, too. OSSes only repeat what they were told.
        let is_another = self.told_session.is_none() && heard.session != welcome.session;
        let is_another_run = heard.boot_verifier != welcome.boot_verifier;
        if (is_another || is_another_run) && heard.changes != asked.0 {
            return Err(NetError::Closed);
        }
        // Each connection's hello is answered so until this client has recovered: it is one
        // eviction.
        let is_said_first = welcome.evicted
            && self.boot_verifier.load(Ordering::Acquire) != welcome.boot_verifier
            && heard.evicted_in != welcome.boot_verifier;
        if is_another || is_said_first {
            heard.evicted_in = welcome.boot_verifier;
        }
        if is_another || is_another_run {
            heard.changes += 1;
            heard.boot_verifier = welcome.boot_verifier;
        }
        if is_another {
            heard.session = welcome.session;
        }
        drop(heard);
        if is_another || is_said_first {
            self.on_eviction();
        }
        if is_another_run {
            self.end.wake();
        }
        Ok(welcome)
    }

    /// Changes the replay log, and then wakes those for whom there is room.
    fn change_log<R>(&self, change: impl FnOnce(&mut ReplayLog) -> R) -> R {
        let mut log = self.replay_log.lock();
        let result = change(&mut log);
        let is_freed = log.take_freed();
        drop(log);
        if is_freed {
            self.room.wake();
        }
        result
    }

    /// A sync of an object is sent.
    pub(crate) fn mark_sync(&self, object: Object) -> SyncMark {
        let log = self.replay_log.lock();
        SyncMark {
            boot_verifier: self.boot_verifier.load(Ordering::Acquire),
            object,
            mark: log.mark(),
        }
    }

    /// A sync is answered: what it made durable is not to be sent again.
    pub(crate) fn on_synced(&self, sync: SyncMark, spare: &mut impl FnMut(KeptFrame)) {
        self.change_log(|log| {
            if sync.boot_verifier == self.boot_verifier.load(Ordering::Acquire) {
                log.synced(sync.object, sync.mark, spare);
            }
        });
    }

    /// Acknowledged data of a file could not be written again.
    pub(crate) fn fail(&self, ino: Ino, errno: Errno) {
        self.replay_log.lock().fail(ino, errno);
        self.failed.store(true, Ordering::Release);
    }

    /// Why that was so, once.
    pub(crate) fn take_failure(&self, ino: Ino) -> Option<Errno> {
        match self.failed.load(Ordering::Acquire) {
            true => self.replay_log.lock().take_failure(ino),
            false => None,
        }
    }

    /// Counts transactions of the run with this boot verifier from now on. Changes of the last run
    /// that did not survive are to be replayed.
    pub(crate) fn count_anew(&self, boot_verifier: u64, survived: Survived) {
        self.change_log(|log| {
            self.boot_verifier.store(boot_verifier, Ordering::Release);
            self.committed.iter().for_each(|which| which.store(0, Ordering::Release));
            // Data of a chain that survived here may be in no other copy, and another one may be the
            // one that counts.
            if let Some(rows) = self.chain_rows.get() {
                for target in log.chains() {
                    rows.moved.moves(target);
                    self.move_from(log, rows, target);
                }
            }
            log.after_restart(survived);
        });
        self.on_replay_end();
    }

    /// Forgets changes of a file's data that are not known to be durable, because others may change
    /// it from now on. They are lost if their server loses its power, so the file hears of it: of
    /// those of chains once their rows say that they may be.
    ///
    /// Changes that the MDS lost with OSTs of its own are replayed before it lets others in; those of
    /// chains may go elsewhere, at any time. Returns whether an OSS may make one that is being replayed.
    pub(crate) fn abandon(&self, ino: Ino) -> bool {
        let is_late = |ost| self.is_of_oss() || ChainId::of_target(ost).is_some();
        let (boot_verifier, abandoned, is_left) = self.change_log(|log| {
            let abandoned = log.abandon(ino, is_late);
            let is_left = self.is_of_oss() && log.is_replaying(ino);
            (self.boot_verifier.load(Ordering::Acquire), abandoned, is_left)
        });
        let rows = self.chain_rows.get();
        let mut of_chains = Vec::new();
        for (transaction, change) in abandoned {
            let is_of_chain = ChainId::of_target(change.object.0).is_some();
            match is_of_chain && rows.is_some() {
                true => {
                    let logged = |transaction| self.logged(boot_verifier, transaction);
                    of_chains.push((change, transaction.map(logged)));
                }
                false => self.fail(ino, Errno::EIO),
            }
        }
        let Some(rows) = rows else { return is_left };
        rows.give_up(of_chains);
        // The server may have said meanwhile that they are durable.
        if let Some(_same_run) = self.log_of_run(boot_verifier) {
            let committed = self.committed[1].load(Ordering::Acquire);
            rows.abandoned.are_durable(self.logged(boot_verifier, committed));
        }
        is_left
    }

    /// A change of data in this session.
    fn logged(&self, boot_verifier: u64, transaction: u64) -> LoggedChange {
        LoggedChange { session: self.key, boot_verifier, transaction }
    }

    /// A server has refused a request because the chain is this one now.
    pub(crate) fn learn_row(&self, row: Chain) {
        if let Some(rows) = self.chain_rows.get() {
            rows.learn(row);
        }
    }

    /// Takes what was not committed of a chain out of the order of this server.
    pub(crate) fn move_chain(&self, target: u16) {
        let Some(rows) = self.chain_rows.get() else { return };
        self.change_log(|log| self.move_from(log, rows, target));
    }

    /// Has the server make things durable now.
    fn hurry(&self) {
        self.is_urgent.change(|is_urgent| *is_urgent = true);
    }

    /// Waits until the replay log has room, if the request will be logged.
    pub(crate) async fn room(&self, request: &Request<'_>) {
        let kind = match request {
            Request::Mds { request, .. } if request.is_modifying() => Kind::Mds,
            Request::Ost { request, .. } if request.is_modifying() => Kind::Ost,
            _ => return,
        };
        let has_room = || {
            {
                let mut log = self.replay_log.lock();
                if !log.is_full(kind) {
                    return Some(());
                }
                log.wait();
            }
            self.hurry();
            None
        };
        self.room.until(has_room).await;
    }
}

#[cfg(test)]
pub(crate) mod tests;
