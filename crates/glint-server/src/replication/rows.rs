//! Rows of chains that this server knows, and what is executed by them.
//!
//! Invariants:
//! - Nothing begins by a row that is not the newest one known here.
//! - Changes by older rows are over once [`Rows::until_quiet`] returns.
//! - A row is called settled only when no server acts by an older one: what is acknowledged without
//!   a member is read at that member by nobody.
//! - Where a change of the head may be in some copies only, the row is active again only after
//!   another takeover, and nothing of the chain is called stable before that.
//! - Changes that the members of now may lack, because the last one that served has lost them or
//!   nobody serves and may yet lose them, are called stable only when their clients have heard of
//!   that row.
//! - Data that only this copy may have is never reported as committed: what a server says to be on
//!   stable storage ends before the first change that other members may still lose
//!   ([`Rows::unstable_from`]).

mod changes;

use super::touched::Stable;
pub(super) use changes::Settling;
use changes::{FirstChange, OwnChanges};
use futures_util::lock;
use glint_proto::chain::{Chain, ChainVersion};
use glint_proto::{Errno, FsResult};
use glint_wait::WaitList;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The rows of this server.
#[derive(Default)]
pub(super) struct Rows {
    known: Mutex<BTreeMap<u16, Known>>,
    /// Waiters for a newer row, or for the end of what is executed by older ones.
    changed: Arc<WaitList>,
    /// The first transaction of this server that other members may not have on stable storage;
    /// [`u64::MAX`] if there is none.
    unstable_from: AtomicU64Max,
}

struct AtomicU64Max(AtomicU64);

impl Default for AtomicU64Max {
    fn default() -> AtomicU64Max {
        AtomicU64Max(AtomicU64::new(u64::MAX))
    }
}

struct Known {
    row: Arc<Chain>,
    /// Version in which the copies are known to be equal; reads are answered in no other one.
    active: u32,
    /// Whether no server acts by an older row; and the change of the table that this one came
    /// with, if the MDS has said it here.
    is_settled: bool,
    change: Option<u64>,
    /// Versions in which other members were told something.
    told: [u32; 2],
    /// Version since which members here, if they are written, are so without a break.
    written_since: u32,
    /// What was said last to be stable.
    stable_said: Stable,
    /// At the head: version and number of the last change that it has told all others is stable.
    stable_told: (u32, u64),
    version: Arc<InUse>,
    /// Versions before, while something is executed by them.
    earlier: Vec<Weak<InUse>>,
    changes: OwnChanges,
}

/// Something that the head tells other members once in each version.
#[derive(Clone, Copy)]
pub(super) enum Told {
    /// The copies are equal.
    Active,
    /// One is synced, and has said what it may have on its disk.
    Syncing,
}

/// A version of a row, while something is executed by it.
pub(super) struct InUse(Arc<WaitList>);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Something that is executed by a row.
pub(super) struct Entered {
    pub(super) row: Arc<Chain>,
    pub(super) is_active: bool,
    _version: Arc<InUse>,
}

impl Entered {
    pub(super) fn version(&self) -> ChainVersion {
        ChainVersion { target: self.row.id.target(), version: self.row.version }
    }
}

impl Rows {
    /// The newest row of a chain.
    pub(super) fn get(&self, target: u16) -> Option<Arc<Chain>> {
        self.known.lock().get(&target).map(|known| known.row.clone())
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.known.lock().is_empty()
    }

    /// All of them, and whether their copies are known to be equal.
    pub(super) fn all(&self) -> Vec<(Arc<Chain>, bool)> {
        let known = self.known.lock();
        known.values().map(|one| (one.row.clone(), one.active == one.row.version)).collect()
    }

    /// Enters by the row of this version: EREMCHG if the newest one is another.
    pub(super) fn enter(&self, chain: ChainVersion) -> FsResult<Entered> {
        let entered = self.enter_newest(chain.target)?;
        match entered.row.version == chain.version {
            true => Ok(entered),
            false => Err(Errno::EREMCHG),
        }
    }

    /// Enters by the newest row.
    pub(super) fn enter_newest(&self, target: u16) -> FsResult<Entered> {
        let known = self.known.lock();
        let one = known.get(&target).ok_or(Errno::EREMCHG)?;
        let is_active = one.active == one.row.version;
        Ok(Entered { row: one.row.clone(), is_active, _version: one.version.clone() })
    }

