//! Locks that this client returns, and its answers to questions, until they are sent.
//!
//! Invariants:
//! - What is put here is used and cached no more: it may be sent at any moment.
//! - Each return is sent once, in the order of coming, unless the servers have forgotten all locks
//!   before.

use glint_proto::lock::Return;
use parking_lot::Mutex;

/// Returns that are not sent yet.
#[derive(Default)]
pub(crate) struct ReturnQueue(Mutex<Vec<Return>>);

impl ReturnQueue {
    /// Locks are returned, or questions answered.
    pub(crate) fn put(&self, returns: impl IntoIterator<Item = Return>) {
        self.0.lock().extend(returns);
    }

    /// Takes all, to be sent.
    pub(crate) fn take(&self) -> Vec<Return> {
        std::mem::take(&mut *self.0.lock())
    }

    /// The servers have forgotten all locks, and expect none of these.
    pub(crate) fn on_locks_forgotten(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn each_return_is_sent_once_in_order_unless_all_is_forgotten(
            steps in proptest::collection::vec(0u8..8, 0..60)
        ) {
            let queue = ReturnQueue::default();
            let (mut next, mut kept, mut sent) = (0, Vec::new(), Vec::new());
            let mut expected = Vec::new();
            for step in steps {
                match step {
                    0 => {
                        sent.extend(queue.take());
                        expected.append(&mut kept);
                    }
                    1 => {
                        queue.on_locks_forgotten();
                        kept.clear();
                    }
                    _ => {
                        let returns: Vec<_> = (next..next + u64::from(step) - 2)
                            .map(|number| Return::Data { ino: Ino(7), number })
                            .collect();
                        next += returns.len() as u64;
                        kept.extend(returns.iter().copied());
                        queue.put(returns);
                    }
                }
            }
            sent.extend(queue.take());
            expected.append(&mut kept);
            prop_assert_eq!(sent, expected);
        }
    }
}
