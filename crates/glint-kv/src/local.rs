//! The default engine: tables on a local disk, and a journal in front of them.
//!
//! A commit copies its batch into the journal, which is memory that the operating system
//! keeps, and into the overlay, where readers find it. A thread applies what has gathered
//! to the tables, many batches as one: a directory that had a thousand creates is written
//! once. Another forces the journal to stable storage every commit interval, and at once
//! while somebody waits.
//!
//! Invariants:
//! - A commit returns only after its bytes are in the operating system's memory, so it
//!   survives the death of this process.
//! - Overlay and journal change under one lock, so that the newest write in the overlay is
//!   the last one in the journal.
//! - What is in the journal and not in the tables is in an overlay, active or frozen.
//! - Once a write or a flush has failed nothing more is accepted or called durable: pages that
//!   could not be written look clean afterwards, so a later flush that succeeds says nothing.

mod pace;
mod readers;
mod reads;

use self::pace::Pace;
use self::readers::Readers;
use crate::journal::{Journal, NoRoom, OldJournal};
use crate::overlay::Overlay;
use crate::tables::Tables;
use crate::{Batch, CacheUse, Keyspace, Kv, KvError, Loaded, Precondition, TransactionId};
use fjall::Slice;
use glint_telemetry::{Counter, Heat, Layer, Span};
use glint_wait::WaitList;
use parking_lot::{Condvar, Mutex, RwLock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Writes that gather before they are applied at once.
const APPLY_WRITES: usize = 4096;
/// Longest time that writes wait to be applied.
const APPLY_INTERVAL: Duration = Duration::from_millis(50);
/// Writes above which commits wait.
const WRITES_MAX: usize = 16 * APPLY_WRITES;

/// How much memory and disk the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cache of blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// A keyspace's memory table is written out at this size.
    pub memtable_bytes: u64,
    /// Journals of the tables above this size are shortened by writing memory tables out.
    pub journal_bytes: u64,
    /// Descriptors of tables that are kept open.
    pub open_tables: usize,
    /// Length of each of the three segments of the journal.
    pub segment_bytes: u64,
    /// Longest time between acceptance and durability.
    pub commit_interval: Duration,
    /// Most threads that read tables while their disk makes readers wait. With none a read is always
    /// made where it is asked for, at once.
    pub readers: usize,
}

struct NewestWrites {
    journal: Journal,
    active: Overlay,
    frozen: Option<Arc<Overlay>>,
}

struct Engine {
    path: PathBuf,
    tables: Tables,
    /// Which keys are read most. Most reads only count themselves, without a lock; see [`Heat`].
    heat: Heat,
    pace: Pace,
    /// Held by who reads tables on another thread.
    #[cfg(test)]
    disk: RwLock<()>,
    state: RwLock<NewestWrites>,
    durable: AtomicU64,
    stop: AtomicBool,
    /// Why what was acknowledged and is not durable may be gone; empty as long as it is not.
    failure: OnceLock<String>,
    flusher: Thread,
    applier: Thread,
}

/// Thread of an engine; there are two.
#[derive(Default)]
struct Thread {
    /// Somebody waits for what it does: for a transaction above `durable`, or for room.
    wanted: Mutex<bool>,
    work: Condvar,
    /// Callers that wait until the thread has done something, or has failed.
    done: WaitList,
}

impl Thread {
    fn want(&self) {
        *self.wanted.lock() = true;
        self.work.notify_one();
    }

    /// Waits until somebody wants something, so much time has passed, or it is to stop.
    fn wait(&self, interval: Duration, stop: &AtomicBool) {
        let mut wanted = self.wanted.lock();
        if !*wanted && !stop.load(Ordering::Acquire) {
            self.work.wait_for(&mut wanted, interval);
        }
        *wanted = false;
    }

    /// Has it look whether it is to stop.
    fn look(&self) {
        // Under the lock, or a thread that is about to wait would miss it.
        drop(self.wanted.lock());
        self.work.notify_one();
    }
}

/// The engine.
pub struct LocalKv {
    shared: Arc<Engine>,
    threads: Vec<JoinHandle<()>>,
    readers: Option<Readers>,
}

