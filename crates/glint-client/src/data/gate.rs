//! Gate that calls on the data of a file pass, and that is shut while this client moves the data.
//!
//! Invariants:
//! - While the gate of a file is shut nobody is inside: no call on its data is under way here. A
//!   lock keeps out other clients.
//! - Where no locks are given, what has moved is known here: there is no other client.

use glint_proto::{Ino, Layout};
use glint_wait::{Monitor, Sharded};
use std::collections::HashMap;

const SHARDS: usize = 64;

#[derive(Default)]
struct GateShard {
    passages: HashMap<Ino, Passage>,
    moved: HashMap<Ino, Layout>,
}

#[derive(Default)]
struct Passage {
    inside: u32,
    shut: bool,
}

/// The gates of all files.
pub(crate) struct DataGate {
    shards: Sharded<Monitor<GateShard>>,
}

impl Default for DataGate {
    fn default() -> DataGate {
        DataGate { shards: Sharded::new(SHARDS) }
    }
}

/// A call on the data of a file is under way.
pub(crate) struct Inside<'a>(&'a Monitor<GateShard>, Ino);

/// The gate of a file is shut.
pub(crate) struct Shut<'a>(&'a Monitor<GateShard>, Ino);

impl DataGate {
    fn shard(&self, ino: Ino) -> &Monitor<GateShard> {
        self.shards.of(ino.0)
    }

    /// Passes, once the gate is open.
    pub(crate) async fn enter(&self, ino: Ino) -> Inside<'_> {
        let shard = self.shard(ino);
        shard
            .until(|state| {
                let passage = state.passages.entry(ino).or_default();
                (!passage.shut).then(|| passage.inside += 1)
            })
            .await;
        Inside(shard, ino)
    }

    /// Shuts the gate, unless somebody else has; see [`Shut::is_empty`].
    pub(crate) fn shut(&self, ino: Ino) -> Option<Shut<'_>> {
        let shard = self.shard(ino);
        let was_shut =
            std::mem::replace(&mut shard.lock().passages.entry(ino).or_default().shut, true);
        // Not made where it is shut already: what is dropped opens it.
        (!was_shut).then(|| Shut(shard, ino))
    }

    /// Where the data of a file lies, if it was moved where there are no locks.
    pub(crate) fn moved(&self, ino: Ino) -> Option<Layout> {
        self.shard(ino).lock().moved.get(&ino).copied()
    }

    /// Notes where the data of a file lies, where there are no locks.
    pub(crate) fn note_moved(&self, ino: Ino, layout: Layout) {
        self.shard(ino).lock().moved.insert(ino, layout);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let Some(passage) = state.passages.get_mut(&self.1) else { return };
        passage.inside -= 1;
        if passage.inside == 0 && !passage.shut {
            state.passages.remove(&self.1);
        }
    }
}

impl Shut<'_> {
    /// Whether all that were inside have left.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().passages.get(&self.1).is_none_or(|passage| passage.inside == 0)
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.change(|state| {
            let Some(passage) = state.passages.get_mut(&self.1) else { return };
            passage.shut = false;
            if passage.inside == 0 {
                state.passages.remove(&self.1);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    #[test]
    fn a_shut_gate_keeps_calls_out_until_it_opens_and_knows_who_is_inside() {
        let gate = DataGate::default();
        let (file, other) = (Ino(7), Ino(8));
        block_on(async {
            let inside = gate.enter(file).await;
            let shut = gate.shut(file).unwrap();
            assert!(!shut.is_empty() && gate.shut(file).is_none());
            assert!(poll_once(gate.enter(other)).await.is_some());
            let mut next = Box::pin(gate.enter(file));
            assert!(poll_once(&mut next).await.is_none());
            drop(inside);
            assert!(shut.is_empty());
            assert!(poll_once(&mut next).await.is_none());
            drop(shut);
            drop(poll_once(&mut next).await.unwrap());
            assert!(gate.shard(file).lock().passages.is_empty());
        });
    }
}
