//! A file as the tests of an expression see it.

use glint_proto::{Attr, Errno, FileType, FsResult, Ino};

/// A file that was come to, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Path from the starting point as it was said.
    pub(super) path: Vec<u8>,
    /// How many of its first bytes are the starting point.
    pub(super) start: usize,
    /// Names below the starting point.
    pub(super) depth: usize,
    pub(super) ino: Ino,
    /// The directory that has its last name; `None` of the root of a file system.
    pub(super) parent: Option<Ino>,
    /// Type as its directory has it; `None` if only the attributes can say it.
    pub(super) kind: Option<FileType>,
    /// Attributes, or why they are not to be had: a name may be read in a directory that may not be
    /// searched.
    pub(super) attr: FsResult<Attr>,
    /// Facts that cost a request, once they were asked for.
    pub(super) facts: Facts,
}

/// Facts that are asked for only if an expression needs them.
#[derive(Clone, Default, Debug)]
pub(super) struct Facts {
    /// Whether a directory has no names.
    pub(super) is_empty: Option<bool>,
    /// Target of a symbolic link.
    pub(super) target: Option<Vec<u8>>,
    /// Which patterns of the expression the name of an extended attribute matches.
    pub(super) xattrs: Option<Vec<bool>>,
    /// OSTs with objects of a file whose layout alone does not say it.
    pub(super) osts: Option<Vec<u16>>,
    /// One that the expression needs is not to be had, and that was told.
    pub(super) refused: bool,
    /// Actions that were taken, by their numbers, and how they ended.
    pub(super) taken: Vec<(usize, bool)>,
    /// How much of what is printed for the file was printed before them.
    pub(super) printed: usize,
}

/// A fact that has to be known first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Missing {
    IsEmpty,
    Target,
    Xattrs,
    Osts,
    /// They were asked for, and are not to be had.
    Attributes,
    /// Whether its owner or its group has a name: looking that up has failed.
    Name(Errno),
    /// How the action with this number ends.
    Action(usize),
}

impl Entry {
    pub(super) fn attr(&self) -> Result<&Attr, Missing> {
        self.attr.as_ref().map_err(|_| Missing::Attributes)
    }

    /// The inode. find(1) takes nothing from a name whose attributes it needs and does not get.
    pub(super) fn ino(&self) -> Result<Ino, Missing> {
        self.kind().map(|_| self.ino)
    }

    /// The type of the file; none if it is one that nobody knows.
    pub(super) fn kind(&self) -> Result<Option<FileType>, Missing> {
        match (&self.attr, self.kind) {
            (Ok(attr), _) => Ok(FileType::from_mode(attr.mode)),
            (Err(_), None) => Err(Missing::Attributes),
            (Err(_), kind) => Ok(kind),
        }
    }

    /// Path without slashes at its end, but for the root.
    fn trimmed(&self) -> &[u8] {
        let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
        &self.path[..end.min(self.path.len())]
    }

    /// The last name of the path.
    pub(super) fn name(&self) -> &[u8] {
        let path = self.trimmed();
        match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) if path.len() > 1 => &path[slash + 1..],
            _ => path,
        }
    }

    /// The last name as -printf shows it: with a slash that was said after it.
    pub(super) fn shown_name(&self) -> Vec<u8> {
        let mut name = self.name().to_vec();
        if self.path.ends_with(b"/") && name != b"/" {
            name.push(b'/');
        }
        name
    }

    /// Whether the name of an extended attribute matches the pattern with this number.
    pub(super) fn has_xattr(&self, pattern: usize) -> Result<bool, Missing> {
        if self.attr()?.has_no_xattrs {
            return Ok(false);
        }
        let matched = self.facts.xattrs.as_ref().ok_or(Missing::Xattrs)?;
        Ok(matched.get(pattern) == Some(&true))
    }

    /// How an action has ended.
    pub(super) fn taken(&self, action: usize) -> Result<bool, Missing> {
        let taken = self.facts.taken.iter().find(|(number, _)| *number == action);
        taken.map(|(_, ended_well)| *ended_well).ok_or(Missing::Action(action))
    }

    /// The path before the last name.
    pub(super) fn parent(&self) -> &[u8] {
        let path = self.trimmed();
        path.iter().rposition(|byte| *byte == b'/').map_or(b".", |slash| &path[..slash])
    }

    /// The path below the starting point.
    pub(super) fn below(&self) -> &[u8] {
        let rest = &self.path[self.start..];
        rest.strip_prefix(b"/").unwrap_or(rest)
    }
}

/// The path of a name in a directory.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use glint_proto::{Ino, Layout, Timestamp};

    /// A file of root with 1000 bytes.
    pub(in super::super) fn entry(path: &[u8], mode: u32) -> Entry {
        let time = |secs| Timestamp { secs, nanos: 5 };
        let attr = Attr {
            ino: Ino(77),
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 1000,
            blocks: 3,
            atime: time(1_000_000),
            mtime: time(2_000_000),
            ctime: time(3_000_000),
            size_on_ost: false,
            has_no_xattrs: true,
            layout: Layout::default(),
        };
        let (path, facts, parent) = (path.to_vec(), Facts::default(), Some(Ino(1)));
        Entry { path, start: 1, depth: 1, ino: attr.ino, parent, kind: None, attr: Ok(attr), facts }
    }

    #[test]
    fn names_are_taken_from_paths_as_find_does() {
        for (path, name, parent) in [
            (&b"a/b"[..], &b"b"[..], &b"a"[..]),
            (b"a", b"a", b"."),
            (b"a//", b"a", b"."),
            (b"/", b"/", b""),
            (b"/x", b"x", b""),
        ] {
            let entry = entry(path, libc::S_IFREG);
            assert_eq!((entry.name(), entry.parent()), (name, parent), "{path:?}");
        }
        assert_eq!((join(b"a", b"b"), join(b"a/", b"b")), (b"a/b".to_vec(), b"a/b".to_vec()));
    }
}
