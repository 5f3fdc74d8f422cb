//! The conversation between clients and servers: who speaks, how a request came, what an
//! answer brings beside its content.

#![allow(missing_docs)] // Fields say what they are; shapes are documented on the variants.

mod namespace;
mod orders;

use crate::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use crate::limits::{HOST_NAME_BYTES_MAX, MOUNT_POINT_BYTES_MAX};
use crate::lock::{Grant, Recall, Return};
use crate::message::{MdsReply, MdsRequest, OstReply, OstRequest};
use crate::op::Op;
use crate::oss::{OssInfo, OssReply, OssRequest};
use crate::reclaim::Reclaim;
use crate::{
    Attr, Capability, Cred, Errno, FsResult, Ino, ObjectId, RequestId, Session, Timestamp,
};
pub use namespace::{
    EntryFact, EntryPlace, InodeFact, NamespacePage, NamespaceQuery, ObjectUse, StoredFact,
    StoredSeal, UsedObject,
};
pub use orders::{
    BalanceStep, BalanceTurn, DrainOst, DrainStep, FilesToMove, GiveUp, GiveUpStep, OstOrder,
};
use serde::{Deserialize, Serialize};
use std::fmt;

/// First message on a connection, from the client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Name of the client's host, shown by `glint status`.
    pub host: String,
    /// Mount point, or in parentheses the name of a command without one; shown by `glint status`.
    pub mount_point: String,
    /// The client was welcomed before, by this or an earlier run of the server.
    pub known: bool,
    /// The run whose transactions it counts; 0 if none.
    pub boot_verifier: u64,
    /// Said to an OSS: what the MDS has named its session.
    pub session: u64,
    /// Drawn by the client when it mounted; see [`crate::Owner`].
    pub secret: u128,
}

impl Hello {
    /// Takes from the names what is not for people's eyes: ENAMETOOLONG if one is longer than
    /// any can be.
    pub fn check(&mut self) -> FsResult<()> {
        let names =
            [(&mut self.host, HOST_NAME_BYTES_MAX), (&mut self.mount_point, MOUNT_POINT_BYTES_MAX)];
        for (name, limit) in names {
            if name.len() > limit {
                return Err(Errno::ENAMETOOLONG);
            }
            if name.contains(char::is_control) {
                *name = name.replace(char::is_control, "?");
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hello({:?}, {:?}, session {:x})", self.host, self.mount_point, self.session)
    }
}

/// Transactions of a run of a server that survived its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Survived {
    /// Transactions of the MDS up to this one.
    pub mds: u64,
    /// Transactions of OSTs up to this one, and perhaps more.
    pub ost: u64,
}

impl Survived {
    /// Everything: it still runs.
    pub const ALL: Survived = Survived { mds: u64::MAX, ost: u64::MAX };
}

/// Answer to [`Hello`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// UUID of the file system.
    pub fs_uuid: u128,
    /// Changes whenever the server starts.
    pub boot_verifier: u64,
    /// Number of OSTs.
    pub osts: u16,
    /// Number of OSTs of the MDS's own server; the first ones.
    pub own_osts: u16,
    /// The servers of the others.
    pub osses: Vec<OssInfo>,
    /// Names the time from a hello to the client's end, or its eviction.
    pub session: u64,
    /// How long a client may cache attributes and entries without locks.
    pub cache_ms: u64,
    /// Nothing is answered before it is on stable storage, so clients write nothing behind.
    pub commit_sync: bool,
    /// How long a client may be silent before it is forgotten.
    pub lease_ms: u64,
    /// Locks are given to clients that listen to recalls.
    pub locks: bool,
    /// Inode that the client sees as its root.
    pub root: Ino,
    /// Requests to OSTs need a capability: the client's certificate limits what it may do.
    pub capabilities: bool,
    /// Transactions that survived of the run that the client counts them of.
    pub survived: Survived,
    /// The client said that it is known, and is not: it was evicted. What it had open is
    /// closed, and what it still wanted to say is lost.
    pub evicted: bool,
}

