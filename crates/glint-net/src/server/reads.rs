//! Data of reads: from one object, or from several in one request, each as if it had come alone.
//!
//! Invariant: nothing is sent of what another request has left in the buffer of a reply.

use crate::server::execute::{DataRequest, Received};
use crate::server::worker::Worker;
use crate::{NetError, Service};
use futures_util::future::join_all;
use glint_memory::PooledBuffer;
use glint_proto::limits::{BULK_BYTES_MAX, OBJECT_READS_MAX};
use glint_proto::message::{ObjectRead, Reply};
use glint_proto::{Bulk, Errno, FsResult, OstReply, Session};

/// Of the reads of one request, so many keep others waiting at a time, and wait for a disk together.
const READS_AT_ONCE: usize = 8;

impl<S: Service> Worker<S> {
    /// Reads from objects, some at a time. Their data is in `bulk`, one after the other.
    pub(super) async fn read_objects(
        &self,
        received: &Received<'_, S>,
        reads: &[ObjectRead],
        bulk: &mut PooledBuffer,
    ) -> Result<Reply, NetError> {
        let session = received.session()?;
        let total: usize = reads.iter().map(|read| read.len as usize).sum();
        if reads.len() > OBJECT_READS_MAX || total > BULK_BYTES_MAX {
            return Ok(Reply::Failed(Errno::EINVAL));
        }
        *bulk = self.buffers.dirty(total);
        let mut rest = &mut bulk[..];
        let mut lengths = Vec::with_capacity(reads.len());
        for some in reads.chunks(READS_AT_ONCE) {
            lengths.extend(
                join_all(some.iter().map(|read| {
                    let room;
                    (room, rest) = std::mem::take(&mut rest).split_at_mut(read.len as usize);
                    self.read_object(received, session, read, room)
                }))
                .await,
            );
            if lengths.len() < reads.len() {
                futures_lite::future::yield_now().await;
            }
        }
        let end = close_gaps(bulk, reads.iter().map(|read| read.len as usize).zip(&lengths));
        bulk.truncate(end);
        Ok(Reply::ObjectsRead(lengths))
    }

    async fn read_object(
        &self,
        received: &Received<'_, S>,
        session: &Session,
        read: &ObjectRead,
        room: &mut [u8],
    ) -> FsResult<u32> {
        let &ObjectRead { to, capability, .. } = read;
        let asked = DataRequest { to, request: read.request(), capability, forward: None };
        self.admit_ost(received.connection, session, &asked)?;
        let space = Bulk::In(room);
        match self.service.execute_data(session, to, asked.request, space).await.reply? {
            OstReply::Data(len) => Ok(len),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// Cuts off what was not read.
pub(super) fn keep_read(bulk: &mut PooledBuffer, reply: &FsResult<OstReply>) {
    let len = match reply {
        Ok(OstReply::Data(len)) => *len as usize,
        _ => 0,
    };
    bulk.truncate(len);
}

/// Puts what was read one after the other: each read had room for so much, and was shorter perhaps.
/// Returns how much that is.
fn close_gaps<'a>(
    bulk: &mut [u8],
    read: impl Iterator<Item = (usize, &'a FsResult<u32>)>,
) -> usize {
    let (mut start, mut end) = (0, 0);
    for (room, len) in read {
        let len = len.as_ref().map_or(0, |len| *len as usize);
        if start != end {
            bulk.copy_within(start..start + len, end);
        }
        start += room;
        end += len;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_memory::BufferPool;

    #[test]
    fn only_what_was_read_is_kept_of_a_buffer_that_is_used_again() {
        const LEN: usize = 64 << 10;
        let buffers = BufferPool::default();
        for (reply, kept) in [
            (Ok(OstReply::Data(5)), 5),
            (Ok(OstReply::Data(0)), 0),
            (Ok(OstReply::Done), 0),
            (Err(Errno::EIO), 0),
            (Ok(OstReply::Data(LEN as u32)), LEN),
        ] {
            drop(buffers.copy(&[0xee; LEN]));
            let mut bulk = buffers.dirty(LEN);
            bulk[..kept].fill(1);
            keep_read(&mut bulk, &reply);
            assert_eq!(&bulk[..], vec![1u8; kept], "{reply:?}");
        }
    }

    #[test]
    fn short_and_failed_reads_leave_no_gaps() {
        let mut bulk = b"aab.cc..ddd".to_vec();
        let lengths = [Ok(2), Ok(1), Err(Errno::EIO), Ok(3)];
        let end = close_gaps(&mut bulk, [2, 2, 4, 3].into_iter().zip(&lengths));
        assert_eq!(bulk[..end], *b"aabddd");
        let mut whole = b"aabb".to_vec();
        let end = close_gaps(&mut whole, [2, 2].into_iter().zip(&[Ok(2), Ok(2)]));
        assert_eq!(whole[..end], *b"aabb");
    }
}
