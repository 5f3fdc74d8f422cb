//! Removes what deleted files leave behind: open-unlinked inodes after their last
//! close, and objects. Nobody waits for it.
//!
//! Invariant: the orphan key of a file is deleted only after its objects are gone from stable
//! storage, and with them every write to them that a client might still replay. So a crash
//! or a loss of power at any point leaves work for the next run and never a stray object.

use crate::error::errno;
use crate::keys::{self, Orphan};
use crate::service::Mds;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{FsResult, Ino, Layout};
use std::collections::{HashSet, VecDeque};
use std::future::Future;
use std::sync::atomic::Ordering;

/// Orphans handled between two looks at the rest of the world.
const BATCH: usize = 256;

/// The OSTs, as the MDS needs them.
pub trait Targets {
    /// Removes all objects of these files, wherever their layouts put them. Returns the
    /// number of the change.
    fn destroy(&self, files: &[(Ino, Layout)]) -> impl Future<Output = FsResult<u64>>;

    /// Changes up to this number are on stable storage.
    fn durable(&self) -> u64;

    /// Until no OST executes anything of a session any more, whatever its client still sends.
    fn fence(&self, session: u64) -> impl Future<Output = ()>;
}

/// Files whose objects are removed, in the order of these changes.
#[derive(Default)]
pub(crate) struct Destroyed {
    files: HashSet<Ino>,
    changes: VecDeque<(u64, Vec<Ino>)>,
}

impl Destroyed {
    fn add(&mut self, change: u64, files: Vec<Ino>) {
        self.files.extend(&files);
        self.changes.push_back((change, files));
    }

    /// Files whose removal is durable.
    fn take(&mut self, durable: u64) -> Vec<Ino> {
        let mut done = Vec::new();
        while self.changes.front().is_some_and(|(change, _)| *change <= durable) {
            let (_, files) = self.changes.pop_front().unwrap_or_default();
            for ino in &files {
                self.files.remove(ino);
            }
            done.extend(files);
        }
        done
    }
}

impl<K: Kv> Mds<K> {
    /// Does what is due. Returns whether there may be more to do at once.
    pub async fn reap(&self, targets: &impl Targets) -> FsResult<bool> {
        self.end_recovery(targets).await?;
        self.expire_sessions(self.config.lease, targets).await?;
        self.expire_questions(self.config.lease, targets).await?;
        if self.inodes.load(Ordering::Relaxed) != self.inodes_stored.load(Ordering::Relaxed) {
            self.store_inode_count().await?;
        }
        self.forget_destroyed(targets.durable()).await?;
        // What a client replays may still be about objects that are to be destroyed.
        if self.recovery.is_active() || self.orphans.swap(0, Ordering::AcqRel) == 0 {
            return Ok(false);
        }
        let mut from = Vec::new();
        loop {
            let found = self.kv.scan(Keyspace::Orphan, &from, &[0xff; 9], BATCH);
            let found = found.await.map_err(errno)?;
            let Some((last, _)) = found.last() else { break };
            from = [last.as_slice(), &[0]].concat();
            let mut destroy = Vec::new();
            for (key, value) in &found {
                let Some(ino) = Ino::from_key(key) else { continue };
                match Orphan::parse(value) {
                    Some(Orphan::Open) if self.opens.is_open(ino) => {}
                    Some(Orphan::Open) => {
                        // If it has objects, its key now says so and comes next time.
                        self.forget_unlinked(ino).await?;
                    }
                    Some(Orphan::Destroy(_)) if self.destroyed.lock().files.contains(&ino) => {}
                    Some(Orphan::Destroy(layout)) => destroy.push((ino, layout)),
                    None => tracing::error!(%ino, "damaged orphan key; run `glint fsck`"),
                }
            }
            if !destroy.is_empty() {
                let change = targets.destroy(&destroy).await?;
                let files = destroy.into_iter().map(|(ino, _)| ino).collect();
                self.destroyed.lock().add(change, files);
            }
        }
        Ok(self.orphans.load(Ordering::Acquire) > 0)
    }

    /// Deletes the keys of files whose objects are gone for good.
    async fn forget_destroyed(&self, durable: u64) -> FsResult<()> {
        let done = self.destroyed.lock().take(durable);
        if done.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for ino in done {
            batch.delete(Keyspace::Orphan, &ino.key());
        }
        // Clients may not have heard of it yet; after a loss of power they must not write
        // again to what is forgotten now.
        batch.put(Keyspace::Meta, keys::META_DATA_DURABLE, &durable.to_be_bytes());
        self.kv.commit(batch, &[]).await.map_err(errno).map(drop)
    }

    /// Deletes the record of an inode without names, unless it was opened or linked
    /// in the meantime.
    async fn forget_unlinked(&self, ino: Ino) -> FsResult<()> {
        use crate::locks::{Key, Want};
        let _held = self
            .locks
            .acquire(&[Want::exclusive(Key::Dir(ino)), Want::exclusive(Key::Inode(ino))])
            .await;
        let mut batch = Batch::new();
        match self.find_inode(ino).await? {
            Some(_) if self.opens.is_open(ino) => return Ok(()),
            Some(record) if record.attr.nlink == 0 => {
                self.delete_inode(&mut batch, &record).await?;
            }
            _ => batch.delete(Keyspace::Orphan, &ino.key()),
        }
        self.commit_batch(batch).await?;
        Ok(())
    }

    /// Puts into `batch` what removing an inode's last name means.
    pub(crate) async fn drop_inode(
        &self,
        batch: &mut Batch,
        record: &mut crate::record::InodeRecord,
    ) -> FsResult<()> {
        let ino = record.attr.ino;
        record.attr.nlink = 0;
        if self.opens.unlink(ino) {
            self.put_inode(batch, record);
            batch.put(Keyspace::Orphan, &ino.key(), &Orphan::Open.value());
        } else {
            self.delete_inode(batch, record).await?;
        }
        Ok(())
    }

    async fn delete_inode(
        &self,
        batch: &mut Batch,
        record: &crate::record::InodeRecord,
    ) -> FsResult<()> {
        let ino = record.attr.ino;
        if record.has_xattr {
            for (key, _) in self.scan_inode(Keyspace::Xattr, ino, usize::MAX).await? {
                batch.delete(Keyspace::Xattr, &key);
            }
        }
        batch.delete(Keyspace::Inode, &ino.key());
        if record.attr.is_dir() {
            self.names.forget(ino);
        }
        if record.attr.is_file() && record.has_objects {
            let destroy = Orphan::Destroy(record.attr.layout);
            batch.put(Keyspace::Orphan, &ino.key(), &destroy.value());
            self.orphans.fetch_add(1, Ordering::AcqRel);
        } else {
            batch.delete(Keyspace::Orphan, &ino.key());
        }
        self.inodes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn store_inode_count(&self) -> FsResult<()> {
        let count = self.inodes.load(Ordering::Relaxed);
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, keys::META_INODES, &(count.max(0) as u64).to_be_bytes());
        self.kv.commit(batch, &[]).await.map_err(errno)?;
        self.inodes_stored.store(count, Ordering::Relaxed);
        Ok(())
    }
}
