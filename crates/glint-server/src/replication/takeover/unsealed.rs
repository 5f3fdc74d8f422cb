//! Objects that were changed before power was lost, while nothing that is left remembers it.
//!
//! A change is noted before it is made, but nobody waits until the note is on stable storage: a loss of
//! power may leave the change and not the note. An object that was changed since it was sealed has no
//! checksums on the disk, whatever else is lost. So a server that starts after that looks for those while
//! it serves, and notes them without their chains ([`search`](super::search)), which the MDS knows.
//!
//! Invariants:
//! - A server takes over a chain after a loss of power, and says what its member may have changed, only
//!   when its OSTs here that are written were searched, and all that was found there is noted as recent
//!   for its chains, whole and on stable storage. Until then both are tried again, and nobody waits or is
//!   blamed. What is found on others here stays noted until they have been synced, and nothing is given to
//!   one before it is.
//! - A chain that another member can go on with does not wait for a search. A member that is synced, and
//!   is being searched when another head takes over, is taken out, and comes back. One that could not be
//!   searched is out of the chain, and comes back in another run.
//! - A file whose inode is damaged holds up no other: chains are asked whether its objects are theirs, as
//!   where data is being moved. Objects of which nobody knows that are said, and left to `glint fsck`.
//! - What was found on an OST is named once, for all its chains: the MDS is asked for the files, and
//!   after a failure only for those that are left. It is forgotten when all is noted.
//! - What is named counts as what the log had from before this run: it is noted before anybody was told
//!   what was changed here, so nothing is over that does not have it.

use super::lost::before;
use crate::replication::touched::{UNNUMBERED, unsealed};
use crate::replication::{ENTRIES, Here, Replication};
use futures_util::future::join_all;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainId, MemberState, Touched};
use glint_proto::{Errno, FsResult, Ino, ObjectId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};

/// Files that the MDS is asked for at once.
const ASKED: usize = 64;

/// Which of these objects are noted by their chains.
#[derive(Default)]
pub(in crate::replication) struct Unsealed {
    /// Of OSTs here of which some are, the last one.
    named: Mutex<BTreeMap<u16, ObjectId>>,
    /// The MDS has said all rows in this run.
    knows_rows: AtomicBool,
    /// Chains for which some were noted.
    noted: Mutex<BTreeSet<u16>>,
}

impl Unsealed {
    /// The MDS has said all rows that there are.
    pub(in crate::replication) fn rows_are_known(&self) {
        self.knows_rows.store(true, Ordering::Release);
    }

    /// Whether the log has entries of it that are over once copies of a chain are equal: asked once.
    pub(in crate::replication) fn were_noted(&self, target: u16) -> bool {
        self.noted.lock().remove(&target)
    }
}

impl<D: Disk> Here<'_, D> {
    /// Whether a member of a chain that does not serve is here. What it has changed before it was lost,
    /// and nobody else, is noted here only: until it has got it from others.
    pub(in crate::replication) fn lags(&self, row: &Chain) -> bool {
        let mut lag = row.members.iter().filter(|member| member.state != MemberState::Serving);
        lag.any(|member| self.index(member.ost).is_some())
    }
}

impl Replication {
    /// Fails unless all that was found at members of a chain that are here and are written is noted as
    /// recent, on stable storage: with EBUSY while one is being searched, else with EREMCHG.
    pub(in crate::replication) fn unsealed_are_named<D: Disk>(
        &self,
        here: Here<'_, D>,
        row: &Chain,
    ) -> FsResult<()> {
        let mut its = row.written().filter_map(|ost| here.index(ost));
        its.try_for_each(|index| self.is_named(here, index))
    }

    /// The same of one OST here.
    pub(in crate::replication) fn is_named<D: Disk>(
        &self,
        here: Here<'_, D>,
        index: u16,
    ) -> FsResult<()> {
        match (here.osts.awaits_search(index), here.osts.failure(index)) {
            (true, None) => Err(Errno::EBUSY),
            (true, Some(_)) => Err(Errno::EREMCHG),
            (false, _) if !self.recent.is_empty(unsealed(index)) => Err(Errno::EREMCHG),
            (false, _) => Ok(()),
        }
    }

