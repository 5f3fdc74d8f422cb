//! What is wrong with an object, by what OSTs have of it and what the MDS says of its file.
//!
//! Invariants:
//! - An OST that was not asked lacks nothing, and has no vote.
//! - Copies are compared where all members of a chain serve: others lag behind, and are healed.
//! - Contents are compared by the digests of seals. Of a copy without a seal nobody says that it
//!   differs, but in size.
//! - One of several copies is called the wrong one only if more than half of the members of its
//!   chain agree on another one. If not, the object is told, and none of its copies.
//! - `--repair` is said to put right only what it copies from an OST that has all of it. It does not
//!   bring back what is nowhere: of a file that has lost its end it would take the rest for all of it.

use crate::cmd::fsck::{Finding, Outcome};
use glint_proto::chain::MemberState;
use glint_proto::message::{ObjectUse, StoredFact, StoredSeal, UsedObject};
use glint_proto::{FsResult, ObjectId};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What OSTs have of an object.
pub(super) type Facts = BTreeMap<u16, StoredFact>;

/// How an operator has a copy written anew that is not as most others are.
const REMOVE_IT: &str = "when all servers are stopped, remove it from the directory of that OST \
    (`glint status` says which server), and `glint fsck --repair DIR --oss DIR…` has it copied \
    from them";

/// What an operator does about a file of which a part is nowhere.
const RESTORE_IT: &str =
    "restore the file (`glint fsck --repair` would take the rest for all of it)";

/// An object that seems wrong until it was looked at again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectDoubt {
    pub(super) known: UsedObject,
    pub(super) facts: Facts,
}

/// A copy that is what it was when it was sealed, as far as that can be told from its size.
#[derive(Clone, Copy)]
struct SoundCopy {
    ost: u16,
    size: u64,
    /// Of its seal.
    digest: Option<u32>,
}

/// The OSTs of a chain, the head first.
struct ChainOsts {
    asked: Vec<u16>,
    not_asked: Vec<u16>,
}

impl ChainOsts {
    fn count(&self) -> usize {
        self.asked.len() + self.not_asked.len()
    }
}

/// Result of a comparison of copies.
#[derive(PartialEq, Eq, Debug)]
enum Vote {
    /// These OSTs have the same, and no other has a copy.
    Equal(Vec<u16>),
    /// More than half of all members are `right`.
    Outvoted {
        right: Vec<u16>,
        others: Vec<u16>,
    },
    Undecided,
}

impl Vote {
    /// Compares what some OSTs have, of a chain with so many members.
    fn of<T: Copy + Eq>(copies: &[(u16, T)], members: usize) -> Vote {
        let osts = |wanted: T, is_same: bool| -> Vec<u16> {
            let these = copies.iter().filter(|(_, has)| (*has == wanted) == is_same);
            these.map(|(ost, _)| *ost).collect()
        };
        let Some((_, first)) = copies.first() else { return Vote::Equal(Vec::new()) };
        if osts(*first, false).is_empty() {
            return Vote::Equal(osts(*first, true));
        }
        let mut all = copies.iter().map(|(_, has)| *has);
        match all.find(|has| 2 * osts(*has, true).len() > members) {
            Some(most) => Vote::Outvoted { right: osts(most, true), others: osts(most, false) },
            None => Vote::Undecided,
        }
    }
}

impl ObjectDoubt {
    /// What is wrong, if only these OSTs were asked.
    pub(super) fn findings(&self, asked: &BTreeSet<u16>) -> Vec<Finding> {
        let ObjectDoubt { known: UsedObject { object, used, .. }, facts } = self;
        let mut found = Vec::new();
        for (ost, fact) in facts {
            if let Err(errno) = fact.size {
                found.push(left(format!("object {object} on OST {ost}: {errno}")));
            }
        }
        match used {
            ObjectUse::Nobody => found.extend(facts.keys().map(|ost| {
                let what = format!("object {object} on OST {ost} belongs to no file");
                Finding { what, outcome: Outcome::Repairable }
            })),
            ObjectUse::Alone(ost) => {
                if let Some(damage) = facts.get(ost).and_then(SeenDamage::of) {
                    let is_cut = matches!(damage, SeenDamage::LostEnd { .. });
                    let advice = if is_cut { RESTORE_IT } else { "restore the file" };
                    let it = Shown(*object);
                    found.push(left(format!("{it} on OST {ost} {damage}; {advice}")));
                } else if asked.contains(ost) {
                    self.find_lost_end(&[*ost], &mut found);
                }
            }
            ObjectUse::Copies { .. } => {
                if let Some(osts) = self.osts(asked) {
                    let sound: Vec<SoundCopy> = self.sound(&osts).collect();
                    self.find_missing(&osts, &sound, &mut found);
                    let equal = self.compare_sizes(&osts, &sound, &mut found);
                    self.compare_contents(&osts, &equal, &mut found);
                    if found.is_empty() && osts.not_asked.is_empty() {
                        self.find_lost_end(&osts.asked, &mut found);
                    }
                }
            }
            ObjectUse::Unknown => {}
        }
        found
    }

