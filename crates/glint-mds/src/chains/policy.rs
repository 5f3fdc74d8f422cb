//! Rules for all chains, as administrators have set them.
//!
//! Invariant: a rule is on stable storage before anybody follows it.

use crate::error::errno;
use crate::service::Mds;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::chain::ChainPolicy;
use glint_proto::{Errno, FsResult, message};

const KEY: &[u8] = b"chain_policy";

/// Reads them; those of a file system where nobody has set any if there are none.
pub(crate) async fn load(kv: &impl Kv) -> FsResult<ChainPolicy> {
    match kv.get(Keyspace::Meta, KEY).await.map_err(errno)? {
        Some(value) => message::decode(value.as_ref()).map_err(|_| Errno::EIO),
        None => Ok(ChainPolicy::default()),
    }
}

impl<K: Kv> Mds<K> {
    /// The rules.
    pub fn chain_policy(&self) -> ChainPolicy {
        *self.chain_policy.lock()
    }

    /// Changes the rules.
    pub async fn set_chain_policy(
        &self,
        set: impl FnOnce(ChainPolicy) -> ChainPolicy,
    ) -> FsResult<()> {
        let _changing = self.chains.changing.lock().await;
        let policy = set(self.chain_policy());
        let mut value = Vec::new();
        message::encode(&policy, &mut value)?;
        let mut batch = Batch::default();
        batch.put(Keyspace::Meta, KEY, &value);
        self.kv.commit(batch, &[]).await.map_err(errno)?;
        self.kv.sync().await.map_err(errno)?;
        *self.chain_policy.lock() = policy;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;

    #[test]
    fn rules_that_nobody_has_set_ask_for_nothing() {
        let policy = block_on(load(&MemoryKv::default())).unwrap();
        assert_eq!((policy.heal_paused, policy.min_replicas), (false, 1));
    }

    #[test]
    fn a_damaged_record_is_not_taken_for_none() {
        block_on(async {
            let kv = MemoryKv::default();
            let mut batch = Batch::default();
            batch.put(Keyspace::Meta, KEY, b"");
            kv.commit(batch, &[]).await.unwrap();
            assert_eq!(load(&kv).await, Err(Errno::EIO));
        });
    }
}
