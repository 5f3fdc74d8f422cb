//! Ranges of an object that a request changes: copies that have not executed it lack them, they are in
//! doubt while it may be executed in some copies only, and a watch of the object tells them.
//!
//! A truncation changes all bytes behind the size. A write or an allocation that makes the object
//! longer changes no more than its own range: bytes between the former end and the range are zeros in
//! each copy that is given the size, and whoever copies a range gives the size with it.

use super::Extents;
use crate::FsResult;
use crate::message::OstRequest;

/// Range of a change of times: it has no bytes, and adds none to a cover of several ranges.
const NO_BYTES: (u64, u64) = (u64::MAX, 0);

/// Ranges of an object that a request changes, each as its beginning and its end.
#[derive(Clone, Debug, Default)]
pub struct ChangedRanges<'a> {
    first: Option<(u64, u64)>,
    extents: Option<Extents<'a>>,
}

impl OstRequest {
    /// Ranges of its object that this request changes with `data`; none if it changes nothing, and
    /// one without bytes if it changes times alone. A request that fails may have changed them in
    /// part. EPROTO if `data` is not what the request says.
    pub fn changed<'a>(&self, data: &'a [u8]) -> FsResult<ChangedRanges<'a>> {
        let first = match *self {
            OstRequest::Write { offset, .. } => range(offset, data.len() as u64),
            OstRequest::WriteExtents { count, .. } => {
                let extents = Some(Extents::parse(data, count)?);
                return Ok(ChangedRanges { first: None, extents });
            }
            OstRequest::Truncate { size, .. } => (size, u64::MAX),
            OstRequest::Fallocate { mode, offset, len, .. } => match moves(mode) {
                true => (offset, u64::MAX),
                false => range(offset, len),
            },
            OstRequest::SetTime { .. } => NO_BYTES,
            OstRequest::Read { .. }
            | OstRequest::Sync { .. }
            | OstRequest::Stat { .. }
            | OstRequest::Seek { .. }
            | OstRequest::Space
            | OstRequest::GrantSpace { .. }
            | OstRequest::Watch { .. }
            | OstRequest::Changed { .. } => return Ok(ChangedRanges::default()),
        };
        Ok(ChangedRanges { first: Some(first), extents: None })
    }
}

impl ChangedRanges<'_> {
    /// Smallest range that has all of them; `None` if there are none.
    pub fn cover(self) -> Option<(u64, u64)> {
        self.reduce(|(start, end), one| (start.min(one.0), end.max(one.1)))
    }
}

impl Iterator for ChangedRanges<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let of_extent = |(offset, data): (u64, &[u8])| range(offset, data.len() as u64);
        self.first.take().or_else(|| self.extents.as_mut()?.next().map(of_extent))
    }
}

fn range(start: u64, len: u64) -> (u64, u64) {
    (start, start.saturating_add(len))
}

/// Whether fallocate(2) of this mode moves bytes behind its range, or is not known not to: space that
/// is allocated, zeroed or freed is in the range, with and without a change of the size.
fn moves(mode: i32) -> bool {
    let moves_none =
        libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
    mode & !moves_none != 0
}

#[cfg(test)]
mod tests {
    use super::super::put_extents;
    use super::*;
    use crate::{Ino, ObjectId, Timestamp};

    const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 2 };

    fn of(request: OstRequest, data: &[u8]) -> Vec<(u64, u64)> {
        request.changed(data).unwrap().collect()
    }

    #[test]
    fn an_allocation_changes_its_range_and_one_that_moves_bytes_all_behind() {
        let fallocate = |mode| {
            let request = OstRequest::Fallocate { object: OBJECT, mode, offset: 4096, len: 4096 };
            of(request, &[])
        };
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let zero = libc::FALLOC_FL_ZERO_RANGE;
        for mode in [0, keep, keep | libc::FALLOC_FL_PUNCH_HOLE, zero, keep | zero] {
            assert_eq!(fallocate(mode), [(4096, 8192)], "mode {mode}");
        }
        let moved = [libc::FALLOC_FL_COLLAPSE_RANGE, libc::FALLOC_FL_INSERT_RANGE, 1 << 30];
        for mode in moved {
            assert_eq!(fallocate(mode), [(4096, u64::MAX)], "mode {mode}");
        }
    }

    #[test]
    fn writes_change_what_they_bring_and_a_truncation_all_behind() {
        let write = |offset| OstRequest::Write { object: OBJECT, offset, mtime: None, kept: false };
        assert_eq!(of(write(5), b"data"), [(5, 9)]);
        assert_eq!(of(write(u64::MAX), b"data"), [(u64::MAX, u64::MAX)]);
        assert_eq!(of(OstRequest::Truncate { object: OBJECT, size: 7 }, &[]), [(7, u64::MAX)]);
        let mut bulk = Vec::new();
        let both: [(u64, &[u8]); 2] = [(5, b"abc"), (90, b"d")];
        put_extents(both.into_iter(), &mut bulk);
        let extents =
            OstRequest::WriteExtents { object: OBJECT, count: 2, mtime: None, kept: false };
        assert_eq!(of(extents, &bulk), [(5, 8), (90, 91)]);
        assert_eq!(extents.changed(&bulk).unwrap().cover(), Some((5, 91)));
        assert!(extents.changed(b"?").is_err());
    }

    #[test]
    fn times_have_no_bytes_and_what_changes_nothing_has_no_range() {
        let mtime = Timestamp { secs: 1, nanos: 0 };
        let of_time = of(OstRequest::SetTime { object: OBJECT, mtime }, &[]);
        assert_eq!(of_time.len(), 1);
        assert!(of_time.iter().all(|(start, end)| start >= end));
        let unchanging = [
            OstRequest::Read { object: OBJECT, offset: 0, len: 9 },
            OstRequest::Sync { object: OBJECT },
            OstRequest::Stat { object: OBJECT },
            OstRequest::GrantSpace { bytes: 9 },
            OstRequest::Space,
        ];
        for request in unchanging {
            assert!(!request.is_modifying());
            assert_eq!(request.changed(&[]).unwrap().cover(), None);
        }
    }
}
