//! Heal that rests for up to a minute, as `glint heal pause` has it, and then goes on. Members fail
//! meanwhile as at any time, and stay out of their chains for so long.

use crate::fuzz::at;
use crate::scenario::Run;
use crate::world::hosts::MDS;
use glint_net::AdminService;
use std::time::Duration;

/// How long heal rests, at most: every third time, and the other times, after which much of the
/// run is left.
const REST: Duration = Duration::from_secs(60);
const SHORT_REST: Duration = Duration::from_secs(8);

impl Run {
    /// Has heal rest, if it does not.
    pub(super) async fn have_heal_rest(&self) {
        if self.layout.replicas < 2 || self.heal_rests_until.get().is_some() {
            return;
        }
        self.pause_heal(true).await;
        let rest = self.up_to(if self.executor.one_in(3) { REST } else { SHORT_REST });
        self.heal_rests_until.set(Some(self.executor.now() + rest));
        self.count(|outcome| outcome.heal_rests += 1);
    }

    /// Has heal go on if it has rested for as long as it was to, or at once.
    pub(crate) async fn end_rest_of_heal(&self, at_once: bool) {
        let until = self.heal_rests_until.get();
        if until.is_some_and(|until| at_once || until <= self.executor.now()) {
            self.pause_heal(false).await;
            self.heal_rests_until.set(None);
        }
    }

    /// The MDS keeps that, and the servers of OSTs hear it with their next orders.
    async fn pause_heal(&self, rests: bool) {
        tracing::debug!(rests, at = ?self.executor.now(), "heal rests or goes on");
        let servers = self.hosts.mds();
        let paused = async move { servers.pause_heal(rests).await };
        if let Err(errno) = at(&self.executor, self.hosts.machine(MDS), paused).await {
            self.fail(format!("heal does not hear that it rests={rests}: {errno}"));
        }
    }
}
