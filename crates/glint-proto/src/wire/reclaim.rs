//! Reclaims: opens, locks and delegations that a client says again to a server that has started
//! again, or has evicted it. Many of these travel in one request, and each is executed as if it had
//! come alone.
//!
//! Invariant: to say one twice does no harm, and their order means nothing.

#![allow(missing_docs)] // Each is described where it is asked for alone.

use crate::lock::Range;
use crate::{Capability, Ino, MdsRequest, PosixLock, PosixLockHow};
use serde::{Deserialize, Serialize};

/// Something that a client had.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reclaim {
    /// [`MdsRequest::Reopen`].
    Open { ino: Ino, readers: u32, writers: u32, capability: Option<Capability> },
    /// [`MdsRequest::WritesBack`].
    WritesBack { epoch: u64 },
    /// [`MdsRequest::ReclaimDelegation`].
    Delegation { ino: Ino },
    /// [`MdsRequest::Lock`].
    Lock { ino: Ino, range: Range, write: bool, capability: Option<Capability> },
    /// [`MdsRequest::PosixLock`].
    PosixLock(PosixLock),
}

impl Reclaim {
    /// Reclaim that a request makes; `None` if it is another request.
    pub fn of(request: &MdsRequest<'_>) -> Option<Reclaim> {
        Some(match *request {
            MdsRequest::Reopen { ino, readers, writers, capability } => {
                Reclaim::Open { ino, readers, writers, capability }
            }
            MdsRequest::WritesBack { epoch } => Reclaim::WritesBack { epoch },
            MdsRequest::ReclaimDelegation { ino } => Reclaim::Delegation { ino },
            MdsRequest::Lock { ino, range, write, reclaim: true, capability } => {
                Reclaim::Lock { ino, range, write, capability }
            }
            MdsRequest::PosixLock(lock) if lock.how == PosixLockHow::Reclaim => {
                Reclaim::PosixLock(lock)
            }
            _ => return None,
        })
    }

    /// The request that says only this.
    pub fn request(&self) -> MdsRequest<'static> {
        match *self {
            Reclaim::Open { ino, readers, writers, capability } => {
                MdsRequest::Reopen { ino, readers, writers, capability }
            }
            Reclaim::WritesBack { epoch } => MdsRequest::WritesBack { epoch },
            Reclaim::Delegation { ino } => MdsRequest::ReclaimDelegation { ino },
            Reclaim::Lock { ino, range, write, capability } => {
                MdsRequest::Lock { ino, range, write, reclaim: true, capability }
            }
            Reclaim::PosixLock(lock) => {
                MdsRequest::PosixLock(PosixLock { how: PosixLockHow::Reclaim, ..lock })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::{BODY_BYTES_MAX, RECLAIMS_MAX};
    use crate::message::Request;
    use crate::message::encode;
    use crate::{Access, PosixLockMode};

    #[test]
    fn as_many_as_may_be_fit_into_a_frame_and_none_changes_anything() {
        let (ino, range) = (Ino(u64::MAX), Range { start: u64::MAX - 1, end: u64::MAX });
        let capability = Some(Capability { access: Access(255), signature: [255; 32] });
        let lock = PosixLock {
            ino,
            owner: u64::MAX,
            pid: u32::MAX,
            range,
            mode: PosixLockMode::Write,
            flock: true,
            how: PosixLockHow::Wait,
            ticket: u64::MAX,
        };
        let (readers, writers) = (u32::MAX, u32::MAX);
        for item in [
            Reclaim::Open { ino, readers, writers, capability },
            Reclaim::WritesBack { epoch: u64::MAX },
            Reclaim::Delegation { ino },
            Reclaim::Lock { ino, range, write: true, capability },
            Reclaim::PosixLock(lock),
        ] {
            let how = |item: &Reclaim| match item {
                Reclaim::PosixLock(lock) => {
                    Reclaim::PosixLock(PosixLock { how: PosixLockHow::Reclaim, ..*lock })
                }
                item => item.clone(),
            };
            assert_eq!(Reclaim::of(&item.request()), Some(how(&item)));
            assert!(!item.request().is_modifying() && !item.request().is_patient(), "{item:?}");
            let mut body = Vec::new();
            encode(&Request::Reclaim(vec![item; RECLAIMS_MAX]), &mut body).unwrap();
            assert!(body.len() < BODY_BYTES_MAX / 2, "{}", body.len());
        }
    }
}
