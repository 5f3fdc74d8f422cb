//! Places in chains of OSTs that were given up, and that others take.
//!
//! Invariants:
//! - An OST takes a place only in a chain without another member in its failure domain, and with a member
//!   that serves and can give it everything: it counts as emptied until then.
//! - No OST takes a place in a chain of which it is a former member that was not cleared: objects that
//!   lie there from before can never be taken for the copy of a member. Nor does one in the failure
//!   domain of such a former member, if that has joined again; else its domain is not known.
//! - A former member is forgotten only when none of its objects of the chain is left.

use crate::chains::membership;
use crate::chains::placement::{self, Placed};
use crate::chains::table::ChainTable;
use crate::error::errno;
use crate::service::Mds;
use glint_kv::{Batch, Kv};
use glint_proto::FsResult;
use glint_proto::chain::MemberState;
use std::collections::{BTreeMap, BTreeSet};

impl ChainTable {
    /// Has OSTs that are `heard` of take the places of those that were given up; `placed` says in which
    /// failure domains all others are. Returns how many rows are others now.
    async fn lay_again(
        &self,
        kv: &impl Kv,
        given_up: &BTreeSet<u16>,
        placed: &[Placed],
        heard: &BTreeSet<u16>,
    ) -> FsResult<usize> {
        // No drain begins or ends meanwhile.
        let _changing = self.changing.lock().await;
        let mut spare = placed.to_vec();
        spare.retain(|one| heard.contains(&one.ost) && self.may_be_used(one.ost));
        if spare.is_empty() {
            return Ok(0);
        }
        let domains: BTreeMap<u16, &str> =
            placed.iter().map(|placed| (placed.ost, placed.domain.as_str())).collect();
        let (rows, notes) = (self.since(0).0, self.notes());
        let mut chains_of = BTreeMap::<u16, usize>::new();
        for member in rows.iter().flat_map(|row| &row.members) {
            *chains_of.entry(member.ost).or_default() += 1;
        }
        let mut changed = Vec::new();
        for row in rows {
            let is_gone = |ost: u16| {
                given_up.contains(&ost) && row.state_of(ost) == Some(MemberState::Emptied)
            };
            let mut now = row.clone();
            for gone in row.members.iter().map(|member| member.ost).filter(|ost| is_gone(*ost)) {
                let others = now.members.iter().map(|member| member.ost);
                let beside =
                    others.filter(|ost| !is_gone(*ost)).chain(notes.former_of(row.id.target()));
                let beside = beside.filter_map(|ost| domains.get(&ost).copied()).collect();
                let Some(ost) = placement::for_place(&spare, &beside, &chains_of) else { continue };
                if let Some(next) = membership::replaced(&now, gone, ost) {
                    now = next;
                    *chains_of.entry(ost).or_default() += 1;
                }
            }
            if now.version != row.version {
                changed.push(now);
            }
        }
        let count = changed.len();
        if count > 0 {
            self.store_with(kv, changed, Batch::default()).await?;
        }
        Ok(count)
    }

    /// Forgets former members that have no objects of their chains any more.
    async fn are_cleared(&self, kv: &impl Kv, former: &BTreeSet<(u16, u16)>) -> FsResult<()> {
        let _changing = self.changing.lock().await;
        let (mut notes, mut batch) = (self.notes(), Batch::default());
        former.iter().for_each(|one| notes.forget_former(*one, &mut batch));
        kv.commit(batch, &[]).await.map_err(errno)?;
        self.set_notes(notes);
        Ok(())
    }
}

impl<K: Kv> Mds<K> {
    /// Has OSTs that are `heard` of, and neither full nor drained, take the places of those that were
    /// given up, as far as that can be; `placed` are all others. Returns how many rows are others now.
    pub async fn lay_again(
        &self,
        given_up: &BTreeSet<u16>,
        placed: &[Placed],
        heard: &BTreeSet<u16>,
    ) -> FsResult<usize> {
        self.chains.lay_again(&self.kv, given_up, placed, heard).await
    }

    /// Has data stay where it is that moves now: it may have been written where a member that is to be
    /// filled has not got it. When this is over, all layouts can be read that were switched before.
    pub async fn doubt_moves(&self) {
        self.doubts.raise();
        self.doubts.settled().await;
    }

