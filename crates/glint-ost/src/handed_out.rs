//! Objects that are handed to the kernel of this host, which reads them without their OST.
//!
//! Invariants:
//! - What had checksums when it was handed out was compared with them since it was opened.
//! - An object that is handed out stays open here: its changes are counted in one place, and
//!   whether others have it open can be told.

use crate::disk::{CallKind, Disk, DiskFile};
use crate::ost_set::OstSet;
use crate::service::Apart;
use crate::store::object::ObjectFile;
use crate::store::object_store::ObjectStore;
use glint_proto::limits::{HAND_OUT_CHECK_BYTES_MAX, HAND_OUT_CHECK_MS_MAX};
use glint_proto::{Errno, FsResult, LocalObject, ObjectId};
use parking_lot::Mutex;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How often it is looked whether an object is alone, and after how long each time.
const ALONE_POLLS_MAX: u32 = 20;
const ALONE_POLL: Duration = Duration::from_millis(1);

/// An object in the hand of the kernel.
struct HandedObject<D: Disk> {
    store: Arc<ObjectStore<D>>,
    object: ObjectId,
    file: Arc<ObjectFile<D::File>>,
    /// The kernel may change it.
    has_stores: Mutex<bool>,
}

impl<D: Disk> LocalObject for HandedObject<D> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.file().descriptor()
    }

    fn size(&self) -> FsResult<u64> {
        self.file.stat().map(|stat| stat.size).map_err(|errno| Errno(errno.raw_os_error()))
    }

    fn is_in_use(&self) -> bool {
        !self.file.file().is_alone()
    }

    fn allow_stores(&self) -> FsResult<()> {
        let mut has_stores = self.has_stores.lock();
        if !*has_stores {
            let sync = |file: &D::File| self.store.flushed("an object", file.sync());
            let allowed = self.store.works().and_then(|()| self.file.begin_stores(sync));
            allowed.map_err(|error| Errno::from_io(&error))?;
            *has_stores = true;
        }
        Ok(())
    }
}

impl<D: Disk> Drop for HandedObject<D> {
    fn drop(&mut self) {
        // Mappings outlive a mount: what they may still change gets no checksums in this run.
        if *self.has_stores.get_mut() && !self.is_in_use() {
            self.store.sealer.note(self.object, Some(self.file.end_stores()));
        }
    }
}

/// What becomes of an object that is asked for.
enum HandOut {
    Handed(Arc<dyn LocalObject>),
    /// There is none, or others have it.
    Refused,
    /// The rest of it has to be compared with its checksums before, which takes too long for the
    /// caller to wait.
    ChecksFirst,
}

/// Whether nobody else has an object open, now or in a moment: while they are at it, a scrub and the
/// loading after a start have one open for a chunk.
fn becomes_alone<F: DiskFile>(file: &ObjectFile<F>) -> bool {
    let is_alone = |is_later: bool| {
        if is_later {
            thread::sleep(ALONE_POLL);
        }
        file.file().is_alone()
    };
    is_alone(false) || (0..ALONE_POLLS_MAX).any(|_| is_alone(true))
}

/// How much of an object is compared with its checksums while its reader waits.
#[derive(Clone, Copy)]
struct CheckBounds {
    /// If more has to be, nothing is.
    bytes: u64,
    /// After this time the rest is left.
    time: Duration,
}

const CHECK_BOUNDS: CheckBounds = CheckBounds {
    bytes: HAND_OUT_CHECK_BYTES_MAX,
    time: Duration::from_millis(HAND_OUT_CHECK_MS_MAX),
};

/// Hands an object out. Blocks that were compared with their checksums since the object was opened
/// or sealed are not compared again.
fn hand_out<D: Disk>(
    store: &Arc<ObjectStore<D>>,
    object: ObjectId,
    bounds: CheckBounds,
) -> io::Result<HandOut> {
    store.works()?;
    let Some(file) = store.file(object, None)? else { return Ok(HandOut::Refused) };
    // Without leases nobody could tell when the kernel is done with it.
    if file.file().descriptor().is_none() || !becomes_alone(&file) {
        return Ok(HandOut::Refused);
    }
    if file.unchecked_bytes()? > bounds.bytes {
        return Ok(HandOut::ChecksFirst);
    }
    let began = Instant::now();
    while file.check_next(true)? {
        if began.elapsed() >= bounds.time {
            return Ok(HandOut::ChecksFirst);
        }
    }
    let (store, has_stores) = (store.clone(), Mutex::new(false));
    Ok(HandOut::Handed(Arc::new(HandedObject { store, object, file, has_stores })))
}

