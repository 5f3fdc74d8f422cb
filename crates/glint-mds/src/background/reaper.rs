//! Removes what deleted files leave behind: open-unlinked inodes after their last
//! close, and objects. Nobody waits for it.
//!
//! Invariants:
//! - The orphan key of a file is deleted only after its objects are gone from stable storage,
//!   and with them every write to them that a client might still replay. So a crash or a loss
//!   of power at any point leaves work for the next run and never a stray object.
//! - A file whose objects cannot be removed now keeps its key, holds no other file up, and is
//!   tried again; the pauses grow while nothing changes.
//! - Every batch here is bounded, whatever a file has: attributes go page by page.

use crate::background::destroyed::{KeptNumbers, OrphanKey};
use crate::error::errno;
use crate::service::Mds;
use crate::store::keys::{self, Orphan};
use glint_kv::{Batch, Keyspace, Kv, Pair};
use glint_proto::{Errno, FsResult, Ino, Layout, Session, clock};
use std::future::Future;
use std::sync::atomic::Ordering;

/// Orphans handled between two looks at the rest of the world.
const BATCH: usize = 256;

/// The OSTs, as the MDS needs them.
pub trait Targets {
    /// Removes all objects of these files, wherever their layouts put them. Returns the
    /// number of the change.
    fn destroy(&self, files: &[(Ino, Layout)]) -> impl Future<Output = FsResult<u64>>;

    /// Changes up to this number are on stable storage.
    fn durable(&self) -> u64;

    /// Files of which `destroy` could not remove an object, once. Complete for all changes
    /// that an earlier call of `durable` covered.
    fn left(&self) -> Vec<Ino>;

    /// From now on no OST begins anything of a session, whatever its client still sends.
    fn fence(&self, session: u64);

    /// Whether no other server executes anything any more of a session that is fenced.
    fn is_fenced(&self, session: u64) -> bool;

    /// Whether a disk that stands still may hold up a request of a session.
    fn holds_up(&self, _session: &Session) -> bool {
        false
    }
}

impl<K: Kv> Mds<K> {
    /// Evicts clients whose time is over. On a thread of its own: what removes files may wait
    /// for a disk that clients in need of a lock have nothing to do with.
    pub async fn expire(&self, targets: &impl Targets) -> FsResult<()> {
        self.expire_sessions(self.config.lease, targets);
        self.expire_unanswered(self.config.lease, targets);
        // The end of the recovery forgets the clients that were evicted.
        self.end_recovery(targets).await
    }

    /// Removes what is due. Returns whether there may be more to do at once.
    pub async fn reap(&self, targets: &impl Targets) -> FsResult<bool> {
        if self.inodes.load(Ordering::Relaxed) != self.inodes_stored.load(Ordering::Relaxed) {
            self.store_inode_count().await?;
        }
        self.forget_destroyed(targets).await?;
        // Replays of clients may still be about objects that are to be destroyed.
        if self.recovery.is_active() {
            return Ok(false);
        }
        self.orphans.fetch_add(self.opens.let_go(clock::now()), Ordering::AcqRel);
        let due = self.destroyed.lock().retry.take_due(clock::now());
        if self.orphans.swap(0, Ordering::AcqRel) == 0 && !due {
            return Ok(false);
        }
        let begun = clock::now();
        let failed = self.walk_orphans(targets).await;
        let retry = &mut self.destroyed.lock().retry;
        retry.walk = clock::since(begun);
        if failed {
            retry.later(clock::now());
        }
        Ok(self.orphans.load(Ordering::Acquire) > 0)
    }

