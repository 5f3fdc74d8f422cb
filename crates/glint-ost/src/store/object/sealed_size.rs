//! The size of a sealed object is that of its checksums, whatever somebody did to its file behind
//! the server's back.
//!
//! Invariants:
//! - What lies behind that size in the file is not read, and gone before the first change.
//! - What the file lacks of it is damaged, and no hole.

use super::unreadable::unreadable;
use super::{ObjectFile, Seal};
use crate::disk::DiskFile;
use crate::store::checksum::Sums;
use glint_proto::ObjectAttr;
use rustix::io::Errno;
use std::io;

impl<F: DiskFile> ObjectFile<F> {
    /// State of the object.
    pub(crate) fn state(&self) -> io::Result<ObjectAttr> {
        let seal = self.known_seal()?;
        self.state_under(&seal)
    }

    /// The same; `None` if that has to wait, also for who changes the object just now.
    pub(crate) fn state_at_once(&self) -> Option<io::Result<ObjectAttr>> {
        let seal = self.seal.try_read()?;
        if matches!(*seal, Seal::Unknown) {
            return None;
        }
        Some(self.state_under(&seal))
    }

    fn state_under(&self, seal: &Seal) -> io::Result<ObjectAttr> {
        let stat = self.stat()?;
        let size = seal.size().unwrap_or(stat.size);
        let (mtime, ctime) = self.times(stat.mtime);
        Ok(ObjectAttr { size, blocks: stat.blocks, mtime, ctime })
    }

    /// Next data or hole at or after `offset`. What is damaged has no holes: who copies it is told.
    pub(crate) fn seek(&self, offset: u64, hole: bool) -> io::Result<Option<u64>> {
        let seal = self.known_seal()?;
        if matches!(*seal, Seal::Unreadable) {
            return Err(unreadable());
        }
        let there = self.stat()?.size;
        let size = seal.size().unwrap_or(there);
        if size != there || seal.sums().is_some_and(|sums| sums.has_damage()) {
            let found = if hole { size } else { offset };
            return Ok(Some(found).filter(|_| offset < size));
        }
        match self.file.seek(offset, hole) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the file the size that it had when these checksums were put on, while nobody else is
    /// at the seal and before they are taken off.
    pub(super) fn restore_size(&self, sums: &Sums) -> io::Result<()> {
        let (is, was) = (self.stat()?.size, sums.size());
        if is == was {
            return Ok(());
        }
        tracing::warn!(object = %self.object, is, was,
            "somebody else changed the size of an object, which gets that back which it had");
        sums.lose_from(is);
        self.forget_size();
        Ok(self.file.set_size(was)?)
    }
}
