//! A run: some clients work, and everything that can fail does.

mod verdict;

pub(crate) use verdict::check;

use crate::contested::Contested;
use crate::fate::{FATES, FATES_OF_DISKS, WATCH};
use crate::hostile::{self, HOSTILE, Hostile};
use crate::oracle::{Model, Troubles};
use crate::power_losses;
use crate::truncations;
use crate::workload::{Fs, SharedTree, Tally, Worker, make};
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{Hosts, Servers};
use crate::world::kernel::SimulatedKernel;
use crate::world::lapses::{DeafClient, Lapse};
use crate::world::moved::Moves;
use crate::world::peers::connect;
use glint_client::{Caller, Client, Vfs};
use glint_net::{Cluster, Remote};
use glint_proto::limits::STRIPE_BYTES_LOG2_MIN;
use glint_proto::lock::Bits;
use glint_proto::{FileType, Ino, Layout};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Most OSSes, and OSTs of each server.
const OSSES: u64 = 2;
const OSTS: u64 = 3;
/// Calls of each worker.
const CALLS: u64 = 40;
const WORKERS: u32 = 2;
/// Things that go wrong in one run, at most.
const HARMS: u64 = 24;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// Outcome of a run, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outcome {
    /// Tasks that were run.
    pub steps: u64,
    /// Processes of servers that were killed.
    pub kills: u64,
    /// Losses of power.
    pub power_losses: u64,
    /// Disks that could not bring something to stable storage.
    pub disk_failures: u64,
    /// Clients that died.
    pub dead_clients: u64,
    /// Clients that lived and were cut off, until they were evicted.
    pub cut_off_clients: u64,
    /// Heads that died while one member lacked changes that others had.
    pub felled_heads: u64,
    /// OSTs that were given up, and came back.
    pub given_up: u64,
    /// Places in chains that others took meanwhile.
    pub places_taken: u64,
    /// Objects whose files were removed from one member.
    pub removed: u64,
    /// Files that were moved to other objects.
    pub moved: u64,
    /// Times that heal rested while members failed.
    pub heal_rests: u64,
    /// Files that the kernels of clients read from pages that they had.
    pub read_in_kernel: u64,
    /// Files of which they were given pages that they had not asked for.
    pub stored_in_kernel: u64,
    /// Times that a file was cut off or overwritten while rows of chains change, and read again.
    pub rewritten: u64,
    /// Disks that were full for a while.
    pub filled: u64,
    /// Times that rows of chains changed under that.
    pub rows: u64,
    /// First reads of small files that were sent beside the request for their lock, at a server that
    /// loses its power, and used.
    pub read_beside_lock: u64,
    /// Seconds of simulated time.
    pub seconds: u64,
    /// Next decision of the seed: equal if two runs were equal.
    pub next: u64,
}

/// A client.
pub(crate) struct Member {
    pub(crate) machine: Machine,
    pub(crate) fs: Fs,
    pub(crate) workers: Vec<Rc<Worker>>,
    /// Workers that have not done all of their calls.
    running: Cell<u32>,
    /// The client has died, or is being evicted.
    pub(crate) dead: Cell<bool>,
}

/// A run.
pub(crate) struct Run {
    pub(crate) executor: Rc<Executor>,
    pub(crate) hosts: Rc<Hosts>,
    /// Clients keep locks, write data behind, and change directories by themselves.
    pub(crate) locks: bool,
    pub(crate) layout: Layout,
    /// A fault that clients have on purpose.
    lapse: Option<Lapse>,
    pub(crate) workers: Rc<RefCell<Vec<Rc<Worker>>>>,
    pub(crate) members: RefCell<Vec<Rc<Member>>>,
    tally: Tally,
    pub(crate) contested: RefCell<Option<Rc<Contested>>>,
    tree: RefCell<Option<Rc<SharedTree>>>,
    outcome: Cell<Outcome>,
    /// Things that may still go wrong.
    pub(crate) harms_left: Cell<u64>,
    /// When the next server may be out of reach: those who work on wait for each only so long.
    pub(crate) calm_until: Cell<Duration>,
    /// Files that are moved.
    pub(crate) moves: Moves,
    /// Until when heal rests, if it does.
    pub(crate) heal_rests_until: Cell<Option<Duration>>,
    /// A client is being cut off.
    pub(crate) cutting_off: Cell<bool>,
    /// Until when something may come of clients that were cut off.
    pub(crate) watched_until: Cell<Duration>,
    /// A hostile client talks.
    pub(crate) is_hostile: Cell<bool>,
    /// Nothing goes wrong any more.
    pub(crate) is_over: Cell<bool>,
    pub(crate) failure: RefCell<Option<String>>,
    /// Files of a hostile client: it may leave objects of them when they are removed.
    hostile_files: Rc<RefCell<BTreeSet<Ino>>>,
    /// How many kinds of fate there are: more if disks fail.
    pub(crate) fates: u64,
    pub(crate) troubles: Rc<Troubles>,
    /// A client that reads each member.
    pub(crate) probe: RefCell<Option<Rc<Cluster<Remote>>>>,
}

