//! Opens that are passed through to the object of their file, from asking for it to giving it back;
//! which they are is decided in [`crate::adapter::passed_opens`].

use crate::abi::{CopyFileRangeIn, FATTR_FH, GETATTR_FH, GetattrIn, Opcode, SetattrIn};
use crate::adapter::dispatch::{Adapter, parse};
use crate::adapter::passed_opens::{EndedPassing, InHand, OpenAccess, PassedOpen, PassedOpens};
use crate::transport::backing::Backing;
use glint_client::{Handle, Open, Valid, Vfs};
use glint_net::host;
use glint_proto::{FsResult, Ino, LocalObject};
use glint_telemetry::Counter;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often it is looked whether mappings of closed files are gone.
const LOOK: Duration = Duration::from_millis(250);

impl InHand for Backing {
    fn is_in_use(&self) -> bool {
        self.object().is_in_use()
    }
}

/// Files that are passed through, of a kernel that can do it.
pub(crate) struct Passthrough {
    device: Arc<OwnedFd>,
    opens: PassedOpens<Backing>,
    /// It was told that the kernel refuses objects.
    is_told: AtomicBool,
}

impl Passthrough {
    /// For the kernel at the other side of `device`.
    fn new(device: Arc<OwnedFd>) -> Passthrough {
        Passthrough { device, opens: PassedOpens::default(), is_told: AtomicBool::new(false) }
    }

    /// Gives an object to the kernel.
    fn register(&self, object: Arc<dyn LocalObject>) -> Option<Backing> {
        let registered = Backing::register(&self.device, object);
        let warn = |error: &std::io::Error| {
            if !self.is_told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    %error,
                    "the kernel does not take an object of an OST to read it by itself; files \
                     are read as without passthrough=on"
                );
            }
        };
        registered.inspect_err(warn).ok()
    }
}

/// The open file by which a request is made, with the number of its inode in the kernel; not if it
/// can only be one that is read.
fn asked_by(opcode: Opcode, nodeid: u64, fixed: &[u8]) -> Option<(u64, Handle)> {
    let handle = match opcode {
        Opcode::Write
        | Opcode::Fallocate
        | Opcode::Lseek
        | Opcode::Fsync
        | Opcode::Flush
        | Opcode::Getlk
        | Opcode::Setlk
        | Opcode::Setlkw => parse::<u64>(fixed).ok()?,
        Opcode::Getattr => {
            let arg: GetattrIn = parse(fixed).ok()?;
            (arg.flags & GETATTR_FH != 0).then_some(arg.fh)?
        }
        Opcode::Setattr => {
            let arg: SetattrIn = parse(fixed).ok()?;
            (arg.valid & FATTR_FH != 0).then_some(arg.fh)?
        }
        Opcode::CopyFileRange => {
            let arg: CopyFileRangeIn = parse(fixed).ok()?;
            return Some((arg.nodeid_out, Handle(arg.fh_out)));
        }
        _ => return None,
    };
    Some((nodeid, Handle(handle)))
}

impl<F: Vfs> Adapter<F> {
    /// The kernel asks for something: if it does by an open file, it has heard of its open.
    pub(crate) fn hear(&self, opcode: Opcode, nodeid: u64, fixed: &[u8]) {
        let Some(passthrough) = self.passthrough.get() else { return };
        if let Some((nodeid, handle)) = asked_by(opcode, nodeid, fixed) {
            passthrough.opens.hear(self.ino(nodeid), handle);
        }
    }

    /// From now on files are passed through, if they can be. Before the first request.
    pub(crate) fn pass_through(&self, device: Arc<OwnedFd>) {
        let _ = self.passthrough.set(Passthrough::new(device));
    }

    /// A file was opened with `flags` of open(2). Returns the object that the kernel gets with it,
    /// if it does. After an error the file is not open.
    pub(crate) async fn pass(
        &self,
        passthrough: &Passthrough,
        open: &Open,
        flags: u32,
    ) -> FsResult<Option<PassedOpen<Backing>>> {
        let Open { attr, handle, created, .. } = open;
        let (ino, handle) = (attr.ino, *handle);
        // While somebody writes, the objects know it better.
        let size = (!attr.size_on_ost).then_some(attr.size);
        let mut access = OpenAccess::of(flags);
        access.around |= self.direct_io;
        if let Some(ended) = passthrough.opens.end_if_unused(ino) {
            self.end_passing(ino, ended).await;
        }
        let mut handed = None;
        if !*created && passthrough.opens.may_begin(ino, access, size) {
            handed = match self.fs.hand_out(handle).await {
                Ok(object) => object.and_then(|object| passthrough.register(object)),
                // Who reads it hears why.
                Err(errno) => {
                    tracing::debug!(%ino, %errno, "an object is not handed to the kernel");
                    None
                }
            };
        }
        let Some(passed) = passthrough.opens.open(ino, handle, access, handed) else {
            return Ok(None);
        };
        if access.may_store() {
            let object = passed.object.object().clone();
            // Before the kernel can map it.
            let allowed = blocking::unblock(move || object.allow_stores()).await;
            if let Err(errno) = allowed {
                drop(passed);
                let _ = self.release_passed(passthrough, (ino, handle), flags).await;
                return Err(errno);
            }
            // From here on its times change without a word; see `valid`.
            self.forget_attributes(ino);
        }
        if access.reads {
            self.fs.note_passed(handle, access.writes).await;
        }
        if !passed.around {
            glint_telemetry::count(Counter::PassthroughOpens, 1);
        }
        Ok(Some(passed))
    }

