//! What is kept of a listing for the call that begins to list its directory: the order of the entries
//! and their cookies, which is all that the cache does not have.

use glint_proto::{DirEntry, Ino};

/// An entry, in little memory: 64 bytes with a name of usual length.
struct KeptEntry {
    ino: Ino,
    cookie: u64,
    dirent_type: u8,
    name: Box<[u8]>,
}

/// All entries of a directory, without attributes.
pub(super) struct KeptListing {
    entries: Box<[KeptEntry]>,
    /// It was asked for because of a walk; else because names were looked up.
    pub(super) is_of_walk: bool,
}

impl KeptListing {
    pub(super) fn new(entries: Vec<DirEntry>, is_of_walk: bool) -> KeptListing {
        let bare = |entry: DirEntry| {
            let DirEntry { ino, cookie, dirent_type, name, attr: _ } = entry;
            KeptEntry { ino, cookie, dirent_type, name: name.into_boxed_slice() }
        };
        KeptListing { entries: entries.into_iter().map(bare).collect(), is_of_walk }
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
