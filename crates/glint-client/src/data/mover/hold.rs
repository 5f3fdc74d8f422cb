//! The lock on a file that is being moved, and its gate, which is shut meanwhile.

use super::LOOK;
use super::progress::CopyProgress;
use crate::data::gate::Shut;
use crate::locks::data_locks::DataLockGuard;
use futures_util::future::{Either, select};
use glint_net::host;
use glint_proto::{Errno, FsResult, clock};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::time::{Duration, Instant};

/// The lock and the shut gate, until others are let in, and since when they want the lock.
pub(super) struct Hold<'a> {
    held: RefCell<Option<(Shut<'a>, Option<DataLockGuard>)>>,
    wanted: Cell<Option<Instant>>,
    most: Duration,
}

impl<'a> Hold<'a> {
    /// Others wait for the lock `most` at most.
    pub(super) fn new(shut: Shut<'a>, guard: Option<DataLockGuard>, most: Duration) -> Hold<'a> {
        Hold { held: RefCell::new(Some((shut, guard))), wanted: Cell::new(None), most }
    }

    /// EAGAIN if others have waited long enough; EIO if the lock is lost.
    pub(super) fn check(&self) -> FsResult<()> {
        let held = self.held.borrow();
        let Some((_, guard)) = &*held else { return Err(Errno::EAGAIN) };
        let Some(guard) = guard else { return Ok(()) };
        if !guard.is_held() {
            return Err(Errno::EIO);
        }
        if !guard.is_recalled() {
            return Ok(());
        }
        let now = clock::now();
        let since = self.wanted.get().unwrap_or(now);
        self.wanted.set(Some(since));
        if now.saturating_duration_since(since) < self.most { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// Waits until no call of this client is inside the gate: EAGAIN if the lock is recalled, which
    /// calls inside may wait for.
    pub(super) async fn until_empty(&self) -> FsResult<()> {
        let is_empty = || self.held.borrow().as_ref().is_some_and(|(shut, _)| shut.is_empty());
        while !is_empty() {
            self.check()?;
            if self.wanted.get().is_some() {
                return Err(Errno::EAGAIN);
            }
            host::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until others have waited long enough, or the lock is lost, and returns which. Never
    /// returns once others are let in: whoever did that has told why.
    async fn over(&self) -> Errno {
        loop {
            host::sleep(10 * LOOK).await;
            if self.held.borrow().is_some()
                && let Err(errno) = self.check()
            {
                return errno;
            }
        }
    }

    /// Whether all of the file is still locked.
    pub(super) fn is_held(&self) -> bool {
        let is_held =
            |guard: &Option<DataLockGuard>| guard.as_ref().is_none_or(DataLockGuard::is_held);
        self.held.borrow().as_ref().is_some_and(|(_, guard)| is_held(guard))
    }

    /// Others get the lock, and calls of this client go on.
    pub(super) fn let_go(&self) {
        drop(self.held.take());
    }

    /// Waits for `work`, and lets others in if nothing of it is done for too long: see
    /// [`CopyProgress::unless_stalled`].
    pub(super) async fn unless_stalled<R>(
        &self,
        work: impl Future<Output = FsResult<R>>,
        progress: &CopyProgress,
        tell: &dyn Fn(FsResult<()>),
    ) -> FsResult<R> {
        let stalled = |error| {
            self.let_go();
            tell(error);
        };
        progress.unless_stalled(work, stalled).await
    }

    /// The same, and lets others in if they have waited for the lock long enough.
    pub(super) async fn unless_over<R>(
        &self,
        work: impl Future<Output = FsResult<R>>,
        progress: &CopyProgress,
        tell: &dyn Fn(FsResult<()>),
    ) -> FsResult<R> {
        let work = self.unless_stalled(work, progress, tell);
        match select(pin!(work), pin!(self.over())).await {
            Either::Left((done, _)) => done,
            Either::Right((errno, work)) => {
                self.let_go();
                tell(Err(errno));
                let _ = work.await;
                Err(errno)
            }
        }
    }
}
