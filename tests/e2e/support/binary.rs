//! The binary under test: `GLINT_BINARY`, or what cargo built beside the tests. A test of another
//! package has no binary built with it, so one that is older than its sources is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

/// The path of `glint`; `glint-bench` lies beside it.
pub fn glint() -> &'static str {
    static GLINT: OnceLock<String> = OnceLock::new();
    GLINT.get_or_init(|| match std::env::var("GLINT_BINARY") {
        Ok(path) => path,
        Err(_) => {
            built("glint-bench");
            built("glint")
        }
    })
}

/// A directory of the build: `target/PROFILE/deps` has the tests, `target/PROFILE` the binaries.
pub fn build_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// A binary beside the tests, which must be as new as they are.
fn built(name: &str) -> String {
    let binary = build_directory().join(name);
    let how = "build first: `make e2e` does it, and \
               `cargo build --workspace --locked --all-targets`";
    let built = modified(&binary).unwrap_or_else(|| panic!("no {}; {how}", binary.display()));
    // Dependencies as cargo writes them for make(1): `BINARY: SOURCE SOURCE ...`, with spaces
    // escaped.
    let sources = fs::read_to_string(binary.with_extension("d")).unwrap().replace("\\ ", "\0");
    for source in sources.split_whitespace().skip(1) {
        let source = source.replace('\0', " ");
        let is_newer = modified(Path::new(&source)).is_none_or(|changed| changed > built);
        assert!(!is_newer, "{} is older than {source}; {how}", binary.display());
    }
    binary.into_os_string().into_string().unwrap()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|found| found.modified()).ok()
}
