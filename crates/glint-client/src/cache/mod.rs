//! The inodes that a client knows.
//!
//! Invariant: an inode is forgotten only when every request is answered that was sent before the
//! last number of its locks was heard of. So no answer brings a lock that was returned before.

pub(crate) mod attr_update;
pub(crate) mod attrs;
mod delegation;
pub(crate) mod dentries;
mod idle;
pub(crate) mod in_flight;
pub(crate) mod inode;
pub(crate) mod negative;
pub(crate) mod pages;
pub(crate) mod pins;
pub(crate) mod prune;

use crate::cache::attr_update::AttrUpdate;
use crate::cache::in_flight::{Asked, RequestsInFlight};
use crate::cache::inode::{CachedInode, InodeEntry, InodeState};
use crate::cache::pages::PageGuesses;
use crate::kernel::Kernel;
use crate::meta_log::log::WriteBackLog;
use crate::vfs::{Caller, Found, Valid};
use glint_proto::limits::NEGATIVE_DENTRIES_MAX;
use glint_proto::lock::{Bits, Grant, Recall};
use glint_proto::{Attr, Errno, FsResult, Ino};
use glint_wait::Sharded;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub(crate) const SHARDS: usize = 64;

type Shard = RwLock<HashSet<InodeEntry>>;

/// Until when answers to a request bring something: locks until the servers have forgotten all of
/// them, capabilities until they have forgotten this client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Generation {
    locks: u64,
    session: u64,
}

/// The inodes that a client has cached.
pub(crate) struct Cache {
    shards: Sharded<Shard>,
    count: AtomicUsize,
    /// How many were forgotten so far.
    forgotten: AtomicUsize,
    /// See `idle.rs`.
    idle: Mutex<VecDeque<Ino>>,
    /// Inodes with data that is not at its OSTs, and some that had.
    dirty: Mutex<BTreeSet<Ino>>,
    /// Names that are known to be free, in all, and how many may be; and directories that have such, oldest first.
    pub(crate) negative: AtomicUsize,
    pub(crate) negative_max: AtomicUsize,
    /// Names that delegated directories have kept when their inodes were forgotten: no fewer than there are.
    pub(crate) kept_names: AtomicUsize,
    /// The part whose inodes the kernel is asked next to forget.
    pub(crate) next_pruned: AtomicUsize,
    pub(crate) with_negative: Mutex<VecDeque<Ino>>,
    pub(crate) flight: RequestsInFlight,
    pub(crate) page_guesses: PageGuesses,
    kernel: OnceLock<Arc<dyn Kernel>>,
    /// What the kernel has as the root: see [`Cache::is_in_kernel`].
    root: OnceLock<Ino>,
    /// Counts how often the servers have forgotten all locks, and how often this client.
    generation: AtomicU64,
    session: AtomicU64,
    log: Arc<WriteBackLog>,
}

