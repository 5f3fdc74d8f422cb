//! Numbers of the connections of threads, whose slots they stand for.
//!
//! Invariant: within a slot xids rise as long as the client lives. A number that is free again
//! goes on where it ended.

use glint_proto::limits::CONNECTIONS_PER_CLIENT_MAX;

/// Those of a client.
#[derive(Default)]
pub(crate) struct Numbers {
    next: u16,
    free: Vec<(u16, u64)>,
}

impl Numbers {
    /// One, and its first xid; `None` if all are taken.
    pub(crate) fn take(&mut self) -> Option<(u16, u64)> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        let number = self.next;
        self.next += u16::from(number < CONNECTIONS_PER_CLIENT_MAX);
        (number < CONNECTIONS_PER_CLIENT_MAX).then_some((number, 1))
    }

    /// The thread that had it is gone; this is the next xid.
    pub(crate) fn give_back(&mut self, number: u16, xid: u64) {
        self.free.push((number, xid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_connections_are_of_one_thread_at_a_time() {
        let mut numbers = Numbers::default();
        let all: Vec<u16> = std::iter::from_fn(|| numbers.take()).map(|(n, _)| n).collect();
        assert_eq!(all, (0..CONNECTIONS_PER_CLIENT_MAX).collect::<Vec<_>>());
        for _ in 0..70_000 {
            assert_eq!(numbers.take(), None);
        }
        numbers.give_back(3, 77);
        assert_eq!(numbers.take(), Some((3, 77)), "it goes on where it ended");
    }
}
