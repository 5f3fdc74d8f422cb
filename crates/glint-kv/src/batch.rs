//! What one transaction writes.

/// The keyspaces of Glint. Keys are big-endian.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Keyspace {
    /// `(parent, name hash, name) → (inode, type)`
    Entry,
    /// `(inode) → record`
    Inode,
    /// `(inode, name) → value`
    Xattr,
    /// `(inode) → why it is kept`: open-unlinked inodes and objects to destroy
    Orphan,
    /// `(client) → when it was made`
    Session,
    /// `(client, slot) → (xid, reply)`
    Reply,
    /// Allocation marks and other single values
    Meta,
}

impl Keyspace {
    /// All keyspaces.
    pub const ALL: [Keyspace; 7] = [
        Keyspace::Entry,
        Keyspace::Inode,
        Keyspace::Xattr,
        Keyspace::Orphan,
        Keyspace::Session,
        Keyspace::Reply,
        Keyspace::Meta,
    ];

    /// Name on disk.
    pub fn name(self) -> &'static str {
        match self {
            Keyspace::Entry => "entry",
            Keyspace::Inode => "inode",
            Keyspace::Xattr => "xattr",
            Keyspace::Orphan => "orphan",
            Keyspace::Session => "session",
            Keyspace::Reply => "reply",
            Keyspace::Meta => "meta",
        }
    }
}

/// One write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// Where.
    pub keyspace: Keyspace,
    /// Key.
    pub key: Vec<u8>,
    /// New value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// The writes of one transaction, in order: a later write of a key wins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    writes: Vec<Write>,
}

impl Batch {
    /// An empty batch with room for a usual operation.
    pub fn new() -> Batch {
        Batch { writes: Vec::with_capacity(6) }
    }

    /// The writes so far.
    pub fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Writes a pair.
    pub fn put(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8]) {
        self.writes.push(Write { keyspace, key: key.to_vec(), value: Some(value.to_vec()) });
    }

    /// Deletes a key.
    pub fn delete(&mut self, keyspace: Keyspace, key: &[u8]) {
        self.writes.push(Write { keyspace, key: key.to_vec(), value: None });
    }

    /// Whether it writes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// The writes in order.
    pub fn into_writes(self) -> Vec<Write> {
        self.writes
    }
}

/// What must hold for a batch to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Precondition {
    /// Where.
    pub keyspace: Keyspace,
    /// Key.
    pub key: Vec<u8>,
    /// Its value must be this; `None`: it must not exist.
    pub expect: Option<Vec<u8>>,
}
