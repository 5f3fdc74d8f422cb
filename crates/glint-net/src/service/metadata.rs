//! Names and attributes: what an MDS executes.

use glint_proto::{Answer, Arrival, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest};
use std::future::{Future, ready};

/// Executes requests on the namespace, and says which part of it is whose.
///
/// Promises: a request with an id is executed once, however often it arrives; what is answered is
/// done, and lost only by a loss of power. A server without a namespace refuses, and is bound to
/// nobody's part of one: there the capabilities say what a client may do.
pub trait MetadataService {
    /// Executes a metadata request.
    fn execute_metadata(
        &self,
        _arrival: &Arrival<'_>,
        _cred: &Cred,
        _request: &MdsRequest<'_>,
    ) -> impl Future<Output = Answer<MdsReply>> {
        ready(Answer::unchanged(Err(Errno::EOPNOTSUPP)))
    }

    /// The directory at a path, as the root of a client that is bound to it.
    fn resolve(&self, _path: &str) -> impl Future<Output = FsResult<Ino>> {
        ready(Ok(Ino::ROOT))
    }

    /// Whether an inode is in the part of the tree below `top`.
    fn is_within(&self, _top: Ino, _ino: Ino) -> impl Future<Output = FsResult<bool>> {
        ready(Ok(false))
    }
}
