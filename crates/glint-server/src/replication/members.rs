//! What the disks of members here do, on threads of their own.
//!
//! Invariants:
//! - At a member a change by a newer row begins when those by older rows are over there, and none by
//!   an older row begins after it; nor does one by the same row before those are over that nobody
//!   waits for any more. So a disk that stood still brings no old bytes over newer ones.
//! - Nothing that a chain waits for waits for a member that the newest row does not have written.
//! - No member is waited for whose disk stands still or has failed, if another one of its chain can
//!   be read.

use super::{Here, Replication};
use futures_lite::future::or;
use futures_util::future::join_all;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion};
use glint_proto::{Answer, Bulk, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest};
use glint_wait::Monitor;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::{Arc, Weak};

/// A member of a chain: its target and OST.
type Member = (u16, u16);

/// Changes that disks make, by the terms that they were begun in.
#[derive(Default)]
pub(super) struct Terms(Arc<Monitor<HashMap<Member, TermsOfMember>>>);

/// Version of a row, and how often a change was given up at the member before.
type Term = (u32, u64);

#[derive(Default)]
struct TermsOfMember {
    newest: u32,
    given_up: u64,
    under_way: BTreeMap<Term, usize>,
}

/// A change that a disk makes, until it is dropped.
struct ChangeMade {
    of: Arc<Monitor<HashMap<Member, TermsOfMember>>>,
    member: Member,
    term: Term,
    _is_under_way: Arc<()>,
}

/// Somebody waits for such a change; if that one is not over when this is dropped, it is given up.
struct ChangeAwaited {
    of: Arc<Monitor<HashMap<Member, TermsOfMember>>>,
    member: Member,
    term: Term,
    change: Weak<()>,
}

impl Terms {
    /// Waits until changes of earlier terms are over at a member: EREMCHG if one by a newer row is
    /// known. Whoever waits for the change keeps the second until then.
    async fn enter(&self, member: Member, version: u32) -> FsResult<(ChangeMade, ChangeAwaited)> {
        let look = |all: &mut HashMap<Member, TermsOfMember>| {
            let its = all.entry(member).or_default();
            if version < its.newest {
                return Some(Err(Errno::EREMCHG));
            }
            its.newest = version;
            let term = (version, its.given_up);
            if its.under_way.range(..term).next().is_some() {
                return None;
            }
            *its.under_way.entry(term).or_default() += 1;
            Some(Ok(term))
        };
        let term = self.0.until(look).await?;
        let is_under_way = Arc::new(());
        let change = Arc::downgrade(&is_under_way);
        let awaited = ChangeAwaited { of: self.0.clone(), member, term, change };
        Ok((ChangeMade { of: self.0.clone(), member, term, _is_under_way: is_under_way }, awaited))
    }
}

impl Drop for ChangeMade {
    fn drop(&mut self) {
        let ChangeMade { of, member, term, .. } = self;
        of.change(|all| {
            let Some(its) = all.get_mut(member) else { return };
            if let Some(count) = its.under_way.get_mut(term) {
                *count -= 1;
                if *count == 0 {
                    its.under_way.remove(term);
                }
            }
        });
    }
}

impl Drop for ChangeAwaited {
    fn drop(&mut self) {
        let ChangeAwaited { of, member, term, change } = self;
        if change.strong_count() > 0
            && let Some(its) = of.lock().get_mut(member)
        {
            its.given_up = its.given_up.max(term.1 + 1);
        }
    }
}

impl Replication {
    /// Has the disk of a member here execute a request by a row. It is executed whether or not anybody
    /// waits for it.
    pub(super) async fn at_member<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        (ost, row): (u16, &Chain),
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> Answer<OstReply> {
        let Some(index) = here.index(ost) else { return Answer::unchanged(Err(Errno::ENXIO)) };
        if self.is_given_up(here, (ost, row)) {
            return Answer::unchanged(Err(Errno::ETIMEDOUT));
        }
        if !request.is_modifying() {
            return here.osts.handle_apart(client, index, request, bulk, None).await;
        }
        match self.terms.enter((row.id.target(), ost), row.version).await {
            Ok((change, _awaited)) => {
                here.osts.handle_apart(client, index, request, bulk, Some(Box::new(change))).await
            }
            Err(errno) => Answer::unchanged(Err(errno)),
        }
    }

