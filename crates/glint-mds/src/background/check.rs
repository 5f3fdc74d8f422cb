//! Offline check of the namespace, and its repair.
//!
//! Invariant: a repair never removes a name or an inode that is sound. An inode
//! that no name reaches is given one in `/lost+found-N`.

use crate::error::MdsError;
use crate::session::sessions::is_of_server;
use crate::store::keys::{self, Orphan};
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::posix::cookie;
use glint_proto::{FileType, Ino, Layout, Timestamp};
use std::collections::{HashMap, HashSet};

const PAGE: usize = 4096;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Description of the finding, with its place.
    pub what: String,
    /// Whether it was put right.
    pub repaired: bool,
}

/// Report of a check.
#[derive(Default, Debug)]
pub struct CheckReport {
    /// Inodes in use.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Unlinked files that wait for removal; not an error.
    pub orphans: u64,
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// Files whose objects must be kept; `None` where nobody knows how they are cut.
    pub files: HashMap<Ino, Option<Extent>>,
}

/// Extent of a file that its objects must add up to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Size of the file; `None` where the objects know better.
    pub size: Option<u64>,
    /// How it is cut.
    pub layout: Layout,
}

struct SeenInode {
    record: InodeRecord,
    links: u32,
    subdirectories: u32,
}

struct Check<'a, K> {
    kv: &'a K,
    repair: bool,
    seed: u64,
    report: CheckReport,
    inodes: HashMap<Ino, SeenInode>,
    batch: Batch,
    lost_found: Option<InodeRecord>,
    next_ino: u64,
}

/// Checks everything an engine holds for an MDS; repairs it if asked to.
pub async fn check<K: Kv>(kv: &K, repair: bool) -> Result<CheckReport, MdsError> {
    let meta = |key: &'static [u8]| async move {
        let value = kv.get(Keyspace::Meta, key).await?;
        Ok::<_, MdsError>(value.and_then(|value| keys::parse_u64(value.as_ref())))
    };
    let seed = meta(keys::META_HASH_SEED).await?.ok_or(MdsError::NoRoot)?;
    let mut check = Check {
        kv,
        repair,
        seed,
        report: CheckReport::default(),
        inodes: HashMap::new(),
        batch: Batch::new(),
        lost_found: None,
        next_ino: meta(keys::META_NEXT_INO).await?.unwrap_or(2),
    };
    check.read_inodes().await?;
    check.ensure_root();
    check.read_entries().await?;
    check.link_counts().await?;
    check.attributes().await?;
    check.marks(meta(keys::META_INODES).await?);
    check.finish().await
}

/// From now on the sizes of these files are what their objects say.
pub async fn believe_objects<K: Kv>(kv: &K, files: &[Ino]) -> Result<(), MdsError> {
    let mut batch = Batch::new();
    for &ino in files {
        let Some(value) = kv.get(Keyspace::Inode, &ino.key()).await? else { continue };
        let decoded = InodeRecord::decode(ino, value.as_ref());
        let mut record = decoded.map_err(|source| MdsError::Record { ino, source })?;
        // However small they are: a close is believed that says it.
        (record.attr.size, record.attr.size_on_ost) = (0, true);
        batch.put(Keyspace::Inode, &ino.key(), &record.encode());
    }
    kv.commit(batch, &[]).await?;
    kv.sync().await?;
    Ok(())
}

/// Deleted files whose objects have not been removed yet; not an error.
pub async fn objects_to_destroy<K: Kv>(kv: &K) -> Result<HashSet<Ino>, MdsError> {
    let all = kv.scan(Keyspace::Orphan, &[], &[0xff; 9], usize::MAX).await?;
    Ok(all.iter().filter_map(|(key, _)| Ino::from_key(key)).collect())
}

/// How many clients may come back when the file system is served again, and tell of files that they
/// have made: objects of these may be there already.
pub async fn clients_to_return<K: Kv>(kv: &K) -> Result<usize, MdsError> {
    let sessions = kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX).await?;
    Ok(sessions.iter().filter(|(_, value)| !is_of_server(value)).count())
}

