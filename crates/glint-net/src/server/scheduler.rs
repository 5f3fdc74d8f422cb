//! Order of the requests at a worker.
//!
//! Invariants:
//! - An urgent request goes before all that are not.
//! - A client that had nothing queued goes before those that had; the others take turns,
//!   `TURN` requests each. So one that asks little hardly waits for one that asks much.
//! - Requests of one client stay in their order within their class.
//! - No more than `limit` requests wait; what comes then is told to come back.
//!
//! (The order of clients is that of the queues of fq_codel, RFC 8290.)

use glint_proto::ClientId;
use std::collections::{HashMap, VecDeque};

/// Requests that a client may have executed before it is another one's turn.
const TURN: usize = 8;

struct Queue<T> {
    requests: VecDeque<T>,
    /// Requests left of its turn.
    credit: usize,
}

/// The queues of one worker.
pub(crate) struct Scheduler<T> {
    urgent: VecDeque<T>,
    clients: HashMap<ClientId, Queue<T>>,
    /// Clients that had nothing queued a moment ago, and all others, in their order.
    fresh: VecDeque<ClientId>,
    others: VecDeque<ClientId>,
    len: usize,
    limit: usize,
}

impl<T> Scheduler<T> {
    pub(crate) fn new(limit: usize) -> Scheduler<T> {
        Scheduler {
            urgent: VecDeque::new(),
            clients: HashMap::new(),
            fresh: VecDeque::new(),
            others: VecDeque::new(),
            len: 0,
            limit,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues a request, or gives it back if too many wait.
    pub(crate) fn push(&mut self, client: ClientId, urgent: bool, request: T) -> Result<(), T> {
        if self.len >= self.limit {
            return Err(request);
        }
        self.len += 1;
        if urgent {
            self.urgent.push_back(request);
            return Ok(());
        }
        let new = || Queue { requests: VecDeque::new(), credit: 0 };
        let queue = self.clients.entry(client).or_insert_with(new);
        queue.requests.push_back(request);
        if queue.requests.len() == 1 {
            queue.credit = TURN;
            self.fresh.push_back(client);
        }
        Ok(())
    }

    /// The next request.
    pub(crate) fn pop(&mut self) -> Option<T> {
        if let Some(request) = self.urgent.pop_front() {
            self.len -= 1;
            return Some(request);
        }
        loop {
            let is_fresh = !self.fresh.is_empty();
            let turns = if is_fresh { &mut self.fresh } else { &mut self.others };
            let client = *turns.front()?;
            let Some(queue) = self.clients.get_mut(&client) else {
                turns.pop_front();
                continue;
            };
            if queue.credit == 0 {
                turns.pop_front();
                queue.credit = TURN;
                self.others.push_back(client);
                continue;
            }
            queue.credit -= 1;
            let request = queue.requests.pop_front();
            if queue.requests.is_empty() {
                turns.pop_front();
                self.clients.remove(&client);
            }
            self.len -= 1;
            return request;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: ClientId = ClientId(1);
    const B: ClientId = ClientId(2);

    fn drain<T>(scheduler: &mut Scheduler<T>) -> Vec<T> {
        std::iter::from_fn(|| scheduler.pop()).collect()
    }

    #[test]
    fn urgent_goes_first_and_a_modest_client_hardly_waits() {
        let mut scheduler = Scheduler::new(20_000);
        for n in 0..10_000 {
            scheduler.push(A, false, n).unwrap();
        }
        assert_eq!((0..TURN).map(|_| scheduler.pop().unwrap()).max(), Some(7));
        scheduler.push(B, false, 20_000).unwrap();
        scheduler.push(A, true, 30_000).unwrap();
        assert_eq!(scheduler.pop(), Some(30_000));
        let position = drain(&mut scheduler).iter().position(|n| *n == 20_000).unwrap();
        assert!(position <= TURN, "it waited for {position} requests");
        assert!(scheduler.is_empty() && scheduler.clients.is_empty());
    }

    #[test]
    fn two_greedy_clients_take_turns() {
        let mut scheduler = Scheduler::new(1000);
        for n in 0..100 {
            scheduler.push(A, false, (A, n)).unwrap();
            scheduler.push(B, false, (B, n)).unwrap();
        }
        let order = drain(&mut scheduler);
        let of_a = order[..100].iter().filter(|(client, _)| *client == A).count();
        assert!((50 - TURN..=50 + TURN).contains(&of_a), "{of_a} of the first hundred");
        let mine: Vec<i32> = order.iter().filter(|(c, _)| *c == A).map(|(_, n)| *n).collect();
        assert!(mine.is_sorted());
    }

    #[test]
    fn too_many_are_given_back() {
        let mut scheduler = Scheduler::new(2);
        scheduler.push(A, false, 1).unwrap();
        scheduler.push(B, true, 2).unwrap();
        assert_eq!(scheduler.push(B, false, 3), Err(3));
        scheduler.pop();
        scheduler.push(B, false, 3).unwrap();
    }

    proptest! {
        #[test]
        fn every_request_comes_out_once_and_in_order(
            operations in proptest::collection::vec((0u64..5, any::<bool>(), 0usize..4), 0..300)
        ) {
            let mut scheduler = Scheduler::new(100);
            let (mut sent, mut got) = (Vec::new(), Vec::new());
            for (n, (client, urgent, pops)) in operations.into_iter().enumerate() {
                if scheduler.push(ClientId(client), urgent, (client, urgent, n)).is_ok() {
                    sent.push((client, urgent, n));
                }
                got.extend(std::iter::from_fn(|| scheduler.pop()).take(pops));
            }
            got.extend(drain(&mut scheduler));
            for class in [false, true] {
                for client in 0..5 {
                    let of = |all: &[(u64, bool, usize)]| -> Vec<usize> {
                        let mine = all.iter().filter(|(c, u, _)| *c == client && *u == class);
                        mine.map(|(.., n)| *n).collect()
                    };
                    prop_assert_eq!(of(&sent), of(&got));
                }
            }
        }
    }
}
