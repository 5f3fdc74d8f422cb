//! How much is healed, how fast, and whether at all.
//!
//! Invariant: while heal is paused nothing is copied from a head to another member, and what is
//! known to be lacking stays in the index.

use super::pacing::HealPace;
use crate::replication::touched::{Key, Tag};
use glint_proto::chain::{ChainPolicy, Touched};
use glint_proto::clock;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// After a pause of this length rates are counted anew.
const RATE_FORGOTTEN: Duration = Duration::from_secs(10);

/// Objects that one member was given.
#[derive(Clone, Copy)]
struct Given {
    since: Instant,
    last: Instant,
    objects: u64,
    bytes: u64,
}

/// Rates at which a member is healed by this server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct HealRate {
    pub(crate) ost: u16,
    pub(crate) objects_per_s: f64,
    pub(crate) bytes_per_s: f64,
}

/// Objects of a member that are to be copied in one version of a row, the last one first.
struct Todo {
    version: u32,
    /// Tag of the last change that was noted when they were listed.
    upto: Tag,
    objects: Vec<Touched>,
}

/// The control.
pub(crate) struct HealControl {
    policy: Mutex<ChainPolicy>,
    pub(super) pace: HealPace,
    given: Mutex<BTreeMap<u16, Given>>,
    todo: Mutex<HashMap<Key, Todo>>,
}

impl HealControl {
    /// With a limit in bytes a second, if there is one.
    pub(crate) fn new(limit: Option<u64>) -> HealControl {
        HealControl {
            policy: Mutex::default(),
            pace: HealPace::new(limit),
            given: Mutex::default(),
            todo: Mutex::default(),
        }
    }

    /// The MDS has set these rules.
    pub(crate) fn set_policy(&self, policy: ChainPolicy) {
        *self.policy.lock() = policy;
    }

    /// Rules that the MDS has set.
    pub(crate) fn policy(&self) -> ChainPolicy {
        *self.policy.lock()
    }

    /// Returns parts of the next objects of a member in this version of its chain, in their order, not
    /// many more than `most` and those of an object together, and the last change that was noted when
    /// they were listed. Calls `list` once in each version, and again after all of them.
    pub(super) fn take(
        &self,
        key: Key,
        version: u32,
        most: usize,
        list: impl FnOnce() -> (Vec<Touched>, Tag),
    ) -> (Vec<Touched>, Tag) {
        let mut all = self.todo.lock();
        let known = all.get_mut(&key).filter(|todo| todo.version == version);
        let (mut objects, upto) = match known {
            Some(todo) => (std::mem::take(&mut todo.objects), todo.upto),
            None => {
                let (mut objects, upto) = list();
                objects.sort_by_key(|part| std::cmp::Reverse((part.object, part.start)));
                (objects, upto)
            }
        };
        if objects.is_empty() {
            all.remove(&key);
            return (objects, upto);
        }
        let mut next = objects.split_off(objects.len().saturating_sub(most));
        while let Some(last) = objects.last().filter(|last| last.object == next[0].object) {
            next.insert(0, *last);
            objects.pop();
        }
        next.reverse();
        all.insert(key, Todo { version, upto, objects });
        (next, upto)
    }

    /// A member was given this much.
    pub(super) fn note(&self, ost: u16, objects: u64, bytes: u64, begun: Instant) {
        let now = clock::now();
        let mut all = self.given.lock();
        let given =
            all.entry(ost).or_insert(Given { since: begun, last: begun, objects: 0, bytes: 0 });
        if begun.saturating_duration_since(given.last) > RATE_FORGOTTEN {
            *given = Given { since: begun, last: now, objects: 0, bytes: 0 };
        }
        given.last = now;
        given.objects += objects;
        given.bytes += bytes;
    }

    /// Rates of the members that are being healed.
    pub(crate) fn rates(&self) -> Vec<HealRate> {
        let recent = |given: &Given| clock::since(given.last) < RATE_FORGOTTEN;
        let rate = |(ost, given): (&u16, &Given)| {
            let seconds = (given.last - given.since).as_secs_f64().max(0.001);
            let (objects, bytes) = (given.objects as f64, given.bytes as f64);
            HealRate { ost: *ost, objects_per_s: objects / seconds, bytes_per_s: bytes / seconds }
        };
        self.given.lock().iter().filter(|(_, given)| recent(given)).map(rate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::{Ino, ObjectId};

    fn touched(ino: u64) -> Touched {
        Touched { object: ObjectId { ino: Ino(ino), stripe: 0 }, start: 0, end: 1 }
    }

    #[test]
    fn objects_come_once_in_their_order_and_anew_with_each_version() {
        let control = HealControl::new(None);
        let list = |upto| move || ([3, 1, 2].map(touched).to_vec(), (0, upto));
        let some = |version, most, upto| control.take((1, 2), version, most, list(upto));
        let known = |most| control.take((1, 2), 5, most, || panic!("it is known"));
        assert_eq!(some(5, 2, 7), (vec![touched(1), touched(2)], (0, 7)));
        assert_eq!(known(2), (vec![touched(3)], (0, 7)));
        assert!(known(2).0.is_empty());
        assert_eq!(some(5, 9, 8).0.len(), 3, "after all of them");
        assert_eq!(some(6, 1, 9), (vec![touched(1)], (0, 9)));
        assert!(control.take((1, 3), 6, 1, || (Vec::new(), (0, 9))).0.is_empty());
    }

    #[test]
    fn parts_of_an_object_come_together() {
        let control = HealControl::new(None);
        let part = |ino, start| Touched { start, ..touched(ino) };
        let list = || (vec![part(1, 0), part(1, 5), part(2, 0), part(2, 5), part(2, 9)], (0, 7));
        let starts = |most| control.take((1, 2), 5, most, list).0.iter().map(|p| p.start).collect();
        let both: [Vec<u64>; 2] = [starts(3), starts(3)];
        assert_eq!(both, [vec![0, 5, 0, 5, 9], vec![]]);
    }

    #[test]
    fn rates_are_of_now() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let control = HealControl::new(None);
        clock::simulate(Some(at(4)));
        control.note(7, 8, 4000, start);
        let rate = HealRate { ost: 7, objects_per_s: 2.0, bytes_per_s: 1000.0 };
        assert_eq!(control.rates(), [rate]);
        clock::simulate(Some(at(100)));
        assert!(control.rates().is_empty());
        control.note(7, 1, 10, at(99));
        assert_eq!(control.rates()[0].bytes_per_s, 10.0);
        clock::simulate(None);
    }
}
