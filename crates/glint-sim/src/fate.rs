//! Faults of a run.
//!
//! No fault lasts so long that a client that works on is evicted for it: there is a calm after each
//! time in which one is out of reach. A client that is cut off for longer is evicted, lives, and
//! sends what it has: nobody looks at what it is told, and nobody may see anything of it once
//! others have its locks.

mod heal_rest;

use crate::contested::Anew;
use crate::fuzz::at;
use crate::scenario::{Member, Run};
use crate::world::executor::{Machine, NOWHERE};
use crate::world::hosts::{LEASE, MDS, address};
use crate::world::network::Parted;
use glint_mds::Loss;
use glint_net::AdminService;
use glint_ost::disk::memory::DiskOperation;
use glint_proto::Ino;
use glint_proto::limits::MEMBER_LOST_MS;
use glint_proto::message::{GiveUp, GiveUpStep};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Kinds of fate, and those of them in which disks fail: the last ones.
pub(crate) const FATES: u64 = 14;
pub(crate) const FATES_OF_DISKS: u64 = 3;
/// How long a server is out of reach of those who work on, at most; and how long all are in reach
/// after that.
const OUTAGE: Duration = Duration::from_secs(3);
const CALM: Duration = Duration::from_secs(3);
/// How long a server that has lost its power is left alone, until clients have written again
/// what it lost.
pub(crate) const REPLAYED: Duration = Duration::from_secs(20);
/// From when on a server may be given up.
const UNHEARD: Duration = Duration::from_millis(MEMBER_LOST_MS);
/// How long the server with the MDS stands still, at most.
const MDS_STILL: Duration = Duration::from_secs(15);

/// How long somebody looks after that.
const AFTERWARDS: Duration = Duration::from_secs(2);
/// How often somebody looks whether a server has to end.
pub(crate) const WATCH: Duration = Duration::from_millis(50);

fn ms(time: Duration) -> u64 {
    time.as_millis() as u64
}

impl Run {
    /// Something happens, or nothing.
    pub(crate) async fn fate(self: &Rc<Self>) {
        self.end_rest_of_heal(false).await;
        if self.harms_left.get() == 0 {
            return;
        }
        self.harms_left.set(self.harms_left.get() - 1);
        let host = self.a_host();
        // Data that cannot be written again for long is lost: disks work, and have room, until all
        // is there, but for what fails a few times.
        let is_recovering =
            self.hosts.mds().mds().is_recovering() || !self.hosts.has_lost_nothing(host, REPLAYED);
        let fates = if is_recovering { FATES - FATES_OF_DISKS } else { self.fates };
        if self.layout.replicas > 1 && self.executor.one_in(4) {
            return self.fell_a_head().await;
        }
        // What is lost is copied back, so heal must not rest.
        let may_lose = self.fates < FATES && self.probe.borrow().is_some();
        let may_lose = may_lose && self.heal_rests_until.get().is_none();
        if may_lose && self.executor.one_in(6) {
            return self.remove_objects().await;
        }
        match self.executor.below(fates) {
            0 => self.restart(host, false).await,
            1 if self.executor.one_in(6) => {
                for host in 0..self.hosts.count() {
                    self.restart(host, true).await;
                }
            }
            1 => self.restart(host, true).await,
            2 => self.executor.network.cut(None),
            3 if self.executor.one_in(6) => self.kill_a_client(),
            4 if self.executor.one_in(2) => self.cut_a_client_off(),
            5 => self.part(host),
            7..=9 => self.give_up().await,
            6 if self.begins_outage() => self.hosts.stall(host, self.up_to(OUTAGE)),
            10 => self.have_heal_rest().await,
            11 => self.stand_still(host),
            12 => {
                self.troubles.flush.set(true);
                self.hosts.fail_a_flush(host);
            }
            13 => self.fail_something(host),
            _ => {}
        }
    }

