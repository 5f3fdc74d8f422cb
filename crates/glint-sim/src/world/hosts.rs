//! The machines of the servers: the one with the MDS, on an engine that can lose what was not
//! synced, and those of OSSes. Each has OSTs on disks in memory, and fails as fate says.
//!
//! Simplified: the engine of the MDS has a disk of its own, which does not fail.

use crate::world::executor::{Executor, Machine};
use crate::world::records::MemoryRecords;
use futures_lite::future::block_on;
use glint_kv::Kv;
use glint_kv::memory::{FlushTurn, MemoryKv, ReadTurn};
use glint_net::host::Pipe;
use glint_net::{Address, Service, SimulatedServer, host};
use glint_ost::disk::memory::{DiskOperation, Fault, MemoryDisk};
use glint_ost::{ObjectStore, OstSet, SEAL_IDLE, SpaceGrants};
use glint_proto::{Errno, Ino, Layout, ObjectId};
use glint_server::{Drawn, MdsServer, Oss, Records as _, Round, Settings, start_osts};
use parking_lot::Mutex;
use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Number of the machine with the MDS among those of servers.
pub(crate) const MDS: usize = 0;
/// In simulated time.
pub(crate) const LEASE: Duration = Duration::from_secs(12);
pub(super) const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request waits for a disk that makes it wait.
const SLOW_US_MAX: u64 = 3_000;
/// Flushes of the engine take less.
const FLUSH_US_MAX: u64 = 5_000;
/// Of so many reads of the engine one waits for its disk, for less than this.
const READS_TO_ONE_THAT_WAITS: u64 = 8;
const READ_US_MAX: u64 = 5_000;
/// How long a process that ends waits for the MDS to hear of it.
const LEAVES_MS_MAX: u64 = 50;
/// Objects that a store keeps open: few, so that it closes some.
const OPEN_FILES: usize = 4;
/// UUID of the file system.
const UUID: u128 = 1;

/// The server with the MDS.
pub(crate) type Servers = MdsServer<Arc<MemoryKv>, MemoryDisk>;

/// Server process that runs on a machine.
#[derive(Clone)]
pub(super) enum Process {
    Mds(Arc<Servers>),
    Oss(Arc<Oss<MemoryDisk>>),
}

/// A machine of a server, and what outlives its processes.
pub(super) struct Host {
    machine: Machine,
    pub(super) disks: Vec<MemoryDisk>,
    records: Arc<MemoryRecords>,
    pub(super) process: RefCell<Option<Process>>,
    /// A process runs.
    pub(super) is_up: Cell<bool>,
    /// When it last lost what was not synced.
    lost: Cell<Option<Duration>>,
    /// Until when its disks stand still.
    stands_still: Arc<Mutex<Duration>>,
}

/// The machines of the servers.
pub(crate) struct Hosts {
    pub(super) executor: Rc<Executor>,
    pub(crate) engine: Arc<MemoryKv>,
    pub(super) hosts: Vec<Host>,
    /// Clients keep locks.
    locks: bool,
    pub(super) layout: Layout,
    /// How many processes of servers the MDS was to let in as clients.
    pub(super) let_in: Cell<u64>,
}

/// Address of a server.
pub(crate) fn address(host: usize) -> String {
    format!("server{host}")
}

impl Hosts {
    /// The machine with the MDS and those of OSSes, of so many OSTs each, all of them empty.
    pub(crate) fn new(
        executor: &Rc<Executor>,
        osts: &[u16],
        locks: bool,
        layout: Layout,
    ) -> Rc<Hosts> {
        let host = |(number, osts): (usize, &u16)| {
            let stands_still = Arc::<Mutex<Duration>>::default();
            let disk = |_| disk(executor, &stands_still);
            Host {
                machine: Machine(1 + number as u32),
                disks: (0..*osts).map(disk).collect(),
                records: Arc::new(MemoryRecords::new(UUID + number as u128, *osts)),
                process: RefCell::default(),
                is_up: Cell::default(),
                lost: Cell::new(None),
                stands_still,
            }
        };
        let hosts = osts.iter().enumerate().map(host).collect();
        let (executor, engine) = (executor.clone(), Arc::default());
        Rc::new(Hosts { executor, engine, hosts, locks, layout, let_in: Cell::default() })
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.hosts.len()
    }

    /// How many OSTs they have in all.
    pub(crate) fn osts(&self) -> u16 {
        self.hosts.iter().map(|host| host.disks.len() as u16).sum()
    }

    pub(crate) fn machine(&self, host: usize) -> Machine {
        self.hosts[host].machine
    }

    /// Loses power: all metadata that was not synced is gone, and of objects any part of it.
    pub(crate) fn lose_power(&self, host: usize) {
        if host == MDS {
            self.engine.lose_power();
        }
        self.lose_objects(host);
    }

