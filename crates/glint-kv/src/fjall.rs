//! The default engine: fjall, an embedded log-structured merge tree.
//!
//! Invariant: a commit returns only after its bytes are in the operating system's
//! buffers, so it survives the death of this process. A background thread forces
//! the journal to stable storage every commit interval and whenever somebody waits.

use crate::{Batch, Keyspace, Kv, KvError, Pair, Precondition, TransactionId};
use fjall::{Database, KeyspaceCreateOptions, PersistMode};
use glint_telemetry::{Layer, Span};
use parking_lot::{Condvar, Mutex};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How much memory and disk the engine may use.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Cache of blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// A keyspace's memory table is written out at this size.
    pub memtable_bytes: u64,
    /// Journals above this size are shortened by writing memory tables out.
    pub journal_bytes: u64,
    /// Longest time between acceptance and durability.
    pub commit_interval: Duration,
}

struct Shared {
    db: Database,
    path: PathBuf,
    accepted: AtomicU64,
    durable: AtomicU64,
    stop: AtomicBool,
    flusher: Mutex<Flusher>,
    wake: Condvar,
}

#[derive(Default)]
struct Flusher {
    /// Somebody waits for a transaction above `durable`.
    wanted: bool,
    /// Set for good when a flush failed: what was acknowledged may be gone.
    failed: bool,
    waiters: Vec<Waker>,
}

/// The engine.
pub struct FjallKv {
    shared: Arc<Shared>,
    keyspaces: Vec<(Keyspace, fjall::Keyspace)>,
    /// Serialises commits that carry preconditions; others do not take it.
    conditional: Mutex<()>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FjallKv {
    /// Opens the engine in `path`, creating it if absent, with these keyspaces.
    pub fn open(path: &Path, keyspaces: &[Keyspace], options: Options) -> Result<FjallKv, KvError> {
        let db = Database::builder(path)
            .cache_size(options.cache_bytes)
            .worker_threads(1)
            .max_journaling_size(options.journal_bytes)
            .open()
            .map_err(|e| convert(path, e))?;
        let mut opened = Vec::new();
        for &keyspace in keyspaces {
            let handle = db
                .keyspace(keyspace.name(), || {
                    KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes)
                })
                .map_err(|e| convert(path, e))?;
            opened.push((keyspace, handle));
        }
        let shared = Arc::new(Shared {
            db,
            path: path.to_owned(),
            accepted: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            flusher: Mutex::default(),
            wake: Condvar::new(),
        });
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("journal-sync".into())
            .spawn(move || for_thread.flush_loop(options.commit_interval))
            .map_err(|source| KvError::Io { path: path.display().to_string(), source })?;
        Ok(FjallKv { shared, keyspaces: opened, conditional: Mutex::new(()), thread: Some(thread) })
    }

    fn keyspace(&self, wanted: Keyspace) -> Result<&fjall::Keyspace, KvError> {
        self.keyspaces.iter().find(|(keyspace, _)| *keyspace == wanted).map(|(_, k)| k).ok_or_else(
            || KvError::Corrupt {
                path: self.shared.path.display().to_string(),
                reason: format!("keyspace {} was not opened", wanted.name()),
            },
        )
    }

    fn error(&self, error: fjall::Error) -> KvError {
        convert(&self.shared.path, error)
    }
}

impl Shared {
    /// Runs on its own thread, because a flush blocks for milliseconds.
    fn flush_loop(&self, interval: Duration) {
        loop {
            let mut flusher = self.flusher.lock();
            if !flusher.wanted && !self.stop.load(Ordering::Acquire) {
                self.wake.wait_for(&mut flusher, interval);
            }
            flusher.wanted = false;
            drop(flusher);
            let stopping = self.stop.load(Ordering::Acquire);
            let accepted = self.accepted.load(Ordering::Acquire);
            let result = if accepted > self.durable.load(Ordering::Acquire) {
                let _span = Span::part(Layer::JournalSync);
                self.db.persist(PersistMode::SyncData)
            } else {
                Ok(())
            };
            let mut flusher = self.flusher.lock();
            match result {
                Ok(()) => self.durable.store(accepted, Ordering::Release),
                Err(error) => {
                    tracing::error!(path = %self.path.display(), %error, "journal flush failed");
                    flusher.failed = true;
                }
            }
            for waiter in flusher.waiters.drain(..) {
                waiter.wake();
            }
            if stopping {
                return;
            }
        }
    }
}

