//! Requests whose callers have gone on: what they got is given back.

use crate::abi::{Dirent, EntryOut, InHeader, Opcode, OpenOut};
use crate::adapter::dispatch::Adapter;
use glint_client::{Handle, Vfs};
use glint_proto::Ino;
use zerocopy::FromBytes;

impl<F: Vfs> Adapter<F> {
    /// Nobody waits any more for the lock that a request asked for.
    pub(crate) async fn cancel_posix_lock(&self, ino: Ino, unique: u64) {
        self.fs.cancel_posix_lock(ino, unique).await;
    }

    /// Whether a server cannot be reached.
    pub(crate) fn is_away(&self) -> bool {
        self.fs.is_away()
    }

    /// Gives back what a request got whose caller has gone on: the kernel knows nothing of it.
    pub(crate) async fn abandon(&self, header: &InHeader, fixed: &[u8], reply: &[u8]) {
        let Some(opcode) = Opcode::from_u32(header.opcode) else { return };
        let entry = |bytes: &[u8]| match EntryOut::read_from_prefix(bytes) {
            Ok((entry, _)) if entry.nodeid != 0 => self.fs.forget(self.ino(entry.nodeid), 1),
            _ => {}
        };
        let opened = match opcode {
            Opcode::Open | Opcode::Opendir => Some(reply),
            Opcode::Create | Opcode::Tmpfile => reply.get(size_of::<EntryOut>()..),
            _ => None,
        };
        if let Some(Ok((open, _))) = opened.map(OpenOut::read_from_prefix) {
            let (ino, flags) = self.abandoned(opcode, header, fixed, reply);
            if let Err(errno) = self.release(ino, Handle(open.fh), flags).await {
                tracing::debug!(%errno, "closing what nobody waits for");
            }
        }
        match opcode {
            Opcode::Lookup | Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink => entry(reply),
            Opcode::Link | Opcode::Create | Opcode::Tmpfile => entry(reply),
            Opcode::Readdirplus => {
                let mut rest = reply;
                while let Some(dirent) = rest.get(size_of::<EntryOut>()..)
                    && let Ok((dirent, _)) = Dirent::read_from_prefix(dirent)
                {
                    entry(rest);
                    let len = size_of::<EntryOut>() + size_of::<Dirent>();
                    let len = (len + dirent.namelen as usize).next_multiple_of(8);
                    rest = rest.get(len..).unwrap_or_default();
                }
            }
            Opcode::Setlk | Opcode::Setlkw => {
                self.give_lock_back(self.ino(header.nodeid), fixed).await;
            }
            _ => {}
        }
    }
}
