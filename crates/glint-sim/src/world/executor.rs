//! Runs tasks in an order that a seed decides, in simulated time.
//!
//! Every task belongs to a machine; a machine that is killed loses all of its tasks between
//! two steps, as a process loses its threads.

use crate::world::chance;
use crate::world::network::Network;
use glint_net::host::{Pipe, Task, World};
use glint_proto::clock;
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// A machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Machine(pub(crate) u32);

/// Work that a thread would do is done before so many microseconds, most of it much earlier.
const UNBLOCKED_US_LOG2_MAX: u64 = 14;

/// The machine of what is no machine: the network, and fate.
pub(crate) const NOWHERE: Machine = Machine(0);

#[derive(Default)]
struct Ready {
    queue: Vec<u64>,
}

struct TaskWaker {
    task: u64,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut ready = self.ready.lock();
        if !ready.queue.contains(&self.task) {
            ready.queue.push(self.task);
        }
    }
}

struct Entry {
    machine: Machine,
    task: Task,
    waker: Waker,
}

/// The executor, and the world that tasks see.
pub(crate) struct Executor {
    base: Instant,
    now: Cell<Duration>,
    tasks: RefCell<BTreeMap<u64, Entry>>,
    next_task: Cell<u64>,
    ready: Arc<Mutex<Ready>>,
    /// Machines that stand still, and their tasks that would run.
    still: RefCell<BTreeMap<Machine, Vec<u64>>>,
    timers: RefCell<BinaryHeap<Reverse<(Duration, u64)>>>,
    sleepers: RefCell<BTreeMap<u64, Waker>>,
    next_timer: Cell<u64>,
    current: Cell<Machine>,
    pub(crate) rng: RefCell<fastrand::Rng>,
    pub(crate) network: Network,
    steps: Cell<u64>,
}

impl Executor {
    pub(crate) fn new(seed: u64) -> Rc<Executor> {
        chance::simulate(Some(seed));
        let executor = Rc::new(Executor {
            base: Instant::now(),
            now: Cell::new(Duration::ZERO),
            tasks: RefCell::default(),
            next_task: Cell::new(0),
            ready: Arc::default(),
            still: RefCell::default(),
            timers: RefCell::default(),
            sleepers: RefCell::default(),
            next_timer: Cell::new(0),
            current: Cell::new(NOWHERE),
            rng: RefCell::new(fastrand::Rng::with_seed(seed)),
            network: Network::default(),
            steps: Cell::new(0),
        });
        clock::simulate(Some(executor.base));
        glint_net::host::simulate(Some(Rc::new(Handle(executor.clone()))));
        executor
    }

