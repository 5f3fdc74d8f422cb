//! An object that seems wrong until it was looked at again.

use crate::cmd::fsck::{Finding, Outcome};
use glint_proto::chain::{Member, MemberState};
use glint_proto::message::{ObjectUse, StoredFact, StoredSeal};
use glint_proto::{FsResult, ObjectId};
use std::collections::{BTreeMap, BTreeSet};

/// Which OSTs have an object, and what they say of it.
pub(super) type StoredCopies = BTreeMap<u16, StoredFact>;

/// An object, and where it is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectDoubt {
    pub(super) object: ObjectId,
    pub(super) used: ObjectUse,
    pub(super) copies: StoredCopies,
}

/// Whether copies of one size that say this have different contents.
fn differ(one: StoredSeal, other: StoredSeal) -> bool {
    use StoredSeal::Sealed;
    match (one, other) {
        (Sealed { block_log2, digest }, Sealed { block_log2: its, digest: other }) => {
            block_log2 == its && digest != other
        }
        _ => false,
    }
}

fn sizes(copies: &StoredCopies) -> impl Iterator<Item = (u16, FsResult<u64>)> {
    copies.iter().map(|(ost, fact)| (*ost, fact.size))
}

impl ObjectDoubt {
    /// What is wrong, if only these OSTs were asked.
    pub(super) fn findings(&self, asked: &BTreeSet<u16>) -> Vec<Finding> {
        let ObjectDoubt { object, used, copies } = self;
        let mut found = Vec::new();
        for (ost, size) in sizes(copies) {
            if let Err(errno) = size {
                let what = format!("object {object} on OST {ost}: {errno}");
                found.push(Finding { what, outcome: Outcome::Left });
            }
        }
        match used {
            ObjectUse::Nobody => found.extend(copies.keys().map(|ost| {
                let what = format!("object {object} on OST {ost} belongs to no file");
                Finding { what, outcome: Outcome::Repairable }
            })),
            ObjectUse::Copies { members, .. }
                if members.iter().all(|member| member.state == MemberState::Serving) =>
            {
                self.compare(members, asked, &mut found);
            }
            ObjectUse::Alone(ost) => {
                if copies.get(ost).is_some_and(|fact| fact.seal == StoredSeal::Damaged) {
                    let ino = object.ino;
                    let what = format!(
                        "object {object} of file {ino} is damaged on OST {ost}: restore the file"
                    );
                    found.push(Finding { what, outcome: Outcome::Left });
                }
            }
            ObjectUse::Copies { .. } | ObjectUse::Unknown => {}
        }
        found
    }

    /// Compares the copies of members that all serve, as far as they were asked, with each other.
    fn compare(&self, members: &[Member], asked: &BTreeSet<u16>, found: &mut Vec<Finding>) {
        let ObjectDoubt { object, copies, .. } = self;
        let ino = object.ino;
        let asked = members.iter().map(|member| member.ost).filter(|ost| asked.contains(ost));
        let asked: Vec<u16> = asked.collect();
        let has = |ost: &u16| {
            let fact = copies.get(ost)?;
            Some((*ost, fact.size.ok()?, fact.seal))
        };
        let all: Vec<(u16, u64, StoredSeal)> = asked.iter().filter_map(has).collect();
        let undamaged = all.iter().find(|(.., seal)| *seal != StoredSeal::Damaged);
        // The head, unless that has none.
        let Some(&(right, bytes, _)) = undamaged.or(all.first()) else { return };
        let mut find = |what, outcome| found.push(Finding { what, outcome });
        for ost in asked.iter().filter(|ost| **ost != right && !copies.contains_key(*ost)) {
            if bytes > 0 {
                let what = format!(
                    "OST {ost} lacks its copy of file {ino}: object {object}, which OST {right} has"
                );
                find(what, Outcome::Repairable);
            }
        }
        // Copies of which something else is known may be changing.
        let at_rest = all.iter().find(|(.., seal)| matches!(seal, StoredSeal::Sealed { .. }));
        for &(ost, size, seal) in &all {
            if seal == StoredSeal::Damaged {
                let (how, outcome) = match undamaged {
                    Some(_) => {
                        ("; `glint scrub` has it copied from another one", Outcome::Repairable)
                    }
                    None => (", and no other copy is right: restore the file", Outcome::Left),
                };
                find(
                    format!("object {object} of file {ino} is damaged on OST {ost}{how}"),
                    outcome,
                );
            } else if size != bytes {
                let what = format!(
                    "object {object} of file {ino} has {size} bytes on OST {ost}, and {bytes} on \
                     OST {right}"
                );
                find(what, Outcome::Left);
            } else if let Some((first, its, sealed)) = at_rest
                && *its == size
                && differ(*sealed, seal)
            {
                let what = format!(
                    "object {object} of file {ino} is another one on OST {ost} than on OST \
                     {first}, and nothing says which one is right: look at the file, and write it anew"
                );
                find(what, Outcome::Left);
            }
        }
    }

