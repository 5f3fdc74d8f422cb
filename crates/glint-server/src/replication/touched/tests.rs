//! Tests of the log of changed objects.

use super::*;
use crate::process::data_dir::{DataDir, Role};
use futures_lite::future::block_on;
use glint_proto::Ino;
use parking_lot::Mutex;
use std::io::ErrorKind;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

impl TouchedLog {
    /// Touches on this thread.
    fn touch_here(&self, key: Key, touched: Touched, tag: Tag) -> FsResult<()> {
        self.note(key, std::iter::once(touched), tag);
        self.file.write().map_err(|error| failed(&error))
    }

    fn write_anew(&self) {
        self.state().due_anew += 1;
        self.file.write().unwrap();
    }
}

fn stable_since(since: u32, version: u32, upto: u64) -> impl Fn(Tag) -> bool {
    move |tag| Stable { version, upto, since }.has(tag)
}

fn stable(version: u32, upto: u64) -> impl Fn(Tag) -> bool {
    stable_since(0, version, upto)
}

fn touched(ino: u64, start: u64, end: u64) -> Touched {
    Touched { object: ObjectId { ino: Ino(ino), stripe: 1 }, start, end }
}

#[test]
fn entries_outlive_the_process_and_a_torn_record() {
    let dir = tempfile::tempdir().unwrap();
    let data: Arc<dyn LogStore> =
        Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
    let log = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
    log.touch_here((1, 2), touched(7, 100, 200), (1, 1)).unwrap();
    log.touch_here((1, 2), touched(7, 120, 180), (1, 2)).unwrap();
    log.touch_here((1, 2), touched(7, 0, 10), (1, 3)).unwrap();
    log.touch_here((1, 3), touched(8, 5, 6), (1, 4)).unwrap();
    block_on(log.sync()).unwrap();
    data.append_to_log(ServerLog::Pending, &[1, 2, 3]).unwrap();
    assert_eq!(data.read_log(ServerLog::Pending).unwrap().len(), 3 * RECORD_BYTES + 3);
    for _ in 0..2 {
        let again = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
        assert_eq!(again.list((1, 2)), [touched(7, 0, 200)]);
        assert_eq!(again.list((1, 3)), [touched(8, 5, 6)]);
    }
    let again = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
    again.forget((1, 2), |_| true);
    again.forget((1, 3), |_| true);
    block_on(again.shrink()).unwrap();
    assert!(data.read_log(ServerLog::Pending).unwrap().is_empty());
}

#[test]
fn what_could_not_be_appended_is_written_with_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let data: Arc<dyn LogStore> =
        Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
    let log = TouchedLog::load(data.clone(), ServerLog::Pending).unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join("pending.log")).unwrap();
    assert_eq!(log.touch_here((1, 2), touched(7, 0, 10), (1, 1)), Err(Errno::EIO));
    log.touch_here((1, 2), touched(7, 0, 10), (1, 2)).unwrap();
    log.touch_here((1, 2), touched(8, 0, 10), (1, 3)).unwrap();
    block_on(log.sync()).unwrap();
    let again = TouchedLog::load(data, ServerLog::Pending).unwrap();
    let mut found = again.list((1, 2));
    found.sort_by_key(|touched| touched.object);
    assert_eq!(found, [touched(7, 0, 10), touched(8, 0, 10)]);
}

#[test]
fn a_stream_costs_few_records_and_only_what_is_stable_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let data: Arc<dyn LogStore> =
        Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
    let log = TouchedLog::load(data.clone(), ServerLog::Recent).unwrap();
    for block in 0..1024 {
        log.touch_here((1, 0), touched(7, block << 20, (block + 1) << 20), (1, block)).unwrap();
    }
    assert!(data.read_log(ServerLog::Recent).unwrap().len() <= 18 * RECORD_BYTES);
    log.forget((1, 0), |tag| tag <= (1, 1022));
    assert_eq!(log.list((1, 0)).len(), 1);
    assert!(log.counts()[0].bytes >= 1 << 30);
    log.forget((1, 0), |tag| tag <= (2, 0));
    assert!(log.counts().is_empty());
}

