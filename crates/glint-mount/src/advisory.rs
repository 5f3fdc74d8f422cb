//! Locks of programs between the kernel's form and ours.

use crate::abi::{FileLock, LK_FLOCK, LkIn, Opcode};
use glint_proto::lock::Range;
use glint_proto::{AdvisoryHow, AdvisoryLock, AdvisoryMode, Errno, FsResult, Ino};

/// The kernel's largest offset (OFFSET_MAX): up to the end, however far that is.
const TO_THE_END: u64 = i64::MAX as u64;

/// What the kernel asks for.
pub(crate) fn advisory_lock(ino: Ino, arg: &LkIn, opcode: Opcode) -> FsResult<AdvisoryLock> {
    let mode = match arg.lk.kind as i32 {
        libc::F_RDLCK => AdvisoryMode::Read,
        libc::F_WRLCK => AdvisoryMode::Write,
        libc::F_UNLCK => AdvisoryMode::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let how = match opcode {
        Opcode::Getlk => AdvisoryHow::Test,
        Opcode::Setlkw => AdvisoryHow::Wait,
        _ => AdvisoryHow::Try,
    };
    // The kernel's end is the last byte.
    let end = if arg.lk.end >= TO_THE_END { u64::MAX } else { arg.lk.end + 1 };
    Ok(AdvisoryLock {
        ino,
        owner: arg.owner,
        pid: arg.lk.pid,
        range: Range { start: arg.lk.start, end },
        mode,
        flock: arg.lk_flags & LK_FLOCK != 0,
        how,
    })
}

/// The answer to F_GETLK.
pub(crate) fn file_lock(asked: &FileLock, found: Option<AdvisoryLock>) -> FileLock {
    let Some(found) = found else { return FileLock { kind: libc::F_UNLCK as u32, ..*asked } };
    let write = found.mode == AdvisoryMode::Write;
    FileLock {
        start: found.range.start,
        end: found.range.end.saturating_sub(1).min(TO_THE_END),
        kind: if write { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
        pid: found.pid,
    }
}
