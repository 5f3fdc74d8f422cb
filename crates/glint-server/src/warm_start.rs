//! The warm start: what was read most in the runs before is loaded first, in the background.
//!
//! Which keys of the engine and which objects of each OST are read most is counted ([`Heat`]), and kept
//! in the [`Records`] every minute and at the end. The next run reads these ranges in their order,
//! the hottest first, so that the cache of the engine and that of the kernel have them again.
//!
//! Invariants:
//! - It takes at most a quarter of a thread, and less than a tenth while requests come. What it
//!   reads ahead has a limit, too ([`Warming`]).
//! - Nobody who keeps what is read most, or looks how far it is, waits for the disk of an OST.
//! - It pauses while memory is not ample, and ends when it has taken its part of it ([`Room`]): with
//!   tables once the engine's own cache was filled.
//! - What is kept is a hint. Where it is missing or damaged nothing is loaded, and it is kept anew. It is
//!   never kept before that of the last run was read.

use crate::rates::Totals;
use crate::records::{HotPart, Records};
use glint_kv::{Keyspace, Kv, Loaded};
use glint_mds::Mds;
use glint_memory::SupplyWatch;
use glint_ost::disk::Disk;
use glint_ost::{OstSet, Warming};
use glint_proto::clock;
use glint_telemetry::{Heat, HotRange, event};
use parking_lot::Mutex;
use room::{MemoryProbe, Room, RoomLeft};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// From the beginning of a round to that of the next one, with the work of tables.
const ROUND: Duration = Duration::from_millis(132);
/// One part in so many of the time is worked, all parts of the warm start together.
const PART: u32 = 4;
/// The same while requests come.
const PART_IF_BUSY: u32 = 12;
/// Requests since the round before that are work of somebody, and not signs of life.
const BUSY_REQUESTS: u64 = 10;
/// Keys that are read at once.
const KEYS: usize = 256;
/// How often is kept what was read most.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// How often counts are halved, if anything was read.
const AGE_EVERY: Duration = Duration::from_secs(3600);

/// How far the warm start is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WarmState {
    /// Switched off.
    Off,
    /// Not at its end.
    Running,
    /// The same, but it waits until memory is ample.
    MemoryShort,
    /// All is loaded.
    Done,
    /// So much is loaded as there was room for.
    Full,
}

/// Progress of the warm start of the engine, or of an OST.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WarmProgress {
    pub(crate) state: WarmState,
    /// Ranges of keys, or directories of objects, that are loaded, and all of them.
    pub(crate) done: u64,
    pub(crate) total: u64,
    /// Keys or objects that were loaded.
    pub(crate) loaded: u64,
    /// Their bytes; of objects those of their data that are to be kept.
    pub(crate) bytes: u64,
    began: Instant,
    ended: Option<Instant>,
}

impl WarmProgress {
    fn new(is_on: bool) -> WarmProgress {
        let state = if is_on { WarmState::Running } else { WarmState::Off };
        let (done, total, loaded, bytes) = (0, 0, 0, 0);
        WarmProgress { state, done, total, loaded, bytes, began: clock::now(), ended: None }
    }

    /// How long it has taken so far.
    pub(crate) fn time(&self) -> Duration {
        self.ended.unwrap_or_else(clock::now).saturating_duration_since(self.began)
    }

    fn is_running(&self) -> bool {
        matches!(self.state, WarmState::Running | WarmState::MemoryShort)
    }

    /// Notes how much room there is. Returns how many bytes may be loaded.
    fn take_up(&mut self, room: RoomLeft) -> u64 {
        let (state, bytes) = match room {
            RoomLeft::Bytes(bytes) => (WarmState::Running, bytes),
            RoomLeft::Later => (WarmState::MemoryShort, 0),
            RoomLeft::None => (self.state, 0),
        };
        self.state = state;
        bytes
    }

