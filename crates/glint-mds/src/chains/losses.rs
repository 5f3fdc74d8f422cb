//! OSTs that are given up because they do not exist any more, and what is lost with each: it is said
//! before anything is done.
//!
//! Invariants:
//! - A member that is given up counts as emptied: it is not waited for, and if its OST is heard of
//!   again, replaced or not, it gets everything from the others.
//! - Chains lose no more than was said ([`Losses::number`]): two administrators who give up an OST
//!   each, of which the other one has everything, do not lose both.
//! - Files lose nothing that was not said because their data is being moved to the OST: it stays where
//!   it was.

use crate::chains::membership::{self, ChainLoss, Loss};
use crate::chains::named_files::NamedFile;
use crate::chains::table::ChainTable;
use crate::service::Mds;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, Kv};
use glint_proto::chain::Chain;
use glint_proto::{Errno, FsResult, Ino, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Whether a file loses data for good: it has no copies, or no other copy has anything. Otherwise it
/// loses changes that all other copies have missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LosesData(pub bool);

/// Losses of chains if an OST is given up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Those of which it has something.
    pub chains: Vec<ChainLoss>,
}

impl Losses {
    /// Whether this [`number`](Losses::number) says that no chain loses anything.
    pub fn is_nothing(number: u64) -> bool {
        Losses { chains: Vec::new() }.number() == number
    }

    /// Number that stands for these losses: another one if a chain loses something else, or goes on
    /// with another member.
    pub fn number(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for ChainLoss { chain, loss, heard, .. } in &self.chains {
            if *loss != Loss::Nothing {
                (chain, loss, heard.first()).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

/// Reason that an OST is not given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GiveUpError {
    /// Something else would be lost than was said.
    OtherLosses,
    /// It was to be taken away, and new files use it.
    NotDrained,
    /// The table of chains could not be stored.
    Store(Errno),
}

impl ChainTable {
    /// Losses if an OST is given up while some members are heard of.
    pub fn losses(&self, ost: u16, heard: &BTreeSet<u16>) -> Losses {
        let is_heard = |other| heard.contains(&other);
        let loss = |chain: &Chain| {
            let target = chain.id.target();
            membership::loss(chain, ost, is_heard, |other| self.is_unfilled(target, other))
        };
        Losses { chains: self.since(0).0.iter().filter_map(loss).collect() }
    }

    /// Gives up an OST in all chains, if these lose what is `said`, and if it is drained where it has
    /// to be. Returns how many rows are others now.
    async fn give_up(
        &self,
        kv: &impl Kv,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
        must_be_drained: bool,
    ) -> Result<usize, GiveUpError> {
        // No drain begins or ends meanwhile.
        let _changing = self.changing.lock().await;
        if must_be_drained && !self.is_drained(ost) {
            return Err(GiveUpError::NotDrained);
        }
        if self.losses(ost, heard).number() != said {
            return Err(GiveUpError::OtherLosses);
        }
        let given_up = |chain: &Chain| membership::emptied(chain, ost, true).ok().flatten();
        let changed: Vec<Chain> = self.since(0).0.iter().filter_map(given_up).collect();
        let count = changed.len();
        if count > 0 {
            let stored = self.store_with(kv, changed, Batch::default()).await;
            stored.map_err(GiveUpError::Store)?;
        }
        Ok(count)
    }
}

/// Whether a file may have data in a stripe.
fn has_data(record: &InodeRecord, stripe: u16) -> bool {
    let begins = u64::from(stripe) << record.attr.layout.stripe_bytes_log2;
    record.has_objects && (record.attr.size_on_ost || record.attr.size > begins)
}

/// Whether a file loses data with an OST for good, or changes; `None` if nothing. `lossy` are the
/// chains that lose something, with whether they lose everything.
fn loss_of(record: &InodeRecord, ost: u16, own: u16, lossy: &BTreeMap<u16, bool>) -> Option<bool> {
    let layout: Layout = record.attr.layout;
    let stripes = (0..layout.stripe_count.max(1)).filter(|stripe| has_data(record, *stripe));
    let targets = stripes.map(|stripe| layout.ost_of(stripe, own));
    let losses = targets.filter_map(|target| match target == ost {
        true => Some(true),
        false => lossy.get(&target).copied(),
    });
    losses.reduce(|one, other| one || other)
}

impl<K: Kv> Mds<K> {
    /// Gives up an OST, which does not exist any more, in all chains, if these lose what is `said`
    /// ([`Losses::number`]) while some OSTs are heard of. Returns how many rows are others now.
    pub async fn give_up_ost(
        &self,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
    ) -> Result<usize, GiveUpError> {
        self.give_up(ost, heard, said, false).await
    }

    /// Does the same with an OST that is drained, and only with that: its server may be started
    /// again, and new files must not come to it then.
    pub async fn take_away_ost(
        &self,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
    ) -> Result<usize, GiveUpError> {
        self.give_up(ost, heard, said, true).await
    }

    async fn give_up(
        &self,
        ost: u16,
        heard: &BTreeSet<u16>,
        said: u64,
        must_be_drained: bool,
    ) -> Result<usize, GiveUpError> {
        let given_up = self.chains.give_up(&self.kv, ost, heard, said, must_be_drained).await;
        // Data that moves may have been written there, and nowhere else.
        self.doubts.raise();
        given_up
    }

    /// Some files that lose data if an OST is given up with these losses of chains, from an inode
    /// number on and in their order; and from where to go on, if there may be more. Files without
    /// stated OSTs lie on the first `own` ones.
    pub async fn lost_files(
        &self,
        ost: u16,
        losses: &Losses,
        own: u16,
        from: Ino,
    ) -> FsResult<(Vec<NamedFile<LosesData>>, Option<Ino>)> {
        let lossy = losses.chains.iter().filter(|chain| chain.loss != Loss::Nothing);
        let lossy = lossy.map(|chain| (chain.chain.target(), chain.loss == Loss::Everything));
        let lossy: BTreeMap<u16, bool> = lossy.collect();
        self.named_files(from, |record| loss_of(record, ost, own, &lossy).map(LosesData)).await
    }
}
