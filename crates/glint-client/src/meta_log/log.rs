//! Changes that this client has made by itself, and not yet told the servers.
//!
//! Invariants:
//! - Changes are sent in the order in which they were made, one batch after the other.
//! - A change is counted as done only when the servers have answered it. So who waits for a
//!   number knows that everything up to it can be seen by others.
//! - A flush of the whole log does not wait for the close of a file whose data cannot be written: that
//!   may take without end, and no other file depends on it.

use crate::calls::open_files::OpenFile;
use glint_proto::deferred::{self, Deferred};
use glint_proto::limits::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX, NAME_BYTES_MAX};
use glint_proto::{FsResult, Ino, clock};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Changes that are sent without waiting for more.
const ENOUGH: u64 = BATCH_CHANGES_MAX as u64 / 2;
/// Changes above which those who make more wait.
const CHANGES_MAX: u64 = 8 * BATCH_CHANGES_MAX as u64;
/// A change takes no more than this: two names, or a name and the target of a link.
const CHANGE_BYTES_MAX: usize = 8192 + 2 * NAME_BYTES_MAX;

/// Changes that travel together.
pub(crate) struct LogBatch {
    pub(crate) changes: Vec<u8>,
    pub(crate) count: u32,
    /// See [`WriteBackLog::epoch`].
    pub(crate) epoch: u64,
    /// When the first was made.
    made: Instant,
}

impl LogBatch {
    /// How many of its changes somebody relies on: all but access times.
    pub(crate) fn promises(&self) -> usize {
        deferred::changes(&self.changes).flatten().filter(|change| !change.is_access()).count()
    }
}

#[derive(Default)]
struct LogState {
    batches: VecDeque<LogBatch>,
    /// Files that were made here and closed, whose data has to go before their end.
    closed: VecDeque<Arc<OpenFile>>,
    /// Somebody waits for changes up to this one, and for closed files.
    wanted: u64,
    hurry: bool,
    /// Inode numbers to give.
    numbers: VecDeque<Range<u64>>,
    /// Directories delegated to this client, oldest first.
    delegated: VecDeque<Ino>,
}

/// The write-back log of a client.
#[derive(Default)]
pub(crate) struct WriteBackLog {
    /// The servers want none, or the user.
    off: AtomicBool,
    made: AtomicU64,
    done: AtomicU64,
    /// How often the servers have forgotten this client.
    epoch: AtomicU64,
    /// Closed files whose end is not among the changes yet.
    closing: AtomicU64,
    /// Those of them whose data could not be written for a while.
    stuck: AtomicU64,
    state: Mutex<LogState>,
    /// Calls that wait until changes are done, each with the number of its last one.
    waiting: WaitList<u64>,
    sender: WaitList,
    /// Threads that send data of closed files beside the sender.
    helpers: AtomicUsize,
    has_ended: AtomicBool,
}

impl WriteBackLog {
    /// From now on everything is told at once.
    pub(crate) fn turn_off(&self) {
        self.off.store(true, Ordering::Release);
    }

    pub(crate) fn is_on(&self) -> bool {
        !self.off.load(Ordering::Acquire)
    }

    /// Whether there is anything that the servers have not answered.
    pub(crate) fn is_busy(&self) -> bool {
        self.len() > 0 || self.closing.load(Ordering::Acquire) > 0
    }

    /// Whether a flush of the whole log has anything to wait for.
    pub(crate) fn is_to_flush(&self) -> bool {
        self.len() > 0 || self.has_closing()
    }

    /// Whether closed files that are not stuck are not among the changes yet.
    fn has_closing(&self) -> bool {
        let stuck = self.stuck.load(Ordering::Acquire);
        self.closing.load(Ordering::Acquire) > stuck
    }

    /// Changes that the servers have not answered.
    pub(crate) fn len(&self) -> u64 {
        let done = self.done.load(Ordering::Acquire);
        self.made.load(Ordering::Acquire).saturating_sub(done)
    }

