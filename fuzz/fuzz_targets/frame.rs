#![no_main]

use glint_proto::frame::{HEADER_BYTES, Header};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    // A right checksum lets the fuzzer reach what is behind it.
    let mut bytes = *bytes;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
});
