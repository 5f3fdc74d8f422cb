//! Frames: making them, and cutting the stream that both ends of a connection read into them.
//!
//! Bulk data that is large is received into a buffer of its own, which whoever waits for it may keep.

use crate::NetError;
use crate::transport::stream::Stream;
use compio_buf::BufResult;
use compio_io::AsyncReadExt;
use glint_proto::frame::{FrameError, HEADER_BYTES, Header, NO_SLOT};
use glint_proto::limits::{BODY_BYTES_MAX, LARGE_BULK_BYTES};
use glint_proto::message::{Reply, Request};
use glint_proto::{ClientId, Errno, Op, clock};
use glint_telemetry::Counter;
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Instant;

/// Least room offered to one read.
const READ_BYTES: usize = 64 << 10;

/// Position of a complete frame in a [`Pass`].
pub(crate) struct Frame {
    pub(crate) header: Header,
    body: Range<usize>,
    bulk: BulkPlace,
}

/// Position of bulk data in a [`Pass`].
#[derive(Clone)]
enum BulkPlace {
    /// With other bytes that were received.
    Among(Range<usize>),
    /// In a buffer of its own.
    Apart,
}

/// Buffers that a thread keeps for the next reads, and the largest of them.
const SPARES: usize = 16;
pub(crate) const SPARE_BYTES: usize = 256 << 10;

thread_local! {
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn take_spare() -> Vec<u8> {
    SPARE.with_borrow_mut(Vec::pop).unwrap_or_default()
}

fn keep_spare(mut bytes: Vec<u8>) {
    if bytes.capacity() > SPARE_BYTES {
        return;
    }
    bytes.clear();
    // A thread that is being torn down keeps nothing.
    let _ = SPARE.try_with(|spares| {
        let mut spares = spares.borrow_mut();
        if spares.len() < SPARES {
            spares.push(bytes);
        }
    });
}

/// Bytes received in one go; complete frames are borrowed from it.
pub(crate) struct Pass {
    bytes: Vec<u8>,
    /// Bulk data that is apart, of the only frame.
    large: Vec<u8>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        keep_spare(std::mem::take(&mut self.bytes));
    }
}

/// Bulk data that has been received, in the pass that it came with.
#[derive(Clone, Default)]
pub(crate) struct ReceivedBulk(Option<(Rc<Pass>, BulkPlace)>);

impl ReceivedBulk {
    pub(crate) fn of(pass: &Rc<Pass>, frame: &Frame) -> ReceivedBulk {
        let is_some = !pass.bulk(frame).is_empty();
        ReceivedBulk(is_some.then(|| (pass.clone(), frame.bulk.clone())))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |(pass, place)| pass.at(place))
    }

    /// The data, without a copy if it is apart and nobody else has it.
    pub(crate) fn into_vec(self) -> Vec<u8> {
        let Some((mut pass, place)) = self.0 else { return Vec::new() };
        match (&place, Rc::get_mut(&mut pass)) {
            (BulkPlace::Apart, Some(pass)) => std::mem::take(&mut pass.large),
            _ => {
                let data = pass.at(&place).to_vec();
                count_copied(data.len());
                data
            }
        }
    }
}

impl Pass {
    pub(crate) fn body(&self, frame: &Frame) -> &[u8] {
        &self.bytes[frame.body.clone()]
    }

    pub(crate) fn bulk(&self, frame: &Frame) -> &[u8] {
        self.at(&frame.bulk)
    }

    fn at(&self, place: &BulkPlace) -> &[u8] {
        match place {
            BulkPlace::Among(range) => &self.bytes[range.clone()],
            BulkPlace::Apart => &self.large,
        }
    }
}

/// Receives frames.
pub(crate) struct FrameReader {
    stream: Stream,
    /// The beginning of a frame whose end has not come yet.
    rest: Vec<u8>,
    /// Since when it has been waiting for that end.
    unfinished: Rc<Cell<Option<Instant>>>,
}

