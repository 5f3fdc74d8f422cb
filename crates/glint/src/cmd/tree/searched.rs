//! Directories that the caller may search, as the server says.

use super::Source;
use glint_proto::{Attr, Errno, Ino};
use std::cell::RefCell;
use std::collections::HashSet;

/// Owner, group and mode: without an ACL they decide who may search a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::cmd) struct Class(u32, u32, u32);

impl Class {
    /// Returns the class of a directory; `None` if it may have an ACL.
    pub(in crate::cmd) fn of(attr: &Attr) -> Option<Class> {
        attr.has_no_xattrs.then_some(Class(attr.uid, attr.gid, attr.mode))
    }
}

/// Classes of directories that may be searched.
#[derive(Default)]
pub(in crate::cmd) struct Searched(RefCell<HashSet<Class>>);

impl Searched {
    /// Finds out whether a directory, which has this name, may be searched. The server decides it:
    /// it knows ACLs, and as whom it sees the caller. It permits all that have the same owner and mode
    /// with one answer. A refusal is of one directory: it may have been moved out of the part of the
    /// tree that a certificate allows.
    pub(in crate::cmd) async fn may_search(
        &self,
        source: &impl Source,
        directory: Ino,
        class: Option<Class>,
        name: &[u8],
    ) -> bool {
        if class.is_some_and(|class| self.0.borrow().contains(&class)) {
            return true;
        }
        let found = source.lookup(directory, name).await.map(|_| ());
        // If the server was away, nothing was found out.
        if let (Some(class), Ok(())) = (class, found) {
            self.0.borrow_mut().insert(class);
        }
        found != Err(Errno::EACCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_client::ScannedPage;
    use glint_proto::{FsResult, Layout, Timestamp};
    use std::cell::Cell;

    /// Directories of which one was moved out of sight; counts how often it is asked.
    #[derive(Default)]
    struct MovedOut(Cell<usize>);

    const MOVED: Ino = Ino(5);

    fn attr(ino: Ino) -> Attr {
        Attr { nlink: 2, ..Attr::new(ino, libc::S_IFDIR | 0o755, Timestamp::default()) }
    }

    impl Source for MovedOut {
        async fn scan(&self, _: &[(Ino, u64)]) -> FsResult<Vec<FsResult<ScannedPage>>> {
            Err(Errno::EIO)
        }

        async fn lookup(&self, directory: Ino, _: &[u8]) -> FsResult<Attr> {
            self.0.set(self.0.get() + 1);
            if directory == MOVED { Err(Errno::EACCES) } else { Ok(attr(Ino(77))) }
        }

        async fn target(&self, _: Ino) -> FsResult<Vec<u8>> {
            Err(Errno::EINVAL)
        }

        async fn follow(&self, _: Ino, _: &[u8]) -> FsResult<Attr> {
            Err(Errno::EINVAL)
        }

        async fn has_acl(&self, _: &Attr) -> FsResult<bool> {
            Ok(false)
        }

        async fn xattr_names(&self, _: Ino) -> FsResult<Vec<u8>> {
            Err(Errno::EIO)
        }

        async fn osts_of(&self, _: &Layout) -> FsResult<Vec<u16>> {
            Err(Errno::EIO)
        }

        async fn remove(&self, _: Ino, _: &[u8], _: bool) -> FsResult<()> {
            Err(Errno::EROFS)
        }
    }

    #[test]
    fn a_refusal_is_of_one_directory_and_a_permission_of_its_class() {
        let (source, searched) = (MovedOut::default(), Searched::default());
        let may = |ino| {
            let class = Class::of(&attr(ino));
            futures_lite::future::block_on(searched.may_search(&source, ino, class, b"x"))
        };
        assert!(!may(MOVED) && may(Ino(6)) && may(Ino(7)) && may(Ino(8)));
        assert_eq!(source.0.get(), 2);
    }
}
