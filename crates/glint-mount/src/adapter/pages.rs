//! Ownership of the bytes of open files: by the pages of the kernel, or by calls that write around
//! them.
//!
//! A write that goes around the page cache has the kernel drop the pages in its range *before*
//! it is sent. Until it is executed, a page may be read again with what was there before. It
//! would then be old afterwards; and if it is mapped and stored to, it is written back as a
//! whole, with the old bytes over the new ones.
//!
//! So who changes data around the pages owns its bytes from the moment that the change begins
//! until the kernel has forgotten the pages that it read meanwhile: what pages bring of these
//! bytes is left out. A page that is read after the change was executed has the new bytes,
//! and owns them again.
//!
//! Invariants:
//! - When a change returns, the kernel has no page that was read before it was executed.
//! - No page that was read before a change was executed brings bytes of it.
//! - Nothing here has a page wait for a change. A change waits for pages when it is executed,
//!   and holds no lock on data then: what it waits for may wait for one.

use glint_proto::Ino;
use glint_proto::lock::Range;
use glint_wait::{Monitor, Sharded};
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::collections::HashMap;

const SHARDS: usize = 64;
/// Unit of the page cache.
const PAGE: u64 = 4096;
/// Ranges that are told apart; more become one.
const RANGES_MAX: usize = 64;

/// Ranges of bytes, in no order.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Ranges(SmallVec<[Range; 2]>);

impl Ranges {
    fn add(&mut self, range: Range) {
        let touches = |other: &Range| other.start <= range.end && range.start <= other.end;
        if let Some(known) = self.0.iter_mut().find(|known| touches(known)) {
            *known = hull(*known, range);
        } else if self.0.len() < RANGES_MAX {
            self.0.push(range);
        } else {
            let all = self.0.drain(..).fold(range, hull);
            self.0.push(all);
        }
    }

    fn remove(&mut self, range: Range) {
        let before = std::mem::take(&mut self.0);
        for known in before {
            let left = Range { start: known.start, end: known.end.min(range.start) };
            let right = Range { start: known.start.max(range.end), end: known.end };
            self.0.extend([left, right].into_iter().filter(|part| part.start < part.end));
        }
    }

    fn overlaps(&self, range: Range) -> bool {
        self.0.iter().any(|known| known.overlaps(range))
    }
}

fn hull(a: Range, b: Range) -> Range {
    Range { start: a.start.min(b.start), end: a.end.max(b.end) }
}

/// All pages that have bytes of a range.
fn pages_of(range: Range) -> Range {
    let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    Range { start: range.start - range.start % PAGE, end }
}

/// A change of data around the pages.
struct Change {
    id: u64,
    executed: bool,
    /// Range that the kernel is forgetting for the change.
    forgets: Option<Range>,
    /// Bytes of the change that pages do not bring.
    owns: Ranges,
}

/// A file that is open to be written.
#[derive(Default)]
struct File {
    opens: u32,
    /// Opens to read and write, which may be mapped to be written.
    mappable: u32,
    /// Ranges of pages that were read since the file was opened and may be cached.
    read: Ranges,
    changes: Vec<Change>,
    /// Pages that are being written back.
    bringing: Vec<(u64, Range)>,
}

impl File {
    /// Whether pages bring bytes of a range since before a moment.
    fn brings(&self, range: Range, before: u64) -> bool {
        self.bringing.iter().any(|(id, brought)| *id < before && brought.overlaps(range))
    }
}

/// The files that are open to be written, of one mount.
pub(crate) struct Pages {
    /// Files; changes wait here, by file.
    shards: Sharded<Monitor<Shard, Ino>>,
}

#[derive(Default)]
struct Shard {
    files: HashMap<Ino, File>,
    next: u64,
}

impl Shard {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Default for Pages {
    fn default() -> Pages {
        Pages { shards: Sharded::new(SHARDS) }
    }
}

/// Pages being written back, and what of them is.
pub(crate) struct Bringing<'a> {
    pages: &'a Pages,
    ino: Ino,
    id: u64,
    /// Ranges to be written, in order.
    pub(crate) parts: SmallVec<[Range; 2]>,
}

impl Drop for Bringing<'_> {
    fn drop(&mut self) {
        let id = self.id;
        self.pages.end(self.ino, |file| file.bringing.retain(|(other, _)| *other != id));
    }
}

/// A change of data around the pages, which owns its bytes until this is dropped.
pub(crate) struct Changing<'a> {
    pages: &'a Pages,
    ino: Ino,
    id: u64,
    /// Pages that may be old afterwards.
    stale: Range,
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let id = self.id;
        self.pages.end(self.ino, |file| file.changes.retain(|change| change.id != id));
    }
}

