//! Files with random changes through both mounts, each of which is known byte by byte.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::crew::{CALL_MAX, Course, SYNC_MAX, Worker};
use super::stamps::{STAMP, difference, read_around, read_from, stamped};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use support::random::Random;

/// Longest file.
const BYTES_MAX: usize = 300_000;
/// Longest change.
const CHANGE_MAX: usize = 40_000;

/// Somebody who alone changes some files, each time through one of two mounts.
pub(super) struct Changer {
    /// The same directory, as the mounts have it.
    dirs: [PathBuf; 2],
    files: Vec<Known>,
    random: Random,
}

/// A file of which all is acknowledged that is here.
struct Known {
    /// Counted from 1.
    number: u32,
    content: Vec<u8>,
    changes: u64,
}

impl Known {
    /// Content of the next change.
    fn next(&mut self, from: usize, len: usize) -> Vec<u8> {
        self.changes += 1;
        stamped(self.number, self.changes, from, len)
    }

    /// Notes what was acknowledged.
    fn put(&mut self, from: usize, bytes: &[u8]) {
        let end = from + bytes.len();
        self.content.resize(self.content.len().max(end), 0);
        self.content[from..end].copy_from_slice(bytes);
    }
}

impl Changer {
    /// Makes the files, in a directory that both mounts have.
    pub(super) fn new(dirs: [PathBuf; 2], files: u32, seed: u64) -> Changer {
        let make = |number: u32| {
            let mut known = Known { number, content: Vec::new(), changes: 0 };
            let bytes = known.next(0, 20_000 + 3_000 * number as usize);
            fs::write(dirs[0].join(name(number)), &bytes).unwrap();
            known.put(0, &bytes);
            known
        };
        let files = (1..=files).map(make).collect();
        Changer { dirs, files, random: Random(seed) }
    }

    fn write(&mut self, course: &Course, n: usize, path: &Path, sync: bool) {
        let from = self.random.below((BYTES_MAX - CHANGE_MAX) as u64) as usize;
        let len = 1 + self.random.below(CHANGE_MAX as u64) as usize;
        let bytes = self.files[n].next(from, len);
        let (what, longest) = if sync { ("write and sync", SYNC_MAX) } else { ("write", CALL_MAX) };
        course.call(what, path, longest, || {
            let file = File::options().write(true).open(path)?;
            file.write_all_at(&bytes, from as u64)?;
            if sync { file.sync_all() } else { Ok(()) }
        });
        self.files[n].put(from, &bytes);
    }

    fn append(&mut self, course: &Course, n: usize, path: &Path) {
        let from = self.files[n].content.len();
        let len = 1 + self.random.below(CHANGE_MAX as u64) as usize;
        if from + len > BYTES_MAX {
            self.cut(course, n, path);
            return;
        }
        let bytes = self.files[n].next(from, len);
        course.call("append to", path, CALL_MAX, || {
            File::options().append(true).open(path)?.write_all(&bytes)
        });
        self.files[n].put(from, &bytes);
    }

    /// To any size: what is added is a hole.
    fn cut(&mut self, course: &Course, n: usize, path: &Path) {
        let len = self.random.below(BYTES_MAX as u64);
        course.call("truncate", path, CALL_MAX, || {
            File::options().write(true).open(path)?.set_len(len)
        });
        self.files[n].content.resize(len as usize, 0);
    }

    /// From nothing: the old content goes at once, or with the file.
    fn replace(&mut self, course: &Course, n: usize, path: &Path, remove: bool) {
        let len = 1 + self.random.below(CHANGE_MAX as u64) as usize;
        let bytes = self.files[n].next(0, len);
        if remove {
            course.call("remove", path, CALL_MAX, || fs::remove_file(path));
        }
        course.call("write anew", path, CALL_MAX, || fs::write(path, &bytes));
        self.files[n].content = bytes;
    }

    fn look_at_part(&mut self, course: &Course, n: usize, path: &Path) {
        let content = &self.files[n].content;
        let from = self.random.below(BYTES_MAX as u64) as usize / STAMP * STAMP;
        let len = 1 + self.random.below(CHANGE_MAX as u64) as usize;
        let read = || read_from(&File::open(path)?, from, len);
        let found = course.call("read a part of", path, CALL_MAX, read);
        let expected = content.get(from..).unwrap_or_default();
        let expected = &expected[..expected.len().min(len)];
        course.must_be_same(path, difference(expected, &found, from));
    }

    fn look_at(&self, course: &Course, n: usize, path: &Path, around: bool) {
        let read = || if around { read_around(path) } else { fs::read(path) };
        let found = course.call("read", path, CALL_MAX, read);
        course.must_be_same(path, difference(&self.files[n].content, &found, 0));
    }
}

fn name(number: u32) -> String {
    format!("file{number}")
}

impl Worker for Changer {
    fn step(&mut self, course: &Course) {
        let n = self.random.below(self.files.len() as u64) as usize;
        let mount = self.random.below(2) as usize;
        let path = self.dirs[mount].join(name(self.files[n].number));
        match self.random.below(20) {
            0..=3 => self.look_at(course, n, &path, false),
            4 => self.look_at(course, n, &path, true),
            5..=6 => self.look_at_part(course, n, &path),
            7..=10 => self.write(course, n, &path, false),
            11 => self.write(course, n, &path, true),
            12 => self.append(course, n, &path),
            13..=14 => self.cut(course, n, &path),
            // And what was written behind is asked for at once.
            15..=18 => {
                self.replace(course, n, &path, false);
                let other = self.dirs[1 - mount].join(name(self.files[n].number));
                self.look_at(course, n, &other, false);
            }
            _ => self.replace(course, n, &path, true),
        }
    }

    fn verify(&mut self, course: &Course) {
        for n in 0..self.files.len() {
            for dir in &self.dirs {
                let path = dir.join(name(self.files[n].number));
                self.look_at(course, n, &path, true);
            }
        }
    }
}