    /// Loses any part of the objects that was not synced, and the records that were not.
    pub(crate) fn lose_objects(&self, host: usize) {
        let host = &self.hosts[host];
        // The kernel writes back what it likes first: the logs, or what they are about.
        host.records.lose(|unsynced| self.executor.below(unsynced + 1));
        host.lost.set(Some(self.executor.now()));
        for disk in &host.disks {
            disk.lose_power(&mut |limit| self.executor.below(limit));
        }
    }

    /// Whether a machine has lost nothing for so long.
    pub(crate) fn has_lost_nothing(&self, host: usize, time: Duration) -> bool {
        self.hosts[host].lost.get().is_none_or(|then| self.executor.now() > then + time)
    }

    /// A disk fails to bring something to stable storage, once.
    pub(crate) fn fail_a_flush(&self, host: usize) {
        let disks = &self.hosts[host].disks;
        let Some(disk) = self.executor.one_of(disks) else { return };
        disk.fail(Fault::new(DiskOperation::Sync, "", Errno::EIO.0, 1));
    }

    /// Reading or writing objects of a file fails some times, or for ever.
    pub(crate) fn fail_file(&self, host: usize, ino: Ino, operation: DiskOperation, times: u32) {
        for disk in &self.hosts[host].disks {
            let stripe = if self.layout.replicas > 1 { ObjectId::OF_CHAINS } else { 0 };
            let path = ObjectId { ino, stripe }.to_string();
            disk.fail(Fault::new(operation, &path, Errno::EIO.0, times));
        }
    }

    /// For a moment there are no descriptors.
    pub(crate) fn fail_opens(&self, host: usize, times: u32) {
        for disk in &self.hosts[host].disks {
            disk.fail(Fault::new(DiskOperation::Open, "", Errno::EMFILE.0, times));
        }
    }

    /// A directory of each disk cannot be listed, once: there are no descriptors.
    pub(crate) fn fail_a_list(&self, host: usize) {
        for disk in &self.hosts[host].disks {
            let directory = format!("{:02x}/", self.executor.below(4));
            disk.fail(Fault::new(DiskOperation::List, &directory, Errno::EMFILE.0, 1));
        }
    }

    /// Disks of all machines have room for so much.
    pub(crate) fn limit(&self, capacity: Option<u64>) {
        self.hosts.iter().flat_map(|host| &host.disks).for_each(|disk| disk.limit(capacity));
    }

    /// One disk of a machine has room for so much, or for everything.
    pub(crate) fn limit_one(&self, host: usize, disk: usize, capacity: Option<u64>) {
        if let Some(disk) = self.hosts[host].disks.get(disk) {
            disk.limit(capacity);
        }
    }

    /// The disks of a machine stand still for a time; everything else on it goes on.
    pub(crate) fn stall(&self, host: usize, time: Duration) {
        *self.hosts[host].stands_still.lock() = self.executor.now() + time;
    }

    /// Disks of a machine work again, and have room for everything.
    pub(crate) fn heal(&self, host: usize) {
        let host = &self.hosts[host];
        *host.stands_still.lock() = Duration::ZERO;
        for disk in &host.disks {
            disk.heal();
            disk.limit(None);
        }
    }

    /// All objects; but not those that an OSS may have because it lost power: when it is told again to
    /// destroy them, before a client writes again what was lost of them.
    pub(crate) fn objects(&self) -> Vec<ObjectId> {
        let mut found = Vec::new();
        let is_sure = |(number, host): &(usize, &Host)| *number == MDS || host.lost.get().is_none();
        let hosts = self.hosts.iter().enumerate().filter(is_sure);
        for store in hosts.flat_map(|(_, host)| host.stores(&Arc::default())) {
            let walked = store.walk(|stored| found.push(stored.object), |path| panic!("{path:?}"));
            walked.unwrap_or_else(|error| panic!("looking for objects: {error}"));
        }
        found
    }

    /// The server with the MDS, which has been started.
    pub(crate) fn mds(&self) -> Arc<Servers> {
        match &*self.hosts[MDS].process.borrow() {
            Some(Process::Mds(servers)) => servers.clone(),
            _ => panic!("the MDS was never started"),
        }
    }

