//! Reads from many objects: one request to each server that has some of them.
//!
//! Invariant: nothing waits here for a chain. What has no member that can be read now, or whose member
//! is away, is EAGAIN, and whoever needs it asks for it alone.

use crate::client::cluster::Cluster;
use crate::client::transport::{OstRequests, Transport};
use futures_util::future::join_all;
use glint_proto::chain::ChainId;
use glint_proto::message::ObjectRead;
use glint_proto::{Errno, FsResult};
use std::collections::BTreeMap;

/// A read, its place among all, and the target that its object lies on.
struct PlacedRead {
    at: usize,
    target: u16,
    read: ObjectRead,
}

impl<M: Transport> Cluster<M> {
    /// See [`OstRequests::read_objects`].
    pub(super) async fn read_of_servers(&self, reads: Vec<ObjectRead>) -> Vec<FsResult<Vec<u8>>> {
        let mut read = vec![Err(Errno::EAGAIN); reads.len()];
        let mut of_servers: BTreeMap<u16, Vec<PlacedRead>> = BTreeMap::new();
        for (at, mut read) in reads.into_iter().enumerate() {
            let target = read.to.ost;
            if ChainId::of_target(target).is_some() {
                let near = |ost| self.is_near(ost);
                match self.rows.destination(target, &read.request(), near) {
                    Some(to) if !self.rows.moved.is_moving(target) => read.to = to,
                    _ => continue,
                }
            }
            let server = self.server_of(read.to.ost);
            of_servers.entry(server).or_default().push(PlacedRead { at, target, read });
        }
        let asked = of_servers.into_iter().map(async |(server, reads)| {
            let answers = self.read_of_server(server, &reads).await;
            (reads, answers)
        });
        for (reads, answers) in join_all(asked).await {
            for (placed, answer) in reads.iter().zip(answers) {
                read[placed.at] = answer;
            }
        }
        read
    }

    /// Asks one server, until members of chains that it has are not read there any more.
    async fn read_of_server(&self, ost: u16, reads: &[PlacedRead]) -> Vec<FsResult<Vec<u8>>> {
        let asked = async {
            let reads: Vec<ObjectRead> = reads.iter().map(|placed| placed.read).collect();
            if ost < self.welcome.own_osts {
                return self.mds.read_objects(reads).await;
            }
            match self.oss_of(ost).await {
                Ok(remote) => remote.read_objects(reads).await,
                Err(errno) => vec![Err(errno); reads.len()],
            }
        };
        if reads.iter().all(|placed| placed.read.to.chain.is_none()) {
            return asked.await;
        }
        let is_elsewhere = |PlacedRead { target, read, .. }: &PlacedRead| {
            read.to.chain.is_some() && self.is_elsewhere(*target, &read.request(), read.to)
        };
        futures_lite::future::or(asked, async {
            self.until_rows(|| reads.iter().any(is_elsewhere)).await;
            vec![Err(Errno::EAGAIN); reads.len()]
        })
        .await
    }
}
