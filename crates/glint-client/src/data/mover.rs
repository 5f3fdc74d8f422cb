//! Moves the data of a file to objects of another layout, while the file is used.
//!
//! Invariants:
//! - Copied is under a lock to write all of the file, with the gate of the file shut: nobody reads
//!   or writes it meanwhile, here or elsewhere. So the copy is what the file was when it began, and
//!   all that was written before is in it.
//! - Data that was copied before the lock was taken ([`ahead`]) is left out only if the OSTs of the old
//!   objects say that it has not changed since. If one does not know, everything is copied again.
//! - The switch is asked for only after the copy is on stable storage, and while the lock is held.
//! - A lock that others want is kept for a part of the lease at most: then the file stays where it
//!   is, and what was copied is removed. So it does if nothing can be copied for a whole lease, as
//!   an OST does not answer. The gate is shut no longer than that, whatever is waited for.
//! - New objects are removed only after everything that was sent to them has ended: what a server
//!   executes later would make them again, and nobody would know. Who waits for the move, and for
//!   the lock, does not wait for that.

mod ahead;
mod copying;
mod count;
mod hold;
mod progress;
mod ranges;

use crate::cache::Generation;
use crate::cache::inode::CachedInode;
use crate::client::Client;
use crate::vfs::Caller;
use copying::Copying;
use glint_lock::held::Use;
use glint_net::{Transport, host};
use glint_proto::lock::Range;
use glint_proto::{Attr, Errno, FsResult, Ino, Layout, MdsReply, MdsRequest};
use hold::Hold;
use progress::CopyProgress;
use ranges::FileRanges;
use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use count::MoveCounts;

/// Pause between two looks at who is still inside the gate.
const LOOK: Duration = Duration::from_millis(5);
/// Part of the lease for which others wait for the lock.
const PATIENCE_DIVISOR: u32 = 4;
/// Attempts to have nobody else inside when the file was copied before it was locked.
const LOCK_ATTEMPTS: usize = 10;

impl<T: Transport> Client<T> {
    /// Lays the data of a file out as `layout` says, on none of the OSTs `avoid`. EAGAIN if it is
    /// used too much for that, EBUSY if the kernel has its object, ETIMEDOUT if an OST does not
    /// answer, ENOBUFS if too many moves are under way; then nothing has changed. Goes on if nobody
    /// waits for it any more, and after an error until nothing of it is under way.
    pub(crate) async fn restripe(
        &self,
        caller: &Caller,
        ino: Ino,
        layout: Layout,
        avoid: Vec<u16>,
    ) -> FsResult<()> {
        let Some(client) = self.me.get().and_then(Weak::upgrade) else {
            let _counted = self.data.moves.begin()?;
            return self.move_data(caller, ino, layout, avoid, &|_| ()).await;
        };
        let (done, caller) = (Arc::new(glint_wait::Monitor::new(None)), caller.clone());
        let told = done.clone();
        host::spawn(async move {
            let tell = |moved: FsResult<()>| {
                told.change(|result: &mut Option<FsResult<()>>| {
                    result.get_or_insert(moved);
                });
            };
            let counted = match client.data.moves.begin() {
                Ok(counted) => counted,
                Err(errno) => return tell(Err(errno)),
            };
            let give_up = |error| {
                counted.give_up();
                tell(error);
            };
            let moved = client.move_data(&caller, ino, layout, avoid, &give_up).await;
            tell(moved);
        });
        done.until(|result: &mut Option<FsResult<()>>| result.take()).await
    }

    /// The same; an error is given to `tell` as soon as nobody has to wait for the rest.
    async fn move_data(
        &self,
        caller: &Caller,
        ino: Ino,
        layout: Layout,
        avoid: Vec<u16>,
        tell: &dyn Fn(FsResult<()>),
    ) -> FsResult<()> {
        // Nothing is copied in vain, and the switch would see it, too.
        if self.handles.is_handed_out(ino) {
            return Err(Errno::EBUSY);
        }
        // The new objects are this client's until it is evicted.
        let session = self.cache.generation();
        let plan = MdsRequest::PlanLayout { ino, layout, avoid };
        let MdsReply::Attr(planned) = self.ask(caller, &plan).await? else {
            return Err(Errno::EPROTO);
        };
        let to = planned.layout;
        let moved = self.copy_and_switch(caller, &planned, session, tell).await;
        if moved.is_err()
            && let Err(errno) = self.ask(caller, &MdsRequest::DropLayout { ino, layout: to }).await
        {
            tracing::warn!(
                %ino, %errno,
                "could not say that a file was not moved; what was copied goes with this mount"
            );
        }
        moved
    }

