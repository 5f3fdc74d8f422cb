//! Locks that this client returns, and its answers to questions, until they are sent.
//!
//! Invariants:
//! - What is put here is used and cached no more: it may be sent at any moment.
//! - Each return is sent once, in the order of coming, unless the servers have forgotten all locks
//!   before.
//! - A request has at most [`RETURNS_MAX`] returns: a server closes the connection on a larger one.

use glint_proto::limits::RETURNS_MAX;
use glint_proto::lock::Return;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Returns that are not sent yet.
#[derive(Default)]
pub(crate) struct ReturnQueue(Mutex<VecDeque<Return>>);

impl ReturnQueue {
    /// Locks are returned, or questions answered.
    pub(crate) fn put(&self, returns: impl IntoIterator<Item = Return>) {
        self.0.lock().extend(returns);
    }

    /// Takes the oldest returns, up to the limit of one request.
    pub(crate) fn take(&self) -> Vec<Return> {
        let mut queue = self.0.lock();
        let taken = queue.len().min(RETURNS_MAX);
        queue.drain(..taken).collect()
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

    #[test]
    fn a_million_returns_are_split_into_requests_below_the_limit_of_a_body() {
        use glint_proto::limits::BODY_BYTES_MAX;
        use glint_proto::message::{self, Request};
        const LOCKS: u64 = 1_000_000;
        let queue = ReturnQueue::default();
        let largest = |number| Return::Data { ino: Ino(u64::MAX), number: u64::MAX - number };
        queue.put((0..LOCKS).map(largest));
        let mut sent = 0;
        loop {
            let returns = queue.take();
            if returns.is_empty() {
                break;
            }
            sent += returns.len() as u64;
            let mut body = Vec::new();
            message::encode(&Request::Return(returns), &mut body).unwrap();
            assert!(body.len() <= BODY_BYTES_MAX);
        }
        assert_eq!(sent, LOCKS);
    }

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
