//! Cached inode: what a client knows of it, and under which locks; parts, each with its rules in
//! the file that defines it.
//!
//! Invariant: everything here that the servers could change is used only while the lock that
//! protects it is held. Returning a lock and forgetting what it protects are one step.

use crate::cache::attrs::{AttrCache, Before, Tick};
use crate::cache::delegation::Delegation;
use crate::cache::dentries::Dentries;
use crate::cache::pins::Pins;
use crate::data::capabilities::Capabilities;
use crate::data::file_data::{BLOCK_BYTES, FileData};
use crate::locks::turns::LockTurns;
use glint_lock::held::{HeldBits, HeldData};
use glint_proto::lock::{Bits, Range};
use glint_proto::{Access, Attr, Ino, Timestamp};
use glint_wait::Monitor;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::sync::atomic::AtomicBool;

/// A name, and the directory that has it.
pub(crate) type Name = (Ino, Box<[u8]>);

/// Known state of an inode.
pub(crate) struct InodeState {
    pub(crate) bits: HeldBits,
    /// Requests sent before this may bring locks under numbers below the last one heard of; see
    /// [`Flight`](glint_lock::flight::Flight).
    pub(crate) sent_mark: u64,
    /// Under ATTR, or in a delegation: read by [`InodeState::attributes`] alone.
    attrs: AttrCache,
    /// Names that lead here, each under ENTRY of this inode.
    pub(crate) names: SmallVec<[Name; 1]>,
    /// When ENTRY was lost last: what was asked before says nothing of names that lead here.
    pub(crate) entry_lost: Tick,
    /// Of a directory: its names, and names that are free.
    pub(crate) dentries: Dentries,
    /// Rights to change the inode without asking.
    pub(crate) delegation: Delegation,
    /// Users that need the inode to be known.
    pub(crate) pins: Pins,
    pub(crate) data_locks: HeldData,
    pub(crate) lock_turns: LockTurns,
    pub(crate) data: FileData,
    /// A program took a lock of fcntl(2).
    pub(crate) has_posix_locks: bool,
    /// Capabilities of this session, if OSTs want to see them.
    pub(crate) capabilities: Capabilities,
}

/// An inode.
pub(crate) struct CachedInode {
    pub(crate) ino: Ino,
    /// Among those that nobody needs, perhaps: see `idle.rs`.
    pub(crate) is_listed: AtomicBool,
    state: Monitor<InodeState>,
}

impl CachedInode {
    pub(crate) fn new(ino: Ino) -> CachedInode {
        let state = InodeState {
            bits: HeldBits::default(),
            sent_mark: 0,
            attrs: AttrCache::default(),
            names: SmallVec::new(),
            entry_lost: Tick::default(),
            dentries: Dentries::default(),
            delegation: Delegation::default(),
            pins: Pins::default(),
            data_locks: HeldData::default(),
            lock_turns: LockTurns::default(),
            data: FileData::default(),
            has_posix_locks: false,
            capabilities: Capabilities::default(),
        };
        CachedInode { ino, is_listed: AtomicBool::new(false), state: Monitor::new(state) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, InodeState> {
        self.state.lock()
    }

    /// The state, if nobody has it just now.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, InodeState>> {
        self.state.try_lock()
    }

    /// Waits until `find` finds what it wants.
    pub(crate) async fn until<R>(&self, find: impl FnMut(&mut InodeState) -> Option<R>) -> R {
        self.state.until(find).await
    }

    /// A change that somebody may wait for.
    pub(crate) fn wake(&self) {
        self.state.wake();
    }

    /// Whether the inode can be evicted from the cache.
    pub(crate) fn is_idle(&self, is_pending: impl Fn(u64) -> bool) -> bool {
        let state = self.state.lock();
        state.pins.is_empty()
            && !state.attrs.is_updating()
            && !state.delegation.is_delegated()
            // The next one who opens it hears of what nobody was told.
            && !state.data.has_untold_loss()
            && state.data_locks.is_unused()
            && state.data.is_clean()
            && !is_pending(state.delegation.last_change())
            && state.dentries.is_empty()
    }
}

impl InodeState {
    /// Whether attributes that are known may be used: nobody else can change them now.
    fn protects_attributes(&self) -> bool {
        self.bits.has(Bits::ATTR) || self.delegation.is_exclusive()
    }

    /// The attributes, if they are known.
    pub(crate) fn attributes(&self) -> Option<&Attr> {
        self.attrs.get(self.protects_attributes())
    }

    /// The attributes, to follow what this client does by itself.
    pub(crate) fn attributes_mut(&mut self) -> Option<&mut Attr> {
        self.attrs.get_mut(self.protects_attributes())
    }

    /// The times that this client knew last, to be said at a close.
    pub(crate) fn last_times(&self) -> Option<(Timestamp, Timestamp)> {
        self.attrs.last_times()
    }

    /// The attributes are what this client has made them.
    pub(crate) fn set_attributes(&mut self, attr: Attr) {
        self.attrs.set(attr);
    }