impl FrameReader {
    pub(crate) fn new(stream: Stream) -> FrameReader {
        FrameReader { stream, rest: take_spare(), unfinished: Rc::default() }
    }

    /// Since when the peer has been in the middle of a frame.
    pub(crate) fn unfinished(&self) -> Rc<Cell<Option<Instant>>> {
        self.unfinished.clone()
    }

    /// All frames that are ready, at least one. A stream that ends between frames is
    /// [`NetError::Closed`].
    pub(crate) async fn next_pass(&mut self) -> Result<(Rc<Pass>, Vec<Frame>), NetError> {
        let mut bytes = std::mem::take(&mut self.rest);
        loop {
            let missing = match cut(&bytes)? {
                Cut::Frames(frames, end) => {
                    self.rest = take_spare();
                    self.rest.extend_from_slice(&bytes[end..]);
                    count_copied(self.rest.len());
                    let unfinished = (!self.rest.is_empty()).then(clock::now);
                    self.unfinished.set(unfinished);
                    return Ok((Rc::new(Pass { bytes, large: Vec::new() }), frames));
                }
                Cut::Large(header, body) => {
                    let large = self.receive_large(&header, &bytes[body.end..]).await?;
                    header.check(&bytes[body.clone()], &large)?;
                    let frame = Frame { header, body, bulk: BulkPlace::Apart };
                    return Ok((Rc::new(Pass { bytes, large }), vec![frame]));
                }
                Cut::Missing(missing) => missing,
            };
            self.note_unfinished(bytes.is_empty());
            bytes.reserve(missing.max(READ_BYTES));
            bytes = self.receive_more(bytes).await?;
        }
    }

    /// Receives bulk data into a buffer of its own, of which some came already.
    async fn receive_large(&mut self, header: &Header, begin: &[u8]) -> Result<Vec<u8>, NetError> {
        self.note_unfinished(false);
        let len = header.bulk_len as usize;
        let mut bulk = Vec::with_capacity(len);
        bulk.extend_from_slice(begin);
        count_copied(begin.len());
        while bulk.len() < len {
            bulk = self.receive_more(bulk).await?;
        }
        // A buffer may be larger than was asked for.
        self.rest = take_spare();
        self.rest.extend_from_slice(&bulk[len..]);
        bulk.truncate(len);
        let unfinished = (!self.rest.is_empty()).then(clock::now);
        self.unfinished.set(unfinished);
        Ok(bulk)
    }

    fn note_unfinished(&self, is_empty: bool) {
        if !is_empty && self.unfinished.get().is_none() {
            self.unfinished.set(Some(clock::now()));
        }
    }

    /// Appends what comes, as far as there is room.
    async fn receive_more(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, NetError> {
        match self.stream.append(bytes).await {
            BufResult(Ok(0), _) => Err(NetError::Closed),
            BufResult(Ok(_), bytes) => Ok(bytes),
            BufResult(Err(source), _) => Err(NetError::Io { what: "receiving".into(), source }),
        }
    }
}

enum Cut {
    /// Complete frames, and where the incomplete rest begins.
    Frames(Vec<Frame>, usize),
    /// The first one is complete but for its bulk data, which is large.
    Large(Header, Range<usize>),
    /// At least so many bytes are missing for the first one.
    Missing(usize),
}

fn cut(bytes: &[u8]) -> Result<Cut, FrameError> {
    let mut frames = Vec::new();
    let mut at = 0;
    loop {
        let missing = match bytes[at..].first_chunk::<HEADER_BYTES>() {
            None => HEADER_BYTES - (bytes.len() - at),
            Some(first) => {
                let header = Header::decode(first)?;
                let body = at + HEADER_BYTES..at + HEADER_BYTES + header.body_len as usize;
                let bulk = body.end..body.end + header.bulk_len as usize;
                if bulk.end <= bytes.len() {
                    header.check(&bytes[body.clone()], &bytes[bulk.clone()])?;
                    at = bulk.end;
                    frames.push(Frame { header, body, bulk: BulkPlace::Among(bulk) });
                    continue;
                }
                match (bulk.len() >= LARGE_BULK_BYTES, body.end.checked_sub(bytes.len())) {
                    (true, Some(missing)) if missing > 0 => missing,
                    (true, _) if frames.is_empty() => return Ok(Cut::Large(header, body)),
                    _ => bulk.end - bytes.len(),
                }
            }
        };
        return Ok(match frames.is_empty() {
            true => Cut::Missing(missing),
            false => Cut::Frames(frames, at),
        });
    }
}

/// Header fields of a frame that do not follow from its content.
#[derive(Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) op: Op,
    pub(crate) reply: bool,
    pub(crate) client: ClientId,
    pub(crate) slot: u16,
    pub(crate) xid: u64,
    pub(crate) boot_verifier: u64,
    pub(crate) committed: u64,
}