    /// Takes a row if it is newer than the one known. Returns that one; the outer `None` if it is
    /// not newer. `stays_active` says whether the copies are equal by the new row, too, `is_written`
    /// and `serves` whether members here are written by one, or serve.
    pub(super) fn adopt(
        &self,
        row: &Chain,
        stays_active: impl FnOnce(&Chain) -> bool,
        is_written: impl Fn(&Chain) -> bool,
        serves: impl Fn(&Chain) -> bool,
    ) -> Option<Option<Arc<Chain>>> {
        let mut known = self.known.lock();
        let target = row.id.target();
        let before = match known.get_mut(&target) {
            Some(one) if one.row.version >= row.version => return None,
            Some(one) => {
                let stays = one.active == one.row.version && stays_active(&one.row);
                if stays {
                    one.active = row.version;
                }
                // Rows between these two may say that it was lost meanwhile. But no member serves that
                // does not know the row in which it was synced.
                let is_next = one.row.version + 1 == row.version || serves(row);
                if !is_next || !is_written(&one.row) {
                    one.written_since = row.version;
                }
                let version = Arc::new(InUse(self.changed.clone()));
                let before = std::mem::replace(&mut one.version, version);
                one.earlier.retain(|version| version.strong_count() > 0);
                one.earlier.push(Arc::downgrade(&before));
                (one.is_settled, one.change) = (false, None);
                Some(std::mem::replace(&mut one.row, Arc::new(row.clone())))
            }
            None => {
                let version = Arc::new(InUse(self.changed.clone()));
                let one = Known {
                    row: Arc::new(row.clone()),
                    active: 0,
                    is_settled: false,
                    change: None,
                    told: [0; 2],
                    written_since: row.version,
                    stable_said: Stable::default(),
                    stable_told: (0, 0),
                    version,
                    earlier: Vec::new(),
                    changes: OwnChanges::default(),
                };
                known.insert(target, one);
                None
            }
        };
        drop(known);
        self.changed.wake();
        Some(before)
    }

    /// The copies are equal in this version, as another head has made them.
    pub(super) fn activate(&self, chain: ChainVersion) {
        if let Some(one) = self.known.lock().get_mut(&chain.target) {
            one.active = one.active.max(chain.version.min(one.row.version));
            if one.active == one.row.version {
                one.changes.decided = one.changes.undecided;
            }
        }
    }

    /// Changes of a chain so far that may be in some copies only.
    pub(super) fn undecided(&self, target: u16) -> u64 {
        self.known.lock().get(&target).map_or(0, |one| one.changes.undecided)
    }

    /// The copies are equal in this version, as this head has made them: also those that so many
    /// changes were left in. Another takeover is due if there are more since.
    pub(super) fn activate_own(&self, chain: ChainVersion, undecided: u64) {
        if let Some(one) = self.known.lock().get_mut(&chain.target)
            && one.row.version == chain.version
        {
            one.changes.decided = undecided;
            if !one.changes.is_undecided() {
                one.active = chain.version;
            }
        }
    }

    /// The MDS has said these rows with this change of the table, or before. No server acts by
    /// older ones than those of the change `everywhere`.
    pub(super) fn said(&self, rows: &[Chain], change: u64, everywhere: u64) {
        let mut known = self.known.lock();
        for row in rows {
            let one = known.get_mut(&row.id.target());
            if let Some(one) = one.filter(|one| one.row.version == row.version) {
                one.change = Some(change);
            }
        }
        let mut is_news = false;
        for one in known.values_mut().filter(|one| !one.is_settled) {
            one.is_settled = one.change.is_some_and(|change| change <= everywhere);
            is_news |= one.is_settled;
        }
        drop(known);
        if is_news {
            self.changed.wake();
        }
    }

    /// Notes that no server acts by an older row than this.
    pub(super) fn mark_settled(&self, row: &Chain) {
        let mut known = self.known.lock();
        let one = known.get_mut(&row.id.target());
        if let Some(one) = one.filter(|one| one.row.version == row.version) {
            one.is_settled = true;
        }
        drop(known);
        self.changed.wake();
    }