    /// One of the servers, every second time that with the MDS.
    pub(crate) fn a_host(&self) -> usize {
        match self.executor.one_in(2) {
            true => MDS,
            false => self.executor.below(self.hosts.count() as u64) as usize,
        }
    }

    pub(crate) fn up_to(&self, time: Duration) -> Duration {
        Duration::from_millis(self.executor.below(ms(time)))
    }

    /// Whether a server may be out of reach now.
    pub(crate) fn begins_outage(&self) -> bool {
        let now = self.executor.now();
        let may = now >= self.calm_until.get();
        if may {
            self.calm_until.set(now + OUTAGE + CALM);
            self.doubt_moves();
            if let Some(contested) = &*self.contested.borrow() {
                contested.note_outage();
            }
        }
        may
    }

    /// Ends the process of a server, and starts it again.
    pub(crate) async fn restart(&self, host: usize, power_loss: bool) {
        tracing::debug!(host, power_loss, at = ?self.executor.now(), "a server is restarted");
        self.hosts.heal(host);
        if self.executor.one_in(2) {
            self.hosts.settle_last(host);
        }
        self.hosts.stop(host);
        if power_loss {
            self.hosts.lose_power(host);
            self.note_loss(host);
            if self.executor.one_in(3) {
                self.fail_replays(host);
            }
            if self.executor.one_in(4) {
                // Its OSTs are searched, and that is tried again.
                self.hosts.fail_a_list(host);
            }
        }
        self.count(|outcome| {
            let which = if power_loss { &mut outcome.power_losses } else { &mut outcome.kills };
            *which += 1;
        });
        self.executor.sleep(Duration::from_millis(self.executor.below(500))).await;
        tracing::debug!(host, at = ?self.executor.now(), "it starts");
        self.hosts.start(host);
    }

    /// A server loses power for the last time, perhaps. After that all of them have all of their OSTs.
    pub(crate) async fn lose_power_last(&self) {
        self.end_what_failed().await;
        if self.executor.one_in(2) {
            let host = self.a_host();
            self.restart(host, true).await;
        }
        self.end_what_failed().await;
        // An OST that has failed alone may be needed again, by an MDS that has lost power: where that one
        // does not know it, its server does not end by itself.
        self.hosts.restart_failed();
    }

    /// An OSS is lost, and an administrator gives its OSTs up where nothing is lost with them.
    /// Others take their places, if there are others. Then it comes back with all that it had,
    /// which counts for nothing any more.
    async fn give_up(&self) {
        if self.layout.replicas < 2 || self.hosts.count() == 1 || self.moves.took_copies() {
            return;
        }
        let host = 1 + self.executor.below(self.hosts.count() as u64 - 1) as usize;
        if self.hosts.failure(host).is_some() || !self.begins_outage() {
            return;
        }
        tracing::debug!(host, at = ?self.executor.now(), "a server is lost");
        let servers = self.hosts.mds();
        let osses = servers.other_servers().infos();
        let Some(oss) = osses.iter().find(|oss| oss.address == address(host)) else { return };
        let osts = oss.first_ost..oss.first_ost + oss.osts;
        let its = osts.clone();
        self.hosts.heal(host);
        self.hosts.stop(host);
        let until = self.executor.now() + UNHEARD + self.up_to(UNHEARD);
        self.calm_until.set(until + 2 * OUTAGE + CALM);
        while self.executor.now() < until {
            self.executor.sleep(WATCH).await;
            self.end_what_failed().await;
        }
        let servers = self.hosts.mds();
        let given_up = async move {
            let mut count = 0;
            for ost in osts {
                let losses = servers.mds().chains().losses(ost, &BTreeSet::new());
                if losses.chains.iter().any(|chain| chain.loss != Loss::Nothing) {
                    continue;
                }
                let step = GiveUpStep::Confirmed(losses.number());
                count += u64::from(servers.give_up_ost(GiveUp { ost, step }).await.is_ok());
            }
            count
        };
        let count = at(&self.executor, self.hosts.machine(MDS), given_up).await;
        self.count(|outcome| outcome.given_up += count);
        if self.executor.one_in(3) {
            self.restart(MDS, false).await;
        }
        self.executor.sleep(self.up_to(OUTAGE)).await;
        let former = self.hosts.mds().mds().chains().former();
        let taken = former.iter().filter(|(_, ost)| its.contains(ost)).count() as u64;
        self.count(|outcome| outcome.places_taken += taken);
        self.hosts.start(host);
    }

