//! The table of chains, as the server of the MDS keeps it up to date: who is lost, who is back.
//!
//! Invariant: a row is called settled only when each server with a member knows it, or has not
//! heard of the MDS for so long that it serves no chain. So what was acknowledged without a member
//! is read at that member by nobody.

use super::MdsServer;
use crate::replication::Asked;
use crate::replication::peers::AsksMds;
use glint_kv::Kv;
use glint_mds::{Placed, Seen};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, MemberEvent};
use glint_proto::limits::MEMBER_LOST_MS;
use glint_proto::oss::ObjectPage;
use glint_proto::{FsResult, Ino, Layout, ObjectId, clock};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const MEMBER_LOST: Duration = Duration::from_millis(MEMBER_LOST_MS);
/// A member that others could not reach is used again no sooner, if there are others; twice as late
/// each time that it is said again, up to a limit, until nobody has said it for long.
const SUSPECTED: Duration = Duration::from_secs(5);
const SUSPECTED_MAX: Duration = Duration::from_secs(80);
const FORGIVEN: Duration = Duration::from_secs(600);
/// Between two looks, which are made ten times a second, this server has stood still.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// A server that was not heard of for so long may be lost: it says that it lives five times a second.
const DOUBTFUL: Duration = Duration::from_millis(500);
/// How soon it is looked again whether a row is settled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Others have said of a member that they cannot reach it, or that it does not do what it should.
pub(super) struct Suspicion {
    since: Instant,
    times: u32,
}

impl Suspicion {
    /// Whether it has not had time to mend.
    fn is_fresh(&self) -> bool {
        let pause = SUSPECTED * 2u32.saturating_pow(self.times - 1);
        clock::since(self.since) < pause.min(SUSPECTED_MAX)
    }
}

/// Looks at who is lost.
#[derive(Default)]
pub(super) struct MemberWatch {
    last: Option<Instant>,
    /// Since when this server has looked without standing still between: nobody could be heard
    /// before.
    since: Option<Instant>,
}

impl MemberWatch {
    /// One more look. Returns since when others could be heard.
    fn look(&mut self, now: Instant) -> Instant {
        let before = self.last.replace(now);
        let stood_still = before.is_none_or(|before| now - before > STOOD_STILL);
        match self.since {
            Some(since) if !stood_still => since,
            _ => *self.since.insert(now),
        }
    }
}

