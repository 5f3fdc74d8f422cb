//! Changed objects in memory, by keys.
//!
//! Invariants:
//! - An extent is in a newer and an older generation of its object's entry. Changes come into the
//!   newer one, which becomes the older one when something of the key is forgotten: so what is changed
//!   all the time is forgotten up to its last changes.
//! - A generation is forgotten when its first and its last change are over: one of an earlier run, or
//!   from before a member was lost, is not forgotten with those that came after it.
//! - No more entries than the limit are left by [`TouchedSets::bound`]: extents, and objects that have
//!   none.

use super::extents::{ExtentSet, Slack};
use super::{CUT_ALONE, Key, Tag, UNNUMBERED, WRITTEN_ALONE, cut_alone, written_alone};
use glint_proto::ObjectId;
use glint_proto::chain::Touched;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

/// All keys.
#[derive(Default)]
pub(super) struct TouchedSets {
    sets: BTreeMap<Key, TouchedSet>,
    entries_max: Option<usize>,
    /// Changes without a number that were ever noted.
    unnumbered: u64,
}

#[derive(Default)]
struct TouchedSet {
    objects: BTreeMap<ObjectId, TouchedObject>,
    /// Weight of all of them.
    entries: usize,
    /// Beside them: all objects of the chain from some point on.
    rest: Option<Rest>,
}

/// All objects of a chain after one of them.
#[derive(Clone, Copy)]
struct Rest {
    after: ObjectId,
    /// Of the last change that it covers.
    tag: Tag,
}

/// Changes of an object, in two generations.
#[derive(Default)]
struct TouchedObject {
    newer: Option<Generation>,
    older: Option<Generation>,
}

/// Changes of an object that came one after the other; those of its time have no extents.
struct Generation {
    extents: ExtentSet,
    /// Of the first change that is not over, as far as that is known, and of the last one.
    first: Tag,
    last: Tag,
}

/// How much a key has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TouchedCount {
    pub(in crate::replication) key: Key,
    pub(crate) objects: usize,
    /// Without those of which the end is not known.
    pub(crate) bytes: u64,
    /// Objects with such a change: it goes on to the end of the object.
    pub(crate) open_ended: usize,
    /// All objects of the chain beside them, or most.
    pub(crate) everything: bool,
}

impl Generation {
    /// Returns whether all changes are over.
    fn forget(&mut self, is_over: &impl Fn(Tag) -> bool) -> bool {
        if is_over(self.first) {
            self.first = self.last;
        }
        is_over(self.first)
    }
}

impl TouchedObject {
    fn generations(&self) -> impl Iterator<Item = &Generation> {
        self.older.iter().chain(&self.newer)
    }

    fn tag(&self) -> Tag {
        self.generations().map(|one| one.last).max().unwrap_or(UNNUMBERED)
    }

    /// How much it counts, and how many records it has.
    fn weight(&self) -> usize {
        self.generations().map(|one| one.extents.len().max(1)).sum()
    }

    /// Whether it was changed up to its end, wherever that is.
    fn is_open_ended(&self) -> bool {
        let mut ends = self.generations().flat_map(|one| one.extents.iter());
        ends.any(|(_, end)| end == u64::MAX)
    }

    fn parts(&self, object: ObjectId) -> impl Iterator<Item = Touched> {
        self.generations().flat_map(move |one| {
            let times = (one.extents.len() == 0).then_some((u64::MAX, 0));
            let extents = times.into_iter().chain(one.extents.iter());
            extents.map(move |(start, end)| Touched { object, start, end })
        })
    }

    /// Adds a change. Returns what the log does not have of it.
    fn insert(&mut self, touched: Touched, tag: Tag, slack: Slack) -> Option<Touched> {
        let is_new = self.newer.is_none();
        let extents = ExtentSet::default();
        let newer = self.newer.get_or_insert(Generation { extents, first: tag, last: tag });
        (newer.first, newer.last) = (newer.first.min(tag), newer.last.max(tag));
        match newer.extents.insert(touched.start, touched.end, slack) {
            Some((start, end)) => Some(Touched { start, end, ..touched }),
            None => is_new.then_some(touched),
        }
    }

    /// Forgets generations that are over, and begins another one. Returns whether anything is left.
    fn forget(&mut self, is_over: &impl Fn(Tag) -> bool) -> bool {
        self.older.take_if(|older| older.forget(is_over));
        self.newer.take_if(|newer| newer.forget(is_over));
        if self.older.is_none() {
            self.older = self.newer.take();
        }
        self.older.is_some()
    }
}