#[test]
fn an_object_that_is_changed_all_the_time_is_forgotten_up_to_its_last_changes() {
    let log = TouchedLog::load(Arc::new(Logs::default()), ServerLog::Recent).unwrap();
    for change in 1..=10_000 {
        let start = change << 20;
        log.touch_here((1, 0), touched(7, start, start + 1), (1, change)).unwrap();
        if change % 100 == 0 {
            // What came before the last look is stable.
            log.forget((1, 0), stable(1, change - 50));
        }
    }
    let left = log.list((1, 0));
    assert!(left.len() <= 200, "{} extents", left.len());
    assert!(left.iter().any(|one| one.start == 10_000 << 20));
}

/// Changes come, some of what came is healed, the log is shortened, and the process ends now and then:
/// each change since the last heal is known.
#[test]
fn changes_of_a_fragmented_object_outlive_the_process() {
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % limit
    };
    for round in 0..30 {
        let logs = Arc::new(Logs::default());
        let mut log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
        let mut changes = Vec::new();
        // Where changes are: near each other, or far apart.
        let mut room = (0, 1 << 30);
        for _ in 0..4000 {
            let at = room.0 + below(room.1);
            let change = touched(7, at, at + 1);
            log.touch_here((1, 2), change, UNNUMBERED).unwrap();
            changes.push(at);
            match below(1000) {
                0 => {
                    let (_, upto) = log.list_until_now((1, 2));
                    log.remove((1, 2), &HashSet::from([change.object]), upto);
                    changes.clear();
                    room = (below(1 << 20) << 32, 1 << (27 + below(4)));
                }
                1 => log.write_anew(),
                2 | 3 => log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap(),
                _ => {}
            }
        }
        let log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
        let known = log.list((1, 2));
        let is_known = |at: &&u64| known.iter().any(|one| one.start <= **at && **at < one.end);
        assert_eq!(changes.iter().find(|at| !is_known(at)), None, "{round}");
    }
}

#[test]
fn a_change_of_an_earlier_run_is_not_forgotten_with_later_ones_of_its_object() {
    let log = TouchedLog::load(Arc::new(Logs::default()), ServerLog::Recent).unwrap();
    let (before, after) = (touched(7, 0, 10), touched(7, 1 << 30, (1 << 30) + 10));
    log.touch_here((1, 0), before, UNNUMBERED).unwrap();
    log.touch_here((1, 0), after, (9, 1)).unwrap();
    log.touch_here((1, 0), touched(8, 0, 10), (5, 1)).unwrap();
    log.touch_here((1, 0), touched(8, 20, 30), (9, 2)).unwrap();
    // A member that is synced since version 9 hears that.
    log.forget((1, 0), stable_since(9, 9, 2));
    let left: Vec<u64> = log.list((1, 0)).iter().map(|one| one.object.ino.0).collect();
    assert_eq!(left, [7, 7, 8]);
    // It has been given all that it had changed before.
    log.forget((1, 0), |tag| tag.0 < 9);
    log.forget((1, 0), stable(9, 2));
    assert!(log.is_empty((1, 0)));
}

#[test]
fn extents_outlive_the_process() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
    let parts = [touched(7, 0, 1), touched(7, 1 << 40, (1 << 40) + 1), touched(9, u64::MAX, 0)];
    block_on(log.touch_all((1, 2), parts.into_iter(), UNNUMBERED)).unwrap();
    for _ in 0..2 {
        let again = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
        assert_eq!(again.list((1, 2)), parts);
        again.write_anew();
    }
}

#[test]
fn a_change_after_the_stable_ones_is_kept_when_the_row_changes() {
    let dir = tempfile::tempdir().unwrap();
    let data: Arc<dyn LogStore> =
        Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
    let log = TouchedLog::load(data, ServerLog::Recent).unwrap();
    log.touch_here((1, 0), touched(7, 0, 10), (4, 51)).unwrap();
    log.touch_here((1, 0), touched(8, 0, 10), (4, 50)).unwrap();
    log.touch_here((1, 0), touched(9, 0, 10), UNNUMBERED).unwrap();
    // The head has lost another member, and goes on counting after these.
    log.forget((1, 0), stable(5, 50));
    let mut left = log.list((1, 0));
    left.sort_by_key(|touched| touched.object);
    assert_eq!(left, [touched(7, 0, 10), touched(9, 0, 10)]);
    log.forget((1, 0), stable(5, 51));
    assert_eq!(log.list((1, 0)), [touched(9, 0, 10)]);
}

