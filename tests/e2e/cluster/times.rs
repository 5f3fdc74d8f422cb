//! Times of files that several mounts use: all see the same, and those that were set stay.
//! A modification time that a program sets stays until data changes, and then it changes everywhere.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::write_back::requests;
use rustix::fs::{AtFlags, CWD, FallocateFlags, Timespec, Timestamps};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::pair::{both_ways, pair};
use support::*;

/// The time that is set.
const NOON: i64 = 1_000_000_000;

fn noon() -> Timestamps {
    let time = Timespec { tv_sec: NOON, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

fn set_noon(path: &Path) {
    rustix::fs::utimensat(CWD, path, &noon(), AtFlags::empty()).unwrap();
}

fn to_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn mtime(path: &Path) -> (i64, i64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.mtime(), metadata.mtime_nsec())
}

/// A change of data.
#[derive(Clone, Copy, Debug)]
enum Change {
    Write,
    Append,
    Map,
    Allocate,
    Truncate,
    /// Through a descriptor that another one was opened beside.
    Second,
}

const CHANGES: [Change; 6] = [
    Change::Write,
    Change::Append,
    Change::Map,
    Change::Allocate,
    Change::Truncate,
    Change::Second,
];

impl Change {
    fn make(self, path: &Path, file: &File) {
        match self {
            Change::Write => file.write_all_at(b"x", 7).unwrap(),
            Change::Append => {
                use std::io::Write;
                OpenOptions::new().append(true).open(path).unwrap().write_all(b"x").unwrap();
            }
            Change::Map => {
                let mut pages = mapped::map(path);
                pages[0] = 7;
                pages.flush().unwrap();
            }
            Change::Allocate => {
                rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 1 << 17).unwrap();
            }
            Change::Truncate => file.set_len(17).unwrap(),
            Change::Second => to_write(path).write_all_at(b"x", 9).unwrap(),
        }
    }
}

/// One file, at two mounts.
struct Seen<'a> {
    paths: [PathBuf; 2],
    what: &'a str,
}

impl Seen<'_> {
    fn must_be_noon(&self, when: &str) {
        for path in &self.paths {
            assert_eq!(mtime(path), (NOON, 0), "{}: {when}: {}", self.what, path.display());
        }
    }

    /// The time is later, and the same everywhere. Returns it.
    fn must_be_later(&self, when: &str) -> (i64, i64) {
        let [here, there] = [mtime(&self.paths[0]), mtime(&self.paths[1])];
        assert_eq!(here, there, "{}: {when}", self.what);
        assert!(here.0 > NOON, "{}: {when}: {here:?}", self.what);
        here
    }
}

#[test]
fn a_time_that_was_set_outlives_an_open() {
    let pair = pair();
    for (way, (x, y)) in [(&pair.a, &pair.b), (&pair.b, &pair.a)].into_iter().enumerate() {
        for (n, is_shared) in [(0, false), (1, true)] {
            let directory = format!("d{way}{n}");
            fs::create_dir(x.join(&directory)).unwrap();
            if is_shared {
                fs::write(y.join(&directory).join("theirs"), b"").unwrap();
            }
            for (n, change) in CHANGES.into_iter().enumerate() {
                let what = format!("{change:?}, shared {is_shared}");
                let at = |mount: &Path| mount.join(&directory).join(format!("f{n}"));
                let paths = [at(x), at(y)];
                let [here, there] = &paths;
                let seen = Seen { paths: paths.clone(), what: &what };
                fs::write(here, [1; 5000]).unwrap();
                set_noon(here);
                let one = to_write(here);
                seen.must_be_noon("open");
                let two = to_write(there);
                seen.must_be_noon("open twice");
                drop(one);
                seen.must_be_noon("open elsewhere");
                drop(two);
                seen.must_be_noon("closed");
                let file = to_write(here);
                change.make(here, &file);
                seen.must_be_later("changed");
                file.sync_data().unwrap();
                let synced = seen.must_be_later("synced");
                drop(file);
                assert_eq!(seen.must_be_later("closed again"), synced, "{what}");
                // Set while it is open and nothing is written, here and there.
                let file = to_write(there);
                set_noon(there);
                seen.must_be_noon("set while it is open");
                drop(file);
                seen.must_be_noon("closed after that");
                let file = to_write(there);
                set_noon(here);
                change.make(there, &file);
                seen.must_be_later("changed elsewhere");
                drop(file);
                seen.must_be_later("closed elsewhere");
            }
        }
    }
}

