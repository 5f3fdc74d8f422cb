//! Directories that are listed from memory: all of their names are known, and no other client can
//! make, move or remove one.
//!
//! Entries have the cookies that the MDS gives them, and come in its order: both follow from the names
//! alone. So a program may read one page from here and the next one from the MDS, and go on after names
//! were made or removed, or go back, as with any other listing.
//!
//! Invariants:
//! - At the end of a page's call the directory had each name of it, and names that it had since the
//!   call began are not left out.
//! - Names that share a cookie are on one page: the next begins after it.
//! - Nothing is kept for that but what the cache has anyway.

use crate::cache::Cache;
use crate::cache::inode::InodeState;
use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::listing::ListedPage;
use crate::listing::known::keeps_names;
use crate::vfs::{Caller, Listing, Valid};
use glint_net::Transport;
use glint_proto::limits::{
    DIR_ENTRY_BYTES, DIR_ENTRY_PLUS_BYTES, DIR_PAGE_BYTES_MAX, DIR_PAGE_ENTRIES_MAX, dir_page_bytes,
};
use glint_proto::lock::Bits;
use glint_proto::posix::{COOKIE_DOT, COOKIE_DOT_DOT, cookie};
use glint_proto::{DirEntry, FileType, Ino};
use parking_lot::Mutex;

/// Names of a directory, all of which are looked at for each page. The MDS lists larger ones, which is
/// as fast then.
const NAMES_MAX: usize = 8192;

/// The order in which the MDS lists names, once it has told.
#[derive(Default)]
pub(crate) struct NameOrder(Mutex<Option<u64>>);

impl NameOrder {
    /// The MDS makes cookies with this seed.
    pub(crate) fn note(&self, seed: u64) {
        *self.0.lock() = Some(seed);
    }

    fn seed(&self) -> Option<u64> {
        *self.0.lock()
    }
}

/// A name at its place in a listing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct NameAt<'a> {
    cookie: u64,
    name: &'a [u8],
    ino: Ino,
}

/// An entry, as a server tells of it without attributes.
fn entry(ino: Ino, cookie: u64, name: &[u8], kind: FileType) -> DirEntry {
    DirEntry { ino, cookie, dirent_type: kind.dirent_type(), name: name.to_vec(), attr: None }
}

/// A page that a program asks for.
#[derive(Clone, Copy)]
struct WantedPage {
    /// It begins after this cookie.
    after: u64,
    /// Bytes for which there is room, and those of an entry beside its name.
    bytes: usize,
    each: usize,
}

impl WantedPage {
    fn new(after: u64, bytes_max: u32, plus: bool) -> WantedPage {
        let each = if plus { DIR_ENTRY_PLUS_BYTES } else { DIR_ENTRY_BYTES };
        WantedPage { after, bytes: dir_page_bytes(bytes_max), each }
    }

    /// Names that there is room for, at most, if they share no cookie.
    fn names_max(&self) -> usize {
        (self.bytes / (self.each + 1)).min(DIR_PAGE_ENTRIES_MAX)
    }

    /// The first of these names that there is room for, and whether no others follow; `None` if too
    /// many share a cookie.
    fn of<'a>(self, names: impl Iterator<Item = NameAt<'a>>) -> Option<(Vec<NameAt<'a>>, bool)> {
        let mut page: Vec<NameAt<'a>> = names.filter(|at| at.cookie > self.after).collect();
        let most = self.names_max() + 1;
        let is_cut = page.len() > most;
        if is_cut {
            page.select_nth_unstable(most);
            page.truncate(most);
        }
        page.sort_unstable();
        let (mut len, mut bytes) = (0, 0);
        for (index, at) in page.iter().enumerate() {
            bytes += self.each + at.name.len();
            let same_cookie = index > 0 && page[index - 1].cookie == at.cookie;
            let has_room = bytes <= self.bytes && index < DIR_PAGE_ENTRIES_MAX;
            if !has_room && !same_cookie {
                break;
            }
            len = index + 1;
        }
        let is_end = len == page.len();
        if is_cut && is_end {
            // Others that were cut off may share the last cookie.
            return None;
        }
        page.truncate(len);
        Some((page, is_end))
    }
}

/// Whether all names of a directory are known, nobody else can make one, and they are not too many.
/// While this client asks for a change, others may see it before the answer has come.
fn is_whole(state: &InodeState) -> bool {
    let is_protected = state.rare.delegation.is_delegated() || state.has(Bits::NEGATIVE);
    let is_known = state.dentries.is_complete() && !state.is_updating();
    is_protected && is_known && state.dentries.children() <= NAMES_MAX
}