    fn end(&mut self, part: HotPart, state: WarmState) {
        (self.state, self.ended) = (state, Some(clock::now()));
        if self.total > 0 {
            let WarmProgress { done, total, loaded, bytes, .. } = *self;
            tracing::info!(%part, loaded, bytes, time = ?self.time(), "loaded {done} of {total} parts of what was read most before the start");
        }
    }
}

/// Counts of what is read, as they are kept.
struct Hint {
    part: HotPart,
    is_read: bool,
    is_damaged: bool,
    kept: Instant,
    aged: Instant,
}

impl Hint {
    fn new(part: HotPart) -> Hint {
        let now = clock::now();
        Hint { part, is_read: false, is_damaged: false, kept: now, aged: now }
    }

    /// Reads what the last run kept, the first time. Returns true if there is something.
    fn read(&mut self, records: &dyn Records, heat: &Heat) -> bool {
        if std::mem::replace(&mut self.is_read, true) {
            return false;
        }
        let restored = records.hot(self.part).map_err(|error| error.to_string());
        let restored = restored.and_then(|kept| match kept {
            Some(kept) => heat.restore(&kept).map(|()| true).map_err(|error| error.to_string()),
            None => Ok(false),
        });
        restored.unwrap_or_else(|reason| {
            self.is_damaged = true;
            tracing::warn!(
                event = event::WARM_START_SKIPPED, part = %self.part, reason,
                "what was read most before the start cannot be read, and is not loaded"
            );
            false
        })
    }

    /// Keeps what is read most, if it is time to and anything was read.
    fn keep(&mut self, records: &dyn Records, heat: &Heat, is_end: bool) {
        let is_due = is_end || clock::since(self.kept) >= KEEP_EVERY;
        if !self.is_read || !is_due {
            return;
        }
        self.kept = clock::now();
        if !heat.take_change() && !std::mem::take(&mut self.is_damaged) {
            return;
        }
        if clock::since(self.aged) >= AGE_EVERY {
            self.aged = clock::now();
            heat.age();
        }
        if let Err(error) = records.store_hot(self.part, &heat.encode()) {
            tracing::warn!(%error, "could not keep what is read most; the next start is not as warm");
        }
    }
}

/// Loading of the engine's tables.
struct TablesWork {
    hint: Hint,
    /// Ranges that are left, the next one at the end.
    ranges: Vec<HotRange>,
    /// Where to go on in the next one.
    from: Option<Vec<u8>>,
    /// The hottest ranges, those that the engine's cache has room for, in the same order.
    hottest: Vec<HotRange>,
    /// The hottest ranges are read again, because colder ones may have taken their place.
    is_again: bool,
    /// There is no room for the others.
    is_full: bool,
    budget: Budget,
}

/// Loading of the objects of an OST.
struct ObjectsWork {
    hint: Hint,
    /// What is loaded, once that is known.
    warming: Option<Warming>,
    /// Memory of what was loaded.
    taken: u64,
}

/// What a round may take.
#[derive(Default)]
struct Budget {
    requests: u64,
}

impl Budget {
    /// Each of so many parts may work one part in how many of the time.
    fn part(&mut self, parts: usize) -> u32 {
        if parts == 0 {
            return PART;
        }
        let all = Totals::now().operations;
        let requests = all.saturating_sub(std::mem::replace(&mut self.requests, all));
        let part = if requests > BUSY_REQUESTS { PART_IF_BUSY } else { PART };
        part.saturating_mul(parts as u32)
    }
}

/// The warm start of a server.
pub(crate) struct WarmStart {
    is_on: bool,
    tables: futures_util::lock::Mutex<TablesWork>,
    objects: Mutex<(Vec<ObjectsWork>, Budget)>,
    room: Mutex<Room>,
    /// Of the tables, and of each OST. Nobody who looks waits for a disk.
    progress: Mutex<(WarmProgress, Vec<WarmProgress>)>,
}

