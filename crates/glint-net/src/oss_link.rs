//! The conversation of an OSS with the server of its MDS.
//!
//! Invariant: an answer is waited for no longer than [`PATIENCE`], so a server that is cut off
//! is noticed. Nothing here waits for a disk.

use crate::client::recovery::ask;
use crate::client::remote::explain_early_end;
use crate::transport::frame_writer::{FrameWriter, KeptFrame};
use crate::transport::framing::{Envelope, FrameReader, request_frame};
use crate::transport::stream::Address;
use crate::{NetError, host};
use futures_util::future::{Either, select};
use glint_proto::message::{Reply, Request};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::{ClientId, FsResult};
use std::io::ErrorKind;
use std::pin::pin;
use std::time::Duration;

/// Longest time for a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection of an OSS to the server of its MDS.
pub struct OssLink {
    writer: FrameWriter,
    reader: FrameReader,
    address: Address,
    /// The server has answered.
    is_heard: bool,
}

/// Result of `work`, or `TimedOut` after [`PATIENCE`].
async fn in_time<T>(
    what: &str,
    work: impl Future<Output = Result<T, NetError>>,
) -> Result<T, NetError> {
    match select(pin!(work), pin!(host::sleep(PATIENCE))).await {
        Either::Left((result, _)) => result,
        Either::Right(_) => {
            Err(NetError::Io { what: what.to_owned(), source: ErrorKind::TimedOut.into() })
        }
    }
}

impl OssLink {
    /// Connects, in the runtime of this thread or in its simulated world.
    pub async fn connect(address: &Address) -> Result<OssLink, NetError> {
        let connecting = async {
            let io = |source| NetError::Io { what: "connecting".into(), source };
            address.connect().await.map_err(io)
        };
        let stream = in_time("connecting", connecting).await;
        let stream = stream.map_err(|error| explain_early_end(error, address))?;
        let (writer, reader) = (FrameWriter::new(stream.clone()), FrameReader::new(stream));
        Ok(OssLink { writer, reader, address: address.clone(), is_heard: false })
    }

    /// Says or asks something.
    pub async fn ask(&mut self, request: OssRequest) -> Result<FsResult<OssReply>, NetError> {
        let request = Request::Oss(request);
        let frame = KeptFrame::from(request_frame(
            Envelope::request(request.op(), ClientId::IN_PROCESS),
            &request,
        )?);
        let asking = ask(&self.writer, &mut self.reader, &frame);
        let reply = match (in_time("waiting for an answer", asking).await, self.is_heard) {
            (Err(error), false) => return Err(explain_early_end(error, &self.address)),
            (reply, _) => reply?,
        };
        self.is_heard = true;
        match reply {
            Reply::Oss(reply) => Ok(reply),
            _ => Err(NetError::Refused("it does not know what an OSS is".into())),
        }
    }
}