impl Cache {
    pub(crate) fn new(log: Arc<WriteBackLog>) -> Cache {
        Cache {
            shards: Sharded::new(SHARDS),
            count: AtomicUsize::new(0),
            forgotten: AtomicUsize::new(0),
            idle: Mutex::default(),
            dirty: Mutex::default(),
            negative: AtomicUsize::new(0),
            negative_max: AtomicUsize::new(NEGATIVE_DENTRIES_MAX),
            kept_names: AtomicUsize::new(0),
            next_pruned: AtomicUsize::new(0),
            with_negative: Mutex::default(),
            flight: RequestsInFlight::default(),
            page_guesses: PageGuesses::default(),
            kernel: OnceLock::new(),
            root: OnceLock::new(),
            generation: AtomicU64::new(0),
            session: AtomicU64::new(0),
            log,
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        self.shards.of(ino.0)
    }

    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<CachedInode>> {
        self.shard(ino).read().get(&ino).map(|entry| entry.0.clone())
    }

    pub(crate) fn inode(&self, ino: Ino) -> Arc<CachedInode> {
        if let Some(inode) = self.find(ino) {
            return inode;
        }
        let mut shard = self.shard(ino).write();
        if let Some(entry) = shard.get(&ino) {
            return entry.0.clone();
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let inode = Arc::new(CachedInode::new(ino));
        if self.kernel().is_none() {
            // Nobody will say that it is forgotten.
            self.note_idle(&inode);
        }
        shard.insert(InodeEntry(inode.clone()));
        inode
    }

    pub(crate) fn all(&self) -> Vec<Arc<CachedInode>> {
        let mut inodes: Vec<_> = self.shards.iter().flat_map(Cache::inodes_of).collect();
        // Sorted, so that one seed of the simulation is always the same run.
        inodes.sort_unstable_by_key(|inode| inode.ino);
        inodes
    }

    /// A part of them.
    pub(crate) fn of_shard(&self, shard: usize) -> Vec<Arc<CachedInode>> {
        let shard = self.shards.iter().nth(shard % SHARDS);
        shard.map(Cache::inodes_of).unwrap_or_default()
    }

    fn inodes_of(shard: &Shard) -> Vec<Arc<CachedInode>> {
        shard.read().iter().map(|entry| entry.0.clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// How many inodes were forgotten so far.
    pub(crate) fn forgotten(&self) -> usize {
        self.forgotten.load(Ordering::Relaxed)
    }

    /// A kernel is told of inodes from now on, and knows `root` without that.
    pub(crate) fn set_kernel(&self, kernel: Arc<dyn Kernel>, root: Ino) {
        let _ = (self.root.set(root), self.kernel.set(kernel));
    }

    pub(crate) fn kernel(&self) -> Option<&Arc<dyn Kernel>> {
        self.kernel.get()
    }

    /// Whether the kernel knows an inode. It knows the root of a mount without a lookup, always.
    pub(crate) fn is_in_kernel(&self, inode: &CachedInode, state: &InodeState) -> bool {
        state.pins.has_lookups() || self.root.get() == Some(&inode.ino)
    }

    /// Locks have come with an answer. Returns those that are not to be relied on, as if a
    /// server asked for them.
    pub(crate) fn learn_grants(&self, grants: &[Grant], generation: Generation) -> Vec<Recall> {
        let mut refused = Vec::new();
        let sent_mark = self.sent_mark();
        for grant in grants {
            match *grant {
                Grant::Bits { ino, bits, number } => {
                    let inode = self.inode(ino);
                    let mut state = inode.lock();
                    if !self.is_generation(generation) {
                        continue;
                    }
                    state.on_grant(bits, number, sent_mark);
                    drop(state);
                    if bits.is_empty() {
                        // Perhaps nothing else is known of it.
                        self.note_idle(&inode);
                    }
                }
                Grant::Data { ino, lock } => {
                    let inode = self.inode(ino);
                    let mut state = inode.lock();
                    if !self.is_generation(generation)
                        || state.on_data_grant(lock, false, sent_mark).is_none()
                    {
                        refused.push(Recall::Data { ino, number: lock.number });
                    }
                    drop(state);
                    inode.wake();
                }
                Grant::Layout { ino, layout } => {
                    self.inode(ino).lock().rare.make().data.set_layout(Some(layout));
                }
                Grant::Capability { ino, capability } => {
                    let inode = self.inode(ino);
                    let mut state = inode.lock();
                    if self.session.load(Ordering::Acquire) == generation.session {
                        state.rare.make().capabilities.add(capability);
                    }
                }
                // The update that has asked learns it.
                Grant::Changed { .. } => {}
            }
        }
        refused
    }

    /// The servers have forgotten all locks: what they gave before is not to be relied on, however
    /// late its answer comes; if this client was `evicted`, neither are capabilities. To be called
    /// before any inode is changed because of that.
    pub(crate) fn begin_generation(&self, evicted: bool) {
        self.session.fetch_add(u64::from(evicted), Ordering::AcqRel);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Generation of what is granted in answer to what is asked from now on.
    pub(crate) fn generation(&self) -> Generation {
        let locks = self.generation.load(Ordering::Acquire);
        Generation { locks, session: self.session.load(Ordering::Acquire) }
    }

    /// Whether the locks of a generation are held. What is learned in it is learned with the inode locked: who ends
    /// it looks at the inode after that.
    pub(crate) fn is_generation(&self, generation: Generation) -> bool {
        self.generation.load(Ordering::Acquire) == generation.locks
    }

    /// Whether this client was not evicted since a generation.
    pub(crate) fn is_session(&self, generation: Generation) -> bool {
        self.session.load(Ordering::Acquire) == generation.session
    }

    /// An update of inodes by this client begins.
    pub(crate) fn begin_update(&self, inos: &[Ino]) -> AttrUpdate {
        let mut inos = inos.to_vec();
        inos.sort_unstable();
        inos.dedup();
        AttrUpdate::begin(inos.into_iter().map(|ino| self.inode(ino)))
    }

    /// Looks a name up without asking.
    pub(crate) fn lookup(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
    ) -> Option<FsResult<Found>> {
        let directory = self.find(parent)?;
        let child = {
            if !caller.may_all() {
                return None;
            }
            let mut state = directory.lock();
            let child = state.child(name);
            let is_free = child.is_none() && state.is_free(name);
            if (is_free || child.is_some())
                && let Some(size) = state.dentries.take_guess()
            {
                self.page_guesses.was_right(size);
            }
            if is_free {
                return Some(Err(Errno::ENOENT));
            }
            child?
        };
        let inode = self.find(child)?;
        let may_be_used = |state: &InodeState| {
            state.has(Bits::ENTRY) || state.rare.delegation.parent() == Some(parent)
        };
        let mut state = inode.lock();
        if may_be_used(&state) && state.add_name(parent, name) {
            // A delegated directory has kept it while the inode was not known, or the recall of the
            // name is under way: then it is not there any more.
            drop(state);
            if directory.lock().child(name) != Some(child) {
                self.take_name(child, parent, name);
                return None;
            }
            state = inode.lock();
            if state.add_name(parent, name) {
                // It was taken meanwhile.
                state.remove_name(parent, name);
                return None;
            }
        }
        if !may_be_used(&state) {
            return None;
        }
        let attr = state.attributes()?.clone();
        let found = self.found(&mut state, attr);
        drop(state);
        directory.lock().dentries.note_answered();
        Some(Ok(found))
    }

    /// An answer to the kernel, which remembers the inode from now on.
    pub(crate) fn found(&self, state: &mut InodeState, attr: Attr) -> Found {
        if self.kernel.get().is_some() {
            state.pins.add_lookup();
        }
        let entry = state.has(Bits::ENTRY) || state.rare.delegation.parent().is_some();
        let valid = Valid::under(entry, state.attributes().is_some());
        Found { attr, valid }
    }

    /// A name was looked up or made: `attr` is what the servers said of its inode, in answer to
    /// what was asked then. The attributes themselves are learned from it only if `learns`.
    pub(crate) fn learn_name(
        &self,
        parent: Ino,
        name: &[u8],
        attr: &Attr,
        asked: &Asked,
        learns: bool,
    ) -> Found {
        let inode = self.inode(attr.ino);
        let (mut state, held) = self.learn_entry(&inode, (parent, name), attr, asked, learns);
        // Attributes known under a lock are no older than the answer.
        let attr = state.attributes().unwrap_or(attr).clone();
        let is_known = held || name == b"." || state.rare.delegation.parent().is_some();
        let found = self.found(&mut state, attr);
        match is_known {
            true => found,
            // Nobody would be told that the name leads elsewhere.
            false => Found { valid: Valid { entry: Duration::ZERO, ..found.valid }, ..found },
        }
    }

    /// Learns that a name leads to `inode`. Returns the state of that, and whether the name is known
    /// from now on.
    pub(crate) fn learn_entry<'a>(
        &self,
        inode: &'a CachedInode,
        (parent, name): (Ino, &[u8]),
        attr: &Attr,
        asked: &Asked,
        learns: bool,
    ) -> (MutexGuard<'a, InodeState>, bool) {
        // What the directory does not learn the inode need not know, and nobody would take it away.
        let learns_name =
            |directory: Arc<CachedInode>| directory.lock().dentries.may_learn(asked.at);
        let mut held = name != b"." && name != b".." && self.find(parent).is_none_or(learns_name);
        held &= {
            let mut state = inode.lock();
            let held = held && state.believes_names(attr.ino, asked);
            if held {
                // Before the directory: a recall has it forget the name, or not learn it.
                state.add_name(parent, name);
            }
            held
        };
        let directory = if held { Some(self.inode(parent)) } else { self.find(parent) };
        if let Some(directory) = directory {
            let mut state = directory.lock();
            let is_news = state.dentries.may_learn(asked.at);
            held &= is_news;
            if held {
                state.dentries.insert(name, attr.ino);
            } else if name != b"." && name != b".." && state.dentries.get(name) != Some(attr.ino) {
                // There is a name that is not among the children, or was free before. Where the
                // directory changed since this was asked nobody knows which of both is so.
                state.dentries.doubt_known(name);
            }
        }
        let mut state = inode.lock();
        if learns {
            state.learn(attr, asked);
        }
        held &= state.believes_names(attr.ino, asked);
        (state, held)
    }

    /// Inode of a name, if it is known.
    pub(crate) fn child(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        self.find(parent)?.lock().child(name)
    }

    /// Attributes that are known, as an answer.
    pub(crate) fn attributes(&self, ino: Ino) -> Option<Found> {
        let inode = self.find(ino)?;
        let state = inode.lock();
        let attr = state.attributes()?.clone();
        Some(Found { attr, valid: Valid::under(false, true) })
    }

    /// The servers said what the attributes are.
    pub(crate) fn learn(&self, attr: Attr, asked: &Asked) -> Found {
        let inode = self.inode(attr.ino);
        let mut state = inode.lock();
        state.learn(&attr, asked);
        // Attributes known under a lock are no older than the answer.
        match state.attributes() {
            Some(known) => Found { attr: known.clone(), valid: Valid::under(false, true) },
            None => Found { attr, valid: Valid::under(false, false) },
        }
    }

    /// The kernel forgets.
    pub(crate) fn forget(&self, ino: Ino, lookups: u64) {
        let Some(inode) = self.find(ino) else { return };
        let mut state = inode.lock();
        if state.pins.forget_lookups(lookups) {
            inode.next_ask.forgotten();
            drop(state);
            self.note_idle(&inode);
        }
    }

    /// Something was written to an inode.
    pub(crate) fn note_dirty(&self, ino: Ino) {
        self.dirty.lock().insert(ino);
    }

    /// Inodes that something was written to.
    pub(crate) fn dirty(&self) -> Vec<Arc<CachedInode>> {
        let mut dirty = self.dirty.lock();
        let mut inodes = Vec::new();
        dirty.retain(|ino| {
            let inode = self.find(*ino).filter(|inode| !inode.lock().rare.data.is_clean());
            inodes.extend(inode.clone());
            inode.is_some()
        });
        inodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::attrs::Tick;
    use glint_proto::{Access, Capability, Timestamp};

    const FILE: Ino = Ino(7);

    #[test]
    fn a_capability_outlives_a_restart_of_the_servers_and_no_eviction() {
        for evicted in [false, true] {
            let cache = Cache::new(Arc::default());
            let asked = cache.generation();
            cache.begin_generation(evicted);
            let capability = Capability { access: Access::READ, signature: [0; 32] };
            let grants = [
                Grant::Capability { ino: FILE, capability },
                Grant::Bits { ino: FILE, bits: Bits::ATTR, number: 1 },
            ];
            cache.learn_grants(&grants, asked);
            let inode = cache.inode(FILE);
            let state = inode.lock();
            assert_eq!(state.rare.capabilities.allowing(Access::READ).is_some(), !evicted);
            assert!(!state.has(Bits::ATTR));
        }
    }

    #[test]
    fn an_answer_that_is_not_believed_keeps_no_other_one_from_being_learned() {
        let cache = Cache::new(Arc::default());
        let of = |ino| Attr::new(ino, 0o100_644, Timestamp::default());
        let grant = |ino, bits| {
            let grants = [Grant::Bits { ino, bits, number: 1 }];
            cache.learn_grants(&grants, cache.generation());
        };
        let learn = |name: &[u8], ino, asked| {
            cache.learn_name(Ino::ROOT, name, &of(ino), &asked, true);
            cache.child(Ino::ROOT, name) == Some(ino)
        };
        let inos = [Ino::ROOT, FILE, Ino(8), Ino(9), Ino(10)];
        let asked = || Asked::under(&inos);
        for ino in [FILE, Ino(8), Ino(9)] {
            grant(ino, Bits::ENTRY);
        }
        grant(Ino::ROOT, Bits::NEGATIVE);
        let late = asked();
        cache.forget_name(Ino::ROOT, b"gone", None, Tick::ask());
        let next: [Asked; 3] = std::array::from_fn(|_| asked());
        assert!(!learn(b"late", FILE, late));
        assert!(learn(b"8", Ino(8), next[0].clone()));
        assert!(!learn(b"unlocked", Ino(10), next[1].clone()));
        assert!(learn(b"9", Ino(9), next[1].clone()));
        // A name that was made here is no answer only: others may be from before.
        cache.learn_made(Ino::ROOT, b"made", &of(Ino(10)), &asked(), true);
        cache.learn_negative(Ino::ROOT, b"made", &next[2]);
        assert!(!cache.is_free(Ino::ROOT, b"made"));
        assert!(!learn(b"7", FILE, next[2].clone()));
        assert!(learn(b"7", FILE, asked()));
    }
}
