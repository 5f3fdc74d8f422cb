//! The ordered transactional key-value interface, and its engines.
//!
//! Promises: a committed batch is atomic, ordered after every batch whose commit
//! had returned before, visible to every later read, and survives the death of
//! the process. It is *accepted* when `commit` returns and *durable* (survives
//! loss of power) when `sync` returned, or when [`Kv::durable`] has reached its
//! transaction number. A scan, and a read of several keys, see all batches as they
//! are at one moment.
//!
//! Does not know: what the keys mean. It is asynchronous so that an engine on a
//! network, or at a disk, can wait; an engine that can answer at once does so without yielding.

mod batch;
mod error;
mod journal;
pub mod local;
pub mod memory;
mod overlay;
mod segment;
mod tables;

pub use batch::{Batch, Keyspace, Precondition, Write, Writes};
pub use error::KvError;

use glint_telemetry::Heat;
use std::future::Future;

/// A key and its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Number of a committed transaction.
pub type TransactionId = u64;

/// What an engine keeps in memory of its tables, and how often that was enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheUse {
    /// Most bytes that it keeps.
    pub limit: u64,
    /// Bytes that it keeps.
    pub size: u64,
    /// Blocks of tables that were wanted and in memory, since it was opened.
    pub hits: u64,
    /// Blocks that were not, and read.
    pub misses: u64,
    /// Bytes of blocks that were read and have made room for others since, or found none.
    pub evicted: u64,
}

/// Result of [`Kv::load`].
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Loaded {
    /// Keys that were read.
    pub keys: u64,
    /// Bytes of them and of their values.
    pub bytes: u64,
    /// Where to go on; `None` at the end of the range.
    pub next: Option<Vec<u8>>,
}

/// An engine.
pub trait Kv: Send + Sync + 'static {
    /// How the engine hands out a value.
    type Value: AsRef<[u8]>;

    /// Value of `key`.
    fn get(
        &self,
        keyspace: Keyspace,
        key: &[u8],
    ) -> impl Future<Output = Result<Option<Self::Value>, KvError>>;

    /// Values of several keys, in their order.
    fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> impl Future<Output = Result<Vec<Option<Self::Value>>, KvError>>;

    /// Shows `visit` at most `limit` pairs with `from <= key < to`, in order. It must not ask the
    /// engine for anything, which may be locked meanwhile.
    fn scan_each(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> impl Future<Output = Result<(), KvError>>;

    /// The pairs that [`Kv::scan_each`] shows.
    fn scan(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> impl Future<Output = Result<Vec<Pair>, KvError>> {
        async move {
            let mut pairs = Vec::new();
            let keep = |key: &[u8], value: &[u8]| pairs.push((key.to_vec(), value.to_vec()));
            self.scan_each(keyspace, from, to, limit, keep).await?;
            Ok(pairs)
        }
    }

    /// Applies all of `batch` or nothing. A precondition that does not hold is
    /// [`KvError::Conflict`].
    fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> impl Future<Output = Result<TransactionId, KvError>>;

    /// Returns when everything accepted before the call is durable. Callers that
    /// wait at the same time share one flush.
    fn sync(&self) -> impl Future<Output = Result<(), KvError>>;

    /// Every transaction up to this one is durable.
    fn durable(&self) -> TransactionId;

    /// The last transaction.
    fn accepted(&self) -> TransactionId;

    /// Why nothing can be called durable any more, if that is so. The engine goes on answering
    /// reads, and whoever serves it should end.
    fn failure(&self) -> Option<String> {
        None
    }

    /// How its cache is used, if it has one.
    fn cache(&self) -> Option<CacheUse> {
        None
    }

    /// Which of its keys are read most, if it reads them from a disk. Tables are those of
    /// [`Keyspace`].
    fn heat(&self) -> Option<&Heat> {
        None
    }

    /// Reads at most `limit` pairs with `from <= key < to` from the disk, in order, for no other
    /// purpose than to have them in memory. They do not count as read.
    fn load(
        &self,
        _: Keyspace,
        _: &[u8],
        _: &[u8],
        _: usize,
    ) -> impl Future<Output = Result<Loaded, KvError>> {
        std::future::ready(Ok(Loaded::default()))
    }
}

impl<K: Kv> Kv for std::sync::Arc<K> {
    type Value = K::Value;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<K::Value>, KvError> {
        (**self).get(keyspace, key).await
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<K::Value>>, KvError> {
        (**self).multi_get(keyspace, keys).await
    }

    async fn scan_each(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
        visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        (**self).scan_each(keyspace, from, to, limit, visit).await
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        (**self).commit(batch, preconditions).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        (**self).sync().await
    }

    fn durable(&self) -> TransactionId {
        (**self).durable()
    }

    fn accepted(&self) -> TransactionId {
        (**self).accepted()
    }

    fn failure(&self) -> Option<String> {
        (**self).failure()
    }

    fn cache(&self) -> Option<CacheUse> {
        (**self).cache()
    }

    fn heat(&self) -> Option<&Heat> {
        (**self).heat()
    }

    async fn load(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Loaded, KvError> {
        (**self).load(keyspace, from, to, limit).await
    }
}

#[cfg(test)]
mod conformance;