impl Changing<'_> {
    /// The change was executed. Returns which pages the kernel has to forget before this is
    /// dropped.
    pub(crate) fn executed(&self) -> Option<Range> {
        let mut shard = self.pages.shard(self.ino);
        let file = shard.files.get_mut(&self.ino)?;
        let pages = pages_of(self.stale);
        let others = |other: &Change| other.forgets.is_some_and(|other| other.overlaps(pages));
        let forgets = file.read.overlaps(pages) || file.changes.iter().any(others);
        // Pages read from now on may stay, until somebody else changes it.
        file.read.remove(pages);
        let change = file.changes.iter_mut().find(|change| change.id == self.id)?;
        (change.executed, change.forgets) = (true, forgets.then_some(pages));
        change.forgets
    }
}

impl Pages {
    fn monitor(&self, ino: Ino) -> &Monitor<Shard, Ino> {
        self.shards.of(ino.0)
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, Shard> {
        self.monitor(ino).lock()
    }

    /// A file is opened to be written.
    pub(crate) fn open(&self, ino: Ino, mappable: bool) {
        let mut shard = self.shard(ino);
        let file = shard.files.entry(ino).or_default();
        file.opens += 1;
        file.mappable += u32::from(mappable);
    }

    /// A file that was opened to be written is closed.
    pub(crate) fn close(&self, ino: Ino, mappable: bool) {
        self.end(ino, |file| {
            file.opens = file.opens.saturating_sub(1);
            file.mappable = file.mappable.saturating_sub(u32::from(mappable));
        });
    }

    fn end(&self, ino: Ino, end: impl FnOnce(&mut File)) {
        let mut shard = self.shard(ino);
        let Some(file) = shard.files.get_mut(&ino) else { return };
        end(file);
        if file.opens == 0 && file.changes.is_empty() && file.bringing.is_empty() {
            shard.files.remove(&ino);
        }
        drop(shard);
        self.monitor(ino).wake_where(|waits_for| *waits_for == ino);
    }

    /// Whether a file is open to be written.
    pub(crate) fn is_written(&self, ino: Ino) -> bool {
        self.shard(ino).files.get(&ino).is_some_and(|file| file.opens > 0)
    }

    /// Whether pages may be mapped: the kernel does not tell us when a store dirties them.
    pub(crate) fn may_be_mapped(&self, ino: Ino) -> bool {
        self.shard(ino).files.get(&ino).is_some_and(|file| file.mappable > 0)
    }

    /// Pages are about to be read.
    pub(crate) fn read(&self, ino: Ino, range: Range) {
        let mut shard = self.shard(ino);
        let Some(file) = shard.files.get_mut(&ino) else { return };
        let range = pages_of(range);
        file.read.add(range);
        // A dirty page goes only when it was written back: this one is read anew.
        let executed = file.changes.iter_mut().filter(|change| change.executed);
        executed.for_each(|change| change.owns.remove(range));
    }

    /// Data is about to be changed around the pages: `range`, or more within `stale`.
    pub(crate) async fn change(&self, ino: Ino, range: Range, stale: Range) -> Changing<'_> {
        let (id, waits) = {
            let mut shard = self.shard(ino);
            let id = shard.number();
            let file = shard.files.entry(ino).or_default();
            let owns = Ranges(SmallVec::from_iter([range]));
            file.changes.push(Change { id, executed: false, forgets: None, owns });
            (id, file.brings(range, id))
        };
        let changing = Changing { pages: self, ino, id, stale };
        if waits {
            // Writes that pages had begun to bring come first.
            let brings = |file: &File| file.brings(range, id);
            let look =
                |shard: &mut Shard| (!shard.files.get(&ino).is_some_and(brings)).then_some(());
            self.monitor(ino).until_with(ino, look).await;
        }
        changing
    }

