//! Workload of clients, and checks that what they are told is true.

mod peeks;
mod tree;

pub(crate) use tree::SharedTree;

use crate::contested::{Anew, Contested};
use crate::oracle::{Model, Troubles, runs};
use crate::world::executor::Executor;
use crate::world::kernel::SimulatedKernel;
use glint_client::{Caller, Client, Handle, Make, Vfs, WriteHow};
use glint_net::{Cluster, Remote};
use glint_proto::{Errno, FileType, FsResult, Ino, Layout, OpenFlags, RenameFlags, SetAttr};
use std::cell::Cell;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

pub(crate) type Fs = Arc<Client<Cluster<Remote>>>;

/// Names that a worker uses in its own directory.
const NAMES: u64 = 10;
/// Names in the directory that all use.
const SHARED_NAMES: u64 = 4;
/// Edges of stripes over which files are written.
const STRIPES: u64 = 2;
const ROOT: &Caller = &Caller::ROOT;

/// Names in the shared directory: how often each was made, less how often it was removed.
pub(crate) type Tally = Rc<RefCell<BTreeMap<String, i64>>>;

/// A thread of a client.
pub(crate) struct Worker {
    pub(crate) executor: Rc<Executor>,
    pub(crate) fs: Fs,
    /// The kernel of its client, if that has one.
    pub(crate) kernel: Option<Arc<SimulatedKernel>>,
    pub(crate) own: Ino,
    pub(crate) shared: Ino,
    pub(crate) model: Rc<RefCell<Model>>,
    /// The worker's client has died or is being evicted: nobody looks any more at what it does.
    pub(crate) dead: Cell<bool>,
    /// All workers of all clients.
    pub(crate) all: Rc<RefCell<Vec<Rc<Worker>>>>,
    pub(crate) tally: Tally,
    pub(crate) contested: Rc<Contested>,
    /// What all read and change, if clients keep locks.
    pub(crate) tree: Option<Rc<SharedTree>>,
    pub(crate) troubles: Rc<Troubles>,
    /// Size of a stripe, if files are written over more than one.
    pub(crate) stripe: Option<u64>,
    /// A file that stays open from one call to others.
    pub(crate) kept: Cell<Option<(Ino, Handle)>>,
    /// Where its files are.
    pub(crate) layouts: RefCell<BTreeMap<Ino, Layout>>,
}

pub(crate) fn make(kind: FileType) -> Make<'static> {
    Make { mode: kind.mode_bits() | 0o755, umask: 0, rdev: 0, target: b"" }
}

/// All names of a directory.
pub(crate) async fn list(fs: &Fs, directory: Ino) -> FsResult<BTreeSet<String>> {
    let handle = fs.opendir(ROOT, directory).await?;
    let mut names = BTreeSet::new();
    let mut cookie = 2;
    loop {
        let page = fs.readdir(ROOT, handle, cookie, 256, false).await?;
        for entry in &page.entries {
            names.insert(String::from_utf8_lossy(&entry.name).into_owned());
            cookie = entry.cookie;
        }
        if page.entries.is_empty() {
            break;
        }
    }
    fs.release(handle).await?;
    Ok(names)
}

impl Worker {
    fn name(&self) -> String {
        format!("n{}", self.executor.below(NAMES))
    }

    fn bytes(&self) -> Vec<u8> {
        let len = 1 + self.executor.below(300) as usize;
        vec![self.executor.below(256) as u8; len]
    }

    /// Whether a call returned what it must: `None` for an error that it had to, or that there is
    /// no space for anything.
    fn expect<T>(
        &self,
        what: &str,
        got: FsResult<T>,
        want: Result<(), Errno>,
    ) -> Result<Option<T>, String> {
        match (got, want) {
            (Ok(value), Ok(())) => Ok(Some(value)),
            (Err(got), Err(want)) if got == want => Ok(None),
            (Err(Errno::ENOSPC), _) if self.troubles.full.get() => Ok(None),
            (got, want) => Err(format!("{what}: {:?} instead of {want:?}", got.map(drop))),
        }
    }

    /// Whether a call returned what it must, or an error that the disks explain: `None`.
    fn told<T>(&self, what: &str, ino: Option<Ino>, got: FsResult<T>) -> Result<Option<T>, String> {
        self.troubles.told(what, ino, got)
    }

