//! Keys and small values. All integers are big-endian, so that keys sort.

use glint_proto::posix::cookie;
use glint_proto::{ClientId, FileType, Ino, Layout};

/// Everything below this inode number was handed out.
pub(crate) const META_NEXT_INO: &[u8] = b"next_ino";
/// Number of inodes in use.
pub(crate) const META_INODES: &[u8] = b"inodes";
/// The runs of the server; see [`crate::session::boot_history`].
pub(crate) const META_RUNS: &[u8] = b"runs";
/// How many runs there were.
pub(crate) const META_RUN_COUNT: &[u8] = b"run_count";
/// Transactions of OSTs that are known to be durable; see [`crate::background::reaper`].
pub(crate) const META_DATA_DURABLE: &[u8] = b"data_durable";
/// There while clients may still have to replay what a run lost.
pub(crate) const META_REPLAYING: &[u8] = b"replaying";
/// Key that capabilities are signed with, random per file system.
pub(crate) const META_SECRET: &[u8] = b"secret";
/// Seed of the name hash, random per file system.
pub(crate) const META_HASH_SEED: &[u8] = b"hash_seed";

/// `parent (8) | cookie (8) | name`
pub(crate) fn entry(parent: Ino, name: &[u8], seed: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(16 + name.len());
    key.extend_from_slice(&parent.key());
    key.extend_from_slice(&cookie(name, seed).to_be_bytes());
    key.extend_from_slice(name);
    key
}

/// First key of a directory at or after `cookie`.
pub(crate) fn entry_from(parent: Ino, cookie: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&parent.key());
    key[8..].copy_from_slice(&cookie.to_be_bytes());
    key
}

/// Parent, cookie and name of an entry key.
pub(crate) fn parse_entry(key: &[u8]) -> Option<(Ino, u64, &[u8])> {
    let parent = Ino::from_key(key)?;
    let cookie = u64::from_be_bytes(key.get(8..16)?.try_into().ok()?);
    Some((parent, cookie, &key[16..]))
}

/// `inode (8) | type (1)`
pub(crate) fn entry_value(ino: Ino, kind: FileType) -> [u8; 9] {
    let mut value = [0; 9];
    value[..8].copy_from_slice(&ino.key());
    value[8] = kind.dirent_type();
    value
}

/// Inverse of [`entry_value`].
pub(crate) fn parse_entry_value(value: &[u8]) -> Option<(Ino, FileType)> {
    if value.len() != 9 {
        return None;
    }
    Some((Ino::from_key(value)?, FileType::from_dirent_type(value[8])?))
}

/// `inode (8) | name`
pub(crate) fn xattr(ino: Ino, name: &[u8]) -> Vec<u8> {
    let mut key = ino.key().to_vec();
    key.extend_from_slice(name);
    key
}

/// The first key after all keys that begin with this inode.
pub(crate) fn after(ino: Ino) -> [u8; 8] {
    Ino(ino.0.saturating_add(1)).key()
}

/// `client (8) | slot (2)`
pub(crate) fn reply(client: u64, slot: u16) -> [u8; 10] {
    let mut key = [0; 10];
    key[..8].copy_from_slice(&client.to_be_bytes());
    key[8..].copy_from_slice(&slot.to_be_bytes());
    key
}

/// Reads a u64 value.
pub(crate) fn parse_u64(value: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(value.try_into().ok()?))
}

/// Why an inode is in the orphan keyspace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Orphan {
    /// No name is left but it was open; the record still exists.
    Open,
    /// The record is gone, or its data has moved; these objects are to be destroyed.
    Destroy(Layout),
    /// A client copies data into these objects; they are to be destroyed if its session ends.
    Planned(Layout, ClientId),
}

/// Key of objects beside those that an inode has, or had when it was removed.
pub(crate) fn orphan_objects(ino: Ino, layout: Layout) -> [u8; 10] {
    layout.object(ino, 0).key()
}

impl Orphan {
    pub(crate) fn value(self) -> Vec<u8> {
        match self {
            Orphan::Open => vec![0],
            Orphan::Destroy(layout) => {
                let mut value = vec![1];
                put_layout(layout, &mut value);
                value
            }
            Orphan::Planned(layout, client) => {
                let mut value = vec![2];
                value.extend_from_slice(&client.0.to_be_bytes());
                put_layout(layout, &mut value);
                value
            }
        }
    }

    pub(crate) fn parse(value: &[u8]) -> Option<Orphan> {
        match *value {
            [0] => Some(Orphan::Open),
            [1, ref layout @ ..] => parse_layout(layout).map(Orphan::Destroy),
            [2, ref rest @ ..] => {
                let (client, layout) = rest.split_at_checked(8)?;
                let client = ClientId(u64::from_be_bytes(client.try_into().ok()?));
                Some(Orphan::Planned(parse_layout(layout)?, client))
            }
            _ => None,
        }
    }
}

fn put_layout(layout: Layout, value: &mut Vec<u8>) {
    let Layout { stripe_bytes_log2, stripe_count, first_ost, osts, replicas, first_object } =
        layout;
    value.push(stripe_bytes_log2);
    for number in [stripe_count, first_ost, osts] {
        value.extend_from_slice(&number.to_be_bytes());
    }
    if replicas > 1 || first_object > 0 {
        value.push(replicas);
    }
    if first_object > 0 {
        value.extend_from_slice(&first_object.to_be_bytes());
    }
}

fn parse_layout(value: &[u8]) -> Option<Layout> {
    let [stripe_bytes_log2, a, b, c, d, ref rest @ ..] = *value else { return None };
    let (stripe_count, first_ost) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let (osts, replicas, first_object) = match *rest {
        // Before format 3.
        [] => (0, 1, 0),
        [e, f] => (u16::from_be_bytes([e, f]), 1, 0),
        [e, f, replicas] => (u16::from_be_bytes([e, f]), replicas, 0),
        [e, f, replicas, g, h] => {
            (u16::from_be_bytes([e, f]), replicas, u16::from_be_bytes([g, h]))
        }
        _ => return None,
    };
    let layout =
        Layout { stripe_bytes_log2, stripe_count, first_ost, osts, replicas, first_object };
    layout.is_valid().then_some(layout)
}
