//! A file of fixed length that is mapped into memory, so that writing to it is a copy and
//! no system call.
//!
//! What is written is in the page cache at once: it survives the death of the process, and
//! `sync` brings it to stable storage. The blocks of the file are allocated, and shared with
//! no other file, before it is mapped, so a disk that is full shows there and not in the
//! middle of a write. A disk that fails or is taken away under a mapping ends the process (SIGBUS),
//! as it must: nothing could be acknowledged any more.

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const PAGE_BYTES: usize = 4096;
/// Bytes that are written over themselves in one call.
const REWRITE_BYTES: usize = 1 << 20;

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
        if file.metadata()?.len() != bytes as u64 {
            file.set_len(bytes as u64)?;
        }
        // Each time: the length says nothing of blocks, which an attempt on a full disk or a
        // sparse copy may have left out.
        allocate(&file, bytes)?;
        file.sync_all()?;
        let map = Arc::new(MmapRaw::map_raw(&file)?);
        Ok(Segment { file: Arc::new(file), map })
    }

    /// Opens an existing file of any length to read it only; `None` if it has fewer than `least`
    /// bytes.
    pub(crate) fn left(path: &Path, least: usize) -> io::Result<Option<Segment>> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < least as u64 {
            return Ok(None);
        }
        let map = Arc::new(MmapOptions::new().map_raw_read_only(&file)?);
        Ok(Some(Segment { file: Arc::new(file), map }))
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

    /// All bytes of the segment.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is as long as it says and lives as long as `self`; it is
        // written only through `&mut self`, and the data directory's lock keeps other
        // processes away.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len()) }
    }

    /// File handle that flushes the segment without holding it.
    pub(crate) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Makes every later flush fail.
    #[cfg(test)]
    pub(crate) fn refuse_flushes(&mut self) {
        let (pipe, _) = std::io::pipe().unwrap();
        self.file = Arc::new(File::from(std::os::fd::OwnedFd::from(pipe)));
    }

    /// Handle that prepares the segment's pages without holding it.
    pub(crate) fn pages(&self) -> Pages {
        Pages(self.map.clone())
    }
}

/// Gives a file of `bytes` bytes blocks of its own for all of them.
fn allocate(file: &File, bytes: usize) -> io::Result<()> {
    // Where files can share blocks, and only there.
    match rustix::fs::fallocate(file, FallocateFlags::UNSHARE_RANGE, 0, bytes as u64) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes as u64) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => rewrite(file, bytes),
        Err(error) => Err(error.into()),
    }
}

/// Writes a file over itself, which allocates its blocks where nothing else does.
fn rewrite(file: &File, bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; REWRITE_BYTES.min(bytes)];
    let mut at = 0;
    while at < bytes {
        let part = REWRITE_BYTES.min(bytes - at);
        file.read_exact_at(&mut buffer[..part], at as u64)?;
        file.write_all_at(&buffer[..part], at as u64)?;
        at += part;
    }
    Ok(())
}

/// The pages of a segment.
pub(crate) struct Pages(Arc<MmapRaw>);

impl Pages {
    /// Makes pages ready to be written, so that writers do not stop for each.
    ///
    /// Page by page, and not by MADV_POPULATE_WRITE: that holds the lock of the whole address
    /// space, and on a disk that stands still all threads of the process would wait for it.
    pub(crate) fn prepare(&self, from: usize, len: usize) {
        let end = self.0.len().min(from.saturating_add(len));
        for at in (from..end).step_by(PAGE_BYTES) {
            // SAFETY: the byte lies within the mapping, which lives as long as `self`. Whatever
            // is written to it meanwhile, an atomic "or" with nothing leaves it as it is.
            let byte = unsafe { AtomicU8::from_ptr(self.0.as_mut_ptr().add(at)) };
            byte.fetch_or(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    const BYTES: usize = 1 << 20;

    #[test]
    fn a_sparse_file_of_the_right_length_gets_its_blocks() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("segment");
        File::create(&path).unwrap().set_len(BYTES as u64).unwrap();
        assert_eq!(path.metadata().unwrap().blocks(), 0);
        drop(Segment::open(&path, BYTES).unwrap());
        assert!(path.metadata().unwrap().blocks() * 512 >= BYTES as u64);
    }

    #[test]
    fn writing_over_itself_changes_nothing_but_the_blocks() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("segment");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(BYTES as u64 + 5000).unwrap();
        file.write_all_at(b"record", BYTES as u64 + 7).unwrap();
        rewrite(&file, BYTES + 5000).unwrap();
        let mut found = [1; 8];
        file.read_exact_at(&mut found, BYTES as u64 + 6).unwrap();
        assert_eq!(&found, b"\0record\0");
        assert!(path.metadata().unwrap().blocks() * 512 >= BYTES as u64 + 5000);
    }
}