impl<K: Kv> Check<'_, K> {
    fn find(&mut self, what: String, repairable: bool) -> bool {
        let repaired = self.repair && repairable;
        self.report.findings.push(Finding { what, repaired });
        repaired
    }

    async fn pages(
        &self,
        keyspace: Keyspace,
        from: &mut Vec<u8>,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, MdsError> {
        let page = self.kv.scan(keyspace, from, &[0xff; 9], PAGE).await?;
        if let Some((last, _)) = page.last() {
            *from = [last.as_slice(), &[0]].concat();
        }
        Ok(page)
    }

    async fn read_inodes(&mut self) -> Result<(), MdsError> {
        let mut from = Vec::new();
        loop {
            let page = self.pages(Keyspace::Inode, &mut from).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, value) in page {
                let decoded = Ino::from_key(&key)
                    .filter(|_| key.len() == 8)
                    .map(|ino| (ino, InodeRecord::decode(ino, &value)));
                match decoded {
                    Some((ino, Ok(record))) => {
                        if record.attr.is_file() {
                            let attr = &record.attr;
                            let size = (!attr.size_on_ost).then_some(attr.size);
                            let extent = Extent { size, layout: attr.layout };
                            self.report.files.insert(ino, Some(extent));
                        }
                        self.inodes.insert(ino, SeenInode { record, links: 0, subdirectories: 0 });
                    }
                    Some((ino, Err(error))) => {
                        // The objects of the inode stay: a person may still want the data.
                        self.report.files.insert(ino, None);
                        if self.find(format!("inode {ino}: {error}; removed if repaired"), true) {
                            self.batch.delete(Keyspace::Inode, &key);
                        }
                    }
                    None => {
                        if self.find(format!("inode key {key:02x?} is malformed"), true) {
                            self.batch.delete(Keyspace::Inode, &key);
                        }
                    }
                }
            }
        }
    }

    fn ensure_root(&mut self) {
        let sound = self.inodes.get(&Ino::ROOT).is_some_and(|seen| seen.record.attr.is_dir());
        if sound {
            return;
        }
        self.find("the root inode is missing; a new one is made if repaired".into(), true);
        let mode = FileType::Directory.mode_bits() | 0o755;
        let mut record = InodeRecord::new(Ino::ROOT, mode, Timestamp::now());
        record.attr.nlink = 2;
        record.parent = Ino::ROOT;
        if self.repair {
            self.batch.put(Keyspace::Inode, &Ino::ROOT.key(), &record.encode());
        }
        self.inodes.insert(Ino::ROOT, SeenInode { record, links: 0, subdirectories: 0 });
    }

    async fn read_entries(&mut self) -> Result<(), MdsError> {
        let mut from = Vec::new();
        loop {
            let page = self.pages(Keyspace::Entry, &mut from).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, value) in page {
                self.report.entries += 1;
                if let Err(what) = self.entry(&key, &value)
                    && self.find(what, true)
                {
                    self.batch.delete(Keyspace::Entry, &key);
                }
            }
        }
    }

    /// Counts one entry, or says why it must go.
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let Some((parent, at, name)) = keys::parse_entry(key) else {
            return Err(format!("entry key {key:02x?} is malformed"));
        };
        let shown = format!("entry {:?} in {parent}", String::from_utf8_lossy(name));
        let Some((ino, kind)) = keys::parse_entry_value(value) else {
            return Err(format!("{shown} has a malformed value"));
        };
        if cookie(name, self.seed) != at {
            return Err(format!("{shown} has the wrong name hash"));
        }
        if !self.inodes.get(&parent).is_some_and(|seen| seen.record.attr.is_dir()) {
            return Err(format!("{shown}: the parent is not a directory"));
        }
        let Some(child) = self.inodes.get_mut(&ino) else {
            return Err(format!("{shown} names inode {ino}, which does not exist"));
        };
        let real = child.record.attr.file_type();
        if real == FileType::Directory && child.links > 0 {
            return Err(format!("{shown} is a second name of directory {ino}"));
        }
        child.links += 1;
        let wrong_parent = real == FileType::Directory && child.record.parent != parent;
        if wrong_parent {
            child.record.parent = parent;
        }
        if real == FileType::Directory
            && let Some(seen) = self.inodes.get_mut(&parent)
        {
            seen.subdirectories += 1;
        }
        if wrong_parent && self.find(format!("directory {ino} has the wrong parent"), true) {
            self.write_back(ino);
        }
        if real != kind && self.find(format!("{shown} has the wrong type"), true) {
            self.batch.put(Keyspace::Entry, key, &keys::entry_value(ino, real));
        }
        Ok(())
    }

    fn write_back(&mut self, ino: Ino) {
        if let Some(seen) = self.inodes.get(&ino) {
            self.batch.put(Keyspace::Inode, &ino.key(), &seen.record.encode());
        }
    }

    async fn link_counts(&mut self) -> Result<(), MdsError> {
        let mut inodes: Vec<Ino> = self.inodes.keys().copied().collect();
        inodes.sort_unstable();
        for ino in inodes {
            let Some(seen) = self.inodes.get(&ino) else { continue };
            let attr = &seen.record.attr;
            let unnamed = seen.links == 0 && ino != Ino::ROOT;
            if unnamed {
                let orphan = self.kv.get(Keyspace::Orphan, &ino.key()).await?;
                let known =
                    orphan.is_some_and(|value| Orphan::parse(value.as_ref()) == Some(Orphan::Open));
                if known && attr.nlink == 0 {
                    self.report.orphans += 1;
                    continue;
                }
                if self.find(format!("inode {ino} has no name; put into lost+found"), true) {
                    self.rescue(ino);
                }
                continue;
            }
            let right = if attr.is_dir() { 2 + seen.subdirectories } else { seen.links };
            let has = attr.nlink;
            if has != right
                && self.find(format!("inode {ino} has link count {has}, should be {right}"), true)
            {
                if let Some(seen) = self.inodes.get_mut(&ino) {
                    seen.record.attr.nlink = right;
                }
                self.write_back(ino);
            }
        }
        Ok(())
    }

    /// Gives an inode a name in the rescue directory.
    fn rescue(&mut self, ino: Ino) {
        let lost_found = self.lost_found();
        let name = format!("#{:016x}", ino.0);
        let Some(seen) = self.inodes.get_mut(&ino) else { return };
        let kind = seen.record.attr.file_type();
        if kind == FileType::Directory {
            seen.record.parent = lost_found;
            seen.record.attr.nlink = 2 + seen.subdirectories;
        } else {
            seen.record.attr.nlink = 1;
        }
        let key = keys::entry(lost_found, name.as_bytes(), self.seed);
        self.batch.put(Keyspace::Entry, &key, &keys::entry_value(ino, kind));
        self.batch.delete(Keyspace::Orphan, &ino.key());
        self.write_back(ino);
        if kind == FileType::Directory
            && let Some(record) = &mut self.lost_found
        {
            record.attr.nlink += 1;
        }
    }

    fn lost_found(&mut self) -> Ino {
        if let Some(record) = &self.lost_found {
            return record.attr.ino;
        }
        let highest = self.inodes.keys().map(|ino| ino.0).max().unwrap_or(1);
        let ino = Ino(self.next_ino.max(highest + 1));
        self.next_ino = ino.0 + 1;
        let mode = FileType::Directory.mode_bits() | 0o700;
        let mut record = InodeRecord::new(ino, mode, Timestamp::now());
        record.attr.nlink = 2;
        record.parent = Ino::ROOT;
        self.lost_found = Some(record);
        if let Some(root) = self.inodes.get_mut(&Ino::ROOT) {
            root.record.attr.nlink += 1;
        }
        self.write_back(Ino::ROOT);
        let name = format!("lost+found-{:x}", ino.0);
        let key = keys::entry(Ino::ROOT, name.as_bytes(), self.seed);
        self.batch.put(Keyspace::Entry, &key, &keys::entry_value(ino, FileType::Directory));
        ino
    }

    async fn attributes(&mut self) -> Result<(), MdsError> {
        let mut from = Vec::new();
        loop {
            let page = self.pages(Keyspace::Xattr, &mut from).await?;
            if page.is_empty() {
                return Ok(());
            }
            for (key, _) in page {
                let owner = Ino::from_key(&key).filter(|ino| self.inodes.contains_key(ino));
                if owner.is_none()
                    && self.find(format!("extended attribute {key:02x?} without inode"), true)
                {
                    self.batch.delete(Keyspace::Xattr, &key);
                }
            }
        }
    }

    fn marks(&mut self, counted: Option<u64>) {
        self.report.inodes = self.inodes.len() as u64 + u64::from(self.lost_found.is_some());
        let highest = self.inodes.keys().map(|ino| ino.0).max().unwrap_or(1);
        if highest >= self.next_ino {
            let next = self.next_ino;
            self.find(format!("inode {highest:#x} is above the allocation mark {next:#x}"), true);
            self.next_ino = highest + 1;
        }
        if self.repair {
            let next = self.next_ino.to_be_bytes();
            self.batch.put(Keyspace::Meta, keys::META_NEXT_INO, &next);
        }
        // A crash leaves the count a little behind; that is not a fault.
        if self.repair && counted != Some(self.report.inodes) {
            let count = self.report.inodes.to_be_bytes();
            self.batch.put(Keyspace::Meta, keys::META_INODES, &count);
        }
    }

    async fn finish(mut self) -> Result<CheckReport, MdsError> {
        if let Some(record) = self.lost_found.take() {
            self.batch.put(Keyspace::Inode, &record.attr.ino.key(), &record.encode());
        }
        if self.repair {
            self.kv.commit(self.batch, &[]).await?;
            self.kv.sync().await?;
        }
        Ok(self.report)
    }
}
