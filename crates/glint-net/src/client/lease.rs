//! The lease of a client at a server: a thread says that the client lives, on a connection of its own,
//! and learns what is durable.
//!
//! Invariant: it does nothing that could wait for a disk, neither of the client nor of a server.

use crate::NetError;
use crate::client::outage::backoff;
use crate::client::session::ClientSession;
use crate::transport::framing::{Envelope, reply_of, request_frame};
use crate::transport::stream::{Address, ReadWrite};
use glint_proto::frame::{HEADER_BYTES, Header};
use glint_proto::limits::PING_MS;
use glint_proto::message::{Reply, Request};
use glint_proto::{ClientId, clock};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Longest time for a connection, and an answer where nothing else can be done meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// What of a lease a client waits for the answer to a ping, before it says it again on another
/// connection.
const PONGS_PER_LEASE: u64 = 4;
/// But not less than this.
const PATIENCE_MIN: Duration = Duration::from_millis(500);

/// Pause between pings while the server should hurry.
const HURRY: Duration = Duration::from_millis(20);
/// How long calls may wait for it before that is said.
const LONG: Duration = Duration::from_secs(5);

/// Sends one request and waits for its reply, on the calling thread.
pub(crate) fn ask_on(
    stream: &mut dyn ReadWrite,
    client: ClientId,
    request: &Request<'_>,
) -> Result<Reply, NetError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| NetError::Io { what, source }
    };
    let out = request_frame(Envelope::request(request.op(), client), request)?;
    stream.write_all(&out).map_err(io("sending"))?;
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).map_err(io("waiting for an answer"))?;
    let header = Header::decode(&head)?;
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).map_err(io("receiving"))?;
    header.check(&body, &[])?;
    reply_of(&body)
}

pub(crate) fn connect_blocking(address: &Address) -> Result<Box<dyn ReadWrite>, NetError> {
    let io = |source| NetError::Io { what: "connecting".into(), source };
    address.connect_blocking(CONNECT_TIMEOUT).map_err(io)
}

impl ClientSession {
    /// Says every now and then that this client lives, and learns what is durable.
    pub(crate) fn keep_lease(&self) {
        let mut backoff = backoff();
        while !self.stop.load(Ordering::Acquire) {
            let mut connected = false;
            if let Err(error) = self.ping_until_end(&mut connected) {
                tracing::debug!(%error, "keeping the lease");
            }
            std::thread::park_timeout(backoff.pause(connected));
        }
    }

    /// Says once that calls wait because the server makes nothing durable, and that it is over.
    fn complain(&self, waits: Option<Duration>) {
        let long = waits.is_some_and(|waits| waits > LONG);
        if self.complained.swap(long, Ordering::AcqRel) == long {
            return;
        }
        let server = &self.options.address;
        match waits {
            Some(_) => tracing::error!(
                %server,
                "the server has taken changes and brings none of them to stable storage; calls \
                 that change more there wait"
            ),
            None => tracing::warn!(%server, "the server brings changes to stable storage again"),
        }
    }

    fn ping_until_end(&self, connected: &mut bool) -> Result<(), NetError> {
        let mut stream = connect_blocking(&self.options.address)?;
        // A server whose threads stand still hears those who come anew.
        let patience = Duration::from_millis(self.welcome.lease_ms / PONGS_PER_LEASE);
        let wait = |stream: &mut dyn ReadWrite, limit: Duration| {
            let io = |source| NetError::Io { what: "waiting for an answer".into(), source };
            stream.set_patience(limit).map_err(io)
        };
        wait(&mut *stream, patience.clamp(PATIENCE_MIN, CONNECT_TIMEOUT))?;
        let welcome = ask_on(&mut *stream, self.client, &self.hello())?;
        let run = self.on_welcome(welcome)?.boot_verifier;
        *connected = true;
        while !self.stop.load(Ordering::Acquire) {
            let (hurry, waits) = {
                let log = self.replay_log.lock();
                (log.is_filling(), log.waits())
            };
            let sent = clock::now();
            // It lives, however long a disk of the server takes.
            let ping = Request::Ping { commit: false, hurry };
            let pong = ask_on(&mut *stream, self.client, &ping)?;
            *self.heard_at.lock() = sent;
            if let Reply::Pong(committed) = pong {
                self.on_committed(run, committed, &mut drop);
            }
            self.complain(waits);
            let pause = if hurry { HURRY } else { Duration::from_millis(PING_MS) };
            std::thread::park_timeout(pause);
        }
        wait(&mut *stream, CONNECT_TIMEOUT)?;
        ask_on(&mut *stream, self.client, &Request::Bye).map(drop)
    }
}
