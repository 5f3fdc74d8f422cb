//! A file of fixed length that is mapped into memory, so that writing to it is a copy and
//! no system call.
//!
//! What is written is in the page cache at once: it survives the death of the process, and
//! `sync` brings it to stable storage. The blocks of the file are allocated when it is
//! made, so a disk that is full shows there and not in the middle of a write. A disk that
//! fails or is taken away under a mapping ends the process (SIGBUS), as it must: nothing
//! could be acknowledged any more.

use memmap2::{Advice, MmapRaw};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A mapped file. Writing takes it exclusively.
pub(crate) struct Segment {
    file: Arc<File>,
    map: Arc<MmapRaw>,
}

impl Segment {
    /// Opens a file of `bytes` bytes, making it that long.
    pub(crate) fn open(path: &Path, bytes: usize) -> io::Result<Segment> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        let have = file.metadata()?.len();
        if have != bytes as u64 {
            file.set_len(bytes as u64)?;
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64) {
                // Some file systems cannot; then a full disk ends the process.
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.into()),
            }
            file.sync_all()?;
        }
        let map = Arc::new(MmapRaw::map_raw(&file)?);
        Ok(Segment { file: Arc::new(file), map })
    }

    /// Length of a file that is there.
    pub(crate) fn len_of(path: &Path) -> Option<usize> {
        std::fs::metadata(path).ok().map(|metadata| metadata.len() as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Copies `parts` one after the other to `at`.
    pub(crate) fn write(&mut self, mut at: usize, parts: &[&[u8]]) {
        for part in parts {
            assert!(part.len() <= self.len() && at <= self.len() - part.len(), "within its length");
            // SAFETY: the range lies within the mapping (checked above), which lives as long
            // as `self`; `self` is borrowed exclusively, so no slice of it exists.
            unsafe {
                let to = self.map.as_mut_ptr().add(at);
                std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
            }
            at += part.len();
        }
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long as it says and lives as long as `self`; it is
        // written only through `&mut self`, and the data directory's lock keeps other
        // processes away.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len()) }
    }

    /// What flushes it, without holding it.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// What prepares its pages, without holding it.
    pub(crate) fn pages(&self) -> Pages {
        Pages(self.map.clone())
    }
}

/// The pages of a segment.
pub(crate) struct Pages(Arc<MmapRaw>);

impl Pages {
    /// Makes pages ready to be written, so that writers do not stop for each.
    pub(crate) fn prepare(&self, from: usize, len: usize) {
        let len = len.min(self.0.len().saturating_sub(from));
        if len > 0 {
            // It is only faster with it.
            let _ = self.0.advise_range(Advice::PopulateWrite, from, len);
        }
    }
}