    /// Forgets former members, each as target and OST, that have no objects of their chains any more.
    pub async fn are_cleared(&self, former: &BTreeSet<(u16, u16)>) -> FsResult<()> {
        self.chains.are_cleared(&self.kv, former).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::chain::{Chain, MemberEvent};

    fn placed(domains: &[(u16, &str)]) -> Vec<Placed> {
        domains.iter().map(|(ost, domain)| Placed { ost: *ost, domain: (*domain).into() }).collect()
    }

    /// Gives an OST up in all chains.
    async fn give_up(table: &ChainTable, kv: &MemoryKv, ost: u16) {
        let emptied = |row: &Chain| membership::emptied(row, ost, true).ok().flatten();
        let rows = table.since(0).0.iter().filter_map(emptied).collect();
        let _changing = table.changing.lock().await;
        table.store_with(kv, rows, Batch::default()).await.unwrap();
    }

    #[test]
    fn places_are_taken_in_other_domains_and_former_members_have_to_be_cleared() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            table.extend(&kv, 2, &placed(&[(0, "a"), (1, "b")])).await.unwrap();
            let chains = table.since(0).0.len();
            give_up(&table, &kv, 1).await;
            let (gone, heard) = (BTreeSet::from([1]), BTreeSet::from([0, 2, 3, 4]));
            // One is in the domain of the other member, one is drained.
            let others = placed(&[(0, "a"), (2, "a"), (3, "c")]);
            table.set_drained(&[3]);
            assert_eq!(table.lay_again(&kv, &gone, &others, &heard).await, Ok(0));
            table.set_drained(&[]);
            assert_eq!(table.lay_again(&kv, &gone, &others, &BTreeSet::from([0])).await, Ok(0));
            let before = table.since(0).0;
            assert_eq!(table.lay_again(&kv, &gone, &others, &heard).await, Ok(chains));
            for (row, before) in std::iter::zip(table.since(0).0, before) {
                assert_eq!(row.state_of(3), Some(MemberState::Emptied));
                assert_eq!((row.state_of(1), row.version), (None, before.version + 1));
                assert_eq!((row.head(), row.intact_since), (Some(0), before.intact_since));
                assert!(row.founders.contains(&3) && !row.founders.contains(&1));
                let target = row.id.target();
                assert!(table.is_unfilled(target, 3) && !table.is_unfilled(target, 1));
                assert_eq!(table.holders(target), BTreeSet::from([0, 1, 3]));
            }
            assert_eq!(table.lay_again(&kv, &gone, &others, &heard).await, Ok(0), "once");

            // It outlives the run, and keeps the first one, and what is beside it, from coming back.
            let table = ChainTable::load(&kv).await.unwrap();
            assert_eq!(table.former().len(), chains);
            let (gone, heard) = (BTreeSet::from([3]), BTreeSet::from([0, 1, 4]));
            let back = placed(&[(0, "a"), (1, "b"), (4, "b")]);
            assert_eq!(table.lay_again(&kv, &gone, &back, &heard).await, Ok(0));
            let cleared = table.former();
            table.are_cleared(&kv, &cleared).await.unwrap();
            assert!(table.former().is_empty());
            assert_eq!(table.lay_again(&kv, &gone, &back, &heard).await, Ok(chains));
            // Each has as many as the other.
            for ost in [1, 4] {
                let has = |row: &&Chain| row.state_of(ost).is_some();
                assert_eq!(table.since(0).0.iter().filter(has).count(), chains / 2);
            }
            let again = ChainTable::load(&kv).await.unwrap();
            assert!(again.former().iter().all(|(_, ost)| *ost == 3));
            assert_eq!(again.former().len(), chains);
        });
    }

    #[test]
    fn no_place_is_taken_in_a_chain_that_no_member_serves() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            table.extend(&kv, 2, &placed(&[(0, "a"), (1, "b")])).await.unwrap();
            give_up(&table, &kv, 1).await;
            table.on_event(&kv, 0, MemberEvent::Lost).await.unwrap();
            let (gone, heard) = (BTreeSet::from([0, 1]), BTreeSet::from([2]));
            let others = placed(&[(2, "c")]);
            assert_eq!(table.lay_again(&kv, &gone, &others, &heard).await, Ok(0));
            give_up(&table, &kv, 0).await;
            assert_eq!(table.lay_again(&kv, &gone, &others, &heard).await, Ok(0));
        });
    }
}
