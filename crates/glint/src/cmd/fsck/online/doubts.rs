//! Findings about an object, from its copies on OSTs and the record of its file.
//!
//! Invariants:
//! - An OST that was not asked lacks nothing, and has no vote.
//! - Copies are compared where all members of a chain serve: others lag behind, and are healed.
//! - Contents are compared by the digests of seals in blocks of one size. A copy without a seal
//!   differs in its size alone.
//! - A copy that is shorter than the end of its file has lost that end, and has no vote.
//! - One of several copies is called the wrong one only if more than half of the members of its
//!   chain have another one under equal seals, and none of the others is longer. If not, the object
//!   is named, and none of its copies.
//! - No advice destroys a copy, as a majority proves nothing: heal may have copied the wrong one.
//! - `--repair` is said to repair only copies that it takes from an OST that has all of it, while
//!   the copies that are left are equal: copied from one of two that differ, it would outvote the
//!   other. It brings back no end that all copies have lost, and would take the rest for the whole
//!   file.

use crate::cmd::fsck::{Finding, Outcome};
use glint_proto::chain::MemberState;
use glint_proto::message::{ObjectUse, StoredFact, StoredSeal, UsedObject};
use glint_proto::{FsResult, ObjectId};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// An object as each OST has it.
pub(super) type CopyFacts = BTreeMap<u16, StoredFact>;

/// Advice about a copy that `--repair` leaves as it is, and that is to be written anew.
const MOVE_IT: &str = "when all servers are stopped, move it aside from the directory of that OST \
    (`glint status` says which server), and start them only after `glint fsck --repair DIR --oss \
    DIR…` has named it as missing, and has it copied from the others; read the file before you \
    delete what you have moved";

/// Advice about a file of which no OST has the end.
const RESTORE_IT: &str =
    "restore the file (`glint fsck --repair` would take the rest for all of it)";

/// An object that seems wrong until it was looked at again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ObjectDoubt {
    pub(super) known: UsedObject,
    pub(super) facts: CopyFacts,
}

/// A copy that is as long as when it was sealed, and reaches the end of its file.
#[derive(Clone, Copy)]
struct SoundCopy {
    ost: u16,
    size: u64,
    digest: Option<Digest>,
}

/// The checksum of a seal, and the size of the blocks that it is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Digest {
    block_log2: u8,
    sum: u32,
}

impl Digest {
    /// Whether both are made of the same blocks: if not, equal copies have different ones, too.
    fn is_like(&self, other: &Digest) -> bool {
        self.block_log2 == other.block_log2
    }
}

impl SoundCopy {
    fn differs_from(&self, other: &SoundCopy) -> bool {
        let digests = self.digest.zip(other.digest);
        let differ = digests.is_some_and(|(one, two)| one.is_like(&two) && one != two);
        self.size != other.size || differ
    }

    fn has_equal_seal(&self, other: &SoundCopy) -> bool {
        self.digest.is_some() && self.size == other.size && self.digest == other.digest
    }
}

