//! Transitions of a chain: when a member is lost, comes back or has been synced.
//!
//! Invariants, of every row that a transition leaves:
//! - At least one member has every write that was acknowledged: it serves, or it is the last that
//!   did and the chain waits for it. No transition drops that one.
//! - Members that serve come first, then the one that is synced; at most one is. Where all serve,
//!   they are in the order in which the chain was laid out, which spreads heads over OSTs.
//! - A member serves again only after it was synced; one that was emptied is not even synced before
//!   somebody says that the others know all that it lacks ([`indexed`]).
//! - The version from which on a chain is intact rises when the last member that served comes back
//!   from a restart: clients send again what they were told before it.
//! - The version rises by one with each change, and only then.

use glint_proto::chain::{Chain, ChainId, Member, MemberEvent, MemberState};
use std::cmp::Reverse;

/// A chain in which all serve.
pub(crate) fn new(id: ChainId, osts: impl IntoIterator<Item = u16>) -> Chain {
    let founders: Vec<u16> = osts.into_iter().collect();
    let serving = |ost: &u16| Member { ost: *ost, state: MemberState::Serving };
    Chain {
        id,
        version: 1,
        members: founders.iter().map(serving).collect(),
        founders,
        intact_since: 1,
    }
}

/// The row after `event` happened to `ost`; `None` if that changes nothing.
pub(crate) fn after(chain: &Chain, ost: u16, event: MemberEvent) -> Option<Chain> {
    use MemberState::{Emptied, LastServing, Offline, Serving, Syncing, Waiting};
    let now = chain.state_of(ost)?;
    let others_serve = chain.readable().any(|other| other != ost);
    let next = match (event, now) {
        (MemberEvent::Lost, Serving) if others_serve => Offline,
        (MemberEvent::Lost, Serving) => LastServing,
        (MemberEvent::Lost, Syncing | Waiting) => Offline,
        (MemberEvent::Lost, Offline | LastServing) => return None,
        // Nobody has written anything meanwhile. What it had on its disk is all that there is.
        (MemberEvent::Returned | MemberEvent::ReturnedWithout, LastServing) => Serving,
        (MemberEvent::Returned | MemberEvent::ReturnedWithout, Offline) => Waiting,
        // A member that was away for so short a time that nobody has missed it.
        (MemberEvent::Returned, Serving | Syncing | Waiting) => return None,
        (MemberEvent::ReturnedWithout, Serving) if others_serve => Waiting,
        (MemberEvent::ReturnedWithout, Syncing) => Waiting,
        (MemberEvent::ReturnedWithout, Serving | Waiting) => return None,
        (MemberEvent::Synced, Syncing) => Serving,
        (MemberEvent::Synced, _) | (_, Emptied) => return None,
    };
    let mut changed = chain.clone();
    changed.members.iter_mut().filter(|member| member.ost == ost).for_each(|m| m.state = next);
    let mut changed = settled(changed);
    if (event, now) == (MemberEvent::ReturnedWithout, LastServing) {
        changed.intact_since = changed.version;
    }
    Some(changed)
}

/// The member that lost everything is the last one that served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastCopy;

/// The row after `ost` has lost everything; `None` if that is known. Of the last one that served it
/// is refused, but with `lose_last`: then the next member goes on with what it has, and gives that
/// to all others, whatever they have.
pub(crate) fn emptied(chain: &Chain, ost: u16, lose_last: bool) -> Result<Option<Chain>, LastCopy> {
    use MemberState::{Emptied, LastServing, Serving};
    let Some(now) = chain.state_of(ost).filter(|now| *now != Emptied) else { return Ok(None) };
    let mut changed = chain.clone();
    let others_serve = chain.readable().any(|other| other != ost);
    if others_serve || !matches!(now, Serving | LastServing) {
        changed.members.iter_mut().filter(|m| m.ost == ost).for_each(|m| m.state = Emptied);
        return Ok(Some(settled(changed)));
    }
    let has_something = |member: &&Member| member.ost != ost && member.state != Emptied;
    // The order is that in which they were lost, or came back: the first has most.
    let next = chain.members.iter().find(has_something).filter(|_| lose_last).ok_or(LastCopy)?.ost;
    for member in &mut changed.members {
        member.state = if member.ost == next { Serving } else { Emptied };
    }
    let mut changed = settled(changed);
    changed.intact_since = changed.version;
    Ok(Some(changed))
}

/// The row after all members that serve know everything that an emptied one lacks.
pub(crate) fn indexed(chain: &Chain, ost: u16) -> Option<Chain> {
    if chain.state_of(ost) != Some(MemberState::Emptied) {
        return None;
    }
    let mut changed = chain.clone();
    let its = changed.members.iter_mut().filter(|member| member.ost == ost);
    its.for_each(|member| member.state = MemberState::Offline);
    Some(settled(changed))
}

