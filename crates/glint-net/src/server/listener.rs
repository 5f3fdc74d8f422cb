//! A server: a thread for each core, and one that accepts connections and gives each to the worker
//! that has the fewest. There is one more, see [`crate::server::spare`]. While the disk of an OST
//! keeps workers in a call that was made in place, others are started for their clients, which come
//! again.
//!
//! Invariant: a client that says that it lives is heard, whatever the disk does.

mod worker_threads;

use crate::host::{self, Pipe};
use crate::server::connection_limits::ConnectionLimits;
use crate::server::reply_cache::ReplyCache;
use crate::server::spare::Spare;
use crate::server::worker::Worker;
use crate::transport::stream::ListeningSocket;
use crate::{NetError, Service};
use glint_proto::watch::Beat;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker_threads::{Inbox, Visitor, WorkerThread, WorkerThreads};

/// How often connections are looked after.
const CARE: Duration = Duration::from_secs(1);

/// How often it complains that it cannot accept any.
const COMPLAIN: Duration = Duration::from_secs(10);
/// Most connections, where nothing else is said.
const CONNECTIONS_MAX: usize = 256;
/// How often a thread says that it runs.
const BEAT: Duration = Duration::from_millis(100);

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

/// Serves a [`Service`] at an address.
pub struct Server;

/// A server that runs.
pub struct ServerHandle {
    listener: Arc<ListeningSocket>,
    stop: Arc<AtomicBool>,
    accepting: JoinHandle<WorkerThreads>,
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
        let (watched, reply_cache) = (service.clone(), Arc::<ReplyCache>::default());
        let start = move |core: usize, spare: Option<Spare>| -> io::Result<WorkerThread> {
            let inbox = Arc::<Inbox>::default();
            let (service, reply_cache, its) = (service.clone(), reply_cache.clone(), inbox.clone());
            let pin = (options.pin && spare.is_none()).then_some(core);
            let name = if spare.is_some() { "serve-spare".into() } else { format!("serve-{core}") };
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                if let Err(error) = run(service, reply_cache, &its, pin, spare) {
                    tracing::error!(%error, "service thread ended");
                    its.has_ended.store(true, Ordering::Release);
                    its.send_away();
                }
            })?;
            Ok(WorkerThread { inbox, thread })
        };
        let has_slow_disk = move || watched.has_slow_disk();
        let mut threads = WorkerThreads::start(cores, Box::new(start), Box::new(has_slow_disk))?;
        let socket_file = listener.socket_file();
        let (listener, stop) = (Arc::new(listener), Arc::<AtomicBool>::default());
        let (accepts, stops) = (listener.clone(), stop.clone());
        let limits = ConnectionLimits::new(options.connections.unwrap_or(CONNECTIONS_MAX));
        let accepting = std::thread::Builder::new().name("accept".into()).spawn(move || {
            accept(&accepts, &stops, &mut threads, &limits);
            threads
        })?;
        Ok(ServerHandle { listener, stop, accepting, socket_file })
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
        match self.accepting.join() {
            Ok(threads) => threads.stop(),
            Err(_) => tracing::error!("the thread that accepts connections panicked"),
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
    threads: &mut WorkerThreads,
    limits: &Arc<ConnectionLimits>,
) {
    let mut cared = Instant::now();
    let mut complained: Option<Instant> = None;
    loop {
        let ready = listener.wait(BEAT);
        if stop.load(Ordering::Acquire) {
            return;
        }
        threads.replace_held();
        if cared.elapsed() >= CARE {
            cared = Instant::now();
            for inbox in threads.inboxes().filter(|inbox| inbox.load.load(Ordering::Relaxed) > 0) {
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
                let socket = connection.another_descriptor().map(Arc::new);
                threads.give(Visitor { connection, origin, place, socket });
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
            for Visitor { connection, origin, place, socket } in accepted {
                let (worker, inbox) = (worker.clone(), inbox.clone());
                compio_runtime::spawn(async move {
                    let served = match connection.attach().await {
                        Ok(stream) => worker.serve(stream, Some(place)).await,
                        Err(source) => Err(NetError::Io { what: "accepting".into(), source }),
                    };
                    drop(socket);
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