/// How a request came to its server.
#[derive(Clone, Debug, Default)]
pub struct Arrival<'a> {
    /// For which session; none if the client shares the process.
    pub session: Option<&'a Session>,
    /// Client and number of the request; none if the client shares the process.
    pub id: Option<RequestId>,
    /// Tells a repetition from another request under the same number: crc32c of the body.
    pub digest: u32,
    /// Time of the pass in which it is handled.
    pub now: Timestamp,
    /// Answer by a run of the server that lost the request, if it is sent again for that.
    pub replay: Option<MdsReply>,
}

/// An answer, and the transaction that has to be durable for it to last; 0 if it changed
/// nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer<R> {
    /// Number of the transaction.
    pub transaction: u64,
    /// The answer.
    pub reply: FsResult<R>,
    /// Locks that come with it.
    pub grants: Vec<Grant>,
}

impl<R> Answer<R> {
    /// An answer that changed nothing.
    pub fn unchanged(reply: FsResult<R>) -> Answer<R> {
        Answer::changed(0, reply)
    }

    /// An answer that changed something, in a transaction.
    pub fn changed(transaction: u64, reply: FsResult<R>) -> Answer<R> {
        Answer { transaction, reply, grants: Vec::new() }
    }
}

/// Transactions that are on stable storage, of both kinds of servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Committed {
    /// Up to this one, of the MDS.
    pub mds: u64,
    /// Up to this one, of the OSTs.
    pub ost: u64,
}

/// Content of a request frame: who asks and what.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request<'a> {
    /// Opens the conversation.
    Hello(Hello),
    /// List the servers that have OSTs.
    Osses,
    /// From an OSS.
    Oss(OssRequest),
    /// State dump as JSON.
    Status,
    /// Statistics as JSON.
    Stats,
    /// Start the statistics again.
    ResetStats,
    /// The client lives; with `commit` it is answered when everything answered so far is on stable
    /// storage, with `hurry` that begins and is not waited for.
    Ping { commit: bool, hurry: bool },
    /// A request that an earlier run of the server answered with `reply` and lost.
    Replay {
        cred: Cred,
        #[serde(borrow)]
        request: MdsRequest<'a>,
        reply: MdsReply,
        /// Says that the request made its inode in this session, if servers ask for that.
        capability: Option<Capability>,
    },
    /// The client has replayed what it had to.
    Recovered,
    /// From now on this connection carries recalls, and nothing else.
    Listen,
    /// Locks are returned, questions answered.
    Return(Vec<Return>),
    /// The client ends, and is forgotten. It has waited before for what it did to be durable.
    Bye,
    /// For the MDS.
    Mds {
        /// Caller.
        cred: Cred,
        /// Request.
        #[serde(borrow)]
        request: MdsRequest<'a>,
    },
    /// For one OST.
    Ost {
        /// The OST, and the chain that it is asked for.
        to: Destination,
        /// Request.
        request: OstRequest,
        /// Capability that allows it, if the session needs one.
        capability: Option<Capability>,
        /// From the head of the chain: an order to do it, too.
        forward: Option<Forward>,
    },
    /// The rows of the table of chains.
    Chains,
    /// From a member of a chain to another one.
    Peer(PeerRequest),
    /// Opens and locks that the client had before the server started again, up to
    /// [`RECLAIMS_MAX`](crate::limits::RECLAIMS_MAX).
    Reclaim(Vec<Reclaim>),
    /// Compare stored data with its checksums now; if not `begins`, end that.
    Scrub { begins: bool },
    /// Members of chains that lag are not given what they lack for now; or are again.
    Heal { paused: bool },
    /// An OST does not exist any more.
    GiveUpOst(GiveUp),
    /// An OST is drained, or is used again.
    DrainOst(DrainOst),
    /// Reads from objects of this server's OSTs, up to
    /// [`OBJECT_READS_MAX`](crate::limits::OBJECT_READS_MAX) and one bulk.
    ReadObjects(Vec<ObjectRead>),
    /// A command moves files between OSTs, and no other one shall.
    BalanceTurn(BalanceTurn),
    /// A part of the namespace or of the objects, for a check of it.
    Check(NamespaceQuery),
}