/// Keys at positions of a range: from one up to, and without, the other.
fn bounds(range: HotRange) -> (Vec<u8>, Vec<u8>) {
    let behind = range.last.checked_add(1);
    // No key of an inode begins with all ones.
    let to = behind.map_or_else(|| vec![0xff; 9], |behind| behind.to_be_bytes().to_vec());
    (range.first.to_be_bytes().to_vec(), to)
}

impl WarmStart {
    /// Of a server with so many OSTs, and with an MDS or not. If it is not on, what is read most is kept
    /// and not loaded.
    pub(crate) fn new(is_on: bool, has_mds: bool, osts: u16) -> WarmStart {
        let watch = OnceLock::new();
        let look = move || watch.get_or_init(SupplyWatch::of_this_process).look();
        WarmStart::asking(Box::new(look), is_on, has_mds, osts)
    }

    /// The same, which asks this how much memory there is.
    fn asking(memory: MemoryProbe, is_on: bool, has_mds: bool, osts: u16) -> WarmStart {
        let tables = TablesWork {
            hint: Hint::new(HotPart::Tables),
            ranges: Vec::new(),
            from: None,
            hottest: Vec::new(),
            is_again: false,
            is_full: false,
            budget: Budget::default(),
        };
        let object =
            |ost| ObjectsWork { hint: Hint::new(HotPart::Ost(ost)), warming: None, taken: 0 };
        let objects = (0..osts).map(object).collect();
        let progress = (0..osts).map(|_| WarmProgress::new(is_on)).collect();
        WarmStart {
            is_on,
            tables: tables.into(),
            objects: Mutex::new((objects, Budget::default())),
            room: Mutex::new(Room::new(memory)),
            progress: Mutex::new((WarmProgress::new(is_on && has_mds), progress)),
        }
    }

    /// How far it is with the tables of the engine.
    pub(crate) fn tables(&self) -> WarmProgress {
        self.progress.lock().0
    }

    /// How far it is with the objects of each OST.
    pub(crate) fn osts(&self) -> Vec<WarmProgress> {
        self.progress.lock().1.clone()
    }

    /// Parts that are not at their end.
    fn running(&self) -> usize {
        let (tables, osts) = &*self.progress.lock();
        osts.iter().chain([tables]).filter(|part| part.is_running()).count()
    }

    /// Loads some of what was read most from the tables, and keeps what is.
    pub(crate) async fn step_tables<K: Kv>(&self, records: &dyn Records, mds: &Mds<K>) {
        let Some(heat) = mds.heat() else {
            // All of it is in memory.
            self.progress.lock().0.state = WarmState::Off;
            return;
        };
        let work = &mut *self.tables.lock().await;
        if work.hint.read(records, heat) && self.is_on {
            let ranges = heat.ranges();
            self.progress.lock().0.total = ranges.len() as u64;
            work.ranges = ranges.into_iter().rev().collect();
        }
        let mut progress = self.tables();
        if progress.is_running() {
            let until = clock::now() + ROUND / work.budget.part(self.running());
            load_tables(work, &mut progress, mds, &self.room, until).await;
            self.progress.lock().0 = progress;
        }
        work.hint.keep(records, heat, false);
    }

    /// Has disks load some of the objects that were read most, and keeps which are. Waits for none of
    /// them.
    pub(crate) fn step_objects<D: Disk>(&self, records: &dyn Records, osts: &OstSet<D>) {
        let (objects, budget) = &mut *self.objects.lock();
        let part = budget.part(self.running());
        for (index, work) in (0..).zip(objects) {
            let Some(heat) = osts.heat(index) else { continue };
            if work.hint.read(records, heat) {
                work.warming = Some(Warming::new(&heat.halves()));
            }
            let at = usize::from(index);
            let mut progress = self.progress.lock().1[at];
            if progress.is_running() {
                load_objects(work, &mut progress, osts, index, &mut self.room.lock(), part);
                self.progress.lock().1[at] = progress;
            }
            work.hint.keep(records, heat, false);
        }
    }