impl TouchedSet {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.rest.is_none()
    }

    fn parts(&self) -> impl Iterator<Item = Touched> {
        let rest = self.rest.map(|_| Touched::EVERYTHING);
        rest.into_iter().chain(self.objects.iter().flat_map(|(object, one)| one.parts(*object)))
    }

    fn insert(&mut self, touched: Touched, tag: Tag, slack: Slack) -> Option<Touched> {
        if touched == Touched::EVERYTHING {
            let is_known = self.rest.is_some_and(|rest| rest.after == touched.object);
            self.rest = Some(Rest { after: touched.object, tag });
            self.objects.clear();
            self.entries = 0;
            return (!is_known).then_some(touched);
        }
        if let Some(rest) = self.rest.as_mut().filter(|rest| rest.after < touched.object) {
            rest.tag = rest.tag.max(tag);
            return None;
        }
        let object = self.objects.entry(touched.object).or_default();
        let before = object.weight();
        let entry = object.insert(touched, tag, slack);
        self.entries = self.entries + object.weight() - before;
        entry
    }

    fn remove(&mut self, object: &ObjectId) {
        if let Some(gone) = self.objects.remove(object) {
            self.entries -= gone.weight();
        }
    }
}

/// How exact the extents of a key are.
fn slack((_, member): Key) -> Slack {
    match member {
        WRITTEN_ALONE => Slack::NARROW,
        CUT_ALONE => Slack::NONE,
        _ => Slack::WIDE,
    }
}

impl TouchedSets {
    /// Nothing yet, and never more than so many entries, if there is a limit.
    pub(super) fn bounded(entries_max: Option<usize>) -> TouchedSets {
        TouchedSets { entries_max, ..TouchedSets::default() }
    }

    /// Tag of the last change without a number.
    pub(super) fn now(&self) -> Tag {
        (UNNUMBERED.0, self.unnumbered)
    }

    /// Adds to a set. Returns the extent as it is then, if the log does not have it so.
    pub(super) fn insert(&mut self, key: Key, touched: Touched, tag: Tag) -> Option<Touched> {
        let tag = match tag {
            UNNUMBERED => {
                self.unnumbered += 1;
                self.now()
            }
            tag => tag,
        };
        self.sets.entry(key).or_default().insert(touched, tag, slack(key))
    }

    /// Adds what a log has.
    pub(super) fn restore(&mut self, key: Key, touched: Touched) {
        self.unnumbered += 1;
        let tag = self.now();
        self.sets.entry(key).or_default().insert(touched, tag, slack(key).grown());
    }

    /// Keeps the sets bounded. Returns the key that lacks everything from now on, if one does.
    pub(super) fn bound(&mut self) -> Option<Key> {
        let max = self.entries_max?;
        if self.sets.values().map(|set| set.entries).sum::<usize>() <= max {
            return None;
        }
        // What only an object needs that was lost goes first: without it, no member is copied whole.
        let (key, _) = self.sets.iter().max_by_key(|((_, member), set)| {
            let is_alone = *member >= WRITTEN_ALONE && set.entries > 0;
            (is_alone, set.entries)
        })?;
        let key = *key;
        self.insert(key, Touched::EVERYTHING, UNNUMBERED);
        Some(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.sets.keys().copied()
    }

    pub(super) fn is_empty(&self, key: Key) -> bool {
        !self.sets.contains_key(&key)
    }

    pub(super) fn list(&self, key: Key) -> Vec<Touched> {
        self.sets.get(&key).into_iter().flat_map(TouchedSet::parts).collect()
    }

    pub(super) fn page(&self, key: Key, after: Option<ObjectId>, most: usize) -> Vec<Touched> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page = Vec::new();
        let set = self.sets.get(&key);
        for (object, one) in set.iter().flat_map(|set| set.objects.range((from, Bound::Unbounded)))
        {
            if page.len() >= most {
                break;
            }
            page.extend(one.parts(*object));
        }
        page
    }

    /// Extents of one object of a key; one without bytes stands for a change of its time alone.
    pub(super) fn extents_of(&self, key: Key, object: ObjectId) -> Vec<(u64, u64)> {
        let Some(set) = self.sets.get(&key) else { return Vec::new() };
        if set.rest.is_some_and(|rest| rest.after < object) {
            return vec![(0, u64::MAX)];
        }
        let parts = set.objects.get(&object).into_iter().flat_map(|one| one.parts(object));
        parts.map(|part| (part.start, part.end)).collect()
    }

