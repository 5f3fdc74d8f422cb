//! Files that clients cut off and write anew in turns, as an editor or a compiler does, and others
//! read at once, while the rows of their chains change as often as can be: a disk is full for a
//! while, so that its member is taken out and comes back, and just when it serves again, the server
//! of another one ends and is started again, or is killed.
//!
//! Invariant: nothing is lost here, and there is always a member that serves and has room. So each
//! call has to succeed, and a file holds what was written when it was closed last: nobody may make
//! an older truncation or write once more.

mod cut_file;

use crate::fuzz::at;
use crate::scenario::{Outcome, alone, check, mount, text};
use crate::workload::Fs;
use crate::world::executor::{Executor, Machine, NOWHERE};
use crate::world::hosts::{Hosts, MDS};
use crate::world::lapses::repeat_truncations;
use crate::world::network::Parted;
use cut_file::CutFile;
use glint_client::Vfs;
use glint_proto::Layout;
use glint_proto::limits::STRIPE_BYTES_LOG2_MIN;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// OSTs of each server, that with the MDS first: one of these.
const SERVERS: [&[u16]; 6] = [&[1; 4], &[1; 4], &[1; 4], &[1; 3], &[1, 1, 2], &[4]];
const COPIES: u8 = 3;
const CLIENTS: u32 = 2;
/// The machine of the client that reads all at the end, and has nothing in memory.
const WITNESS: Machine = Machine(10 + CLIENTS);
/// Files: so many, and fewer than that more.
const FILES: u64 = 2;
const MORE_FILES: u64 = 5;
/// Times that members come and go, likewise.
const ROUNDS: u64 = 3;
const MORE_ROUNDS: u64 = 4;
/// Of so many messages one comes to harm: one of these.
const HARMS: [u64; 4] = [0, 0, 1000, 300];
/// Longest pause between two turns of a file: while nothing happens, and else; and how soon it is
/// seen that something does.
const CALM_US: u64 = 1_000_000;
const HURRY_US: u64 = 3_000;
const NAP: Duration = Duration::from_millis(10);
/// How long a server is down, something is late, and a disk is full, at most.
const DOWN_MS: u64 = 300;
const LATE_MS: u64 = 400;
const FULL_MS: u64 = 1_500;
/// A full disk has room for less.
const ROOM: u64 = 64 << 10;
/// How soon another one ends after that, at most: one of these.
const SOON_MS: [u64; 4] = [0, 3, 40, 500];
/// How long it is waited until all members serve: longer than one that was suspected is not used.
const WHOLE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(5);
/// The same once nothing goes wrong any more: who was suspected again and again waits for longer.
const HEALED: Duration = Duration::from_secs(120);
/// How long after that all is on stable storage.
const SETTLED: Duration = Duration::from_secs(3);
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(900);

/// The world of a run.
struct Truncations {
    executor: Rc<Executor>,
    hosts: Rc<Hosts>,
    /// Disks that may be full, each with its server: not the one beside the tables of the MDS.
    disks: Vec<(usize, usize)>,
    clients: RefCell<Vec<(Machine, Fs)>>,
    files: RefCell<Vec<Rc<CutFile>>>,
    /// Files that are in turn.
    running: Cell<usize>,
    /// Something happens, so files are in turn as often as can be.
    hurries: Cell<bool>,
    is_over: Cell<bool>,
    failure: RefCell<Option<String>>,
    outcome: Cell<Outcome>,
}

/// Runs one seed in which files are cut off and written anew while rows of chains change, and
/// nothing else is done. An error says what was wrong.
pub fn run_truncations(seed: u64) -> Result<Outcome, String> {
    alone(move || run_here(seed, false))
}