impl LocalKv {
    /// Opens the engine in `path`, creating it if absent.
    pub fn open(path: &Path, options: Options) -> Result<LocalKv, KvError> {
        let io = |source| KvError::Io { path: path.display().to_string(), source };
        let tables = Tables::open(path, &options)?;
        let mut found = Overlay::default();
        let applied = tables.applied()?;
        let left = OldJournal::read(path, applied, |batch| found.add(&batch))?;
        if left.last() > applied {
            tracing::info!(records = left.last() - applied, "continuing the journal");
            tables.apply(&found, left.last())?;
        }
        tables.persist()?;
        let run = getrandom::u64().unwrap_or(u64::from(std::process::id()));
        let journal = left.begin(options.segment_bytes as usize, run).map_err(io)?;
        let shared = Arc::new(Engine {
            path: path.to_owned(),
            tables,
            heat: Heat::default(),
            pace: Pace::new(options.cache_bytes),
            #[cfg(test)]
            disk: RwLock::default(),
            durable: AtomicU64::new(journal.last()),
            state: RwLock::new(NewestWrites { journal, active: Overlay::default(), frozen: None }),
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
            flusher: Thread::default(),
            applier: Thread::default(),
        });
        let mut threads = Vec::new();
        let spawn = |name: &str, work: Box<dyn FnOnce(&Engine) + Send>| {
            let shared = shared.clone();
            std::thread::Builder::new().name(name.into()).spawn(move || work(&shared)).map_err(io)
        };
        let interval = options.commit_interval;
        threads.push(spawn("journal-sync", Box::new(move |shared| shared.flush_loop(interval)))?);
        threads.push(spawn("journal-apply", Box::new(Engine::apply_loop))?);
        let readers = (options.readers > 0).then(|| Readers::new(options.readers));
        Ok(LocalKv { shared, threads, readers })
    }

    /// From now on flushes fail.
    #[cfg(test)]
    pub(crate) fn refuse_flushes(&self) {
        self.shared.state.write().journal.refuse_flushes();
    }

    /// From now on reads of the tables are handed over, but of what was read a short time ago.
    #[cfg(test)]
    pub(crate) fn hand_over_reads(&self) {
        self.shared.pace.slow_down();
    }

    /// Reads of the tables that are handed over wait until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn stop_disk(&self) -> parking_lot::RwLockWriteGuard<'_, ()> {
        self.shared.disk.write()
    }

    /// Commits; `None` if there is no room before the newest writes are in the tables.
    fn try_commit(
        &self,
        batch: &Batch,
        preconditions: &[Precondition],
    ) -> Option<Result<TransactionId, KvError>> {
        let shared = &*self.shared;
        let mut state = shared.state.write();
        for p in preconditions {
            let recent = state.recent(p.keyspace, &p.key).cloned();
            let now = match shared.recent_or_stored(recent, p.keyspace, &p.key) {
                Ok(value) => value,
                Err(error) => return Some(Err(error)),
            };
            if now.as_deref() != p.expect.as_deref() {
                return Some(Err(KvError::Conflict));
            }
        }
        if shared.has_failed() {
            return Some(Err(shared.poisoned()));
        }
        let appended = match state.active.len() < WRITES_MAX {
            true => state.journal.append(batch, shared.durable.load(Ordering::Acquire)),
            false => Err(NoRoom::Yet),
        };
        match appended {
            Ok(number) => {
                state.active.add(batch);
                let many = state.active.len();
                drop(state);
                if many >= APPLY_WRITES && many - batch.writes().count() < APPLY_WRITES {
                    shared.applier.want();
                }
                Some(Ok(number))
            }
            Err(NoRoom::Yet) => {
                drop(state);
                shared.applier.want();
                None
            }
            Err(NoRoom::Ever) => {
                let source =
                    std::io::Error::from_raw_os_error(rustix::io::Errno::TOOBIG.raw_os_error());
                Some(Err(KvError::Io { path: shared.path.display().to_string(), source }))
            }
        }
    }
}

impl Engine {
    fn poisoned(&self) -> KvError {
        KvError::Poisoned { path: self.path.display().to_string() }
    }

    fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    fn fail(&self, what: &str, error: &dyn std::fmt::Display) {
        let reason = format!("{what} in {}: {error}", self.path.display());
        tracing::error!("{reason}");
        // The first one is the cause.
        let _ = self.failure.set(reason);
    }

