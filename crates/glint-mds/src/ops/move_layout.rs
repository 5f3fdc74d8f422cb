//! Data that moves to other objects: planned, copied by a client, and switched.
//!
//! Invariants:
//! - A layout is switched only while the client that copied the data holds a lock to write all of
//!   it. Whoever gets a lock on the data afterwards is told the layout with it. So nobody reads or
//!   writes where the data was.
//! - Objects that are planned have an orphan key of their own before anything is written to them,
//!   until the file has them; objects that the file had get one with the switch. So no crash leaves
//!   objects that nobody knows.
//! - Objects that the file had are removed only after the switch is on stable storage, and not
//!   before a lease is over: who asked before where the data is may look there meanwhile.
//! - Data is not switched to objects of which a copy may be lost: an OST that was replaced or given
//!   up since the plan gets only what files have. Those who fill it see all switches from before
//!   ([`MoveDoubts`](crate::locking::move_doubts::MoveDoubts)).
//! - Of two layouts of a file the later one has the higher numbers of objects: a plan that another one
//!   has overtaken is given up.
//! - Objects that are planned go to the reaper under the locks of the inode, as they become the
//!   file's: so it never takes those that the file has by then. They stay as long as anything of
//!   their client may be executed, and would make them again.
//! - A size that somebody saw in objects that the file had is not believed after the switch.

use crate::error::{OpResult, errno};
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use crate::store::keys::{self, Orphan};
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::limits::LAYOUTS_KEPT_MAX;
use glint_proto::lock::{Bits, DataLock, Range};
use glint_proto::posix::permit_owner;
use glint_proto::{Attr, Avoided, ClientId, Errno, FsResult, Ino, Layout, MdsReply, clock};
use std::sync::atomic::Ordering;

impl<K: Kv> Mds<K> {
    pub(crate) async fn plan_layout(
        &self,
        context: &Context<'_>,
        ino: Ino,
        mut layout: Layout,
        avoid: &[u16],
    ) -> OpResult {
        // Numbers are chosen here. Those of the file may be of objects with copies, and it shall have none.
        layout.number_objects(0);
        if !layout.is_valid() {
            return Err(Errno::EINVAL.into());
        }
        let _held = self.lock_attributes(context, ino).await;
        let record = self.inode(ino).await?;
        permit_owner(&record.attr, context.cred)?;
        if !record.attr.is_file() || record.attr.nlink == 0 {
            return Err(Errno::EINVAL.into());
        }
        self.need_space(context)?;
        let layout = match &context.arrival.replay {
            Some(MdsReply::Attr(attr)) => attr.layout,
            _ => self.place_anew(&record, layout, avoid).await?,
        };
        let key = keys::orphan_objects(ino, layout);
        let mut batch = Batch::new();
        batch.put(Keyspace::Orphan, &key, &Orphan::Planned(layout, context.client).value());
        // Nobody knows what was replaced between the plan and its replay.
        let doubts = match context.is_replay() {
            true => u64::MAX,
            false => self.doubts.count(),
        };
        self.plans.lock().insert(key.to_vec(), doubts);
        self.destroyed.lock().retry.later(clock::now());
        self.commit(context, batch, MdsReply::Attr(Attr { layout, ..record.attr })).await
    }

