//! Identifiers. Newtypes, so that an inode is never taken for a client.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Inode number: `shard (16 bits) | sequence (48 bits)`. It is the FUSE node id
/// too, so there is no translation table. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of the file system.
    pub const ROOT: Ino = Ino(1);

    /// Big-endian bytes, the form of every key.
    pub fn key(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    /// Reads the form written by [`Ino::key`] from the start of `bytes`.
    pub fn from_key(bytes: &[u8]) -> Option<Ino> {
        Some(Ino(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?)))
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A client's identity, drawn at random when it mounts. It outlives its
/// connections: requests sent again carry the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The client core that shares a process with the servers. Its requests are
    /// never sent again, so it needs no reply records.
    pub const IN_PROCESS: ClientId = ClientId(0);
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identifies a request of a remote client, so that it is executed once however
/// often it is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestId {
    /// Client that sends the request.
    pub client: ClientId,
    /// Slot of the client.
    pub slot: u16,
    /// Number of the request in the slot; rises.
    pub xid: u64,
}

/// One object: the part of a file that lies on one stripe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ObjectId {
    /// The file.
    pub ino: Ino,
    /// Number of the object in the file: those from [`ObjectId::OF_CHAINS`] on have copies.
    pub stripe: u16,
}

impl ObjectId {
    /// First number of objects that lie on chains. No server takes a request for one of these but as
    /// a member of a chain, so nobody changes one copy alone by mistake or on purpose.
    pub const OF_CHAINS: u16 = 1 << 15;

    /// Whether it lies on a chain. (Files with copies of early development versions have objects that
    /// do not say so.)
    pub fn is_of_chain(self) -> bool {
        self.stripe >= ObjectId::OF_CHAINS
    }

    /// Big-endian bytes: objects of one file are neighbours.
    pub fn key(self) -> [u8; 10] {
        let mut key = [0; 10];
        key[..8].copy_from_slice(&self.ino.key());
        key[8..].copy_from_slice(&self.stripe.to_be_bytes());
        key
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}.{:04x}", self.ino.0, self.stripe)
    }
}
