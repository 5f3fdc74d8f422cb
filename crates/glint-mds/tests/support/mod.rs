//! A metadata server for tests, on an engine in memory or on any other, and a caller that shares
//! its process.

#![allow(dead_code, reason = "each test uses a part of it")]

use futures_lite::future::block_on;
use glint_kv::Kv;
use glint_kv::memory::MemoryKv;
use glint_mds::{Config, Mds, NamespaceCheck, Targets, check};
use glint_proto::MetadataService;
use glint_proto::message::{NamespacePage, NamespaceQuery};
use glint_proto::{
    Arrival, Attr, Cred, FileType, FsResult, Ino, Layout, MdsReply, MdsRequest, RenameFlags,
    Session, Timestamp, clock,
};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// A server on an engine in memory.
pub(crate) type Server = Mds<Arc<MemoryKv>>;

/// The server of a file system with one OST, in the run that `boot_verifier` names.
pub(crate) fn start<K: Kv>(kv: K, boot_verifier: u64, locks: bool) -> Mds<K> {
    let config = Config {
        osts: 1,
        lease: Duration::from_secs(30),
        layout: Layout::default(),
        commit_sync: false,
        after_power_loss: false,
        locks,
        mounted: false,
        hash_seed: Some(7),
        boot_verifier,
    };
    block_on(Mds::start(kv, config)).unwrap()
}

/// No OSTs, and a disk that stands still.
pub(crate) struct Nowhere;

impl Targets for Nowhere {
    async fn destroy(&self, _: &[(Ino, Layout)]) -> FsResult<u64> {
        Ok(0)
    }

    fn durable(&self) -> u64 {
        u64::MAX
    }

    fn fence(&self, _: u64) {}

    fn is_fenced(&self, _: u64) -> bool {
        true
    }

    fn left(&self) -> Vec<Ino> {
        Vec::new()
    }

    fn holds_up(&self, session: &Session) -> bool {
        !session.is_quiet()
    }
}

/// A request for an inode of this type and mode, by a caller without a umask.
pub(crate) fn make<'a>(parent: Ino, name: &'a [u8], kind: FileType, mode: u32) -> MdsRequest<'a> {
    let (mode, umask, rdev) = (kind.mode_bits() | mode, 0, 0);
    let target = if kind == FileType::Symlink { b"target".as_slice() } else { b"" };
    MdsRequest::Create { parent, name, mode, umask, rdev, target, open: None, exclusive: true }
}

/// A file system in memory without locks, and who asks for it by number or by path.
pub(crate) struct Tree {
    /// The engine.
    pub kv: Arc<MemoryKv>,
    /// The server.
    pub mds: Server,
    seconds: Cell<i64>,
}

impl Tree {
    /// An empty one.
    pub(crate) fn new() -> Tree {
        let kv = Arc::<MemoryKv>::default();
        Tree { mds: start(kv.clone(), 1, false), kv, seconds: Cell::new(0) }
    }

    /// Tree after the server has ended and started again.
    pub(crate) fn restarted(self) -> Tree {
        let Tree { kv, mds, seconds } = self;
        block_on(mds.shut_down()).unwrap();
        drop(mds);
        Tree { mds: start(kv.clone(), 2, false), kv, seconds }
    }