/// In a directory that nobody else looks at before, all of it is in the write-back log.
#[test]
fn a_time_that_was_set_unseen_outlives_an_open() {
    let pair = pair();
    for (n, change) in CHANGES.into_iter().enumerate() {
        for steps in 0..6 {
            let directory = format!("d{n}-{steps}");
            let what = format!("{change:?}, {steps}");
            fs::create_dir(pair.a.join(&directory)).unwrap();
            let at = |mount: &Path| mount.join(&directory).join("f");
            let paths = [at(&pair.a), at(&pair.b)];
            let here = &paths[0];
            let seen = Seen { paths: paths.clone(), what: &what };
            let file = File::create_new(here).unwrap();
            file.write_all_at(&[1; 5000], 0).unwrap();
            if steps % 2 == 1 {
                file.sync_data().unwrap();
            }
            let open = match steps / 2 {
                // As tar sets it.
                0 => {
                    rustix::fs::futimens(&file, &noon()).unwrap();
                    file
                }
                1 => {
                    drop(file);
                    set_noon(here);
                    to_write(here)
                }
                // Looked at before it is changed.
                _ => {
                    drop(file);
                    set_noon(here);
                    seen.must_be_noon("closed");
                    to_write(here)
                }
            };
            assert_eq!(mtime(here), (NOON, 0), "{what}");
            change.make(here, &open);
            seen.must_be_later("changed");
            open.sync_data().unwrap();
            let synced = seen.must_be_later("synced");
            drop(open);
            assert_eq!(seen.must_be_later("closed"), synced, "{what}");
        }
    }
}

/// As a server that starts again, and a client that does not, find it.
#[test]
fn a_time_that_was_set_outlives_a_crash_while_the_file_is_open() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &["--lease", "6"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (_two, b) = world.mount(port, "b", &[]);
    fs::create_dir(a.join("own")).unwrap();
    fs::create_dir(a.join("shared")).unwrap();
    fs::write(b.join("shared/theirs"), b"").unwrap();
    let both = |name: &str| Seen { paths: [a.join(name), b.join(name)], what: "crash" };
    let mut open = Vec::new();
    for name in ["own/f", "shared/f"] {
        fs::write(a.join(name), [1; 5000]).unwrap();
        set_noon(&a.join(name));
        open.push(to_write(&a.join(name)));
    }
    // What objects have said is forgotten with the server, and so this time is set unseen.
    let late = File::create_new(a.join("own/late")).unwrap();
    late.write_all_at(&[1; 5000], 0).unwrap();
    late.sync_data().unwrap();
    server.kill();
    server = world.serve(port, &["--lease", "6"]);
    rustix::fs::futimens(&late, &noon()).unwrap();
    for name in ["own/late", "shared/f", "own/f"] {
        both(name).must_be_noon("while it is open");
    }
    drop(late);
    both("own/late").must_be_noon("closed");
    drop(to_write(&a.join("own/late")));
    both("own/late").must_be_noon("closed again");
    open[0].write_all_at(b"x", 3).unwrap();
    both("own/f").must_be_later("written");
    set_noon(&b.join("own/f"));
    drop(open);
    let again = to_write(&a.join("shared/f"));
    one.kill();
    drop(again);
    for name in ["own/late", "shared/f", "own/f"] {
        assert_eq!(mtime(&b.join(name)), (NOON, 0), "{name}");
    }
    let file = to_write(&b.join("shared/f"));
    assert_eq!(mtime(&b.join("shared/f")), (NOON, 0));
    file.write_all_at(b"x", 3).unwrap();
    assert!(mtime(&b.join("shared/f")).0 > NOON);
    drop(file);
    assert!(mtime(&b.join("shared/f")).0 > NOON);
    drop(server);
}