    /// As it is by a later look, before and after which the object was to be there; `None` if it
    /// was changed meanwhile. Of a content that was, nothing is known then.
    pub(super) fn confirmed(
        &self,
        before: &ObjectUse,
        copies: &StoredCopies,
        after: &ObjectUse,
    ) -> Option<ObjectDoubt> {
        if self.used != *before || before != after || !sizes(&self.copies).eq(sizes(copies)) {
            return None;
        }
        let mut confirmed = self.clone();
        for (ost, fact) in &mut confirmed.copies {
            if copies.get(ost).is_none_or(|now| now.seal != fact.seal) {
                fact.seal = StoredSeal::Open;
            }
        }
        Some(confirmed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Serving, Syncing};
    use StoredSeal::{Damaged, Open};
    use glint_proto::chain::ChainId;
    use glint_proto::{Errno, Ino};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };

    fn copies(version: u32, members: &[(u16, MemberState)]) -> ObjectUse {
        let chain = ChainId { copies: 2, index: 1 };
        let members = members.iter().map(|(ost, state)| Member { ost: *ost, state: *state });
        ObjectUse::Copies { chain, version, members: members.collect() }
    }

    fn whole() -> ObjectUse {
        copies(3, &[(2, Serving), (1, Serving)])
    }

    fn stored(sizes: &[(u16, FsResult<u64>)]) -> StoredCopies {
        let fact = |size| StoredFact { object: OBJECT, size, seal: Open };
        sizes.iter().map(|(ost, size)| (*ost, fact(*size))).collect()
    }

    /// Copies of five bytes.
    fn sealed(seals: &[(u16, StoredSeal)]) -> StoredCopies {
        let fact = |seal| StoredFact { object: OBJECT, size: Ok(5), seal };
        seals.iter().map(|(ost, seal)| (*ost, fact(*seal))).collect()
    }

    fn with_digest(digest: u32) -> StoredSeal {
        StoredSeal::Sealed { block_log2: 16, digest }
    }

    fn doubt(used: ObjectUse, copies: StoredCopies) -> ObjectDoubt {
        ObjectDoubt { object: OBJECT, used, copies }
    }

    /// What is found, if OSTs 0 to 2 are asked.
    fn found_of(doubt: &ObjectDoubt) -> Vec<String> {
        let findings = doubt.findings(&BTreeSet::from([0, 1, 2]));
        findings.into_iter().map(|finding| finding.what).collect()
    }

    fn found(used: ObjectUse, sizes: &[(u16, FsResult<u64>)]) -> Vec<String> {
        found_of(&doubt(used, stored(sizes)))
    }

    #[test]
    fn copies_of_a_whole_chain_are_equal() {
        let none: [String; 0] = [];
        assert_eq!(found(whole(), &[(1, Ok(5)), (2, Ok(5))]), none);
        assert_eq!(found(whole(), &[(1, Ok(0))]), none, "nothing is lost");
        let missing =
            "OST 1 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 2 has";
        assert_eq!(found(whole(), &[(2, Ok(5))]), [missing]);
        let head =
            "OST 2 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 1 has";
        assert_eq!(found(whole(), &[(1, Ok(5))]), [head]);
        let shorter =
            "object 0000000000000007.8000 of file 0x7 has 4 bytes on OST 1, and 5 on OST 2";
        assert_eq!(found(whole(), &[(1, Ok(4)), (2, Ok(5))]), [shorter]);
        // What is left on one that is no member says nothing.
        assert_eq!(found(whole(), &[(0, Ok(9)), (1, Ok(5)), (2, Ok(5))]), none);
        let unread = found(whole(), &[(1, Err(Errno::EIO)), (2, Ok(5))]);
        assert!(unread.len() == 1 && unread[0].contains("on OST 1: "), "{unread:?}");
    }

    #[test]
    fn copies_at_rest_that_have_different_contents_are_named() {
        let found = |seals: &[(u16, StoredSeal)]| {
            let members = [(2, Serving), (1, Serving), (0, Serving)];
            found_of(&doubt(copies(3, &members), sealed(seals)))
        };
        let none: [String; 0] = [];
        let (one, two) = (with_digest(1), with_digest(2));
        assert_eq!(found(&[(0, one), (1, one), (2, one)]), none);
        let differs = found(&[(0, one), (1, two), (2, one)]);
        let said = "object 0000000000000007.8000 of file 0x7 is another one on OST 1 than on OST \
                    2, and nothing says which one is right: look at the file, and write it anew";
        assert_eq!(differs, [said]);
        assert_eq!(found(&[(0, one), (1, two), (2, Open)]).len(), 1, "the head is being changed");
        assert_eq!(found(&[(0, Open), (1, two), (2, Open)]), none);
        let larger = StoredSeal::Sealed { block_log2: 17, digest: 2 };
        assert_eq!(found(&[(0, one), (1, larger), (2, one)]), none, "sums of other blocks");
    }

