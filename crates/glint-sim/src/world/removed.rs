//! Objects whose files are removed from the disk of one member while its server is down, as
//! e2fsck(8) does that puts what it cannot place into `lost+found`. All other members have them.
//!
//! Nothing else goes wrong until the objects are back: what a chain loses then may be its last copy.
//! Every third time clients stand still until the member serves again, and then it is asked, too.
//! Else they go on when the files are removed, and change these objects while the member is away,
//! is synced, and begins to serve. After that they read and change them, and somebody reads every
//! member again and again, which only clients without locks allow.
//!
//! Invariant: no member says of such an object that it has other bytes than all copies had, while
//! nobody changes it, and each is back in the end, with what all copies have then.

use crate::fate::{REPLAYED, WATCH};
use crate::fuzz::at;
use crate::scenario::Run;
use crate::world::felled::{PROBE, read};
use crate::world::hosts::{Hosts, MDS, address};
use glint_net::{Cluster, Remote};
use glint_ost::disk::memory::MemoryDisk;
use glint_ost::disk::{Disk, DiskFile};
use glint_proto::ObjectId;
use glint_proto::chain::{Chain, ChainVersion, Destination};
use std::rc::Rc;
use std::time::Duration;

/// How long it is waited for a time in which nothing goes wrong and all members serve.
const CALMED: Duration = Duration::from_secs(10);
/// How long what clients have sent is under way.
const QUIET: Duration = Duration::from_millis(500);
/// How long a member that was away is synced, while clients stand still: with what was before, less
/// than a lease since they were heard.
const SYNCED: Duration = Duration::from_secs(4);
/// How long nobody but clients asks for the object, at most.
const UNASKED: Duration = Duration::from_secs(5);
/// How long it takes until the object is back, at most, if somebody asks for it again and again.
const FOUND: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(100);
/// How many objects are removed at once, at most. A member that is taken out for one after the other
/// is out for longer each time.
const AT_ONCE: u64 = 3;

/// A copy of an object, whose file is removed, and what all copies have.
#[derive(Clone)]
struct RemovedCopy {
    target: u16,
    ost: u16,
    object: ObjectId,
    bytes: Vec<u8>,
}

impl Hosts {
    fn first_ost(&self, host: usize) -> Option<u16> {
        if host == MDS {
            return Some(0);
        }
        let osses = self.mds().other_servers().infos();
        osses.iter().find(|oss| oss.address == address(host)).map(|oss| oss.first_ost)
    }

    /// The disk of an OST, and the path of an object there.
    fn file_of(&self, ost: u16, object: ObjectId) -> Option<(&MemoryDisk, String)> {
        let host = self.host_of(ost)?;
        let index = ost.checked_sub(self.first_ost(host)?)?;
        let disk = self.hosts.get(host)?.disks.get(usize::from(index))?;
        let name = format!("/{object}");
        let path = disk.paths().into_iter().find(|path| path.ends_with(&name))?;
        Some((disk, path))
    }

    /// What an OST has of an object on its disk, if that is anything.
    fn bytes_of(&self, ost: u16, object: ObjectId) -> Option<Vec<u8>> {
        let (disk, path) = self.file_of(ost, object)?;
        let mut bytes = vec![0; disk.size(&path).ok()? as usize];
        let len = disk.open_to_read(&path).ok()?.read(&mut bytes, 0).ok()?;
        bytes.truncate(len);
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }

    /// Whether an OST has nothing of an object of which others have something.
    fn lacks(&self, row: &Chain, ost: u16, object: ObjectId) -> bool {
        let has = |ost: u16| self.bytes_of(ost, object).is_some();
        let mut others = row.members.iter().map(|member| member.ost).filter(|its| *its != ost);
        !has(ost) && others.any(has)
    }
}

