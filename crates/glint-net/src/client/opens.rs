//! Files that the MDS counts as open for this client, to open them again after a restart: the one
//! place that says which requests open and close files.
//!
//! Invariants:
//! - The count is that of the answers that have come: an answer changes it in the same step that
//!   puts its request into the replay log, before the caller runs or is dropped. Whatever recovery
//!   begins after that, a request is either counted here or sent again, and never neither.
//! - No request that sets a size or a time is sent while a close of the file is under way, which
//!   would bring an older one after it.
//!
//! This is state of a session, as the replay log is, and so it stands in the transport and not in
//! the client above it:
//! - the client learns of an answer when the caller runs. That is after a recovery may have begun,
//!   after the truncation that belongs to an open, or never, if the call was dropped; the MDS counts
//!   the file all the while;
//! - what the client counts are the opens of programs, some of which the MDS does not know (`pins.rs`
//!   there). They are others;
//! - a server in the same process never restarts without its client, and nothing is counted for it.
//!
//! The client may rely on this: what it was answered is opened again, until the answer of its close;
//! and of an answer that nobody waits for any more, the file is closed. What it has opened by itself
//! it says (`AddOpens`), after a restart among what it reclaims.

use glint_proto::lock::Grant;
use glint_proto::{
    Access, Capability, FsResult, Ino, MdsReply, MdsRequest, Op, OpenFlags, deferred,
};
use glint_wait::Monitor;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Opens of one inode.
#[derive(Clone, Copy, Default)]
struct OpenCount {
    readers: u32,
    writers: u32,
    /// Capability that allows this session to write the inode, if OSTs ask for that.
    capability: Option<Capability>,
}

/// File that an answer says is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenedFile {
    pub(crate) ino: Ino,
    write: bool,
    truncates: bool,
}

impl OpenedFile {
    /// File that a request has opened.
    fn by(request: &MdsRequest<'_>, reply: &FsResult<MdsReply>) -> Option<OpenedFile> {
        let (ino, flags) = match (request, reply) {
            (MdsRequest::Open { ino, flags }, Ok(_)) => (*ino, *flags),
            (MdsRequest::Create { open: Some(flags), .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, *flags)
            }
            (MdsRequest::Tmpfile { .. }, Ok(MdsReply::Opened { attr, .. })) => {
                (attr.ino, OpenFlags { write: true, ..OpenFlags::default() })
            }
            _ => return None,
        };
        Some(OpenedFile { ino, write: flags.write, truncates: flags.truncate })
    }

    /// The request that closes it, if nobody has used it.
    pub(crate) fn close(self) -> MdsRequest<'static> {
        // Nobody asked the objects: whoever needs to know does.
        let wrote = self.truncates.then_some((0, None));
        MdsRequest::Release { ino: self.ino, write: self.write, wrote }
    }
}

/// Close that is to be sent. Unless it is, nobody waits for it.
pub(crate) struct ClosingGuard<'a> {
    opens: &'a ClientOpens,
    ino: Ino,
    is_sent: bool,
}

impl ClosingGuard<'_> {
    /// The close has its place among the requests under way.
    pub(crate) fn sent(mut self) {
        self.is_sent = true;
    }
}

impl Drop for ClosingGuard<'_> {
    fn drop(&mut self) {
        if !self.is_sent {
            self.opens.note_closed(self.ino);
        }
    }
}

/// Open files, and closes that are under way.
#[derive(Default)]
pub(crate) struct ClientOpens {
    counts: Mutex<HashMap<Ino, OpenCount>>,
    /// Closes that were sent and not answered, and who waits for them.
    closing: Monitor<HashMap<Ino, u32>, Ino>,
}

