//! Scans of a tree that two mounts change meanwhile: each name that stays is listed exactly once.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::*;

/// Small directories, and names that stay in each.
const DIRECTORIES: usize = 20;
const NAMES: usize = 40;
/// Names that stay in a directory of several pages.
const MANY: usize = 4000;

/// Names that stay, below the tree, in order.
fn staying() -> Vec<String> {
    let small = (0..DIRECTORIES * NAMES).map(|n| format!("d{}/stays{}", n / NAMES, n % NAMES));
    let large = (0..MANY).map(|n| format!("large/stays{n:04}"));
    let mut names: Vec<String> = small.chain(large).collect();
    names.sort();
    names
}

fn make_tree(tree: &Path) {
    for name in staying() {
        let path = tree.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"").unwrap();
    }
    // Renamed as a whole, with what is in them.
    for n in 0..DIRECTORIES {
        let moving = tree.join(format!("moves{n}"));
        fs::create_dir(&moving).unwrap();
        (0..5).for_each(|name| fs::write(moving.join(format!("goes{name}")), b"").unwrap());
    }
}

/// Makes, renames and removes names between those that stay, until all is done. A mount that comes
/// to a name that the other has just taken is refused, which is as it should be.
fn change(tree: &Path, by: usize, is_done: &AtomicBool, changes: &AtomicU64) {
    let mut round = by;
    while !is_done.load(Ordering::Relaxed) {
        round += 2;
        let in_directory = |n: usize| match n % (DIRECTORIES + 4) {
            n if n < DIRECTORIES => tree.join(format!("d{n}")),
            _ => tree.join("large"),
        };
        let (here, there) = (in_directory(round * 7), in_directory(round * 11));
        // Before, between and behind the names that stay, by their order.
        let passing = here.join(format!("{}{by}", ["a", "stays0y", "stays1999x", "z"][round % 4]));
        fs::write(&passing, b"").unwrap();
        let renamed = there.join(format!("stays{by}x{}", round % 30));
        fs::rename(&passing, &renamed).unwrap();
        let directory = here.join(format!("sub{by}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("goes"), b"").unwrap();
        fs::remove_dir_all(&directory).unwrap();
        if round.is_multiple_of(3) {
            fs::remove_file(&renamed).unwrap();
        }
        let n = round % DIRECTORIES;
        if n % 2 == by {
            let (at, back) = (tree.join(format!("moves{n}")), tree.join(format!("moved{n}")));
            fs::rename(&at, &back).unwrap();
            let visits = here.join(format!("visits{by}"));
            fs::rename(&back, &visits).unwrap();
            fs::rename(&visits, &at).unwrap();
        }
        changes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Paths that a walk through a mount comes to. find(1) passes over whole directories, also on a local
/// disk, if the one before is moved while it enters it.
fn walked(directory: &Path, paths: &mut Vec<String>) {
    // Gone, or moved.
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries {
        let Ok(entry) = entry else { return };
        if entry.file_type().unwrap().is_dir() {
            walked(&entry.path(), paths);
        }
        paths.push(text(&entry.path()).to_owned());
    }
}

/// Paths that `glint find` comes to, and what it said.
fn found(start: &str, attributes: &[&str]) -> (Vec<String>, String) {
    let mut find = glint();
    let output = find.args(["find", start]).args(attributes).output().unwrap();
    let paths = String::from_utf8(output.stdout).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    (paths.split('\0').map(str::to_owned).collect(), said)
}

/// Those of paths that are names that stay, in order, each as often as it was listed.
fn that_stay(paths: &[String], tree: &str) -> Vec<String> {
    let below = paths.iter().filter_map(|path| path.strip_prefix(tree)?.strip_prefix('/'));
    let is_staying = |path: &&str| {
        let name = path.rsplit('/').next().unwrap();
        let number = name.strip_prefix("stays").unwrap_or("x");
        number.len() <= 4
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && path.matches('/').count() == 1
    };
    let mut names: Vec<String> = below.filter(is_staying).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_scan_lists_each_name_that_stays_once_while_others_change() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &["--osts", "2"]);
    let (_first, first) = world.mount(port, "first", &[]);
    let (_second, second) = world.mount(port, "second", &[]);
    // It forgets while it scans.
    let (_third, third) = world.mount(port, "third", &["-o", "inodes=1000"]);
    make_tree(&first.join("tree"));
    let on_server = format!("{}/tree", address(port));
    let at = [&first, &second, &third].map(|mount| mount.join("tree"));
    let starts: Vec<&str> =
        std::iter::once(&on_server[..]).chain(at.iter().map(|at| text(at))).collect();
    let expected = staying();
    let (is_done, changes) = (AtomicBool::new(false), AtomicU64::new(0));
    let ended = std::thread::scope(|threads| {
        for (by, tree) in at[..2].iter().enumerate() {
            let (is_done, changes) = (&is_done, &changes);
            threads.spawn(move || change(tree, by, is_done, changes));
        }
        let scans = std::panic::catch_unwind(|| {
            let scanned_for = Duration::from_secs(at_length(5, 8));
            let (until, mut scans) = (Instant::now() + scanned_for, 0);
            while Instant::now() < until {
                for start in &starts {
                    for scan in [&[][..], &["-print0"], &["-size", "-2", "-print0"]] {
                        let (paths, said) = match scan {
                            [] if *start == on_server => continue,
                            [] => {
                                let mut paths = Vec::new();
                                walked(Path::new(start), &mut paths);
                                (paths, "a walk".to_owned())
                            }
                            expression => found(start, expression),
                        };
                        let found = that_stay(&paths, start);
                        let missing = expected.iter().filter(|name| !found.contains(name));
                        let twice = found.windows(2).filter(|pair| pair[0] == pair[1]);
                        assert!(
                            found == expected,
                            "{start} {scan:?}: missing {:?}, twice {:?}: {said}",
                            missing.collect::<Vec<_>>(),
                            twice.collect::<Vec<_>>()
                        );
                        scans += 1;
                    }
                }
            }
            scans
        });
        is_done.store(true, Ordering::Relaxed);
        scans
    });
    let scans = ended.unwrap_or_else(|failure| std::panic::resume_unwind(failure));
    let changes = changes.into_inner();
    assert!(scans >= 8 && changes >= 20, "{scans} scans, {changes} rounds of changes");
    // What a mount has made by itself and told nobody is listed at the server, too.
    for n in 0..20 {
        let made = at[0].join(format!("made{n}"));
        fs::create_dir(&made).unwrap();
        (0..5).for_each(|name| fs::write(made.join(format!("stays{name}")), b"").unwrap());
        let found = run(glint().args(["find", &format!("{on_server}/made{n}"), "-type", "f"]));
        assert_eq!(found.stdout.iter().filter(|byte| **byte == b'\n').count(), 5);
    }
}
