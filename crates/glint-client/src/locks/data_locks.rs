//! Locks on data: taken before it is read or written, kept until a server asks for them.
//!
//! Invariants:
//! - A lock is returned only when nobody uses it, the kernel has forgotten the pages that were
//!   filled under it, and everything that was written under it is at the OSTs, on stable storage:
//!   who has the lock next may write the same bytes and sync them, and a server that then loses
//!   its power must not be told the older ones again (sync on lock cancel in Lustre).
//! - Who waits with pages of the kernel locked, or keeps them from being written back, waits for
//!   no server alone: as soon as a lock that is being returned waits for those pages, it goes on
//!   under that one. So pages, recalls and locks that are asked for never wait in a circle.
//! - Who asks for locks on an inode does so in the order of coming, one at a time.
//! - Who has a lock to write changes nothing while data is put into the kernel's pages
//!   (`data/read_ahead/storing.rs`): it would be old there.
//! - While the inode is open to read and write, pages are filled under locks to write only:
//!   they may be mapped, and the kernel does not tell us when a store dirties them.

use crate::cache::Generation;
use crate::cache::inode::CachedInode;
use crate::client::Client;
use crate::locks::turns::{LockTurns, TurnPlace};
use futures_util::future::{Either, select, try_join_all};
use glint_lock::held::{Drain, HeldData, Use};
use glint_net::{LockClient, Transport, host};
use glint_proto::lock::{Grant, Range, Recall, Return};
use glint_proto::{Bulk, Errno, FsResult, Ino, MdsReply, MdsRequest, OstRequest};
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause of who owes too many locks, or whose sync failed for a reason that may pass.
const OWED: Duration = Duration::from_millis(10);

/// A lock in use.
pub(crate) struct DataLockGuard {
    inode: Arc<CachedInode>,
    id: u64,
    /// The data may be changed meanwhile.
    changes: bool,
}

impl DataLockGuard {
    fn of(inode: &Arc<CachedInode>, id: u64) -> DataLockGuard {
        DataLockGuard { inode: inode.clone(), id, changes: false }
    }

    /// Whether a server wants it back.
    pub(crate) fn is_recalled(&self) -> bool {
        self.inode.lock().rare.data_locks.is_recalled(self.id)
    }

    /// Whether the lock was not lost since, with the session of this client.
    pub(crate) fn is_held(&self) -> bool {
        self.inode.lock().rare.made().is_some_and(|rare| rare.data_locks.knows(self.id))
    }
}

impl Drop for DataLockGuard {
    fn drop(&mut self) {
        let end = |locks: &mut HeldData| {
            if self.changes {
                locks.end_change(self.id);
            }
            locks.end(self.id)
        };
        let is_returned =
            self.inode.lock().rare.made().is_some_and(|rare| end(&mut rare.data_locks));
        if is_returned {
            self.inode.wake();
        }
    }
}

/// The turn to ask for a lock on an inode.
struct LockRequestTurn(Arc<CachedInode>);

impl Drop for LockRequestTurn {
    fn drop(&mut self) {
        self.0.lock().rare.make().lock_turns.end();
        self.0.wake();
    }
}

/// A place among those who wait for their turn, once there is one.
struct LockRequestPlace<'a>(&'a CachedInode, Option<TurnPlace>);

impl Drop for LockRequestPlace<'_> {
    fn drop(&mut self) {
        let Some(place) = self.1 else { return };
        let first = self.0.lock().rare.make().lock_turns.leave(place);
        if first {
            self.0.wake();
        }
    }
}

impl LockRequestPlace<'_> {
    /// Begins the turn of this one, who gets a place if it has none, if nobody else is before it.
    fn begin(&mut self, turns: &mut LockTurns) -> bool {
        let place = *self.1.get_or_insert_with(|| turns.wait());
        turns.begin(place)
    }
}

/// Answer for another task that asks for us.
type AsideLock = Arc<Mutex<Option<FsResult<(DataLockGuard, bool)>>>>;

