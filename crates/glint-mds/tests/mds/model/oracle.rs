//! The tree as the manual pages say that it is, and the operations on it.

use glint_proto::{Cred, Errno, FileType, FsResult, RenameFlags, XattrFlags};
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(crate) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
pub(crate) const KINDS: [FileType; 4] =
    [FileType::Regular, FileType::Directory, FileType::Directory, FileType::Symlink];
pub(crate) const MODES: [u32; 6] = [0o777, 0o755, 0o1777, 0o700, 0o2775, 0o500];

/// Operation that is asked for. Inodes are numbered in the order in which they were made; a number
/// is taken modulo how many there are.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Make { parent: usize, name: usize, kind: usize, mode: usize },
    Link { inode: usize, parent: usize, name: usize },
    Unlink { parent: usize, name: usize },
    Rmdir { parent: usize, name: usize },
    Rename { from: (usize, usize), to: (usize, usize), flags: u8 },
    Chmod { inode: usize, mode: usize },
    Chown { inode: usize, uid: u32 },
    Lookup { parent: usize, name: usize },
    Getattr { inode: usize },
    List { inode: usize },
    Readlink { inode: usize },
    SetXattr { inode: usize, name: usize, value: u8, flags: u8 },
    GetXattr { inode: usize, name: usize },
    RemoveXattr { inode: usize, name: usize },
}

pub(crate) fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    // The first inodes are asked for more often than those that come later.
    let inode = || prop_oneof![0usize..6, 0usize..64];
    let name = || 0usize..NAMES.len();
    prop_oneof![
        6 => (inode(), name(), 0..KINDS.len(), 0..MODES.len())
            .prop_map(|(parent, name, kind, mode)| Make { parent, name, kind, mode }),
        2 => (inode(), inode(), name())
            .prop_map(|(inode, parent, name)| Link { inode, parent, name }),
        2 => (inode(), name()).prop_map(|(parent, name)| Unlink { parent, name }),
        2 => (inode(), name()).prop_map(|(parent, name)| Rmdir { parent, name }),
        6 => ((inode(), name()), (inode(), name()), 0u8..8)
            .prop_map(|(from, to, flags)| Rename { from, to, flags }),
        1 => (inode(), 0..MODES.len()).prop_map(|(inode, mode)| Chmod { inode, mode }),
        1 => (inode(), 0u32..3).prop_map(|(inode, uid)| Chown { inode, uid }),
        1 => (inode(), name()).prop_map(|(parent, name)| Lookup { parent, name }),
        1 => inode().prop_map(|inode| Getattr { inode }),
        1 => inode().prop_map(|inode| List { inode }),
        1 => inode().prop_map(|inode| Readlink { inode }),
        1 => (inode(), name(), any::<u8>(), 0u8..3)
            .prop_map(|(inode, name, value, flags)| SetXattr { inode, name, value, flags }),
        1 => (inode(), name()).prop_map(|(inode, name)| GetXattr { inode, name }),
        1 => (inode(), name()).prop_map(|(inode, name)| RemoveXattr { inode, name }),
    ]
}

/// Attributes that a caller sees and a model can know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    pub inode: usize,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
}

/// An answer, with numbers of the model in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Done,
    Removed(usize),
    Facts(Facts),
    Names(Vec<(String, usize)>),
    Bytes(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(crate) struct Inode {
    kind: FileType,
    /// Permission bits.
    mode: u32,
    pub nlink: u32,
    uid: u32,
    gid: u32,
    parent: usize,
    entries: BTreeMap<&'static str, usize>,
    pub xattrs: BTreeMap<&'static str, Vec<u8>>,
}

/// The tree as it must be.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub inodes: Vec<Inode>,
}

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;

impl Inode {
    fn permit(&self, who: &Cred, want: u32) -> FsResult<()> {
        let class = match () {
            () if who.uid == 0 => return Ok(()),
            () if who.uid == self.uid => self.mode >> 6,
            () if who.gid == self.gid => self.mode >> 3,
            () => self.mode,
        };
        if class & want == want { Ok(()) } else { Err(Errno::EACCES) }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    fn must_be_owned(&self, who: &Cred) -> FsResult<()> {
        if who.uid == 0 || who.uid == self.uid { Ok(()) } else { Err(Errno::EPERM) }
    }
}

fn must(condition: bool, errno: Errno) -> FsResult<()> {
    if condition { Ok(()) } else { Err(errno) }
}

impl Model {
    pub(crate) fn new() -> Model {
        let (kind, entries, xattrs) = (FileType::Directory, BTreeMap::new(), BTreeMap::new());
        let (mode, nlink, uid, gid, parent) = (0o755, 2, 0, 0, 0);
        Model { inodes: vec![Inode { kind, mode, nlink, uid, gid, parent, entries, xattrs }] }
    }