impl Run {
    /// A server is killed or ends, some of its objects are removed, and it starts again. Returns
    /// when the objects are back.
    pub(crate) async fn remove_objects(&self) {
        let Some(probe) = self.probe.borrow().clone() else { return };
        if !self.until(CALMED, || self.is_calm()).await || !self.begins_outage() {
            return;
        }
        let members = self.members.borrow().clone();
        let clients: Vec<_> = members.iter().filter(|member| !member.dead.get()).collect();
        clients.iter().for_each(|client| self.executor.halt(client.machine));
        self.executor.sleep(QUIET).await;
        let host = 1 + self.executor.below(self.hosts.count() as u64 - 1) as usize;
        let mut copies = self.some_removable(host);
        // Who asks for them later may have been evicted.
        if let Some(copy) = copies.first()
            && !self.ask_for(&probe, copy, true).await
        {
            copies.clear();
        }
        let go_on = || clients.iter().for_each(|client| self.executor.go_on(client.machine));
        let (stand_still, is_asked) = (self.executor.one_in(3), self.executor.one_in(2));
        if !copies.is_empty() {
            let removed = || {
                if !stand_still {
                    go_on();
                }
            };
            self.remove(host, &copies, removed).await;
            for copy in copies.iter().filter(|_| stand_still && is_asked) {
                self.ask_for(&probe, copy, true).await;
            }
        }
        go_on();
        if !copies.is_empty() {
            let time = self.up_to(UNASKED);
            self.until(time, || false).await;
        }
        for copy in &copies {
            self.find(&probe, copy).await;
        }
    }

    /// Some of the copies that can be removed from the disks of a machine: of different objects.
    fn some_removable(&self, host: usize) -> Vec<RemovedCopy> {
        let mut all = self.removable(host);
        if !self.hosts.are_whole() {
            return Vec::new();
        }
        let most = 1 + self.executor.below(AT_ONCE);
        let mut some: Vec<RemovedCopy> = Vec::new();
        while (some.len() as u64) < most && !all.is_empty() {
            let one = all.swap_remove(self.executor.below(all.len() as u64) as usize);
            // A file may have several names.
            all.retain(|copy| copy.object != one.object);
            some.push(one);
        }
        some
    }

    /// Whether nothing goes wrong, and nothing that did is still being made good.
    fn is_calm(&self) -> bool {
        let (now, mut hosts) = (self.executor.now(), 0..self.hosts.count());
        !self.cutting_off.get()
            && self.watched_until.get().max(self.calm_until.get()) <= now
            && !self.hosts.mds().mds().is_recovering()
            && hosts.all(|host| self.hosts.has_lost_nothing(host, REPLAYED))
            && self.hosts.are_whole()
    }

    /// Copies on the disks of a machine that all members have, of files that no call uses.
    fn removable(&self, host: usize) -> Vec<RemovedCopy> {
        let (servers, mut found) = (self.hosts.mds(), Vec::new());
        for worker in self.workers.borrow().iter().filter(|worker| !worker.dead.get()) {
            let layouts = worker.layouts.borrow();
            for ino in worker.model.borrow().files_at_rest() {
                let Some(layout) = layouts.get(&ino) else { continue };
                for stripe in 0..layout.stripe_count.max(1) {
                    let (target, object) = (layout.ost_of(stripe, 1), layout.object(ino, stripe));
                    let Some(row) = servers.mds().chains().get(target) else { continue };
                    let is_here = |ost: &u16| self.hosts.host_of(*ost) == Some(host);
                    let Some(ost) = row.readable().find(is_here) else { continue };
                    let Some(bytes) = self.hosts.bytes_of(ost, object) else { continue };
                    let is_same =
                        |other| self.hosts.bytes_of(other, object).as_ref() == Some(&bytes);
                    if row.members.iter().all(|member| is_same(member.ost)) {
                        found.push(RemovedCopy { target, ost, object, bytes });
                    }
                }
            }
        }
        found
    }

