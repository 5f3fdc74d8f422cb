//! The state of the server, and what other servers of OSTs say and ask.

use super::MdsServer;
use crate::status;
use glint_kv::Kv;
use glint_net::AdminService;
use glint_ost::disk::Disk;
use glint_proto::FsResult;
use glint_proto::chain::ChainPolicy;
use glint_proto::message::{
    BalanceTurn, DrainOst, GiveUp, GiveUpStep, NamespacePage, NamespaceQuery,
};
use glint_proto::oss::{OssReply, OssRequest};
use glint_proto::watch::Beat;

impl<K: Kv, D: Disk> AdminService for MdsServer<K, D> {
    fn status(&self) -> String {
        status::status(self).to_string()
    }

    fn scrub(&self, begins: bool) {
        self.scrubbing.ask(&self.osts, begins);
    }

    async fn pause_heal(&self, paused: bool) -> FsResult<()> {
        let set = |before| ChainPolicy { heal_paused: paused, ..before };
        self.mds.set_chain_policy(set).await?;
        tracing::info!(paused, "somebody has heal rest, or go on");
        self.replication.set_policy(self.mds.chain_policy());
        Ok(())
    }

    async fn give_up_ost(&self, GiveUp { ost, step }: GiveUp) -> Result<String, String> {
        match step {
            GiveUpStep::Preview(from) => self.preview_loss(ost, from).await,
            GiveUpStep::Confirmed(said) => self.lose_ost(ost, said, false).await,
            GiveUpStep::Drained(said) => self.lose_ost(ost, said, true).await,
        }
    }

    async fn drain_ost(&self, request: DrainOst) -> Result<String, String> {
        self.drain(request).await
    }

    async fn balance_turn(&self, request: BalanceTurn) -> Result<String, String> {
        self.take_turn(request).await
    }

    async fn check_namespace(&self, query: NamespaceQuery) -> Result<NamespacePage, String> {
        let page = match query {
            NamespaceQuery::Stored { .. } | NamespaceQuery::StoredAgain { .. } => {
                return self.osts.check_stored(0, query).await;
            }
            NamespaceQuery::Uses(objects) => {
                let uses = self.mds.object_uses(&objects, self.osts.count()).await;
                uses.map(|uses| NamespacePage { uses, ..NamespacePage::default() })
            }
            NamespaceQuery::Ends(from) => self.mds.object_ends(from, self.osts.count()).await,
            query => self.mds.namespace_page(query).await,
        };
        page.map_err(|errno| format!("the namespace cannot be read: {errno}"))
    }

    async fn execute_oss(&self, name: Option<&str>, request: OssRequest) -> FsResult<OssReply> {
        match request {
            OssRequest::Heartbeat(beat) => {
                let restarted = self.osses.restarted(&beat);
                let placed = self.osses.placed_count();
                let mut orders = self.osses.beat(&*self.records, name, (*beat).clone())?;
                let restarted = restarted.or_else(|| self.osses.restarted(&beat));
                let osts = self.osses.osts(self.osts.count());
                self.mds.note_ost_count(osts);
                // It joins, or some of its OSTs had been given up.
                if self.osses.placed_count() != placed {
                    self.avoid_absent();
                    self.place_chains().await;
                }
                if !beat.replaced.is_empty() {
                    self.empty_osts(orders.first_ost, &beat.replaced).await.map_err(|error| {
                        tracing::error!(oss = beat.address, "a server is refused: {error}");
                        error.errno()
                    })?;
                }
                if let Some(osts) = restarted {
                    self.on_restarted(osts).await?;
                }
                self.osses.accept(&beat);
                let (rows, last) = self.mds.chains().since(self.osses.rows_known(beat.uuid));
                (orders.chains, orders.last_change) = (rows, last);
                orders.known_everywhere = self.adopt_rows();
                orders.policy = self.mds.chain_policy();
                Ok(OssReply::Orders { orders, secret: *self.mds.secret() })
            }
            OssRequest::CheckSession { client, session, owner } => {
                // The client of this process has shown its certificate to nobody here.
                let own = self.in_process.owner().map(|own| (self.in_process.number(), own.secret));
                let of_this_process = own == Some((session, owner.secret));
                let is_good = of_this_process || self.mds.has_session(client, session, &owner);
                Ok(OssReply::SessionIsGood(is_good))
            }
            OssRequest::Layout(ino) => Ok(OssReply::Layout(self.mds.layout_of(ino).await?)),
            OssRequest::Objects { target, after } => {
                Ok(OssReply::Objects(self.mds.objects_of(target, after).await?))
            }
            OssRequest::Member { chain, ost, event } => {
                let (row, is_settled) = self.on_member(chain, ost, event).await?;
                Ok(OssReply::Chain { row, is_settled })
            }
        }
    }

    fn knows_oss(&self, name: Option<&str>, request: &OssRequest) -> bool {
        match request {
            OssRequest::Heartbeat(beat) => self.osses.knows(name, beat),
            OssRequest::CheckSession { .. } => true,
            OssRequest::Member { .. } | OssRequest::Layout(_) | OssRequest::Objects { .. } => false,
        }
    }

    fn beat(&self) -> Option<Beat> {
        Some(self.mds.beat())
    }
}
