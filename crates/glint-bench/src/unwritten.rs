//! Data that one part of a measurement has left to write, and that is written before the next one.

use std::fs::File;
use std::path::PathBuf;

/// File systems that may have some.
#[derive(Clone, Debug)]
pub(crate) enum Unwritten {
    /// All of the machine: nobody knows where the servers of a mount have their data.
    Anywhere,
    /// Those of these directories alone: other disks of the machine are not waited for.
    In(Vec<PathBuf>),
}

impl Unwritten {
    /// Writes it, and waits until it is written.
    pub(crate) fn write(&self) -> Result<(), String> {
        let Unwritten::In(directories) = self else {
            rustix::fs::sync();
            return Ok(());
        };
        for directory in directories {
            let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
            let opened = File::open(directory).map_err(failed)?;
            rustix::fs::syncfs(&opened).map_err(|error| failed(error.into()))?;
        }
        Ok(())
    }
}
