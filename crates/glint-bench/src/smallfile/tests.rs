//! All operations on a real directory, and what becomes of those that do not get to their end.

use super::operation::Contents;
use super::tree::{FileTree, Half};
use super::volume::Unfinished;
use super::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

const WORKLOAD: Workload =
    Workload { threads: 3, files: 250, bytes: 3 << 10, fsync: false, cold: false };

fn never() -> bool {
    false
}

/// Paths and contents of the files below a directory.
fn files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.clone(), std::fs::read(&path).unwrap())),
        }
    }
    found
}

/// Where smallfile has its files, of the one half.
fn names(top: &Path, half: Half) -> HashSet<PathBuf> {
    let tree = FileTree::new(top.to_owned(), WORKLOAD.files);
    let threads = 0..WORKLOAD.threads;
    let tree = &tree;
    threads.flat_map(|t| (1..=WORKLOAD.files).map(move |n| tree.file(half, t, n))).collect()
}

#[test]
fn each_operation_does_all_files_and_leaves_what_it_says() {
    let parent = tempfile::tempdir().unwrap();
    let mut volume = Volume::new(parent.path(), WORKLOAD).unwrap();
    let top = volume.top().to_owned();
    let all = WORKLOAD.threads * WORKLOAD.files;
    for op in SmallfileOp::ALL {
        let outcome = volume.run(op, &never).unwrap();
        assert_eq!((outcome.finished, outcome.wanted), (all, all), "{op:?}");
        assert_eq!(outcome.unfinished, None, "{op:?}");
        let mut figures = Figures::default();
        figures.add(outcome);
        assert_eq!(figures.percent(), 100.0);
        let there = files(&top);
        let records = if op == SmallfileOp::Append { 2 } else { 1 };
        match op.leaves() {
            Contents::Files | Contents::Renamed => {
                let in_source = op.leaves() == Contents::Files;
                let half = if in_source { Half::Source } else { Half::Destination };
                let paths: HashSet<PathBuf> = there.iter().map(|(path, _)| path.clone()).collect();
                assert_eq!(paths, names(&top, half), "{op:?}");
                let contents: HashSet<&[u8]> = there.iter().map(|(_, data)| &data[..]).collect();
                assert_eq!(contents.len() as u64, all, "no two files have the same content");
                let records = if in_source { records } else { 2 };
                for (path, data) in &there {
                    assert_eq!(data.len(), records * WORKLOAD.bytes, "{op:?} {path:?}");
                    assert_eq!(data[..WORKLOAD.bytes], data[data.len() - WORKLOAD.bytes..]);
                }
            }
            _ => assert!(there.is_empty(), "{op:?}"),
        }
        let made = |thread| volume_directory(&top, thread, 1).is_dir();
        assert_eq!((0..WORKLOAD.threads).all(made), op == SmallfileOp::Mkdir, "{op:?}");
    }
    drop(volume);
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
}

fn volume_directory(top: &Path, thread: u64, number: u64) -> PathBuf {
    let tree = FileTree::new(top.to_owned(), WORKLOAD.files);
    let mut name = tree.file(Half::Source, thread, number).into_os_string();
    name.push(".d");
    name.into()
}

#[test]
fn an_operation_alone_gets_what_it_needs() {
    let parent = tempfile::tempdir().unwrap();
    for op in SmallfileOp::ALL {
        let mut volume = Volume::new(parent.path(), WORKLOAD).unwrap();
        for _ in 0..2 {
            let outcome = volume.run(op, &never).unwrap();
            assert_eq!((outcome.finished, outcome.unfinished), (outcome.wanted, None), "{op:?}");
        }
    }
}

#[test]
fn an_interrupted_run_says_so_and_leaves_nothing() {
    let parent = tempfile::tempdir().unwrap();
    let calls = AtomicU64::new(0);
    let directories = WORKLOAD.threads * 6;
    let asked = || calls.fetch_add(1, Ordering::Relaxed) >= directories + 100;
    let target = BenchedDir { name: "here".into(), path: parent.path().into() };
    let ops = [SmallfileOp::Create, SmallfileOp::Stat];
    let work = (WORKLOAD, &Unwritten::In(vec![parent.path().into()]));
    let all = rounds(std::slice::from_ref(&target), work, &ops, 3, &asked).unwrap();
    assert_eq!(all[0][0].percent(), 13.33, "100 of 750");
    assert!(all[0][1].is_empty(), "what comes after it is not begun");
    let line = all[0][0].line(SmallfileOp::Create, &WORKLOAD);
    assert_eq!(line["unfinished"], "interrupted");
    let error = finish(&[target], &ops, &all).unwrap_err().to_string();
    assert_eq!(error, "create on here: 13.33 % of the files: interrupted");
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[test]
fn a_preparation_that_is_interrupted_is_told_of_the_operation() {
    let parent = tempfile::tempdir().unwrap();
    let mut volume = Volume::new(parent.path(), WORKLOAD).unwrap();
    let outcome = volume.run(SmallfileOp::Stat, &|| true).unwrap();
    assert_eq!((outcome.finished, outcome.wanted), (0, 750));
    assert_eq!(outcome.unfinished, Some(Unfinished::Interrupted));
}

#[test]
fn wrong_data_and_wrong_sizes_are_failures() {
    for (op, bytes) in [(SmallfileOp::Read, &b"wrong"[..]), (SmallfileOp::Stat, b"")] {
        let parent = tempfile::tempdir().unwrap();
        let mut volume = Volume::new(parent.path(), WORKLOAD).unwrap();
        volume.run(SmallfileOp::Create, &never).unwrap();
        let tree = FileTree::new(volume.top().to_owned(), WORKLOAD.files);
        let path = tree.file(Half::Source, 1, 200);
        let mut data = std::fs::read(&path).unwrap();
        match bytes.is_empty() {
            true => data.push(0),
            false => data[..bytes.len()].copy_from_slice(bytes),
        }
        std::fs::write(&path, data).unwrap();
        let outcome = volume.run(op, &never).unwrap();
        // The other threads go on.
        assert_eq!(outcome.finished, 2 * WORKLOAD.files + 199, "{op:?}");
        let why = outcome.unfinished.unwrap().to_string();
        assert!(why.starts_with(path.to_str().unwrap()), "{op:?}: {why}");
    }
}

#[test]
fn a_target_has_a_name_if_it_is_given_one() {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().to_str().unwrap();
    let plain = BenchedDir::parse(path).unwrap();
    assert_eq!((plain.name.as_str(), plain.path.to_str()), (path, Some(path)));
    let named = BenchedDir::parse(&format!("3-copies={path}")).unwrap();
    assert_eq!((named.name.as_str(), named.path.to_str()), ("3-copies", Some(path)));
    std::fs::create_dir(parent.path().join("a=b")).unwrap();
    let odd = format!("{path}/a=b");
    assert_eq!(BenchedDir::parse(&odd).unwrap().name, odd);
    assert!(BenchedDir::parse("3-copies=/nowhere").is_err());
}
