//! What is not executed, or not answered, and why.

use crate::NetError;
use glint_proto::chain::Destination;
use glint_proto::frame::{Header, NO_SLOT};
use glint_proto::limits::{CONNECTIONS_PER_CLIENT_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request};
use glint_proto::{Errno, FsResult, MdsReply, OstRequest};

/// Slots of a client, over all its connections.
const SLOTS_MAX: u16 = SLOTS_PER_CONNECTION * CONNECTIONS_PER_CLIENT_MAX;
const _: () = assert!(SLOTS_MAX < NO_SLOT);

pub(crate) fn refused(reason: &str) -> NetError {
    NetError::Refused(reason.into())
}

pub(crate) fn metadata_failed(errno: Errno) -> Reply {
    metadata_unexecuted(Err(errno))
}

/// Reply to a metadata request that was not executed.
pub(crate) fn metadata_unexecuted(reply: FsResult<MdsReply>) -> Reply {
    Reply::Mds { transaction: 0, reply, grants: Vec::new() }
}

/// True if a reply may say no more than that the server's own disk has failed.
pub(crate) fn failed_with_disk(reply: &Reply) -> bool {
    let of_mds = |reply: &FsResult<MdsReply>| match reply {
        Ok(MdsReply::Batched { failed, .. }) => failed.iter().any(|(_, errno)| is_of_disk(errno)),
        reply => has_failed(reply),
    };
    match reply {
        Reply::Mds { reply, .. } => of_mds(reply),
        Reply::Ost { reply, .. } => has_failed(reply),
        Reply::Reclaimed(replies) => replies.iter().any(of_mds),
        Reply::ObjectsRead(read) => read.iter().any(has_failed),
        _ => false,
    }
}

fn has_failed<T>(reply: &FsResult<T>) -> bool {
    reply.as_ref().is_err_and(is_of_disk)
}

fn is_of_disk(errno: &Errno) -> bool {
    matches!(*errno, Errno::EIO | Errno::EROFS)
}

/// Refuses to change or read an object with copies at one OST alone: copies would differ for good.
pub(crate) fn check_target(to: Destination, request: &OstRequest) -> FsResult<()> {
    let is_alone =
        request.object().is_some_and(|object| object.is_of_chain() && to.chain.is_none());
    if is_alone { Err(Errno::EACCES) } else { Ok(()) }
}

/// Refuses a slot that a client cannot have, whose replies are remembered for each of its slots,
/// and a change without one.
pub(crate) fn check_slot(header: &Header, request: &Request<'_>) -> Result<(), NetError> {
    if header.slot == NO_SLOT {
        let changes = match request {
            Request::Mds { request, .. } | Request::Replay { request, .. } => {
                request.is_modifying()
            }
            Request::Ost { request, .. } => request.is_modifying(),
            _ => false,
        };
        return if changes { Err(refused("a change without a slot")) } else { Ok(()) };
    }
    if header.slot >= SLOTS_MAX {
        let reason = format!("slot {}: a client has {SLOTS_MAX}", header.slot);
        return Err(NetError::Refused(reason));
    }
    Ok(())
}

/// Why a hello was not good.
pub(crate) fn not_admitted(errno: Errno) -> NetError {
    NetError::Refused(match errno {
        Errno::EACCES => "the client of this id has shown another certificate or secret".into(),
        Errno::EMFILE => "there are too many clients, of its certificate or in all".into(),
        Errno::EAGAIN => "not yet: what it did before is being ended, or the server of the MDS, \
                          which knows it, is away or busy"
            .into(),
        Errno::ESTALE => "its session is over".into(),
        Errno::ENAMETOOLONG => "its host or its mount point has too long a name".into(),
        errno => errno.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::chain::ChainVersion;
    use glint_proto::{Ino, ObjectId};

    #[test]
    fn an_object_with_copies_is_not_changed_at_one_ost_alone() {
        let member = ChainVersion { target: 0xa000, version: 3 };
        for (stripe, is_of_chain) in [(0, false), (0x7fff, false), (0x8000, true), (0x8005, true)] {
            let object = ObjectId { ino: Ino(7), stripe };
            let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
            assert_eq!(check_target(Destination::from(1), &write).is_err(), is_of_chain);
            assert_eq!(check_target(Destination { ost: 1, chain: Some(member) }, &write), Ok(()));
        }
        assert_eq!(check_target(Destination::from(1), &OstRequest::Space), Ok(()));
    }

    #[test]
    fn any_change_of_several_may_have_failed_with_the_disk() {
        let batch =
            |failed: &[(u32, Errno)]| Ok(MdsReply::Batched { done: 3, failed: failed.into() });
        let reclaimed = |replies| failed_with_disk(&Reply::Reclaimed(replies));
        assert!(reclaimed(vec![batch(&[(0, Errno::ENOENT), (2, Errno::EIO)])]));
        assert!(reclaimed(vec![Err(Errno::ENOENT), Err(Errno::EROFS)]));
        assert!(!reclaimed(vec![batch(&[(0, Errno::ENOENT)]), Err(Errno::ESTALE)]));
        assert!(!reclaimed(vec![batch(&[]), Ok(MdsReply::Done)]));
        let read = |read| failed_with_disk(&Reply::ObjectsRead(read));
        assert!(read(vec![Ok(1), Err(Errno::EIO)]) && !read(vec![Ok(1), Err(Errno::EREMCHG)]));
    }
}
