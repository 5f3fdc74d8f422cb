//! Entrances for the fuzz targets: every decoder of bytes that come from a disk or a
//! client. What decodes must encode to the same again.

use crate::session::sessions::decode_reply;
use crate::store::keys::{self, Orphan};
use crate::store::record::{self, InodeRecord, RECORD_BYTES};
use glint_proto::Ino;
use glint_proto::posix::acl::Acl;

/// An inode record, with the inode's number in its key; its checksum is put right, so
/// that the fuzzer reaches what is behind it.
pub fn record(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= RECORD_BYTES {
        let sum = record::checksum(&bytes);
        bytes[RECORD_BYTES - 4..RECORD_BYTES].copy_from_slice(&sum.to_le_bytes());
    }
    let bytes = &bytes;
    if let Ok(record) = InodeRecord::decode(Ino(1), bytes) {
        assert_eq!(InodeRecord::decode(Ino(1), &record.encode()), Ok(record));
    }
}

/// Keys and values of entries and orphans, and counters.
pub fn keys(bytes: &[u8]) {
    let _ = keys::parse_entry(bytes);
    let _ = keys::parse_u64(bytes);
    if let Some((ino, kind)) = keys::parse_entry_value(bytes) {
        assert_eq!(keys::parse_entry_value(&keys::entry_value(ino, kind)), Some((ino, kind)));
    }
    if let Some(orphan) = Orphan::parse(bytes) {
        assert!(Orphan::parse(&orphan.value()).is_some());
    }
}

/// A reply record.
pub fn reply(bytes: &[u8]) {
    let _ = decode_reply(bytes);
}

/// A POSIX ACL as a user sets it.
pub fn acl(bytes: &[u8]) {
    if let Ok(acl) = Acl::parse(bytes) {
        assert_eq!(Acl::parse(&acl.encode()).as_ref(), Ok(&acl));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::sessions::encode_reply;
    use glint_proto::{FileType, MdsReply};
    use proptest::prelude::*;
    use proptest::sample::Index;

    /// Tags of an ACL, permissions and ids that mean something, and others.
    fn entry() -> impl Strategy<Value = (u16, u16, u32)> {
        let tag = prop_oneof![9 => (0u32..6).prop_map(|bit| 1u16 << bit), 1 => any::<u16>()];
        let id = prop_oneof![Just(u32::MAX), 0u32..3, any::<u32>()];
        (tag, 0u16..9, id)
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            record(&bytes);
            keys(&bytes);
            reply(&bytes);
            acl(&bytes);
        }

        #[test]
        fn lists_that_nearly_are_acls_are_refused_or_kept(
            rest in proptest::collection::vec(entry(), 0..5),
            whole: bool,
        ) {
            let mut entries = rest;
            if whole {
                entries.extend([(1, 7, 0), (4, 5, 0), (16, 7, 0), (32, 5, 0)]);
            }
            let mut bytes = 2u32.to_le_bytes().to_vec();
            for (tag, permissions, id) in entries {
                bytes.extend(tag.to_le_bytes());
                bytes.extend(permissions.to_le_bytes());
                bytes.extend(id.to_le_bytes());
            }
            acl(&bytes);
            if let Ok(acl) = Acl::parse(&bytes) {
                prop_assert_eq!(Acl::parse(&acl.encode()).unwrap().encode(), acl.encode());
            }
        }

        #[test]
        fn orphans_of_any_layout_decode_to_the_same(
            kind in 0u8..4,
            rest in proptest::collection::vec(any::<u8>(), 0..24),
        ) {
            keys(&[&[kind], &rest[..]].concat());
        }

        #[test]
        fn keys_are_read_again(ino: u64, cookie: u64, name in "[a-z]{0,40}", kind: Index) {
            let kinds = [FileType::Directory, FileType::Regular, FileType::Symlink];
            let kind = *kind.get(&kinds);
            let key = keys::entry(Ino(ino), name.as_bytes(), cookie);
            let (parent, _, read) = keys::parse_entry(&key).unwrap();
            prop_assert_eq!((parent, read), (Ino(ino), name.as_bytes()));
            let value = keys::entry_value(Ino(ino), kind);
            prop_assert_eq!(keys::parse_entry_value(&value), Some((Ino(ino), kind)));
        }

        #[test]
        fn reply_records_that_nearly_are_some_never_panic(
            xid: u64, digest: u32, ino: u64, at: Index, byte: u8, cut: Index,
        ) {
            let mut value = encode_reply(xid, digest, &MdsReply::Removed { ino: Ino(ino) }).unwrap();
            let read = decode_reply(&value).unwrap();
            prop_assert_eq!((read.xid, read.digest), (xid, digest));
            reply(&value[..cut.index(value.len())]);
            let at = at.index(value.len());
            value[at] = byte;
            reply(&value);
        }
    }
}
