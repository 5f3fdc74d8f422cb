//! Recalls: what each client has still to return, in a queue for each that listens.
//!
//! Invariant: a recall stays in the queue until it is answered, and is sent again to a client that
//! listens anew. So a broken connection loses none.

use crate::locking::claims::wake;
use glint_lock::bits::Message;
use glint_proto::lock::{Callback, Cancel};
use glint_proto::watch::{Moment, Watch};
use glint_proto::{ClientId, Ino, Timestamp};
use glint_telemetry::Counter;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

struct Question {
    callback: Callback,
    asked: Moment,
    sent: bool,
}

/// What a client has seen of a file that it writes.
type Seen = Option<(u64, Timestamp)>;

struct Glimpse {
    client: ClientId,
    waker: Waker,
    answer: Option<Seen>,
}

#[derive(Default)]
struct Mailbox {
    questions: Vec<Question>,
    /// Names the connection that listens.
    listening: u64,
    /// It makes changes by itself, in this life, and tells them later.
    life: Option<u64>,
    /// When it last wrote data, which may be what it was asked for.
    wrote: Option<Moment>,
    waker: Option<Waker>,
}

#[derive(Default)]
struct MailboxTable {
    boxes: HashMap<ClientId, Mailbox>,
    glimpses: HashMap<u64, Glimpse>,
    next: u64,
}

/// All mailboxes.
#[derive(Default)]
pub(crate) struct Mailboxes {
    state: Mutex<MailboxTable>,
    watch: Arc<Watch>,
}

/// A glimpse that is waited for; forgotten when nobody does any more.
struct Waiting<'a>(&'a Mailboxes, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().glimpses.remove(&self.1);
    }
}

fn is_answer(callback: &Callback, cancel: &Cancel) -> bool {
    match (*callback, *cancel) {
        (Callback::Bits { ino, bits, number }, Cancel::Bits { ino: i, bits: b, number: n }) => {
            ino == i && b.contains(bits) && n >= number
        }
        (Callback::Data { ino, number }, Cancel::Data { ino: i, number: n })
        | (Callback::Glimpse { ino, number }, Cancel::Glimpse { ino: i, number: n, .. }) => {
            ino == i && number == n
        }
        _ => false,
    }
}

impl Mailboxes {
    /// Mailboxes whose owners are late by this watch.
    pub(crate) fn new(watch: Arc<Watch>) -> Mailboxes {
        Mailboxes { state: Mutex::default(), watch }
    }

    pub(crate) fn number_from(&self, number: u64) {
        self.state.lock().next = number;
    }

    pub(crate) fn has(&self, client: ClientId) -> bool {
        self.state.lock().boxes.contains_key(&client)
    }

    /// A client makes changes by itself from now on. It may not listen yet.
    pub(crate) fn writes_back(&self, client: ClientId, life: u64) {
        self.state.lock().boxes.entry(client).or_default().life = Some(life);
    }

    /// The life of a client that makes changes by itself.
    pub(crate) fn life(&self, client: ClientId) -> Option<u64> {
        self.state.lock().boxes.get(&client).and_then(|mailbox| mailbox.life)
    }

    /// A client will listen; until then its questions wait.
    pub(crate) fn expect(&self, client: ClientId) {
        self.state.lock().boxes.entry(client).or_default();
    }

    /// A client listens, from the first question that it has not answered.
    pub(crate) fn listen(&self, client: ClientId) -> u64 {
        let mut state = self.state.lock();
        state.next += 1;
        let listening = state.next;
        let mailbox = state.boxes.entry(client).or_default();
        mailbox.listening = listening;
        mailbox.questions.iter_mut().for_each(|question| question.sent = false);
        let waker = mailbox.waker.take();
        drop(state);
        wake(waker.into_iter().collect());
        listening
    }

