//! Identity of each OST's directory, so that an empty one, or that of another OST, is not taken for
//! it: a disk that is not mounted, or was exchanged.
//!
//! Invariants:
//! - An OST is served only from the directory that was its own when it was served last, or that
//!   `glint ost replace` has put in its place.
//! - A directory that was put in the place of another is remembered until the MDS knows that.

use super::{BOOT, DataDir, PRIVATE, absolute, damaged, io_error, store_bytes, store_json};
use crate::process::data_dir::DataDirError;
use crate::records::RecordsError;
use glint_proto::oss::ReplacedOst;
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// In the data directory: the identities of its OSTs.
const IDENTITIES: &str = "osts.json";
/// In the directory of an OST: its own.
const IDENTITY: &str = "identity";
/// There as long as the directory is used.
const OBJECTS: &str = "objects";

/// Why an OST is not served from a directory, or not replaced by it.
#[derive(Debug, thiserror::Error)]
pub enum OstIdentityError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Records(#[from] RecordsError),
    /// The data directory cannot be opened.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The directory is not the one that was served last.
    #[error(
        "OST directory {path}: {found}. If its disk is not mounted, mount it. If the disk is lost \
         or was exchanged, `glint ost replace {path}` says so, and the next start has the OST \
         filled from other copies"
    )]
    Exchanged {
        /// Directory of the OST.
        path: String,
        /// State of the directory.
        found: &'static str,
    },
    /// The directory is no place for an OST that is to be replaced.
    #[error("{path} {why}")]
    NotReplaced {
        /// Directory that was said.
        path: String,
        /// Reason, and what to do.
        why: &'static str,
    },
}

/// Content of `osts.json`.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct OstIdentities {
    /// Identity of each OST, in hexadecimal, in their order.
    ids: Vec<String>,
    /// OSTs that were replaced, until the MDS knows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) replaced: Vec<ReplacedOst>,
}

impl OstIdentities {
    pub(super) fn load(data: &Path) -> Result<OstIdentities, RecordsError> {
        let path = data.join(IDENTITIES);
        match std::fs::read(&path) {
            Ok(bytes) => {
                serde_json::from_slice(&bytes).map_err(|error| damaged(&path, error.to_string()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(OstIdentities::default()),
            Err(error) => Err(io_error(&path)(error)),
        }
    }

    pub(super) fn forget_replaced(mut self, data: &Path) -> Result<(), RecordsError> {
        self.replaced.clear();
        store_json(data, IDENTITIES, &self)
    }
}

/// Identity in the directory of an OST; `None` if there is none.
fn identity_in(ost: &Path) -> Result<Option<String>, RecordsError> {
    let path = ost.join(IDENTITY);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io_error(&path)(error)),
    }
}

/// Gives the directory of an OST an identity, and a place for objects.
fn identify(ost: &Path) -> Result<String, RecordsError> {
    let objects = ost.join(OBJECTS);
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PRIVATE).create(&objects).map_err(io_error(&objects))?;
    let random = || getrandom::u64().unwrap_or(1);
    let id = format!("{:016x}{:016x}", random(), random());
    store_bytes(ost, IDENTITY, format!("{id}\n").as_bytes())?;
    Ok(id)
}

impl DataDir {
    /// Finds the directories of all OSTs. Those of a new data directory are made; those of one that
    /// knows no identities yet get theirs, if they were served before.
    pub fn find_osts(&self) -> Result<(), OstIdentityError> {
        let mut known = OstIdentities::load(&self.path)?;
        let was_served = self.path.join(BOOT).exists();
        let mut is_new = false;
        for index in 0..self.identity.osts {
            let ost = self.ost(index);
            let exchanged = |found| {
                let path = ost.display().to_string();
                Err(OstIdentityError::Exchanged { path, found })
            };
            let has_place = ost.join(OBJECTS).is_dir();
            match (known.ids.get(usize::from(index)), identity_in(&ost)?) {
                (Some(id), Some(found)) if *id != found => {
                    return exchanged("it is another OST's, or of another data directory");
                }
                (Some(_), None) => {
                    return exchanged(
                        "it has lost its identity: it is empty, or not the same disk",
                    );
                }
                (_, Some(_)) if !has_place => {
                    return exchanged("its objects are gone");
                }
                (Some(_), Some(_)) => {}
                (None, Some(id)) => {
                    known.ids.push(id);
                    is_new = true;
                }
                (None, None) if was_served && !has_place => {
                    return exchanged("it is empty, although it was served before");
                }
                (None, None) => {
                    known.ids.push(identify(&ost)?);
                    is_new = true;
                }
            }
        }
        if is_new {
            store_json(&self.path, IDENTITIES, &known)?;
        }
        Ok(())
    }
}

/// Whether there is a file in the directory for objects.
fn has_objects(ost: &Path) -> bool {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    entries(&ost.join(OBJECTS)).any(|shard| entries(&shard.path()).next().is_some())
}

