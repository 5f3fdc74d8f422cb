//! Check of the namespace while it is served: it is read in pages, and what seems wrong is looked
//! at a second time.
//!
//! Invariants:
//! - Nothing waits for a check, and what it holds here is one page.
//! - All inodes are read before the first entry. An inode that is unchanged at the second look had
//!   the same names all the time between, so what its entries added up to is true of it. What was
//!   changed meanwhile is not told. Changes of one pass of a worker have one ctime: whoever walks
//!   pauses between the inodes and the entries for longer than a pass takes.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::{FileType, FsResult, Ino, Timestamp};
use std::collections::{HashMap, HashSet};

/// Records of one page.
const PAGE: usize = 4096;

/// What a check has to know of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeFact {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileType,
    /// Its link count.
    pub links: u32,
    /// The directory that a directory says it is in; of others a hint.
    pub parent: Ino,
    /// Changes whenever it gets or loses a name, and a directory an entry.
    pub ctime: Timestamp,
}

/// What a check has to know of an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryFact {
    /// The directory that it is in.
    pub parent: Ino,
    /// Its name.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub ino: Ino,
    /// The type that it says the inode has.
    pub kind: FileType,
}

/// Something that seems wrong until it was looked at again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NamespaceDoubt {
    /// The entry names an inode that was not there.
    NoInode(EntryFact),
    /// The entry is in an inode that is no directory, or was not there.
    NoDirectory(EntryFact),
    /// The entry says another type than the inode has.
    WrongType(EntryFact, InodeFact),
    /// The directory says that it is in another one than its entry is in.
    WrongParent(EntryFact, InodeFact),
    /// The directory has this many names.
    ManyNames(InodeFact, u32),
    /// The inode has no name, and a link count.
    NoName(InodeFact),
    /// The link count should be this one.
    WrongLinks(InodeFact, u32),
    /// These directories are in each other.
    Cycle(Vec<InodeFact>),
}

/// An inode, and what was found of it among the entries.
struct CountedInode {
    fact: InodeFact,
    names: u32,
    subdirectories: u32,
    /// Where the last of its entries is.
    found_in: Ino,
}

/// The check: is given all inodes first, then all entries.
#[derive(Default)]
pub struct NamespaceCheck {
    inodes: HashMap<Ino, CountedInode>,
    doubts: Vec<NamespaceDoubt>,
}

impl NamespaceCheck {
    /// Takes an inode.
    pub fn inode(&mut self, fact: InodeFact) {
        let counted = CountedInode { fact, names: 0, subdirectories: 0, found_in: fact.parent };
        self.inodes.insert(fact.ino, counted);
    }

    /// Takes an entry.
    pub fn entry(&mut self, entry: EntryFact) {
        let is_directory = |counted: &CountedInode| counted.fact.kind == FileType::Directory;
        if !self.inodes.get(&entry.parent).is_some_and(is_directory) {
            self.doubts.push(NamespaceDoubt::NoDirectory(entry.clone()));
        }
        let Some(child) = self.inodes.get_mut(&entry.ino) else {
            self.doubts.push(NamespaceDoubt::NoInode(entry));
            return;
        };
        child.names = child.names.saturating_add(1);
        child.found_in = entry.parent;
        let fact = child.fact;
        if fact.kind == FileType::Directory
            && let Some(parent) = self.inodes.get_mut(&entry.parent)
        {
            parent.subdirectories = parent.subdirectories.saturating_add(1);
        }
        if fact.kind != entry.kind {
            self.doubts.push(NamespaceDoubt::WrongType(entry, fact));
        } else if fact.kind == FileType::Directory && fact.parent != entry.parent {
            self.doubts.push(NamespaceDoubt::WrongParent(entry, fact));
        }
    }

    /// What seems wrong, when all was taken.
    pub fn end(mut self) -> Vec<NamespaceDoubt> {
        let mut inos: Vec<Ino> = self.inodes.keys().copied().collect();
        inos.sort_unstable();
        for ino in &inos {
            let Some(CountedInode { fact, names, subdirectories, .. }) = self.inodes.get(ino)
            else {
                continue;
            };
            let is_directory = fact.kind == FileType::Directory;
            if *names == 0 && *ino != Ino::ROOT {
                // One that is open, or waits for its removal, has none.
                if fact.links > 0 {
                    self.doubts.push(NamespaceDoubt::NoName(*fact));
                }
                continue;
            }
            if is_directory && *names > 1 {
                self.doubts.push(NamespaceDoubt::ManyNames(*fact, *names));
            }
            let right = if is_directory { subdirectories.saturating_add(2) } else { *names };
            if fact.links != right {
                self.doubts.push(NamespaceDoubt::WrongLinks(*fact, right));
            }
        }
        self.cycles(&inos);
        self.doubts
    }

