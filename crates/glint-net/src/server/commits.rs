//! Commits, and requests that fail with the server's own disk.
//!
//! Invariant: what failed because the disk has is not answered while the server is about to end: the
//! client sends it to the next one, as if this one had been killed before. If the server goes on after
//! all, the failure is answered: nobody waits for an end that does not come.

use crate::server::connection::ServedConnection;
use crate::server::execute::Received;
use crate::server::spare::Spare;
use crate::server::worker::Worker;
use crate::{NetError, Service, host};
use glint_proto::FsResult;
use glint_proto::message::Reply;
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked at whether a server that is about to end goes on.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl<S: Service> Worker<S> {
    /// Hears that a client lives, and commits if it wants that: before the answer, or soon.
    pub(super) async fn ping(
        self: &Rc<Self>,
        received: &Received<'_, S>,
        commit: bool,
        hurry: bool,
    ) -> Result<Reply, NetError> {
        self.service.renew_lease(received.session()?);
        // Alone, the spare would wait for the disk.
        let alone = self.spare.as_ref().is_some_and(Spare::is_alone);
        if hurry && !alone && !self.hurrying.replace(true) {
            let worker = self.clone();
            host::spawn(async move {
                // A ping that waits for the commit hears of the failure.
                let _ = worker.service.commit().await;
                worker.hurrying.set(false);
            });
        }
        match commit {
            true => {
                let done = self.commit(received.connection).await?;
                Ok(done.map_or_else(Reply::Failed, |()| self.pong()))
            }
            false => Ok(self.pong()),
        }
    }

    /// Commits. What fails now and may work the next time is the client's to try again; after a
    /// failure for good the next run of this server is asked.
    pub(super) async fn commit(
        &self,
        connection: &ServedConnection<S>,
    ) -> Result<FsResult<()>, NetError> {
        let done = self.service.commit().await;
        if done.is_err() && self.service.has_failed() {
            Box::pin(self.until_it_goes_on(connection)).await?;
        }
        Ok(done)
    }

    /// Waits, usually for the end of this server, which has failed. Returns if it goes on after all:
    /// another member of a chain has come to serve meanwhile, so that the disk is needed no more.
    pub(super) async fn until_it_goes_on(
        &self,
        connection: &ServedConnection<S>,
    ) -> Result<(), NetError> {
        tracing::debug!("a request has failed with the disk: it is left to the next run");
        let goes_on = async {
            while self.service.has_failed() {
                host::sleep(LOOK_AGAIN).await;
            }
        };
        connection.while_it_lasts(goes_on).await.ok_or(NetError::Closed)?;
        tracing::debug!("the server goes on: a request that has failed with the disk is answered");
        Ok(())
    }

    pub(super) fn pong(&self) -> Reply {
        Reply::Pong(self.service.last_committed())
    }
}
