//! OSTs that are drained: new files avoid them, and their files are listed, so that these can be moved.
//!
//! Invariant: a drain is on stable storage before it is said to have begun or ended. Files that were
//! made before may still come to the OST, from clients that make them by themselves: whoever moves
//! files looks again until there are none.

use crate::chains::named_files::NamedFile;
use crate::chains::placement;
use crate::error::errno;
use crate::service::Mds;
use crate::store::keys::Orphan;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{Errno, FsResult, Ino, Layout};

const KEY: &[u8] = b"drained";
/// Orphan keys that are read at once.
const ORPHANS: usize = 1024;

/// Reads which OSTs are drained.
pub(crate) async fn load(kv: &impl Kv) -> FsResult<Vec<u16>> {
    let value = kv.get(Keyspace::Meta, KEY).await.map_err(errno)?;
    let (osts, rest) = value.as_ref().map_or((&[][..], &[][..]), |v| v.as_ref().as_chunks::<2>());
    match rest.is_empty() {
        true => Ok(osts.iter().map(|ost| u16::from_be_bytes(*ost)).collect()),
        false => Err(Errno::EIO),
    }
}

/// Reason that an OST is not drained.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DrainError {
    /// Files would have no place without it.
    #[error("{0}")]
    NoPlace(String),
    /// It could not be stored.
    #[error("the drain could not be stored: {0}")]
    Store(Errno),
    /// New files avoid it; chains without it could not be made.
    #[error("new files avoid it, but chains without it could not be made: {0}; try again")]
    Chains(Errno),
}

impl<K: Kv> Mds<K> {
    /// OSTs that are drained, sorted.
    pub fn drained(&self) -> Vec<u16> {
        self.drained.lock().clone()
    }

    /// Has new files avoid an OST from now on, over chains that are made for it if need be.
    pub async fn begin_drain(&self, ost: u16) -> Result<(), DrainError> {
        self.store_drain(ost).await?;
        // Of those that are there each may have it as a member.
        for copies in self.chains.copies() {
            self.make_chains(copies).await.map_err(|error| DrainError::Chains(error.errno()))?;
        }
        Ok(())
    }

    async fn store_drain(&self, ost: u16) -> Result<(), DrainError> {
        let _changing = self.chains.changing.lock().await;
        let mut drained = self.drained();
        if drained.contains(&ost) {
            return Ok(());
        }
        drained.push(ost);
        drained.sort_unstable();
        let gone = self.avoided.lock().1.clone();
        if (0..self.osts()).all(|ost| drained.contains(&ost) || gone.contains(&ost)) {
            let none = "new files would have no OST left: add one first".to_owned();
            return Err(DrainError::NoPlace(none));
        }
        let mut left = self.placed.lock().clone();
        left.retain(|placed| !drained.contains(&placed.ost));
        for copies in self.chains.copies() {
            placement::chains(usize::from(copies), &left)
                .map_err(|error| DrainError::NoPlace(format!("without OST {ost}, {error}")))?;
        }
        self.store_drained(drained).await.map_err(DrainError::Store)
    }

    /// Has new files use an OST again. Returns whether it was drained.
    pub async fn end_drain(&self, ost: u16) -> FsResult<bool> {
        let _changing = self.chains.changing.lock().await;
        let mut drained = self.drained();
        let before = drained.len();
        drained.retain(|other| *other != ost);
        if drained.len() == before {
            return Ok(false);
        }
        self.store_drained(drained).await.map(|()| true)
    }

    async fn store_drained(&self, drained: Vec<u16>) -> FsResult<()> {
        let value: Vec<u8> = drained.iter().flat_map(|ost| ost.to_be_bytes()).collect();
        let mut batch = Batch::default();
        batch.put(Keyspace::Meta, KEY, &value);
        self.kv.commit(batch, &[]).await.map_err(errno)?;
        self.kv.sync().await.map_err(errno)?;
        self.chains.set_drained(&drained);
        *self.drained.lock() = drained;
        Ok(())
    }

    /// Some files with a stripe on an OST, or on a chain that it is a member of, from an inode number
    /// on and in their order; and from where to go on, if there may be more. Files without stated
    /// OSTs lie on the first `own` ones.
    pub async fn files_on(
        &self,
        ost: u16,
        own: u16,
        from: Ino,
    ) -> FsResult<(Vec<NamedFile<()>>, Option<Ino>)> {
        let is_there = |layout: &Layout| self.has_stripe_on(layout, own, &[ost]);
        self.named_files(from, |record| is_there(&record.attr.layout).then_some(())).await
    }

    /// How many files that were removed, or moved, have objects there which are not removed yet.
    pub async fn leaving(&self, ost: u16, own: u16) -> FsResult<u64> {
        let (mut count, mut from) = (0, Vec::new());
        loop {
            let page = self.kv.scan(Keyspace::Orphan, &from, &[0xff; 11], ORPHANS).await;
            let page = page.map_err(errno)?;
            for (_, value) in &page {
                if let Some(Orphan::Destroy(layout) | Orphan::Planned(layout, _)) =
                    Orphan::parse(value)
                {
                    count += u64::from(self.has_stripe_on(&layout, own, &[ost]));
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == ORPHANS) else { break };
            from = [last.as_slice(), &[0]].concat();
            futures_lite::future::yield_now().await;
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;

    #[test]
    fn a_damaged_record_is_not_taken_for_none() {
        block_on(async {
            let kv = MemoryKv::default();
            assert_eq!(load(&kv).await, Ok(Vec::new()));
            for (value, osts) in [(&[0, 3, 1, 0][..], Ok(vec![3, 256])), (&[1], Err(Errno::EIO))] {
                let mut batch = Batch::default();
                batch.put(Keyspace::Meta, KEY, value);
                kv.commit(batch, &[]).await.unwrap();
                assert_eq!(load(&kv).await, osts);
            }
        });
    }
}
