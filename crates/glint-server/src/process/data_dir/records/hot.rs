//! What was read most, kept in a data directory: a small file for the tables and for each OST.

use crate::process::data_dir::{DataDir, damaged, io_error};
use crate::records::{HotPart, RecordsError};
use glint_telemetry::heat::HEAT_BYTES_MAX;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

impl DataDir {
    fn hot_path(&self, part: HotPart) -> PathBuf {
        self.path.join(format!("hot.{part}"))
    }

    pub(super) fn read_hot(&self, part: HotPart) -> Result<Option<Vec<u8>>, RecordsError> {
        let path = self.hot_path(part);
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(io_error(&path))?,
        };
        let mut bytes = Vec::new();
        let read = file.take(HEAT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        read.map_err(io_error(&path))?;
        match bytes.len() {
            0..=HEAT_BYTES_MAX => Ok(Some(bytes)),
            _ => Err(damaged(&path, "it is too long".into())),
        }
    }

    /// It is whole after the end of the process; a loss of power may leave nothing of it.
    pub(super) fn write_hot(&self, part: HotPart, bytes: &[u8]) -> Result<(), RecordsError> {
        let path = self.hot_path(part);
        let draft = self.path.join(format!("hot.{part}.new"));
        std::fs::write(&draft, bytes).map_err(io_error(&draft))?;
        std::fs::rename(&draft, &path).map_err(io_error(&path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::Role;

    #[test]
    fn hints_are_kept_apart_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let (tables, ost) = (HotPart::Tables, HotPart::Ost(0));
        assert_eq!(data.read_hot(tables).unwrap(), None);
        data.write_hot(tables, b"one").unwrap();
        data.write_hot(tables, b"two").unwrap();
        assert_eq!(data.read_hot(tables).unwrap().unwrap(), b"two");
        assert_eq!(data.read_hot(ost).unwrap(), None);
        data.write_hot(ost, &vec![0; HEAT_BYTES_MAX]).unwrap();
        assert_eq!(data.read_hot(ost).unwrap().unwrap().len(), HEAT_BYTES_MAX);
        data.write_hot(ost, &vec![0; HEAT_BYTES_MAX + 1]).unwrap();
        let error = data.read_hot(ost).unwrap_err().to_string();
        assert!(error.contains("hot.ost0 is damaged: it is too long"), "{error}");
    }
}
