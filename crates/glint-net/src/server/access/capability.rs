//! Capabilities: what the MDS has allowed a session to do with the objects of a file, in a form
//! that every server of OSTs checks by itself. Sessions whose certificate limits nothing need
//! none: they could open any file as its owner.
//!
//! Invariants:
//! - Only the servers of a file system make one, because only they have the key.
//! - A capability is of one session, one inode and one set of rights. It ends with the session.
//! - A capability comes with the answer to a request that the MDS has executed for the caller that
//!   the certificate admits, and allows no more than that request did.

use glint_proto::capability::{SECRET_BYTES, SIGNATURE_BYTES};
use glint_proto::lock::Grant;
use glint_proto::message::{MdsReply, MdsRequest};
use glint_proto::{Access, Attr, Capability, Errno, FsResult, Ino, OpenFlags, OstRequest};
use ring::hmac;

/// Key that signs capabilities. All servers of a file system have the same.
pub struct Key(hmac::Key);

impl Key {
    /// The key of a file system with this secret.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// A capability.
    pub fn issue(&self, session: u64, ino: Ino, access: Access) -> Capability {
        let tag = hmac::sign(&self.0, &said(session, ino, access));
        let mut signature = [0; SIGNATURE_BYTES];
        signature.copy_from_slice(tag.as_ref());
        Capability { access, signature }
    }

    /// Rights that a capability gives a session on an inode; EACCES if it was issued for another.
    pub fn check(
        &self,
        session: u64,
        ino: Ino,
        capability: Option<Capability>,
    ) -> FsResult<Access> {
        let Capability { access, signature } = capability.ok_or(Errno::EACCES)?;
        hmac::verify(&self.0, &said(session, ino, access), &signature)
            .map_err(|_| Errno::EACCES)?;
        Ok(access)
    }

    /// Whether a session may have this executed by an OST.
    pub fn admit_ost(
        &self,
        session: u64,
        request: &OstRequest,
        capability: Option<Capability>,
    ) -> FsResult<()> {
        let Some(object) = request.object() else { return Ok(()) };
        let access = self.check(session, object.ino, capability)?;
        access.allows(request).then_some(()).ok_or(Errno::EACCES)
    }

    /// Whether a session may say to the MDS that something was its own before the server
    /// started again. `made` is the inode that a replay makes again, with its capability.
    pub fn admit_mds(
        &self,
        session: u64,
        request: &MdsRequest<'_>,
        made: Option<(Ino, Option<Capability>)>,
    ) -> FsResult<()> {
        let (ino, access, capability) = match (request, made) {
            (_, Some((ino, capability))) => (ino, Access::MADE, capability),
            (MdsRequest::Reopen { ino, writers: 1.., capability, .. }, _) => {
                (*ino, Access::WRITE, *capability)
            }
            (MdsRequest::Lock { ino, write, reclaim: true, capability, .. }, _) => {
                (*ino, if *write { Access::WRITE } else { Access::READ }, *capability)
            }
            _ => return Ok(()),
        };
        self.check(session, ino, capability)?.contains(access).then_some(()).ok_or(Errno::EACCES)
    }

    /// The capabilities that come with an answer.
    pub fn grants<'a>(
        &'a self,
        session: u64,
        request: &MdsRequest<'_>,
        reply: &'a MdsReply,
    ) -> impl Iterator<Item = Grant> + 'a {
        earned(request, reply).into_iter().map(move |(ino, access)| Grant::Capability {
            ino,
            capability: self.issue(session, ino, access),
        })
    }
}

/// Bytes that are signed.
fn said(session: u64, ino: Ino, access: Access) -> [u8; 17] {
    let mut said = [access.0; 17];
    said[..8].copy_from_slice(&session.to_be_bytes());
    said[8..16].copy_from_slice(&ino.0.to_be_bytes());
    said
}

fn opened(flags: OpenFlags) -> Access {
    let mut access = Access::STAT;
    if flags.read || flags.exec {
        access = access | Access::READ;
    }
    if flags.write || flags.truncate {
        access = access | Access::WRITE;
    }
    access
}

/// The inode that a request has made, as its answer says.
pub fn made(request: &MdsRequest<'_>, reply: &MdsReply) -> Option<Ino> {
    match (request, reply) {
        (
            MdsRequest::Create { .. } | MdsRequest::Tmpfile { .. },
            MdsReply::Attr(attr) | MdsReply::Opened { attr, created: true },
        ) => Some(attr.ino),
        _ => None,
    }
}

