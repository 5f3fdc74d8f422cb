//! Reads from many objects: one request to each server that has some of them.
//!
//! Invariants:
//! - No chain is waited for here. What has no member that can be read now, or whose member cannot be
//!   read any more, is EAGAIN, and whoever needs it asks for it alone.
//! - What one server has answered waits for no other.

use crate::client::cluster::{AGAIN_MIN, Cluster};
use crate::client::transport::{OstRequests, Transport};
use futures_util::future::join_all;
use glint_proto::chain::ChainId;
use glint_proto::message::ObjectRead;
use glint_proto::{Errno, FsResult};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A read, its place among all, and the target that its object lies on.
struct PlacedRead {
    at: usize,
    target: u16,
    read: ObjectRead,
}

type Says<'a> = &'a dyn Fn(usize, FsResult<Vec<u8>>);

impl<M: Transport> Cluster<M> {
    /// See [`OstRequests::read_objects`].
    pub(super) async fn read_of_servers(&self, reads: Vec<ObjectRead>, says: Says<'_>) {
        let mut of_servers: BTreeMap<u16, Vec<PlacedRead>> = BTreeMap::new();
        for (at, mut read) in reads.into_iter().enumerate() {
            let target = read.to.ost;
            if ChainId::of_target(target).is_some() {
                let near = |ost| self.is_near(ost);
                match self.rows.destination(target, &read.request(), near) {
                    Some(to) if self.rows.is_readable(target, to.ost) => read.to = to,
                    _ => {
                        says(at, Err(Errno::EAGAIN));
                        continue;
                    }
                }
            }
            let server = self.server_of(read.to.ost);
            of_servers.entry(server).or_default().push(PlacedRead { at, target, read });
        }
        let asked =
            of_servers.iter().map(|(server, reads)| self.read_of_server(*server, reads, says));
        join_all(asked).await;
    }

    /// Asks one server, until a member of a chain that it has cannot be read any more.
    async fn read_of_server(&self, ost: u16, reads: &[PlacedRead], says: Says<'_>) {
        let has_other_rows = Cell::new(false);
        let heard = |at: usize, data: FsResult<Vec<u8>>| {
            has_other_rows.set(has_other_rows.get() || data == Err(Errno::EREMCHG));
            says(reads[at].at, data);
        };
        let asked = async {
            let reads: Vec<ObjectRead> = reads.iter().map(|placed| placed.read).collect();
            let count = reads.len();
            if ost < self.welcome.own_osts {
                return self.mds.read_objects(reads, &heard).await;
            }
            match self.oss_of(ost).await {
                Ok(remote) => remote.read_objects(reads, &heard).await,
                Err(errno) => (0..count).for_each(|at| heard(at, Err(errno))),
            }
        };
        if reads.iter().all(|placed| placed.read.to.chain.is_none()) {
            return asked.await;
        }
        let is_gone = |PlacedRead { target, read, .. }: &PlacedRead| {
            read.to.chain.is_some() && !self.rows.is_readable(*target, read.to.ost)
        };
        futures_lite::future::or(asked, async {
            self.until_rows(|| reads.iter().any(is_gone)).await;
            reads.iter().for_each(|placed| says(placed.at, Err(Errno::EAGAIN)));
        })
        .await;
        if has_other_rows.get() {
            // Whoever reads alone sees what fails here.
            let _ = self.ask_rows(AGAIN_MIN).await;
        }
    }
}
