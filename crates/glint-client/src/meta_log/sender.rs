//! Sends what this client has changed by itself, and ends that: when another client needs
//! a delegated directory, when there are too many of these or of their names, when the servers are
//! silent, when they have forgotten this client.
//!
//! Invariants:
//! - While a directory is delegated all of its names are known, or nothing is changed there without asking:
//!   so its names stay when their inodes are forgotten.
//! - When the delegation ends, names that their inodes do not know, or of inodes that are not known, are
//!   forgotten, since nothing else would have them forgotten: the others go with their inodes.
//! - A delegation that ends is first not used any more, so from then on no such name comes. Then the
//!   names are gone through in steps, and the directory is locked for one step at a time: its calls
//!   wait for thousands of names at most, not for a million. It is returned after the last step.

use crate::cache::dentries::NameWalk;
use crate::cache::inode::{CachedInode, InodeState};
use crate::client::Client;
use crate::meta_log::log::LogBatch;
use glint_net::{MdsRequests, Transport, host};
use glint_proto::deferred::{self, Deferred};
use glint_proto::lock::{Bits, Return};
use glint_proto::{Cred, Errno, MdsReply, MdsRequest};
use glint_telemetry::event;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most delegations that a client holds.
const DELEGATIONS_MAX: usize = 4096;
/// Delegations used by one of the last changes are not returned: changes that are this part of those that
/// a client may hold. A change uses two at most, so these are fewer than a client may hold.
const RECENT_PART: usize = 4;
/// Names that delegated directories may keep of inodes that are not known, for each inode that may be: a name
/// takes a quarter of what an inode does, at most.
const KEPT_NAMES_FACTOR: usize = 2;
/// Names that are gone through without a pause when a delegation ends: about a millisecond of the thread
/// that also answers recalls.
const PIECE: usize = 4096;
const PIECE_PAUSE: Duration = Duration::from_micros(100);

impl<T: Transport> Client<T> {
    /// Sends changes, and the data of files that were made with them and closed. Never ends.
    pub(crate) async fn send_log(self: Arc<Self>) {
        loop {
            let (batch, closed) = self.log.next().await;
            for file in closed {
                let client = self.clone();
                host::spawn(async move { client.finish_closed(&file).await });
            }
            if let Some(batch) = batch {
                self.send_batch(&batch).await;
                self.log.note_answered(batch.count);
            }
        }
    }

    /// Sends the data of such files until the end, on a thread beside that: each has a connection of
    /// its own to a server, which serves them by different threads.
    pub(crate) async fn send_closed(self: Arc<Self>) {
        self.log.begin_help();
        while let Some(closed) = self.log.next_closed().await {
            for file in closed {
                let client = self.clone();
                host::spawn(async move { client.finish_closed(&file).await });
            }
        }
    }

    async fn send_batch(self: &Arc<Self>, batch: &LogBatch) {
        let request = MdsRequest::Batch { epoch: batch.epoch, changes: &batch.changes };
        let _in_flight = self.cache.begin_request();
        let generation = self.cache.generation();
        let (reply, grants) = self.transport.mds().request(&Cred::ROOT, &request).await;
        self.learn_grants(&grants, generation);
        self.end_expecting(batch);
        let failed = match reply {
            Ok(MdsReply::Batched { failed, .. }) => failed,
            other => {
                let errno = other.err().unwrap_or(Errno::EPROTO);
                let lost = batch.promises();
                if lost > 0 {
                    tracing::error!(
                        event = event::CHANGES_LOST, %errno, lost,
                        "changes that were made here are lost"
                    );
                } else if matches!(errno, Errno::EOPNOTSUPP | Errno::EROFS) {
                    // The rights of this client do not allow for it to make changes by itself.
                    self.log.turn_off();
                }
                (0..batch.count).map(|at| (at, errno)).collect()
            }
        };
        if failed.is_empty() {
            return;
        }
        for (at, change) in deferred::changes(&batch.changes).flatten().enumerate() {
            if let Some((_, errno)) = failed.iter().find(|(number, _)| *number as usize == at)
                && !change.is_access()
            {
                self.change_failed(&change, *errno);
            }
        }
    }

    /// Changes are answered: locks on data that were expected with them and have not come are
    /// not held.
    fn end_expecting(self: &Arc<Self>, batch: &LogBatch) {
        for change in deferred::changes(&batch.changes).flatten() {
            let Some((ino, _, true)) = change.opening() else { continue };
            let Some(inode) = self.cache.find(ino) else { continue };
            let missing =
                inode.lock().rare.made().and_then(|rare| rare.data_locks.return_expected());
            if let Some(id) = missing {
                let client = self.clone();
                host::spawn(async move {
                    client.return_data_lock(&inode, id).await;
                    client.cache.note_idle(&inode);
                });
            }
        }
    }

