//! The threads that keep a client's locks. One answers recalls, writes old data, and returns what
//! is not used; it serves no requests, so nothing that it waits for can wait for it. The other
//! watches the lease, and waits for nothing. Beside them are threads that send data of closed files,
//! and one that looks how much memory there is (`memory.rs`).

use crate::client::Client;
use crate::data::write_back::AGE_MAX;
use futures_util::future::select;
use glint_net::{LockClient, LockTraffic, Transport, host};
use glint_proto::clock;
use std::ops::Deref;
use std::pin::pin;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// How old a change may become before it is sent.
const CHANGE_AGE_MAX: Duration = Duration::from_millis(500);
/// Pause before what has become old, and the lease, are seen to again.
const ROUND: Duration = Duration::from_millis(100);

/// How long the end waits for answers to what is sent again.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Inodes that are forgotten without a pause: about a millisecond of this thread, which also answers
/// recalls.
const PIECE: usize = 1024;
const PIECE_PAUSE: Duration = Duration::from_micros(100);

/// Most threads that send data of closed files.
const SENDERS_MAX: usize = 4;

/// Set in the environment by tests that count requests: nothing is sent because time has passed.
/// Builds for users do not look at it.
const NEVER_OLD_VARIABLE: &str = "GLINT_NEVER_OLD";
/// How old data and changes may become before they are sent.
static AGES: LazyLock<(Duration, Duration)> =
    LazyLock::new(|| match cfg!(debug_assertions).then(|| std::env::var_os(NEVER_OLD_VARIABLE)) {
        Some(Some(_)) => (Duration::MAX, Duration::MAX),
        _ => (AGE_MAX, CHANGE_AGE_MAX),
    });

/// A client and the thread that keeps its locks. What was written is at the OSTs when it is
/// dropped.
pub struct RunningClient<T: Transport> {
    client: Arc<Client<T>>,
    threads: Vec<JoinHandle<()>>,
}

impl<T: Transport> Deref for RunningClient<T> {
    type Target = Arc<Client<T>>;

    fn deref(&self) -> &Arc<Client<T>> {
        &self.client
    }
}

impl<T: Transport> RunningClient<T> {
    /// Starts a client on `transport`. With `noatime` reading never changes an inode.
    pub fn start(transport: T, noatime: bool) -> std::io::Result<RunningClient<T>> {
        let client = Client::holder(transport, noatime);
        if !client.has_locks() {
            return Ok(RunningClient { client, threads: Vec::new() });
        }
        let mut running = RunningClient { client: client.clone(), threads: Vec::new() };
        let watching = client.clone();
        let watch = std::thread::Builder::new().name("watch".into());
        running.threads.push(watch.spawn(move || {
            while !watching.locks.inbox.is_stopped() {
                std::thread::park_timeout(ROUND);
                watching.watch();
            }
        })?);
        let keeping = client.clone();
        let memory = std::thread::Builder::new().name("memory".into());
        running.threads.push(memory.spawn(move || keeping.watch_memory())?);
        for _ in 1..senders() {
            let client = client.clone();
            let closes = std::thread::Builder::new().name("closes".into());
            running.threads.push(closes.spawn(move || match glint_net::runtime(None) {
                Ok(runtime) => runtime.block_on(client.send_closed()),
                Err(error) => tracing::warn!(%error, "closed files are written by fewer threads"),
            })?);
        }
        let locks = std::thread::Builder::new().name("locks".into());
        running.threads.push(locks.spawn(move || {
            let _end = EndOfLog(client.clone());
            match glint_net::runtime(None) {
                Ok(runtime) => runtime.block_on(client.keep()),
                Err(error) => tracing::error!(
                    %error,
                    "could not start the thread that returns locks; others wait for what this \
                    client holds"
                ),
            }
        })?);
        Ok(running)
    }
}

/// Threads that send data of closed files: one for each core, which copies it, but for many.
fn senders() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(SENDERS_MAX)
}

/// Ends the threads that send data of closed files with the one that is the last to need them.
struct EndOfLog<T: Transport>(Arc<Client<T>>);

impl<T: Transport> Drop for EndOfLog<T> {
    fn drop(&mut self) {
        self.0.log.end();
    }
}

impl<T: Transport> Drop for RunningClient<T> {
    fn drop(&mut self) {
        self.client.locks.inbox.stop();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread that keeps locks panicked");
            }
        }
    }
}

impl<T: Transport> Client<T> {
    /// A client in a simulated world. What it does by itself belongs to the machine of the
    /// calling task.
    pub fn simulated(transport: T, noatime: bool) -> Arc<Client<T>> {
        let client = Client::holder(transport, noatime);
        if client.has_locks() {
            host::spawn(client.clone().keep());
            let watching = client.clone();
            host::spawn(async move {
                loop {
                    host::sleep(ROUND).await;
                    watching.watch();
                }
            });
        }
        client
    }