    #[test]
    fn damage_is_named_and_whether_another_copy_is_right() {
        let of_head = found_of(&doubt(whole(), sealed(&[(1, with_digest(1)), (2, Damaged)])));
        assert!(of_head.len() == 1 && of_head[0].contains("damaged on OST 2; "), "{of_head:?}");
        let of_both = found_of(&doubt(whole(), sealed(&[(1, Damaged), (2, Damaged)])));
        assert!(of_both.len() == 2 && of_both[1].contains("no other copy"), "{of_both:?}");
        let alone = |ost| found_of(&doubt(ObjectUse::Alone(ost), sealed(&[(0, Damaged)])));
        assert!(alone(0)[0].ends_with("is damaged on OST 0: restore the file"));
        assert!(alone(1).is_empty(), "it is not the file's");
        // It is not also said how long it is.
        let mut shorter = sealed(&[(1, with_digest(1)), (2, Damaged)]);
        shorter.values_mut().filter(|fact| fact.seal == Damaged).for_each(|fact| fact.size = Ok(4));
        assert_eq!(found_of(&doubt(whole(), shorter)), of_head);
    }

    #[test]
    fn who_lags_behind_or_was_not_asked_lacks_nothing() {
        let none: [String; 0] = [];
        let lags = || copies(3, &[(2, Serving), (1, Syncing)]);
        assert_eq!(found(lags(), &[(2, Ok(5))]), none);
        let differ = sealed(&[(1, with_digest(1)), (2, with_digest(2))]);
        assert_eq!(found_of(&doubt(lags(), differ)), none);
        assert_eq!(found(copies(3, &[(2, Serving), (3, Serving)]), &[(2, Ok(5))]), none);
        assert_eq!(found(copies(3, &[(2, Serving), (3, Serving)]), &[]), none);
    }

    #[test]
    fn objects_of_nobody_are_named_where_they_are() {
        let none: [String; 0] = [];
        let lost = found(ObjectUse::Nobody, &[(0, Ok(5)), (2, Ok(0))]);
        assert!(lost.len() == 2 && lost[1].ends_with("on OST 2 belongs to no file"), "{lost:?}");
        for used in [ObjectUse::Unknown, ObjectUse::Alone(0), ObjectUse::Alone(1)] {
            assert_eq!(found(used, &[(0, Ok(5))]), none);
        }
    }

    #[test]
    fn what_has_changed_meanwhile_is_not_told() {
        let used = whole();
        let later = copies(4, &[(2, Serving), (1, Serving)]);
        let doubt = doubt(used.clone(), stored(&[(2, Ok(5))]));
        let same = doubt.copies.clone();
        let is_confirmed = |before: &ObjectUse, copies: &StoredCopies, after: &ObjectUse| {
            doubt.confirmed(before, copies, after).is_some()
        };
        assert!(is_confirmed(&used, &same, &used));
        assert!(!is_confirmed(&later, &same, &later), "the chain was changed");
        assert!(!is_confirmed(&used, &same, &later), "while it was looked at");
        assert!(!is_confirmed(&ObjectUse::Nobody, &same, &ObjectUse::Nobody), "removed");
        for sizes in [&[(1, Ok(5)), (2, Ok(5))][..], &[(2, Ok(6))], &[]] {
            assert!(!is_confirmed(&used, &stored(sizes), &used), "{sizes:?}");
        }
    }

    #[test]
    fn contents_that_have_changed_meanwhile_are_not_compared() {
        let digest = with_digest;
        let (used, first) = (whole(), sealed(&[(1, digest(1)), (2, digest(2))]));
        let doubt = doubt(used.clone(), first.clone());
        let found_then = |copies: &StoredCopies| {
            let confirmed = doubt.confirmed(&used, copies, &used);
            confirmed.map(|doubt| found_of(&doubt).len())
        };
        assert_eq!(found_then(&first), Some(1));
        for seal in [digest(3), Open] {
            assert_eq!(found_then(&sealed(&[(1, digest(1)), (2, seal)])), Some(0), "{seal:?}");
        }
        // A copy that is lost is so whatever becomes of the others.
        let one_left = |seal| sealed(&[(2, seal)]);
        let lost = ObjectDoubt { copies: one_left(digest(1)), ..doubt.clone() };
        let then = lost.confirmed(&used, &one_left(Open), &used).unwrap();
        assert_eq!(found_of(&then).len(), 1);
    }

    #[test]
    fn what_is_not_heard_of_any_more_lacks_nothing() {
        let doubt = doubt(whole(), stored(&[(2, Ok(5))]));
        assert_eq!(doubt.findings(&BTreeSet::from([1, 2])).len(), 1);
        assert!(doubt.findings(&BTreeSet::from([2])).is_empty());
    }
}
