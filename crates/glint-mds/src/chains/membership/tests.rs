//! Transitions one by one, and in any order.

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
        MemberEvent::NotReady,
    ];
    let next = |state, other| {
        let members = [(1, other), (2, state)];
        let members = members.map(|(ost, state)| Member { ost, state }).to_vec();
        let chain = Chain { id: ID, version: 7, members, founders: vec![1, 2], intact_since: 1 };
        events.map(|event| after(&chain, 2, event).map(|chain| chain.state_of(2).unwrap()))
    };
    let (serves, away) = (Serving, Offline);
    assert_eq!(next(Serving, serves), [Some(Offline), None, Some(Syncing), None, None]);
    assert_eq!(
        next(Syncing, serves),
        [Some(Offline), None, Some(Syncing), Some(Serving), Some(Offline)]
    );
    assert_eq!(next(Waiting, serves), [Some(Offline), None, None, None, Some(Offline)]);
    assert_eq!(next(Offline, serves), [None, Some(Syncing), Some(Syncing), None, None]);
    assert_eq!(next(Serving, away), [Some(LastServing), None, None, None, None]);
    assert_eq!(next(LastServing, away), [None, Some(Serving), Some(Serving), None, None]);
    assert_eq!(next(Offline, LastServing), [None, Some(Waiting), Some(Waiting), None, None]);
    assert_eq!(next(Emptied, serves), [None; 5]);
    assert_eq!(after(&new(ID, [1, 2]), 9, MemberEvent::Lost), None);
}

#[test]
fn the_last_copy_is_given_up_only_on_demand_and_one_that_is_heard_gives_all_that_it_has() {
    let lose = |chain: &Chain, ost| after(chain, ost, MemberEvent::Lost).unwrap();
    let all = new(ID, [1, 2, 3]);
    let emptied_one = emptied(&all, 1, false).unwrap().unwrap();
    assert_eq!(states(&emptied_one), [(2, Serving), (3, Serving), (1, Emptied)]);
    assert_eq!(emptied(&emptied_one, 1, false), Ok(None));
    let filled = indexed(&emptied_one, 1).unwrap();
    assert_eq!((filled.state_of(1), indexed(&filled, 1)), (Some(Offline), None));
    let none_serves = lose(&lose(&emptied_one, 2), 3);
    assert_eq!(indexed(&none_serves, 1), None, "it has nothing, and nobody has told it anything");

    let waits = lose(&lose(&lose(&all, 1), 2), 3);
    assert_eq!(states(&waits), [(3, LastServing), (2, Offline), (1, Offline)]);
    assert_eq!(emptied(&waits, 3, false), Err(LastCopy));
    let given_up = emptied(&waits, 3, true).unwrap().unwrap();
    assert_eq!(states(&given_up), [(2, Offline), (1, Offline), (3, Emptied)]);

    // Member 2 has most, and goes on if it is there or may be the next moment; a dead one never.
    let look = |chain: &Chain, seen: [Seen; 3]| {
        watched(chain, |ost| seen[usize::from(ost) - 1], |_| false)
    };
    let [here, gone, doubtful] = [Seen::Here, Seen::Lost, Seen::Doubtful];
    assert_eq!(look(&given_up, [gone, gone, here]), None);
    let goes_on = look(&given_up, [here, here, here]).unwrap();
    assert_eq!(states(&goes_on), [(2, Serving), (1, Emptied), (3, Emptied)]);
    assert_eq!(goes_on.intact_since, goes_on.version);
    let waits = look(&given_up, [here, doubtful, here]).unwrap();
    assert_eq!(states(&waits), [(2, Offline), (1, Waiting), (3, Emptied)]);
    let goes_on = look(&waits, [here, gone, here]).unwrap();
    assert_eq!(states(&goes_on), [(1, Serving), (2, Emptied), (3, Emptied)]);

    // Nobody has anything: that is asked for, too, and then one that is there begins with nothing.
    let last = lose(&goes_on, 1);
    assert_eq!(emptied(&last, 1, false), Err(LastCopy));
    let nothing = emptied(&last, 1, true).unwrap().unwrap();
    assert_eq!(states(&nothing), [(1, Emptied), (2, Emptied), (3, Emptied)]);
    assert_eq!(look(&nothing, [gone, gone, gone]), None);
    let begins = look(&nothing, [gone, gone, here]).unwrap();
    assert_eq!(states(&begins), [(3, Serving), (1, Emptied), (2, Emptied)]);
}

