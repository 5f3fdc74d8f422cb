//! What is said of objects, and what is not.

use super::*;
use MemberState::{Serving, Syncing};
use glint_proto::chain::{ChainId, Member};
use glint_proto::{Errno, Ino};

const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };
const IT: &str = "object 0000000000000007.8000 of file 0x7";
const NONE: [String; 0] = [];

fn copies(version: u32, members: &[(u16, MemberState)]) -> ObjectUse {
    let chain = ChainId { copies: 2, index: 1 };
    let members = members.iter().map(|(ost, state)| Member { ost: *ost, state: *state });
    ObjectUse::Copies { chain, version, members: members.collect() }
}

/// Two copies, or three, on members that all serve.
fn two() -> ObjectUse {
    copies(3, &[(2, Serving), (1, Serving)])
}

fn three() -> ObjectUse {
    copies(3, &[(2, Serving), (0, Serving), (1, Serving)])
}

fn known(used: ObjectUse, end: Option<u64>) -> UsedObject {
    UsedObject { object: OBJECT, used, end }
}

fn doubt(used: ObjectUse, facts: impl IntoIterator<Item = (u16, StoredFact)>) -> ObjectDoubt {
    ObjectDoubt { known: known(used, None), facts: facts.into_iter().collect() }
}

fn unsealed(sizes: &[(u16, FsResult<u64>)]) -> Vec<(u16, StoredFact)> {
    let fact = |size| StoredFact { object: OBJECT, size, seal: StoredSeal::None };
    sizes.iter().map(|(ost, size)| (*ost, fact(*size))).collect()
}

/// Copies of 9 bytes with these digests.
fn sealed(digests: &[(u16, u32)]) -> Vec<(u16, StoredFact)> {
    let seal = |digest| StoredSeal::Whole { size: 9, block_log2: 16, digest };
    let fact = |digest| StoredFact { object: OBJECT, size: Ok(9), seal: seal(digest) };
    digests.iter().map(|(ost, digest)| (*ost, fact(*digest))).collect()
}

fn texts(doubt: &ObjectDoubt, asked: &[u16], outcome: Outcome) -> Vec<String> {
    let found = doubt.findings(&asked.iter().copied().collect());
    assert!(found.iter().all(|finding| finding.outcome == outcome), "{outcome:?}");
    found.into_iter().map(|finding| finding.what).collect()
}

/// What is found, and not put right by `--repair`, if OSTs 0 to 2 are asked.
fn left_of(used: ObjectUse, facts: Vec<(u16, StoredFact)>) -> Vec<String> {
    texts(&doubt(used, facts), &[0, 1, 2], Outcome::Left)
}

/// What is found, and put right.
fn repairable(used: ObjectUse, facts: Vec<(u16, StoredFact)>) -> Vec<String> {
    texts(&doubt(used, facts), &[0, 1, 2], Outcome::Repairable)
}

#[test]
fn all_members_of_a_whole_chain_have_a_copy_of_one_size() {
    assert_eq!(left_of(two(), unsealed(&[(1, Ok(5)), (2, Ok(5))])), NONE);
    assert_eq!(left_of(two(), unsealed(&[(1, Ok(0))])), NONE, "nothing is lost");
    let missing = "OST 1 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 2 has";
    assert_eq!(repairable(two(), unsealed(&[(2, Ok(5))])), [missing]);
    let head = "OST 2 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 1 has";
    assert_eq!(repairable(two(), unsealed(&[(1, Ok(5))])), [head]);
    let sizes =
        format!("{IT} has 5 bytes on OST 2, 4 bytes on OST 1; nothing says which one is right");
    assert_eq!(left_of(two(), unsealed(&[(1, Ok(4)), (2, Ok(5))])), [sizes]);
    // What is left on one that is no member says nothing.
    assert_eq!(left_of(two(), unsealed(&[(0, Ok(9)), (1, Ok(5)), (2, Ok(5))])), NONE);
    let unread = left_of(two(), unsealed(&[(1, Err(Errno::EIO)), (2, Ok(5))]));
    assert!(unread.len() == 1 && unread[0].contains("on OST 1: "), "{unread:?}");
}

