//! The end of OSTs: what is left is flushed, then sealed.

use crate::disk::{CallKind, Disk};
use crate::{Ost, OstSet};
use glint_proto::{Errno, FsResult};
use std::io;

impl<D: Disk> OstSet<D> {
    /// Settles all OSTs before the end, one after the other.
    pub fn settle_last(&self) -> FsResult<()> {
        (0..self.count()).try_for_each(|index| {
            self.flush_last(index)?;
            self.seal_last(index)
        })
    }

    /// Brings all changes of an OST to stable storage before the end. One that has failed is no error
    /// if all that is not there has copies.
    pub fn flush_last(&self, index: u16) -> FsResult<()> {
        self.do_last(index, |ost| {
            let _call = ost.watch().begin(CallKind::Flush);
            ost.flush_last()
        })
    }

    /// Seals what is left of an OST before the end; see `ObjectStore::settle_last`.
    pub fn seal_last(&self, index: u16) -> FsResult<()> {
        self.do_last(index, |ost| ost.store().settle_last())
    }

    fn do_last(&self, index: u16, work: impl FnOnce(&Ost<D>) -> io::Result<()>) -> FsResult<()> {
        let counts = self.failure(index).is_none() || self.is_alone(index);
        match self.osts.get(usize::from(index)).filter(|_| counts) {
            Some(ost) => work(ost).map_err(|error| Errno::from_io(&error)),
            None => Ok(()),
        }
    }
}