#[test]
fn an_entry_that_was_noted_again_since_it_was_listed_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let data: Arc<dyn LogStore> =
        Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
    let log = TouchedLog::load(data, ServerLog::Pending).unwrap();
    for ino in [7, 8, 9] {
        log.touch_here((1, 2), touched(ino, 0, 10), UNNUMBERED).unwrap();
    }
    let (listed, upto) = log.list_until_now((1, 2));
    assert_eq!(listed.len(), 3);
    // The member is lost again: one object is written elsewhere, one where it was before.
    log.touch_here((1, 2), touched(7, 90, 99), UNNUMBERED).unwrap();
    log.touch_here((1, 2), touched(8, 3, 4), UNNUMBERED).unwrap();
    log.touch_here((1, 2), touched(10, 0, 1), UNNUMBERED).unwrap();
    let copied = [7, 8, 9, 10].map(|ino| touched(ino, 0, 0).object);
    log.remove((1, 2), &copied.into(), upto);
    let mut left = log.list((1, 2));
    left.sort_by_key(|touched| touched.object);
    assert_eq!(left.iter().map(|one| one.object.ino.0).collect::<Vec<_>>(), [7, 8, 10]);
    assert!(left[0].start == 0 && left[0].end >= 99);
    let (_, upto) = log.list_until_now((1, 2));
    log.remove((1, 2), &copied.into(), upto);
    assert!(log.is_empty((1, 2)));
}

#[test]
fn entries_are_synced_after_a_process_was_killed_and_after_a_sync_that_failed() {
    let logs = Arc::new(Logs::default());
    let first = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
    first.touch_here((1, 2), touched(7, 0, 10), UNNUMBERED).unwrap();
    // It is killed. The next one notes what its log covers.
    let log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
    log.touch_here((1, 2), touched(7, 0, 10), UNNUMBERED).unwrap();
    logs.fails.store(true, Ordering::Relaxed);
    assert_eq!(block_on(log.sync()), Err(Errno::EIO));
    assert_eq!(block_on(log.sync()), Err(Errno::EIO), "it does not become stable by itself");
    logs.fails.store(false, Ordering::Relaxed);
    block_on(log.sync()).unwrap();
    assert_eq!(*logs.stable.lock(), encode((1, 2), touched(7, 0, 10)));
    assert_eq!(block_on(log.sync()), Ok(()));
}

#[test]
fn more_changes_than_are_remembered_are_everything() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
    log.touch_here((1, 3), touched(7, 0, 10), UNNUMBERED).unwrap();
    for ino in 1..=1_000_000 {
        log.touch_here((1, 2), touched(ino, 0, 10), UNNUMBERED).unwrap();
    }
    assert!(log.state().sets.records() <= 2);
    assert!(logs.content.lock().len() <= 2 * RECORD_BYTES);
    for log in [&log, &TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap()] {
        assert_eq!(log.list((1, 2)), [Touched::EVERYTHING]);
        assert_eq!(
            log.list((1, 3)),
            [touched(7, 0, 10)],
            "another member lacks no more than before"
        );
    }
    // It is given all objects up to one.
    let (after, upto) = log.rest((1, 2)).unwrap();
    assert_eq!(after, Touched::EVERYTHING.object);
    block_on(log.advance((1, 2), Some(touched(500, 0, 0).object), upto)).unwrap();
    // It is lost, and lacks changes of objects that it was given, and of others.
    log.touch_here((1, 2), touched(400, 0, 10), UNNUMBERED).unwrap();
    log.touch_here((1, 2), touched(600, 0, 10), UNNUMBERED).unwrap();
    assert_eq!(log.list((1, 2)), [Touched::EVERYTHING, touched(400, 0, 10)]);
    block_on(log.advance((1, 2), Some(touched(700, 0, 0).object), upto)).unwrap();
    let (after, upto) = log.rest((1, 2)).unwrap();
    assert_eq!(after, touched(500, 0, 0).object, "somebody has noted more meanwhile");
    block_on(log.advance((1, 2), None, upto)).unwrap();
    for log in [&log, &TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap()] {
        assert_eq!(log.list((1, 2)), [touched(400, 0, 10)]);
        assert_eq!(log.rest((1, 2)), None);
    }
}

