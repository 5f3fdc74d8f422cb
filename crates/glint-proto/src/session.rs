//! A session: the time from a client's first hello to its end, or its eviction.
//!
//! Whatever a server does for a client it does for one of its sessions, and holds that, not the
//! client's id: what comes late or wakes up late is refused by what it holds, whoever the
//! client is by then.
//!
//! Invariants:
//! - Nothing begins in a session that is over.
//! - Once a session is over and quiet, nothing of it is being executed, nor will be.

use crate::{ClientId, Errno, FsResult};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// Set in the state of a session that is over; the rest counts what is being executed.
const OVER: u64 = 1 << 63;

/// A session of a client at one server.
#[derive(Debug)]
pub struct Session {
    client: ClientId,
    number: u64,
    state: AtomicU64,
    /// Who waits until nothing is being executed.
    waiting: Mutex<Vec<Waker>>,
}

/// Something that is being executed in a session, which is not quiet while this is kept.
#[derive(Debug)]
pub struct Running<'a>(&'a Session);

impl Session {
    /// One that begins.
    pub fn new(client: ClientId, number: u64) -> Arc<Session> {
        let (state, waiting) = (AtomicU64::new(0), Mutex::default());
        Arc::new(Session { client, number, state, waiting })
    }

    /// Whose it is.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Its number: the same at all servers, and that of no other session.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) & OVER != 0
    }

    /// Something of it begins to be executed: ESTALE if it is over.
    pub fn enter(&self) -> FsResult<Running<'_>> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let running = Running(self);
        if before & OVER == 0 { Ok(running) } else { Err(Errno::ESTALE) }
    }

    /// From now on nothing begins.
    pub fn end(&self) {
        self.state.fetch_or(OVER, Ordering::AcqRel);
    }

    /// Whether nothing of it is being executed.
    pub fn is_quiet(&self) -> bool {
        self.state.load(Ordering::Acquire) & !OVER == 0
    }

    /// Until nothing of it is being executed. Of one that is over.
    pub async fn quiet(&self) {
        poll_fn(|context| {
            if self.is_quiet() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            // The last one may have ended meanwhile.
            if self.is_quiet() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, Ordering::AcqRel);
        if before == OVER | 1 {
            let waiting = std::mem::take(&mut *self.0.waiting.lock());
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::Context;

    #[test]
    fn what_is_over_and_quiet_stays_so() {
        let session = Session::new(ClientId(1), 7);
        let (one, two) = (session.enter().unwrap(), session.enter().unwrap());
        session.end();
        assert_eq!(session.enter().err(), Some(Errno::ESTALE));
        let mut quiet = pin!(session.quiet());
        let mut context = Context::from_waker(Waker::noop());
        assert!(quiet.as_mut().poll(&mut context).is_pending());
        drop(one);
        assert!(!session.is_quiet() && quiet.as_mut().poll(&mut context).is_pending());
        drop(two);
        assert!(session.is_quiet() && quiet.as_mut().poll(&mut context).is_ready());
        assert_eq!(session.enter().err(), Some(Errno::ESTALE));
    }
}
