//! Writes that are in the journal and not yet in the tables: the newest of each key.

use crate::{Batch, Keyspace};
use fjall::Slice;
use std::collections::BTreeMap;
use std::ops::Bound;

type Map = BTreeMap<Slice, Option<Slice>>;

/// Recent writes. `None` is a deletion.
#[derive(Default)]
pub(crate) struct Overlay {
    maps: [Map; Keyspace::ALL.len()],
    len: usize,
}

/// A key and what was written.
pub(crate) type Recent = (Slice, Option<Slice>);

impl Overlay {
    /// Number of keys, at most: a key written twice counts twice.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn add(&mut self, batch: &Batch) {
        for write in batch.writes() {
            let map = &mut self.maps[write.keyspace as usize];
            map.insert(Slice::from(write.key), write.value.map(Slice::from));
            self.len += 1;
        }
    }

    pub(crate) fn get(&self, keyspace: Keyspace, key: &[u8]) -> Option<&Option<Slice>> {
        self.maps[keyspace as usize].get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Keyspace, &Slice, &Option<Slice>)> {
        Keyspace::ALL.into_iter().flat_map(|keyspace| {
            self.maps[keyspace as usize].iter().map(move |(key, value)| (keyspace, key, value))
        })
    }

    pub(crate) fn range(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
    ) -> impl Iterator<Item = (&Slice, &Option<Slice>)> {
        let bounds = (Bound::Included(from), Bound::Excluded(to));
        self.maps[keyspace as usize].range::<[u8], _>(bounds)
    }
}

/// Merges two sorted sequences; where both have a key, the first one's counts.
pub(crate) fn merge<'a>(
    newer: impl Iterator<Item = (&'a Slice, &'a Option<Slice>)>,
    older: impl Iterator<Item = (&'a Slice, &'a Option<Slice>)>,
) -> impl Iterator<Item = Recent> {
    let (mut newer, mut older) = (newer.peekable(), older.peekable());
    std::iter::from_fn(move || {
        let next = match (newer.peek(), older.peek()) {
            (Some((a, _)), Some((b, _))) if a == b => {
                older.next();
                newer.next()
            }
            (Some((a, _)), Some((b, _))) if a > b => older.next(),
            (None, Some(_)) => older.next(),
            _ => newer.next(),
        };
        next.map(|(key, value)| (key.clone(), value.clone()))
    })
}
