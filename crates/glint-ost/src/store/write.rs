//! Writes into objects: of what is contiguous, or of many extents in one pass.

use crate::disk::{Disk, DiskFile, DiskResult};
use crate::store::object::Touches;
use crate::store::object_store::ObjectStore;
use glint_proto::{Extents, ObjectAttr, ObjectId, Timestamp};
use rustix::io::Errno;
use std::io;

/// Write that is perhaps the begin of a stream, of which the checksum is taken at once: an object
/// that becomes large is not in memory any more when it is sealed.
const NOTED_BYTES_MIN: usize = 1 << 20;

impl<D: Disk> ObjectStore<D> {
    /// Writes all of `data`, which is from the time `mtime` if that is given; into space that
    /// was `kept` for it, or into what is free. Returns the state after it.
    pub fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        mtime: Option<Timestamp>,
        kept: bool,
    ) -> io::Result<ObjectAttr> {
        let extent = std::iter::once((offset, data));
        self.write_all(object, (offset, data.len()), extent, mtime, kept, false)
    }

    /// Writes like `write` what nobody reads soon. Of a stream nothing stays in memory, and it is
    /// written back from now on: all that comes until the store settles would be at once then, and
    /// everybody else who syncs would wait behind it.
    pub(crate) fn write_adding_none(
        &self,
        object: ObjectId,
        offset: u64,
        data: &[u8],
        mtime: Option<Timestamp>,
        kept: bool,
    ) -> io::Result<ObjectAttr> {
        let extent = std::iter::once((offset, data));
        let passes = data.len() >= NOTED_BYTES_MIN;
        self.write_all(object, (offset, data.len()), extent, mtime, kept, passes)
    }

    /// Writes extents that lie apart, like `write`. Returns the state after it.
    pub fn write_extents(
        &self,
        object: ObjectId,
        extents: Extents<'_>,
        mtime: Option<Timestamp>,
        kept: bool,
    ) -> io::Result<ObjectAttr> {
        let first = extents.clone().next().map_or(0, |(offset, _)| offset);
        self.write_all(object, (first, extents.bytes()), extents, mtime, kept, false)
    }

    /// Whether an object has no bytes: none was written, or all were cut off. One that nobody reads
    /// because others could not be read, either, had some.
    pub(crate) fn is_empty(&self, object: ObjectId) -> io::Result<bool> {
        let Some(file) = self.file(object, None)? else { return Ok(true) };
        // A write that failed may have made it larger than was seen last.
        Ok(file.size()? == 0 && file.stat()?.size == 0 && !file.is_unreadable()?)
    }

    /// Writes extents of `bytes` in all, the first of them at `first`. They pass through memory if
    /// that is said, or the object does.
    fn write_all<'a>(
        &self,
        object: ObjectId,
        (first, bytes): (u64, usize),
        extents: impl Iterator<Item = (u64, &'a [u8])> + Clone,
        mtime: Option<Timestamp>,
        kept: bool,
        passes: bool,
    ) -> io::Result<ObjectAttr> {
        if !kept {
            let ranges = extents.clone().map(|(offset, data)| (offset, data.len() as u64));
            self.need(object, bytes as u64, ranges)?;
        }
        let mtime = mtime.unwrap_or_else(Timestamp::now);
        let Some(file) = self.file(object, Some(mtime))? else {
            return Err(Errno::NOENT.into());
        };
        let end = |(offset, data): (u64, &[u8])| offset.saturating_add(data.len() as u64);
        let end = extents.clone().map(end).max().unwrap_or(0);
        let passes = passes || self.will_pass(object, &file, end)?;
        let is_stream = |(_, data): (u64, &[u8])| data.len() >= NOTED_BYTES_MIN;
        let is_noted = passes || extents.clone().any(is_stream);
        let touches = if is_noted { Touches::Noted(first) } else { Touches::From(first) };
        let written = file.written();
        let range =
            |(offset, data): (u64, &[u8])| (offset, offset.saturating_add(data.len() as u64));
        let ranges = extents.clone().map(range);
        self.change(object, &file, touches, ranges, mtime, |file| {
            for (offset, data) in extents {
                let noted = is_noted.then(|| written.begin(offset, data));
                match passes {
                    true => {
                        let write = |data: &[u8], at| self.passing().write(file, object, data, at);
                        write_extent(write, offset, data)?;
                    }
                    false => write_extent(|data, at| file.write(data, at), offset, data)?,
                }
                if let Some(noted) = noted {
                    noted.finish();
                }
            }
            Ok(())
        })?;
        file.state()
    }
}

fn write_extent(
    write: impl Fn(&[u8], u64) -> DiskResult<usize>,
    mut offset: u64,
    mut data: &[u8],
) -> io::Result<()> {
    while !data.is_empty() {
        match write(data, offset) {
            Ok(0) => return Err(Errno::IO.into()),
            Ok(n) => {
                // The system refuses what ends past all files.
                offset = offset.saturating_add(n as u64);
                data = &data[n..];
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::memory::MemoryDisk;
    use glint_proto::Ino;
    use std::path::Path;
    use std::sync::Arc;

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    #[test]
    fn an_object_may_be_as_large_as_the_store_says_and_not_larger() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let max = store.object_bytes_max();
        assert!(max > 1 << 30);
        store.write(object(8), max - 1, b"x", None, false).unwrap();
        assert!(store.write(object(8), max, b"x", None, false).is_err());
    }

    #[test]
    fn extents_that_lie_apart_are_written_together() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let extents: [(u64, &[u8]); 3] = [(10, b"one"), (4096, b"two"), (100_000, b"three")];
        let mut bulk = Vec::new();
        glint_proto::extents::put_extents(extents.iter().copied(), &mut bulk);
        let parsed = Extents::parse(&bulk, 3).unwrap();
        let attr = store.write_extents(object(7), parsed, None, false).unwrap();
        assert_eq!(attr.size, 100_005);
        let file = store.file(object(7), None).unwrap().unwrap();
        for (offset, data) in extents {
            let mut read = vec![0; data.len()];
            file.file().read(&mut read, offset).unwrap();
            assert_eq!(read, data);
        }
    }

    #[test]
    fn a_hole_ends_with_its_object() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        store.write(object(1), 0, &[1; 10_000], None, false).unwrap();
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        store.allocate(object(1), punch, 5000, 1 << 62).unwrap();
        store.allocate(object(1), punch, 1 << 61, 1 << 61).unwrap();
        let file = store.file(object(1), None).unwrap().unwrap();
        let mut data = [1; 10_000];
        assert_eq!(file.file().read(&mut data, 0).unwrap(), 10_000);
        assert!(data[..5000].iter().all(|b| *b == 1) && data[5000..].iter().all(|b| *b == 0));
    }

    #[test]
    fn an_object_is_empty_until_it_is_written_and_when_it_was_cut_to_nothing() {
        let disk = MemoryDisk::default();
        let store = ObjectStore::on(disk, Path::new("ost"), 64, Arc::default());
        let is_empty = || store.is_empty(object(1)).unwrap();
        assert!(is_empty());
        store.write(object(1), 5, b"x", None, false).unwrap();
        assert!(!is_empty());
        store.truncate(object(1), 0).unwrap();
        assert!(is_empty());
        store.mark(object(1), true).unwrap();
        assert!(!is_empty(), "nobody could read what it had");
    }
}