#[test]
fn who_lags_behind_or_was_not_asked_lacks_nothing() {
    assert_eq!(left_of(copies(3, &[(2, Serving), (1, Syncing)]), sealed(&[(2, 5)])), NONE);
    let lags = copies(3, &[(2, Serving), (1, Syncing)]);
    assert_eq!(left_of(lags, sealed(&[(2, 5), (1, 6)])), NONE);
    assert_eq!(left_of(copies(3, &[(2, Serving), (3, Serving)]), sealed(&[(2, 5)])), NONE);
    assert_eq!(left_of(copies(3, &[(2, Serving), (3, Serving)]), Vec::new()), NONE);
}

#[test]
fn a_copy_that_is_outvoted_is_named_and_without_a_majority_the_object_is() {
    assert_eq!(left_of(three(), sealed(&[(0, 5), (1, 5), (2, 5)])), NONE);
    let found = left_of(three(), sealed(&[(0, 5), (1, 6), (2, 5)]));
    let named = format!("{IT} on OST 1 differs from its copies on OST 2 and OST 0: ");
    assert!(found.len() == 1 && found[0].starts_with(&named), "{found:?}");
    let undecided =
        format!("{IT} differs between OST 2, OST 0 and OST 1; nothing says which one is right");
    assert_eq!(left_of(three(), sealed(&[(0, 5), (1, 6), (2, 7)])), [undecided]);
    let undecided =
        format!("{IT} differs between OST 2 and OST 1; nothing says which one is right");
    assert_eq!(left_of(two(), sealed(&[(1, 6), (2, 7)])), [undecided]);

    let facts = [sealed(&[(0, 5), (2, 5)]), unsealed(&[(1, Ok(4))])].concat();
    let found = left_of(three(), facts);
    let named = format!("{IT} on OST 1 has 4 bytes, unlike its copies on OST 2 and OST 0: ");
    assert!(found.len() == 1 && found[0].starts_with(&named), "{found:?}");
}

#[test]
fn the_longest_copy_is_never_outvoted_nor_any_by_copies_without_seals() {
    let undecided = |shown: &str| [format!("{IT} has {shown}; nothing says which one is right")];
    let found = left_of(three(), unsealed(&[(0, Ok(5)), (1, Ok(4)), (2, Ok(5))]));
    assert_eq!(found, undecided("5 bytes on OST 2, 5 bytes on OST 0, 4 bytes on OST 1"));
    let longer = [sealed(&[(0, 5), (2, 5)]), unsealed(&[(1, Ok(10))])].concat();
    let found = left_of(three(), longer);
    assert_eq!(found, undecided("9 bytes on OST 2, 9 bytes on OST 0, 10 bytes on OST 1"));
}