/// Nobody acknowledges anything while all are away, so each that served last has everything.
#[test]
fn members_that_were_lost_at_once_go_on_with_each_other() {
    let look = |chain: &Chain, seen: [Seen; 3], restarted: &[u16]| {
        watched(chain, |ost| seen[usize::from(ost) - 1], |ost| restarted.contains(&ost))
    };
    let [here, gone, doubtful] = [Seen::Here, Seen::Lost, Seen::Doubtful];
    let all = new(ID, [1, 2, 3]);
    assert_eq!(look(&all, [gone, gone, doubtful], &[]), None, "the third may be heard");
    let one_is_left = look(&all, [gone, gone, here], &[]).unwrap();
    assert_eq!(states(&one_is_left), [(3, Serving), (1, Offline), (2, Offline)]);
    let none = look(&all, [gone, gone, gone], &[]).unwrap();
    assert_eq!(states(&none), [(1, LastServing), (2, LastServing), (3, LastServing)]);
    assert_eq!(emptied(&none, 1, false).unwrap().unwrap().state_of(1), Some(Emptied));

    // Who has kept its memory goes first, with all others that have; else one of those that came.
    assert_eq!(look(&none, [here, gone, doubtful], &[1]), None);
    let intact = look(&none, [here, here, here], &[2]).unwrap();
    assert_eq!(states(&intact), [(1, Serving), (3, Serving), (2, Offline)]);
    assert_eq!(intact.intact_since, 1);
    let restarted = look(&none, [here, here, gone], &[1, 2]).unwrap();
    assert_eq!(states(&restarted), [(1, Serving), (2, Offline), (3, Offline)]);
    assert_eq!(restarted.intact_since, restarted.version);
    assert_eq!(after(&none, 2, MemberEvent::ReturnedWithout), None, "it is looked first");

    // One that starts again while nobody else is there has not been overtaken by anybody.
    let alone = restarted_alone(&all);
    assert_eq!(states(&alone), [(1, LastServing), (2, LastServing), (3, LastServing)]);
    let others_are_there = super::restarted(&all, 1, |_| here).unwrap();
    assert_eq!(states(&others_are_there), [(2, Serving), (3, Serving), (1, Offline)]);
}

/// The disk of one that is searched may turn out not to be readable.
#[test]
fn of_several_that_were_the_last_one_goes_on_that_was_searched() {
    let look =
        |chain: &Chain, seen: [Seen; 3]| watched(chain, |ost| seen[usize::from(ost) - 1], |_| true);
    let [here, searched, failed, gone] = [Seen::Here, Seen::Searched, Seen::Failed, Seen::Lost];
    let all = restarted_alone(&new(ID, [1, 2, 3]));
    assert_eq!(look(&all, [searched, searched, gone]), None, "until a search has ended");
    assert_eq!(look(&all, [failed, searched, gone]), None);
    assert_eq!(look(&all, [failed, gone, gone]), None, "another one may come back");
    let goes_on = look(&all, [failed, searched, here]).unwrap();
    assert_eq!(states(&goes_on), [(3, Serving), (1, Offline), (2, Offline)]);
    assert_eq!(look(&goes_on, [failed, searched, here]), None, "neither is synced");

    let single =
        after(&after(&new(ID, [1, 2]), 1, MemberEvent::Lost).unwrap(), 2, MemberEvent::Lost);
    let single = single.unwrap();
    for seen in [searched, failed] {
        let goes_on = look(&single, [here, seen, gone]).unwrap();
        assert_eq!(states(&goes_on), [(2, Serving), (1, Syncing)]);
    }
}

#[test]
fn one_that_is_searched_leaves_its_place_to_another() {
    let look = |chain: &Chain, seen: [Seen; 3]| {
        watched(chain, |ost| seen[usize::from(ost) - 1], |_| false)
    };
    let [here, searched] = [Seen::Here, Seen::Searched];
    let one_serves = after(&new(ID, [1, 2, 3]), 1, MemberEvent::Lost).unwrap();
    let one_serves = after(&one_serves, 2, MemberEvent::Lost).unwrap();
    let synced = look(&one_serves, [here, here, here]).unwrap();
    let first = synced.members.iter().find(|member| member.state == Syncing).unwrap().ost;
    let other = 3 - first;
    let mut seen = [here; 3];
    seen[usize::from(first) - 1] = searched;
    for left in [look(&synced, seen), after(&synced, first, MemberEvent::NotReady)] {
        let left = left.unwrap();
        assert_eq!((left.state_of(first), left.state_of(other)), (Some(Offline), Some(Syncing)));
        assert_eq!(look(&left, seen), None, "until its search has ended");
        assert_eq!(look(&left, [here; 3]).unwrap().state_of(first), Some(Waiting));
    }
}

fn restarted_alone(chain: &Chain) -> Chain {
    super::restarted(chain, 1, |_| Seen::Doubtful).unwrap()
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
    /// Somebody looks who is there.
    Watch([Seen; 3], u16),
    /// A server starts again, and somebody has looked who else is there.
    Restart(u16, [Seen; 3]),
    /// A disk is exchanged, or the others know what was on it.
    Empty(u16),
    Index(u16),
    /// Another OST takes the place of a member.
    Replace(u16),
    /// Somebody copies what a member lacks, and says so now or after more steps.
    Copy(u16),
}

