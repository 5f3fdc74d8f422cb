//! How much the replay logs of all sessions of a process may hold together.
//!
//! Invariant: no session waits for another. Each may hold [`SESSION_BYTES`], whatever others hold, and
//! who holds that and waits has it made durable by its own server.

use crate::client::recovery::replay_log::Kind;
use crate::host;
use glint_memory::{SupplyWatch, steps_that_fit};
use glint_proto::limits::{BULK_BYTES_MAX, REPLAY_LOG_BYTES_MAX};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Bytes of each kind that each session may hold.
const SESSION_BYTES: usize = BULK_BYTES_MAX;
/// Least bytes of all of them.
const BYTES_MIN: usize = 4 * BULK_BYTES_MAX;
const _: () = assert!(BYTES_MIN <= REPLAY_LOG_BYTES_MAX);

/// What all sessions hold, of each kind, and how much they may.
pub(crate) struct ReplayBudget {
    bytes_max: usize,
    used: [AtomicUsize; 2],
    /// How often the limit is halved.
    steps: AtomicU32,
}

impl ReplayBudget {
    /// All sessions may hold so many bytes of each kind.
    pub(crate) fn of(bytes_max: usize) -> Arc<ReplayBudget> {
        let (used, steps) = (Default::default(), AtomicU32::new(0));
        Arc::new(ReplayBudget { bytes_max: bytes_max.max(BYTES_MIN), used, steps })
    }

    /// An eighth of the memory that this process may use. In a simulated world each session has a budget
    /// of its own, which is the same on every host.
    pub(crate) fn here() -> Arc<ReplayBudget> {
        static OF_PROCESS: LazyLock<Arc<ReplayBudget>> = LazyLock::new(|| {
            let memory = SupplyWatch::of_this_process().total().unwrap_or(u64::MAX);
            ReplayBudget::of(usize::try_from(memory / 8).unwrap_or(usize::MAX))
        });
        if host::is_simulated() { ReplayBudget::simulated() } else { OF_PROCESS.clone() }
    }

    /// The budget of a session of a simulated world.
    pub(crate) fn simulated() -> Arc<ReplayBudget> {
        ReplayBudget::of(REPLAY_LOG_BYTES_MAX)
    }

    /// Halves the limit so many times: there is less memory than before, or more.
    pub(crate) fn set_steps(&self, steps: u32) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    /// After how many steps what is held would still fit. No step takes the least.
    pub(crate) fn steps_that_fit(&self) -> u32 {
        let used = self.used.iter().map(|used| used.load(Ordering::Relaxed)).max().unwrap_or(0);
        steps_that_fit(if used > BYTES_MIN { used } else { 0 }, self.bytes_max)
    }

    /// Returns true if a session that holds so many bytes of a kind has reached this part of what it
    /// may.
    pub(super) fn reaches(&self, kind: Kind, own: usize, part: usize) -> bool {
        let max = (self.bytes_max >> self.steps.load(Ordering::Relaxed)).max(BYTES_MIN);
        let all = self.used[kind as usize].load(Ordering::Relaxed);
        own >= REPLAY_LOG_BYTES_MAX / part || (own >= SESSION_BYTES / part && all >= max / part)
    }

    pub(super) fn add(&self, kind: Kind, bytes: usize) {
        self.used[kind as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, kind: Kind, bytes: usize) {
        self.used[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::recovery::replay_log::{ReplayLog, UncommittedWrite};
    use glint_proto::message::Survived;
    use glint_proto::{Ino, ObjectId};

    const MIB: usize = 1 << 20;

    fn write(log: &mut ReplayLog, transaction: u64, bytes: usize) {
        let object = (0, ObjectId { ino: Ino(7), stripe: 0 });
        log.add_ost(
            transaction,
            UncommittedWrite { frame: vec![0; bytes].into(), object, retry: None },
        );
    }

    #[test]
    fn many_sessions_share_what_there_is_and_each_has_some() {
        let budget = ReplayBudget::of(64 * MIB);
        let mut logs: Vec<_> = (0..8).map(|_| ReplayLog::new(budget.clone())).collect();
        logs.iter_mut().for_each(|log| write(log, 1, 6 * MIB));
        assert!(logs.iter().all(|log| log.is_filling() && !log.is_full(Kind::Ost)));
        logs[..4].iter_mut().for_each(|log| write(log, 2, 4 * MIB));
        assert!(logs.iter().all(|log| log.is_full(Kind::Ost) && !log.is_full(Kind::Mds)));
        let mut late = ReplayLog::new(budget.clone());
        write(&mut late, 1, MIB);
        assert!(!late.is_full(Kind::Ost) && !late.is_filling(), "it waits for no other session");
        // What leaves in any way is not counted any more.
        logs[0].committed(glint_proto::Committed { mds: 0, ost: 2 }, &mut drop);
        logs[1].after_restart(Survived { mds: 0, ost: u64::MAX });
        logs[2].abandon(Ino(7), |_| true);
        logs[3].clear();
        assert!(!logs[7].is_full(Kind::Ost));
        drop((logs, late));
        assert_eq!(budget.used[Kind::Ost as usize].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn they_may_hold_less_while_memory_is_short() {
        let budget = ReplayBudget::of(128 * MIB);
        let mut log = ReplayLog::new(budget.clone());
        write(&mut log, 1, 10 * MIB);
        assert_eq!(budget.steps_that_fit(), 6, "that is the least");
        write(&mut log, 2, 25 * MIB);
        assert!(!log.is_filling());
        assert_eq!(budget.steps_that_fit(), 1);
        budget.set_steps(2);
        assert!(log.is_filling() && log.is_full(Kind::Ost));
        budget.set_steps(0);
        assert!(!log.is_filling());
    }

    #[test]
    fn a_simulated_session_does_not_depend_on_this_host() {
        assert_eq!(ReplayBudget::simulated().bytes_max, REPLAY_LOG_BYTES_MAX);
        assert!(!Arc::ptr_eq(&ReplayBudget::simulated(), &ReplayBudget::simulated()));
        assert!(Arc::ptr_eq(&ReplayBudget::here(), &ReplayBudget::here()), "one for a process");
    }
}
