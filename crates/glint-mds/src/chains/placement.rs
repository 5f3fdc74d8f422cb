//! Over which OSTs chains are laid.
//!
//! Invariants:
//! - Two members of a chain are never in one failure domain. Where there are too few domains,
//!   chains are refused, and not made worse in silence; places of lost members stay free.
//! - Each OST orders the writes of as many chains as any other, and shares chains with many others,
//!   so that many can fill one that was lost. (Combinatorial chain tables: the design notes of 3FS.)

use std::collections::{BTreeMap, BTreeSet};

/// An OST, and what it fails together with: a host, or whatever its administrator said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// The OST.
    pub ost: u16,
    /// Failure domain: a host, or a label.
    pub domain: String,
}

/// There are not as many failure domains as copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{copies} copies need {copies} failure domains, and there are {domains}: add servers of OSTs, \
     or say with --failure-domain which OSTs of one host do not fail together"
)]
pub(crate) struct TooFewDomains {
    copies: usize,
    domains: usize,
}

/// Steps from one member of a chain to the next that are used at most: so many others share
/// chains with an OST.
const STEPS_MAX: usize = 16;

/// Members of the chains with so many copies over these OSTs, head first.
pub(crate) fn chains(copies: usize, osts: &[Placed]) -> Result<Vec<Vec<u16>>, TooFewDomains> {
    let domains = osts.iter().map(|placed| &placed.domain).collect::<BTreeSet<_>>().len();
    if domains < copies {
        return Err(TooFewDomains { copies, domains });
    }
    let steps = 1..=STEPS_MAX.min(osts.len().saturating_sub(1)).max(1);
    let of_step = |step| (0..osts.len()).map(move |head| members(copies, osts, head, step));
    Ok(steps.flat_map(of_step).collect())
}

/// From `head` on in steps, past those whose domain has a member already.
fn members(copies: usize, osts: &[Placed], head: usize, step: usize) -> Vec<u16> {
    let mut chosen: Vec<&Placed> = vec![&osts[head]];
    let mut at = head;
    while chosen.len() < copies {
        at += step;
        // There are as many domains as copies, so one of all of them fits.
        let fits = |at: &usize| {
            let candidate = &osts[at % osts.len()];
            chosen.iter().all(|member| member.domain != candidate.domain)
        };
        let Some(found) = (at..at + osts.len()).find(fits) else { break };
        at = found;
        chosen.push(&osts[at % osts.len()]);
    }
    chosen.into_iter().map(|placed| placed.ost).collect()
}

/// The OST that takes a place in a chain beside these domains: of those with another one, that which
/// is a member of the fewest chains. `None` if there is none: the place stays free.
pub(crate) fn for_place(
    spare: &[Placed],
    beside: &BTreeSet<&str>,
    chains: &BTreeMap<u16, usize>,
) -> Option<u16> {
    let fit = spare.iter().filter(|placed| !beside.contains(placed.domain.as_str()));
    fit.map(|placed| placed.ost).min_by_key(|ost| (chains.get(ost).copied(), *ost))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn osts(domains: &[u8]) -> Vec<Placed> {
        let placed = |(ost, domain): (u16, &u8)| Placed { ost, domain: format!("host{domain}") };
        (0..).zip(domains).map(placed).collect()
    }

    #[test]
    fn too_few_domains_are_refused() {
        let error = chains(3, &osts(&[1, 1, 2, 2])).unwrap_err();
        assert!(error.to_string().starts_with("3 copies need 3 failure domains, and there are 2"));
        assert_eq!(chains(2, &osts(&[1, 1, 2, 2])).unwrap()[0], [0, 2]);
    }

    #[test]
    fn a_place_is_taken_by_the_one_with_least_to_do_in_another_domain() {
        let (spare, chains) = (osts(&[1, 2, 2, 3]), BTreeMap::from([(0, 1), (1, 4), (2, 3)]));
        let place = |beside: &[&str]| for_place(&spare, &beside.iter().copied().collect(), &chains);
        assert_eq!(place(&[]), Some(3), "it has nothing to do");
        assert_eq!(place(&["host3"]), Some(0));
        assert_eq!(place(&["host1", "host3"]), Some(2));
        assert_eq!(place(&["host1", "host2", "host3"]), None);
    }

    proptest! {
        #[test]
        fn members_differ_in_their_domain_and_work_is_spread(
            copies in 2usize..4, domains in prop::collection::vec(0u8..8, 2..24)
        ) {
            let all = osts(&domains);
            let Ok(rows) = chains(copies, &all) else { return Ok(()) };
            for row in &rows {
                let domain = |ost: &u16| domains[*ost as usize];
                prop_assert_eq!(row.iter().map(domain).collect::<BTreeSet<_>>().len(), copies);
            }
            let heads = |ost: u16| rows.iter().filter(|row| row[0] == ost).count();
            prop_assert!(all.iter().all(|placed| heads(placed.ost) == heads(0)));
        }
    }

    #[test]
    fn many_can_fill_one_that_was_lost() {
        let rows = chains(3, &osts(&[1, 2, 3, 4, 5, 6, 7, 8])).unwrap();
        let with = rows.iter().filter(|row| row.contains(&4)).flatten();
        let others = with.copied().filter(|ost| *ost != 4).collect::<BTreeSet<u16>>();
        assert_eq!(others.len(), 7);
    }
}