fn seen() -> impl Strategy<Value = [Seen; 3]> {
    let one = prop_oneof![
        3 => Just(Seen::Here),
        1 => Just(Seen::Suspect),
        1 => Just(Seen::Searched),
        1 => Just(Seen::Failed),
        2 => Just(Seen::Doubtful),
        3 => Just(Seen::Lost),
    ];
    [one.clone(), one.clone(), one]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Write),
        3 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::Lost)),
        3 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::Returned)),
        1 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::ReturnedWithout)),
        1 => (0u16..3).prop_map(|ost| Step::Happens(ost, MemberEvent::NotReady)),
        4 => (seen(), 0u16..3).prop_map(|(seen, restarted)| Step::Watch(seen, restarted)),
        2 => (0u16..3, seen()).prop_map(|(ost, seen)| Step::Restart(ost, seen)),
        1 => (0u16..3).prop_map(Step::Empty),
        1 => (0u16..3).prop_map(Step::Index),
        1 => (0u16..3).prop_map(Step::Replace),
        3 => (0u16..3).prop_map(Step::Copy),
    ]
}

proptest! {
    /// Members that serve have every write that was acknowledged, whatever happens in which
    /// order; a write is acknowledged when all in `written` have it. Steps name places: who takes one
    /// has the next number there.
    #[test]
    fn who_serves_has_everything(steps in prop::collection::vec(step(), 0..80)) {
        let mut chain = new(ID, 0..3);
        let mut has: HashMap<u16, BTreeSet<u32>> = HashMap::new();
        let (mut acknowledged, mut next) = (BTreeSet::new(), 0);
        let mut copied: Option<(u16, u32)> = None;
        for step in steps {
            let before = chain.clone();
            let at = |place: u16| before.founders[usize::from(place)];
            match step {
                Step::Write if chain.head().is_some() => {
                    next += 1;
                    for ost in chain.written() {
                        has.entry(ost).or_default().insert(next);
                    }
                    acknowledged.insert(next);
                }
                Step::Write => {}
                Step::Happens(place, event) => {
                    let ost = at(place);
                    if let Some(changed) = after(&chain, ost, event) {
                        // All but the last that has everything may have lost it.
                        if event == MemberEvent::ReturnedWithout && before.head() != Some(ost)
                            && before.state_of(ost) != Some(LastServing) {
                            has.entry(ost).or_default().clear();
                        }
                        chain = changed;
                    }
                }
                Step::Watch(seen, restarted) => {
                    let look = |ost: u16| seen[usize::from(ost % 3)];
                    chain = watched(&chain, look, |ost| ost % 3 == restarted).unwrap_or(chain);
                }
                Step::Restart(place, seen) => {
                    let ost = at(place);
                    let look = |other: u16| seen[usize::from(other % 3)];
                    chain = restarted(&chain, ost, look).unwrap_or(chain);
                    if !matches!(chain.state_of(ost), Some(Serving | LastServing)) {
                        has.entry(ost).or_default().clear();
                    }
                    let event = MemberEvent::ReturnedWithout;
                    chain = after(&chain, ost, event).unwrap_or(chain);
                }
                Step::Empty(place) => {
                    let ost = at(place);
                    if let Ok(Some(changed)) = emptied(&chain, ost, false) {
                        has.entry(ost).or_default().clear();
                        chain = changed;
                        prop_assert!(chain.missing().any(|missing| missing == ost));
                    }
                }
                Step::Index(place) => chain = indexed(&chain, at(place)).unwrap_or(chain),
                Step::Replace(place) => {
                    let (gone, ost) = (at(place), at(place) + 3);
                    if let Some(changed) = replaced(&chain, gone, ost) {
                        chain = changed;
                        prop_assert_eq!(chain.state_of(ost), Some(Emptied));
                        prop_assert_eq!(chain.state_of(gone), None);
                    }
                }
                Step::Copy(place) => {
                    let ost = at(place);
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
            for ost in was_last(&chain) {
                prop_assert_eq!(has.get(&ost).unwrap_or(&empty), &acknowledged);
            }
            let count = |state| chain.members.iter().filter(|m| m.state == state).count();
            prop_assert!(count(Serving) + count(LastServing) >= 1, "{:?}", chain);
            prop_assert!(count(Serving) == 0 || count(LastServing) == 0, "{:?}", chain);
            prop_assert!(count(Syncing) <= 1, "{:?}", chain);
            prop_assert_eq!(chain.members.len(), 3);
            let is_new = u32::from(before.members != chain.members);
            prop_assert!(chain.version >= before.version + is_new);
        }
    }
}
