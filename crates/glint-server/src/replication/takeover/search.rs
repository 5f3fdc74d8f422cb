//! The search of OSTs here for copies that were changed before power was lost, while they serve.
//!
//! Invariants:
//! - The log says of an OST that it is to be searched ([`start_osts`](crate::start_osts)) until all that
//!   was found there is noted, on stable storage. Nothing is sealed there before
//!   ([`OstSet::end_search`]).
//! - No OST waits for the search of another one. One that cannot be searched has failed; the next run
//!   searches it.

use crate::replication::touched::{UNNUMBERED, unsealed, unsearched};
use crate::replication::{ENTRIES, Replication};
use glint_net::host;
use glint_ost::OstSet;
use glint_ost::disk::Disk;
use glint_proto::chain::Touched;
use glint_proto::{Errno, FsResult, ObjectId, clock};
use std::time::Duration;

/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

impl Replication {
    /// Searches OSTs here that await it: once, every [`TENDING`](crate::replication::TENDING), also while
    /// an earlier look is at some of them.
    pub(crate) async fn search<D: Disk>(&self, osts: &OstSet<D>) {
        let is_due = |index: &u16| osts.awaits_search(*index) && osts.failure(*index).is_none();
        let due = (0..osts.count()).filter(is_due).map(|index| (index, index));
        let due: Vec<(u16, u16)> = due.collect();
        let work = async |index: u16| {
            self.search_one(osts, index).await;
            false
        };
        self.at_work.searches.pass(&due, 1, work).await;
    }

    async fn search_one<D: Disk>(&self, osts: &OstSet<D>, index: u16) {
        let begun = clock::now();
        let searched = async {
            let found = osts.search(index).await?;
            self.note_found(index, &found).await?;
            Ok::<usize, Errno>(found.len())
        };
        match searched.await {
            Ok(objects) => {
                osts.end_search(index);
                let time = clock::since(begun);
                tracing::info!(
                    index,
                    objects,
                    ?time,
                    "looked for copies that were changed before power was lost"
                );
            }
            // It was said why.
            Err(_) if osts.failure(index).is_some() => {}
            Err(errno) => {
                tracing::error!(
                    index, %errno,
                    "could not look for copies that were changed before power was lost; it is tried again"
                );
                host::sleep(PAUSE).await;
            }
        }
    }

    /// Notes what was found on an OST here, and then that it was searched.
    async fn note_found(&self, index: u16, found: &[ObjectId]) -> FsResult<()> {
        for some in found.chunks(ENTRIES) {
            let whole = some.iter().map(|object| Touched::whole(*object));
            self.recent.touch_all(unsealed(index), whole, UNNUMBERED).await?;
        }
        self.recent.sync().await?;
        match self.recent.rest(unsearched(index)) {
            Some((_, upto)) => self.recent.advance(unsearched(index), None, upto).await,
            None => Ok(()),
        }
    }

    /// What was found on an OST here and is not noted for its chains.
    #[cfg(test)]
    pub(crate) fn found_on(&self, index: u16) -> Vec<ObjectId> {
        self.recent.list(unsealed(index)).into_iter().map(|one| one.object).collect()
    }
}
