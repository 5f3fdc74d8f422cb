//! Objects that no member which serves has right: each has lost its own behind the server's back, or
//! that is damaged.
//!
//! A member that lags behind may have them. After a clean end of all servers, one after the other, the
//! last one has served alone, and the others lag behind in the table of chains whatever they lack, or
//! if that is nothing.
//!
//! Invariants:
//! - The copy of a member that lags behind counts as right only if the indexes of all that serve are
//!   here and none names any of the object as lacking there, its member was not emptied, no change of
//!   the object may be in some copies only, and all such copies are equal.
//! - It is copied here, object by object. Nothing becomes of the members: the one that lags behind may
//!   lack something of other objects.

use super::{Check, Copies, Copy, Difference, Outcome};
use glint_proto::ObjectId;
use glint_proto::chain::{Chain, MemberState};
use std::collections::BTreeMap;

/// A copy of a member that serves which is not right, and the OST that lags behind and has a right one.
pub(super) struct LostByAll {
    object: ObjectId,
    ost: u16,
    from: u16,
    what: String,
}

impl Copies<'_> {
    /// No copy that has everything is here and right.
    pub(super) fn without_right(
        &mut self,
        check: &mut Check,
        object: ObjectId,
        (row, have_all): (&Chain, &[u16]),
        copies: &BTreeMap<u16, Copy>,
    ) {
        let are_all_here = have_all.iter().all(|ost| self.has(*ost));
        let whole = if are_all_here { self.whole(object, (row, have_all), copies) } else { None };
        if let Some(from) = whole {
            self.lost.extend(have_all.iter().map(|ost| {
                let what = match copies.get(ost).and_then(|copy| copy.damage.as_deref()) {
                    Some(damage) => format!("object {object} on OST {ost}: {damage}"),
                    None => format!("object {object} is missing on OST {ost}; OST {from} has it"),
                };
                LostByAll { object, ost: *ost, from, what }
            }));
            return;
        }
        let lags = |(ost, copy): &(&u16, &Copy)| !have_all.contains(ost) && copy.damage.is_none();
        let lag: Vec<String> =
            copies.iter().filter(lags).map(|(ost, _)| format!("OST {ost}")).collect();
        let others = match are_all_here {
            true if lag.is_empty() => "no other copy is right".to_owned(),
            true => format!("no other copy is right but on {}, which may be older", lag.join(", ")),
            false => "its other copies were not looked at (--oss)".to_owned(),
        };
        for (ost, copy) in copies.iter().filter(|(ost, _)| have_all.contains(ost)) {
            if let Some(damage) = &copy.damage {
                check.find(
                    format!("object {object} on OST {ost}: {damage}; {others}"),
                    Outcome::Left,
                );
            }
        }
        let is_nowhere = are_all_here && have_all.iter().all(|ost| !copies.contains_key(ost));
        let target = row.id.target();
        for (ost, _) in copies.iter().filter(|(_, copy)| is_nowhere && copy.size > 0) {
            // What the index names goes there, too: the others have no such object.
            if self.logs.pending(target, *ost, object).is_empty() {
                let what = format!(
                    "object {object} is on OST {ost}, which lags behind and may be older, and on none \
                     that serves"
                );
                check.find(what, Outcome::Left);
            }
        }
    }

    /// The first OST that lags behind and has all of an object, if those that do have the same.
    fn whole(
        &self,
        object: ObjectId,
        (row, have_all): (&Chain, &[u16]),
        copies: &BTreeMap<u16, Copy>,
    ) -> Option<u16> {
        let is_whole = |(ost, copy): &(&u16, &Copy)| {
            let is_there = copy.size > 0 && copy.damage.is_none();
            is_there && !have_all.contains(ost) && self.lacks_nothing(row, **ost, object)
        };
        let mut whole = copies.iter().filter(is_whole).map(|(ost, _)| *ost);
        let first = whole.next()?;
        let is_same = |other: u16| {
            let difference = self.difference(object, copies, (first, other), &[]);
            // One that cannot be compared may be any.
            difference.is_ok_and(|difference| difference == Difference::None)
        };
        whole.all(is_same).then_some(first)
    }

    /// Whether a member that lags behind has everything of an object that was acknowledged, as the
    /// indexes say that are here.
    fn lacks_nothing(&self, row: &Chain, ost: u16, object: ObjectId) -> bool {
        let target = row.id.target();
        row.state_of(ost).is_some_and(|state| state != MemberState::Emptied)
            && self.logs.pending(target, ost, object).is_empty()
            && self.logs.recent(target, object).is_empty()
            && !self.servers.is_unsealed(ost, object)
    }

    /// Says what members have that lag behind, and no other, and copies it if that is wanted.
    pub(super) fn restore(&mut self, check: &mut Check, repair: bool) {
        for LostByAll { object, ost, from, what } in std::mem::take(&mut self.lost) {
            let how = format!("OST {from}, which lags behind and lacks nothing of it");
            let stores = self.servers.store(ost).zip(self.servers.store(from));
            match stores.filter(|_| repair).map(|(to, from)| to.take_whole(from, object)) {
                None => check
                    .find(format!("{what}; --repair copies it from {how}"), Outcome::Repairable),
                Some(Ok(())) => {
                    check.find(format!("{what}; it is copied from {how}"), Outcome::Repaired);
                }
                Some(Err(error)) => {
                    check.find(format!("{what}; copying it from {how}: {error}"), Outcome::Left);
                }
            }
        }
    }
}
