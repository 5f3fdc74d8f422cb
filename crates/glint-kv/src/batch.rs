//! The writes of one transaction, in the form in which it is journalled.
//!
//! ```text
//! for each write:  keyspace u8 | key length u16 | value length u32 | key | value
//! ```
//! Little-endian; a value length of all ones deletes the key.

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

    /// Whether its keys begin with the number of an inode, so that keys that belong together are neighbours.
    pub(crate) fn is_by_inode(self) -> bool {
        matches!(self, Keyspace::Entry | Keyspace::Inode | Keyspace::Xattr)
    }

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

/// A value to store under a key, or a key to delete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write<'a> {
    /// Keyspace written to.
    pub keyspace: Keyspace,
    /// Key.
    pub key: &'a [u8],
    /// New value; `None` deletes.
    pub value: Option<&'a [u8]>,
}

const DELETED: u32 = u32::MAX;
const FIXED_BYTES: usize = 7;
/// Room for a usual operation: an entry, two inodes and a reply.
const USUAL_BYTES: usize = 512;

/// The writes of one transaction, in order: a later write of a key wins.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
}

impl Batch {
    /// An empty batch with room for a usual operation.
    pub fn new() -> Batch {
        Batch { bytes: Vec::with_capacity(USUAL_BYTES) }
    }

    /// The writes so far.
    pub fn writes(&self) -> Writes<'_> {
        Writes(&self.bytes)
    }

    /// Writes a pair.
    pub fn put(&mut self, keyspace: Keyspace, key: &[u8], value: &[u8]) {
        self.push(keyspace, key, value.len() as u32, value);
    }

    /// Deletes a key.
    pub fn delete(&mut self, keyspace: Keyspace, key: &[u8]) {
        self.push(keyspace, key, DELETED, &[]);
    }

    fn push(&mut self, keyspace: Keyspace, key: &[u8], value_len: u32, value: &[u8]) {
        debug_assert!(key.len() <= u16::MAX as usize, "keys are made of bounded parts");
        self.bytes.push(keyspace as u8);
        self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&value_len.to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Whether it writes nothing.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// As it is journalled.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.bytes
    }

    /// From a journal.
    pub(crate) fn from_encoded(bytes: Vec<u8>) -> Batch {
        Batch { bytes }
    }
}

/// The writes of a batch. It ends early at bytes that are none.
pub struct Writes<'a>(&'a [u8]);

impl<'a> Iterator for Writes<'a> {
    type Item = Write<'a>;

    fn next(&mut self) -> Option<Write<'a>> {
        let (fixed, rest) = self.0.split_first_chunk::<FIXED_BYTES>()?;
        let [keyspace, k0, k1, v0, v1, v2, v3] = *fixed;
        let keyspace = *Keyspace::ALL.get(keyspace as usize)?;
        let (key, rest) = rest.split_at_checked(u16::from_le_bytes([k0, k1]) as usize)?;
        let (value, rest) = match u32::from_le_bytes([v0, v1, v2, v3]) {
            DELETED => (None, rest),
            len => {
                let (value, rest) = rest.split_at_checked(len as usize)?;
                (Some(value), rest)
            }
        };
        self.0 = rest;
        Some(Write { keyspace, key, value })
    }
}

/// Condition that must hold for a batch to be applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Precondition {
    /// Keyspace looked in.
    pub keyspace: Keyspace,
    /// Key.
    pub key: Vec<u8>,
    /// Value that the key must have; `None`: the key must not exist.
    pub expect: Option<Vec<u8>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_back_in_order() {
        let mut batch = Batch::new();
        batch.put(Keyspace::Entry, b"key", b"value");
        batch.delete(Keyspace::Meta, b"gone");
        batch.put(Keyspace::Reply, b"", b"");
        let again = Batch::from_encoded(batch.encoded().to_vec());
        let writes: Vec<Write<'_>> = again.writes().collect();
        assert_eq!(writes.len(), 3);
        assert_eq!((writes[0].key, writes[0].value), (&b"key"[..], Some(&b"value"[..])));
        assert_eq!((writes[1].keyspace, writes[1].value), (Keyspace::Meta, None));
        for end in 0..batch.encoded().len() {
            let cut = Batch::from_encoded(batch.encoded()[..end].to_vec());
            assert!(cut.writes().count() < 3);
        }
    }
}