    /// The attributes are not known any more.
    pub(crate) fn lose_attributes(&mut self) {
        self.attrs.lose();
    }

    /// Bits have come with an answer, and ATTR is new: what was known before is not so any more,
    /// unless nobody else could change it.
    pub(crate) fn protect_attributes(&mut self) {
        if !self.delegation.is_exclusive() {
            self.attrs.forget_unprotected();
        }
    }

    /// Whether updates by this client are under way.
    pub(crate) fn is_updating(&self) -> bool {
        self.attrs.is_updating()
    }

    /// An update of the attributes by a request begins.
    pub(crate) fn begin_update(&mut self) -> Before {
        self.attrs.begin_update(self.protects_attributes())
    }

    /// The answer to an update says what the attributes are.
    pub(crate) fn finish_update(&mut self, before: &Before, attr: &Attr) {
        self.attrs.finish(before, self.bits.has(Bits::ATTR), attr);
    }

    /// An update did this to the attributes.
    pub(crate) fn finish_update_with(&mut self, before: &Before, change: impl FnOnce(&mut Attr)) {
        self.attrs.finish_with(before, self.bits.has(Bits::ATTR), change);
    }

    /// An update ends.
    pub(crate) fn end_update(&mut self, now: Tick) {
        self.attrs.end_update(now);
    }

    /// The inode gets an extended attribute. An access list may also say what new inodes in a
    /// directory get, which this client does not know.
    pub(crate) fn gets_xattr(&mut self) {
        self.delegation.gets_xattr();
        self.dentries.set_complete(false);
    }

    /// The inode that a name is known to lead to.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Ino> {
        self.dentries.get(name)
    }

    /// Whether it is known that there is no such name.
    pub(crate) fn is_free(&self, name: &[u8]) -> bool {
        self.dentries.is_free(name, self.delegation.is_delegated() || self.bits.has(Bits::NEGATIVE))
    }

    /// The servers said what the attributes are, in answer to what was asked then.
    pub(crate) fn learn(&mut self, attr: &Attr, asked: Tick) {
        if self.delegation.is_exclusive() && self.attributes().is_some() {
            // The servers may not have heard the latest.
            return;
        }
        if self.bits.has(Bits::ATTR) {
            self.attrs.learn(attr, asked);
        }
    }

    /// Forgets what bits protected that are returned. Returns the names that are not to be relied on
    /// any more.
    pub(crate) fn forget_protected(&mut self, bits: Bits) -> SmallVec<[Name; 1]> {
        if bits.contains(Bits::ATTR) && !self.delegation.is_exclusive() {
            self.attrs.lose();
        }
        if bits.contains(Bits::NEGATIVE) && !self.delegation.is_delegated() {
            self.dentries.revoke_negative();
        }
        if bits.contains(Bits::ENTRY) {
            self.entry_lost = Tick::now();
        }
        match bits.contains(Bits::ENTRY) && self.delegation.parent().is_none() {
            true => std::mem::take(&mut self.names),
            false => SmallVec::new(),
        }
    }

    /// Something was written, and so many bytes take space perhaps: the attributes follow, if
    /// they are known.
    pub(crate) fn wrote(&mut self, end: u64, now: Timestamp, bytes: usize) {
        self.data.wrote(end, now);
        if let Some(attr) = self.attributes_mut() {
            attr.size = attr.size.max(end);
            let all = attr.size.div_ceil(BLOCK_BYTES);
            let more = attr.blocks + (bytes as u64).div_ceil(BLOCK_BYTES);
            attr.blocks = attr.blocks.max(more.min(all));
            (attr.mtime, attr.ctime) = (now, now);
        } else {
            // An answer under way may tell of the time before this.
            self.attrs.disturb();
        }
    }

    /// Learns the blocks of the objects, if all of them have said how many they take.
    pub(crate) fn learn_blocks(&mut self) {
        let protected = self.protects_attributes();
        let Some(attr) = self.attrs.get_mut(protected) else { return };
        let objects = self.data.layout().and_then(|layout| self.data.objects(layout, attr.size));
        if let Some(objects) = objects {
            attr.blocks = objects.blocks + self.data.unsent_blocks();
        }
    }

    /// Whether its objects have a time that is not, or not only, in its record.
    pub(crate) fn objects_have_times(&self) -> bool {
        let written = |attr: &Attr| attr.is_file() && attr.size_on_ost;
        !self.data.is_clean() || self.attributes().is_some_and(written)
    }

    /// Whether this client alone knows the size.
    pub(crate) fn owns_size(&self) -> bool {
        self.data_locks.covers_write(Range::ALL) && self.attributes().is_some()
    }

    /// Whether OSTs let its data be read.
    pub(crate) fn may_read(&self) -> bool {
        self.attributes().is_some_and(Attr::is_dir)
            || self.capabilities.allowing(Access::READ).is_some()
    }
}