    /// A server that cannot say any more what is safe ends, and starts again: what was not synced
    /// of its objects counts as lost, and is.
    pub(crate) async fn end_what_failed(&self) {
        for host in 0..self.hosts.count() {
            let Some(reason) = self.hosts.failure(host) else { continue };
            tracing::debug!(reason, host, "a server ends");
            self.hosts.stop(host);
            self.hosts.heal(host);
            self.hosts.lose_objects(host);
            self.note_loss(host);
            self.count(|outcome| outcome.disk_failures += 1);
            self.executor.sleep(Duration::from_millis(self.executor.below(500))).await;
            self.hosts.start(host);
        }
    }

    fn note_loss(&self, host: usize) {
        if host != MDS
            && let Some(contested) = &*self.contested.borrow()
        {
            contested.note_loss();
        }
    }

    /// A machine stands still.
    fn stand_still(&self, host: usize) {
        let time = match host {
            MDS if self.hosts.count() == 1 => self.up_to(MDS_STILL),
            // OSSes serve their clients for half a lease of that.
            MDS if self.begins_outage() => self.up_to(LEASE / 2 + OUTAGE),
            MDS => return,
            _ if self.begins_outage() => self.up_to(OUTAGE),
            _ => return,
        };
        self.halt(self.hosts.machine(host), time);
    }

    fn halt(&self, machine: Machine, time: Duration) {
        let executor = self.executor.clone();
        executor.halt(machine);
        self.executor.spawn_on(NOWHERE, async move {
            executor.sleep(time).await;
            executor.go_on(machine);
        });
    }

    /// A server is cut off from the MDS, or from a client.
    fn part(&self, host: usize) {
        let members = self.members.borrow();
        if !self.begins_outage() {
            return;
        }
        let which = self.executor.below(members.len() as u64 + 1) as usize;
        let (other, time) = match members.get(which) {
            Some(member) => (member.machine, self.up_to(OUTAGE)),
            // The OSS serves its clients for half a lease.
            None if host != MDS => (self.hosts.machine(MDS), LEASE / 2 + self.up_to(OUTAGE)),
            None => return,
        };
        self.part_for([self.hosts.machine(host), other], time);
    }

    fn part_for(&self, ends: [Machine; 2], time: Duration) {
        self.part_until(ends, time, self.executor.one_in(2));
    }

    /// Nothing goes between two machines for a time; what is sent arrives later, or it `breaks`
    /// connections.
    pub(crate) fn part_until(&self, ends: [Machine; 2], time: Duration, breaks: bool) {
        let until = self.executor.now() + time;
        tracing::debug!(?ends, ?time, breaks, "two machines are parted");
        self.executor.network.part(Parted { ends, until, breaks });
    }

    /// Fails the repeated writes of clients a few times: fewer than after which they are given up.
    fn fail_replays(&self, host: usize) {
        for worker in &*self.workers.borrow() {
            for (ino, _) in worker.model.borrow().inodes.iter().filter(|(_, inode)| !inode.is_dir) {
                if self.troubles.broken.borrow_mut().insert(*ino) {
                    let times = 1 + self.executor.below(3) as u32;
                    self.hosts.fail_file(host, *ino, DiskOperation::Write, times);
                }
            }
        }
    }

