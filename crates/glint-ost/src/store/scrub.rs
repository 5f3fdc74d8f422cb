//! Scrubbing: what the disk gives is compared with its checksums, one object after the other, so
//! that damage is found while somebody still has a copy.
//!
//! Invariants:
//! - Damage is told only of bytes that nobody was changing. The checksums of an object are off
//!   before its first byte changes (`object.rs`), so a mismatch counts only if the same checksums
//!   are still there after it.
//! - Pages in memory do not count, and none stay behind: bytes come from the disk where it can be
//!   told so ([`Disk::open_uncached`]).
//! - Nobody waits for it: no lock of an object is taken, and no open file of the store.
//! - A pass ends: it looks into each directory once.

use crate::disk::{Disk, DiskFile};
use crate::store::checksum::Sums;
use crate::store::object::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX};
use crate::store::object_store::{DIRECTORIES, directory_name, parse_name, path_of};
use glint_proto::{ObjectId, Timestamp};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;
/// Addresses and lengths of reads past the page cache are multiples of this many bytes.
const ALIGNMENT: usize = 4096;
/// Damaged objects that are told one by one; there may be more.
const DAMAGED_TOLD_MAX: usize = 1000;

/// An object that does not match its checksums, or that the disk does not give.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Damage {
    /// Damaged object.
    pub object: ObjectId,
    /// Reason to call it damaged.
    pub reason: String,
}

/// How far the scrubbing of an OST is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScrubReport {
    /// A pass is under way.
    pub is_running: bool,
    /// The part of it that is done, from 0 to 1.
    pub done: f64,
    /// Objects and bytes that were compared in this pass or, between two, in the last one.
    pub objects: u64,
    /// See `objects`.
    pub bytes: u64,
    /// Objects of it that have no checksums, because they changed lately.
    pub unsealed: u64,
    /// Damaged objects, in this pass or the one before.
    pub damaged: u64,
    /// Of them, those that come first.
    pub damage: Vec<Damage>,
    /// End of the last pass.
    pub finished: Option<Timestamp>,
}

/// Result of one step of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScrubStep {
    /// There is no pass.
    Idle,
    /// Bytes read in this step.
    Read(u64),
    /// The pass has ended.
    Ended,
}

/// The scrubbing of a store.
pub(crate) struct Scrubber<F> {
    pass: Mutex<Option<Pass<F>>>,
    /// Apart from the pass, because a step of that may wait for the disk.
    progress: Mutex<Progress>,
}

/// How far it is.
#[derive(Default)]
struct Progress {
    /// Without damage.
    report: ScrubReport,
    /// Number of the pass.
    pass: u64,
    /// Damaged objects, with the pass that found each last: this one or, of objects that it has not
    /// come to yet, the one before.
    found: BTreeMap<ObjectId, (u64, String)>,
}

impl<F> Default for Scrubber<F> {
    fn default() -> Scrubber<F> {
        Scrubber { pass: Mutex::default(), progress: Mutex::default() }
    }
}

/// A pass over all objects.
struct Pass<F> {
    /// The next directory.
    directory: usize,
    /// Objects left of the directory before it, and how many it had.
    objects: Vec<ObjectId>,
    in_directory: usize,
    reading: Option<Reading<F>>,
    buffer: Vec<u8>,
}

/// An object that is being read.
struct Reading<F> {
    object: ObjectId,
    file: F,
    /// The checksums, and as they are stored.
    sums: Sums,
    stored: Vec<u8>,
    block: usize,
    at: u64,
    sum: u32,
}

/// Result of checking an object.
enum Verdict {
    /// Not read to its end.
    More,
    /// Right in all of its bytes.
    Right,
    /// Changing just now, or gone.
    Changing,
    /// Without checksums.
    Unsealed,
    /// Not to be opened now, for a reason that is not its own.
    Later(Errno),
    /// Not what was written, for this reason.
    Damaged(String),
}

fn stored_sums(file: &impl DiskFile) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0u8; ATTRIBUTE_BYTES_MAX];
    let len = file.attribute(ATTRIBUTE, &mut value)?;
    value.truncate(len);
    Ok(value)
}

