//! The table of chains, in the MDS's engine.
//!
//! Invariants:
//! - A row is on stable storage before anybody sees it: a member that misses a write is marked there
//!   before the write is acknowledged without it.
//! - A row is changed only from the version that the change was decided on (compare and set), by one
//!   change at a time.
//! - Rows never go away, and their members change only by a transition of [`membership`].
//! - An OST that may have objects of a chain is among its [holders](ChainTable::holders).

mod avoided;
mod notes;

use crate::chains::membership::{self, Seen};
use crate::chains::placement::{self, Placed, TooFewDomains};
use crate::error::errno;
use avoided::{AvoidedChains, OstUse};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::chain::{Chain, ChainId, ChainTargets, Member, MemberEvent, MemberState};
use glint_proto::limits::CHAINS_MAX;
use glint_proto::{Avoided, Errno, FsResult, clock, message};
pub(super) use notes::MemberNotes;
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Prefix of the keys of rows: `chain/` and the target.
const KEY: &[u8] = b"chain/";
const KEYS_END: &[u8] = b"chain0";
/// Longest time that a new head takes to make copies equal, and clients to send it what they must.
const TAKEOVER_MAX: Duration = Duration::from_secs(30);

/// Reason that chains could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChainError {
    #[error(transparent)]
    Placement(#[from] TooFewDomains),
    #[error("the table of chains could not be stored: {0}")]
    Store(Errno),
}

impl ChainError {
    /// Errno for whoever wanted them.
    pub(crate) fn errno(&self) -> Errno {
        match self {
            // There is no room for so many copies.
            ChainError::Placement(_) => Errno::ENOSPC,
            ChainError::Store(errno) => *errno,
        }
    }
}

/// Chains in which an OST is away: not there, or not believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Away {
    /// In one at least.
    pub somewhere: bool,
    /// In all that it is a member of.
    pub everywhere: bool,
    /// One at least waits for it.
    pub awaited: bool,
}

#[derive(Default)]
struct Rows {
    /// By targets.
    chains: BTreeMap<u16, Row>,
    /// Number of the last change.
    changes: u64,
    /// How many there are of each number of members, and which of them new files avoid.
    avoided: BTreeMap<u8, AvoidedChains>,
    osts: OstUse,
    notes: MemberNotes,
    /// When a row was changed last, and whether all members serve by all of them.
    last_change: Option<Instant>,
    are_whole: bool,
}

impl Rows {
    /// Puts rows into the table.
    fn put(&mut self, chains: impl IntoIterator<Item = Chain>) {
        for chain in chains {
            self.changes += 1;
            self.chains.insert(chain.id.target(), Row { chain, changed: self.changes });
        }
        self.last_change = Some(clock::now());
        let serves = |member: &Member| member.state == MemberState::Serving;
        self.are_whole = self.chains.values().all(|row| row.chain.members.iter().all(serves));
        self.recount();
    }

    /// Counts chains, and those that new files avoid.
    fn recount(&mut self) {
        self.avoided = avoided::sort(self.chains.values().map(|row| &row.chain), &self.osts);
    }
}

struct Row {
    chain: Chain,
    /// Change that made it as it is.
    changed: u64,
}

/// The chains of a file system.
#[derive(Default)]
pub struct ChainTable {
    rows: RwLock<Rows>,
    /// Held while a change is stored.
    pub(crate) changing: futures_util::lock::Mutex<()>,
}

fn key(target: u16) -> Vec<u8> {
    [KEY, &target.to_be_bytes()].concat()
}

impl ChainTable {
    /// Reads all rows. EIO if one is damaged.
    pub async fn load(kv: &impl Kv) -> FsResult<ChainTable> {
        let pairs = kv.scan(Keyspace::Meta, KEY, KEYS_END, usize::MAX).await.map_err(errno)?;
        let mut chains = Vec::new();
        for (key, value) in pairs {
            let chain: Chain = message::decode(&value).map_err(|_| damaged(&key))?;
            if !chain.is_valid() {
                return Err(damaged(&key));
            }
            chains.push(chain);
        }
        let mut rows = Rows { notes: MemberNotes::load(kv).await?, ..Rows::default() };
        rows.put(chains);
        Ok(ChainTable { rows: RwLock::new(rows), changing: futures_util::lock::Mutex::default() })
    }

    /// The row of a target.
    pub fn get(&self, target: u16) -> Option<Chain> {
        self.rows.read().chains.get(&target).map(|row| row.chain.clone())
    }

