//! Pages of directories that come because names are looked up in these: what of them is kept, and which
//! directories are listed ahead for who goes on (`lookup_order.rs`).

use crate::client::Client;
use crate::listing::known::is_dots;
use crate::listing::lookup_order::{FoundDirectory, GoesOn};
use crate::listing::{DirectoriesAhead, ListingAhead, ListingsAhead};
use crate::vfs::{Caller, Found};
use glint_net::{Transport, host};
use glint_proto::{DirEntry, DirPage, FileType, FsResult, Ino};
use glint_telemetry::Counter;
use std::sync::Weak;
use std::sync::atomic::Ordering;

impl DirectoriesAhead {
    /// Waits for the listing of a directory while it is on its way. Returns whether it was.
    async fn has_waited(&self, directory: Ino) -> bool {
        let mut was_on_its_way = false;
        let look = |all: &mut ListingsAhead| match all.listings.get(&directory) {
            Some(ListingAhead::OnItsWay) => {
                was_on_its_way = true;
                None
            }
            _ => Some(()),
        };
        self.listings.until_with(directory, look).await;
        was_on_its_way
    }
}

impl<T: Transport> Client<T> {
    /// Looks a name up when the listing of its directory has come, if that is on its way.
    pub(crate) async fn lookup_when_listed(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Option<FsResult<Found>> {
        let ahead = &self.directories_ahead;
        if !ahead.is_on() || !caller.may_all() || !ahead.has_waited(parent).await {
            return None;
        }
        self.lookup_locally(caller, parent, name)
    }

    /// The first page of a directory has come because names are looked up in it, and was learned.
    pub(crate) fn on_looked_up(&self, caller: &Caller, directory: Ino, page: DirPage) {
        if !self.directories_ahead.is_on() {
            return;
        }
        if page.end {
            self.note_all_entries(directory, &page.entries);
        }
        self.list_next_for_lookups(caller, directory);
        if page.end && self.is_complete(directory) {
            self.directories_ahead.keep(directory, &page.entries);
        }
    }

    /// Notes what all entries of a directory say of what is next: as if the program had listed it.
    pub(super) fn note_all_entries(&self, directory: Ino, entries: &[DirEntry]) {
        self.note_listing(directory, true, entries);
        let is_directory = |entry: &&DirEntry| {
            entry.dirent_type == FileType::Directory.dirent_type() && !is_dots(entry)
        };
        let found = entries.iter().filter(is_directory).map(|entry| FoundDirectory {
            ino: entry.ino,
            name: entry.name.as_slice().into(),
            is_begun: self.is_complete(entry.ino),
        });
        let found: Vec<FoundDirectory> = found.collect();
        self.directories_ahead.lookups.lock().add(directory, found);
    }

    /// A lookup in a directory was answered without asking.
    pub(crate) fn on_answered(&self, caller: &Caller, directory: Ino) {
        let ahead = &self.directories_ahead;
        if !ahead.has_for_lookups.load(Ordering::Relaxed) {
            return;
        }
        let goes_on = {
            let mut lookups = ahead.lookups.lock();
            let goes_on = lookups.on_answered(directory);
            if !lookups.has_ahead() {
                ahead.has_for_lookups.store(false, Ordering::Relaxed);
            }
            goes_on
        };
        if let Some(GoesOn { was_asked }) = goes_on {
            glint_telemetry::count(Counter::DirectoriesListedAheadUsed, u64::from(was_asked));
            self.list_next_for_lookups(caller, directory);
        }
    }

    /// Names are looked up in a directory: asks for those in which that is likely to be next.
    fn list_next_for_lookups(&self, caller: &Caller, directory: Ino) {
        let Some(client) = self.me.get().and_then(Weak::upgrade) else { return };
        let ahead = &self.directories_ahead;
        let most = ahead.listings.lock().window_max(self.inodes_max());
        let next = {
            let mut lookups = ahead.lookups.lock();
            let next = lookups.begin(directory, most);
            ahead.has_for_lookups.store(lookups.has_ahead(), Ordering::Relaxed);
            next
        };
        for directory in next.into_iter().filter(|next| self.is_to_list(*next)) {
            if let Some(on_its_way) = ahead.begin(directory, false) {
                ahead.lookups.lock().note_asked(directory);
                host::spawn(client.clone().list_ahead(caller.clone(), on_its_way));
            }
        }
    }

    fn is_complete(&self, directory: Ino) -> bool {
        self.cache.find(directory).is_some_and(|inode| inode.lock().dentries.is_complete())
    }
}
