//! A tree of small files that are made, overwritten, renamed, replaced and removed through both
//! mounts, with its directories.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::crew::{CALL_MAX, Course, Worker};
use super::stamps::{difference, stamped};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use support::random::Random;

const DIRECTORIES: u64 = 6;
/// More are made until there are so many.
const FILES_MAX: usize = 150;
const BYTES_MAX: u64 = 9_000;

/// Somebody who alone has a tree.
pub(super) struct Sources {
    /// The same directory, as the mounts have it.
    tops: [PathBuf; 2],
    /// Names of directories.
    dirs: Vec<String>,
    /// Below the top.
    files: BTreeMap<PathBuf, Vec<u8>>,
    /// How many names and contents there were.
    count: u32,
    random: Random,
}

impl Sources {
    /// Makes the directories.
    pub(super) fn new(tops: [PathBuf; 2], seed: u64) -> Sources {
        let dirs: Vec<String> = (0..DIRECTORIES).map(|n| format!("d{n}")).collect();
        dirs.iter().for_each(|dir| fs::create_dir(tops[0].join(dir)).unwrap());
        Sources { tops, dirs, files: BTreeMap::new(), count: 0, random: Random(seed) }
    }

    fn top(&mut self) -> PathBuf {
        self.tops[self.random.below(2) as usize].clone()
    }

    fn dir(&mut self) -> usize {
        self.random.below(DIRECTORIES) as usize
    }

    /// A name that nobody has had.
    fn new_name(&mut self) -> PathBuf {
        self.count += 1;
        let dir = self.dir();
        Path::new(&self.dirs[dir]).join(format!("source{}", self.count))
    }

    fn any(&mut self) -> Option<PathBuf> {
        let count = self.files.len() as u64;
        let n = if count == 0 { 0 } else { self.random.below(count) };
        self.files.keys().nth(n as usize).cloned()
    }

    fn write(&mut self, course: &Course, name: PathBuf) {
        self.count += 1;
        let len = self.random.below(BYTES_MAX) as usize;
        let (path, bytes) = (self.top().join(&name), stamped(self.count, 1, 0, len));
        course.call("write", &path, CALL_MAX, || fs::write(&path, &bytes));
        self.files.insert(name, bytes);
    }

    /// To a name that is new or another's.
    fn rename(&mut self, course: &Course, name: &Path) {
        let other = if self.random.below(2) == 0 { self.any() } else { None };
        let to = other.unwrap_or_else(|| self.new_name());
        let top = self.top();
        let (from, target) = (top.join(name), top.join(&to));
        course.call("rename", &from, CALL_MAX, || fs::rename(&from, &target));
        let bytes = self.files.remove(name).unwrap();
        self.files.insert(to, bytes);
    }

    fn remove(&mut self, course: &Course, name: &Path) {
        let path = self.top().join(name);
        course.call("remove", &path, CALL_MAX, || fs::remove_file(&path));
        self.files.remove(name);
    }

    fn rename_dir(&mut self, course: &Course) {
        let (n, top) = (self.dir(), self.top());
        self.count += 1;
        let new = format!("d{}", u64::from(self.count) + DIRECTORIES);
        let old = std::mem::replace(&mut self.dirs[n], new.clone());
        let (from, to) = (top.join(&old), top.join(&new));
        course.call("rename", &from, CALL_MAX, || fs::rename(&from, &to));
        let files = std::mem::take(&mut self.files);
        let moved = files.into_iter().map(|(name, bytes)| match name.strip_prefix(&old) {
            Ok(below) => (Path::new(&new).join(below), bytes),
            Err(_) => (name, bytes),
        });
        self.files = moved.collect();
    }

    fn look_at(&self, course: &Course, top: &Path, name: &Path) {
        let path = top.join(name);
        let found = course.call("read", &path, CALL_MAX, || fs::read(&path));
        course.must_be_same(&path, difference(&self.files[name], &found, 0));
    }

    fn list(&self, course: &Course, top: &Path, dir: &str) {
        let path = top.join(dir);
        let found = course.call("list", &path, CALL_MAX, || names(&path));
        let known = self.files.keys().filter_map(|name| name.strip_prefix(dir).ok());
        let known: BTreeSet<PathBuf> = known.map(Path::to_owned).collect();
        let differ: Vec<&PathBuf> = found.symmetric_difference(&known).collect();
        let text = || format!("there, or missing: {differ:?}");
        course.must_be_same(&path, (!differ.is_empty()).then(text));
    }
}

fn names(dir: &Path) -> std::io::Result<BTreeSet<PathBuf>> {
    fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name().into())).collect()
}

impl Worker for Sources {
    fn step(&mut self, course: &Course) {
        let Some(name) = self.any().filter(|_| self.files.len() > FILES_MAX / 2) else {
            let name = self.new_name();
            return self.write(course, name);
        };
        let (dir, top) = (self.dir(), self.top());
        match self.random.below(16) {
            0..=3 if self.files.len() < FILES_MAX => {
                let name = self.new_name();
                self.write(course, name);
            }
            4..=6 => self.write(course, name),
            7..=8 => self.rename(course, &name),
            9..=10 => self.remove(course, &name),
            11 => self.rename_dir(course),
            12..=13 => self.list(course, &top, &self.dirs[dir]),
            _ => self.look_at(course, &top, &name),
        }
    }

    fn verify(&mut self, course: &Course) {
        for top in &self.tops {
            self.dirs.iter().for_each(|dir| self.list(course, top, dir));
            self.files.keys().for_each(|name| self.look_at(course, top, name));
        }
    }
}