    /// From when on no member of any chain gives another one what that lacks, if no row changes until
    /// then; `None` while a member lacks something.
    pub(crate) fn quiet_from(&self) -> Option<Instant> {
        let rows = self.rows.read();
        let quiet = rows.last_change.map_or_else(clock::now, |changed| changed + TAKEOVER_MAX);
        rows.are_whole.then_some(quiet)
    }

    /// Number of the change that made a row as it is.
    pub fn changed(&self, target: u16) -> u64 {
        self.rows.read().chains.get(&target).map_or(0, |row| row.changed)
    }

    /// How many chains there are with so many members.
    pub(crate) fn count(&self, copies: u8) -> u16 {
        self.rows.read().avoided.get(&copies).map_or(0, |of| of.count)
    }

    /// Hands out how many there are, and which of them new files avoid.
    pub(crate) fn with_count<T>(
        &self,
        copies: u8,
        use_it: impl FnOnce(u16, Avoided<'_>) -> T,
    ) -> T {
        let rows = self.rows.read();
        match rows.avoided.get(&copies) {
            Some(AvoidedChains { count, all, worst, gone, .. }) => {
                use_it(*count, Avoided { all, worst, gone })
            }
            None => use_it(0, Avoided::default()),
        }
    }

    /// Chains that new files are laid out over.
    pub(crate) fn targets(&self) -> Vec<ChainTargets> {
        let rows = self.rows.read();
        let targets = |(copies, of): (&u8, &AvoidedChains)| ChainTargets {
            copies: *copies,
            count: of.count,
            avoided: of.all.clone(),
        };
        rows.avoided.iter().map(targets).collect()
    }

    /// Has new files avoid the chains of these OSTs.
    pub(crate) fn set_drained(&self, osts: &[u16]) {
        let mut rows = self.rows.write();
        rows.osts.drained = osts.to_vec();
        rows.recount();
    }

    /// Whether new files avoid an OST because it is drained.
    pub(crate) fn is_drained(&self, ost: u16) -> bool {
        self.rows.read().osts.drained.contains(&ost)
    }

    /// Says which failure domains the OSTs are in that there are.
    pub(crate) fn set_domains(&self, placed: &[Placed]) {
        let mut rows = self.rows.write();
        let domains = placed.iter().map(|placed| (placed.ost, placed.domain.clone()));
        rows.osts.domains = domains.collect();
        rows.recount();
    }

    /// Whether files are to leave a chain: members of it fail together, and there are others.
    pub(crate) fn is_crowded(&self, target: u16) -> bool {
        let rows = self.rows.read();
        let chain = ChainId::of_target(target);
        let avoided = chain.and_then(|chain| rows.avoided.get(&chain.copies));
        let index = chain.map_or(0, |chain| chain.index);
        avoided.is_some_and(|of| of.crowded.binary_search(&index).is_ok())
    }

    /// Whether new files avoid a chain, as long as there are others.
    pub fn is_avoided(&self, chain: ChainId) -> bool {
        let rows = self.rows.read();
        let of = rows.avoided.get(&chain.copies);
        of.is_some_and(|of| {
            of.all.contains(&chain.index) || of.gone.binary_search(&chain.index).is_ok()
        })
    }

    /// Members of chains that files are to leave.
    pub fn crowded_osts(&self) -> BTreeSet<u16> {
        let rows = self.rows.read();
        let is_crowded = |row: &&Row| {
            let of = rows.avoided.get(&row.chain.id.copies);
            of.is_some_and(|of| of.crowded.binary_search(&row.chain.id.index).is_ok())
        };
        let crowded = rows.chains.values().filter(is_crowded);
        crowded.flat_map(|row| &row.chain.members).map(|member| member.ost).collect()
    }

    /// Whether new members may be laid over an OST: it is neither drained, nor full or not heard of.
    pub(super) fn may_be_used(&self, ost: u16) -> bool {
        let rows = self.rows.read();
        !rows.osts.drained.contains(&ost) && !rows.osts.absent.contains(&ost)
    }

    /// Has new files avoid the chains of OSTs that are full or not heard of, if there are others,
    /// and use none of OSTs alone that were given up.
    pub(crate) fn set_absent(&self, absent: &[u16], given_up: &[u16]) {
        let mut rows = self.rows.write();
        (rows.osts.absent, rows.osts.given_up) = (absent.to_vec(), given_up.to_vec());
        rows.recount();
    }

    /// Numbers of members that chains have.
    pub(crate) fn copies(&self) -> BTreeSet<u8> {
        self.rows.read().avoided.keys().copied().collect()
    }

    /// Chains in which an OST is away.
    pub fn away(&self, ost: u16) -> Away {
        let rows = self.rows.read();
        let states = || rows.chains.values().filter_map(|row| row.chain.state_of(ost));
        let is_away = |state| matches!(state, MemberState::Offline | MemberState::LastServing);
        let is_unused = |state| is_away(state) || state == MemberState::Emptied;
        Away {
            somewhere: states().any(is_away),
            everywhere: states().all(is_unused),
            awaited: states().any(|state| state == MemberState::LastServing),
        }
    }

    /// Rows that were changed after change `known`, and the number of the last change.
    pub fn since(&self, known: u64) -> (Vec<Chain>, u64) {
        let rows = self.rows.read();
        let news = rows.chains.values().filter(|row| row.changed > known);
        (news.map(|row| row.chain.clone()).collect(), rows.changes)
    }

    /// Makes the chains with so many members over these OSTs which are not there. Returns how many
    /// there are.
    pub(crate) async fn extend(
        &self,
        kv: &impl Kv,
        copies: u8,
        osts: &[Placed],
    ) -> Result<u16, ChainError> {
        let _changing = self.changing.lock().await;
        let wanted = placement::chains(usize::from(copies), osts)?;
        let known: Vec<Vec<u16>> = self.founded(copies);
        let count = known.len() as u16;
        let missing = wanted.into_iter().filter(|members| !known.contains(members));
        let fresh = (count..CHAINS_MAX).zip(missing);
        let chains: Vec<Chain> = fresh
            .map(|(index, members)| membership::new(ChainId { copies, index }, members))
            .collect();
        let more = chains.len() as u16;
        self.store(kv, chains).await.map_err(ChainError::Store)?;
        Ok(count + more)
    }

    /// Members of each chain with so many, as they were laid out: heads first, then by their
    /// distance.
    fn founded(&self, copies: u8) -> Vec<Vec<u16>> {
        let rows = self.rows.read();
        let of_it = rows.chains.values().filter(|row| row.chain.id.copies == copies);
        of_it.map(|row| row.chain.founders.clone()).collect()
    }

    /// Something happened to an OST: all its chains. Returns the rows that are others now.
    pub(crate) async fn on_event(
        &self,
        kv: &impl Kv,
        ost: u16,
        event: MemberEvent,
    ) -> FsResult<Vec<Chain>> {
        let _changing = self.changing.lock().await;
        let changed = self.changed_by(|chain| membership::after(chain, ost, event));
        self.store(kv, changed.clone()).await?;
        Ok(changed)
    }

    /// The server of an OST has started again: its members are as lost.
    pub(crate) async fn on_restart(
        &self,
        kv: &impl Kv,
        ost: u16,
        seen: impl Fn(u16) -> Seen,
    ) -> FsResult<()> {
        let _changing = self.changing.lock().await;
        let changed = self.changed_by(|chain| membership::restarted(chain, ost, &seen));
        self.store(kv, changed).await
    }

    /// Somebody has looked which OSTs are there. Returns the rows that are others now.
    pub(crate) async fn on_look(
        &self,
        kv: &impl Kv,
        seen: impl Fn(u16) -> Seen,
        has_restarted: impl Fn(u16) -> bool,
    ) -> FsResult<Vec<Chain>> {
        let _changing = self.changing.lock().await;
        let look = |chain: &Chain| membership::watched(chain, &seen, &has_restarted);
        let changed = self.changed_by(look);
        self.store(kv, changed.clone()).await?;
        Ok(changed)
    }

    fn changed_by(&self, change: impl Fn(&Chain) -> Option<Chain>) -> Vec<Chain> {
        self.rows.read().chains.values().filter_map(|row| change(&row.chain)).collect()
    }

    /// Whether a member was emptied, and has not got everything since.
    pub(crate) fn is_unfilled(&self, target: u16, ost: u16) -> bool {
        self.rows.read().notes.is_unfilled(target, ost)
    }

    /// OSTs whose places in chains were taken, and that may have objects of these: targets and OSTs.
    pub fn former(&self) -> BTreeSet<(u16, u16)> {
        self.rows.read().notes.former().clone()
    }

    /// What is remembered of members.
    pub(super) fn notes(&self) -> MemberNotes {
        self.rows.read().notes.clone()
    }

    /// Takes notes that are stored, while a change is.
    pub(super) fn set_notes(&self, notes: MemberNotes) {
        self.rows.write().notes = notes;
    }

    /// OSTs that may have objects of a chain: its members, and those that were. Empty if there is none.
    pub fn holders(&self, target: u16) -> BTreeSet<u16> {
        let rows = self.rows.read();
        let Some(row) = rows.chains.get(&target) else { return BTreeSet::new() };
        let members = row.chain.members.iter().map(|member| member.ost);
        members.chain(rows.notes.former_of(target)).collect()
    }

    /// OSTs that were the last that served, in chains with more such members than `others`.
    pub fn last_serving(&self, others: usize) -> BTreeSet<u16> {
        let mut found = BTreeSet::new();
        for row in self.rows.read().chains.values() {
            let last = row.chain.members.iter().filter(|m| m.state == MemberState::LastServing);
            let last: Vec<u16> = last.map(|member| member.ost).collect();
            if last.len() > others {
                found.extend(last);
            }
        }
        found
    }

    /// Something happened to a member of one chain, as somebody saw it who knew this version.
    /// Returns the row as it is then: an older version changes nothing.
    pub(crate) async fn on_member(
        &self,
        kv: &impl Kv,
        target: u16,
        version: u32,
        ost: u16,
        event: MemberEvent,
    ) -> FsResult<Chain> {
        let _changing = self.changing.lock().await;
        let chain = self.get(target).ok_or(Errno::ENXIO)?;
        let next = match chain.version == version {
            true => membership::after(&chain, ost, event),
            false => None,
        };
        if let Some(next) = &next {
            self.store(kv, vec![next.clone()]).await?;
        }
        Ok(next.unwrap_or(chain))
    }

    async fn store(&self, kv: &impl Kv, chains: Vec<Chain>) -> FsResult<()> {
        if chains.is_empty() {
            return Ok(());
        }
        self.store_with(kv, chains, Batch::default()).await
    }

    /// Stores rows together with something else.
    pub(super) async fn store_with(
        &self,
        kv: &impl Kv,
        chains: Vec<Chain>,
        mut batch: Batch,
    ) -> FsResult<()> {
        let mut notes = self.notes();
        for chain in &chains {
            let target = chain.id.target();
            let mut value = Vec::new();
            message::encode(chain, &mut value)?;
            batch.put(Keyspace::Meta, &key(target), &value);
            notes.follow(self.get(target).as_ref(), chain, &mut batch);
        }
        kv.commit(batch, &[]).await.map_err(errno)?;
        kv.sync().await.map_err(errno)?;
        let mut rows = self.rows.write();
        rows.notes = notes;
        rows.put(chains);
        Ok(())
    }
}

fn damaged(key: &[u8]) -> Errno {
    tracing::error!(?key, "damaged row of the table of chains; run `glint fsck`");
    Errno::EIO
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_kv::memory::MemoryKv;

    fn osts(count: u16) -> Vec<Placed> {
        (0..count).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect()
    }

    #[test]
    fn rows_outlive_the_run_and_are_told_once() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            let count = table.extend(&kv, 3, &osts(4)).await.unwrap();
            assert_eq!(table.extend(&kv, 3, &osts(4)).await.unwrap(), count, "nothing is missing");
            assert_eq!((table.count(3), table.count(2)), (count, 0));
            let (all, known) = table.since(0);
            assert_eq!(all.len(), usize::from(count));
            assert!(table.since(known).0.is_empty());
            let changed = table.on_event(&kv, 2, MemberEvent::Lost).await.unwrap();
            assert!(changed.iter().all(|row| row.state_of(2) == Some(MemberState::Offline)));
            assert_eq!(table.since(known).0, changed);
            let again = ChainTable::load(&kv).await.unwrap();
            let rows = |table: &ChainTable| {
                let mut rows = table.since(0).0;
                rows.sort_by_key(|row| row.id);
                rows
            };
            assert_eq!(rows(&again), rows(&table));
            let more = again.extend(&kv, 3, &osts(5)).await.unwrap();
            assert!(more > count);
            assert!(rows(&again).starts_with(&rows(&table)), "rows that were given out stay");
        });
    }

    #[test]
    fn only_the_version_that_was_seen_is_changed() {
        block_on(async {
            let kv = MemoryKv::default();
            let table = ChainTable::load(&kv).await.unwrap();
            table.extend(&kv, 2, &osts(2)).await.unwrap();
            let target = ChainId { copies: 2, index: 0 }.target();
            let row = table.get(target).unwrap();
            let head = row.head().unwrap();
            let next =
                table.on_member(&kv, target, row.version, head, MemberEvent::Lost).await.unwrap();
            assert_eq!(next.state_of(head), Some(MemberState::Offline));
            let other = next.head().unwrap();
            let late =
                table.on_member(&kv, target, row.version, other, MemberEvent::Lost).await.unwrap();
            assert_eq!(late, next, "who saw the old row takes nobody out");
            let absent = ChainId { copies: 3, index: 0 }.target();
            let none = table.on_member(&kv, absent, 1, 0, MemberEvent::Lost).await;
            assert_eq!(none, Err(Errno::ENXIO));
        });
    }
}
