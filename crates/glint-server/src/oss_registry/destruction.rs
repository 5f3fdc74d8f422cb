//! Objects that OSSes are to destroy, and those that could not be removed.

use super::{OssRegistry, OssTable, Pending};
use glint_proto::oss::Destroy;
use glint_proto::{Ino, ObjectId};

/// Objects of one order.
const OBJECTS: usize = 256;
/// Objects in all orders of one OSS that are not done yet. One that is away for long costs no more.
pub(super) const ORDERED_OBJECTS_MAX: usize = 1 << 16;

impl OssRegistry {
    /// Has objects destroyed, each on the OST of its number, as a part of a change of data. Those
    /// for which an OSS has no more room count as left.
    pub fn destroy(&self, objects: &[(u16, ObjectId)], change: u64) {
        let mut state = self.state.lock();
        let OssTable { all, last, left } = &mut *state;
        for oss in all {
            let first = oss.identity.first_ost;
            for index in 0..oss.identity.osts {
                let there = objects.iter().filter(|(ost, _)| *ost == first + index);
                let mut there: Vec<ObjectId> = there.map(|(_, object)| *object).collect();
                let room = ORDERED_OBJECTS_MAX - oss.ordered;
                left.extend(there.drain(room.min(there.len())..).map(|object| object.ino));
                oss.ordered += there.len();
                for objects in there.chunks(OBJECTS) {
                    *last += 1;
                    let order = Destroy { ost: index, objects: objects.to_vec() };
                    oss.pending.push_back(Pending { number: *last, order, change });
                }
            }
        }
    }

    /// Objects that could not be removed here.
    pub fn left(&self, objects: Vec<ObjectId>) {
        self.state.lock().left.extend(objects.into_iter().map(|object| object.ino));
    }

    /// Files of which an object could not be removed, once.
    pub fn take_left(&self) -> Vec<Ino> {
        std::mem::take(&mut self.state.lock().left).into_iter().collect()
    }

    /// Changes of data up to this number are done everywhere; of those up to `own` here.
    pub fn durable(&self, own: u64) -> u64 {
        let state = self.state.lock();
        // Orders are in the order of their changes.
        let first = state.all.iter().filter_map(|oss| oss.pending.front());
        let first = first.map(|pending| pending.change).min();
        first.map_or(own, |change| own.min(change - 1))
    }
}
