//! Memory that one io_uring request of FUSE shares with the kernel, and the two
//! commands that hand it over.
//!
//! Safety argument of this module: the kernel reads and writes the memory only
//! between the submission of a command and its completion. An [`Entry`] gives out
//! references only to its owner, which must not hold one while a command is
//! submitted; `Entry` keeps the memory at a fixed address until it is dropped, and
//! it is dropped only after its last command completed or its ring is gone. A [`Payload`] that
//! is used while a command is submitted has pages that the entry has given up.

use crate::abi::*;
use compio_driver::{OpCode, OpEntry};
use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of `len` in `struct io_uring_sqe`, for which the crate has no setter.
const SQE_LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// Shared pages: somewhere, or in place of those at an address.
fn pages(at: *mut libc::c_void, len: usize) -> io::Result<*mut libc::c_void> {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | fixed;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without an address this takes nobody's memory; with one it replaces a mapping that
    // an `Entry` owns and nothing borrows from.
    mapped(unsafe { libc::mmap(at, len, rights, flags, -1, 0) })
}

/// Headers of one request in flight, and where the kernel puts its payload.
pub(crate) struct Entry {
    headers: Box<[u8; URING_HEADER_BYTES]>,
    iovec: Box<[libc::iovec; 2]>,
}

/// The payload of a request: the same pages as at the address that the kernel knows, at one of
/// their own. So a request may go on with them when its entry gets others.
pub(crate) struct Payload {
    at: *mut libc::c_void,
    len: usize,
}

impl Drop for Payload {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody borrows from it any more.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped there as long as this lives; see the module's argument.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.len) }
    }
}

impl DerefMut for Payload {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.cast(), self.len) }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let [_, payload] = *self.iovec;
        // SAFETY: the mapping was made in `new` and is this value's own.
        unsafe { libc::munmap(payload.iov_base, payload.iov_len) };
    }
}

fn mapped(at: *mut libc::c_void) -> io::Result<*mut libc::c_void> {
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
}

impl Entry {
    /// An entry for payloads of up to `payload_max` bytes, with its first. Pages are only used
    /// when they are first written.
    pub(crate) fn new(payload_max: usize) -> io::Result<(Entry, Payload)> {
        let mut headers = Box::new([0u8; URING_HEADER_BYTES]);
        let at = pages(std::ptr::null_mut(), payload_max)?;
        let iovec = Box::new([
            libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: URING_HEADER_BYTES },
            libc::iovec { iov_base: at, iov_len: payload_max },
        ]);
        let entry = Entry { headers, iovec };
        let payload = entry.payload()?;
        Ok((entry, payload))
    }

    /// New pages for the next request: the last one keeps its own.
    pub(crate) fn renew(&mut self) -> io::Result<Payload> {
        let [_, payload] = *self.iovec;
        pages(payload.iov_base, payload.iov_len)?;
        self.payload()
    }

    fn payload(&self) -> io::Result<Payload> {
        let [_, payload] = *self.iovec;
        // SAFETY: an old size of 0 leaves the shared mapping there as it is, and maps its pages
        // once more, where the kernel finds room.
        let at =
            unsafe { libc::mremap(payload.iov_base, 0, payload.iov_len, libc::MREMAP_MAYMOVE) };
        Ok(Payload { at: mapped(at)?, len: payload.iov_len })
    }

    fn ent_in_out(&self) -> UringEntInOut {
        let at = URING_IN_OUT_BYTES + URING_OP_IN_BYTES;
        UringEntInOut::read_from_prefix(&self.headers[at..]).map(|(v, _)| v).unwrap_or_default()
    }

    /// Header of the request, as the kernel filled it.
    pub(crate) fn in_header(&self) -> InHeader {
        InHeader::read_from_prefix(&self.headers[..]).map(|(v, _)| v).unwrap_or_default()
    }

    /// Fixed part of the request.
    pub(crate) fn fixed(&self) -> [u8; URING_OP_IN_BYTES] {
        let mut fixed = [0; URING_OP_IN_BYTES];
        let from = &self.headers[URING_IN_OUT_BYTES..URING_IN_OUT_BYTES + URING_OP_IN_BYTES];
        fixed.copy_from_slice(from);
        fixed
    }

    /// How much of the payload the request fills.
    pub(crate) fn payload_len(&self) -> usize {
        (self.ent_in_out().payload_sz as usize).min(self.iovec[1].iov_len)
    }

    /// Writes the header of the reply; its payload is already in place.
    pub(crate) fn set_reply(&mut self, unique: u64, error: i32, payload_len: usize) {
        let len = (size_of::<OutHeader>() + payload_len) as u32;
        let header = OutHeader { len, error, unique };
        self.headers[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        let mut ent = self.ent_in_out();
        ent.payload_sz = payload_len as u32;
        let at = URING_IN_OUT_BYTES + URING_OP_IN_BYTES;
        self.headers[at..at + size_of::<UringEntInOut>()].copy_from_slice(ent.as_bytes());
    }

    /// Gives the memory to the kernel, to be filled with the first request.
    pub(crate) fn register(&self, fd: RawFd, queue: u16) -> Command {
        let command = URING_CMD_REGISTER;
        let iovec = Some(self.iovec.as_ptr() as u64);
        Command { fd, queue, command, commit_id: 0, iovec }
    }

    /// Sends the reply and waits for the next request, in one.
    pub(crate) fn commit_and_fetch(&self, fd: RawFd, queue: u16) -> Command {
        let commit_id = self.ent_in_out().commit_id;
        Command { fd, queue, command: URING_CMD_COMMIT_AND_FETCH, commit_id, iovec: None }
    }
}

/// A command of FUSE over io_uring. Completes when the kernel has a request.
pub(crate) struct Command {
    fd: RawFd,
    queue: u16,
    command: u32,
    commit_id: u64,
    iovec: Option<u64>,
}

// SAFETY: the entry made here refers to the iovec and the buffers of an `Entry`,
// which outlives the operation (see the module's argument), and to no other memory.
unsafe impl OpCode for Command {
    type Control = ();

    fn create_entry(&mut self, _: &mut Self::Control) -> OpEntry {
        let request =
            UringCmdReq { flags: 0, commit_id: self.commit_id, qid: self.queue, padding: [0; 6] };
        let mut bytes = [0u8; 80];
        bytes[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
        let mut entry =
            UringCmd80::new(Fd(self.fd), self.command).cmd(bytes).addr(self.iovec).build();
        if self.iovec.is_some() {
            // SAFETY: `len` is a u32 at this offset of the kernel's structure, and
            // an `Entry128` is that structure and nothing else (asserted above).
            unsafe {
                let at = (&raw mut entry).cast::<u8>().add(SQE_LEN_OFFSET);
                at.cast::<u32>().write_unaligned(2);
            }
        }
        entry.into()
    }
}