impl Envelope {
    /// Of a request that needs no slot, because executing it twice does no harm.
    pub(crate) fn request(op: Op, client: ClientId) -> Envelope {
        Envelope { op, reply: false, client, slot: NO_SLOT, xid: 0, boot_verifier: 0, committed: 0 }
    }
}

/// Counts bulk data that is copied from one buffer into another.
pub(crate) fn count_copied(bytes: usize) {
    glint_telemetry::count(Counter::BytesCopied, bytes as u64);
}

/// Appends a whole frame to `out`.
pub(crate) fn append_frame(
    out: &mut Vec<u8>,
    envelope: Envelope,
    message: &impl Serialize,
    bulk: &[u8],
) -> Result<(), Errno> {
    append_head(out, envelope, message, bulk)?;
    out.extend_from_slice(bulk);
    count_copied(bulk.len());
    Ok(())
}

/// Appends all of a frame but its bulk data.
pub(crate) fn append_head(
    out: &mut Vec<u8>,
    envelope: Envelope,
    message: &impl Serialize,
    bulk: &[u8],
) -> Result<(), Errno> {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    glint_proto::message::encode(message, out)?;
    let body = &out[start + HEADER_BYTES..];
    if body.len() > BODY_BYTES_MAX {
        // The peer would close the connection, and again after each reconnect.
        tracing::error!(op = ?envelope.op, bytes = body.len(), "message is too long to be sent");
        out.truncate(start);
        return Err(Errno::E2BIG);
    }
    let header = Header {
        op: envelope.op,
        reply: envelope.reply,
        client: envelope.client,
        slot: envelope.slot,
        xid: envelope.xid,
        boot_verifier: envelope.boot_verifier,
        committed: envelope.committed,
        body_len: body.len() as u32,
        body_crc: crc32c::crc32c(body),
        bulk_len: bulk.len() as u32,
        bulk_crc: if bulk.is_empty() { 0 } else { crc32c::crc32c(bulk) },
    };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    Ok(())
}

/// A whole frame of a request without bulk.
pub(crate) fn request_frame(
    envelope: Envelope,
    request: &Request<'_>,
) -> Result<Vec<u8>, NetError> {
    let mut out = Vec::new();
    append_frame(&mut out, envelope, request, &[])
        .map_err(|_| NetError::Refused("the request is too long".into()))?;
    Ok(out)
}

