//! OSTs that lost everything, as the server of the MDS has them filled: it knows all files, and so
//! tells the members of each chain which objects the emptied one lacks.
//!
//! Invariants:
//! - A member that was emptied is used again only when all members that serve have each object of
//!   the chain in their index that was made before it was emptied. Those that are made later come
//!   there by the changes themselves, because it is absent.
//! - A walk begins when all members that are written know the row in which the other one is emptied:
//!   what they changed by an older one may be on stable storage, and forgotten, before they know whom
//!   it is missing to. Moves of data that began before that are not switched from then on, and those
//!   that just are have ended.
//! - No object is made before the MDS has the record of its inode, so the records are all that is
//!   to be looked at. What clients have to replay after a loss of power comes first.
//! - A walk that does not come to its end, with this server or another one, begins anew: whoever is
//!   told something again does nothing. So does one during which an OST is emptied or given up:
//!   members that go on without it may have been told nothing.
//! - A chain that cannot be told, because nobody serves in it or a member does not answer, holds up no
//!   other: the walk goes on without it, and another one is made for it when it has a head. One whose
//!   row its members do not know yet holds up others for some seconds.

use super::MdsServer;
use crate::replication::ENTRIES;
use glint_kv::Kv;
use glint_mds::{EmptiedError, Replacement};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{ChainId, MemberState, Touched};
use glint_proto::oss::ReplacedOst;
use glint_proto::{Errno, FsResult, Ino, Layout, clock};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Inodes that are looked at together.
const PAGE: usize = 4096;
/// Pause after each page, so that users have the engine and the disks for themselves most of the
/// time.
const PAUSE: Duration = Duration::from_millis(5);
/// Pause after something that failed.
const RETRY: Duration = Duration::from_millis(500);
/// How long a walk waits for servers that are heard of to know the rows that it is for.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// How often a chain may change while its members are told something, before it is tried later.
const TELLINGS: usize = 8;

/// How far this is.
#[derive(Default)]
pub(crate) struct Filling {
    walk: Mutex<Option<Walk>>,
    /// Members of which all have heard that they are to be filled, and before whose next walk no
    /// other moves of data have to be doubted.
    doubted: Mutex<BTreeSet<(u16, u16)>>,
    /// Since when a walk could begin for all, but for servers that do not know their rows yet.
    waiting: Mutex<Option<Instant>>,
    /// OSTs that were replaced, with the files that were lost there; once they were read.
    replaced: Mutex<Option<BTreeMap<u16, Replacement>>>,
}

/// A walk over all files.
#[derive(Clone)]
struct Walk {
    /// Emptied members, by targets.
    members: BTreeSet<(u16, u16)>,
    /// Files without copies on each replaced OST, so far.
    lost: BTreeMap<u16, u64>,
    next: Ino,
    /// Objects that were told.
    objects: u64,
    /// Chains that could not be told, which another walk is made for.
    left: usize,
}

impl Walk {
    /// A chain cannot be told what a member lacks: that one stays as it is.
    fn leave(&mut self, member: (u16, u16), errno: Errno) {
        if self.members.remove(&member) {
            let (target, ost) = member;
            tracing::debug!(target, ost, %errno, "a chain does not know yet what an emptied OST lacks");
            self.left += 1;
        }
    }

    /// Objects of files that emptied members lack, by members; and files that were lost are counted.
    fn lacking(&mut self, files: &[(Ino, Layout)], own: u16) -> BTreeMap<(u16, u16), Vec<Touched>> {
        let mut found: BTreeMap<(u16, u16), Vec<Touched>> = BTreeMap::new();
        for (ino, layout) in files {
            let mut lost_on = BTreeSet::new();
            for stripe in 0..layout.stripe_count.max(1) {
                let target = layout.ost_of(stripe, own);
                if ChainId::of_target(target).is_none() {
                    lost_on.insert(target);
                    continue;
                }
                let object = layout.object(*ino, stripe);
                let whole = Touched::whole(object);
                for member in self.members.range((target, 0)..=(target, u16::MAX)) {
                    found.entry(*member).or_default().push(whole);
                }
            }
            for ost in lost_on {
                self.lost.entry(ost).and_modify(|count| *count += 1);
            }
        }
        found
    }
}

impl Filling {
    /// For `glint status`: replaced OSTs, and what became of files that had no copies.
    pub(crate) fn status(&self) -> Value {
        let objects = self.walk.lock().as_ref().map(|walk| walk.objects);
        let row = |one: &Replacement| match one.lost_files {
            Some(files) => json!({ "ost": one.ost, "lost_files": files }),
            None => json!({ "ost": one.ost, "found_objects": objects }),
        };
        self.replaced.lock().iter().flat_map(BTreeMap::values).map(row).collect()
    }

