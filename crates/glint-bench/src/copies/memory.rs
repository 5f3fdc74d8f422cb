//! Memory that is used once before something is measured.
//!
//! The host of a virtual machine may take back what is free in it (free page reporting). The next
//! use of such a page costs ten times a copy, so that what is measured is how much memory somebody
//! takes, and who took it before: of two layouts that are compared, and measured in turns, the one
//! with less to write would find the pages that the other one has just left.

use crate::smallfile::Asked;
use glint_memory::{MemoryLeft, MemoryLimits};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::Write;

/// One part of so many stays free: with less than an eighth, memory is short for servers.
const FREE_PART: u64 = 4;
/// Bytes of a call.
const CALL_BYTES: usize = 1 << 20;

/// Uses so many bytes that are free, and frees them: what needs memory next finds pages that the
/// host has given already. Uses less if that much is not free; what is cached is given up page by
/// page, and the host has not taken it back.
pub(super) fn touch(bytes: u64, asked: Asked<'_>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("using memory once: {error}");
    let mut left = to_touch(bytes, MemoryLimits::of_this_process().free());
    // Not of the allocator, which may keep it.
    let memory = memfd_create("glint-bench", MemfdFlags::CLOEXEC);
    let mut memory = File::from(memory.map_err(|error| failed(error.into()))?);
    let zeros = vec![0_u8; CALL_BYTES];
    while !asked() {
        let some = left.min(CALL_BYTES as u64);
        if some == 0 {
            return Ok(());
        }
        memory.write_all(&zeros[..some as usize]).map_err(failed)?;
        left -= some;
    }
    Err("interrupted".into())
}

/// Of the bytes that are wanted, as many as leave enough `free` of each limit.
fn to_touch(wanted: u64, free: impl Iterator<Item = MemoryLeft>) -> u64 {
    let spare = |memory: MemoryLeft| memory.left.saturating_sub(memory.total / FREE_PART);
    free.map(spare).fold(wanted, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_each_limit_stays_free() {
        let (machine, group) =
            (MemoryLeft { left: 900, total: 1000 }, MemoryLeft { left: 100, total: 200 });
        assert_eq!(to_touch(600, [machine].into_iter()), 600);
        assert_eq!(to_touch(700, [machine].into_iter()), 650);
        assert_eq!(to_touch(700, [machine, group].into_iter()), 50);
        let short = MemoryLeft { left: 10, total: 200 };
        assert_eq!(to_touch(700, [machine, short].into_iter()), 0);
        assert_eq!(to_touch(700, std::iter::empty()), 700);
    }

    #[test]
    fn an_end_that_is_asked_for_comes_at_once() {
        assert_eq!(touch(1 << 20, &|| false), Ok(()));
        assert_eq!(touch(u64::MAX, &|| true), Err("interrupted".into()));
    }
}