/// The journals in a directory, for people.
fn journals(path: &Path) -> String {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".jnl"))
        .collect();
    names.sort();
    format!("{}/{}", path.display(), names.join(" or "))
}

fn convert(path: &Path, error: fjall::Error) -> KvError {
    if let fjall::Error::JournalRecovery(reason) = &error {
        return KvError::Corrupt { path: journals(path), reason: format!("{reason:?}") };
    }
    let path = path.display().to_string();
    match error {
        fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
            KvError::Io { path, source }
        }
        fjall::Error::Locked => KvError::Locked { path },
        fjall::Error::Poisoned => KvError::Poisoned { path },
        other => KvError::Corrupt { path, reason: format!("{other:?}") },
    }
}

impl Kv for FjallKv {
    type Value = fjall::UserValue;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Self::Value>, KvError> {
        let _span = Span::part(Layer::KvRead);
        self.keyspace(keyspace)?.get(key).map_err(|e| self.error(e))
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Self::Value>>, KvError> {
        let _span = Span::part(Layer::KvRead);
        let handle = self.keyspace(keyspace)?;
        keys.iter().map(|key| handle.get(key).map_err(|e| self.error(e))).collect()
    }

    async fn scan(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, KvError> {
        if from >= to {
            return Ok(Vec::new());
        }
        let _span = Span::part(Layer::KvRead);
        let mut pairs = Vec::new();
        for guard in self.keyspace(keyspace)?.range(from..to).take(limit) {
            let (key, value) = guard.into_inner().map_err(|e| self.error(e))?;
            pairs.push((key.to_vec(), value.to_vec()));
        }
        Ok(pairs)
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        let _serial = (!preconditions.is_empty()).then(|| self.conditional.lock());
        for p in preconditions {
            let now = self.keyspace(p.keyspace)?.get(&p.key).map_err(|e| self.error(e))?;
            if now.as_deref() != p.expect.as_deref() {
                return Err(KvError::Conflict);
            }
        }
        let _span = Span::part(Layer::Journal);
        let mut write = self.shared.db.batch().durability(Some(PersistMode::Buffer));
        for w in batch.into_writes() {
            let keyspace = self.keyspace(w.keyspace)?;
            match w.value {
                Some(value) => write.insert(keyspace, w.key, value),
                None => write.remove(keyspace, w.key),
            }
        }
        write.commit().map_err(|e| self.error(e))?;
        Ok(self.shared.accepted.fetch_add(1, Ordering::AcqRel) + 1)
    }

    async fn sync(&self) -> Result<(), KvError> {
        let target = self.shared.accepted.load(Ordering::Acquire);
        poll_fn(|context| {
            if self.shared.durable.load(Ordering::Acquire) >= target {
                return Poll::Ready(Ok(()));
            }
            let mut flusher = self.shared.flusher.lock();
            if flusher.failed {
                let path = self.shared.path.display().to_string();
                return Poll::Ready(Err(KvError::Poisoned { path }));
            }
            if self.shared.durable.load(Ordering::Acquire) >= target {
                return Poll::Ready(Ok(()));
            }
            flusher.wanted = true;
            flusher.waiters.push(context.waker().clone());
            self.shared.wake.notify_one();
            Poll::Pending
        })
        .await
    }

    fn durable(&self) -> TransactionId {
        self.shared.durable.load(Ordering::Acquire)
    }
}

impl Drop for FjallKv {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there is nothing left to flush.
            let _ = thread.join();
        }
    }
}