    /// Pages are about to be written back.
    pub(crate) fn bring(&self, ino: Ino, range: Range) -> Bringing<'_> {
        let mut shard = self.shard(ino);
        let id = shard.number();
        let file = shard.files.entry(ino).or_default();
        file.bringing.push((id, range));
        let mut left = Ranges(SmallVec::from_iter([range]));
        for owned in file.changes.iter().flat_map(|change| &change.owns.0) {
            left.remove(*owned);
        }
        let mut parts = left.0;
        parts.sort_unstable_by_key(|part| part.start);
        Bringing { pages: self, ino, id, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use proptest::prelude::*;

    const INO: Ino = Ino(7);
    const SLOTS: u64 = 8;

    fn slots(at: u64, len: u64) -> Range {
        Range::of(at * PAGE / 4, len * PAGE / 4)
    }

    #[test]
    fn what_pages_bring_leaves_out_what_is_being_changed() {
        let pages = Pages::default();
        pages.open(INO, true);
        let change = pages.change(INO, slots(1, 1), slots(1, 1)).now_or_never().unwrap();
        pages.read(INO, slots(0, 4));
        let brought: Vec<_> = pages.bring(INO, slots(0, 4)).parts.to_vec();
        assert_eq!(brought, [slots(0, 1), slots(2, 2)]);
        assert_eq!(change.executed(), Some(slots(0, 4)));
        // Read anew: it has what was changed.
        pages.read(INO, slots(0, 4));
        assert_eq!(pages.bring(INO, slots(0, 4)).parts.to_vec(), [slots(0, 4)]);
        drop(change);
        let change = pages.change(INO, slots(1, 1), slots(1, 1)).now_or_never().unwrap();
        assert_eq!(change.executed(), Some(slots(0, 4)), "it is old now");
        drop(change);
        let change = pages.change(INO, slots(1, 1), slots(1, 1)).now_or_never().unwrap();
        assert_eq!(change.executed(), None, "nothing was read since");
        drop(change);
        pages.close(INO, true);
        assert!(pages.shard(INO).files.is_empty());
    }

    #[test]
    fn what_pages_have_begun_to_bring_comes_first() {
        let pages = Pages::default();
        pages.open(INO, false);
        let brings = pages.bring(INO, slots(0, 4));
        let mut change = Box::pin(pages.change(INO, slots(3, 1), slots(3, 1)));
        assert!(change.as_mut().now_or_never().is_none());
        let later = pages.bring(INO, slots(0, 4));
        assert_eq!(later.parts.to_vec(), [slots(0, 3)]);
        drop(brings);
        assert!(change.now_or_never().is_some(), "it waits for no later one");
    }

    /// A page of the kernel: what it has of two pages of four slots each.
    #[derive(Clone, Copy, Default)]
    struct Page {
        slots: [u64; 4],
        dirty: bool,
    }

    proptest! {
        /// Changes, stores to mapped pages and write-back in any order, each writer with slots of
        /// its own: nothing is lost, and no page is old when a change has returned.
        #[test]
        fn nothing_is_lost(steps in proptest::collection::vec((0u8..6, 0usize..8), 0..200)) {
            let pages = Pages::default();
            pages.open(INO, true);
            let mut store = [0u64; SLOTS as usize];
            let mut wanted = store;
            let mut cached: [Option<Page>; 2] = [None; 2];
            let mut changing: Vec<(usize, u64, Changing<'_>, bool)> = Vec::new();
            let mut value = 0;
            fn bring(pages: &Pages, store: &mut [u64; 8], at: usize, page: &mut Page) {
                let first = at as u64 * 4;
                for part in &pages.bring(INO, slots(first, 4)).parts {
                    for slot in part.start * 4 / PAGE..part.end * 4 / PAGE {
                        store[slot as usize] = page.slots[(slot - first) as usize];
                    }
                }
                page.dirty = false;
            }
            for (kind, slot) in steps.into_iter().chain([(3, 0), (4, 0)].into_iter().cycle().take(40)) {
                let at = slot / 4;
                value += 1;
                match kind {
                    // Odd slots are written around the pages; the kernel drops the page first.
                    0 if slot % 2 == 1 && !changing.iter().any(|(s, ..)| *s == slot) => {
                        if let Some(mut page) = cached[at].take() && page.dirty {
                            bring(&pages, &mut store, at, &mut page);
                        }
                        let change = pages.change(INO, slots(slot as u64, 1), slots(slot as u64, 1)).now_or_never().unwrap();
                        changing.push((slot, value, change, false));
                    }
                    // Even ones through a mapping.
                    1 if slot % 2 == 0 => {
                        let page = cached[at].get_or_insert_with(|| {
                            pages.read(INO, slots(at as u64 * 4, 4));
                            let first = at * 4;
                            Page { slots: store[first..first + 4].try_into().unwrap(), dirty: false }
                        });
                        (page.slots[slot % 4], page.dirty, wanted[slot]) = (value, true, value);
                    }
                    2 => if let Some(page) = &mut cached[at] && page.dirty {
                        bring(&pages, &mut store, at, page);
                    },
                    3 => if let Some((slot, value, _, executed)) =
                        changing.iter_mut().find(|(.., executed)| !executed)
                    {
                        (store[*slot], wanted[*slot], *executed) = (*value, *value, true);
                    },
                    4 => if let Some(done) = changing.iter().position(|(.., executed)| *executed) {
                        let (slot, _, change, _) = changing.swap_remove(done);
                        if change.executed().is_some()
                            && let Some(mut page) = cached[slot / 4].take()
                            && page.dirty
                        {
                            bring(&pages, &mut store, slot / 4, &mut page);
                        }
                        drop(change);
                        if let Some(page) = &cached[slot / 4] {
                            prop_assert_eq!(page.slots[slot % 4], wanted[slot], "an old page");
                        }
                    },
                    _ => if let Some(mut page) = cached[at].take() && page.dirty {
                        bring(&pages, &mut store, at, &mut page);
                    },
                }
            }
            for (at, page) in cached.iter_mut().enumerate() {
                if let Some(page) = page && page.dirty {
                    bring(&pages, &mut store, at, page);
                }
            }
            prop_assert!(changing.is_empty());
            prop_assert_eq!(store, wanted);
        }
    }
}
