//! Directories that the caller may search, as the server says.

use super::Source;
use glint_proto::{Attr, Errno, Ino};
use std::cell::RefCell;
use std::collections::HashMap;

/// Owner, group and mode: without an ACL they decide who may search a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cmd) struct Class(u32, u32, u32);

impl Class {
    /// Returns the class of a directory; `None` if it may have an ACL.
    pub(in crate::cmd) fn of(attr: &Attr) -> Option<Class> {
        attr.has_no_xattrs.then_some(Class(attr.uid, attr.gid, attr.mode))
    }
}

/// Classes of directories that the server was asked about.
#[derive(Default)]
pub(in crate::cmd) struct Searched(RefCell<HashMap<Class, bool>>);

impl Searched {
    /// Finds out whether a directory, which has this name, may be searched. The server decides it:
    /// it knows ACLs, and as whom it sees the caller. It is asked once for all that have the same
    /// owner and mode.
    pub(in crate::cmd) async fn may_search(
        &self,
        source: &impl Source,
        directory: Ino,
        class: Option<Class>,
        name: &[u8],
    ) -> bool {
        let known = class.and_then(|class| self.0.borrow().get(&class).copied());
        if let Some(may) = known {
            return may;
        }
        let found = source.lookup(directory, name).await.map(|_| ());
        let may = found != Err(Errno::EACCES);
        // If the server was away, nothing was found out.
        if let (Some(class), Ok(()) | Err(Errno::EACCES)) = (class, found) {
            self.0.borrow_mut().insert(class, may);
        }
        may
    }
}