#[test]
fn copies_without_the_end_of_their_file_have_no_vote() {
    let sealed_at_4 = |ost: u16| {
        let seal = StoredSeal::Whole { size: 4, block_log2: 16, digest: 1 };
        (ost, StoredFact { object: OBJECT, size: Ok(4), seal })
    };
    let short = [unsealed(&[(0, Ok(4)), (2, Ok(4))]), vec![sealed_at_4(0), sealed_at_4(2)]];
    let lost = |ost: u16, others: &str| {
        format!("{IT} on OST {ost} has lost its end: 4 of 9 bytes are left; {others}")
    };
    for short in short {
        for whole in [unsealed(&[(1, Ok(9))]), sealed(&[(1, 5)])] {
            let facts = [short.clone(), whole].concat();
            let copies = ObjectDoubt { known: known(three(), Some(9)), ..doubt(three(), facts) };
            let how = format!("OST 1 has all of it: {MOVE_IT}");
            let found = texts(&copies, &[0, 1, 2], Outcome::Left);
            assert_eq!(found, [lost(2, &how), lost(0, &how)]);
            // Those that were asked have lost it, and the third one may have it.
            let found = texts(&copies, &[0, 2], Outcome::Left);
            let how = "OST 1 was not asked";
            assert_eq!(found, [lost(2, how), lost(0, how)]);
        }
        let copies = [short[1], sealed(&[(1, 5)])[0]];
        let copies = ObjectDoubt { known: known(two(), Some(9)), ..doubt(two(), copies) };
        let how = format!("OST 1 has all of it: {MOVE_IT}");
        assert_eq!(texts(&copies, &[0, 1, 2], Outcome::Left), [lost(2, &how)]);
        // `--repair` would find two that differ.
        let mut cut = sealed(&[(0, 5)])[0];
        cut.1.size = Ok(3);
        let copies = [short[1], sealed(&[(1, 5)])[0], cut];
        let copies = ObjectDoubt { known: known(three(), Some(9)), ..doubt(three(), copies) };
        let found = texts(&copies, &[0, 1, 2], Outcome::Left);
        assert!(found.len() == 2 && found[1].ends_with("; OST 1 has its copy"), "{found:?}");
    }
}

#[test]
fn nothing_is_copied_while_the_copies_that_are_left_differ() {
    let found = left_of(three(), sealed(&[(0, 5), (2, 6)]));
    let lacks = "OST 1 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 2 has; \
        its other copies differ";
    let differs = format!("{IT} differs between OST 2 and OST 0; nothing says which one is right");
    assert_eq!(found, [differs.as_str(), lacks]);
    let found = left_of(three(), unsealed(&[(0, Ok(5)), (2, Ok(6))]));
    assert!(found.len() == 2 && found[1].ends_with(lacks), "{found:?}");
    let mut facts = sealed(&[(0, 5), (1, 5), (2, 6)]);
    facts[1].1.seal = StoredSeal::Damaged;
    let damaged = format!("{IT} on OST 1 is damaged; its other copies differ");
    assert_eq!(left_of(three(), facts), [differs, damaged]);
    assert!(!MOVE_IT.contains("remove it") && MOVE_IT.contains("before you delete"));
}

#[test]
fn two_of_three_are_no_majority_and_the_third_is_said() {
    let differ = doubt(three(), sealed(&[(1, 6), (2, 7)]));
    let start = format!("{IT} differs between OST 2 and OST 1; nothing says which one is right");
    let not_asked = format!("{start}; OST 0 was not asked");
    assert_eq!(texts(&differ, &[1, 2], Outcome::Left), [not_asked]);
    let facts = [sealed(&[(1, 6), (2, 7)]), unsealed(&[(0, Ok(9))])].concat();
    let no_seal = format!("{start}; the copy on OST 0 has no checksums yet");
    assert_eq!(left_of(three(), facts), [no_seal]);
    // Of two that agree none is wrong, whatever the third has.
    assert_eq!(texts(&doubt(three(), sealed(&[(0, 5), (2, 5)])), &[0, 2], Outcome::Left), NONE);
    let lacks = repairable(three(), sealed(&[(0, 5), (2, 5)]));
    assert!(lacks.len() == 1 && lacks[0].starts_with("OST 1 lacks its copy"), "{lacks:?}");
}

#[test]
fn contents_are_compared_where_there_are_seals() {
    let all = BTreeSet::from([0, 1, 2]);
    let facts = [sealed(&[(2, 5)]), unsealed(&[(1, Ok(9))])].concat();
    let one = doubt(two(), facts);
    assert!(one.findings(&all).is_empty() && one.is_unsealed(&all));
    assert!(!one.is_unsealed(&BTreeSet::from([1])), "there is nothing to compare it with");
    assert!(!doubt(two(), sealed(&[(1, 5), (2, 5)])).is_unsealed(&all));
    assert!(!doubt(two(), unsealed(&[(1, Ok(0)), (2, Ok(0))])).is_unsealed(&all));
    assert!(!doubt(ObjectUse::Alone(1), unsealed(&[(1, Ok(9))])).is_unsealed(&all));
    // Another version has sealed it, in other blocks.
    let mut facts = sealed(&[(1, 5), (2, 6)]);
    facts[1].1.seal = StoredSeal::Whole { size: 9, block_log2: 17, digest: 6 };
    let one = doubt(two(), facts);
    assert!(one.findings(&all).is_empty() && one.is_unsealed(&all));
}

