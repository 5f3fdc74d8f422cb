//! Cached inode: what a client knows of it, and under which locks; parts, each with its rules in
//! the file that defines it.
//!
//! Invariant: everything here that the servers could change is used only while the lock that
//! protects it is held. Returning a lock and forgetting what it protects are one step.

mod bits;
pub(crate) mod names;
pub(crate) mod rare;
mod written;

use crate::cache::attrs::{AttrCache, Before, Tick};
use crate::cache::delegation::Delegation;
use crate::cache::dentries::Dentries;
use crate::cache::in_flight::Asked;
use crate::cache::inode::bits::InodeBits;
use crate::cache::inode::names::{InodeNames, Name};
use crate::cache::inode::rare::{Rare, blank};
use crate::cache::pins::Pins;
use crate::cache::prune::NextAsk;
use crate::data::capabilities::Capabilities;
use crate::data::file_data::FileData;
use crate::data::prefetch::plan::PrefetchPlan;
use crate::locks::turns::LockTurns;
use glint_lock::held::HeldData;
use glint_proto::lock::{Bits, DataLock, Return};
use glint_proto::{Access, Attr, Ino, Timestamp};
use glint_wait::Monitor;
use parking_lot::MutexGuard;
use smallvec::SmallVec;
use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Known state of an inode.
pub(crate) struct InodeState {
    bits: InodeBits,
    /// Under ATTR, or in a delegation: read by [`InodeState::attributes`] alone.
    attrs: AttrCache,
    /// Names that lead here, each under ENTRY of this inode.
    names: InodeNames,
    /// Of a directory: its names, and names that are free.
    pub(crate) dentries: Dentries,
    /// Users that need the inode to be known.
    pub(crate) pins: Pins,
    /// The rest: blank for what was only looked at, as by a scan.
    pub(crate) rare: Rare<RareParts>,
}

/// What is known of an inode that was more than looked at: opened, locked, changed, or made here.
#[derive(Default)]
pub(crate) struct RareParts {
    /// Rights to change the inode without asking.
    pub(crate) delegation: Delegation,
    /// Locks on data. Their numbers come by [`InodeState::on_data_grant`] and
    /// [`InodeState::on_data_recall`].
    pub(crate) data_locks: HeldData,
    pub(crate) data: FileData,
    /// Of a directory whose files are read: which of them are next.
    pub(crate) prefetch_plan: Option<Box<PrefetchPlan>>,
    pub(crate) lock_turns: LockTurns,
    /// A program took a lock of fcntl(2).
    has_posix_locks: bool,
    /// When it was read last by this client, and the number of that change in the write-back log.
    last_access: (u64, Timestamp),
    /// Capabilities of this session, if OSTs want to see them.
    pub(crate) capabilities: Capabilities,
}

blank!(RareParts);

/// An inode.
pub(crate) struct CachedInode {
    pub(crate) ino: Ino,
    /// Among those that nobody needs, perhaps: see `idle.rs`.
    pub(crate) is_listed: AtomicBool,
    /// When the kernel may be asked to forget it.
    pub(crate) next_ask: NextAsk,
    state: Monitor<InodeState>,
}

/// An inode as it is found by its number, which it has itself.
pub(crate) struct InodeEntry(pub(crate) Arc<CachedInode>);

impl Borrow<Ino> for InodeEntry {
    fn borrow(&self) -> &Ino {
        &self.0.ino
    }
}

impl PartialEq for InodeEntry {
    fn eq(&self, other: &InodeEntry) -> bool {
        self.0.ino == other.0.ino
    }
}

impl Eq for InodeEntry {}

impl Hash for InodeEntry {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.ino.hash(state);
    }
}

impl CachedInode {
    pub(crate) fn new(ino: Ino) -> CachedInode {
        let state = InodeState {
            bits: InodeBits::default(),
            attrs: AttrCache::default(),
            names: InodeNames::default(),
            dentries: Dentries::default(),
            pins: Pins::default(),
            rare: Rare::default(),
        };
        CachedInode {
            ino,
            is_listed: AtomicBool::new(false),
            next_ask: NextAsk::default(),
            state: Monitor::new(state),
        }
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
            && !state.rare.delegation.is_delegated()
            // The next one who opens it hears of what nobody was told.
            && !state.rare.data.has_untold_loss()
            && state.rare.data_locks.is_unused()
            && state.rare.data.is_clean()
            && !is_pending(state.rare.delegation.last_change())
            && !is_pending(state.last_access())
            && state.dentries.is_empty()
    }
}

impl InodeState {
    /// Whether attributes that are known may be used: nobody else can change them now.
    fn protects_attributes(&self) -> bool {
        self.bits.has(Bits::ATTR) || self.rare.delegation.is_exclusive()
    }

    /// The attributes, if they are known.
    pub(crate) fn attributes(&self) -> Option<&Attr> {
        self.attrs.get(self.protects_attributes())
    }

    /// The attributes, if they are known and nobody could change them since this was asked.
    pub(crate) fn attributes_since(&self, asked: Tick) -> Option<&Attr> {
        self.attributes().filter(|_| self.attrs.is_unchanged_since(asked))
    }

