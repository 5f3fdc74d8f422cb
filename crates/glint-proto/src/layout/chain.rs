//! Chains: which OSTs hold the copies of a stripe, in which order, and which of them may be used.
//!
//! A file with copies is laid out over chains as one without is over OSTs: stripe `i` lies on
//! chain `(first_ost + i) % osts` of the chains with so many copies ([`crate::Layout`]).
//!
//! Only the MDS changes a chain. Each change raises its version; a request that names an older
//! one is refused with the new row, so two servers never act on different opinions of a chain.
//! (The states are those of 3FS; the version that each request carries is that of CRAQ, Terrace
//! and Freedman 2009.)

use crate::limits::{CHAINS_MAX, REPLICAS_MAX};
use crate::{Ino, ObjectId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Mount point that servers say, each of which is a client of the others for its chains; one that
/// clients reach at an address says that after it. Nothing at the MDS is theirs, so it waits for none
/// of them when it starts.
pub const SERVER_MOUNT_POINT: &str = "(copies)";

/// Chain: one of those with so many members.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ChainId {
    /// Members, 2 or more.
    pub copies: u8,
    /// Position among the chains with so many, from 0.
    pub index: u16,
}

/// Bit that tells targets which are chains from those which are OSTs.
const CHAIN: u16 = 1 << 15;
const INDEX_BITS: u32 = 12;

impl ChainId {
    /// Number as a target of requests for data: OSTs have those below 2^15.
    pub fn target(self) -> u16 {
        CHAIN | u16::from(self.copies) << INDEX_BITS | self.index
    }

    /// Chain of a target; `None` if it is an OST, or none at all.
    pub fn of_target(target: u16) -> Option<ChainId> {
        let copies = ((target & !CHAIN) >> INDEX_BITS) as u8;
        let index = target & ((1 << INDEX_BITS) - 1);
        let is_one = target & CHAIN != 0 && (2..=REPLICAS_MAX).contains(&copies);
        is_one.then_some(ChainId { copies, index })
    }
}

const _: () = assert!(CHAINS_MAX <= 1 << INDEX_BITS && (REPLICAS_MAX as u16) < CHAIN >> INDEX_BITS);

impl fmt::Display for ChainId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.copies, self.index)
    }
}

/// Chains that new files with so many copies are laid out over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainTargets {
    /// Members of each.
    pub copies: u8,
    /// How many there are.
    pub count: u16,
    /// Positions of those that new files avoid: without a head, or with a drained OST; and with a
    /// member that does not serve, is full or not heard of, if there are others.
    pub avoided: Vec<u16>,
}

/// Use that may be made of a member of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum MemberState {
    /// Has every write that was acknowledged: reads and writes.
    Serving,
    /// Gets every new write, and older ones from a serving member: writes only.
    Syncing,
    /// Is there, and waits until it may be synced.
    Waiting,
    /// Is not there, or is not believed.
    Offline,
    /// Is not there, and was the last that had every write: the chain waits for it.
    LastServing,
    /// Has lost everything. Not used, also if it is there, before the index of those that serve has
    /// every object of the chain.
    Emptied,
}

impl MemberState {
    /// Its name, as people read it.
    pub fn name(self) -> &'static str {
        match self {
            MemberState::Serving => "serving",
            MemberState::Syncing => "syncing",
            MemberState::Waiting => "waiting",
            MemberState::Offline => "offline",
            MemberState::LastServing => "last serving",
            MemberState::Emptied => "emptied",
        }
    }
}

/// A member of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The OST.
    pub ost: u16,
    /// Use that may be made of it.
    pub state: MemberState,
}

/// A row of the table of chains.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chain {
    /// Name of the chain.
    pub id: ChainId,
    /// Rises with each change.
    pub version: u32,
    /// Serving members first; the first of all orders the writes.
    pub members: Vec<Member>,
    /// Members in the order in which the chain was laid out, so that the same one is not made twice.
    /// One that takes the place of another has its position, too.
    pub founders: Vec<u16>,
    /// Version since which nothing acknowledged is missing in a copy that serves: since then the
    /// last member that served has not lost its memory.
    pub intact_since: u32,
}

