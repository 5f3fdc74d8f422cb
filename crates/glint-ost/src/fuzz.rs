//! Entrances for the fuzz targets.

use crate::store::checksum::Sums;

/// The attribute with the checksums of an object; with its own checksum put right, so
/// that the fuzzer reaches what is behind it.
pub fn sums(bytes: &[u8]) {
    let bytes = &[bytes, &crc32c::crc32c(bytes).to_le_bytes()].concat();
    if let Some(sums) = Sums::decode(bytes) {
        assert_eq!(&sums.encode(), bytes);
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