#[test]
fn a_time_that_was_set_costs_a_few_requests_at_the_first_change_only() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    fs::create_dir(a.join("d")).unwrap();
    fs::write(b.join("d/theirs"), b"").unwrap();
    let path = a.join("d/f");
    let count = || {
        let counts = requests(&address(port));
        ["setattr", "obj_set_time"].map(|op| counts.get(op).copied().unwrap_or(0))
    };
    let costs = |change: &dyn Fn()| {
        let before = count();
        change();
        let after = count();
        [after[0] - before[0], after[1] - before[1]]
    };
    let write = |file: &File| file.write_all_at(b"x", 3).unwrap();
    fs::write(&path, [1; 5000]).unwrap();
    assert_eq!(costs(&|| write(&to_write(&path))), [0, 0], "nothing was set");
    set_noon(&path);
    assert_eq!(costs(&|| drop(to_write(&path))), [0, 0], "nothing is written");
    let file = to_write(&path);
    assert_eq!(costs(&|| write(&file)), [1, 1]);
    assert_eq!(costs(&|| write(&file)), [0, 0], "again");
    drop(file);
    set_noon(&path);
    assert_eq!(costs(&|| fs::write(&path, b"anew").unwrap()), [0, 0], "O_TRUNC");
    assert_eq!(costs(&|| write(&to_write(&path))), [0, 0], "after that");
    [one, two, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

/// When a file was read is told with other changes, at the latest when the mount ends; a time that
/// was set meanwhile stays.
#[test]
fn access_times() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (other, b) = world.mount(port, "b", &[]);
    let old = "touch -a -d 2001-01-01";
    sh(&b, &format!("mkdir d; for f in 1 2 3 4 5; do echo $f > d/$f; done; {old} d/* d"));
    let is_old =
        |at: &Path, name: &str| sh(at, &format!("stat -c %x d/{name}")).starts_with("2001");
    // Whoever has cached the attributes is not waited for.
    let must_be_new = |name: &str, when: &str| {
        let begun = Instant::now();
        while is_old(&b, name) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{name} {when}");
        }
    };
    let (reader, a) = world.mount(port, "a", &[]);
    sh(&a, "cat d/[1-3]");
    for name in [".", "1"] {
        assert!(!is_old(&a, name), "{name}: who read it sees that at once");
    }
    // Changes by who read it come after that.
    sh(&a, "chmod 600 d/2; mv d/3 d/6; sync d");
    for name in [".", "1", "2", "6"] {
        must_be_new(name, "after a sync");
    }
    sh(&b, &format!("{old} d/*"));
    sh(&a, "cat d/4 d/5");
    sh(&b, &format!("{old} d/5"));
    reader.stop();
    must_be_new("4", "after the end of the mount");
    assert!(is_old(&b, "5"), "set after it was read");
    assert!(is_old(&b, "1"), "not read since");
    other.stop();
    server.stop();
    world.assert_sound();
}

/// A time that is set stays, whoever has written before it and has not sent that yet.
#[test]
fn times_of_files_being_written() {
    let pair = pair();
    both_ways(&pair, "times", |x, y| {
        let time_of = |round| std::time::UNIX_EPOCH + Duration::from_secs(1000 + round);
        let same = |round: u64, when: &str| {
            for path in [y.join(format!("f{round}")), x.join(format!("f{round}"))] {
                let found = fs::metadata(&path).unwrap().modified().unwrap();
                assert_eq!(found, time_of(round), "{when}: {}", path.display());
            }
        };
        for round in 0..60 {
            let (here, there) = (x.join(format!("f{round}")), y.join(format!("f{round}")));
            let time = time_of(round);
            // Alternately in a directory delegated to one client, and in one it shares.
            if round % 2 == 0 {
                fs::metadata(y).unwrap();
            }
            let writer = File::create(&here).unwrap();
            let reader = (round % 3 == 0).then(|| File::open(&there).unwrap());
            writer.write_all_at(&[round as u8; 5000], 100 * round).unwrap();
            let setter = if round % 5 < 2 { &there } else { &here };
            if round % 7 < 3 {
                drop(writer);
                File::options().write(true).open(setter).unwrap().set_modified(time).unwrap();
                same(round, "after the close");
            } else {
                File::options().write(true).open(setter).unwrap().set_modified(time).unwrap();
                same(round, "before the close");
                drop(writer);
                same(round, "just closed");
            }
            drop(reader);
        }
        std::thread::sleep(Duration::from_millis(1200));
        (0..60).for_each(|round| same(round, "later"));
    });
}

/// Times of a change are those at which its program made it, before and after the data was sent.
#[test]
fn times_of_written_files_are_the_same_everywhere_and_stay() {
    let pair = pair();
    both_ways(&pair, "changes", |x, y| {
        let path = x.join("f");
        let times = |directory: &Path| {
            let found = fs::metadata(directory.join("f")).unwrap();
            (found.mtime_nsec(), found.ctime_nsec())
        };
        let same = |round: u64, when: &str| {
            assert_eq!(times(x), times(y), "round {round}, {when}");
        };
        for round in 0..20 {
            let writer = File::options().write(true).create(true).truncate(false).open(&path);
            let writer = writer.unwrap();
            writer.write_all_at(&[round as u8; 5000], 100 * round).unwrap();
            let written = times(x);
            same(round, "written");
            writer.sync_all().unwrap();
            same(round, "synced");
            drop(writer);
            same(round, "closed");
            std::thread::sleep(Duration::from_millis(20));
            same(round, "later");
            assert_eq!(times(x), written, "round {round}: nothing was changed since");
        }
    });
}