    /// One call, or a few that belong together.
    pub(crate) async fn step(&self) -> Result<(), String> {
        let (one, two) = (self.name(), self.name());
        self.model.borrow_mut().begins(&[&one, &two]);
        let result = match self.executor.below(20) {
            0..=2 => self.create(&one).await,
            3 => self.mkdir(&one).await,
            4 => self.unlink(&one).await,
            5 => self.rmdir(&one).await,
            6 => self.rename(&one, &two).await,
            7 => self.link(&one, &two).await,
            8 => self.overwrite(&one).await,
            9 => self.truncate(&one).await,
            10 => self.verify(&one).await,
            11 => self.verify_names().await,
            12 => self.sync().await,
            13 => self.look_at_others().await,
            14 | 15 => self.contest().await,
            16 => self.use_kept(&one).await,
            17 => match &self.tree {
                Some(tree) => self.use_tree(tree).await,
                None => self.share().await,
            },
            _ => self.share().await,
        };
        // The result of a call that nobody looks at is not known.
        if !self.dead.get() {
            self.model.borrow_mut().ends();
        }
        result
    }

    async fn create(&self, name: &str) -> Result<(), String> {
        let want = match self.model.borrow().names.contains_key(name) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        };
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        let regular = make(FileType::Regular);
        let got = self.fs.create(ROOT, self.own, name.as_bytes(), regular, flags).await;
        let Some(open) = self.expect(&format!("create {name}"), got, want)? else { return Ok(()) };
        self.model.borrow_mut().add(name, open.attr.ino, false);
        self.layouts.borrow_mut().insert(open.attr.ino, open.attr.layout);
        self.write(name, open.attr.ino, open.handle, 0).await?;
        self.release(open.attr.ino, open.handle).await
    }

    async fn write(
        &self,
        name: &str,
        ino: Ino,
        handle: Handle,
        offset: usize,
    ) -> Result<(), String> {
        let data = self.bytes();
        let got = self.fs.write(handle, offset as u64, &data, WriteHow::default()).await;
        let done = self.told(&format!("write {name}"), Some(ino), got)?;
        if let Some(inode) = self.model.borrow_mut().inodes.get_mut(&ino) {
            inode.change(done.is_some(), |content| {
                let end = offset + data.len();
                content.resize(content.len().max(end), 0);
                content[offset..end].copy_from_slice(&data);
            });
        }
        Ok(())
    }

    async fn release(&self, ino: Ino, handle: Handle) -> Result<(), String> {
        self.told("release", Some(ino), self.fs.release(handle).await).map(drop)
    }

    async fn mkdir(&self, name: &str) -> Result<(), String> {
        let want = match self.model.borrow().names.contains_key(name) {
            true => Err(Errno::EEXIST),
            false => Ok(()),
        };
        let got = self.fs.make(ROOT, self.own, name.as_bytes(), make(FileType::Directory)).await;
        if let Some(found) = self.expect(&format!("mkdir {name}"), got, want)? {
            self.model.borrow_mut().add(name, found.attr.ino, true);
        }
        Ok(())
    }

    async fn unlink(&self, name: &str) -> Result<(), String> {
        let want = match self.model.borrow().inode(name) {
            None => Err(Errno::ENOENT),
            Some(inode) if inode.is_dir => Err(Errno::EISDIR),
            Some(_) => Ok(()),
        };
        let got = self.fs.unlink(ROOT, self.own, name.as_bytes()).await;
        if self.expect(&format!("unlink {name}"), got, want)?.is_some() {
            self.model.borrow_mut().remove(name);
        }
        Ok(())
    }

    async fn rmdir(&self, name: &str) -> Result<(), String> {
        let want = match self.model.borrow().inode(name) {
            None => Err(Errno::ENOENT),
            Some(inode) if !inode.is_dir => Err(Errno::ENOTDIR),
            Some(_) => Ok(()),
        };
        let got = self.fs.rmdir(ROOT, self.own, name.as_bytes()).await;
        if self.expect(&format!("rmdir {name}"), got, want)?.is_some() {
            self.model.borrow_mut().remove(name);
        }
        Ok(())
    }

    async fn rename(&self, old: &str, new: &str) -> Result<(), String> {
        let mut after = self.model.borrow().clone();
        let want = after.rename(old, new);
        let (from, to) = ((self.own, old.as_bytes()), (self.own, new.as_bytes()));
        let got = self.fs.rename(ROOT, from, to, RenameFlags::default()).await;
        if self.expect(&format!("rename {old} {new}"), got, want)?.is_some() {
            self.model.replace(after);
        }
        Ok(())
    }

    async fn link(&self, old: &str, new: &str) -> Result<(), String> {
        let Some(ino) = self.model.borrow().names.get(old).copied() else { return Ok(()) };
        let want = match (self.model.borrow().inode(old), self.model.borrow().inode(new)) {
            (Some(inode), _) if inode.is_dir => Err(Errno::EPERM),
            (_, Some(_)) => Err(Errno::EEXIST),
            _ => Ok(()),
        };
        let mut got = self.fs.link(ROOT, ino, self.own, new.as_bytes()).await.map(drop);
        if want.is_ok() && got.is_err_and(|errno| self.troubles.explain(errno, Some(ino))) {
            // link asks an OST for the size of the file after it has linked it.
            let names = self.expect("list", list(&self.fs, self.own).await, Ok(()))?;
            match names.is_some_and(|names| names.contains(new)) {
                true => got = Ok(()),
                false => return Ok(()),
            }
        }
        if self.expect(&format!("link {old} {new}"), got, want)?.is_some() {
            self.model.borrow_mut().link(old, new);
        }
        Ok(())
    }

    /// A name of a file, its number and its size.
    fn file(&self, name: &str) -> Option<(Ino, usize)> {
        let model = self.model.borrow();
        let inode = model.inode(name).filter(|inode| !inode.is_dir)?;
        Some((*model.names.get(name)?, inode.len()))
    }

    /// Offset at which a file of this size is written: inside, behind its end, or over the edge of
    /// a stripe.
    fn offset(&self, size: usize) -> usize {
        let near = self.executor.below(size as u64 + 50);
        let offset = match self.stripe {
            Some(stripe) if self.executor.one_in(4) => {
                (1 + self.executor.below(STRIPES)) * stripe - self.executor.below(300)
            }
            _ => near,
        };
        offset as usize
    }

    /// A file that is open is written and closed some calls later, whatever its name is by then.
    async fn use_kept(&self, name: &str) -> Result<(), String> {
        let Some((ino, handle)) = self.kept.get() else {
            let Some((ino, _)) = self.file(name) else { return Ok(()) };
            let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
            let open = self.told("open", Some(ino), self.fs.open(ROOT, ino, flags).await)?;
            self.kept.set(open.map(|open| (ino, open.handle)));
            return Ok(());
        };
        let size =
            self.model.borrow().inodes.get(&ino).map_or(0, super::oracle::ExpectedInode::len);
        self.write(name, ino, handle, self.offset(size)).await?;
        if self.executor.one_in(3) { self.close_kept().await } else { Ok(()) }
    }

    /// Closes what stayed open.
    pub(crate) async fn close_kept(&self) -> Result<(), String> {
        match self.kept.take() {
            Some((ino, handle)) => self.release(ino, handle).await,
            None => Ok(()),
        }
    }

    async fn overwrite(&self, name: &str) -> Result<(), String> {
        let Some((ino, size)) = self.file(name) else { return Ok(()) };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let open = self.told("open", Some(ino), self.fs.open(ROOT, ino, flags).await)?;
        let Some(open) = open else { return Ok(()) };
        for _ in 0..1 + self.executor.below(3) {
            let offset = self.offset(size);
            self.write(name, ino, open.handle, offset).await?;
            if self.executor.one_in(3) {
                let got = self.fs.fsync(open.handle).await;
                self.told("fsync", Some(ino), got)?;
            }
        }
        self.release(ino, open.handle).await
    }

    async fn truncate(&self, name: &str) -> Result<(), String> {
        let Some((ino, size)) = self.file(name) else { return Ok(()) };
        let to = self.executor.below(2 * size as u64 + 1);
        let set = SetAttr { size: Some(to), ..SetAttr::default() };
        let got = self.fs.setattr(ROOT, ino, &set).await;
        let done = self.told("truncate", Some(ino), got)?;
        if let Some(inode) = self.model.borrow_mut().inodes.get_mut(&ino) {
            inode.change(done.is_some(), |content| content.resize(to as usize, 0));
        }
        Ok(())
    }

    /// A name is what it must be, with all of its content.
    async fn verify(&self, name: &str) -> Result<(), String> {
        let inode = self.model.borrow().inode(name).cloned();
        let want = if inode.is_some() { Ok(()) } else { Err(Errno::ENOENT) };
        let ino = self.model.borrow().names.get(name).copied();
        let got = self.fs.lookup(ROOT, self.own, name.as_bytes()).await;
        let found = match want {
            Ok(()) => self.told(&format!("lookup {name}"), ino, got)?,
            Err(_) => self.expect(&format!("lookup {name}"), got, want)?,
        };
        let (Some(inode), Some(attr)) = (inode, found.map(|found| found.attr)) else {
            return Ok(());
        };
        let is_known = !self.troubles.unwritable.borrow().contains(&attr.ino);
        let size_fits = inode.is_dir || !is_known || inode.may_have_size(attr.size);
        if (Some(attr.ino), attr.nlink) != (ino, inode.links) || !size_fits {
            return Err(format!("{name} is {attr:?}, and must be {ino:?} {inode:?}"));
        }
        if inode.is_dir {
            return Ok(());
        }
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let open = self.told("open", ino, self.fs.open(ROOT, attr.ino, flags).await)?;
        let Some(open) = open else { return Ok(()) };
        let mut data = vec![0; inode.len() + 1];
        let got = self.fs.read(open.handle, 0, &mut data, true).await;
        let n = self.told("read", ino, got)?;
        data.truncate(n.unwrap_or(0));
        self.release(attr.ino, open.handle).await?;
        match n.is_none() || !is_known || inode.may_be(&data) {
            true => Ok(()),
            false => Err(format!(
                "{name} has other content than was written: {}, and must be {}",
                runs(&data),
                runs(&inode.content),
            )),
        }
    }

    async fn verify_names(&self) -> Result<(), String> {
        let got = self.expect("list", list(&self.fs, self.own).await, Ok(()))?.unwrap_or_default();
        let want: BTreeSet<String> = self.model.borrow().names.keys().cloned().collect();
        if got == want { Ok(()) } else { Err(format!("names are {got:?}, and must be {want:?}")) }
    }

    /// Everything.
    pub(crate) async fn verify_all(&self) -> Result<(), String> {
        self.verify_names().await?;
        for n in 0..NAMES {
            self.verify(&format!("n{n}")).await?;
        }
        Ok(())
    }

    async fn contest(&self) -> Result<(), String> {
        let anew = Anew { truncate: self.executor.one_in(3), sync: self.executor.one_in(2) };
        self.contested.turn(&self.fs, &self.dead, Some(anew), &self.troubles).await
    }

    async fn sync(&self) -> Result<(), String> {
        if self.told("sync", None, self.fs.sync().await)?.is_some() {
            self.model.borrow_mut().synced();
        }
        Ok(())
    }

    /// A call on a name that others use, too: it may fail, but not succeed twice.
    async fn share(&self) -> Result<(), String> {
        let name = |n: u64| format!("s{n}");
        let (one, two) =
            (name(self.executor.below(SHARED_NAMES)), name(self.executor.below(SHARED_NAMES)));
        let count = |name: &str, by: i64| {
            *self.tally.borrow_mut().entry(name.to_owned()).or_default() += by;
        };
        let (got, allowed) = match self.executor.below(3) {
            0 => {
                let regular = make(FileType::Regular);
                let got = self.fs.make(ROOT, self.shared, one.as_bytes(), regular).await;
                if got.is_ok() {
                    count(&one, 1);
                }
                (got.map(drop), [Errno::EEXIST, Errno::EEXIST])
            }
            1 => {
                let got = self.fs.unlink(ROOT, self.shared, one.as_bytes()).await;
                if got.is_ok() {
                    count(&one, -1);
                }
                (got.map(drop), [Errno::ENOENT, Errno::ENOENT])
            }
            _ => {
                let flags = RenameFlags { no_replace: true, exchange: false };
                let (from, to) = ((self.shared, one.as_bytes()), (self.shared, two.as_bytes()));
                let got = self.fs.rename(ROOT, from, to, flags).await;
                if got.is_ok() {
                    count(&one, -1);
                    count(&two, 1);
                }
                (got.map(drop), [Errno::ENOENT, Errno::EEXIST])
            }
        };
        match got {
            Err(Errno::ENOSPC) if self.troubles.full.get() => Ok(()),
            Err(errno) if !allowed.contains(&errno) => {
                Err(format!("in the shared directory: {errno}"))
            }
            _ => Ok(()),
        }
    }
}
