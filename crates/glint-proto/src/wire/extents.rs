//! Extents of one object in one bulk: a table, and the data of all behind it.
//!
//! ```text
//! for each extent, in the order of their offsets:
//!     0     8  offset in the object
//!     8     4  length
//! then the data of the first, of the second, ...
//! ```
//! All little-endian.

mod changed;

use crate::limits::{EXTENTS_PER_WRITE_MAX, FILE_BYTES_MAX};
use crate::{Errno, FsResult};
pub use changed::ChangedRanges;

const ENTRY_BYTES: usize = 12;

/// Length of a bulk with so many extents and bytes of data.
pub const fn extents_bulk_bytes(count: usize, bytes: usize) -> usize {
    count * ENTRY_BYTES + bytes
}

/// Puts extents into a bulk that is empty.
pub fn put_extents<'a>(extents: impl Iterator<Item = (u64, &'a [u8])> + Clone, bulk: &mut Vec<u8>) {
    for (offset, data) in extents.clone() {
        bulk.extend_from_slice(&offset.to_le_bytes());
        bulk.extend_from_slice(&(data.len() as u32).to_le_bytes());
    }
    for (_, data) in extents {
        bulk.extend_from_slice(data);
    }
}

/// The extents of a bulk.
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    table: std::slice::ChunksExact<'a, u8>,
    data: &'a [u8],
}

impl<'a> Extents<'a> {
    /// Extents of a bulk that has `count`. They are in order, apart from each other, within the
    /// largest file, and fill the bulk; EPROTO otherwise.
    pub fn parse(bulk: &'a [u8], count: u32) -> FsResult<Extents<'a>> {
        let count = count as usize;
        if count == 0 || count > EXTENTS_PER_WRITE_MAX {
            return Err(Errno::EPROTO);
        }
        let (table, data) = bulk.split_at_checked(count * ENTRY_BYTES).ok_or(Errno::EPROTO)?;
        let table = table.chunks_exact(ENTRY_BYTES);
        let (mut end, mut bytes) = (0, 0);
        for (offset, len) in table.clone().map(entry) {
            if offset < end || len == 0 {
                return Err(Errno::EPROTO);
            }
            let limit = |end: &u64| *end <= FILE_BYTES_MAX;
            end = offset.checked_add(len as u64).filter(limit).ok_or(Errno::EPROTO)?;
            bytes += len;
        }
        match bytes == data.len() {
            true => Ok(Extents { table, data }),
            false => Err(Errno::EPROTO),
        }
    }

    /// Bytes of all together.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }
}

fn entry(bytes: &[u8]) -> (u64, usize) {
    let (offset, len) = bytes.split_at(8);
    let number =
        |bytes: &[u8]| bytes.iter().rev().fold(0, |high, byte| high << 8 | u64::from(*byte));
    (number(offset), number(len) as usize)
}

impl<'a> Iterator for Extents<'a> {
    type Item = (u64, &'a [u8]);

    fn next(&mut self) -> Option<(u64, &'a [u8])> {
        let (offset, len) = entry(self.table.next()?);
        let (data, rest) = self.data.split_at_checked(len)?;
        self.data = rest;
        Some((offset, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_put_in_comes_out_and_nothing_else_does() {
        let extents: [(u64, &[u8]); 3] = [(5, b"abc"), (8, b"d"), (1 << 40, b"efgh")];
        let mut bulk = Vec::new();
        put_extents(extents.iter().copied(), &mut bulk);
        assert_eq!(bulk.len(), extents_bulk_bytes(3, 8));
        let parsed = Extents::parse(&bulk, 3).unwrap();
        assert_eq!(parsed.bytes(), 8);
        assert!(parsed.eq(extents));
        assert!(Extents::parse(&bulk, 2).is_err() && Extents::parse(&bulk, 4).is_err());
        assert!(Extents::parse(&bulk[..bulk.len() - 1], 3).is_err());
        let refused = |extents: [(u64, &[u8]); 2]| {
            let mut bulk = Vec::new();
            put_extents(extents.iter().copied(), &mut bulk);
            Extents::parse(&bulk, 2).is_err()
        };
        assert!(refused([(5, b"abc"), (7, b"x")]), "they overlap");
        assert!(refused([(5, b"abc"), (u64::MAX, b"x")]), "past all files");
        assert!(refused([(5, b"abc"), (9, b"")]), "of nothing");
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(
            bulk in proptest::collection::vec(any::<u8>(), 0..256), count in 0u32..20
        ) {
            if let Ok(extents) = Extents::parse(&bulk, count) {
                prop_assert_eq!(extents.count(), count as usize);
            }
        }
    }
}