    /// A client that keeps locks, if somebody gives them; `keep` has to be run then.
    fn holder(transport: T, noatime: bool) -> Arc<Client<T>> {
        let client = Arc::new(Client::new(transport, noatime));
        let _ = client.me.set(Arc::downgrade(&client));
        if client.has_locks() {
            let holder: Arc<dyn LockClient> = client.clone();
            client.transport.mds().set_lock_client(Arc::downgrade(&holder));
        }
        client
    }

    async fn keep(self: Arc<Self>) {
        let listening = self.clone();
        host::spawn(async move { listening.transport.mds().listen().await });
        let rounds = self.clone();
        host::spawn(async move {
            while !rounds.locks.inbox.is_stopped() {
                host::sleep(ROUND).await;
                rounds.write_old();
            }
        });
        let giving = self.clone();
        host::spawn(async move {
            while !giving.locks.inbox.is_stopped() {
                host::sleep(ROUND).await;
                giving.return_oldest_delegations().await;
                giving.return_largest_delegations().await;
                giving.send_returns().await;
            }
        });
        // Apart from those: they wait for servers, and caches have to shrink while these are away.
        let shrinking = self.clone();
        host::spawn(async move {
            while !shrinking.locks.inbox.is_stopped() {
                host::sleep(ROUND).await;
                shrinking.shrink().await;
            }
        });
        // What a server may lose is with this client alone, though nobody may use it any more.
        let resending = self.clone();
        host::spawn(async move {
            while !resending.locks.inbox.is_stopped() {
                host::sleep(ROUND).await;
                resending.transport.send_again().await;
            }
        });
        let sending = self.clone();
        host::spawn(async move { sending.send_log().await });
        while let Some((recalls, closes)) = self.locks.inbox.next().await {
            for close in closes {
                let client = self.clone();
                host::spawn(async move { client.undo_open(close).await });
            }
            for recall in recalls {
                let client = self.clone();
                host::spawn(async move {
                    client.answer(recall).await;
                    client.send_returns().await;
                });
            }
        }
        // The end: everything to the OSTs.
        for inode in self.cache.all() {
            self.flush_or_discard(&inode).await;
        }
        self.log.hurry();
        self.log.all_closed().await;
        self.flush_log().await;
        // A server that has just started again hears what it lost before this client says that it
        // ends: who has said that is not waited for. As long as this takes: a mount whose servers are
        // away is ended without them (`glint/src/cmd/mount.rs`).
        if self.transport.has_uncommitted()
            && let Err(errno) = self.transport.commit().await
        {
            tracing::error!(%errno, "what was changed last may not be on stable storage");
        }
        // Where a change that is sent again may still be made, others get what this client has locked
        // a lease later.
        let answered = pin!(self.transport.until_answered(None));
        select(answered, pin!(host::sleep(LAST_ANSWERS))).await;
    }

    /// Writes what has become old.
    fn write_old(self: &Arc<Self>) {
        // With memory full of half extents, these have to go.
        let (data_age, change_age) = *AGES;
        let is_urgent = self.data.limits.is_stuck() || self.memory.is_short();
        let age = if is_urgent { Duration::ZERO } else { data_age };
        let old = clock::now().checked_sub(age);
        if let Some(old) = old
            && self.data.limits.counts().0 > 0
        {
            for inode in self.cache.dirty() {
                let due = {
                    let state = inode.lock();
                    let oldest = state.rare.data.dirty().oldest();
                    oldest.is_some_and(|oldest| oldest <= old)
                };
                if due {
                    let client = self.clone();
                    host::spawn(async move {
                        client.send_old(&inode, old).await;
                    });
                }
            }
        }
        if self.log.is_busy()
            && let Some(old) = clock::now().checked_sub(change_age)
        {
            self.log.hurry_old(old);
        }
    }

    /// Keeps no more inodes than it may. Recalls are answered in between. Waits for no server.
    async fn shrink(self: &Arc<Self>) {
        let limit = self.inodes_max();
        let is_unstable = |ino| !self.transport.unstable(ino).is_empty();
        let mut looks = self.cache.idle_excess(limit);
        while looks > 0
            && self.cache.shrink(limit, looks.min(PIECE), &self.locks.returns, is_unstable)
        {
            looks = looks.saturating_sub(PIECE);
            host::sleep(PIECE_PAUSE).await;
        }
        let known = self.cache.len();
        if known > limit
            && let Some(round) = self.kernel_memory.begin_to_ask(known)
        {
            let client = self.clone();
            let pruning = host::unblock(move || {
                let asked = client.cache.prune(limit, round);
                client.kernel_memory.end_to_ask(asked);
            });
            pruning.detach();
        }
    }
}
