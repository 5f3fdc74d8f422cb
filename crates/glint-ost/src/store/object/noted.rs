//! Damage that was found is noted with the checksums on the disk: who opens the object next knows
//! it, whatever is written into a part of the block before somebody reads it again.
//!
//! Invariant: it is noted with nobody else at the seal, and only while the checksums are on that it
//! was compared with. While they are off it is known here, and noted when the object is sealed.
//! All data of the object is on stable storage then, so a sync of the note that fails takes no
//! error of data from others.

use super::{ATTRIBUTE, ATTRIBUTE_BYTES_MAX, ObjectFile, Seal};
use crate::disk::DiskFile;
use crate::store::checksum::{Mismatch, Sums};
use rustix::io::Errno;
use std::io;

fn is_mismatch(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Mismatch>)
}

impl<F: DiskFile> ObjectFile<F> {
    /// Returns the result of a comparison, whose damage is noted.
    pub(super) fn noting<T>(&self, compared: io::Result<T>) -> io::Result<T> {
        if compared.as_ref().is_err_and(is_mismatch) {
            self.note_damage();
        }
        compared
    }

    /// Notes damage of a block that a scrub has compared with the checksum that it has in
    /// `compared`.
    pub(crate) fn note_scrubbed(&self, compared: &Sums, index: usize) -> io::Result<()> {
        let seal = self.known_seal()?;
        let sums = seal.sums().filter(|sums| sums.are_as(compared));
        let is_damaged = sums.is_some_and(|sums| sums.found_damaged(index));
        drop(seal);
        if is_damaged {
            self.note_damage();
        }
        Ok(())
    }

    /// Whether any of it is known to be damaged.
    pub(crate) fn has_damage(&self) -> io::Result<bool> {
        Ok(match &*self.known_seal()? {
            Seal::Unreadable => true,
            seal => seal.sums().is_some_and(|sums| sums.has_damage()),
        })
    }

    /// Puts the checksums on as they are known now, and syncs them: after a loss of power a part of
    /// the block may be written before somebody reads it.
    fn note_damage(&self) {
        let seal = self.seal.write();
        let Seal::Sealed(sums) = &*seal else { return };
        let (mut stored, value) = ([0u8; ATTRIBUTE_BYTES_MAX], sums.encode());
        let noted = match self.file.attribute(ATTRIBUTE, &mut stored) {
            Ok(len) if stored[..len] == value[..] => Ok(()),
            Ok(_) => self.file.set_attribute(ATTRIBUTE, &value).and_then(|()| self.file.sync()),
            Err(errno) => Err(errno),
        };
        if let Err(error) = noted {
            tracing::warn!(
                %error,
                "could not note that an object is damaged; who opens it again finds it anew"
            );
        }
    }
}

/// The error of reading what is in memory, by who does not wait. Damage is noted on the disk, by
/// who waits and finds it once more.
pub(super) fn without_waiting(error: io::Error) -> io::Error {
    if is_mismatch(&error) { Errno::AGAIN.into() } else { error }
}
