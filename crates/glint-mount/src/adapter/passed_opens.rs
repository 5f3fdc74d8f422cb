//! Opens of each file, and which of them the kernel passes through to the object of the file.
//!
//! The kernel takes an open that is passed through (FOPEN_PASSTHROUGH) only while no other open of
//! the file may have pages. As long as there is one, each open of the file has to name the same
//! object, or it fails with EIO; it may be around it (FOPEN_DIRECT_IO): its calls come here, and
//! only its mappings are those of the object.
//!
//! Invariants:
//! - An open counts here before the kernel hears of it, and until after the kernel has closed it.
//!   So what the kernel has is a part of what is counted, and it refuses nothing of what is
//!   answered by the counts.
//! - It may hear of an answer late, and refuses one without an object if it has one by then. So who
//!   writes only, and is in nobody's way else, is until he has asked for something by his handle.
//! - A mapping outlives its open file. Passing through ends when nobody has the object in hand, and
//!   not with the last close. Until then new opens get the object, too, the handle by which it was
//!   handed out is kept, and so is one that may have left a mapping that is stored to.

use glint_client::Handle;
use glint_proto::Ino;
use glint_proto::limits::PASSED_BYTES_MIN;
use glint_wait::Sharded;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

const SHARDS: usize = 64;

/// What an open file may do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenAccess {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// It has no pages, whatever others have.
    pub(crate) around: bool,
}

impl OpenAccess {
    /// Access by flags of open(2).
    pub(crate) fn of(flags: u32) -> OpenAccess {
        let access = flags as i32 & libc::O_ACCMODE;
        OpenAccess {
            reads: access != libc::O_WRONLY,
            writes: access != libc::O_RDONLY,
            around: flags as i32 & libc::O_DIRECT != 0,
        }
    }

    /// Whether it may be mapped and stored to.
    pub(crate) fn may_store(self) -> bool {
        self.reads && self.writes
    }

    /// Whether the kernel can do all that it is opened for.
    fn only_reads(self) -> bool {
        self.reads && !self.writes && !self.around
    }
}

/// An object in the hand of the kernel.
pub(crate) trait InHand {
    /// Whether somebody has it open or mapped.
    fn is_in_use(&self) -> bool;
}

/// An open that gets the object.
pub(crate) struct PassedOpen<B> {
    pub(crate) object: Arc<B>,
    /// Its reads and writes come here all the same.
    pub(crate) around: bool,
}

/// A file that is not passed through any more.
pub(crate) struct EndedPassing<B> {
    /// Closed open files that were kept for it, to be released.
    pub(crate) handles: SmallVec<[Handle; 2]>,
    pub(crate) object: Arc<B>,
    /// Its bytes and times may have changed without a word.
    pub(crate) stores: bool,
}

/// A file that is passed through.
struct PassedFile<B> {
    object: Arc<B>,
    opens: HashSet<Handle>,
    /// Handle by which the object was handed out.
    first: Handle,
    /// Handle that was closed and may have left a mapping that is stored to.
    writer: Option<Handle>,
    stores: bool,
}

struct FileOpens<B> {
    /// Opens that are not passed through and may have pages.
    readers: u32,
    /// Others that are not, of which the kernel may not know yet.
    unheard: HashSet<Handle>,
    passed: Option<PassedFile<B>>,
}

impl<B> Default for FileOpens<B> {
    fn default() -> FileOpens<B> {
        FileOpens { readers: 0, unheard: HashSet::new(), passed: None }
    }
}

impl<B> From<PassedFile<B>> for EndedPassing<B> {
    fn from(passed: PassedFile<B>) -> EndedPassing<B> {
        let handles = std::iter::once(passed.first).chain(passed.writer).collect();
        EndedPassing { handles, object: passed.object, stores: passed.stores }
    }
}

impl<B: InHand> FileOpens<B> {
    /// Ends passing through, if nobody has the object in hand.
    fn end_if_unused(&mut self) -> Option<EndedPassing<B>> {
        let is_over =
            |passed: &mut PassedFile<B>| passed.opens.is_empty() && !passed.object.is_in_use();
        self.passed.take_if(is_over).map(EndedPassing::from)
    }

    fn is_closed(&self) -> bool {
        self.readers == 0 && self.unheard.is_empty() && self.passed.is_none()
    }
}

/// Opens of all files of a mount. Objects are given to its kernel as `B`.
pub(crate) struct PassedOpens<B> {
    shards: Sharded<Mutex<HashMap<Ino, FileOpens<B>>>>,
}

impl<B> Default for PassedOpens<B> {
    fn default() -> PassedOpens<B> {
        PassedOpens { shards: Sharded::new(SHARDS) }
    }
}

