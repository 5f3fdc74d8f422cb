//! Places in chains of OSTs that were given up: others take them, as soon as there are others. Then
//! the former member removes all its objects of the chain, once it is heard of.
//!
//! Invariants:
//! - An OST that takes a place is filled like any emptied member ([`super::filling`]) before it serves.
//! - Objects of a former member are removed only by a row in which all members serve, apart from those
//!   that were given up: while another member is filled they may be the only second copy there is.
//! - A former member counts as cleared only after a walk over all files, and all objects that are to
//!   be removed, in which each of its objects of the chain was removed there for good. Objects of
//!   files that are removed meanwhile go there, too: it is among the holders of the chain.
//!   Pages that it was cleared of before are left out: nothing makes objects there any more.
//! - Objects are named by file and number, whatever their chain, and a former member of one may be
//!   a member of another. So while objects of plans are removed, or of layouts that files had,
//!   their numbers are not given to others. Those of a file's layout are not given again anyway.
//! - A former member that does not answer holds up no other, and stays one. It is asked again after a
//!   pause, from the page on that failed.

use super::MdsServer;
use crate::status::is_whole;
use glint_kv::Kv;
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::Chain;
use glint_proto::{Errno, FsResult, Ino, Layout, ObjectId, clock};
use glint_wait::Backoff;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Inodes that are looked at together, and objects that are removed with one request.
const PAGE: usize = 4096;
const OBJECTS: usize = 256;
/// Pause after each page, so that users have the engine and the disks for themselves most of the
/// time, and before something is tried again.
const PAUSE: Duration = Duration::from_millis(5);
/// Pauses after something of a former member could not be removed, the first and the longest one.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Behind all files.
const LAST: Ino = Ino(u64::MAX);
/// How often a chain may change while objects of it are removed, before another walk does that.
const TELLINGS: usize = 8;

/// Members of chains: targets and OSTs.
type Members = BTreeSet<(u16, u16)>;

/// How far former members are cleared.
#[derive(Default)]
pub(super) struct Clearing(BTreeMap<(u16, u16), ClearedSoFar>);

struct ClearedSoFar {
    /// All objects of files before this one are gone.
    from: Ino,
    /// When it is asked again.
    again: Instant,
    pauses: Backoff,
}

impl Default for ClearedSoFar {
    fn default() -> ClearedSoFar {
        let pauses = Backoff::new(RETRY.0, RETRY.1);
        ClearedSoFar { from: Ino(0), again: clock::now(), pauses }
    }
}

impl Clearing {
    /// Forgets all but former members, and returns those that may be asked now.
    fn due(&mut self, mut former: Members) -> Members {
        self.0.retain(|member, _| former.contains(member));
        let now = clock::now();
        former.retain(|member| self.0.get(member).is_none_or(|one| one.again <= now));
        former
    }

    /// The file from which on a member may have objects.
    fn from(&self, member: &(u16, u16)) -> Ino {
        self.0.get(member).map_or(Ino(0), |one| one.from)
    }

    /// Members have removed all objects of files before this one.
    fn advance(&mut self, members: &Members, to: Ino) {
        for member in members {
            let one = self.0.entry(*member).or_default();
            if one.from < to {
                one.from = to;
                one.pauses.reset();
            }
        }
    }

    /// Some objects of a member could not be removed.
    fn fail(&mut self, member: (u16, u16)) {
        let one = self.0.entry(member).or_default();
        one.again = clock::now() + one.pauses.pause(false);
    }
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Has others take places of OSTs that were given up, as far as there are others.
    pub(crate) async fn fill_places(&self) {
        let given_up: BTreeSet<u16> = self.osses.given_up().concat().into_iter().collect();
        if given_up.is_empty() || self.mds.is_recovering() {
            return;
        }
        // Other servers will come: OSTs of this one are no failure domains by themselves.
        let placed = self.placed(false);
        match self.mds.lay_again(&given_up, &placed, &self.heard()).await {
            Ok(0) => {}
            Ok(chains) => {
                self.filling.begin_anew();
                self.adopt_rows();
                tracing::info!(chains, "other OSTs take the places of those that were given up");
            }
            Err(errno) => tracing::error!(
                %errno,
                "could not store that OSTs take places in chains; it is tried again"
            ),
        }
    }

