//! A server: a thread for each core, and one that accepts connections and gives each to the
//! worker that has the fewest.
//! There is one more, see [`crate::server::spare`].
//!
//! Invariant: a client that says that it lives is heard, whatever the disk does.

use crate::host::{self, Pipe};
use crate::server::connection_limits::{ConnectionLimits, Place};
use crate::server::reply_cache::ReplyCache;
use crate::server::spare::Spare;
use crate::server::worker::Worker;
use crate::transport::stream::{Accepted, ListeningSocket, Origin};
use crate::{NetError, Service};
use glint_proto::watch::Beat;
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often connections are looked after.
const CARE: Duration = Duration::from_secs(1);

/// How often it complains that it cannot accept any.
const COMPLAIN: Duration = Duration::from_secs(10);
/// Longest time in which threads end what they are at before the end, and how often that is looked at.
const END_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
/// Most connections, where nothing else is said.
const CONNECTIONS_MAX: usize = 256;
/// How often a thread says that it runs.
const BEAT: Duration = Duration::from_millis(100);
/// One that did not say so for this time stands still.
const STANDS_STILL: Duration = Duration::from_millis(500);

/// How threads are set up.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServerOptions {
    /// Bind each thread to its core.
    pub pin: bool,
    /// Number of threads, if not one for each core.
    pub workers: Option<usize>,
    /// Most connections.
    pub connections: Option<usize>,
}

/// A connection that has come, where it comes from, and its place.
type Visitor = (Accepted, Origin, Place);

/// Work that comes to a thread from outside.
#[derive(Default)]
struct Inbox {
    /// Connections that this thread serves, and will.
    load: AtomicUsize,
    stop: AtomicBool,
    /// Stale connections are to be closed.
    close_stale: AtomicBool,
    accepted: Mutex<Vec<Visitor>>,
    /// The thread, which waits for any of these.
    waiting: WaitList,
    /// When the thread last said that it runs.
    ran: Mutex<Option<Instant>>,
}

impl Inbox {
    /// Whether its thread waits for something that keeps it from everything else.
    fn stands_still(&self) -> bool {
        self.ran.lock().is_some_and(|ran| ran.elapsed() > STANDS_STILL)
    }

    /// New connections; none when it is time for something else.
    async fn next(&self) -> Vec<Visitor> {
        let look = || {
            let accepted = std::mem::take(&mut *self.accepted.lock());
            let other =
                self.stop.load(Ordering::Acquire) || self.close_stale.load(Ordering::Acquire);
            (!accepted.is_empty() || other).then_some(accepted)
        };
        self.waiting.until(look).await
    }
}

/// Serves a [`Service`] at an address.
pub struct Server;

/// A server that runs.
pub struct ServerHandle {
    listener: Arc<ListeningSocket>,
    stop: Arc<AtomicBool>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
    socket_file: Option<PathBuf>,
}

impl Server {
    /// Serves on `listener`, with a thread for each core.
    pub fn start<S: Service>(
        listener: ListeningSocket,
        service: Arc<S>,
        options: ServerOptions,
    ) -> io::Result<ServerHandle> {
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = options.workers.unwrap_or(available).max(1);
        let mut handle = ServerHandle {
            socket_file: listener.socket_file(),
            listener: Arc::new(listener),
            stop: Arc::default(),
            // One for each core, and one for the spare.
            inboxes: (0..=cores).map(|_| Arc::default()).collect(),
            threads: Vec::new(),
        };
        let reply_cache = Arc::<ReplyCache>::default();
        for (core, inbox) in handle.inboxes.iter().enumerate() {
            let (service, reply_cache, inbox) =
                (service.clone(), reply_cache.clone(), inbox.clone());
            let others = handle.inboxes[..cores].to_vec();
            let any = move || others.iter().any(|inbox| inbox.stands_still());
            let spare = (core == cores).then(|| Spare(Box::new(any)));
            let name = if core == cores { "serve-spare".into() } else { format!("serve-{core}") };
            let thread = std::thread::Builder::new().name(name);
            handle.threads.push(thread.spawn(move || {
                let pin = (options.pin && core < cores).then_some(core);
                if let Err(error) = run(service, reply_cache, &inbox, pin, spare) {
                    tracing::error!(%error, "service thread ended");
                }
            })?);
        }
        let (listener, stop) = (handle.listener.clone(), handle.stop.clone());
        let inboxes = handle.inboxes.clone();
        let limits = ConnectionLimits::new(options.connections.unwrap_or(CONNECTIONS_MAX));
        let thread = std::thread::Builder::new().name("accept".into());
        handle.threads.push(thread.spawn(move || accept(&listener, &stop, &inboxes, &limits))?);
        Ok(handle)
    }
}

