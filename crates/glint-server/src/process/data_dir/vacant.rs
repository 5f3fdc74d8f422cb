//! Which directories may become a data directory: those that are empty, but for the places that an
//! administrator has made for OSTs.
//!
//! Invariant: nothing of anybody else is in it, nor where an OST will be.

use super::io_error;
use crate::records::RecordsError;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

/// Names in a directory that say nothing about who uses it.
fn is_leftover(name: &OsStr) -> bool {
    name == "lost+found" || name == "lock"
}

/// Whether it is the name of the directory of an OST.
fn is_of_ost(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix("ost"));
    number.is_some_and(|number| {
        number.parse::<u16>().is_ok_and(|parsed| parsed.to_string() == number)
    })
}

/// Names in a directory that are not left over.
fn names(path: &Path) -> std::io::Result<Vec<OsString>> {
    let names = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
    let names: Vec<OsString> = names.collect::<std::io::Result<_>>()?;
    Ok(names.into_iter().filter(|name| !is_leftover(name)).collect())
}

/// Whether nobody uses a directory, or it is not there. Directories of OSTs in it may be mount points,
/// or symbolic links to directories elsewhere.
pub(super) fn is_vacant(path: &Path) -> Result<bool, RecordsError> {
    let found = match names(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        found => found.map_err(io_error(path))?,
    };
    for name in found {
        let ost = path.join(&name);
        if !is_of_ost(&name) {
            return Ok(false);
        }
        match names(&ost) {
            Ok(inside) if inside.is_empty() => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::NotADirectory => return Ok(false),
            // A link to what is not there is no place for an OST.
            Err(error) => return Err(io_error(&ost)(error)),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};
    use std::fs;

    #[test]
    fn disks_of_osts_may_be_there_before_the_first_start() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let data = dir.path();
        fs::create_dir_all(data.join("ost0/lost+found")).unwrap();
        std::os::unix::fs::symlink(disk.path(), data.join("ost1")).unwrap();
        let created = DataDir::open_or_create(data, Some(2), Role::Oss).unwrap();
        created.find_osts().unwrap();
        assert!(disk.path().join("identity").exists());
        drop(created);
        DataDir::open_or_create(data, None, Role::Oss).unwrap().find_osts().unwrap();
    }

    #[test]
    fn nothing_else_is_taken_for_the_place_of_an_ost() {
        for name in
            ["ost0/thesis.tex", "ost00/lost+found", "ostrich/lost+found", "ost/x", "ost70000/"]
        {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join(name)).unwrap();
            assert!(!is_vacant(dir.path()).unwrap(), "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ost0"), b"").unwrap();
        assert!(!is_vacant(dir.path()).unwrap());
        fs::remove_file(dir.path().join("ost0")).unwrap();
        assert!(is_vacant(dir.path()).unwrap() && is_vacant(&dir.path().join("none")).unwrap());
        std::os::unix::fs::symlink("/nowhere/disk", dir.path().join("ost0")).unwrap();
        assert!(is_vacant(dir.path()).unwrap_err().to_string().contains("ost0"));
    }
}
