//! Files that nobody changes, so that their objects have checksums: what is damaged of one copy
//! while its server is stopped is never read, and comes back from the others.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::crew::{CALL_MAX, Course, SYNC_MAX, Worker};
use super::stamps::{difference, read_around, stamped};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::random::Random;

const FILES: u32 = 24;
/// Attribute of an object with its checksums (docs/format.md).
const SUMS: &str = "user.glint.sums";
/// What is changed of a file whose object was lost.
const CHANGE: usize = 700;

pub(super) struct Cold {
    files: Vec<ColdFile>,
    random: Random,
}

struct ColdFile {
    /// As both mounts have it.
    paths: [PathBuf; 2],
    /// How the names of its objects begin.
    objects: String,
    /// So many OSTs have each object.
    copies: usize,
    number: u32,
    content: Vec<u8>,
    changes: u64,
}

impl ColdFile {
    fn read(&self, course: &Course, mount: usize) {
        let path = &self.paths[mount];
        let found = course.call("read", path, CALL_MAX, || read_around(path));
        course.must_be_same(path, difference(&self.content, &found, 0));
    }
}

impl Cold {
    /// Makes the files, in turns in directories for two copies and for three, each as both mounts
    /// have it.
    pub(super) fn new(two: &[PathBuf; 2], three: &[PathBuf; 2], seed: u64) -> Cold {
        let make = |number: u32| {
            let (dirs, copies) = if number.is_multiple_of(2) { (two, 2) } else { (three, 3) };
            let paths = dirs.each_ref().map(|dir| dir.join(format!("cold{number}")));
            let content = stamped(number, 1, 0, 100_000 + 8_000 * number as usize);
            let file = File::create(&paths[0]).unwrap();
            file.write_all_at(&content, 0).unwrap();
            file.sync_all().unwrap();
            let objects = format!("{:016x}.", file.metadata().unwrap().ino());
            ColdFile { paths, objects, copies, number, content, changes: 1 }
        };
        Cold { files: (1..=FILES).map(make).collect(), random: Random(seed) }
    }

    /// Spoils objects of an OST whose server is stopped: flips bits of some, and removes others.
    /// Returns which files have lost one.
    pub(super) fn spoil(&mut self, course: &Course, ost: &Path) -> Vec<usize> {
        let (mut flipped, mut lost) = (0, Vec::new());
        for object in objects(ost) {
            let has_sums = || rustix::fs::getxattr_query(&object, SUMS).is_ok();
            let Some(its) = self.position(&object).filter(|_| has_sums()) else { continue };
            match self.random.below(5) {
                0..=1 => {
                    fs::remove_file(&object).unwrap();
                    lost.push(its);
                }
                2..=3 => {
                    flip(&object, &mut self.random);
                    flipped += 1;
                }
                _ => {}
            }
        }
        println!("{flipped} objects are damaged, {} are lost", lost.len());
        let some = flipped > 0 || !lost.is_empty();
        assert!(some, "{}: no object of {} could be spoilt", course.now(), ost.display());
        lost
    }

    /// Changes a part of each of these files, to stable storage: a member that has lost the object
    /// gets all of it before that.
    pub(super) fn change(&mut self, course: &Course, files: &[usize]) {
        for n in files {
            let file = &mut self.files[*n];
            file.changes += 1;
            let from = self.random.below((file.content.len() - CHANGE) as u64) as usize;
            let bytes = stamped(file.number, file.changes, from, CHANGE);
            let path = &file.paths[self.random.below(2) as usize];
            course.call("change", path, SYNC_MAX, || {
                let file = File::options().write(true).open(path)?;
                file.write_all_at(&bytes, from as u64)?;
                file.sync_all()
            });
            file.content[from..from + CHANGE].copy_from_slice(&bytes);
        }
    }

    /// Reads all files through both mounts.
    pub(super) fn read_all(&self, course: &Course) {
        for file in &self.files {
            (0..file.paths.len()).for_each(|mount| file.read(course, mount));
        }
    }

    /// How many copies an object has, if it is of one of these files.
    pub(super) fn copies_of(&self, object: &Path) -> Option<usize> {
        self.position(object).map(|n| self.files[n].copies)
    }

    fn position(&self, object: &Path) -> Option<usize> {
        let name = object.file_name().unwrap().to_str().unwrap();
        self.files.iter().position(|file| name.starts_with(&file.objects))
    }
}

/// Paths of the objects of an OST.
fn objects(ost: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(ost.join("objects")).unwrap().flatten();
    let objects = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
    let mut paths: Vec<PathBuf> = objects.map(|object| object.path()).collect();
    // As a seed finds them again.
    paths.sort();
    paths
}

/// Flips a bit in up to three places of an object.
fn flip(object: &Path, random: &mut Random) {
    let file = File::options().read(true).write(true).open(object).unwrap();
    let len = file.metadata().unwrap().len();
    for _ in 0..1 + random.below(3) {
        let (at, bit) = (random.below(len), random.below(8));
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ (1 << bit)], at).unwrap();
    }
}

/// Reads them all the time.
impl Worker for Arc<Mutex<Cold>> {
    fn step(&mut self, course: &Course) {
        let mut cold = self.lock().unwrap();
        let (n, mount) = (cold.random.below(u64::from(FILES)), cold.random.below(2));
        cold.files[n as usize].read(course, mount as usize);
    }

    fn verify(&mut self, course: &Course) {
        self.lock().unwrap().read_all(course);
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(30)
    }
}
