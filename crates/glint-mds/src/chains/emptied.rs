//! OSTs whose data is lost with their disk, and which objects they are to get again.
//!
//! Invariants:
//! - That an OST has lost everything is on stable storage, in all its chains, before its server
//!   does anything with the new disk.
//! - The last member of a chain that served is not emptied, unless that is asked for.

use crate::chains::membership;
use crate::chains::table::ChainTable;
use crate::error::errno;
use crate::service::Mds;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::chain::{Chain, ChainId, MemberState};
use glint_proto::oss::ReplacedOst;
use glint_proto::{Errno, FsResult, Ino, Layout};
use std::collections::BTreeSet;

/// Prefix of the keys of OSTs that were replaced: `replaced/` and the OST.
const KEY: &[u8] = b"replaced/";
const KEYS_END: &[u8] = b"replaced0";
/// Chains that an error names.
const NAMED: usize = 8;

/// Reason that an OST cannot be taken for an empty one.
#[derive(Debug, thiserror::Error)]
pub enum EmptiedError {
    /// Somebody would lose the last copy.
    #[error(
        "OST {ost} is the last that has all data of {count} chains: {named}. Mount its old disk, or \
         start the servers of their other members first, if they only were stopped. If the disk is \
         lost for good, `glint ost replace --lose-last-copies` has the others go on with what they \
         have; changes that they missed are lost then"
    )]
    LastCopy {
        /// The OST.
        ost: u16,
        /// Chains of which it is the last.
        count: usize,
        /// Names of some of them.
        named: String,
    },
    /// The table of chains could not be stored.
    #[error("storing the table of chains: {0}")]
    Store(Errno),
}

impl EmptiedError {
    /// Errno for a server elsewhere.
    pub fn errno(&self) -> Errno {
        match self {
            EmptiedError::LastCopy { .. } => Errno::EBUSY,
            EmptiedError::Store(errno) => *errno,
        }
    }
}

/// An OST that was put in the place of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replacement {
    /// The OST.
    pub ost: u16,
    /// Files without copies that had data there, once they are counted.
    pub lost_files: Option<u64>,
}

fn key(ost: u16) -> Vec<u8> {
    [KEY, &ost.to_be_bytes()].concat()
}

impl ChainTable {
    /// Members that have lost everything, by targets, of chains in which another one serves.
    pub fn emptied_and_served(&self) -> BTreeSet<(u16, u16)> {
        let mut found = BTreeSet::new();
        for chain in self.since(0).0.iter().filter(|chain| chain.head().is_some()) {
            let emptied = chain.members.iter().filter(|m| m.state == MemberState::Emptied);
            found.extend(emptied.map(|member| (chain.id.target(), member.ost)));
        }
        found
    }

    /// OSTs, counted from `first`, have lost everything.
    async fn empty(
        &self,
        kv: &impl Kv,
        first: u16,
        replaced: &[ReplacedOst],
    ) -> Result<(), EmptiedError> {
        let _changing = self.changing.lock().await;
        let (mut changed, mut batch) = (self.since(0).0, Batch::default());
        let mut is_changed = BTreeSet::new();
        for ReplacedOst { ost, lose_last } in replaced {
            let ost = first + ost;
            let mut last: Vec<ChainId> = Vec::new();
            for chain in &mut changed {
                match membership::emptied(chain, ost, *lose_last) {
                    Ok(None) => {}
                    Ok(Some(next)) => {
                        is_changed.insert(chain.id);
                        *chain = next;
                    }
                    Err(membership::LastCopy) => last.push(chain.id),
                }
            }
            if !last.is_empty() {
                let named: Vec<String> = last.iter().take(NAMED).map(ChainId::to_string).collect();
                let named = named.join(", ");
                return Err(EmptiedError::LastCopy { ost, count: last.len(), named });
            }
            batch.put(Keyspace::Meta, &key(ost), &[]);
        }
        changed.retain(|chain| is_changed.contains(&chain.id));
        self.store_with(kv, changed, batch).await.map_err(EmptiedError::Store)
    }

    /// All members that serve know what these lack. Returns how many rows are others now.
    async fn indexed(
        &self,
        kv: &impl Kv,
        members: &BTreeSet<(u16, u16)>,
        counted: &[Replacement],
    ) -> FsResult<usize> {
        let _changing = self.changing.lock().await;
        let mut changed: Vec<Chain> = Vec::new();
        let mut batch = Batch::default();
        for chain in self.since(0).0 {
            let emptied = members.iter().filter(|(target, _)| *target == chain.id.target());
            let mut now = chain.clone();
            for (_, ost) in emptied {
                now = membership::indexed(&now, *ost).unwrap_or(now);
            }
            if now != chain {
                changed.push(now);
            }
        }
        for one in counted {
            let lost = one.lost_files.unwrap_or(0);
            batch.put(Keyspace::Meta, &key(one.ost), &lost.to_be_bytes());
        }
        let count = changed.len();
        self.store_with(kv, changed, batch).await.map(|()| count)
    }
}

