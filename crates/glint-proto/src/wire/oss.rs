//! The conversation between the server of the MDS and the other servers of OSTs (OSSes). An
//! OSS calls; what the MDS wants of it, it is told in the answers.
//!
//! Invariant: an order is told until it is done. So neither side needs to know whether the
//! other has started anew.

#![allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.

use crate::capability::SECRET_BYTES;
use crate::chain::{Chain, ChainPolicy, ChainVersion, MemberEvent};
use crate::message::SpaceInfo;
use crate::{ClientId, Ino, Layout, ObjectId, Owner};
use serde::{Deserialize, Serialize};

/// A server with OSTs beside those of the MDS's own server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OssInfo {
    /// The first of its OSTs; the others follow.
    pub first_ost: u16,
    /// How many it has.
    pub osts: u16,
    /// Address at which clients reach it.
    pub address: String,
    /// Of each of its OSTs, as it was last heard.
    pub space: Vec<SpaceInfo>,
}

/// Request of an OSS to the MDS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OssRequest {
    /// The OSS lives. The first one makes it a part of the file system.
    Heartbeat(Box<Heartbeat>),
    /// Whether a session of a client is a good one, and belongs to this owner.
    CheckSession { client: ClientId, session: u64, owner: Owner },
    /// Something happened to a member of a chain, as somebody saw it who knows this version of it:
    /// an older one changes nothing.
    Member { chain: ChainVersion, ost: u16, event: MemberEvent },
    /// Layout of the file that an object belongs to.
    Layout(Ino),
    /// A page of the objects of a chain that files have or are given, in their order after this one.
    Objects { target: u16, after: ObjectId },
}

/// Sign of life of an OSS.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Identity of the data directory.
    pub uuid: u128,
    /// The file system that it belongs to; 0 if to none yet.
    pub fs_uuid: u128,
    /// Address at which clients reach it.
    pub address: String,
    /// How many OSTs it has.
    pub osts: u16,
    /// Sessions of which nothing is executed any more, of those that it was last told.
    pub fenced: Vec<u64>,
    /// Run of the MDS that its orders are from, and those that are done: up to this one.
    pub done: (u64, u64),
    /// Objects of those orders that could not be removed.
    pub failed: Vec<ObjectId>,
    /// Of each OST.
    pub space: Vec<SpaceInfo>,
    /// Names the run of the OSS. Another one may have lost what was not on stable storage.
    pub boot_verifier: u64,
    /// Number of the last change of the table of chains that it knows, of those that the orders'
    /// `sequence` names.
    pub chains: u64,
    /// Label of all that fails together with it: copies of an object lie in different ones.
    pub failure_domain: String,
    /// OSTs that were put in the place of others, until the MDS has answered.
    pub replaced: Vec<ReplacedOst>,
    /// The last one: the OSS is stopped, and serves nothing any more.
    pub leaves: bool,
    /// OSTs, counted from the first one of the server, that are searched after a loss of power.
    pub searching: Vec<u16>,
    /// Those that have failed, for as long as the OSS runs.
    pub failed_osts: Vec<u16>,
    /// Sessions with requests that may wait for a disk that stands still;
    /// [`SESSIONS_HELD_UP_MAX`](crate::limits::SESSIONS_HELD_UP_MAX) at most.
    pub held_up: Vec<u64>,
}

/// An OST that was put in the place of another one, and is empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplacedOst {
    /// The OST, counted from the first one of its server.
    pub ost: u16,
    /// Where no other member of a chain serves, another one is to go on with what it has.
    pub lose_last: bool,
}

/// Answers to [`OssRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OssReply {
    /// To a beat; with what capabilities are signed with.
    Orders { orders: Orders, secret: [u8; SECRET_BYTES] },
    /// To [`OssRequest::CheckSession`].
    SessionIsGood(bool),
    /// To [`OssRequest::Member`]. If not `is_settled`, some member may act by an older row still;
    /// it is asked again.
    Chain { row: Chain, is_settled: bool },
    /// To [`OssRequest::Layout`]; `None` if there is no such file.
    Layout(Option<Layout>),
    /// To [`OssRequest::Objects`].
    Objects(ObjectPage),
}

/// A page of the objects of a chain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectPage {
    /// In their order, [`OBJECTS_PER_PAGE_MAX`](crate::limits::OBJECTS_PER_PAGE_MAX) at most.
    pub objects: Vec<ObjectId>,
    /// The page ends with this one, whether it is an object of the chain or not; `None` if there
    /// are no more.
    pub last: Option<ObjectId>,
}

/// Orders to an OSS: what it has to do, and what it must know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// The file system.
    pub fs_uuid: u128,
    /// Names the sequence of orders: another one begins with each start of the MDS, and when an
    /// OSS owes so many that it has to ask about all sessions.
    pub sequence: u64,
    /// Number of its first OST.
    pub first_ost: u16,
    /// How long a client, or an OSS, may be silent.
    pub lease_ms: u64,
    /// Nothing of these sessions is to be executed any more.
    pub fence: Vec<u64>,
    /// More of them follow in the next answer. Until then nothing is to be executed for anybody.
    pub more_to_fence: bool,
    /// In their order, with their numbers.
    pub orders: Vec<(u64, Destroy)>,
    /// Rows of the table of chains that were changed since the change that the beat names.
    pub chains: Vec<Chain>,
    /// Number of the last change of the table.
    pub last_change: u64,
    /// No server acts by older rows than those of this change, or has one that it does not know.
    pub known_everywhere: u64,
    /// Rules for all chains.
    pub policy: ChainPolicy,
}

/// Objects on one OST of the OSS are to be gone from stable storage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Destroy {
    pub ost: u16,
    pub objects: Vec<ObjectId>,
}