/// Runs one seed; with `copies`, files have copies in each. An error says what was wrong.
pub fn run(seed: u64, copies: bool) -> Result<Outcome, String> {
    alone(move || run_here(seed, copies, None))
}

/// Runs one seed with a fault that is put in, in the world that it is for. An error says how it was
/// found.
pub fn run_with(seed: u64, lapse: Lapse) -> Result<Outcome, String> {
    match lapse {
        Lapse::OldTruncations => alone(move || truncations::run_here(seed, true)),
        Lapse::UnwrittenKept => alone(move || power_losses::run_here(seed, true)),
        Lapse::PagesKept | Lapse::AbsentNamesKept => {
            alone(move || run_here(seed, false, Some(lapse)))
        }
    }
}

/// Runs a seed on a thread of its own, so that its thread-local connections end with it.
pub(crate) fn alone(
    run: impl FnOnce() -> Result<Outcome, String> + Send + 'static,
) -> Result<Outcome, String> {
    let thread = std::thread::Builder::new().spawn(run);
    let joined = thread.map_err(|e| e.to_string())?.join();
    joined.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

fn run_here(seed: u64, copies: bool, lapse: Option<Lapse>) -> Result<Outcome, String> {
    let executor = Executor::new(seed);
    let locks = executor.one_in(2);
    let disks_fail = executor.one_in(2);
    let osses = if executor.one_in(2) { 1 + executor.below(OSSES) } else { 0 };
    let mut osts: Vec<u16> = (0..=osses).map(|_| 1 + executor.below(OSTS) as u16).collect();
    if copies && osses == 0 {
        osts[0] = osts[0].max(2);
    }
    let layout = match executor.one_in(3) {
        true => Layout {
            stripe_bytes_log2: STRIPE_BYTES_LOG2_MIN,
            stripe_count: 0,
            ..Layout::default()
        },
        false => Layout::default(),
    };
    // Each server is a failure domain; alone, each OST.
    let domains = if osses > 0 { osts.len() } else { usize::from(osts[0]) };
    let layout = match executor.one_in(2) {
        true => Layout { replicas: 1 + executor.below(domains.min(3) as u64) as u8, ..layout },
        false => layout,
    };
    // Of three domains two have copies as often as all: then the third one can take places.
    let layout = match copies && layout.replicas < 2 {
        true => Layout { replicas: domains.min(2 + executor.below(2) as usize) as u8, ..layout },
        false => layout,
    };
    let run = Rc::new(Run {
        executor: executor.clone(),
        hosts: Hosts::new(&executor, &osts, locks, layout),
        locks,
        layout,
        lapse,
        workers: Rc::default(),
        members: RefCell::default(),
        tally: Tally::default(),
        contested: RefCell::default(),
        tree: RefCell::default(),
        outcome: Cell::default(),
        harms_left: Cell::new(1 + executor.below(HARMS)),
        calm_until: Cell::default(),
        moves: Moves::new(&executor),
        heal_rests_until: Cell::default(),
        cutting_off: Cell::default(),
        watched_until: Cell::default(),
        is_hostile: Cell::default(),
        is_over: Cell::default(),
        failure: RefCell::new(None),
        hostile_files: Rc::default(),
        fates: if disks_fail { FATES } else { FATES - FATES_OF_DISKS },
        troubles: Rc::default(),
        probe: RefCell::default(),
    });
    let result = executor.run(LIMIT, run.clone().main());
    let mut outcome = run.outcome.get();
    outcome.steps = executor.steps();
    outcome.seconds = executor.now().as_secs();
    outcome.next = executor.below(u64::MAX);
    for worker in run.members.borrow().iter().filter_map(|member| member.workers.first()) {
        let used = worker.kernel.as_ref().map(|kernel| kernel.used()).unwrap_or_default();
        outcome.read_in_kernel += used.reads;
        outcome.stored_in_kernel += used.stores;
    }
    let result = result.and_then(|result| result);
    // Data that a dead client sent to an OST may be there, and its changes at the MDS not.
    let leaves_objects =
        outcome.dead_clients + outcome.cut_off_clients > 0 && outcome.power_losses > 0;
    let result =
        result.and_then(|()| check(&run.hosts, &run.hostile_files.borrow(), leaves_objects));
    // Workers know all workers.
    run.workers.borrow_mut().clear();
    run.probe.replace(None);
    executor.end();
    result.map(|()| outcome)
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A client, on the machine of the calling task.
pub(crate) async fn mount(servers: &Servers, index: u32) -> Result<Fs, String> {
    Ok(begin(connect(servers, index).await?, index))
}

/// A client with this connection.
pub(crate) fn begin(connection: Cluster<Remote>, index: u32) -> Fs {
    let client = Client::simulated(connection, true);
    if index.is_multiple_of(2) {
        client.prefetch_files();
    }
    client
}

impl Run {
    async fn main(self: Rc<Self>) -> Result<(), String> {
        // Before anybody is given a part of it.
        // Space that a client was granted is not kept for it by members that become heads.
        if self.fates == FATES && self.executor.one_in(2) && self.layout.replicas < 2 {
            self.troubles.full.set(true);
            let stripes = 1 << self.layout.stripe_bytes_log2;
            let more = if self.stripe().is_some() { 4 * stripes } else { 0 };
            self.hosts.limit(Some((1 << 10) + self.executor.below((16 << 10) + more)));
        }
        (0..self.hosts.count()).for_each(|host| self.hosts.start(host));
        self.executor.sleep(Duration::from_millis(1)).await;
        // Sometimes the file system grows while it is used.
        let may_grow = self.executor.one_in(4) && self.layout.replicas < 2;
        while !may_grow && !self.hosts.have_joined() {
            self.executor.sleep(Duration::from_millis(1)).await;
        }
        let clients = 1 + self.executor.below(3) as u32;
        let mut shared = None;
        for index in 0..clients {
            // The client's connection belongs to its machine.
            let (run, result) = (self.clone(), Rc::new(RefCell::new(None)));
            let slot = result.clone();
            self.executor.spawn_on(Machine(10 + index), async move {
                let joined = run.join(index, shared).await;
                slot.replace(Some(joined));
            });
            while result.borrow().is_none() {
                self.executor.sleep(Duration::from_millis(1)).await;
            }
            let Some(joined) = result.take() else { continue };
            let (member, directory) = joined?;
            shared = Some(directory);
            self.members.borrow_mut().push(member);
        }
        self.let_in_a_probe().await?;
        if self.executor.one_in(3) {
            self.let_in_a_hostile_one(shared).await?;
        }
        self.executor.network.harm.set([0, 1000, 300, 100][self.executor.below(4) as usize]);
        for member in self.members.borrow().iter() {
            for worker in &member.workers {
                let (run, member, worker) = (self.clone(), member.clone(), worker.clone());
                self.executor.spawn_on(member.machine, async move {
                    for call in 0..=CALLS {
                        let called = match call {
                            CALLS => worker.close_kept().await,
                            _ => worker.step().await,
                        };
                        if worker.dead.get() {
                            return;
                        }
                        if let Err(failure) = called {
                            run.failure.borrow_mut().get_or_insert(failure);
                            break;
                        }
                    }
                    member.running.set(member.running.get() - 1);
                });
            }
        }
        let is_running = |m: &Rc<Member>| !m.dead.get() && m.running.get() > 0;
        while self.members.borrow().iter().any(is_running) && self.failure.borrow().is_none() {
            let pause = Duration::from_micros(
                1_000 + self.executor.below(1 << (10 + self.executor.below(11))),
            );
            let until = self.executor.now() + pause;
            while self.executor.now() < until {
                let left = until.saturating_sub(self.executor.now());
                self.executor.sleep(left.min(WATCH)).await;
                self.end_what_failed().await;
            }
            self.fate().await;
            self.move_something().await;
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.is_over.set(true);
        self.watch_what_is_cut_off().await?;
        self.executor.network.harm.set(0);
        self.executor.kill(HOSTILE);
        self.executor.network.cut(Some(HOSTILE));
        self.executor.network.mend();
        for host in 0..self.hosts.count() {
            self.hosts.heal(host);
            self.executor.go_on(self.hosts.machine(host));
        }
        for member in &*self.members.borrow() {
            self.executor.go_on(member.machine);
        }
        self.end_rest_of_heal(true).await;
        self.lose_power_last().await;
        self.end_moves().await?;
        self.verify(shared).await
    }

    /// Size of a stripe, if files have more than one.
    fn stripe(&self) -> Option<u64> {
        (self.layout.stripe_count != 1).then(|| self.layout.stripe_bytes())
    }

    /// A client mounts, and makes its directories.
    async fn join(&self, index: u32, shared: Option<Ino>) -> Result<(Rc<Member>, Ino), String> {
        let machine = Machine(10 + index);
        let connection = connect(&self.hosts.mds(), index).await?;
        let is_deaf = self.lapse == Some(Lapse::AbsentNamesKept);
        let deaf = is_deaf.then(|| DeafClient::listen(&connection, Bits::NEGATIVE));
        let fs = begin(connection, index);
        if self.executor.one_in(2) {
            // However small its files are.
            fs.copy_ahead_from(1);
        }
        if let Some(deaf) = deaf {
            deaf.begin(&fs, index, &self.executor, &self.hosts);
        }
        // Whether one has a kernel changes which inodes it forgets by itself.
        let has_kernel = self.locks && !self.executor.one_in(4);
        let keeps_pages = self.lapse == Some(Lapse::PagesKept);
        let kernel = has_kernel.then(|| SimulatedKernel::of(&fs, keeps_pages));
        let directory = async |name: String| {
            let made =
                fs.make(&Caller::ROOT, Ino::ROOT, name.as_bytes(), make(FileType::Directory));
            made.await.map(|found| found.attr.ino).map_err(text)
        };
        let shared = match shared {
            Some(shared) => shared,
            None => directory("shared".into()).await?,
        };
        let contested = self.contested.borrow().clone();
        let contested = match contested {
            Some(contested) => contested,
            None => Rc::new(Contested::make(&fs, self.locks).await?),
        };
        self.contested.replace(Some(contested.clone()));
        // It would fill a disk that has no room for it.
        if self.locks && !self.troubles.full.get() && self.tree.borrow().is_none() {
            let tree = SharedTree::make(&fs).await.map_err(text)?;
            self.tree.replace(Some(Rc::new(tree)));
        }
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            workers.push(Rc::new(Worker {
                executor: self.executor.clone(),
                fs: fs.clone(),
                kernel: kernel.clone(),
                own: directory(format!("c{index}w{number}")).await?,
                shared,
                model: Rc::new(RefCell::new(Model::default())),
                dead: Cell::new(false),
                all: self.workers.clone(),
                tally: self.tally.clone(),
                contested: contested.clone(),
                tree: self.tree.borrow().clone(),
                troubles: self.troubles.clone(),
                stripe: self.stripe(),
                kept: Cell::new(None),
                layouts: RefCell::default(),
            }));
        }
        self.workers.borrow_mut().extend(workers.iter().cloned());
        fs.sync().await.map_err(text)?;
        let (running, dead) = (Cell::new(WORKERS), Cell::new(false));
        Ok((Rc::new(Member { machine, fs, workers, running, dead }), shared))
    }

    /// A client whose certificate limits it says what it likes, until the end.
    async fn let_in_a_hostile_one(&self, shared: Option<Ino>) -> Result<(), String> {
        let Some(member) = self.members.borrow().first().cloned() else { return Ok(()) };
        let (done, made) = (Rc::new(RefCell::new(None)), member.fs.clone());
        let slot = done.clone();
        self.executor.spawn_on(member.machine, async move {
            slot.replace(Some(hostile::home(&made).await));
        });
        while done.borrow().is_none() {
            self.executor.sleep(Duration::from_millis(1)).await;
        }
        let Some(home) = done.take() else { return Ok(()) };
        let (home, executor) = (home.map_err(text)?, self.executor.clone());
        let mut others = vec![Ino::ROOT];
        others.extend(shared);
        others.extend(self.workers.borrow().iter().map(|worker| worker.own));
        self.is_hostile.set(true);
        let bound = hostile::limit(&executor.network, HOSTILE, executor.below(4));
        let mut hostile = Hostile::new(executor.clone(), home, bound, others);
        hostile.writable = self.hostile_files.clone();
        executor.clone().spawn_on(HOSTILE, async move {
            loop {
                let count = 1 + executor.below(60);
                hostile.speak(&executor, HOSTILE, count).await;
                executor.sleep(Duration::from_micros(executor.below(100_000))).await;
            }
        });
        Ok(())
    }

    pub(crate) fn count(&self, what: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        what(&mut outcome);
        self.outcome.set(outcome);
    }
}

impl Outcome {
    /// Adds another run.
    pub fn add(&mut self, other: &Outcome) {
        self.steps += other.steps;
        self.kills += other.kills;
        self.power_losses += other.power_losses;
        self.disk_failures += other.disk_failures;
        self.dead_clients += other.dead_clients;
        self.cut_off_clients += other.cut_off_clients;
        self.felled_heads += other.felled_heads;
        self.given_up += other.given_up;
        self.places_taken += other.places_taken;
        self.removed += other.removed;
        self.moved += other.moved;
        self.heal_rests += other.heal_rests;
        self.read_in_kernel += other.read_in_kernel;
        self.stored_in_kernel += other.stored_in_kernel;
        self.rewritten += other.rewritten;
        self.filled += other.filled;
        self.rows += other.rows;
        self.read_beside_lock += other.read_beside_lock;
        self.seconds += other.seconds;
        self.next = self.next.wrapping_add(other.next);
    }
}