    /// A file cannot be read or written, for a moment or for ever; or none can be opened.
    fn fail_something(&self, host: usize) {
        let times = [1, 3, u32::MAX][self.executor.below(3) as usize];
        let workers = self.workers.borrow();
        let Some(worker) = self.executor.one_of(&workers) else { return };
        let model = worker.model.borrow();
        let files: Vec<Ino> =
            model.inodes.iter().filter(|(_, inode)| !inode.is_dir).map(|(ino, _)| *ino).collect();
        if files.is_empty() || self.executor.one_in(3) {
            self.troubles.descriptors.set(true);
            return self.hosts.fail_opens(host, times.min(3));
        }
        let Some(&ino) = self.executor.one_of(&files) else { return };
        self.troubles.broken.borrow_mut().insert(ino);
        let operation = match self.executor.below(2) {
            0 => DiskOperation::Read,
            _ => {
                self.troubles.unwritable.borrow_mut().insert(ino);
                DiskOperation::Write
            }
        };
        self.hosts.fail_file(host, ino, operation, times);
    }

    /// One of those who live, but for the last one.
    pub(crate) fn a_client(&self) -> Option<Rc<Member>> {
        let members = self.members.borrow();
        let alive: Vec<&Rc<Member>> = members.iter().filter(|m| !m.dead.get()).collect();
        let one = self.executor.one_of(&alive)?;
        (alive.len() > 1).then(|| Rc::clone(one))
    }

    fn lose(&self, member: &Member) {
        member.dead.set(true);
        member.workers.iter().for_each(|worker| worker.dead.set(true));
        if let Some(contested) = &*self.contested.borrow() {
            contested.lose_a_client();
        }
    }

    fn kill_a_client(&self) {
        if let Some(member) = self.a_client() {
            self.kill(&member);
        }
    }

    pub(crate) fn kill(&self, member: &Member) {
        self.executor.kill(member.machine);
        self.executor.network.cut(Some(member.machine));
        self.lose(member);
        self.count(|outcome| outcome.dead_clients += 1);
    }

    /// A client that has just written what others write, too, is not heard of any more.
    fn cut_a_client_off(self: &Rc<Self>) {
        let Some(member) = self.a_client() else { return };
        let Some(contested) = self.contested.borrow().clone() else { return };
        if self.cutting_off.replace(true) {
            return;
        }
        let (run, executor) = (self.clone(), self.executor.clone());
        self.executor.spawn_on(NOWHERE, async move {
            let (fs, troubles) = (member.fs.clone(), run.troubles.clone());
            let gone = member.workers[0].clone();
            let written = at(&executor, member.machine, async move {
                contested.leave_open(&fs, &gone.dead, &troubles).await
            });
            let died = async {
                while !member.dead.get() {
                    executor.sleep(Duration::from_millis(10)).await;
                }
                Ok(())
            };
            if let Err(failure) = futures_lite::future::or(written, died).await {
                run.failure.borrow_mut().get_or_insert(failure);
            }
            executor.sleep(Duration::from_micros(executor.below(20_000))).await;
            run.cutting_off.set(false);
            let is_last = run.members.borrow().iter().filter(|m| !m.dead.get()).count() < 2;
            if !run.is_over.get() && !member.dead.get() && !is_last {
                run.cut_off(&member).await;
            }
        });
    }

    /// How long a client is cut off: two times in three for longer than its lease.
    fn cut_off_for(&self) -> Duration {
        match self.executor.one_in(3) {
            true => self.up_to(LEASE),
            false => LEASE + self.up_to(LEASE),
        }
    }

    /// Something may come of a client that is cut off for so long: somebody looks until then.
    fn watch_until(&self, time: Duration) {
        let until = self.executor.now() + time + AFTERWARDS;
        self.watched_until.set(self.watched_until.get().max(until));
    }