#[test]
fn a_lost_end_is_copied_from_another_and_nothing_brings_it_back_without() {
    let mut facts = sealed(&[(1, 5), (2, 5)]);
    facts[0].1.size = Ok(4);
    let lost = format!("{IT} on OST 1 has lost its end: 4 of 9 bytes are left");
    assert_eq!(repairable(two(), facts.clone()), [format!("{lost}; OST 2 has its copy")]);
    let alone = format!("{lost}; {RESTORE_IT}");
    let found = doubt(ObjectUse::Alone(1), facts.clone());
    assert_eq!(texts(&found, &[0, 1, 2], Outcome::EndLost), [alone]);
    // What is left of it on another OST says nothing, nor what is being moved or destroyed.
    assert_eq!(left_of(ObjectUse::Alone(2), facts.clone()), NONE);
    assert_eq!(left_of(ObjectUse::Unknown, facts.clone()), NONE);

    // Nothing is copied from one that is shorter: it would be called sound.
    let shorter = unsealed(&[(2, Ok(8))])[0];
    assert_eq!(
        left_of(two(), vec![facts[0], shorter]),
        [format!("{lost}; no other copy is right")]
    );
    let missing = ObjectDoubt { known: known(two(), Some(9)), ..doubt(two(), [shorter]) };
    assert_eq!(missing.findings(&BTreeSet::from([1, 2]))[0].outcome, Outcome::EndLost);
    facts[1].1.seal = StoredSeal::Damaged;
    let found = left_of(two(), facts.clone());
    let damaged = format!("{IT} on OST 2 is damaged; no other copy is right");
    assert_eq!(found, [damaged, format!("{lost}; no other copy is right")]);
    let found = texts(&doubt(two(), facts[..1].to_vec()), &[1], Outcome::Left);
    assert_eq!(found, [format!("{lost}; OST 2 was not asked")]);
}

#[test]
fn objects_of_nobody_are_named_where_they_are() {
    let lost = repairable(ObjectUse::Nobody, unsealed(&[(0, Ok(5)), (2, Ok(0))]));
    assert!(lost.len() == 2 && lost[1].ends_with("on OST 2 belongs to no file"), "{lost:?}");
    for used in [ObjectUse::Unknown, ObjectUse::Alone(0), ObjectUse::Alone(1)] {
        assert_eq!(left_of(used, unsealed(&[(0, Ok(5))])), NONE);
    }
}

