//! Changes of data that a server without copies has lost, while it is sent them again.
//!
//! Invariant: none is made once the lock of its file is returned. One that was sent may be in the
//! socket of a server that stands still, which executes requests of several connections in any
//! order: it might come after what others have written since. So the lock waits until it is
//! answered, another run of the server is heard of, or the MDS has evicted this client; however long
//! that takes. All others leave the log when the lock is returned, and are not sent.

use super::ClientSession;
use glint_proto::Ino;

impl ClientSession {
    /// A change that was being replayed is answered, or nobody makes it any more.
    pub(crate) fn on_replay_end(&self) {
        self.replayed.wake();
    }

    /// Forgets changes of a file ([`ClientSession::abandon`]), also one that is being replayed once
    /// that is answered.
    pub(crate) async fn abandon_replayed(&self, ino: Ino) {
        self.abandon(ino);
        // The MDS lets nobody in before all is replayed at its own OSTs.
        let is_replaying = || self.is_of_oss() && self.replay_log.lock().is_replaying(ino);
        if !is_replaying() {
            return;
        }
        tracing::warn!(
            %ino, server = %self.options.address,
            "a change that the server has lost and is sent again has no answer; the lock of its file is \
            not returned before that"
        );
        self.replayed.until(|| (!is_replaying()).then_some(())).await;
        self.abandon(ino);
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

    #[test]
    fn a_lock_is_returned_when_its_change_is_not_replayed_any_more() {
        let ends: [fn(&ClientSession); 3] = [
            |session| {
                session.replay_log.lock().end_replay();
                session.on_replay_end();
            },
            |session| session.count_anew(3, Survived { mds: 0, ost: 0 }),
            |session| session.on_eviction(),
        ];
        for end in ends {
            let session = session(Some(&ClientIdentity::new(ClientId(1))));
            session.count_anew(1, Survived::ALL);
            for transaction in 1..=2 {
                let object = (1, ObjectId { ino: FILE, stripe: 0 });
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
                end(&session);
                assert!(futures_util::poll!(abandoning.as_mut()).is_ready());
            });
            assert!(session.replay_log.lock().is_empty());
            assert_eq!(session.take_failure(FILE), Some(Errno::EIO), "some of it is lost");
        }
    }
}
