//! Locks of programs, flock(2) and fcntl(2), between the kernel's form and ours.

use crate::abi::{FileLock, LK_FLOCK, LkIn, LkOut, Opcode};
use crate::dispatch::{Call, parse};
use crate::reply::put;
use glint_client::{Caching, Handle, Vfs};
use glint_proto::lock::Range;
use glint_proto::{AdvisoryHow, AdvisoryLock, AdvisoryMode, Errno, FsResult, Ino};

/// The kernel's largest offset (OFFSET_MAX): up to the end, however far that is.
const TO_THE_END: u64 = i64::MAX as u64;

impl<F: Vfs> Call<'_, F> {
    /// Ends all locks of an owner on a file.
    pub(crate) async fn unlock(&self, handle: Handle, owner: u64, flock: bool) -> FsResult<()> {
        let (mode, how) = (AdvisoryMode::Unlock, AdvisoryHow::Try);
        let range = Range::ALL;
        let lock = AdvisoryLock { ino: self.ino, owner, pid: 0, range, mode, flock, how };
        self.fs.advisory(handle, lock).await.map(drop)
    }

    /// flock(2), and fcntl(2) with F_GETLK, F_SETLK, F_SETLKW.
    pub(crate) async fn lock(self, opcode: Opcode) -> FsResult<usize> {
        if self.adapter.caching != Caching::Locked {
            return Err(Errno::ENOSYS);
        }
        let arg: LkIn = parse(self.fixed)?;
        let asks = advisory_lock(self.ino, &arg, opcode)?;
        let found = self.fs.advisory(Handle(arg.fh), asks).await?;
        if opcode != Opcode::Getlk {
            return Ok(0);
        }
        put(self.buffer, &LkOut { lk: file_lock(&arg.lk, found) })
    }
}

/// What the kernel asks for.
fn advisory_lock(ino: Ino, arg: &LkIn, opcode: Opcode) -> FsResult<AdvisoryLock> {
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
fn file_lock(asked: &FileLock, found: Option<AdvisoryLock>) -> FileLock {
    let Some(found) = found else { return FileLock { kind: libc::F_UNLCK as u32, ..*asked } };
    let write = found.mode == AdvisoryMode::Write;
    FileLock {
        start: found.range.start,
        end: found.range.end.saturating_sub(1).min(TO_THE_END),
        kind: if write { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
        pid: found.pid,
    }
}
