//! Entrances for the fuzz targets: the decoders of what comes over a wire. What decodes must encode
//! to the same again.

use crate::Extents;
use crate::extents::put_extents;
use crate::frame::{HEADER_BYTES, Header};
use crate::message::{Reply, Request, decode, encode};

/// The header of a frame; its checksum is put right, so that the fuzzer reaches the code behind it.
pub fn frame(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else { return };
    let mut bytes = *bytes;
    let crc = crc32c::crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}

/// A request, a reply, or extents behind a request to write.
pub fn message(bytes: &[u8]) {
    if let Ok(request) = decode::<Request<'_>>(bytes) {
        let mut again = Vec::new();
        assert_eq!(encode(&request, &mut again), Ok(()));
        assert_eq!(decode(&again), Ok(request));
    }
    if let Ok(reply) = decode::<Reply>(bytes) {
        let mut again = Vec::new();
        assert_eq!(encode(&reply, &mut again), Ok(()));
        assert_eq!(decode(&again), Ok(reply));
    }
    for count in 1..8 {
        if let Ok(extents) = Extents::parse(bytes, count) {
            let mut again = Vec::new();
            put_extents(extents, &mut again);
            assert_eq!(again, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capability::{Access, Capability};
    use crate::{ClientId, Cred, Ino, MdsReply, MdsRequest, Op, OpenFlags};
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn header() -> Vec<u8> {
        let header = Header {
            op: Op::Create,
            reply: false,
            client: ClientId(1),
            slot: 2,
            xid: 3,
            boot_verifier: 4,
            committed: 5,
            body_len: 6,
            body_crc: 7,
            bulk_len: 8,
            bulk_crc: 9,
        };
        header.encode().to_vec()
    }

    /// Messages with text, options, lists and other messages within.
    fn messages() -> Vec<Vec<u8>> {
        let create = MdsRequest::Create {
            parent: Ino(1),
            name: b"name",
            mode: 0o100_644,
            umask: 0o22,
            rdev: 0,
            target: b"",
            open: Some(OpenFlags { read: true, ..OpenFlags::default() }),
            exclusive: true,
        };
        let cred = Cred { uid: 1, gid: 2, groups: Some(vec![3, 4]) };
        let capability = Some(Capability { access: Access(1), signature: [0xaa; 32] });
        let (request, reply) = (create.clone(), MdsReply::Removed { ino: Ino(5) });
        let requests = [
            Request::Mds { cred: cred.clone(), request: create },
            Request::Replay { cred, request, reply: reply.clone(), capability },
        ];
        let replies = [
            Reply::Json("{}".into()),
            Reply::Reclaimed(vec![Ok(reply), Err(crate::Errno::ESTALE)]),
        ];
        let mut encoded = Vec::new();
        for request in requests {
            let mut bytes = Vec::new();
            encode(&request, &mut bytes).unwrap();
            encoded.push(bytes);
        }
        for reply in replies {
            let mut bytes = Vec::new();
            encode(&reply, &mut bytes).unwrap();
            encoded.push(bytes);
        }
        encoded
    }

    fn changed(mut bytes: Vec<u8>, changes: &[(Index, u8)], cut: Option<Index>) -> Vec<u8> {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        bytes
    }

    proptest! {
        #[test]
        fn decoding_anything_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            frame(&bytes);
            message(&bytes);
        }

        #[test]
        fn headers_that_nearly_are_some_decode_to_the_same(
            changes: Vec<(Index, u8)>,
        ) {
            frame(&changed(header(), &changes[..changes.len().min(4)], None));
        }

        #[test]
        fn messages_that_nearly_are_some_decode_to_the_same(
            of: Index,
            changes: Vec<(Index, u8)>,
            cut: Option<Index>,
        ) {
            let messages = messages();
            message(&changed(of.get(&messages).clone(), &changes[..changes.len().min(4)], cut));
        }
    }
}