    /// Waits until no server acts by an older row than this. Returns whether it is the newest one.
    pub(super) async fn until_settled(&self, chain: ChainVersion) -> bool {
        let is_settled = || {
            let known = self.known.lock();
            match known.get(&chain.target) {
                Some(one) if one.row.version == chain.version => one.is_settled.then_some(true),
                _ => Some(false),
            }
        };
        self.changed.until(is_settled).await
    }

    /// Whether other members were told something in this version.
    pub(super) fn is_told(&self, what: Told, chain: ChainVersion) -> bool {
        let told = |one: &Known| one.told[what as usize] >= chain.version;
        self.known.lock().get(&chain.target).is_some_and(told)
    }

    /// Other members were told something.
    pub(super) fn told(&self, what: Told, chain: ChainVersion) {
        if let Some(one) = self.known.lock().get_mut(&chain.target) {
            let told = &mut one.told[what as usize];
            *told = chain.version.max(*told);
        }
    }

    /// Notes that these changes are said to be stable. Returns whether that is new.
    pub(super) fn is_news(&self, target: u16, said: Stable) -> bool {
        let mut known = self.known.lock();
        let one = known.get_mut(&target).filter(|one| one.stable_said < said);
        one.map(|one| one.stable_said = said).is_some()
    }

    /// What was said last to be stable.
    pub(super) fn stable_said(&self, target: u16) -> Stable {
        self.known.lock().get(&target).map_or_else(Stable::default, |one| one.stable_said)
    }

    /// Rows of which a head here has not told all others up to which change all are stable.
    pub(super) fn stable_untold(
        &self,
        is_headed: impl Fn(&Chain) -> bool,
    ) -> Vec<(Arc<Chain>, u64)> {
        let known = self.known.lock();
        let is_due = |one: &&Known| {
            let stable = one.changes.stable;
            // Before a head has taken over, others may have noted changes of another one.
            let is_active = one.active == one.row.version;
            let is_untold = stable > 0 && one.stable_told != (one.row.version, stable);
            is_untold && is_active && is_headed(&one.row)
        };
        known.values().filter(is_due).map(|one| (one.row.clone(), one.changes.stable)).collect()
    }

    /// All others were told that changes up to this one are stable.
    pub(super) fn told_stable(&self, chain: ChainVersion, upto: u64) {
        if let Some(one) = self.known.lock().get_mut(&chain.target) {
            one.stable_told = (chain.version, upto);
        }
    }

    /// Version since which members here are written, if they are.
    pub(super) fn written_since(&self, target: u16) -> u32 {
        self.known.lock().get(&target).map_or(u32::MAX, |one| one.written_since)
    }

    /// Waits until nothing is executed by older rows of a chain.
    pub(super) async fn until_quiet(&self, target: u16) {
        let is_quiet = || {
            let mut known = self.known.lock();
            let one = known.get_mut(&target)?;
            one.earlier.retain(|version| version.strong_count() > 0);
            one.earlier.is_empty().then_some(())
        };
        if self.get(target).is_some() {
            self.changed.until(is_quiet).await;
        }
    }

    /// Waits until a member is not written by the newest row of a chain.
    pub(super) async fn until_out(&self, target: u16, ost: u16) {
        let is_out = || {
            let known = self.known.lock();
            let is_in =
                known.get(&target).is_some_and(|one| one.row.written().any(|its| its == ost));
            (!is_in).then_some(())
        };
        self.changed.until(is_out).await;
    }

    /// Waits until an OST is written by no row.
    pub(super) async fn until_out_of_all(&self, ost: u16, other: impl Fn() -> bool) {
        let is_out = || {
            let known = self.known.lock();
            let mut rows = known.values().map(|one| &one.row);
            let is_in = rows.any(|row| row.written().any(|its| its == ost));
            (!is_in && other()).then_some(())
        };
        self.changed.until(is_out).await;
    }

    /// Waits until there is a newer row than this.
    pub(super) async fn until_newer(&self, chain: ChainVersion) {
        let is_newer = || {
            let known = self.known.lock();
            known.get(&chain.target).is_none_or(|one| one.row.version > chain.version).then_some(())
        };
        self.changed.until(is_newer).await;
    }