    /// Chooses targets and numbers of objects that the file has not, nor had.
    async fn place_anew(
        &self,
        record: &InodeRecord,
        mut layout: Layout,
        avoid: &[u16],
    ) -> FsResult<Layout> {
        let (ino, copies) = (record.attr.ino, layout.replicas);
        if copies > 1 {
            self.make_chains(copies).await.map_err(|error| error.errno())?;
        }
        // Before the table is looked at for a place: it is not looked at twice at once.
        let count = if copies > 1 { self.chains.count(copies) } else { self.osts() };
        let is_avoided = |index: &u16| {
            let one = Layout { first_ost: *index, osts: count, ..layout };
            self.lies_on(one.ost_of(0, self.osts()), avoid)
        };
        let also: Vec<u16> = (0..count).filter(is_avoided).collect();
        let asked = layout.stripe_count;
        let placed = self.with_targets(copies, |count, avoided| {
            let count = count.max(1);
            layout.stripe_count = match asked {
                0 => count,
                stripes => stripes,
            };
            layout.osts = count;
            let with_also = |these: &[u16]| [these, &also[..]].concat();
            let (all, worst) = (with_also(avoided.all), with_also(avoided.worst));
            let gone = with_also(avoided.gone);
            layout.place(ino, count, Avoided { all: &all, worst: &worst, gone: &gone });
            asked <= count
        })?;
        if !placed {
            return Err(Errno::EINVAL);
        }
        // Where OSTs are avoided, it gets as many stripes as fit.
        if (layout.stripe_count < asked && avoid.is_empty())
            || self.has_stripe_on(&layout, self.osts(), avoid)
        {
            return Err(Errno::ENOSPC);
        }
        let from = keys::orphan_objects(ino, Layout::default());
        let to = keys::after(ino);
        let all =
            self.kv.scan(Keyspace::Orphan, &from, &to, LAYOUTS_KEPT_MAX).await.map_err(errno)?;
        let mut others = vec![record.attr.layout];
        for (_, value) in all {
            if let Some(Orphan::Destroy(other) | Orphan::Planned(other, _)) = Orphan::parse(&value)
            {
                others.push(other);
            }
        }
        if others.len() > LAYOUTS_KEPT_MAX {
            return Err(Errno::EAGAIN);
        }
        layout.number_after(&record.attr.layout);
        while let Some(other) = others.iter().find(|other| overlap(other, &layout)) {
            layout.number_after(other);
        }
        if layout.is_valid() { Ok(layout) } else { Err(Errno::EINVAL) }
    }

    /// Whether a stripe lies on one of these OSTs, or on a chain with one of them. A layout without
    /// stated OSTs is over the first `own` ones.
    pub(crate) fn has_stripe_on(&self, layout: &Layout, own: u16, osts: &[u16]) -> bool {
        let mut stripes = 0..layout.stripe_count.max(1);
        stripes.any(|stripe| self.lies_on(layout.ost_of(stripe, own), osts))
    }

    /// Whether a target is one of these OSTs, or a chain with one of them.
    fn lies_on(&self, target: u16, osts: &[u16]) -> bool {
        if osts.is_empty() {
            return false;
        }
        match self.chains.get(target) {
            Some(row) => row.members.iter().any(|member| osts.contains(&member.ost)),
            None => osts.contains(&target),
        }
    }

    pub(crate) async fn switch_layout(
        &self,
        context: &Context<'_>,
        ino: Ino,
        from: Layout,
        to: Layout,
    ) -> OpResult {
        let _held = self.lock_attributes(context, ino).await;
        let mut record = self.inode(ino).await?;
        permit_owner(&record.attr, context.cred)?;
        let (old, new) = (keys::orphan_objects(ino, from), keys::orphan_objects(ino, to));
        if record.attr.layout != to {
            let planned = self.orphan(&new).await?;
            if record.attr.layout != from
                || planned != Some(Orphan::Planned(to, context.client))
                || !self.has_all_data(context, ino)
            {
                return Err(Errno::ESTALE.into());
            }
            if !from.is_before(&to) {
                return Err(Errno::EAGAIN.into());
            }
            let entered = self.doubts.enter();
            if !context.is_replay() && self.plans.lock().get(&new[..]) != Some(&entered.count) {
                return Err(Errno::EAGAIN.into());
            }
            self.claim(context, ino, Bits::ATTR)?;
            record.attr.layout = to;
            let mut batch = Batch::new();
            self.put_inode(&mut batch, &record);
            batch.delete(Keyspace::Orphan, &new);
            batch.put(Keyspace::Orphan, &old, &Orphan::Planned(from, context.client).value());
            self.plans.lock().insert(old.to_vec(), 0);
            self.opens.resized(context.client, ino);
            self.commit_batch(batch).await?;
            drop(entered);
            // Data in the new objects must not be lost with the switch, nor the old ones
            // be removed before it.
            self.kv.sync().await.map_err(errno)?;
            self.plans.lock().remove(&new[..]);
        } else {
            // It was made before, and the answer was lost. Only objects that it was switched from are
            // this client's to destroy.
            let is_of_switch = |orphan| match orphan {
                Orphan::Planned(layout, client) => layout == from && client == context.client,
                Orphan::Destroy(layout) => layout == from,
                _ => false,
            };
            if from == to || !self.orphan(&old).await?.is_some_and(is_of_switch) {
                let reply = MdsReply::Attr(record.attr);
                return self.commit(context, Batch::new(), reply).await;
            }
        }
        self.destroy_later(&old);
        let mut batch = Batch::new();
        batch.put(Keyspace::Orphan, &old, &Orphan::Destroy(from).value());
        self.put_inode(&mut batch, &record);
        let reply = self.commit(context, batch, MdsReply::Attr(record.attr)).await;
        self.plans.lock().remove(&old[..]);
        reply
    }