    /// Whether an object of a chain was begun while members lagged behind; `None` if there were more
    /// of them than are remembered. Nothing is taken of any then: what was cut from one that was not
    /// begun so is not noted.
    pub(super) fn is_begun(&self, target: u16, object: ObjectId) -> Option<bool> {
        let keys = [written_alone(target), cut_alone(target)];
        let alone = || keys.iter().filter_map(|key| self.sets.get(key));
        let are_known = alone().all(|set| set.rest.is_none());
        are_known.then(|| alone().any(|set| set.objects.contains_key(&object)))
    }

    pub(super) fn rest(&self, key: Key) -> Option<ObjectId> {
        Some(self.sets.get(&key)?.rest?.after)
    }

    /// Returns whether a key lacks all objects no more.
    pub(super) fn advance(&mut self, key: Key, last: Option<ObjectId>, upto: Tag) -> bool {
        let Some(set) = self.sets.get_mut(&key) else { return false };
        let Some(rest) = set.rest.as_mut().filter(|rest| rest.tag <= upto) else { return false };
        if let Some(last) = last {
            rest.after = last.max(rest.after);
            return false;
        }
        set.rest = None;
        self.drop_empty(key);
        true
    }

    /// How much each member lacks.
    pub(super) fn counts(&self) -> Vec<TouchedCount> {
        let bytes = |set: &TouchedSet| {
            let known = set.parts().filter(|one| one.end != u64::MAX);
            known.map(|one| one.end.saturating_sub(one.start)).sum()
        };
        let count = |(key, set): (&Key, &TouchedSet)| TouchedCount {
            key: *key,
            objects: set.objects.len(),
            bytes: bytes(set),
            open_ended: set.objects.values().filter(|one| one.is_open_ended()).count(),
            everything: set.rest.is_some(),
        };
        let of_members = self.sets.iter().filter(|((_, member), _)| *member < WRITTEN_ALONE);
        of_members.map(count).collect()
    }

    pub(super) fn forget(&mut self, key: Key, is_over: impl Fn(Tag) -> bool) {
        let Some(set) = self.sets.get_mut(&key) else { return };
        set.objects.retain(|_, object| object.forget(&is_over));
        set.entries = set.objects.values().map(TouchedObject::weight).sum();
        set.rest.take_if(|rest| is_over(rest.tag));
        self.drop_empty(key);
    }

    pub(super) fn forget_objects(&mut self, objects: impl Iterator<Item = ObjectId>) {
        if self.sets.is_empty() {
            return;
        }
        for object in objects {
            self.sets.values_mut().for_each(|set| set.remove(&object));
        }
        self.sets.retain(|_, set| !set.is_empty());
    }

    pub(super) fn remove(&mut self, key: Key, objects: &HashSet<ObjectId>, upto: Tag) {
        let Some(set) = self.sets.get_mut(&key) else { return };
        for object in objects {
            if set.objects.get(object).is_some_and(|one| one.tag() <= upto) {
                set.remove(object);
            }
        }
        self.drop_empty(key);
    }

    /// How many records a log of all has.
    pub(super) fn records(&self) -> usize {
        let records = |set: &TouchedSet| set.entries + usize::from(set.rest.is_some());
        self.sets.values().map(records).sum()
    }

    /// Calls for each record that a log of all has.
    pub(super) fn for_each(&self, mut each: impl FnMut(Key, Touched)) {
        for (key, set) in &self.sets {
            set.parts().for_each(|part| each(*key, part));
        }
    }

    fn drop_empty(&mut self, key: Key) {
        if self.sets.get(&key).is_some_and(TouchedSet::is_empty) {
            self.sets.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;

    #[test]
    fn no_object_is_called_begun_where_more_were_than_are_remembered() {
        let object = |ino| ObjectId { ino: Ino(ino), stripe: 0 };
        let part = |ino| Touched { object: object(ino), start: 0, end: 9 };
        let mut sets = TouchedSets::bounded(Some(6));
        for ino in 0..3 {
            sets.insert((1, 2), part(ino), UNNUMBERED);
            sets.insert(written_alone(1), part(ino), UNNUMBERED);
        }
        assert_eq!(sets.bound(), None);
        assert_eq!([2, 3].map(|ino| sets.is_begun(1, object(ino))), [Some(true), Some(false)]);
        sets.insert((1, 2), part(3), UNNUMBERED);
        assert_eq!(sets.bound(), Some(written_alone(1)));
        assert_eq!([2, 3].map(|ino| sets.is_begun(1, object(ino))), [None, None]);
        assert_eq!((sets.bound(), sets.list((1, 2)).len()), (None, 4));
        assert_eq!(sets.is_begun(2, object(3)), Some(false), "another chain");
    }
}
