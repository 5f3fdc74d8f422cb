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
        assert!(Acl::parse(&acl.encode()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            super::record(&bytes);
            super::keys(&bytes);
            super::reply(&bytes);
            super::acl(&bytes);
        }
    }
}