/// A worker of a server in a simulated world.
pub struct SimulatedServer<S: Service>(Rc<Worker<S>>);

impl<S: Service> SimulatedServer<S> {
    /// Starts it, as the machine of the calling task.
    pub fn start(service: Arc<S>) -> SimulatedServer<S> {
        SimulatedServer(Worker::start(service, Arc::default(), None))
    }

    /// Serves a connection until its end.
    pub async fn serve(&self, pipe: Pipe) -> Result<(), NetError> {
        self.0.clone().serve(pipe.into(), None).await
    }

    /// Closes stale connections; to be called every now and then.
    pub async fn close_stale(&self) {
        self.0.note_looked();
        self.0.close_stale().await;
    }
}

impl ServerHandle {
    /// Closes all connections and ends the threads.
    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.listener.close();
        for inbox in &self.inboxes {
            inbox.stop.store(true, Ordering::Release);
            inbox.waiting.wake();
        }
        let begun = Instant::now();
        while begun.elapsed() < END_MAX && !self.threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(LOOK);
        }
        for thread in self.threads {
            if !thread.is_finished() {
                tracing::warn!("a service thread has not ended: it waits for a disk");
            } else if thread.join().is_err() {
                tracing::error!("a service thread panicked");
            }
        }
        if let Some(path) = self.socket_file {
            // One that is left over is taken over by the next server.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn accept(
    listener: &ListeningSocket,
    stop: &AtomicBool,
    inboxes: &[Arc<Inbox>],
    limits: &Arc<ConnectionLimits>,
) {
    let mut cared = Instant::now();
    let mut complained: Option<Instant> = None;
    loop {
        let ready = listener.wait(CARE);
        if stop.load(Ordering::Acquire) {
            return;
        }
        if cared.elapsed() >= CARE {
            cared = Instant::now();
            for inbox in inboxes.iter().filter(|inbox| inbox.load.load(Ordering::Relaxed) > 0) {
                inbox.close_stale.store(true, Ordering::Release);
                inbox.waiting.wake();
            }
        }
        if !ready {
            continue;
        }
        match listener.accept() {
            Ok((connection, origin)) => {
                let Some(place) = limits.enter(origin) else { continue };
                let load = |inbox: &&Arc<Inbox>| inbox.load.load(Ordering::Relaxed);
                let Some((spare, cores)) = inboxes.split_last() else { return };
                let running = cores.iter().filter(|inbox| !inbox.stands_still());
                let inbox = running.min_by_key(load).unwrap_or(spare);
                inbox.load.fetch_add(1, Ordering::Relaxed);
                inbox.accepted.lock().push((connection, origin, place));
                inbox.waiting.wake();
            }
            Err(error) => {
                // Out of descriptors, most likely: others may end meanwhile.
                if complained.is_none_or(|then| then.elapsed() > COMPLAIN) {
                    complained = Some(Instant::now());
                    tracing::error!(%error, "could not accept a connection; it is tried again");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn run<S: Service>(
    service: Arc<S>,
    reply_cache: Arc<ReplyCache>,
    inbox: &Arc<Inbox>,
    pin: Option<usize>,
    spare: Option<Spare>,
) -> io::Result<()> {
    crate::runtime(pin)?.block_on(async {
        if let Some(beat) = service.beat() {
            compio_runtime::spawn(async move {
                loop {
                    beat.runs();
                    host::sleep(Beat::EVERY).await;
                }
            })
            .detach();
        }
        let worker = Worker::start(service, reply_cache, spare);
        let (inbox_of, reader) = (inbox.clone(), worker.clone());
        compio_runtime::spawn(async move {
            loop {
                inbox_of.ran.lock().replace(Instant::now());
                // The ring that says that the time is over has said what has come in.
                host::sleep(BEAT).await;
                reader.note_looked();
            }
        })
        .detach();
        loop {
            let accepted = inbox.next().await;
            if inbox.stop.load(Ordering::Acquire) {
                return Ok(());
            }
            if inbox.close_stale.swap(false, Ordering::AcqRel) {
                worker.close_stale().await;
            }
            for (stream, origin, place) in accepted {
                let (worker, inbox) = (worker.clone(), inbox.clone());
                compio_runtime::spawn(async move {
                    let served = match stream.attach().await {
                        Ok(stream) => worker.serve(stream, Some(place)).await,
                        Err(source) => Err(NetError::Io { what: "accepting".into(), source }),
                    };
                    inbox.load.fetch_sub(1, Ordering::Relaxed);
                    if let Err(error) = served {
                        tracing::warn!(peer = %origin, "connection closed: {error}");
                    }
                })
                .detach();
            }
        }
    })
}
