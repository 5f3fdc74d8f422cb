//! A server: a thread for each core, and one that accepts connections and gives each to the
//! worker that has the fewest.
//! There is one more, see [`crate::server::spare`]. While the disk of an OST keeps workers in a call
//! that was made in place, others are started for their clients, which come again.
//!
//! Invariants:
//! - A client that says that it lives is heard, whatever the disk does.
//! - The disk of an OST keeps a worker's clients no longer than until it is seen to stand still. (What
//!   others wait for is not under way there: [`ReliedOn`](glint_wait::ReliedOn).)
//! - There are never more than [`WORKERS_PER_CORE_MAX`] workers for each core.

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
use rustix::net::Shutdown;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
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

/// Workers for each core at most: there are more than one while disks keep some.
const WORKERS_PER_CORE_MAX: usize = 3;

/// A connection that has come, where it comes from, and its place.
struct Visitor {
    connection: Accepted,
    origin: Origin,
    place: Place,
    /// By which others than the thread that serves it end it.
    socket: Option<Arc<OwnedFd>>,
}

/// Work that comes to a thread from outside.
#[derive(Default)]
struct Inbox {
    /// Connections that this thread serves, and will.
    load: AtomicUsize,
    stop: AtomicBool,
    /// Stale connections are to be closed.
    close_stale: AtomicBool,
    accepted: Mutex<Vec<Visitor>>,
    /// Sockets of connections that this thread serves, and will.
    sockets: Mutex<Vec<Weak<OwnedFd>>>,
    /// The thread, which waits for any of these.
    waiting: WaitList,
    /// When the thread last said that it runs.
    ran: Mutex<Option<Instant>>,
    /// The thread is gone, though nobody has told it to end.
    has_ended: AtomicBool,
}

impl Inbox {
    /// Whether its thread waits for something that keeps it from everything else.
    fn stands_still(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
            || self.ran.lock().is_some_and(|ran| ran.elapsed() > STANDS_STILL)
    }

    /// Takes a connection.
    fn take(&self, visitor: Visitor) {
        self.load.fetch_add(1, Ordering::Relaxed);
        if let Some(socket) = &visitor.socket {
            let mut sockets = self.sockets.lock();
            sockets.retain(|socket| socket.strong_count() > 0);
            sockets.push(Arc::downgrade(socket));
        }
        self.accepted.lock().push(visitor);
        self.waiting.wake();
    }

    /// Ends all connections that were given to it: clients see that at once, its thread when it goes
    /// on. Returns how many there were.
    fn send_away(&self) -> usize {
        let all = std::mem::take(&mut *self.sockets.lock());
        let sockets = all.iter().filter_map(Weak::upgrade);
        // One that has ended needs no end.
        sockets.inspect(|socket| _ = rustix::net::shutdown(socket, Shutdown::Both)).count()
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

/// A thread of a server.
struct WorkerThread {
    inbox: Arc<Inbox>,
    thread: JoinHandle<()>,
}

/// Starts a thread for a core, or the spare one.
type StartThread = Box<dyn Fn(usize, Option<Spare>) -> io::Result<WorkerThread> + Send>;

/// The threads of a server that serve connections.
struct WorkerThreads {
    /// One for each core first, and then those that were started while a disk kept others.
    workers: Vec<WorkerThread>,
    spare: WorkerThread,
    cores: usize,
    /// Most workers.
    most: usize,
    start: StartThread,
    /// Whether a disk of an OST has calls that take long.
    has_slow_disk: Box<dyn Fn() -> bool + Send>,
}

impl WorkerThreads {
    /// Starts a worker for each core, and the spare one.
    fn start(
        cores: usize,
        start: StartThread,
        has_slow_disk: Box<dyn Fn() -> bool + Send>,
    ) -> io::Result<WorkerThreads> {
        let workers = (0..cores).map(|core| start(core, None));
        let workers = workers.collect::<io::Result<Vec<WorkerThread>>>()?;
        let others: Vec<Arc<Inbox>> = workers.iter().map(|worker| worker.inbox.clone()).collect();
        let any = move || others.iter().any(|inbox| inbox.stands_still());
        let spare = start(cores, Some(Spare(Box::new(any))))?;
        let most = cores * WORKERS_PER_CORE_MAX;
        Ok(WorkerThreads { workers, spare, cores, most, start, has_slow_disk })
    }

    fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.workers.iter().chain([&self.spare]).map(|worker| &worker.inbox)
    }

    /// Gives a connection to the worker that has the fewest: to one of as many as there are cores, if
    /// they run.
    fn give(&self, visitor: Visitor) {
        let inboxes = self.workers.iter().map(|worker| &worker.inbox);
        let running = inboxes.filter(|inbox| !inbox.stands_still()).take(self.cores);
        let fewest = running.min_by_key(|inbox| inbox.load.load(Ordering::Relaxed));
        fewest.unwrap_or(&self.spare.inbox).take(visitor);
    }

    /// Has others serve the clients of workers that the disk of an OST keeps, and starts as many as are
    /// lacking: clients come again, and ask again what was not answered.
    fn replace_held(&mut self) {
        let is_held = |worker: &&WorkerThread| worker.inbox.stands_still();
        let held = self.workers.iter().filter(is_held).count();
        if held == 0 || !(self.has_slow_disk)() {
            return;
        }
        let mut running = self.workers.len() - held;
        while running < self.cores && self.workers.len() < self.most {
            match (self.start)(self.workers.len() % self.cores, None) {
                Ok(worker) => self.workers.push(worker),
                Err(error) => {
                    tracing::error!(%error, "no thread for clients of one that a disk keeps");
                    self.most = self.workers.len();
                    break;
                }
            }
            running += 1;
        }
        if running == 0 {
            return;
        }
        let its = self.workers.iter().filter(is_held).map(|worker| worker.inbox.send_away());
        // There nothing that may need a disk is executed while others stand still.
        let clients = its.sum::<usize>() + self.spare.inbox.send_away();
        if clients > 0 {
            tracing::warn!(
                threads = held,
                connections = clients,
                "a disk keeps threads; others go on with what was asked of them"
            );
        }
    }

    /// Ends all of them.
    fn stop(self) {
        for inbox in self.inboxes() {
            inbox.stop.store(true, Ordering::Release);
            inbox.waiting.wake();
        }
        let WorkerThreads { mut workers, spare, .. } = self;
        workers.push(spare);
        let begun = Instant::now();
        let has_ended = |worker: &WorkerThread| worker.thread.is_finished();
        while begun.elapsed() < END_MAX && !workers.iter().all(has_ended) {
            std::thread::sleep(LOOK);
        }
        for WorkerThread { thread, .. } in workers {
            if !thread.is_finished() {
                tracing::warn!("a service thread has not ended: it waits for a disk");
            } else if thread.join().is_err() {
                tracing::error!("a service thread panicked");
            }
        }
    }
}

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
