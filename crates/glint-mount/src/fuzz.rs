//! Entrance for the fuzz target: the adapter must answer whatever a kernel could send.

use crate::abi::{InHeader, Opcode};
use crate::adapter::dispatch::{Adapter, Request};
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
    let (fs, options) = (Arc::new(NullFs::default()), MountOptions::default());
    let adapter = Adapter::new(fs, &options, Arc::default(), None);
    let request = Request { header, fixed, buffer: &mut buffer, len: payload.len() };
    futures_lite::future::block_on(adapter.dispatch(request));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn send(opcode: u32, bytes: &[u8]) {
        let mut header = InHeader::read_from_bytes(&[0; size_of::<InHeader>()]).unwrap();
        (header.opcode, header.nodeid) = (opcode, 1);
        kernel_request(&[header.as_bytes(), bytes].concat());
    }

    /// Words of 8 bytes: the root as a handle, and what arithmetic on them breaks at.
    fn word() -> impl Strategy<Value = u64> {
        let edge = prop_oneof![Just(i64::MAX as u64), Just(1 << 63), Just(u64::MAX)];
        prop_oneof![Just(0), Just(1), edge.clone(), edge, any::<u64>()]
    }

    proptest! {
        #[test]
        fn anything_is_answered(
            opcode in 0u32..60,
            bytes in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            send(opcode, &bytes);
        }

        #[test]
        fn numbers_at_their_ends_are_answered(
            opcode in 0u32..60,
            words in proptest::collection::vec(word(), 0..16),
        ) {
            send(opcode, words.as_bytes());
        }
    }

    /// A WRITE of one byte at the last offset that a u64 has, of which the end overflows.
    #[test]
    fn a_write_that_ends_nowhere_is_answered() {
        let arg = [1, u64::MAX, 1, 0, 0];
        send(Opcode::Write as u32, &[arg.as_bytes(), b"x"].concat());
    }
}