impl<T: Transport> Client<T> {
    /// A lock that covers `range`, to write or to read.
    pub(crate) async fn lock_data(
        &self,
        inode: &Arc<CachedInode>,
        range: Range,
        write: bool,
        purpose: Use,
    ) -> FsResult<DataLockGuard> {
        let mut place = LockRequestPlace(inode, None);
        let mut asked: Option<AsideLock> = None;
        let mut guard = loop {
            let held = inode
                .until(|state| {
                    let fills = matches!(purpose, Use::Fill(_));
                    let write = write || (fills && state.pins.has_shared_writers());
                    if let Some(given) = asked.as_ref().and_then(|asked| asked.lock().take()) {
                        asked = None;
                        return Some(Err(Err((given, write))));
                    }
                    if let Some(id) = state.rare.make().data_locks.begin(range, write, purpose) {
                        return Some(Ok(id));
                    }
                    let waits = purpose != Use::Call && state.rare.data_locks.is_draining();
                    if waits || asked.is_some() || !place.begin(&mut state.rare.make().lock_turns) {
                        return None;
                    }
                    Some(Err(Ok(write)))
                })
                .await;
            match held {
                Ok(id) => break DataLockGuard::of(inode, id),
                Err(Ok(write)) => {
                    let turn = LockRequestTurn(inode.clone());
                    if purpose == Use::Call {
                        break self.ask_for(inode, range, write).await?;
                    }
                    asked = Some(self.ask_aside(turn, range, write));
                }
                Err(Err((Err(errno), _))) => return Err(errno),
                Err(Err((Ok((guard, written)), write))) if written || !write => {
                    if let Use::Fill(pages) = purpose {
                        inode.lock().rare.make().data_locks.fill(guard.id, pages);
                    }
                    break guard;
                }
                // The file may have become open to write meanwhile.
                Err(Err((Ok(_), _))) => {}
            }
        };
        drop(place);
        if write {
            // From now on nobody else begins to store pages.
            inode.lock().rare.make().data_locks.begin_change(guard.id);
            guard.changes = true;
            inode.until(|state| (!state.rare.data_locks.is_storing()).then_some(())).await;
        }
        Ok(guard)
    }

    /// Asks a server for a lock, for somebody who goes on to look for another one meanwhile.
    fn ask_aside(&self, turn: LockRequestTurn, range: Range, write: bool) -> AsideLock {
        let asked = AsideLock::default();
        let given = asked.clone();
        let Some(client) = self.me.get().and_then(Weak::upgrade) else { return asked };
        host::spawn(async move {
            let guard = client.ask_for(&turn.0, range, write).await;
            *given.lock() = Some(guard.map(|guard| (guard, write)));
            drop(turn);
        });
        asked
    }

    async fn ask_for(
        &self,
        inode: &Arc<CachedInode>,
        range: Range,
        write: bool,
    ) -> FsResult<DataLockGuard> {
        let (ino, reclaim, capability) = (inode.ino, false, None);
        let request = MdsRequest::Lock { ino, range, write, reclaim, capability };
        loop {
            // Until the lock is known here. Not while the next one is asked for: it may wait for
            // this one to be returned.
            let in_flight = self.cache.begin_request();
            let generation = self.cache.generation();
            let lock = match self.ask_as_root(&request).await {
                Ok(MdsReply::Locked(lock)) => lock,
                Ok(_) => return Err(Errno::EPROTO),
                // Too many of this file are still to be returned.
                Err(Errno::ENOLCK) => {
                    drop(in_flight);
                    host::sleep(OWED).await;
                    continue;
                }
                Err(errno) => return Err(errno),
            };
            let added = {
                let mut state = inode.lock();
                let sent_mark = self.cache.sent_mark();
                self.cache
                    .is_generation(generation)
                    .then(|| state.on_data_grant(lock, true, sent_mark))
                    .flatten()
            };
            if let Some(id) = added {
                return Ok(DataLockGuard::of(inode, id));
            }
            drop(in_flight);
            self.on_recall(vec![Recall::Data { ino: inode.ino, number: lock.number }]);
        }
    }

