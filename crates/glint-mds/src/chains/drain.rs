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
use glint_proto::{Attr, Errno, FsResult, Ino, Layout};
use std::collections::{BTreeMap, BTreeSet};

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

/// Where a file lies that an OST holds a part of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeldPart {
    /// Stripes of the file.
    pub stripes: u16,
    /// Copies of each.
    pub copies: u8,
    /// Bytes that it takes on each of the OSTs that it lies on, as far as the MDS knows.
    pub osts: BTreeMap<u16, u64>,
    /// Whether copies of a stripe fail together, and could lie elsewhere.
    pub crowded: bool,
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
    ) -> FsResult<(Vec<NamedFile<HeldPart>>, Option<Ino>)> {
        self.named_files(from, |record| self.held_part(&record.attr, own, ost)).await
    }

    /// The part of a file that an OST holds, if it holds one.
    fn held_part(&self, attr: &Attr, own: u16, ost: u16) -> Option<HeldPart> {
        let Attr { size, blocks, layout, .. } = *attr;
        let stripes = layout.stripe_count.max(1);
        let (mut osts, mut crowded) = (BTreeMap::new(), false);
        for stripe in 0..stripes {
            let target = layout.ost_of(stripe, own);
            crowded |= layout.replicas > 1 && self.chains.is_crowded(target);
            for member in self.members_of(target) {
                *osts.entry(member).or_default() += layout.object_size(stripe, size);
            }
        }
        if !osts.contains_key(&ost) {
            return None;
        }
        // Holes take no space.
        let stored = blocks.saturating_mul(512);
        if (1..size).contains(&stored) {
            let part = |bytes: u64| u128::from(bytes) * u128::from(stored) / u128::from(size);
            osts.values_mut().for_each(|bytes| *bytes = part(*bytes) as u64);
        }
        Some(HeldPart { stripes, copies: layout.replicas, osts, crowded })
    }

    /// OSTs that have what lies on a target.
    fn members_of(&self, target: u16) -> Vec<u16> {
        match self.chains.get(target) {
            Some(row) => row.members.iter().map(|member| member.ost).collect(),
            None => vec![target],
        }
    }

    /// Counts files that were removed, or moved, and have objects there which are not removed yet.
    pub async fn leaving(&self, ost: u16, own: u16) -> FsResult<u64> {
        let mut files = 0;
        let count = |_: &[u8], layout: &Layout| {
            files += u64::from(self.has_stripe_on(layout, own, &[ost]));
        };
        self.visit_leaving(count).await?;
        Ok(files)
    }

    /// Counts files that were moved, or are just being moved, and have objects that are not removed
    /// yet: each once, on however many OSTs these are.
    pub async fn moved_and_kept(&self) -> FsResult<u64> {
        let mut files = BTreeSet::new();
        let count = |key: &[u8], _: &Layout| {
            if key.len() > Ino::ROOT.key().len() {
                files.extend(Ino::from_key(key));
            }
        };
        self.visit_leaving(count).await?;
        Ok(files.len() as u64)
    }

    /// Files that were removed, or moved, with the layouts of objects on these chains which are not
    /// removed yet, or may be given up. Objects may be removed by this as long as their numbers are
    /// [kept](Mds::keep_numbers) since before.
    pub async fn leaving_chains(&self, targets: &BTreeSet<u16>) -> FsResult<Vec<(Ino, Layout)>> {
        let mut files = Vec::new();
        self.visit_leaving(|key, layout| {
            let mut stripes = 0..layout.stripe_count.max(1);
            if stripes.any(|stripe| targets.contains(&layout.ost_of(stripe, 0))) {
                files.extend(Ino::from_key(key).map(|ino| (ino, *layout)));
            }
        })
        .await?;
        Ok(files)
    }

    /// Visits all objects that are to be removed, by their keys and layouts.
    async fn visit_leaving(&self, mut visit: impl FnMut(&[u8], &Layout)) -> FsResult<()> {
        let mut from = Vec::new();
        loop {
            let page = self.kv.scan(Keyspace::Orphan, &from, &[0xff; 11], ORPHANS).await;
            let page = page.map_err(errno)?;
            for (key, value) in &page {
                if let Some(Orphan::Destroy(layout) | Orphan::Planned(layout, _)) =
                    Orphan::parse(value)
                {
                    visit(key, &layout);
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == ORPHANS) else { break };
            from = [last.as_slice(), &[0]].concat();
            futures_lite::future::yield_now().await;
        }
        Ok(())
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