    /// Directories that were ever made: a kernel asks for nothing in anything else.
    pub(crate) fn directory(&self, number: usize) -> usize {
        let directories: Vec<usize> =
            (0..self.inodes.len()).filter(|inode| self.inodes[*inode].is_dir()).collect();
        directories[number % directories.len()]
    }

    pub(crate) fn facts(&self, number: usize) -> Facts {
        let inode = &self.inodes[number];
        let size = if inode.kind == FileType::Symlink { 6 } else { 0 };
        let mode = inode.kind.mode_bits() | inode.mode;
        Facts { inode: number, mode, nlink: inode.nlink, uid: inode.uid, gid: inode.gid, size }
    }

    fn live(&self, number: usize) -> FsResult<&Inode> {
        let inode = &self.inodes[number];
        must(inode.nlink > 0, Errno::ESTALE)?;
        Ok(inode)
    }

    fn entry(&self, parent: usize, name: &str) -> FsResult<usize> {
        self.inodes[parent].entries.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn permit_change(&self, parent: usize, who: &Cred) -> FsResult<()> {
        let parent = &self.inodes[parent];
        must(parent.nlink > 0, Errno::ENOENT)?;
        parent.permit(who, WRITE | SEARCH)
    }

    fn permit_removal(&self, parent: usize, inode: usize, who: &Cred) -> FsResult<()> {
        let (parent, inode) = (&self.inodes[parent], &self.inodes[inode]);
        let is_owner = [0, parent.uid, inode.uid].contains(&who.uid);
        must(parent.mode & 0o1000 == 0 || is_owner, Errno::EPERM)
    }

    /// A name goes.
    fn remove(&mut self, parent: usize, name: &str) {
        let Some(number) = self.inodes[parent].entries.remove(name) else { return };
        if self.inodes[number].is_dir() {
            self.inodes[number].nlink = 0;
            self.inodes[parent].nlink -= 1;
        } else {
            self.inodes[number].nlink -= 1;
        }
    }

    /// An entry comes; it is neither made nor counted by this.
    fn put(&mut self, parent: usize, name: &'static str, number: usize) {
        self.inodes[parent].entries.insert(name, number);
        if self.inodes[number].is_dir() {
            self.inodes[number].parent = parent;
            self.inodes[parent].nlink += 1;
        }
    }

    /// An entry goes whose inode gets another.
    fn take(&mut self, parent: usize, name: &str) {
        if let Some(number) = self.inodes[parent].entries.remove(name)
            && self.inodes[number].is_dir()
        {
            self.inodes[parent].nlink -= 1;
        }
    }

    fn make(
        &mut self,
        who: &Cred,
        (parent, name): (usize, &'static str),
        kind: FileType,
        mode: u32,
    ) -> FsResult<Told> {
        let directory = &self.inodes[parent];
        must(directory.nlink > 0, Errno::ENOENT)?;
        if directory.entries.contains_key(name) {
            directory.permit(who, SEARCH)?;
            return Err(Errno::EEXIST);
        }
        directory.permit(who, WRITE | SEARCH)?;
        let of_group = directory.mode & 0o2000 != 0;
        let gid = if of_group { directory.gid } else { who.gid };
        let is_dir = kind == FileType::Directory;
        let mode = match kind {
            FileType::Symlink => mode | 0o777,
            FileType::Directory if of_group => mode | 0o2000,
            _ => mode,
        };
        let (nlink, entries, xattrs) = (1 + u32::from(is_dir), BTreeMap::new(), BTreeMap::new());
        self.inodes.push(Inode { kind, mode, nlink, uid: who.uid, gid, parent, entries, xattrs });
        let number = self.inodes.len() - 1;
        self.put(parent, name, number);
        Ok(Told::Facts(self.facts(number)))
    }

    fn link(&mut self, who: &Cred, number: usize, at: (usize, &'static str)) -> FsResult<Told> {
        self.permit_change(at.0, who)?;
        must(self.inodes[number].nlink > 0, Errno::ENOENT)?;
        must(!self.inodes[number].is_dir(), Errno::EPERM)?;
        must(self.entry(at.0, at.1).is_err(), Errno::EEXIST)?;
        self.inodes[number].nlink += 1;
        self.put(at.0, at.1, number);
        Ok(Told::Facts(self.facts(number)))
    }

    fn unlink(&mut self, who: &Cred, parent: usize, name: &str) -> FsResult<Told> {
        let number = self.entry(parent, name)?;
        self.permit_change(parent, who)?;
        self.permit_removal(parent, number, who)?;
        must(!self.inodes[number].is_dir(), Errno::EISDIR)?;
        self.remove(parent, name);
        Ok(Told::Removed(number))
    }

    fn rmdir(&mut self, who: &Cred, parent: usize, name: &str) -> FsResult<Told> {
        let number = self.entry(parent, name)?;
        self.permit_change(parent, who)?;
        self.permit_removal(parent, number, who)?;
        must(self.inodes[number].is_dir(), Errno::ENOTDIR)?;
        must(self.inodes[number].entries.is_empty(), Errno::ENOTEMPTY)?;
        self.remove(parent, name);
        Ok(Told::Removed(number))
    }

    /// Whether a directory may get another parent: not one inside of itself.
    fn permit_move(&self, who: &Cred, number: usize, parent: usize) -> FsResult<()> {
        if !self.inodes[number].is_dir() {
            return Ok(());
        }
        let mut ancestor = parent;
        while ancestor != 0 {
            must(ancestor != number, Errno::EINVAL)?;
            ancestor = self.inodes[ancestor].parent;
        }
        self.inodes[number].permit(who, WRITE)
    }

    fn rename(
        &mut self,
        who: &Cred,
        from: (usize, &'static str),
        to: (usize, &'static str),
        flags: RenameFlags,
    ) -> FsResult<Told> {
        must(!(flags.exchange && flags.no_replace), Errno::EINVAL)?;
        let source = self.entry(from.0, from.1)?;
        let target = self.entry(to.0, to.1).ok();
        for parent in [from.0, to.0] {
            must(self.inodes[parent].nlink > 0, Errno::ENOENT)?;
        }
        self.permit_change(from.0, who)?;
        self.permit_change(to.0, who)?;
        self.permit_removal(from.0, source, who)?;
        if let Some(target) = target {
            self.permit_removal(to.0, target, who)?;
        }
        must(!flags.no_replace || target.is_none(), Errno::EEXIST)?;
        must(!flags.exchange || target.is_some(), Errno::ENOENT)?;
        if target == Some(source) {
            return Ok(Told::Done);
        }
        if from.0 != to.0 {
            self.permit_move(who, source, to.0)?;
            if let Some(target) = target.filter(|_| flags.exchange) {
                self.permit_move(who, target, from.0)?;
            }
        }
        let Some(target) = target else {
            self.take(from.0, from.1);
            self.put(to.0, to.1, source);
            return Ok(Told::Done);
        };
        if flags.exchange {
            self.take(from.0, from.1);
            self.take(to.0, to.1);
            self.put(from.0, from.1, target);
            self.put(to.0, to.1, source);
            return Ok(Told::Done);
        }
        match (self.inodes[source].is_dir(), self.inodes[target].is_dir()) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) => must(self.inodes[target].entries.is_empty(), Errno::ENOTEMPTY)?,
            (false, false) => {}
        }
        self.remove(to.0, to.1);
        self.take(from.0, from.1);
        self.put(to.0, to.1, source);
        Ok(Told::Removed(target))
    }

    fn chmod(&mut self, who: &Cred, number: usize, mode: u32) -> FsResult<Told> {
        let inode = self.live(number)?;
        inode.must_be_owned(who)?;
        let is_foreign = who.uid != 0 && who.gid != inode.gid;
        self.inodes[number].mode = if is_foreign { mode & !0o2000 } else { mode };
        Ok(Told::Facts(self.facts(number)))
    }

    fn chown(&mut self, who: &Cred, number: usize, uid: u32) -> FsResult<Told> {
        let inode = self.live(number)?;
        must(who.uid == 0 || (uid == inode.uid && uid == who.uid), Errno::EPERM)?;
        let takes = match inode.mode {
            _ if inode.is_dir() => 0,
            mode if mode & 0o010 != 0 || (who.uid != 0 && who.gid != inode.gid) => 0o6000,
            _ => 0o4000,
        };
        let inode = &mut self.inodes[number];
        (inode.uid, inode.mode) = (uid, inode.mode & !takes);
        Ok(Told::Facts(self.facts(number)))
    }

    pub(crate) fn list(&self, who: &Cred, number: usize) -> FsResult<Told> {
        let inode = self.live(number)?;
        must(inode.is_dir(), Errno::ENOTDIR)?;
        inode.permit(who, READ)?;
        let mut names = vec![(".".to_owned(), number), ("..".to_owned(), inode.parent)];
        names.extend(inode.entries.iter().map(|(name, inode)| ((*name).to_owned(), *inode)));
        Ok(Told::Names(names))
    }

    fn change_xattrs(&mut self, number: usize) -> FsResult<&mut BTreeMap<&'static str, Vec<u8>>> {
        let inode = &mut self.inodes[number];
        must(inode.nlink > 0, Errno::ESTALE)?;
        must(inode.kind != FileType::Symlink, Errno::EPERM)?;
        Ok(&mut inode.xattrs)
    }

    pub(crate) fn execute(&mut self, who: &Cred, operation: &Operation) -> FsResult<Told> {
        let inode = |number: usize| number % self.inodes.len();
        let at = |parent, name: usize| (self.directory(parent), NAMES[name]);
        match *operation {
            Operation::Make { parent, name, kind, mode } => {
                self.make(who, at(parent, name), KINDS[kind], MODES[mode])
            }
            Operation::Link { inode: number, parent, name } => {
                self.link(who, inode(number), at(parent, name))
            }
            Operation::Unlink { parent, name } => {
                let (parent, name) = at(parent, name);
                must(self.inodes[parent].nlink > 0, Errno::ENOENT)?;
                self.unlink(who, parent, name)
            }
            Operation::Rmdir { parent, name } => {
                let (parent, name) = at(parent, name);
                self.rmdir(who, parent, name)
            }
            Operation::Rename { from, to, flags } => {
                self.rename(who, at(from.0, from.1), at(to.0, to.1), rename_flags(flags))
            }
            Operation::Chmod { inode: number, mode } => self.chmod(who, inode(number), MODES[mode]),
            Operation::Chown { inode: number, uid } => self.chown(who, inode(number), uid),
            Operation::Lookup { parent, name } => {
                let (parent, name) = at(parent, name);
                must(self.inodes[parent].nlink > 0, Errno::ENOENT)?;
                self.inodes[parent].permit(who, SEARCH)?;
                Ok(Told::Facts(self.facts(self.entry(parent, name)?)))
            }
            Operation::Getattr { inode: number } => {
                let number = inode(number);
                self.live(number)?;
                Ok(Told::Facts(self.facts(number)))
            }
            Operation::List { inode: number } => self.list(who, inode(number)),
            Operation::Readlink { inode: number } => {
                let is_link = self.live(inode(number))?.kind == FileType::Symlink;
                must(is_link, Errno::EINVAL)?;
                Ok(Told::Bytes(b"target".to_vec()))
            }
            Operation::SetXattr { inode: number, name, value, flags } => {
                let number = inode(number);
                let xattrs = self.change_xattrs(number)?;
                let (flags, is_there) = (xattr_flags(flags), xattrs.contains_key(NAMES[name]));
                must(!(flags.create && is_there), Errno::EEXIST)?;
                must(!flags.replace || is_there, Errno::ENODATA)?;
                xattrs.insert(NAMES[name], vec![value]);
                Ok(Told::Facts(self.facts(number)))
            }
            Operation::GetXattr { inode: number, name } => {
                let xattrs = &self.live(inode(number))?.xattrs;
                xattrs.get(NAMES[name]).cloned().map(Told::Bytes).ok_or(Errno::ENODATA)
            }
            Operation::RemoveXattr { inode: number, name } => {
                let number = inode(number);
                let xattrs = self.change_xattrs(number)?;
                xattrs.remove(NAMES[name]).ok_or(Errno::ENODATA)?;
                Ok(Told::Facts(self.facts(number)))
            }
        }
    }
}

pub(crate) fn rename_flags(flags: u8) -> RenameFlags {
    // None, most of the time.
    RenameFlags { no_replace: flags & 5 == 5, exchange: flags & 6 == 6 }
}

pub(crate) fn xattr_flags(flags: u8) -> XattrFlags {
    XattrFlags { create: flags == 1, replace: flags == 2, kill_sgid: false }
}