    /// A change that was made here could not be made by the servers. What is known here is
    /// wrong now, and asked anew.
    fn change_failed(&self, change: &Deferred<'_>, errno: Errno) {
        // Each says something of its own, so none is left out as a repetition.
        tracing::warn!(
            target: "every", event = event::CHANGES_LOST, %errno, ?change,
            "a change that was made here was refused; it is lost"
        );
        self.data.limits.count_error();
        let names = match change.request {
            MdsRequest::Create { parent, name, .. }
            | MdsRequest::Unlink { parent, name }
            | MdsRequest::Rmdir { parent, name } => [Some((parent, name)), None],
            MdsRequest::Rename { parent, name, new_parent, new_name, .. } => {
                [Some((parent, name)), Some((new_parent, new_name))]
            }
            _ => [None, None],
        };
        let ino = match change.request {
            MdsRequest::Setattr { ino, .. } | MdsRequest::Release { ino, .. } => Some(ino),
            _ => change.made.map(|(ino, _)| ino),
        };
        if let Some(inode) = ino.and_then(|ino| self.cache.find(ino)) {
            let mut state = inode.lock();
            state.rare.make().data.lose(errno);
            if change.made.is_some() {
                state.rare.make().delegation.lose_creation();
            }
            state.lose_attributes();
            if let Some(rare) = state.rare.made() {
                rare.delegation.lose();
            }
        }
        for (parent, name) in names.into_iter().flatten() {
            if let Some(directory) = self.cache.find(parent) {
                let mut state = directory.lock();
                state.dentries.doubt(name);
                state.lose_attributes();
            }
            self.cache.forget_in_kernel(parent, name);
        }
    }

    /// Ends a delegation, and waits until the servers know all changes made under it.
    pub(crate) async fn return_delegation(&self, directory: &Arc<CachedInode>) {
        directory.lock().rare.make().delegation.begin_end();
        let (mut walk, mut since_pause) = (NameWalk::default(), 0);
        while let Some(names) = self.leave_names(directory, &mut walk) {
            since_pause += names;
            if since_pause > PIECE {
                since_pause = 0;
                host::sleep(PIECE_PAUSE).await;
            }
        }
        directory.lock().rare.make().delegation.end();
        directory.wake();
        // Another thread that ends it, too, may be about to note what it has found.
        let known = |state: &mut InodeState| {
            let delegation = &state.rare.delegation;
            (!delegation.is_ending()).then(|| delegation.last_change())
        };
        let number = directory.until(known).await;
        self.log.until_answered(number).await;
    }

    /// Ends a delegation: nothing is changed in the directory without asking any more.
    pub(crate) fn end_delegation(&self, directory: &CachedInode) {
        directory.lock().rare.make().delegation.begin_end();
        let mut walk = NameWalk::default();
        while self.leave_names(directory, &mut walk).is_some() {}
        directory.lock().rare.make().delegation.end();
        directory.wake();
    }

    /// Takes a step through the names of a directory whose delegation ends: what was made there is not
    /// this client's alone any more. Returns how many names it went through; `None` at the end.
    fn leave_names(&self, directory: &CachedInode, walk: &mut NameWalk) -> Option<usize> {
        let mut names = directory.lock().dentries.walk(walk)?;
        let count = names.len();
        // In their order, so that one seed of the simulation is always the same run.
        names.sort_unstable_by_key(|(_, child)| *child);
        let mut number: u64 = 0;
        names.retain(|(name, child)| {
            let Some(inode) = self.cache.find(*child) else { return true };
            let mut state = inode.lock();
            let last = state.rare.made().and_then(|rare| rare.delegation.leave_with(directory.ino));
            if let Some(last) = last {
                number = number.max(last);
                // What was asked so far the servers may answer without its last change.
                state.doubt_answers();
            }
            !state.has_name(directory.ino, name)
        });
        let mut state = directory.lock();
        for (name, _) in &names {
            state.dentries.doubt(name);
        }
        // The number is asked for again when the servers recall the delegation, perhaps meanwhile, and
        // what is known of the entries may be forgotten until then.
        state.rare.make().delegation.note_change(number);
        Some(count)
    }