impl fmt::Display for Chain {
    /// Writes the members with their states, in their order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, member) in self.members.iter().enumerate() {
            let comma = if at > 0 { ", " } else { "" };
            write!(f, "{comma}OST {} {}", member.ost, member.state.name())?;
        }
        Ok(())
    }
}

impl Chain {
    /// The member that orders writes; `None` while nobody serves.
    pub fn head(&self) -> Option<u16> {
        self.members.first().filter(|member| member.state == MemberState::Serving).map(|m| m.ost)
    }

    /// Members that may be read, the head first.
    pub fn readable(&self) -> impl Iterator<Item = u16> {
        self.with(|state| state == MemberState::Serving)
    }

    /// Members without which no write is acknowledged, the head first.
    pub fn written(&self) -> impl Iterator<Item = u16> {
        self.with(|state| matches!(state, MemberState::Serving | MemberState::Syncing))
    }

    /// Members that miss what is written now.
    pub fn missing(&self) -> impl Iterator<Item = u16> {
        self.with(|state| !matches!(state, MemberState::Serving | MemberState::Syncing))
    }

    /// Whether it can be a row: as many members as its name says, none of them twice.
    pub fn is_valid(&self) -> bool {
        let osts: BTreeSet<u16> = self.members.iter().map(|member| member.ost).collect();
        ChainId::of_target(self.id.target()) == Some(self.id)
            && osts.len() == self.members.len()
            && osts.len() == usize::from(self.id.copies)
    }

    /// State of a member; `None` if it is none.
    pub fn state_of(&self, ost: u16) -> Option<MemberState> {
        self.members.iter().find(|member| member.ost == ost).map(|member| member.state)
    }

    fn with(&self, is_meant: impl Fn(MemberState) -> bool) -> impl Iterator<Item = u16> {
        self.members.iter().filter(move |member| is_meant(member.state)).map(|member| member.ost)
    }
}

/// Version of a chain that a request was made for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ChainVersion {
    /// Number of the chain as a target; see [`ChainId::target`].
    pub target: u16,
    /// Version of its row.
    pub version: u32,
}

/// Place that a request for data goes to: an OST, alone or as a member of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Destination {
    /// The OST.
    pub ost: u16,
    /// The chain that it has the object for.
    pub chain: Option<ChainVersion>,
}

impl From<u16> for Destination {
    /// An OST, or a chain whose member is not chosen yet.
    fn from(ost: u16) -> Destination {
        Destination { ost, chain: None }
    }
}

impl Destination {
    /// Target that the object lies on: the chain, or the OST.
    pub fn target(&self) -> u16 {
        self.chain.map_or(self.ost, |chain| chain.target)
    }
}

/// Part of an object that was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Touched {
    /// The object.
    pub object: ObjectId,
    /// Where the first change begins.
    pub start: u64,
    /// Where the last one ends; [`u64::MAX`] if all bytes behind the first may be others, as after
    /// a truncation.
    pub end: u64,
}

impl Touched {
    /// Stands for all objects of a chain. (No inode has the number 0.)
    pub const EVERYTHING: Touched =
        Touched { object: ObjectId { ino: Ino(0), stripe: 0 }, start: 0, end: u64::MAX };

    /// All of one object.
    pub fn whole(object: ObjectId) -> Touched {
        Touched { object, start: 0, end: u64::MAX }
    }
}