/// The same on this thread; somebody `repeats` old truncations on purpose.
pub(crate) fn run_here(seed: u64, repeats: bool) -> Result<Outcome, String> {
    let executor = Executor::new(seed);
    let servers = SERVERS[executor.below(SERVERS.len() as u64) as usize];
    let layout = match executor.one_in(3) {
        true => Layout {
            stripe_bytes_log2: STRIPE_BYTES_LOG2_MIN,
            stripe_count: 0,
            replicas: COPIES,
            ..Layout::default()
        },
        false => Layout { replicas: COPIES, ..Layout::default() },
    };
    let of_server =
        |(host, osts): (usize, &u16)| (0..usize::from(*osts)).map(move |disk| (host, disk));
    let disks = servers.iter().enumerate().flat_map(of_server);
    let world = Rc::new(Truncations {
        executor: executor.clone(),
        hosts: Hosts::new(&executor, servers, true, layout),
        disks: disks.filter(|disk| *disk != (MDS, 0)).collect(),
        clients: RefCell::default(),
        files: RefCell::default(),
        running: Cell::default(),
        hurries: Cell::default(),
        is_over: Cell::default(),
        failure: RefCell::default(),
        outcome: Cell::default(),
    });
    let result = executor.run(LIMIT, world.clone().main(repeats)).and_then(|result| result);
    let mut outcome = world.outcome.get();
    outcome.steps = executor.steps();
    outcome.seconds = executor.now().as_secs();
    outcome.next = executor.below(u64::MAX);
    let result = result.and_then(|()| check(&world.hosts, &BTreeSet::new(), false));
    executor.end();
    result.map(|()| outcome)
}

impl Truncations {
    async fn main(self: Rc<Self>, repeats: bool) -> Result<(), String> {
        self.begin().await?;
        let files = self.files.borrow().clone();
        if repeats {
            let objects = files.iter().flat_map(|file| file.objects()).collect();
            repeat_truncations(&self.executor, &self.hosts, objects);
        }
        self.running.set(files.len());
        for file in files {
            let world = self.clone();
            self.executor.spawn_on(NOWHERE, async move {
                if let Err(failure) = world.take_turns(&file).await {
                    world.fail(failure);
                }
                world.running.set(world.running.get() - 1);
            });
        }
        self.come_and_go().await;
        self.is_over.set(true);
        self.executor.network.harm.set(0);
        self.executor.network.mend();
        while self.running.get() > 0 && !self.has_failed() {
            self.executor.sleep(LOOK).await;
        }
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        self.verify().await
    }

    /// Starts the servers, and makes the files.
    async fn begin(&self) -> Result<(), String> {
        (0..self.hosts.count()).for_each(|host| self.hosts.start(host));
        self.executor.sleep(Duration::from_millis(1)).await;
        while !self.hosts.have_joined() {
            self.executor.sleep(Duration::from_millis(1)).await;
        }
        for index in 0..CLIENTS {
            let (machine, servers) = (Machine(10 + index), self.hosts.mds());
            let mounted = at(&self.executor, machine, async move { mount(&servers, index).await });
            let fs = mounted.await?;
            self.clients.borrow_mut().push((machine, fs));
        }
        for number in 0..FILES + self.executor.below(MORE_FILES) {
            let (machine, fs) = self.a_client();
            let made = async move { CutFile::make(&fs, format!("f{number}")).await };
            let file = at(&self.executor, machine, made).await.map_err(text)?;
            self.files.borrow_mut().push(Rc::new(file));
        }
        let harm = HARMS[self.executor.below(HARMS.len() as u64) as usize];
        self.executor.network.harm.set(harm);
        Ok(())
    }

    fn fail(&self, failure: String) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    fn count(&self, what: impl FnOnce(&mut Outcome)) {
        let mut outcome = self.outcome.get();
        what(&mut outcome);
        self.outcome.set(outcome);
    }

    fn a_client(&self) -> (Machine, Fs) {
        let clients = self.clients.borrow();
        let (machine, fs) = &clients[self.executor.below(clients.len() as u64) as usize];
        (*machine, fs.clone())
    }

    async fn sleep_up_to(&self, ms: u64) {
        self.executor.sleep(Duration::from_millis(self.executor.below(ms + 1))).await;
    }

