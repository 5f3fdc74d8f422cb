//! Watches of objects: which extents of an object were changed since somebody began to copy it.
//!
//! Invariants:
//! - A change that is answered after a watch began is in a round of the watch; one that was answered
//!   before is seen by every read that is begun after the watch. A change counts as made when it is
//!   answered, not when it begins: so one that is under way when a watch begins, or when a round is
//!   asked for, is in a later round.
//! - What a round has is told as often as it is asked for, and forgotten when the next one is asked for.
//! - Nothing is told of a watch that may not know all: it ends with the process, with the version of
//!   the chain that it began in, and when it is not asked for long.
//! - A watch has a bounded number of extents: with more, they are rounded to larger blocks, so it says
//!   too much, and never too little.

use crate::disk::Disk;
use crate::ost_set::OstSet;
use glint_proto::chain::ChainVersion;
use glint_proto::limits::CHANGED_EXTENTS_PER_REPLY;
use glint_proto::{Bulk, Errno, FsResult, ObjectId, OstReply, OstRequest, clock};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most extents of a round of a watch, and most watches of a server: some 32 MiB in all.
const EXTENTS_MAX: usize = 1024;
const WATCHES_MAX: usize = 1024;
/// Extents are rounded to blocks of this size at first.
const BLOCK_BYTES_MIN: u64 = 4 << 10;
/// A watch that is not asked for so long ends.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Pause between two looks for such watches.
const LOOK: Duration = Duration::from_secs(60);

/// Extents of an object, few enough.
#[derive(Debug)]
struct ChangedExtents {
    /// By their beginnings, with their ends; none touches another one.
    extents: BTreeMap<u64, u64>,
    block_bytes: u64,
}

impl Default for ChangedExtents {
    fn default() -> ChangedExtents {
        ChangedExtents { extents: BTreeMap::new(), block_bytes: BLOCK_BYTES_MIN }
    }
}

impl ChangedExtents {
    fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        self.merge(start, end);
        while self.extents.len() > EXTENTS_MAX {
            // There are no more blocks than extents long before this overflows.
            self.block_bytes *= 2;
            for (start, end) in std::mem::take(&mut self.extents) {
                self.merge(start, end);
            }
        }
    }

    /// Adds a range, rounded to blocks, and makes one of all extents that it touches.
    fn merge(&mut self, start: u64, end: u64) {
        let mut start = start / self.block_bytes * self.block_bytes;
        let mut end = end.checked_next_multiple_of(self.block_bytes).unwrap_or(u64::MAX);
        while let Some((from, to)) = self.extents.range(..=end).next_back().map(|(f, t)| (*f, *t))
            && to >= start
        {
            self.extents.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.extents.insert(start, end);
    }

    /// The first extents from `after` on; the others are empty.
    fn page(&self, after: u64) -> [(u64, u64); CHANGED_EXTENTS_PER_REPLY] {
        let mut page = [(0, 0); CHANGED_EXTENTS_PER_REPLY];
        for (place, (start, end)) in page.iter_mut().zip(self.extents.range(after..)) {
            *place = (*start, *end);
        }
        page
    }
}

/// A watch of an object.
#[derive(Debug)]
struct ObjectWatch {
    number: u64,
    chain: Option<ChainVersion>,
    asked: Instant,
    round: u32,
    /// What changed before this round was asked for first, and since.
    told: ChangedExtents,
    changed: ChangedExtents,
}

#[derive(Debug)]
struct WatchTable {
    of_objects: HashMap<ObjectId, Vec<ObjectWatch>>,
    looked: Instant,
}

impl WatchTable {
    /// Ends watches that were not asked for long.
    fn expire(&mut self, now: Instant) {
        if now.saturating_duration_since(self.looked) < LOOK {
            return;
        }
        self.looked = now;
        self.of_objects.retain(|_, watches| {
            watches.retain(|watch| now.saturating_duration_since(watch.asked) < IDLE_MAX);
            !watches.is_empty()
        });
    }

    fn count(&self) -> usize {
        self.of_objects.values().map(Vec::len).sum()
    }
}

/// The watches of the objects of a server.
#[derive(Debug)]
pub(crate) struct ObjectWatches {
    watched: Mutex<WatchTable>,
    /// Whether there is a watch: changes look at nothing else.
    is_any: AtomicBool,
}

impl Default for ObjectWatches {
    fn default() -> ObjectWatches {
        let watched = WatchTable { of_objects: HashMap::new(), looked: clock::now() };
        ObjectWatches { watched: Mutex::new(watched), is_any: AtomicBool::new(false) }
    }
}

