//! What is kept of a listing for the call that asks for it: the order of the entries and their
//! cookies, which is all that the cache does not have.

use crate::cache::attrs::Tick;
use glint_proto::limits::{DIR_ENTRY_PLUS_BYTES, dir_page_bytes};
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
pub(super) struct KeptEntry {
    ino: Ino,
    pub(super) cookie: u64,
    dirent_type: u8,
    name: Box<[u8]>,
}

impl KeptEntry {
    pub(super) fn of(entry: &DirEntry) -> KeptEntry {
        let DirEntry { ino, cookie, dirent_type, ref name, attr: _ } = *entry;
        KeptEntry { ino, cookie, dirent_type, name: name.as_slice().into() }
    }

    /// The entry, as a server tells of it without attributes.
    pub(super) fn to_tell(&self) -> DirEntry {
        let KeptEntry { ino, cookie, dirent_type, ref name } = *self;
        DirEntry { ino, cookie, dirent_type, name: name.to_vec(), attr: None }
    }
}

/// How many of the entries of a directory are told at once where there is room for so many bytes.
pub(super) fn page_len(entries: &[KeptEntry], bytes_max: u32) -> usize {
    let room = dir_page_bytes(bytes_max);
    let (mut len, mut bytes) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        bytes += DIR_ENTRY_PLUS_BYTES + entry.name.len();
        // The next page begins after a cookie, which names may share.
        let same_cookie = at > 0 && entries[at - 1].cookie == entry.cookie;
        if bytes > room && !same_cookie {
            break;
        }
        len = at + 1;
    }
    len
}

/// All entries of a directory, or the first ones, without attributes.
pub(super) struct KeptListing {
    entries: Box<[KeptEntry]>,
    pub(super) part: ListedPart,
    /// It was asked for because of a walk; else because names were looked up.
    pub(super) is_of_walk: bool,
}

impl KeptListing {
    pub(super) fn new(entries: &[DirEntry], part: ListedPart, is_of_walk: bool) -> KeptListing {
        KeptListing { entries: entries.iter().map(KeptEntry::of).collect(), part, is_of_walk }
    }

    /// How many entries it has.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// How many of them are told at once where there is room for so many bytes.
    pub(super) fn page_len(&self, bytes_max: u32) -> usize {
        page_len(&self.entries, bytes_max)
    }

    /// The entries, as a server tells of them without attributes.
    pub(super) fn to_tell(&self) -> Vec<DirEntry> {
        self.entries.iter().map(KeptEntry::to_tell).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_as_many_entries_as_there_is_room_for() {
        let entry = |number: u64| KeptEntry {
            ino: Ino(number),
            cookie: number,
            dirent_type: 0,
            name: number.to_string().into_bytes().into(),
        };
        let mut all: Vec<KeptEntry> = (0..100).map(entry).collect();
        assert_eq!((page_len(&all, 0), page_len(&all, u32::MAX)), (31, 100));
        all.iter_mut().skip(30).take(4).for_each(|entry| entry.cookie = 31);
        assert_eq!((page_len(&all, 0), page_len(&[], 0)), (34, 0), "one cookie is on one page");
    }
}
