//! Closes that find out what to say of a file, and requests that set its size or a time: never both
//! at once.
//!
//! Invariant: what a close says of the size and the times is never older than what a request sets.
//! From before a close asks the objects until it is sent nothing is set; and from before the MDS is
//! asked to set something until the objects know of it, no close asks them. The MDS relies on this:
//! when it sets a size, it doubts only what other clients will say of it.
//!
//! The [pins](crate::cache::pins::Pins::begin_setting) of a cached inode count who is under way.
//! Without locks no inode is cached, and a table counts.

use crate::cache::inode::{CachedInode, InodeState};
use crate::client::Client;
use glint_net::Transport;
use glint_proto::Ino;
use glint_wait::{Monitor, Sharded};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const SHARDS: usize = 64;

/// The two that exclude each other; of one, any number is under way at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Close,
    Set,
}

/// Which side is under way for a file, and how many calls of it.
type Shard = HashMap<Ino, (Side, u32)>;

/// Closes and settings that are under way where there are no locks.
pub(crate) struct CloseExclusion {
    shards: Sharded<Monitor<Shard>>,
}

impl Default for CloseExclusion {
    fn default() -> CloseExclusion {
        CloseExclusion { shards: Sharded::new(SHARDS) }
    }
}

impl CloseExclusion {
    /// Waits until the other side is not under way.
    async fn begin(&self, ino: Ino, side: Side) -> ExclusionGuard<'_> {
        let shard = self.shards.of(ino.0);
        shard
            .until(|calls| {
                let (under_way, count) = calls.entry(ino).or_insert((side, 0));
                (*under_way == side).then(|| *count += 1)
            })
            .await;
        ExclusionGuard::Counted(shard, ino)
    }
}

/// A close or a setting is under way.
pub(crate) enum ExclusionGuard<'a> {
    /// Among the pins of an inode.
    Pinned(&'a CachedInode, Side),
    /// In the table.
    Counted(&'a Monitor<Shard>, Ino),
}

impl Drop for ExclusionGuard<'_> {
    fn drop(&mut self) {
        match self {
            ExclusionGuard::Pinned(inode, side) => {
                match side {
                    Side::Close => inode.lock().pins.end_close(),
                    Side::Set => inode.lock().pins.end_setting(),
                }
                inode.wake();
            }
            ExclusionGuard::Counted(shard, ino) => shard.change(|calls| {
                let Entry::Occupied(mut under_way) = calls.entry(*ino) else { return };
                under_way.get_mut().1 -= 1;
                if under_way.get().1 == 0 {
                    under_way.remove();
                }
            }),
        }
    }
}

impl<T: Transport> Client<T> {
    /// Waits for changes of a file and for requests that set its size or a time; they wait for this
    /// close. `inode` is the cached one, if there are locks.
    pub(crate) async fn begin_close<'a>(
        &'a self,
        ino: Ino,
        inode: Option<&'a CachedInode>,
    ) -> ExclusionGuard<'a> {
        let Some(inode) = inode else { return self.closes.begin(ino, Side::Close).await };
        let changes = |state: &InodeState| state.is_updating() || state.pins.is_setting();
        inode.until(|state| (!changes(state)).then(|| state.pins.begin_close())).await;
        ExclusionGuard::Pinned(inode, Side::Close)
    }

    /// Waits for the closes of a file that are under way; others wait for what is set now. `inode`
    /// is the cached one, if there are locks.
    pub(crate) async fn begin_setting<'a>(
        &'a self,
        ino: Ino,
        inode: Option<&'a CachedInode>,
    ) -> ExclusionGuard<'a> {
        let Some(inode) = inode else { return self.closes.begin(ino, Side::Set).await };
        let begins = |state: &mut InodeState| {
            let begins = state.pins.begin_setting();
            if !begins {
                self.log.hurry();
            }
            begins.then_some(())
        };
        inode.until(begins).await;
        ExclusionGuard::Pinned(inode, Side::Set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn closes_and_settings_of_a_file_wait_for_each_other_and_leave_nothing_behind() {
        let closes = CloseExclusion::default();
        let (file, other) = (Ino(7), Ino(8));
        block_on(async {
            for (side, other_side) in [(Side::Close, Side::Set), (Side::Set, Side::Close)] {
                let first = closes.begin(file, side).await;
                let second = closes.begin(file, side).await;
                drop(closes.begin(other, other_side).await);
                let mut waits = Box::pin(closes.begin(file, other_side));
                assert!(poll_once(&mut waits).await.is_none());
                drop(first);
                assert!(poll_once(&mut waits).await.is_none());
                drop(second);
                drop(poll_once(&mut waits).await.unwrap());
                assert!(closes.shards.of(file.0).lock().is_empty());
            }
        });
    }
}
