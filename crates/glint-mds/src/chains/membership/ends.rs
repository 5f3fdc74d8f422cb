//! No state of a chain is a dead end: from every row that can be reached, whichever members live, a
//! member serves in the end, by itself or after the commands that docs/replication.md names.

use super::*;
use MemberState::{Emptied, LastServing, Serving};
use std::collections::{BTreeMap, BTreeSet};

const EVENTS: [MemberEvent; 5] = [
    MemberEvent::Lost,
    MemberEvent::Returned,
    MemberEvent::ReturnedWithout,
    MemberEvent::Synced,
    MemberEvent::NotReady,
];
const SEEN: [Seen; 6] =
    [Seen::Here, Seen::Suspect, Seen::Searched, Seen::Failed, Seen::Doubtful, Seen::Lost];

fn states(chain: &Chain) -> Vec<(u16, MemberState)> {
    chain.members.iter().map(|member| (member.ost, member.state)).collect()
}

/// All ways to see so many servers.
fn all_sights(copies: u8) -> Vec<Vec<Seen>> {
    (0..copies).fold(vec![Vec::new()], |all, _| {
        let longer = |sight: &Vec<Seen>| SEEN.map(|seen| [sight.as_slice(), &[seen]].concat());
        all.iter().flat_map(longer).collect()
    })
}

/// Rows after anything that may happen to a row; those behind `true` after an administrator's
/// command that gives up the last copy.
fn next(chain: &Chain, sights: &[Vec<Seen>]) -> Vec<(bool, Chain)> {
    let mut found = Vec::new();
    for ost in chain.founders.iter().copied() {
        found.extend(EVENTS.iter().filter_map(|event| after(chain, ost, *event)));
        found.extend(indexed(chain, ost));
        found.extend(emptied(chain, ost, false).ok().flatten());
    }
    for sight in sights {
        let seen = |ost: u16| sight[usize::from(ost)];
        found.extend(watched(chain, seen, |_| false));
        found.extend(watched(chain, seen, |_| true));
        found.extend(chain.founders.iter().filter_map(|ost| restarted(chain, *ost, seen)));
    }
    let lost = chain.founders.iter().filter_map(|ost| emptied(chain, *ost, true).ok().flatten());
    let given_up = |row: Chain| (has_everything(&row).is_empty(), row);
    found.into_iter().map(|row| (false, row)).chain(lost.map(given_up)).collect()
}

/// Members that have every write that was acknowledged.
fn has_everything(chain: &Chain) -> BTreeSet<u16> {
    chain.readable().chain(was_last(chain)).collect()
}

/// Every row that can be reached, but for its version.
fn reachable(copies: u8) -> Vec<Chain> {
    let sights = all_sights(copies);
    let mut known = BTreeMap::new();
    let mut todo = vec![new(ChainId { copies, index: 0 }, 0..u16::from(copies))];
    while let Some(chain) = todo.pop() {
        let key = format!("{:?}", states(&chain));
        if known.contains_key(&key) {
            continue;
        }
        for (is_command, row) in next(&chain, &sights) {
            assert_eq!(row.version, chain.version + 1);
            let (before, now) = (has_everything(&chain), has_everything(&row));
            assert!(is_command || before.is_empty() || !now.is_empty(), "{chain:?} {row:?}");
            todo.push(row);
        }
        known.insert(key, chain);
    }
    known.into_values().collect()
}

/// The row when nothing happens any more: some members live, the others never come back.
fn at_rest(chain: &Chain, alive: &BTreeSet<u16>) -> Chain {
    let seen = |ost| if alive.contains(&ost) { Seen::Here } else { Seen::Lost };
    let mut chain = chain.clone();
    while let Some(row) = watched(&chain, seen, |_| true) {
        chain = row;
    }
    chain
}

/// All sets of members but the empty one.
fn all_but_none(copies: u8) -> Vec<BTreeSet<u16>> {
    let of_bits = |bits: u16| (0..u16::from(copies)).filter(|ost| bits & 1 << ost != 0).collect();
    (1..1 << copies).map(of_bits).collect()
}

/// Class of a member in the table of the documents.
fn letter(state: MemberState) -> &'static str {
    match state {
        Serving | LastServing => "S",
        Emptied => "e",
        _ => "b",
    }
}

