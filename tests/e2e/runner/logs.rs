//! Logs of tests: what each of them printed, and what its processes wrote to `*.log` below its
//! directories. The latter are kept when it fails, and searched for panics when it does not.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};

/// Longest part of a log that is printed, from its end.
const PRINTED_MAX: u64 = 60_000;
/// Longest part of a log that is kept, from its end.
const KEPT_MAX: u64 = 4 << 20;
/// How deep below a directory of a test logs are looked for: those of processes lie beside their
/// data directories, or in them. Deeper are trees of files.
const DEPTH_MAX: u32 = 3;

/// Directory of the logs: beside the binaries.
pub(crate) fn directory() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    here.with_file_name("e2e-logs")
}

/// Directory of the scratch directories, beside that of the logs.
pub(crate) fn scratches(logs: &Path) -> PathBuf {
    logs.with_file_name("e2e-scratch")
}

/// The logs of a build, which one runner has for itself. In the end they, and what is left of
/// scratch directories, belong to the owner of the build, who may have called sudo(8).
pub(crate) struct Locked {
    logs: PathBuf,
    _lock: File,
}

/// Has a directory of logs for itself.
pub(crate) fn lock(logs: &Path) -> Result<Locked, String> {
    let path = logs.join("lock");
    let locked = fs::create_dir_all(logs)
        .and_then(|()| File::create(&path))
        .and_then(|file| file.try_lock().map(|()| file).map_err(io::Error::from));
    match locked {
        Ok(lock) => Ok(Locked { logs: logs.to_owned(), _lock: lock }),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(format!("{}: end-to-end tests of this build run already", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let Some(build) = self.logs.parent().and_then(|build| fs::metadata(build).ok()) else {
            return;
        };
        for top in [self.logs.clone(), scratches(&self.logs)] {
            // Who may not do it has made nothing that is another's.
            let _ = lchown(&top, Some(build.uid()), Some(build.gid()));
            visit(&top, u32::MAX, &mut |path, _| {
                let _ = lchown(path, Some(build.uid()), Some(build.gid()));
            });
        }
    }
}

/// Calls `look` for all that is below a directory, on its file system; links are not followed.
fn visit(directory: &Path, depth: u32, look: &mut impl FnMut(&Path, &fs::Metadata)) {
    let Ok(device) = fs::symlink_metadata(directory).map(|found| found.dev()) else { return };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(found) = entry.metadata() else { continue };
        if found.dev() != device {
            continue;
        }
        let path = entry.path();
        look(&path, &found);
        if found.is_dir() && depth > 1 {
            visit(&path, depth - 1, look);
        }
    }
}

/// Logs that processes of a test have left below its directories.
pub(crate) struct Left {
    /// Paths, and names that tell them apart.
    logs: Vec<(PathBuf, String)>,
}

/// Looks for logs below directories.
pub(crate) fn below(directories: &[&Path]) -> Left {
    let mut logs = Vec::new();
    for top in directories {
        visit(top, DEPTH_MAX, &mut |path, found| {
            let below = path.strip_prefix(top).unwrap_or(path).to_string_lossy().replace('/', "-");
            if found.is_file() && below.ends_with(".log") {
                logs.push((path.to_owned(), below));
            }
        });
    }
    Left { logs }
}

impl Left {
    /// Finds a panic that was logged: the name of the log, and the line.
    pub(crate) fn first_panic(&self) -> Option<String> {
        self.logs.iter().find_map(|(path, name)| {
            let lines = BufReader::new(File::open(path).ok()?).split(b'\n').map_while(Result::ok);
            let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
            let line = lines.find(|line| line.contains("panicked at"))?;
            Some(format!("{name} has a panic: {line}"))
        })
    }

    /// Copies the end of each into a new directory; `None` if there is nothing to copy.
    pub(crate) fn keep(&self, directory: PathBuf) -> io::Result<Option<PathBuf>> {
        if self.logs.is_empty() {
            return Ok(None);
        }
        fs::create_dir_all(&directory)?;
        for (path, name) in &self.logs {
            fs::write(directory.join(name), end_of(path, KEPT_MAX)?)?;
        }
        Ok(Some(directory))
    }
}

/// End of a log, to be printed.
pub(crate) fn tail(path: &Path) -> String {
    String::from_utf8_lossy(&end_of(path, PRINTED_MAX).unwrap_or_default()).into_owned()
}

/// Reads at most `max` bytes, the last ones.
fn end_of(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
    let mut bytes = Vec::new();
    file.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_found_but_deep_ones_and_the_end_of_each_is_kept() {
        let top = tempfile::tempdir().unwrap();
        let (scratch, kept) = (top.path().join("scratch"), top.path().join("kept"));
        fs::create_dir_all(scratch.join("world/data/tree/deep")).unwrap();
        let long = [vec![b'a'; 10], vec![b'b'; KEPT_MAX as usize]].concat();
        fs::write(scratch.join("world/serve.log"), &long).unwrap();
        fs::write(scratch.join("world/data/glint.log"), "one\npanicked at x.rs:1\n").unwrap();
        for other in ["world/data/tree/deep/a.log", "world/log"] {
            fs::write(scratch.join(other), "panicked at y.rs:1").unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", scratch.join("passwd.log")).unwrap();
        let left = below(&[&scratch]);
        let why = left.first_panic().unwrap();
        assert_eq!(why, "world-data-glint.log has a panic: panicked at x.rs:1");
        assert_eq!(left.keep(kept.clone()).unwrap(), Some(kept.clone()));
        let mut names: Vec<_> =
            fs::read_dir(&kept).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["world-data-glint.log", "world-serve.log"]);
        let end = fs::read(kept.join("world-serve.log")).unwrap();
        assert!(end.len() as u64 == KEPT_MAX && end.iter().all(|byte| *byte == b'b'));
        assert_eq!(tail(&kept.join("world-serve.log")).len() as u64, PRINTED_MAX);
        assert!(below(&[&top.path().join("none")]).keep(kept).unwrap().is_none());
    }

    #[test]
    fn one_runner_has_the_logs() {
        let top = tempfile::tempdir().unwrap();
        let logs = top.path().join("e2e-logs");
        let locked = lock(&logs).unwrap();
        assert!(lock(&logs).is_err_and(|error| error.contains("run already")));
        drop(locked);
        drop(lock(&logs).unwrap());
    }

    #[test]
    fn what_root_made_is_the_owners_of_the_build_in_the_end() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let top = tempfile::tempdir().unwrap();
        lchown(top.path(), Some(65_534), Some(65_534)).unwrap();
        let logs = top.path().join("e2e-logs");
        let scratch = scratches(&logs).join("a/b");
        fs::create_dir_all(&scratch).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", scratch.join("passwd")).unwrap();
        drop(lock(&logs).unwrap());
        for made in [logs.clone(), logs.join("lock"), scratch.clone(), scratch.join("passwd")] {
            assert_eq!(fs::symlink_metadata(&made).unwrap().uid(), 65_534, "{}", made.display());
        }
        assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), 0);
    }
}
