//! Changes of data that a server without copies has lost, while it is sent them again.
//!
//! Invariant: none is made once the lock of its file is returned. One that was sent may be in the
//! socket of a server that stands still, which executes requests of several connections in any
//! order: it might come after what others have written since. So the lock waits until it is
//! answered, another run of the server is heard of, an administrator has given up the server, or the
//! MDS has evicted this client; however long that takes. All others leave the log when the lock is
//! returned, and are not sent.
//!
//! A server that was given up does not exist any more, and nobody reads what it made. That is known
//! of the run that was counted before the MDS was asked: a newer one may have come back since then.

use super::ClientSession;
use glint_proto::Ino;
use std::sync::atomic::Ordering;

impl ClientSession {
    /// A change that was being replayed is answered, or nobody makes it any more.
    pub(crate) fn on_replay_end(&self) {
        self.replayed.wake();
    }

    /// Forgets changes of a file ([`ClientSession::abandon`]), also one that is being replayed once
    /// that is answered.
    pub(crate) async fn abandon_replayed(&self, ino: Ino) {
        if !self.abandon(ino) {
            return;
        }
        tracing::warn!(
            %ino, server = %self.options.address,
            "a change that the server has lost and is sent again has no answer; the lock of its file is \
            not returned before that"
        );
        let is_replaying = || self.replay_log.lock().is_replaying(ino);
        loop {
            self.replayed.until(|| (!is_replaying()).then_some(())).await;
            // After a failure it may be sent once more before it is forgotten.
            if !self.abandon(ino) {
                return;
            }
        }
    }

    /// The run of the server that may make a change of a file which is being replayed.
    pub(crate) fn run_replaying(&self, ino: Ino) -> Option<u64> {
        let log = self.replay_log.lock();
        log.is_replaying(ino).then(|| self.boot_verifier.load(Ordering::Acquire))
    }

    /// Has nobody wait for a change that this run of the server was sent again: it was given up.
    pub(crate) fn give_up_run(&self, boot_verifier: u64) {
        if let Some(mut log) = self.log_of_run(boot_verifier) {
            log.end_replay();
        }
        self.on_replay_end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::cluster::ClientIdentity;
    use crate::client::recovery::replay_log::UncommittedWrite;
    use crate::client::session::tests::{log_write, session};
    use glint_proto::message::Survived;
    use glint_proto::{ClientId, Errno, ObjectId};
    use std::pin::pin;

    const FILE: Ino = Ino(7);
    const OBJECT: ObjectId = ObjectId { ino: FILE, stripe: 0 };

    #[test]
    fn a_lock_is_returned_when_its_change_is_not_replayed_any_more() {
        let ends: [fn(&ClientSession); 4] = [
            |session| {
                session.replay_log.lock().end_replay();
                session.on_replay_end();
            },
            |session| session.count_anew(3, Survived { mds: 0, ost: 0 }),
            |session| session.on_eviction(),
            |session| session.give_up_run(2),
        ];
        for end in ends {
            let session = session(Some(&ClientIdentity::new(ClientId(1))));
            session.count_anew(1, Survived::ALL);
            for transaction in 1..=2 {
                let object = (1, OBJECT);
                let change = UncommittedWrite { frame: vec![0].into(), object, retry: None };
                log_write(&session, transaction, change);
            }
            session.count_anew(2, Survived { mds: 0, ost: 0 });
            assert!(session.replay_log.lock().begin_replay().is_some());
            futures_lite::future::block_on(async {
                let mut abandoning = pin!(session.abandon_replayed(FILE));
                assert!(futures_util::poll!(abandoning.as_mut()).is_pending());
                assert_eq!(session.replay_log.lock().unreplayed().ost.len(), 1);
                assert!(futures_util::poll!(pin!(session.abandon_replayed(Ino(8)))).is_ready());
                assert_eq!(session.run_replaying(FILE), Some(2));
                session.give_up_run(1);
                assert!(
                    futures_util::poll!(abandoning.as_mut()).is_pending(),
                    "that one has ended"
                );
                end(&session);
                assert!(futures_util::poll!(abandoning.as_mut()).is_ready());
            });
            assert!(session.replay_log.lock().is_empty());
            assert_eq!(session.take_failure(FILE), Some(Errno::EIO), "some of it is lost");
        }
    }

    #[test]
    fn a_change_that_is_sent_once_more_before_it_is_forgotten_is_waited_for() {
        let (session, object) = (session(Some(&ClientIdentity::new(ClientId(1)))), (1, OBJECT));
        session.count_anew(1, Survived::ALL);
        log_write(&session, 1, UncommittedWrite { frame: vec![0].into(), object, retry: None });
        session.count_anew(2, Survived { mds: 0, ost: 0 });
        assert!(session.replay_log.lock().begin_replay().is_some());
        assert!(session.abandon(FILE), "it may be made");
        session.replay_log.lock().end_replay();
        assert!(session.replay_log.lock().note_retry(Some(object), (64, 1)));
        assert!(session.abandon(FILE), "it may be made again");
        session.replay_log.lock().end_replay();
        assert!(!session.abandon(FILE) && session.replay_log.lock().is_empty());
    }
}