/// Question of one member of a chain to another. Data is forwarded as requests for data
/// ([`Forward`]).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.
pub enum PeerRequest {
    /// Install this row if it is newer. Answered with the row that is known then.
    Adopt(Chain),
    /// As `Adopt`. Answered, when nothing is executed by an older row any more, with a page of the
    /// objects that were changed and may differ in other members: the next ones `after` this one.
    Recent { row: Chain, after: Option<ObjectId> },
    /// Reads are answered in this version. If `are_equal` names the takeover by it that has found
    /// nothing in doubt, all changes by older ones are on stable storage in all copies.
    Activate { chain: ChainVersion, are_equal: Option<u64> },
    /// Everything answered so far to stable storage, unless one of these chains is another one now:
    /// then it may have been answered by a run that is over.
    Commit(Vec<ChainVersion>),
    /// Changes of a chain up to this one are on stable storage in all copies.
    Stable(ChainVersion, u64),
    /// The head has no such object: the one of this OST is to go.
    Remove { chain: ChainVersion, ost: u16, object: ObjectId },
    /// An absent member lacks these changes; or [`Touched::EVERYTHING`].
    Pending { chain: ChainVersion, absent: u16, touched: Vec<Touched> },
    /// Before `Activate`: the head has taken over, and copies may differ in these parts. Nobody may read
    /// them before the head has decided what they are. A head may take over more than once by one row:
    /// `takeover` rises.
    Doubtful { chain: ChainVersion, takeover: u64, touched: Vec<Touched> },
    /// The head is to decide what this range of an object is, and its size, before others: somebody
    /// reads it.
    Decide { chain: ChainVersion, object: ObjectId, start: u64, end: u64 },
    /// Nothing is in doubt any more that this takeover, by the row of the version `before`, has found,
    /// or one before it.
    Decided { chain: ChainVersion, before: u32, takeover: u64 },
    /// No member that serves can read an object: nobody is to read that of this OST. Or, if not
    /// `is_unreadable`, it was copied there whole.
    Mark { chain: ChainVersion, ost: u16, object: ObjectId, is_unreadable: bool },
    /// Install this row if it is newer. By it this OST is no member of the chain: these objects of
    /// the chain go, for good. Answered when they are gone from stable storage.
    Clear { row: Chain, ost: u16, objects: Vec<ObjectId> },
}

/// Answers to [`PeerRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.
pub enum PeerReply {
    /// Done.
    Done,
    /// To [`PeerRequest::Adopt`].
    Row(Chain),
    /// To [`PeerRequest::Recent`]: a page, in the order of the objects; more follow if not `is_last`.
    Recent { touched: Vec<Touched>, is_last: bool },
}

/// A change that the head of a chain orders another member to make, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forward {
    /// Number of the change at the head, which rises; 0 for a part of an older change, which the
    /// member lacks.
    pub sequence: u64,
    /// Changes up to this one are on stable storage in all copies.
    pub stable: u64,
}

/// Rules of a file system for its chains, as its administrators have set them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChainPolicy {
    /// Members that lag are not given what they lack for now.
    pub heal_paused: bool,
    /// A change needs so many members that serve, or all of a chain that has fewer.
    pub min_replicas: u8,
    /// Where there are fewer, a change fails (EROFS) and does not wait.
    pub min_replicas_fails: bool,
}

impl Default for ChainPolicy {
    fn default() -> ChainPolicy {
        ChainPolicy { heal_paused: false, min_replicas: 1, min_replicas_fails: false }
    }
}

/// Something that happened to a member of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemberEvent {
    /// The member cannot be reached, or does not do what it should.
    Lost,
    /// The member is there, with what it had when it was lost.
    Returned,
    /// The member is there, and has lost what was not on its disk, or all.
    ReturnedWithout,
    /// The member has got all that it missed, in the version that is named.
    Synced,
    /// The member is there, and takes part in nothing before its OST was searched.
    NotReady,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_osts_or_chains() {
        for target in 0..=u16::MAX {
            match ChainId::of_target(target) {
                Some(chain) => assert_eq!(chain.target(), target),
                None => assert!(target < CHAIN || !(2..=7).contains(&(target >> INDEX_BITS & 7))),
            }
        }
        assert_eq!(ChainId { copies: 3, index: 5 }.target(), 0xb005);
    }

    #[test]
    fn a_row_is_shown_in_words() {
        let states = [(4, MemberState::Serving), (2, MemberState::LastServing)];
        let row = Chain {
            id: ChainId { copies: 2, index: 0 },
            version: 7,
            members: states.map(|(ost, state)| Member { ost, state }).to_vec(),
            founders: vec![2, 4],
            intact_since: 1,
        };
        assert_eq!(row.to_string(), "OST 4 serving, OST 2 last serving");
    }
}
