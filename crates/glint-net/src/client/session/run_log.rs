//! The replay log while the server is in one run.
//!
//! Invariants:
//! - Nothing comes into the log but under its lock, with which another run begins to be counted: an
//!   answer of a run that has ended is not kept under its number among those of the next one.
//! - A change of a chain is judged under that lock, too. Whoever has heard that the chain has another
//!   head takes out of the log what that is to have: what came later would be sent to it at the next
//!   move, after newer changes.
//!
//! The log is locked before the rows of chains, and these before what is moving.

use super::ClientSession;
use crate::client::recovery::frames::changed_chain;
use crate::client::recovery::replay_log::{
    ReplayLog, ToReplay, UncommittedRequest, UncommittedWrite,
};
use parking_lot::MutexGuard;
use std::sync::atomic::Ordering;

/// The replay log, locked: until this is dropped no other run is counted.
pub(crate) struct RunLog<'a> {
    session: &'a ClientSession,
    log: MutexGuard<'a, ReplayLog>,
}

impl ClientSession {
    /// Locks the replay log; `None` if the run with this boot verifier is not, or no more, the one
    /// whose transactions are counted.
    pub(crate) fn log_of_run(&self, boot_verifier: u64) -> Option<RunLog<'_>> {
        let log = self.replay_log.lock();
        let is_now = boot_verifier == self.boot_verifier.load(Ordering::Acquire);
        is_now.then_some(RunLog { session: self, log })
    }
}

impl RunLog<'_> {
    /// Requests that are still to be replayed.
    pub(crate) fn unreplayed(&mut self) -> &mut ToReplay {
        self.log.unreplayed()
    }

    /// The change of data that is being replayed is answered.
    pub(crate) fn end_replay(&mut self) {
        self.log.end_replay();
    }

    /// Whether a change that was answered is to be made anew, because its chain has another head,
    /// which may be sent older changes after it.
    pub(crate) fn is_overtaken(&self, frame: &[u8]) -> bool {
        let Some(rows) = self.session.chain_rows.get() else { return false };
        let of_chain = changed_chain(frame);
        of_chain.is_some_and(|(ost, chain)| rows.is_overtaken(ost, chain))
    }

    /// Keeps a request until its transaction is durable.
    pub(crate) fn keep_request(self, transaction: u64, request: UncommittedRequest) {
        self.keep(0, transaction, |log| log.add_mds(transaction, request));
    }

    /// Keeps a change of data until it is durable.
    pub(crate) fn keep_write(self, transaction: u64, change: UncommittedWrite) {
        self.keep(1, transaction, |log| log.add_ost(transaction, change));
    }

    fn keep(self, which: usize, transaction: u64, add: impl FnOnce(&mut ReplayLog)) {
        let RunLog { session, mut log } = self;
        let was_filling = log.is_filling();
        add(&mut log);
        let fills = !was_filling && log.is_filling();
        let is_late = transaction <= session.committed[which].load(Ordering::Acquire);
        drop(log);
        if is_late {
            // An answer that was sent again is overtaken by one that says that all is durable, which
            // no other one may say later.
            session.forget_durable(None, &mut drop);
        }
        if fills {
            session.hurry();
        }
    }
}
