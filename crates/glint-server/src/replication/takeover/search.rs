//! The search of OSTs here for copies that were changed before power was lost, while they serve.
//!
//! Invariants:
//! - The log says of an OST that it is to be searched ([`start_osts`](crate::start_osts)) until all that
//!   was found there is noted, on stable storage. Nothing is sealed there before
//!   ([`OstSet::end_search`]).
//! - What was found is kept until it could be noted: no disk is searched anew because of a log.
//! - No OST waits for the search of another one. One that cannot be searched has failed; the next run
//!   searches it.

use crate::replication::touched::{UNNUMBERED, unsealed, unsearched};
use crate::replication::{ENTRIES, Replication};
use glint_net::host;
use glint_ost::OstSet;
use glint_ost::disk::Disk;
use glint_proto::chain::Touched;
use glint_proto::{FsResult, ObjectId, clock};
use std::path::Path;
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
        let path = osts.paths().nth(usize::from(index)).unwrap_or(Path::new("")).display();
        let found = match osts.search(index).await {
            Ok(found) => found,
            // It was said why.
            Err(_) if osts.failure(index).is_some() => return,
            Err(errno) => {
                let done = osts.searched(index).map_or(0.0, |(done, _)| done);
                tracing::error!(
                    index, %path, %errno, done,
                    "could not look for copies that were changed before power was lost; it is tried again"
                );
                return host::sleep(PAUSE).await;
            }
        };
        let objects = found.len();
        while let Err(errno) = self.note_found(index, &found).await {
            if osts.failure(index).is_some() {
                return;
            }
            tracing::error!(
                index, %path, objects, %errno,
                "could not note which copies were changed before power was lost; it is tried again"
            );
            host::sleep(PAUSE).await;
        }
        osts.end_search(index);
        let time = clock::since(begun);
        tracing::info!(
            index, %path, objects, ?time,
            "looked for copies that were changed before power was lost"
        );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::Server;
    use futures_lite::future::{block_on, poll_once, yield_now};
    use glint_ost::disk::memory::{DiskOperation, Fault};
    use glint_proto::{Bulk, ClientId, Ino, OstRequest};
    use std::pin::pin;
    use std::rc::Rc;

    /// A world in which all pauses are short.
    struct Hasty;

    impl host::World for Hasty {
        fn spawn(&self, _: host::Task) {}

        fn sleep(&self, _: Duration) -> host::Task {
            Box::pin(yield_now())
        }

        fn connect(&self, _: &str) -> std::io::Result<host::Pipe> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn while_the_log_cannot_be_written_no_disk_is_searched_anew() {
        host::simulate(Some(Rc::new(Hasty)));
        let object = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };
        let Server { replication, osts, disks, dir } = Server::new();
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let written = osts.handle(ClientId::IN_PROCESS, 0, write, Bulk::Out(b"data"));
        block_on(written).reply.unwrap();
        osts.await_search(0);
        std::fs::remove_dir_all(dir.path()).unwrap();
        let mut searched = pin!(replication.search(&osts));
        for _ in 0..3 {
            assert!(block_on(poll_once(searched.as_mut())).is_none(), "it is tried again");
        }
        disks[0].fail(Fault::new(DiskOperation::List, "", libc::EIO, u32::MAX));
        std::fs::create_dir(dir.path()).unwrap();
        block_on(searched);
        assert_eq!((osts.failure(0), osts.awaits_search(0)), (None, false));
        assert_eq!(replication.found_on(0), [object]);
    }
}
