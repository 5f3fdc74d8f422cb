//! Oracle of what must be there: the names of a directory that one worker changes.

use glint_proto::{Errno, FsResult, Ino};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ExpectedInode {
    pub(crate) is_dir: bool,
    pub(crate) content: Vec<u8>,
    /// Content that each byte and the size may have, too: a change failed, and may have been done
    /// in part.
    other: Option<Vec<u8>>,
    /// Nobody can say.
    is_lost: bool,
    pub(crate) links: u32,
}

impl ExpectedInode {
    /// Changes the content, for certain or perhaps.
    pub(crate) fn change(&mut self, certain: bool, change: impl Fn(&mut Vec<u8>)) {
        if certain {
            change(&mut self.content);
            self.other.iter_mut().for_each(change);
        } else if self.other.is_some() {
            self.is_lost = true;
        } else {
            let mut changed = self.content.clone();
            change(&mut changed);
            self.other = Some(changed);
        }
    }

    /// The largest that it may be.
    pub(crate) fn len(&self) -> usize {
        self.content.len().max(self.other.as_ref().map_or(0, Vec::len))
    }

    pub(crate) fn may_have_size(&self, size: u64) -> bool {
        let (now, other) = (self.content.len() as u64, self.other.as_ref().map(Vec::len));
        // A change that failed may have been done at some of the file's objects.
        let other = other.map_or(now, |other| other as u64);
        self.is_lost || (now.min(other)..=now.max(other)).contains(&size)
    }

    pub(crate) fn may_be(&self, found: &[u8]) -> bool {
        let byte = |content: &Vec<u8>, at: usize| content.get(at).copied().unwrap_or(0);
        let is = |(at, found): (usize, &u8)| {
            byte(&self.content, at) == *found
                || self.other.as_ref().is_some_and(|other| byte(other, at) == *found)
        };
        self.is_lost || (self.may_have_size(found.len() as u64) && found.iter().enumerate().all(is))
    }
}

/// Bytes as runs of equal ones: 5 of 7, then 2 of 0, is `7x5 0x2`.
pub(crate) fn runs(bytes: &[u8]) -> String {
    let runs = bytes.chunk_by(|one, next| one == next);
    runs.map(|run| format!("{}x{}", run[0], run.len())).collect::<Vec<_>>().join(" ")
}

/// Faults of disks, which explain errors that calls return.
#[derive(Default)]
pub(crate) struct Troubles {
    /// There is no space.
    pub(crate) full: Cell<bool>,
    /// Something could not be brought to stable storage.
    pub(crate) flush: Cell<bool>,
    /// There are no descriptors.
    pub(crate) descriptors: Cell<bool>,
    /// Files that cannot be read or written, and those that cannot be written: of them anything may
    /// be lost.
    pub(crate) broken: RefCell<BTreeSet<Ino>>,
    pub(crate) unwritable: RefCell<BTreeSet<Ino>>,
}

impl Troubles {
    /// Result of a call, which has to be no error, or one that the troubles explain: `None`.
    pub(crate) fn told<T>(
        &self,
        what: &str,
        ino: Option<Ino>,
        got: FsResult<T>,
    ) -> Result<Option<T>, String> {
        match got {
            Ok(value) => Ok(Some(value)),
            Err(errno) if self.explain(errno, ino) => Ok(None),
            Err(errno) => Err(format!("{what}: {errno:?}")),
        }
    }

    /// Whether a call on a file, or on all, may say this.
    pub(crate) fn explain(&self, errno: Errno, ino: Option<Ino>) -> bool {
        match errno {
            Errno::ENOSPC => self.full.get(),
            Errno::EMFILE => self.descriptors.get(),
            Errno::EIO => {
                let broken = self.broken.borrow();
                self.flush.get() || ino.map_or(!broken.is_empty(), |ino| broken.contains(&ino))
            }
            _ => false,
        }
    }
}

/// A directory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<String, Ino>,
    pub(crate) inodes: BTreeMap<Ino, ExpectedInode>,
    /// As of the last sync, and names that changed since.
    synced: BTreeSet<String>,
    changed: BTreeSet<String>,
    /// Names of the call that is under way, and the number of calls so far.
    under_way: Vec<String>,
    calls: u64,
    /// How many of them were on each name.
    calls_on: BTreeMap<String, u64>,
}

