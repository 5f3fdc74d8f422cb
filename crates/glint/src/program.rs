//! The programs of Glint, which find each other: `glint` runs `glint-bench`, and that runs `glint`.

use std::io::ErrorKind;
use std::path::PathBuf;

/// Path of a program: beside this one, as it was built and is installed, or else in PATH.
pub fn path(name: &str) -> PathBuf {
    let beside = std::env::current_exe().map(|own| own.with_file_name(name));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| name.into())
}

/// Why it could not be run, and what to do.
pub fn not_started(name: &str, error: &std::io::Error) -> String {
    if error.kind() != ErrorKind::NotFound {
        return format!("{name}: {error}");
    }
    format!(
        "{name} is neither beside this program nor in PATH: in the sources of Glint `make build` \
         builds it and `make install` installs it"
    )
}
