//! The binary under test: `GLINT_BINARY`, or what cargo built beside the tests. A test of another
//! package has no binary built with it, so one that is older than its sources is refused.

use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::SystemTime;

/// The path of `glint`; `glint-bench` lies beside it.
pub fn glint() -> &'static str {
    static GLINT: OnceLock<String> = OnceLock::new();
    GLINT.get_or_init(|| {
        named().unwrap().unwrap_or_else(|| {
            built("glint-bench");
            built("glint")
        })
    })
}

/// The path of `glint` that `GLINT_BINARY` says, if it says one; an error if there is no file.
pub fn named() -> Result<Option<String>, String> {
    let Some(path) = std::env::var_os("GLINT_BINARY") else { return Ok(None) };
    let refused = |why: &str| Err(format!("GLINT_BINARY={}: {why}", Path::new(&path).display()));
    match (path.to_str(), fs::metadata(&path)) {
        (_, Err(error)) => refused(&error.to_string()),
        (_, Ok(found)) if !found.is_file() => refused("is not a file"),
        (None, _) => refused("is not UTF-8"),
        (Some(path), _) => Ok(Some(path.to_owned())),
    }
}

/// A directory of the build: `target/PROFILE/deps` has the tests, `target/PROFILE` the binaries.
pub fn build_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// Starts a benchmark, and ends it as Ctrl-C does once something holds that shows that it measures:
/// it has to say so, and to fail. Returns the number of its process, and what it has said.
pub fn interrupted(
    mut bench: Command,
    what: &str,
    measures: impl FnMut() -> bool,
) -> (u32, Output) {
    let bench = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    crate::eventually(what, measures);
    let number = bench.id();
    kill_process(Pid::from_child(&bench), Signal::INT).unwrap();
    let output = bench.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let why = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(why.contains("interrupted"), "{why}");
    (number, output)
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
