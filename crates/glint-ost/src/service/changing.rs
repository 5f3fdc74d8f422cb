//! Changes of objects that are made apart, in the order in which they came.

use glint_proto::ObjectId;
use glint_wait::Monitor;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// Objects that are changed apart just now, and by how many.
#[derive(Clone, Default)]
pub(super) struct Changing(Arc<Monitor<HashMap<ObjectId, usize>>>);

/// A change of an object that is made apart, until it is dropped.
pub(super) struct ObjectChange {
    of: Changing,
    object: ObjectId,
}

impl Changing {
    /// A change whose order among others somebody else sees to.
    pub(super) fn beside_others(&self, object: ObjectId) -> ObjectChange {
        *self.0.lock().entry(object).or_default() += 1;
        ObjectChange { of: self.clone(), object }
    }

    /// A change that begins when those before it are over.
    pub(super) async fn after_others(&self, object: ObjectId) -> ObjectChange {
        let take = |all: &mut HashMap<ObjectId, usize>| match all.entry(object) {
            Entry::Occupied(_) => None,
            Entry::Vacant(free) => Some(_ = free.insert(1)),
        };
        self.0.until(take).await;
        ObjectChange { of: self.clone(), object }
    }
}

impl Drop for ObjectChange {
    fn drop(&mut self) {
        self.of.0.change(|all| {
            if let Entry::Occupied(mut its) = all.entry(self.object) {
                *its.get_mut() -= 1;
                if *its.get() == 0 {
                    its.remove();
                }
            }
        });
    }
}
