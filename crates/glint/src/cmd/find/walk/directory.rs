//! Directories whose contents are not done, as a tree of names.

use super::super::entry::{Entry, Facts};
use crate::cmd::tree::Class;
use glint_proto::{Attr, FileType, Ino};
use std::cell::Cell;
use std::rc::Rc;

/// A directory whose contents are not done.
pub(super) struct Directory {
    /// Its name, or a starting point as it was said.
    name: Box<[u8]>,
    parent: Option<Rc<Directory>>,
    pub(super) depth: usize,
    pub(super) ino: Ino,
    /// The directory that has its name.
    above: Option<Ino>,
    pub(super) class: Option<Class>,
    /// Kept for a directory that comes after its contents.
    attr: Option<Box<Attr>>,
    /// Kept with them: which patterns its extended attributes match.
    xattrs: Option<Box<[bool]>>,
    /// Its listing, and the directories in it that are not done.
    pending: Cell<usize>,
}

impl Directory {
    /// A directory to be listed; `None` if its attributes are not known.
    pub(super) fn new(
        entry: Entry,
        parent: Option<&Rc<Directory>>,
        contents_first: bool,
    ) -> Option<Directory> {
        let Entry { path, start, depth, ino, parent: above, attr, facts, .. } = entry;
        let attr = attr.ok()?;
        if let Some(parent) = parent {
            parent.pending.set(parent.pending.get() + 1);
        }
        let name = match path[start..].iter().rposition(|byte| *byte == b'/') {
            Some(slash) => path[start + slash + 1..].into(),
            // Below a starting point that ends with a slash.
            None if depth > 0 => path[start..].into(),
            None => path.into(),
        };
        Some(Directory {
            name,
            parent: parent.cloned(),
            depth,
            ino,
            above,
            class: Class::of(&attr),
            attr: contents_first.then(|| Box::new(attr)),
            xattrs: facts.xattrs.filter(|_| contents_first).map(Vec::into_boxed_slice),
            pending: Cell::new(1),
        })
    }

    pub(super) fn parent(&self) -> Option<Rc<Directory>> {
        self.parent.clone()
    }

    /// Its path, and how many of its first bytes are the starting point.
    pub(super) fn path(&self) -> (Vec<u8>, usize) {
        let mut chain = vec![self];
        let mut len = self.name.len();
        while let Some(parent) = chain.last().and_then(|last| last.parent.as_deref()) {
            len += parent.name.len() + 1;
            chain.push(parent);
        }
        let mut path = Vec::with_capacity(len);
        let mut start = None;
        for directory in chain.into_iter().rev() {
            if start.is_some() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(&directory.name);
            start = start.or(Some(path.len()));
        }
        (path, start.unwrap_or_default())
    }

    /// Notes that its listing, or a directory in it, is done; returns whether all is.
    pub(super) fn is_done(&self) -> bool {
        self.pending.set(self.pending.get() - 1);
        self.pending.get() == 0
    }

    /// What the expression looks at, if it comes after its contents.
    pub(super) fn entry(&self) -> Option<Entry> {
        let attr = Ok(self.attr.as_deref()?.clone());
        let ((path, start), kind) = (self.path(), Some(FileType::Directory));
        let xattrs = self.xattrs.as_deref().map(<[bool]>::to_vec);
        let facts = Facts { xattrs, ..Facts::default() };
        let (depth, ino, parent) = (self.depth, self.ino, self.above);
        Some(Entry { path, start, depth, ino, parent, kind, attr, facts })
    }

    /// Bytes of names that it keeps for itself alone.
    #[cfg(test)]
    pub(super) fn own_bytes(&self) -> usize {
        self.name.len()
    }
}

impl Drop for Directory {
    /// Drops the directories that it is in one by one: each within the next would need a stack as
    /// deep as the tree.
    fn drop(&mut self) {
        let mut next = self.parent.take();
        while let Some(mut directory) = next.and_then(Rc::into_inner) {
            next = directory.parent.take();
        }
    }
}
