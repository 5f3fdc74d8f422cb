//! The end of a session: the MDS has forgotten this client, and others may have its locks.
//!
//! Invariant: nothing that was made in a session is sent in a later one, also not to a chain whose
//! head may have lost it. Several threads hear of the end, at different times: first whoever speaks
//! to the MDS, and each session of an OSS when it is used next. Until that has forgotten its log,
//! nothing of the log comes to what waits for heads
//! ([`MovedChanges`](crate::client::moved::MovedChanges)):
//! - before OSSes are told the next session, because nothing waits of one that is over;
//! - after that, because the log is of another session than that which OSSes are told.

use super::ClientSession;
use crate::client::chain_rows::ChainRows;
use crate::client::recovery::replay_log::ReplayLog;
use glint_telemetry::event;
use std::sync::atomic::Ordering;

impl ClientSession {
    /// Number of the session that an OSS is told, if the server is one. When the MDS has evicted
    /// this client, what was for this server is not to be sent any more, reached or not.
    pub(crate) fn session_of_today(&self) -> Option<u64> {
        let told = self.told_session.as_ref()?;
        let today = self.session_for_osses.load(Ordering::Acquire);
        if told.load(Ordering::Acquire) != today {
            self.on_eviction_if(|| {
                let before = told.swap(today, Ordering::AcqRel);
                before != 0 && before != today
            });
        }
        Some(today)
    }

    /// OSSes are told this session from now on: nothing is left here of the one before. Not if this
    /// client was evicted since there had been so many `evictions`: that session is over, too.
    pub(crate) fn begin_at_osses(&self, session: u64, evictions: u64) {
        self.session_for_osses.store(session, Ordering::Release);
        if let Some(rows) = self.chain_rows.get() {
            rows.moved.begin_session(|| self.evictions.load(Ordering::Acquire) == evictions);
        }
    }

    /// Has changes of a chain, from the locked log of this server, wait for whichever is the head.
    /// They are dropped if their session is over.
    pub(super) fn move_from(&self, log: &mut ReplayLog, rows: &ChainRows, target: u16) {
        let changes = log.take_chain(target);
        let is_of_today = || {
            self.told_session.as_ref().is_none_or(|told| {
                told.load(Ordering::Acquire) == self.session_for_osses.load(Ordering::Acquire)
            })
        };
        rows.moved.put_back(target, changes, is_of_today);
    }

    /// The server has forgotten this client.
    pub(crate) fn on_eviction(&self) {
        self.on_eviction_if(|| true);
    }

    /// The same, if that is found so with the log locked.
    fn on_eviction_if(&self, is_evicted: impl FnOnce() -> bool) {
        let lost = self.change_log(|log| {
            is_evicted().then(|| {
                self.evictions.fetch_add(1, Ordering::AcqRel);
                let lost = log.len();
                log.clear();
                lost
            })
        });
        let Some(lost) = lost else { return };
        if let Some(rows) = self.chain_rows.get().filter(|_| !self.is_of_oss()) {
            rows.moved.end_session();
            rows.resent.clear();
        }
        self.on_replay_end();
        self.end.wake();
        tracing::error!(
            event = event::SESSION_LOST,
            server = %self.options.address,
            lost,
            open = self.opens.len(),
            "this client was evicted: the server had not heard of it for its whole lease; \
             requests under way fail, and the last {lost} changes were perhaps not yet on \
             stable storage"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::cluster::ClientIdentity;
    use crate::client::recovery::replay_log::UncommittedWrite;
    use crate::client::session::tests::{log_write, session};
    use glint_proto::chain::ChainId;
    use glint_proto::message::Survived;
    use glint_proto::{ClientId, Ino, ObjectId};
    use std::sync::Arc;

    /// Rows are heard of on the connection that keeps the lease, between the news of the eviction
    /// and the next session, while the OSS that was the head has not heard of either.
    #[test]
    fn nothing_of_a_session_that_is_over_moves_to_another_head() {
        let target = ChainId { copies: 2, index: 0 }.target();
        let moves: [fn(&ClientSession, u16); 3] = [
            |oss, target| oss.move_chain(target),
            |oss, _| oss.forget_durable(None, &mut drop),
            |oss, _| oss.count_anew(2, Survived { mds: 0, ost: 0 }),
        ];
        let cases = [(false, false), (true, false), (true, true)];
        for (moves, (ends, begins)) in
            moves.into_iter().flat_map(|moves| cases.map(|case| (moves, case)))
        {
            let (rows, mds) = (Arc::new(ChainRows::default()), session(None));
            let mut identity = ClientIdentity::new(ClientId(1));
            identity.session = mds.session_for_osses.clone();
            mds.begin_at_osses(7, 0);
            let oss = session(Some(&identity));
            for session in [&mds, &oss] {
                let _ = session.chain_rows.set(rows.clone());
            }
            oss.count_anew(1, Survived::ALL);
            let object = (target, ObjectId { ino: Ino(7), stripe: 0 });
            let change = || UncommittedWrite { frame: vec![0].into(), object, retry: None };
            log_write(&oss, 1, change());
            if ends {
                mds.on_eviction();
            }
            if begins {
                mds.begin_at_osses(8, 1);
            }
            rows.moved.moves(target);
            moves(&oss, target);
            assert_eq!(rows.moved.is_empty(), ends, "begun: {begins}");
            if ends {
                // Changes of the next session move again.
                mds.begin_at_osses(8, 1);
                assert_eq!(oss.session_of_today(), Some(8));
                moves(&oss, target);
                assert!(rows.moved.is_empty());
                log_write(&oss, 2, change());
                oss.move_chain(target);
                assert!(!rows.moved.is_empty());
            }
        }
    }

    #[test]
    fn a_session_that_is_over_before_osses_are_told_it_does_not_begin() {
        let (rows, mds) = (Arc::new(ChainRows::default()), session(None));
        let target = ChainId { copies: 2, index: 0 }.target();
        let _ = mds.chain_rows.set(rows.clone());
        let object = (target, ObjectId { ino: Ino(7), stripe: 0 });
        let change = || UncommittedWrite { frame: vec![0].into(), object, retry: None };
        mds.on_eviction();
        mds.on_eviction();
        for (evictions, begins) in [(1, false), (2, true)] {
            mds.begin_at_osses(7 + evictions, evictions);
            rows.moved.put_back(target, vec![change()], || true);
            assert_eq!(!rows.moved.is_empty(), begins);
        }
    }
}
