//! What must be there: the names of a directory that one worker changes.

use glint_proto::{Errno, Ino};
use std::collections::{BTreeMap, BTreeSet};

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) is_dir: bool,
    pub(crate) content: Vec<u8>,
    pub(crate) links: u32,
}

/// A directory.
#[derive(Clone, Default, Debug)]
pub(crate) struct Model {
    pub(crate) names: BTreeMap<String, Ino>,
    pub(crate) nodes: BTreeMap<Ino, Node>,
    /// As of the last sync, and names that changed since.
    synced: BTreeSet<String>,
    changed: BTreeSet<String>,
    /// Names of the call that is under way, and the number of calls so far.
    under_way: Vec<String>,
    calls: u64,
}

impl Model {
    /// A call on these names begins.
    pub(crate) fn begins(&mut self, names: &[&str]) {
        self.under_way = names.iter().map(|name| (*name).to_owned()).collect();
        self.calls += 1;
    }

    /// How many calls there have been, if none is under way.
    pub(crate) fn quiet(&self) -> Option<u64> {
        self.under_way.is_empty().then_some(self.calls)
    }

    /// It has returned.
    pub(crate) fn ends(&mut self) {
        let names = std::mem::take(&mut self.under_way);
        self.changed.extend(names);
    }

    /// A sync has returned: all that was done before it began is durable.
    pub(crate) fn synced(&mut self) {
        self.synced = self.names.keys().cloned().collect();
        self.changed.clear();
    }

    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.names.get(name).and_then(|ino| self.nodes.get(ino))
    }

    pub(crate) fn add(&mut self, name: &str, ino: Ino, is_dir: bool) {
        self.names.insert(name.to_owned(), ino);
        let links = if is_dir { 2 } else { 1 };
        self.nodes.insert(ino, Node { is_dir, content: Vec::new(), links });
    }

    pub(crate) fn link(&mut self, old: &str, new: &str) {
        let Some(ino) = self.names.get(old).copied() else { return };
        self.names.insert(new.to_owned(), ino);
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.links += 1;
        }
    }

    pub(crate) fn remove(&mut self, name: &str) {
        let Some(ino) = self.names.remove(name) else { return };
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.links -= 1;
            if node.is_dir || node.links == 0 {
                self.nodes.remove(&ino);
            }
        }
    }

    /// What rename(2) must say, and whether it changes anything.
    pub(crate) fn rename(&mut self, old: &str, new: &str) -> Result<(), Errno> {
        let Some(source) = self.node(old) else { return Err(Errno::ENOENT) };
        match self.node(new) {
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

    /// What a listing by others must show of a client that died: everything that was
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
