//! Memory that one io_uring request of FUSE shares with the kernel, and the two
//! commands that hand it over.
//!
//! Safety argument of this module: the kernel reads and writes the memory only
//! between the submission of a command and its completion. An [`Entry`] gives out
//! references only to its owner, which must not hold one while a command is
//! submitted; `Entry` keeps the memory at a fixed address until it is dropped, and
//! it is dropped only after its last command completed or its ring is gone.

use crate::abi::*;
use compio_driver::{OpCode, OpEntry};
use io_uring::opcode::UringCmd80;
use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use std::os::fd::RawFd;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of `len` in `struct io_uring_sqe`, for which the crate has no setter.
const SQE_LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// Headers and payload of one request in flight.
pub(crate) struct Entry {
    headers: Box<[u8; URING_HEADER_BYTES]>,
    payload: Box<[u8]>,
    iovec: Box<[libc::iovec; 2]>,
}

impl Entry {
    /// An entry for payloads of up to `payload_max` bytes. Pages are only used when
    /// they are first written.
    pub(crate) fn new(payload_max: usize) -> Entry {
        let mut headers = Box::new([0u8; URING_HEADER_BYTES]);
        let mut payload = vec![0u8; payload_max].into_boxed_slice();
        let iovec = Box::new([
            libc::iovec { iov_base: headers.as_mut_ptr().cast(), iov_len: URING_HEADER_BYTES },
            libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload_max },
        ]);
        Entry { headers, payload, iovec }
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

    /// The payload buffer and how much of it the request fills.
    pub(crate) fn payload(&mut self) -> (&mut [u8], usize) {
        let len = (self.ent_in_out().payload_sz as usize).min(self.payload.len());
        (&mut self.payload, len)
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