    /// Whether to wait before a walk begins, if it is for rows that servers do not know yet: for some
    /// seconds. Rows that change all the time hold up no others longer.
    fn waits(&self, is_awaited: bool) -> bool {
        let mut waiting = self.waiting.lock();
        if !is_awaited {
            *waiting = None;
            return false;
        }
        clock::since(*waiting.get_or_insert_with(clock::now)) < KNOWN_WITHIN
    }

    /// Gives up the walk that is under way; the next look begins another one from nothing, as if its
    /// members had never been filled before.
    pub(super) fn begin_anew(&self) {
        self.doubted.lock().clear();
        self.walk.lock().take();
    }
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// OSTs of a server, counted from `first`, were put in the place of others.
    pub(super) async fn empty_osts(
        &self,
        first: u16,
        replaced: &[ReplacedOst],
    ) -> Result<(), EmptiedError> {
        self.mds.empty_osts(first, replaced).await?;
        self.filling.replaced.lock().take();
        // An OST that is replaced once more begins from nothing.
        self.filling.begin_anew();
        for one in replaced {
            let ost = first + one.ost;
            tracing::warn!(ost, "an OST was replaced; it is filled from other copies");
        }
        Ok(())
    }

    /// Has members that serve know some more of what those lack that were emptied. Returns whether
    /// there is more to do.
    pub(crate) async fn index_emptied(&self) -> bool {
        // Files may come back that clients made before a loss of power.
        if self.mds.is_recovering() {
            return false;
        }
        match self.index_page().await {
            Ok(true) => {
                host::sleep(PAUSE).await;
                true
            }
            Ok(false) => false,
            Err(errno) => {
                tracing::debug!(%errno, "chains do not know yet what an emptied OST lacks");
                host::sleep(RETRY).await;
                false
            }
        }
    }

    async fn index_page(&self) -> FsResult<bool> {
        let Some(before) = self.walk().await? else { return Ok(false) };
        let mut walk = before.clone();
        let (files, next) = self.mds.files_from(walk.next, PAGE).await?;
        let lacking = walk.lacking(&files, self.osts.count());
        for ((target, ost), touched) in &lacking {
            match self.tell_all_pending(*target, *ost, touched).await {
                Ok(()) => walk.objects += touched.len() as u64,
                Err(errno) => walk.leave((*target, *ost), errno),
            }
        }
        if let Some(next) = next {
            walk.next = next;
            let mut now = self.filling.walk.lock();
            // Nobody has begun another one.
            if now.as_ref().is_some_and(|now| now.next == before.next) {
                *now = Some(walk);
            }
            return Ok(true);
        }
        let is_left = walk.left > 0;
        self.end_walk(walk).await?;
        if is_left {
            host::sleep(RETRY).await;
        }
        Ok(false)
    }

    /// The walk that is under way, or another one, if there is something to be found.
    async fn walk(&self) -> FsResult<Option<Walk>> {
        // The members of a chain that waits for the last one that served are told when that is back.
        let mut members = self.mds.chains().emptied_and_served();
        let mut is_awaited = false;
        // One that is not heard of may never come back: nothing is noted for it.
        if !members.is_empty() {
            let heard = self.heard();
            members.retain(|(_, ost)| heard.contains(ost));
            self.adopt_rows();
            let unknown = members.extract_if(.., |(target, _)| !self.is_known_to_written(*target));
            let unknown: Vec<(u16, u16)> = unknown.collect();
            // A server that is heard of knows it with its next beat: one walk does for all.
            is_awaited = unknown.iter().any(|(target, _)| self.is_written_by(*target, &heard));
        }
        if self.filling.waits(is_awaited) {
            return Ok(self.filling.walk.lock().clone());
        }
        let known = self.filling.replaced.lock().clone();
        let replaced = match known {
            Some(replaced) => replaced,
            None => {
                let replaced = self.mds.replacements().await?;
                let replaced: BTreeMap<u16, Replacement> =
                    replaced.into_iter().map(|one| (one.ost, one)).collect();
                self.filling.replaced.lock().insert(replaced).clone()
            }
        };
        let uncounted = replaced.values().filter(|one| one.lost_files.is_none());
        let lost: BTreeMap<u16, u64> = uncounted.map(|one| (one.ost, 0)).collect();
        if let Some(walk) = &*self.filling.walk.lock() {
            return Ok(Some(walk.clone()));
        }
        if members.is_empty() && lost.is_empty() {
            return Ok(None);
        }
        let doubted = std::mem::replace(&mut *self.filling.doubted.lock(), members.clone());
        if !members.is_subset(&doubted) {
            self.mds.doubt_moves().await;
            // Members may be others by now.
            return Ok(None);
        }
        let walk = Walk { members, lost, next: Ino(0), objects: 0, left: 0 };
        Ok(Some(self.filling.walk.lock().insert(walk).clone()))
    }

