//! Inodes and entries in the engine: how operations find them, and put them into a batch.
//!
//! Directories' records come from memory where they are kept ([`crate::store::directories`]), and
//! names that cannot be there are not looked for ([`crate::store::names`]).

use crate::error::{MdsError, errno};
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{Errno, FileType, FsResult, Ino};

impl<K: Kv> Mds<K> {
    /// The record of an inode that a caller named by number: ESTALE if it is gone.
    pub(crate) async fn inode(&self, ino: Ino) -> FsResult<InodeRecord> {
        self.find_inode(ino).await?.ok_or(Errno::ESTALE)
    }

    /// The record of an inode, if there is one.
    pub(crate) async fn find_inode(&self, ino: Ino) -> FsResult<Option<InodeRecord>> {
        let missed = match self.directories.get(ino) {
            Ok(record) => return Ok(Some(record)),
            Err(missed) => missed,
        };
        let Some(bytes) = self.kv.get(Keyspace::Inode, &ino.key()).await.map_err(errno)? else {
            return Ok(None);
        };
        let record = InodeRecord::decode(ino, bytes.as_ref())
            .map_err(|source| errno(MdsError::Record { ino, source }))?;
        if record.attr.is_dir() {
            self.directories.keep(&record, missed);
        }
        Ok(Some(record))
    }

    /// The record of a directory: ENOENT if it is gone or was removed while in
    /// use, ENOTDIR if it is something else.
    pub(crate) async fn directory(&self, ino: Ino) -> FsResult<InodeRecord> {
        let record = self.find_inode(ino).await?.ok_or(Errno::ENOENT)?;
        if !record.attr.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if record.attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        Ok(record)
    }

    /// Entry of a name in a directory.
    pub(crate) async fn find_entry(
        &self,
        parent: Ino,
        name: &[u8],
    ) -> FsResult<Option<(Ino, FileType)>> {
        if !self.names.may_exist(parent, self.cookie(name)) {
            return Ok(None);
        }
        let key = keys::entry(parent, name, self.hash_seed);
        match self.kv.get(Keyspace::Entry, &key).await.map_err(errno)? {
            None => Ok(None),
            Some(value) => keys::parse_entry_value(value.as_ref()).map(Some).ok_or_else(|| {
                tracing::error!(%parent, "damaged entry; run `glint fsck`");
                Errno::EIO
            }),
        }
    }

    /// Pairs of a keyspace whose keys begin with this inode.
    pub(crate) async fn scan_inode(
        &self,
        keyspace: Keyspace,
        ino: Ino,
        limit: usize,
    ) -> FsResult<Vec<glint_kv::Pair>> {
        let (from, to) = (ino.key(), keys::after(ino));
        self.kv.scan(keyspace, &from, &to, limit).await.map_err(errno)
    }

    pub(crate) fn put_inode(&self, batch: &mut Batch, record: &InodeRecord) {
        batch.put(Keyspace::Inode, &record.attr.ino.key(), &record.encode());
    }

    pub(crate) fn put_entry(
        &self,
        batch: &mut Batch,
        parent: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileType,
    ) {
        self.names.add(parent, self.cookie(name));
        let key = keys::entry(parent, name, self.hash_seed);
        batch.put(Keyspace::Entry, &key, &keys::entry_value(ino, kind));
    }

    pub(crate) fn delete_entry(&self, batch: &mut Batch, parent: Ino, name: &[u8]) {
        batch.delete(Keyspace::Entry, &keys::entry(parent, name, self.hash_seed));
    }

    pub(crate) fn cookie(&self, name: &[u8]) -> u64 {
        keys::cookie(name, self.hash_seed)
    }
}