/// What a name of this directory leads to, if that is known, and others cannot move it.
fn kind_in(state: &InodeState, directory: Ino) -> Option<FileType> {
    let attr = state.attributes().filter(|_| keeps_names(state, directory))?;
    FileType::from_mode(attr.mode)
}

/// The directory above this one, if that is known, and others cannot move it.
fn parent_of(state: &InodeState, directory: Ino) -> Option<Ino> {
    match directory == Ino::ROOT {
        true => Some(Ino::ROOT),
        false => state.parent().filter(|parent| keeps_names(state, *parent)),
    }
}

impl Cache {
    /// The entries of a page, and whether no others follow; `None` if not all that it tells is known.
    fn page_from_memory(
        &self,
        directory: Ino,
        seed: u64,
        wanted: WantedPage,
    ) -> Option<(Vec<DirEntry>, bool)> {
        let inode = self.find(directory)?;
        let (names, is_end) = {
            let state = inode.lock();
            if !is_whole(&state) {
                return None;
            }
            let names = state.dentries.iter();
            let names = names.map(|(name, ino)| NameAt { cookie: cookie(name, seed), name, ino });
            let (page, is_end) = wanted.of(names)?;
            let names: Vec<(u64, Box<[u8]>, Ino)> =
                page.iter().map(|at| (at.cookie, at.name.into(), at.ino)).collect();
            (names, is_end)
        };
        // Before the directory is looked at again: a name that leads elsewhere is lost here first, and
        // there before the lock is given back.
        let mut entries = Vec::with_capacity(names.len());
        for (cookie, name, ino) in &names {
            let child = self.find(*ino)?;
            let kind = kind_in(&child.lock(), directory)?;
            entries.push(entry(*ino, *cookie, name, kind));
        }
        let state = inode.lock();
        let is_there = |told: &DirEntry| state.child(&told.name) == Some(told.ino);
        if !is_whole(&state) || !entries.iter().all(is_there) {
            return None;
        }
        let mut page = Vec::with_capacity(entries.len() + 2);
        if wanted.after < COOKIE_DOT {
            page.push(entry(directory, COOKIE_DOT, b".", FileType::Directory));
        }
        if wanted.after < COOKIE_DOT_DOT {
            let parent = parent_of(&state, directory)?;
            page.push(entry(parent, COOKIE_DOT_DOT, b"..", FileType::Directory));
        }
        page.extend(entries);
        Some((page, is_end))
    }

    /// Whether all that the first page of a directory tells is known, as far as is seen without making
    /// it: of a large directory as many names as a page has are looked at, whichever these are.
    fn may_tell(&self, directory: Ino) -> bool {
        let Some(inode) = self.find(directory) else { return false };
        let children: Vec<Ino> = {
            let state = inode.lock();
            if !is_whole(&state) || parent_of(&state, directory).is_none() {
                return false;
            }
            let most = WantedPage::new(0, DIR_PAGE_BYTES_MAX as u32, true).names_max();
            state.dentries.iter().take(most).map(|(_, ino)| ino).collect()
        };
        let is_told = |ino: Ino| {
            let child = self.find(ino);
            child.is_some_and(|child| kind_in(&child.lock(), directory).is_some())
        };
        children.into_iter().all(is_told)
    }
}

impl<T: Transport> Client<T> {
    /// Whether the first page of a directory need not be asked for.
    pub(super) fn is_in_memory(&self, directory: Ino) -> bool {
        self.name_order.seed().is_some() && self.cache.may_tell(directory)
    }

