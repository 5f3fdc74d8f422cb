//! Which objects of an OST are read most, and how they come into memory again after a restart.
//!
//! Objects are remembered by the numbers of their inodes, in ranges ([`Heat`]): those of one range
//! are neighbours in one directory. There are two passes: first the ranges with half of all reads, then
//! the others. In each pass they are loaded a directory at a time, in the order of their names, so that
//! the local file system reads directory blocks and inodes as they lie on the disk; and of small objects
//! that are kept in memory their data, too.
//!
//! Invariants:
//! - Steps are done by the threads of the disk, one at a time. Nobody waits for one, and other
//!   disks go on while one hangs.
//! - A step reads ahead [`STEP_BYTES`] at most, and where bandwidth is limited no more than it lets pass
//!   meanwhile, of which it takes its turn. It ends with its time, but the names of a directory are read
//!   at once: what it took longer is made up for by a rest.

use crate::disk::{CallKind, Disk, DiskFile};
use crate::ost_set::OstSet;
use crate::service::Apart;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
use crate::store::object_store::{
    DIRECTORIES, ObjectStore, SHARD_SHIFT, directory_name, parse_name, path_of,
};
use glint_proto::limits::OBJECT_CACHE_BYTES_MAX;
use glint_proto::{ObjectId, OstRequest, clock};
use glint_telemetry::{Heat, HotRange};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Table of objects in [`Heat`].
const OBJECTS: u8 = 0;
/// Most bytes that are read ahead in a step: they are waited for by nobody.
const STEP_BYTES: u64 = 4 << 20;
/// Steps begin so long after each other.
const STEP_EVERY: Duration = Duration::from_millis(100);
/// Memory that an object takes beside its data: its inode, its name, and their blocks.
const OBJECT_BYTES: u64 = 2 << 10;

impl<D: Disk> ObjectStore<D> {
    /// Notes that an object is read, if that is what a request does. What is only written says nothing
    /// about what will be read.
    pub(crate) fn note_read(&self, request: &OstRequest) {
        use OstRequest::{Read, Seek, Stat};
        if let Read { object, .. } | Stat { object } | Seek { object, .. } = request {
            self.heat.on_reads(OBJECTS, 1, || (object.ino.0, object.ino.0));
        }
    }

    /// Largest object whose data is loaded.
    fn loaded_max(&self) -> u64 {
        self.passing().limit().unwrap_or(u64::MAX).min(OBJECT_CACHE_BYTES_MAX)
    }
}

/// One of the two passes over the directories.
#[derive(Debug)]
struct WarmPass {
    /// Ranges of the numbers of inodes, sorted.
    ranges: Vec<(u64, u64)>,
    /// Directories with objects of them that are left, the hottest one at the end.
    directories: Vec<usize>,
}

impl WarmPass {
    fn new(hot: &[HotRange]) -> WarmPass {
        let mut directories = Vec::new();
        for range in hot {
            let (first, last) = (range.first >> SHARD_SHIFT, range.last >> SHARD_SHIFT);
            // They lie over all directories in turns.
            for block in first..=last.min(first.saturating_add(DIRECTORIES as u64 - 1)) {
                let directory = (block % DIRECTORIES as u64) as usize;
                if !directories.contains(&directory) {
                    directories.push(directory);
                }
            }
        }
        directories.reverse();
        let mut ranges: Vec<_> = hot.iter().map(|range| (range.first, range.last)).collect();
        ranges.sort_unstable();
        WarmPass { ranges, directories }
    }

    fn is_hot(&self, object: ObjectId) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= object.ino.0);
        behind > 0 && object.ino.0 <= self.ranges[behind - 1].1
    }
}

/// How far the loading of the objects of an OST is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WarmedObjects {
    /// Directories that were looked through, in each pass, and how many there are to be.
    pub parts: u64,
    /// See `parts`.
    pub parts_all: u64,
    /// Objects that were loaded.
    pub objects: u64,
    /// Bytes of their data that were read ahead.
    pub bytes: u64,
}

impl WarmedObjects {
    /// Memory that they take.
    pub fn memory(&self) -> u64 {
        self.bytes + self.objects * OBJECT_BYTES
    }
}

/// What is left to load.
#[derive(Debug)]
struct Loading {
    /// The pass that is under way, and the one after it.
    passes: Vec<WarmPass>,
    /// Objects of the last directory that are left, in the order in which they are taken from the end.
    objects: Vec<ObjectId>,
    /// An object of which the rest is to be read ahead, from this offset on.
    begun: Option<(ObjectId, u64)>,
    warmed: WarmedObjects,
    /// When the last step began, and how long it took.
    began: Option<Instant>,
    took: Duration,
    /// Bytes whose turn was taken, and when it is over.
    turns: u64,
    turn_ends: Option<Instant>,
}

