//! Heads that die while a member lacks a change that others have, together with the client that sent
//! it: nobody sends it again, and what the next head does alone makes the copies equal.
//!
//! Where clients keep no locks, every member is read again and again after that. Invariant: what is
//! read of a file that nobody writes any more, by a row in which its old head does not serve, is
//! the same bytes at every member, for ever, whatever else is lost.

use crate::scenario::{Member, Run};
use crate::workload::Fs;
use crate::world::executor::{Executor, Machine};
use crate::world::peers::connect;
use glint_client::{Caller, Vfs, WriteHow};
use glint_net::{Cluster, OstRequests, Remote};
use glint_proto::chain::{Chain, ChainVersion, Destination};
use glint_proto::{Bulk, FsResult, Ino, ObjectId, OpenFlags, OstReply, OstRequest, SetAttr};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The machine of the client that reads every member.
pub(crate) const PROBE: Machine = Machine(98);
/// How soon the head dies once the change was sent, at most.
const DELAYED: Duration = Duration::from_millis(200);
/// How long members are read after that, how often, and for how long each is waited for.
const WATCHED: Duration = Duration::from_secs(6);
const AGAIN: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that are read of an object: more than it has.
const ROOM: usize = 1 << 18;

/// Objects that nobody writes any more, each with its chain.
struct Watched {
    objects: Vec<(u16, ObjectId)>,
    /// Versions of chains by which the old head orders changes: what is read by them may change.
    old: BTreeMap<u16, u32>,
    seen: BTreeMap<ObjectId, Vec<u8>>,
}

impl Run {
    /// A client writes to one of its files and dies, and so does the head of the chain that it writes
    /// to, before one of the members has heard of it. Nobody is out of reach for longer than a restart
    /// takes.
    pub(crate) async fn fell_a_head(self: &Rc<Self>) {
        let Some(victim) = self.a_client().filter(|_| self.hosts.count() > 1) else { return };
        let Some(worker) = self.executor.one_of(&victim.workers) else { return };
        let files = worker.model.borrow().files_at_rest();
        let which = self.executor.below(files.len() as u64 + 1) as usize;
        let Some(ino) = files.get(which).copied() else { return };
        let Some(layout) = worker.layouts.borrow().get(&ino).copied() else { return };
        let Some(row) = self.hosts.mds().mds().chains().get(layout.ost_of(0, 1)) else { return };
        let hosts: Vec<usize> = row.readable().filter_map(|ost| self.hosts.host_of(ost)).collect();
        let which = 1 + self.executor.below(hosts.len().saturating_sub(1).max(1) as u64) as usize;
        let (Some(head), Some(other)) = (hosts.first().copied(), hosts.get(which)) else { return };
        let machines = [self.hosts.machine(head), self.hosts.machine(*other)];
        self.part_until(machines, 2 * DELAYED, false);
        let (fs, executor) = (victim.fs.clone(), self.executor.clone());
        // Its workers may look at the file before they die.
        worker.model.borrow_mut().is_lost(ino);
        self.executor.spawn_on(victim.machine, async move {
            // It dies amid this.
            let _ = change(&fs, &executor, ino).await;
        });
        self.executor.sleep(self.up_to(DELAYED)).await;
        self.kill(&victim);
        tracing::debug!(head, other, ?ino, "a head dies amid a change");
        self.count(|outcome| outcome.felled_heads += 1);
        self.watch(&victim, head);
        let power_loss = self.executor.one_in(4);
        self.restart(head, power_loss).await;
    }

    /// A client that reads every member, where clients keep no locks.
    pub(crate) async fn let_in_a_probe(&self) -> Result<(), String> {
        if self.locks || self.layout.replicas < 2 || self.hosts.count() == 1 {
            return Ok(());
        }
        let (servers, slot) = (self.hosts.mds(), Rc::new(RefCell::new(None)));
        let connected = slot.clone();
        self.executor.spawn_on(PROBE, async move {
            connected.replace(Some(connect(&servers, PROBE.0).await));
        });
        while slot.borrow().is_none() {
            self.executor.sleep(Duration::from_millis(1)).await;
        }
        let probe = slot.take().transpose()?;
        self.probe.replace(probe.map(Rc::new));
        Ok(())
    }