    /// Objects are no longer looked at by anybody after a lease.
    fn destroy_later(&self, key: &[u8]) {
        let until = clock::now() + self.config.lease;
        let mut destroyed = self.destroyed.lock();
        destroyed.kept.insert(key.to_vec(), until);
        destroyed.retry.at(until);
    }

    pub(crate) async fn drop_layout(
        &self,
        context: &Context<'_>,
        ino: Ino,
        layout: Layout,
    ) -> OpResult {
        let _held = self.lock_attributes(context, ino).await;
        let key = keys::orphan_objects(ino, layout);
        if self.orphan(&key).await? != Some(Orphan::Planned(layout, context.client)) {
            return Ok(MdsReply::Done);
        }
        let mut batch = Batch::new();
        batch.put(Keyspace::Orphan, &key, &Orphan::Destroy(layout).value());
        let reply = self.commit(context, batch, MdsReply::Done).await?;
        self.plans.lock().remove(&key[..]);
        self.orphans.fetch_add(1, Ordering::AcqRel);
        Ok(reply)
    }

    /// Gives objects that nobody copies to any more to the reaper, for its next walk. The plan was
    /// read without locks: if a switch has made them the file's since, they stay.
    pub(crate) async fn give_up_plan(
        &self,
        key: &[u8],
        ino: Ino,
        (layout, client): (Layout, ClientId),
    ) -> FsResult<()> {
        // As a switch takes them. What it has not done yet it finds out of date afterwards.
        let wanted = [Want::exclusive(Key::Dir(ino)), Want::exclusive(Key::Inode(ino))];
        let _held = self.locks.acquire(&wanted).await;
        let planned = self.orphan(key).await? == Some(Orphan::Planned(layout, client));
        // The client may have begun another session, and have planned the same again.
        if !planned || self.is_moving(key, client) {
            self.destroyed.lock().retry.later(clock::now());
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.put(Keyspace::Orphan, key, &Orphan::Destroy(layout).value());
        self.commit_batch(batch).await?;
        self.plans.lock().remove(key);
        self.orphans.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    pub(crate) async fn orphan(&self, key: &[u8]) -> FsResult<Option<Orphan>> {
        let value = self.kv.get(Keyspace::Orphan, key).await.map_err(errno)?;
        Ok(value.and_then(|value| Orphan::parse(value.as_ref())))
    }

    /// Whether nobody but this client reads or writes the data. In a replay it held the lock when
    /// the switch was executed first, and nobody was given one since.
    fn has_all_data(&self, context: &Context<'_>, ino: Ino) -> bool {
        if !self.client_locks.is_used() || context.is_replay() {
            return true;
        }
        let all = DataLock { number: 0, range: Range::ALL, write: true };
        self.client_locks.shard(ino).lock().extents.gives(context.client, ino, all)
    }

    /// Whether a client may still copy to objects that were planned.
    pub(crate) fn is_moving(&self, key: &[u8], client: ClientId) -> bool {
        match client {
            // The client of this process ends with it.
            ClientId::IN_PROCESS => self.plans.lock().contains_key(key),
            // One that is evicted may still write somewhere, until it is forgotten.
            client => self.session(client).is_some(),
        }
    }
}

/// Whether two layouts of a file have an object in common.
fn overlap(one: &Layout, other: &Layout) -> bool {
    let end =
        |layout: &Layout| u32::from(layout.first_object) + u32::from(layout.stripe_count.max(1));
    u32::from(one.first_object) < end(other) && u32::from(other.first_object) < end(one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::{Arrival, Cred, FileType, MdsRequest, MetadataService, OpenFlags, Timestamp};
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn ask(mds: &Mds<MemoryKv>, request: &MdsRequest<'_>) -> FsResult<Layout> {
        let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
        match block_on(mds.handle(&arrival, &Cred::ROOT, request)).reply? {
            MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } => Ok(attr.layout),
            _ => Ok(Layout::default()),
        }
    }

    #[test]
    fn a_layout_is_switched_as_it_was_planned_and_all_other_objects_are_kept_in_mind() {
        let config = Config {
            osts: 3,
            lease: Duration::from_secs(30),
            layout: Layout::default(),
            commit_sync: false,
            after_power_loss: false,
            locks: false,
            mounted: false,
            hash_seed: None,
            boot_verifier: 1,
        };
        let mds = block_on(Mds::start(MemoryKv::default(), config)).unwrap();
        let create = MdsRequest::Create {
            parent: Ino::ROOT,
            name: b"f",
            mode: FileType::Regular.mode_bits() | 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
            open: Some(OpenFlags { write: true, ..OpenFlags::default() }),
            exclusive: true,
        };
        let from = ask(&mds, &create).unwrap();
        let arrival = Arrival { now: Timestamp::now(), ..Arrival::default() };
        let lookup = MdsRequest::Lookup { parent: Ino::ROOT, name: b"f" };
        let Ok(MdsReply::Attr(attr)) = block_on(mds.handle(&arrival, &Cred::ROOT, &lookup)).reply
        else {
            panic!("there is no file")
        };
        let ino = attr.ino;
        let plan = |layout, avoid: &[u16]| {
            ask(&mds, &MdsRequest::PlanLayout { ino, layout, avoid: avoid.to_vec() })
        };
        let two = Layout { stripe_count: 2, ..from };
        let (one, other) = (plan(two, &[]).unwrap(), plan(two, &[]).unwrap());
        assert!(!overlap(&one, &other) && !overlap(&one, &from) && !overlap(&other, &from));
        let narrow = plan(from, &[0, 2]).unwrap();
        assert_eq!(narrow.first_ost, 1);
        assert_eq!(plan(two, &[0, 2]).map(|layout| layout.stripe_count), Ok(1), "as many as fit");
        assert_eq!(plan(two, &[0, 1, 2]), Err(Errno::ENOSPC));

        let switch = |from, to| ask(&mds, &MdsRequest::SwitchLayout { ino, from, to });
        assert_eq!(switch(other, one), Err(Errno::ESTALE), "the data is not there");
        let unplanned = Layout { first_object: 900, ..one };
        assert_eq!(switch(from, unplanned), Err(Errno::ESTALE));
        assert_eq!(switch(from, one), Ok(one));
        assert_eq!(switch(from, other), Err(Errno::ESTALE), "it has moved since");
        let (earlier, later) = (plan(two, &[]).unwrap(), plan(two, &[]).unwrap());
        assert_eq!(switch(one, later), Ok(later));
        assert_eq!(switch(later, earlier), Err(Errno::EAGAIN), "nobody could tell which is later");
        let one = later;
        ask(&mds, &MdsRequest::DropLayout { ino, layout: other }).unwrap();
        let orphan = |layout| block_on(mds.orphan(&keys::orphan_objects(ino, layout))).unwrap();
        assert_eq!(orphan(from), Some(Orphan::Destroy(from)));
        assert_eq!(orphan(other), Some(Orphan::Destroy(other)));
        assert_eq!(orphan(one), None);
        // A switch that is made destroys neither what the file has nor what it never had.
        assert_eq!((switch(one, one), switch(unplanned, one)), (Ok(one), Ok(one)));
        assert_eq!((orphan(one), orphan(unplanned)), (None, None));
        let client = ClientId::IN_PROCESS;
        assert_eq!(orphan(narrow), Some(Orphan::Planned(narrow, client)));
        let is_moving = |layout| mds.is_moving(&keys::orphan_objects(ino, layout), client);
        assert!(is_moving(narrow) && !is_moving(other) && !is_moving(one));
        let leaving = block_on(mds.leaving(narrow.first_ost, 3)).unwrap();
        assert!(leaving > 0);
        assert_eq!(block_on(mds.moved_and_kept()), Ok(1), "several objects of one file");

        let planned = plan(two, &[]).unwrap();
        let said = mds.chains().losses(2, &BTreeSet::new()).number();
        assert_eq!(block_on(mds.give_up_ost(2, &BTreeSet::new(), said)), Ok(0));
        assert_eq!(switch(one, planned), Err(Errno::EAGAIN), "data may have been written there");
        let planned = plan(two, &[]).unwrap();
        assert_eq!(switch(one, planned), Ok(planned));
        let refused = (0..=LAYOUTS_KEPT_MAX).find_map(|_| plan(two, &[]).err());
        assert_eq!(refused, Some(Errno::EAGAIN), "objects of all of them are kept for now");
    }
}