impl<F: DiskFile> Reading<F> {
    /// Opens an object, if it has checksums.
    fn open(disk: &impl Disk<File = F>, object: ObjectId) -> Result<Reading<F>, Verdict> {
        let file = match disk.open_uncached(&path_of(object)) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Err(Verdict::Changing),
            Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                return Err(Verdict::Later(errno));
            }
            Err(errno) => return Err(Verdict::Damaged(format!("opening it: {errno}"))),
        };
        let stored = match stored_sums(&file) {
            Ok(stored) => stored,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Err(Verdict::Unsealed),
            Err(errno) => return Err(Verdict::Damaged(format!("reading its checksums: {errno}"))),
        };
        let Some(sums) = Sums::decode(&stored) else {
            return Err(Verdict::Damaged("its checksums are damaged".into()));
        };
        Ok(Reading { object, file, sums, stored, block: 0, at: 0, sum: 0 })
    }

    /// Damaged for this reason, if the object still has the checksums that say so.
    fn unless_changed(&self, reason: String) -> Verdict {
        match stored_sums(&self.file) {
            Ok(now) if now == self.stored => Verdict::Damaged(reason),
            _ => Verdict::Changing,
        }
    }

    /// Reads on, no more than a chunk. Returns how much that was.
    fn read(&mut self, disk: &impl Disk<File = F>, buffer: &mut [u8]) -> (u64, Verdict) {
        if self.block == 0 && self.at == 0 {
            match self.file.stat() {
                Ok(stat) if stat.size == self.sums.size() => {}
                Ok(stat) => {
                    let (is, was) = (stat.size, self.sums.size());
                    return (0, self.unless_changed(format!("it has {is} bytes, and had {was}")));
                }
                Err(errno) => return (0, Verdict::Damaged(format!("its state: {errno}"))),
            }
        }
        if self.block == self.sums.blocks() {
            return (0, Verdict::Right);
        }
        let (from, to) = self.sums.block(self.block);
        let left = (to - self.at) as usize;
        let len = left.min(CHUNK_BYTES);
        let n = match self.file.read(&mut buffer[..len.next_multiple_of(ALIGNMENT)], self.at) {
            Ok(n) => n.min(len),
            Err(Errno::INTR) => return (0, Verdict::More),
            Err(Errno::INVAL) => match disk.open(&path_of(self.object)) {
                // The file system cannot read the file in such pieces past the page cache.
                Ok(file) => {
                    self.file = file;
                    return (0, Verdict::More);
                }
                Err(_) => return (0, Verdict::Changing),
            },
            Err(errno) => {
                let reason = format!("reading it at byte {}: {errno}", self.at);
                return (0, self.unless_changed(reason));
            }
        };
        self.sum = crc32c::crc32c_append(self.sum, &buffer[..n]);
        self.at += n as u64;
        if self.at < to && n > 0 {
            return (n as u64, Verdict::More);
        }
        if self.sum != self.sums.expected(self.block) {
            let reason = format!("bytes {from}..{to} do not match their checksum");
            return (n as u64, self.unless_changed(reason));
        }
        (self.block, self.at, self.sum) = (self.block + 1, to, 0);
        let is_last = self.block == self.sums.blocks();
        (n as u64, if is_last { Verdict::Right } else { Verdict::More })
    }
}

impl<F: DiskFile> Pass<F> {
    fn new() -> Pass<F> {
        Pass {
            directory: 0,
            objects: Vec::new(),
            in_directory: 0,
            reading: None,
            buffer: vec![0; CHUNK_BYTES + ALIGNMENT],
        }
    }

    fn done(&self) -> f64 {
        let left = self.objects.len() as f64 / self.in_directory.max(1) as f64;
        (self.directory as f64 - left).max(0.0) / DIRECTORIES as f64
    }

    /// The next object, once those of a directory are known.
    fn next(&mut self, disk: &impl Disk<File = F>) -> io::Result<Option<ObjectId>> {
        while self.objects.is_empty() && self.directory < DIRECTORIES {
            let names = disk.names(&directory_name(self.directory))?;
            self.directory += 1;
            self.objects = names.iter().filter_map(|name| parse_name(name.to_str()?)).collect();
            // Neighbours lie next to each other, and the end comes first.
            self.objects.sort_unstable_by(|a, b| b.cmp(a));
            self.in_directory = self.objects.len();
        }
        Ok(self.objects.pop())
    }

