//! The thread that returns the locks of a client: it answers recalls, writes old data, returns what
//! is not used, and says after a restart what was held. It serves no requests, so nothing that it
//! waits for can wait for it.
//!
//! Invariants:
//! - A recall is answered only when nothing of what it asks for is used or cached any more,
//!   here or in the kernel.
//! - A client that has not heard of its servers for most of its lease stops to rely on what it
//!   has cached: when the servers give its locks to others, it knows nothing that could be old.

use crate::cache::INODES_MAX;
use crate::cache::inode::{CachedInode, Name};
use crate::client::Client;
use crate::data::write_back::AGE_MAX;
use crate::kernel::Kernel;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream::FuturesUnordered;
use glint_net::{LockClient, Transport, host};
use glint_proto::lock::{Bits, Callback, Cancel, Range};
use glint_proto::{Access, Errno, FsResult, MdsReply, MdsRequest, clock};
use parking_lot::Mutex;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

/// How old a change may become before it is sent.
const CHANGE_AGE_MAX: Duration = Duration::from_millis(500);
/// How often it looks for what has become old.
const ROUND: Duration = Duration::from_millis(100);
/// How long a name may take to be forgotten before all are.
const NAME_PATIENCE: Duration = Duration::from_millis(5);
/// How long the servers are not told that all is forgotten while the kernel still does.
const KERNEL_PATIENCE: Duration = Duration::from_secs(1);
/// Pause before the kernel is asked again for an inode that is on its way to it.
const RETRY: Duration = Duration::from_millis(1);
const RETRIES: usize = 1000;
/// How long a lock that is recalled may be on its way. Requests under way may themselves wait
/// for what it keeps from others, so their answers are not waited for without end.
const ARRIVAL: Duration = Duration::from_millis(250);

/// What comes to the thread from others.
#[derive(Default)]
pub(crate) struct RecallInbox {
    callbacks: Mutex<Vec<Callback>>,
    /// Closes of files whose opens were dropped.
    closes: Mutex<Vec<MdsRequest<'static>>>,
    waker: Mutex<Option<Waker>>,
    stop: AtomicBool,
}

impl RecallInbox {
    fn wake(&self) {
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Has the MDS told that a file which it counts as open is not.
    pub(crate) fn take_open_back(&self, release: MdsRequest<'static>) {
        self.closes.lock().push(release);
        self.wake();
    }

    async fn next(&self) -> Option<(Vec<Callback>, Vec<MdsRequest<'static>>)> {
        poll_fn(|context| {
            self.waker.lock().replace(context.waker().clone());
            let callbacks = std::mem::take(&mut *self.callbacks.lock());
            let closes = std::mem::take(&mut *self.closes.lock());
            let is_empty = callbacks.is_empty() && closes.is_empty();
            match (is_empty, self.stop.load(Ordering::Acquire)) {
                (false, _) => Poll::Ready(Some((callbacks, closes))),
                (true, true) => Poll::Ready(None),
                (true, false) => Poll::Pending,
            }
        })
        .await
    }
}

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
            while !watching.inbox.stop.load(Ordering::Acquire) {
                std::thread::park_timeout(ROUND);
                watching.watch();
            }
        })?);
        let locks = std::thread::Builder::new().name("locks".into());
        running.threads.push(locks.spawn(move || match glint_net::runtime(None) {
            Ok(runtime) => runtime.block_on(client.keep()),
            Err(error) => tracing::error!(%error, "starting the thread that keeps locks"),
        })?);
        Ok(running)
    }
}

impl<T: Transport> Drop for RunningClient<T> {
    fn drop(&mut self) {
        self.client.inbox.stop.store(true, Ordering::Release);
        self.client.inbox.wake();
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("a thread that keeps locks panicked");
            }
        }
    }
}

impl<T: Transport> LockClient for Client<T> {
    fn on_recall(&self, callbacks: Vec<Callback>) {
        self.inbox.callbacks.lock().extend(callbacks);
        self.inbox.wake();
    }

    fn on_server_restart(
        &self,
        evicted: bool,
    ) -> Pin<Box<dyn Future<Output = Vec<MdsRequest<'static>>> + '_>> {
        Box::pin(self.start_anew(evicted))
    }