/// Returns the copies under equal seals that are more than half of all `members` of a chain.
fn majority(copies: &[SoundCopy], members: usize) -> Option<Vec<SoundCopy>> {
    let like = |one: &SoundCopy| -> Vec<SoundCopy> {
        copies.iter().filter(|copy| copy.has_equal_seal(one)).copied().collect()
    };
    copies.iter().map(like).find(|equal| 2 * equal.len() > members)
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

impl ObjectDoubt {
    /// Returns the findings, if only these OSTs were asked.
    pub(super) fn findings(&self, asked: &BTreeSet<u16>) -> Vec<Finding> {
        let ObjectDoubt { known: UsedObject { object, used, end }, facts } = self;
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
                let damage = |fact: &StoredFact| SeenDamage::of(fact, *end);
                if let Some(damage) = facts.get(ost).and_then(damage) {
                    let (advice, outcome) = match damage {
                        SeenDamage::LostEnd { .. } => (RESTORE_IT, Outcome::EndLost),
                        _ => ("restore the file", Outcome::Left),
                    };
                    let what = format!("{} on OST {ost} {damage}; {advice}", ShownObject(*object));
                    found.push(Finding { what, outcome });
                } else if asked.contains(ost) {
                    self.find_lost_end(&[*ost], &mut found);
                }
            }
            ObjectUse::Copies { .. } => {
                if let Some(osts) = self.osts(asked) {
                    self.find_in_copies(&osts, &mut found);
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

    /// Names the end of the file as lost in all copies, or else each copy that is missing, damaged
    /// or the wrong one.
    fn find_in_copies(&self, osts: &ChainOsts, found: &mut Vec<Finding>) {
        if osts.not_asked.is_empty() && self.find_lost_end(&osts.asked, found) {
            return;
        }
        let sound: Vec<SoundCopy> = self.sound(osts).collect();
        let are_equal = self.compare(osts, &sound, found);
        self.find_missing(osts, &sound, are_equal, found);
    }

    fn sound(&self, osts: &ChainOsts) -> impl Iterator<Item = SoundCopy> {
        osts.asked.iter().filter_map(|ost| {
            let fact = self.facts.get(ost)?;
            if SeenDamage::of(fact, self.known.end).is_some() {
                return None;
            }
            let digest = match fact.seal {
                StoredSeal::Whole { block_log2, digest: sum, .. } => {
                    Some(Digest { block_log2, sum })
                }
                StoredSeal::None | StoredSeal::Damaged => None,
            };
            Some(SoundCopy { ost: *ost, size: fact.size.ok()?, digest })
        })
    }

    /// Whether the contents of its copies cannot all be compared, as one has no seal, or seals are
    /// made of other blocks.
    pub(super) fn is_unsealed(&self, asked: &BTreeSet<u16>) -> bool {
        let Some(osts) = self.osts(asked).filter(|osts| osts.asked.len() > 1) else { return false };
        let mut digests = self.sound(&osts).filter(|copy| copy.size > 0).map(|copy| copy.digest);
        let Some(first) = digests.next() else { return false };
        let is_like = |other: Option<Digest>| {
            first.zip(other).is_some_and(|(one, other)| one.is_like(&other))
        };
        first.is_none() || !digests.all(is_like)
    }

    /// Compares sound copies. Returns true if they are equal, as far as that can be told.
    fn compare(&self, osts: &ChainOsts, sound: &[SoundCopy], found: &mut Vec<Finding>) -> bool {
        let differs = |copy: &&SoundCopy| sound.iter().any(|other| copy.differs_from(other));
        let differing: Vec<&SoundCopy> = sound.iter().filter(differs).collect();
        if differing.is_empty() {
            return true;
        }
        let it = ShownObject(self.known.object);
        let outvoted = majority(sound, osts.count()).filter(|right| {
            // A longer one may be the only one that has not lost its end.
            differing.iter().all(|copy| copy.size <= right[0].size)
        });
        if let Some(right) = outvoted {
            let osts: Vec<u16> = right.iter().map(|copy| copy.ost).collect();
            let unlike = Listed(&osts);
            for copy in sound.iter().filter(|copy| copy.differs_from(&right[0])) {
                let SoundCopy { ost, size, .. } = copy;
                let how = match size == &right[0].size {
                    true => format!("differs from its copies on {unlike}"),
                    false => format!("has {size} bytes, unlike its copies on {unlike}"),
                };
                found.push(left(format!("{it} on OST {ost} {how}: {MOVE_IT}")));
            }
        } else if sound.iter().any(|copy| copy.size != sound[0].size) {
            let sizes = sound
                .iter()
                .map(|SoundCopy { ost, size, .. }| format!("{size} bytes on OST {ost}"));
            let (sizes, why) = (sizes.collect::<Vec<_>>().join(", "), undecided(osts, &[]));
            found.push(left(format!("{it} has {sizes}; {why}")));
        } else {
            let unsealed = sound.iter().filter(|copy| copy.digest.is_none());
            let unsealed: Vec<u16> = unsealed.map(|copy| copy.ost).collect();
            let differing: Vec<u16> = differing.iter().map(|copy| copy.ost).collect();
            let (differing, why) = (Listed(&differing), undecided(osts, &unsealed));
            found.push(left(format!("{it} differs between {differing}; {why}")));
        }
        false
    }

    /// Names OSTs that lack their copy, and copies that are damaged or have lost their end.
    fn find_missing(
        &self,
        osts: &ChainOsts,
        sound: &[SoundCopy],
        are_equal: bool,
        found: &mut Vec<Finding>,
    ) {
        let ObjectDoubt { known: UsedObject { object, end, .. }, facts } = self;
        let its: Vec<&StoredFact> = osts.asked.iter().filter_map(|ost| facts.get(ost)).collect();
        let sealed = its.iter().filter_map(|fact| match fact.seal {
            StoredSeal::Whole { size, .. } => Some(size),
            StoredSeal::None | StoredSeal::Damaged => None,
        });
        let whole = sealed.max().max(*end).unwrap_or(1).max(1);
        // The head, unless that has less than was ever sealed.
        let source = sound.iter().find(|copy| copy.size >= whole).map(|copy| copy.ost);
        // `--repair` takes a copy for sound that matches its seal, and copies from none while such
        // ones differ.
        let is_short = |fact: &StoredFact| {
            SeenDamage::of(fact, None).is_none() && SeenDamage::of(fact, *end).is_some()
        };
        let is_repairable = source.is_some() && are_equal && !its.iter().any(|fact| is_short(fact));
        let outcome = if is_repairable { Outcome::Repairable } else { Outcome::Left };
        let is_there =
            |ost: &&u16| facts.get(*ost).is_some_and(|fact| fact.size.is_ok_and(|size| size > 0));
        let holder = source.or_else(|| osts.asked.iter().find(is_there).copied());
        for ost in &osts.asked {
            let what = match (facts.get(ost), holder) {
                (None, None) => continue,
                (None, Some(other)) => format!(
                    "OST {ost} lacks its copy of file {}: object {object}, which OST {other} has{}",
                    object.ino,
                    if are_equal { "" } else { "; its other copies differ" }
                ),
                (Some(fact), _) => {
                    let Some(damage) = SeenDamage::of(fact, *end) else { continue };
                    let others = match source {
                        Some(_) if !are_equal => "its other copies differ".to_owned(),
                        Some(source) if is_short(fact) => {
                            format!("OST {source} has all of it: {MOVE_IT}")
                        }
                        Some(source) => format!("OST {source} has its copy"),
                        None if osts.not_asked.is_empty() => "no other copy is right".to_owned(),
                        None => were_not_asked(&osts.not_asked),
                    };
                    format!("{} on OST {ost} {damage}; {others}", ShownObject(*object))
                }
            };
            found.push(Finding { what, outcome });
        }
    }

    /// Names the end of the file as lost, and returns true, if none of these OSTs has it.
    fn find_lost_end(&self, osts: &[u16], found: &mut Vec<Finding>) -> bool {
        let (it, Some(end)) = (ShownObject(self.known.object), self.known.end) else {
            return false;
        };
        let facts = osts.iter().filter_map(|ost| self.facts.get(ost));
        let sizes: FsResult<Vec<u64>> = facts.map(|fact| fact.size).collect();
        // One that cannot be looked at may reach the end.
        let Ok(sizes) = sizes else { return false };
        let osts = Listed(osts);
        let what = match sizes.into_iter().max() {
            Some(size) if size < end => format!("on {osts} {}", SeenDamage::LostEnd { size, end }),
            None => format!("is missing on {osts}: {end} bytes, to the file's end"),
            Some(_) => return false,
        };
        let what = format!("{it} {what}; {RESTORE_IT}");
        found.push(Finding { what, outcome: Outcome::EndLost });
        true
    }

    /// OSTs that are to have it.
    fn holders(&self) -> Vec<u16> {
        match &self.known.used {
            ObjectUse::Alone(ost) => vec![*ost],
            ObjectUse::Copies { members, .. } => members.iter().map(|member| member.ost).collect(),
            ObjectUse::Nobody | ObjectUse::Unknown => Vec::new(),
        }
    }

    /// Whether its file ends in it, and one of the OSTs has it that are to.
    pub(super) fn has_end(&self) -> bool {
        self.known.end.is_some() && self.holders().iter().any(|ost| self.facts.contains_key(ost))
    }

    /// Forgets the end of its file, unless all OSTs that are to have it are among those that have
    /// all writes.
    pub(super) fn keep_end(&mut self, have_all: &BTreeSet<u16>) {
        let holders = self.holders();
        self.known.end =
            self.known.end.filter(|_| holders.iter().all(|ost| have_all.contains(ost)));
    }

    /// Whether an OST has it, or is to have it.
    pub(super) fn concerns(&self, ost: u16) -> bool {
        self.facts.contains_key(&ost) || self.holders().contains(&ost)
    }

    /// Returns the part of it that a later look confirms, before and after which the MDS was asked.
    /// An open for writing takes away the end of the file, and nothing else.
    pub(super) fn again(
        &self,
        before: &UsedObject,
        facts: &CopyFacts,
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
    /// Returns the damage that a seal shows, or that an object is shorter than the end of its file.
    fn of(fact: &StoredFact, end: Option<u64>) -> Option<SeenDamage> {
        let size = fact.size.ok()?;
        let sealed = match fact.seal {
            StoredSeal::None => None,
            StoredSeal::Damaged => return Some(SeenDamage::Noted),
            StoredSeal::Whole { size, .. } => Some(size),
        };
        match sealed.max(end) {
            Some(end) if size < end => Some(SeenDamage::LostEnd { size, end }),
            _ => {
                let sealed = sealed.filter(|sealed| size > *sealed);
                sealed.map(|end| SeenDamage::Grown { size, end })
            }
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
struct ShownObject(ObjectId);

impl fmt::Display for ShownObject {
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
