//! The runs of a server: what each left to the next.
//!
//! A client counts the transactions of one run. When it comes back it may have missed any
//! number of runs; what it wants to know is how many transactions of the run that it knows
//! reached the one after that. From then on they are durable: a run begins with everything
//! that it found on stable storage.
//!
//! Invariants:
//! - A run is recorded, durably, before it answers anybody.
//! - Numbers of locks and recalls rise over all runs. A client may return, when it has come
//!   back, what an earlier run has asked for: that names nothing that this one has given.

use crate::error::MdsError;
use crate::service::Mds;
use crate::store::keys;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::limits::RUNS_MAX;
use glint_proto::message::Survived;

const RUN_BYTES: usize = 24;
/// Bits of the numbers that one run gives.
const NUMBER_BITS: u32 = 40;

/// A run that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    boot_verifier: u64,
    survived: Survived,
}

/// The current run and those before it.
#[derive(Default)]
pub(crate) struct BootHistory {
    current: u64,
    ended: Vec<Run>,
}

/// The current one, then those that have ended, oldest first.
fn encode(runs: &BootHistory) -> Vec<u8> {
    let mut bytes = runs.current.to_be_bytes().to_vec();
    for run in &runs.ended {
        bytes.extend_from_slice(&run.boot_verifier.to_be_bytes());
        bytes.extend_from_slice(&run.survived.mds.to_be_bytes());
        bytes.extend_from_slice(&run.survived.ost.to_be_bytes());
    }
    bytes
}

fn decode(bytes: &[u8]) -> Option<BootHistory> {
    let (current, rest) = bytes.split_first_chunk::<8>()?;
    let (runs, []) = rest.as_chunks::<RUN_BYTES>() else { return None };
    let parse = |run: &[u8; RUN_BYTES]| {
        let (boot_verifier, rest) = run.split_first_chunk::<8>()?;
        let (mds, ost) = rest.split_first_chunk::<8>()?;
        let ost = keys::parse_u64(ost)?;
        let survived = Survived { mds: u64::from_be_bytes(*mds), ost };
        Some(Run { boot_verifier: u64::from_be_bytes(*boot_verifier), survived })
    };
    let ended = runs.iter().map(parse).collect::<Option<_>>()?;
    Some(BootHistory { current: u64::from_be_bytes(*current), ended })
}

impl<K: Kv> Mds<K> {
    /// Records how the last run ended, and that this one begins, with replays or without.
    pub(crate) async fn begin_run(&mut self, replays: bool) -> Result<(), MdsError> {
        let stored = self.kv.get(Keyspace::Meta, keys::META_RUNS).await?;
        if let Some(mut runs) = stored.and_then(|value| decode(value.as_ref())) {
            let ost = match self.config.after_power_loss {
                true => self.read_u64(keys::META_DATA_DURABLE).await?.unwrap_or(0),
                false => u64::MAX,
            };
            let survived = Survived { mds: self.recovered, ost };
            runs.ended.push(Run { boot_verifier: runs.current, survived });
            let many = runs.ended.len();
            runs.ended.drain(..many.saturating_sub(RUNS_MAX));
            self.boot_history = runs;
        }
        self.boot_history.current = self.config.boot_verifier;
        let count = self.read_u64(keys::META_RUN_COUNT).await?.unwrap_or(0) + 1;
        self.client_locks.number_from(count << NUMBER_BITS);
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, keys::META_RUN_COUNT, &count.to_be_bytes());
        let stored = self.kv.get(Keyspace::Meta, keys::META_SECRET).await?;
        match stored.and_then(|value| value.as_ref().try_into().ok()) {
            Some(secret) => self.secret = secret,
            None => {
                getrandom::fill(&mut self.secret).map_err(|_| MdsError::NoSecret)?;
                batch.put(Keyspace::Meta, keys::META_SECRET, &self.secret);
            }
        }
        batch.put(Keyspace::Meta, keys::META_RUNS, &encode(&self.boot_history));
        batch.delete(Keyspace::Meta, keys::META_DATA_DURABLE);
        match replays {
            true => batch.put(Keyspace::Meta, keys::META_REPLAYING, b""),
            false => batch.delete(Keyspace::Meta, keys::META_REPLAYING),
        }
        self.kv.commit(batch, &[]).await?;
        self.kv.sync().await?;
        Ok(())
    }

    async fn read_u64(&self, key: &[u8]) -> Result<Option<u64>, MdsError> {
        let value = self.kv.get(Keyspace::Meta, key).await?;
        Ok(value.and_then(|value| keys::parse_u64(value.as_ref())))
    }

    /// Transactions that survived of the run with this boot verifier; `None` if it is too long ago.
    pub fn survived(&self, boot_verifier: u64) -> Option<Survived> {
        if boot_verifier == self.boot_history.current {
            return Some(Survived::ALL);
        }
        let mut ended = self.boot_history.ended.iter();
        ended.find(|run| run.boot_verifier == boot_verifier).map(|run| run.survived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back() {
        let run = |n| Run { boot_verifier: n, survived: Survived { mds: 7 * n, ost: n << 60 } };
        let runs = BootHistory { current: 5, ended: (1..5).map(run).collect() };
        let bytes = encode(&runs);
        let again = decode(&bytes).unwrap();
        assert_eq!((again.current, again.ended), (5, runs.ended));
        assert!(decode(&bytes[..bytes.len() - 1]).is_none());
    }
}