    /// Releases a file that was opened with these flags: now, or when the kernel is done with its
    /// object.
    pub(crate) async fn release(&self, ino: Ino, handle: Handle, flags: u32) -> FsResult<()> {
        match self.passthrough.get() {
            // Apart from the state of other requests: it is large.
            Some(passthrough) => {
                Box::pin(self.release_passed(passthrough, (ino, handle), flags)).await
            }
            None => self.fs.release(handle).await,
        }
    }

    async fn release_passed(
        &self,
        passthrough: &Passthrough,
        (ino, handle): (Ino, Handle),
        flags: u32,
    ) -> FsResult<()> {
        let (now, ended) = passthrough.opens.close(ino, handle, OpenAccess::of(flags));
        let mut released = Ok(());
        if let Some(handle) = now {
            released = self.fs.release(handle).await;
        }
        if let Some(ended) = ended {
            self.end_passing(ino, ended).await;
        }
        released
    }

    /// The kernel is done with the object of a file.
    async fn end_passing(&self, ino: Ino, ended: EndedPassing<Backing>) {
        for handle in ended.handles {
            if let Err(errno) = self.fs.release(handle).await {
                tracing::debug!(%ino, %errno, "closing a file whose mappings are gone");
            }
        }
        // The kernel forgets it.
        drop(ended.object);
        if ended.stores {
            self.forget_attributes(ino);
        }
    }

    fn forget_attributes(&self, ino: Ino) {
        if let Some(kernel) = &self.kernel {
            kernel.forget_attributes(ino);
        }
    }

    /// For how long the kernel may rely on an answer about an inode: not on times of a file that it
    /// may change without a word.
    pub(crate) fn valid(&self, ino: Ino, valid: Valid) -> Valid {
        match self.passthrough.get() {
            Some(passthrough) if passthrough.opens.has_stores(ino) => valid.without_attr(),
            _ => valid,
        }
    }

    /// Ends passing all files through, once the file system was unmounted.
    pub(crate) async fn end_passthrough(&self) {
        let Some(passthrough) = self.passthrough.get() else { return };
        for (ino, ended) in passthrough.opens.end_all() {
            self.end_passing(ino, ended).await;
        }
    }

    /// Ends passing files through whose mappings are gone, again and again.
    pub(crate) async fn watch_passed(self: Arc<Self>) {
        let Some(passthrough) = self.passthrough.get() else { return };
        loop {
            host::sleep(LOOK).await;
            for (ino, ended) in passthrough.opens.end_unused() {
                self.end_passing(ino, ended).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{FlushIn, FsyncIn, LkIn, OpenIn, WriteIn};
    use zerocopy::IntoBytes;

    #[test]
    fn whatever_is_asked_for_by_an_open_file_says_which_it_is() {
        let it = Some((7, Handle(9)));
        let by = |opcode, fixed: &[u8]| asked_by(opcode, 7, fixed);
        assert_eq!(by(Opcode::Write, WriteIn { fh: 9, ..WriteIn::default() }.as_bytes()), it);
        assert_eq!(by(Opcode::Fsync, FsyncIn { fh: 9, ..FsyncIn::default() }.as_bytes()), it);
        assert_eq!(by(Opcode::Flush, FlushIn { fh: 9, ..FlushIn::default() }.as_bytes()), it);
        assert_eq!(by(Opcode::Setlk, LkIn { fh: 9, ..LkIn::default() }.as_bytes()), it);
        for (flags, said) in [(GETATTR_FH, it), (0, None)] {
            let arg = GetattrIn { flags, fh: 9, ..GetattrIn::default() };
            assert_eq!(by(Opcode::Getattr, arg.as_bytes()), said);
        }
        for (valid, said) in [(FATTR_FH, it), (0, None)] {
            let arg = SetattrIn { valid, fh: 9, ..SetattrIn::default() };
            assert_eq!(by(Opcode::Setattr, arg.as_bytes()), said);
        }
        let copy = CopyFileRangeIn { fh_in: 1, nodeid_out: 7, fh_out: 9, ..Default::default() };
        assert_eq!(asked_by(Opcode::CopyFileRange, 3, copy.as_bytes()), it);
        assert_eq!(by(Opcode::Open, OpenIn::default().as_bytes()), None);
    }
}
