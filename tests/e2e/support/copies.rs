//! Copies of objects, as the OSTs have them.

use crate::{eventually, eventually_none};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Objects of an OST: paths below its directory, and content.
pub fn content(ost: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let top = ost.join("objects");
    for folder in fs::read_dir(&top).into_iter().flatten().flatten() {
        for object in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            // One that is removed meanwhile is not there.
            let Ok(bytes) = fs::read(object.path()) else { continue };
            found.insert(object.path().strip_prefix(&top).unwrap().to_owned(), bytes);
        }
    }
    found
}

/// Waits until OSTs have the same objects, and some, if `some` are to be there.
pub fn wait_until_equal(osts: &[PathBuf], some: bool) {
    eventually_none("a copy that differs", || {
        let first = content(&osts[0]);
        if some && first.is_empty() {
            return Some("there are no objects".into());
        }
        osts[1..].iter().enumerate().find_map(|(n, ost)| {
            let other = content(ost);
            let is_as = |path: &&PathBuf| first.get(*path) == other.get(*path);
            let path = first.keys().chain(other.keys()).find(|path| !is_as(path))?;
            let bytes = [&first, &other].map(|copy| copy.get(path).map(Vec::len));
            Some(format!("{} at 0 and {}: bytes {bytes:?}", path.display(), n + 1))
        })
    });
}

/// Waits until a server has destroyed what was removed before this, and what it took for closed.
/// Makes files in `dir`, to see them go: the first one with what was removed, the second with what was
/// found to be closed then.
pub fn wait_until_destroyed(dir: &Path, ost: &Path) {
    for _ in 0..2 {
        let path = dir.join("to be destroyed");
        fs::write(&path, "soon").unwrap();
        let file = fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        let object = format!("{:016x}.", file.metadata().unwrap().ino());
        let is_there = || {
            let is_its = |path: &PathBuf| path.to_string_lossy().contains(&object);
            content(ost).keys().any(is_its)
        };
        assert!(is_there(), "no object {object} in {}", ost.display());
        drop(file);
        fs::remove_file(&path).unwrap();
        eventually("a removed file is destroyed", || !is_there());
    }
}
