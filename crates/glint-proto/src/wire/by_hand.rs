//! Whole frames in memory, for tests and the simulation: a client that speaks by hand, over
//! whichever connection it has. Clients and servers themselves send what they have queued without
//! copying it together; they do not use this.

use super::frame::{FrameError, HEADER_BYTES, Header};
use super::message::{Hello, Reply, Request, decode, encode};
use crate::{ClientId, FsResult};

/// The first message of a client that nobody knows yet.
pub fn hello(mount_point: &str, secret: u128) -> Hello {
    Hello {
        host: String::new(),
        mount_point: mount_point.into(),
        known: false,
        boot_verifier: 0,
        session: 0,
        secret,
    }
}

/// The frame of a request.
pub fn request_frame(
    client: ClientId,
    slot: u16,
    xid: u64,
    request: &Request<'_>,
    bulk: &[u8],
) -> FsResult<Vec<u8>> {
    let mut body = Vec::new();
    encode(request, &mut body)?;
    let header = Header {
        op: request.op(),
        reply: false,
        client,
        slot,
        xid,
        boot_verifier: 0,
        committed: 0,
        body_len: body.len() as u32,
        body_crc: crc32c::crc32c(&body),
        bulk_len: bulk.len() as u32,
        bulk_crc: crc32c::crc32c(bulk),
    };
    Ok([header.encode().as_slice(), &body, bulk].concat())
}

/// Bytes received on a connection, of which whole replies are taken.
#[derive(Default)]
pub struct Heard(Vec<u8>);

impl Heard {
    /// More was heard.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next reply, if all of it was heard. One that does not decode is taken, too.
    pub fn take_reply(&mut self) -> Result<Option<Reply>, FrameError> {
        let Some(head) = self.0.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head)?;
        let body = HEADER_BYTES + header.body_len as usize;
        let len = body + header.bulk_len as usize;
        if self.0.len() < len {
            return Ok(None);
        }
        let reply = decode(&self.0[HEADER_BYTES..body]);
        self.0.drain(..len);
        reply.map(Some).map_err(|_| FrameError::Body("reply"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Op;
    use crate::message::decode;

    #[test]
    fn a_frame_says_what_follows_it() {
        let request = Request::Ping { commit: true, hurry: false };
        let frame = request_frame(ClientId(7), 3, 9, &request, b"bulk").unwrap();
        let header = Header::decode(frame.first_chunk().unwrap()).unwrap();
        assert_eq!((header.op, header.client, header.slot), (Op::Ping, ClientId(7), 3));
        let (body, bulk) = frame[HEADER_BYTES..].split_at(header.body_len as usize);
        assert_eq!(decode::<Request<'_>>(body).unwrap(), request);
        assert_eq!((bulk, header.bulk_crc), (&b"bulk"[..], crc32c::crc32c(b"bulk")));
    }

    #[test]
    fn replies_are_taken_whole_whatever_pieces_they_come_in() {
        let reply = Reply::Refused("no".into());
        let mut body = Vec::new();
        encode(&reply, &mut body).unwrap();
        let frame =
            request_frame(ClientId(1), 0, 1, &Request::Ping { commit: false, hurry: false }, b"");
        let mut header = Header::decode(frame.unwrap().first_chunk().unwrap()).unwrap();
        (header.reply, header.body_len) = (true, body.len() as u32);
        header.body_crc = crc32c::crc32c(&body);
        let one = [header.encode().as_slice(), &body].concat();
        let mut heard = Heard::default();
        let mut taken = 0;
        for byte in one.repeat(2) {
            assert_eq!(heard.take_reply(), Ok(None));
            heard.push(&[byte]);
            while let Some(found) = heard.take_reply().unwrap() {
                assert_eq!(found, reply);
                taken += 1;
            }
        }
        assert_eq!(taken, 2);
    }
}