/// Compares an object with its checksums so that it can be handed out later; nothing if that is
/// done for another one.
fn check_behind<D: Disk>(store: &ObjectStore<D>, object: ObjectId) -> io::Result<()> {
    if store.is_checking.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    let check = || -> io::Result<()> {
        let Some(file) = store.file(object, None)? else { return Ok(()) };
        while store.works().is_ok() && file.check_next(false)? {}
        Ok(())
    };
    let checked = check();
    store.is_checking.store(false, Ordering::Release);
    if let Err(error) = &checked {
        tracing::error!(
            %error, %object, path = %store.path().display(),
            "an object is not handed to the kernel"
        );
    }
    checked
}

impl<D: Disk> OstSet<D> {
    /// Hands an object to the kernel of this host; `None` if there is none, or it has to be read
    /// through its OST: a large one until it was compared with its checksums, which begins then.
    pub async fn hand_out(
        &self,
        index: u16,
        object: ObjectId,
    ) -> FsResult<Option<Arc<dyn LocalObject>>> {
        let ost = self.osts.get(usize::from(index)).ok_or(Errno::ENXIO)?;
        let store = ost.store().clone();
        let work = move |_: &ObjectStore<D>| hand_out(&store, object, CHECK_BOUNDS);
        match ost.apart_unless_dropped(CallKind::Long, Apart::default(), work).await {
            Ok(Ok(HandOut::Handed(handed))) => Ok(Some(handed)),
            Ok(Ok(HandOut::Refused)) => Ok(None),
            Ok(Ok(HandOut::ChecksFirst)) => {
                let work = move |store: &ObjectStore<D>| check_behind(store, object);
                // Nobody waits for it.
                drop(ost.apart_unless_dropped(CallKind::Long, Apart::default(), work));
                Ok(None)
            }
            Ok(Err(error)) => Err(Errno::from_io(&error)),
            // It was dropped: there was no thread for it.
            Err(_) => Err(Errno::EAGAIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SpaceGrants;
    use crate::store::checksum::Sums;
    use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
    use crate::store::scrub::ScrubStep;
    use glint_proto::{Ino, Timestamp};
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::Path;
    use std::sync::Barrier;
    use tempfile::TempDir;

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };

    fn store(dir: &Path) -> Arc<ObjectStore> {
        Arc::new(ObjectStore::open(dir, 64, Arc::new(SpaceGrants::default())).unwrap())
    }

    fn path(dir: &Path) -> std::path::PathBuf {
        dir.join("objects").join(crate::store::object_store::path_of(OBJECT))
    }

    fn sums(dir: &Path) -> Option<Sums> {
        let file = File::open(path(dir)).unwrap();
        let mut value = [0u8; ATTRIBUTE_BYTES_MAX];
        let len = rustix::fs::fgetxattr(&file, ATTRIBUTE, &mut value[..]).ok()?;
        Sums::decode(&value[..len])
    }

    fn up_to(bytes: u64) -> CheckBounds {
        CheckBounds { bytes, time: Duration::MAX }
    }

    fn handed(store: &Arc<ObjectStore>) -> io::Result<Option<Arc<dyn LocalObject>>> {
        Ok(match hand_out(store, OBJECT, up_to(200_000))? {
            HandOut::Handed(object) => Some(object),
            HandOut::Refused => None,
            HandOut::ChecksFirst => panic!("it is not larger"),
        })
    }

    fn settle(store: &ObjectStore) {
        store.settle(Duration::ZERO, None).unwrap();
    }

    /// A store with an object of so many bytes, which has checksums.
    fn settled(bytes: usize) -> (TempDir, Arc<ObjectStore>) {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = store(dir.path());
        store.write(OBJECT, 0, &vec![7; bytes], None, false).unwrap();
        settle(&store);
        (dir, store)
    }

    /// The same, opened anew: nothing was compared.
    fn unchecked(bytes: usize) -> (TempDir, Arc<ObjectStore>) {
        let (dir, first) = settled(bytes);
        drop(first);
        let again = store(dir.path());
        (dir, again)
    }

    #[test]
    fn an_object_is_handed_out_if_it_is_right_and_nobody_has_it() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let first = store(dir.path());
        assert!(handed(&first).unwrap().is_none(), "there is none");
        first.write(OBJECT, 0, &[7; 200_000], None, false).unwrap();
        let object = handed(&first).unwrap().unwrap();
        assert!(object.descriptor().is_some() && !object.is_in_use());
        assert_eq!(object.size().unwrap(), 200_000);
        let reader = File::open(path(dir.path())).unwrap();
        assert!(object.is_in_use() && handed(&first).unwrap().is_none());
        drop((reader, object));
        settle(&first);
        drop(first);
        // A bit is flipped where nobody has read.
        let raw = File::options().write(true).open(path(dir.path())).unwrap();
        raw.write_all_at(&[6], 150_000).unwrap();
        drop(raw);
        let again = store(dir.path());
        assert!(handed(&again).is_err());
        let raw = File::options().write(true).open(path(dir.path())).unwrap();
        raw.write_all_at(&[7], 150_000).unwrap();
        drop(raw);
        assert!(handed(&again).unwrap().is_some());
    }

    #[test]
    fn an_object_is_handed_out_while_it_is_scrubbed() {
        let (_dir, store) = settled(3 << 20);
        store.begin_scrub();
        while !matches!(store.scrub(), ScrubStep::Read(bytes) if bytes > 0) {}
        assert_eq!(store.scrub_report().objects, 0, "it is not read to its end");
        let handed = hand_out(&store, OBJECT, up_to(4 << 20)).unwrap();
        assert!(matches!(handed, HandOut::Handed(_)));
        while !matches!(store.scrub(), ScrubStep::Ended) {}
        assert_eq!(store.scrub_report().objects, 1);
    }

    #[test]
    fn a_large_object_is_checked_behind_and_handed_out_later() {
        let (_dir, store) = unchecked(200_000);
        let is_handed = || match hand_out(&store, OBJECT, up_to(100_000)).unwrap() {
            HandOut::Handed(_) => true,
            HandOut::Refused => panic!("it is there"),
            HandOut::ChecksFirst => false,
        };
        assert!(!is_handed());
        store.is_checking.store(true, Ordering::Relaxed);
        check_behind(&store, OBJECT).unwrap();
        assert!(!is_handed(), "another one is being checked");
        store.is_checking.store(false, Ordering::Relaxed);
        check_behind(&store, OBJECT).unwrap();
        assert!(is_handed() && !store.is_checking.load(Ordering::Relaxed));
    }

    #[test]
    fn who_opens_a_file_does_not_wait_for_all_of_a_slow_disk() {
        let (_dir, store) = unchecked(200_000);
        let left = || store.file(OBJECT, None).unwrap().unwrap().unchecked_bytes().unwrap();
        let bounds = CheckBounds { bytes: u64::MAX, time: Duration::ZERO };
        assert!(matches!(hand_out(&store, OBJECT, bounds), Ok(HandOut::ChecksFirst)));
        assert_eq!(left(), 200_000 - (64 << 10), "one block was compared");
        check_behind(&store, OBJECT).unwrap();
        assert_eq!(left(), 0);
        assert!(matches!(hand_out(&store, OBJECT, bounds), Ok(HandOut::Handed(_))));
    }

    #[test]
    fn those_who_open_a_file_at_once_compare_each_block_once() {
        const BLOCKS: u64 = 64;
        let (_dir, store) = settled((BLOCKS as usize) << 16);
        let file = store.file(OBJECT, None).unwrap().unwrap();
        assert_eq!(file.unchecked_bytes().unwrap(), BLOCKS << 16);
        let start = Barrier::new(8);
        let compare = || {
            let mut compared = 0u64;
            start.wait();
            while file.check_next(true).unwrap() {
                compared += 1;
            }
            compared
        };
        let compared: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(compare)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(compared, BLOCKS);
    }

    #[test]
    fn what_was_compared_is_not_compared_again_until_it_changes() {
        let (_dir, store) = settled(200_000);
        let compares_nothing = || {
            let bounds = CheckBounds { bytes: 0, time: Duration::MAX };
            matches!(hand_out(&store, OBJECT, bounds), Ok(HandOut::Handed(_)))
        };
        assert!(!compares_nothing());
        assert!(handed(&store).unwrap().is_some() && compares_nothing());
        store.write(OBJECT, 0, &[8; 10], None, false).unwrap();
        assert!(compares_nothing(), "what has changed has no checksum yet");
        settle(&store);
        assert!(!compares_nothing(), "its checksums are new");
    }

    #[test]
    fn what_the_kernel_may_change_has_no_checksums_until_it_is_done() {
        let (dir, store) = settled(200_000);
        assert!(sums(dir.path()).is_some());
        let past = Timestamp { secs: 1000, nanos: 0 };
        store.set_mtime(OBJECT, past).unwrap();

        let object = handed(&store).unwrap().unwrap();
        assert!(sums(dir.path()).is_some(), "it is only read");
        object.allow_stores().unwrap();
        object.allow_stores().unwrap();
        assert!(sums(dir.path()).is_none());
        let mtime = || store.stat(OBJECT).unwrap().unwrap().mtime;
        assert_eq!(mtime(), past, "nothing was stored");

        let stored = File::options().write(true).open(path(dir.path())).unwrap();
        stored.write_all_at(&[8; 10], 150_000).unwrap();
        drop(stored);
        assert!(mtime() > past);
        store.write(OBJECT, 0, &[9; 10], None, false).unwrap();
        settle(&store);
        store.sync(OBJECT).unwrap();
        assert!(sums(dir.path()).is_none(), "it may change");
        let last = mtime();
        drop(object);
        assert_eq!(mtime(), last);
        settle(&store);
        assert!(sums(dir.path()).is_some());
        assert!(store.check(OBJECT).unwrap().is_some(), "they are those of the stored bytes");
        store.set_mtime(OBJECT, past).unwrap();
        assert_eq!(mtime(), past);
    }
}
