//! Sessions that may have something executed by an OSS, and until when. No I/O.
//!
//! Invariants:
//! - A session that was fenced is never a good one again, and counts as quiet only when nothing
//!   of it is being executed.
//! - Nothing begins while the MDS was not heard of for too long.
//! - When it is heard of again after that, or is another run of it, nothing begins at an OST before
//!   all is over that began there earlier: the MDS has waited for none of it, and what ended
//!   sessions had locked others have now. Where this process stood still between a look at the
//!   session and the change itself, the change is made before anybody can see or change the same
//!   bytes. (The order: the MDS says who has ended, [`Sessions::fence`], [`Sessions::rely_until`].)
//!   Each OST waits for its own requests: a disk that hangs holds up no other.
//! - Who waits to begin looks again after each change of what it waits for: until when the MDS is
//!   relied on, what runs from before, and whether its own session is good. Time alone changes only
//!   the first, and only so that nothing begins.
//!
//! Time is that of [`clock`]. It does not pass in a virtual machine that is halted from outside
//! and not told so; an OSS must not be halted that way for longer than half a lease.

use glint_proto::{ClientId, Errno, FsResult, Owner, RequestGuard, Session, clock};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

struct Known {
    session: Arc<Session>,
    connections: usize,
    /// When the last of them ended.
    left: Option<Instant>,
}

/// A time in which the MDS was relied on without a gap, at one OST. Each request keeps the term in
/// which it began; when the last of them is over, who waits to begin looks again.
pub(super) struct Term(Arc<WaitList>);

impl Drop for Term {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Requests that are being executed at an OST.
struct RequestsOfOst {
    term: Arc<Term>,
    /// Earlier terms of which something may still be executed.
    earlier: Vec<Weak<Term>>,
}

struct SessionTable {
    clients: HashMap<ClientId, Known>,
    fenced: HashSet<u64>,
    /// Sessions that are over, while something of them is being executed.
    ending: Vec<Arc<Session>>,
    /// Until when the MDS is relied on.
    valid: Option<Instant>,
    /// Of each OST.
    running: Vec<RequestsOfOst>,
}

/// The sessions of clients.
pub(super) struct Sessions {
    state: Mutex<SessionTable>,
    /// Requests that cannot begin yet.
    waiting: Arc<WaitList>,
}

/// Whether a request may be executed.
enum Entry<'a> {
    /// Yes, while this is kept.
    Running(RequestGuard<'a>, Arc<Term>),
    /// Not before the MDS was heard of again, and what ran at this OST before is over.
    Later,
    /// The session of the request is over.
    Never,
}

impl RequestsOfOst {
    fn new(waiting: &Arc<WaitList>) -> RequestsOfOst {
        RequestsOfOst { term: Arc::new(Term(waiting.clone())), earlier: Vec::new() }
    }

    /// Another term begins.
    fn renew(&mut self, waiting: &Arc<WaitList>) {
        self.is_earlier_over();
        let before = std::mem::replace(&mut self.term, Arc::new(Term(waiting.clone())));
        self.earlier.push(Arc::downgrade(&before));
    }

    /// Whether nothing of an earlier term is being executed.
    fn is_earlier_over(&mut self) -> bool {
        self.earlier.retain(|term| term.strong_count() > 0);
        self.earlier.is_empty()
    }
}

impl SessionTable {
    fn is_valid(&self, now: Instant) -> bool {
        self.valid.is_some_and(|valid| now < valid)
    }

    /// Ends sessions.
    fn end(&mut self, which: impl Fn(&Known) -> bool) {
        let ended = self.clients.extract_if(|_, known| which(known));
        for (_, known) in ended {
            known.session.end();
            self.ending.push(known.session);
        }
        self.ending.retain(|session| !session.is_quiet());
    }
}

impl Sessions {
    /// Sessions of a server with `osts` OSTs.
    pub(super) fn new(osts: u16) -> Sessions {
        let (clients, fenced, ending, valid) = Default::default();
        let waiting = Arc::<WaitList>::default();
        let running = (0..osts).map(|_| RequestsOfOst::new(&waiting)).collect();
        let state = Mutex::new(SessionTable { clients, fenced, ending, valid, running });
        Sessions { state, waiting }
    }

