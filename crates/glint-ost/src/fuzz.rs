//! Entrances for the fuzz targets.

use crate::store::checksum::Sums;
use crate::warming::Warming;
use glint_telemetry::Heat;

/// The attribute with the checksums of an object; with its own checksum put right, so
/// that the fuzzer reaches what is behind it.
pub fn sums(bytes: &[u8]) {
    let bytes = &[bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    if let Some(sums) = Sums::decode(bytes) {
        assert_eq!(&sums.encode(), bytes);
    }
}

/// What was read most, as it is kept.
pub fn heat(bytes: &[u8]) {
    let heat = Heat::default();
    if heat.restore(bytes).is_ok() {
        assert_eq!(heat.encode(), bytes);
        let (ranges, halves) = (heat.ranges(), heat.halves());
        assert_eq!(ranges.len(), halves[0].len() + halves[1].len());
        assert!(ranges.iter().all(|range| range.first <= range.last));
        Warming::new(&halves);
        heat.age();
        heat.on_reads(0, usize::MAX, || (0, u64::MAX));
    }
}

/// The name of an object's file.
pub fn object_name(bytes: &[u8]) {
    if let Ok(name) = std::str::from_utf8(bytes)
        && let Some(object) = crate::store::object_store::parse_name(name)
    {
        assert_eq!(object.to_string(), name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::object_store::parse_name;
    use glint_proto::limits::FILE_BYTES_MAX;
    use glint_proto::{Ino, ObjectId};
    use proptest::prelude::*;

    /// An attribute of version 1 without its own checksum.
    fn attribute(block_log2: u8, size: u64, sums: &[u32]) -> Vec<u8> {
        let mut bytes = vec![1, block_log2];
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Sums> {
        Sums::decode(&[bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat())
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            sums(&bytes);
            object_name(&bytes);
            let _ = Sums::decode(&bytes);
        }

        /// Whatever attribute is taken has blocks that cover the object, one behind the other.
        #[test]
        fn sums_cover_their_object(
            block_log2 in 0u8..70,
            size in prop_oneof![0u64..1 << 24, Just(FILE_BYTES_MAX), any::<u64>()],
            count in 0usize..20,
            fits: bool,
        ) {
            let blocks = size.div_ceil(1u64.checked_shl(u32::from(block_log2)).unwrap_or(u64::MAX));
            let count = if fits { blocks.min(600) as usize } else { count };
            let bytes = attribute(block_log2, size, &vec![7; count]);
            sums(&bytes);
            let Some(sums) = decode(&bytes) else { return Ok(()) };
            prop_assert_eq!(sums.size(), size);
            let mut end = 0;
            for block in 0..sums.blocks() {
                let (from, to) = sums.block(block);
                prop_assert!(from == end && to > from);
                end = to;
            }
            prop_assert_eq!(end, size);
        }

        #[test]
        fn any_flipped_bit_of_sums_is_noticed(len in 1usize..20, at: prop::sample::Index) {
            let size = (len as u64) << 16;
            let mut bytes = decode(&attribute(16, size, &vec![7; len])).unwrap().encode();
            let bit = at.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Sums::decode(&bytes).is_none());
        }

        #[test]
        fn names_of_objects_are_read_again(ino: u64, stripe: u16) {
            let object = ObjectId { ino: Ino(ino), stripe };
            prop_assert_eq!(parse_name(&object.to_string()), Some(object));
        }

        /// Names that nearly are those of objects: other digits, signs and lengths.
        #[test]
        fn an_object_has_one_name(name in "[+0]?[0-9a-fA-F]{14,17}[.][+0]?[0-9a-fA-F]{3,5}") {
            object_name(name.as_bytes());
        }
    }

    #[test]
    fn sums_of_what_no_object_can_be_are_refused() {
        assert!(decode(&attribute(16, 65_536, &[7])).is_some());
        for (block_log2, size, count) in [(15, 65_536, 2), (64, 1, 1), (16, 65_537, 1), (16, 1, 2)]
        {
            assert!(decode(&attribute(block_log2, size, &vec![7; count])).is_none());
        }
        assert!(decode(&attribute(63, u64::MAX, &[7, 7])).is_none(), "no file is so large");
    }
}
