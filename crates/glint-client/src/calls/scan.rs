//! Directories as a scan sees them: pages of many in one request, nothing of which is cached.

use crate::client::Client;
use crate::vfs::{Caller, Found, Vfs};
use futures_util::StreamExt;
use glint_net::Transport;
use glint_proto::limits::SCAN_BYTES_MAX;
use glint_proto::posix::ScanFilter;
use glint_proto::{
    Attr, DirEntry, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest, Timestamp,
};
use std::collections::HashMap;

/// Files of a page that are asked about at once: others are changing them.
const LOOKUPS_AT_ONCE: usize = 32;

/// What writers of files have not yet sent to the objects: the size, and the time.
type Unsent = HashMap<Ino, (u64, Timestamp)>;

/// An entry of a directory that is scanned.
#[derive(Clone, Debug)]
pub struct ScannedEntry {
    /// Name.
    pub name: Vec<u8>,
    /// Inode.
    pub ino: Ino,
    /// Type as the directory has it; `None` if it is one that nobody knows.
    pub kind: Option<FileType>,
    /// Attributes, or why they are not to be had.
    pub attr: FsResult<Attr>,
}

/// A page of a directory that is scanned.
#[derive(Clone, Default, Debug)]
pub struct ScannedPage {
    /// Entries, without `.` and `..`.
    pub entries: Vec<ScannedEntry>,
    /// Cookie to go on after; `None` if nothing follows.
    pub next: Option<u64>,
}

impl<T: Transport> Client<T> {
    /// Lists directories, each from a cookie on (0 to begin). Returns pages of the first of them, at
    /// least of one; the others have to be asked for again. Whoever may read a directory is told the
    /// attributes, too, even if it may not be searched.
    pub async fn scan(
        &self,
        caller: &Caller,
        directories: &[(Ino, u64)],
        filter: Option<&ScanFilter>,
    ) -> FsResult<Vec<FsResult<ScannedPage>>> {
        let reply = match self.ask_scan(caller, directories, filter).await {
            // One of them may be gone, or where this client sees nothing: the others are there.
            Err(_) if directories.len() > 1 => {
                match self.ask_scan(caller, &directories[..1], filter).await {
                    Err(error) => return Ok(vec![Err(error)]),
                    reply => reply?,
                }
            }
            reply => reply?,
        };
        let MdsReply::Scanned { pages, unsent } = reply else { return Err(Errno::EPROTO) };
        if !(1..=directories.len()).contains(&pages.len()) {
            return Err(Errno::EPROTO);
        }
        let unsent: Unsent =
            unsent.into_iter().map(|(ino, size, mtime)| (ino, (size, mtime))).collect();
        let mut scanned = Vec::with_capacity(pages.len());
        for (page, (directory, cookie)) in pages.into_iter().zip(directories) {
            let page = match page {
                Ok(page) => page,
                Err(error) => {
                    scanned.push(Err(error));
                    continue;
                }
            };
            let next = match (page.end, page.entries.last()) {
                (true, _) => None,
                (false, Some(last)) if last.cookie > *cookie => Some(last.cookie),
                _ => return Err(Errno::EPROTO),
            };
            let entries = self.scanned_entries(caller, *directory, page.entries, &unsent).await;
            scanned.push(Ok(ScannedPage { entries, next }));
        }
        Ok(scanned)
    }

    async fn ask_scan(
        &self,
        caller: &Caller,
        directories: &[(Ino, u64)],
        filter: Option<&ScanFilter>,
    ) -> FsResult<MdsReply> {
        let (directories, bytes_max) = (directories.to_vec(), SCAN_BYTES_MAX as u32);
        let filter = filter.cloned().map(Box::new);
        self.ask(caller, &MdsRequest::Scan { directories, bytes_max, filter }).await
    }

    /// Entries with attributes: those that did not come with the page are asked for, and the objects of
    /// files that are written.
    async fn scanned_entries(
        &self,
        caller: &Caller,
        directory: Ino,
        entries: Vec<DirEntry>,
        unsent: &Unsent,
    ) -> Vec<ScannedEntry> {
        let is_whole =
            entries.iter().all(|entry| entry.attr.as_ref().is_some_and(|attr| !attr.size_on_ost));
        let lookups = entries.into_iter().map(|entry| async move {
            let DirEntry { name, ino, dirent_type, attr, .. } = entry;
            let kind = FileType::from_dirent_type(dirent_type);
            match attr {
                // What allows to ask the objects comes with a lookup.
                Some(attr) if attr.size_on_ost && self.parameters.needs_capabilities => {}
                Some(attr) if attr.size_on_ost => {
                    let whole = self.with_unsent(attr, unsent.get(&ino).copied()).await;
                    // One without data may be elsewhere or gone by now: its attributes are as old as the
                    // slowest answer of a writer.
                    let is_doubtful = match &whole {
                        Ok(attr) => attr.blocks == 0,
                        Err(error) => matches!(*error, Errno::ENOENT | Errno::ESTALE),
                    };
                    if !is_doubtful {
                        return ScannedEntry { name, ino, kind, attr: whole };
                    }
                }
                Some(attr) => return ScannedEntry { name, ino, kind, attr: Ok(attr) },
                None => {}
            }
            match self.lookup(caller, directory, &name).await {
                // The name may be another file's by now.
                Ok(Found { attr, .. }) => {
                    let (ino, kind) = (attr.ino, FileType::from_mode(attr.mode));
                    ScannedEntry { name, ino, kind, attr: Ok(attr) }
                }
                Err(error) => ScannedEntry { name, ino, kind, attr: Err(error) },
            }
        });
        if is_whole {
            let mut whole = Vec::with_capacity(lookups.len());
            for entry in lookups {
                whole.push(entry.await);
            }
            return whole;
        }
        futures_util::stream::iter(lookups).buffered(LOOKUPS_AT_ONCE).collect().await
    }
}
