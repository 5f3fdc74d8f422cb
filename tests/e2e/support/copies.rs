//! Copies of objects, as the OSTs have them.

use crate::eventually_none;
use std::collections::BTreeMap;
use std::fs;
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