    /// Lists a page of a directory from memory; `None` if the MDS has to be asked.
    pub(crate) fn list_from_memory(
        &self,
        caller: &Caller,
        file: &OpenFile,
        (after, bytes_max): (u64, u32),
        plus: bool,
    ) -> Option<Listing> {
        if !self.has_locks() || !caller.may_all() || self.is_suspended() {
            return None;
        }
        let (directory, seed) = (file.ino, self.name_order.seed()?);
        let wanted = WantedPage::new(after, bytes_max, plus);
        let (mut entries, is_end) = self.cache.page_from_memory(directory, seed, wanted)?;
        file.pages_ahead.go(after, &entries);
        let page = ListedPage { is_begin: after == 0, is_end, was_ahead: false };
        self.note_told(caller, file, page, &entries);
        let told = |entry: &mut DirEntry| match plus {
            true => self.cache.add_attributes(directory, entry),
            false => Valid::default(),
        };
        let valid = entries.iter_mut().map(told).collect();
        Some(Listing { entries, valid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::in_flight::Asked;
    use glint_proto::lock::Grant;
    use glint_proto::{Attr, Timestamp};
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    const DIRECTORY: Ino = Ino(7);
    const FILE: Ino = Ino(8);
    const OTHER: Ino = Ino(9);

    /// A cache that has all of a directory with two files.
    fn cache() -> Cache {
        let cache = Cache::new(Arc::default());
        let inos = [Ino::ROOT, DIRECTORY, FILE, OTHER];
        let grants = inos.map(|ino| Grant::Bits { ino, bits: Bits::SHARED, number: 1 });
        cache.learn_grants(&grants, cache.generation());
        let learn = |parent, name: &[u8], ino, kind: FileType| {
            let attr = Attr::new(ino, kind.mode_bits() | 0o755, Timestamp::default());
            cache.learn_name(parent, name, &attr, &Asked::under(&inos), true);
        };
        learn(Ino::ROOT, b"d", DIRECTORY, FileType::Directory);
        learn(DIRECTORY, b"a", FILE, FileType::Regular);
        learn(DIRECTORY, b"b", OTHER, FileType::Symlink);
        cache.inode(DIRECTORY).lock().dentries.set_complete(true);
        cache
    }

    /// What is told of the directory after a cookie.
    fn page(cache: &Cache, after: u64) -> Option<Vec<(Ino, FileType)>> {
        let wanted = WantedPage::new(after, 0, true);
        let (entries, is_end) = cache.page_from_memory(DIRECTORY, 7, wanted)?;
        assert!(is_end && entries.is_sorted_by_key(|entry| entry.cookie));
        let kind = |entry: &DirEntry| FileType::from_dirent_type(entry.dirent_type).unwrap();
        let mut told: Vec<_> = entries.iter().map(|entry| (entry.ino, kind(entry))).collect();
        told.sort_unstable_by_key(|(ino, _)| *ino);
        Some(told)
    }

    #[test]
    fn what_others_can_change_is_not_told() {
        let (directory, regular, link) =
            (FileType::Directory, FileType::Regular, FileType::Symlink);
        let names = [(FILE, regular), (OTHER, link)];
        assert_eq!(page(&cache(), COOKIE_DOT_DOT).unwrap(), names);
        let all = page(&cache(), 0).unwrap();
        assert_eq!(all[..2], [(Ino::ROOT, directory), (DIRECTORY, directory)]);
        assert_eq!(all[2..], names);

        let lose = |ino, bits| {
            let cache = cache();
            cache.inode(ino).lock().on_recall(bits, 2, 0);
            cache
        };
        // Of what is not told from memory nobody says so before.
        assert!(cache().may_tell(DIRECTORY));
        let lost = [
            (DIRECTORY, Bits::NEGATIVE),
            (DIRECTORY, Bits::ENTRY),
            (FILE, Bits::ENTRY),
            (OTHER, Bits::ATTR),
        ];
        assert!(lost.iter().all(|(ino, bits)| !lose(*ino, *bits).may_tell(DIRECTORY)));
        assert_eq!(page(&lose(DIRECTORY, Bits::NEGATIVE), 2), None);
        // The directory hears of it later than the inode.
        assert_eq!(page(&lose(FILE, Bits::ENTRY), 2), None);
        assert_eq!(page(&lose(FILE, Bits::ATTR), 2), None, "its type is not known");
        let moved = lose(DIRECTORY, Bits::ENTRY);
        assert_eq!(page(&moved, 2).unwrap(), names);
        assert_eq!(page(&moved, COOKIE_DOT), None, "it may be elsewhere");

        let doubted = cache();
        doubted.doubt_name(DIRECTORY, b"a");
        assert_eq!(page(&doubted, 2), None);
        let changing = cache();
        let update = changing.begin_update(&[DIRECTORY]);
        assert_eq!(page(&changing, 2), None);
        drop(update);
        assert_eq!(page(&changing, 2).unwrap(), names);
    }

    const NAMES: u64 = 200;

    /// Names of a directory, with their cookies: some share one.
    fn name(number: u64) -> (u64, Vec<u8>) {
        let cookie = 16 + cookie(&number.to_le_bytes(), 7) % (NAMES / 2);
        (cookie, format!("{number:060}").into_bytes())
    }

    type Names = BTreeMap<(u64, Vec<u8>), Ino>;
    /// Names with their cookies, and whether they are the last ones.
    type TestPage = (Vec<(u64, Vec<u8>)>, bool);

    /// A page from memory, where names are in no order.
    fn from_memory(names: &Names, wanted: WantedPage) -> Option<TestPage> {
        let (even, odd): (Vec<_>, Vec<_>) = names.iter().partition(|(_, ino)| ino.0 % 2 == 0);
        let all = odd.into_iter().rev().chain(even);
        let all = all.map(|(at, ino)| NameAt { cookie: at.0, name: at.1.as_slice(), ino: *ino });
        let (page, is_end) = wanted.of(all)?;
        Some((page.iter().map(|at| (at.cookie, at.name.to_vec())).collect(), is_end))
    }

    /// The same from an MDS.
    fn from_mds(names: &Names, wanted: WantedPage) -> TestPage {
        let (mut page, mut bytes) = (Vec::<(u64, Vec<u8>)>::new(), 0);
        for (at, _) in names.range((wanted.after + 1, Vec::new())..) {
            bytes += wanted.each + at.1.len();
            let same_cookie = page.last().is_some_and(|last| last.0 == at.0);
            if bytes > wanted.bytes && !same_cookie {
                return (page, false);
            }
            page.push(at.clone());
        }
        (page, true)
    }

    #[test]
    fn too_many_names_with_one_cookie_are_left_to_the_mds() {
        let names: Vec<String> = (0..2 * DIR_PAGE_ENTRIES_MAX).map(|n| n.to_string()).collect();
        let wanted = WantedPage::new(0, 0, false);
        let all: Vec<(u64, String)> = names.into_iter().map(|name| (20, name)).collect();
        let page = |all: &[(u64, String)], wanted: WantedPage| {
            let names = all.iter().enumerate();
            let names = names.map(|(n, (cookie, name))| NameAt {
                cookie: *cookie,
                name: name.as_bytes(),
                ino: Ino(1 + n as u64),
            });
            wanted.of(names).map(|(page, is_end)| (page.len(), is_end))
        };
        assert_eq!(page(&all, wanted), None);
        assert_eq!(page(&all, WantedPage { after: 20, ..wanted }), Some((0, true)));
        let few = &all[..wanted.names_max()];
        assert_eq!(page(few, wanted), Some((few.len(), true)), "more than there is room for");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// A program reads a directory page by page, from memory or from the MDS, while names are made
        /// and removed. It is told of each name that was there all the time once, and of no other one
        /// twice, nor of one that was not there at all.
        #[test]
        fn who_reads_on_is_told_of_each_name_once(
            begin in proptest::collection::vec(0..NAMES, 0..NAMES as usize),
            steps in proptest::collection::vec((0u8..6, 0..NAMES), 0..60),
        ) {
            let mut names = Names::new();
            let at = |number: u64| (name(number), Ino(1 + number));
            names.extend(begin.into_iter().map(at));
            let mut always: BTreeSet<(u64, Vec<u8>)> = names.keys().cloned().collect();
            let mut ever = always.clone();
            let (mut told, mut wanted) = (Vec::new(), WantedPage::new(0, 0, true));
            let mut is_ended = false;
            // At the end it reads all that is left.
            for (step, number) in steps.into_iter().chain((0..NAMES).map(|_| (4, 0))) {
                let (place, ino) = at(number);
                let page = match step {
                    0 | 1 => {
                        ever.insert(place.clone());
                        names.insert(place, ino);
                        continue;
                    }
                    2 | 3 => {
                        names.remove(&place);
                        always.remove(&place);
                        continue;
                    }
                    4 => from_memory(&names, wanted),
                    _ => None,
                };
                if is_ended {
                    continue;
                }
                let of_mds = from_mds(&names, wanted);
                let (page, is_end) = page.unwrap_or_else(|| of_mds.clone());
                prop_assert_eq!((&page, is_end), (&of_mds.0, of_mds.1));
                prop_assert!(is_end || !page.is_empty());
                is_ended = is_end;
                wanted.after = page.last().map_or(wanted.after, |(cookie, _)| *cookie);
                told.extend(page);
            }
            prop_assert!(is_ended);
            let once: BTreeSet<(u64, Vec<u8>)> = told.iter().cloned().collect();
            prop_assert_eq!(once.len(), told.len());
            prop_assert!(always.is_subset(&once) && once.is_subset(&ever));
        }
    }
}
