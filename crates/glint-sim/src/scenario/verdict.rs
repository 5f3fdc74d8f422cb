//! What must be there at the end of a run: at clients, at servers, and on their disks.

use crate::fuzz::at;
use crate::scenario::{Member, Run, text};
use crate::workload::list;
use crate::world::hosts::{self, Hosts, MDS};
use glint_proto::{Ino, ObjectId};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Longest time that members of chains take to be healed, and former ones to be cleared, once nothing
/// goes wrong any more: pauses between attempts grow.
const HEAL_MAX: Duration = Duration::from_secs(150);
/// The same for objects that files had before they were moved: pauses between attempts grow.
const DESTROY_MAX: Duration = Duration::from_secs(120);

/// Checks the disks at the end, but for objects of these files, or of `any` that is not there.
pub(crate) fn check(hosts: &Hosts, but: &BTreeSet<Ino>, any: bool) -> Result<(), String> {
    hosts.engine.wait_to_read(None);
    let report = futures_lite::future::block_on(glint_mds::check(&hosts.engine, false));
    let report = report.map_err(text)?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("{finding:?}"));
    }
    // Objects of a layout that a file had before it was moved belong to nobody.
    let is_of_file = |object: &ObjectId| match report.files.get(&object.ino) {
        Some(Some(extent)) => extent.layout.stripe_of(*object).is_some(),
        found => found.is_some(),
    };
    let copies = hosts.copies();
    let differ = |object: Option<ObjectId>, copies: &[(String, Vec<u8>)]| {
        let has_one = object.is_some_and(|object| !object.is_of_chain());
        let count = if has_one { 1 } else { hosts.replicas() };
        // One that is not there is as good as an empty one.
        let has_all = copies.len() == count || copies[0].1.is_empty();
        !has_all || copies.windows(2).any(|two| two[0].1 != two[1].1)
    };
    let is_checked = |object: ObjectId| {
        // A hostile client may make objects of its own files at one OST alone, where no file has
        // them.
        let is_theirs = but.contains(&object.ino) && !object.is_of_chain();
        // Nobody reads an object that belongs to no file.
        let is_left = any && !is_of_file(&object);
        !is_theirs && !is_left
    };
    let differing = copies.iter().find(|(name, copies)| {
        let object = object_named(name);
        differ(object, copies) && object.is_none_or(is_checked)
    });
    if let Some((object, copies)) = differing {
        let shown: Vec<_> = copies.iter().map(|(place, bytes)| (place, bytes.len())).collect();
        return Err(format!("copies of {object} differ: {shown:?}"));
    }
    let objects = hosts.objects().into_iter();
    let mut strays = objects.filter(|object| !any && !but.contains(&object.ino));
    match strays.find(|object| !is_of_file(object)) {
        Some(object) => Err(format!("an object belongs to no file: {object}")),
        None => Ok(()),
    }
}

/// The object in a file of this name.
fn object_named(name: &str) -> Option<ObjectId> {
    let (ino, stripe) = name.split_once('.')?;
    let ino = u64::from_str_radix(ino, 16).ok()?;
    Some(ObjectId { ino: Ino(ino), stripe: u16::from_str_radix(stripe, 16).ok()? })
}

impl Run {
    /// Looks through a client that is alive at what others have left.
    async fn verify_by(
        &self,
        witness: &Member,
        members: &[Rc<Member>],
        shared: Option<Ino>,
    ) -> Result<(), String> {
        let forgets = self.locks || self.outcome.get().power_losses > 0;
        let contested = self.contested.borrow().clone();
        if let Some(contested) = contested {
            contested.turn(&witness.fs, &witness.dead, None, &self.troubles).await?;
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
        Ok(())
    }

    /// Looks at everything, through each client that is alive, and ends the servers.
    pub(super) async fn verify(&self, shared: Option<Ino>) -> Result<(), String> {
        let members = self.members.borrow().clone();
        for member in members.iter().filter(|member| !member.dead.get()) {
            for worker in &member.workers {
                worker.verify_all().await?;
            }
            if let [worker, ..] = &member.workers[..]
                && let Some(tree) = &worker.tree
            {
                worker.read_tree(tree, true).await?;
            }
        }
        if let Some(witness) = members.iter().find(|member| !member.dead.get()) {
            self.verify_by(witness, &members, shared).await?;
        }
        for member in members.iter().filter(|member| member.dead.get()) {
            self.executor.kill(member.machine);
            self.executor.network.cut(Some(member.machine));
        }
        // Time for what is deleted to be destroyed, and for the dead to be forgotten.
        self.executor.sleep(3 * hosts::LEASE).await;
        let sessions = self.hosts.mds().mds().sessions().len();
        let alive = members.iter().filter(|member| !member.dead.get()).count();
        let probes = usize::from(self.probe.borrow().is_some());
        let alive = alive + self.hosts.peers() + probes;
        if sessions != alive {
            return Err(format!("{sessions} sessions of {alive} clients"));
        }
        (0..self.hosts.count()).for_each(|host| self.hosts.heal(host));
        self.hosts.restart_failed();
        let healed = self.executor.now() + HEAL_MAX;
        while !self.hosts.are_whole() {
            if self.executor.now() > healed {
                return Err("members of chains are not healed".into());
            }
            self.executor.sleep(Duration::from_millis(100)).await;
        }
        self.await_what_moved().await;
        (0..self.hosts.count()).for_each(|host| self.hosts.stop(host));
        Ok(())
    }

    /// Gives the MDS time to destroy the objects that files had before they were moved. The disks
    /// show whether it did.
    async fn await_what_moved(&self) {
        let until = self.executor.now() + DESTROY_MAX;
        while self.executor.now() < until {
            let servers = self.hosts.mds();
            let kept = async move { servers.mds().moved_and_kept().await };
            if at(&self.executor, self.hosts.machine(MDS), kept).await == Ok(0) {
                return;
            }
            self.executor.sleep(Duration::from_secs(1)).await;
        }
    }
}
