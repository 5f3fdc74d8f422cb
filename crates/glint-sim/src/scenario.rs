//! A run: some clients work, and everything that can fail does.

use crate::contested::Contested;
use crate::hostile::{self, HOSTILE, Hostile};
use crate::oracle::{Model, Troubles};
use crate::workload::{Fs, Tally, Worker, list, make};
use crate::world::executor::{Executor, Machine, NOWHERE};
use crate::world::server::{self, SERVER, Servers, Storage};
use glint_client::{Caller, Client, Vfs};
use glint_net::{Address, Remote, RemoteOptions, Service};
use glint_ost::disk::memory::DiskOperation;
use glint_proto::message::Hello;
use glint_proto::{ClientId, FileType, Ino, Owner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Calls of each worker.
const CALLS: u64 = 40;
const WORKERS: u32 = 2;
/// Things that go wrong in one run, at most.
const HARMS: u64 = 24;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);
/// How often somebody looks whether the server has to end.
const WATCH: Duration = Duration::from_millis(50);

/// What happened in a run.
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
    /// Seconds of simulated time.
    pub seconds: u64,
    /// What the seed would have decided next: the same if a run was the same.
    pub next: u64,
}

struct Member {
    machine: Machine,
    fs: Fs,
    workers: Vec<Rc<Worker>>,
    /// Workers that have not done all of their calls.
    running: Cell<u32>,
    dead: Cell<bool>,
}

struct Run {
    executor: Rc<Executor>,
    storage: Storage,
    servers: RefCell<Arc<Servers>>,
    /// Clients keep locks, write data behind, and change directories by themselves.
    locks: bool,
    workers: Rc<RefCell<Vec<Rc<Worker>>>>,
    members: RefCell<Vec<Rc<Member>>>,
    tally: Tally,
    contested: RefCell<Option<Rc<Contested>>>,
    outcome: Cell<Outcome>,
    /// Things that may still go wrong.
    harms_left: Cell<u64>,
    failure: RefCell<Option<String>>,
    /// Files of a hostile client: it may leave objects of them when they are removed.
    hostile_files: Rc<RefCell<BTreeSet<Ino>>>,
    /// How many kinds of fate there are: more if disks fail.
    fates: u64,
    troubles: Rc<Troubles>,
}

/// Runs one seed. An error says what was wrong.
pub fn run(seed: u64) -> Result<Outcome, String> {
    // What a thread keeps of its connections goes with it.
    let thread = std::thread::Builder::new().spawn(move || run_here(seed));
    let joined = thread.map_err(|e| e.to_string())?.join();
    joined.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(format!("panicked: {}", text.unwrap_or_default()))
    })
}

fn run_here(seed: u64) -> Result<Outcome, String> {
    let executor = Executor::new(seed);
    let storage = Storage::new(1 + executor.below(3) as u16);
    let locks = executor.one_in(2);
    let disks_fail = executor.one_in(2);
    let servers = RefCell::new(storage.start(&executor, false, locks));
    let run = Rc::new(Run {
        executor: executor.clone(),
        storage,
        servers,
        locks,
        workers: Rc::default(),
        members: RefCell::default(),
        tally: Tally::default(),
        contested: RefCell::default(),
        outcome: Cell::default(),
        harms_left: Cell::new(1 + executor.below(HARMS)),
        failure: RefCell::new(None),
        hostile_files: Rc::default(),
        fates: if disks_fail { 11 } else { 8 },
        troubles: Rc::default(),
    });
    let result = executor.run(LIMIT, run.clone().main());
    let mut outcome = run.outcome.get();
    outcome.steps = executor.steps();
    outcome.seconds = executor.now().as_secs();
    outcome.next = executor.below(u64::MAX);
    let result = result.and_then(|result| result);
    // What a dead client told an OST may be there, and what it told the MDS not.
    let leaves_objects = outcome.dead_clients > 0 && outcome.power_losses > 0;
    let result =
        result.and_then(|()| check(&run.storage, &run.hostile_files.borrow(), leaves_objects));
    // Workers know all workers.
    run.workers.borrow_mut().clear();
    executor.end();
    result.map(|()| outcome)
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A client, on the machine of the calling task.
pub(crate) async fn mount(servers: &Servers, index: u32) -> Result<Fs, String> {
    let options =
        RemoteOptions { address: Address::parse("server"), mount_point: format!("/mnt{index}") };
    let owner = Owner { certificate: None, secret: 0 };
    let client = ClientId(1000 + u64::from(index));
    let hello = Hello {
        host: String::new(),
        mount_point: String::new(),
        known: false,
        boot_verifier: 0,
        session: 0,
        secret: 0,
    };
    let (_, session) = servers.connect(client, &hello, owner).await.map_err(text)?;
    servers.disconnect(&session);
    let welcome = servers.welcome();
    Ok(Client::simulated(Remote::simulated(options, client, 0, welcome), true))
}

/// What is on the disk at the end, but for objects of these files, or of any that is not there.
pub(crate) fn check(storage: &Storage, but: &BTreeSet<Ino>, any: bool) -> Result<(), String> {
    let report = futures_lite::future::block_on(glint_mds::check(&storage.engine, false));
    let report = report.map_err(text)?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("{finding:?}"));
    }
    let strays = storage.files_with_objects().into_iter();
    match strays
        .filter(|ino| !any && !but.contains(ino))
        .find(|ino| !report.files.contains_key(ino))
    {
        Some(ino) => Err(format!("an object belongs to no file: {ino}")),
        None => Ok(()),
    }
}

