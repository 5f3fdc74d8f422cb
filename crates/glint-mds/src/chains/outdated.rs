//! Members of which a check of a file system that is not served has found that they have something
//! wrong: they are to be synced before they serve again.
//!
//! Invariant: a member is left out only while another one has everything.

use crate::chains::membership;
use crate::chains::table::ChainTable;
use glint_kv::Kv;
use glint_proto::FsResult;
use glint_proto::chain::Chain;
use std::collections::BTreeSet;

impl ChainTable {
    /// The rows without members that have something wrong, each as target and OST. One that no other
    /// could replace stays: its row is as it was, or without others only.
    pub fn without_outdated(&self, wrong: &BTreeSet<(u16, u16)>) -> Vec<Chain> {
        let targets: BTreeSet<u16> = wrong.iter().map(|(target, _)| *target).collect();
        let changed = targets.into_iter().filter_map(|target| {
            let before = self.get(target)?;
            let members = wrong.range((target, 0)..=(target, u16::MAX));
            let without =
                |row: Chain, (_, ost): &(u16, u16)| membership::outdated(&row, *ost).unwrap_or(row);
            let row = members.fold(before.clone(), without);
            (row != before).then_some(row)
        });
        changed.collect()
    }

    /// Stores these rows.
    pub async fn leave_out(&self, kv: &impl Kv, rows: Vec<Chain>) -> FsResult<()> {
        let _changing = self.changing.lock().await;
        self.store_with(kv, rows, Default::default()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::placement::Placed;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::chain::{ChainId, MemberEvent, MemberState};

    #[test]
    fn a_member_with_something_wrong_lags_unless_it_is_the_last() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            let osts: Vec<Placed> =
                (0..3).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect();
            table.extend(&kv, 3, &osts).await.unwrap();
            let target = ChainId { copies: 3, index: 0 }.target();
            let before = table.get(target).unwrap();
            let [one, two, three] = [0, 1, 2].map(|n| before.founders[n]);
            let rows = table.without_outdated(&BTreeSet::from([(target, one), (target, three)]));
            let [row] = &rows[..] else { panic!("{rows:?}") };
            assert_eq!(row.readable().collect::<Vec<_>>(), [two]);
            assert!(row.version > before.version && row.intact_since == before.intact_since);
            table.leave_out(&kv, rows.clone()).await.unwrap();
            let again = ChainTable::load(&kv).await.unwrap();
            assert_eq!(again.get(target).as_ref(), Some(row));
            let last = BTreeSet::from([(target, two), (target, one)]);
            assert!(again.without_outdated(&last).is_empty(), "it has the last copy, or lags");

            // All are lost, one after the other.
            let other = ChainId { copies: 3, index: 1 }.target();
            for ost in 0..3 {
                again.on_event(&kv, ost, MemberEvent::Lost).await.unwrap();
            }
            let head = again.get(other).unwrap().members[0].ost;
            assert_eq!(again.get(other).unwrap().state_of(head), Some(MemberState::LastServing));
            let rows = again.without_outdated(&BTreeSet::from([(other, head)]));
            assert!(rows.is_empty(), "the others were lost before it");
        });
    }
}