    /// Finds directories that are in each other: all have names, and none is reached.
    fn cycles(&mut self, inos: &[Ino]) {
        let mut known = HashSet::from([Ino::ROOT]);
        for ino in inos {
            let (mut way, mut at) = (Vec::new(), *ino);
            while known.insert(at) {
                let counted = self.inodes.get(&at);
                let directory = counted.filter(|one| one.fact.kind == FileType::Directory);
                let Some(directory) = directory.filter(|one| one.names > 0) else { break };
                way.push(directory.fact);
                at = directory.found_in;
            }
            // It was known before unless this way has come back to itself.
            if let Some(first) = way.iter().position(|fact| fact.ino == at) {
                self.doubts.push(NamespaceDoubt::Cycle(way.split_off(first)));
            }
        }
    }
}

impl NamespaceDoubt {
    /// Whether it is so after the second look, which finds the inode and the entry as `inode` and
    /// `entry` say, given a number, or a directory and a name.
    pub fn is_confirmed(
        &self,
        inode: impl Fn(Ino) -> Option<InodeFact>,
        entry: impl Fn(Ino, &[u8]) -> Option<EntryFact>,
    ) -> bool {
        let is_there = |one: &EntryFact| entry(one.parent, &one.name).as_ref() == Some(one);
        let is_unchanged = |one: &InodeFact| inode(one.ino).as_ref() == Some(one);
        match self {
            NamespaceDoubt::NoInode(one) => is_there(one) && inode(one.ino).is_none(),
            NamespaceDoubt::NoDirectory(one) => {
                let found = inode(one.parent).map(|fact| fact.kind);
                is_there(one) && found != Some(FileType::Directory)
            }
            NamespaceDoubt::WrongType(one, fact) | NamespaceDoubt::WrongParent(one, fact) => {
                is_there(one) && is_unchanged(fact)
            }
            NamespaceDoubt::ManyNames(fact, _)
            | NamespaceDoubt::NoName(fact)
            | NamespaceDoubt::WrongLinks(fact, _) => is_unchanged(fact),
            NamespaceDoubt::Cycle(facts) => facts.iter().all(is_unchanged),
        }
    }
}

