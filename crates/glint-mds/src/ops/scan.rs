//! Pages of many directories in one answer, for clients that look at everything once.
//!
//! Invariant: a scan leaves nothing behind: no locks, no opens, no times. It takes from other clients
//! the delegations of the directories that it lists, as any look does, and nothing else.

use crate::error::{OpResult, Stop};
use crate::ops::readdir::Room;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::limits::{SCAN_BYTES_MAX, SCAN_DIRECTORIES_MAX};
use glint_proto::posix::READ;
use glint_proto::{Attr, DirPage, Errno, Ino, MdsReply};

/// Bytes of entries below which no further directory is begun.
const PAGE_BYTES_MIN: usize = 4096;

impl<K: Kv> Mds<K> {
    pub(crate) async fn scan(
        &self,
        context: &Context<'_>,
        directories: &[(Ino, u64)],
        bytes_max: u32,
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
            let page = match self.scan_page(context, *ino, *cookie, &room).await {
                Ok(page) => Ok(page),
                Err(Stop::Refused(errno)) => Err(errno),
                Err(conflict) if pages.is_empty() => return Err(conflict),
                // It is waited for when the client asks for this directory first.
                Err(_) => break,
            };
            left = left.saturating_sub(page.as_ref().map_or(0, |page| room.used(page)));
            pages.push(page);
        }
        Ok(MdsReply::Scanned(pages))
    }

    /// A page of one directory.
    async fn scan_page(
        &self,
        context: &Context<'_>,
        ino: Ino,
        cookie: u64,
        room: &Room,
    ) -> Result<DirPage, Stop> {
        self.look_at_number(context, ino).await?;
        self.look(context, ino)?;
        let directory = self.directory(ino).await?;
        self.permit(&directory, context.cred, READ).await?;
        let mut page = DirPage::default();
        self.add_entries(ino, cookie, room, &mut page).await?;
        let is_known = |attr: &Attr| !(attr.is_file() && attr.size_on_ost);
        self.tell_attributes(context, &mut page, |_, attr| is_known(attr)).await?;
        Ok(page)
    }
}