    /// Reads some of an object. Returns how much, and what the object is if that is known now;
    /// `None` at the end.
    fn step(&mut self, disk: &impl Disk<File = F>) -> io::Result<Option<(u64, ObjectId, Verdict)>> {
        let mut reading = match self.reading.take() {
            Some(reading) => reading,
            None => {
                let Some(object) = self.next(disk)? else { return Ok(None) };
                match Reading::open(disk, object) {
                    Ok(reading) => reading,
                    Err(Verdict::Later(errno)) => {
                        self.objects.push(object);
                        return Err(errno.into());
                    }
                    Err(verdict) => return Ok(Some((0, object, verdict))),
                }
            }
        };
        let unaligned = self.buffer.as_ptr().align_offset(ALIGNMENT);
        let (bytes, verdict) = reading.read(disk, &mut self.buffer[unaligned..][..CHUNK_BYTES]);
        let object = reading.object;
        if let Verdict::More = verdict {
            self.reading = Some(reading);
        }
        Ok(Some((bytes, object, verdict)))
    }
}

impl<F: DiskFile> Scrubber<F> {
    /// Begins a pass, unless one is under way.
    pub(crate) fn begin(&self) {
        let mut progress = self.progress.lock();
        if !progress.report.is_running {
            progress.pass += 1;
            let finished = progress.report.finished;
            progress.report = ScrubReport { is_running: true, finished, ..ScrubReport::default() };
        }
    }

    /// Ends the pass that is under way; the next one begins from the start.
    pub(crate) fn stop(&self) {
        self.progress.lock().report.is_running = false;
    }

    /// How far it is.
    pub(crate) fn report(&self) -> ScrubReport {
        let progress = self.progress.lock();
        let told = |(object, (_, reason)): (&ObjectId, &(u64, String))| Damage {
            object: *object,
            reason: reason.clone(),
        };
        ScrubReport {
            damaged: progress.found.len() as u64,
            damage: progress.found.iter().take(DAMAGED_TOLD_MAX).map(told).collect(),
            ..progress.report.clone()
        }
    }