    /// Number of the last change.
    pub(crate) fn last(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// Whether the servers have not answered this change.
    pub(crate) fn is_pending(&self, number: u64) -> bool {
        number > self.done.load(Ordering::Acquire)
    }

    /// A change was made. Returns its number.
    pub(crate) fn push(&self, change: &Deferred<'_>) -> FsResult<u64> {
        let mut state = self.state.lock();
        let fits = |batch: &LogBatch| {
            batch.count < BATCH_CHANGES_MAX
                && batch.changes.len() + CHANGE_BYTES_MAX < BATCH_BYTES_MAX
        };
        if !state.batches.back().is_some_and(fits) {
            let changes = Vec::with_capacity(64 * BATCH_CHANGES_MAX as usize);
            let epoch = self.epoch();
            state.batches.push_back(LogBatch { changes, count: 0, epoch, made: clock::now() });
        }
        let Some(batch) = state.batches.back_mut() else { return Ok(0) };
        change.encode(&mut batch.changes)?;
        batch.count += 1;
        let number = self.made.fetch_add(1, Ordering::AcqRel) + 1;
        let is_enough = self.len() == ENOUGH;
        drop(state);
        if is_enough {
            self.sender.wake();
        }
        Ok(number)
    }

    /// A file was closed whose data is still here.
    pub(crate) fn close(&self, file: Arc<OpenFile>) {
        self.closing.fetch_add(1, Ordering::AcqRel);
        self.state.lock().closed.push_back(file);
    }

    /// Counts a closed file as stuck, because its data could not be written for a while.
    pub(crate) fn note_stuck(&self) {
        self.stuck.fetch_add(1, Ordering::AcqRel);
        self.wake_waiters();
    }

    /// The close of such a file is among the changes now.
    pub(crate) fn note_closed(&self, is_stuck: bool) {
        if is_stuck {
            self.stuck.fetch_sub(1, Ordering::AcqRel);
        }
        self.closing.fetch_sub(1, Ordering::AcqRel);
        self.wake_waiters();
    }

    /// Waits until `ready`, or what was changed up to `number` is done and it is to be looked at
    /// again. `urge` says what the sender has to do for that.
    async fn wait(&self, number: u64, ready: impl Fn() -> bool, urge: impl Fn(&mut LogState)) {
        let look = || {
            if ready() {
                return Some(());
            }
            urge(&mut self.state.lock());
            self.sender.wake();
            None
        };
        self.waiting.until_with(number, look).await;
    }

    /// Until all changes up to this one are done.
    pub(crate) async fn until_answered(&self, number: u64) {
        let urge = |state: &mut LogState| state.wanted = state.wanted.max(number);
        self.wait(number, || !self.is_pending(number), urge).await;
    }

    /// Has closed files written now.
    pub(crate) fn hurry(&self) {
        self.state.lock().hurry = true;
        self.sender.wake();
    }

    /// Has everything sent that was made before this time, and closed files written.
    pub(crate) fn hurry_old(&self, before: Instant) {
        let mut state = self.state.lock();
        let old = state.batches.front().is_some_and(|batch| batch.made <= before);
        let closed = state.closed.front().is_some_and(|file| !self.is_pending(file.made));
        if !old && !closed {
            return;
        }
        if old {
            state.wanted = self.last();
        }
        drop(state);
        self.sender.wake();
    }

    /// Whether there is room for another change.
    pub(crate) fn has_room(&self) -> bool {
        self.len() + self.closing.load(Ordering::Acquire) < CHANGES_MAX
    }

    /// Until there is room for another change.
    pub(crate) async fn room(&self) {
        let room = || self.has_room();
        let urge = |state: &mut LogState| (state.wanted, state.hurry) = (self.last(), true);
        // Woken at each end of a batch or a file.
        self.wait(0, room, urge).await;
    }

    /// Next work of the sender: changes to send, closed files to write.
    pub(crate) async fn next(&self) -> (Option<LogBatch>, Vec<Arc<OpenFile>>) {
        let look = || {
            let mut state = self.state.lock();
            let enough = self.len() >= ENOUGH || state.wanted > self.done.load(Ordering::Acquire);
            let batch = if enough { state.batches.pop_front() } else { None };
            let closed = self.take_closed(&mut state);
            (batch.is_some() || !closed.is_empty()).then_some((batch, closed))
        };
        self.sender.until(look).await
    }

    /// A thread's part of the closed files that may be written.
    fn take_closed(&self, state: &mut LogState) -> Vec<Arc<OpenFile>> {
        let ready = |file: &OpenFile| state.hurry || !self.is_pending(file.made);
        let count = state.closed.iter().take_while(|file| ready(file)).count();
        let part = count.div_ceil(1 + self.helpers.load(Ordering::Acquire));
        let closed = state.closed.drain(..part).collect();
        state.hurry &= part < count;
        closed
    }

    /// A thread sends data of closed files from now on, beside the sender.
    pub(crate) fn begin_help(&self) {
        self.helpers.fetch_add(1, Ordering::AcqRel);
    }

    /// Next work of such a thread: closed files to write; `None` at the end.
    pub(crate) async fn next_closed(&self) -> Option<Vec<Arc<OpenFile>>> {
        let look = || {
            let closed = self.take_closed(&mut self.state.lock());
            match closed.is_empty() {
                true => self.has_ended.load(Ordering::Acquire).then_some(None),
                false => Some(Some(closed)),
            }
        };
        self.sender.until(look).await
    }

    /// There will be no closed files any more.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.sender.wake();
    }