impl Loading {
    fn directories(&self) -> usize {
        self.passes.iter().map(|pass| pass.directories.len()).sum()
    }

    fn is_done(&self) -> bool {
        self.begun.is_none() && self.objects.is_empty() && self.directories() == 0
    }

    /// Goes on with one object, of which so much is read ahead at most, or lists a directory.
    fn go_on<D: Disk>(&mut self, store: &ObjectStore<D>, most: u64) {
        let begun = self.begun.take().or_else(|| self.objects.pop().map(|object| (object, 0)));
        match begun {
            Some((object, offset)) => self.load(store, object, offset, most),
            None => self.list(&store.disk),
        }
        let is_in_one = self.begun.is_some() || !self.objects.is_empty();
        let left = self.directories() + usize::from(is_in_one);
        self.warmed.parts = self.warmed.parts_all - left as u64;
    }

    /// Loads an object, with so much of its data from an offset on.
    fn load<D: Disk>(&mut self, store: &ObjectStore<D>, object: ObjectId, offset: u64, most: u64) {
        // Whoever reads an object that cannot be read will be told.
        let Ok(file) = store.disk.open_to_read(&path_of(object)) else { return };
        let Ok(size) = file.stat().map(|stat| stat.size) else { return };
        if offset == 0 {
            // It may have no checksums.
            let _ = file.attribute(ATTRIBUTE, &mut [0; ATTRIBUTE_BYTES_MAX]);
            self.warmed.objects += 1;
        }
        if size > store.loaded_max() || size <= offset {
            return;
        }
        let len = most.min(size - offset);
        file.will_need(offset, len);
        self.warmed.bytes += len;
        self.begun = Some((object, offset + len)).filter(|(_, offset)| *offset < size);
    }