    /// Whether the servers of all members of a chain that are written know its row.
    fn is_known_to_written(&self, target: u16) -> bool {
        let Some(row) = self.mds.chains().get(target) else { return false };
        let written: Vec<u16> = row.written().collect();
        self.osses.have_heard(&written, self.mds.chains().changed(target))
    }

    /// Whether all members of a chain that are written are among these OSTs.
    fn is_written_by(&self, target: u16, osts: &BTreeSet<u16>) -> bool {
        let row = self.mds.chains().get(target);
        row.is_some_and(|row| row.written().all(|ost| osts.contains(&ost)))
    }

    async fn end_walk(&self, walk: Walk) -> FsResult<()> {
        let counted: Vec<Replacement> = walk
            .lost
            .iter()
            .map(|(ost, files)| Replacement { ost: *ost, lost_files: Some(*files) })
            .collect();
        // One that has just been emptied again is not a member of this walk any more.
        let was_under_way = self.filling.walk.lock().take().is_some();
        if !was_under_way {
            return Ok(());
        }
        let chains = self.mds.are_indexed(&walk.members, &counted).await?;
        self.filling.replaced.lock().take();
        self.adopt_rows();
        tracing::info!(chains, objects = walk.objects, "emptied members can be filled");
        for Replacement { ost, lost_files } in counted {
            let files = lost_files.unwrap_or(0);
            if files > 0 {
                tracing::error!(ost, files, "files without copies lost their data with an OST");
            }
        }
        Ok(())
    }

    /// Has all members of a chain that are written know all of this that an emptied one lacks.
    async fn tell_all_pending(&self, target: u16, ost: u16, touched: &[Touched]) -> FsResult<()> {
        for some in touched.chunks(ENTRIES) {
            self.tell_pending(target, ost, some).await?;
        }
        Ok(())
    }

    /// Has all members of a chain that are written know what an emptied one lacks.
    async fn tell_pending(&self, target: u16, ost: u16, touched: &[Touched]) -> FsResult<()> {
        for _ in 0..TELLINGS {
            let row = self.mds.chains().get(target).ok_or(Errno::ENXIO)?;
            if row.state_of(ost) != Some(MemberState::Emptied) {
                return Ok(());
            }
            // The one that the chain waits for is told when it is back.
            row.head().ok_or(Errno::EAGAIN)?;
            self.adopt_rows();
            match self.replication.tell_pending(self.here(), &row, ost, touched).await {
                Err(Errno::EREMCHG) => host::sleep(PAUSE).await,
                told => return told,
            }
        }
        Err(Errno::EAGAIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_changes_all_the_time_holds_up_no_other_for_long() {
        let filling = Filling::default();
        assert!(!filling.waits(false) && filling.waits(true) && filling.waits(true));
        *filling.waiting.lock() = clock::now().checked_sub(KNOWN_WITHIN);
        assert!(!filling.waits(true) && !filling.waits(true), "the others are filled now");
        assert!(!filling.waits(false) && filling.waits(true), "it waits anew");
    }

    #[test]
    fn objects_are_found_by_chains_and_lost_files_counted_once() {
        let chain = |index| ChainId { copies: 3, index }.target();
        let copies = |first_ost| Layout {
            replicas: 3,
            stripe_count: 2,
            first_ost,
            osts: 4,
            ..Layout::default()
        };
        let alone = Layout { stripe_count: 4, osts: 2, ..Layout::default() };
        let mut walk = Walk {
            members: BTreeSet::from([(chain(1), 9), (chain(2), 9), (chain(2), 7)]),
            lost: BTreeMap::from([(1, 0), (5, 0)]),
            next: Ino(0),
            objects: 0,
            left: 0,
        };
        let files = [(Ino(3), copies(1)), (Ino(4), copies(3)), (Ino(5), alone)];
        let found = walk.lacking(&files, 2);
        let objects = |member| -> Vec<(u64, u16)> {
            let touched: &Vec<Touched> = &found[&member];
            assert!(touched.iter().all(|one| (one.start, one.end) == (0, u64::MAX)));
            touched.iter().map(|one| (one.object.ino.0, one.object.stripe)).collect()
        };
        assert_eq!(found.len(), 3);
        assert_eq!(objects((chain(1), 9)), [(3, 0)]);
        assert_eq!((objects((chain(2), 9)), objects((chain(2), 7))), (vec![(3, 1)], vec![(3, 1)]));
        assert_eq!(walk.lost, BTreeMap::from([(1, 1), (5, 0)]), "each file is lost once");

        walk.leave((chain(2), 9), Errno::EAGAIN);
        walk.leave((chain(2), 9), Errno::EAGAIN);
        assert_eq!(walk.left, 1);
        assert_eq!(walk.lacking(&files, 2).len(), 2, "the others are told");
    }
}