    /// Value of a key: the one written recently, if any was, or the one in the tables.
    fn recent_or_stored(
        &self,
        recent: Option<Option<Slice>>,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<Slice>, KvError> {
        recent.map_or_else(|| self.tables.get(keyspace, key), Ok)
    }

    /// Runs on its own thread, because a flush blocks for milliseconds.
    fn flush_loop(&self, interval: Duration) {
        loop {
            self.flusher.wait(interval, &self.stop);
            let stopping = self.stop.load(Ordering::Acquire);
            let result = self.flush_journal();
            if let Err(error) = result {
                self.fail("flushing the journal", &error);
            }
            self.flusher.done.wake();
            if stopping || self.has_failed() {
                return;
            }
        }
    }

    fn flush_journal(&self) -> std::io::Result<()> {
        if self.state.read().journal.last() == self.durable.load(Ordering::Acquire) {
            return Ok(());
        }
        let (files, last) = {
            let mut state = self.state.write();
            (state.journal.take_dirty(), state.journal.last())
        };
        let _span = Span::part(Layer::JournalSync);
        glint_telemetry::count(Counter::JournalWrites, files.len() as u64);
        for file in files {
            file.sync_data()?;
        }
        if !self.has_failed() {
            self.durable.store(last, Ordering::Release);
        }
        Ok(())
    }

    fn apply_loop(&self) {
        loop {
            let stopping = self.stop.load(Ordering::Acquire);
            self.applier.wait(APPLY_INTERVAL, &self.stop);
            if let Err(error) = self.apply_writes(stopping) {
                self.fail("writing metadata tables", &error);
            }
            self.applier.done.wake();
            if stopping || self.has_failed() {
                return;
            }
        }
    }

    fn apply_writes(&self, last_time: bool) -> Result<(), KvError> {
        let (ahead, frozen, number, persist) = {
            let state = self.state.read();
            if state.active.len() == 0 && !last_time {
                return Ok(());
            }
            drop(state);
            let mut state = self.state.write();
            let frozen = Arc::new(std::mem::take(&mut state.active));
            state.frozen = Some(frozen.clone());
            let persist = last_time || state.journal.wants_tables();
            (state.journal.ahead(), frozen, state.journal.last(), persist)
        };
        let (pages, from, len) = ahead;
        pages.prepare(from, len);
        glint_telemetry::count(Counter::JournalWrites, 1);
        self.tables.apply(&frozen, number)?;
        if persist {
            self.tables.persist()?;
        }
        let mut state = self.state.write();
        state.frozen = None;
        if persist {
            state.journal.settle(number);
        }
        Ok(())
    }
}

impl Kv for LocalKv {
    type Value = Slice;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Slice>, KvError> {
        let _span = Span::part(Layer::KvRead);
        self.find(keyspace, key).await
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Slice>>, KvError> {
        let _span = Span::part(Layer::KvRead);
        self.find_all(keyspace, keys).await
    }

    async fn scan_each(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let _span = Span::part(Layer::KvRead);
        self.show((keyspace, from, to, limit), visit).await
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        let _span = Span::part(Layer::Journal);
        self.shared.applier.done.until(|| self.try_commit(&batch, preconditions)).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        let shared = &*self.shared;
        let target = shared.state.read().journal.last();
        let is_durable = || {
            if shared.has_failed() {
                return Some(Err(shared.poisoned()));
            }
            if shared.durable.load(Ordering::Acquire) >= target {
                return Some(Ok(()));
            }
            shared.flusher.want();
            None
        };
        shared.flusher.done.until(is_durable).await
    }

    fn durable(&self) -> TransactionId {
        self.shared.durable.load(Ordering::Acquire)
    }

    fn accepted(&self) -> TransactionId {
        self.shared.state.read().journal.last()
    }

    fn failure(&self) -> Option<String> {
        self.shared.failure.get().cloned()
    }

    fn cache(&self) -> Option<CacheUse> {
        Some(self.shared.tables.cache())
    }

    fn heat(&self) -> Option<&Heat> {
        Some(&self.shared.heat)
    }

    async fn load(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Loaded, KvError> {
        // What is not in the tables is in memory.
        self.shared.tables.load(keyspace, from, to, limit)
    }
}

impl Drop for LocalKv {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.flusher.look();
        self.shared.applier.look();
        for thread in self.threads.drain(..) {
            // The threads do not panic; if one did, there is nothing left to save.
            let _ = thread.join();
        }
    }
}