/// Puts the empty directory at `path`, which is `DATA/ostN`, in the place of the OST that was
/// there, whose data is lost. No server may use `DATA`. With `lose_last` also if no other copy of
/// some data is whole. Returns the number of the OST, counted from the first one of its server.
pub fn replace_ost(path: &Path, lose_last: bool) -> Result<u16, OstIdentityError> {
    let path = &absolute(path)?;
    let shown = path.display().to_string();
    let refuse = |why| Err(OstIdentityError::NotReplaced { path: shown.clone(), why });
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix("ost").and_then(|number| number.parse::<u16>().ok());
    let (Some(ost), Some(data)) = (number, path.parent()) else {
        return refuse("is no OST's directory; say DATA/ostN, as the server does that misses it");
    };
    let data = DataDir::open(data)?;
    if ost >= data.identity.osts {
        return refuse("is no OST's directory: the data directory has fewer OSTs");
    }
    if !path.is_dir() {
        return refuse("is not there; mount the new disk there, or make an empty directory of it");
    }
    let mut known = OstIdentities::load(&data.path)?;
    let found = identity_in(path)?;
    let is_known = found.is_some() && found.as_ref() == known.ids.get(usize::from(ost));
    let is_replaced = known.replaced.iter().any(|one| one.ost == ost);
    if is_known && !is_replaced && path.join(OBJECTS).is_dir() {
        return refuse("is the OST that belongs there; nothing has to be replaced");
    }
    if has_objects(path) {
        return refuse("holds objects; an OST is replaced by an empty directory");
    }
    if known.ids.len() < usize::from(data.identity.osts) {
        // A directory of before there were identities: those that are sound get theirs now.
        for index in known.ids.len() as u16..data.identity.osts {
            let other = data.ost(index);
            let is_sound = index != ost && other.join(OBJECTS).is_dir();
            known.ids.push(match identity_in(&other)? {
                Some(id) => id,
                None if is_sound => identify(&other)?,
                None => String::new(),
            });
        }
    }
    known.ids[usize::from(ost)] = identify(path)?;
    known.replaced.retain(|one| one.ost != ost);
    known.replaced.push(ReplacedOst { ost, lose_last });
    store_json(&data.path, IDENTITIES, &known)?;
    Ok(ost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::Role;
    use crate::records::Records;
    use std::fs;
    use std::path::PathBuf;

    /// A data directory with two OSTs that was served.
    fn served() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(2), Role::Oss).unwrap();
        data.find_osts().unwrap();
        data.note_served().unwrap();
        data.find_osts().unwrap();
        let ost = dir.path().join("ost1");
        (dir, ost)
    }

    fn error(data: &Path) -> String {
        DataDir::open(data).unwrap().find_osts().unwrap_err().to_string()
    }

    fn empty(ost: &Path) {
        fs::remove_dir_all(ost).unwrap();
        fs::create_dir(ost).unwrap();
    }

    #[test]
    fn an_empty_or_exchanged_directory_is_not_served_before_it_is_replaced() {
        let (dir, ost) = served();
        empty(&ost);
        let said = error(dir.path());
        assert!(said.contains("lost its identity") && said.contains("glint ost replace"), "{said}");
        fs::copy(dir.path().join("ost0/identity"), ost.join("identity")).unwrap();
        assert!(error(dir.path()).contains("another OST's"));
        empty(&ost);
        assert_eq!(replace_ost(&ost, false).unwrap(), 1);
        let data = DataDir::open(dir.path()).unwrap();
        data.find_osts().unwrap();
        assert_eq!(data.replaced().unwrap(), [ReplacedOst { ost: 1, lose_last: false }]);
        drop(data);
        replace_ost(&ost, true).unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        assert_eq!(data.replaced().unwrap(), [ReplacedOst { ost: 1, lose_last: true }]);
        data.forget_replaced().unwrap();
        assert!(data.replaced().unwrap().is_empty());
        data.find_osts().unwrap();
    }

    #[test]
    fn nothing_is_replaced_that_holds_something_or_is_in_use() {
        let (dir, ost) = served();
        let said = |path: &Path| replace_ost(path, false).unwrap_err().to_string();
        assert!(said(&ost).contains("the OST that belongs there"));
        assert!(said(&dir.path().join("ost2")).contains("fewer OSTs"));
        assert!(said(&dir.path().join("disk")).contains("DATA/ostN"));
        let data = DataDir::open(dir.path()).unwrap();
        assert!(said(&ost).contains("in use by process"));
        drop(data);
        fs::remove_file(ost.join("identity")).unwrap();
        fs::create_dir(ost.join("objects/00")).unwrap();
        fs::write(ost.join("objects/00/1.0"), b"data").unwrap();
        assert!(said(&ost).contains("holds objects"));
        fs::remove_dir_all(&ost).unwrap();
        assert!(said(&ost).contains("is not there"));
    }

    #[test]
    fn a_directory_of_before_there_were_identities_gets_them_unless_it_is_empty() {
        let (dir, ost) = served();
        let forget = || {
            fs::remove_file(dir.path().join(IDENTITIES)).unwrap();
            for ost in ["ost0", "ost1"] {
                fs::remove_file(dir.path().join(ost).join(IDENTITY)).unwrap();
            }
        };
        forget();
        DataDir::open(dir.path()).unwrap().find_osts().unwrap();
        assert!(ost.join(IDENTITY).exists());
        forget();
        empty(&ost);
        assert!(error(dir.path()).contains("it is empty, although"));
        replace_ost(&ost, false).unwrap();
        DataDir::open(dir.path()).unwrap().find_osts().unwrap();
    }
}