impl ClientOpens {
    /// Whether a close was sent that is not answered.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.lock().is_empty()
    }

    /// Whether answers to requests of this kind may open or close files.
    pub(crate) fn follow(op: Op) -> bool {
        matches!(op, Op::Open | Op::Create | Op::Tmpfile | Op::Release | Op::Batch)
    }

    /// The answer to a request has come. Returns the file that it has opened.
    pub(crate) fn on_answer(
        &self,
        request: &MdsRequest<'_>,
        reply: &FsResult<MdsReply>,
        grants: &[Grant],
    ) -> Option<OpenedFile> {
        let opened = OpenedFile::by(request, reply);
        match (request, reply) {
            (MdsRequest::Batch { changes, .. }, Ok(MdsReply::Batched { failed, .. })) => {
                let failed = |at: usize| failed.iter().any(|(number, _)| *number as usize == at);
                for (at, change) in deferred::changes(changes).flatten().enumerate() {
                    match change.opening() {
                        Some((_, _, true)) if failed(at) => {}
                        Some((ino, write, true)) => self.count_open(ino, write),
                        Some((ino, write, false)) => self.count_close(ino, write),
                        None => {}
                    }
                }
            }
            (MdsRequest::AddOpens { ino, readers }, Ok(_)) => self.on_declared(*ino, *readers),
            (MdsRequest::Release { ino, write, .. }, _) => {
                self.note_closed(*ino);
                self.count_close(*ino, *write);
            }
            _ => {
                if let Some(OpenedFile { ino, write, .. }) = opened {
                    self.count_open(ino, write);
                }
            }
        }
        self.note_capability(grants);
        opened
    }

    /// A request that nobody waits for was perhaps executed, and no answer will come: its session
    /// is over, or its thread has ended.
    pub(crate) fn on_failed(&self, request: &MdsRequest<'_>) {
        if let MdsRequest::Release { ino, write, .. } = request {
            self.note_closed(*ino);
            self.count_close(*ino, *write);
        }
    }

    /// The client has opened a file by itself, so often, and the MDS is told.
    pub(crate) fn on_declared(&self, ino: Ino, readers: u32) {
        self.counts.lock().entry(ino).or_default().readers += readers;
    }

    fn count_open(&self, ino: Ino, write: bool) {
        let mut counts = self.counts.lock();
        let count = counts.entry(ino).or_default();
        *(if write { &mut count.writers } else { &mut count.readers }) += 1;
    }

    fn count_close(&self, ino: Ino, write: bool) {
        let mut counts = self.counts.lock();
        let Some(count) = counts.get_mut(&ino) else { return };
        let which = if write { &mut count.writers } else { &mut count.readers };
        *which = which.saturating_sub(1);
        if (count.readers, count.writers) == (0, 0) {
            counts.remove(&ino);
        }
    }

    /// Keeps the capability that came with the answer to an open.
    fn note_capability(&self, grants: &[Grant]) {
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

    /// A close is about to be sent.
    pub(crate) fn begin_close(&self, ino: Ino) -> ClosingGuard<'_> {
        *self.closing.lock().entry(ino).or_default() += 1;
        ClosingGuard { opens: self, ino, is_sent: false }
    }

    /// Until no close of a file is under way: it would arrive after what is done next, and
    /// bring an old size.
    pub(crate) async fn until_closed(&self, ino: Ino) {
        self.closing.until_with(ino, |closing| (!closing.contains_key(&ino)).then_some(())).await;
    }

    /// A close is answered, or was not sent.
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

    /// Requests that open again what is open, by inodes.
    pub(crate) fn to_reclaim(&self) -> Vec<MdsRequest<'static>> {
        let mut opens: Vec<_> = self.counts.lock().iter().map(|(i, count)| (*i, *count)).collect();
        opens.sort_unstable_by_key(|(ino, _)| *ino);
        let reopen = |(ino, OpenCount { readers, writers, capability })| MdsRequest::Reopen {
            ino,
            readers,
            writers,
            capability,
        };
        opens.into_iter().map(reopen).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use glint_proto::deferred::Deferred;
    use glint_proto::{Attr, Errno, Timestamp};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn release(ino: Ino, write: bool) -> MdsRequest<'static> {
        MdsRequest::Release { ino, write, wrote: None }
    }

    fn opened(ino: Ino) -> FsResult<MdsReply> {
        let attr = Attr::new(ino, 0o100_644, Timestamp::default());
        Ok(MdsReply::Opened { attr, created: false })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Answers of all kinds, of two files; failed ones open nothing, and close all the same.
        #[test]
        fn what_is_opened_again_is_what_answers_have_opened(
            steps in proptest::collection::vec((0u8..6, 1u64..3, any::<bool>(), any::<bool>()), 0..60)
        ) {
            let opens = ClientOpens::default();
            let mut model: BTreeMap<Ino, [u32; 2]> = BTreeMap::new();
            let mut closing: Vec<(Ino, bool)> = Vec::new();
            for (step, ino, write, fails) in steps {
                let ino = Ino(ino);
                let reply = if fails { Err(Errno::EIO) } else { opened(ino) };
                let flags = OpenFlags { write, ..OpenFlags::default() };
                let mut opens_one = !fails;
                let mut close = None;
                match step {
                    0 => {
                        let request = MdsRequest::Open { ino, flags };
                        prop_assert_eq!(opens.on_answer(&request, &reply, &[]).is_some(), !fails);
                    }
                    1 => {
                        let changes = [(ino, 0), (Ino(9), 1)].map(|(ino, _)| {
                            let request = release(ino, write);
                            let time = Timestamp::default();
                            Deferred { uid: 0, gid: 0, time, made: None, request }
                        });
                        let mut batch = Vec::new();
                        for change in changes {
                            change.encode(&mut batch).unwrap();
                        }
                        let failed = if fails { vec![(0, Errno::EIO)] } else { Vec::new() };
                        let request = MdsRequest::Batch { epoch: 1, changes: &batch };
                        let reply = Ok(MdsReply::Batched { done: 2, failed });
                        prop_assert_eq!(opens.on_answer(&request, &reply, &[]), None);
                        (opens_one, close) = (false, Some((ino, write)));
                    }
                    2 if !write => {
                        let request = MdsRequest::AddOpens { ino, readers: 1 };
                        opens.on_answer(&request, &reply, &[]);
                    }
                    3 => {
                        let guard = opens.begin_close(ino);
                        opens_one = false;
                        if !fails {
                            guard.sent();
                            closing.push((ino, write));
                        }
                    }
                    4 | 5 => {
                        opens_one = false;
                        close = closing.pop();
                        if let Some((ino, write)) = close {
                            match step {
                                4 => _ = opens.on_answer(&release(ino, write), &reply, &[]),
                                _ => opens.on_failed(&release(ino, write)),
                            }
                        }
                    }
                    _ => opens_one = false,
                }
                if opens_one {
                    model.entry(ino).or_default()[usize::from(write)] += 1;
                }
                if let Some((ino, write)) = close
                    && let Some(count) = model.get_mut(&ino)
                {
                    count[usize::from(write)] = count[usize::from(write)].saturating_sub(1);
                    if *count == [0, 0] {
                        model.remove(&ino);
                    }
                }
                let expected: Vec<_> = model
                    .iter()
                    .map(|(ino, [readers, writers])| MdsRequest::Reopen {
                        ino: *ino,
                        readers: *readers,
                        writers: *writers,
                        capability: None,
                    })
                    .collect();
                prop_assert_eq!(opens.to_reclaim(), expected);
                for ino in [Ino(1), Ino(2)] {
                    let waits = opens.until_closed(ino).now_or_never().is_none();
                    prop_assert_eq!(waits, closing.iter().any(|(other, _)| *other == ino));
                }
            }
        }
    }
}