impl<K: Kv> Mds<K> {
    /// A page of inodes from a number on, in their order; and from where to go on, if there may be
    /// more. Records that cannot be read are left out: the offline check names them.
    pub async fn inode_facts(&self, from: Ino) -> FsResult<(Vec<InodeFact>, Option<Ino>)> {
        let page = self.kv.scan(Keyspace::Inode, &from.key(), &[0xff; 9], PAGE).await;
        let page = page.map_err(errno)?;
        let last = page.last().and_then(|(key, _)| Ino::from_key(key));
        let next = last.filter(|_| page.len() == PAGE).map(|ino| Ino(ino.0.saturating_add(1)));
        let read = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let ino = Ino::from_key(key)?;
            let InodeRecord { attr, parent, .. } = InodeRecord::decode(ino, value).ok()?;
            let (kind, links, ctime) = (attr.file_type(), attr.nlink, attr.ctime);
            Some(InodeFact { ino, kind, links, parent, ctime })
        };
        Ok((page.iter().filter_map(read).collect(), next))
    }

    /// A page of entries from a key on, in the order of their keys; and the key to go on with, if
    /// there may be more. Entries that cannot be read are left out.
    pub async fn entry_facts(&self, from: &[u8]) -> FsResult<(Vec<EntryFact>, Option<Vec<u8>>)> {
        let page = self.kv.scan(Keyspace::Entry, from, &[0xff; 9], PAGE).await.map_err(errno)?;
        let last = page.last().filter(|_| page.len() == PAGE);
        let next = last.map(|(key, _)| [key.as_slice(), &[0]].concat());
        let read = |(key, value): &(Vec<u8>, Vec<u8>)| {
            let (parent, _, name) = keys::parse_entry(key)?;
            let (ino, kind) = keys::parse_entry_value(value)?;
            Some(EntryFact { parent, name: name.to_vec(), ino, kind })
        };
        Ok((page.iter().filter_map(read).collect(), next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inode(ino: u64, kind: FileType, links: u32, parent: u64) -> InodeFact {
        let ctime = Timestamp { secs: 1, nanos: 0 };
        InodeFact { ino: Ino(ino), kind, links, parent: Ino(parent), ctime }
    }

    fn entry(parent: u64, name: &str, ino: u64, kind: FileType) -> EntryFact {
        EntryFact { parent: Ino(parent), name: name.as_bytes().to_vec(), ino: Ino(ino), kind }
    }

    fn check(inodes: &[InodeFact], entries: &[EntryFact]) -> Vec<NamespaceDoubt> {
        let mut check = NamespaceCheck::default();
        inodes.iter().for_each(|fact| check.inode(*fact));
        entries.iter().for_each(|fact| check.entry(fact.clone()));
        check.end()
    }

    use FileType::{Directory, Regular};

    /// `/d/f`, which is `/g`, too; and a file that is open and has no name.
    fn sound() -> (Vec<InodeFact>, Vec<EntryFact>) {
        let inodes = vec![
            inode(1, Directory, 3, 1),
            inode(2, Directory, 2, 1),
            inode(3, Regular, 2, 2),
            inode(4, Regular, 0, 1),
        ];
        let entries =
            vec![entry(1, "d", 2, Directory), entry(1, "g", 3, Regular), entry(2, "f", 3, Regular)];
        (inodes, entries)
    }

    #[test]
    fn nothing_is_found_where_all_is_right() {
        let (inodes, entries) = sound();
        assert_eq!(check(&inodes, &entries), []);
    }

    #[test]
    fn an_entry_without_inode_is_confirmed_if_it_is_still_there() {
        let (inodes, mut entries) = sound();
        let lost = entry(2, "lost", 9, Regular);
        entries.push(lost.clone());
        let doubts = check(&inodes, &entries);
        assert_eq!(doubts, [NamespaceDoubt::NoInode(lost.clone())]);
        let there = |_: Ino, _: &[u8]| Some(lost.clone());
        assert!(doubts[0].is_confirmed(|_| None, there));
        assert!(!doubts[0].is_confirmed(|_| None, |_, _| None), "removed");
        let made = |_| Some(inode(9, Regular, 1, 2));
        assert!(!doubts[0].is_confirmed(made, there), "made since the inodes were read");
    }

    #[test]
    fn a_lost_name_is_confirmed_if_the_inode_is_unchanged() {
        let (inodes, mut entries) = sound();
        entries.pop();
        let wrong = NamespaceDoubt::WrongLinks(inodes[2], 1);
        assert_eq!(check(&inodes, &entries), std::slice::from_ref(&wrong));
        assert!(wrong.is_confirmed(|_| Some(inodes[2]), |_, _| None));
        // It was renamed, and had both names all the time.
        let ctime = Timestamp { secs: 2, nanos: 0 };
        let renamed = InodeFact { ctime, ..inodes[2] };
        assert!(!wrong.is_confirmed(|_| Some(renamed), |_, _| None));
        entries.remove(1);
        let lost = NamespaceDoubt::NoName(inodes[2]);
        assert_eq!(check(&inodes, &entries), std::slice::from_ref(&lost));
        assert!(!lost.is_confirmed(|_| None, |_, _| None), "removed");
    }

    #[test]
    fn a_directory_has_one_name_where_it_says_it_is() {
        let (mut inodes, mut entries) = sound();
        inodes[1].parent = Ino(3);
        let elsewhere = NamespaceDoubt::WrongParent(entries[0].clone(), inodes[1]);
        assert_eq!(check(&inodes, &entries), [elsewhere]);
        inodes[1].parent = Ino(1);
        entries.push(entry(1, "e", 2, Directory));
        let twice = NamespaceDoubt::ManyNames(inodes[1], 2);
        let links = NamespaceDoubt::WrongLinks(inodes[0], 4);
        assert_eq!(check(&inodes, &entries), [links, twice]);
    }

    #[test]
    fn directories_in_each_other_are_found_once() {
        let (mut inodes, mut entries) = sound();
        inodes.push(inode(5, Directory, 3, 6));
        inodes.push(inode(6, Directory, 3, 5));
        // Below them, and no part of it.
        inodes.push(inode(7, Directory, 2, 6));
        inodes[5].links = 4;
        entries.push(entry(6, "a", 5, Directory));
        entries.push(entry(5, "b", 6, Directory));
        entries.push(entry(6, "c", 7, Directory));
        let cycle = NamespaceDoubt::Cycle(vec![inodes[4], inodes[5]]);
        assert_eq!(check(&inodes, &entries), [cycle]);
    }

    #[test]
    fn types_and_directories_of_entries_are_looked_at() {
        let (inodes, mut entries) = sound();
        entries[2].kind = FileType::Symlink;
        let wrong = NamespaceDoubt::WrongType(entries[2].clone(), inodes[2]);
        assert_eq!(check(&inodes, &entries), [wrong]);
        entries[2] = entry(4, "f", 3, Regular);
        assert_eq!(check(&inodes, &entries), [NamespaceDoubt::NoDirectory(entries[2].clone())]);
    }
}