    /// Changes what decides about requests, and has those look again that wait.
    fn change<R>(&self, change: impl FnOnce(&mut SessionTable) -> R) -> R {
        let result = change(&mut self.state.lock());
        self.waiting.wake();
        result
    }

    /// A client of a session that the MDS has just said to be good has connected: ESTALE if
    /// it is not any more. Whatever session it had before is over.
    pub(super) fn admit(
        &self,
        client: ClientId,
        number: u64,
        owner: Owner,
    ) -> FsResult<Arc<Session>> {
        self.change(|state| {
            if state.fenced.contains(&number) {
                return Err(Errno::ESTALE);
            }
            state.end(|known| {
                known.session.client() == client && !known.session.is(client, number, &owner)
            });
            let known = state.clients.entry(client).or_insert_with(|| Known {
                session: Session::new(client, number, Some(owner)),
                connections: 0,
                left: None,
            });
            known.connections += 1;
            known.left = None;
            Ok(known.session.clone())
        })
    }

    /// Whether it is known that a session of a client is good, and this owner's.
    pub(super) fn has(&self, client: ClientId, number: u64, owner: &Owner) -> bool {
        let state = self.state.lock();
        state.clients.get(&client).is_some_and(|known| known.session.is(client, number, owner))
    }

    /// Whether a client has a good session.
    pub(super) fn knows(&self, client: ClientId) -> bool {
        self.state.lock().clients.contains_key(&client)
    }

    /// A connection of a client is gone.
    pub(super) fn disconnect(&self, session: &Session, now: Instant) {
        let mut state = self.state.lock();
        let known = state.clients.get_mut(&session.client());
        if let Some(known) = known.filter(|known| known.session.number() == session.number()) {
            known.connections = known.connections.saturating_sub(1);
            known.left = (known.connections == 0).then_some(now);
        }
    }

    /// A client ends its session.
    pub(super) fn end(&self, number: u64) {
        self.change(|state| state.end(|known| known.session.number() == number));
    }

    /// Forgets clients that left so long ago. They are asked about if they come back.
    pub(super) fn forget_absent(&self, now: Instant, limit: Duration) {
        let is_absent = |known: &Known| {
            known.left.is_some_and(|left| now.saturating_duration_since(left) >= limit)
        };
        self.change(|state| state.end(is_absent));
    }

    /// All good ones, and their connections.
    pub(super) fn all(&self) -> Vec<(Arc<Session>, usize)> {
        let state = self.state.lock();
        let one = |known: &Known| (known.session.clone(), known.connections);
        state.clients.values().map(one).collect()
    }

    /// Numbers of sessions of which something is being executed, this many at most.
    pub(super) fn under_way(&self, most: usize) -> Vec<u64> {
        let state = self.state.lock();
        let sessions = state.clients.values().map(|known| &known.session);
        let under_way = sessions.filter(|session| !session.is_quiet());
        under_way.take(most).map(|session| session.number()).collect()
    }

    /// A request begins at an OST of this server, as soon as it may: ESTALE if it never may.
    pub(super) async fn begin<'a>(
        &self,
        session: &'a Session,
        ost: u16,
    ) -> FsResult<(RequestGuard<'a>, Arc<Term>)> {
        let look = || match self.enter(session, ost, clock::now()) {
            Entry::Running(guard, term) => Some(Ok((guard, term))),
            Entry::Later => None,
            Entry::Never => Some(Err(Errno::ESTALE)),
        };
        self.waiting.until(look).await
    }

