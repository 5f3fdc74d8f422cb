//! Requests whose callers have gone on: what they got is given back.
//!
//! Invariant: the kernel relies on nothing that such a request has changed. It was told that the
//! request was interrupted, and may have looked at the same names and inodes since, while that went
//! on: then it knows what was there before.

use crate::abi::{CopyFileRangeIn, Dirent, EntryOut, InHeader, Opcode, OpenOut};
use crate::adapter::dispatch::{Adapter, name, parse};
use glint_client::{Handle, Vfs};
use glint_net::host;
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

    /// Has the kernel ask for the attributes of an inode that lost one of its names. For a caller that
    /// waits it counts the links down by itself.
    pub(crate) fn forget_links(&self, ino: Ino) {
        if let Some(kernel) = &self.kernel {
            kernel.forget_attributes(ino);
        }
    }

    /// Gives back what a request got whose caller has gone on: the kernel knows nothing of it. The
    /// reply is in the first `len` bytes of the buffer; where there is none, names still are.
    pub(crate) async fn abandon(&self, header: &InHeader, fixed: &[u8], buffer: &[u8], len: usize) {
        let Some(opcode) = Opcode::from_u32(header.opcode) else { return };
        let reply = &buffer[..len];
        self.forget_changed(opcode, header, fixed, buffer);
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

    /// Has the kernel forget what a request has changed of which it knows nothing.
    fn forget_changed(&self, opcode: Opcode, header: &InHeader, fixed: &[u8], buffer: &[u8]) {
        let Some(kernel) = &self.kernel else { return };
        let node = self.ino(header.nodeid);
        // A second inode is named first by the fixed part.
        let second = || u64::read_from_prefix(fixed).ok().map(|(other, _)| self.ino(other));
        let mut names = Vec::new();
        match opcode {
            Opcode::Unlink | Opcode::Rmdir => {
                names.extend(name(buffer).ok().map(|(gone, _)| (node, gone.to_vec())));
            }
            Opcode::Rename | Opcode::Rename2 => {
                let (Ok((from, rest)), Some(directory)) = (name(buffer), second()) else { return };
                names.push((node, from.to_vec()));
                names.extend(name(rest).ok().map(|(to, _)| (directory, to.to_vec())));
                kernel.forget_attributes(directory);
            }
            Opcode::Link => {
                let Some(linked) = second() else { return };
                kernel.forget_attributes(linked);
            }
            Opcode::CopyFileRange => {
                let Ok(arg) = parse::<CopyFileRangeIn>(fixed) else { return };
                kernel.forget_attributes(self.ino(arg.nodeid_out));
            }
            // That a name is free it does not keep.
            Opcode::Mknod | Opcode::Mkdir | Opcode::Symlink | Opcode::Create => {}
            Opcode::Setattr | Opcode::Write | Opcode::Fallocate => {}
            Opcode::Setxattr | Opcode::Removexattr => {}
            _ => return,
        }
        kernel.forget_attributes(node);
        if !names.is_empty() {
            let kernel = kernel.clone();
            let forget = move || names.iter().for_each(|(of, name)| kernel.forget_name(*of, name));
            host::unblock(forget).detach();
        }
    }
}