/// The reply that a body holds; a refusal is an error.
pub(crate) fn reply_of(body: &[u8]) -> Result<Reply, NetError> {
    match glint_proto::message::decode(body) {
        Ok(Reply::Refused(reason)) => Err(NetError::Refused(reason)),
        Ok(reply) => Ok(reply),
        Err(_) => Err(NetError::Refused("it sent something else than a reply".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Pipe, Wire};
    use futures_lite::future::{block_on, yield_now};
    use futures_util::future::join;

    fn frame(bulk: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let envelope = Envelope::request(Op::Status, ClientId(1));
        append_frame(&mut out, envelope, &Request::Status, bulk).unwrap();
        out
    }

    #[test]
    fn a_message_above_the_limit_is_refused_and_leaves_nothing() {
        use glint_proto::Ino;
        use glint_proto::lock::Return;
        let lock = Return::Data { ino: Ino(u64::MAX), number: u64::MAX };
        let request = Request::Return(vec![lock; BODY_BYTES_MAX / 16]);
        let mut out = frame(b"");
        let before = out.clone();
        let envelope = Envelope::request(request.op(), ClientId(1));
        assert_eq!(append_frame(&mut out, envelope, &request, &[]), Err(Errno::E2BIG));
        assert_eq!(out, before);
    }

    #[test]
    fn frames_are_cut_wherever_the_stream_breaks() {
        let bytes = [frame(b"bulk"), frame(b"")].concat();
        for end in 0..bytes.len() {
            match cut(&bytes[..end]).unwrap() {
                Cut::Missing(missing) => assert!(missing > 0 && end < frame(b"bulk").len()),
                Cut::Large(..) => panic!("it is small"),
                Cut::Frames(frames, at) => {
                    assert_eq!(frames.len(), 1);
                    assert_eq!(at, frame(b"bulk").len());
                }
            }
        }
        assert!(matches!(cut(&bytes).unwrap(), Cut::Frames(frames, _) if frames.len() == 2));
    }

    /// The bulk data would be received with the end of the body, if there were room for it.
    #[test]
    fn of_a_frame_with_large_bulk_data_the_body_is_received_first() {
        let bytes = frame(&vec![1; LARGE_BULK_BYTES]);
        let body_end = bytes.len() - LARGE_BULK_BYTES;
        assert!(body_end > HEADER_BYTES);
        for end in HEADER_BYTES..body_end {
            let Cut::Missing(missing) = cut(&bytes[..end]).unwrap() else { panic!("{end}") };
            assert_eq!(missing, body_end - end);
        }
        assert!(matches!(cut(&bytes[..body_end]).unwrap(), Cut::Large(..)));
    }

    #[test]
    fn large_bulk_data_has_a_buffer_of_its_own_however_it_comes() {
        let large: Vec<u8> = (0..2 * LARGE_BULK_BYTES + 5).map(|at| at as u8).collect();
        let bytes = [frame(b"small"), frame(&large), frame(b"end")].concat();
        for piece in [1, 1000, READ_BYTES, bytes.len()] {
            let (there, back) = (Rc::new(Wire::default()), Rc::new(Wire::default()));
            let mut reader = FrameReader::new(Pipe::new(there.clone(), back).into());
            let sends = async {
                // The large frame ends in pieces; each is received before the next one comes.
                let (begin, end) = bytes.split_at(bytes.len() - 1000);
                there.put(begin);
                for piece in end.chunks(piece) {
                    yield_now().await;
                    there.put(piece);
                }
            };
            let receives = async {
                let mut all = Vec::new();
                while all.len() < 3 {
                    let (pass, frames) = reader.next_pass().await.unwrap();
                    let bulk = |frame: &Frame| {
                        let bulk = ReceivedBulk::of(&pass, frame);
                        assert_eq!(bulk.bytes(), pass.bulk(frame));
                        bulk
                    };
                    all.extend(frames.iter().map(bulk));
                }
                all
            };
            let ((), received) = block_on(join(sends, receives));
            let [small, apart, end] = <[ReceivedBulk; 3]>::try_from(received).ok().unwrap();
            assert_eq!((small.bytes(), end.into_vec().as_slice()), (&b"small"[..], &b"end"[..]));
            let (at, shared) = (apart.bytes().as_ptr(), apart.clone());
            assert_eq!(shared.into_vec(), large, "a copy, as somebody else has it");
            let taken = apart.into_vec();
            assert_eq!((taken.as_ptr(), taken), (at, large.clone()));
            assert!(reader.unfinished().get().is_none());
        }
    }

    #[test]
    fn a_damaged_body_is_refused() {
        let mut bytes = frame(b"bulk");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(matches!(cut(&bytes), Err(FrameError::Checksum("bulk data"))));
        let _ = glint_proto::message::decode::<Reply>(&bytes);
    }
}