    /// Finds the objects of the next directory.
    fn list(&mut self, disk: &impl Disk) {
        let Some(pass) = self.passes.first_mut() else { return };
        let Some(directory) = pass.directories.pop() else {
            self.passes.remove(0);
            return;
        };
        let names = disk.names(&directory_name(directory)).unwrap_or_default();
        let all = names.iter().filter_map(|name| parse_name(name.to_str()?));
        self.objects = all.filter(|object| pass.is_hot(*object)).collect();
        self.objects.sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// Loading of objects of one OST, as far as it has come.
#[derive(Debug)]
pub struct Warming(Arc<Mutex<Option<Loading>>>);

/// A step of it, which brings back what is left however it ends, and if it does not begin.
struct WarmStep {
    loading: Option<Loading>,
    home: Arc<Mutex<Option<Loading>>>,
}

impl Drop for WarmStep {
    fn drop(&mut self) {
        *self.home.lock() = self.loading.take();
    }
}

impl Warming {
    /// Loads the objects in these ranges: those of the first part first, and of each part the hottest
    /// come first.
    pub fn new(parts: &[Vec<HotRange>; 2]) -> Warming {
        let mut loading = Loading {
            passes: parts.iter().map(|hot| WarmPass::new(hot)).collect(),
            objects: Vec::new(),
            begun: None,
            warmed: WarmedObjects::default(),
            began: None,
            took: Duration::ZERO,
            turns: 0,
            turn_ends: None,
        };
        loading.warmed.parts_all = loading.directories() as u64;
        Warming(Arc::new(Mutex::new(Some(loading))))
    }

    /// How far it is, and whether all is done; nothing while a step is under way.
    pub fn look(&self) -> Option<(WarmedObjects, bool)> {
        self.0.lock().as_ref().map(|loading| (loading.warmed, loading.is_done()))
    }
}

impl WarmStep {
    /// Takes what is left for a step, unless one is under way.
    fn take(warming: &Warming) -> Option<WarmStep> {
        let loading = warming.0.lock().take()?;
        Some(WarmStep { loading: Some(loading), home: warming.0.clone() })
    }
}

impl<D: Disk> OstSet<D> {
    /// Which objects of an OST are read most.
    pub fn heat(&self, index: u16) -> Option<&Heat> {
        Some(&self.osts.get(usize::from(index))?.store().heat)
    }

    /// Begins to load some more objects of an OST, in one part in `part` of the time at most, and into so
    /// many bytes of memory, but for a part of one object. Waits for nothing. Does nothing while a
    /// step is under way or the disk is slow.
    pub fn warm(&self, index: u16, warming: &Warming, part: u32, room: u64) {
        let Some(ost) = self.osts.get(usize::from(index)) else { return };
        if ost.watch().is_slow() || ost.watch().stands_still() {
            return;
        }
        let Some(mut step) = WarmStep::take(warming) else { return };
        let Some(loading) = &mut step.loading else { return };
        let now = clock::now();
        let mut most = STEP_BYTES;
        if let Some(limit) = self.bandwidth.get(usize::from(index)) {
            let read =
                loading.warmed.bytes - std::mem::replace(&mut loading.turns, loading.warmed.bytes);
            if read > 0 {
                loading.turn_ends = now.checked_add(limit.take(read, now));
            }
            most = most.min(limit.within(STEP_EVERY).max(1));
        }
        let rest = (loading.took * part).saturating_sub(STEP_EVERY);
        let rests = loading.began.is_some_and(|began| now < began + rest);
        if rests || loading.turn_ends.is_some_and(|ends| now < ends) || loading.is_done() {
            return;
        }
        loading.began = Some(now);
        let load = move |store: &ObjectStore<D>| {
            let begun = clock::now();
            if let Some(loading) = &mut step.loading {
                let before = loading.warmed;
                loop {
                    let (all, memory) = (
                        loading.warmed.bytes - before.bytes,
                        loading.warmed.memory() - before.memory(),
                    );
                    if all >= most || memory >= room {
                        break;
                    }
                    loading.go_on(store, (most - all).min(room - memory));
                    loading.took = clock::since(begun);
                    if loading.took >= STEP_EVERY / part || loading.is_done() {
                        break;
                    }
                }
            }
            drop(step);
            Ok(())
        };
        // Nobody waits for it.
        drop(ost.apart_unless_dropped(CallKind::Long, Apart::default(), load));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use glint_proto::Ino;
    use std::cell::RefCell;
    use std::path::Path;

    const BLOCK: u64 = 1 << SHARD_SHIFT;
    const MIB: u64 = 1 << 20;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    fn range(first: u64, last: u64) -> HotRange {
        HotRange { table: OBJECTS, first, last }
    }

    fn store(objects: u64, data: &[u8]) -> ObjectStore<MemoryDisk> {
        let store =
            ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 64, Default::default());
        for ino in 0..objects {
            store.write(object(ino), 0, data, None, false).unwrap();
        }
        store
    }

    fn start(store: ObjectStore<MemoryDisk>, bandwidth: Option<u64>) -> OstSet<MemoryDisk> {
        OstSet::start(vec![store], Arc::default(), bandwidth, false).unwrap()
    }

    /// Steps until all is loaded. Time does not pass in them, and between them so much.
    fn load(osts: &OstSet<MemoryDisk>, warming: &Warming) -> Vec<WarmedObjects> {
        let mut now = clock::now();
        let mut looks = vec![WarmedObjects::default()];
        while !warming.look().unwrap().1 {
            now += STEP_EVERY;
            clock::simulate(Some(now));
            osts.warm(0, warming, 4, u64::MAX);
            looks.push(warming.look().unwrap().0);
        }
        clock::simulate(None);
        looks
    }

    #[test]
    fn directories_come_in_the_order_of_their_heat_and_each_once() {
        let pass = WarmPass::new(&[range(5 * BLOCK, 7 * BLOCK - 1), range(0, 6 * BLOCK - 1)]);
        assert_eq!(pass.directories, [4, 3, 2, 1, 0, 6, 5]);
        assert_eq!(WarmPass::new(&[range(0, u64::MAX)]).directories.len(), DIRECTORIES);
        let pass = WarmPass::new(&[range(u64::MAX - 1, u64::MAX)]);
        assert_eq!(pass.directories, [DIRECTORIES - 1]);
        assert!(pass.is_hot(object(u64::MAX)) && !pass.is_hot(object(7)));
        let nothing = Warming::new(&[vec![], vec![]]);
        assert_eq!(nothing.look(), Some((WarmedObjects::default(), true)));
    }

    #[test]
    fn objects_of_hot_ranges_are_loaded_and_no_others() {
        let store = store(3 * BLOCK, b"data");
        store.write(object(1), OBJECT_CACHE_BYTES_MAX, b"large", None, false).unwrap();
        let osts = start(store, None);
        let read = OstRequest::Read { object: object(BLOCK), offset: 0, len: 1 };
        let write = OstRequest::Truncate { object: object(0), size: 9 };
        for _ in 0..200 {
            osts.osts[0].store().note_read(&write);
            osts.osts[0].store().note_read(&read);
        }
        let [hot, colder] = osts.heat(0).unwrap().halves();
        assert_eq!((&hot[..], &colder[..]), (&[range(BLOCK, 2 * BLOCK - 1)][..], &[][..]));

        let warming = Warming::new(&[hot, vec![range(1, 2)]]);
        let looks = load(&osts, &warming);
        let (objects, bytes) = (BLOCK + 2, 4 * BLOCK + 4);
        let all = WarmedObjects { parts: 2, parts_all: 2, objects, bytes };
        assert_eq!(looks.last(), Some(&all));
        osts.warm(1, &warming, 4, u64::MAX);
        assert!(osts.heat(1).is_none());
    }

    #[test]
    fn all_of_the_hotter_half_comes_before_the_rest_of_its_directories() {
        let osts = start(store(BLOCK, b"data"), None);
        let warming = Warming::new(&[vec![range(500, 501)], vec![range(0, 99)]]);
        let mut loaded = Vec::new();
        while !warming.look().unwrap().1 {
            let mut step = WarmStep::take(&warming).unwrap();
            let loading = step.loading.as_mut().unwrap();
            loaded.extend(loading.objects.last().filter(|_| loading.begun.is_none()).copied());
            loading.go_on(osts.osts[0].store(), u64::MAX);
        }
        let expected = [500, 501].into_iter().chain(0..100).map(object);
        assert_eq!(loaded, expected.collect::<Vec<_>>());
    }

    #[test]
    fn a_step_reads_ahead_no_more_than_it_may() {
        let large = || store(3, &vec![7; 7 * MIB as usize]);
        let all = || Warming::new(&[vec![range(0, 9)], vec![]]);
        let most_of_a_step = |osts: &OstSet<MemoryDisk>| {
            let looks = load(osts, &all());
            assert_eq!(looks.last().unwrap().bytes, 21 * MIB);
            let most = looks.windows(2).map(|two| two[1].bytes - two[0].bytes).max();
            (most.unwrap(), looks.len() - 1)
        };
        assert_eq!(most_of_a_step(&start(large(), None)).0, STEP_BYTES);
        let (most, steps) = most_of_a_step(&start(large(), Some(10 * MIB)));
        assert_eq!(most, MIB);
        assert!((21..=24).contains(&steps), "{steps}");
        // Whoever reads meanwhile and the warm start have the bandwidth together.
        let osts = start(large(), Some(10 * MIB));
        let read = OstRequest::Read { object: object(0), offset: 0, len: 10 << 20 };
        let begun = clock::now();
        clock::simulate(Some(begun));
        osts.turn(0, &read, &glint_proto::Bulk::None);
        clock::simulate(None);
        assert!(most_of_a_step(&osts).1 > steps + 3, "it takes turns");

        // Whatever is kept in memory, large objects are not read ahead.
        let cache = crate::ObjectCache::UpTo(10 << 30);
        let huge = store(1, b"data").keeping(cache);
        huge.write(object(0), 5 << 30, b"end", None, false).unwrap();
        let osts = start(huge, None);
        assert_eq!(load(&osts, &all()).last().map(|all| (all.objects, all.bytes)), Some((1, 0)));
        // Nor more than there is room for: one inode is loaded, and then some of its data.
        let (osts, warming) = (start(large(), None), all());
        let loaded = |room| {
            osts.warm(0, &warming, 4, room);
            let warmed = warming.look().unwrap().0;
            (warmed.objects, warmed.bytes)
        };
        assert_eq!((loaded(5), loaded(7)), ((1, 5), (1, 12)));
    }

    #[test]
    fn a_long_step_is_made_up_for_by_a_rest() {
        let (osts, warming) =
            (start(store(9, b"data"), None), Warming::new(&[vec![range(0, 9)], vec![]]));
        let start = clock::now();
        clock::simulate(Some(start));
        osts.warm(0, &warming, 4, 4);
        let set = |took| warming.0.lock().as_mut().unwrap().took = took;
        let loads = |at| {
            let before = warming.look().unwrap().0;
            clock::simulate(Some(start + at));
            osts.warm(0, &warming, 4, 4);
            warming.look().unwrap().0 != before
        };
        set(Duration::from_secs(1));
        assert!(!loads(Duration::from_millis(3899)) && loads(Duration::from_millis(3900)));
        set(Duration::from_millis(25));
        assert!(loads(Duration::from_millis(3901)), "the round has its pause");
        clock::simulate(None);
    }

    #[test]
    fn a_step_that_hangs_is_the_only_one() {
        let disk = MemoryDisk::default();
        disk.run_tasks(Arc::new(|task| TASKS.with_borrow_mut(|tasks| tasks.push(task))));
        let store = ObjectStore::on(disk, Path::new("ost"), 64, Default::default());
        let (osts, warming) = (start(store, None), Warming::new(&[vec![range(0, 9)], vec![]]));
        osts.warm(0, &warming, 4, u64::MAX);
        assert_eq!(warming.look(), None);
        osts.warm(0, &warming, 4, u64::MAX);
        assert_eq!(TASKS.take().len(), 1);
        // It was dropped, as without a thread for it.
        assert_eq!(warming.look().map(|(_, is_done)| is_done), Some(false));
    }

    thread_local! {
        static TASKS: RefCell<Vec<crate::disk::DiskTask>> = const { RefCell::new(Vec::new()) };
    }
}