    /// The time of the last request.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp { secs: self.seconds.get(), nanos: 0 }
    }

    /// So much time passes.
    pub(crate) fn wait(&self, time: Duration) {
        self.seconds.set(self.seconds.get() + time.as_secs() as i64);
    }

    /// Executes a request, a second after the last one.
    pub(crate) fn ask(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        self.seconds.set(self.seconds.get() + 1);
        let arrival = Arrival { now: self.now(), ..Arrival::default() };
        block_on(self.mds.handle(&arrival, cred, request)).reply
    }

    /// Executes a request that is answered with attributes.
    pub(crate) fn ask_attr(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<Attr> {
        match self.ask(cred, request)? {
            MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    /// Attributes that the superuser finds at a path below the root; the root itself at "".
    pub(crate) fn find(&self, path: &str) -> FsResult<Attr> {
        let root = self.ask_attr(&Cred::ROOT, &MdsRequest::Getattr { ino: Ino::ROOT })?;
        path.split('/').filter(|name| !name.is_empty()).try_fold(root, |parent, name| {
            let lookup = MdsRequest::Lookup { parent: parent.ino, name: name.as_bytes() };
            self.ask_attr(&Cred::ROOT, &lookup)
        })
    }

    /// The number of what must be at a path.
    pub(crate) fn ino(&self, path: &str) -> Ino {
        self.find(path).unwrap_or_else(|errno| panic!("{path}: {errno:?}")).ino
    }

    /// The directory of a path, which must be there, and the name in it.
    pub(crate) fn split<'a>(&self, path: &'a str) -> (Ino, &'a [u8]) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.ino(parent), name.as_bytes())
    }

    /// mknod(2), mkdir(2), symlink(2).
    pub(crate) fn make(
        &self,
        cred: &Cred,
        path: &str,
        kind: FileType,
        mode: u32,
    ) -> FsResult<Attr> {
        let (parent, name) = self.split(path);
        self.ask_attr(cred, &make(parent, name, kind, mode))
    }

    /// link(2).
    pub(crate) fn link(&self, cred: &Cred, from: &str, to: &str) -> FsResult<Attr> {
        let (ino, (parent, name)) = (self.ino(from), self.split(to));
        self.ask_attr(cred, &MdsRequest::Link { ino, parent, name })
    }

    /// renameat2(2).
    pub(crate) fn rename(
        &self,
        cred: &Cred,
        from: &str,
        to: &str,
        flags: RenameFlags,
    ) -> FsResult<()> {
        let ((parent, name), (new_parent, new_name)) = (self.split(from), self.split(to));
        let request = MdsRequest::Rename { parent, name, new_parent, new_name, flags };
        self.ask(cred, &request).map(drop)
    }

    /// Names of a directory with what they stand for, as the superuser lists them.
    pub(crate) fn list(&self, ino: Ino) -> FsResult<Vec<(String, Ino)>> {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (bytes_max, plus) = (1 << 16, true);
            let request = MdsRequest::Readdir { ino, cookie, bytes_max, plus };
            let MdsReply::Dir(page) = self.ask(&Cred::ROOT, &request)? else { panic!() };
            cookie = page.entries.last().map_or(cookie, |entry| entry.cookie);
            let name = |bytes| String::from_utf8(bytes).unwrap();
            all.extend(page.entries.into_iter().map(|entry| (name(entry.name), entry.ino)));
            if page.end {
                all.sort_unstable();
                return Ok(all);
            }
        }
    }

    /// Lets the time pass for which files that were replaced are kept.
    pub(crate) fn pass_a_moment(&self) {
        clock::simulate(Some(clock::now() + Duration::from_secs(2)));
        while block_on(self.mds.reap(&Nowhere)).unwrap() {}
    }

    /// What the check beside requests finds, if nothing is changed meanwhile.
    pub(crate) fn findings_online(&self) -> Vec<String> {
        let page = |query| block_on(self.mds.namespace_page(query)).unwrap();
        let (mut check, mut found) = (NamespaceCheck::default(), Vec::new());
        for first in [NamespaceQuery::Inodes(Ino(0)), NamespaceQuery::Entries(Vec::new())] {
            let mut next = Some(first);
            while let Some(query) = next {
                let NamespacePage { inodes, entries, damaged, next: more, .. } = page(query);
                inodes.into_iter().for_each(|fact| check.inode(fact));
                entries.into_iter().for_each(|fact| check.entry(fact));
                found.extend(damaged);
                next = more;
            }
        }
        for doubt in check.end() {
            let (inodes, entries) = doubt.looks();
            let again = page(NamespaceQuery::Again { inodes, entries });
            let inodes = again.inodes.into_iter().map(|fact| (fact.ino, fact)).collect();
            let entries = again.entries.into_iter().collect();
            assert!(doubt.is_confirmed(&inodes, &entries), "{doubt}: nobody has changed it");
            found.push(doubt.to_string());
        }
        found
    }

    /// Panics unless `glint fsck` would find nothing, nor `glint fsck --online`.
    pub(crate) fn must_be_sound(&self) {
        while block_on(self.mds.reap(&Nowhere)).unwrap() {}
        let report = block_on(check(&self.kv, false)).unwrap();
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        assert_eq!(self.findings_online(), Vec::<String>::new());
        assert_eq!(report.inodes, self.mds.inode_count());
    }
}

/// The superuser, and two others.
pub(crate) const ROOT: Cred = Cred::ROOT;
/// See [`ROOT`].
pub(crate) const ANN: Cred = Cred { uid: 1, gid: 1, groups: None };
/// See [`ROOT`].
pub(crate) const BOB: Cred = Cred { uid: 2, gid: 2, groups: None };

/// A tree with one of each: `file` with a second name `twin`, `other`, `symlink`, `dir` with `sub`
/// in it, `empty`; and directories in which others than the superuser may do something.
pub(crate) fn planted() -> Tree {
    use FileType::{Directory, Regular, Symlink};
    let tree = Tree::new();
    for (owner, path, kind, mode) in [
        (&ROOT, "file", Regular, 0o644),
        (&ROOT, "other", Regular, 0o600),
        (&ROOT, "symlink", Symlink, 0),
        (&ROOT, "dir", Directory, 0o755),
        (&ROOT, "dir/sub", Directory, 0o755),
        (&ROOT, "empty", Directory, 0o755),
        (&ROOT, "open", Directory, 0o777),
        (&ANN, "open/ann", Regular, 0o600),
        (&BOB, "open/bob", Regular, 0o600),
        (&BOB, "open/bobs", Directory, 0o755),
        (&ROOT, "sticky", Directory, 0o1777),
        (&ANN, "sticky/ann", Regular, 0o666),
        (&BOB, "sticky/bob", Regular, 0o666),
        (&BOB, "sticky/bobs", Directory, 0o777),
    ] {
        tree.make(owner, path, kind, mode).unwrap();
    }
    tree.link(&ROOT, "file", "twin").unwrap();
    tree
}
