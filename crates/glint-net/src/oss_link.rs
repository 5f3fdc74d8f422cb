//! The conversation of an OSS with the server of its MDS.
//!
//! Invariant: an answer is waited for no longer than [`PATIENCE`], so a server that is cut off
//! is noticed. Nothing here waits for a disk.

use crate::NetError;
use crate::client::link::{Link, PATIENCE};
use crate::transport::stream::Address;
use glint_proto::message::{Reply, Request};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::{ClientId, FsResult};

/// A connection of an OSS to the server of its MDS.
pub struct OssLink(Link);

impl OssLink {
    /// Connects, in the runtime of this thread or in its simulated world.
    pub async fn connect(address: &Address) -> Result<OssLink, NetError> {
        Link::open(address, ClientId::IN_PROCESS, PATIENCE).await.map(OssLink)
    }

    /// Says or asks something.
    pub async fn ask(&mut self, request: OssRequest) -> Result<FsResult<OssReply>, NetError> {
        answer(self.0.ask(&Request::Oss(request), PATIENCE).await?)
    }

    /// Asks several things at once. The answers are in the order of the requests.
    pub async fn ask_all(
        &mut self,
        requests: Vec<OssRequest>,
    ) -> Result<Vec<FsResult<OssReply>>, NetError> {
        let requests: Vec<Request<'_>> = requests.into_iter().map(Request::Oss).collect();
        self.0.ask_all(&requests, PATIENCE).await?.into_iter().map(answer).collect()
    }
}

fn answer(reply: Reply) -> Result<FsResult<OssReply>, NetError> {
    match reply {
        Reply::Oss(reply) => Ok(reply),
        _ => Err(NetError::Refused("it does not know what an OSS is".into())),
    }
}
