//! The inode record: 128 bytes, then the target of a symbolic link.
//!
//! ```text
//! offset  size  field
//!      0     1  version, 1
//!      1     1  flags
//!      2     1  stripe size, log2
//!      3     1  replicas; 0 and 1 for one alone
//!      4     2  stripe count
//!      6     2  first OST
//!      8     4  mode
//!     12     4  links
//!     16     4  owner
//!     20     4  group
//!     24     4  device
//!     28     2  OSTs that the file is laid out over, 0 for those of the MDS's own server
//!     30     2  number of the first object, 0 until the data of a file has moved
//!     32     8  size
//!     40     8  blocks of 512 bytes
//!     48    12  atime (seconds 8, nanoseconds 4)
//!     60    12  mtime
//!     72    12  ctime
//!     84     8  parent; of what is no directory, one that has a name of it, or 0
//!     92     4  of what is no directory: names in the parent, at least
//!     96     8  and another directory that has a name of it, or 0
//!    104    20  zero
//!    124     4  crc32c of all other bytes, the target included
//! ```

use glint_proto::{Attr, FileType, Ino, Layout, Timestamp};

/// Length of the fixed part.
pub(crate) const RECORD_BYTES: usize = 128;
const VERSION: u8 = 1;
const FLAG_SIZE_ON_OST: u8 = 1;
const FLAG_XATTR: u8 = 2;
const FLAG_ACL: u8 = 4;
const FLAG_DEFAULT_ACL: u8 = 8;
const FLAG_LAYOUT_SET: u8 = 16;
const FLAG_OBJECTS: u8 = 32;
const FLAG_MTIME_SET: u8 = 64;

/// Why a record was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecordError {
    /// Shorter than the fixed part.
    #[error("record is {0} bytes, shorter than {RECORD_BYTES}")]
    Short(usize),
    /// Written by another version.
    #[error("record has version {0}, expected {VERSION}")]
    Version(u8),
    /// Bytes changed.
    #[error("record checksum mismatch")]
    Checksum,
    /// A field has a value that no record has.
    #[error("record has an invalid {0}")]
    Field(&'static str),
}

/// An inode as it is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InodeRecord {
    /// Attributes that callers see.
    pub attr: Attr,
    /// Directory that holds this directory. Of other types one that has a name of it: where it was
    /// made, or last renamed to; 0 if none is known.
    pub parent: Ino,
    /// Of what is no directory: how many names `parent` has of it, at least, and another
    /// directory that has one, or 0. Without these nobody would know whether `parent` still has
    /// one when a name goes.
    names_in_parent: u32,
    other_parent: Ino,
    /// There is an access ACL.
    pub has_acl: bool,
    /// There is a default ACL.
    pub has_default_acl: bool,
    /// The layout was set on this directory, or inherited from one where it was.
    pub layout_set: bool,
    /// Objects may exist: it was once open for writing.
    pub has_objects: bool,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
}

fn put_time(bytes: &mut [u8], time: Timestamp) {
    bytes[..8].copy_from_slice(&time.secs.to_le_bytes());
    bytes[8..12].copy_from_slice(&time.nanos.to_le_bytes());
}

impl InodeRecord {
    /// A new inode with nothing set but its type and times.
    pub fn new(ino: Ino, mode: u32, now: Timestamp) -> InodeRecord {
        InodeRecord::of(Attr::new(ino, mode, now))
    }

    /// A new inode with these attributes.
    pub fn of(attr: Attr) -> InodeRecord {
        InodeRecord {
            attr,
            parent: Ino(0),
            names_in_parent: 1,
            other_parent: Ino(0),
            has_acl: false,
            has_default_acl: false,
            layout_set: false,
            has_objects: false,
            target: Vec::new(),
        }
    }

    /// Directories that are known to have a name of it.
    pub(crate) fn parents(&self) -> impl Iterator<Item = Ino> {
        [self.parent, self.other_parent].into_iter().filter(|directory| *directory != Ino(0))
    }

    /// The inode gets a name in a directory, beside those that it has.
    pub(crate) fn gains_name(&mut self, directory: Ino) {
        if self.attr.nlink == 0 || self.parent == Ino(0) {
            (self.parent, self.names_in_parent) = (directory, 1);
        } else if directory == self.parent {
            // A record of before this was counted has 0.
            self.names_in_parent = self.names_in_parent.max(1).saturating_add(1);
        } else {
            self.other_parent = directory;
        }
    }

    /// A directory has a name of it less.
    pub(crate) fn loses_name(&mut self, directory: Ino) {
        if directory == self.other_parent {
            // Perhaps it has more; nobody counts them.
            self.other_parent = Ino(0);
        }
        if directory == self.parent {
            self.names_in_parent = self.names_in_parent.saturating_sub(1);
            if self.names_in_parent == 0 {
                self.parent = std::mem::replace(&mut self.other_parent, Ino(0));
                self.names_in_parent = 1;
            }
        }
    }