impl ObjectWatches {
    /// Executes a request about watches of an object, for the head of `chain` if there is one; `None`
    /// if it is another request.
    pub(crate) fn answer(
        &self,
        chain: Option<ChainVersion>,
        request: &OstRequest,
    ) -> Option<FsResult<OstReply>> {
        match *request {
            OstRequest::Watch { object } => Some(self.begin(chain, object, clock::now())),
            OstRequest::Changed { object, watch, round, after } => {
                let told = self.tell((object, watch), chain, (round, after), clock::now());
                Some(told.map(|extents| OstReply::Changed { extents }))
            }
            _ => None,
        }
    }

    /// Begins a watch: EBUSY if there are too many.
    fn begin(
        &self,
        chain: Option<ChainVersion>,
        object: ObjectId,
        now: Instant,
    ) -> FsResult<OstReply> {
        let mut watched = self.watched.lock();
        watched.expire(now);
        if watched.count() >= WATCHES_MAX {
            return Err(Errno::EBUSY);
        }
        // By chance, so that nobody takes it for one of an earlier run of this server.
        let number = RandomState::new().hash_one(object);
        let (told, changed) = Default::default();
        let watch = ObjectWatch { number, chain, asked: now, round: 0, told, changed };
        watched.of_objects.entry(object).or_default().push(watch);
        self.is_any.store(true, Ordering::SeqCst);
        Ok(OstReply::Watched { watch: number })
    }

    /// Tells what a round of a watch has: ENODATA if there is no such watch or round.
    fn tell(
        &self,
        (object, number): (ObjectId, u64),
        chain: Option<ChainVersion>,
        (round, after): (u32, u64),
        now: Instant,
    ) -> FsResult<[(u64, u64); CHANGED_EXTENTS_PER_REPLY]> {
        let mut watched = self.watched.lock();
        let its = watched.of_objects.get_mut(&object).ok_or(Errno::ENODATA)?;
        let watch = its.iter_mut().find(|watch| watch.number == number);
        let watch = watch.filter(|watch| watch.chain == chain).ok_or(Errno::ENODATA)?;
        watch.asked = now;
        if watch.round.checked_add(1) == Some(round) {
            watch.round = round;
            watch.told = std::mem::take(&mut watch.changed);
        }
        if watch.round == round { Ok(watch.told.page(after)) } else { Err(Errno::ENODATA) }
    }

    /// Notes a change if it is one of data and there is a watch.
    pub(crate) fn note(&self, request: &OstRequest, data: &[u8]) {
        if changes_data(request) && self.is_any.load(Ordering::SeqCst) {
            self.on_changed(request, data, clock::now());
        }
    }

    /// Notes a change that is about to be answered.
    fn on_changed(&self, request: &OstRequest, data: &[u8], now: Instant) {
        let Some(object) = request.object() else { return };
        let mut watched = self.watched.lock();
        watched.expire(now);
        if watched.of_objects.is_empty() {
            self.is_any.store(false, Ordering::SeqCst);
            return;
        }
        let Some(its) = watched.of_objects.get_mut(&object) else { return };
        let Ok(ranges) = request.changed(data) else {
            // It was refused.
            return;
        };
        for watch in its {
            ranges.clone().for_each(|(start, end)| watch.changed.insert(start, end));
        }
    }
}

impl<D: Disk> OstSet<D> {
    /// Executes a request about a watch of an object, for the head of `chain` if the object has copies;
    /// `None` if it is another request.
    pub fn answer_watch(
        &self,
        chain: Option<ChainVersion>,
        request: &OstRequest,
    ) -> Option<FsResult<OstReply>> {
        self.object_watches.answer(chain, request)
    }

    /// Begins a change of an object by a client, if a request is one. It has to be dropped when the
    /// change is made, in all copies that count, and before that is answered.
    pub fn begin_change<'a>(
        &'a self,
        request: &OstRequest,
        bulk: &Bulk<'a>,
    ) -> Option<WatchedChange<'a>> {
        WatchedChange::of(&self.object_watches, request, bulk)
    }
}

/// A change of an object: when this is dropped, as it has to be before the change is answered, the
/// watches of the object note it.
pub struct WatchedChange<'a> {
    watches: &'a ObjectWatches,
    request: OstRequest,
    data: &'a [u8],
}

impl<'a> WatchedChange<'a> {
    /// `None` if a request changes no data.
    pub(crate) fn of(
        watches: &'a ObjectWatches,
        request: &OstRequest,
        bulk: &Bulk<'a>,
    ) -> Option<WatchedChange<'a>> {
        // None is made that notes nothing.
        changes_data(request).then(|| WatchedChange {
            watches,
            request: *request,
            data: bulk.data(),
        })
    }
}

fn changes_data(request: &OstRequest) -> bool {
    request.is_modifying() && !matches!(request, OstRequest::SetTime { .. })
}