impl Request<'_> {
    /// Operation of the request.
    pub fn op(&self) -> Op {
        match self {
            Request::Hello(_) | Request::Osses | Request::Chains => Op::Hello,
            Request::Oss(_) | Request::Peer(_) => Op::Ping,
            Request::Status
            | Request::Scrub { .. }
            | Request::Heal { .. }
            | Request::GiveUpOst(_)
            | Request::DrainOst(_)
            | Request::BalanceTurn(_)
            | Request::Check(_) => Op::Status,
            Request::Stats | Request::ResetStats => Op::Stats,
            Request::Ping { .. } | Request::Bye => Op::Ping,
            Request::Replay { .. } | Request::Recovered | Request::Reclaim(_) => Op::Recovery,
            Request::Listen | Request::Return(_) => Op::Return,
            Request::Mds { request, .. } => request.op(),
            Request::Ost { request, .. } => request.op(),
            Request::ReadObjects(_) => Op::ObjRead,
        }
    }
}

/// A read from one object among several. Its data comes after that of the reads before it, short at
/// the end of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectRead {
    pub to: Destination,
    pub object: ObjectId,
    pub offset: u64,
    pub len: u32,
    pub capability: Option<Capability>,
}

impl ObjectRead {
    /// The same as a request of its own.
    pub fn request(&self) -> OstRequest {
        OstRequest::Read { object: self.object, offset: self.offset, len: self.len }
    }
}

/// Content of a reply frame.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Hello`].
    Welcome(Welcome),
    /// To [`Request::Osses`].
    Osses(Vec<OssInfo>),
    /// To [`Request::Chains`].
    Chains(Vec<Chain>),
    /// To [`Request::Ost`], which was made for another version: the chain is this one now.
    ChainMoved(Chain),
    /// To [`Request::Peer`].
    Peer(FsResult<PeerReply>),
    /// To [`Request::Oss`].
    Oss(FsResult<OssReply>),
    /// To [`Request::Status`], [`Request::Stats`], [`Request::GiveUpOst`], [`Request::DrainOst`],
    /// [`Request::BalanceTurn`], and what only says that it is done.
    Json(String),
    /// The request is not done.
    Failed(Errno),
    /// From the MDS.
    Mds {
        /// See [`Answer`].
        transaction: u64,
        /// The answer.
        reply: FsResult<MdsReply>,
        /// See [`Answer`].
        grants: Vec<Grant>,
    },
    /// From an OST.
    Ost {
        /// See [`Answer`].
        transaction: u64,
        /// The answer.
        reply: FsResult<OstReply>,
    },
    /// To [`Request::Ping`], [`Request::Recovered`], [`Request::Return`] and [`Request::Bye`].
    Pong(Committed),
    /// To [`Request::Listen`], again and again.
    Recalls(Vec<Recall>),
    /// The server has too much to do; ask again after this time.
    Busy {
        /// In milliseconds.
        retry_ms: u32,
    },
    /// The request could not be taken; the reason is for people.
    Refused(String),
    /// To [`Request::Reclaim`], in its order.
    Reclaimed(Vec<FsResult<MdsReply>>),
    /// To [`Request::ReadObjects`], in its order: bytes of each in the bulk.
    ObjectsRead(Vec<FsResult<u32>>),
    /// To [`Request::Check`].
    Checked(NamespacePage),
}

/// A page of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DirPage {
    /// In the order of their cookies.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub end: bool,
}

/// An entry of a directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirEntry {
    /// Inode.
    pub ino: Ino,
    /// Cookie to go on with after this entry; stable while the directory changes.
    pub cookie: u64,
    /// The `d_type` of readdir(3).
    pub dirent_type: u8,
    /// Name.
    pub name: Vec<u8>,
    /// Attributes, if they were asked for and the inode is still there.
    pub attr: Option<Attr>,
}
