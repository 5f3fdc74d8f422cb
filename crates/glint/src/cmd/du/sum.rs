//! What files take together.

use crate::cmd::tree::show::TimeOf;
use glint_proto::{Attr, Timestamp};
use std::ops::AddAssign;

/// Space, bytes and number of files, and the latest of their times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sum {
    /// Bytes on disk.
    pub(super) allocated: u64,
    /// Bytes that can be read.
    pub(super) apparent: u64,
    pub(super) inodes: u64,
    pub(super) latest: Timestamp,
}

impl Default for Sum {
    fn default() -> Sum {
        let latest = Timestamp { secs: i64::MIN, nanos: 0 };
        Sum { allocated: 0, apparent: 0, inodes: 0, latest }
    }
}

impl Sum {
    /// Returns what a file takes by itself.
    pub(super) fn of(attr: &Attr, time: TimeOf) -> Sum {
        let latest = time.of(attr);
        let allocated = attr.blocks.saturating_mul(512);
        Sum { allocated, apparent: attr.size, inodes: 1, latest }
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.apparent = self.apparent.saturating_add(other.apparent);
        self.inodes += other.inodes;
        self.latest = self.latest.max(other.latest);
    }
}