    /// Has a file changed by any client and read by any, again and again.
    async fn take_turns(&self, file: &Rc<CutFile>) -> Result<(), String> {
        while !self.is_over.get() {
            let what = file.draw(&self.executor);
            let (its, change, (machine, fs)) = (file.clone(), what.clone(), self.a_client());
            let changed = async move { its.change(&fs, &change).await };
            let changed = at(&self.executor, machine, changed).await;
            let said = format!("{what} by {machine:?}");
            changed.map_err(|errno| format!("{}: {said}: {errno}", file.name))?;
            for _ in 0..1 + self.executor.below(2) {
                self.look(file, self.a_client(), &said).await?;
            }
            self.count(|outcome| outcome.rewritten += 1);
            self.pause().await;
        }
        Ok(())
    }

    /// A file is left alone for a while, until something happens.
    async fn pause(&self) {
        let calm = Duration::from_micros(self.executor.below(CALM_US));
        let until = self.executor.now() + calm;
        while self.executor.now() < until && !self.hurries.get() && !self.is_over.get() {
            self.executor.sleep(NAP).await;
        }
        self.executor.sleep(Duration::from_micros(self.executor.below(HURRY_US))).await;
    }

    /// A client reads a file, which has to be as it was left.
    async fn look(
        &self,
        file: &Rc<CutFile>,
        (machine, fs): (Machine, Fs),
        last: &str,
    ) -> Result<(), String> {
        let its = file.clone();
        let read = at(&self.executor, machine, async move { its.read(&fs).await }).await;
        let (size, found) =
            read.map_err(|errno| format!("{}: read by {machine:?}: {errno}", file.name))?;
        let Some(difference) = file.difference(size, &found) else { return Ok(()) };
        let (now, copies) = (self.executor.now(), self.copies_of(file));
        Err(format!(
            "{difference}; it was read by {machine:?} at {now:?}, after {last}; copies are {copies}"
        ))
    }

    /// The sizes of the copies of a file, as they are on the disks now.
    fn copies_of(&self, file: &CutFile) -> String {
        let of_file = format!("{:016x}.", file.ino.0);
        let mut said = Vec::new();
        for (name, copies) in self.hosts.copies() {
            if name.starts_with(&of_file) {
                let sizes =
                    copies.iter().map(|(place, bytes)| format!("{} at {place}", bytes.len()));
                said.push(format!("{name}: {}", sizes.collect::<Vec<_>>().join(", ")));
            }
        }
        said.join("; ")
    }

    /// Members come and go.
    async fn come_and_go(&self) {
        for _ in 0..ROUNDS + self.executor.below(MORE_ROUNDS) {
            let away = self.one_is_away().await;
            if !self.executor.one_in(4) {
                self.are_whole_in(WHOLE).await;
            }
            if self.has_failed() {
                return;
            }
            // A head has come back just now, or is about to.
            self.hurries.set(true);
            let soon = SOON_MS[self.executor.below(SOON_MS.len() as u64) as usize];
            self.sleep_up_to(soon).await;
            if self.executor.one_in(3) {
                self.delay_something();
            }
            let host = self.a_host(away);
            self.restart(host).await;
            self.sleep_up_to(DOWN_MS).await;
            self.hurries.set(false);
        }
    }

    /// One of the servers: not this one, if there are others, and that with the MDS less often.
    fn a_host(&self, but: Option<usize>) -> usize {
        let is_mds_meant = self.executor.one_in(6);
        let is_meant = |host: &usize| Some(*host) != but && (*host != MDS || is_mds_meant);
        let meant: Vec<usize> = (0..self.hosts.count()).filter(is_meant).collect();
        self.executor.one_of(&meant).copied().unwrap_or(MDS)
    }

