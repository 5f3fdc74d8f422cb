//! A whole object as another store has it, for one that has lost its own, or in which that is damaged.
//! Neither store is served.
//!
//! Invariant: whatever ends this, no part of an object counts as the object: it is made beside all of
//! them, and takes its place once it is on stable storage.

use super::{CHUNK_BYTES, fill, next_data};
use crate::disk::DiskFile;
use crate::store::object::ATTRIBUTE;
use crate::store::object_store::{ObjectStore, directory_name, path_of, shard_of};
use glint_proto::ObjectId;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Name of what is made, in the directory of the store.
const DRAFT: &str = "object.draft";

impl ObjectStore {
    /// Has an object be here as it is in `other`, with its checksums and its time, in the place of what
    /// is here of it. Fails if it is not there, or does not match its checksums.
    pub fn take_whole(&self, other: &ObjectStore, object: ObjectId) -> io::Result<()> {
        let sums = other.check(object)?;
        let (Some(source), Some(attr)) = (other.file(object, None)?, other.stat(object)?) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let draft = self.path().join(DRAFT);
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&draft)?;
        file.set_len(attr.size)?;
        let (files, mut buffer) = ([Some(&*source), None], vec![0; CHUNK_BYTES]);
        let mut at = next_data(&files, 0)?;
        while at < attr.size {
            let len = CHUNK_BYTES.min((attr.size - at) as usize);
            fill(Some(&*source), &mut buffer[..len], at)?;
            file.write_all_at(&buffer[..len], at)?;
            at = next_data(&files, at + len as u64)?;
        }
        let file = OwnedFd::from(file);
        if let Some(sums) = sums {
            file.set_attribute(ATTRIBUTE, &sums)?;
        }
        DiskFile::set_mtime(&file, attr.mtime)?;
        DiskFile::sync(&file)?;
        // Also from the files that are open here.
        self.remove(object)?;
        let objects = self.path().join("objects");
        fs::rename(&draft, objects.join(path_of(object)))?;
        File::open(objects.join(directory_name(shard_of(object))))?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use std::sync::Arc;

    #[test]
    fn a_whole_object_takes_the_place_of_what_is_there() {
        let (object, dir) = (ObjectId { ino: Ino(7), stripe: 0 }, tempfile::tempdir().unwrap());
        let store =
            |name: &str| ObjectStore::open(&dir.path().join(name), 4, Arc::default()).unwrap();
        let (one, other) = (store("one"), store("other"));
        let missing = one.take_whole(&other, object).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        other.write(object, 0, b"begin", None, false).unwrap();
        other.write(object, 5 << 20, b"end", None, false).unwrap();
        // What an earlier attempt has left.
        fs::write(dir.path().join("one").join(DRAFT), [1; 100]).unwrap();
        for _ in 0..2 {
            one.take_whole(&other, object).unwrap();
            assert_eq!(one.first_difference(&other, object, &[]).unwrap(), None);
            assert_eq!(other.first_difference(&one, object, &[]).unwrap(), None);
            let (its, wanted) = (one.stat(object).unwrap(), other.stat(object).unwrap());
            let its = its.map(|attr| (attr.size, attr.mtime));
            assert_eq!(its, wanted.map(|attr| (attr.size, attr.mtime)));
            assert!(!dir.path().join("one").join(DRAFT).exists());
            one.write(object, 2, b"another", None, false).unwrap();
        }
    }
}
