//! The process itself: its state, its threads, and the other servers of the cluster.

use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::watch::Beat;
use glint_proto::{Errno, FsResult};
use std::future::{Future, ready};

/// Says how a server is, and answers other servers.
///
/// Promises: what is answered from memory waits for no disk. A server that is not the one with the
/// MDS refuses other servers, and counts no beats.
pub trait AdminService {
    /// State dump as JSON.
    fn status(&self) -> String;

    /// Begins to compare stored data with its checksums, or ends that. Returns at once.
    fn scrub(&self, begins: bool);

    /// Answers another server of OSTs, whose certificate has this name.
    fn execute_oss(
        &self,
        _name: Option<&str>,
        _request: OssRequest,
    ) -> impl Future<Output = FsResult<OssReply>> {
        ready(Err(Errno::EOPNOTSUPP))
    }

    /// Whether what a server of OSTs, whose certificate has this name, says or asks is answered
    /// from memory.
    fn knows_oss(&self, _name: Option<&str>, _request: &OssRequest) -> bool {
        false
    }

    /// How one more thread that hears clients says that it runs, if somebody counts.
    fn beat(&self) -> Option<Beat> {
        None
    }
}
