//! Answers to recalls: what a server asks for is not used any more, what it protects is forgotten,
//! here and in the kernel, what was written under it is at the OSTs, and then it is returned. Locks
//! on data are returned in `data_locks.rs`, delegations in `meta_log/sender.rs`.
//!
//! Invariant: a recall is answered only when nothing of what it asks for is used or cached any
//! more, here or in the kernel. One exception: a kernel that says for a second that it does not know
//! an inode which it was told of. Nothing says when it does, so it is asked again and again; then
//! the recall is answered, and a line of the log says what follows.

use crate::cache::inode::CachedInode;
use crate::cache::inode::names::Name;
use crate::client::Client;
use crate::kernel::Kernel;
use futures_util::future::{Either, select};
use glint_net::{LockClient, LockTraffic, Transport, host};
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{FsResult, MdsReply, MdsRequest};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a name may take to be forgotten before all are.
const NAME_PATIENCE: Duration = Duration::from_millis(5);
/// Pause before the kernel is asked again for an inode that is on its way to it.
const RETRY: Duration = Duration::from_millis(1);
const RETRIES: usize = 1000;
/// How long a lock that is recalled may be on its way. Requests under way may themselves wait
/// for what it keeps from others, so their answers are not waited for without end.
const ARRIVAL: Duration = Duration::from_millis(250);

/// Recalls and requests that others leave for the thread.
#[derive(Default)]
pub(crate) struct RecallInbox {
    recalls: Mutex<Vec<Recall>>,
    /// Closes of files whose opens were dropped.
    closes: Mutex<Vec<MdsRequest<'static>>>,
    /// The thread, which waits for any of these.
    waiting: WaitList,
    stop: AtomicBool,
}

impl RecallInbox {
    /// Servers recall locks.
    pub(crate) fn put(&self, recalls: Vec<Recall>) {
        self.recalls.lock().extend(recalls);
        self.waiting.wake();
    }

    /// Ends the threads when they have brought everything to the servers.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waiting.wake();
    }

    /// Whether they are to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Has the MDS told that a file which it counts as open is not.
    pub(crate) fn undo_open(&self, release: MdsRequest<'static>) {
        self.closes.lock().push(release);
        self.waiting.wake();
    }

    /// Waits for recalls and requests; `None` if no more will come.
    pub(crate) async fn next(&self) -> Option<(Vec<Recall>, Vec<MdsRequest<'static>>)> {
        let look = || {
            let recalls = std::mem::take(&mut *self.recalls.lock());
            let closes = std::mem::take(&mut *self.closes.lock());
            let is_empty = recalls.is_empty() && closes.is_empty();
            match (is_empty, self.is_stopped()) {
                (false, _) => Some(Some((recalls, closes))),
                (true, true) => Some(None),
                (true, false) => None,
            }
        };
        self.waiting.until(look).await
    }
}

impl<T: Transport> LockClient for Client<T> {
    fn on_recall(&self, recalls: Vec<Recall>) {
        self.locks.inbox.put(recalls);
    }

    fn on_server_restart(
        &self,
        evicted: bool,
    ) -> Pin<Box<dyn Future<Output = Vec<MdsRequest<'static>>> + '_>> {
        Box::pin(self.start_anew(evicted))
    }

    fn on_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>) {
        self.learn_reclaimed(request, reply);
    }
}

impl<T: Transport> Client<T> {
    /// Answers a recall.
    pub(crate) async fn answer(&self, recall: Recall) {
        match recall {
            Recall::Bits { ino, bits, number } => {
                let inode = self.cache.inode(ino);
                if bits.contains(Bits::DELEGATION) {
                    self.return_delegation(&inode).await;
                }
                self.return_bits(&inode, bits, number).await;
                self.cache.note_idle(&inode);
                self.locks.returns.put([Return::Bits { ino, bits, number }]);
            }
            Recall::Data { ino, number } => {
                let inode = self.cache.inode(ino);
                let sent_mark = self.cache.sent_mark();
                let known = inode.lock().on_data_recall(number, sent_mark);
                if !known && !self.has_come(&inode, number, sent_mark).await {
                    self.return_older(&inode, number).await;
                    self.cache.note_idle(&inode);
                    self.locks.returns.put([Return::Data { ino, number }]);
                    return;
                }
                inode.wake();
                let id = inode.lock().rare.data_locks.id_of(number);
                if let Some(id) = id {
                    self.return_data_lock(&inode, id).await;
                }
            }
            Recall::Glimpse { ino, number } => {
                let seen = self.cache.find(ino).and_then(|inode| inode.lock().rare.data.unsent());
                self.locks.returns.put([Return::Glimpse { ino, number, seen }]);
            }
        }
    }

    /// Whether a lock that was recalled before it was here has come. If not, it is not relied
    /// on when it does.
    async fn has_come(&self, inode: &CachedInode, number: u64, sent_mark: u64) -> bool {
        if !inode.lock().rare.data_locks.is_awaited(number) {
            return inode.lock().rare.data_locks.id_of(number).is_some();
        }
        let come =
            pin!(inode.until(|state| (!state.rare.data_locks.is_awaited(number)).then_some(())));
        let answered = pin!(self.cache.past(sent_mark));
        let late = pin!(host::sleep(ARRIVAL));
        select(come, select(answered, late)).await;
        !inode.lock().rare.make().data_locks.refuse(number)
    }

    /// Stops to use bits of an inode, and has the kernel forget what they protect.
    async fn return_bits(&self, inode: &Arc<CachedInode>, bits: Bits, number: u64) {
        let (names, is_in_kernel, opens) = {
            let sent_mark = self.cache.sent_mark();
            let mut state = inode.lock();
            let names = state.on_recall(bits, number, sent_mark);
            let returns_opens = bits.contains(Bits::OPEN);
            let opens = if returns_opens { state.pins.begin_declaring() } else { 0 };
            (names, self.cache.is_in_kernel(inode, &state), opens)
        };
        if bits.contains(Bits::OPEN) {
            self.declare_opens(inode, opens).await;
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

    /// Forgets names that lead to an inode: one of them is about to go, the others stay.
    fn forget_children(&self, names: &[Name]) {
        for (parent, name) in names {
            if let Some(directory) = self.cache.find(*parent) {
                directory.lock().dentries.doubt(name);
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
        tracing::warn!(
            ino = %inode.ino,
            "the kernel was told of an inode and still does not know it: if it learns of it now, it \
             keeps attributes that others may change, until it forgets them or is told of newer ones"
        );
    }

    /// Sends the locks that are returned.
    pub(crate) async fn send_returns(&self) {
        loop {
            let returns = self.locks.returns.take();
            if returns.is_empty() {
                return;
            }
            if let Err(errno) = self.transport.mds().return_locks(returns).await {
                // Only servers that have evicted this client: they have forgotten them anyway.
                tracing::debug!(%errno, "locks were not returned");
            }
        }
    }
}

/// Has the kernel forget names; if that takes long, because somebody waits in their directory
/// for what another client waits for with us, all names.
async fn forget_names(kernel: Arc<dyn Kernel>, names: Vec<Name>) {
    let forgetting = kernel.clone();
    let mut work = host::unblock(move || {
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