    /// Notes for their chains what was found on OSTs here, as far as the MDS says which that are: once,
    /// every [`TENDING`](crate::replication::TENDING), also while an earlier look is at some of them.
    pub(in crate::replication) async fn name_unsealed<D: Disk>(&self, here: Here<'_, D>) {
        let is_due = |index: &u16| {
            !here.osts.awaits_search(*index) && !self.recent.is_empty(unsealed(*index))
        };
        let due = (0..here.osts.count()).filter(is_due).map(|index| (index, index));
        let due: Vec<(u16, u16)> = due.collect();
        let work = async |index: u16| {
            // It is asked again, as for each row that is needed.
            if let Err(errno) = self.name_those_on(here, index).await {
                tracing::debug!(index, %errno, "chains of objects that were found are not known yet");
            }
            false
        };
        self.at_work.naming.pass(&due, 1, work).await;
    }

    async fn name_those_on<D: Disk>(&self, here: Here<'_, D>, index: u16) -> FsResult<()> {
        let (key, mut named) = (unsealed(index), 0);
        loop {
            let after = self.unsealed.named.lock().get(&index).copied();
            let page = self.recent.page(key, after, ENTRIES);
            let mut found: Vec<ObjectId> = page.into_iter().map(|one| one.object).collect();
            found.dedup();
            let Some(last) = found.last().copied() else { break };
            for (target, its) in self.by_chain(here, index, &found).await? {
                named += its.len();
                let whole = its.into_iter().map(Touched::whole);
                self.recent.touch_all((target, 0), whole, UNNUMBERED).await?;
                self.unsealed.noted.lock().insert(target);
            }
            self.unsealed.named.lock().insert(index, last);
        }
        self.recent.sync().await?;
        self.recent.forget(key, |_| true);
        self.recent.shrink_soon();
        self.unsealed.named.lock().remove(&index);
        tracing::info!(
            index,
            objects = named,
            "copies that were changed not long before power was lost are made equal"
        );
        Ok(())
    }

    /// Sorts objects that were found on an OST here, given in their order, by the chains that they
    /// belong to. Those of files that are gone belong to none.
    async fn by_chain<D: Disk>(
        &self,
        here: Here<'_, D>,
        index: u16,
        found: &[ObjectId],
    ) -> FsResult<BTreeMap<u16, Vec<ObjectId>>> {
        let peers = self.peers()?;
        let mut files: Vec<Ino> = found.iter().map(|object| object.ino).collect();
        files.dedup();
        let (mut layouts, mut damaged) = (HashMap::new(), BTreeSet::new());
        // One first: while the MDS does not say it, it is asked again and again.
        let (first, rest) = files.split_at(files.len().min(1));
        for some in std::iter::once(first).chain(rest.chunks(ASKED)) {
            let asked = some.iter().map(|ino| peers.layout(*ino));
            for (ino, layout) in some.iter().zip(join_all(asked).await) {
                match layout {
                    Ok(Some(layout)) => _ = layouts.insert(*ino, layout),
                    Ok(None) => {}
                    // Where it is the engine of the MDS that fails, chains cannot be asked, either.
                    Err(Errno::EIO) => _ = damaged.insert(*ino),
                    Err(errno) => return Err(errno),
                }
            }
        }
        let mut chains = BTreeMap::<u16, Vec<ObjectId>>::new();
        let mut others: Vec<ObjectId> = Vec::new();
        for object in found {
            let target = match layouts.get(&object.ino) {
                Some(layout) => layout.stripe_of(*object).map(|stripe| layout.ost_of(stripe, 0)),
                None if damaged.contains(&object.ino) => None,
                None => continue,
            };
            match target.filter(|target| ChainId::of_target(*target).is_some()) {
                Some(target) => chains.entry(target).or_default().push(*object),
                None => others.push(*object),
            }
        }
        if others.is_empty() {
            return Ok(chains);
        }
        // Data of their files is being moved, to them or from them: the first ones count. Or their inodes
        // are damaged. Of the few that these are each chain is asked for.
        if !self.unsealed.knows_rows.load(Ordering::Acquire) {
            return Err(Errno::EREMCHG);
        }
        for (row, _) in self.rows.all() {
            if row.state_of(here.first + index).is_some() {
                let target = row.id.target();
                let its = self.those_of(target, &others).await?;
                if !its.is_empty() {
                    others.retain(|one| !damaged.contains(&one.ino) || !its.contains(one));
                    chains.entry(target).or_default().extend(its);
                }
            }
        }
        others.retain(|object| damaged.contains(&object.ino));
        if let Some(object) = others.first() {
            tracing::error!(
                ost = here.first + index, %object, objects = others.len(),
                "inodes are damaged: of objects that were changed before power was lost nobody knows \
                 which copies are to be equal; run `glint fsck`"
            );
        }
        Ok(chains)
    }

