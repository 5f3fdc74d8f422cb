//! Reads from several objects in one request, each as if it had come alone.

use crate::server::execute::{DataRequest, Received};
use crate::server::worker::Worker;
use crate::{NetError, Service};
use futures_util::future::join_all;
use glint_proto::limits::{BULK_BYTES_MAX, OBJECT_READS_MAX};
use glint_proto::message::{ObjectRead, Reply};
use glint_proto::{Bulk, Errno, OstReply};
use std::rc::Rc;

impl<S: Service> Worker<S> {
    /// Reads from objects. Their data is in `bulk`, one after the other. All are begun before the
    /// first has come, so that a disk sees them together.
    pub(super) async fn read_objects(
        self: &Rc<Self>,
        received: &Received<'_, S>,
        reads: &[ObjectRead],
        bulk: &mut Vec<u8>,
    ) -> Result<Reply, NetError> {
        let session = received.session()?;
        let total: usize = reads.iter().map(|read| read.len as usize).sum();
        if reads.len() > OBJECT_READS_MAX || total > BULK_BYTES_MAX {
            return Ok(Reply::Failed(Errno::EINVAL));
        }
        bulk.resize(total, 0);
        let mut rest = &mut bulk[..];
        let lengths = join_all(reads.iter().map(|read| {
            let room;
            (room, rest) = std::mem::take(&mut rest).split_at_mut(read.len as usize);
            async move {
                let &ObjectRead { to, capability, .. } = read;
                let asked = DataRequest { to, request: read.request(), capability, forward: None };
                self.admit_ost(received.connection, session, &asked)?;
                let space = Bulk::In(room);
                match self.service.execute_data(session, to, asked.request, space).await.reply? {
                    OstReply::Data(len) => Ok(len),
                    _ => Err(Errno::EPROTO),
                }
            }
        }))
        .await;
        // Short ones leave gaps.
        let (mut start, mut end) = (0, 0);
        for (read, len) in reads.iter().zip(&lengths) {
            let len = len.as_ref().map_or(0, |len| *len as usize);
            if start != end {
                bulk.copy_within(start..start + len, end);
            }
            start += read.len as usize;
            end += len;
        }
        bulk.truncate(end);
        Ok(Reply::ObjectsRead(lengths))
    }
}
