//! A tree of small files that all clients list, read and change: data that clients read before a
//! program asks for it, and pages that their kernels keep, are seen here.
//!
//! Invariant: a file is full of one value, and the next one is written to all of it, and synced,
//! before another one is begun. A read that begins after that finds the new value, or a newer one.

use crate::oracle::runs;
use crate::workload::peeks::list_to_walk;
use crate::workload::{Fs, ROOT, Worker, make};
use glint_client::{Vfs, WriteHow};
use glint_proto::{Errno, FileType, FsResult, Ino, OpenFlags};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

const DIRECTORIES: usize = 2;
/// Sizes of the files of each: less than a page, one, and more.
const SIZES: [usize; 5] = [100, 1, 4096, 5000, 300];
/// Bytes of a page of a listing, which has all of them.
const LISTING_BYTES: u32 = 4096;
/// How long who reads it does something else in between: what is read ahead comes before the next.
const PAUSE_US_MAX: u64 = 20_000;

/// A file, and the values that it was full of.
struct ValuedFile {
    len: usize,
    /// What was written and synced last.
    synced: Cell<u8>,
    /// What was begun last: another one while it is under way, and for ever if it has failed. Then
    /// each byte may be of either.
    begun: Cell<u8>,
}

impl ValuedFile {
    /// Whether it may be read like this by who began when this was synced.
    fn may_be(&self, synced: u8, data: &[u8]) -> bool {
        let newest = self.begun.get().wrapping_sub(synced);
        data.len() == self.len && data.iter().all(|byte| byte.wrapping_sub(synced) <= newest)
    }
}

/// The tree.
#[derive(Default)]
pub(crate) struct SharedTree {
    directories: Vec<Ino>,
    files: BTreeMap<Ino, ValuedFile>,
}

impl SharedTree {
    pub(crate) async fn make(fs: &Fs) -> FsResult<SharedTree> {
        let mut tree = SharedTree::default();
        for number in 0..DIRECTORIES {
            let (name, kind) = (format!("tree{number}"), make(FileType::Directory));
            let made = fs.make(ROOT, Ino::ROOT, name.as_bytes(), kind).await?;
            let directory = made.attr.ino;
            tree.directories.push(directory);
            for (number, len) in SIZES.into_iter().enumerate() {
                let (name, kind) = (format!("f{number}"), make(FileType::Regular));
                let flags = libc::O_WRONLY;
                let open = fs.create(ROOT, directory, name.as_bytes(), kind, flags).await?;
                fs.write(open.handle, 0, &vec![0; len], WriteHow::default()).await?;
                fs.release(open.handle).await?;
                let (synced, begun) = Default::default();
                tree.files.insert(open.attr.ino, ValuedFile { len, synced, begun });
            }
        }
        fs.sync().await?;
        Ok(tree)
    }

    /// All files of it.
    pub(crate) fn inos(&self) -> Vec<Ino> {
        self.files.keys().copied().collect()
    }
}

/// Whether a call on a file may fail like this: disks fail, are full, or are out of reach for long.
fn may_fail(errno: Errno) -> bool {
    matches!(errno, Errno::EIO | Errno::ENOSPC | Errno::EMFILE)
}

impl Worker {
    /// Reads the tree, or changes a file of it.
    pub(super) async fn use_tree(&self, tree: &SharedTree) -> Result<(), String> {
        match self.executor.one_in(3) {
            true => self.change_tree(tree).await,
            false => self.read_tree(tree, false).await,
        }
    }

    /// Reads all files of the tree, or the first ones, one after the other as they are listed.
    pub(crate) async fn read_tree(&self, tree: &SharedTree, all: bool) -> Result<(), String> {
        for directory in &tree.directories {
            let listed = list_to_walk(&self.fs, *directory, LISTING_BYTES).await;
            let Some(listed) = self.expect("list", listed, Ok(()))? else { continue };
            if listed.len() != SIZES.len() && !self.dead.get() {
                return Err(format!("a directory of the tree has {listed:?}"));
            }
            for (name, ino) in listed {
                let Some(file) = tree.files.get(&ino) else {
                    return Err(format!("the tree has {name}, {ino}"));
                };
                let synced = file.synced.get();
                let read = self.read_whole(*directory, &name, file.len).await;
                if self.dead.get() {
                    return Ok(());
                }
                match read {
                    Ok(data) if file.may_be(synced, &data) => {}
                    Ok(data) => {
                        let (values, newest) = (runs(&data), file.begun.get());
                        return Err(format!(
                            "{name}, {ino} of the tree is {values}, not {} of {synced} to {newest}",
                            file.len
                        ));
                    }
                    Err(errno) if may_fail(errno) => {}
                    Err(errno) => return Err(format!("read {name} of the tree: {errno}")),
                }
                if !all && self.executor.one_in(10) {
                    return Ok(());
                }
                if self.executor.one_in(4) {
                    let pause = Duration::from_micros(self.executor.below(PAUSE_US_MAX));
                    self.executor.sleep(pause).await;
                }
            }
        }
        Ok(())
    }

    /// Opens a file, reads it from the pages of the kernel, if there is one, and closes it.
    async fn read_whole(&self, directory: Ino, name: &str, len: usize) -> FsResult<Vec<u8>> {
        let found = self.fs.lookup(ROOT, directory, name.as_bytes()).await?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = self.fs.open(ROOT, found.attr.ino, flags).await?;
        let read = match &self.kernel {
            Some(kernel) => kernel.read(&self.fs, &open).await,
            None => {
                let mut data = vec![0; len + 1];
                let read = self.fs.read(open.handle, 0, &mut data, true).await;
                read.map(|len| {
                    data.truncate(len);
                    data
                })
            }
        };
        // It may tell of what others could not write.
        let _ = self.fs.release(open.handle).await;
        read
    }

    /// Writes the next value to a file, unless somebody does, or has failed.
    async fn change_tree(&self, tree: &SharedTree) -> Result<(), String> {
        let which = self.executor.below(tree.files.len() as u64) as usize;
        let Some((ino, file)) = tree.files.iter().nth(which) else { return Ok(()) };
        if file.begun != file.synced {
            return Ok(());
        }
        let value = file.begun.get().wrapping_add(1);
        file.begun.set(value);
        let written = self.write_whole(*ino, &vec![value; file.len]).await;
        match written {
            _ if self.dead.get() => Ok(()),
            Ok(()) => {
                file.synced.set(value);
                Ok(())
            }
            Err(errno) if may_fail(errno) => Ok(()),
            Err(errno) => Err(format!("write {ino} of the tree: {errno}")),
        }
    }

    async fn write_whole(&self, ino: Ino, data: &[u8]) -> FsResult<()> {
        let read = self.executor.one_in(2);
        let flags = OpenFlags { read, write: true, ..OpenFlags::default() };
        let handle = self.fs.open(ROOT, ino, flags).await?.handle;
        let written = match &self.kernel {
            Some(kernel) => kernel.write(&self.fs, (ino, handle), data).await,
            None => self.fs.write(handle, 0, data, WriteHow::default()).await,
        };
        let synced = match written {
            Ok(()) => self.fs.fsync(handle).await,
            Err(errno) => Err(errno),
        };
        let released = self.fs.release(handle).await;
        synced.and(released)
    }
}