    /// An inode was opened to read and write: from now on its pages may become dirty, so none
    /// may be there that were filled under a lock to read.
    pub(crate) async fn forget_clean_pages(&self, inode: &Arc<CachedInode>) {
        // Those that are on their way to the kernel would come over dirty ones. No more follow while
        // it is open so.
        inode.until(|state| (!state.rare.data_locks.is_storing()).then_some(())).await;
        loop {
            let clean = {
                let mut state = inode.lock();
                let clean = state.rare.data_locks.with_clean_pages();
                clean.inspect(|id| state.rare.make().data_locks.begin_return(*id))
            };
            let Some(id) = clean else { break };
            self.return_data_lock(inode, id).await;
        }
        self.send_returns().await;
    }

    /// Locks have come with the answer to a request of a generation. Those that came too late to be
    /// relied on are returned.
    pub(crate) fn learn_grants(&self, grants: &[Grant], generation: Generation) {
        let refused = self.cache.learn_grants(grants, generation);
        if !refused.is_empty() {
            self.on_recall(refused);
        }
    }

    /// Returns all locks on data that were granted before `number`.
    pub(crate) async fn return_older(&self, inode: &Arc<CachedInode>, number: u64) {
        loop {
            let Some(id) = inode.lock().rare.data_locks.older(number) else { break };
            inode.lock().rare.make().data_locks.begin_return(id);
            self.return_data_lock(inode, id).await;
        }
        inode.until(|state| (!state.rare.data_locks.has_older(number)).then_some(())).await;
    }

    /// Has the OSTs bring to stable storage what this client would tell them again. One that
    /// cannot be reached is not waited for until the MDS takes this client for dead: what it may
    /// lose is not told it again, because others may have written there since. What one is
    /// told again just now is answered first, however long that takes, or this client is evicted.
    async fn make_stable(&self, ino: Ino) {
        if self.transport.unstable(ino).is_empty() {
            // Something may be under way that was given up with another lock of the file.
            return self.transport.until_answered(Some(ino)).await;
        }
        let patience = host::sleep(self.parameters.lease / 2);
        // What is under way is dropped with this: it would be waited for below.
        let synced = match select(pin!(self.sync_unstable(ino)), pin!(patience)).await {
            Either::Left((synced, _)) => Some(synced),
            Either::Right(_) => None,
        };
        match synced {
            Some(Ok(())) => return self.transport.until_answered(Some(ino)).await,
            Some(Err(errno)) => tracing::warn!(
                %ino, %errno,
                "could not sync what was written under a lock; it is returned, and the data is \
                lost if its server loses power"
            ),
            None => {
                tracing::warn!(%ino, "what was written under a lock is not on stable storage yet");
            }
        }
        self.transport.abandon(ino).await;
    }

    async fn sync_unstable(&self, ino: Ino) -> FsResult<()> {
        loop {
            let sync = |(ost, object)| {
                self.ask_ost(ost, OstRequest::Sync { object }, Bulk::None, &|| true)
            };
            match try_join_all(self.transport.unstable(ino).into_iter().map(sync)).await {
                Ok(_) => return Ok(()),
                Err(errno) if errno.may_pass() => host::sleep(OWED).await,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Returns a lock that was recalled.
    pub(crate) async fn return_data_lock(&self, inode: &Arc<CachedInode>, id: u64) {
        loop {
            match inode.until(|state| state.rare.make().data_locks.drain(id)).await {
                Drain::Forget(range) => {
                    // Tasks that fill pages which are forgotten now go on.
                    inode.wake();
                    if let Some(kernel) = self.cache.kernel().cloned() {
                        let ino = inode.ino;
                        host::unblock(move || kernel.forget_pages(ino, range)).await;
                    }
                    inode.lock().rare.make().data_locks.forgot(id);
                    inode.wake();
                }
                Drain::Closed => break,
                Drain::Gone => return,
            }
        }
        self.flush_or_discard(inode).await;
        self.make_stable(inode.ino).await;
        let mut state = inode.lock();
        let number = state.rare.make().data_locks.remove(id);
        state.rare.make().data.change();
        drop(state);
        inode.wake();
        self.locks.returns.put(number.map(|number| Return::Data { ino: inode.ino, number }));
    }
}
