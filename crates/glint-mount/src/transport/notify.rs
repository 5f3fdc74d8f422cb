//! Tells the kernel to forget, and what it did not ask for: FUSE_NOTIFY_* messages, written to
//! /dev/fuse.
//!
//! Some of them wait for locks of the kernel that a request under way may hold, so they must
//! not be sent by a thread that serves requests.

use crate::abi::reply::ROOT_NODE;
use crate::abi::{
    InvalEntryOut, InvalInodeOut, OutHeader, PruneOut, RetrieveOut, StoreOut, notify,
};
use crate::adapter::pages::Pages;
use glint_client::Kernel;
use glint_proto::Ino;
use glint_proto::lock::Range;
use rustix::io::Errno;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// The kernel of a mount.
pub(crate) struct Notifier {
    fd: Arc<OwnedFd>,
    root: Ino,
    /// Pages of the files that are open to be written; none if files are not read through pages.
    pages: Option<Arc<Pages>>,
    /// The kernel knows FUSE_NOTIFY_INC_EPOCH (Linux 6.16).
    epochs: AtomicBool,
    /// The kernel knows FUSE_NOTIFY_PRUNE (Linux 6.18).
    prunes: AtomicBool,
}

impl Notifier {
    /// It takes pages that it did not ask for if there are `pages`.
    pub(crate) fn new(fd: Arc<OwnedFd>, root: Ino, pages: Option<Arc<Pages>>) -> Notifier {
        let (epochs, prunes) = (AtomicBool::new(true), AtomicBool::new(true));
        Notifier { fd, root, pages, epochs, prunes }
    }

    /// Node id of an inode in the kernel.
    fn node(&self, ino: Ino) -> u64 {
        if ino == self.root { ROOT_NODE } else { ino.0 }
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        send(&self.fd, code, parts)
    }
}

/// Has the kernel make a request on the queue of this CPU that needs an answer and nothing else:
/// for no pages of a file. Returns whether it does; what is no file has no pages.
pub(crate) fn ask_for_reply(fd: &OwnedFd, node: u64) -> bool {
    // Above all numbers of requests that it makes by itself.
    static NEXT: AtomicU64 = AtomicU64::new(1 << 62);
    let unique = NEXT.fetch_add(2, Ordering::Relaxed);
    let out = RetrieveOut { unique, nodeid: node, ..RetrieveOut::default() };
    send(fd, notify::RETRIEVE, &[out.as_bytes()]).is_ok()
}

/// Writes a message.
fn send(fd: &OwnedFd, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
    let len = size_of::<OutHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = OutHeader { len: len as u32, error: code, unique: 0 };
    let mut slices = vec![IoSlice::new(header.as_bytes())];
    slices.extend(parts.iter().map(|part| IoSlice::new(part)));
    loop {
        match rustix::io::writev(fd, &slices) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

impl Kernel for Notifier {
    fn forget_attributes(&self, ino: Ino) -> bool {
        // A negative offset leaves the pages alone.
        let out = InvalInodeOut { ino: self.node(ino), off: -1, len: 0 };
        self.send(notify::INVAL_INODE, &[out.as_bytes()]) != Err(Errno::NOENT)
    }

    fn forget_pages(&self, ino: Ino, range: Range) {
        // A length of zero is up to the end.
        let len = if range.end > i64::MAX as u64 { 0 } else { (range.end - range.start) as i64 };
        let off = range.start.min(i64::MAX as u64) as i64;
        let out = InvalInodeOut { ino: self.node(ino), off, len };
        match self.send(notify::INVAL_INODE, &[out.as_bytes()]) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::error!(
                %ino, %error,
                "could not have the kernel forget pages; it may show old data of this file"
            ),
        }
    }

    fn takes_pages(&self) -> bool {
        self.pages.is_some()
    }

    fn store_pages(&self, ino: Ino, offset: u64, data: &[u8]) -> bool {
        let Some(pages) = &self.pages else { return false };
        let (nodeid, size) = (self.node(ino), data.len() as u32);
        let out = StoreOut { nodeid, offset, size, ..StoreOut::default() };
        // It takes some pages and not others if it has no memory, and none of a file that it does
        // not know (ENOENT).
        let is_stored = self.send(notify::STORE, &[out.as_bytes(), data]).is_ok();
        // Not before: a file that is opened to be written from now on has its pages dropped by each
        // write.
        pages.read(ino, Range::of(offset, data.len() as u64));
        is_stored
    }

    fn forget_name(&self, parent: Ino, name: &[u8]) {
        let out = InvalEntryOut { parent: self.node(parent), namelen: name.len() as u32, flags: 0 };
        // The kernel may not know the name (ENOENT), or use it as a mount point (ENOTEMPTY).
        let _ = self.send(notify::INVAL_ENTRY, &[out.as_bytes(), name, &[0]]);
    }

    fn forget_unused(&self, inos: &[Ino]) -> bool {
        if !self.prunes.load(Ordering::Relaxed) {
            return false;
        }
        let out = PruneOut { count: inos.len() as u32, ..PruneOut::default() };
        let nodes: Vec<u64> = inos.iter().map(|ino| self.node(*ino)).collect();
        let can =
            self.send(notify::PRUNE, &[out.as_bytes(), nodes.as_bytes()]) != Err(Errno::INVAL);
        self.prunes.store(can, Ordering::Relaxed);
        can
    }

    fn forget_all_names(&self) -> bool {
        if !self.epochs.load(Ordering::Relaxed) {
            return false;
        }
        match self.send(notify::INC_EPOCH, &[]) {
            Err(Errno::INVAL) => {
                self.epochs.store(false, Ordering::Relaxed);
                false
            }
            _ => true,
        }
    }
}