impl<B: InHand> PassedOpens<B> {
    fn files(&self, ino: Ino) -> MutexGuard<'_, HashMap<Ino, FileOpens<B>>> {
        self.shards.of(ino.0).lock()
    }

    /// Whether an open would be passed through if it had an object, and one is worth asking for, of
    /// a file of this size, if that is known.
    pub(crate) fn may_begin(&self, ino: Ino, access: OpenAccess, size: Option<u64>) -> bool {
        let is_small = size.is_some_and(|size| size < PASSED_BYTES_MIN);
        !is_small
            && access.only_reads()
            && self.files(ino).get(&ino).is_none_or(FileOpens::is_closed)
    }

    /// Adds an open for which perhaps an object was handed out. Returns which object it gets.
    pub(crate) fn open(
        &self,
        ino: Ino,
        handle: Handle,
        access: OpenAccess,
        handed: Option<B>,
    ) -> Option<PassedOpen<B>> {
        let mut files = self.files(ino);
        let file = files.entry(ino).or_default();
        if file.is_closed()
            && access.only_reads()
            && let Some(object) = handed
        {
            let (object, opens) = (Arc::new(object), HashSet::new());
            file.passed =
                Some(PassedFile { object, opens, first: handle, writer: None, stores: false });
        }
        if let Some(passed) = &mut file.passed {
            passed.opens.insert(handle);
            passed.stores |= access.may_store();
            let object = passed.object.clone();
            return Some(PassedOpen { object, around: !access.only_reads() });
        }
        match access.reads {
            true => file.readers += 1,
            false => _ = file.unheard.insert(handle),
        }
        None
    }

    /// The kernel has asked for something by this handle: it has heard of its open.
    pub(crate) fn hear(&self, ino: Ino, handle: Handle) {
        let mut files = self.files(ino);
        let Some(file) = files.get_mut(&ino) else { return };
        file.unheard.remove(&handle);
        if file.is_closed() {
            files.remove(&ino);
        }
    }

    /// Takes an open away. Returns its handle, if that is to be released now, and what ends with
    /// it.
    pub(crate) fn close(
        &self,
        ino: Ino,
        handle: Handle,
        access: OpenAccess,
    ) -> (Option<Handle>, Option<EndedPassing<B>>) {
        let mut files = self.files(ino);
        let Some(file) = files.get_mut(&ino) else { return (Some(handle), None) };
        let is_passed = file.passed.as_mut().is_some_and(|passed| passed.opens.remove(&handle));
        let mut is_kept = false;
        match &mut file.passed {
            Some(passed) if is_passed => {
                is_kept = handle == passed.first;
                if access.may_store() && passed.writer.is_none() {
                    (passed.writer, is_kept) = (Some(handle), true);
                }
            }
            _ if access.reads => file.readers = file.readers.saturating_sub(1),
            _ => _ = file.unheard.remove(&handle),
        }
        let ended = file.end_if_unused();
        if file.is_closed() {
            files.remove(&ino);
        }
        ((!is_kept).then_some(handle), ended)
    }

    /// Whether the kernel may change bytes and times of a file without a word.
    pub(crate) fn has_stores(&self, ino: Ino) -> bool {
        let files = self.files(ino);
        files.get(&ino).and_then(|file| file.passed.as_ref()).is_some_and(|passed| passed.stores)
    }

    /// Ends passing a file through whose mappings are gone.
    pub(crate) fn end_if_unused(&self, ino: Ino) -> Option<EndedPassing<B>> {
        let mut files = self.files(ino);
        let file = files.get_mut(&ino)?;
        let ended = file.end_if_unused();
        if file.is_closed() {
            files.remove(&ino);
        }
        ended
    }

    /// The same for all files.
    pub(crate) fn end_unused(&self) -> Vec<(Ino, EndedPassing<B>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|ino, file| {
                all.extend(file.end_if_unused().map(|ended| (*ino, ended)));
                !file.is_closed()
            });
        }
        all
    }

    /// Ends passing all files through: the file system was unmounted, so nothing is open.
    pub(crate) fn end_all(&self) -> Vec<(Ino, EndedPassing<B>)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let files = std::mem::take(&mut *shard.lock()).into_iter();
            all.extend(files.filter_map(|(ino, file)| Some((ino, file.passed?.into()))));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    const INO: Ino = Ino(7);

    /// An object, and whether it is mapped.
    #[derive(Clone, Default)]
    struct TestObject(Arc<AtomicBool>);

    impl InHand for TestObject {
        fn is_in_use(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn access(flags: i32) -> OpenAccess {
        OpenAccess::of(flags as u32)
    }

    const READ: i32 = libc::O_RDONLY;
    const WRITE: i32 = libc::O_WRONLY;
    const BOTH: i32 = libc::O_RDWR;

    #[test]
    fn readers_are_passed_through_and_writers_go_around() {
        let (opens, object) = (PassedOpens::<TestObject>::default(), TestObject::default());
        assert!(opens.may_begin(INO, access(READ), None));
        assert!(!opens.may_begin(INO, access(BOTH), None));
        assert!(!opens.may_begin(INO, access(READ | libc::O_DIRECT), None));
        assert!(opens.open(INO, Handle(0), access(WRITE), None).is_none(), "it has no pages");
        assert!(!opens.may_begin(INO, access(READ), None), "the kernel may not know of it yet");
        opens.hear(INO, Handle(0));
        let first = opens.open(INO, Handle(1), access(READ), Some(object)).unwrap();
        assert!(!first.around && !opens.may_begin(INO, access(READ), None));
        assert!(!opens.open(INO, Handle(2), access(READ), None).unwrap().around);
        for (number, flags) in [(3, WRITE), (4, BOTH), (5, READ | libc::O_DIRECT)] {
            assert_eq!(opens.has_stores(INO), number > 4);
            assert!(opens.open(INO, Handle(number), access(flags), None).unwrap().around);
        }
        let close = |number, flags| {
            let (now, ended) = opens.close(INO, Handle(number), access(flags));
            (now, ended.map(|ended| (ended.handles.to_vec(), ended.stores)))
        };
        assert_eq!(close(0, WRITE), (Some(Handle(0)), None));
        assert_eq!(close(1, READ), (None, None), "it keeps the object");
        for (number, flags) in [(3, WRITE), (5, READ | libc::O_DIRECT)] {
            assert_eq!(close(number, flags), (Some(Handle(number)), None));
        }
        assert_eq!(close(4, BOTH), (None, None), "it may be mapped");
        let ended = (vec![Handle(1), Handle(4)], true);
        assert_eq!(close(2, READ), (Some(Handle(2)), Some(ended)));
        assert!(opens.files(INO).is_empty());
    }

    /// One after the other this takes a moment, and minutes if each looks at all.
    #[test]
    fn many_writers_of_one_file_do_not_look_at_each_other() {
        const WRITERS: u64 = 400_000;
        let (opens, begun) = (PassedOpens::<TestObject>::default(), Instant::now());
        for number in 0..WRITERS {
            assert!(opens.open(INO, Handle(number), access(WRITE), None).is_none());
        }
        for number in 0..WRITERS {
            match number % 2 {
                0 => opens.hear(INO, Handle(number)),
                _ => drop(opens.close(INO, Handle(number), access(WRITE))),
            }
        }
        assert!(opens.files(INO).is_empty());
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_has_pages_keeps_them() {
        let opens = PassedOpens::<TestObject>::default();
        assert!(opens.open(INO, Handle(1), access(READ), None).is_none());
        assert!(!opens.may_begin(INO, access(READ), None));
        assert!(opens.open(INO, Handle(2), access(READ), Some(TestObject::default())).is_none());
        for number in [1, 2] {
            let (now, ended) = opens.close(INO, Handle(number), access(READ));
            assert!(now == Some(Handle(number)) && ended.is_none());
        }
        assert!(opens.files(INO).is_empty());
    }

    #[test]
    fn small_files_are_not_asked_for_and_get_what_others_have() {
        let opens = PassedOpens::<TestObject>::default();
        let may_begin = |size| opens.may_begin(INO, access(READ), size);
        assert!(!may_begin(Some(0)) && !may_begin(Some(PASSED_BYTES_MIN - 1)));
        assert!(may_begin(Some(PASSED_BYTES_MIN)) && may_begin(None));
        // It was larger when the first one opened it.
        drop(opens.open(INO, Handle(1), access(READ), Some(TestObject::default())));
        assert!(!may_begin(Some(1)));
        assert!(!opens.open(INO, Handle(2), access(READ), None).unwrap().around);
    }

    #[test]
    fn a_mapping_outlives_its_open_file() {
        let (opens, object) = (PassedOpens::default(), TestObject::default());
        let is_mapped = |mapped| object.0.store(mapped, Ordering::Relaxed);
        drop(opens.open(INO, Handle(1), access(READ), Some(object.clone())));
        is_mapped(true);
        let (now, ended) = opens.close(INO, Handle(1), access(READ));
        assert!(now.is_none() && ended.is_none());
        assert!(opens.end_if_unused(INO).is_none() && opens.end_unused().is_empty());
        assert!(opens.open(INO, Handle(2), access(WRITE), None).unwrap().around);
        is_mapped(false);
        assert!(opens.end_unused().is_empty(), "it is open");
        drop(opens.open(Ino(8), Handle(3), access(READ), Some(object.clone())));
        is_mapped(true);
        let (now, ended) = opens.close(INO, Handle(2), access(WRITE));
        assert!(now == Some(Handle(2)) && ended.is_none());
        let mut ended = opens.end_all();
        ended.sort_unstable_by_key(|(ino, _)| *ino);
        let handles = ended.iter().map(|(ino, ended)| (*ino, ended.handles.to_vec()));
        let all = vec![(INO, vec![Handle(1)]), (Ino(8), vec![Handle(3)])];
        assert_eq!(handles.collect::<Vec<_>>(), all, "whoever has them mapped");
        assert!(opens.files(INO).is_empty());
    }

    /// Opens of one file as the kernel has them.
    #[derive(Default)]
    struct KernelFile {
        passed: usize,
        paged: usize,
    }

    impl KernelFile {
        /// It hears of an open that was answered. Returns whether it takes it.
        fn hear(&mut self, access: OpenAccess, is_passed: bool) -> bool {
            let others = if is_passed { self.paged } else { self.passed };
            match is_passed {
                true => self.passed += 1,
                false => self.paged += usize::from(access.reads),
            }
            others == 0
        }
    }

    proptest! {
        /// Whatever is opened, closed and mapped in any order, and however late an answer or a
        /// close is heard of: the kernel refuses nothing, and each handle is released once.
        #[test]
        fn the_kernel_refuses_nothing(
            steps in proptest::collection::vec((0u8..11, 0usize..8), 0..200)
        ) {
            let (opens, object) = (PassedOpens::<TestObject>::default(), TestObject::default());
            let mut kernel = KernelFile::default();
            let (mut answered, mut open, mut closing) = (Vec::new(), Vec::new(), Vec::new());
            let (mut next, mut released) = (0, HashSet::new());
            for (kind, at) in steps {
                let mut release = |handle: Handle| assert!(released.insert(handle));
                match kind {
                    0..4 => {
                        let flags = [READ, WRITE, BOTH, READ | libc::O_DIRECT][usize::from(kind)];
                        let (handle, access) = (Handle(next), access(flags));
                        next += 1;
                        let is_handed = opens.may_begin(INO, access, None) && at % 4 > 0;
                        let handed = is_handed.then(|| object.clone());
                        let passed = opens.open(INO, handle, access, handed);
                        let passed = passed.map(|passed| passed.around);
                        prop_assert!(passed.is_none_or(|around| around != access.only_reads()));
                        answered.push((handle, access, passed.is_some()));
                    }
                    8 | 9 if !answered.is_empty() => {
                        let (handle, access, passed) = answered.swap_remove(at % answered.len());
                        prop_assert!(kernel.hear(access, passed));
                        open.push((handle, access, passed));
                    }
                    10 if !open.is_empty() => opens.hear(INO, open[at % open.len()].0),
                    4 | 5 if !open.is_empty() => {
                        let (handle, access, passed) = open.swap_remove(at % open.len());
                        match passed {
                            true => kernel.passed -= 1,
                            false => kernel.paged -= usize::from(access.reads),
                        }
                        closing.push((handle, access));
                    }
                    6 if !closing.is_empty() => {
                        let (handle, access) = closing.swap_remove(at % closing.len());
                        let (now, ended) = opens.close(INO, handle, access);
                        let kept = ended.into_iter().flat_map(|ended| ended.handles);
                        now.into_iter().chain(kept).for_each(&mut release);
                    }
                    7 => {
                        // What is open may be mapped; what is mapped may be unmapped.
                        let may_map = kernel.passed > 0 || object.is_in_use();
                        object.0.store(may_map && at % 2 == 0, Ordering::Relaxed);
                        let ended = opens.end_unused().into_iter();
                        ended.flat_map(|(_, ended)| ended.handles).for_each(&mut release);
                    }
                    _ => {}
                }
            }
            object.0.store(false, Ordering::Relaxed);
            let mut release = |handle: Handle| assert!(released.insert(handle));
            let open = open.into_iter().chain(answered);
            let open = open.map(|(handle, access, _)| (handle, access));
            for (handle, access) in closing.into_iter().chain(open) {
                let (now, ended) = opens.close(INO, handle, access);
                let kept = ended.into_iter().flat_map(|ended| ended.handles);
                now.into_iter().chain(kept).for_each(&mut release);
            }
            let ended = opens.end_unused().into_iter();
            ended.flat_map(|(_, ended)| ended.handles).for_each(&mut release);
            prop_assert!(opens.files(INO).is_empty());
            prop_assert_eq!(released.len() as u64, next);
        }
    }
}