impl<K: Kv> Mds<K> {
    /// OSTs of a server, of which `first` is the first one, were put in the place of others and are
    /// empty. Whoever hears it again changes nothing.
    pub async fn empty_osts(
        &self,
        first: u16,
        replaced: &[ReplacedOst],
    ) -> Result<(), EmptiedError> {
        let emptied = self.chains.empty(&self.kv, first, replaced).await;
        self.doubts.raise();
        emptied
    }

    /// OSTs that were put in the place of others.
    pub async fn replacements(&self) -> FsResult<Vec<Replacement>> {
        let pairs = self.kv.scan(Keyspace::Meta, KEY, KEYS_END, usize::MAX).await;
        let of_pair = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let ost = key.get(KEY.len()..)?.try_into().ok().map(u16::from_be_bytes)?;
            let lost_files = value.as_slice().try_into().ok().map(u64::from_be_bytes);
            Some(Replacement { ost, lost_files })
        };
        Ok(pairs.map_err(errno)?.iter().filter_map(of_pair).collect())
    }

    /// Regular files from an inode number on, in their order, of so many inodes; and from where to
    /// go on, if there are more.
    pub async fn files_from(
        &self,
        from: Ino,
        inodes: usize,
    ) -> FsResult<(Vec<(Ino, Layout)>, Option<Ino>)> {
        let page = self.kv.scan(Keyspace::Inode, &from.key(), &[0xff; 9], inodes).await;
        let page = page.map_err(errno)?;
        let last = page.last().and_then(|(key, _)| Ino::from_key(key));
        let next = last.filter(|_| page.len() == inodes).map(|ino| Ino(ino.0.saturating_add(1)));
        let mut files = Vec::with_capacity(page.len());
        for (key, value) in &page {
            let ino = Ino::from_key(key).ok_or(Errno::EIO)?;
            match InodeRecord::decode(ino, value) {
                Ok(record) if record.attr.is_file() => files.push((ino, record.attr.layout)),
                Ok(_) => {}
                // The layout of a damaged one is not known to anybody, so nothing of it can be given to an OST.
                Err(error) => tracing::error!(%ino, %error, "damaged inode; run `glint fsck`"),
            }
        }
        Ok((files, next))
    }

    /// All members that serve know everything that these lack, by targets; and how many files were
    /// lost with OSTs is counted. Returns how many rows are others now.
    pub async fn are_indexed(
        &self,
        members: &BTreeSet<(u16, u16)>,
        counted: &[Replacement],
    ) -> FsResult<usize> {
        self.chains.indexed(&self.kv, members, counted).await
    }

    /// Layout of a file; `None` if there is none. EAGAIN while files may come back that clients made
    /// before a loss of power.
    pub async fn layout_of(&self, ino: Ino) -> FsResult<Option<Layout>> {
        if self.is_recovering() {
            return Err(Errno::EAGAIN);
        }
        let record = self.find_inode(ino).await?;
        Ok(record.filter(|record| record.attr.is_file()).map(|record| record.attr.layout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::placement::Placed;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::chain::MemberEvent;

    #[test]
    fn an_emptied_ost_is_remembered_and_never_the_last_copy() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            let osts: Vec<Placed> =
                (0..3).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect();
            let chains = usize::from(table.extend(&kv, 3, &osts).await.unwrap());
            let replaced = |ost| [ReplacedOst { ost, lose_last: false }];
            table.empty(&kv, 1, &replaced(1)).await.unwrap();
            let again = ChainTable::load(&kv).await.unwrap();
            assert_eq!(again.emptied_and_served().len(), chains);
            assert!(again.emptied_and_served().iter().all(|(_, ost)| *ost == 2));
            let away = again.away(2);
            assert!(away.everywhere && !away.somewhere, "nobody takes it for one that is back");
            let (_, before) = again.since(0);
            again.empty(&kv, 1, &replaced(1)).await.unwrap();
            assert!(again.since(before).0.is_empty(), "that is known");

            again.on_event(&kv, 0, MemberEvent::Lost).await.unwrap();
            let said = again.empty(&kv, 0, &replaced(1)).await.unwrap_err();
            assert!(said.to_string().contains(&format!("all data of {chains} chains: 3x0")));
            assert_eq!(again.emptied_and_served().len(), chains, "nothing was changed");

            // One chain has lost its last member, too: it holds up no other.
            let (rows, _) = again.since(0);
            let target = rows[0].id.target();
            let row = again.on_member(&kv, target, rows[0].version, 1, MemberEvent::Lost).await;
            assert_eq!(row.unwrap().head(), None);
            assert_eq!(again.emptied_and_served().len(), chains - 1);
            let row = again.get(target).unwrap();
            again.on_member(&kv, target, row.version, 1, MemberEvent::Returned).await.unwrap();

            let members = again.emptied_and_served();
            let counted = [Replacement { ost: 2, lost_files: Some(7) }];
            assert_eq!(again.indexed(&kv, &members, &counted).await, Ok(chains));
            assert!(again.emptied_and_served().is_empty() && again.away(2).somewhere);
            assert_eq!(again.indexed(&kv, &members, &counted).await, Ok(0));
        });
    }
}