/// Rights that the caller gets with this answer.
fn earned(request: &MdsRequest<'_>, reply: &MdsReply) -> Vec<(Ino, Access)> {
    // Sizes of files that are being written are asked from their objects.
    let sizes = |attr: &Attr| (attr.is_file() && attr.size_on_ost).then_some(attr.ino);
    let attr = match reply {
        MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } | MdsReply::Glimpsed { attr, .. } => {
            attr
        }
        MdsReply::Dir(page) => {
            let attrs = page.entries.iter().filter_map(|entry| entry.attr.as_ref());
            return attrs.filter_map(sizes).map(|ino| (ino, Access::STAT)).collect();
        }
        _ => return Vec::new(),
    };
    let access = match request {
        MdsRequest::Open { flags, .. } => Some(opened(*flags)),
        // To copy the data: only the owner and administrators may plan.
        MdsRequest::PlanLayout { .. } => Some(Access::STAT | Access::READ | Access::WRITE),
        MdsRequest::Create { open: Some(flags), .. } => Some(opened(*flags)),
        MdsRequest::Tmpfile { .. } => Some(Access::READ | Access::WRITE),
        MdsRequest::Setattr { set, .. } if set.size.is_some() => Some(Access::WRITE),
        MdsRequest::Setattr { set, .. } if set.mtime.is_some() => Some(Access::TIMES),
        _ => None,
    };
    let access = match made(request, reply) {
        Some(_) => Some(access.unwrap_or_default() | Access::MADE),
        None => access.filter(|_| attr.is_file()),
    };
    let access = access.or(sizes(attr).map(|_| Access::STAT));
    access.map(|access| (attr.ino, access)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{Layout, ObjectId, SetAttr, Timestamp};

    fn read(ino: u64) -> OstRequest {
        OstRequest::Read { object: ObjectId { ino: Ino(ino), stripe: 3 }, offset: 0, len: 1 }
    }

    #[test]
    fn a_capability_is_of_one_session_one_inode_and_its_rights() {
        let (key, other) = (Key::new(&[7; SECRET_BYTES]), Key::new(&[8; SECRET_BYTES]));
        let capability = Some(key.issue(5, Ino(66), Access::READ));
        assert_eq!(key.admit_ost(5, &read(66), capability), Ok(()));
        assert_eq!(key.admit_ost(6, &read(66), capability), Err(Errno::EACCES));
        assert_eq!(key.admit_ost(5, &read(67), capability), Err(Errno::EACCES));
        assert_eq!(key.admit_ost(5, &read(66), None), Err(Errno::EACCES));
        assert_eq!(other.admit_ost(5, &read(66), capability), Err(Errno::EACCES));
        let object = ObjectId { ino: Ino(66), stripe: 0 };
        let truncate = OstRequest::Truncate { object, size: 0 };
        assert_eq!(key.admit_ost(5, &truncate, capability), Err(Errno::EACCES));
        let more = capability.map(|c| Capability { access: Access::READ | Access::WRITE, ..c });
        assert_eq!(key.admit_ost(5, &truncate, more), Err(Errno::EACCES));
        assert_eq!(key.admit_ost(5, &OstRequest::Stat { object }, capability), Ok(()));
        assert_eq!(key.admit_ost(5, &OstRequest::Space, None), Ok(()));
    }

    #[test]
    fn what_belonged_to_a_session_has_to_be_proven() {
        let key = Key::new(&[7; SECRET_BYTES]);
        let (ino, readable) = (Ino(66), Some(key.issue(5, Ino(66), Access::READ)));
        let range = glint_proto::lock::Range::ALL;
        let lock =
            |write| MdsRequest::Lock { ino, range, write, reclaim: true, capability: readable };
        assert_eq!(key.admit_mds(5, &lock(false), None), Ok(()));
        assert_eq!(key.admit_mds(5, &lock(true), None), Err(Errno::EACCES));
        let reopen =
            |writers| MdsRequest::Reopen { ino, readers: 1, writers, capability: readable };
        assert_eq!(key.admit_mds(5, &reopen(0), None), Ok(()));
        assert_eq!(key.admit_mds(5, &reopen(1), None), Err(Errno::EACCES));
        let made = Some(key.issue(5, ino, Access::MADE));
        assert_eq!(key.admit_mds(5, &MdsRequest::Statfs, Some((ino, made))), Ok(()));
        for capability in [None, readable, made.map(|c| Capability { signature: [0; 32], ..c })] {
            let answer = key.admit_mds(5, &MdsRequest::Statfs, Some((ino, capability)));
            assert_eq!(answer, Err(Errno::EACCES));
        }
    }

    #[test]
    fn an_answer_allows_no_more_than_was_asked() {
        let time = Timestamp::default();
        let attr = |mode, size_on_ost| Attr {
            ino: Ino(9),
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            size_on_ost,
            has_no_xattrs: true,
            mtime_set: false,
            layout: Layout::default(),
        };
        let file = || MdsReply::Attr(attr(0o100600, false));
        let open = |read, write, truncate| MdsRequest::Open {
            ino: Ino(9),
            flags: OpenFlags { read, write, truncate, ..OpenFlags::default() },
        };
        let of = |request: &MdsRequest<'_>, reply: &MdsReply| {
            let earned = earned(request, reply);
            assert!(earned.len() <= 1 && earned.iter().all(|(ino, _)| *ino == Ino(9)));
            earned.first().map(|(_, access)| *access)
        };
        assert_eq!(of(&open(true, false, false), &file()), Some(Access::READ));
        assert_eq!(of(&open(false, true, false), &file()), Some(Access::WRITE));
        assert_eq!(of(&open(true, false, true), &file()), Some(Access::READ | Access::WRITE));
        let directory = MdsReply::Attr(attr(0o040755, false));
        assert_eq!(of(&open(true, false, false), &directory), None);
        let set = |size, mtime| MdsRequest::Setattr {
            ino: Ino(9),
            set: SetAttr { size, mtime, mode: Some(0o600), ..SetAttr::default() },
        };
        let now = Some(glint_proto::SetTime::Now);
        assert_eq!(of(&set(Some(0), now), &file()), Some(Access::WRITE));
        assert_eq!(of(&set(None, now), &file()), Some(Access::TIMES));
        assert_eq!(of(&set(None, None), &file()), None);
        let getattr = MdsRequest::Getattr { ino: Ino(9) };
        assert_eq!(of(&getattr, &file()), None);
        assert_eq!(of(&getattr, &MdsReply::Attr(attr(0o100600, true))), Some(Access::STAT));
        assert_eq!(of(&getattr, &MdsReply::Done), None);
    }
}