#[test]
fn the_end_of_a_file_is_missed_where_it_is_to_be() {
    let ends = |used: ObjectUse, end: Option<u64>, sizes: &[(u16, FsResult<u64>)]| {
        let doubt = ObjectDoubt { known: known(used, end), ..doubt(two(), unsealed(sizes)) };
        (texts(&doubt, &[0, 1, 2], Outcome::EndLost), doubt.has_end())
    };
    let found = |what: &str| vec![format!("{IT} {what}; {RESTORE_IT}")];
    let alone = || ObjectUse::Alone(1);
    let missing = found("is missing on OST 1: 9 bytes, to the file's end");
    assert_eq!(ends(alone(), Some(9), &[]), (missing.clone(), false));
    assert_eq!(ends(alone(), Some(9), &[(2, Ok(9))]), (missing, false), "it is elsewhere");
    let cut = found("on OST 1 has lost its end: 4 of 9 bytes are left");
    assert_eq!(ends(alone(), Some(9), &[(1, Ok(4))]), (cut, true));
    assert_eq!(ends(alone(), Some(9), &[(1, Ok(9))]), (Vec::new(), true));
    // Another one has it, or it is being written.
    assert_eq!(ends(alone(), None, &[(1, Ok(4))]), (Vec::new(), false));
    assert_eq!(ends(alone(), None, &[]), (Vec::new(), false));
    let missing = found("is missing on OST 2 and OST 1: 9 bytes, to the file's end");
    assert_eq!(ends(two(), Some(9), &[]), (missing, false));
    let cut = found("on OST 2 and OST 1 has lost its end: 4 of 9 bytes are left");
    assert_eq!(ends(two(), Some(9), &[(1, Ok(4)), (2, Ok(4))]), (cut, true));
    assert_eq!(ends(two(), Some(9), &[(1, Ok(9)), (2, Ok(9))]), (Vec::new(), true));
    // Somebody may have it, or has lost nothing that others have.
    assert_eq!(ends(copies(3, &[(2, Serving), (1, Syncing)]), Some(9), &[]), (Vec::new(), false));
    assert_eq!(ends(copies(3, &[(2, Serving), (3, Serving)]), Some(9), &[]), (Vec::new(), false));
    assert_eq!(ends(ObjectUse::Unknown, Some(9), &[]), (Vec::new(), false));
    let not_asked = ObjectDoubt { known: known(alone(), Some(9)), facts: CopyFacts::new() };
    assert_eq!(texts(&not_asked, &[0], Outcome::Left), NONE);
}

#[test]
fn what_has_changed_meanwhile_is_not_told() {
    let (used, later) =
        (known(two(), Some(9)), known(copies(4, &[(2, Serving), (1, Serving)]), Some(9)));
    let doubt = ObjectDoubt { known: used.clone(), ..doubt(two(), unsealed(&[(2, Ok(5))])) };
    let same = doubt.facts.clone();
    assert_eq!(doubt.again(&used, &same, &used), Some(doubt.clone()));
    assert!(doubt.again(&later, &same, &later).is_none(), "the chain was changed");
    assert!(doubt.again(&used, &same, &later).is_none(), "while it was looked at");
    let removed = known(ObjectUse::Nobody, None);
    assert!(doubt.again(&removed, &same, &removed).is_none(), "removed");
    for sizes in [&[(1, Ok(5)), (2, Ok(5))][..], &[(2, Ok(6))], &[]] {
        let facts: CopyFacts = unsealed(sizes).into_iter().collect();
        assert!(doubt.again(&used, &facts, &used).is_none(), "{sizes:?}");
    }
    let mut facts = same.clone();
    facts
        .entry(2)
        .and_modify(|fact| fact.seal = StoredSeal::Whole { size: 5, block_log2: 16, digest: 1 });
    assert!(doubt.again(&used, &facts, &used).is_none(), "it was sealed");
    // Of the end of a file that somebody opens nothing is said, and of its copies all the same.
    let opened = known(two(), None);
    let again = doubt.again(&used, &same, &opened).unwrap();
    assert_eq!((&again.known, &again.facts), (&opened, &same));
}

#[test]
fn no_end_is_missed_where_clients_may_send_it_again() {
    let mut doubt = ObjectDoubt { known: known(two(), Some(9)), ..doubt(two(), []) };
    let (all, one) = (BTreeSet::from([0, 1, 2]), BTreeSet::from([2]));
    doubt.keep_end(&all);
    assert_eq!(doubt.findings(&all).len(), 1);
    doubt.keep_end(&one);
    assert!(doubt.findings(&all).is_empty() && doubt.known.end.is_none());
}

#[test]
fn what_is_not_heard_of_any_more_lacks_nothing() {
    let doubt = doubt(two(), unsealed(&[(2, Ok(5))]));
    assert_eq!(doubt.findings(&BTreeSet::from([1, 2])).len(), 1);
    assert!(doubt.findings(&BTreeSet::from([2])).is_empty());
}