    /// Clears former members, unless that is under way: once, every second.
    pub(crate) async fn clear_former(&self) {
        let Some(mut clearing) = self.clearing.try_lock() else { return };
        let former = clearing.due(self.mds.chains().former());
        // Files may come back that clients made before a loss of power.
        if former.is_empty() || self.mds.is_recovering() {
            return;
        }
        let former = self.clearable(former);
        if former.is_empty() {
            return;
        }
        let count = former.len();
        match self.clear(&mut clearing, former).await {
            Ok(0) => {}
            Ok(members) => {
                let left = count - members;
                tracing::info!(members, left, "former members have nothing of their chains");
            }
            Err(errno) => {
                tracing::warn!(%errno, "former members could not be cleared; it is tried again");
                host::sleep(RETRY.0).await;
            }
        }
    }

    /// Former members that are heard of, and whose chains have all copies without them. Their servers
    /// know the rows by which they are no members.
    fn clearable(&self, mut former: Members) -> Members {
        let heard = self.heard();
        let (chains, given_up) = (self.mds.chains(), self.osses.given_up().concat());
        former.retain(|(target, ost)| {
            heard.contains(ost) && self.osses.have_heard(&[*ost], chains.changed(*target))
        });
        retain_settled(&mut former, |target| chains.get(target), &given_up);
        former
    }

    /// Has former members remove all objects of their chains. Returns how many have.
    async fn clear(&self, clearing: &mut Clearing, mut former: Members) -> FsResult<usize> {
        // Before the files: a plan that is not there any more is the file's layout. And after them:
        // what has left its file meanwhile may not be removed yet.
        self.clear_leaving(clearing, &mut former).await?;
        let mut from = former.iter().map(|member| clearing.from(member)).min();
        while let Some(next) = from.filter(|next| *next < LAST && !former.is_empty()) {
            former = self.clearable(former);
            let (files, after) = self.mds.files_from(next, PAGE).await?;
            let end = after.unwrap_or(LAST);
            self.clear_files(clearing, &mut former, &files, Some(end)).await;
            clearing.advance(&former, end);
            from = after;
            host::sleep(PAUSE).await;
        }
        self.clear_leaving(clearing, &mut former).await?;
        if !former.is_empty() {
            self.mds.are_cleared(&former).await?;
        }
        Ok(former.len())
    }

    async fn clear_leaving(&self, clearing: &mut Clearing, former: &mut Members) -> FsResult<()> {
        let targets = former.iter().map(|(target, _)| *target).collect();
        let mut numbers = self.mds.keep_numbers();
        let files = self.mds.leaving_chains(&targets).await?;
        let asked = former.len();
        for some in files.chunks(PAGE) {
            self.clear_files(clearing, former, some, None).await;
        }
        if former.len() < asked {
            numbers.expect_late();
        }
        Ok(())
    }

    /// Has former members remove what they have of these files, which end before `end` and are left out
    /// by those that were cleared of them before. Those that fail are no members of `former` any more.
    async fn clear_files(
        &self,
        clearing: &mut Clearing,
        former: &mut Members,
        files: &[(Ino, Layout)],
        end: Option<Ino>,
    ) {
        let mut asked = former.clone();
        asked.retain(|member| end.is_none_or(|end| clearing.from(member) < end));
        for (member, objects) in objects_of(&asked, files, self.osts.count()) {
            for some in objects.chunks(OBJECTS) {
                if let Err(errno) = self.clear_objects(member, some).await {
                    let (target, ost) = member;
                    tracing::debug!(target, ost, %errno, "a former member is not cleared");
                    former.remove(&member);
                    clearing.fail(member);
                    break;
                }
            }
        }
    }

    async fn clear_objects(&self, (target, ost): (u16, u16), some: &[ObjectId]) -> FsResult<()> {
        for _ in 0..TELLINGS {
            let row = self.mds.chains().get(target).ok_or(Errno::ENXIO)?;
            if !is_whole(&row, &self.osses.given_up().concat()) {
                break;
            }
            match self.replication.clear_former(row, ost, some.to_vec()).await {
                Err(Errno::EREMCHG) => host::sleep(PAUSE).await,
                cleared => return cleared,
            }
        }
        Err(Errno::EAGAIN)
    }
}