    /// The servers have answered so many more.
    pub(crate) fn note_answered(&self, count: u32) {
        self.done.fetch_add(u64::from(count), Ordering::AcqRel);
        if self.helpers.load(Ordering::Acquire) > 0 {
            // Files may be written that were made by these changes.
            self.sender.wake();
        }
        self.wake_waiters();
    }

    fn wake_waiters(&self) {
        let done = self.done.load(Ordering::Acquire);
        self.waiting.wake_where(|number| *number <= done);
    }

    /// Write-back epoch. Changes of an earlier one are not to be made any more.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Nobody will hear of what was not sent. Returns how many changes that are, apart from access
    /// times.
    pub(crate) fn lose(&self) -> usize {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        let batches = std::mem::take(&mut self.state.lock().batches);
        self.note_answered(batches.iter().map(|batch| batch.count).sum());
        batches.iter().map(LogBatch::promises).sum()
    }

    /// Waits until every closed file is among the changes, or stuck.
    pub(crate) async fn none_closing(&self) {
        self.wait(0, || !self.has_closing(), |_| {}).await;
    }

    /// Waits until every closed file is among the changes.
    pub(crate) async fn all_closed(&self) {
        self.wait(0, || self.closing.load(Ordering::Acquire) == 0, |_| {}).await;
    }

    /// Whether there are numbers for new inodes.
    pub(crate) fn has_numbers(&self) -> bool {
        !self.state.lock().numbers.is_empty()
    }

    /// A number for a new inode.
    pub(crate) fn number(&self) -> Option<Ino> {
        let mut state = self.state.lock();
        loop {
            if let Some(number) = state.numbers.front_mut()?.next() {
                return Some(Ino(number));
            }
            state.numbers.pop_front();
        }
    }

    /// More of them.
    pub(crate) fn add_numbers(&self, numbers: Range<u64>) {
        self.state.lock().numbers.push_back(numbers);
    }

    /// Numbers of servers that are gone.
    pub(crate) fn forget_numbers(&self) {
        self.state.lock().numbers.clear();
    }

    /// Notes a directory that is delegated to this client.
    pub(crate) fn note_delegated(&self, ino: Ino) {
        self.state.lock().delegated.push_back(ino);
    }

    /// Directories that were delegated to this client, and are perhaps.
    pub(crate) fn delegated(&self) -> Vec<Ino> {
        self.state.lock().delegated.iter().copied().collect()
    }

