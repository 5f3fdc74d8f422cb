//! Sending frames: what is queued leaves in as few writes as possible, and bulk data from where it
//! lies.

use crate::NetError;
use crate::transport::framing::{Envelope, SPARE_BYTES, append_frame, append_head, count_copied};
use crate::transport::stream::Stream;
use compio_buf::{BufResult, IntoInner, IoBuf};
use compio_io::AsyncWriteExt;
use glint_memory::PooledBuffer;
use glint_proto::message::{Reply, Request};
use glint_proto::{Bulk, Errno};
use std::cell::{Cell, RefCell, RefMut};
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::sync::Arc;

/// Bulk data that is sent from where it lies. Less is copied behind its frame: that costs no more
/// than another system call.
const BY_REFERENCE_MIN: usize = 32 << 10;

/// A frame that may have to be sent again.
#[derive(Clone, Default)]
pub(crate) struct KeptFrame {
    /// All of it, but for what is by reference.
    pub(crate) head: Vec<u8>,
    /// Bulk data that others may have, too.
    pub(crate) bulk: Option<Arc<Vec<u8>>>,
}

impl From<Vec<u8>> for KeptFrame {
    fn from(head: Vec<u8>) -> KeptFrame {
        KeptFrame { head, bulk: None }
    }
}

impl KeptFrame {
    /// A frame in this memory, with what is sent as bulk data.
    pub(crate) fn new(
        mut head: Vec<u8>,
        envelope: Envelope,
        request: &Request<'_>,
        bulk: &Bulk<'_>,
    ) -> Result<KeptFrame, Errno> {
        let data = bulk.data();
        if data.len() < BY_REFERENCE_MIN {
            append_frame(&mut head, envelope, request, data)?;
            return Ok(head.into());
        }
        append_head(&mut head, envelope, request, data)?;
        let bulk = match bulk {
            Bulk::Shared(data) => Arc::clone(data),
            _ => {
                count_copied(data.len());
                Arc::new(data.to_vec())
            }
        };
        Ok(KeptFrame { head, bulk: Some(bulk) })
    }

    /// Bytes of the whole frame.
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.bulk.as_ref().map_or(0, |bulk| bulk.len())
    }
}

/// Bulk data that is sent from where it lies.
enum QueuedBulk {
    /// Of a request: it may have to be sent again, and others may have it, too.
    Shared(Arc<Vec<u8>>),
    /// Of a reply, whose buffer is used again.
    Own(PooledBuffer),
}

impl QueuedBulk {
    /// Bytes of memory that it holds: the buffer of a reply may be longer than its data.
    fn memory(&self) -> usize {
        match self {
            QueuedBulk::Shared(data) => data.len(),
            QueuedBulk::Own(data) => data.capacity(),
        }
    }
}

impl Deref for QueuedBulk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            QueuedBulk::Shared(data) => data,
            QueuedBulk::Own(data) => data,
        }
    }
}

/// Data to be sent: bytes, and bulk data that comes between them.
#[derive(Default)]
struct SendQueue {
    bytes: Vec<u8>,
    /// Each with the number of bytes before it.
    bulks: Vec<(usize, QueuedBulk)>,
    bulk_memory: usize,
}

impl SendQueue {
    fn push_bulk(&mut self, bulk: QueuedBulk) {
        self.bulk_memory += bulk.memory();
        self.bulks.push((self.bytes.len(), bulk));
    }
}

/// Sends frames. What is queued while a write is under way leaves with the next.
pub(crate) struct FrameWriter {
    stream: RefCell<Stream>,
    queued: RefCell<SendQueue>,
    writing: Cell<bool>,
    broken: Cell<bool>,
}

impl FrameWriter {
    pub(crate) fn new(stream: Stream) -> FrameWriter {
        FrameWriter {
            stream: RefCell::new(stream),
            queued: RefCell::default(),
            writing: Cell::new(false),
            broken: Cell::new(false),
        }
    }

