//! OSTs that are given up because they do not exist any more, and what is lost with each: it is said
//! before anything is done.
//!
//! Invariants:
//! - A member that is given up counts as emptied: it is not waited for, and if its OST is heard of
//!   again, replaced or not, it gets everything from the others.
//! - Chains lose no more than was said ([`Losses::number`]): two administrators who give up an OST
//!   each, of which the other one has everything, do not lose both.

use crate::chains::membership::{self, ChainLoss, Loss};
use crate::chains::table::ChainTable;
use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::chain::Chain;
use glint_proto::limits::BODY_BYTES_MAX;
use glint_proto::{Errno, FsResult, Ino, Layout};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

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

/// A file that loses data with an OST.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostFile {
    /// The file.
    pub ino: Ino,
    /// Path from the root; `None` if its name is not found, as of one that is removed meanwhile, or
    /// is too long to be told.
    pub path: Option<Vec<u8>>,
    /// It loses data for good: it has no copies, or no other copy has anything. Otherwise changes
    /// that all other copies have missed.
    pub loses_data: bool,
}

/// Losses of chains if an OST is given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Those of which it has something.
    pub chains: Vec<ChainLoss>,
}

impl Losses {
    /// Number that stands for these losses: another one if a chain loses something else, or goes on
    /// with another member.
    pub fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for ChainLoss { chain, loss, heard, .. } in &self.chains {
            if *loss != Loss::Nothing {
                (chain, loss, heard.first()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Reason that an OST is not given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUpError {
    /// Something else would be lost than was said.
    OtherLosses,
    /// The table of chains could not be stored.
    Store(Errno),
}

impl ChainTable {
    /// Losses if an OST is given up while some members are heard of.
    pub fn losses(&self, ost: u16, heard: &BTreeSet<u16>) -> Losses {
        let is_heard = |other| heard.contains(&other);
        let loss = |chain: &Chain| {
            let target = chain.id.target();
            membership::loss(chain, ost, is_heard, |other| self.is_unfilled(target, other))
        };
        Losses { chains: self.since(0).0.iter().filter_map(loss).collect() }
    }

    /// Gives up an OST in all chains, if these lose what is `said`. Returns how many rows are others
    /// now.
    async fn give_up(
        &self,
        kv: &impl Kv,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
    ) -> Result<usize, GiveUpError> {
        let _changing = self.changing.lock().await;
        if self.losses(ost, heard).number() != said {
            return Err(GiveUpError::OtherLosses);
        }
        let given_up = |chain: &Chain| membership::emptied(chain, ost, true).ok().flatten();
        let changed: Vec<Chain> = self.since(0).0.iter().filter_map(given_up).collect();
        let count = changed.len();
        if count > 0 {
            let stored = self.store_with(kv, changed, Batch::default()).await;
            stored.map_err(GiveUpError::Store)?;
        }
        Ok(count)
    }
}

/// Whether a file may have data in a stripe.
fn has_data(record: &InodeRecord, stripe: u16) -> bool {
    let begins = u64::from(stripe) << record.attr.layout.stripe_bytes_log2;
    record.has_objects && (record.attr.size_on_ost || record.attr.size > begins)
}

/// Whether a file loses data with an OST for good, or changes; `None` if nothing. `lossy` are the
/// chains that lose something, with whether they lose everything.
fn loss_of(record: &InodeRecord, ost: u16, own: u16, lossy: &BTreeMap<u16, bool>) -> Option<bool> {
    let layout: Layout = record.attr.layout;
    let stripes = (0..layout.stripe_count.max(1)).filter(|stripe| has_data(record, *stripe));
    let targets = stripes.map(|stripe| layout.ost_of(stripe, own));
    let losses = targets.filter_map(|target| match target == ost {
        true => Some(true),
        false => lossy.get(&target).copied(),
    });
    losses.reduce(|one, other| one || other)
}

impl<K: Kv> Mds<K> {
    /// Gives up an OST, which does not exist any more, in all chains, if these lose what is `said`
    /// ([`Losses::number`]) while some OSTs are heard of. Returns how many rows are others now.
    pub async fn give_up_ost(
        &self,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
    ) -> Result<usize, GiveUpError> {
        self.chains.give_up(&self.kv, ost, heard, said).await
    }

    /// Some files that lose data if an OST is given up with these losses of chains, from an inode
    /// number on and in their order; and from where to go on, if there may be more. Files without
    /// stated OSTs lie on the first `own` ones.
    pub async fn lost_files(
        &self,
        ost: u16,
        losses: &Losses,
        own: u16,
        from: Ino,
    ) -> FsResult<(Vec<LostFile>, Option<Ino>)> {
        let lossy = losses.chains.iter().filter(|chain| chain.loss != Loss::Nothing);
        let lossy = lossy.map(|chain| (chain.chain.target(), chain.loss == Loss::Everything));
        let lossy: BTreeMap<u16, bool> = lossy.collect();
        let page = self.kv.scan(Keyspace::Inode, &from.key(), &[0xff; 9], PAGE).await;
        let page = page.map_err(errno)?;
        let last = page.last().and_then(|(key, _)| Ino::from_key(key));
        let mut next = last.filter(|_| page.len() == PAGE).map(|ino| Ino(ino.0.saturating_add(1)));
        let mut found: Vec<(InodeRecord, bool)> = Vec::new();
        for (key, value) in &page {
            let Some(ino) = Ino::from_key(key) else { continue };
            let Ok(record) = InodeRecord::decode(ino, value) else { continue };
            if record.attr.is_file()
                && let Some(loses_data) = loss_of(&record, ost, own, &lossy)
            {
                found.push((record, loses_data));
            }
        }
        let paths = self.paths(&found).await?;
        let (mut files, mut bytes) = (Vec::new(), 0);
        for (record, loses_data) in found {
            let ino = record.attr.ino;
            if bytes > NAMES_BYTES_MAX {
                next = Some(ino);
                break;
            }
            let path = paths.get(&ino).filter(|path| path.len() <= PATH_BYTES_MAX).cloned();
            bytes += path.as_ref().map_or(0, Vec::len) + size_of::<LostFile>();
            files.push(LostFile { ino, path, loses_data });
        }
        Ok((files, next))
    }

    /// Paths of files, of those whose names are found.
    async fn paths(&self, files: &[(InodeRecord, bool)]) -> FsResult<HashMap<Ino, Vec<u8>>> {
        let mut by_directory: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
        for (record, _) in files {
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