/// State of a chain as the documents write it, those that are lost in parentheses.
fn written(chain: &Chain, alive: &BTreeSet<u16>) -> String {
    let word = |member: &Member| match alive.contains(&member.ost) {
        true => letter(member.state).to_owned(),
        false => format!("({})", letter(member.state)),
    };
    let mut words: Vec<String> = chain.members.iter().map(word).collect();
    words.sort_by_key(|word| {
        ["S", "(S)", "b", "(b)", "e", "(e)"].iter().position(|one| one == word)
    });
    words.join(" ")
}

/// Words in backquotes.
fn quoted(cell: &str) -> BTreeSet<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A row of the table of the documents.
struct End {
    states: BTreeSet<&'static str>,
    /// Members that are given up: `(S)`, `(b)`.
    given_up: BTreeSet<&'static str>,
    loses: &'static str,
}

/// The table of the documents.
fn ends() -> Vec<End> {
    let text = include_str!("../../../../../docs/replication.md");
    let table = text.split("### No state is a dead end").nth(1).unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, two, three, how, loses, _] = cells[..] else { panic!("{line}") };
        let mut given_up = quoted(how);
        assert_eq!(given_up.remove("glint ost lost"), how != "by itself", "{line}");
        End { states: &quoted(two) | &quoted(three), given_up, loses }
    };
    rows.map_while(|line| line.contains('`').then(|| row(line))).collect()
}

/// So no row becomes a dead end by it, and nothing more is lost than with the emptied member.
#[test]
fn who_takes_a_place_is_what_the_emptied_member_was() {
    for copies in [2, 3] {
        let other = u16::from(copies);
        for (row, gone) in
            reachable(copies).iter().flat_map(|row| (0..other).map(move |ost| (row, ost)))
        {
            let Some(now) = replaced(row, gone, other) else {
                assert!(row.state_of(gone) != Some(Emptied) || row.head().is_none(), "{row:?}");
                continue;
            };
            let renamed = |ost: u16| if ost == gone { other } else { ost };
            let mut expected = row.clone();
            expected.members.iter_mut().for_each(|member| member.ost = renamed(member.ost));
            expected.founders.iter_mut().for_each(|ost| *ost = renamed(*ost));
            expected.version += 1;
            assert!(now == expected && now.is_valid(), "{row:?} {now:?}");
            assert_eq!(replaced(&now, gone, other), None, "the place is taken");
        }
    }
}

/// From every row, whoever lives: what the documents say is what happens.
#[test]
fn each_state_of_two_and_three_copies_ends_as_it_is_written() {
    let ends = ends();
    let mut seen = BTreeSet::new();
    for copies in [2, 3] {
        let rows = reachable(copies);
        for (row, alive) in rows
            .iter()
            .flat_map(|row| all_but_none(copies).into_iter().map(move |alive| (row, alive)))
        {
            let state = written(row, &alive);
            let mut meant = ends.iter().filter(|end| end.states.contains(&*state));
            let Some(end) = meant.next() else { panic!("{state} is not in the table") };
            assert!(meant.next().is_none(), "{state} is there twice");
            let serves = |row: &Chain| row.head().is_some_and(|head| alive.contains(&head));
            let mut now = at_rest(row, &alive);
            assert_eq!(serves(&now), end.given_up.is_empty(), "{state}: {row:?}");
            let mut losses = Vec::new();
            for Member { ost, state } in row.members.clone() {
                if !alive.contains(&ost) && end.given_up.contains(&*format!("({})", letter(state)))
                {
                    losses.extend(loss(&now, ost, |other| alive.contains(&other), |_| false));
                    now = emptied(&now, ost, true).unwrap().unwrap_or(now);
                }
            }
            now = at_rest(&now, &alive);
            assert!(serves(&now), "{state}: {row:?} {now:?}");
            let worst = match losses.iter().map(|loss| loss.loss).max() {
                None | Some(Loss::Nothing) => "nothing",
                Some(Loss::Changes) => "changes",
                Some(Loss::Everything) => "everything",
            };
            let expected = end.loses.split_whitespace().next().unwrap();
            assert_eq!(worst, expected, "{state}: {row:?}");
            // By a rule nobody is chosen who lacks something.
            let had = has_everything(row);
            let head = now.head().unwrap();
            assert!(!end.given_up.is_empty() || had.is_empty() || had.contains(&head), "{row:?}");
            seen.insert(state);
        }
    }
    let written: BTreeSet<&str> = ends.iter().flat_map(|end| end.states.clone()).collect();
    let absent: Vec<&&str> = written.iter().filter(|state| !seen.contains(**state)).collect();
    assert!(absent.is_empty(), "the table has states that there are not: {absent:?}");
}
