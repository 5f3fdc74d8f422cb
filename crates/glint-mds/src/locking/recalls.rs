//! Recalls: what each client has still to return, in a queue for each that listens.
//!
//! Invariant: a recall stays in the queue until it is answered, and is sent again to a client that
//! listens anew. So a broken connection loses none.

use glint_lock::bits::Message;
use glint_proto::lock::{Recall, Return};
use glint_proto::watch::{Moment, Watch};
use glint_proto::{ClientId, Ino, Timestamp};
use glint_telemetry::Counter;
use glint_wait::Monitor;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

struct PendingRecall {
    recall: Recall,
    asked: Moment,
    sent: bool,
}

/// Size and time that a client has seen of a file that it writes.
type GlimpseAnswer = Option<(u64, Timestamp)>;

struct Glimpse {
    client: ClientId,
    answer: Option<GlimpseAnswer>,
}

#[derive(Default)]
struct RecallQueue {
    pending: Vec<PendingRecall>,
    /// Names the connection that listens.
    listening: u64,
    /// Write-back epoch of the client, if it makes changes by itself and tells them later.
    epoch: Option<u64>,
    /// When it last wrote data, which may be what it was asked for.
    wrote: Option<Moment>,
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
        self.0.state.lock().glimpses.remove(&self.1);
    }
}

fn is_answer(recall: &Recall, returned: &Return) -> bool {
    match (*recall, *returned) {
        (Recall::Bits { ino, bits, number }, Return::Bits { ino: i, bits: b, number: n }) => {
            ino == i && b.contains(bits) && n >= number
        }
        (Recall::Data { ino, number }, Return::Data { ino: i, number: n })
        | (Recall::Glimpse { ino, number }, Return::Glimpse { ino: i, number: n, .. }) => {
            ino == i && number == n
        }
        _ => false,
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
        queue.listening = listening;
        queue.pending.iter_mut().for_each(|recall| recall.sent = false);
        drop(state);
        self.state.wake_where(|waits_for| *waits_for == (client, None));
        listening
    }

    /// Waits for the next recalls to send; `None` when the client listens elsewhere or is gone.
    pub(crate) async fn next(&self, client: ClientId, listening: u64) -> Option<Vec<Recall>> {
        let look = |state: &mut QueueTable| {
            let Some(queue) = state.queues.get_mut(&client) else { return Some(None) };
            if queue.listening != listening {
                return Some(None);
            }
            let mut news = Vec::new();
            for recall in queue.pending.iter_mut().filter(|recall| !recall.sent) {
                recall.sent = true;
                news.push(recall.recall);
            }
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
                queue.pending.push(PendingRecall { recall, asked, sent: false });
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
            queue.pending.retain(|recall| !is_answer(&recall.recall, returned));
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
            state.glimpses.insert(number, Glimpse { client, answer: None });
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
        if let Some(queue) = self.state.lock().queues.get_mut(&client)
            && !queue.pending.is_empty()
        {
            queue.wrote = Some(self.watch.now());
        }
    }

    /// Clients that owe an answer for longer than `limit`, and have not written meanwhile.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<ClientId> {
        let state = self.state.lock();
        let late = |queue: &RecallQueue| {
            let asked = queue.pending.iter().map(|recall| recall.asked).min();
            asked.is_some_and(|asked| {
                self.watch.is_over(queue.wrote.unwrap_or(asked).max(asked), limit)
            })
        };
        let mut late: Vec<ClientId> = state
            .queues
            .iter()
            .filter(|(_, queue)| late(queue))
            .map(|(client, _)| *client)
            .collect();
        late.sort_unstable();
        late
    }
}
