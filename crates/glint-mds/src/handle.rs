//! The way of a request through the MDS: it is admitted, looked up among those executed before, waits
//! for locks of other clients, and is executed by its file of [`crate::ops`].
//!
//! Invariant: a request with an id is executed at most once, by all runs of the MDS together.

use crate::error::{Conflict, OpResult, Stop, errno};
use crate::service::{Context, Mds};
use crate::session::open_files::Count;
use crate::session::sessions::LastReply;
use glint_kv::Kv;
use glint_proto::{
    Answer, Arrival, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest, MetadataService, RequestId,
};
use glint_telemetry::{Counter, Layer, Span, event};
use std::sync::atomic::Ordering;

impl<K: Kv> MetadataService for Mds<K> {
    async fn handle(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> Answer<MdsReply> {
        let _span = Span::start(Layer::Handler, request.op() as u8);
        let context = Context::new(arrival, cred);
        let reply = match (self.admit(&context, request).await, arrival.id) {
            (Err(errno), _) => Err(errno),
            (Ok(()), Some(id)) if request.is_modifying() => self.once(id, &context, request).await,
            _ => self.execute_claiming(&context, request).await,
        };
        let grants = context.grants.into_inner();
        let answer = Answer { transaction: context.transaction.get(), reply, grants };
        let (id, is_replay) = (arrival.id, arrival.replay.is_some());
        tracing::trace!(?id, is_replay, ?request, ?answer, "metadata");
        answer
    }

    async fn resolve(&self, path: &str) -> FsResult<Ino> {
        self.find_directory(path).await
    }

    async fn is_within(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        self.is_below(top, ino).await
    }
}

impl<K: Kv> Mds<K> {
    /// Executes a request unless it was answered before.
    async fn once(
        &self,
        id: RequestId,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
    ) -> FsResult<MdsReply> {
        let mut begun = None;
        let slot = self.slot(context.arrival.session, id).await?;
        let mut last = slot.lock().await;
        let digest = context.arrival.digest;
        if id.xid < last.xid {
            return Err(Errno::EPROTO);
        }
        if id.xid == last.xid
            && let Some(reply) = last.reply.clone()
        {
            if last.digest != digest && !context.is_replay() {
                tracing::warn!(event = event::REQUEST_REFUSED,
                    client = %id.client, slot = id.slot, xid = id.xid,
                    "another request under the number of one that was answered: refused");
                return Err(Errno::EPROTO);
            }
            glint_telemetry::count(Counter::Replays, 1);
            let again = std::mem::take(&mut last.recovered);
            if again && !context.is_replay() {
                self.recover_open(context, request, &reply).await?;
            }
            context.transaction.set(last.transaction);
            context.grants.borrow_mut().extend_from_slice(&last.grants);
            match (request, reply) {
                // The reply record of a batch may be of a part of it.
                (MdsRequest::Batch { .. }, Ok(done)) if again => begun = Some(done),
                (_, reply) => return reply,
            }
        }
        let reply = match *request {
            MdsRequest::Batch { epoch, changes } => {
                self.run_batch(context, epoch, changes, begun).await
            }
            _ => self.execute_claiming(context, request).await,
        };
        let transaction = context.transaction.get();
        let grants = context.grants.borrow().clone();
        let recovered = false;
        *last = LastReply {
            xid: id.xid,
            digest,
            reply: Some(reply.clone()),
            grants,
            transaction,
            recovered,
        };
        reply
    }

    /// Executes an operation until no other client holds what it changes.
    pub(crate) async fn execute_claiming(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
    ) -> FsResult<MdsReply> {
        self.claiming(context, request, async || self.execute(context, request).await).await
    }

    /// Does something for a request until no other client holds what that changes.
    pub(crate) async fn claiming(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
        execute: impl AsyncFn() -> OpResult,
    ) -> FsResult<MdsReply> {
        let mut wanted = Vec::new();
        loop {
            let reply = execute().await;
            debug_assert!(
                context.is_as_committed(&reply),
                "{request:?} is answered with {reply:?}, and with something else after a restart"
            );
            for (ino, bits) in context.changing.take() {
                self.client_locks.end_change(ino, bits);
            }
            context.end();
            let conflict = match reply {
                Ok(reply) => return Ok(reply),
                Err(Stop::Refused(errno)) => return Err(errno),
                Err(Stop::Conflict(conflict)) => conflict,
            };
            self.withhold_bits(context);
            // The client may no longer listen to recalls by then.
            context.locking.set(None);
            let _span = Span::start(Layer::LockWait, request.op() as u8);
            let Conflict { holder, ino, bits } = conflict;
            wanted.push(self.client_locks.clear(holder, ino, bits).await);
        }
    }