#[test]
fn what_was_truncated_counts_without_bytes_as_open_ended() {
    let log = TouchedLog::load(Arc::new(Logs::default()), ServerLog::Pending).unwrap();
    log.touch_here((1, 2), touched(7, 0, 10), (1, 1)).unwrap();
    log.touch_here((1, 2), touched(8, 5, u64::MAX), (1, 2)).unwrap();
    log.touch_here((1, 2), touched(9, u64::MAX, 0), (1, 3)).unwrap();
    let count = log.counts()[0];
    assert_eq!((count.objects, count.bytes, count.open_ended), (3, 10, 1));
}

#[test]
fn nothing_is_called_written_while_the_log_is_written_anew() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Pending).unwrap();
    log.touch_here((1, 2), touched(7, 0, 10), (1, 1)).unwrap();
    *logs.asked.lock() = Arc::downgrade(&log.file);
    logs.fails.store(true, Ordering::Relaxed);
    assert_eq!(block_on(log.sync()), Err(Errno::EIO));
    logs.fails.store(false, Ordering::Relaxed);
    block_on(log.sync()).unwrap();
    let state = log.state();
    assert!(state.is_written(state.noted));
}

/// A change, and how it was begun, if it was.
type OneChange = (u64, Option<First>);

/// Changes that come after what they have noted, in the order in which they went on.
#[derive(Clone, Default)]
struct Changes(Arc<Mutex<Vec<OneChange>>>);

impl Changes {
    /// One of its own object.
    fn make(&self, log: &TouchedLog, ino: u64) {
        log.note((1, 0), std::iter::once(touched(ino, 0, 10)), (1, ino));
        let all = self.0.clone();
        let go_on = move |first| all.lock().push((ino, first));
        match log.before_change(0) {
            Some(after) => after(Box::new(go_on)),
            None => go_on(None),
        }
    }

    /// Those that have gone on, and whether it is theirs to write.
    fn gone_on(&self) -> Vec<(u64, bool)> {
        self.0.lock().iter().map(|(ino, first)| (*ino, first.is_some())).collect()
    }

    /// The last one's to write.
    fn last(&self) -> First {
        self.0.lock().last_mut().unwrap().1.take().unwrap()
    }
}

#[test]
fn one_change_writes_for_all_that_came_meanwhile() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Recent).unwrap();
    let changes = Changes::default();
    (1..=3).for_each(|ino| changes.make(&log, ino));
    assert_eq!(changes.gone_on(), [(1, true)], "others wait until it has written");
    changes.last()().unwrap();
    assert_eq!(changes.gone_on(), [(1, false), (2, false), (3, false)]);
    assert_eq!(logs.content.lock().len(), 3 * RECORD_BYTES);
    // Covered by what was noted.
    changes.make(&log, 2);
    assert_eq!(changes.gone_on()[3..], [(2, false)]);
}

#[test]
fn a_turn_to_write_that_is_lost_or_fails_is_the_next_ones() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Recent).unwrap();
    let changes = Changes::default();
    (1..=3).for_each(|ino| changes.make(&log, ino));
    // There was no thread for it.
    drop(changes.last());
    assert_eq!(changes.gone_on(), [(1, false), (2, true)]);
    logs.is_full.store(true, Ordering::Relaxed);
    let error = changes.last()().unwrap_err();
    assert_eq!(Errno::from_io(&error), Errno::EIO);
    assert_eq!(changes.gone_on(), [(1, false), (2, false), (3, true)]);
    logs.is_full.store(false, Ordering::Relaxed);
    changes.last()().unwrap();
    // What the one that failed may have left is gone.
    assert_eq!(logs.content.lock().len(), 3 * RECORD_BYTES);
    assert_eq!(block_on(log.sync()), Ok(()));
}