    /// Starts the server of a machine.
    pub(crate) fn start(self: &Rc<Self>, host: usize) {
        let osts = self.open_osts(host);
        let the_host = &self.hosts[host];
        let settings = Settings {
            shared: self.locks,
            commit_interval: COMMIT_INTERVAL,
            lease: LEASE,
            layout: self.layout,
            ..Settings::default()
        };
        let draw = || self.executor.below(u64::MAX);
        let records = the_host.records.clone();
        let process = if host == MDS {
            let drawn = Drawn {
                boot_verifier: draw(),
                session: draw(),
                secret: draw().into(),
                hash_seed: Some(draw()),
            };
            // A server begins with what it found on stable storage.
            self.engine.wait(None);
            self.engine.wait_to_read(None);
            let found = block_on(self.engine.sync());
            found.unwrap_or_else(|error| panic!("starting the engine: {error}"));
            let server = MdsServer::start(self.engine.clone(), osts, records, settings, drawn);
            let server = block_on(server);
            self.engine.wait(Some(flushes(draw())));
            self.engine.wait_to_read(Some(reads(draw())));
            let server = Arc::new(server.unwrap_or_else(|error| panic!("the MDS: {error}")));
            self.spawn_mds(&server);
            Process::Mds(server)
        } else {
            let mds = Address::parse(&address(MDS));
            let oss =
                Oss::start(osts, records, settings, draw(), mds, address(host), String::new());
            let oss = Arc::new(oss.unwrap_or_else(|error| panic!("an OSS: {error}")));
            self.spawn_oss(host, &oss);
            Process::Oss(oss)
        };
        the_host.process.replace(Some(process));
        the_host.is_up.set(true);
        self.spawn_peers(host);
    }

    fn open_osts(&self, host: usize) -> OstSet<MemoryDisk> {
        let the_host = &self.hosts[host];
        the_host.disks.iter().for_each(MemoryDisk::end_process);
        loop {
            let grants = Arc::<SpaceGrants>::default();
            let stores = the_host.stores(&grants);
            let records = &*the_host.records;
            let after_loss = records.is_after_loss();
            match start_osts(records, stores, grants, &Settings::default(), after_loss) {
                Ok(osts) => return osts,
                // The process ends, and is started again.
                Err(reason) => tracing::debug!(reason, "the OSTs do not start"),
            }
            self.lose_objects(host);
        }
    }

    fn spawn_mds(&self, server: &Arc<Servers>) {
        let machine = self.machine(MDS);
        let (service, executor) = (server.clone(), self.executor.clone());
        self.executor.spawn_on(machine, async move {
            let serving = serve(&executor, MDS, machine, &service);
            loop {
                host::sleep(COMMIT_INTERVAL).await;
                // An engine on a disk has a thread for it. Whoever looks at it sees what fails.
                let _ = service.mds().sync().await;
                serving.close_stale().await;
            }
        });
        self.spawn_rounds(machine, server, server.rounds());
    }

    fn spawn_oss(&self, host: usize, oss: &Arc<Oss<MemoryDisk>>) {
        let machine = self.machine(host);
        let (service, talking, destroying) = (oss.clone(), oss.clone(), oss.clone());
        let executor = self.executor.clone();
        self.executor.spawn_on(machine, async move {
            let serving = serve(&executor, host, machine, &service);
            loop {
                host::sleep(COMMIT_INTERVAL).await;
                serving.close_stale().await;
            }
        });
        self.executor.spawn_on(machine, async move {
            let report = |joined| tracing::debug!(?joined, "an OSS");
            talking.talk(&report).await;
        });
        self.executor.spawn_on(machine, async move { destroying.destroy_ordered().await });
        self.spawn_rounds(machine, oss, oss.rounds());
    }