/// How an OST is seen: one that no server has is lost.
fn of(seen: &BTreeMap<u16, Seen>) -> impl Fn(u16) -> Seen + '_ {
    |ost| seen.get(&ost).copied().unwrap_or(Seen::Lost)
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Makes the chains that are missing over the OSTs that there are.
    pub(crate) async fn place_chains(&self) {
        let alone = self.osses.placed_count() == 0;
        self.mds.place_chains(self.placed(alone)).await;
        self.adopt_rows();
    }

    /// All OSTs but those that were given up, with their failure domains.
    pub(super) fn placed(&self, alone: bool) -> Vec<Placed> {
        let own = (0..).zip(self.own_domains(alone));
        let own = own.map(|(ost, domain)| Placed { ost, domain });
        own.chain(self.osses.placed()).collect()
    }

    /// Failure domain of each OST of this server, which is `alone` if no other one has OSTs: then
    /// copies on different disks are what there can be.
    fn own_domains(&self, alone: bool) -> Vec<String> {
        let domain = |ost: u16| match self.settings.failure_domain.as_str() {
            "" if alone => format!("ost{ost}"),
            "" => "mds".to_owned(),
            said => said.to_owned(),
        };
        (0..self.osts.count()).map(domain).collect()
    }

    /// Failure domain of each OST of this server, as chains are laid out now.
    pub(crate) fn failure_domains(&self) -> Vec<String> {
        self.own_domains(self.osses.placed_count() == 0)
    }

    /// The server of these OSTs has started again.
    pub(crate) async fn on_restarted(&self, osts: Range<u16>) -> FsResult<()> {
        let mut restarted = self.restarted.lock().await;
        for ost in osts {
            // Before the rows say that it was the last.
            restarted.insert(ost);
            let seen = self.seen(Duration::ZERO);
            self.mds.on_restart(ost, of(&seen)).await?;
            // One that cannot take part yet leaves its place to others, until it is looked again.
            if self.not_ready(ost).is_none() {
                self.mds.on_ost(ost, MemberEvent::ReturnedWithout).await?;
            }
            self.suspects.lock().remove(&ost);
        }
        self.adopt_rows();
        Ok(())
    }

    /// How the servers of all OSTs are seen, if others could be heard for so long.
    fn seen(&self, listening: Duration) -> BTreeMap<u16, Seen> {
        let here = (0..self.osts.count(), Duration::ZERO, true);
        let mut all = BTreeMap::new();
        for (osts, silence, is_known) in self.osses.silences().into_iter().chain([here]) {
            for ost in osts {
                // Whoever has said that it leaves need not be listened for.
                let has_left = silence == Duration::MAX;
                let seen = match () {
                    () if has_left || silence.min(listening) > MEMBER_LOST => Seen::Lost,
                    () if silence > DOUBTFUL || !is_known => Seen::Doubtful,
                    () => match self.not_ready(ost) {
                        Some(not_ready) => not_ready,
                        None if self.is_suspect(ost) => Seen::Suspect,
                        None => Seen::Here,
                    },
                };
                all.insert(ost, seen);
            }
        }
        all
    }

    /// How an OST of a server that lives is, if it can take part in nothing: searched, or failed.
    fn not_ready(&self, ost: u16) -> Option<Seen> {
        match ost < self.osts.count() {
            true if self.osts.failure(ost).is_some() => Some(Seen::Failed),
            true if self.osts.awaits_search(ost) => Some(Seen::Searched),
            true => None,
            false => self.osses.not_ready(ost),
        }
    }

    /// Takes the rows that are new. Returns the change up to which every server has.
    pub(super) fn adopt_rows(&self) -> u64 {
        let (rows, last) = self.mds.chains().since(self.rows_known.load(Ordering::Acquire));
        let everywhere = self.osses.rows_known_everywhere(last);
        self.replication.said(self.here(), &rows, last, everywhere);
        self.rows_known.fetch_max(last, Ordering::AcqRel);
        everywhere
    }

    /// Looks who is lost, and who is back.
    pub(crate) async fn watch_members(&self) {
        let listening = self.listening();
        let mut restarted = self.restarted.lock().await;
        let seen = self.seen(listening);
        match self.mds.on_look(of(&seen), |ost| restarted.contains(&ost)).await {
            Ok(rows) if rows.is_empty() => {}
            Ok(rows) => {
                let is_lost = |(ost, seen): (&u16, &Seen)| (*seen == Seen::Lost).then_some(*ost);
                let lost: Vec<u16> = seen.iter().filter_map(is_lost).collect();
                tracing::info!(chains = rows.len(), ?lost, "members of chains have changed");
            }
            Err(errno) => tracing::error!(
                %errno,
                "could not store what became of members of chains; it is tried again"
            ),
        }
        let last = self.mds.chains().last_serving(0);
        restarted.retain(|ost| last.contains(ost));
        drop(restarted);
        self.adopt_rows();
    }

    /// For how long others could be heard: this server has not stood still since.
    pub(super) fn listening(&self) -> Duration {
        let now = clock::now();
        now - self.watch.lock().look(now)
    }

    /// OSTs whose servers are heard of.
    pub(super) fn heard(&self) -> BTreeSet<u16> {
        let is_heard = |seen: &Seen| matches!(seen, Seen::Here | Seen::Suspect | Seen::Searched);
        let seen = self.seen(Duration::ZERO).into_iter();
        seen.filter(|(_, seen)| is_heard(seen)).map(|(ost, _)| ost).collect()
    }

    /// Whether somebody has said just now that he cannot reach an OST, or that it does not do what
    /// it should, although it is heard: each time it is believed again, writes wait for it.
    fn is_suspect(&self, ost: u16) -> bool {
        let mut suspects = self.suspects.lock();
        suspects.retain(|_, suspicion| clock::since(suspicion.since) < FORGIVEN);
        suspects.get(&ost).is_some_and(Suspicion::is_fresh)
    }

    fn suspect(&self, ost: u16) {
        let now = clock::now();
        let mut suspects = self.suspects.lock();
        let known = suspects.entry(ost).or_insert(Suspicion { since: now, times: 0 });
        // Several heads say it at once.
        if known.times == 0 || !known.is_fresh() {
            *known = Suspicion { since: now, times: known.times + 1 };
        }
    }

    /// Something happened to a member of a chain. Returns the row as it is then, and whether nobody
    /// acts by an older one.
    pub(crate) async fn on_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> FsResult<(Chain, bool)> {
        let row = self.mds.on_member(chain, ost, event).await?;
        if event == MemberEvent::Lost {
            self.suspect(ost);
        }
        self.adopt_rows();
        let members: Vec<u16> = row.members.iter().map(|member| member.ost).collect();
        let change = self.mds.chains().changed(chain.target);
        let is_settled = self.osses.know_row(&members, change);
        Ok((row, is_settled))
    }
}

impl<K: Kv, D: Disk> AsksMds for MdsServer<K, D> {
    fn objects_of(&self, target: u16, after: ObjectId) -> Asked<'_, ObjectPage> {
        Box::pin(self.mds.objects_of(target, after))
    }

    fn layout_of(&self, ino: Ino) -> Asked<'_, Option<Layout>> {
        Box::pin(self.mds.layout_of(ino))
    }

    fn tell_of_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> Asked<'_, Chain> {
        Box::pin(async move {
            loop {
                let (row, is_settled) = self.on_member(chain, ost, event).await?;
                if is_settled {
                    return Ok(row);
                }
                host::sleep(LOOK_AGAIN).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_could_not_be_heard_is_not_silent() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut watch = MemberWatch::default();
        let looks = [0, 100, 900, 1800, 5000, 5100].map(|ms| watch.look(at(ms)));
        assert_eq!(looks, [at(0), at(0), at(0), at(0), at(5000), at(5000)]);
    }
}