    /// Those of some objects, in their order, that belong to a chain, or are to.
    async fn those_of(&self, target: u16, found: &[ObjectId]) -> FsResult<Vec<ObjectId>> {
        let (mut its, mut left) = (Vec::new(), found);
        while let Some(first) = left.first() {
            let page = self.peers()?.objects(target, before(*first)).await?;
            let is_within = |one: &ObjectId| page.last.is_none_or(|last| *one <= last);
            let (within, behind) = left.split_at(left.partition_point(is_within));
            if within.is_empty() {
                return Err(Errno::EPROTO);
            }
            let is_of_chain = |one: &&ObjectId| page.objects.binary_search(*one).is_ok();
            its.extend(within.iter().filter(is_of_chain));
            left = behind;
        }
        Ok(its)
    }
}

#[cfg(test)]
mod tests {
    use crate::replication::Here;
    use crate::replication::rows::Told;
    use crate::replication::tests::{ID, Server, Still, World};
    use crate::replication::touched::{UNNUMBERED, unsealed};
    use futures_lite::future::block_on;
    use glint_net::host;
    use glint_proto::chain::{Chain, ChainVersion, Member, MemberState, Touched};
    use glint_proto::{Ino, ObjectId};
    use std::rc::Rc;

    #[test]
    fn a_damaged_inode_holds_up_no_other_file() {
        let of = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let world = World::new(&[MemberState::Serving; 2]);
        // Of one of two files with damaged inodes another record says where it is.
        world.files.lock().extend([of(5), of(7)]);
        world.damaged.lock().extend([Ino(5), Ino(6)]);
        let (server, here) = (world.server(1), world.here(1));
        let found = [5, 6, 7].map(|ino| Touched::whole(of(ino))).into_iter();
        block_on(server.recent.touch_all(unsealed(0), found, UNNUMBERED)).unwrap();
        server.said(here, &[world.row()], 1, 1);
        block_on(server.take_over(here));
        assert_eq!(server.found_on(0), []);
        let noted = server.recent.list((world.version().target, 0));
        assert_eq!(noted, [5, 7].map(|ino| Touched::whole(of(ino))));
    }

    #[test]
    fn a_head_waits_for_no_search_of_a_member_here_that_is_away_and_keeps_what_it_finds() {
        host::simulate(Some(Rc::new(Still)));
        let server = Server::with(2);
        let (replication, here) = (&server.replication, Here { osts: &server.osts, first: 0 });
        let target = ID.target();
        let adopt = |version, state| {
            let members = [(0, MemberState::Serving), (1, state)];
            let members = members.map(|(ost, state)| Member { ost, state }).to_vec();
            let founders = vec![0, 1];
            let row = Chain { id: ID, version, members, founders, intact_since: 1 };
            replication.adopt(here, &row);
            ChainVersion { target, version }
        };
        let first = adopt(1, MemberState::Offline);
        here.osts.await_search(1);
        block_on(replication.take_over(here));
        assert!(replication.rows.enter(first).unwrap().is_active);
        // It is found there, and named, before what the takeover has found is decided.
        let found = Touched::whole(ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS });
        block_on(replication.recent.touch((target, 0), found, UNNUMBERED)).unwrap();
        replication.forget_decided(here, target, first.version);
        assert_eq!(replication.recent.list((target, 0)), [found]);
        let synced = adopt(2, MemberState::Syncing);
        assert!(!block_on(replication.heal(here)), "there may be more");
        assert!(!replication.rows.is_told(Told::Syncing, synced));
        assert_eq!(replication.pending.list((target, 1)), [found]);
        adopt(3, MemberState::Serving);
        assert_eq!(replication.recent.list((target, 0)), []);
    }
}
