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
//! more, before it returns its lock, but others may read meanwhile. An OST of the server of the MDS
//! loses nothing alone: with it the MDS starts again, this client forgets the attributes, and nobody
//! is told of them anew before all clients have written again what was lost.
//!
//! For any other OST, and for a chain, the client must hold UNWRITTEN as well, which comes with ATTR
//! while no other client has a lock to write. If it had the bit from before the read was sent until
//! the lock was here, the MDS held it to be its own when it granted the lock, and no other client
//! had a lock to write from when the data was read until then. Nor had this client. Whoever had one
//! before has returned it, with all that was written under it on stable storage or given up; or was
//! evicted, and then no OST takes anything of it. So nobody has changed the data since it was read,
//! nor has written again what was lost. (What an evicted client had not synced may be lost after it
//! was read; so it may under the lock.) It is as if the lock to read had been granted with the bit,
//! but that nothing is cached under the bit: it is returned without a look at data or pages.
//!
//! A bit that was lost meanwhile and has come again says nothing. It comes again only with a grant
//! that has a higher number than all before. So it was held all the time if it is held and the last
//! grant of any bits is the same.
//!
//! Invariant: what was read beside the request counts only if all that time
//! - the attributes were known, were not recalled even for a moment, and said that nobody writes, and
//!   that the data is where it is read;
//! - UNWRITTEN was held and not lost, unless the OST is one of the server of the MDS;
//! - no lock on the data was lost or returned, and nothing was written here (the stamp);
//! - the server of the MDS has forgotten no locks (the generation), and the OST has the file.
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
use glint_proto::lock::{Bits, Range};
use glint_proto::{Errno, FsResult, Layout};
use glint_telemetry::Counter;
use std::sync::Arc;

/// State of a small file when a read of it is sent that has no lock yet.
struct ReadBesideLock {
    size: u64,
    asked: Tick,
    stamp: u64,
    generation: Generation,
    /// The last grant, if the data counts under UNWRITTEN only.
    granted: Option<u64>,
}

impl ReadBesideLock {
    /// Begins, if a lock has to be asked for, the file is small, nobody writes it, and `layout`, by
    /// which it will be read, is where its data is: at the server of the MDS (`is_own`), or else
    /// UNWRITTEN is held.
    fn begin(
        state: &mut InodeState,
        layout: Layout,
        is_own: bool,
        generation: Generation,
    ) -> Option<ReadBesideLock> {
        if !is_own && !state.has(Bits::UNWRITTEN) {
            return None;
        }
        let attr = state.attributes().filter(|attr| attr.layout == layout);
        let size = attr.and_then(size_if_small)?;
        if !state.rare.data_locks.is_empty() || !state.rare.data.is_clean() {
            return None;
        }
        // Made, so that whatever changes later is counted.
        let stamp = state.rare.make().data.stamp();
        let granted = (!is_own).then(|| state.granted());
        Some(ReadBesideLock { size, asked: Tick::ask(), stamp, generation, granted })
    }

    /// Whether nobody could change the data since. The lock is here.
    fn is_current(&self, state: &InodeState) -> bool {
        let was_unwritten = |granted| state.has(Bits::UNWRITTEN) && state.granted() == granted;
        state.attributes_since(self.asked).and_then(size_if_small) == Some(self.size)
            && state.rare.data.stamp() == self.stamp
            && self.granted.is_none_or(was_unwritten)
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
        let is_own = self.placement.own().contains(&self.placement.ost_of(layout, 0));
        let generation = self.cache.generation();
        let begun = ReadBesideLock::begin(&mut inode.lock(), layout, is_own, generation);
        let lock = self.lock_data(inode, Range::ALL, false, purpose);
        let Some(begun) = begun.filter(|begun| offset < begun.size && !buffer.is_empty()) else {
            return Ok((lock.await?, None));
        };
        glint_telemetry::count(Counter::ReadsBesideLock, 1);
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
        glint_telemetry::count(Counter::ReadsBesideLockUsed, 1);
        file.ahead.lock().note_read(&(offset..end));
        Ok((guard, Some(len)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::in_flight::Asked;
    use glint_proto::{Attr, Ino, Timestamp};

    const FILE: Ino = Ino(7);

    #[test]
    fn unwritten_counts_elsewhere_and_only_if_it_was_held_all_the_time() {
        let attr = Attr { size: 300, ..Attr::new(FILE, 0o100_644, Timestamp::default()) };
        let inode = CachedInode::new(FILE);
        let mut state = inode.lock();
        let begin = |state: &mut InodeState, is_own| {
            ReadBesideLock::begin(state, attr.layout, is_own, Generation::default())
        };
        state.on_grant(Bits::ATTR, 1, 0);
        state.learn(&attr, &Asked::under(&[FILE]));
        assert!(begin(&mut state, false).is_none(), "others may write it again");
        let own = begin(&mut state, true).unwrap();
        state.on_grant(Bits::UNWRITTEN, 2, 0);
        let first = begin(&mut state, false).unwrap();
        assert!(first.is_current(&state));
        state.on_recall(Bits::UNWRITTEN, 3, 0);
        assert!(!first.is_current(&state));
        state.on_grant(Bits::UNWRITTEN, 4, 0);
        assert!(!first.is_current(&state), "others may have written it in between");
        assert!(begin(&mut state, false).unwrap().is_current(&state) && own.is_current(&state));
        state.on_recall(Bits::ATTR, 5, 0);
        assert!(begin(&mut state, false).is_none() && !own.is_current(&state));
    }
}
