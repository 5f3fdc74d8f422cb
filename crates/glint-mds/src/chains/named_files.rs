//! Regular files by what their records say, with a path of each, in pages.
//!
//! Invariant: a file that is there while all pages are read, and is wanted all that time, is in one.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::BODY_BYTES_MAX;
use glint_proto::{FsResult, Ino};
use std::collections::{BTreeMap, HashMap};

/// Inodes that are looked at for one page of files, and entries of directories at once.
const PAGE: usize = 16_384;
const ENTRIES: usize = 1024;
/// Bytes of names after which a page ends, and of the longest path that is named. As JSON a byte may
/// take six.
const NAMES_BYTES_MAX: usize = 96 << 10;
const PATH_BYTES_MAX: usize = 32 << 10;
const _: () = assert!((NAMES_BYTES_MAX + PATH_BYTES_MAX) * 6 < BODY_BYTES_MAX / 4 * 3 + 1);
/// Directories deeper than this are not named.
const DEPTH_MAX: usize = 4096;

/// A file, and why it is in the list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedFile<T> {
    /// The file.
    pub ino: Ino,
    /// Path from the root; `None` if its name is not found, as of one that is removed meanwhile, or
    /// is too long to be told.
    pub path: Option<Vec<u8>>,
    /// Size as the MDS knows it.
    pub size: u64,
    /// Second of its last change; `None` if it is, or was when a writer vanished, open for writing.
    pub changed: Option<i64>,
    /// What the list says of it.
    pub says: T,
}

impl<K: Kv> Mds<K> {
    /// Some files of which `wanted` says something, from an inode number on and in their order; and
    /// from where to go on, if there may be more.
    pub(crate) async fn named_files<T>(
        &self,
        from: Ino,
        wanted: impl Fn(&InodeRecord) -> Option<T>,
    ) -> FsResult<(Vec<NamedFile<T>>, Option<Ino>)> {
        let page = self.kv.scan(Keyspace::Inode, &from.key(), &[0xff; 9], PAGE).await;
        let page = page.map_err(errno)?;
        let last = page.last().and_then(|(key, _)| Ino::from_key(key));
        let mut next = last.filter(|_| page.len() == PAGE).map(|ino| Ino(ino.0.saturating_add(1)));
        let (mut found, mut all_say) = (Vec::new(), Vec::new());
        for (key, value) in &page {
            let Some(ino) = Ino::from_key(key) else { continue };
            let Ok(record) = InodeRecord::decode(ino, value) else { continue };
            if record.attr.is_file()
                && let Some(says) = wanted(&record)
            {
                found.push(record);
                all_say.push(says);
            }
        }
        let paths = self.paths(&found).await?;
        let (mut files, mut bytes) = (Vec::new(), 0);
        for (record, says) in std::iter::zip(found, all_say) {
            let ino = record.attr.ino;
            if bytes > NAMES_BYTES_MAX {
                next = Some(ino);
                break;
            }
            let path = paths.get(&ino).filter(|path| path.len() <= PATH_BYTES_MAX).cloned();
            bytes += path.as_ref().map_or(0, Vec::len) + size_of::<NamedFile<T>>();
            let (size, is_open) = (record.attr.size, record.attr.size_on_ost);
            let changed = (!is_open).then_some(record.attr.ctime.secs);
            files.push(NamedFile { ino, path, size, changed, says });
        }
        Ok((files, next))
    }

    /// Paths of files, of those whose names are found.
    async fn paths(&self, files: &[InodeRecord]) -> FsResult<HashMap<Ino, Vec<u8>>> {
        let mut by_directory: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        for record in files {
            by_directory.entry(record.parent).or_default().push(record.attr.ino);
        }
        let mut directories = HashMap::from([(Ino::ROOT, Vec::new())]);
        let mut paths = HashMap::new();
        for (directory, inos) in by_directory {
            let names = self.names_in(directory, &inos).await?;
            let Some(above) = self.directory_path(directory, &mut directories).await? else {
                continue;
            };
            paths.extend(names.into_iter().map(|(ino, name)| (ino, joined(&above, &name))));
        }
        Ok(paths)
    }

    /// Path of a directory; `known` are those that were found before.
    async fn directory_path(
        &self,
        directory: Ino,
        known: &mut HashMap<Ino, Vec<u8>>,
    ) -> FsResult<Option<Vec<u8>>> {
        let mut below: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut at = directory;
        let mut path = loop {
            if let Some(path) = known.get(&at) {
                break path.clone();
            }
            let record = self.find_inode(at).await?.filter(|record| record.attr.is_dir());
            let Some(parent) = record.map(|record| record.parent) else { return Ok(None) };
            let Some(name) = self.names_in(parent, &[at]).await?.remove(&at) else {
                return Ok(None);
            };
            below.push((at, name));
            if below.len() > DEPTH_MAX {
                return Ok(None);
            }
            at = parent;
        };
        for (ino, name) in below.into_iter().rev() {
            path = joined(&path, &name);
            known.insert(ino, path.clone());
        }
        Ok(Some(path))
    }

    /// A name of each of these inodes in a directory, of those that have one.
    async fn names_in(&self, directory: Ino, inos: &[Ino]) -> FsResult<HashMap<Ino, Vec<u8>>> {
        let (mut from, to) = (directory.key().to_vec(), keys::after(directory));
        let mut names = HashMap::new();
        while names.len() < inos.len() {
            let page = self.kv.scan(Keyspace::Entry, &from, &to, ENTRIES).await.map_err(errno)?;
            for (key, value) in &page {
                let Some((_, _, name)) = keys::parse_entry(key) else { continue };
                let Some((ino, _)) = keys::parse_entry_value(value) else { continue };
                // Inode numbers come in their order.
                if inos.binary_search(&ino).is_ok() {
                    names.insert(ino, name.to_vec());
                }
            }
            let Some((last, _)) = page.last().filter(|_| page.len() == ENTRIES) else { break };
            from = [last.as_slice(), &[0]].concat();
            // Requests of others go on, however large the directory is.
            futures_lite::future::yield_now().await;
        }
        Ok(names)
    }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    [above, b"/", name].concat()
}