    /// Has no number of an object that data moves to or from be given again, until the result is
    /// dropped.
    pub fn keep_numbers(&self) -> KeptNumbers<'_> {
        KeptNumbers::new(&self.destroyed)
    }

    /// Does for each orphan what can be done now. Returns whether one of them failed.
    async fn walk_orphans(&self, targets: &impl Targets) -> bool {
        let mut failures = 0u64;
        let mut fails = |ino: Option<Ino>, errno: Errno| {
            if failures == 0 {
                tracing::error!(?ino, %errno, "could not remove a deleted file; it is tried again");
            }
            failures += 1;
        };
        let mut from = Vec::new();
        loop {
            let found = self.kv.scan(Keyspace::Orphan, &from, &[0xff; 9], BATCH);
            let found = match found.await.map_err(errno) {
                Ok(found) => found,
                Err(errno) => {
                    fails(None, errno);
                    break;
                }
            };
            let Some((last, _)) = found.last() else { break };
            from = [last.as_slice(), &[0]].concat();
            let destroyed = self.take_due(&found, &mut fails).await;
            let destroy: Vec<(Ino, Layout)> = destroyed
                .iter()
                .filter_map(|(key, layout)| Some((Ino::from_key(key)?, *layout)))
                .collect();
            let Some((first, _)) = destroy.first().copied() else { continue };
            let begun = clock::now();
            match targets.destroy(&destroy).await {
                Ok(change) => self.destroyed.lock().add(change, &destroyed, begun),
                Err(errno) => fails(Some(first), errno),
            }
        }
        failures > 0
    }

    /// Does for the orphans of a page what needs no OST. Returns the keys and layouts of those whose
    /// objects are to be destroyed.
    ///
    /// The page may be out of date. An inode that is gone never comes back, and its key is deleted by
    /// this task alone, so `Destroy` still holds; everything else is read again under locks.
    async fn take_due(
        &self,
        page: &[Pair],
        fails: &mut impl FnMut(Option<Ino>, Errno),
    ) -> Vec<(OrphanKey, Layout)> {
        let mut due = Vec::new();
        for (key, value) in page {
            let Some(ino) = Ino::from_key(key) else { continue };
            match Orphan::parse(value) {
                Some(Orphan::Open) if self.opens.is_open(ino) => {}
                Some(Orphan::Open) => {
                    // If it has objects, its key now says so and comes next time.
                    if let Err(errno) = self.forget_unlinked(ino).await {
                        fails(Some(ino), errno);
                    }
                }
                Some(Orphan::Planned(_, client)) if self.is_moving(key, client) => {
                    self.destroyed.lock().retry.later(clock::now());
                }
                Some(Orphan::Planned(layout, client)) => {
                    // Its key then says that they are to be destroyed, and comes next time.
                    if let Err(errno) = self.give_up_plan(key, ino, (layout, client)).await {
                        fails(Some(ino), errno);
                    }
                }
                Some(Orphan::Destroy(layout)) => {
                    let mut removed = self.destroyed.lock();
                    if !removed.has(key) && !removed.keeps(key, clock::now()) {
                        due.push((key.clone(), layout));
                    }
                }
                None => tracing::error!(%ino, "damaged orphan key; run `glint fsck`"),
            }
        }
        due
    }

    /// Deletes the keys of files whose objects are gone for good.
    async fn forget_destroyed(&self, targets: &impl Targets) -> FsResult<()> {
        // In this order: see `Targets::left`.
        let durable = targets.durable();
        let left = targets.left();
        let done = {
            let mut destroyed = self.destroyed.lock();
            let done = destroyed.take(durable, &left, self.chains.quiet_from());
            if !left.is_empty() {
                destroyed.retry.later(clock::now());
            }
            done
        };
        if done.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        for key in done {
            batch.delete(Keyspace::Orphan, &key);
        }
        // Clients may not have heard of it yet; after a loss of power they must not write
        // again to what is forgotten now.
        batch.put(Keyspace::Meta, keys::META_DATA_DURABLE, &durable.to_be_bytes());
        let committed = self.kv.commit(batch, &[]).await.map_err(errno).map(drop);
        if committed.is_err() {
            // The inodes are still orphans, and are found again.
            self.destroyed.lock().retry.later(clock::now());
        }
        committed
    }

    /// Deletes the record of an inode without names, unless it was opened or linked
    /// in the meantime.
    async fn forget_unlinked(&self, ino: Ino) -> FsResult<()> {
        use crate::locking::namespace_locks::{Key, Want};
        let _held = self
            .locks
            .acquire(&[Want::exclusive(Key::Dir(ino)), Want::exclusive(Key::Inode(ino))])
            .await;
        let mut batch = Batch::new();
        match self.find_inode(ino).await? {
            Some(_) if self.opens.is_open(ino) => return Ok(()),
            Some(record) if record.attr.nlink == 0 => {
                self.delete_excess_xattrs(&record).await?;
                self.delete_inode(&mut batch, &record).await?;
            }
            _ => batch.delete(Keyspace::Orphan, &ino.key()),
        }
        self.commit_batch(batch).await?;
        Ok(())
    }

    /// Puts into `batch` what removing an inode's last name means.
    pub(crate) async fn drop_inode(
        &self,
        batch: &mut Batch,
        record: &mut crate::store::record::InodeRecord,
    ) -> FsResult<()> {
        let ino = record.attr.ino;
        record.attr.nlink = 0;
        let is_open = self.opens.unlink(ino);
        let later = is_open || self.has_excess_xattrs(record).await?;
        if later {
            if !is_open {
                self.orphans.fetch_add(1, Ordering::AcqRel);
            }
            self.put_inode(batch, record);
            batch.put(Keyspace::Orphan, &ino.key(), &Orphan::Open.value());
        } else {
            self.delete_inode(batch, record).await?;
        }
        Ok(())
    }

    async fn delete_inode(
        &self,
        batch: &mut Batch,
        record: &crate::store::record::InodeRecord,
    ) -> FsResult<()> {
        let ino = record.attr.ino;
        self.delete_xattrs(batch, record).await?;
        batch.delete(Keyspace::Inode, &ino.key());
        if record.attr.is_dir() {
            self.names.forget(ino);
        }
        if record.attr.is_file() && record.has_objects {
            let destroy = Orphan::Destroy(record.attr.layout);
            batch.put(Keyspace::Orphan, &ino.key(), &destroy.value());
            self.orphans.fetch_add(1, Ordering::AcqRel);
        } else {
            batch.delete(Keyspace::Orphan, &ino.key());
        }
        self.inodes.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) async fn store_inode_count(&self) -> FsResult<()> {
        let count = self.inodes.load(Ordering::Relaxed);
        let mut batch = Batch::new();
        batch.put(Keyspace::Meta, keys::META_INODES, &(count.max(0) as u64).to_be_bytes());
        self.kv.commit(batch, &[]).await.map_err(errno)?;
        self.inodes_stored.store(count, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::background::destroyed::RETRY_MIN;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;
    use glint_proto::MetadataService;
    use glint_proto::limits::{XATTR_COUNT_MAX, XATTR_LIST_BYTES_MAX, XATTR_VALUES_BYTES_MAX};
    use glint_proto::{
        Arrival, Cred, FileType, MdsReply, MdsRequest, ObjectAttr, OpenFlags, XattrFlags,
    };
    use std::cell::{Cell, RefCell};
    use std::collections::HashSet;
    use std::time::{Duration, Instant};

    /// OSTs that cannot remove the objects of some files.
    #[derive(Default)]
    struct Stubborn {
        stay: RefCell<HashSet<Ino>>,
        gone: RefCell<HashSet<Ino>>,
        left: RefCell<Vec<Ino>>,
        changes: Cell<u64>,
    }

    impl Targets for Stubborn {
        async fn destroy(&self, files: &[(Ino, Layout)]) -> FsResult<u64> {
            for (ino, _) in files {
                match self.stay.borrow().contains(ino) {
                    true => self.left.borrow_mut().push(*ino),
                    false => drop(self.gone.borrow_mut().insert(*ino)),
                }
            }
            self.changes.set(self.changes.get() + 1);
            Ok(self.changes.get())
        }

        fn durable(&self) -> u64 {
            self.changes.get()
        }

        fn left(&self) -> Vec<Ino> {
            self.left.take()
        }

        fn fence(&self, _: u64) {}

        fn is_fenced(&self, _: u64) -> bool {
            true
        }
    }

    fn start() -> Mds<MemoryKv> {
        let config = Config {
            osts: 1,
            lease: Duration::from_secs(30),
            layout: Layout::default(),
            commit_sync: false,
            after_power_loss: false,
            locks: false,
            mounted: false,
            hash_seed: None,
            boot_verifier: 1,
        };
        block_on(Mds::start(MemoryKv::default(), config)).unwrap()
    }

    fn ask(mds: &Mds<MemoryKv>, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        let arrival = Arrival { now: glint_proto::Timestamp::now(), ..Arrival::default() };
        block_on(mds.handle(&arrival, &Cred::ROOT, request)).reply
    }

    /// Makes a file that has objects.
    fn make(mds: &Mds<MemoryKv>, name: &[u8]) -> Ino {
        let create = MdsRequest::Create {
            parent: Ino::ROOT,
            name,
            mode: FileType::Regular.mode_bits() | 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
            open: Some(OpenFlags { write: true, ..OpenFlags::default() }),
            exclusive: true,
        };
        let Ok(MdsReply::Opened { attr, .. }) = ask(mds, &create) else { panic!("{name:?}") };
        let wrote = Some((1, Some(ObjectAttr { size: 5, ..ObjectAttr::default() })));
        ask(mds, &MdsRequest::Release { ino: attr.ino, write: true, wrote }).unwrap();
        attr.ino
    }

    fn unlink(mds: &Mds<MemoryKv>, name: &[u8]) {
        ask(mds, &MdsRequest::Unlink { parent: Ino::ROOT, name }).unwrap();
    }

    fn set(mds: &Mds<MemoryKv>, ino: Ino, name: &[u8], value: &[u8]) -> FsResult<MdsReply> {
        ask(mds, &MdsRequest::Setxattr { ino, name, value, flags: XattrFlags::default() })
    }

    fn orphans(mds: &Mds<MemoryKv>) -> usize {
        block_on(mds.kv.scan(Keyspace::Orphan, &[], &[0xff; 9], usize::MAX)).unwrap().len()
    }

    fn reap(mds: &Mds<MemoryKv>, targets: &Stubborn) {
        while block_on(mds.reap(targets)).unwrap() {}
    }

    #[test]
    fn a_file_that_cannot_be_removed_holds_no_other_up_and_is_tried_again() {
        let start_time = Instant::now();
        clock::simulate(Some(start_time));
        let (mds, targets) = (start(), Stubborn::default());
        let files: Vec<Ino> = (0..5).map(|n| make(&mds, &[b'a' + n])).collect();
        targets.stay.borrow_mut().insert(files[0]);
        (0..5).for_each(|n| unlink(&mds, &[b'a' + n]));
        reap(&mds, &targets);
        assert_eq!(targets.gone.borrow().len(), 4);
        reap(&mds, &targets);
        assert_eq!(orphans(&mds), 1, "its key is kept, and no other");
        targets.stay.borrow_mut().clear();
        let tries = targets.changes.get();
        reap(&mds, &targets);
        assert_eq!(targets.changes.get(), tries, "not before its time");
        clock::simulate(Some(start_time + RETRY_MIN));
        reap(&mds, &targets);
        reap(&mds, &targets);
        assert!(targets.gone.borrow().contains(&files[0]));
        assert_eq!(orphans(&mds), 0);
        clock::simulate(None);
    }

    /// A walk reads its page first and judges it later.
    #[test]
    fn objects_that_became_the_files_after_the_scan_are_kept() {
        let (mds, targets) = (start(), Stubborn::default());
        let page = || block_on(mds.kv.scan(Keyspace::Orphan, &[], &[0xff; 9], BATCH)).unwrap();
        let take_due = |page: &[Pair]| {
            let mut fails = |ino, errno| panic!("{ino:?}: {errno}");
            block_on(mds.take_due(page, &mut fails))
        };
        let plan = |ino| {
            let from = block_on(mds.inode(ino)).unwrap().attr.layout;
            let request = MdsRequest::PlanLayout { ino, layout: from, avoid: Vec::new() };
            let Ok(MdsReply::Attr(planned)) = ask(&mds, &request) else { panic!("{ino}") };
            (from, planned.layout)
        };
        let moved = make(&mds, b"moved");
        let (from, to) = plan(moved);
        let stale = page();
        ask(&mds, &MdsRequest::SwitchLayout { ino: moved, from, to }).unwrap();
        assert_eq!(take_due(&stale), []);
        let key = keys::orphan_objects(moved, to);
        assert_eq!(block_on(mds.orphan(&key)), Ok(None), "nor at the next walk");

        let given_up = make(&mds, b"given up");
        let (_, planned) = plan(given_up);
        // As after a restart.
        mds.plans.lock().clear();
        assert_eq!(take_due(&page()), [], "it is only given up");
        let key = keys::orphan_objects(given_up, planned);
        assert_eq!(block_on(mds.orphan(&key)), Ok(Some(Orphan::Destroy(planned))));
        reap(&mds, &targets);
        assert_eq!(*targets.gone.borrow(), HashSet::from([given_up]));
    }

    #[test]
    fn attributes_are_bounded_in_number_names_and_values() {
        let mds = start();
        let ino = make(&mds, b"f");
        for n in 0..XATTR_COUNT_MAX {
            set(&mds, ino, format!("user.{n}").as_bytes(), b"").unwrap();
        }
        assert_eq!(set(&mds, ino, b"user.more", b""), Err(Errno::ENOSPC));
        set(&mds, ino, b"user.7", b"changed").unwrap();
        ask(&mds, &MdsRequest::Removexattr { ino, name: b"user.7" }).unwrap();
        set(&mds, ino, b"user.more", b"").unwrap();

        let ino = make(&mds, b"names");
        let many = XATTR_LIST_BYTES_MAX / 256;
        for n in 0..many {
            set(&mds, ino, format!("user.{n:0250}").as_bytes(), b"").unwrap();
        }
        assert_eq!(set(&mds, ino, b"user.x", b""), Err(Errno::ENOSPC));
        let Ok(MdsReply::Bytes(list)) = ask(&mds, &MdsRequest::Listxattr { ino }) else {
            panic!("what can be made can be listed")
        };
        assert_eq!(list.len(), XATTR_LIST_BYTES_MAX);

        let ino = make(&mds, b"values");
        let value = vec![0; XATTR_VALUES_BYTES_MAX / 16];
        for n in 0..16 {
            set(&mds, ino, format!("user.{n}").as_bytes(), &value).unwrap();
        }
        assert_eq!(set(&mds, ino, b"user.x", b"1"), Err(Errno::ENOSPC));
        set(&mds, ino, b"user.3", b"").unwrap();
        set(&mds, ino, b"user.x", b"1").unwrap();
    }

    #[test]
    fn what_has_more_attributes_than_one_batch_deletes_goes_in_several() {
        let (mds, targets) = (start(), Stubborn::default());
        let ino = make(&mds, b"f");
        set(&mds, ino, b"user.0", b"").unwrap();
        // As from before there were limits.
        let mut batch = Batch::new();
        for n in 0..3 * XATTR_COUNT_MAX {
            let key = keys::xattr(ino, format!("user.old {n}").as_bytes());
            batch.put(Keyspace::Xattr, &key, b"");
        }
        block_on(mds.kv.commit(batch, &[])).unwrap();
        unlink(&mds, b"f");
        assert_eq!(
            ask(&mds, &MdsRequest::Lookup { parent: Ino::ROOT, name: b"f" }),
            Err(Errno::ENOENT)
        );
        reap(&mds, &targets);
        reap(&mds, &targets);
        assert_eq!(orphans(&mds), 0);
        let left = block_on(mds.scan_inode(Keyspace::Xattr, ino, usize::MAX)).unwrap();
        assert!(left.is_empty() && targets.gone.borrow().contains(&ino));
        assert!(block_on(mds.find_inode(ino)).unwrap().is_none());
    }
}
