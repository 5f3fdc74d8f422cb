//! Check of the namespace while it is served: it is read in pages, and what seems wrong is looked
//! at a second time.
//!
//! Invariants:
//! - All inodes are read before the first entry. An inode that is unchanged at the second look had
//!   the same names all the time between, so what its entries added up to is true of it. What was
//!   changed meanwhile is not told. Changes of one pass of a worker have one ctime: whoever walks
//!   pauses between the inodes and the entries for longer than a pass takes.

use glint_proto::chain::ChainId;
use glint_proto::message::{EntryFact, EntryPlace, InodeFact};
use glint_proto::{FileType, Ino};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Directories of a cycle that are looked at again.
const CYCLE_LOOKS_MAX: usize = 128;

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
    /// The entry is not where look-ups search for its name.
    Misplaced(EntryFact),
    /// The file lies on this OST or chain, which does not exist.
    NoTarget(InodeFact, u16),
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
        let parent = entry.place.parent;
        if entry.is_misplaced {
            self.doubts.push(NamespaceDoubt::Misplaced(entry.clone()));
        }
        if !self.inodes.get(&parent).is_some_and(is_directory) {
            self.doubts.push(NamespaceDoubt::NoDirectory(entry.clone()));
        }
        let Some(child) = self.inodes.get_mut(&entry.ino) else {
            self.doubts.push(NamespaceDoubt::NoInode(entry));
            return;
        };
        child.names = child.names.saturating_add(1);
        child.found_in = parent;
        let fact = child.fact;
        if fact.kind == FileType::Directory
            && let Some(above) = self.inodes.get_mut(&parent)
        {
            above.subdirectories = above.subdirectories.saturating_add(1);
        }
        if fact.kind != entry.kind {
            self.doubts.push(NamespaceDoubt::WrongType(entry, fact));
        } else if fact.kind == FileType::Directory && fact.parent != parent {
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
            if let Some(target) = fact.missing_target {
                self.doubts.push(NamespaceDoubt::NoTarget(*fact, target));
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
    /// What has to be looked at again: inodes, and entries after these.
    pub fn looks(&self) -> (Vec<Ino>, Vec<EntryPlace>) {
        let entry = |one: &EntryFact| vec![one.place.clone()];
        match self {
            NamespaceDoubt::NoInode(one) => (vec![one.ino], entry(one)),
            NamespaceDoubt::NoDirectory(one) => (vec![one.place.parent], entry(one)),
            NamespaceDoubt::Misplaced(one) => (Vec::new(), entry(one)),
            NamespaceDoubt::WrongType(one, fact) | NamespaceDoubt::WrongParent(one, fact) => {
                (vec![fact.ino], entry(one))
            }
            NamespaceDoubt::ManyNames(fact, _)
            | NamespaceDoubt::NoName(fact)
            | NamespaceDoubt::WrongLinks(fact, _)
            | NamespaceDoubt::NoTarget(fact, _) => (vec![fact.ino], Vec::new()),
            NamespaceDoubt::Cycle(facts) => {
                (facts.iter().take(CYCLE_LOOKS_MAX).map(|fact| fact.ino).collect(), Vec::new())
            }
        }
    }

    /// Whether it is so after the second look, which has found these.
    pub fn is_confirmed(
        &self,
        inodes: &HashMap<Ino, InodeFact>,
        entries: &HashSet<EntryFact>,
    ) -> bool {
        let is_unchanged = |one: &InodeFact| inodes.get(&one.ino) == Some(one);
        match self {
            NamespaceDoubt::NoInode(one) => entries.contains(one) && !inodes.contains_key(&one.ino),
            NamespaceDoubt::NoDirectory(one) => {
                let found = inodes.get(&one.place.parent).map(|fact| fact.kind);
                entries.contains(one) && found != Some(FileType::Directory)
            }
            NamespaceDoubt::Misplaced(one) => entries.contains(one),
            NamespaceDoubt::WrongType(one, fact) | NamespaceDoubt::WrongParent(one, fact) => {
                entries.contains(one) && is_unchanged(fact)
            }
            NamespaceDoubt::ManyNames(fact, _)
            | NamespaceDoubt::NoName(fact)
            | NamespaceDoubt::WrongLinks(fact, _)
            | NamespaceDoubt::NoTarget(fact, _) => is_unchanged(fact),
            NamespaceDoubt::Cycle(facts) => facts.iter().take(CYCLE_LOOKS_MAX).all(is_unchanged),
        }
    }
}

/// For people, in the words of the offline check.
impl fmt::Display for NamespaceDoubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |one: &EntryFact| {
            let EntryPlace { parent, name, .. } = &one.place;
            format!("entry {:?} in {parent}", String::from_utf8_lossy(name))
        };
        match self {
            NamespaceDoubt::NoInode(one) => {
                write!(f, "{} names inode {}, which does not exist", shown(one), one.ino)
            }
            NamespaceDoubt::NoDirectory(one) => {
                write!(f, "{}: the parent is not a directory", shown(one))
            }
            NamespaceDoubt::WrongType(one, _) => write!(f, "{} has the wrong type", shown(one)),
            NamespaceDoubt::WrongParent(_, fact) => {
                write!(f, "directory {} has the wrong parent", fact.ino)
            }
            NamespaceDoubt::ManyNames(fact, names) => {
                write!(f, "directory {} has {names} names", fact.ino)
            }
            NamespaceDoubt::NoName(fact) => write!(f, "inode {} has no name", fact.ino),
            NamespaceDoubt::WrongLinks(InodeFact { ino, links, .. }, right) => {
                write!(f, "inode {ino} has link count {links}, should be {right}")
            }
            NamespaceDoubt::Cycle(facts) => {
                let some = facts.iter().take(8).map(|fact| fact.ino.to_string());
                let some: Vec<String> = some.collect();
                write!(f, "{} directories are in each other: {}", facts.len(), some.join(", "))
            }
            NamespaceDoubt::Misplaced(one) => write!(f, "{} has the wrong name hash", shown(one)),
            NamespaceDoubt::NoTarget(InodeFact { ino, .. }, target) => {
                match ChainId::of_target(*target) {
                    Some(chain) => {
                        write!(f, "file {ino} lies on chain {chain}, which does not exist")
                    }
                    None => write!(f, "file {ino} lies on OST {target}, which does not exist"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Timestamp;

    fn inode(ino: u64, kind: FileType, links: u32, parent: u64) -> InodeFact {
        let ctime = Timestamp { secs: 1, nanos: 0 };
        let (ino, parent) = (Ino(ino), Ino(parent));
        InodeFact { ino, kind, links, parent, ctime, missing_target: None }
    }

    fn entry(parent: u64, name: &str, ino: u64, kind: FileType) -> EntryFact {
        let place = EntryPlace { parent: Ino(parent), cookie: 16, name: name.as_bytes().to_vec() };
        EntryFact { place, ino: Ino(ino), kind, is_misplaced: false }
    }

    fn check(inodes: &[InodeFact], entries: &[EntryFact]) -> Vec<NamespaceDoubt> {
        let mut check = NamespaceCheck::default();
        inodes.iter().for_each(|fact| check.inode(*fact));
        entries.iter().for_each(|fact| check.entry(fact.clone()));
        check.end()
    }

    /// Whether the doubt is confirmed by a look that finds these.
    fn confirms(doubt: &NamespaceDoubt, inodes: &[InodeFact], entries: &[EntryFact]) -> bool {
        let inodes = inodes.iter().map(|fact| (fact.ino, *fact)).collect();
        doubt.is_confirmed(&inodes, &entries.iter().cloned().collect())
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
        assert!(check(&inodes, &entries).is_empty());
    }

    #[test]
    fn an_entry_without_inode_is_confirmed_if_it_is_still_there() {
        let (inodes, mut entries) = sound();
        let lost = entry(2, "lost", 9, Regular);
        entries.push(lost.clone());
        let doubts = check(&inodes, &entries);
        assert_eq!(doubts, [NamespaceDoubt::NoInode(lost.clone())]);
        assert_eq!(doubts[0].looks(), (vec![Ino(9)], vec![lost.place.clone()]));
        let there = [lost];
        assert!(confirms(&doubts[0], &[], &there));
        assert!(!confirms(&doubts[0], &[], &[]), "removed");
        let made = [inode(9, Regular, 1, 2)];
        assert!(!confirms(&doubts[0], &made, &there), "made since the inodes were read");
    }

    #[test]
    fn a_lost_name_is_confirmed_if_the_inode_is_unchanged() {
        let (inodes, mut entries) = sound();
        entries.pop();
        let wrong = NamespaceDoubt::WrongLinks(inodes[2], 1);
        assert_eq!(check(&inodes, &entries), std::slice::from_ref(&wrong));
        assert!(confirms(&wrong, &inodes, &[]));
        assert_eq!(wrong.to_string(), "inode 0x3 has link count 2, should be 1");
        // It was renamed, and had both names all the time.
        let ctime = Timestamp { secs: 2, nanos: 0 };
        let renamed = InodeFact { ctime, ..inodes[2] };
        assert!(!confirms(&wrong, &[renamed], &[]));
        entries.remove(1);
        let lost = NamespaceDoubt::NoName(inodes[2]);
        assert_eq!(check(&inodes, &entries), std::slice::from_ref(&lost));
        assert!(!confirms(&lost, &[], &[]), "removed");
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
        entries[2].kind = Regular;
        entries[2].is_misplaced = true;
        assert_eq!(check(&inodes, &entries), [NamespaceDoubt::Misplaced(entries[2].clone())]);
        entries[2] = entry(4, "f", 3, Regular);
        assert_eq!(check(&inodes, &entries), [NamespaceDoubt::NoDirectory(entries[2].clone())]);
    }

    #[test]
    fn osts_and_chains_of_files_exist() {
        let (mut inodes, entries) = sound();
        let chain = ChainId { copies: 2, index: 7 }.target();
        for (target, shown) in [(3, "OST 3"), (chain, "chain 2x7")] {
            inodes[2].missing_target = Some(target);
            let found = check(&inodes, &entries);
            assert_eq!(found, [NamespaceDoubt::NoTarget(inodes[2], target)]);
            assert!(found[0].to_string().contains(shown), "{}", found[0]);
            assert!(confirms(&found[0], &inodes, &[]));
        }
    }
}