    /// Goes on with the pass that is under way, by a chunk of an object at most. `path` names the
    /// OST. An error says that it could not go on now.
    pub(crate) fn step(&self, disk: &impl Disk<File = F>, path: &Path) -> io::Result<ScrubStep> {
        let mut pass = self.pass.lock();
        if !self.progress.lock().report.is_running {
            *pass = None;
            return Ok(ScrubStep::Idle);
        }
        let pass_now = pass.get_or_insert_with(Pass::new);
        let Some((bytes, object, verdict)) = pass_now.step(disk)? else {
            *pass = None;
            let mut progress = self.progress.lock();
            let Progress { report, pass: ended, found } = &mut *progress;
            // Of others, the objects are gone.
            found.retain(|_, (number, _)| number == ended);
            (report.is_running, report.done) = (false, 1.0);
            report.finished = Some(Timestamp::now());
            return Ok(ScrubStep::Ended);
        };
        let mut progress = self.progress.lock();
        let Progress { report, pass: number, found } = &mut *progress;
        report.done = pass_now.done();
        report.bytes += bytes;
        match verdict {
            Verdict::More => return Ok(ScrubStep::Read(bytes)),
            Verdict::Damaged(reason) => {
                report.objects += 1;
                if !found.contains_key(&object) {
                    let path = path.join("objects").join(path_of(object));
                    tracing::error!(path = %path.display(), ino = object.ino.0, reason,
                        "an object is damaged; restore its file from a copy");
                }
                found.insert(object, (*number, reason));
                return Ok(ScrubStep::Read(bytes));
            }
            Verdict::Right => report.objects += 1,
            Verdict::Unsealed => report.unsealed += 1,
            Verdict::Changing | Verdict::Later(_) => {}
        }
        found.remove(&object);
        Ok(ScrubStep::Read(bytes))
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::Disk;
    use crate::disk::memory::MemoryDisk;
    use crate::store::object_store::path_of;
    use crate::{ObjectStore, ScrubReport, ScrubStep};
    use glint_proto::{Ino, ObjectId};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    /// A whole pass, and what it read.
    fn scrub<D: Disk>(store: &ObjectStore<D>) -> (u64, ScrubReport) {
        store.begin_scrub();
        let mut bytes = 0;
        loop {
            match store.scrub().unwrap() {
                ScrubStep::Read(more) => bytes += more,
                ScrubStep::Ended => return (bytes, store.scrub_report()),
                ScrubStep::Idle => panic!("it has ended before its end"),
            }
        }
    }

    /// Sealed objects of many sizes, in three directories.
    fn filled<D: Disk>(store: &ObjectStore<D>) -> u64 {
        let mut all = 0;
        for (ino, len) in [(1, 1usize), (2, 65_536), (1025, 70_001), (2050, 3 << 20)] {
            let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 4) as u8).collect();
            store.write(object(ino), 0, &data, None, false).unwrap();
            all += len as u64;
        }
        store.settle(Duration::ZERO).unwrap();
        all
    }

    #[test]
    fn damage_is_found_in_any_byte_and_forgotten_when_it_is_gone() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let all = filled(&store);
        let (bytes, report) = scrub(&store);
        assert_eq!((bytes, report.bytes, report.objects, report.damaged), (all, all, 4, 0));
        assert!(!report.is_running && report.done == 1.0 && report.finished.is_some());

        let path = |ino| dir.path().join("objects").join(path_of(object(ino)));
        for (ino, at) in [(1025, 70_000), (2050, 2_500_000)] {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::options().read(true).write(true).open(path(ino)).unwrap();
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 8], at).unwrap();
        }
        std::fs::File::options().write(true).open(path(2)).unwrap().set_len(65_000).unwrap();
        let (_, report) = scrub(&store);
        let told: Vec<(u64, &str)> =
            report.damage.iter().map(|d| (d.object.ino.0, d.reason.as_str())).collect();
        let sums = |from, to| format!("bytes {from}..{to} do not match their checksum");
        let (a, b) = (sums(65536, 70_001), sums(2_490_368, 2_555_904));
        assert_eq!(told, [(2, "it has 65000 bytes, and had 65536"), (1025, &a), (2050, &b)]);
        assert_eq!(report.damaged, 3);

        // One is removed, one written anew, and that one has no checksums yet.
        store.remove(object(2)).unwrap();
        store.truncate(object(1025), 0).unwrap();
        let (_, report) = scrub(&store);
        assert_eq!((report.objects, report.unsealed, report.damaged), (2, 1, 1));
        assert_eq!(report.damage[0].object, object(2050));
    }

    #[test]
    fn a_disk_that_gives_an_error_is_damage_and_a_pass_can_be_stopped() {
        use crate::disk::memory::{DiskOperation, Fault};
        let disk = MemoryDisk::default();
        let store: ObjectStore<MemoryDisk> =
            ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        filled(&store);
        let errno = rustix::io::Errno::IO.raw_os_error();
        disk.fail(Fault::new(DiskOperation::Read, &path_of(object(1025)), errno, 1));
        let (_, report) = scrub(&store);
        assert_eq!(report.damage[0].object, object(1025));
        assert_eq!(scrub(&store).1.damaged, 0, "it was an error that passes");

        store.begin_scrub();
        assert!(matches!(store.scrub(), Ok(ScrubStep::Read(_))));
        store.begin_scrub();
        assert!(store.scrub_report().done > 0.0, "it was under way already");
        store.stop_scrub();
        assert_eq!(store.scrub().unwrap(), ScrubStep::Idle);
        assert!(!store.scrub_report().is_running);
    }

    /// Objects that change while they are read are never called damaged.
    #[test]
    fn what_is_written_meanwhile_is_not_damage() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = Arc::new(ObjectStore::open(dir.path(), 64, Arc::default()).unwrap());
        let ends = Arc::new(AtomicBool::new(false));
        filled(&store);
        let (writing, end) = (store.clone(), ends.clone());
        let writer = std::thread::spawn(move || {
            let mut round = 0u64;
            while !end.load(Ordering::Acquire) {
                round += 1;
                for (ino, len) in [(1, 1), (2, 65_528), (1025, 65_528), (2050, 3 << 20)] {
                    // The large one is read in many steps: what changes is ahead of them.
                    let at = (len / 2).max(round * 70_919 % len);
                    writing.write(object(ino), at, &round.to_le_bytes(), None, false).unwrap();
                }
                writing.settle(Duration::ZERO).unwrap();
            }
            round
        });
        let mut sealed = 0;
        for _ in 0..300 {
            let (_, report) = scrub(&store);
            assert_eq!(report.damage, []);
            sealed += report.objects;
        }
        ends.store(true, Ordering::Release);
        assert!(writer.join().unwrap() > 10 && sealed > 100, "{sealed}");
    }
}
