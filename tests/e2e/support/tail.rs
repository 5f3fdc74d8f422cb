//! The end of a file, where some append and others cut it off.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const RECORD: usize = 16;
/// Appends of one writer between two cuts, at most.
const PART: u64 = 200;

/// Records behind the first `base` bytes of a file: number of the writer and of the record.
///
/// Appends run beside each other; a cut waits until no append is under way, and
/// then everything that was appended has to be there, once and in the order of each writer.
pub struct Tail {
    base: u64,
    quiet: RwLock<()>,
    /// Appends of each of two writers since the last cut: the first and behind the last.
    appended: [[AtomicU64; 2]; 2],
}

impl Tail {
    /// A file of `base` bytes.
    pub fn behind(base: u64) -> Tail {
        Tail { base, quiet: RwLock::default(), appended: Default::default() }
    }

    /// Appends until the end.
    pub fn append(&self, path: &Path, writer: u64, ends: &AtomicBool) {
        let mut file = OpenOptions::new().append(true).open(path).unwrap();
        let [first, behind] = &self.appended[writer as usize];
        while !ends.load(Ordering::Acquire) {
            {
                let _append = self.quiet.read().unwrap();
                let number = behind.load(Ordering::Relaxed);
                if number - first.load(Ordering::Relaxed) < PART {
                    let mut record = [0; RECORD];
                    record[..8].copy_from_slice(&(writer + 1).to_le_bytes());
                    record[8..].copy_from_slice(&number.to_le_bytes());
                    file.write_all(&record).unwrap();
                    behind.store(number + 1, Ordering::Relaxed);
                }
            }
            // Others have to get the lock, too.
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Looks through one of the files, cuts through another one, until the end, and then looks
    /// through all.
    pub fn cut(&self, paths: &[PathBuf], seed: u64, ends: &AtomicBool) {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            let ending = ends.load(Ordering::Acquire);
            {
                let _quiet = self.quiet.write().unwrap();
                for path in paths {
                    if ending || random.bool() {
                        self.check(&File::open(path).unwrap());
                    }
                }
                self.change(&paths[random.usize(..paths.len())], &mut random);
                if ending {
                    return;
                }
            }
            std::thread::sleep(Duration::from_millis(random.u64(..20)));
        }
    }

    /// Everything that was appended is there, and nothing else but zeros.
    fn check(&self, file: &File) {
        let size = file.metadata().unwrap().len();
        assert!(size >= self.base, "the file has {size} bytes");
        let mut found = vec![0; (size - self.base) as usize];
        file.read_exact_at(&mut found, self.base).unwrap();
        let mut next = [0, 1].map(|writer| self.appended[writer][0].load(Ordering::Relaxed));
        for (at, record) in found.chunks(RECORD).enumerate() {
            let word = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().unwrap());
            if record.iter().all(|byte| *byte == 0) {
                continue;
            }
            let (writer, number) = (word(0) as usize, word(8));
            let expected = next.get_mut(writer.wrapping_sub(1));
            let expected = expected.unwrap_or_else(|| panic!("record {at} is {record:?}"));
            assert_eq!(number, *expected, "record {at}, of writer {writer}, in {size} bytes");
            *expected += 1;
        }
        let all = [0, 1].map(|writer| self.appended[writer][1].load(Ordering::Relaxed));
        assert_eq!(next, all, "records of the writers in {size} bytes");
    }

    /// Cuts the tail off, makes the file longer, or reserves space behind it.
    fn change(&self, path: &Path, random: &mut fastrand::Rng) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        let size = file.metadata().unwrap().len();
        match random.u8(..4) {
            0 => file.set_len(size + RECORD as u64 * random.u64(..300)).unwrap(),
            1 => {
                let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, keep, self.base, 1 << 18).unwrap();
            }
            _ => {
                file.set_len(self.base).unwrap();
                for [first, behind] in &self.appended {
                    first.store(behind.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
        drop(file);
    }
}
