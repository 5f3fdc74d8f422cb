//! The first read of a small file that was not foreseen is sent beside the request for the lock
//! that it needs: they take one round trip, not two in a row.
//!
//! OSTs know of no locks. So the data may have been read before the lock was granted, and another
//! client may have written it in between, or flushed what it had written before, and have returned
//! its own lock. What the MDS says of the lock cannot rule that out: it knows neither when the data
//! was read nor what was returned while the request was on its way. But the attributes can. They
//! are used only under ATTR, or in a delegation, and:
//! - Whoever changes data has told the MDS before: an open to write, one that truncates, a set size
//!   and a switch to another layout claim ATTR. All but the last also have the inode say from then
//!   on that its objects know its size (`size_on_ost`).
//! - It says so until its last writer closes it and reports the size, or that nobody wrote. By then
//!   OSTs have acknowledged all that was written: a close waits for calls that were interrupted
//!   and go on. Of a writer that is evicted nobody reports
//!   anything, and its opens end when no OST takes anything of it any more.
//!
//! So while this client has attributes that say that the record knows the size, nobody else changes
//! the data, whichever locks on it others still hold, and it lies where they say: the layout that an
//! open file knows may be older, until a lock brings the new one, and the old objects are there for
//! a while. If it had them all the time from before the
//! read was sent until the lock was here, the MDS held them to be its own when it granted the lock:
//! nobody changed the data between the read and the grant. After the grant the lock protects it.
//!
//! What was acknowledged may still be lost with the power of an OST. Then its writer writes it once
//! more, before it returns its lock, but others may read meanwhile. So this is done only where the
//! OST is one of the server of the MDS: with it the MDS starts again, this client forgets the
//! attributes, and nobody is told of them anew before all clients have written again what was lost.
//! For OSTs of other servers the MDS would have to say with the attributes whether others hold
//! locks to write.
//!
//! Invariant: what was read beside the request counts only if all that time
//! - the attributes were known, were not recalled even for a moment, and said that nobody writes, and
//!   that the data is where it is read;
//! - no lock on the data was lost or returned, and nothing was written here (the stamp);
//! - the server of the MDS has forgotten no locks (the generation), and its OST has the file.
//!
//! Otherwise it is read again, under the lock.

use crate::cache::Generation;
use crate::cache::attrs::Tick;
use crate::cache::inode::{CachedInode, InodeState};
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::prefetch::size_if_small;
use crate::locks::data_locks::DataLockGuard;
use futures_util::future::try_join;
use glint_lock::held::Use;
use glint_net::Transport;
use glint_proto::lock::Range;
use glint_proto::{Errno, FsResult, Layout};
use std::sync::Arc;

/// State of a small file when a read of it is sent that has no lock yet.
struct ReadBesideLock {
    size: u64,
    asked: Tick,
    stamp: u64,
    generation: Generation,
}

impl ReadBesideLock {
    /// Begins, if a lock has to be asked for, the file is small, nobody writes it, and `layout`, by
    /// which it will be read, is where its data is.
    fn begin(
        state: &mut InodeState,
        layout: Layout,
        generation: Generation,
    ) -> Option<ReadBesideLock> {
        let attr = state.attributes().filter(|attr| attr.layout == layout);
        let size = attr.and_then(size_if_small)?;
        if !state.rare.data_locks.is_empty() || !state.rare.data.is_clean() {
            return None;
        }
        // Made, so that whatever changes later is counted.
        let stamp = state.rare.make().data.stamp();
        Some(ReadBesideLock { size, asked: Tick::ask(), stamp, generation })
    }

    /// Whether nobody could change the data since. The lock is here.
    fn is_current(&self, state: &InodeState) -> bool {
        state.attributes_since(self.asked).and_then(size_if_small) == Some(self.size)
            && state.rare.data.stamp() == self.stamp
    }
}

impl<T: Transport> Client<T> {
    /// Asks for a lock to read through a handle for the first time. Returns with it how much was
    /// read meanwhile, if that counts.
    pub(crate) async fn lock_and_read(
        &self,
        inode: &Arc<CachedInode>,
        file: &OpenFile,
        purpose: Use,
        offset: u64,
        buffer: &mut [u8],
    ) -> FsResult<(DataLockGuard, Option<usize>)> {
        // A small file has one object.
        let layout = self.layout_of_open(file);
        let ost = self.placement.ost_of(layout, 0);
        let begun = match self.placement.own().contains(&ost) {
            true => ReadBesideLock::begin(&mut inode.lock(), layout, self.cache.generation()),
            false => None,
        };
        let lock = self.lock_data(inode, Range::ALL, false, purpose);
        let Some(begun) = begun.filter(|begun| offset < begun.size && !buffer.is_empty()) else {
            return Ok((lock.await?, None));
        };
        let end = offset + buffer.len() as u64;
        let len = (end.min(begun.size) - offset) as usize;
        // The lock is asked for first, and whoever is refused it does not wait for the data.
        let read = async { Ok::<_, Errno>(self.read_file(file, offset, &mut buffer[..len]).await) };
        let (guard, read) = try_join(lock, read).await?;
        let counts = read.is_ok_and(|read| read == len) && !self.is_suspended() && {
            let state = inode.lock();
            self.cache.is_generation(begun.generation) && begun.is_current(&state)
        };
        if !counts {
            return Ok((guard, None));
        }
        file.ahead.lock().note_read(&(offset..end));
        Ok((guard, Some(len)))
    }
}
