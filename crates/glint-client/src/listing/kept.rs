//! What is kept of a listing for the call that begins to list its directory: the order of the entries
//! and their cookies, which is all that the cache does not have.

use crate::cache::attrs::Tick;
use glint_proto::{DirEntry, Ino};

/// Which names of its directory a listing has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ListedPart {
    /// All of them.
    All,
    /// Those of one page: the directory had them then, and no other ones among them.
    Page(Tick),
}

/// An entry, in little memory: 64 bytes with a name of usual length.
struct KeptEntry {
    ino: Ino,
    cookie: u64,
    dirent_type: u8,
    name: Box<[u8]>,
}

/// All entries of a directory, or the first ones, without attributes.
pub(super) struct KeptListing {
    entries: Box<[KeptEntry]>,
    pub(super) part: ListedPart,
    /// It was asked for because of a walk; else because names were looked up.
    pub(super) is_of_walk: bool,
}

impl KeptListing {
    pub(super) fn new(entries: Vec<DirEntry>, part: ListedPart, is_of_walk: bool) -> KeptListing {
        let bare = |entry: DirEntry| {
            let DirEntry { ino, cookie, dirent_type, name, attr: _ } = entry;
            KeptEntry { ino, cookie, dirent_type, name: name.into_boxed_slice() }
        };
        KeptListing { entries: entries.into_iter().map(bare).collect(), part, is_of_walk }
    }

    /// How many entries it has.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The entries, as a server tells of them without attributes.
    pub(super) fn into_entries(self) -> Vec<DirEntry> {
        let told = |entry: KeptEntry| {
            let KeptEntry { ino, cookie, dirent_type, name } = entry;
            DirEntry { ino, cookie, dirent_type, name: name.into_vec(), attr: None }
        };
        self.entries.into_vec().into_iter().map(told).collect()
    }
}
