//! An engine in memory, for tests and simulation. It can lose everything that
//! was not synced, as a machine without power does.

use crate::{Batch, Keyspace, Kv, KvError, Precondition, TransactionId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

type Map = BTreeMap<(Keyspace, Vec<u8>), Vec<u8>>;

#[derive(Default)]
struct Contents {
    accepted: Map,
    durable: Map,
    last: TransactionId,
    last_durable: TransactionId,
}

/// How long a flush waits before it is made.
pub type FlushTurn = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = ()>>> + Send + Sync>;

/// How long a read waits before it is answered with what it found; `None`: it is answered at once.
pub type ReadTurn = Arc<dyn Fn() -> Option<Pin<Box<dyn Future<Output = ()>>>> + Send + Sync>;

/// The engine.
#[derive(Default)]
pub struct MemoryKv {
    state: Mutex<Contents>,
    turn: Mutex<Option<FlushTurn>>,
    read_turn: Mutex<Option<ReadTurn>>,
}

impl MemoryKv {
    /// From now on each flush waits so long, or none does.
    pub fn wait(&self, turn: Option<FlushTurn>) {
        *self.turn.lock() = turn;
    }

    /// From now on each read waits so long, or none does.
    pub fn wait_to_read(&self, turn: Option<ReadTurn>) {
        *self.read_turn.lock() = turn;
    }

    async fn read_turn(&self) {
        let turn = self.read_turn.lock().as_ref().and_then(|turn| turn());
        if let Some(turn) = turn {
            turn.await;
        }
    }

    /// Forgets every transaction that was not synced.
    pub fn lose_power(&self) {
        let mut state = self.state.lock();
        state.accepted = state.durable.clone();
        state.last = state.last_durable;
    }
}

impl Kv for MemoryKv {
    type Value = Vec<u8>;

    async fn get(&self, keyspace: Keyspace, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let found = self.state.lock().accepted.get(&(keyspace, key.to_vec())).cloned();
        self.read_turn().await;
        Ok(found)
    }

    async fn multi_get(
        &self,
        keyspace: Keyspace,
        keys: &[&[u8]],
    ) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        let found = {
            let state = self.state.lock();
            keys.iter().map(|key| state.accepted.get(&(keyspace, key.to_vec())).cloned()).collect()
        };
        self.read_turn().await;
        Ok(found)
    }

    async fn scan_each(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let range = (keyspace, from.to_vec())..(keyspace, to.to_vec());
        let found: Vec<_> = {
            let state = self.state.lock();
            let pairs = state.accepted.range(range).take(limit);
            pairs.map(|((_, key), value)| (key.clone(), value.clone())).collect()
        };
        self.read_turn().await;
        found.iter().for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    async fn commit(
        &self,
        batch: Batch,
        preconditions: &[Precondition],
    ) -> Result<TransactionId, KvError> {
        let mut state = self.state.lock();
        for p in preconditions {
            if state.accepted.get(&(p.keyspace, p.key.clone())) != p.expect.as_ref() {
                return Err(KvError::Conflict);
            }
        }
        for write in batch.writes() {
            let key = (write.keyspace, write.key.to_vec());
            match write.value {
                Some(value) => state.accepted.insert(key, value.to_vec()),
                None => state.accepted.remove(&key),
            };
        }
        state.last += 1;
        Ok(state.last)
    }

    async fn sync(&self) -> Result<(), KvError> {
        let turn = self.turn.lock().clone();
        if let Some(turn) = turn {
            turn().await;
        }
        let mut state = self.state.lock();
        state.durable = state.accepted.clone();
        state.last_durable = state.last;
        Ok(())
    }

    fn durable(&self) -> TransactionId {
        self.state.lock().last_durable
    }

    fn accepted(&self) -> TransactionId {
        self.state.lock().last
    }
}
