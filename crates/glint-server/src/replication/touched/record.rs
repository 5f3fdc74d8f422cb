//! Record of a log of changed objects; docs/format.md draws it.

use super::Key;
use glint_proto::chain::Touched;
use glint_proto::{Ino, ObjectId};

pub(super) const RECORD_BYTES: usize = 36;

/// Returns the record of an extent of an object.
pub(super) fn encode(key: Key, touched: Touched) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    let parts: [&[u8]; 6] = [
        &key.0.to_le_bytes(),
        &key.1.to_le_bytes(),
        &u32::from(touched.object.stripe).to_le_bytes(),
        &touched.object.ino.0.to_le_bytes(),
        &touched.start.to_le_bytes(),
        &touched.end.to_le_bytes(),
    ];
    record[..RECORD_BYTES - 4].copy_from_slice(&parts.concat());
    let crc = crc32c::crc32c(&record[..RECORD_BYTES - 4]);
    record[RECORD_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    record
}

/// Inverse of [`encode`]; `None` if the record is damaged.
pub(super) fn decode(record: &[u8]) -> Option<(Key, Touched)> {
    let (content, crc) = record.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*crc) {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(content.get(at..at + 2)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(content.get(at..at + 8)?.try_into().ok()?));
    let object = ObjectId { ino: Ino(u64_at(8)?), stripe: u16_at(4)? };
    Some(((u16_at(0)?, u16_at(2)?), Touched { object, start: u64_at(16)?, end: u64_at(24)? }))
}
