//! Members of chains of which something is to be remembered that their rows do not say.
//!
//! Invariants:
//! - A note is stored in one batch with the row that it follows from.
//! - An OST whose place in a chain was taken is noted as a former member, and counts as one that may
//!   have objects of the chain, until somebody says that it has none.

use crate::error::errno;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::FsResult;
use glint_proto::chain::{Chain, Member, MemberState};
use std::collections::BTreeSet;

/// Target and OST.
type Place = (u16, u16);

/// Something that is remembered of a member.
#[derive(Clone, Copy)]
enum Note {
    /// It was emptied, and has not got everything since.
    Unfilled,
    /// Another one has taken its place.
    Former,
}

impl Note {
    /// Prefix of the keys, before the target and the OST.
    fn prefix(self) -> &'static [u8] {
        match self {
            Note::Unfilled => b"unfilled/",
            Note::Former => b"former/",
        }
    }

    fn key(self, (target, ost): Place) -> Vec<u8> {
        [self.prefix(), &target.to_be_bytes(), &ost.to_be_bytes()].concat()
    }

    async fn load(self, kv: &impl Kv) -> FsResult<BTreeSet<Place>> {
        let prefix = self.prefix();
        let end = [prefix, &[u8::MAX; 5]].concat();
        let pairs = kv.scan(Keyspace::Meta, prefix, &end, usize::MAX).await.map_err(errno)?;
        let place = |key: &[u8]| {
            let (target, ost) = key.get(prefix.len()..)?.split_first_chunk::<2>()?;
            Some((u16::from_be_bytes(*target), u16::from_be_bytes(ost.try_into().ok()?)))
        };
        Ok(pairs.iter().filter_map(|(key, _)| place(key)).collect())
    }
}

/// All of them.
#[derive(Clone, Default)]
pub(in crate::chains) struct MemberNotes {
    unfilled: BTreeSet<Place>,
    former: BTreeSet<Place>,
}

impl MemberNotes {
    pub(super) async fn load(kv: &impl Kv) -> FsResult<MemberNotes> {
        let (unfilled, former) = (Note::Unfilled.load(kv).await?, Note::Former.load(kv).await?);
        Ok(MemberNotes { unfilled, former })
    }

    fn set_of(&mut self, note: Note) -> &mut BTreeSet<Place> {
        match note {
            Note::Unfilled => &mut self.unfilled,
            Note::Former => &mut self.former,
        }
    }

    fn put(&mut self, note: Note, place: Place, batch: &mut Batch) {
        if self.set_of(note).insert(place) {
            batch.put(Keyspace::Meta, &note.key(place), &[]);
        }
    }

    fn remove(&mut self, note: Note, place: Place, batch: &mut Batch) {
        if self.set_of(note).remove(&place) {
            batch.delete(Keyspace::Meta, &note.key(place));
        }
    }

    /// Follows a row that is stored with `batch`, and `before` which the chain had another one.
    pub(super) fn follow(&mut self, before: Option<&Chain>, row: &Chain, batch: &mut Batch) {
        let target = row.id.target();
        for Member { ost, state } in &row.members {
            match state {
                MemberState::Emptied => self.put(Note::Unfilled, (target, *ost), batch),
                MemberState::Serving => self.remove(Note::Unfilled, (target, *ost), batch),
                _ => {}
            }
        }
        let members = before.iter().flat_map(|before| &before.members);
        for Member { ost, .. } in members.filter(|member| row.state_of(member.ost).is_none()) {
            self.remove(Note::Unfilled, (target, *ost), batch);
            self.put(Note::Former, (target, *ost), batch);
        }
    }

    /// A former member has nothing of the chain any more.
    pub(in crate::chains) fn forget_former(&mut self, place: Place, batch: &mut Batch) {
        self.remove(Note::Former, place, batch);
    }

    /// Whether a member was emptied, and has not got everything since.
    pub(super) fn is_unfilled(&self, target: u16, ost: u16) -> bool {
        self.unfilled.contains(&(target, ost))
    }

    /// Former members that may have objects of their chains.
    pub(super) fn former(&self) -> &BTreeSet<Place> {
        &self.former
    }

    /// Those of one chain.
    pub(in crate::chains) fn former_of(&self, target: u16) -> impl Iterator<Item = u16> {
        self.former.range((target, 0)..=(target, u16::MAX)).map(|(_, ost)| *ost)
    }
}
