//! Has heads of chains bring to stable storage what was acknowledged before they took over.

use crate::client::cluster::head_retry::HeadRetry;
use crate::client::cluster::{Cluster, LOOK_AGAIN, Oss};
use crate::client::recovery::abandoned::ObjectToSync;
use crate::client::remote::Remote;
use crate::client::transport::{Durability, MdsSession, OstRequests, Transport};
use crate::host;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_proto::chain::ChainVersion;
use glint_proto::{Bulk, FsResult, Ino, OstRequest};
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

impl<M: Transport> Cluster<M> {
    /// Sends to all chains that are moving, at the same time, as one may wait for its head; and to
    /// those that begin to move before it is done.
    pub(super) async fn send_to_moving(&self) {
        let (mut sending, mut targets) = (FuturesUnordered::new(), BTreeSet::new());
        loop {
            let begins = |target: &u16| targets.insert(*target);
            for target in self.rows.moved.moving().into_iter().filter(begins) {
                sending.push(async move {
                    self.send_moved(target).await;
                    target
                });
            }
            let mut look_again = pin!(host::sleep(LOOK_AGAIN));
            loop {
                match select(sending.next(), look_again.as_mut()).await {
                    Either::Left((Some(target), _)) => _ = targets.remove(&target),
                    Either::Left((None, _)) => return,
                    Either::Right(_) => break,
                }
            }
        }
    }

    /// Has the server of a head bring everything that it has ordered to stable storage, in all
    /// copies, and what others had ordered when it took over. Syncs that it answers by one row
    /// before and after this stand for all that was acknowledged in the chain before.
    pub(super) async fn settle_server_of(&self, ost: u16) -> FsResult<()> {
        match ost < self.welcome.own_osts {
            true => self.mds.commit().await,
            false => self.oss_of(ost).await?.commit().await,
        }
    }

    /// Has the head of a chain bring changes of older rows to stable storage that this client keeps
    /// no more. Returns false if nobody is the head now.
    pub(super) async fn settle_abandoned(&self, target: u16) -> bool {
        let mut retry = HeadRetry::new();
        while let Some(row) = self.rows.get(target)
            && let Some(ObjectToSync { object, capability }) = self.rows.abandoned.to_settle(&row)
        {
            let request = OstRequest::Sync { object };
            let chosen = self.rows.destination(target, &request, |ost| self.is_near(ost));
            let Some((to, by)) = chosen.and_then(|to| Some((to, to.chain?))) else {
                return false;
            };
            let settled = async {
                self.ask_ost(to, request, capability, Bulk::None, &|| true).await?;
                self.settle_server_of(to.ost).await?;
                self.ask_ost(to, request, capability, Bulk::None, &|| true).await
            };
            match self.answer_of_head(target, &request, to, &mut retry, settled).await {
                None => {}
                Some(Ok(_)) => self.rows.abandoned.on_settled(by),
                Some(Err(errno)) => self.rows.on_unsettled(by, errno),
            }
        }
        true
    }

    /// Waits until nothing is under way that was sent again by the newest row of a chain.
    pub(super) async fn until_none_resent(&self, target: u16) {
        if let Some(row) = self.rows.get(target) {
            let by = ChainVersion { target, version: row.version };
            // Nobody else may ask for rows.
            let asking = self.until_rows(|| false);
            futures_lite::future::or(self.rows.until_none_resent(by), asking).await;
        }
    }

    /// Has changes be answered that were sent again by threads that are gone.
    pub(super) fn adopt_left_everywhere(&self) {
        if !self.rows.resent.is_empty() {
            self.mds.adopt_left();
            self.osses.read().iter().for_each(|oss| oss.remote.adopt_left());
        }
    }

    /// Waits until no head makes a change any more that was sent to it again, of the files that are
    /// meant. Where the chain has another head, that one is asked whether it has taken over.
    pub(super) async fn until_not_resent(&self, is_meant: impl Fn(Ino) -> bool + Copy) {
        let asking = async {
            let mut retry = HeadRetry::new();
            self.adopt_left_everywhere();
            loop {
                while let Some((target, of)) = self.rows.resent_to_former_head(is_meant)
                    && self.has_synced(target, of, &mut retry).await
                {}
                // Nobody else may ask for rows.
                host::sleep(LOOK_AGAIN).await;
                // What fails here is asked again.
                let _ = self.ask_rows(Duration::ZERO).await;
            }
        };
        futures_lite::future::or(self.rows.until_not_resent(is_meant), asking).await;
    }

    /// Forgets changes of a file: those in logs of servers first, from where they come to those that
    /// wait for a head.
    pub(super) async fn abandon_kept(&self, ino: Ino) {
        self.mds.abandon(ino).await;
        let of = |oss: &Oss| (oss.first_ost, oss.remote.clone());
        let osses: Vec<_> = self.osses.read().iter().map(of).collect();
        for (first_ost, remote) in osses {
            self.abandon_at(first_ost, &remote, ino).await;
        }
        self.rows.abandon(ino);
    }

    /// Forgets changes of a file at an OSS. One that is replayed there just now is not waited for any
    /// longer once the server was given up.
    async fn abandon_at(&self, first_ost: u16, remote: &Remote, ino: Ino) {
        // Apart from the state of each return, and made only if there is a wait: it is rare.
        let giving_up = async { Box::pin(self.give_up_replay(first_ost, remote, ino)).await };
        futures_lite::future::or(remote.abandon(ino), giving_up).await;
    }

    /// Has changes of a file that are replayed at an OSS not be waited for when the MDS does not name
    /// the server any more. Does not end.
    async fn give_up_replay(&self, first_ost: u16, remote: &Remote, ino: Ino) {
        loop {
            host::sleep(LOOK_AGAIN).await;
            // What fails here is asked again.
            if let Some(run) = remote.session.run_replaying(ino)
                && let Ok(osses) = self.mds().osses().await
                && osses.iter().all(|oss| oss.first_ost != first_ost)
            {
                remote.session.give_up_run(run);
            }
        }
    }

    /// Has the head of a chain sync an object, once. Returns whether it has. (The capability of a
    /// change allows that, too, as long as its session lasts: it is of use for as long as this.)
    async fn has_synced(&self, target: u16, of: ObjectToSync, retry: &mut HeadRetry) -> bool {
        let request = OstRequest::Sync { object: of.object };
        let Some(to) = self.rows.destination(target, &request, |ost| self.is_near(ost)) else {
            return false;
        };
        let synced = self.ask_ost(to, request, of.capability, Bulk::None, &|| true);
        matches!(self.answer_of_head(target, &request, to, retry, synced).await, Some(Ok(_)))
    }
}

#[cfg(test)]
mod tests;
