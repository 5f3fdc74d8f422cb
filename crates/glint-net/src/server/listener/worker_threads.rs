//! The threads of a server that serve connections: one for each core, the spare one, and those that
//! are started while the disk of an OST keeps others.
//!
//! Invariants:
//! - The disk of an OST keeps a worker's clients no longer than until it is seen to stand still.
//!   (What others wait for is not under way there: [`ReliedOn`](glint_wait::ReliedOn).)
//! - There are never more than [`WORKERS_PER_CORE_MAX`] workers for each core.

use crate::server::connection_limits::Place;
use crate::server::spare::Spare;
use crate::transport::stream::{Accepted, Origin};
use glint_wait::WaitList;
use parking_lot::Mutex;
use rustix::net::Shutdown;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest time in which threads end what they are at before the end, and how often that is looked
/// at.
const END_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(2);
/// A thread that has not said for so long that it runs stands still.
const STANDS_STILL: Duration = Duration::from_millis(500);

/// Workers for each core at most: there are more than one while disks keep some.
const WORKERS_PER_CORE_MAX: usize = 3;

/// A connection that has come, where it comes from, and its place.
pub(super) struct Visitor {
    pub(super) connection: Accepted,
    pub(super) origin: Origin,
    pub(super) place: Place,
    /// By which others than the thread that serves it end it.
    pub(super) socket: Option<Arc<OwnedFd>>,
}

/// Work that comes to a thread from outside.
#[derive(Default)]
pub(super) struct Inbox {
    /// Connections that this thread serves, and will.
    pub(super) load: AtomicUsize,
    pub(super) stop: AtomicBool,
    /// Stale connections are to be closed.
    pub(super) close_stale: AtomicBool,
    accepted: Mutex<Vec<Visitor>>,
    /// Sockets of connections that this thread serves, and will.
    sockets: Mutex<Vec<Weak<OwnedFd>>>,
    /// The thread, which waits for any of these.
    pub(super) waiting: WaitList,
    /// When the thread last said that it runs.
    pub(super) ran: Mutex<Option<Instant>>,
    /// The thread is gone, though nobody has told it to end.
    pub(super) has_ended: AtomicBool,
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

    /// Ends all connections that were given to it: clients see that at once, its thread when it
    /// goes on. Returns how many there were.
    pub(super) fn send_away(&self) -> usize {
        let all = std::mem::take(&mut *self.sockets.lock());
        let sockets = all.iter().filter_map(Weak::upgrade);
        // One that has ended needs no end.
        sockets.inspect(|socket| _ = rustix::net::shutdown(socket, Shutdown::Both)).count()
    }

    /// New connections; none when it is time for something else.
    pub(super) async fn next(&self) -> Vec<Visitor> {
        let look = || {
            let accepted = std::mem::take(&mut *self.accepted.lock());
            let other =
                self.stop.load(Ordering::Acquire) || self.close_stale.load(Ordering::Acquire);
            (!accepted.is_empty() || other).then_some(accepted)
        };
        self.waiting.until(look).await
    }
}

/// A thread of a server.
pub(super) struct WorkerThread {
    pub(super) inbox: Arc<Inbox>,
    pub(super) thread: JoinHandle<()>,
}

/// Starts a thread for a core, or the spare one.
pub(super) type StartThread = Box<dyn Fn(usize, Option<Spare>) -> io::Result<WorkerThread> + Send>;

/// The threads of a server that serve connections.
pub(super) struct WorkerThreads {
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
    pub(super) fn start(
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

    pub(super) fn inboxes(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.workers.iter().chain([&self.spare]).map(|worker| &worker.inbox)
    }

    /// Gives a connection to the worker that has the fewest: to one of as many as there are cores,
    /// if they run.
    pub(super) fn give(&self, visitor: Visitor) {
        let inboxes = self.workers.iter().map(|worker| &worker.inbox);
        let running = inboxes.filter(|inbox| !inbox.stands_still()).take(self.cores);
        let fewest = running.min_by_key(|inbox| inbox.load.load(Ordering::Relaxed));
        fewest.unwrap_or(&self.spare.inbox).take(visitor);
    }

    /// Has others serve the clients of workers that the disk of an OST keeps, and starts as many as
    /// are lacking: clients come again, and ask again what was not answered.
    pub(super) fn replace_held(&mut self) {
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
    pub(super) fn stop(self) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::connection_limits::ConnectionLimits;
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};

    /// Threads that serve nothing. They run, as nothing else is said of them.
    fn threads(slow: &Arc<AtomicBool>) -> WorkerThreads {
        let start = |_: usize, _: Option<Spare>| -> io::Result<WorkerThread> {
            let thread = std::thread::spawn(|| ());
            Ok(WorkerThread { inbox: Arc::default(), thread })
        };
        let slow = slow.clone();
        let is_slow = move || slow.load(Ordering::Relaxed);
        WorkerThreads::start(2, Box::new(start), Box::new(is_slow)).unwrap()
    }

    /// What these threads have said last is old, if they are held.
    fn hold<'a>(workers: impl IntoIterator<Item = &'a WorkerThread>, are_held: bool) {
        let ran = Instant::now().checked_sub(2 * STANDS_STILL).filter(|_| are_held);
        workers.into_iter().for_each(|worker| *worker.inbox.ran.lock() = ran);
    }

    fn loads(threads: &WorkerThreads) -> Vec<usize> {
        threads.inboxes().map(|inbox| inbox.load.load(Ordering::Relaxed)).collect()
    }

    /// Whether a client sees the end of its connection.
    fn is_ended(client: &mut TcpStream) -> bool {
        client.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        match client.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => ![ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()),
        }
    }

    #[test]
    fn clients_of_held_workers_come_again_to_others_that_are_started_for_them() {
        let slow = Arc::<AtomicBool>::default();
        let mut threads = threads(&slow);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let limits = ConnectionLimits::new(100);
        let come = |threads: &WorkerThreads| {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let connection = Accepted::Tcp(listener.accept().unwrap().0, None);
            let socket = connection.another_descriptor().map(Arc::new);
            let place = limits.enter(Origin::Here).unwrap();
            threads.give(Visitor { connection, origin: Origin::Here, place, socket });
            client
        };
        let mut clients = [come(&threads), come(&threads)];
        assert_eq!(loads(&threads), [1, 1, 0]);
        hold(&threads.workers[..1], true);
        threads.replace_held();
        assert_eq!(threads.workers.len(), 2, "no disk is to blame");
        assert!(!clients.iter_mut().any(is_ended));
        slow.store(true, Ordering::Relaxed);
        threads.replace_held();
        assert_eq!(clients.each_mut().map(is_ended), [true, false]);
        assert_eq!(threads.workers.len(), 3);
        let _again = come(&threads);
        assert_eq!(loads(&threads), [1, 1, 1, 0]);
        // Those that are held at once are replaced at once, up to a limit.
        hold(&threads.workers, true);
        let mut heard = come(&threads);
        assert_eq!(loads(&threads), [1, 1, 1, 1], "none runs but the spare");
        threads.replace_held();
        assert_eq!(threads.workers.len(), 5);
        assert!(is_ended(&mut heard), "what needs another disk would wait there");
        hold(&threads.workers, true);
        threads.replace_held();
        assert_eq!(threads.workers.len(), threads.most);
        // One that goes on is one of those that are given connections first.
        hold(&threads.workers[..2], false);
        let _last = [come(&threads), come(&threads)];
        assert_eq!(loads(&threads), [2, 2, 1, 0, 0, 0, 1]);
        threads.stop();
    }
}