    /// Keeps what is read most before the end of the server.
    pub(crate) async fn keep<D: Disk>(
        &self,
        records: &dyn Records,
        tables: Option<&Heat>,
        osts: &OstSet<D>,
    ) {
        if let Some(heat) = tables {
            self.tables.lock().await.hint.keep(records, heat, true);
        }
        for (index, work) in (0..).zip(&mut self.objects.lock().0) {
            if let Some(heat) = osts.heat(index) {
                work.hint.keep(records, heat, true);
            }
        }
    }
}

/// Loads some of the tables, until then.
async fn load_tables<K: Kv>(
    work: &mut TablesWork,
    progress: &mut WarmProgress,
    mds: &Mds<K>,
    room: &Mutex<Room>,
    until: Instant,
) {
    let limit = mds.engine_cache().map_or(0, |cache| cache.limit);
    loop {
        let Some(&range) = work.ranges.last() else {
            if progress.bytes <= limit || std::mem::replace(&mut work.is_again, true) {
                let state = if work.is_full { WarmState::Full } else { WarmState::Done };
                return progress.end(work.hint.part, state);
            }
            work.ranges = work.hottest.drain(..).rev().collect();
            continue;
        };
        // The cache of the engine has its room.
        let takes_room = !work.is_again && progress.bytes > limit;
        if takes_room {
            let left = room.lock().look();
            if progress.take_up(left) == 0 {
                if left == RoomLeft::Later {
                    return;
                }
                work.is_full = true;
                (work.ranges, work.from) = (Vec::new(), None);
                continue;
            }
        }
        let loaded = load_range(mds, range, work.from.as_deref()).await;
        work.from = loaded.next;
        if work.from.is_none() {
            work.ranges.pop();
        }
        if takes_room {
            room.lock().take(loaded.bytes);
        }
        if !work.is_again {
            progress.loaded += loaded.keys;
            progress.bytes += loaded.bytes;
            if work.from.is_none() {
                progress.done += 1;
                if progress.bytes <= limit / 4 * 3 {
                    work.hottest.push(range);
                }
            }
        }
        if clock::now() >= until {
            return;
        }
    }
}

/// Loads some keys of a range of tables, from where the last ones ended.
async fn load_range<K: Kv>(mds: &Mds<K>, range: HotRange, from: Option<&[u8]>) -> Loaded {
    let keyspace = Keyspace::ALL.get(usize::from(range.table)).copied();
    let Some(keyspace) = keyspace else { return Loaded::default() };
    let (first, to) = bounds(range);
    let loaded = mds.load(keyspace, from.unwrap_or(&first), &to, KEYS).await;
    loaded.unwrap_or_else(|error| {
        // Whoever needs the keys will be told; the rest of the range is left out.
        tracing::debug!(%error, "could not load what was read most");
        Loaded::default()
    })
}

/// Has the disk of an OST load some objects, in one part in `part` of the time.
fn load_objects<D: Disk>(
    work: &mut ObjectsWork,
    progress: &mut WarmProgress,
    osts: &OstSet<D>,
    index: u16,
    room: &mut Room,
    part: u32,
) {
    let Some(warming) = &work.warming else {
        return progress.end(work.hint.part, WarmState::Done);
    };
    // A step is under way.
    let Some((warmed, is_done)) = warming.look() else { return };
    room.take(warmed.memory() - std::mem::replace(&mut work.taken, warmed.memory()));
    (progress.done, progress.total) = (warmed.parts, warmed.parts_all);
    (progress.loaded, progress.bytes) = (warmed.objects, warmed.bytes);
    if is_done {
        return progress.end(work.hint.part, WarmState::Done);
    }
    let left = room.look();
    match (left, progress.take_up(left)) {
        (RoomLeft::None, _) => progress.end(work.hint.part, WarmState::Full),
        (_, 0) => {}
        (_, bytes) => osts.warm(index, warming, part, bytes),
    }
}

mod room;
#[cfg(test)]
mod tests;