    /// What to say next; `None` when there is no more.
    pub(crate) async fn next(&self, client: ClientId, listening: u64) -> Option<Vec<Callback>> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            let Some(mailbox) = state.boxes.get_mut(&client) else { return Poll::Ready(None) };
            if mailbox.listening != listening {
                return Poll::Ready(None);
            }
            let mut news = Vec::new();
            for question in mailbox.questions.iter_mut().filter(|question| !question.sent) {
                question.sent = true;
                news.push(question.callback);
            }
            if news.is_empty() {
                mailbox.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(Some(news))
        })
        .await
    }

    /// Puts questions into their mailboxes. Returns those to clients that are gone, and will
    /// not answer.
    #[must_use]
    pub(crate) fn post(&self, messages: Vec<Message>) -> Vec<Message> {
        let mut gone = Vec::new();
        if messages.is_empty() {
            return gone;
        }
        glint_telemetry::count(Counter::Callbacks, messages.len() as u64);
        let (asked, mut wakers) = (self.watch.now(), Vec::new());
        let mut state = self.state.lock();
        for (client, callback) in messages {
            if let Some(mailbox) = state.boxes.get_mut(&client) {
                mailbox.questions.push(Question { callback, asked, sent: false });
                wakers.extend(mailbox.waker.take());
            } else {
                gone.push((client, callback));
            }
        }
        drop(state);
        wake(wakers);
        gone
    }

    /// A client has answered.
    pub(crate) fn answered(&self, client: ClientId, cancel: &Cancel) {
        let mut state = self.state.lock();
        if let Some(mailbox) = state.boxes.get_mut(&client) {
            mailbox.questions.retain(|question| !is_answer(&question.callback, cancel));
        }
        if let Cancel::Glimpse { number, seen, .. } = cancel
            && let Some(glimpse) = state.glimpses.get_mut(number)
            && glimpse.client == client
        {
            glimpse.answer = Some(*seen);
            let waker = glimpse.waker.clone();
            drop(state);
            waker.wake();
        }
    }

    /// Asks a client what it has seen of a file.
    pub(crate) async fn glimpse(&self, client: ClientId, ino: Ino) -> Seen {
        let number = {
            let mut state = self.state.lock();
            state.next += 1;
            let number = state.next;
            let waker = Waker::noop().clone();
            state.glimpses.insert(number, Glimpse { client, waker, answer: None });
            number
        };
        let _waiting = Waiting(self, number);
        // Nobody answers for a client that is gone, and that is seen below.
        let _ = self.post(vec![(client, Callback::Glimpse { ino, number })]);
        poll_fn(|context| {
            let mut state = self.state.lock();
            let is_gone = !state.boxes.contains_key(&client);
            let Some(glimpse) = state.glimpses.get_mut(&number) else { return Poll::Ready(None) };
            match glimpse.answer {
                Some(seen) => Poll::Ready(seen),
                None if is_gone => Poll::Ready(None),
                None => {
                    glimpse.waker.clone_from(context.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// A client is gone.
    pub(crate) fn remove(&self, client: ClientId) {
        let mut state = self.state.lock();
        let mut wakers = Vec::new();
        if let Some(mut mailbox) = state.boxes.remove(&client) {
            wakers.extend(mailbox.waker.take());
        }
        let waiting = state.glimpses.values().filter(|glimpse| glimpse.client == client);
        wakers.extend(waiting.map(|glimpse| glimpse.waker.clone()));
        drop(state);
        wake(wakers);
    }

    /// A client writes data: it is about to answer.
    pub(crate) fn wrote(&self, client: ClientId) {
        if let Some(mailbox) = self.state.lock().boxes.get_mut(&client)
            && !mailbox.questions.is_empty()
        {
            mailbox.wrote = Some(self.watch.now());
        }
    }

    /// Clients that owe an answer for longer than `limit`, and have not written meanwhile.
    pub(crate) fn overdue(&self, limit: Duration) -> Vec<ClientId> {
        let state = self.state.lock();
        let late = |mailbox: &Mailbox| {
            let asked = mailbox.questions.iter().map(|question| question.asked).min();
            asked.is_some_and(|asked| {
                self.watch.is_over(mailbox.wrote.unwrap_or(asked).max(asked), limit)
            })
        };
        let mut late: Vec<ClientId> = state
            .boxes
            .iter()
            .filter(|(_, mailbox)| late(mailbox))
            .map(|(client, _)| *client)
            .collect();
        late.sort_unstable();
        late
    }
}