    /// Executes a request, unless another client holds what it changes.
    pub(crate) async fn execute(
        &self,
        context: &Context<'_>,
        request: &MdsRequest<'_>,
    ) -> OpResult {
        self.look_by_number(context, request).await?;
        match *request {
            MdsRequest::Lookup { parent, name } => self.lookup(context, parent, name).await,
            MdsRequest::Getattr { ino } => self.getattr(context, ino).await,
            MdsRequest::Setattr { ino, ref set } => self.setattr(context, ino, set).await,
            MdsRequest::Create { .. } => self.create(context, request).await,
            MdsRequest::Tmpfile { parent, mode, umask } => {
                self.tmpfile(context, parent, mode, umask).await
            }
            MdsRequest::Link { ino, parent, name } => self.link(context, ino, parent, name).await,
            MdsRequest::Unlink { parent, name } => self.unlink(context, parent, name).await,
            MdsRequest::Rmdir { parent, name } => self.rmdir(context, parent, name).await,
            MdsRequest::Rename { parent, name, new_parent, new_name, flags } => {
                self.rename(context, (parent, name), (new_parent, new_name), flags).await
            }
            MdsRequest::Open { ino, flags } => self.open(context, ino, flags, MdsReply::Attr).await,
            MdsRequest::Release { ino, write, wrote } => {
                self.release(context, ino, write, wrote).await
            }
            MdsRequest::Readdir { ino, cookie, bytes_max, plus } => {
                self.readdir(context, ino, cookie, bytes_max, plus).await
            }
            MdsRequest::Scan { ref directories, bytes_max, ref filter } => {
                self.scan(context, directories, bytes_max, filter.as_deref()).await
            }
            MdsRequest::Readlink { ino } => Ok(self.readlink(ino).await?),
            MdsRequest::Getxattr { ino, name } => Ok(self.getxattr(ino, name).await?),
            MdsRequest::Setxattr { ino, name, value, flags } => {
                self.setxattr(context, ino, name, value, flags).await
            }
            MdsRequest::Listxattr { ino } => Ok(self.listxattr(ino).await?),
            MdsRequest::Removexattr { ino, name } => self.removexattr(context, ino, name).await,
            MdsRequest::Statfs => {
                let inodes = self.inodes.load(Ordering::Relaxed).max(0) as u64;
                Ok(MdsReply::Statfs { inodes })
            }
            MdsRequest::Sync => {
                self.kv.sync().await.map_err(errno)?;
                Ok(MdsReply::Done)
            }
            MdsRequest::SetLayout { ino, layout } => self.set_layout(context, ino, layout).await,
            MdsRequest::PlanLayout { ino, layout, ref avoid } => {
                self.plan_layout(context, ino, layout, avoid).await
            }
            MdsRequest::SwitchLayout { ino, from, to } => {
                self.switch_layout(context, ino, from, to).await
            }
            MdsRequest::DropLayout { ino, layout } => self.drop_layout(context, ino, layout).await,
            MdsRequest::Reopen { ino, readers, writers, .. } => {
                self.reopen(context, ino, Count { readers, writers, doubtful: true }).await
            }
            MdsRequest::Touch { ino } => self.touch(context, ino).await,
            MdsRequest::Lock { ino, range, write, reclaim, .. } => {
                self.lock_data(context, ino, range, write, reclaim).await
            }
            MdsRequest::Prefetch { ref inos } => Ok(self.prefetch(context, inos).await?),
            MdsRequest::AddOpens { ino, readers } => {
                context.begin()?;
                if readers > 0 {
                    self.opens.add_readers(context.client, ino, readers);
                }
                Ok(MdsReply::Done)
            }
            MdsRequest::PosixLock(lock) => Ok(self.posix_lock(context, lock).await?),
            MdsRequest::GrantInodes { count, epoch } => {
                Ok(self.grant_inodes(context, count, epoch).await?)
            }
            MdsRequest::WritesBack { epoch } => {
                context.begin()?;
                self.client_locks.recalls.writes_back(context.client, epoch);
                Ok(MdsReply::Done)
            }
            MdsRequest::ReclaimDelegation { ino } => {
                context.begin()?;
                Ok(self.reclaim_delegation(context, ino))
            }
            // Only with what makes sure that it is executed once.
            MdsRequest::Batch { .. } => Err(Errno::EOPNOTSUPP.into()),
        }
    }
}
