//! Inodes and entries in the engine: how operations find them, and put them into a batch.
//!
//! Directories' records come from memory where they are kept ([`crate::store::directories`]), and
//! names that cannot be there are not looked for ([`crate::store::names`]).

use crate::error::{MdsError, errno};
use crate::service::{Context, Mds};
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::posix::cookie;
use glint_proto::{Attr, Errno, FileType, FsResult, Ino};

/// Inodes whose numbers are at most so far apart are read as one range of the engine.
const NEIGHBOURS_APART_MAX: u64 = 8;
/// Neighbours that are worth a range: fewer are read one by one.
const NEIGHBOURS_MIN: usize = 4;

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
        let record = self.stored_inode(ino).await?;
        if let Some(record) = record.as_ref().filter(|record| record.attr.is_dir()) {
            self.directories.keep(record, missed);
        }
        Ok(record)
    }

    /// The record of an inode as the engine holds it, which may be newer than what is cached.
    pub(crate) async fn stored_inode(&self, ino: Ino) -> FsResult<Option<InodeRecord>> {
        let Some(bytes) = self.kv.get(Keyspace::Inode, &ino.key()).await.map_err(errno)? else {
            return Ok(None);
        };
        let record = InodeRecord::decode(ino, bytes.as_ref());
        record.map(Some).map_err(|source| errno(MdsError::Record { ino, source }))
    }

    /// Attributes of inodes, in their order; `None` for one that is gone or damaged. The inodes of a
    /// directory are mostly neighbours, and a range costs a third of as many reads.
    pub(crate) async fn attributes_of(&self, inos: &[Ino]) -> FsResult<Vec<Option<Attr>>> {
        let decoded = |ino: Ino, bytes: &[u8]| Some(InodeRecord::decode(ino, bytes).ok()?.attr);
        let mut attributes: Vec<Option<Attr>> = vec![None; inos.len()];
        let mut sorted: Vec<(Ino, usize)> = inos.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        let mut single = Vec::new();
        for group in sorted.chunk_by(|a, b| b.0.0 - a.0.0 <= NEIGHBOURS_APART_MAX) {
            let (first, last) = match group {
                [first, .., last] if group.len() >= NEIGHBOURS_MIN => (first.0, last.0),
                few => {
                    single.extend_from_slice(few);
                    continue;
                }
            };
            let (from, to) = (first.key(), keys::after(last));
            let mut wanted = group.iter().peekable();
            let take = |key: &[u8], value: &[u8]| {
                let Some(ino) = Ino::from_key(key) else { return };
                while wanted.next_if(|(other, _)| *other < ino).is_some() {}
                while let Some((ino, at)) = wanted.next_if(|(other, _)| *other == ino) {
                    attributes[*at] = decoded(*ino, value);
                }
            };
            let scan = self.kv.scan_each(Keyspace::Inode, &from, &to, usize::MAX, take);
            scan.await.map_err(errno)?;
        }
        let keys: Vec<[u8; 8]> = single.iter().map(|(ino, _)| ino.key()).collect();
        let keys: Vec<&[u8]> = keys.iter().map(<[u8; 8]>::as_slice).collect();
        let found = self.kv.multi_get(Keyspace::Inode, &keys).await.map_err(errno)?;
        for ((ino, at), bytes) in single.into_iter().zip(found) {
            attributes[at] = bytes.and_then(|bytes| decoded(ino, bytes.as_ref()));
        }
        Ok(attributes)
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

    /// Puts a directory whose entries an operation changes, perhaps under its shared lock, and says
    /// with the answer what it is like then.
    pub(crate) fn put_directory(
        &self,
        context: &Context<'_>,
        batch: &mut Batch,
        directory: &mut InodeRecord,
    ) {
        self.directories.order_times(directory);
        self.put_inode(batch, directory);
        self.tell_changed(context, &directory.attr);
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
        cookie(name, self.hash_seed)
    }
}
