//! Work on a directory that knows what must be there afterwards.

pub mod fsx;

use super::{at_length, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Expected state of a name: the last acknowledged one, and the one that a call which failed may
/// have left.
#[derive(Clone, Default)]
pub struct Expected {
    pub acknowledged: Option<Vec<u8>>,
    pub attempted: Option<Option<Vec<u8>>>,
}

pub type Model = BTreeMap<PathBuf, Expected>;

/// How far a worker is, and whether it is to end.
#[derive(Default)]
pub struct Progress {
    stop: AtomicBool,
    done: AtomicUsize,
}

impl Progress {
    /// Asks it to end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until it has made so many names: how long that takes, others on this machine say.
    pub fn reach(&self, names: usize) {
        eventually("the load is large enough", || self.done.load(Ordering::Relaxed) > names);
    }
}

/// Works in a directory until the server is gone; the model says what it did.
pub fn work(dir: &Path, round: u64, progress: &Progress) -> Model {
    let mut model = Model::new();
    let mut n = 0u64;
    let pause = Duration::from_millis(at_length(5, 2));
    while !progress.stop.load(Ordering::Relaxed) {
        n += 1;
        // Other tests use the machine, too, and this would be most of what it does.
        std::thread::sleep(pause);
        progress.done.store(model.len(), Ordering::Relaxed);
        let path = dir.join(format!("r{round}-{n}"));
        let content = format!("round {round}, file {n}\n").repeat((n % 50) as usize).into_bytes();
        let expected = model.entry(path.clone()).or_default();
        expected.attempted = Some(Some(Vec::new()));
        let mut file = match fs::File::create_new(&path) {
            Ok(file) => file,
            Err(error) => {
                eprintln!("creating {}: {error}", path.display());
                return model;
            }
        };
        expected.acknowledged = Some(Vec::new());
        expected.attempted = Some(Some(content.clone()));
        if let Err(error) = file.write_all(&content) {
            eprintln!("writing {}: {error}", path.display());
            return model;
        }
        *expected = Expected { acknowledged: Some(content.clone()), attempted: None };
        drop(file);
        match n % 4 {
            1 => {
                expected.attempted = Some(None);
                if let Err(error) = fs::remove_file(&path) {
                    eprintln!("removing {}: {error}", path.display());
                    return model;
                }
                model.remove(&path);
                // The removed name must stay away.
                model.insert(path, Expected::default());
            }
            2 => {
                let to = dir.join(format!("r{round}-{n}-renamed"));
                expected.attempted = Some(None);
                let target =
                    Expected { acknowledged: None, attempted: Some(Some(content.clone())) };
                model.insert(to.clone(), target);
                if let Err(error) = fs::rename(&path, &to) {
                    eprintln!("renaming {}: {error}", path.display());
                    return model;
                }
                model.insert(path, Expected::default());
                model.insert(to, Expected { acknowledged: Some(content), attempted: None });
            }
            _ => {}
        }
    }
    model
}

/// Names in a directory that none of these models speaks of.
pub fn unknown(dir: &Path, models: &[Model]) -> Vec<OsString> {
    // By name: some work in one directory through several mounts.
    let names = models.iter().flat_map(Model::keys).filter_map(|path| path.file_name());
    let known: BTreeSet<&OsStr> = names.collect();
    let found = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    found.filter(|name| !known.contains(name.as_os_str())).collect()
}

/// Compares what is there with what must be. Names that nobody worked with are [`unknown`].
pub fn verify(model: &Model) {
    for (path, expected) in model {
        let found = match fs::read(path) {
            Ok(content) => Some(content),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let allowed = found == expected.acknowledged
            || expected.attempted.as_ref().is_some_and(|attempted| {
                // A write that failed may have arrived in part.
                match (attempted, &found) {
                    (Some(whole), Some(part)) => whole.starts_with(part),
                    (attempted, found) => attempted == found,
                }
            });
        assert!(
            allowed,
            "{}: found {:?} bytes, acknowledged {:?}",
            path.display(),
            found.map(|f| f.len()),
            expected.acknowledged.as_ref().map(Vec::len)
        );
    }
}

/// Some who work in directories at the same time, while whatever they work with fails.
pub struct Load {
    workers: Vec<(Arc<Progress>, JoinHandle<Model>)>,
    dirs: BTreeSet<PathBuf>,
}

impl Load {
    /// Starts one in each of these directories.
    pub fn start<'a>(dirs: impl IntoIterator<Item = &'a PathBuf>) -> Load {
        let start = |(worker, dir): (usize, &PathBuf)| {
            let (progress, dir) = (Arc::<Progress>::default(), dir.clone());
            let its = progress.clone();
            (progress, std::thread::spawn(move || work(&dir, worker as u64, &its)))
        };
        let dirs: Vec<&PathBuf> = dirs.into_iter().collect();
        let all = dirs.iter().copied().cloned().collect();
        Load { workers: dirs.into_iter().enumerate().map(start).collect(), dirs: all }
    }

    /// Waits until everybody has done something since. One whose call has failed has ended.
    pub fn go_on(&self) {
        for (progress, worker) in &self.workers {
            let before = progress.done.load(Ordering::Relaxed);
            eventually("the load goes on", || {
                worker.is_finished() || progress.done.load(Ordering::Relaxed) != before
            });
        }
    }

    /// Ends: no call may have failed, everybody has done `at_least` so much, and all of it is
    /// there, and no name beside it that looks like one of theirs.
    pub fn end(self, at_least: usize) {
        std::thread::sleep(Duration::from_millis(300));
        let mut models = Vec::new();
        for (progress, worker) in self.workers {
            // One whose call has failed has ended, and does no more.
            eventually("the load is large enough", || {
                worker.is_finished() || progress.done.load(Ordering::Relaxed) > at_least
            });
            progress.stop();
            let model = worker.join().unwrap();
            let failed = model.values().filter(|expected| expected.attempted.is_some()).count();
            assert_eq!(failed, 0, "a call failed");
            verify(&model);
            models.push(model);
        }
        for dir in &self.dirs {
            let mut unknown = unknown(dir, &models);
            unknown.retain(|name| name.as_bytes().first() == Some(&b'r'));
            assert!(unknown.is_empty(), "{}: {unknown:?}", dir.display());
        }
    }
}
