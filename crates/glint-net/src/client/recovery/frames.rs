//! Frames of this client, taken apart again: a request under way is kept only as it was sent.

use crate::client::recovery::replay_log::Object;
use glint_proto::chain::ChainVersion;
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::lock::Grant;
use glint_proto::message::Request;
use glint_proto::{Access, Capability};

/// Capability that says that the inode of an answer was made in this session.
pub(crate) fn capability_of(grants: &[Grant]) -> Option<Capability> {
    grants.iter().find_map(|grant| match grant {
        Grant::Capability { capability, .. } if capability.access.contains(Access::MADE) => {
            Some(*capability)
        }
        _ => None,
    })
}

/// Object that a frame of this client changes, if it changes one. What the head of a chain has
/// other members do is none of its own changes: another takeover brings it to them again.
pub(crate) fn object_of(frame: &[u8]) -> Option<Object> {
    match parse(frame)?.1 {
        Request::Ost { to, request, forward: None, .. } => Some((to.target(), request.object()?)),
        _ => None,
    }
}

/// Whether a frame of this client asks a chain for something, or another member of one.
pub(crate) fn is_of_chain(frame: &[u8]) -> bool {
    match parse(frame) {
        Some((_, Request::Ost { to, .. })) => to.chain.is_some(),
        Some((_, Request::ReadObjects(reads))) => reads.iter().any(|read| read.to.chain.is_some()),
        _ => false,
    }
}

/// Member and chain, in this version, that a frame of this client has changed.
pub(crate) fn changed_chain(frame: &[u8]) -> Option<(u16, ChainVersion)> {
    match parse(frame)?.1 {
        Request::Ost { to, request, forward: None, .. } if request.is_modifying() => {
            Some((to.ost, to.chain?))
        }
        _ => None,
    }
}

/// Capability that a request for data was sent with.
pub(crate) fn capability_sent(frame: &[u8]) -> Option<Capability> {
    match parse(frame)?.1 {
        Request::Ost { capability, .. } => capability,
        _ => None,
    }
}

/// Bulk data in a frame of this client.
pub(crate) fn bulk_of(frame: &[u8]) -> &[u8] {
    let header = frame.first_chunk::<HEADER_BYTES>().and_then(|bytes| Header::decode(bytes).ok());
    let end = header.map_or(0, |header| HEADER_BYTES + header.body_len as usize);
    frame.get(end..).unwrap_or_default()
}

/// A frame of this client, taken apart again.
pub(crate) fn parse(frame: &[u8]) -> Option<(Header, Request<'_>)> {
    let header = Header::decode(frame.first_chunk::<HEADER_BYTES>()?).ok()?;
    let body = frame.get(HEADER_BYTES..HEADER_BYTES + header.body_len as usize)?;
    Some((header, glint_proto::message::decode(body).ok()?))
}
