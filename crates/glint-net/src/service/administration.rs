//! The process itself: its state, its threads, and the other servers of the cluster.

use glint_proto::message::{BalanceTurn, DrainOst, GiveUp, NamespacePage, NamespaceQuery};
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

    /// Has heal rest, on all servers and until it is to go on; EOPNOTSUPP if this is not the server
    /// that decides that.
    fn pause_heal(&self, _paused: bool) -> impl Future<Output = FsResult<()>> {
        ready(Err(Errno::EOPNOTSUPP))
    }

    /// Says what is lost with an OST that does not exist any more, or gives it up. The answer is
    /// JSON, an error a sentence for people.
    fn give_up_ost(&self, _request: GiveUp) -> impl Future<Output = Result<String, String>> {
        ready(Err("only the server with the MDS can give up an OST; ask that".into()))
    }

    /// Has files leave an OST, or says which are there. The answer is JSON, an error a sentence for
    /// people.
    fn drain_ost(&self, _request: DrainOst) -> impl Future<Output = Result<String, String>> {
        ready(Err("only the server with the MDS can drain an OST; ask that".into()))
    }

    /// Gives a command that moves files between OSTs its turn, or ends that. The answer is JSON, an
    /// error a sentence for people.
    fn balance_turn(&self, _request: BalanceTurn) -> impl Future<Output = Result<String, String>> {
        ready(Err("only the server with the MDS knows all OSTs; ask that".into()))
    }

    /// Reads a part of the namespace or of the objects, for a check of it. An error is a sentence
    /// for people.
    fn check_namespace(
        &self,
        _query: NamespaceQuery,
    ) -> impl Future<Output = Result<NamespacePage, String>> {
        ready(Err("only the server with the MDS has a namespace; ask that".into()))
    }

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
