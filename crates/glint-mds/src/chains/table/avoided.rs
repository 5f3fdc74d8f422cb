//! Chains that new files avoid.
//!
//! Invariant: new files use a chain of which members fail together only while no other one with as many
//! members is good: while a member of each does not serve, is full, is not heard of or is drained.
//! Among those that are left the good ones come first, whether their members fail together or not.

use glint_proto::chain::{Chain, Member, MemberState};
use std::collections::{BTreeMap, BTreeSet};

/// OSTs, as far as that says which chains are better not used.
#[derive(Default)]
pub(super) struct OstUse {
    /// Those that are drained, that are full or not heard of, and that were given up.
    pub(super) drained: Vec<u16>,
    pub(super) absent: Vec<u16>,
    pub(super) given_up: Vec<u16>,
    /// Failure domains of those that there are.
    pub(super) domains: BTreeMap<u16, String>,
}

impl OstUse {
    fn is_drained(&self, chain: &Chain) -> bool {
        chain.members.iter().any(|member| self.drained.contains(&member.ost))
    }

    /// Whether all members of a chain serve, and none is full, or not heard of, or drained.
    fn is_good(&self, chain: &Chain) -> bool {
        let is_good = |member: &Member| {
            member.state == MemberState::Serving && !self.absent.contains(&member.ost)
        };
        chain.members.iter().all(is_good) && !self.is_drained(chain)
    }

    /// Whether members of a chain fail together.
    fn is_crowded(&self, chain: &Chain) -> bool {
        let mut seen = BTreeSet::new();
        let mut domains = chain.members.iter().filter_map(|member| self.domains.get(&member.ost));
        !domains.all(|domain| seen.insert(domain))
    }
}

/// Chains of one number of members that new files avoid, by their positions.
#[derive(Default)]
pub(super) struct AvoidedChains {
    /// How many there are, of those that are not avoided, too.
    pub(super) count: u16,
    /// All of them: with a member that does not serve, or is full or not heard of, as well; but not
    /// if all chains are such.
    pub(super) all: Vec<u16>,
    /// Without a head, or that files leave.
    pub(super) worst: Vec<u16>,
    /// Those of them that no new file gets: that files leave, or all of whose OSTs were given up.
    pub(super) gone: Vec<u16>,
    /// Those that files leave because members of them fail together, and there are good ones whose
    /// members do not.
    pub(super) crowded: Vec<u16>,
}

/// Sorts chains by whether they are avoided, for each number of members.
pub(super) fn sort<'a>(
    chains: impl Iterator<Item = &'a Chain> + Clone,
    osts: &OstUse,
) -> BTreeMap<u8, AvoidedChains> {
    let is_better = |chain: &&Chain| osts.is_good(chain) && !osts.is_crowded(chain);
    let better: BTreeSet<u8> =
        chains.clone().filter(is_better).map(|chain| chain.id.copies).collect();
    let mut sorted = BTreeMap::<u8, AvoidedChains>::new();
    for chain in chains {
        let (copies, index) = (chain.id.copies, chain.id.index);
        let avoided = sorted.entry(copies).or_default();
        avoided.count += 1;
        let is_crowded = better.contains(&copies) && osts.is_crowded(chain);
        if is_crowded {
            avoided.crowded.push(index);
        }
        let (is_left, has_head) = (is_crowded || osts.is_drained(chain), chain.head().is_some());
        if is_left || !osts.is_good(chain) {
            avoided.all.push(index);
        }
        if is_left || !has_head {
            avoided.worst.push(index);
        }
        let is_given_up = |member: &Member| osts.given_up.contains(&member.ost);
        if is_left || !has_head && chain.members.iter().all(is_given_up) {
            avoided.gone.push(index);
        }
    }
    for avoided in sorted.values_mut() {
        // Clients choose by themselves as long as there is something to choose.
        if usize::from(avoided.count) == avoided.all.len() {
            avoided.all.clone_from(&avoided.worst);
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chains::membership;
    use glint_proto::chain::{ChainId, MemberEvent};

    #[test]
    fn chains_whose_members_fail_together_are_avoided_while_there_are_others() {
        let chain = |index, osts: [u16; 2]| membership::new(ChainId { copies: 2, index }, osts);
        let mut chains = vec![chain(0, [0, 1]), chain(1, [1, 0])];
        let domains = [(0, "mds"), (1, "mds"), (2, "one")];
        let domains = domains.map(|(ost, domain)| (ost, domain.to_owned())).into();
        let mut osts = OstUse { domains, ..OstUse::default() };
        let crowded = |chains: &[Chain], osts: &OstUse| {
            let sorted = sort(chains.iter(), osts);
            let avoided = &sorted[&2];
            assert_eq!(usize::from(avoided.count), chains.len());
            assert!(avoided.crowded.iter().all(|index| avoided.gone.contains(index)));
            (avoided.crowded.clone(), avoided.all.clone())
        };
        assert_eq!(crowded(&chains, &osts), (vec![], vec![]), "there is no other");
        chains.extend([chain(2, [0, 2]), chain(3, [2, 1])]);
        assert_eq!(crowded(&chains, &osts), (vec![0, 1], vec![0, 1]));
        osts.drained = vec![2];
        assert_eq!(crowded(&chains, &osts), (vec![], vec![2, 3]), "files leave the others");
        osts.drained.clear();
        osts.absent = vec![2];
        assert_eq!(crowded(&chains, &osts), (vec![], vec![2, 3]), "it is full");
        osts.absent.clear();
        let whole = chains.clone();
        for row in &mut chains[2..] {
            *row = membership::after(row, 2, MemberEvent::Lost).unwrap();
        }
        assert!(chains[2..].iter().all(|row| row.head().is_some()));
        assert_eq!(crowded(&chains, &osts), (vec![], vec![2, 3]), "they have one copy");
        chains = whole;
        // Without a head nobody could use them.
        for row in &mut chains[2..] {
            for ost in [row.founders[0], row.founders[1]] {
                *row = membership::after(row, ost, MemberEvent::Lost).unwrap();
            }
        }
        assert_eq!(crowded(&chains, &osts), (vec![], vec![2, 3]));
    }
}
