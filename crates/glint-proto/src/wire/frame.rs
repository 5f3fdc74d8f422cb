//! The frame that carries every message on a connection.
//!
//! ```text
//! offset  size  field
//!      0     4  magic "GLNT"
//!      4     2  protocol version
//!      6     1  operation
//!      7     1  flags: bit 0 reply
//!      8     8  client
//!     16     2  slot
//!     18     2  reserved, zero
//!     20     4  body length
//!     24     8  sequence number within the slot (xid)
//!     32     8  boot verifier (replies)
//!     40     8  last committed transaction (replies; of the kind of server that answers)
//!     48     4  bulk length
//!     52     4  crc32c of the bulk
//!     56     4  crc32c of the body
//!     60     4  crc32c of bytes 0..60
//! ```
//! All little-endian. The body and then the bulk follow.

use crate::limits::{BODY_BYTES_MAX, BULK_BYTES_MAX, PROTOCOL_VERSION};
use crate::{ClientId, Op};

/// Length of the header.
pub const HEADER_BYTES: usize = 64;
/// Slot of requests that may be executed again if they are sent again.
pub const NO_SLOT: u16 = u16::MAX;
const MAGIC: [u8; 4] = *b"GLNT";
const FLAG_REPLY: u8 = 1;

/// A decoded header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Operation.
    pub op: Op,
    /// Whether this is a reply.
    pub reply: bool,
    /// Sender of the request.
    pub client: ClientId,
    /// Slot of the request.
    pub slot: u16,
    /// Sequence number of the request within its slot.
    pub xid: u64,
    /// Changes whenever the server starts.
    pub boot_verifier: u64,
    /// Every transaction up to this one is on stable storage.
    pub committed: u64,
    /// Length of the body.
    pub body_len: u32,
    /// crc32c of the body.
    pub body_crc: u32,
    /// Length of the bulk.
    pub bulk_len: u32,
    /// crc32c of the bulk.
    pub bulk_crc: u32,
}

/// Why a frame was refused. The connection is closed with this reason.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Not Glint's protocol at all.
    #[error("not a Glint peer: a frame began with bytes {0:02x?}; is this the right port?")]
    Magic([u8; 4]),
    /// A peer of another version.
    #[error(
        "the peer speaks protocol version {0}, this is version {PROTOCOL_VERSION}: upgrade the older side"
    )]
    Version(u16),
    /// Bytes changed on the way.
    #[error("checksum mismatch in the {0} of a frame: data was damaged on the way")]
    Checksum(&'static str),
    /// A length over its limit.
    #[error("{what} of {len} bytes is over the limit of {limit}")]
    TooLong {
        /// Part of the frame.
        what: &'static str,
        /// Length in the frame, in bytes.
        len: u32,
        /// Longest that is allowed, in bytes.
        limit: usize,
    },
    /// An operation that does not exist.
    #[error("unknown operation {0}")]
    Operation(u8),
    /// The body does not decode.
    #[error("the body of a {0} frame is malformed")]
    Body(&'static str),
}

impl Header {
    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0u8; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        bytes[6] = self.op as u8;
        bytes[7] = if self.reply { FLAG_REPLY } else { 0 };
        bytes[8..16].copy_from_slice(&self.client.0.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.slot.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.xid.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.boot_verifier.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.committed.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.bulk_len.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.bulk_crc.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks a header. Lengths are within their limits afterwards.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        let magic = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if magic != MAGIC {
            return Err(FrameError::Magic(magic));
        }
        if u16_at(4) != PROTOCOL_VERSION {
            return Err(FrameError::Version(u16_at(4)));
        }
        if crc32c::crc32c(&bytes[..60]) != u32_at(60) {
            return Err(FrameError::Checksum("header"));
        }
        let op = Op::from_u8(bytes[6]).ok_or(FrameError::Operation(bytes[6]))?;
        let (body_len, bulk_len) = (u32_at(20), u32_at(48));
        for (what, len, limit) in
            [("body", body_len, BODY_BYTES_MAX), ("bulk", bulk_len, BULK_BYTES_MAX)]
        {
            if len as usize > limit {
                return Err(FrameError::TooLong { what, len, limit });
            }
        }
        Ok(Header {
            op,
            reply: bytes[7] & FLAG_REPLY != 0,
            client: ClientId(u64_at(8)),
            slot: u16_at(16),
            xid: u64_at(24),
            boot_verifier: u64_at(32),
            committed: u64_at(40),
            body_len,
            body_crc: u32_at(56),
            bulk_len,
            bulk_crc: u32_at(52),
        })
    }

    /// Checks body and bulk against the header's checksums.
    pub fn check(&self, body: &[u8], bulk: &[u8]) -> Result<(), FrameError> {
        if crc32c::crc32c(body) != self.body_crc {
            return Err(FrameError::Checksum("body"));
        }
        if !bulk.is_empty() && crc32c::crc32c(bulk) != self.bulk_crc {
            return Err(FrameError::Checksum("bulk data"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            op: Op::Create,
            reply: true,
            client: ClientId(7),
            slot: 3,
            xid: 99,
            boot_verifier: u64::MAX,
            committed: 5,
            body_len: 10,
            body_crc: 1,
            bulk_len: 4096,
            bulk_crc: 2,
        }
    }

    #[test]
    fn round_trip() {
        assert_eq!(Header::decode(&header().encode()), Ok(header()));
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = header().encode();
        let another = PROTOCOL_VERSION + 1;
        bytes[4..6].copy_from_slice(&another.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(FrameError::Version(another)));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..HEADER_BYTES * 8) {
            let mut bytes = header().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn decoding_anything_never_panics(bytes in proptest::array::uniform32(any::<u8>())) {
            let mut all = [0; HEADER_BYTES];
            all[..4].copy_from_slice(b"GLNT");
            all[32..].copy_from_slice(&bytes);
            let _ = Header::decode(&all);
        }
    }
}