    /// A member is taken out of its chains and comes back, perhaps later; or something goes wrong
    /// of which others hear late. Returns which server was away.
    async fn one_is_away(&self) -> Option<usize> {
        match self.executor.below(8) {
            0..=3 => {
                let (host, disk) = self.executor.one_of(&self.disks).copied()?;
                // Others have room, and serve.
                if !self.are_whole_in(WHOLE).await {
                    return None;
                }
                tracing::debug!(host, disk, at = ?self.executor.now(), "a disk is full");
                self.hosts.limit_one(host, disk, Some(self.executor.below(ROOM)));
                self.sleep_up_to(FULL_MS).await;
                self.hosts.limit_one(host, disk, None);
                tracing::debug!(host, disk, at = ?self.executor.now(), "it has room again");
                self.count(|outcome| outcome.filled += 1);
                // A server that has started is not suspected any more.
                if self.executor.one_in(2) {
                    self.restart(host).await;
                }
                Some(host)
            }
            4 | 5 => {
                let host = self.a_host(None);
                self.restart(host).await;
                Some(host)
            }
            6 => {
                self.delay_something();
                None
            }
            _ => {
                self.executor.network.cut(None);
                None
            }
        }
    }

    /// Something is late: what the disks of a server do, or what others and it say to each other.
    fn delay_something(&self) {
        let (time, host) = (Duration::from_millis(self.executor.below(LATE_MS)), self.a_host(None));
        tracing::debug!(host, ?time, at = ?self.executor.now(), "something is late");
        let other = match self.executor.below(3) {
            0 => return self.hosts.stall(host, time),
            1 => self.a_client().0,
            _ => self.hosts.machine(self.a_host(Some(host))),
        };
        let ends = [self.hosts.machine(host), other];
        let (until, breaks) = (self.executor.now() + time, self.executor.one_in(2));
        self.executor.network.part(Parted { ends, until, breaks });
    }

    /// The server of a machine ends, or is killed, and is started again.
    async fn restart(&self, host: usize) {
        // What stands still or is full is not met by its last flush.
        self.hosts.heal(host);
        let is_killed = self.executor.one_in(4);
        tracing::debug!(host, is_killed, at = ?self.executor.now(), "a server ends");
        match is_killed {
            true => self.hosts.stop(host),
            false => self.hosts.end(host).await,
        }
        self.sleep_up_to(DOWN_MS).await;
        tracing::debug!(host, at = ?self.executor.now(), "it starts");
        self.hosts.start(host);
        self.count(|outcome| outcome.kills += 1);
    }

    /// Waits until all members of all chains serve, but not for longer. Returns whether they do.
    async fn are_whole_in(&self, time: Duration) -> bool {
        let until = self.executor.now() + time;
        while !self.hosts.are_whole() {
            if self.executor.now() >= until || self.has_failed() {
                return false;
            }
            self.executor.sleep(LOOK).await;
        }
        true
    }

    /// All files are what they must be at the servers, and all copies are on their disks.
    async fn verify(&self) -> Result<(), String> {
        if !self.are_whole_in(HEALED).await {
            return Err("members of chains are not healed".into());
        }
        let (clients, files) = (self.clients.borrow().clone(), self.files.borrow().clone());
        for (machine, fs) in clients {
            at(&self.executor, machine, async move { fs.sync().await }).await.map_err(text)?;
        }
        let servers = self.hosts.mds();
        let mounted = at(&self.executor, WITNESS, async move { mount(&servers, CLIENTS).await });
        let witness = mounted.await?;
        for file in files {
            self.look(&file, (WITNESS, witness.clone()), "all").await?;
        }
        self.executor.sleep(SETTLED).await;
        if !self.are_whole_in(HEALED).await {
            return Err("members of chains do not stay healed".into());
        }
        for host in 0..self.hosts.count() {
            if let Some(reason) = self.hosts.failure(host) {
                return Err(format!("server {host} has to end: {reason}"));
            }
        }
        let (rows, _) = self.hosts.mds().mds().chains().since(0);
        let changes = rows.iter().map(|row| u64::from(row.version) - 1).sum::<u64>();
        self.count(|outcome| outcome.rows = changes);
        (0..self.hosts.count()).for_each(|host| self.hosts.stop(host));
        Ok(())
    }
}
