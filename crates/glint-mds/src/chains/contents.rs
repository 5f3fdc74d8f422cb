//! The objects of a chain, for a member that is to be given all of them.
//!
//! Invariant: an object that a file has while all pages are read, or is given meanwhile by a client
//! that moves its data, is in a page. Those that are to be destroyed are in none.

use crate::error::errno;
use crate::service::Mds;
use crate::store::keys::Orphan;
use glint_kv::{Keyspace, Kv};
use glint_proto::limits::OBJECTS_PER_PAGE_MAX;
use glint_proto::oss::ObjectPage;
use glint_proto::{Errno, FsResult, Ino, Layout, ObjectId};

/// Inodes that are looked at for one page.
const INODES: usize = 1024;

impl<K: Kv> Mds<K> {
    /// A page of the objects of a chain, those after this one. EAGAIN while files may come back that
    /// clients made before a loss of power.
    pub async fn objects_of(&self, target: u16, after: ObjectId) -> FsResult<ObjectPage> {
        if self.is_recovering() {
            return Err(Errno::EAGAIN);
        }
        // Before the files: a plan that is not there any more is the file's layout.
        let plans = self.plans_from(after.ino, INODES).await?;
        let (files, next) = self.files_from(after.ino, INODES).await?;
        let page_end = next.unwrap_or(Ino(u64::MAX)).min(plans.next.unwrap_or(Ino(u64::MAX)));
        let layouts = files.into_iter().chain(plans.layouts);
        let mut objects: Vec<ObjectId> = layouts
            .filter(|(ino, layout)| *ino < page_end && layout.replicas > 1)
            .flat_map(|(ino, layout)| {
                let stripes = 0..layout.stripe_count.max(1);
                let on_it = stripes.filter(move |stripe| layout.ost_of(*stripe, 0) == target);
                on_it.map(move |stripe| layout.object(ino, stripe))
            })
            .filter(|object| *object > after)
            .collect();
        objects.sort_unstable();
        objects.dedup();
        let is_full = objects.len() > OBJECTS_PER_PAGE_MAX;
        objects.truncate(OBJECTS_PER_PAGE_MAX);
        let before = |ino: Ino| ObjectId { ino: Ino(ino.0.saturating_sub(1)), stripe: u16::MAX };
        let last = match is_full {
            true => objects.last().copied(),
            false => next.or(plans.next).map(|_| before(page_end)),
        };
        Ok(ObjectPage { objects, last })
    }

    /// Layouts that clients move data to, of inodes from this one on.
    async fn plans_from(&self, from: Ino, most: usize) -> FsResult<Plans> {
        let page = self.kv.scan(Keyspace::Orphan, &from.key(), &[0xff; 11], most).await;
        let page = page.map_err(errno)?;
        let last = page.last().filter(|_| page.len() == most);
        // Of the last inode there may be more.
        let next = last.and_then(|(key, _)| Ino::from_key(key));
        let planned = |(key, value): &(Vec<u8>, Vec<u8>)| match Orphan::parse(value)? {
            Orphan::Planned(layout, _) => Some((Ino::from_key(key)?, layout)),
            Orphan::Open | Orphan::Destroy(_) => None,
        };
        Ok(Plans { layouts: page.iter().filter_map(planned).collect(), next })
    }
}

struct Plans {
    layouts: Vec<(Ino, Layout)>,
    /// Inode that is looked at next, if there are more.
    next: Option<Ino>,
}