    fn on_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>) {
        let ino = match (request, &reply) {
            (MdsRequest::Lock { ino, .. }, _) => ino,
            (_, Ok(_)) => return,
            (MdsRequest::Own { ino }, Err(errno)) => {
                // Others may have been there.
                tracing::error!(%ino, %errno, "a directory is not this client's own any more");
                let inode = self.cache.inode(*ino);
                self.end_delegation(&inode);
                let mut state = inode.lock();
                state.dentries.clear();
                return;
            }
            (request, Err(errno)) => {
                tracing::error!(?request, %errno, "what was held before was not given again");
                return;
            }
        };
        let inode = self.cache.inode(*ino);
        match reply {
            Ok(MdsReply::Locked(lock)) => inode.lock().data.found(lock),
            _ => {
                inode.lock().data.forget_lost();
                let lost = self.discard(&inode, Errno::EIO);
                tracing::error!(%ino, lost, "a lock was not given again; what was cached is lost");
            }
        }
        inode.wake();
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
            client.transport.set_lock_client(Arc::downgrade(&holder));
        }
        client
    }

    async fn keep(self: Arc<Self>) {
        let listening = self.clone();
        host::spawn(async move { listening.transport.listen().await });
        let caring = self.clone();
        host::spawn(async move {
            while !caring.inbox.stop.load(Ordering::Acquire) {
                host::sleep(ROUND).await;
                caring.care();
            }
        });
        let giving = self.clone();
        host::spawn(async move {
            while !giving.inbox.stop.load(Ordering::Acquire) {
                host::sleep(ROUND).await;
                giving.return_oldest_delegations().await;
                giving.shrink();
                giving.send_cancels().await;
            }
        });
        let sending = self.clone();
        host::spawn(async move { sending.send_log().await });
        while let Some((callbacks, closes)) = self.inbox.next().await {
            for close in closes {
                let client = self.clone();
                host::spawn(async move { client.take_open_back(close).await });
            }
            for callback in callbacks {
                let client = self.clone();
                host::spawn(async move {
                    client.answer(callback).await;
                    client.send_cancels().await;
                });
            }
        }
        // The end: everything to the OSTs.
        for inode in self.cache.all() {
            self.flush_or_discard(&inode).await;
        }
        self.flush_log().await;
        // A server that has just started again hears what it lost before this client says that it
        // ends: who has said that is not waited for.
        if self.transport.has_uncommitted()
            && let Err(errno) = self.transport.commit().await
        {
            tracing::error!(%errno, "what was changed last may not be on stable storage");
        }
    }

    /// Writes what has become old.
    fn care(self: &Arc<Self>) {
        // With memory full of half extents, these have to go.
        let age = if self.write_back.is_stuck() { Duration::ZERO } else { AGE_MAX };
        let old = clock::now().checked_sub(age);
        if let Some(old) = old
            && self.write_back.counts().0 > 0
        {
            for inode in self.cache.dirty() {
                let due = {
                    let state = inode.lock();
                    state.dirty.oldest().is_some_and(|oldest| oldest <= old).then_some(state.layout)
                };
                if let Some(Some(layout)) = due {
                    let client = self.clone();
                    host::spawn(async move {
                        client.send_old(&inode, layout, old).await;
                    });
                }
            }
        }
        if self.log.is_busy()
            && let Some(old) = clock::now().checked_sub(CHANGE_AGE_MAX)
        {
            self.log.hurry_old(old);
        }
    }

    /// Keeps no more inodes than it may.
    fn shrink(self: &Arc<Self>) {
        let limit = self.known_max.load(Ordering::Relaxed);
        let is_unstable = |ino| !self.transport.unstable(ino).is_empty();
        self.cache.shrink(limit.min(INODES_MAX), is_unstable);
        if self.cache.len() > limit && !self.prunes.swap(true, Ordering::AcqRel) {
            let client = self.clone();
            let pruning = blocking::unblock(move || {
                client.cache.prune(limit);
                client.prunes.store(false, Ordering::Release);
            });
            pruning.detach();
        }
    }

    /// Looks whether the servers were heard of. Waits for nothing.
    fn watch(&self) {
        let silent = self.transport.silence();
        let lease = Duration::from_millis(self.lease_ms);
        if silent > lease * 2 / 3 {
            if !self.suspended.swap(true, Ordering::AcqRel) {
                tracing::warn!(
                    "no word from the servers for {} s: what is cached is not used",
                    silent.as_secs()
                );
                self.end_delegations();
                self.forget_cached().into_iter().for_each(blocking::Task::detach);
            }
        } else {
            self.suspended.store(false, Ordering::Release);
        }
    }

    /// Sends the locks that are given up.
    pub(crate) async fn send_cancels(&self) {
        loop {
            let cancels = std::mem::take(&mut *self.cache.cancels.lock());
            if cancels.is_empty() {
                return;
            }
            if let Err(errno) = self.transport.cancel(cancels).await {
                // Only servers that have evicted this client: they have forgotten them anyway.
                tracing::debug!(%errno, "giving locks up");
            }
        }
    }

    async fn answer(&self, callback: Callback) {
        match callback {
            Callback::Bits { ino, bits, number } => {
                let inode = self.cache.inode(ino);
                inode.lock().fence = self.cache.fence();
                if bits.contains(Bits::OWN) {
                    self.return_delegation(&inode).await;
                }
                self.give_up_bits(&inode, bits, number).await;
                self.cache.note_idle(&inode);
                self.cache.cancels.lock().push(Cancel::Bits { ino, bits, number });
            }
            Callback::Data { ino, number } => {
                let inode = self.cache.inode(ino);
                let fence = self.cache.fence();
                let known = {
                    let mut state = inode.lock();
                    state.fence = fence;
                    state.data.take_back(number).is_some()
                };
                if !known && !self.has_come(&inode, number, fence).await {
                    self.give_up_older(&inode, number).await;
                    self.cache.note_idle(&inode);
                    self.cache.cancels.lock().push(Cancel::Data { ino, number });
                    return;
                }
                inode.wake();
                let id = inode.lock().data.id_of(number);
                if let Some(id) = id {
                    self.give_up(&inode, id).await;
                }
            }
            Callback::Glimpse { ino, number } => {
                let seen = self.cache.find(ino).and_then(|inode| inode.lock().unsent());
                self.cache.cancels.lock().push(Cancel::Glimpse { ino, number, seen });
            }
        }
    }

    /// Whether a lock that was recalled before it was here has come. If not, it is not relied
    /// on when it does.
    async fn has_come(&self, inode: &CachedInode, number: u64, fence: u64) -> bool {
        if !inode.lock().data.is_awaited(number) {
            return inode.lock().data.id_of(number).is_some();
        }
        let come = pin!(inode.until(|state| (!state.data.is_awaited(number)).then_some(())));
        let answered = pin!(self.cache.past(fence));
        let late = pin!(host::sleep(ARRIVAL));
        select(come, select(answered, late)).await;
        !inode.lock().data.refuse(number)
    }

    /// Stops to use bits of an inode, and has the kernel forget what they protect.
    async fn give_up_bits(&self, inode: &Arc<CachedInode>, bits: Bits, number: u64) {
        let (names, is_in_kernel, opens) = {
            let mut state = inode.lock();
            state.bits.take_back(bits, number);
            let names = state.lose(bits);
            let returns_opens = bits.contains(Bits::OPEN);
            let opens = if returns_opens { state.pins.begin_declaring() } else { 0 };
            (names, state.pins.has_lookups(), opens)
        };
        if opens > 0 {
            let request = MdsRequest::AddOpens { ino: inode.ino, readers: opens };
            if let Err(errno) = self.ask(&request).await {
                tracing::warn!(ino = %inode.ino, %errno, "telling the servers what is open");
            }
            inode.lock().pins.end_declaring();
            inode.wake();
        }
        self.forget_children(&names);
        let Some(kernel) = self.cache.kernel().cloned() else { return };
        if bits.contains(Bits::ATTR) && is_in_kernel {
            self.forget_attributes(inode, &*kernel).await;
        }
        if !names.is_empty() {
            forget_names(kernel, names.into_vec()).await;
        }
    }

    fn forget_children(&self, names: &[Name]) {
        for (parent, name) in names {
            if let Some(directory) = self.cache.find(*parent) {
                directory.lock().dentries.remove(name);
            }
        }
    }

    async fn forget_attributes(&self, inode: &CachedInode, kernel: &dyn Kernel) {
        for _ in 0..RETRIES {
            // One that it does not know and was told of is on its way to it.
            if kernel.forget_attributes(inode.ino) || !inode.lock().pins.has_lookups() {
                return;
            }
            host::sleep(RETRY).await;
        }
    }

    /// Relies on nothing that locks on inodes protect. Returns how the kernel forgets: that may
    /// wait for requests that wait for the servers, for each inode.
    fn forget_cached(&self) -> Vec<blocking::Task<()>> {
        let kernel = self.cache.kernel().cloned();
        let inodes = self.cache.all();
        for inode in &inodes {
            let mut state = inode.lock();
            state.bits.drop_all();
            state.lose(Bits::ALL);
            if !state.own {
                state.dentries.clear();
            }
        }
        self.forget_foreign_children(&inodes);
        let Some(kernel) = kernel else { return Vec::new() };
        let names = kernel.clone();
        let mut forgetting = vec![blocking::unblock(move || {
            if !names.forget_all_names() {
                tracing::warn!(
                    "this kernel cannot forget all names at once; they are looked up anew \
                     when their inodes are"
                );
            }
        })];
        for inode in &inodes {
            let (known, pages) = {
                let state = inode.lock();
                (state.pins.has_lookups(), state.pages)
            };
            if known {
                let (kernel, ino) = (kernel.clone(), inode.ino);
                forgetting.push(blocking::unblock(move || _ = kernel.forget_attributes(ino)));
            }
            if pages {
                let (kernel, ino) = (kernel.clone(), inode.ino);
                blocking::unblock(move || kernel.forget_pages(ino, Range::ALL)).detach();
            }
        }
        forgetting
    }

    /// The servers have forgotten all locks. Returns what has to be said to keep those on data.
    async fn start_anew(&self, evicted: bool) -> Vec<MdsRequest<'static>> {
        self.cache.begin_epoch();
        self.cache.cancels.lock().clear();
        self.write_back.nothing_is_kept();
        let mut requests = Vec::new();
        if !evicted && self.log.is_on() {
            requests.push(MdsRequest::WritesBack { life: self.log.life() });
        }
        let mut lost = 0;
        for inode in self.cache.all() {
            let mut state = inode.lock();
            state.bits = Default::default();
            let locks = state.data.lose();
            state.data_changes();
            if evicted {
                state.data.forget_lost();
                state.capabilities.clear();
            }
            let opens = state.pins.take_undeclared();
            // Also what is being given up just now: nobody may look before the changes are there.
            let owns = state.own || self.log.is_pending(state.queued);
            drop(state);
            inode.wake();
            if opens > 0 {
                requests.push(MdsRequest::AddOpens { ino: inode.ino, readers: opens });
            }
            if evicted {
                lost += self.discard(&inode, Errno::EIO);
                continue;
            }
            if owns {
                requests.push(MdsRequest::Own { ino: inode.ino });
            }
            for lock in locks {
                let (ino, range, write) = (inode.ino, lock.range, lock.write);
                let access = if write { Access::WRITE } else { Access::READ };
                let proof = inode.lock().proof(access);
                requests.push(MdsRequest::Lock { ino, range, write, reclaim: true, proof });
            }
        }
        match evicted {
            true => {
                self.lose_log();
                let locks = self.posix_locks.clear();
                if locks > 0 {
                    tracing::error!(locks, "locks that programs had taken are lost");
                }
            }
            false => requests.extend(self.posix_locks.to_reclaim()),
        }
        if lost > 0 {
            tracing::error!(lost, "bytes that were written and not yet sent are lost");
        }
        wait_a_while(self.forget_cached()).await;
        requests
    }
}