    /// Removes an object of a member here.
    pub(super) async fn remove_own<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
        object: ObjectId,
    ) -> FsResult<()> {
        let index = here.index(ost).ok_or(Errno::ENXIO)?;
        let entered = self.terms.enter((row.id.target(), ost), row.version).await?;
        let (change, _awaited) = entered;
        here.osts.remove(index, object, Box::new(change)).await
    }

    /// Waits for something that a member of a chain does, unless it is taken out: EREMCHG.
    pub(super) async fn unless_out<R>(
        &self,
        (target, ost): Member,
        work: impl Future<Output = FsResult<R>>,
    ) -> FsResult<R> {
        let is_out = async {
            self.rows.until_out(target, ost).await;
            Err(Errno::EREMCHG)
        };
        or(work, is_out).await
    }

    /// Waits for something that is done by a row, unless there is a newer one: EREMCHG.
    pub(super) async fn unless_newer<R>(
        &self,
        chain: ChainVersion,
        work: impl Future<Output = FsResult<R>>,
    ) -> FsResult<R> {
        let changed = async {
            self.rows.until_newer(chain).await;
            Err(Errno::EREMCHG)
        };
        or(work, changed).await
    }

    /// Whether the disk of a member here has failed, or stands still or that of the logs that it needs,
    /// and another member can be read.
    pub(super) fn is_given_up<D: Disk>(
        &self,
        here: Here<'_, D>,
        (ost, row): (u16, &Chain),
    ) -> bool {
        let is_out = |ost: u16| here.index(ost).is_some_and(|at| here.osts.is_out_of_order(at));
        let logs = self.recent.watch().stands_still() || self.pending.watch().stands_still();
        let can_be_read = |other: u16| {
            let is_here = here.index(other).is_some();
            other != ost && !is_out(other) && !(logs && is_here)
        };
        (is_out(ost) || logs) && row.readable().any(can_be_read)
    }

    /// Looks how the disks are, and waits for nothing: once, every
    /// [`TENDING`](super::TENDING).
    pub(crate) fn look_at_disks<D: Disk>(&self, here: Here<'_, D>) {
        here.osts.look();
        self.recent.watch().look();
        self.pending.watch().look();
    }

    /// Why nothing can be called durable any more, if that is so. An OST that has failed is no reason
    /// while all that it had not on stable storage is with other members, and others here go on.
    pub(crate) fn failure<D: Disk>(&self, here: Here<'_, D>) -> Option<String> {
        let mut all = 0..here.osts.count();
        let goes_on = all.clone().any(|index| here.osts.failure(index).is_none());
        all.find_map(|index| {
            let (reason, ost) = (here.osts.failure(index)?, here.first + index);
            let is_needed = |row: &Chain| {
                let mut written = row.written();
                written.any(|its| its == ost) && row.readable().all(|its| its == ost)
            };
            let is_needed = self.rows.all().iter().any(|(row, _)| is_needed(row));
            (is_needed || here.osts.is_alone(index) || !goes_on).then(|| reason.to_owned())
        })
    }

    /// Has members taken out whose disks stand still or have failed: once, every [`TENDING`](super::TENDING).
    pub(crate) async fn give_up_still<D: Disk>(&self, here: Here<'_, D>) {
        let rows = self.rows.all();
        let lost = rows.iter().filter_map(|(row, _)| {
            let is_here = |ost: &u16| here.index(*ost).is_some();
            let mut its = row.written().filter(is_here);
            let ost = its.find(|ost| self.is_given_up(here, (*ost, row)))?;
            Some((ChainVersion { target: row.id.target(), version: row.version }, ost))
        });
        let told = lost.map(async |(chain, ost)| {
            let told = self.is_lost(here, chain, ost, Errno::ETIMEDOUT);
            self.unless_newer(chain, told).await
        });
        // What could not be said is said again.
        join_all(told).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use std::pin::pin;

    #[test]
    fn a_change_by_a_newer_row_waits_for_older_ones_and_none_of_them_begins_after_it() {
        let (terms, member) = (Terms::default(), (1, 2));
        let enter = |member, version| block_on(poll_once(terms.enter(member, version)));
        let (first, awaits_first) = enter(member, 3).unwrap().unwrap();
        let (second, awaits_second) = enter(member, 3).unwrap().unwrap();
        drop(enter((1, 3), 4).unwrap().unwrap());
        let mut newer = pin!(terms.enter(member, 5));
        assert!(block_on(poll_once(newer.as_mut())).is_none());
        assert_eq!(enter(member, 4).unwrap().err(), Some(Errno::EREMCHG));
        drop((first, awaits_first));
        assert!(block_on(poll_once(newer.as_mut())).is_none());
        drop((second, awaits_second));
        let newer = block_on(poll_once(newer.as_mut())).unwrap().unwrap();
        let beside = enter(member, 5).unwrap();
        assert!(beside.is_ok(), "those by one row are ordered by turns");
        drop((newer, beside));
        assert!(terms.0.lock().values().all(|its| its.under_way.is_empty()));
    }

    #[test]
    fn a_change_by_the_same_row_waits_for_those_that_nobody_waits_for_any_more() {
        let (terms, member) = (Terms::default(), (1, 2));
        let enter = |version| block_on(poll_once(terms.enter(member, version)));
        let (slow, awaits_slow) = enter(3).unwrap().unwrap();
        let (prompt, awaits_prompt) = enter(3).unwrap().unwrap();
        drop(prompt);
        drop(awaits_prompt);
        assert!(enter(3).is_some(), "what is over is not given up");
        drop(awaits_slow);
        let mut same = pin!(terms.enter(member, 3));
        assert!(block_on(poll_once(same.as_mut())).is_none());
        drop(slow);
        assert!(block_on(poll_once(same.as_mut())).unwrap().is_ok());
    }
}
