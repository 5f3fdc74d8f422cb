//! Comparison of two copies of an object, byte by byte, for a check of stores that are not served, and
//! what it needs to copy one ([`whole_copy`]).

mod whole_copy;

use crate::disk::{Disk, DiskFile};
use crate::store::object::ObjectFile;
use crate::store::object_store::ObjectStore;
use glint_proto::ObjectId;
use rustix::io::Errno;
use std::io;

/// Bytes of one read.
const CHUNK_BYTES: usize = 1 << 20;

impl<D: Disk> ObjectStore<D> {
    /// Returns the offset of the first byte of an object that is another one in its copy in `other`,
    /// outside of the extents `excused`, each from its first byte to the one behind its last.
    ///
    /// Compared is up to the end of the object here. Behind the end of the copy, and where there is
    /// none, are zeros. Checksums are not looked at.
    pub fn first_difference(
        &self,
        other: &ObjectStore<D>,
        object: ObjectId,
        excused: &[(u64, u64)],
    ) -> io::Result<Option<u64>> {
        let opened = [self.file(object, None)?, other.file(object, None)?];
        let files = opened.each_ref().map(|file| file.as_deref());
        let end = match files[0] {
            Some(file) => file.stat()?.size,
            None => 0,
        };
        let is_excused = |byte: &u64| excused.iter().any(|(from, to)| (from..to).contains(&byte));
        let mut buffers = [vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]];
        let mut at = next_data(&files, 0)?;
        while at < end {
            let len = CHUNK_BYTES.min((end - at) as usize);
            for (file, buffer) in std::iter::zip(files, &mut buffers) {
                fill(file, &mut buffer[..len], at)?;
            }
            let [mine, others] = buffers.each_ref().map(|buffer| &buffer[..len]);
            if mine != others {
                let pairs = (at..).zip(std::iter::zip(mine, others));
                let mut differing = pairs.filter(|(_, (one, two))| one != two);
                let first = differing.find(|(byte, _)| !is_excused(byte));
                if let Some((byte, _)) = first {
                    return Ok(Some(byte));
                }
            }
            at = next_data(&files, at + len as u64)?;
        }
        Ok(None)
    }
}

/// Returns where the next byte at or after `from` is that is not in a hole of both files.
fn next_data<F: DiskFile>(files: &[Option<&ObjectFile<F>>; 2], from: u64) -> io::Result<u64> {
    let mut next = u64::MAX;
    for file in files.iter().flatten() {
        match file.file().seek(from, false) {
            Ok(found) => next = next.min(found),
            // There is only a hole.
            Err(Errno::NXIO) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(next)
}

/// Fills a buffer with what a file has from an offset on, and with zeros.
fn fill(
    file: Option<&ObjectFile<impl DiskFile>>,
    buffer: &mut [u8],
    offset: u64,
) -> io::Result<()> {
    let mut got = 0;
    while let Some(file) = file.filter(|_| got < buffer.len()) {
        match file.read_adding_none(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    buffer[got..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use glint_proto::Ino;
    use std::path::Path;
    use std::sync::Arc;

    #[test]
    fn the_first_byte_that_differs_and_is_not_excused_is_found() {
        let object = ObjectId { ino: Ino(7), stripe: 0 };
        let store = || ObjectStore::on(MemoryDisk::default(), Path::new("ost"), 4, Arc::default());
        let (one, two) = (store(), store());
        let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8 + 1).collect();
        let difference =
            |excused: &[(u64, u64)]| one.first_difference(&two, object, excused).unwrap();
        assert_eq!(difference(&[]), None, "there is neither");
        one.write(object, 0, &data, None, false).unwrap();
        assert_eq!(difference(&[]), Some(0), "there is no copy");
        assert_eq!(difference(&[(0, 3_000_000)]), None);
        two.write(object, 0, &data, None, false).unwrap();
        assert_eq!(difference(&[]), None);
        for at in [5, 2_500_000] {
            two.write(object, at, &[0], None, false).unwrap();
        }
        assert_eq!(difference(&[]), Some(5));
        assert_eq!(difference(&[(0, 6)]), Some(2_500_000));
        assert_eq!(difference(&[(2_400_000, u64::MAX), (5, 6)]), None);
        two.write(object, 5, &data[5..6], None, false).unwrap();
        two.truncate(object, 2_000_000).unwrap();
        assert_eq!(difference(&[]), Some(2_000_000), "behind its end are zeros");
        one.truncate(object, 1_000_000).unwrap();
        assert_eq!(difference(&[]), None, "the rest is behind the end here");
    }
}