    /// The delegated directory that this client has had longest, if there are more than `limit`.
    pub(crate) fn oldest_delegated(&self, limit: usize) -> Option<Ino> {
        let mut state = self.state.lock();
        if state.delegated.len() > limit { state.delegated.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use glint_proto::Layout;
    use glint_proto::MdsRequest;
    use glint_proto::Timestamp;

    fn push(log: &WriteBackLog, name: &[u8]) -> u64 {
        let request = MdsRequest::Unlink { parent: Ino(1), name };
        log.push(&Deferred { uid: 0, gid: 0, time: Timestamp::default(), made: None, request })
            .unwrap()
    }

    #[test]
    fn changes_wait_for_others_until_somebody_waits_for_them() {
        let log = WriteBackLog::default();
        assert_eq!((push(&log, b"a"), push(&log, b"b")), (1, 2));
        assert!(log.is_busy() && log.is_pending(1));
        assert!(log.next().now_or_never().is_none(), "two are not enough");
        let mut waiting = Box::pin(log.until_answered(1));
        assert!(waiting.as_mut().now_or_never().is_none());
        let (batch, _) = log.next().now_or_never().unwrap();
        assert_eq!(batch.unwrap().count, 2);
        assert!(waiting.as_mut().now_or_never().is_none(), "sent is not done");
        log.note_answered(2);
        assert!(waiting.now_or_never().is_some());
        assert!(!log.is_busy());
    }

    #[test]
    fn batches_have_their_limits() {
        let log = WriteBackLog::default();
        for _ in 0..BATCH_CHANGES_MAX + 1 {
            push(&log, b"n");
        }
        assert_eq!(log.next().now_or_never().unwrap().0.unwrap().count, BATCH_CHANGES_MAX);
        for _ in 0..2 * CHANGES_MAX {
            push(&log, &[7; NAME_BYTES_MAX]);
        }
        assert!(log.room().now_or_never().is_none());
        while let Some((Some(batch), _)) = log.next().now_or_never() {
            assert!(batch.count <= BATCH_CHANGES_MAX && batch.changes.len() <= BATCH_BYTES_MAX);
            log.note_answered(batch.count);
        }
        log.lose();
        log.note_answered(BATCH_CHANGES_MAX);
        assert!(log.room().now_or_never().is_some() && !log.is_busy());
    }

    #[test]
    fn a_flush_of_the_log_does_not_wait_for_a_stuck_file() {
        let log = WriteBackLog::default();
        log.closing.store(2, Ordering::Release);
        let mut waiting = Box::pin(log.none_closing());
        let mut strict = Box::pin(log.all_closed());
        log.note_stuck();
        assert!(waiting.as_mut().now_or_never().is_none(), "the other one is not stuck");
        log.note_closed(false);
        assert!(waiting.now_or_never().is_some());
        assert!(log.is_busy() && !log.is_to_flush());
        assert!(strict.as_mut().now_or_never().is_none());
        log.note_closed(true);
        assert!(strict.now_or_never().is_some() && !log.is_busy());
    }

    fn closed() -> Arc<OpenFile> {
        Arc::new(OpenFile {
            ino: Ino(7),
            layout: Layout::default(),
            write: true,
            is_dir: false,
            wrote: AtomicBool::new(true),
            append: false,
            shared: false,
            declared: false,
            made: 0,
            error_seen: AtomicU64::new(0),
            lock_owners: Mutex::default(),
            plain: AtomicU64::new(0),
            atime_done: AtomicBool::new(false),
            in_pages: false,
            last_entry: AtomicU64::new(0),
            listed_to: Default::default(),
            pages_ahead: Default::default(),
            ahead: Mutex::default(),
            handed_out: AtomicBool::new(false),
            changing: Default::default(),
        })
    }

    #[test]
    fn threads_share_closed_files_until_the_end() {
        let log = WriteBackLog::default();
        let mut helps = Box::pin(log.next_closed());
        assert!(helps.as_mut().now_or_never().is_none());
        log.begin_help();
        (0..5).for_each(|_| log.close(closed()));
        assert_eq!(log.next().now_or_never().unwrap().1.len(), 3, "half of them");
        log.end();
        assert_eq!(helps.now_or_never().unwrap().unwrap().len(), 1, "half of what is left");
        assert_eq!(log.next_closed().now_or_never().unwrap().unwrap().len(), 1);
        assert!(log.next_closed().now_or_never().unwrap().is_none());
    }

    #[test]
    fn numbers_are_given_once() {
        let log = WriteBackLog::default();
        assert_eq!(log.number(), None);
        log.add_numbers(5..7);
        log.add_numbers(20..21);
        let all: Vec<_> = std::iter::from_fn(|| log.number()).collect();
        assert_eq!(all, [Ino(5), Ino(6), Ino(20)]);
    }
}