    /// Enters a request at the time `now`; `Never` if there is no such OST.
    fn enter<'a>(&self, session: &'a Session, ost: u16, now: Instant) -> Entry<'a> {
        // In this order: what is fenced waits for what has entered.
        let Ok(entered) = session.enter() else { return Entry::Never };
        let mut state = self.state.lock();
        let is_valid = state.is_valid(now);
        let Some(running) = state.running.get_mut(ost as usize) else { return Entry::Never };
        match is_valid && running.is_earlier_over() {
            true => Entry::Running(entered, running.term.clone()),
            false => Entry::Later,
        }
    }

    /// A session is over, and does not come back.
    pub(super) fn fence(&self, number: u64) {
        self.change(|state| {
            state.fenced.insert(number);
            state.end(|known| known.session.number() == number);
        });
    }

    /// Whether nothing is being executed of a session that is over.
    pub(super) fn is_quiet(&self, number: u64) -> bool {
        let mut state = self.state.lock();
        state.end(|_| false);
        !state.ending.iter().any(|session| session.number() == number)
    }

    /// The MDS, which has said by now whose sessions are over, is relied on until `then`. It did
    /// not wait for what runs here if it was not heard of for too long, or is another run of it.
    /// Returns whether it is relied on.
    pub(super) fn rely_until(&self, then: Instant, is_another: bool, now: Instant) -> bool {
        self.change(|state| {
            if is_another || !state.is_valid(now) {
                state.running.iter_mut().for_each(|running| running.renew(&self.waiting));
            }
            state.valid = Some(then);
        });
        now < then
    }

    /// Whether it is at this time.
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        self.state.lock().is_valid(now)
    }

    /// Whether nothing that began before the MDS was heard of again is being executed, at any OST.
    pub(super) fn is_earlier_over_everywhere(&self) -> bool {
        self.state.lock().running.iter_mut().all(RequestsOfOst::is_earlier_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    const OWNER: Owner = Owner { certificate: None, secret: 1 };

    #[test]
    fn what_was_fenced_is_over_when_it_is_quiet() {
        let (sessions, now) = (Sessions::new(2), Instant::now());
        let (a, b) = (ClientId(1), ClientId(2));
        let of_a = sessions.admit(a, 10, OWNER).unwrap();
        let of_b = sessions.admit(b, 20, OWNER).unwrap();
        assert!(matches!(sessions.enter(&of_a, 0, now), Entry::Later), "the MDS was not heard of");
        assert!(sessions.rely_until(now + Duration::from_secs(1), false, now));
        let Entry::Running(running, _) = sessions.enter(&of_a, 0, now) else {
            panic!("a is known")
        };
        assert_eq!(sessions.under_way(9), [10]);
        sessions.fence(10);
        assert!(matches!(sessions.enter(&of_a, 0, now), Entry::Never));
        assert!(!sessions.is_quiet(10));
        drop(running);
        assert!(sessions.is_quiet(10));
        assert!(sessions.admit(a, 10, OWNER).is_err(), "it does not come back");
        sessions.admit(a, 11, OWNER).unwrap();
        assert!(matches!(sessions.enter(&of_b, 0, now), Entry::Running(..)));
        assert!(matches!(sessions.enter(&of_b, 0, now + Duration::from_secs(1)), Entry::Later));
        sessions.disconnect(&of_b, now);
        sessions.forget_absent(now + Duration::from_secs(3), Duration::from_secs(2));
        assert!(!sessions.knows(b) && sessions.knows(a));
    }

    #[test]
    fn what_stood_still_while_the_mds_was_away_is_done_before_anything_begins_there() {
        let (sessions, now, second) = (Sessions::new(2), Instant::now(), Duration::from_secs(1));
        let of_a = sessions.admit(ClientId(1), 10, OWNER).unwrap();
        let of_b = sessions.admit(ClientId(2), 20, OWNER).unwrap();
        assert!(sessions.rely_until(now + second, false, now));
        let Entry::Running(guard, term) = sessions.enter(&of_a, 0, now) else {
            panic!("a is known")
        };
        // The session is ended in time: the MDS waits for what runs, others go on.
        sessions.fence(10);
        assert!(sessions.rely_until(now + 2 * second, false, now + second / 2));
        assert!(matches!(sessions.enter(&of_b, 0, now + second), Entry::Running(..)));
        // The process stands still here, and the MDS waits no more.
        let now = now + 100 * second;
        let begins = |ost| matches!(sessions.enter(&of_b, ost, now), Entry::Running(..));
        assert!(!begins(0) && !begins(1));
        for _ in 0..2 {
            assert!(sessions.rely_until(now + second, false, now));
            assert!(
                !begins(0) && !sessions.is_earlier_over_everywhere(),
                "something stood still there"
            );
            assert!(begins(1), "and not here");
        }
        drop((guard, term));
        assert!(begins(0) && sessions.is_earlier_over_everywhere());
        // A change is held up, too, for a session that the MDS does not name, because it has ended
        // here, and for another run of the MDS, which waits for nothing that the one before it
        // knew.
        let Entry::Running(guard, term) = sessions.enter(&of_b, 1, now) else {
            panic!("b is known")
        };
        sessions.end(20);
        let of_c = sessions.admit(ClientId(3), 30, OWNER).unwrap();
        assert!(sessions.rely_until(now + second, true, now));
        assert!(matches!(sessions.enter(&of_c, 1, now), Entry::Later));
        drop((guard, term));
        assert!(matches!(sessions.enter(&of_c, 1, now), Entry::Running(..)));
        assert!(matches!(sessions.enter(&of_c, 2, now), Entry::Never), "there are two");
    }

    #[test]
    fn what_was_parked_in_a_session_does_not_run_in_the_next_one() {
        let (sessions, now, a) = (Sessions::new(2), Instant::now(), ClientId(1));
        let old = sessions.admit(a, 10, OWNER).unwrap();
        assert!(matches!(sessions.enter(&old, 0, now), Entry::Later));
        // The client is back before the order to fence its old session is here.
        let new = sessions.admit(a, 11, OWNER).unwrap();
        assert!(sessions.rely_until(now + Duration::from_secs(1), false, now));
        assert!(matches!(sessions.enter(&old, 0, now), Entry::Never));
        let Entry::Running(..) = sessions.enter(&new, 0, now) else { panic!("it is good") };
        // Connections of the old session are not counted in the new one.
        sessions.disconnect(&old, now);
        let all: Vec<_> = sessions.all().iter().map(|(s, n)| (s.number(), *n)).collect();
        assert_eq!(all, [(11, 1)]);
        assert!(sessions.has(a, 11, &OWNER));
        assert!(!sessions.has(a, 11, &Owner { secret: 2, ..OWNER }), "somebody else");
        assert!(!sessions.has(a, 11, &Owner { certificate: Some([0; 32]), ..OWNER }));
        sessions.fence(10);
        assert!(sessions.is_quiet(10) && sessions.knows(a));
    }

    #[test]
    fn who_waits_is_woken_by_each_thing_that_it_waits_for() {
        let (sessions, hour) = (Sessions::new(1), Duration::from_secs(3600));
        let of_a = sessions.admit(ClientId(1), 10, OWNER).unwrap();
        let of_b = sessions.admit(ClientId(2), 20, OWNER).unwrap();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let is_woken = || woken.0.swap(false, Ordering::Relaxed);
        let mut context = Context::from_waker(&waker);
        let now = clock::now();

        let mut begins = pin!(sessions.begin(&of_a, 0));
        assert!(begins.as_mut().poll(&mut context).is_pending() && !is_woken());
        assert!(sessions.rely_until(now + hour, false, now));
        assert!(is_woken(), "the MDS was heard of");
        let Poll::Ready(Ok(earlier)) = begins.as_mut().poll(&mut context) else {
            panic!("nothing is in its way")
        };

        assert!(sessions.rely_until(now + hour, true, now));
        let mut begins = pin!(sessions.begin(&of_b, 0));
        assert!(begins.as_mut().poll(&mut context).is_pending() && !is_woken());
        drop(earlier);
        assert!(is_woken(), "what ran before is over");
        let Poll::Ready(Ok(earlier)) = begins.as_mut().poll(&mut context) else {
            panic!("nothing is in its way")
        };

        assert!(sessions.rely_until(now + hour, true, now));
        let mut begins = pin!(sessions.begin(&of_a, 0));
        assert!(begins.as_mut().poll(&mut context).is_pending() && !is_woken());
        sessions.fence(10);
        assert!(is_woken(), "its session is over");
        assert!(matches!(begins.as_mut().poll(&mut context), Poll::Ready(Err(Errno::ESTALE))));
        drop(earlier);
    }
}