    /// The attributes, to follow what this client does by itself.
    pub(crate) fn attributes_mut(&mut self) -> Option<&mut Attr> {
        self.attrs.get_mut(self.protects_attributes())
    }

    /// The times that this client knew last, to be said at a close.
    pub(crate) fn last_times(&self) -> Option<(Timestamp, Timestamp)> {
        self.attrs.last_times()
    }

    /// The attributes are not known any more.
    pub(crate) fn lose_attributes(&mut self) {
        self.attrs.lose();
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

    /// The inode gets an extended attribute.
    pub(crate) fn gets_xattr(&mut self) {
        self.rare.make().delegation.gets_xattr();
    }

    /// The inode that a name is known to lead to.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Ino> {
        self.dentries.get(name)
    }

    /// Whether it is known that there is no such name. While this client asks for a change, others may
    /// see it before the answer has come.
    pub(crate) fn is_free(&self, name: &[u8]) -> bool {
        let is_protected = self.rare.delegation.is_delegated() || self.bits.has(Bits::NEGATIVE);
        self.dentries.is_free(name, is_protected) && !self.is_updating()
    }

    /// Whether nobody else could make names here since the answer to this was read.
    pub(crate) fn is_protected(&self, ino: Ino, asked: &Asked) -> bool {
        let is_read = asked.is_under(ino, Bits::NEGATIVE);
        self.bits.has(Bits::NEGATIVE) && (is_read || self.dentries.is_protected_since(asked.at))
    }

    /// The servers said what the attributes are, in answer to what was asked then.
    pub(crate) fn learn(&mut self, attr: &Attr, asked: &Asked) {
        if self.rare.delegation.is_exclusive() && self.attributes().is_some() {
            // The servers may not have heard the latest.
            return;
        }
        if self.bits.has(Bits::ATTR) && asked.is_under(attr.ino, Bits::ATTR) {
            let (_, accessed) = self.rare.last_access;
            // They may not have heard of an access yet, and who has read sees that at once.
            match attr.atime < accessed && attr.ctime <= accessed {
                true => self.attrs.learn(&Attr { atime: accessed, ..attr.clone() }, asked.at),
                false => self.attrs.learn(attr, asked.at),
            }
        }
    }

    /// Bits that may be used.
    pub(crate) fn held(&self) -> Bits {
        self.bits.held()
    }

    /// Whether all of these bits may be used.
    pub(crate) fn has(&self, bits: Bits) -> bool {
        self.bits.has(bits)
    }

    /// The highest number of a grant of bits that has come.
    pub(crate) fn granted(&self) -> u64 {
        self.bits.granted()
    }

    /// Requests that must be answered before the inode is forgotten: those sent before this mark.
    pub(crate) fn sent_mark(&self) -> u64 {
        self.bits.sent_mark()
    }

    /// Bits have come with an answer. What those that are new protect and was known before is not so
    /// any more, unless nobody else could change it.
    pub(crate) fn on_grant(&mut self, bits: Bits, number: u64, sent_mark: u64) {
        let (usable, new) = self.bits.on_grant(bits, number, sent_mark);
        if usable.contains(Bits::DELEGATION) {
            self.rare.make().delegation.grant();
        }
        if new.contains(Bits::ATTR) && !self.rare.delegation.is_exclusive() {
            self.attrs.forget_unprotected();
        }
        if new.contains(Bits::NEGATIVE) && !self.rare.delegation.is_delegated() {
            self.dentries.forget_unprotected();
        }
    }

    /// Bits are recalled. Returns the names that are not to be relied on any more.
    pub(crate) fn on_recall(
        &mut self,
        bits: Bits,
        number: u64,
        sent_mark: u64,
    ) -> SmallVec<[Name; 1]> {
        self.bits.on_recall(bits, number, sent_mark);
        self.forget_protected(bits)
    }

    /// The servers were silent for long, or have forgotten all locks: nothing is protected.
    pub(crate) fn on_silence(&mut self) {
        self.bits.on_silence();
        self.forget_protected(Bits::ALL);
    }

    /// The servers have forgotten all locks. What the bits protected is forgotten when those are
    /// told of what is reclaimed.
    pub(crate) fn on_locks_forgotten(&mut self) {
        self.bits.on_locks_forgotten();
    }

    /// A lock on data has come, for whoever uses it from now on, or for nobody. Returns its number
    /// here, if it may be used.
    pub(crate) fn on_data_grant(
        &mut self,
        lock: DataLock,
        used: bool,
        sent_mark: u64,
    ) -> Option<u64> {
        self.bits.on_number(sent_mark);
        self.rare.make().data_locks.add(lock, used)
    }

    /// A lock on data is recalled. Whether it is known.
    pub(crate) fn on_data_recall(&mut self, number: u64, sent_mark: u64) -> bool {
        self.bits.on_number(sent_mark);
        self.rare.make().data_locks.recall(number).is_some()
    }

