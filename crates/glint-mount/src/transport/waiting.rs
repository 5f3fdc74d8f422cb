//! Requests that wait, of the threads that serve a kernel.
//!
//! Invariants:
//! - There is always somebody to take the next request: when the last one who could begins to
//!   wait, more are found ([`Takers`]).
//! - A signal ends a wait for a lock of a program, and any wait while a server is away; one that
//!   kills ends every wait. The caller goes on at once. Its request does not end: it is executed
//!   once, as if nobody had interrupted it, and what it got is given back
//!   ([`Adapter::abandon`]).
//! - When the file system is unmounted, what was begun is finished, but for waits for locks, and
//!   for servers that are away.

use crate::abi::reply::Outcome;
use crate::abi::{InHeader, Opcode};
use crate::adapter::dispatch::{self, Adapter};
use glint_client::Vfs;
use glint_net::host;
use glint_proto::Ino;
use glint_proto::limits::{AWAY_MS, FUSE_WAITING_MAX};
use glint_wait::{Monitor, Signal};
use parking_lot::Mutex;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How often requests that wait are looked at.
const TICK: Duration = Duration::from_millis(20);
/// After so many ticks it is looked whether a caller was killed and nobody said so.
const LONG: u32 = 50;
/// Inodes that a new taker hears of.
const NODES: usize = 16;
/// Interrupts that are kept because their request may be on its way from the kernel.
const EARLY_MAX: usize = 64;

/// Interrupts that other threads pass on to a thread.
type Interrupts = Monitor<Vec<u64>>;

/// All threads that serve a kernel.
#[derive(Default)]
pub(crate) struct Threads {
    interrupts: Mutex<Vec<Arc<Interrupts>>>,
    unmounted: AtomicBool,
    /// Requests that wait, or more exactly those who were found to take others.
    takers: AtomicUsize,
}

impl Threads {
    /// A signal has come for the caller of a request.
    pub(crate) fn interrupt(&self, unique: u64) {
        for interrupts in &*self.interrupts.lock() {
            interrupts.change(|interrupts| interrupts.push(unique));
        }
    }

    /// Nobody waits for anything any more.
    pub(crate) fn unmounted(&self) {
        self.unmounted.store(true, Ordering::Release);
        self.interrupts.lock().iter().for_each(|interrupts| interrupts.wake());
    }

    /// Permission for one more taker of requests.
    fn one_more(&self) -> bool {
        let more = |count| (count < FUSE_WAITING_MAX).then_some(count + 1);
        self.takers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }
}

/// How a transport finds somebody to take requests.
pub(crate) trait Takers {
    /// One more of them. `nodes` are inodes of requests that wait, as the kernel calls them.
    fn add(&self, nodes: Vec<u64>);
}

struct WaitingRequest {
    unique: u64,
    node: u64,
    pid: u32,
    /// Inode on which the request waits for a lock of a program.
    lock: Option<Ino>,
    /// The request belongs to a close, perhaps of a process that is ending and hears of no signal.
    closes: bool,
    since: u32,
    interrupted: bool,
    /// The caller has gone on.
    ended: bool,
    waker: Waker,
}

/// Requests of one thread that wait.
pub(crate) struct Waiting<F> {
    adapter: Arc<Adapter<F>>,
    interrupts: Arc<Interrupts>,
    requests: RefCell<Slab<WaitingRequest>>,
    early: RefCell<VecDeque<u64>>,
    ticks: Cell<u32>,
    is_ticking: Cell<bool>,
    /// Tasks that are ready to take a request, and tasks that take requests at all.
    ready: Cell<usize>,
    takers: Cell<usize>,
    /// Since when nobody was ready, in ticks.
    busy_ticks: Cell<u32>,
    ends: Signal,
    /// After the end: for so many ticks servers have been away; what waits for them is given up.
    away_ticks: Cell<u32>,
    is_given_up: Cell<bool>,
}

/// Somebody is ready to take a request.
pub(crate) struct Ready<F: Vfs>(Rc<Waiting<F>>);

impl<F: Vfs> Drop for Ready<F> {
    fn drop(&mut self) {
        self.0.ready.set(self.0.ready.get() - 1);
    }
}

/// Somebody takes requests.
pub(crate) struct Taker<F: Vfs>(Rc<Waiting<F>>);

impl<F: Vfs> Drop for Taker<F> {
    fn drop(&mut self) {
        self.0.takers.set(self.0.takers.get() - 1);
        self.0.ends.wake();
    }
}

/// A request that waits.
struct Place<'a, F: Vfs> {
    waiting: &'a Waiting<F>,
    key: usize,
}

