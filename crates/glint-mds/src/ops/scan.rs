//! Pages of many directories in one answer, for clients that look at everything once.
//!
//! Invariant: a scan leaves nothing behind: no locks, no opens, no times. It takes from other clients
//! the delegations of the directories that it lists, as any look does, and nothing else.

use crate::error::{OpResult, Stop};
use crate::ops::readdir::Room;
use crate::service::{Context, Mds};
use futures_util::StreamExt;
use glint_kv::Kv;
use glint_proto::limits::{SCAN_BYTES_MAX, SCAN_DIRECTORIES_MAX};
use glint_proto::posix::{EXEC, READ, ScanFilter};
use glint_proto::{Attr, DirEntry, DirPage, Errno, FsResult, Ino, MdsReply, Timestamp};

/// Files whose writers are asked at once.
const GLIMPSES_AT_ONCE: usize = 64;
/// Bytes of entries below which no further directory is begun.
const PAGE_BYTES_MIN: usize = 4096;

impl<K: Kv> Mds<K> {
    pub(crate) async fn scan(
        &self,
        context: &Context<'_>,
        directories: &[(Ino, u64)],
        bytes_max: u32,
        filter: Option<&ScanFilter>,
    ) -> OpResult {
        if directories.is_empty() || directories.len() > SCAN_DIRECTORIES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let mut left = (bytes_max as usize).clamp(PAGE_BYTES_MIN, SCAN_BYTES_MAX);
        let mut pages = Vec::with_capacity(directories.len());
        for (ino, cookie) in directories {
            if left < PAGE_BYTES_MIN {
                break;
            }
            let room = Room::new(left, true);
            let page = match self.scan_page(context, *ino, *cookie, &room, filter).await {
                Ok((page, used)) => {
                    left = left.saturating_sub(used);
                    Ok(page)
                }
                Err(Stop::Refused(errno)) => Err(errno),
                Err(conflict) if pages.is_empty() => return Err(conflict),
                // It is waited for when the client asks for this directory first.
                Err(_) => break,
            };
            pages.push(page);
        }
        let unsent = self.unsent(context, &pages).await;
        Ok(MdsReply::Scanned { pages, unsent })
    }

    /// What writers of files in these pages have not yet sent. They are asked at once, so that a scan
    /// takes no request for each.
    async fn unsent(
        &self,
        context: &Context<'_>,
        pages: &[FsResult<DirPage>],
    ) -> Vec<(Ino, u64, Timestamp)> {
        let entries = pages.iter().flatten().flat_map(|page| &page.entries);
        let written =
            entries.filter_map(|entry| entry.attr.as_ref()).filter(|attr| is_written(attr));
        let glimpse = |ino: Ino| async move {
            let (size, mtime) = self.glimpse(context, ino).await?;
            Some((ino, size, mtime))
        };
        let glimpses = futures_util::stream::iter(written.map(|attr| glimpse(attr.ino)));
        glimpses.buffer_unordered(GLIMPSES_AT_ONCE).filter_map(std::future::ready).collect().await
    }

    /// A page of one directory, and the bytes that it counts for: those of all entries that were looked
    /// at, so that a request costs no more where few of them are wanted.
    async fn scan_page(
        &self,
        context: &Context<'_>,
        ino: Ino,
        cookie: u64,
        room: &Room,
        filter: Option<&ScanFilter>,
    ) -> Result<(DirPage, usize), Stop> {
        self.look_at_number(context, ino).await?;
        self.look(context, ino)?;
        let directory = self.directory(ino).await?;
        self.permit(&directory, context.cred, READ).await?;
        let mut page = DirPage::default();
        self.add_entries(ino, cookie, room, &mut page).await?;
        let used = room.used(&page);
        let mut filter = filter;
        if filter.is_some() && self.permit(&directory, context.cred, EXEC).await.is_err() {
            // Who may not search it hears that of each file.
            filter = None;
        }
        if let Some(filter) = filter {
            keep(&mut page, |entry| filter.wants_name(&entry.name, entry.dirent_type));
        }
        self.tell_attributes(context, &mut page, |_| true).await?;
        if let Some(filter) = filter {
            let may_be_wanted = |attr: &Attr| is_written(attr) || filter.wants(attr);
            keep(&mut page, |entry| entry.attr.as_ref().is_none_or(may_be_wanted));
        }
        Ok((page, used))
    }
}

/// Whether only its objects and its writers know the size and the times of a file.
fn is_written(attr: &Attr) -> bool {
    attr.is_file() && attr.size_on_ost
}

/// Keeps the wanted entries of a page, and the one that the next page begins after.
fn keep(page: &mut DirPage, wants: impl Fn(&DirEntry) -> bool) {
    let last = page.entries.last().filter(|_| !page.end).map(|last| last.cookie);
    page.entries.retain(|entry| last == Some(entry.cookie) || wants(entry));
}