    /// Returns the oldest delegations, if they are many, or more than there may be inodes, but for
    /// those that were used just now.
    pub(crate) async fn return_oldest_delegations(&self) {
        let max = DELEGATIONS_MAX.min(self.inodes_max());
        let recent = (max / RECENT_PART) as u64;
        while let Some(ino) = self.log.oldest_delegated(max) {
            let Some(inode) =
                self.cache.find(ino).filter(|inode| inode.lock().rare.delegation.is_delegated())
            else {
                continue;
            };
            let last = inode.lock().rare.delegation.last_change();
            if last > 0 && last + recent > self.log.last() {
                self.log.note_delegated(ino);
                continue;
            }
            self.give_delegation_back(&inode).await;
        }
    }

    /// Returns the delegations of the directories with the most names, if such directories have kept more
    /// than there may be, however recently they were used: who makes files without end in one of them
    /// always has.
    pub(crate) async fn return_largest_delegations(&self) {
        let max = KEPT_NAMES_FACTOR.saturating_mul(self.inodes_max());
        if self.cache.kept_names.load(Ordering::Relaxed) <= max {
            return;
        }
        let names_of = |ino| {
            let inode = self.cache.find(ino)?;
            let state = inode.lock();
            let names = state.rare.delegation.is_delegated().then(|| state.dentries.len())?;
            drop(state);
            Some((names, inode))
        };
        let mut directories: Vec<_> =
            self.log.delegated().into_iter().filter_map(names_of).collect();
        directories.sort_unstable_by_key(|(names, directory)| (Reverse(*names), directory.ino));
        let mut left: usize = directories.iter().map(|(names, _)| names).sum();
        for (names, directory) in directories {
            if left <= max {
                break;
            }
            left -= names;
            self.give_delegation_back(&directory).await;
        }
        // Names that were removed, or whose inodes are known again, were counted, too: as many as may
        // be left are counted again, but not so many that this is looked at with each name.
        self.cache.kept_names.store(left.min(max / 2), Ordering::Relaxed);
    }

    /// Returns a delegation that nobody has asked for.
    async fn give_delegation_back(&self, directory: &Arc<CachedInode>) {
        self.return_delegation(directory).await;
        // Nobody is given it later, and after a restart its number was not said.
        let (ino, number) = (directory.ino, u64::MAX);
        self.locks.returns.put([Return::Bits { ino, bits: Bits::DELEGATION, number }]);
        self.cache.note_idle(directory);
    }

    /// Changes nothing without asking, until the servers are heard of again. Returns how many
    /// directories were delegated. Those of which somebody goes through the names just now are gone
    /// through here, too: their names may be forgotten after this.
    pub(crate) fn end_delegations(&self) -> usize {
        let mut delegated = 0;
        for inode in self.cache.all() {
            let (was_delegated, is_ending) = {
                let state = inode.lock();
                (state.rare.delegation.is_delegated(), state.rare.delegation.is_ending())
            };
            if was_delegated || is_ending {
                self.end_delegation(&inode);
            }
            delegated += usize::from(was_delegated);
        }
        delegated
    }

    /// The servers have forgotten this client, with all that it might have told them.
    pub(crate) fn lose_log(&self) {
        // First, and in directories that are made meanwhile: from then on nothing is added to the log,
        // and each inode that is only in there is found.
        while self.end_delegations() > 0 {}
        for inode in self.cache.all() {
            let mut state = inode.lock();
            if self.log.is_pending(state.rare.delegation.creation()) {
                state.rare.make().delegation.lose_creation();
                state.rare.make().data.lose(Errno::EIO);
            }
        }
        self.log.forget_numbers();
        let lost = self.log.lose();
        if lost > 0 {
            self.data.limits.count_error();
            tracing::error!(
                event = event::CHANGES_LOST,
                lost,
                "changes that were made here and not yet sent are lost"
            );
        }
    }

    /// Names in directories of this client lead to what it knows, or it does not know all.
    pub(crate) fn forget_foreign_children(&self, inodes: &[Arc<CachedInode>]) {
        for inode in inodes {
            let mut walk = NameWalk::default();
            let mut next = || {
                let state = inode.lock();
                let is_delegated = state.rare.delegation.is_delegated();
                if is_delegated { state.dentries.walk(&mut walk) } else { None }
            };
            while let Some(mut names) = next() {
                names.retain(|(_, child)| {
                    let child = self.cache.find(*child);
                    child.is_some_and(|it| it.lock().rare.delegation.parent() != Some(inode.ino))
                });
                if !names.is_empty() {
                    let mut state = inode.lock();
                    names.iter().for_each(|(name, _)| state.dentries.doubt(name));
                }
            }
        }
    }
}
