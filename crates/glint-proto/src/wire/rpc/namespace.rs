//! Pages of the namespace, and of objects, for a check that goes on beside requests.

use crate::chain::{ChainId, Member};
use crate::{FileType, FsResult, Ino, ObjectId, Timestamp};
use serde::{Deserialize, Serialize};

/// Part of the namespace, or of the objects, that a check asks for: of
/// [`CHECKED_RECORDS_MAX`](crate::limits::CHECKED_RECORDS_MAX) records at most.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NamespaceQuery {
    /// Inodes in their order, from this one on.
    Inodes(Ino),
    /// Entries in the order of their keys, from this key on; all keys come after an empty one.
    Entries(Vec<u8>),
    /// The second look at what seems wrong: those of these that are there. Inodes are read first.
    Again { inodes: Vec<Ino>, entries: Vec<EntryPlace> },
    /// Objects that an OST has, asked of its server: in the order of its list, after this one.
    Stored { ost: u16, after: Option<ObjectId> },
    /// Another look: those of these objects that it has.
    StoredAgain { ost: u16, objects: Vec<ObjectId> },
    /// What the MDS knows of these objects, in their order.
    Uses(Vec<ObjectId>),
    /// The same of objects with the ends of files, in the order of inodes, from this one on.
    Ends(Ino),
}

/// Answer to a [`NamespaceQuery`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NamespacePage {
    pub inodes: Vec<InodeFact>,
    pub entries: Vec<EntryFact>,
    /// Records that cannot be read: what is wrong with each, for people.
    pub damaged: Vec<String>,
    /// How to go on, if there may be more.
    pub next: Option<NamespaceQuery>,
    pub stored: Vec<StoredFact>,
    pub uses: Vec<UsedObject>,
}

/// What a check has to know of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InodeFact {
    pub ino: Ino,
    pub kind: FileType,
    pub links: u32,
    /// The directory that a directory says it is in; of others a hint.
    pub parent: Ino,
    /// Changes whenever it gets or loses a name, and a directory an entry.
    pub ctime: Timestamp,
    /// An OST, or a chain ([`ChainId::target`](crate::chain::ChainId::target)), that the layout of
    /// a file names and that does not exist.
    pub missing_target: Option<u16>,
}

/// What a check has to know of an entry.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct EntryFact {
    pub place: EntryPlace,
    /// The inode that it names.
    pub ino: Ino,
    /// The type that it says the inode has.
    pub kind: FileType,
    /// It is not where look-ups of its name search for it.
    pub is_misplaced: bool,
}

/// Where an entry is stored.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct EntryPlace {
    /// The directory.
    pub parent: Ino,
    /// Hash of the name, as it is stored.
    pub cookie: u64,
    pub name: Vec<u8>,
}

/// An object that an OST has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StoredFact {
    pub object: ObjectId,
    /// Bytes; or why nobody can say how many.
    pub size: FsResult<u64>,
    pub seal: StoredSeal,
}

/// What the seal of an object, its checksums at rest, says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum StoredSeal {
    /// It has none: it is being changed, or was not left alone for long since.
    None,
    /// It had so many bytes when it was sealed. Copies that were equal then have the same digest,
    /// if they were sealed in blocks of one size.
    Whole { size: u64, block_log2: u8, digest: u32 },
    /// Some of its bytes are known not to be what was written.
    Damaged,
}

/// What the MDS knows of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UsedObject {
    pub object: ObjectId,
    pub used: ObjectUse,
    /// Bytes that it has, at least one, if its file ends there and nobody writes the file.
    pub end: Option<u64>,
}

/// Where an object is to be, by what the MDS knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectUse {
    /// Nowhere: it is of no file, and no client is there that may tell of one.
    Nobody,
    /// That is not known: it is to be destroyed, or data is moving to it, or a client may tell of
    /// its file.
    Unknown,
    /// On an OST.
    Alone(u16),
    /// On the members of a chain, by this version of its row.
    Copies { chain: ChainId, version: u32, members: Vec<Member> },
}
