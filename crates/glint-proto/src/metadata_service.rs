//! Names and attributes: the interface by which a network's server asks an MDS, without a crate
//! between the two.

use crate::{Answer, Arrival, Cred, Errno, FsResult, Ino, MdsReply, MdsRequest};
use std::future::{Future, ready};

/// Executes requests on the namespace, and says which part of it is whose.
///
/// Promises: a request with an id is executed once, however often it arrives; what is answered is
/// done, and lost only by a loss of power.
pub trait MetadataService {
    /// Executes a metadata request.
    fn handle(
        &self,
        arrival: &Arrival<'_>,
        cred: &Cred,
        request: &MdsRequest<'_>,
    ) -> impl Future<Output = Answer<MdsReply>>;

    /// The directory at a path, as the root of a client that is bound to it.
    fn resolve(&self, path: &str) -> impl Future<Output = FsResult<Ino>>;

    /// Whether an inode is in the part of the tree below `top`, or is it.
    fn is_within(&self, top: Ino, ino: Ino) -> impl Future<Output = FsResult<bool>>;
}

/// The namespace of a server that has none: EOPNOTSUPP to each request. Nobody is bound to a part
/// of it; there the capabilities say what a client may do.
#[derive(Debug)]
pub struct NoNamespace;

impl MetadataService for NoNamespace {
    fn handle(
        &self,
        _: &Arrival<'_>,
        _: &Cred,
        _: &MdsRequest<'_>,
    ) -> impl Future<Output = Answer<MdsReply>> {
        ready(Answer::unchanged(Err(Errno::EOPNOTSUPP)))
    }

    fn resolve(&self, _: &str) -> impl Future<Output = FsResult<Ino>> {
        ready(Ok(Ino::ROOT))
    }

    fn is_within(&self, _: Ino, _: Ino) -> impl Future<Output = FsResult<bool>> {
        ready(Ok(false))
    }
}
