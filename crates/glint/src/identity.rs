//! Who this process is on a network: said once for all commands, by `--cert` or GLINT_CERT.

use glint_net::Address;
use glint_net::tls::Identity;
use std::path::PathBuf;
use std::sync::OnceLock;

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Where the certificate and its key are. The first that is said counts.
pub fn set(directory: Option<PathBuf>) {
    if let Some(directory) = directory {
        let _ = DIRECTORY.set(directory);
    }
}

/// Who this process is, if it was said.
pub fn get() -> Result<Option<Identity>, String> {
    let load = |directory: &PathBuf| {
        Identity::load(directory).map_err(|error| {
            format!(
                "{error}; `glint cert issue` makes the files that --cert {} needs",
                directory.display()
            )
        })
    };
    DIRECTORY.get().map(load).transpose()
}

/// An address, with who this process is there.
pub fn address(text: &str) -> Result<Address, String> {
    Ok(Address::parse_as(text, get()?))
}