    /// Tasks that were run.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    pub(crate) fn now(&self) -> Duration {
        self.now.get()
    }

    /// A number below `limit`.
    pub(crate) fn below(&self, limit: u64) -> u64 {
        self.rng.borrow_mut().u64(0..limit)
    }

    /// One of these, if there are any.
    pub(crate) fn one_of<'a, T>(&self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.below(all.len() as u64) as usize) }
    }

    /// True once in so many times.
    pub(crate) fn one_in(&self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(crate) fn spawn_on(&self, machine: Machine, task: impl Future<Output = ()> + 'static) {
        let id = self.next_task.replace(self.next_task.get() + 1);
        let waker = Waker::from(Arc::new(TaskWaker { task: id, ready: self.ready.clone() }));
        let entry = Entry { machine, task: Box::pin(task), waker: waker.clone() };
        self.tasks.borrow_mut().insert(id, entry);
        waker.wake();
    }

    /// All tasks of a machine are gone.
    pub(crate) fn kill(&self, machine: Machine) {
        let all = std::mem::take(&mut *self.tasks.borrow_mut());
        let (gone, stay): (BTreeMap<u64, Entry>, _) =
            all.into_iter().partition(|(_, entry)| entry.machine == machine);
        self.tasks.borrow_mut().extend(stay);
        drop(gone);
    }

    /// From now on nothing on a machine runs.
    pub(crate) fn halt(&self, machine: Machine) {
        self.still.borrow_mut().entry(machine).or_default();
    }

    /// A machine that stands still goes on.
    pub(crate) fn go_on(&self, machine: Machine) {
        let held = self.still.borrow_mut().remove(&machine);
        let mut ready = self.ready.lock();
        for task in held.into_iter().flatten() {
            if !ready.queue.contains(&task) {
                ready.queue.push(task);
            }
        }
    }

    pub(crate) fn sleep(self: &Rc<Self>, time: Duration) -> Task {
        let executor = self.clone();
        let until = self.now.get() + time;
        let mut timer = None;
        Box::pin(std::future::poll_fn(move |context| {
            if executor.now.get() >= until {
                return Poll::Ready(());
            }
            let id = *timer.get_or_insert_with(|| {
                let id = executor.next_timer.replace(executor.next_timer.get() + 1);
                executor.timers.borrow_mut().push(Reverse((until, id)));
                id
            });
            executor.sleepers.borrow_mut().insert(id, context.waker().clone());
            Poll::Pending
        }))
    }

    /// Runs everything until `main` ends, or says why it cannot.
    pub(crate) fn run<T: 'static>(
        self: &Rc<Self>,
        limit: Duration,
        main: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        self.spawn_on(NOWHERE, async move {
            let value = main.await;
            slot.replace(Some(value));
        });
        loop {
            if let Some(value) = result.take() {
                return Ok(value);
            }
            if self.step() {
                continue;
            }
            let Some(Reverse((until, timer))) = self.timers.borrow_mut().pop() else {
                return Err("everybody waits, and nothing will come".into());
            };
            if until > limit {
                return Err(format!("not done after {} s of simulated time", limit.as_secs()));
            }
            self.now.set(until.max(self.now.get()));
            clock::simulate(Some(self.base + self.now.get()));
            if let Some(waker) = self.sleepers.borrow_mut().remove(&timer) {
                waker.wake();
            }
        }
    }

    /// Runs one task that is ready.
    fn step(self: &Rc<Self>) -> bool {
        let id = {
            let mut ready = self.ready.lock();
            if ready.queue.is_empty() {
                return false;
            }
            let index = self.rng.borrow_mut().usize(0..ready.queue.len());
            ready.queue.swap_remove(index)
        };
        let Some(mut entry) = self.tasks.borrow_mut().remove(&id) else { return true };
        if let Some(held) = self.still.borrow_mut().get_mut(&entry.machine) {
            held.push(id);
            self.tasks.borrow_mut().insert(id, entry);
            return true;
        }
        self.steps.set(self.steps.get() + 1);
        self.current.set(entry.machine);
        let polled = entry.task.as_mut().poll(&mut Context::from_waker(&entry.waker));
        self.current.set(NOWHERE);
        if polled.is_pending() {
            self.tasks.borrow_mut().insert(id, entry);
        }
        true
    }

    /// Ends the simulation: tasks hold on to the world, and the world to them.
    pub(crate) fn end(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
        self.sleepers.borrow_mut().clear();
        self.network.end();
        glint_net::host::simulate(None);
        clock::simulate(None);
        chance::simulate(None);
    }
}

/// The executor as the code under test sees it.
struct Handle(Rc<Executor>);

impl World for Handle {
    fn spawn(&self, task: Task) {
        self.0.spawn_on(self.0.current.get(), task);
    }

    fn sleep(&self, time: Duration) -> Task {
        self.0.sleep(time)
    }

    fn unblock(&self, work: Box<dyn FnOnce()>) {
        let executor = self.0.clone();
        let late =
            Duration::from_micros(executor.below(1 << executor.below(UNBLOCKED_US_LOG2_MAX)));
        self.spawn(Box::pin(async move {
            executor.sleep(late).await;
            work();
        }));
    }

    fn connect(&self, address: &str) -> io::Result<Pipe> {
        Network::connect(&self.0, self.0.current.get(), address)
    }
}