/// Keeps former members of chains in which all members serve that were not given up.
fn retain_settled(former: &mut Members, row: impl Fn(u16) -> Option<Chain>, given_up: &[u16]) {
    former.retain(|(target, _)| row(*target).is_some_and(|row| is_whole(&row, given_up)));
}

/// Objects of files in the chains of members, by members.
fn objects_of(
    members: &Members,
    files: &[(Ino, Layout)],
    own: u16,
) -> BTreeMap<(u16, u16), Vec<ObjectId>> {
    let mut found = BTreeMap::<(u16, u16), Vec<ObjectId>>::new();
    for (ino, layout) in files {
        for stripe in 0..layout.stripe_count.max(1) {
            let target = layout.ost_of(stripe, own);
            for member in members.range((target, 0)..=(target, u16::MAX)) {
                found.entry(*member).or_default().push(layout.object(*ino, stripe));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::chain::MemberState::{self, Emptied, Offline, Serving, Syncing};
    use glint_proto::chain::{ChainId, Member};

    #[test]
    fn former_members_keep_their_objects_until_the_chain_has_its_copies_without_them() {
        let id = ChainId { copies: 2, index: 0 };
        // The former one is OST 4.
        let is_cleared = |other: MemberState, given_up: &[u16]| {
            let states = [(1, Serving), (2, other)];
            let members = states.map(|(ost, state)| Member { ost, state }).into();
            let row = Chain { id, version: 7, members, founders: vec![1, 2], intact_since: 1 };
            let mut former = BTreeSet::from([(id.target(), 4)]);
            retain_settled(
                &mut former,
                |target| (target == id.target()).then(|| row.clone()),
                given_up,
            );
            !former.is_empty()
        };
        for state in [Emptied, Offline, Syncing] {
            assert!(!is_cleared(state, &[]), "{state:?}: two copies at most, of which it has one");
        }
        assert!(is_cleared(Serving, &[]));
        assert!(is_cleared(Emptied, &[2]), "else it could never take that place");
    }

    #[test]
    fn a_former_member_that_fails_is_asked_later_and_only_for_the_rest() {
        let (bad, good) = ((9, 4), (9, 6));
        let former = BTreeSet::from([bad, good]);
        let mut clearing = Clearing::default();
        assert_eq!(clearing.due(former.clone()), former);
        clearing.advance(&former, Ino(70));
        clearing.fail(bad);
        clearing.advance(&BTreeSet::from([good]), Ino(90));
        assert_eq!((clearing.from(&bad), clearing.from(&good)), (Ino(70), Ino(90)));
        assert_eq!(clearing.due(former.clone()), BTreeSet::from([good]));
        clearing.fail(bad);
        let pause = clearing.0[&bad].again - clock::now();
        assert!(pause > RETRY.0, "{pause:?}");
        // One that becomes a member, and then a former one again, has other objects.
        clearing.due(BTreeSet::from([good]));
        assert_eq!(clearing.due(former.clone()), former);
        assert_eq!(clearing.from(&bad), Ino(0));
    }

    #[test]
    fn objects_are_those_of_the_members_chains() {
        let chain = |index| ChainId { copies: 2, index }.target();
        let copies = |first_ost, first_object| Layout {
            replicas: 2,
            stripe_count: 2,
            first_ost,
            osts: 3,
            first_object,
            ..Layout::default()
        };
        let members = BTreeSet::from([(chain(0), 4), (chain(1), 4), (chain(1), 6)]);
        // Of a file that was moved within a chain each layout has objects of its own.
        let (first, second) = (copies(0, 0), copies(1, 2));
        let alone = Layout { stripe_count: 4, osts: 8, ..Layout::default() };
        let found = objects_of(&members, &[(Ino(3), first), (Ino(3), second), (Ino(9), alone)], 8);
        let its = [first.object(Ino(3), 1), second.object(Ino(3), 0)];
        let expected = BTreeMap::from([
            ((chain(0), 4), vec![first.object(Ino(3), 0)]),
            ((chain(1), 4), its.to_vec()),
            ((chain(1), 6), its.to_vec()),
        ]);
        assert_eq!(found, expected);
    }
}