    async fn copy_and_switch(
        &self,
        caller: &Caller,
        planned: &Attr,
        session: Generation,
        tell: &dyn Fn(FsResult<()>),
    ) -> FsResult<()> {
        let (ino, to) = (planned.ino, planned.layout);
        let inode = self.inode(ino);
        let written = Cell::new(0);
        let progress = CopyProgress::new(self.parameters.lease);
        let is_planned = || self.cache.is_session(session) && !progress.is_given_up();
        let copied = self.copy_ahead(planned, &written, &is_planned, &progress);
        let mut ahead = progress.unless_stalled(copied, tell).await?;
        let mut attempts = LOCK_ATTEMPTS;
        let hold = loop {
            let locked = self.lock_whole(ino, inode.as_ref(), &progress, tell).await;
            match (locked, &mut ahead) {
                (Err(Errno::EAGAIN), Some(ahead)) if attempts > 1 => {
                    // Nothing was copied under the lock: what others do now is one more round.
                    attempts -= 1;
                    host::sleep(10 * LOOK).await;
                    let copied =
                        self.copy_round((ino, to), &written, &is_planned, ahead, &progress);
                    progress.unless_stalled(copied, tell).await?;
                }
                (locked, _) => break locked?,
            }
        };
        // The kernel would go on with the old object.
        if self.handles.is_handed_out(ino) {
            return Err(Errno::EBUSY);
        }
        let is_held = || hold.is_held() && is_planned();
        let copied = async {
            if let Some(inode) = &inode {
                progress.step(self.flush_inode(inode)).await?;
                hold.check()?;
            }
            let attr = self.asked_attributes(ino).await?;
            let from = attr.layout;
            let Some(objects) = self.glimpse(ino, from).await? else {
                // If anything was copied, its objects are gone, and others have come.
                return if written.get() == 0 { Ok(from) } else { Err(Errno::EAGAIN) };
            };
            let size = objects.size;
            let left = match &mut ahead {
                Some(ahead) if ahead.from == from => {
                    progress.step(self.ask_changed(ino, ahead)).await?;
                    std::mem::take(&mut ahead.pending)
                }
                _ => FileRanges::all(),
            };
            let left = left.parts(size.max(written.get()), u64::MAX);
            let copying = Copying {
                ino,
                to,
                written: &written,
                may_write: &is_held,
                check: &|| hold.check(),
                progress: &progress,
                is_still: true,
            };
            self.copy_ranges(&copying, from, size, &left).await?;
            progress.step(self.truncate_objects(ino, to, size, &is_held)).await?;
            let mtime = if attr.size_on_ost { objects.mtime } else { attr.mtime };
            progress.step(self.set_objects_time(ino, to, mtime, &is_held)).await?;
            hold.check()?;
            self.sync_objects(ino, to).await.map(|()| from)
        };
        // An OST that does not answer is not waited for while others wait for the lock, nor for
        // more than a lease while calls of this client wait at the gate.
        let from = hold.unless_over(copied, &progress, tell).await?;
        hold.check()?;
        let update = self.begin_update(&[ino]);
        let switched = self.ask(caller, &MdsRequest::SwitchLayout { ino, from, to }).await;
        drop(update);
        if let Err(errno) = switched {
            // Only a refusal says for certain that it was not made.
            let is_refused = matches!(errno, Errno::ESTALE | Errno::EAGAIN | Errno::EBUSY);
            if is_refused || self.asked_attributes(ino).await?.layout != to {
                return Err(errno);
            }
        }
        match &inode {
            Some(inode) => {
                let mut state = inode.lock();
                state.rare.make().data.set_layout(Some(to));
                state.rare.make().data.change();
            }
            None => self.data.gate.note_moved(ino, to),
        }
        Ok(())
    }

    /// Returns the attributes of a file as the MDS has them.
    async fn asked_attributes(&self, ino: Ino) -> FsResult<Attr> {
        match self.ask_as_root(&MdsRequest::Getattr { ino }).await? {
            MdsReply::Attr(attr) | MdsReply::Glimpsed { attr, .. } => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Locks all of the data of a file, and keeps the calls of this client out: EAGAIN if some are
    /// inside that may wait for the lock.
    async fn lock_whole(
        &self,
        ino: Ino,
        inode: Option<&Arc<CachedInode>>,
        progress: &CopyProgress,
        tell: &dyn Fn(FsResult<()>),
    ) -> FsResult<Hold<'_>> {
        let guard = match inode {
            Some(inode) => Some(self.lock_data(inode, Range::ALL, true, Use::Call).await?),
            None => None,
        };
        let shut = self.data.gate.shut(ino).ok_or(Errno::EBUSY)?;
        let hold = Hold::new(shut, guard, self.parameters.lease / PATIENCE_DIVISOR);
        hold.unless_stalled(hold.until_empty(), progress, tell).await?;
        Ok(hold)
    }
}
