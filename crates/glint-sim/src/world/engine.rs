//! The engine of the MDS, which can lose what was not synced. Its disk does not fail.

use glint_kv::memory::MemoryKv;
use glint_kv::{Batch, Keyspace, Kv, KvError, Pair, Precondition, TransactionId};
use glint_net::host;
use parking_lot::Mutex;
use std::time::Duration;

/// Flushes take less.
const FLUSH_US_MAX: u64 = 5_000;

/// The engine of the MDS, whose flush takes a while.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) kv: MemoryKv,
    /// Decides how long flushes take, from the time when a server begins.
    dice: Mutex<Option<fastrand::Rng>>,
}

impl Engine {
    /// Flushes take a while from now on, or none.
    pub(crate) fn take_time(&self, seed: Option<u64>) {
        *self.dice.lock() = seed.map(fastrand::Rng::with_seed);
    }
}

impl Kv for Engine {
    type Value = Vec<u8>;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        self.kv.get(keyspace, key).await
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        self.kv.multi_get(keyspace, keys).await
    }

    async fn scan(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<Pair>, KvError> {
        self.kv.scan(keyspace, from, to, limit).await
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        self.kv.commit(batch, preconditions).await
    }

    async fn sync(&self) -> Result<(), KvError> {
        let time = self.dice.lock().as_mut().map(|dice| dice.u64(0..FLUSH_US_MAX));
        if let Some(time) = time {
            host::sleep(Duration::from_micros(time)).await;
        }
        self.kv.sync().await
    }

    fn durable(&self) -> TransactionId {
        self.kv.durable()
    }

    fn accepted(&self) -> TransactionId {
        self.kv.accepted()
    }
}
