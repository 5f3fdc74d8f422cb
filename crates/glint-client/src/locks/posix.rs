//! Locks that programs of this client hold, flock(2) and fcntl(2): what the servers granted, to
//! be said again when they have started anew.

use crate::calls::open_files::OpenFile;
use crate::client::Client;
use glint_lock::posix::{Kind, Lock, LockOwner, PosixLockTable};
use glint_net::Transport;
use glint_proto::lock::Range;
use glint_proto::{
    ClientId, FsResult, Ino, MdsReply, MdsRequest, PosixLock, PosixLockHow, PosixLockMode,
};
use parking_lot::Mutex;

/// POSIX locks that are held.
#[derive(Default)]
pub(crate) struct PosixLocks(Mutex<PosixLockTable>);

impl PosixLocks {
    /// The servers have granted this, or undone it.
    fn note(&self, lock: &PosixLock) {
        let kind = if lock.flock { Kind::Flock } else { Kind::Posix };
        let owner = LockOwner { client: ClientId::IN_PROCESS, number: lock.owner };
        let mut table = self.0.lock();
        // Nobody waits here.
        let granted = &mut Vec::new();
        match lock.mode {
            PosixLockMode::Unlock => table.unlock(lock.ino, kind, owner, lock.range, granted),
            mode => {
                let write = mode == PosixLockMode::Write;
                let held = Lock { owner, pid: lock.pid, range: lock.range, write };
                table.lock(lock.ino, kind, held, false, granted);
            }
        }
    }

    /// Requests that reclaim the locks at servers that have started again.
    pub(crate) fn to_reclaim(&self) -> Vec<MdsRequest<'static>> {
        let table = self.0.lock();
        let request = |(ino, kind, lock): (_, Kind, Lock)| {
            MdsRequest::PosixLock(PosixLock {
                ino,
                owner: lock.owner.number,
                pid: lock.pid,
                range: lock.range,
                mode: if lock.write { PosixLockMode::Write } else { PosixLockMode::Read },
                flock: kind == Kind::Flock,
                how: PosixLockHow::Reclaim,
                ticket: 0,
            })
        };
        table.held().map(request).collect()
    }

    /// Forgets all locks, which are lost. Returns how many there were.
    pub(crate) fn clear(&self) -> usize {
        std::mem::take(&mut *self.0.lock()).len()
    }
}

impl<T: Transport> Client<T> {
    /// Takes, gives up or asks for a lock of a program.
    pub(crate) async fn posix_lock_of(
        &self,
        file: &OpenFile,
        lock: PosixLock,
    ) -> FsResult<Option<PosixLock>> {
        let takes = lock.mode != PosixLockMode::Unlock && lock.how != PosixLockHow::Test;
        if takes && !lock.flock {
            if let Some(inode) = self.inode(lock.ino) {
                inode.lock().note_posix_lock();
            }
            let mut owners = file.lock_owners.lock();
            if !owners.contains(&lock.owner) {
                owners.push(lock.owner);
            }
        }
        if lock.mode == PosixLockMode::Unlock {
            // Not said again from now on, whatever becomes of the request.
            self.locks.posix.note(&lock);
        }
        match self.ask_as_root(&MdsRequest::PosixLock(lock)).await? {
            MdsReply::Blocked(found) => Ok(found),
            _ => {
                self.locks.posix.note(&lock);
                Ok(None)
            }
        }
    }

    /// Nobody waits any more for a lock: its request ends, with it or without.
    pub(crate) async fn cancel_posix_lock(&self, ino: Ino, ticket: u64) {
        let (mode, how, range) = (PosixLockMode::Unlock, PosixLockHow::Cancel, Range::ALL);
        let lock = PosixLock { ino, owner: 0, pid: 0, range, mode, flock: false, how, ticket };
        if let Err(errno) = self.ask_as_root(&MdsRequest::PosixLock(lock)).await {
            tracing::debug!(%ino, %errno, "ending the wait for a lock");
        }
    }

    /// Ends the locks of fcntl(2) that were taken through a file which is closed for good.
    pub(crate) async fn end_posix_locks(&self, file: &OpenFile) {
        let owners = std::mem::take(&mut *file.lock_owners.lock());
        for owner in owners {
            let (mode, how) = (PosixLockMode::Unlock, PosixLockHow::Try);
            let (ino, range) = (file.ino, Range::ALL);
            let lock = PosixLock { ino, owner, pid: 0, range, mode, flock: false, how, ticket: 0 };
            if let Err(errno) = self.posix_lock_of(file, lock).await {
                tracing::warn!(
                    %ino, %errno,
                    "could not end the locks of a closed file; they are held until this client \
                    ends"
                );
            }
        }
    }
}
