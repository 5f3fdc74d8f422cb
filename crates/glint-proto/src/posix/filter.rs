//! What a scan wants of the entries of a directory: find(1) where the server evaluates what needs
//! nothing but the entry and its inode.

use crate::{Attr, FileType, Timestamp};
use serde::{Deserialize, Serialize};

/// Entries that a scan wants. Others may come all the same: whoever asks evaluates all of them anew.
/// Directories are always wanted, since others lie below them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScanFilter {
    /// Of types: 1 shifted by each [`FileType::dirent_type`].
    pub types: u16,
    /// Names begin with this.
    pub name_begin: Vec<u8>,
    /// Names end with this.
    pub name_end: Vec<u8>,
    /// Sizes in bytes, from and to.
    pub size: (u64, u64),
    /// Times of the last change of data, from and to.
    pub mtime: (Timestamp, Timestamp),
    /// Times of the last change of the inode, from and to.
    pub ctime: (Timestamp, Timestamp),
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

const ALL_TIMES: (Timestamp, Timestamp) =
    (Timestamp { secs: i64::MIN, nanos: 0 }, Timestamp { secs: i64::MAX, nanos: 999_999_999 });

impl Default for ScanFilter {
    /// All entries.
    fn default() -> ScanFilter {
        ScanFilter {
            types: u16::MAX,
            name_begin: Vec::new(),
            name_end: Vec::new(),
            size: (0, u64::MAX),
            mtime: ALL_TIMES,
            ctime: ALL_TIMES,
            uid: None,
            gid: None,
        }
    }
}

fn contains<T: PartialOrd>((from, to): &(T, T), value: &T) -> bool {
    from <= value && value <= to
}

fn narrow<T: Ord + Copy>(range: &mut (T, T), (from, to): (T, T)) {
    *range = (range.0.max(from), range.1.min(to));
}

impl ScanFilter {
    /// Wants no other sizes than these.
    pub fn narrow_size(&mut self, sizes: (u64, u64)) {
        narrow(&mut self.size, sizes);
    }

    /// Wants no other times of the last change of data than these.
    pub fn narrow_mtime(&mut self, times: (Timestamp, Timestamp)) {
        narrow(&mut self.mtime, times);
    }

    /// Wants no other times of the last change of the inode than these.
    pub fn narrow_ctime(&mut self, times: (Timestamp, Timestamp)) {
        narrow(&mut self.ctime, times);
    }

    /// Wants no other types than these.
    pub fn narrow_types(&mut self, kinds: &[FileType]) {
        self.types &= kinds.iter().fold(0, |types, kind| types | bit(kind.dirent_type()));
    }

    /// Whether an entry of this name and type is wanted, as far as they say.
    pub fn wants_name(&self, name: &[u8], dirent_type: u8) -> bool {
        is_always_wanted(dirent_type)
            || self.types & bit(dirent_type) != 0
                && name.starts_with(&self.name_begin)
                && name.ends_with(&self.name_end)
    }

    /// Whether an entry with these attributes is wanted, as far as they say.
    pub fn wants(&self, attr: &Attr) -> bool {
        attr.is_dir()
            || contains(&self.size, &attr.size)
                && contains(&self.mtime, &attr.mtime)
                && contains(&self.ctime, &attr.ctime)
                && self.uid.is_none_or(|uid| uid == attr.uid)
                && self.gid.is_none_or(|gid| gid == attr.gid)
    }
}

fn bit(dirent_type: u8) -> u16 {
    1_u16.checked_shl(dirent_type.into()).unwrap_or_default()
}

/// A directory, or what nobody knows.
fn is_always_wanted(dirent_type: u8) -> bool {
    matches!(FileType::from_dirent_type(dirent_type), None | Some(FileType::Directory))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ino;

    #[test]
    fn a_filter_leaves_out_what_it_says_and_no_directory() {
        let time = |secs| Timestamp { secs, nanos: 0 };
        let file = Attr { size: 10, uid: 3, ..Attr::new(Ino(7), 0o100_644, time(100)) };
        let directory = Attr::new(Ino(8), 0o040_755, time(100));
        let all = ScanFilter::default();
        assert!(all.wants(&file) && all.wants_name(b"a.c", 8) && all.wants_name(b"a.c", 0));
        let changed: [fn(&mut ScanFilter); 5] = [
            |filter| filter.narrow_size((11, u64::MAX)),
            |filter| filter.narrow_mtime((Timestamp { secs: 101, nanos: 0 }, ALL_TIMES.1)),
            |filter| filter.narrow_ctime((ALL_TIMES.0, Timestamp { secs: 99, nanos: 0 })),
            |filter| filter.uid = Some(4),
            |filter| filter.gid = Some(4),
        ];
        for change in changed {
            let mut filter = ScanFilter::default();
            change(&mut filter);
            assert!(!filter.wants(&file) && filter.wants(&directory), "{filter:?}");
        }
        let mut links = ScanFilter::default();
        links.narrow_types(&[FileType::Symlink]);
        let mut sources = ScanFilter::default();
        (sources.name_begin, sources.name_end) = (b"a".to_vec(), b".c".to_vec());
        for (filter, name, dirent_type, is_wanted) in [
            (&links, &b"a.c"[..], 8, false),
            (&links, b"a.c", 10, true),
            (&links, b"d", 4, true),
            (&links, b"?", 0, true),
            (&sources, b"a.c", 8, true),
            (&sources, b"b.c", 8, false),
            (&sources, b"a.h", 8, false),
            (&sources, b"b", 4, true),
        ] {
            assert_eq!(filter.wants_name(name, dirent_type), is_wanted, "{name:?}");
        }
    }
}
