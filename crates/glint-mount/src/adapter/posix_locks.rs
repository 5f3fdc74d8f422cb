//! Locks of programs, flock(2) and fcntl(2), between the kernel's form and ours.

use crate::abi::reply::put;
use crate::abi::{FileLock, LK_FLOCK, LkIn, LkOut, Opcode};
use crate::adapter::dispatch::{Adapter, Call, parse};
use glint_client::{Caching, Handle, Vfs};
use glint_proto::limits::LOCK_WAITERS_MAX;
use glint_proto::lock::Range;
use glint_proto::{Errno, FsResult, Ino, PosixLock, PosixLockHow, PosixLockMode};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The kernel's largest offset (OFFSET_MAX): up to the end, however far that is.
const TO_THE_END: u64 = i64::MAX as u64;

/// One of those that wait for locks.
struct Waiter<'a>(&'a AtomicUsize);

impl Waiter<'_> {
    fn new(count: &AtomicUsize) -> FsResult<Waiter<'_>> {
        let waiter = Waiter(count);
        match count.fetch_add(1, Ordering::AcqRel) < LOCK_WAITERS_MAX {
            true => Ok(waiter),
            false => Err(Errno::ENOLCK),
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<F: Vfs> Adapter<F> {
    /// Releases what a request got for which nobody waits any more.
    pub(crate) async fn give_lock_back(&self, ino: Ino, fixed: &[u8]) {
        let Ok(arg) = parse::<LkIn>(fixed) else { return };
        let Ok(got) = posix_lock(ino, &arg, Opcode::Setlk, 0) else { return };
        if got.mode != PosixLockMode::Unlock {
            let lock = PosixLock { mode: PosixLockMode::Unlock, ..got };
            if let Err(errno) = self.fs.posix_lock(Handle(arg.fh), lock).await {
                tracing::warn!(
                    %ino, %errno,
                    "could not release a lock that nobody waits for; it is held until the mount \
                    ends"
                );
            }
        }
    }
}

impl<F: Vfs> Call<'_, F> {
    /// Ends all locks of an owner on a file.
    pub(crate) async fn unlock(&self, handle: Handle, owner: u64, flock: bool) -> FsResult<()> {
        let (mode, how) = (PosixLockMode::Unlock, PosixLockHow::Try);
        let range = Range::ALL;
        let lock = PosixLock { ino: self.ino, owner, pid: 0, range, mode, flock, how, ticket: 0 };
        self.fs.posix_lock(handle, lock).await.map(drop)
    }

    /// flock(2), and fcntl(2) with F_GETLK, F_SETLK, F_SETLKW.
    pub(crate) async fn posix_lock(self, opcode: Opcode) -> FsResult<usize> {
        if self.adapter.caching != Caching::Locked {
            return Err(Errno::ENOSYS);
        }
        let arg: LkIn = parse(self.fixed)?;
        let asks = posix_lock(self.ino, &arg, opcode, self.unique)?;
        let _waiter = match opcode {
            Opcode::Setlkw => Some(Waiter::new(&self.adapter.lock_waiters)?),
            _ => None,
        };
        let found = self.fs.posix_lock(Handle(arg.fh), asks).await?;
        if opcode != Opcode::Getlk {
            return Ok(0);
        }
        put(self.buffer, &LkOut { lk: file_lock(&arg.lk, found) })
    }
}

/// POSIX lock request that the kernel makes.
fn posix_lock(ino: Ino, arg: &LkIn, opcode: Opcode, ticket: u64) -> FsResult<PosixLock> {
    let mode = match arg.lk.kind as i32 {
        libc::F_RDLCK => PosixLockMode::Read,
        libc::F_WRLCK => PosixLockMode::Write,
        libc::F_UNLCK => PosixLockMode::Unlock,
        _ => return Err(Errno::EINVAL),
    };
    let how = match opcode {
        Opcode::Getlk => PosixLockHow::Test,
        Opcode::Setlkw => PosixLockHow::Wait,
        _ => PosixLockHow::Try,
    };
    // The kernel's end is the last byte.
    let end = if arg.lk.end >= TO_THE_END { u64::MAX } else { arg.lk.end + 1 };
    Ok(PosixLock {
        ino,
        owner: arg.owner,
        pid: arg.lk.pid,
        range: Range { start: arg.lk.start, end },
        mode,
        flock: arg.lk_flags & LK_FLOCK != 0,
        how,
        ticket,
    })
}

/// The answer to F_GETLK.
fn file_lock(asked: &FileLock, found: Option<PosixLock>) -> FileLock {
    let Some(found) = found else { return FileLock { kind: libc::F_UNLCK as u32, ..*asked } };
    let write = found.mode == PosixLockMode::Write;
    FileLock {
        start: found.range.start,
        end: found.range.end.saturating_sub(1).min(TO_THE_END),
        kind: if write { libc::F_WRLCK } else { libc::F_RDLCK } as u32,
        pid: found.pid,
    }
}