    /// The queue, to append frames to.
    pub(crate) fn queue(&self) -> RefMut<'_, Vec<u8>> {
        RefMut::map(self.queued.borrow_mut(), |queue| &mut queue.bytes)
    }

    /// Queues a frame.
    pub(crate) fn push(&self, frame: &KeptFrame) {
        let mut queue = self.queued.borrow_mut();
        queue.bytes.extend_from_slice(&frame.head);
        let bulk = frame.bulk.clone().map(QueuedBulk::Shared);
        bulk.into_iter().for_each(|bulk| queue.push_bulk(bulk));
    }

    /// Queues a reply and what it brings.
    pub(crate) fn push_reply(
        &self,
        envelope: Envelope,
        reply: &Reply,
        bulk: PooledBuffer,
    ) -> Result<(), Errno> {
        let mut queue = self.queued.borrow_mut();
        if bulk.len() < BY_REFERENCE_MIN {
            return append_frame(&mut queue.bytes, envelope, reply, &bulk);
        }
        append_head(&mut queue.bytes, envelope, reply, &bulk)?;
        queue.push_bulk(QueuedBulk::Own(bulk));
        Ok(())
    }

    /// Bytes of memory that are held until they are sent.
    pub(crate) fn backlog(&self) -> usize {
        let queue = self.queued.borrow();
        queue.bytes.len() + queue.bulk_memory
    }

    /// Ends the connection: both sides see its end.
    pub(crate) fn close(&self) {
        self.broken.set(true);
        self.stream.borrow().shut();
    }

    /// Writes everything that is queued. If a write is already under way it takes
    /// the queue along, and this returns at once.
    pub(crate) async fn flush(&self) -> Result<(), NetError> {
        if self.broken.get() {
            return Err(NetError::Closed);
        }
        if self.writing.replace(true) {
            return Ok(());
        }
        let mut spare = Vec::new();
        let result = loop {
            let SendQueue { mut bytes, bulks, .. } = {
                let mut queue = self.queued.borrow_mut();
                if queue.bytes.is_empty() {
                    break Ok(());
                }
                let next = SendQueue { bytes: std::mem::take(&mut spare), ..SendQueue::default() };
                std::mem::replace(&mut *queue, next)
            };
            // A clone is another handle of the same socket; the cell is not borrowed
            // while the write waits.
            let mut stream = self.stream.borrow().clone();
            let sent = match bulks.is_empty() {
                true => send(&mut stream, bytes, false).await,
                false => {
                    let sent = send_parts(&mut stream, &bytes, bulks).await;
                    bytes.clear();
                    sent.map(|()| bytes)
                }
            };
            match sent {
                Ok(sent) => spare = sent,
                Err(source) => {
                    self.broken.set(true);
                    break Err(NetError::Io { what: "sending".into(), source });
                }
            }
            spare.clear();
        };
        let mut queue = self.queued.borrow_mut();
        if spare.capacity() <= SPARE_BYTES && queue.bytes.capacity() == 0 {
            queue.bytes = spare;
        }
        drop(queue);
        self.writing.set(false);
        result
    }
}

/// Sends bytes, and bulk data from where it lies.
async fn send_parts(
    stream: &mut Stream,
    bytes: &[u8],
    bulks: Vec<(usize, QueuedBulk)>,
) -> io::Result<()> {
    let mut taken = 0;
    if !stream.encrypts() {
        let parts = in_order(bytes, &bulks);
        taken = stream.try_send_all(&parts)?;
        if taken == parts.iter().map(|part| part.len()).sum::<usize>() {
            return Ok(());
        }
    }
    let last = bulks.len() - 1;
    let mut sent = 0;
    for (at, (before, bulk)) in bulks.into_iter().enumerate() {
        send_rest(stream, bytes[sent..before].to_vec(), &mut taken, true).await?;
        sent = before;
        let more = at < last || before < bytes.len();
        send_rest(stream, BulkInFlight(bulk), &mut taken, more).await?;
    }
    send_rest(stream, bytes[sent..].to_vec(), &mut taken, false).await
}

/// The parts of what is sent, for one system call.
fn in_order<'a>(bytes: &'a [u8], bulks: &'a [(usize, QueuedBulk)]) -> Vec<IoSlice<'a>> {
    let mut parts = Vec::with_capacity(2 * bulks.len() + 1);
    let mut queued = 0;
    for (before, bulk) in bulks {
        parts.push(IoSlice::new(&bytes[queued..*before]));
        parts.push(IoSlice::new(bulk));
        queued = *before;
    }
    parts.push(IoSlice::new(&bytes[queued..]));
    parts.retain(|part| !part.is_empty());
    parts
}

/// Sends what the socket has not `taken` yet of a buffer, which is the next one of those that were
/// handed to it.
async fn send_rest<B: IoBuf>(
    stream: &mut Stream,
    buffer: B,
    taken: &mut usize,
    more: bool,
) -> io::Result<()> {
    let len = buffer.buf_len();
    let skipped = len.min(*taken);
    *taken -= skipped;
    if skipped < len {
        send(stream, buffer.slice(skipped..), more).await?;
    }
    Ok(())
}

/// Sends all of a buffer, which comes back, or another one in its place. With `more` it need not
/// leave before what is sent next.
async fn send<B: IoBuf>(stream: &mut Stream, buffer: B, more: bool) -> io::Result<B> {
    match stream.seal(buffer.as_init())? {
        Some(sealed) => send_sealed(stream, sealed, more).await.map(|_| buffer),
        None => send_sealed(stream, buffer, more).await,
    }
}

