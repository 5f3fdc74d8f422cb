//! Pages of the namespace, for a check that goes on beside requests.
//!
//! Invariant: nothing waits for a check, and what it holds here is one page.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use crate::store::record::InodeRecord;
use glint_kv::{Keyspace, Kv};
use glint_proto::chain::ChainId;
use glint_proto::limits::{CHECKED_RECORDS_MAX, DAMAGE_CHARS_MAX, NAME_BYTES_MAX};
use glint_proto::message::{EntryFact, EntryPlace, InodeFact, NamespacePage, NamespaceQuery};
use glint_proto::{Attr, Errno, FsResult, Ino, Layout};

impl<K: Kv> Mds<K> {
    /// Reads a part of the namespace.
    pub async fn namespace_page(&self, query: NamespaceQuery) -> FsResult<NamespacePage> {
        match query {
            NamespaceQuery::Inodes(from) => self.page_of_inodes(from).await,
            NamespaceQuery::Entries(from) => self.page_of_entries(&from).await,
            NamespaceQuery::Again { inodes, entries } => self.look_again(&inodes, &entries).await,
            // Whoever has OSTs, too, is asked about objects.
            NamespaceQuery::Stored { .. }
            | NamespaceQuery::StoredAgain { .. }
            | NamespaceQuery::Uses(_)
            | NamespaceQuery::Ends(_) => Err(Errno::EOPNOTSUPP),
        }
    }

    async fn page_of_inodes(&self, from: Ino) -> FsResult<NamespacePage> {
        let (from, to) = (from.key(), [0xff; 9]);
        let found = self.kv.scan(Keyspace::Inode, &from, &to, CHECKED_RECORDS_MAX).await;
        let found = found.map_err(errno)?;
        let mut page = NamespacePage::default();
        for (key, value) in &found {
            self.add_inode(&mut page, key, value);
        }
        let last = found.last().filter(|_| found.len() == CHECKED_RECORDS_MAX);
        page.next = last.map(|(key, _)| NamespaceQuery::Inodes(after(key)));
        Ok(page)
    }

    async fn page_of_entries(&self, from: &[u8]) -> FsResult<NamespacePage> {
        let found = self.kv.scan(Keyspace::Entry, from, &[0xff; 9], CHECKED_RECORDS_MAX).await;
        let found = found.map_err(errno)?;
        let mut page = NamespacePage::default();
        for (key, value) in &found {
            self.add_entry(&mut page, key, value);
        }
        let last = found.last().filter(|_| found.len() == CHECKED_RECORDS_MAX);
        page.next = last.map(|(key, _)| NamespaceQuery::Entries([key.as_slice(), &[0]].concat()));
        Ok(page)
    }

    /// Reads records once more. An inode that is not there before its entry is read, and was
    /// named by that, has been removed with it, unless it never was there.
    async fn look_again(&self, inodes: &[Ino], entries: &[EntryPlace]) -> FsResult<NamespacePage> {
        if inodes.len() + entries.len() > CHECKED_RECORDS_MAX {
            return Err(Errno::EINVAL);
        }
        let mut page = NamespacePage::default();
        for ino in inodes {
            let key = ino.key();
            if let Some(value) = self.kv.get(Keyspace::Inode, &key).await.map_err(errno)? {
                self.add_inode(&mut page, &key, value.as_ref());
            }
        }
        for EntryPlace { parent, cookie, name } in entries {
            let key = [keys::entry_from(*parent, *cookie).as_slice(), name.as_slice()].concat();
            if let Some(value) = self.kv.get(Keyspace::Entry, &key).await.map_err(errno)? {
                self.add_entry(&mut page, &key, value.as_ref());
            }
        }
        Ok(page)
    }

    fn add_inode(&self, page: &mut NamespacePage, key: &[u8], value: &[u8]) {
        let Some(ino) = Ino::from_key(key).filter(|_| key.len() == 8) else {
            return page.damaged.push(clipped(&format!("inode key {key:02x?} is malformed")));
        };
        match InodeRecord::decode(ino, value) {
            Ok(InodeRecord { attr, parent, .. }) => page.inodes.push(InodeFact {
                ino,
                kind: attr.file_type(),
                links: attr.nlink,
                parent,
                ctime: attr.ctime,
                missing_target: self.missing_target(&attr),
            }),
            Err(error) => page.damaged.push(clipped(&format!("inode {ino}: {error}"))),
        }
    }

    fn add_entry(&self, page: &mut NamespacePage, key: &[u8], value: &[u8]) {
        let parsed = keys::parse_entry(key).filter(|(.., name)| name.len() <= NAME_BYTES_MAX);
        let Some((parent, cookie, name)) = parsed else {
            return page.damaged.push(clipped(&format!("entry key {key:02x?} is malformed")));
        };
        let Some((ino, kind)) = keys::parse_entry_value(value) else {
            let name = String::from_utf8_lossy(name);
            let damage = format!("entry in {parent} has a malformed value: {name:?}");
            return page.damaged.push(clipped(&damage));
        };
        let is_misplaced = self.cookie(name) != cookie;
        let place = EntryPlace { parent, cookie, name: name.to_vec() };
        page.entries.push(EntryFact { place, ino, kind, is_misplaced });
    }

    /// An OST, or a chain, that a file lies on and that does not exist. Files without stated OSTs
    /// lie on those of this server.
    fn missing_target(&self, attr: &Attr) -> Option<u16> {
        let Layout { first_ost, stripe_count, osts, replicas, .. } = attr.layout;
        let is_chain = replicas > 1;
        let there = if is_chain { self.chains.count(replicas) } else { self.osts() };
        if !attr.is_file() || osts <= there {
            return None;
        }
        let last = u32::from(first_ost % osts) + u32::from(stripe_count.max(1)) - 1;
        let index = last.min(u32::from(osts) - 1) as u16;
        let target = if is_chain { ChainId { copies: replicas, index }.target() } else { index };
        (index >= there).then_some(target)
    }
}

/// The inode number after a key, which may be malformed.
pub(super) fn after(key: &[u8]) -> Ino {
    let mut bytes = [0; 8];
    bytes.iter_mut().zip(key).for_each(|(byte, of_key)| *byte = *of_key);
    Ino(u64::from_be_bytes(bytes).saturating_add(1))
}

fn clipped(text: &str) -> String {
    text.chars().take(DAMAGE_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_goes_on_after_any_key() {
        assert_eq!(after(&Ino(7).key()), Ino(8));
        assert_eq!(after(&[0; 20]), Ino(1));
        assert_eq!(after(&[0, 0, 0, 0, 0, 0, 1]), Ino(257));
        assert_eq!(after(&[0xff; 8]), Ino(u64::MAX));
    }
}
