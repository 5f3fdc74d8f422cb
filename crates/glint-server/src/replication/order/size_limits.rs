//! Largest objects of chains: no larger than the smallest of their members can have.
//!
//! Invariant: a change that some member cannot make because of its file system, or that no member
//! can make because of what it asks for, takes no member out.

use crate::replication::{Here, Replication};
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, Touched};
use glint_proto::{Bulk, Errno, FsResult, OstReply, OstRequest};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Size of an object that every file system can have: nobody is asked about smaller ones.
const ALWAYS_FITS: u64 = i32::MAX as u64;

/// Limits that were asked for: of each chain, with the version of its row.
#[derive(Default)]
pub(in crate::replication) struct SizeLimits(Mutex<HashMap<u16, (u32, u64)>>);

/// Whether an error says something about the request, and nothing about the disk of the member
/// that returns it.
pub(in crate::replication) fn is_of_request(errno: Errno) -> bool {
    matches!(errno, Errno::EFBIG | Errno::EINVAL | Errno::EOPNOTSUPP)
}

/// Where an object ends at least, once a request has been executed.
fn end_after(request: &OstRequest, touched: &Touched) -> u64 {
    match *request {
        OstRequest::Truncate { size, .. } => size,
        OstRequest::Fallocate { mode, .. } if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 => 0,
        OstRequest::Fallocate { offset, len, .. } => offset.saturating_add(len),
        _ if request.is_write() => touched.end,
        _ => 0,
    }
}

impl Replication {
    /// Refuses a change after which the object would be larger than a member can have it: EFBIG.
    pub(in crate::replication) async fn fits<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        request: &OstRequest,
        touched: &Touched,
    ) -> FsResult<()> {
        let end = end_after(request, touched);
        if end <= ALWAYS_FITS {
            return Ok(());
        }
        match end <= self.size_limit(here, (head, row)).await {
            true => Ok(()),
            false => Err(Errno::EFBIG),
        }
    }

    /// Asks all members that are written, once for each version of the row.
    async fn size_limit<D: Disk>(&self, here: Here<'_, D>, (head, row): (u16, &Chain)) -> u64 {
        let target = row.id.target();
        let known = self.size_limits.0.lock().get(&target).copied();
        if let Some((version, limit)) = known
            && version == row.version
        {
            return limit;
        }
        let mut least = u64::MAX;
        for member in row.written() {
            let ask = OstRequest::GrantSpace { bytes: 0 };
            let asked = match member == head {
                true => self.own(here, (member, row), ask, Bulk::None).await,
                false => self.give(here, (member, row), ask, None).await,
            };
            match asked {
                Ok(OstReply::SpaceGranted { object_bytes_max, .. }) => {
                    least = least.min(object_bytes_max);
                }
                // A member that does not answer will not make the change either.
                _ => return least,
            }
        }
        self.size_limits.0.lock().insert(target, (row.version, least));
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{Ino, ObjectId};

    #[test]
    fn the_end_of_an_object_is_that_after_the_change() {
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        let touched = Touched { object, start: 5, end: 9 };
        let fallocate = |mode| OstRequest::Fallocate { object, mode, offset: 10, len: u64::MAX };
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let ends = [
            OstRequest::Write { object, offset: 5, mtime: None, kept: false },
            OstRequest::Truncate { object, size: 77 },
            fallocate(0),
            fallocate(punch),
            OstRequest::Sync { object },
        ]
        .map(|request| end_after(&request, &touched));
        assert_eq!(ends, [9, 77, u64::MAX, 0, 0]);
    }
}