    /// Has the clients that are left write the file that a cut-off client wrote, and look at it
    /// again and again, until all is there that it had sent.
    pub(crate) async fn watch_what_is_cut_off(self: &Rc<Self>) -> Result<(), String> {
        let Some(contested) = self.contested.borrow().clone() else { return Ok(()) };
        while self.executor.now() < self.watched_until.get() {
            let members = self.members.borrow().clone();
            let alive: Vec<&Rc<Member>> = members.iter().filter(|m| !m.dead.get()).collect();
            let Some(member) = self.executor.one_of(&alive).map(|&one| one.clone()) else { break };
            let (contested, troubles) = (contested.clone(), self.troubles.clone());
            let (machine, done) = (member.machine, Rc::new(RefCell::new(None)));
            let slot = done.clone();
            self.executor.spawn_on(machine, async move {
                let anew = Anew { truncate: false, sync: true };
                let turn =
                    contested.turn(&member.fs, &member.workers[0].dead, Some(anew), &troubles);
                slot.replace(Some(turn.await));
            });
            loop {
                self.executor.sleep(WATCH).await;
                self.end_what_failed().await;
                if let Some(turn) = done.take() {
                    turn?;
                    break;
                }
            }
            self.executor.sleep(10 * WATCH).await;
        }
        Ok(())
    }

    /// A client that lives is not heard of any more.
    pub(crate) async fn cut_off(&self, member: &Member) {
        self.lose(member);
        self.doubt_moves();
        self.count(|outcome| outcome.cut_off_clients += 1);
        let is_alone = self.members.borrow().iter().filter(|m| !m.dead.get()).count() == 1;
        let time = self.cut_off_for();
        tracing::debug!(machine = ?member.machine, ?time, "a client is cut off");
        self.watch_until(time);
        if self.executor.one_in(3) {
            return self.halt(member.machine, time);
        }
        self.part_for([self.hosts.machine(MDS), member.machine], time);
        if self.hosts.count() == 1 || self.executor.one_in(3) {
            return;
        }
        if self.locks && self.executor.one_in(2) {
            return self.outrun_the_fence(member, is_alone).await;
        }
        if self.executor.one_in(2) || !is_alone || self.is_hostile.get() {
            // Requests that the client has sent to OSSes come later.
            let time = self.cut_off_for();
            self.watch_until(time);
            let until = self.executor.now() + time;
            for host in 1..self.hosts.count() {
                let ends = [self.hosts.machine(host), member.machine];
                self.executor.network.part(Parted { ends, until, breaks: false });
            }
            return;
        }
        let host = 1 + self.executor.below(self.hosts.count() as u64 - 1) as usize;
        // The client's requests are being executed while the server stands still, until they do not
        // count any more. Nobody else is asked for locks, so nobody else is evicted.
        let still = LEASE + self.up_to(LEASE);
        let begins = self.up_to(Duration::from_millis(500));
        let stall = begins + still + self.up_to(OUTAGE);
        self.watch_until(stall);
        self.hosts.stall(host, stall);
        self.executor.sleep(begins).await;
        if !self.is_over.get() {
            self.halt(self.hosts.machine(host), still);
        }
    }

    /// The requests of a client reach OSSes when it is evicted, and they have not heard of that:
    /// nobody may have its locks yet. Where only one other client is left, which nobody asks for
    /// locks, they reach OSSes that the MDS waits for no more, too.
    async fn outrun_the_fence(&self, member: &Member, is_alone: bool) {
        let begins = LEASE / 2 + self.up_to(LEASE / 2);
        let (after, silent) = match is_alone && self.executor.one_in(2) {
            true => (LEASE + self.up_to(LEASE / 2), LEASE * 3 / 2 + self.up_to(OUTAGE)),
            // The OSSes serve their clients for half a lease.
            false => (self.up_to(LEASE / 2), LEASE / 2 + self.up_to(OUTAGE)),
        };
        self.watch_until(begins + after);
        let until = self.executor.now() + begins + after;
        for host in 1..self.hosts.count() {
            let ends = [self.hosts.machine(host), member.machine];
            self.executor.network.part(Parted { ends, until, breaks: false });
        }
        self.executor.sleep(begins).await;
        if !self.is_over.get() && self.begins_outage() {
            for host in 1..self.hosts.count() {
                self.part_for([self.hosts.machine(host), self.hosts.machine(MDS)], silent);
            }
        }
    }
}