impl Model {
    /// A call on these names begins.
    pub(crate) fn begins(&mut self, names: &[&str]) {
        self.under_way = names.iter().map(|name| (*name).to_owned()).collect();
        self.calls += 1;
        for name in names {
            *self.calls_on.entry((*name).to_owned()).or_default() += 1;
        }
    }

    /// How many calls there have been on a name, if none is under way.
    pub(crate) fn at_rest(&self, name: &str) -> Option<u64> {
        let is_under_way = self.under_way.iter().any(|one| one == name);
        (!is_under_way).then(|| self.calls_on.get(name).copied().unwrap_or_default())
    }

    /// How many calls there have been, if none is under way.
    pub(crate) fn quiet(&self) -> Option<u64> {
        self.under_way.is_empty().then_some(self.calls)
    }

    /// The call that was under way has returned.
    pub(crate) fn ends(&mut self) {
        let names = std::mem::take(&mut self.under_way);
        self.changed.extend(names);
    }

    /// Files that have a name and are in no call that is under way.
    pub(crate) fn files_at_rest(&self) -> Vec<Ino> {
        let is_under_way = |name: &String| self.under_way.contains(name);
        let names = self.names.iter().filter(|(name, _)| !is_under_way(name));
        names.map(|(_, ino)| *ino).filter(|ino| !self.inodes[ino].is_dir).collect()
    }

    /// Somebody else changes a file: nobody can say any more what it has.
    pub(crate) fn is_lost(&mut self, ino: Ino) {
        self.inodes.entry(ino).and_modify(|inode| inode.is_lost = true);
    }

    /// A sync has returned: all that was done before it began is durable.
    pub(crate) fn synced(&mut self) {
        self.synced = self.names.keys().cloned().collect();
        self.changed.clear();
    }

    pub(crate) fn inode(&self, name: &str) -> Option<&ExpectedInode> {
        self.names.get(name).and_then(|ino| self.inodes.get(ino))
    }

    pub(crate) fn add(&mut self, name: &str, ino: Ino, is_dir: bool) {
        self.names.insert(name.to_owned(), ino);
        let links = if is_dir { 2 } else { 1 };
        self.inodes.insert(
            ino,
            ExpectedInode { is_dir, content: Vec::new(), other: None, is_lost: false, links },
        );
    }

    pub(crate) fn link(&mut self, old: &str, new: &str) {
        let Some(ino) = self.names.get(old).copied() else { return };
        self.names.insert(new.to_owned(), ino);
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.links += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some(ino) = self.names.remove(name) else { return };
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.links -= 1;
            if inode.is_dir || inode.links == 0 {
                self.inodes.remove(&ino);
            }
        }
    }

    /// Renames as rename(2) does; an error is the one that the call must return.
    pub(crate) fn rename(&mut self, old: &str, new: &str) -> Result<(), Errno> {
        let Some(source) = self.inode(old) else { return Err(Errno::ENOENT) };
        match self.inode(new) {
            Some(target) if source.is_dir && !target.is_dir => return Err(Errno::ENOTDIR),
            Some(target) if !source.is_dir && target.is_dir => return Err(Errno::EISDIR),
            _ => {}
        }
        if self.names.get(old) == self.names.get(new) {
            return Ok(());
        }
        self.remove(new);
        if let Some(ino) = self.names.remove(old) {
            self.names.insert(new.to_owned(), ino);
        }
        Ok(())
    }

    /// Checks a listing by others after a client died, which must show everything that was
    /// answered; if power was lost as well, or it told of its changes later (`forgets`), what was
    /// synced and did not change since.
    pub(crate) fn accepts(&self, found: &BTreeSet<String>, forgets: bool) -> Result<(), String> {
        let mut doubtful: BTreeSet<&String> = self.under_way.iter().collect();
        let must: BTreeSet<String> = match forgets {
            true => {
                doubtful.extend(&self.changed);
                self.synced.clone()
            }
            false => self.names.keys().cloned().collect(),
        };
        for name in must.symmetric_difference(found) {
            if !doubtful.contains(name) {
                let there = found.contains(name);
                return Err(format!("of a dead client: {name} must not be there={there}"));
            }
        }
        Ok(())
    }
}