impl<F: Vfs> Drop for Place<'_, F> {
    fn drop(&mut self) {
        self.waiting.requests.borrow_mut().remove(self.key);
        self.waiting.busy_ticks.set(0);
        self.waiting.ends.wake();
    }
}

/// Whether a process or thread was killed and has not ended yet. One of another PID namespace
/// cannot be asked, and is taken to be.
fn is_killed(pid: u32) -> bool {
    if pid == 0 {
        return true;
    }
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|set| set & (1 << (libc::SIGKILL - 1)) != 0)
}

impl<F: Vfs> Waiting<F> {
    /// For this thread.
    pub(crate) fn new(adapter: &Arc<Adapter<F>>) -> Rc<Waiting<F>> {
        let interrupts: Arc<Interrupts> = Arc::default();
        adapter.threads.interrupts.lock().push(interrupts.clone());
        Rc::new(Waiting {
            adapter: adapter.clone(),
            interrupts,
            requests: RefCell::default(),
            early: RefCell::default(),
            ticks: Cell::new(0),
            is_ticking: Cell::new(false),
            ready: Cell::new(0),
            takers: Cell::new(0),
            busy_ticks: Cell::new(0),
            ends: Signal::default(),
            away_ticks: Cell::new(0),
            is_given_up: Cell::new(false),
        })
    }

    /// One more takes requests.
    pub(crate) fn taker(self: &Rc<Self>) -> Taker<F> {
        self.takers.set(self.takers.get() + 1);
        Taker(self.clone())
    }

    /// The kernel may give it one now.
    pub(crate) fn ready(self: &Rc<Self>) -> Ready<F> {
        self.ready.set(self.ready.get() + 1);
        Ready(self.clone())
    }

    /// The kernel has no requests any more.
    pub(crate) fn unmounted(&self) {
        self.adapter.threads.unmounted();
    }

    /// How many are ready.
    pub(crate) fn ready_count(&self) -> usize {
        self.ready.get()
    }

    /// Executes a request.
    pub(crate) async fn dispatch(&self, request: dispatch::Request<'_>) -> Outcome {
        self.adapter.dispatch(request).await
    }

    /// Gives back what a request got that nobody waits for.
    pub(crate) async fn abandon(
        &self,
        header: &InHeader,
        fixed: &[u8],
        buffer: &[u8],
        outcome: Outcome,
    ) {
        let len = match outcome {
            Outcome::Done(len) => len,
            Outcome::Unlinked(ino) => {
                self.adapter.forget_links(ino);
                0
            }
            Outcome::Failed(_) | Outcome::NoReply => return,
        };
        self.adapter.abandon(header, fixed, buffer, len).await;
    }

    /// The result of a request, or `None` once its caller need not wait for it any more.
    pub(crate) async fn outcome(
        &self,
        header: &InHeader,
        mut answer: Pin<&mut impl Future<Output = Outcome>>,
        takers: &impl Takers,
    ) -> Option<Outcome> {
        let mut place: Option<Place<'_, F>> = None;
        poll_fn(|context| {
            if let Poll::Ready(outcome) = answer.as_mut().poll(context) {
                return Poll::Ready(Some(outcome));
            }
            let at = place.get_or_insert_with(|| self.begin(header, context.waker(), takers));
            let mut requests = self.requests.borrow_mut();
            let request = &mut requests[at.key];
            if request.ended {
                return Poll::Ready(None);
            }
            if !request.waker.will_wake(context.waker()) {
                request.waker.clone_from(context.waker());
            }
            Poll::Pending
        })
        .await
    }

    /// A request that its caller does not wait for goes on.
    pub(crate) async fn finish(
        &self,
        header: &InHeader,
        answer: Pin<&mut impl Future<Output = Outcome>>,
    ) -> Outcome {
        let _place = self.enter(header, Waker::noop(), true);
        answer.await
    }