    /// Runs what a server does beside requests, a task for each round, until its process ends.
    fn spawn_rounds<S: 'static>(&self, machine: Machine, server: &Arc<S>, rounds: Vec<Round<S>>) {
        for round in rounds {
            let (server, executor) = (server.clone(), self.executor.clone());
            self.executor.spawn_on(machine, async move {
                let pause = async |pause: Duration| {
                    if !pause.is_zero() {
                        host::sleep(pause).await;
                    }
                    true
                };
                round.keep(&*server, || seal_idle(&executor), pause).await;
            });
        }
    }

    /// The process of a machine ends.
    pub(crate) fn stop(&self, host: usize) {
        let machine = self.machine(host);
        self.hosts[host].is_up.set(false);
        self.executor.network.listen(&address(host), None);
        self.executor.network.cut(Some(machine));
        self.executor.kill(machine);
        self.executor.go_on(machine);
        match &*self.hosts[host].process.borrow() {
            Some(Process::Mds(server)) => server.leave_peers(),
            Some(Process::Oss(oss)) => oss.leave_peers(),
            None => {}
        }
    }

    /// The process of a machine ends by itself: it closes its connections, the MDS hears that it
    /// leaves, and all is on stable storage. What it is at is not waited for.
    pub(crate) async fn end(&self, host: usize) {
        self.executor.network.close(&address(host), self.machine(host));
        if let Some(Process::Oss(oss)) = &*self.hosts[host].process.borrow() {
            oss.stop();
        }
        let heard = Duration::from_millis(1 + self.executor.below(LEAVES_MS_MAX));
        self.executor.sleep(heard).await;
        self.settle_last(host);
        self.stop(host);
    }

    /// The last thing of a process that ends by itself: all objects have checksums after it.
    pub(crate) fn settle_last(&self, host: usize) {
        // The check of the objects sees what fails.
        let _ = match &*self.hosts[host].process.borrow() {
            Some(Process::Mds(server)) => block_on(server.settle_last()),
            Some(Process::Oss(oss)) => block_on(oss.settle_last()),
            None => Ok(()),
        };
    }

    /// Starts servers again of which an OST has failed alone: their next run uses it.
    pub(crate) fn restart_failed(self: &Rc<Self>) {
        for host in (0..self.count()).filter(|host| self.has_failed_ost(*host)) {
            self.stop(host);
            self.start(host);
        }
    }

    /// Whether an OST of a process has failed.
    pub(crate) fn has_failed_ost(&self, host: usize) -> bool {
        match &*self.hosts[host].process.borrow() {
            Some(Process::Mds(server)) => server.has_failed_ost(),
            Some(Process::Oss(oss)) => oss.has_failed_ost(),
            None => false,
        }
    }

    /// Why a process should end, if it should.
    pub(crate) fn failure(&self, host: usize) -> Option<String> {
        match &*self.hosts[host].process.borrow() {
            Some(Process::Mds(server)) => server.failure(),
            Some(Process::Oss(oss)) => oss.failure(),
            None => None,
        }
    }
}

/// After which time objects get their checksums, this time.
fn seal_idle(executor: &Executor) -> Duration {
    [SEAL_IDLE, Duration::ZERO][executor.below(2) as usize]
}

/// A machine, that of the calling task, takes connections.
fn serve<S: Service>(
    executor: &Rc<Executor>,
    host: usize,
    machine: Machine,
    service: &Arc<S>,
) -> Rc<SimulatedServer<S>> {
    let server = Rc::new(SimulatedServer::start(service.clone()));
    let (accepting, spawner) = (server.clone(), executor.clone());
    let accept = move |pipe: Pipe| {
        let server = accepting.clone();
        spawner.spawn_on(machine, async move {
            // The server tells the client why it fails.
            let _ = server.serve(pipe).await;
        });
    };
    executor.network.listen(&address(host), Some((machine, Rc::new(accept))));
    server
}

impl Host {
    fn stores(&self, grants: &Arc<SpaceGrants>) -> Vec<ObjectStore<MemoryDisk>> {
        let store = |disk: &MemoryDisk| {
            ObjectStore::on(disk.clone(), Path::new("ost"), OPEN_FILES, grants.clone())
        };
        self.disks.iter().map(store).collect()
    }
}

/// How long flushes of the engine take.
fn flushes(seed: u64) -> FlushTurn {
    let dice = Mutex::new(fastrand::Rng::with_seed(seed));
    Arc::new(move || {
        let time = Duration::from_micros(dice.lock().u64(0..FLUSH_US_MAX));
        Box::pin(host::sleep(time))
    })
}

/// How long reads of the engine take: most find what they want in memory.
fn reads(seed: u64) -> ReadTurn {
    let dice = Mutex::new(fastrand::Rng::with_seed(seed));
    Arc::new(move || {
        let mut dice = dice.lock();
        if dice.u64(0..READS_TO_ONE_THAT_WAITS) > 0 {
            return None;
        }
        Some(Box::pin(host::sleep(Duration::from_micros(dice.u64(0..READ_US_MAX)))))
    })
}

/// A disk, which makes some requests wait, and all while it stands still.
fn disk(executor: &Rc<Executor>, stands_still: &Arc<Mutex<Duration>>) -> MemoryDisk {
    let disk = MemoryDisk::default();
    let dice = Mutex::new(fastrand::Rng::with_seed(executor.below(u64::MAX)));
    let (until, now, passed) = (stands_still.clone(), glint_proto::clock::now(), executor.now());
    disk.run_tasks(Arc::new(host::spawn));
    disk.wait(Arc::new(move || {
        let slow = {
            let mut dice = dice.lock();
            if dice.u64(0..8) == 0 { dice.u64(0..SLOW_US_MAX) } else { 0 }
        };
        let until = until.clone();
        Box::pin(async move {
            if slow > 0 {
                host::sleep(Duration::from_micros(slow)).await;
            }
            loop {
                let left = until.lock().saturating_sub(passed + glint_proto::clock::since(now));
                if left.is_zero() {
                    return;
                }
                host::sleep(left).await;
            }
        })
    }));
    disk
}
