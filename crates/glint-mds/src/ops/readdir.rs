//! readdir, with attributes if asked for.
//!
//! Invariant: entries come in the order of their cookies, and a cookie belongs to
//! a name for good. So a listing that goes on after any change sees every entry
//! that was there all the time exactly once.

use crate::error::{OpResult, errno};
use crate::service::{Context, Mds};
use crate::store::keys::{self, COOKIE_DOT, COOKIE_DOT_DOT};
use glint_kv::{Keyspace, Kv, Pair};
use glint_proto::limits::{DIR_PAGE_BYTES_MAX, DIR_PAGE_ENTRIES_MAX};
use glint_proto::lock::Bits;
use glint_proto::posix::READ;
use glint_proto::{Attr, DirEntry, DirPage, Errno, FileType, FsResult, Ino, MdsReply};

/// Bytes that an entry takes on the wire beside its name, without attributes.
const ENTRY_BYTES: usize = 24;
/// Bytes that an entry takes on the wire beside its name, with attributes.
const ENTRY_PLUS_BYTES: usize = 128;

/// Room for entries in a page.
pub(super) struct Room {
    /// Bytes that are left.
    bytes: usize,
    /// Bytes of an entry beside its name.
    each: usize,
    /// Entries that a page has at most.
    entries: usize,
}

impl Room {
    pub(super) fn new(bytes: usize, plus: bool) -> Room {
        let each = if plus { ENTRY_PLUS_BYTES } else { ENTRY_BYTES };
        Room { bytes, each, entries: bytes / (each + 8) }
    }

    /// Entries that a page has at most.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes that a page takes.
    pub(super) fn used(&self, page: &DirPage) -> usize {
        page.entries.iter().map(|entry| self.each + entry.name.len()).sum()
    }
}

impl<K: Kv> Mds<K> {
    pub(crate) async fn readdir(
        &self,
        context: &Context<'_>,
        ino: Ino,
        cookie: u64,
        bytes_max: u32,
        plus: bool,
    ) -> OpResult {
        self.look(context, ino)?;
        let directory = self.inode(ino).await?;
        if !directory.attr.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if context.client != glint_proto::ClientId::IN_PROCESS || cookie == 0 {
            self.permit(&directory, context.cred, READ).await.or_else(|error| {
                // The right to list was checked when the directory was opened.
                if self.opens.is_open(ino) { Ok(()) } else { Err(error) }
            })?;
        }
        let mut page = DirPage::default();
        if directory.attr.nlink == 0 {
            page.end = true;
            return Ok(MdsReply::Dir(page));
        }
        for (at, name, target) in
            [(COOKIE_DOT, &b"."[..], ino), (COOKIE_DOT_DOT, &b".."[..], directory.parent)]
        {
            if cookie < at {
                page.entries.push(DirEntry {
                    ino: target,
                    cookie: at,
                    dirent_type: FileType::Directory.dirent_type(),
                    name: name.to_vec(),
                    attr: None,
                });
            }
        }
        let mut room = Room::new((bytes_max as usize).clamp(4096, DIR_PAGE_BYTES_MAX), plus);
        room.entries = room.entries.min(DIR_PAGE_ENTRIES_MAX);
        if plus && cookie == 0 {
            // Who learns all names knows which there are not.
            self.grant(context, ino, Bits::NEGATIVE);
        }
        let found = self.entries_after(ino, cookie, room.entries + 1).await?;
        self.add_entries(ino, &found, &room, &mut page)?;
        if plus {
            self.add_attributes(context, &mut page).await?;
            if self.is_locking(context) {
                // The names were read before they were granted.
                if self.entries_after(ino, cookie, room.entries + 1).await? != found {
                    self.withhold_bits(context);
                }
            }
        }
        Ok(MdsReply::Dir(page))
    }

    /// Pairs of the engine for the entries of a directory after a cookie.
    pub(super) async fn entries_after(
        &self,
        ino: Ino,
        cookie: u64,
        limit: usize,
    ) -> FsResult<Vec<Pair>> {
        let from = keys::entry_from(ino, cookie.saturating_add(1));
        self.kv.scan(Keyspace::Entry, &from, &keys::after(ino), limit).await.map_err(errno)
    }

    /// Adds the entries that there is room for to a page. `found` are more than that, or all.
    pub(super) fn add_entries(
        &self,
        directory: Ino,
        found: &[Pair],
        room: &Room,
        page: &mut DirPage,
    ) -> FsResult<()> {
        page.end = found.len() <= room.entries;
        let mut bytes = 0;
        for (key, value) in found {
            let parsed = keys::parse_entry(key).zip(keys::parse_entry_value(value));
            let Some(((_, at, name), (target, kind))) = parsed else {
                tracing::error!(%directory, "damaged entry; run `glint fsck`");
                return Err(Errno::EIO);
            };
            bytes += room.each + name.len();
            // Names that share a cookie stay on one page: the next begins after it.
            let same_cookie = page.entries.last().is_some_and(|last| last.cookie == at);
            let is_full = bytes > room.bytes || page.entries.len() >= room.entries;
            if is_full && !same_cookie {
                page.end = false;
                break;
            }
            page.entries.push(DirEntry {
                ino: target,
                cookie: at,
                dirent_type: kind.dirent_type(),
                name: name.to_vec(),
                attr: None,
            });
        }
        Ok(())
    }

    pub(super) async fn add_attributes(
        &self,
        context: &Context<'_>,
        page: &mut DirPage,
    ) -> FsResult<()> {
        if self.is_locking(context) {
            for entry in page.entries.iter().filter(|entry| entry.cookie > COOKIE_DOT_DOT) {
                self.grant(context, entry.ino, Bits::ENTRY);
                self.grant_attributes(context, entry.ino);
            }
        }
        // A delegation is recalled only for who looks at that directory.
        self.tell_attributes(context, page, |entry, _| entry.cookie > COOKIE_DOT_DOT).await
    }

    /// Adds the attributes to entries that `may_tell` them, but where another client knows better
    /// what they are: it is asked by who looks at that inode.
    pub(super) async fn tell_attributes(
        &self,
        context: &Context<'_>,
        page: &mut DirPage,
        may_tell: impl Fn(&DirEntry, &Attr) -> bool,
    ) -> FsResult<()> {
        let inos: Vec<Ino> = page.entries.iter().map(|entry| entry.ino).collect();
        let attributes = self.attributes_of(&inos).await?;
        for (entry, attr) in page.entries.iter_mut().zip(attributes) {
            let is_visible = self.client_locks.is_visible(context.client, entry.ino);
            entry.attr = attr.filter(|attr| is_visible && may_tell(entry, attr));
        }
        Ok(())
    }
}
