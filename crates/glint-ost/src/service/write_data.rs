//! Data of a write that the disk executes apart.

use glint_memory::{BufferPool, PooledBuffer};
use glint_proto::Bulk;
use glint_telemetry::Counter;
use std::ops::Deref;
use std::sync::Arc;

/// Data of a write, for as long as the write takes.
pub(super) enum WriteData {
    Copied(PooledBuffer),
    Shared(Arc<Vec<u8>>),
}

impl WriteData {
    /// Keeps the data of a write: a copy of it, unless it is shared.
    pub(super) fn keep(buffers: &BufferPool, bulk: &Bulk<'_>) -> WriteData {
        if let Bulk::Shared(data) = bulk {
            return WriteData::Shared(Arc::clone(data));
        }
        let data = bulk.data();
        glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
        WriteData::Copied(buffers.copy(data))
    }
}

impl Deref for WriteData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            WriteData::Copied(data) => data,
            WriteData::Shared(data) => data,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_data_is_kept_without_a_copy() {
        let (buffers, shared) = (BufferPool::default(), Arc::new(vec![7; 1 << 20]));
        let kept = WriteData::keep(&buffers, &Bulk::Shared(&shared));
        assert_eq!((kept.as_ptr(), kept.len()), (shared.as_ptr(), 1 << 20));
        let copied = WriteData::keep(&buffers, &Bulk::Out(&shared));
        assert_ne!(copied.as_ptr(), shared.as_ptr());
        drop((kept, copied));
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