impl Drop for WatchedChange<'_> {
    fn drop(&mut self) {
        self.watches.note(&self.request, self.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use proptest::prelude::*;

    const OBJECT: ObjectId = ObjectId { ino: Ino(1), stripe: 2 };
    const BLOCK: u64 = BLOCK_BYTES_MIN;

    fn begin(watches: &ObjectWatches, chain: Option<ChainVersion>) -> u64 {
        match watches.answer(chain, &OstRequest::Watch { object: OBJECT }) {
            Some(Ok(OstReply::Watched { watch })) => watch,
            other => panic!("{other:?}"),
        }
    }

    fn round(watches: &ObjectWatches, watch: u64, round: u32) -> FsResult<Vec<(u64, u64)>> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let request = OstRequest::Changed { object: OBJECT, watch, round, after };
            let page = match watches.answer(None, &request) {
                Some(Ok(OstReply::Changed { extents })) => extents,
                Some(Err(errno)) => return Err(errno),
                other => panic!("{other:?}"),
            };
            all.extend(page.into_iter().filter(|(start, end)| start < end));
            if page[CHANGED_EXTENTS_PER_REPLY - 1] == (0, 0) {
                return Ok(all);
            }
            after = all[all.len() - 1].1;
        }
    }

    fn write(offset: u64) -> OstRequest {
        OstRequest::Write { object: OBJECT, offset, mtime: None, kept: false }
    }

    fn change<'a>(watches: &'a ObjectWatches, request: OstRequest) -> WatchedChange<'a> {
        WatchedChange::of(watches, &request, &Bulk::Out(b"data")).unwrap()
    }

    #[test]
    fn a_change_is_in_the_round_after_it_was_answered() {
        let watches = ObjectWatches::default();
        drop(change(&watches, write(0)));
        let under_way = change(&watches, write(9 * BLOCK));
        let watch = begin(&watches, None);
        assert_eq!(round(&watches, watch, 1), Ok(vec![]));
        drop(under_way);
        drop(change(&watches, write(20 * BLOCK - 2)));
        let other = OstRequest::Truncate { object: ObjectId { stripe: 3, ..OBJECT }, size: 0 };
        drop(change(&watches, other));
        let expected = vec![(9 * BLOCK, 10 * BLOCK), (19 * BLOCK, 21 * BLOCK)];
        assert_eq!(round(&watches, watch, 2), Ok(expected.clone()));
        drop(change(&watches, OstRequest::Truncate { object: OBJECT, size: 5 }));
        assert_eq!(round(&watches, watch, 2), Ok(expected), "the answer may have been lost");
        assert_eq!(round(&watches, watch, 3), Ok(vec![(0, u64::MAX)]));
        assert_eq!(round(&watches, watch, 4), Ok(vec![]));
    }

    #[test]
    fn nothing_is_told_of_what_may_not_be_known() {
        let watches = ObjectWatches::default();
        let watch = begin(&watches, None);
        assert_eq!(round(&watches, watch, 2), Err(Errno::ENODATA), "a round was left out");
        assert_eq!(round(&watches, watch ^ 1, 1), Err(Errno::ENODATA));
        assert_eq!(round(&ObjectWatches::default(), watch, 1), Err(Errno::ENODATA));
        let of_chain = begin(&watches, Some(ChainVersion { target: 0xa000, version: 3 }));
        assert_eq!(round(&watches, of_chain, 1), Err(Errno::ENODATA), "another version");
        assert_eq!(round(&watches, watch, 1), Ok(vec![]));
        assert_eq!(round(&watches, watch, 0), Err(Errno::ENODATA), "an old question");
    }

    #[test]
    fn watches_are_few_and_end_when_nobody_asks() {
        let watches = ObjectWatches::default();
        let all: Vec<u64> = (0..WATCHES_MAX).map(|_| begin(&watches, None)).collect();
        let one_more = watches.answer(None, &OstRequest::Watch { object: OBJECT });
        assert_eq!(one_more, Some(Err(Errno::EBUSY)));
        watches.on_changed(&write(0), b"data", clock::now() + IDLE_MAX);
        assert!(!watches.is_any.load(Ordering::SeqCst));
        assert_eq!(round(&watches, all[0], 1), Err(Errno::ENODATA));
    }

    proptest! {
        #[test]
        fn all_that_changed_is_told_and_few_extents(
            changes in proptest::collection::vec((0u64..1 << 40, 0u64..1 << 20), 0..3000)
        ) {
            let mut told = ChangedExtents::default();
            changes.iter().for_each(|(start, len)| told.insert(*start, start + len));
            prop_assert!(told.extents.len() <= EXTENTS_MAX);
            for (start, len) in changes.iter().filter(|(_, len)| *len > 0) {
                let (_, end) = told.extents.range(..=*start).next_back().unwrap();
                prop_assert!(start + len <= *end);
            }
            let ends: Vec<u64> = told.extents.iter().flat_map(|(start, end)| [*start, *end]).collect();
            prop_assert!(ends.is_sorted_by(|one, next| one < next));
        }
    }
}