    /// The OSTs with its copies, if the members of its chain all serve.
    fn osts(&self, asked: &BTreeSet<u16>) -> Option<ChainOsts> {
        let ObjectUse::Copies { members, .. } = &self.known.used else { return None };
        if members.iter().any(|member| member.state != MemberState::Serving) {
            return None;
        }
        let osts = members.iter().map(|member| member.ost);
        let (asked, not_asked) = osts.partition(|ost| asked.contains(ost));
        Some(ChainOsts { asked, not_asked })
    }

    fn sound(&self, osts: &ChainOsts) -> impl Iterator<Item = SoundCopy> {
        osts.asked.iter().filter_map(|ost| {
            let fact = self.facts.get(ost).filter(|fact| SeenDamage::of(fact).is_none())?;
            let digest = match fact.seal {
                StoredSeal::Whole { digest, .. } => Some(digest),
                StoredSeal::None | StoredSeal::Damaged => None,
            };
            Some(SoundCopy { ost: *ost, size: fact.size.ok()?, digest })
        })
    }

    /// Whether the contents of its copies cannot all be compared, as one has no seal.
    pub(super) fn is_unsealed(&self, asked: &BTreeSet<u16>) -> bool {
        let Some(osts) = self.osts(asked).filter(|osts| osts.asked.len() > 1) else { return false };
        self.sound(&osts).any(|copy| copy.size > 0 && copy.digest.is_none())
    }

    /// Names OSTs that lack their copy, and copies that are damaged by what they say themselves.
    fn find_missing(&self, osts: &ChainOsts, sound: &[SoundCopy], found: &mut Vec<Finding>) {
        let ObjectDoubt { known: UsedObject { object, end, .. }, facts } = self;
        let sealed = osts.asked.iter().filter_map(|ost| match facts.get(ost)?.seal {
            StoredSeal::Whole { size, .. } => Some(size),
            StoredSeal::None | StoredSeal::Damaged => None,
        });
        let whole = sealed.max().max(*end).unwrap_or(1).max(1);
        // The head, unless that has less than was ever sealed or the file says.
        let source = sound.iter().find(|copy| copy.size >= whole).map(|copy| copy.ost);
        let outcome = if source.is_some() { Outcome::Repairable } else { Outcome::Left };
        let is_there =
            |ost: &&u16| facts.get(*ost).is_some_and(|fact| fact.size.is_ok_and(|size| size > 0));
        let holder = source.or_else(|| osts.asked.iter().find(is_there).copied());
        for ost in &osts.asked {
            let what = match (facts.get(ost), holder) {
                (None, None) => continue,
                (None, Some(other)) => format!(
                    "OST {ost} lacks its copy of file {}: object {object}, which OST {other} has",
                    object.ino
                ),
                (Some(fact), _) => {
                    let Some(damage) = SeenDamage::of(fact) else { continue };
                    let others = match source {
                        Some(source) => format!("OST {source} has its copy"),
                        None if osts.not_asked.is_empty() => "no other copy is right".to_owned(),
                        None => were_not_asked(&osts.not_asked),
                    };
                    format!("{} on OST {ost} {damage}; {others}", Shown(*object))
                }
            };
            found.push(Finding { what, outcome });
        }
    }

    /// Returns the copies that are as large as the others, or as most.
    fn compare_sizes(
        &self,
        osts: &ChainOsts,
        sound: &[SoundCopy],
        found: &mut Vec<Finding>,
    ) -> Vec<SoundCopy> {
        let sizes: Vec<(u16, u64)> = sound.iter().map(|copy| (copy.ost, copy.size)).collect();
        let it = Shown(self.known.object);
        let right = match Vote::of(&sizes, osts.count()) {
            Vote::Equal(osts) => osts,
            Vote::Outvoted { right, others } => {
                for (ost, size) in sizes.iter().filter(|(ost, _)| others.contains(ost)) {
                    let unlike = Listed(&right);
                    found.push(left(format!(
                        "{it} on OST {ost} has {size} bytes, unlike its copies on {unlike}: \
                         {REMOVE_IT}"
                    )));
                }
                right
            }
            Vote::Undecided => {
                let shown = sizes.iter().map(|(ost, size)| format!("{size} bytes on OST {ost}"));
                let (shown, why) = (shown.collect::<Vec<_>>().join(", "), undecided(osts, &[]));
                found.push(left(format!("{it} has {shown}; {why}")));
                Vec::new()
            }
        };
        sound.iter().filter(|copy| right.contains(&copy.ost)).copied().collect()
    }