/// Has the kernel forget names; if that takes long, because somebody waits in their directory
/// for what another client waits for with us, all names.
async fn forget_names(kernel: Arc<dyn Kernel>, names: Vec<Name>) {
    let forgetting = kernel.clone();
    let mut work = blocking::unblock(move || {
        for (parent, name) in names {
            forgetting.forget_name(parent, &name);
        }
    });
    let patience = std::pin::pin!(host::sleep(NAME_PATIENCE));
    if let Either::Right(_) = select(&mut work, patience).await {
        if kernel.forget_all_names() {
            // The names themselves are forgotten when their directory is free.
            work.detach();
        } else {
            work.await;
        }
    }
}

/// Until the kernel has forgotten, if it does soon.
async fn wait_a_while(forgetting: Vec<blocking::Task<()>>) {
    if forgetting.is_empty() {
        return;
    }
    let mut forgetting: FuturesUnordered<_> = forgetting.into_iter().collect();
    let patience = host::sleep(KERNEL_PATIENCE);
    let all = async { while forgetting.next().await.is_some() {} };
    if let Either::Right(_) = select(std::pin::pin!(all), std::pin::pin!(patience)).await {
        tracing::warn!("the kernel takes long to forget what it has cached");
    }
    forgetting.into_iter().for_each(blocking::Task::detach);
}