impl Run {
    async fn main(self: Rc<Self>) -> Result<(), String> {
        // Before anybody is given a part of it.
        if self.fates > 8 && self.executor.one_in(2) {
            self.troubles.full.set(true);
            self.storage.limit(Some((1 << 10) + self.executor.below(16 << 10)));
        }
        self.executor.sleep(Duration::from_millis(1)).await;
        let clients = 1 + self.executor.below(3) as u32;
        let mut shared = None;
        for index in 0..clients {
            // Its connection belongs to its machine.
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
        if self.executor.one_in(3) {
            self.let_in_a_hostile_one(shared).await?;
        }
        self.executor.network.harm.set([0, 1000, 300, 100][self.executor.below(4) as usize]);
        for member in self.members.borrow().iter() {
            for worker in &member.workers {
                let (run, member, worker) = (self.clone(), member.clone(), worker.clone());
                self.executor.spawn_on(member.machine, async move {
                    for _ in 0..CALLS {
                        if let Err(failure) = worker.step().await {
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
                let left = until - self.executor.now();
                self.executor.sleep(left.min(WATCH)).await;
                self.end_what_failed().await;
            }
            self.fate().await;
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.executor.network.harm.set(0);
        self.executor.kill(HOSTILE);
        self.executor.network.cut(Some(HOSTILE));
        self.storage.heal();
        self.executor.go_on(SERVER);
        self.end_what_failed().await;
        if self.executor.one_in(2) {
            self.restart(true).await;
        }
        self.verify(shared).await
    }

    /// A client mounts, and makes its directories.
    async fn join(&self, index: u32, shared: Option<Ino>) -> Result<(Rc<Member>, Ino), String> {
        let machine = Machine(10 + index);
        let servers = self.servers.borrow().clone();
        let fs = mount(&servers, index).await?;
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
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            workers.push(Rc::new(Worker {
                executor: self.executor.clone(),
                fs: fs.clone(),
                own: directory(format!("c{index}w{number}")).await?,
                shared,
                model: Rc::new(RefCell::new(Model::default())),
                dead: Cell::new(false),
                all: self.workers.clone(),
                tally: self.tally.clone(),
                contested: contested.clone(),
                troubles: self.troubles.clone(),
            }));
        }
        self.workers.borrow_mut().extend(workers.iter().cloned());
        fs.sync().await.map_err(text)?;
        Ok((
            Rc::new(Member {
                machine,
                fs,
                workers,
                running: Cell::new(WORKERS),
                dead: Cell::new(false),
            }),
            shared,
        ))
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

    fn count(&self, what: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        what(&mut outcome);
        self.outcome.set(outcome);
    }

    /// Something happens, or nothing.
    async fn fate(&self) {
        if self.harms_left.get() == 0 {
            return;
        }
        self.harms_left.set(self.harms_left.get() - 1);
        // Data that cannot be written again for long is lost: disks work, and have room, until all
        // is there, but for what fails a few times.
        let is_recovering = self.servers.borrow().mds().is_recovering();
        match self.executor.below(if is_recovering { 8 } else { self.fates }) {
            0 => self.restart(false).await,
            1 => self.restart(true).await,
            2 => self.executor.network.cut(None),
            3 if self.executor.one_in(6) => self.kill_a_client(),
            8 => self.stand_still(),
            9 => {
                self.troubles.flush.set(true);
                self.storage.fail_a_flush(&self.executor);
            }
            10 => self.fail_something(),
            _ => {}
        }
    }

    async fn restart(&self, power_loss: bool) {
        self.storage.heal();
        if self.executor.one_in(2) {
            self.servers.borrow().settle_last();
        }
        server::stop(&self.executor);
        if power_loss {
            self.storage.lose_power(&self.executor);
            if self.executor.one_in(3) {
                self.fail_replays();
            }
        }
        self.count(|outcome| {
            let which = if power_loss { &mut outcome.power_losses } else { &mut outcome.kills };
            *which += 1;
        });
        self.executor.sleep(Duration::from_millis(self.executor.below(500))).await;
        self.servers.replace(self.storage.start(&self.executor, power_loss, self.locks));
    }

    /// A server that cannot say any more what is safe ends, and starts again: what was not synced
    /// of its objects counts as lost, and is.
    async fn end_what_failed(&self) {
        let Some(reason) = self.servers.borrow().failure() else { return };
        tracing::debug!(reason, "the server ends");
        server::stop(&self.executor);
        self.storage.heal();
        self.storage.lose_objects(&self.executor);
        self.count(|outcome| outcome.disk_failures += 1);
        self.executor.sleep(Duration::from_millis(self.executor.below(500))).await;
        self.servers.replace(self.storage.start(&self.executor, true, self.locks));
    }

    /// The disk stands still, and so does the server.
    fn stand_still(&self) {
        let (executor, time) = (self.executor.clone(), self.executor.below(15_000));
        executor.halt(SERVER);
        self.executor.spawn_on(NOWHERE, async move {
            executor.sleep(Duration::from_millis(time)).await;
            executor.go_on(SERVER);
        });
    }

    /// What clients write again fails a few times: fewer than anything is given up after.
    fn fail_replays(&self) {
        for worker in &*self.workers.borrow() {
            for (ino, _) in worker.model.borrow().nodes.iter().filter(|(_, node)| !node.is_dir) {
                if self.troubles.broken.borrow_mut().insert(*ino) {
                    let times = 1 + self.executor.below(3) as u32;
                    self.storage.fail_file(*ino, DiskOperation::Write, times);
                }
            }
        }
    }

    /// A file cannot be read or written, for a moment or for ever; or none can be opened.
    fn fail_something(&self) {
        let times = [1, 3, u32::MAX][self.executor.below(3) as usize];
        let workers = self.workers.borrow();
        let worker = &workers[self.executor.below(workers.len() as u64) as usize];
        let model = worker.model.borrow();
        let files: Vec<Ino> =
            model.nodes.iter().filter(|(_, node)| !node.is_dir).map(|(ino, _)| *ino).collect();
        if files.is_empty() || self.executor.one_in(3) {
            self.troubles.descriptors.set(true);
            return self.storage.fail_opens(times.min(3));
        }
        let ino = files[self.executor.below(files.len() as u64) as usize];
        self.troubles.broken.borrow_mut().insert(ino);
        let operation = match self.executor.below(2) {
            0 => DiskOperation::Read,
            _ => {
                self.troubles.unwritable.borrow_mut().insert(ino);
                DiskOperation::Write
            }
        };
        self.storage.fail_file(ino, operation, times);
    }

    /// Not the last one.
    fn kill_a_client(&self) {
        let members = self.members.borrow();
        let alive: Vec<&Rc<Member>> = members.iter().filter(|m| !m.dead.get()).collect();
        if alive.len() < 2 {
            return;
        }
        let member = alive[self.executor.below(alive.len() as u64) as usize];
        member.dead.set(true);
        member.workers.iter().for_each(|worker| worker.dead.set(true));
        self.executor.kill(member.machine);
        self.executor.network.cut(Some(member.machine));
        if let Some(contested) = &*self.contested.borrow() {
            contested.lose_a_client();
        }
        self.count(|outcome| outcome.dead_clients += 1);
    }

    async fn verify(&self, shared: Option<Ino>) -> Result<(), String> {
        let members = self.members.borrow().clone();
        let forgets = self.locks || self.outcome.get().power_losses > 0;
        for member in members.iter().filter(|member| !member.dead.get()) {
            for worker in &member.workers {
                worker.verify_all().await?;
            }
        }
        let Some(witness) = members.iter().find(|member| !member.dead.get()) else {
            return Ok(());
        };
        let contested = self.contested.borrow().clone();
        if let Some(contested) = contested {
            contested.turn(&witness.fs, None, &self.troubles).await?;
        }
        for worker in members.iter().filter(|m| m.dead.get()).flat_map(|m| &m.workers) {
            let found = list(&witness.fs, worker.own).await.map_err(text)?;
            worker.model.borrow().accepts(&found, forgets)?;
        }
        let any_dead = members.iter().any(|member| member.dead.get());
        if let Some(shared) = shared.filter(|_| !any_dead) {
            let found = list(&witness.fs, shared).await.map_err(text)?;
            let tally = self.tally.borrow();
            let must: BTreeSet<String> =
                tally.iter().filter(|(_, n)| **n == 1).map(|(name, _)| name.clone()).collect();
            if found != must || tally.values().any(|n| !(0..=1).contains(n)) {
                return Err(format!("shared names are {found:?}, their tally {tally:?}"));
            }
        }
        // Time for what is deleted to be destroyed, and for the dead to be forgotten.
        self.executor.sleep(3 * server::LEASE).await;
        let sessions = self.servers.borrow().mds().sessions().len();
        let alive = members.iter().filter(|member| !member.dead.get()).count();
        if sessions != alive {
            return Err(format!("{sessions} sessions of {alive} clients"));
        }
        server::stop(&self.executor);
        Ok(())
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
        self.seconds += other.seconds;
        self.next = self.next.wrapping_add(other.next);
    }
}
