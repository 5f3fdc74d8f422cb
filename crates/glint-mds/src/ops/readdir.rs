//! readdir, with attributes if asked for.
//!
//! Invariant: entries come in the order of their cookies, and a cookie belongs to
//! a name for good. So a listing that goes on after any change sees every entry
//! that was there all the time exactly once.

use crate::error::{OpResult, errno};
use crate::service::{Context, Mds};
use crate::store::keys;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::{
    DIR_ENTRY_BYTES, DIR_ENTRY_PLUS_BYTES, DIR_PAGE_ENTRIES_MAX, dir_page_bytes,
};
use glint_proto::lock::Bits;
use glint_proto::posix::{COOKIE_DOT, COOKIE_DOT_DOT, READ};
use glint_proto::{DirEntry, DirPage, Errno, FileType, FsResult, Ino, MdsReply};

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
        let each = if plus { DIR_ENTRY_PLUS_BYTES } else { DIR_ENTRY_BYTES };
        Room { bytes, each, entries: bytes / (each + 8) }
    }

    /// Bytes that a page takes.
    pub(super) fn used(&self, page: &DirPage) -> usize {
        page.entries.iter().map(|entry| self.each + entry.name.len()).sum()
    }
}

/// An entry of a directory, as the engine shows it.
struct StoredEntry<'a> {
    cookie: u64,
    name: &'a [u8],
    ino: Ino,
    kind: FileType,
}

impl StoredEntry<'_> {
    /// As clients are told of it.
    fn to_tell(&self) -> DirEntry {
        DirEntry {
            ino: self.ino,
            cookie: self.cookie,
            dirent_type: self.kind.dirent_type(),
            name: self.name.to_vec(),
            attr: None,
        }
    }

    /// Whether it is the one that a client is told of.
    fn is(&self, told: &DirEntry) -> bool {
        let kind = self.kind.dirent_type();
        (self.ino, self.cookie, kind) == (told.ino, told.cookie, told.dirent_type)
            && self.name == told.name
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
        let mut room = Room::new(dir_page_bytes(bytes_max), plus);
        room.entries = room.entries.min(DIR_PAGE_ENTRIES_MAX);
        if plus && cookie == 0 {
            // Who learns all names knows which there are not.
            self.grant(context, ino, Bits::NEGATIVE);
        }
        self.add_entries(ino, cookie, &room, &mut page).await?;
        if plus {
            self.add_attributes(context, &mut page).await?;
            // The names were read before they were granted.
            if self.is_locking(context) && !self.is_as_read(ino, cookie, &room, &page).await? {
                self.withhold_bits(context);
            }
        }
        Ok(MdsReply::Dir(page))
    }

    /// Shows `visit` the entries of a directory after a cookie, until it wants no more; at most one
    /// more than there may be in a page.
    async fn entries_after(
        &self,
        directory: Ino,
        cookie: u64,
        room: &Room,
        mut visit: impl FnMut(StoredEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let from = keys::entry_from(directory, cookie.saturating_add(1));
        let (to, limit) = (keys::after(directory), room.entries + 1);
        let (mut is_done, mut is_damaged) = (false, false);
        let parse = |key: &[u8], value: &[u8]| {
            if is_done || is_damaged {
                return;
            }
            match keys::parse_entry(key).zip(keys::parse_entry_value(value)) {
                Some(((_, cookie, name), (ino, kind))) => {
                    is_done = !visit(StoredEntry { cookie, name, ino, kind });
                }
                None => is_damaged = true,
            }
        };
        self.kv.scan_each(Keyspace::Entry, &from, &to, limit, parse).await.map_err(errno)?;
        if is_damaged {
            tracing::error!(%directory, "damaged entry; run `glint fsck`");
            return Err(Errno::EIO);
        }
        Ok(())
    }

    /// Adds the entries after a cookie that there is room for to a page.
    pub(super) async fn add_entries(
        &self,
        directory: Ino,
        cookie: u64,
        room: &Room,
        page: &mut DirPage,
    ) -> FsResult<()> {
        let (mut bytes, mut found, mut is_full) = (0, 0, false);
        let entries = &mut page.entries;
        let add = |entry: StoredEntry<'_>| {
            found += 1;
            bytes += room.each + entry.name.len();
            // Names that share a cookie stay on one page: the next begins after it.
            let same_cookie = entries.last().is_some_and(|last| last.cookie == entry.cookie);
            let has_room = bytes <= room.bytes && entries.len() < room.entries;
            is_full |= !has_room && !same_cookie;
            if !is_full {
                entries.push(entry.to_tell());
            }
            !is_full
        };
        self.entries_after(directory, cookie, room, add).await?;
        page.end = !is_full && found <= room.entries;
        Ok(())
    }

    /// Whether the entries after a cookie are still those that a page has.
    async fn is_as_read(
        &self,
        directory: Ino,
        cookie: u64,
        room: &Room,
        page: &DirPage,
    ) -> FsResult<bool> {
        let mut read = page.entries.iter().filter(|entry| entry.cookie > COOKIE_DOT_DOT);
        let mut is_same = true;
        let compare = |entry: StoredEntry<'_>| {
            let read = read.next();
            // What comes after the page was not read.
            is_same = read.map_or(!page.end, |read| entry.is(read));
            is_same && read.is_some()
        };
        self.entries_after(directory, cookie, room, compare).await?;
        Ok(is_same && read.next().is_none())
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
        self.tell_attributes(context, page, |entry| entry.cookie > COOKIE_DOT_DOT).await?;
        for attr in page.entries.iter().filter_map(|entry| entry.attr.as_ref()) {
            self.withhold_uncertain(context, attr);
        }
        Ok(())
    }

    /// Adds the attributes to entries that `may_tell` them, but where another client knows better
    /// what they are: it is asked by who looks at that inode.
    pub(super) async fn tell_attributes(
        &self,
        context: &Context<'_>,
        page: &mut DirPage,
        may_tell: impl Fn(&DirEntry) -> bool,
    ) -> FsResult<()> {
        // Before the attributes are read: what is visible stays so, but a delegation that is returned
        // after the read would make attributes look true that its holder has changed.
        let is_visible =
            |entry: &&mut DirEntry| self.client_locks.is_visible(context.client, entry.ino);
        let visible: Vec<&mut DirEntry> = page.entries.iter_mut().filter(is_visible).collect();
        let inos: Vec<Ino> = visible.iter().map(|entry| entry.ino).collect();
        let attributes = self.attributes_of(&inos).await?;
        for (entry, attr) in visible.into_iter().zip(attributes) {
            // One without a name has been removed since the page was read.
            entry.attr = attr.filter(|attr| attr.nlink > 0 && may_tell(entry));
        }
        Ok(())
    }
}