    /// The head begins a change; its transaction is not before this one. Returns its number, and up
    /// to which they are stable; `None` if there is a newer row: numbers rise with versions.
    pub(super) fn begin(&self, chain: ChainVersion, transaction: u64) -> Option<(u64, u64)> {
        let mut known = self.known.lock();
        let one = known.get_mut(&chain.target);
        let one = one.filter(|one| one.row.version == chain.version)?;
        let changes = &mut one.changes;
        changes.last += 1;
        changes.under_way.insert(changes.last);
        if changes.unstable.is_none() {
            changes.unstable = Some(FirstChange { transaction, version: chain.version });
            self.unstable_from.0.fetch_min(transaction, Ordering::AcqRel);
        }
        Some((changes.last, changes.stable))
    }

    /// A change that an OST `here` ordered is over, with all attempts to make it. Unless it is decided,
    /// it may be in some copies only.
    pub(super) fn end(&self, target: u16, numbers: &[u64], is_decided: bool, here: &Range<u16>) {
        if let Some(one) = self.known.lock().get_mut(&target) {
            numbers.iter().for_each(|number| _ = one.changes.under_way.remove(number));
            if !is_decided {
                one.changes.undecided += 1;
                if one.row.head().is_some_and(|head| here.contains(&head)) {
                    one.active = 0;
                }
            }
        }
        self.changed.wake();
    }

    /// Chains with changes that this server ordered and that are not stable, each with the turn that
    /// whoever brings them to stable storage holds meanwhile.
    pub(super) fn unstable(&self) -> Vec<(u16, Arc<lock::Mutex<()>>)> {
        let known = self.known.lock();
        let unstable = known.iter().filter(|(_, one)| one.changes.are_unstable());
        unstable.map(|(target, one)| (*target, one.changes.turn.clone())).collect()
    }

    /// The same turn of one chain, if it is known.
    pub(super) fn settling_turn(&self, target: u16) -> Option<Arc<lock::Mutex<()>>> {
        self.known.lock().get(&target).map(|one| one.changes.turn.clone())
    }

    /// Changes of a chain that are not stable, in their turn; `None` if there are none, another takeover
    /// is due in it, or nobody has them at hand. What comes later counts to the next look. A takeover is
    /// due only where the row `is_headed` here: another head settles what may differ before anybody sees
    /// it, and nobody was told that an undecided change is made.
    pub(super) fn begin_settling(
        &self,
        target: u16,
        is_headed: impl Fn(&Chain) -> bool,
    ) -> Option<Settling> {
        let mut known = self.known.lock();
        let one = known.get_mut(&target)?;
        let changes = &mut one.changes;
        // Those of a look that failed are brought to stable storage together with later ones.
        let unstable = changes.unstable.take();
        changes.settling = changes.settling.or(unstable);
        let first = changes.settling?;
        let are_lost = changes.are_lost(first, &one.row);
        let is_at_hand = one.row.head().is_some() || !are_lost;
        let is_undecided = changes.is_undecided() && is_headed(&one.row);
        let is_due = is_at_hand && !is_undecided;
        is_due.then(|| Settling { row: one.row.clone(), upto: changes.last, are_lost })
    }

    /// Waits until the changes up to this one are executed.
    pub(super) async fn until_executed(&self, target: u16, upto: u64) {
        let is_done = || {
            let known = self.known.lock();
            let first = known.get(&target).and_then(|one| one.changes.under_way.first().copied());
            first.is_none_or(|first| first > upto).then_some(())
        };
        self.changed.until(is_done).await;
    }

    /// Changes up to this one are on stable storage in all copies, unless one of them turned out to
    /// be undecided.
    pub(super) fn settled(&self, target: u16, upto: u64, is_headed: impl Fn(&Chain) -> bool) {
        let mut known = self.known.lock();
        let is_decided = |one: &&mut Known| !(one.changes.is_undecided() && is_headed(&one.row));
        if let Some(one) = known.get_mut(&target).filter(is_decided) {
            (one.changes.settling, one.changes.lost_since) = (None, None);
            one.changes.stable = one.changes.stable.max(upto);
        }
        let from = |one: &Known| {
            let OwnChanges { unstable, settling, .. } = one.changes;
            [unstable, settling].into_iter().flatten().map(|first| first.transaction).min()
        };
        let first = known.values().filter_map(from).min();
        self.unstable_from.0.store(first.unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The first transaction of this server that other members may not have on stable storage.
    pub(super) fn unstable_from(&self) -> u64 {
        self.unstable_from.0.load(Ordering::Acquire)
    }
}
