//! The tables under the journal: fjall, an embedded log-structured merge tree.
//!
//! Invariant: a set of writes and the number up to which they reach are applied together,
//! so that after any crash the journal is continued exactly where the tables end.

use crate::local::Options;
use crate::overlay::Overlay;
use crate::{CacheUse, Keyspace, KvError, Loaded};
use fjall::{Database, KeyspaceCreateOptions, PersistMode, Readable, Slice, Snapshot};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};

/// Keyspace and key of the number of the last applied record.
const JOURNAL: &str = "journal";
const APPLIED: &[u8] = b"applied";

/// The tables.
pub(crate) struct Tables {
    db: Database,
    path: PathBuf,
    keyspaces: Vec<fjall::Keyspace>,
    journal: fjall::Keyspace,
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

/// Calls `open`, which asserts where a damaged journal should be an error.
fn without_panic<R>(path: &Path, open: impl FnOnce() -> R) -> Result<R, KvError> {
    // The damage is reported once, by the error, and not by the hook as well.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|info| tracing::debug!("{info}")));
    let result = panic::catch_unwind(AssertUnwindSafe(open));
    panic::set_hook(hook);
    result.map_err(|_| KvError::Corrupt {
        path: journals(path),
        reason: "lengths do not agree".into(),
    })
}

impl Tables {
    /// Opens the tables in `path`, creating them if absent.
    pub(crate) fn open(path: &Path, options: &Options) -> Result<Tables, KvError> {
        let builder = Database::builder(path)
            .cache_size(options.cache_bytes)
            .worker_threads(1)
            .max_cached_files(Some(options.open_tables))
            .max_journaling_size(options.journal_bytes);
        let db = without_panic(path, || builder.open())?.map_err(|e| convert(path, e))?;
        let open = |name: &str| {
            let new = || KeyspaceCreateOptions::default().max_memtable_size(options.memtable_bytes);
            db.keyspace(name, new).map_err(|e| convert(path, e))
        };
        let keyspaces =
            Keyspace::ALL.iter().map(|keyspace| open(keyspace.name())).collect::<Result<_, _>>()?;
        let journal = open(JOURNAL)?;
        Ok(Tables { path: path.to_owned(), keyspaces, journal, db })
    }

    fn error(&self, error: fjall::Error) -> KvError {
        convert(&self.path, error)
    }

    /// Number of the last applied record.
    pub(crate) fn applied(&self) -> Result<u64, KvError> {
        let value = self.journal.get(APPLIED).map_err(|e| self.error(e))?;
        Ok(value.and_then(|v| v.as_ref().try_into().ok().map(u64::from_be_bytes)).unwrap_or(0))
    }

    pub(crate) fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Slice>, KvError> {
        self.keyspaces[keyspace as usize].get(key).map_err(|e| self.error(e))
    }

    /// The tables as they are now, for reads of several keys that belong together.
    pub(crate) fn moment(&self) -> Snapshot {
        self.db.snapshot()
    }

    /// Value of a key at a moment.
    pub(crate) fn get_at(
        &self,
        moment: &Snapshot,
        keyspace: Keyspace,
        key: &[u8],
    ) -> Result<Option<Slice>, KvError> {
        moment.get(&self.keyspaces[keyspace as usize], key).map_err(|e| self.error(e))
    }

    /// Pairs with `from <= key < to` at a moment. (An iterator of a keyspace itself shows what of a batch
    /// is there when it comes by.)
    pub(crate) fn range(
        &self,
        moment: &Snapshot,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = Result<(Slice, Slice), KvError>> + '_ {
        let range = moment.range(&self.keyspaces[keyspace as usize], from..to);
        range.map(|guard| guard.into_inner().map_err(|e| self.error(e)))
    }

    /// Reads a range, as far as `limit` pairs reach; see [`crate::Kv::load`].
    pub(crate) fn load(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Loaded, KvError> {
        let mut loaded = Loaded::default();
        for pair in self.range(&self.moment(), keyspace, from, to) {
            let (key, value) = pair?;
            if loaded.keys == limit as u64 {
                loaded.next = Some(key.to_vec());
                break;
            }
            if loaded.keys == 0 {
                // A range reads no filters; looking for one key does.
                self.get(keyspace, &key)?;
            }
            loaded.keys += 1;
            loaded.bytes += (key.len() + value.len()) as u64;
        }
        Ok(loaded)
    }

    /// Applies writes that reach up to record `number`.
    pub(crate) fn apply(&self, writes: &Overlay, number: u64) -> Result<(), KvError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::Buffer));
        for (keyspace, key, value) in writes.iter() {
            let keyspace = &self.keyspaces[keyspace as usize];
            match value {
                Some(value) => batch.insert(keyspace, key.clone(), value.clone()),
                None => batch.remove(keyspace, key.clone()),
            }
        }
        batch.insert(&self.journal, APPLIED, number.to_be_bytes());
        batch.commit().map_err(|e| self.error(e))
    }

    /// Blocks of a keyspace that were wanted and not in the cache.
    pub(crate) fn missed(&self, keyspace: Keyspace) -> u64 {
        self.keyspaces[keyspace as usize].metrics().block_load_io_count() as u64
    }

    /// How the cache of blocks is used.
    pub(crate) fn cache(&self) -> CacheUse {
        let metrics = self.keyspaces.iter().chain([&self.journal]).map(fjall::Keyspace::metrics);
        let (mut hits, mut misses, mut read) = (0, 0, 0);
        for one in metrics {
            hits += one.block_load_cached_count() as u64;
            misses += one.block_load_io_count() as u64;
            read += one.block_io();
        }
        let size = self.db.cache_size();
        // Blocks are kept as they are read, and each that is read is kept at first. One that two
        // threads read at once counts twice.
        let evicted = read.saturating_sub(size);
        CacheUse { limit: self.db.cache_capacity(), size, hits, misses, evicted }
    }

    /// Everything applied to stable storage.
    pub(crate) fn persist(&self) -> Result<(), KvError> {
        self.db.persist(PersistMode::SyncAll).map_err(|e| self.error(e))
    }
}
