//! Locks on data, as clients ask for them, and what those that hold some have not yet sent.

use crate::error::OpResult;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::limits::PREFETCHED_FILES_MAX;
use glint_proto::lock::{Grant, Range};
use glint_proto::{Attr, Errno, FsResult, Ino, MdsReply, Op, Timestamp};
use glint_telemetry::{Layer, Span};

impl<K: Kv> Mds<K> {
    /// A client asks for a lock on data.
    pub(crate) async fn lock_data(
        &self,
        context: &Context<'_>,
        ino: Ino,
        range: Range,
        write: bool,
        reclaim: bool,
    ) -> OpResult {
        if range.start >= range.end {
            return Err(Errno::EINVAL.into());
        }
        if !self.client_locks.is_used() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        context.begin()?;
        // After a restart it may ask before it listens; what it is asked waits until it does.
        self.client_locks.recalls.expect(context.client);
        if reclaim {
            let mut shard = self.client_locks.shard(ino).lock();
            if !shard.may_ask(context.client, ino, write) {
                return Err(Errno::ESTALE.into());
            }
            let lock = shard.extents.reclaim(context.client, ino, range, write);
            return Ok(lock.map(MdsReply::Locked).ok_or(Errno::ESTALE)?);
        }
        // Before anybody is asked for a bit that is in the way: it would be for nothing.
        if self.client_locks.shard(ino).lock().extents.owes_too_much(context.client, ino) {
            return Err(Errno::ENOLCK.into());
        }
        let _span = Span::start(Layer::LockWait, Op::Lock as u8);
        let lock = self.client_locks.data(context, ino, range, write).await?;
        match lock.number {
            0 => Err(Errno::ESTALE.into()),
            _ => {
                // Nobody else moves the data from now on.
                if let Some(record) = self.find_inode(ino).await? {
                    self.grant_layout(context, &record.attr);
                }
                Ok(MdsReply::Locked(lock))
            }
        }
    }

    /// A client is going to read these files. It gets the locks on their data that are in nobody's
    /// way, and nothing of the others: it asks for those when it reads them.
    pub(crate) async fn prefetch(&self, context: &Context<'_>, inos: &[Ino]) -> FsResult<MdsReply> {
        if inos.len() > PREFETCHED_FILES_MAX {
            return Err(Errno::EINVAL);
        }
        context.begin()?;
        for ino in inos {
            if let Some(record) = self.find_inode(*ino).await?
                && record.attr.is_file()
            {
                self.grant_data(context, &record.attr, false);
                // The data may have moved before the lock was given.
                let latest = self.find_inode(*ino).await?;
                if let Some(latest) = latest.filter(|now| now.attr.layout != record.attr.layout) {
                    self.grant_layout(context, &latest.attr);
                }
            }
        }
        Ok(MdsReply::Done)
    }

    /// Says with a lock on data where that lies, if it has moved once: the client may know an older
    /// layout, which is of no use any more.
    pub(crate) fn grant_layout(&self, context: &Context<'_>, attr: &Attr) {
        if attr.layout.has_moved() {
            let grant = Grant::Layout { ino: attr.ino, layout: attr.layout };
            context.grants.borrow_mut().push(grant);
        }
    }

    /// Asks the clients that write a file for what they have not yet sent to its objects: the
    /// largest size and the latest time.
    pub(crate) async fn glimpse(
        &self,
        context: &Context<'_>,
        ino: Ino,
    ) -> Option<(u64, Timestamp)> {
        if !self.client_locks.is_used() {
            return None;
        }
        let writers = self.client_locks.shard(ino).lock().extents.writers(ino, context.client);
        let mut seen: Option<(u64, Timestamp)> = None;
        for writer in writers {
            let Some((size, time)) = self.client_locks.recalls.glimpse(writer, ino).await else {
                continue;
            };
            let so_far = seen.unwrap_or_default();
            seen = Some((so_far.0.max(size), so_far.1.max(time)));
        }
        seen
    }
}