    /// Has every member be read for a while, of the files of a dead client in chains whose head dies
    /// now.
    fn watch(self: &Rc<Self>, dead: &Member, head: usize) {
        let Some(probe) = self.probe.borrow().clone() else { return };
        let (rows, _) = self.hosts.mds().mds().chains().since(0);
        let is_felled =
            |row: &&Chain| row.head().is_some_and(|ost| self.hosts.host_of(ost) == Some(head));
        let old: BTreeMap<u16, u32> =
            rows.iter().filter(is_felled).map(|row| (row.id.target(), row.version)).collect();
        let mut objects = Vec::new();
        for worker in &dead.workers {
            let layouts = worker.layouts.borrow();
            for ino in worker.model.borrow().files_at_rest() {
                let Some(layout) = layouts.get(&ino) else { continue };
                for stripe in 0..layout.stripe_count.max(1) {
                    objects.push((layout.ost_of(stripe, 1), layout.object(ino, stripe)));
                }
            }
        }
        objects.retain(|(target, _)| old.contains_key(target));
        let mut watched = Watched { objects, old, seen: BTreeMap::new() };
        let (run, until) = (self.clone(), self.executor.now() + WATCHED);
        self.executor.spawn_on(PROBE, async move {
            while run.executor.now() < until && !run.is_over.get() {
                if let Err(failure) = watched.look(&run, &probe).await {
                    run.failure.borrow_mut().get_or_insert(failure);
                    return;
                }
                run.executor.sleep(AGAIN).await;
            }
        });
    }
}

/// Changes a file, in one place.
async fn change(fs: &Fs, executor: &Executor, ino: Ino) -> FsResult<()> {
    let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
    let handle = fs.open(&Caller::ROOT, ino, flags).await?.handle;
    if executor.one_in(4) {
        let set = SetAttr { size: Some(executor.below(400)), ..SetAttr::default() };
        return fs.setattr(&Caller::ROOT, ino, &set).await.map(drop);
    }
    let data = vec![executor.below(256) as u8; 1 + executor.below(300) as usize];
    fs.write(handle, executor.below(400), &data, WriteHow::default()).await?;
    fs.fsync(handle).await
}

impl Watched {
    /// Reads each object at all members.
    async fn look(&mut self, run: &Run, probe: &Cluster<Remote>) -> Result<(), String> {
        for (target, object) in &self.objects {
            let Some(row) = run.hosts.mds().mds().chains().get(*target) else { continue };
            if self.old.get(target).is_none_or(|old| row.version <= *old) {
                continue;
            }
            for member in row.readable() {
                let chain = ChainVersion { target: *target, version: row.version };
                let to = Destination { ost: member, chain: Some(chain) };
                let Some(bytes) = read(&run.executor, probe, to, *object).await else { continue };
                let first = self.seen.entry(*object).or_insert_with(|| bytes.clone());
                if *first != bytes {
                    let (before, now) = (first.len(), bytes.len());
                    return Err(format!(
                        "nobody writes {object}, and OST {member} has other bytes of it than were \
                         read before: {now}, and {before}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Reads an object at a member; `None` if that does not answer, or may not.
pub(super) async fn read(
    executor: &Rc<Executor>,
    probe: &Cluster<Remote>,
    to: Destination,
    object: ObjectId,
) -> Option<Vec<u8>> {
    let mut room = vec![0; ROOM];
    let read = OstRequest::Read { object, offset: 0, len: ROOM as u32 };
    let read = probe.ost(to, read, None, Bulk::In(&mut room), &|| true);
    let patience = async {
        executor.sleep(PATIENCE).await;
        None
    };
    let answer = futures_lite::future::or(async { read.await.ok() }, patience).await;
    match answer? {
        OstReply::Data(len) => {
            room.truncate(len as usize);
            Some(room)
        }
        _ => None,
    }
}