#[test]
fn nobody_who_notes_a_change_waits_for_a_log_that_becomes_shorter() {
    const LEFT: u64 = 10;
    let logs = Arc::new(Logs::default());
    let log = Arc::new(TouchedLog::load(logs.clone(), ServerLog::Recent).unwrap());
    let count = RECORDS_MAX as u64 + 1;
    for ino in 1..=count {
        log.touch_here((1, 0), touched(ino, 0, 10), (1, ino)).unwrap();
    }
    log.forget((1, 0), stable(1, count - LEFT));
    let (changes, next) = (Changes::default(), AtomicU64::new(count + 1));
    let (noting, of) = (changes.clone(), Arc::downgrade(&log));
    *logs.beside.lock() = Some(Arc::new(move || {
        noting.make(&of.upgrade().unwrap(), next.fetch_add(1, Ordering::Relaxed));
        noting.last()().unwrap();
    }));
    block_on(log.shrink()).unwrap();
    logs.beside.lock().take();
    // Before the draft has joined the log, and after that.
    assert_eq!(changes.gone_on(), [(count + 1, false), (count + 2, false)]);
    let again = TouchedLog::load(logs.clone(), ServerLog::Recent).unwrap();
    assert_eq!(again.list((1, 0)).len() as u64, LEFT + 2);
    assert_eq!(logs.content.lock().len(), (LEFT + 2) as usize * RECORD_BYTES);
    assert_eq!(log.state().in_log as u64, LEFT + 2);
    assert_eq!(*logs.stable.lock(), *logs.content.lock());
}

#[test]
fn a_draft_that_cannot_be_adopted_is_not_taken_for_the_log() {
    let logs = Arc::new(Logs::default());
    let log = TouchedLog::load(logs.clone(), ServerLog::Recent).unwrap();
    log.touch_here((1, 0), touched(7, 0, 10), (1, 1)).unwrap();
    log.forget((1, 0), |_| true);
    logs.fails.store(true, Ordering::Relaxed);
    assert_eq!(block_on(log.shrink()), Err(Errno::EIO));
    let state = log.state();
    assert!(!state.is_written(state.noted), "it is written anew");
    drop(state);
    logs.fails.store(false, Ordering::Relaxed);
    block_on(log.shrink()).unwrap();
    assert!(logs.content.lock().is_empty());
}

/// A log in memory, and the part of it that a loss of power leaves.
#[derive(Default)]
struct Logs {
    content: Mutex<Vec<u8>>,
    stable: Mutex<Vec<u8>>,
    /// Syncs fail, or appends do after a part.
    fails: AtomicBool,
    is_full: AtomicBool,
    draft: Mutex<Vec<u8>>,
    is_joined: AtomicBool,
    /// What happens while there is a draft.
    beside: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// Who is asked, while the log is written anew, whether everything is in it.
    asked: Mutex<Weak<LogFile>>,
}

fn io_error(kind: ErrorKind) -> RecordsError {
    RecordsError::Io { path: "log".into(), source: kind.into() }
}

impl Logs {
    fn happens_beside(&self) {
        let beside = self.beside.lock().clone();
        if let Some(beside) = beside {
            beside();
        }
    }
}

impl LogStore for Logs {
    fn read_log(&self, _: ServerLog) -> Result<Vec<u8>, RecordsError> {
        Ok(self.content.lock().clone())
    }

    fn append_to_log(&self, _: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        if self.is_full.load(Ordering::Relaxed) {
            self.content.lock().extend_from_slice(&bytes[..1]);
            return Err(io_error(ErrorKind::StorageFull));
        }
        self.content.lock().extend_from_slice(bytes);
        if self.is_joined.load(Ordering::Relaxed) {
            self.draft.lock().extend_from_slice(bytes);
        }
        Ok(())
    }

    fn sync_log(&self, _: ServerLog) -> Result<(), RecordsError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(io_error(ErrorKind::Other));
        }
        *self.stable.lock() = self.content.lock().clone();
        Ok(())
    }

    fn replace_log(&self, log: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        if let Some(file) = self.asked.lock().upgrade() {
            let state = file.state.lock();
            assert!(!state.is_written(state.noted), "it is not yet");
        }
        *self.content.lock() = bytes.to_vec();
        self.sync_log(log)
    }

    fn draft_log(&self, _: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        *self.draft.lock() = bytes.to_vec();
        self.happens_beside();
        Ok(())
    }

    fn join_draft(&self, _: ServerLog, bytes: &[u8]) -> Result<(), RecordsError> {
        self.draft.lock().extend_from_slice(bytes);
        self.is_joined.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn adopt_draft(&self, log: ServerLog) -> Result<(), RecordsError> {
        self.happens_beside();
        self.is_joined.store(false, Ordering::Relaxed);
        *self.content.lock() = std::mem::take(&mut *self.draft.lock());
        self.sync_log(log)
    }
}