    /// Removes copies while their server is down, and calls `removed`. Returns when that server
    /// serves again.
    async fn remove(&self, host: usize, copies: &[RemovedCopy], removed: impl Fn()) {
        let row_of = |copy: &RemovedCopy| self.hosts.mds().mds().chains().get(copy.target);
        let version = |copy| row_of(copy).map_or(0, |row| row.version);
        let before: Vec<u32> = copies.iter().map(version).collect();
        if self.executor.one_in(2) {
            self.hosts.settle_last(host);
        }
        self.hosts.stop(host);
        for RemovedCopy { ost, object, .. } in copies {
            tracing::debug!(host, ost, %object, at = ?self.executor.now(), "a file is removed");
            if let Some((disk, path)) = self.hosts.file_of(*ost, *object) {
                disk.take_away(&path);
            }
        }
        self.count(|outcome| {
            outcome.kills += 1;
            outcome.removed += copies.len() as u64;
        });
        removed();
        self.executor.sleep(self.up_to(QUIET)).await;
        self.hosts.start(host);
        let serves_again = |(copy, before): (&RemovedCopy, &u32)| {
            let now = row_of(copy).filter(|row| row.version > *before);
            now.is_some_and(|row| row.readable().any(|its| its == copy.ost))
        };
        self.until(SYNCED, || copies.iter().zip(&before).all(serves_again)).await;
    }

    /// Asks each member for an object, once. If it is as it `was`, they have to say so.
    /// Returns whether one has said anything.
    async fn ask_for(&self, probe: &Rc<Cluster<Remote>>, copy: &RemovedCopy, was: bool) -> bool {
        let Some(row) = self.hosts.mds().mds().chains().get(copy.target) else { return false };
        let (executor, probe, object) = (self.executor.clone(), probe.clone(), copy.object);
        let asked = async move {
            let mut said = Vec::new();
            for member in row.readable() {
                let chain = ChainVersion { target: row.id.target(), version: row.version };
                let to = Destination { ost: member, chain: Some(chain) };
                said.extend(read(&executor, &probe, to, object).await.map(|bytes| (member, bytes)));
            }
            said
        };
        let said = at(&self.executor, PROBE, asked).await;
        if let Some((member, bytes)) = said.iter().find(|(_, bytes)| was && *bytes != copy.bytes) {
            let (there, here) = (copy.bytes.len(), bytes.len());
            self.fail(format!(
                "OST {} has lost {object} of {there} bytes, and OST {member} says that it has \
                 others: {here}",
                copy.ost
            ));
        }
        !said.is_empty()
    }

    /// Asks for an object until its copy is back, or nobody has anything of it any more.
    async fn find(&self, probe: &Rc<Cluster<Remote>>, copy: &RemovedCopy) {
        let until = self.executor.now() + FOUND;
        while let Some(row) = self.hosts.mds().mds().chains().get(copy.target) {
            let is_whole = row.readable().count() == row.members.len();
            if is_whole && !self.hosts.lacks(&row, copy.ost, copy.object) {
                return;
            }
            if self.executor.now() > until {
                let RemovedCopy { ost, object, .. } = copy;
                return self.fail(format!("OST {ost} has lost {object}, which is not back: {row}"));
            }
            self.ask_for(probe, copy, false).await;
            self.executor.sleep(AGAIN).await;
            self.end_what_failed().await;
        }
    }

    /// Something was wrong.
    pub(crate) fn fail(&self, failure: String) {
        self.failure.borrow_mut().get_or_insert(failure);
    }

    /// Waits until something is so, but not longer than that. Returns whether it is.
    async fn until(&self, limit: Duration, is_so: impl Fn() -> bool) -> bool {
        let until = self.executor.now() + limit;
        while !is_so() {
            if self.executor.now() >= until {
                return false;
            }
            self.executor.sleep(WATCH).await;
            self.end_what_failed().await;
        }
        true
    }
}
