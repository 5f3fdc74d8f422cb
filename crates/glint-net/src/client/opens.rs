//! Files that a client has open at a server, to open it again after a restart.
//!
//! Opens are counted where answers are received, and not above the transport: between an answer and
//! the task that waits for it another run of the server may want to know what is open, and a call
//! that was dropped has an answer all the same.
//!
//! Invariant: no request that sets a size or a time is sent while a close of the file is under way,
//! which would bring an older one after it.

use glint_proto::lock::Grant;
use glint_proto::{Access, Capability, FsResult, Ino, MdsReply, MdsRequest, deferred};
use glint_wait::Monitor;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Opens of one inode.
#[derive(Clone, Copy, Default)]
pub(crate) struct OpenCount {
    pub(crate) readers: u32,
    pub(crate) writers: u32,
    /// Capability that allows this session to write the inode, if OSTs ask for that.
    pub(crate) capability: Option<Capability>,
}

/// Open files, and closes that are under way.
#[derive(Default)]
pub(crate) struct ClientOpens {
    counts: Mutex<HashMap<Ino, OpenCount>>,
    /// Closes that were sent and not answered, and who waits for them.
    closing: Monitor<HashMap<Ino, u32>, Ino>,
}

impl ClientOpens {
    /// Follows what this client has open, to be able to say it again: from the answer of an
    /// open to that of a close.
    pub(crate) fn note(&self, request: &MdsRequest<'_>, reply: &FsResult<MdsReply>) {
        if let (MdsRequest::Batch { changes, .. }, Ok(MdsReply::Batched { failed, .. })) =
            (request, reply)
        {
            let failed = |at: usize| failed.iter().any(|(number, _)| *number as usize == at);
            for (at, change) in deferred::changes(changes).flatten().enumerate() {
                match change.opening() {
                    Some((_, _, true)) if failed(at) => {}
                    Some((ino, write, opened)) => self.count_open(ino, write, opened),
                    None => {}
                }
            }
            return;
        }
        let (ino, write, opened) = match (request, reply) {
            (MdsRequest::Open { ino, flags }, Ok(_)) => (*ino, flags.write, true),
            (MdsRequest::Create { open: Some(flags), .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, flags.write, true)
            }
            (MdsRequest::Tmpfile { .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, true, true)
            }
            (MdsRequest::AddOpens { ino, readers }, Ok(_)) => {
                self.counts.lock().entry(*ino).or_default().readers += readers;
                return;
            }
            (MdsRequest::Release { ino, write, .. }, _) => (*ino, *write, false),
            _ => return,
        };
        if !opened {
            self.note_closed(ino);
        }
        self.count_open(ino, write, opened);
    }

    fn count_open(&self, ino: Ino, write: bool, opened: bool) {
        let mut counts = self.counts.lock();
        let count = counts.entry(ino).or_default();
        let which = if write { &mut count.writers } else { &mut count.readers };
        *which = if opened { *which + 1 } else { which.saturating_sub(1) };
        if (count.readers, count.writers) == (0, 0) {
            counts.remove(&ino);
        }
    }

    /// Keeps the capability that came with the answer to an open.
    pub(crate) fn note_capability(&self, grants: &[Grant]) {
        for grant in grants {
            if let Grant::Capability { ino, capability } = grant
                && capability.access.contains(Access::WRITE)
                && let Some(count) = self.counts.lock().get_mut(ino)
            {
                count.capability = Some(*capability);
            }
        }
    }

    /// How many inodes are open.
    pub(crate) fn len(&self) -> usize {
        self.counts.lock().len()
    }

    /// A close is sent.
    pub(crate) fn note_closing(&self, ino: Ino) {
        *self.closing.lock().entry(ino).or_default() += 1;
    }

    /// Until no close of a file is under way: it would arrive after what is done next, and
    /// bring an old size.
    pub(crate) async fn until_closed(&self, ino: Ino) {
        self.closing.until_with(ino, |closing| (!closing.contains_key(&ino)).then_some(())).await;
    }

    /// A close is answered.
    fn note_closed(&self, ino: Ino) {
        {
            let mut closing = self.closing.lock();
            let Some(count) = closing.get_mut(&ino) else { return };
            *count -= 1;
            if *count > 0 {
                return;
            }
            closing.remove(&ino);
        }
        self.closing.wake_where(|waits_for| *waits_for == ino);
    }

    /// Open files, by inodes.
    pub(crate) fn list(&self) -> Vec<(Ino, OpenCount)> {
        let mut opens: Vec<_> = self.counts.lock().iter().map(|(i, count)| (*i, *count)).collect();
        opens.sort_unstable_by_key(|(ino, _)| *ino);
        opens
    }
}