/// Brings the members into their order, lets the first that waits be synced, and counts.
fn settled(mut chain: Chain) -> Chain {
    use MemberState::{Emptied, LastServing, Offline, Serving, Syncing, Waiting};
    let has = |chain: &Chain, state| chain.members.iter().any(|member| member.state == state);
    // Members that lag may serve nobody: all wait for the last one that had everything.
    if has(&chain, Serving) && !has(&chain, Syncing) {
        let first = chain.members.iter_mut().find(|member| member.state == Waiting);
        first.into_iter().for_each(|member| member.state = Syncing);
    } else if !has(&chain, Serving) {
        let synced = chain.members.iter_mut().filter(|member| member.state == Syncing);
        synced.for_each(|member| member.state = Waiting);
    }
    // A stable sort: who served longest stays first, until all serve. Then heads are spread again.
    if chain.members.iter().all(|member| member.state == Serving) {
        let founders = std::mem::take(&mut chain.founders);
        chain.members.sort_by_key(|member| founders.iter().position(|ost| *ost == member.ost));
        chain.founders = founders;
    }
    chain.members.sort_by_key(|member| {
        Reverse(match member.state {
            Serving | LastServing => 3,
            Syncing => 2,
            Waiting => 1,
            Offline | Emptied => 0,
        })
    });
    chain.version += 1;
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Emptied, LastServing, Offline, Serving, Syncing, Waiting};
    use proptest::prelude::*;
    use std::collections::{BTreeSet, HashMap};

    const ID: ChainId = ChainId { copies: 3, index: 0 };

    fn states(chain: &Chain) -> Vec<(u16, MemberState)> {
        chain.members.iter().map(|member| (member.ost, member.state)).collect()
    }

    /// Every state and event, in a chain where another member serves and in one where none does.
    #[test]
    fn each_event_in_each_state() {
        let events = [
            MemberEvent::Lost,
            MemberEvent::Returned,
            MemberEvent::ReturnedWithout,
            MemberEvent::Synced,
        ];
        let next = |state, other| {
            let members = [(1, other), (2, state)];
            let members = members.map(|(ost, state)| Member { ost, state }).to_vec();
            let chain =
                Chain { id: ID, version: 7, members, founders: vec![1, 2], intact_since: 1 };
            events.map(|event| after(&chain, 2, event).map(|chain| chain.state_of(2).unwrap()))
        };
        let (serves, away) = (Serving, Offline);
        assert_eq!(next(Serving, serves), [Some(Offline), None, Some(Syncing), None]);
        assert_eq!(next(Syncing, serves), [Some(Offline), None, Some(Syncing), Some(Serving)]);
        assert_eq!(next(Waiting, serves), [Some(Offline), None, None, None]);
        assert_eq!(next(Offline, serves), [None, Some(Syncing), Some(Syncing), None]);
        assert_eq!(next(Serving, away), [Some(LastServing), None, None, None]);
        assert_eq!(next(LastServing, away), [None, Some(Serving), Some(Serving), None]);
        assert_eq!(next(Offline, LastServing), [None, Some(Waiting), Some(Waiting), None]);
        assert_eq!(next(Emptied, serves), [None; 4]);
        assert_eq!(after(&new(ID, [1, 2]), 9, MemberEvent::Lost), None);
    }

    #[test]
    fn the_last_copy_is_given_up_only_on_demand_and_the_next_one_gives_all_that_it_has() {
        let lose = |chain: &Chain, ost| after(chain, ost, MemberEvent::Lost).unwrap();
        let all = new(ID, [1, 2, 3]);
        let emptied_one = emptied(&all, 1, false).unwrap().unwrap();
        assert_eq!(states(&emptied_one), [(2, Serving), (3, Serving), (1, Emptied)]);
        assert_eq!(emptied(&emptied_one, 1, false), Ok(None));
        let filled = indexed(&emptied_one, 1).unwrap();
        assert_eq!((filled.state_of(1), indexed(&filled, 1)), (Some(Offline), None));

        let waits = lose(&lose(&lose(&all, 1), 2), 3);
        assert_eq!(states(&waits), [(3, LastServing), (2, Offline), (1, Offline)]);
        assert_eq!(emptied(&waits, 3, false), Err(LastCopy));
        let goes_on = emptied(&waits, 3, true).unwrap().unwrap();
        assert_eq!(states(&goes_on), [(2, Serving), (3, Emptied), (1, Emptied)]);
        assert_eq!(goes_on.intact_since, goes_on.version);
        assert_eq!(emptied(&goes_on, 2, true), Err(LastCopy), "nobody has anything");
    }

    #[test]
    fn who_comes_back_is_synced_and_gets_its_place_when_all_serve() {
        let chain = new(ID, [1, 2, 3]);
        let two_are_lost = after(&chain, 1, MemberEvent::Lost).unwrap();
        let two_are_lost = after(&two_are_lost, 2, MemberEvent::Lost).unwrap();
        let one_is_back = after(&two_are_lost, 1, MemberEvent::Returned).unwrap();
        let one_is_back = after(&one_is_back, 1, MemberEvent::Synced).unwrap();
        assert_eq!(states(&one_is_back), [(3, Serving), (1, Serving), (2, Offline)]);
        let chain = after(&chain, 1, MemberEvent::Lost).unwrap();
        assert_eq!(states(&chain), [(2, Serving), (3, Serving), (1, Offline)]);
        let chain = after(&chain, 1, MemberEvent::Returned).unwrap();
        assert_eq!(states(&chain), [(2, Serving), (3, Serving), (1, Syncing)]);
        let chain = after(&chain, 1, MemberEvent::Synced).unwrap();
        assert_eq!(states(&chain), [(1, Serving), (2, Serving), (3, Serving)]);
        assert_eq!((chain.head(), chain.version), (Some(1), 4));
    }

    #[test]
    fn a_chain_is_intact_unless_the_last_that_served_has_restarted() {
        let one_is_left = after(&new(ID, [1, 2, 3]), 1, MemberEvent::Lost).unwrap();
        let one_is_left = after(&one_is_left, 2, MemberEvent::Lost).unwrap();
        let waits = after(&one_is_left, 3, MemberEvent::Lost).unwrap();
        let intact = |event| after(&waits, 3, event).unwrap().intact_since;
        assert_eq!((intact(MemberEvent::Returned), intact(MemberEvent::ReturnedWithout)), (1, 5));
        let another = after(&one_is_left, 1, MemberEvent::ReturnedWithout).unwrap();
        assert_eq!(another.intact_since, 1);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Write,
        Happens(u16, MemberEvent),
        /// A disk is exchanged, or the others know what was on it.
        Empty(u16),
        Index(u16),
        /// Somebody copies what a member lacks, and says so now or after more steps.
        Copy(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Write),
            3 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::Lost)),
            3 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::Returned)),
            1 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::ReturnedWithout)),
            1 => (0u16..3).prop_map(Step::Empty),
            1 => (0u16..3).prop_map(Step::Index),
            3 => (0u16..3).prop_map(Step::Copy),
        ]
    }

    proptest! {
        /// Members that serve have every write that was acknowledged, whatever happens in which
        /// order; a write is acknowledged when all in `written` have it.
        #[test]
        fn who_serves_has_everything(steps in prop::collection::vec(step(), 0..80)) {
            let mut chain = new(ID, 0..3);
            let mut has: HashMap<u16, BTreeSet<u32>> = HashMap::new();
            let (mut acknowledged, mut next) = (BTreeSet::new(), 0);
            let mut copied: Option<(u16, u32)> = None;
            for step in steps {
                let before = chain.clone();
                match step {
                    Step::Write if chain.head().is_some() => {
                        next += 1;
                        for ost in chain.written() {
                            has.entry(ost).or_default().insert(next);
                        }
                        acknowledged.insert(next);
                    }
                    Step::Write => {}
                    Step::Happens(ost, event) => {
                        if let Some(changed) = after(&chain, ost, event) {
                            // All but the last that has everything may have lost it.
                            if event == MemberEvent::ReturnedWithout && before.head() != Some(ost)
                                && before.state_of(ost) != Some(LastServing) {
                                has.entry(ost).or_default().clear();
                            }
                            chain = changed;
                        }
                    }
                    Step::Empty(ost) => {
                        if let Ok(Some(changed)) = emptied(&chain, ost, false) {
                            has.entry(ost).or_default().clear();
                            chain = changed;
                            prop_assert!(chain.missing().any(|missing| missing == ost));
                        }
                    }
                    Step::Index(ost) => chain = indexed(&chain, ost).unwrap_or(chain),
                    Step::Copy(ost) => {
                        // News of an older version come now.
                        if let Some((copied, in_version)) = copied.take()
                            && in_version == chain.version
                            && let Some(changed) = after(&chain, copied, MemberEvent::Synced)
                        {
                            chain = changed;
                        }
                        if chain.state_of(ost) == Some(Syncing) && let Some(head) = chain.head() {
                            let all = has.entry(head).or_default().clone();
                            has.entry(ost).or_default().extend(all);
                            copied = Some((ost, chain.version));
                        }
                    }
                }
                let empty = BTreeSet::new();
                for ost in chain.readable() {
                    prop_assert_eq!(has.get(&ost).unwrap_or(&empty), &acknowledged);
                }
                let count = |state| chain.members.iter().filter(|m| m.state == state).count();
                prop_assert!(count(Serving) + count(LastServing) >= 1, "{:?}", chain);
                prop_assert!(count(Serving) == 0 || count(LastServing) == 0, "{:?}", chain);
                prop_assert!(count(Syncing) <= 1 && count(LastServing) <= 1, "{:?}", chain);
                prop_assert_eq!(chain.members.len(), 3);
                let is_new = u32::from(before.members != chain.members);
                prop_assert!(chain.version >= before.version + is_new);
            }
        }
    }
}