    /// Compares copies of one size, as far as they are sealed.
    fn compare_contents(&self, osts: &ChainOsts, copies: &[SoundCopy], found: &mut Vec<Finding>) {
        let sealed = copies.iter().filter_map(|copy| Some((copy.ost, copy.digest?)));
        let sealed: Vec<(u16, u32)> = sealed.collect();
        let it = Shown(self.known.object);
        match Vote::of(&sealed, osts.count()) {
            Vote::Equal(_) => {}
            Vote::Outvoted { right, others } => found.extend(others.iter().map(|ost| {
                let right = Listed(&right);
                left(format!("{it} on OST {ost} differs from its copies on {right}: {REMOVE_IT}"))
            })),
            Vote::Undecided => {
                let unsealed = copies.iter().filter(|copy| copy.digest.is_none());
                let unsealed: Vec<u16> = unsealed.map(|copy| copy.ost).collect();
                let differ: Vec<u16> = sealed.iter().map(|(ost, _)| *ost).collect();
                let (differ, why) = (Listed(&differ), undecided(osts, &unsealed));
                found.push(left(format!("{it} differs between {differ}; {why}")));
            }
        }
    }

    /// Names the end of the file as lost, if none of the OSTs that are to have it does.
    fn find_lost_end(&self, osts: &[u16], found: &mut Vec<Finding>) {
        let (it, Some(end)) = (Shown(self.known.object), self.known.end) else { return };
        let facts = osts.iter().filter_map(|ost| self.facts.get(ost));
        // One that cannot be looked at may reach the end.
        let Ok(sizes) = facts.map(|fact| fact.size).collect::<FsResult<Vec<u64>>>() else { return };
        let osts = Listed(osts);
        let what = match sizes.into_iter().max() {
            Some(size) if size < end => format!("on {osts} {}", SeenDamage::LostEnd { size, end }),
            None => format!("is missing on {osts}: {end} bytes, to the file's end"),
            Some(_) => return,
        };
        found.push(left(format!("{it} {what}; {RESTORE_IT}")));
    }

    /// Whether an OST has it that is to have it, and the end of its file with it.
    pub(super) fn has_end(&self) -> bool {
        self.known.end.is_some()
            && match &self.known.used {
                ObjectUse::Alone(ost) => self.facts.contains_key(ost),
                ObjectUse::Copies { members, .. } => {
                    members.iter().any(|member| self.facts.contains_key(&member.ost))
                }
                ObjectUse::Nobody | ObjectUse::Unknown => false,
            }
    }

    /// What is left of it at a later look, before and after which the MDS was asked. Whoever opens a
    /// file to write it may change its end, and nothing else for that alone.
    pub(super) fn again(
        &self,
        before: &UsedObject,
        facts: &Facts,
        after: &UsedObject,
    ) -> Option<ObjectDoubt> {
        let ObjectDoubt { known, .. } = self;
        if self.facts != *facts || known.used != before.used || known.used != after.used {
            return None;
        }
        let end = known.end.filter(|_| known.end == before.end && known.end == after.end);
        Some(ObjectDoubt { known: UsedObject { end, ..known.clone() }, facts: facts.clone() })
    }
}

/// Damage of an object that is seen without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SeenDamage {
    /// Somebody has compared its bytes.
    Noted,
    /// It has `size` bytes, and had more when it was sealed, or its file was closed.
    LostEnd { size: u64, end: u64 },
    /// It has more than when it was sealed.
    Grown { size: u64, end: u64 },
}

impl SeenDamage {
    /// What its seal says.
    fn of(fact: &StoredFact) -> Option<SeenDamage> {
        let size = fact.size.ok()?;
        match fact.seal {
            StoredSeal::None => None,
            StoredSeal::Damaged => Some(SeenDamage::Noted),
            StoredSeal::Whole { size: end, .. } => match size.cmp(&end) {
                Ordering::Less => Some(SeenDamage::LostEnd { size, end }),
                Ordering::Equal => None,
                Ordering::Greater => Some(SeenDamage::Grown { size, end }),
            },
        }
    }
}

impl fmt::Display for SeenDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SeenDamage::Noted => write!(f, "is damaged"),
            SeenDamage::LostEnd { size, end } => {
                write!(f, "has lost its end: {size} of {end} bytes are left")
            }
            SeenDamage::Grown { size, end } => {
                write!(f, "has {size} bytes, and should have {end}")
            }
        }
    }
}

/// An object and its file, for people.
struct Shown(ObjectId);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "object {} of file {}", self.0, self.0.ino)
    }
}

/// OSTs, for people.
struct Listed<'a>(&'a [u16]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, ost) in self.0.iter().enumerate() {
            let comma = match n {
                0 => "",
                n if n + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{comma}OST {ost}")?;
        }
        Ok(())
    }
}

fn left(what: String) -> Finding {
    Finding { what, outcome: Outcome::Left }
}

fn were_not_asked(osts: &[u16]) -> String {
    format!("{} {} not asked", Listed(osts), if osts.len() == 1 { "was" } else { "were" })
}

/// Why nobody can tell which of some copies is the right one.
fn undecided(osts: &ChainOsts, unsealed: &[u16]) -> String {
    let mut why = vec!["nothing says which one is right".to_owned()];
    if !osts.not_asked.is_empty() {
        why.push(were_not_asked(&osts.not_asked));
    }
    if !unsealed.is_empty() {
        why.push(format!("the copy on {} has no checksums yet", Listed(unsealed)));
    }
    why.join("; ")
}

#[cfg(test)]
mod tests;
