//! Batches: changes that clients made under delegations, executed in their order.
//!
//! Invariants:
//! - The changes of a batch are executed in their order, each once. The reply record that is
//!   committed with each of them says how many are done, so a batch that comes again after a
//!   restart goes on where it ended.
//! - What a client did before it was evicted is not executed after that.
//! - A client makes inodes only under numbers that were given out and that nobody has.

use crate::error::errno;
use crate::locking::namespace_locks::{Held, Key, Want};
use crate::service::Mds;
use crate::session::context::Context;
use futures_lite::future::yield_now;
use glint_kv::{Keyspace, Kv};
use glint_proto::deferred::{self, Deferred};
use glint_proto::limits::{BATCH_CHANGES_MAX, INODES_PER_GRANT_MAX};
use glint_proto::{ClientId, Errno, FsResult, Ino, MdsReply, Placement};

/// Changes after which others have their turn.
const TURN: u32 = 32;

impl<K: Kv> Mds<K> {
    /// Executes a batch from where it ended, if it was begun before.
    pub(crate) async fn run_batch(
        &self,
        context: &Context<'_>,
        epoch: u64,
        changes: &[u8],
        begun: Option<MdsReply>,
    ) -> FsResult<MdsReply> {
        let is_access = |change: FsResult<Deferred<'_>>| change.is_ok_and(|it| it.is_access());
        if self.client_locks.recalls.epoch(context.client) != Some(epoch)
            && !deferred::changes(changes).all(is_access)
        {
            // The batch was made before the client was evicted. Others have changed things since.
            return Err(Errno::ESTALE);
        }
        let (start, mut failed) = match begun {
            Some(MdsReply::Batched { done, failed }) => (done, failed),
            Some(_) => return Err(Errno::EPROTO),
            None => (0, Vec::new()),
        };
        let mut done = 0;
        for change in deferred::changes(changes) {
            if done >= BATCH_CHANGES_MAX {
                return Err(Errno::E2BIG);
            }
            let at = done;
            done += 1;
            if at < start {
                continue;
            }
            let result = match change {
                Ok(change) => self.run_change(context, &change, done, &failed).await,
                Err(errno) => Err(errno),
            };
            if let Err(errno) = result {
                failed.push((at, errno));
            }
            if done.is_multiple_of(TURN) {
                yield_now().await;
            }
        }
        Ok(MdsReply::Batched { done, failed })
    }

    async fn run_change(
        &self,
        context: &Context<'_>,
        change: &Deferred<'_>,
        done: u32,
        failed: &[(u32, Errno)],
    ) -> FsResult<()> {
        let cred = change.cred();
        let progress = MdsReply::Batched { done, failed: failed.to_vec() };
        let part = context.part(&cred, change.time, change.made, progress);
        let reply = self.execute_claiming(&part, &change.request).await;
        if part.transaction.get() > 0 {
            context.transaction.set(part.transaction.get());
        }
        context.grants.borrow_mut().append(&mut part.grants.borrow_mut());
        reply.map(drop)
    }

    /// Takes the lock of the number that a client says its new inode has, until that is committed:
    /// nobody else names the number, but two batches of a client on two slots may make it at once.
    /// After the locks of the name.
    pub(crate) async fn lock_given(&self, context: &Context<'_>) -> Option<Held<'_>> {
        let (ino, _) = context.given()?;
        Some(self.locks.acquire(&[Want::exclusive(Key::Inode(ino))]).await)
    }

    /// Whether a client may say that its inode has this number, and is laid out there: nobody has
    /// the number, and nobody will be given it, and these OSTs exist. The number is locked
    /// ([`Mds::lock_given`]).
    pub(crate) async fn check_given(
        &self,
        context: &Context<'_>,
        (ino, placement): (Ino, Placement),
        copies: u8,
    ) -> FsResult<()> {
        let is_its = match context.progress {
            Some(_) => self.allocator.is_granted_to(context.client, ino),
            // A change that was lost and is replayed was made in an earlier run.
            None => self.allocator.is_of_earlier_run(ino),
        };
        let targets = match copies {
            0 | 1 => self.osts(),
            _ => self.chains.count(copies),
        };
        let exists = placement.osts <= targets && placement.first < placement.osts.max(1);
        if !is_its || !exists {
            return Err(Errno::EINVAL);
        }
        match self.kv.get(Keyspace::Inode, &ino.key()).await.map_err(errno)? {
            Some(_) => Err(Errno::EEXIST),
            None => Ok(()),
        }
    }

    /// The changes up to `done` survived the end of the last run, but what they left open
    /// did not.
    pub(crate) fn recover_batch(&self, context: &Context<'_>, changes: &[u8], done: u32) {
        for change in deferred::changes(changes).take(done as usize).flatten() {
            match change.opening() {
                Some((ino, write, true)) => self.opens.add(context.client, ino, write),
                Some((ino, write, false)) => {
                    self.opens.remove(context.client, ino, write, None);
                }
                None => {}
            }
        }
    }

    /// Inode numbers for a client, which will be granted delegations, too.
    pub(crate) async fn grant_inodes(
        &self,
        context: &Context<'_>,
        count: u32,
        epoch: u64,
    ) -> FsResult<MdsReply> {
        // The mount of this process has no numbers for its requests: a batch of it could not be executed
        // once, and is refused.
        let is_in_process = context.client == ClientId::IN_PROCESS;
        if is_in_process || !self.client_locks.is_used() || self.config.commit_sync {
            return Err(Errno::EOPNOTSUPP);
        }
        self.need_space(context)?;
        context.begin()?;
        self.client_locks.recalls.writes_back(context.client, epoch);
        let count = count.clamp(1, INODES_PER_GRANT_MAX);
        let first = self.allocator.grant(&self.kv, context.client, count).await?;
        let (osts, avoided) = (self.osts(), self.with_avoided(|avoided| avoided.all.to_vec()));
        let chains = self.chains.targets();
        let name_seed = self.hash_seed;
        Ok(MdsReply::Inodes { first, count, osts, avoided, chains, name_seed })
    }
}