    /// A name of it moves from one directory to another.
    pub(crate) fn moves(&mut self, from: Ino, to: Ino) {
        if self.attr.is_dir() {
            self.parent = to;
            return;
        }
        self.loses_name(from);
        if self.parent == to {
            self.names_in_parent = self.names_in_parent.saturating_add(1);
        } else {
            self.other_parent = std::mem::replace(&mut self.parent, to);
            self.names_in_parent = 1;
        }
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let a = &self.attr;
        let mut bytes = vec![0u8; RECORD_BYTES + self.target.len()];
        bytes[0] = VERSION;
        for (set, flag) in [
            (a.size_on_ost, FLAG_SIZE_ON_OST),
            (!a.has_no_xattrs, FLAG_XATTR),
            (self.has_acl, FLAG_ACL),
            (self.has_default_acl, FLAG_DEFAULT_ACL),
            (self.layout_set, FLAG_LAYOUT_SET),
            (self.has_objects || a.size_on_ost, FLAG_OBJECTS),
            (a.mtime_set, FLAG_MTIME_SET),
        ] {
            if set {
                bytes[1] |= flag;
            }
        }
        bytes[2] = a.layout.stripe_bytes_log2;
        // Zero before there were replicas.
        bytes[3] = if a.layout.replicas > 1 { a.layout.replicas } else { 0 };
        bytes[4..6].copy_from_slice(&a.layout.stripe_count.to_le_bytes());
        bytes[6..8].copy_from_slice(&a.layout.first_ost.to_le_bytes());
        bytes[28..30].copy_from_slice(&a.layout.osts.to_le_bytes());
        bytes[30..32].copy_from_slice(&a.layout.first_object.to_le_bytes());
        for (at, value) in [(8, a.mode), (12, a.nlink), (16, a.uid), (20, a.gid), (24, a.rdev)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[32..40].copy_from_slice(&a.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&a.blocks.to_le_bytes());
        put_time(&mut bytes[48..], a.atime);
        put_time(&mut bytes[60..], a.mtime);
        put_time(&mut bytes[72..], a.ctime);
        bytes[84..92].copy_from_slice(&self.parent.0.to_le_bytes());
        bytes[92..96].copy_from_slice(&self.names_in_parent.to_le_bytes());
        bytes[96..104].copy_from_slice(&self.other_parent.0.to_le_bytes());
        bytes[RECORD_BYTES..].copy_from_slice(&self.target);
        let crc = checksum(&bytes);
        bytes[124..128].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Inverse of [`InodeRecord::encode`], for bytes that may be damaged.
    pub fn decode(ino: Ino, bytes: &[u8]) -> Result<InodeRecord, RecordError> {
        if bytes.len() < RECORD_BYTES {
            return Err(RecordError::Short(bytes.len()));
        }
        if bytes[0] != VERSION {
            return Err(RecordError::Version(bytes[0]));
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let time_at = |at: usize| Timestamp { secs: u64_at(at) as i64, nanos: u32_at(at + 8) };
        if checksum(bytes) != u32_at(124) {
            return Err(RecordError::Checksum);
        }
        let flags = bytes[1];
        let attr = Attr {
            ino,
            mode: u32_at(8),
            nlink: u32_at(12),
            uid: u32_at(16),
            gid: u32_at(20),
            rdev: u32_at(24),
            size: u64_at(32),
            blocks: u64_at(40),
            atime: time_at(48),
            mtime: time_at(60),
            ctime: time_at(72),
            size_on_ost: flags & FLAG_SIZE_ON_OST != 0,
            has_no_xattrs: flags & FLAG_XATTR == 0,
            mtime_set: flags & FLAG_MTIME_SET != 0,
            layout: Layout {
                stripe_bytes_log2: bytes[2],
                stripe_count: u16_at(4),
                first_ost: u16_at(6),
                osts: u16_at(28),
                replicas: bytes[3].max(1),
                first_object: u16_at(30),
            },
        };
        if FileType::from_mode(attr.mode).is_none() {
            return Err(RecordError::Field("type"));
        }
        if !attr.layout.is_valid() {
            return Err(RecordError::Field("layout"));
        }
        if [attr.atime, attr.mtime, attr.ctime].iter().any(|t| t.nanos >= 1_000_000_000) {
            return Err(RecordError::Field("time"));
        }
        Ok(InodeRecord {
            attr,
            parent: Ino(u64_at(84)),
            names_in_parent: u32_at(92),
            other_parent: Ino(u64_at(96)),
            has_acl: flags & FLAG_ACL != 0,
            has_default_acl: flags & FLAG_DEFAULT_ACL != 0,
            layout_set: flags & FLAG_LAYOUT_SET != 0,
            has_objects: flags & (FLAG_OBJECTS | FLAG_SIZE_ON_OST) != 0,
            target: bytes[RECORD_BYTES..].to_vec(),
        })
    }
}

/// Sum over everything but itself.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&bytes[..124]), &bytes[RECORD_BYTES..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(mode in 0u32..0o10000, size: u64, secs: i64, nanos in 0u32..1_000_000_000,
                      target in proptest::collection::vec(any::<u8>(), 0..64), flags in 0u8..16) {
            let mut record = InodeRecord::new(
                Ino(9), libc_mode(mode), Timestamp { secs, nanos });
            record.attr.size = size;
            record.attr.size_on_ost = flags & 1 != 0;
            record.attr.has_no_xattrs = flags & 2 == 0;
            record.has_acl = flags & 4 != 0;
            record.attr.mtime_set = flags & 8 != 0;
            record.has_objects = record.attr.size_on_ost;
            record.target = target;
            let bytes = record.encode();
            prop_assert_eq!(InodeRecord::decode(Ino(9), &bytes), Ok(record));
        }

        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..RECORD_BYTES * 8) {
            let mut bytes = InodeRecord::new(Ino(9), libc_mode(0o644), Timestamp::now()).encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(InodeRecord::decode(Ino(9), &bytes).is_err());
        }

        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            crate::fuzz::record(&bytes);
        }
    }

    fn libc_mode(permissions: u32) -> u32 {
        FileType::Regular.mode_bits() | permissions
    }
}
