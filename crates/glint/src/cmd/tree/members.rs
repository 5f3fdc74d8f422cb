//! Members of chains: on which OSTs the objects of files with copies lie.

use glint_proto::Layout;
use glint_proto::chain::{Chain, ChainId};
use std::collections::HashMap;

/// OSTs of each chain, whether they serve just now or not.
#[derive(Default)]
pub(super) struct ChainMembers(HashMap<u16, Vec<u16>>);

impl ChainMembers {
    pub(super) fn new(chains: Vec<Chain>) -> ChainMembers {
        let row = |chain: Chain| {
            (chain.id.target(), chain.members.iter().map(|member| member.ost).collect())
        };
        ChainMembers(chains.into_iter().map(row).collect())
    }

    /// Returns the OSTs that objects of a file lie on; `own` are those of the MDS's own server. `None`
    /// if a chain is not known.
    pub(super) fn osts_of(&self, layout: &Layout, own: u16) -> Option<Vec<u16>> {
        let mut osts = Vec::new();
        for stripe in 0..layout.stripe_count.max(1) {
            let target = layout.ost_of(stripe, own);
            match ChainId::of_target(target) {
                Some(_) => osts.extend_from_slice(self.0.get(&target)?),
                None => osts.push(target),
            }
        }
        osts.sort_unstable();
        osts.dedup();
        Some(osts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::chain::{Member, MemberState};

    #[test]
    fn a_stripe_with_copies_lies_on_all_members_of_its_chain() {
        let chain = |index, osts: &[u16]| {
            let member = |ost: &u16| Member { ost: *ost, state: MemberState::Offline };
            let members = osts.iter().map(member).collect();
            let id = ChainId { copies: 2, index };
            Chain { id, version: 1, members, founders: osts.to_vec(), intact_since: 0 }
        };
        let known =
            ChainMembers::new(vec![chain(0, &[4, 1]), chain(1, &[1, 2]), chain(2, &[9, 0])]);
        let layout = Layout { stripe_count: 2, osts: 3, replicas: 2, ..Layout::default() };
        assert_eq!(known.osts_of(&layout, 1), Some(vec![1, 2, 4]));
        assert_eq!(known.osts_of(&Layout { osts: 4, first_ost: 2, ..layout }, 1), None);
        let alone = Layout { stripe_count: 2, osts: 0, first_ost: 1, ..Layout::default() };
        assert_eq!(known.osts_of(&alone, 2), Some(vec![0, 1]));
    }
}