    /// The inode is forgotten. Returns the locks to return, and the names that led here.
    pub(crate) fn on_forget(&mut self, ino: Ino) -> (Vec<Return>, SmallVec<[Name; 1]>) {
        let bits = self.bits.return_all();
        let bits = bits.map(|(bits, number)| Return::Bits { ino, bits, number });
        let data = self.rare.made().map(|rare| rare.data_locks.return_unused()).unwrap_or_default();
        let data = data.into_iter().map(|number| Return::Data { ino, number });
        (bits.into_iter().chain(data).collect(), self.names.take())
    }

    /// Whether the answer to what was asked then says which names lead to this inode.
    pub(crate) fn believes_names(&self, ino: Ino, asked: &Asked) -> bool {
        asked.is_under(ino, Bits::ENTRY) && self.bits.believes_names(asked.at)
    }

    /// Whether others may have changed the names that lead here since this was asked.
    pub(crate) fn lost_names_since(&self, asked: Tick) -> bool {
        self.bits.lost_names_since(asked)
    }

    /// A name leads here, under ENTRY. Whether it was not known.
    pub(crate) fn add_name(&mut self, parent: Ino, name: &[u8]) -> bool {
        self.names.add(parent, name)
    }

    /// Whether a name is known to lead here.
    pub(crate) fn has_name(&self, parent: Ino, name: &[u8]) -> bool {
        self.names.contains(parent, name)
    }

    /// A directory with a name that leads here, under ENTRY.
    pub(crate) fn parent(&self) -> Option<Ino> {
        self.names.parent()
    }

    /// A name does not lead here any more.
    pub(crate) fn remove_name(&mut self, parent: Ino, name: &[u8]) {
        self.names.remove(parent, name);
    }

    /// The inode was made by a change in a delegated directory.
    pub(crate) fn on_local_create(&mut self, parent: Ino, name: &[u8], attr: Attr, number: u64) {
        self.rare.make().delegation.create(parent, attr.is_dir(), number);
        self.names.set_only(parent, name);
        self.dentries.set_complete(attr.is_dir());
        self.attrs.set(attr);
    }

    /// The inode was moved by a change, from one delegated directory to another or the same.
    pub(crate) fn on_local_rename(&mut self, parent: Ino, name: &[u8], number: u64) {
        self.names.set_only(parent, name);
        self.rare.make().delegation.rename(parent, number);
    }

    /// A change took the last name of the inode.
    pub(crate) fn on_local_remove(&mut self, number: u64) {
        self.rare.make().delegation.remove(number);
        self.names.take();
        self.attrs.lose();
    }

    /// The inode was read at this time, which is a change of this number.
    pub(crate) fn on_local_access(&mut self, time: Timestamp, number: u64) {
        let rare = self.rare.make();
        rare.last_access = rare.last_access.max((number, time));
        if let Some(attr) = self.attributes_mut() {
            attr.atime = time;
        }
    }

    /// Number of the last change that says when the inode was read.
    pub(crate) fn last_access(&self) -> u64 {
        self.rare.last_access.0
    }

    /// Of a directory whose files are read: which of them are next.
    pub(crate) fn prefetch_plan(&mut self) -> Option<&mut PrefetchPlan> {
        self.rare.made()?.prefetch_plan.as_deref_mut()
    }

    /// A program takes a lock of fcntl(2).
    pub(crate) fn note_posix_lock(&mut self) {
        self.rare.make().has_posix_locks = true;
    }

    /// Whether a program may hold a lock of fcntl(2).
    pub(crate) fn may_have_posix_locks(&self) -> bool {
        self.rare.has_posix_locks
    }

    /// Forgets what bits protected that are not held any more. Returns the names that are not to be
    /// relied on any more.
    fn forget_protected(&mut self, bits: Bits) -> SmallVec<[Name; 1]> {
        if bits.contains(Bits::ATTR) && !self.rare.delegation.is_exclusive() {
            self.attrs.lose();
        }
        if bits.contains(Bits::NEGATIVE) && !self.rare.delegation.is_delegated() {
            self.dentries.revoke_negative();
        }
        match bits.contains(Bits::ENTRY) && self.rare.delegation.parent().is_none() {
            true => self.names.take(),
            false => SmallVec::new(),
        }
    }

    /// Whether OSTs let its data be read.
    pub(crate) fn may_read(&self) -> bool {
        self.attributes().is_some_and(Attr::is_dir)
            || self.rare.capabilities.allowing(Access::READ).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that scans a large tree keeps `KNOWN_INODES_MAX` of its inodes, in less than 256 MB.
    /// With this, 8 bytes of the allocator, 10 to 20 in its shard and 40 to 70 in its directory an
    /// inode takes some 400 bytes.
    #[test]
    fn an_inode_that_was_only_looked_at_is_small() {
        let bytes = size_of::<[usize; 2]>() + size_of::<CachedInode>();
        assert!(bytes <= 296, "{bytes} bytes");
        assert!(!CachedInode::new(Ino(7)).lock().rare.is_made());
    }
}
