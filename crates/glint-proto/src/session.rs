//! A session: the time from a client's first hello to its end, or its eviction.
//!
//! Whatever a server does for a client it does for one of its sessions, and holds that, not the
//! client's id: what comes late or wakes up late is refused by what it holds, whoever the
//! client is by then.
//!
//! A session belongs to what its client has shown at its first hello: the certificate, if there
//! are any, and a secret that it has drawn. Who shows something else is somebody else, whatever
//! id it says.
//!
//! Invariants:
//! - Nothing begins in a session that is over.
//! - Once a session is over and quiet, nothing of it is being executed, nor will be.
//! - What waits for locks in a session has a bound.

use crate::limits::WAITING_PER_SESSION_MAX;
use crate::{ClientId, Errno, FsResult};
use glint_wait::WaitList;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Set in the state of a session that is over; the rest counts what is being executed.
const OVER: u64 = 1 << 63;

/// Identity that a client shows at each hello, to all servers the same.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// SHA-256 of its certificate, if it showed one.
    pub certificate: Option<[u8; 32]>,
    /// Drawn at random when it mounted.
    pub secret: u128,
}

/// Nothing of it goes into a log.
impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.certificate.is_some() { "Owner(certificate)" } else { "Owner" })
    }
}

/// As session records have it.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.secret)?;
        self.certificate.iter().flatten().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Owner {
    type Err = Errno;

    fn from_str(text: &str) -> FsResult<Owner> {
        let bad = |_| Errno::EINVAL;
        let (secret, certificate) = text.split_at_checked(32).ok_or(Errno::EINVAL)?;
        let secret = u128::from_str_radix(secret, 16).map_err(bad)?;
        let certificate = match certificate.len() {
            0 => None,
            64 if certificate.is_ascii() => {
                let mut bytes = [0; 32];
                for (at, byte) in bytes.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&certificate[2 * at..][..2], 16).map_err(bad)?;
                }
                Some(bytes)
            }
            _ => return Err(Errno::EINVAL),
        };
        Ok(Owner { certificate, secret })
    }
}

/// A session of a client at one server.
#[derive(Debug)]
pub struct Session {
    client: ClientId,
    number: u64,
    /// Nobody can be it in a record of an earlier version.
    owner: Option<Owner>,
    state: AtomicU64,
    /// Callers that wait until nothing is being executed.
    waiting: WaitList,
    /// Requests that wait for locks.
    patient: AtomicUsize,
}

/// A request of a session that may wait for a lock.
#[derive(Debug)]
pub struct Patient<'a>(&'a Session);

/// Something that is being executed in a session, which is not quiet while this is kept.
#[derive(Debug)]
pub struct RequestGuard<'a>(&'a Session);

impl Session {
    /// One that begins.
    pub fn new(client: ClientId, number: u64, owner: Option<Owner>) -> Arc<Session> {
        let (state, waiting, patient) = Default::default();
        Arc::new(Session { client, number, owner, state, waiting, patient })
    }

    /// Client of the session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Number of the session: the same at all servers, and that of no other session.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// To whom it belongs.
    pub fn owner(&self) -> Option<Owner> {
        self.owner
    }

    /// Whether it is this one's, of this client and number.
    pub fn is(&self, client: ClientId, number: u64, owner: &Owner) -> bool {
        self.client == client && self.number == number && self.owner.as_ref() == Some(owner)
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) & OVER != 0
    }

    /// Something of it begins to be executed: ESTALE if it is over.
    pub fn enter(&self) -> FsResult<RequestGuard<'_>> {
        let before = self.state.fetch_add(1, Ordering::AcqRel);
        let running = RequestGuard(self);
        if before & OVER == 0 { Ok(running) } else { Err(Errno::ESTALE) }
    }

    /// A request of it may wait for a lock: ENOLCK if too many do.
    pub fn wait(&self) -> FsResult<Patient<'_>> {
        let before = self.patient.fetch_add(1, Ordering::AcqRel);
        let patient = Patient(self);
        if before < WAITING_PER_SESSION_MAX { Ok(patient) } else { Err(Errno::ENOLCK) }
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
        self.waiting.until(|| self.is_quiet().then_some(())).await;
    }
}

impl Drop for Patient<'_> {
    fn drop(&mut self) {
        self.0.patient.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        let before = self.0.state.fetch_sub(1, Ordering::AcqRel);
        if before == OVER | 1 {
            self.0.waiting.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    #[test]
    fn an_owner_is_the_same_after_it_was_written() {
        for certificate in [None, Some([0xa5; 32])] {
            let owner = Owner { certificate, secret: u128::MAX / 3 };
            assert_eq!(owner.to_string().parse(), Ok(owner));
        }
        let long = "0".repeat(95);
        for bad in ["", "0", "x", &long, &format!("{}\u{e4}", "0".repeat(94))] {
            assert_eq!(bad.parse::<Owner>(), Err(Errno::EINVAL), "{bad:?}");
        }
    }

    #[test]
    fn so_many_wait_and_no_more() {
        let session = Session::new(ClientId(1), 7, None);
        let mut waiting: Vec<_> = std::iter::from_fn(|| session.wait().ok()).collect();
        assert_eq!(waiting.len(), WAITING_PER_SESSION_MAX);
        assert_eq!(session.wait().err(), Some(Errno::ENOLCK));
        waiting.pop();
        assert!(session.wait().is_ok());
    }

    #[test]
    fn what_is_over_and_quiet_stays_so() {
        let session = Session::new(ClientId(1), 7, None);
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
