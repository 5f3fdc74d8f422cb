//! Entrance for the fuzz target: the adapter must answer whatever a kernel could send.

use crate::abi::{InHeader, Opcode};
use crate::dispatch::{Adapter, Request};
use crate::mountpoint::MountOptions;
use crate::null::NullFs;
use std::sync::Arc;
use zerocopy::FromBytes;

/// A request as read from /dev/fuse, executed on a file system in memory.
pub fn kernel_request(bytes: &[u8]) {
    let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else { return };
    let fixed_len = Opcode::from_u32(header.opcode).map_or(0, Opcode::in_len).min(rest.len());
    let (fixed, payload) = rest.split_at(fixed_len);
    let mut buffer = vec![0u8; 8192.max(payload.len())];
    buffer[..payload.len()].copy_from_slice(payload);
    let adapter = Adapter::new(Arc::new(NullFs::default()), &MountOptions::default(), None);
    let request = Request { header, fixed, buffer: &mut buffer, len: payload.len() };
    futures_lite::future::block_on(adapter.dispatch(request));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    proptest! {
        #[test]
        fn anything_is_answered(
            opcode in 0u32..60,
            bytes in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let mut header = InHeader::read_from_bytes(&[0; size_of::<InHeader>()]).unwrap();
            (header.opcode, header.nodeid) = (opcode, 1);
            kernel_request(&[header.as_bytes(), &bytes].concat());
        }
    }
}