    fn enter(&self, header: &InHeader, waker: &Waker, ended: bool) -> Place<'_, F> {
        let waits = Opcode::from_u32(header.opcode) == Some(Opcode::Setlkw);
        let request = WaitingRequest {
            unique: header.unique,
            node: header.nodeid,
            pid: header.pid,
            lock: waits.then(|| self.adapter.ino(header.nodeid)),
            closes: header.opcode == Opcode::Flush as u32,
            since: self.ticks.get(),
            interrupted: false,
            ended,
            waker: waker.clone(),
        };
        Place { waiting: self, key: self.requests.borrow_mut().insert(request) }
    }

    fn begin(&self, header: &InHeader, waker: &Waker, takers: &impl Takers) -> Place<'_, F> {
        let place = self.enter(header, waker, false);
        let early = self.early.borrow().contains(&header.unique);
        if early || self.adapter.threads.unmounted.load(Ordering::Acquire) {
            self.interrupt(header.unique);
        }
        // Nothing but another request may end it.
        let for_long = self.requests.borrow()[place.key].lock.is_some();
        if for_long && self.ready.get() < 2 {
            self.find_taker(takers);
        }
        if !self.is_ticking.replace(true) {
            self.interrupts.wake();
        }
        place
    }

    fn find_taker(&self, takers: &impl Takers) {
        if self.adapter.threads.one_more() {
            let requests = self.requests.borrow();
            takers.add(requests.iter().map(|(_, request)| request.node).take(NODES).collect());
        }
    }

    /// A signal has come for a caller, or the file system was unmounted.
    fn interrupt(&self, unique: u64) -> bool {
        let mut requests = self.requests.borrow_mut();
        let found = requests.iter_mut().find(|(_, request)| request.unique == unique);
        let Some((_, request)) = found else { return false };
        if request.ended || request.interrupted {
            return true;
        }
        request.interrupted = true;
        if let Some(ino) = request.lock {
            // The request ends with the answer that it gets, which may be that it has the lock.
            let adapter = self.adapter.clone();
            host::spawn(async move { adapter.cancel_posix_lock(ino, unique).await });
        }
        drop(requests);
        self.end_interrupted();
        true
    }

    /// Lets callers go on that were interrupted, where they may.
    fn end_interrupted(&self) {
        let unmounted = self.adapter.threads.unmounted.load(Ordering::Acquire);
        let away = self.adapter.is_away();
        let may = |request: &WaitingRequest| {
            unmounted || away || (request.lock.is_none() && is_killed(request.pid))
        };
        for (_, request) in self.requests.borrow_mut().iter_mut() {
            let asked = unmounted || request.interrupted || (away && request.closes);
            if !request.ended && asked && may(request) {
                request.ended = true;
                request.waker.wake_by_ref();
            }
        }
    }

    /// A caller that was killed before its request had come from the kernel: nobody says so.
    fn find_killed(&self) {
        let now = self.ticks.get();
        for (_, request) in self.requests.borrow_mut().iter_mut() {
            let age = now.wrapping_sub(request.since);
            if !request.interrupted && age > 0 && age.is_multiple_of(LONG) && is_killed(request.pid)
            {
                request.interrupted = true;
                if let Some(ino) = request.lock {
                    let (adapter, unique) = (self.adapter.clone(), request.unique);
                    host::spawn(async move { adapter.cancel_posix_lock(ino, unique).await });
                }
            }
        }
    }

    /// Looks after requests that wait, for as long as the thread serves.
    pub(crate) async fn watch(self: Rc<Self>, takers: impl Takers) {
        loop {
            if self.is_ticking.get() {
                host::sleep(TICK).await;
            }
            let interrupts = self.next_interrupts().await;
            for unique in interrupts {
                if !self.interrupt(unique) {
                    let mut early = self.early.borrow_mut();
                    early.push_back(unique);
                    if early.len() > EARLY_MAX {
                        early.pop_front();
                    }
                }
            }
            self.ticks.set(self.ticks.get().wrapping_add(1));
            if self.adapter.threads.unmounted.load(Ordering::Acquire) {
                self.end();
            } else if self.requests.borrow().is_empty() {
                self.is_ticking.set(false);
                continue;
            }
            self.find_killed();
            self.end_interrupted();
            if self.ready.get() > 0 {
                self.busy_ticks.set(0);
            } else {
                self.busy_ticks.set(self.busy_ticks.get() + 1);
                if self.busy_ticks.get() > 1 {
                    self.find_taker(&takers);
                }
            }
        }
    }

    /// The file system was unmounted some time ago.
    fn end(&self) {
        self.is_ticking.set(true);
        let ticks = if self.adapter.is_away() { self.away_ticks.get() + 1 } else { 0 };
        self.away_ticks.set(ticks);
        if TICK * ticks > Duration::from_millis(AWAY_MS) {
            self.is_given_up.set(true);
        }
        self.ends.wake();
    }

    /// Interrupts; none when it is time to look again.
    async fn next_interrupts(&self) -> Vec<u64> {
        let look = |interrupts: &mut Vec<u64>| {
            let unmounted = self.adapter.threads.unmounted.load(Ordering::Acquire);
            let looks = !interrupts.is_empty() || self.is_ticking.get() || unmounted;
            looks.then(|| std::mem::take(interrupts))
        };
        self.interrupts.until(look).await
    }

    /// Until nobody takes requests any more, and what was begun is finished.
    pub(crate) async fn served(&self) {
        let waits = |(_, request): (usize, &WaitingRequest)| request.lock.is_none();
        let finished = || self.takers.get() == 0 && !self.requests.borrow().iter().any(waits);
        self.ends.until(|| (finished() || self.is_given_up.get()).then_some(())).await;
    }
}
