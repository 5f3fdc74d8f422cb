//! Recalls: what each client has still to return, in a queue for each that listens.
//!
//! Invariant: a recall stays in the queue until it is answered, and is sent again to a client that
//! listens anew. So a broken connection loses none.

use crate::locking::recall_queue::RecallQueue;
use glint_lock::bits::Message;
use glint_proto::limits::RETURNS_MAX;
use glint_proto::lock::{Recall, Return};
use glint_proto::watch::Watch;
use glint_proto::{ClientId, Ino, Timestamp};
use glint_telemetry::Counter;
use glint_wait::Monitor;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// Size and time that a client has seen of a file that it writes.
type GlimpseAnswer = Option<(u64, Timestamp)>;

struct Glimpse {
    client: ClientId,
    ino: Ino,
    answer: Option<GlimpseAnswer>,
}

#[derive(Default)]
struct QueueTable {
    queues: HashMap<ClientId, RecallQueue>,
    glimpses: HashMap<u64, Glimpse>,
    next: u64,
}

/// The queues of all clients.
#[derive(Default)]
pub(crate) struct RecallQueues {
    /// Recall queues; clients that listen wait here, and glimpses for the answers of clients, by
    /// number.
    state: Monitor<QueueTable, (ClientId, Option<u64>)>,
    watch: Arc<Watch>,
}

/// A glimpse that is waited for; forgotten when nobody does any more.
struct GlimpseWait<'a>(&'a RecallQueues, u64);

impl Drop for GlimpseWait<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some(Glimpse { client, ino, .. }) = state.glimpses.remove(&self.1)
            && let Some(queue) = state.queues.get_mut(&client)
        {
            queue.take_glimpse(ino, self.1);
        }
    }
}

impl RecallQueues {
    /// RecallQueues whose owners are late by this watch.
    pub(crate) fn new(watch: Arc<Watch>) -> RecallQueues {
        RecallQueues { state: Monitor::default(), watch }
    }

    pub(crate) fn number_from(&self, number: u64) {
        self.state.lock().next = number;
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.state.lock().queues.contains_key(&client)
    }

    /// A client makes changes by itself from now on. It may not listen yet.
    pub(crate) fn writes_back(&self, client: ClientId, epoch: u64) {
        self.state.lock().queues.entry(client).or_default().epoch = Some(epoch);
    }

    /// The write-back epoch of a client that makes changes by itself.
    pub(crate) fn epoch(&self, client: ClientId) -> Option<u64> {
        self.state.lock().queues.get(&client).and_then(|queue| queue.epoch)
    }

    /// A client will listen; until then its pending wait.
    pub(crate) fn expect(&self, client: ClientId) {
        self.state.lock().queues.entry(client).or_default();
    }

    /// A client listens, from the first recall that it has not answered.
    pub(crate) fn listen(&self, client: ClientId) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let listening = state.next;
        let queue = state.queues.entry(client).or_default();
        queue.listen(listening);
        drop(state);
        self.state.wake_where(|waits_for| *waits_for == (client, None));
        listening
    }

    /// Waits for the next recalls to send, no more than fit into a message; `None` when the client listens elsewhere or is gone.
    pub(crate) async fn next(&self, client: ClientId, listening: u64) -> Option<Vec<Recall>> {
        let look = |state: &mut QueueTable| {
            let Some(queue) = state.queues.get_mut(&client) else { return Some(None) };
            if queue.listening() != listening {
                return Some(None);
            }
            let news = queue.take_unsent(RETURNS_MAX);
            (!news.is_empty()).then_some(Some(news))
        };
        self.state.until_with((client, None), look).await
    }

    /// Puts recalls into their queues. Returns those to clients that are gone, and will
    /// not answer.
    #[must_use]
    pub(crate) fn post(&self, messages: Vec<Message>) -> Vec<Message> {
        let mut gone = Vec::new();
        if messages.is_empty() {
            return gone;
        }
        glint_telemetry::count(Counter::Recalls, messages.len() as u64);
        let (asked, mut called) = (self.watch.now(), Vec::new());
        let mut state = self.state.lock();
        for (client, recall) in messages {
            if let Some(queue) = state.queues.get_mut(&client) {
                queue.push(recall, asked);
                called.push(client);
            } else {
                gone.push((client, recall));
            }
        }
        drop(state);
        let is_called =
            |client: &ClientId, glimpse: &Option<u64>| glimpse.is_none() && called.contains(client);
        self.state.wake_where(|(client, glimpse)| is_called(client, glimpse));
        gone
    }

    /// A client has answered.
    pub(crate) fn answered(&self, client: ClientId, returned: &Return) {
        let mut state = self.state.lock();
        if let Some(queue) = state.queues.get_mut(&client) {
            queue.answer(returned);
        }
        if let Return::Glimpse { number, seen, .. } = returned
            && let Some(glimpse) = state.glimpses.get_mut(number)
            && glimpse.client == client
        {
            glimpse.answer = Some(*seen);
            drop(state);
            self.state.wake_where(|(_, glimpse)| *glimpse == Some(*number));
        }
    }

    /// Asks a client what it has seen of a file.
    pub(crate) async fn glimpse(&self, client: ClientId, ino: Ino) -> GlimpseAnswer {
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            state.glimpses.insert(number, Glimpse { client, ino, answer: None });
            number
        };
        let _waiting = GlimpseWait(self, number);
        // Nobody answers for a client that is gone, and that is seen below.
        let _ = self.post(vec![(client, Recall::Glimpse { ino, number })]);
        let look = |state: &mut QueueTable| {
            let is_gone = !state.queues.contains_key(&client);
            let answer = state.glimpses.get(&number).map(|glimpse| glimpse.answer);
            match answer {
                Some(Some(seen)) => Some(seen),
                Some(None) if !is_gone => None,
                _ => Some(None),
            }
        };
        self.state.until_with((client, Some(number)), look).await
    }

    /// A client is gone.
    pub(crate) fn remove(&self, client: ClientId) {
        self.state.lock().queues.remove(&client);
        self.state.wake_where(|(waits_for, _)| *waits_for == client);
    }

    /// A client writes data: it is about to answer.
    pub(crate) fn wrote(&self, client: ClientId) {
        if let Some(queue) = self.state.lock().queues.get_mut(&client) {
            queue.note_write(self.watch.now());
        }
    }

    /// Clients are held up by something that they cannot help: what they owe is not late for as long
    /// again.
    pub(crate) fn hold(&self, clients: &[ClientId]) {
        let (mut state, now) = (self.state.lock(), self.watch.now());
        for client in clients {
            if let Some(queue) = state.queues.get_mut(client) {
                queue.hold(now);
            }
        }
    }

    /// Clients that owe an answer for longer than `limit`, or some times as long if they write; and how
    /// long it may have taken.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<(ClientId, Duration)> {
        let state = self.state.lock();
        let late = |(client, queue): (&ClientId, &RecallQueue)| {
            let allowed = queue.late(limit, |moment, limit| self.watch.is_over(moment, limit))?;
            Some((*client, allowed))
        };
        let mut late: Vec<(ClientId, Duration)> = state.queues.iter().filter_map(late).collect();
        late.sort_unstable();
        late
    }
}