/// Most of the time the socket takes it all at once: one system call, and no completion that would
/// wake this thread for nothing.
async fn send_sealed<B: IoBuf>(stream: &mut Stream, buffer: B, more: bool) -> io::Result<B> {
    let sent = stream.try_send(buffer.as_init(), more)?;
    if sent == buffer.buf_len() {
        return Ok(buffer);
    }
    let BufResult(written, rest) = stream.write_all(buffer.slice(sent..)).await;
    written.map(|()| rest.into_inner())
}

/// Bulk data on its way into a socket.
struct BulkInFlight(QueuedBulk);

impl IoBuf for BulkInFlight {
    fn as_init(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Pipe, Wire};
    use crate::transport::framing::FrameReader;
    use crate::transport::stream::Accepted;
    use futures_lite::future::block_on;
    use glint_memory::BufferPool;
    use glint_proto::frame::NO_SLOT;
    use glint_proto::{ClientId, Op};
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;

    #[test]
    fn bulk_data_leaves_from_where_it_lies_and_between_its_frames() {
        let (there, back) = (Rc::new(Wire::default()), Rc::new(Wire::default()));
        let writer = FrameWriter::new(Pipe::new(back.clone(), there.clone()).into());
        let mut reader = FrameReader::new(Pipe::new(there, back).into());
        let envelope = |xid| Envelope { xid, ..Envelope::request(Op::Status, ClientId(1)) };
        let large = Arc::new(vec![7; BY_REFERENCE_MIN]);
        let parts = [&b"small"[..], &large, b"", &large, &large, b"end"];
        for (xid, part) in parts.iter().enumerate() {
            let bulk = match part.len() {
                BY_REFERENCE_MIN => Bulk::Shared(&large),
                _ => Bulk::Out(part),
            };
            let envelope = envelope(xid as u64);
            let frame = KeptFrame::new(Vec::new(), envelope, &Request::Status, &bulk).unwrap();
            assert_eq!(frame.bulk.is_some(), part.len() == BY_REFERENCE_MIN);
            writer.push(&frame);
        }
        let reply = Reply::Json("[]".into());
        let buffers = BufferPool::default();
        writer.push_reply(envelope(6), &reply, buffers.copy(&large)).unwrap();
        assert_eq!(Arc::strong_count(&large), 4, "and no copy");
        assert!(writer.backlog() > 4 * BY_REFERENCE_MIN);
        block_on(writer.flush()).unwrap();
        assert_eq!((Arc::strong_count(&large), writer.backlog()), (1, 0));
        let mut next = 0;
        while next < 7 {
            let (pass, frames) = block_on(reader.next_pass()).unwrap();
            for frame in &frames {
                let expected = parts.get(next).copied().unwrap_or(&large);
                assert_eq!((frame.header.xid, frame.header.slot), (next as u64, NO_SLOT));
                assert_eq!(pass.bulk(frame), expected);
                next += 1;
            }
        }
    }

    #[test]
    fn the_buffer_of_a_reply_is_used_again_once_it_was_sent() {
        let (there, back) = (Rc::new(Wire::default()), Rc::new(Wire::default()));
        let writer = FrameWriter::new(Pipe::new(back, there).into());
        let (buffers, len) = (BufferPool::default(), 64 << 10);
        let mut bulk = buffers.dirty(len);
        let at = bulk.as_ptr();
        bulk.truncate(len / 2);
        let envelope = Envelope::request(Op::Status, ClientId(1));
        writer.push_reply(envelope, &Reply::Json("[]".into()), bulk).unwrap();
        assert!(writer.backlog() > len, "of a short read, too");
        let meanwhile = buffers.dirty(len);
        assert_ne!(meanwhile.as_ptr(), at);
        block_on(writer.flush()).unwrap();
        assert_eq!(buffers.dirty(len).as_ptr(), at);
    }

    #[test]
    fn what_a_socket_does_not_take_at_once_follows() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).map(|_| all)
        });
        let mut expected = Vec::new();
        crate::runtime(None).unwrap().block_on(async {
            let writer = FrameWriter::new(Accepted::Unix(ours).attach().await.unwrap());
            for byte in 0..3 {
                let bulk = Arc::new(vec![byte; 1 << 20]);
                expected.extend_from_slice(b"head");
                expected.extend_from_slice(&bulk);
                writer.push(&KeptFrame { head: b"head".to_vec(), bulk: Some(bulk) });
            }
            expected.extend_from_slice(b"end");
            writer.queue().extend_from_slice(b"end");
            writer.flush().await.unwrap();
            writer.close();
        });
        assert_eq!(reading.join().unwrap().unwrap(), expected);
    }
}
