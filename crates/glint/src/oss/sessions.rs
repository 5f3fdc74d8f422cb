//! Who may have something executed by an OSS, and until when. No I/O.
//!
//! Invariants:
//! - A session that was fenced is never a good one again, and counts as quiet only when nothing
//!   of it is being executed.
//! - Nothing begins while the MDS was not heard of for too long.

use glint_proto::ClientId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

struct Session {
    number: u64,
    connections: usize,
    /// When the last of them ended.
    left: Option<Instant>,
}

#[derive(Default)]
struct State {
    clients: HashMap<ClientId, Session>,
    fenced: HashSet<u64>,
    /// Requests that are being executed, by session.
    running: HashMap<u64, usize>,
    /// Until when the MDS is relied on.
    valid: Option<Instant>,
}

/// The sessions of clients.
#[derive(Default)]
pub struct Sessions {
    state: Mutex<State>,
}

/// Whether a request may be executed.
pub enum Entry<'a> {
    /// Yes, while this is kept.
    Running(Running<'a>),
    /// Not before the MDS was heard of again.
    Later,
    /// Its session is over.
    Never,
}

/// A request that is being executed.
pub struct Running<'a>(&'a Sessions, u64);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if let Some(count) = state.running.get_mut(&self.1) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(&self.1);
            }
        }
    }
}

impl Sessions {
    /// A client of a session that the MDS has just said to be good has connected. Returns
    /// whether it still is.
    pub fn admit(&self, client: ClientId, number: u64) -> bool {
        let mut state = self.state.lock();
        if state.fenced.contains(&number) {
            return false;
        }
        let new = Session { number, connections: 0, left: None };
        let session = state.clients.entry(client).or_insert(new);
        if session.number != number {
            *session = Session { number, connections: 0, left: None };
        }
        session.connections += 1;
        session.left = None;
        true
    }

    /// Whether it is known that a session of a client is good.
    pub fn has(&self, client: ClientId, number: u64) -> bool {
        self.state.lock().clients.get(&client).is_some_and(|known| known.number == number)
    }

    /// Whether a client has a good session.
    pub fn knows(&self, client: ClientId) -> bool {
        self.state.lock().clients.contains_key(&client)
    }

    /// A connection of a client is gone.
    pub fn disconnect(&self, client: ClientId, now: Instant) {
        if let Some(session) = self.state.lock().clients.get_mut(&client) {
            session.connections = session.connections.saturating_sub(1);
            session.left = (session.connections == 0).then_some(now);
        }
    }

    /// A client ends.
    pub fn forget(&self, client: ClientId) {
        self.state.lock().clients.remove(&client);
    }

    /// Forgets clients that left so long ago. They are asked about if they come back.
    pub fn forget_absent(&self, now: Instant, limit: Duration) {
        let stays = |session: &Session| {
            session.left.is_none_or(|left| now.saturating_duration_since(left) < limit)
        };
        self.state.lock().clients.retain(|_, session| stays(session));
    }

    /// All good ones: client, number, connections.
    pub fn all(&self) -> Vec<(ClientId, u64, usize)> {
        let state = self.state.lock();
        let one = |(client, session): (&ClientId, &Session)| {
            (*client, session.number, session.connections)
        };
        state.clients.iter().map(one).collect()
    }

    /// A request of a client begins.
    pub fn enter(&self, client: ClientId, now: Instant) -> Entry<'_> {
        let mut state = self.state.lock();
        let Some(number) = state.clients.get(&client).map(|session| session.number) else {
            return Entry::Never;
        };
        if state.valid.is_none_or(|valid| now >= valid) {
            return Entry::Later;
        }
        *state.running.entry(number).or_default() += 1;
        Entry::Running(Running(self, number))
    }

    /// A session is over.
    pub fn fence(&self, number: u64) {
        let mut state = self.state.lock();
        state.fenced.insert(number);
        state.clients.retain(|_, session| session.number != number);
    }

    /// Whether nothing of a session is being executed.
    pub fn is_quiet(&self, number: u64) -> bool {
        !self.state.lock().running.contains_key(&number)
    }

    /// The MDS is relied on until then.
    pub fn valid_until(&self, then: Instant) {
        self.state.lock().valid = Some(then);
    }

    /// Whether it is at this time.
    pub fn is_valid(&self, now: Instant) -> bool {
        self.state.lock().valid.is_some_and(|valid| now < valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_fenced_is_over_when_it_is_quiet() {
        let (sessions, now) = (Sessions::default(), Instant::now());
        let (a, b) = (ClientId(1), ClientId(2));
        assert!(sessions.admit(a, 10) && sessions.admit(b, 20));
        assert!(matches!(sessions.enter(a, now), Entry::Later), "the MDS was not heard of");
        sessions.valid_until(now + Duration::from_secs(1));
        let Entry::Running(running) = sessions.enter(a, now) else { panic!("a is known") };
        sessions.fence(10);
        assert!(matches!(sessions.enter(a, now), Entry::Never));
        assert!(!sessions.is_quiet(10));
        drop(running);
        assert!(sessions.is_quiet(10));
        assert!(!sessions.admit(a, 10), "it does not come back");
        assert!(sessions.admit(a, 11), "another one does");
        assert!(matches!(sessions.enter(b, now), Entry::Running(_)));
        assert!(matches!(sessions.enter(b, now + Duration::from_secs(1)), Entry::Later));
        sessions.disconnect(b, now);
        sessions.forget_absent(now + Duration::from_secs(3), Duration::from_secs(2));
        assert!(!sessions.knows(b) && sessions.knows(a));
    }
}
