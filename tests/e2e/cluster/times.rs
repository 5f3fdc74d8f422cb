//! Sizes and times of files that several mounts use: all see the same, and those that were set stay; and
//! the attributes of the root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};
use support::pair::{both_ways, pair};
use support::*;

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

/// What mounts say of a size when they close a file has numbers of their own, high ones where many were
/// closed; and what is known of a file stays while somebody has it open.
#[test]
fn sizes_of_a_file_to_which_two_mounts_append_while_a_third_has_it_open() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (busy, a) = world.mount(port, "a", &[]);
    let (idle, b) = world.mount(port, "b", &[]);
    let (reader, c) = world.mount(port, "c", &[]);
    for round in 0..10 {
        let name = format!("f{round}");
        fs::write(a.join(&name), b"").unwrap();
        let _open = File::open(c.join(&name)).unwrap();
        for length in 0..100 {
            fs::write(a.join("other"), vec![b'x'; length]).unwrap();
        }
        let mut size = 0;
        for (at, more) in [(&a, 100), (&b, 50), (&a, 70), (&b, 30)] {
            let mut file = fs::OpenOptions::new().append(true).open(at.join(&name)).unwrap();
            file.write_all(&vec![b'y'; more]).unwrap();
            drop(file);
            size += more;
            for path in [&a, &b, &c].map(|mount| mount.join(&name)) {
                assert_eq!(fs::metadata(&path).unwrap().len(), size as u64, "{}", path.display());
                assert_eq!(fs::read(&path).unwrap(), vec![b'y'; size], "{}", path.display());
            }
        }
    }
    for mount in [busy, idle, reader] {
        mount.stop();
    }
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

/// The kernel knows the root of a mount without having looked it up.
#[test]
fn the_root() {
    let pair = pair();
    let seen = |at: &Path| {
        let metadata = fs::metadata(at).unwrap();
        (metadata.mode() & 0o7777, metadata.nlink(), metadata.mtime(), metadata.mtime_nsec())
    };
    let mount = |directory: &Path| directory.parent().unwrap().to_owned();
    both_ways(&pair, "root", |x, y| {
        let (x, y) = (mount(x), mount(y));
        for i in 0..5 {
            let before = (seen(&x), seen(&y));
            assert_eq!(before.0, before.1);
            let made = format!("made-{i}-{}", before.0.1);
            fs::create_dir(x.join(&made)).unwrap();
            let after = seen(&y);
            assert_eq!((after.1, seen(&x)), (before.0.1 + 1, after), "a directory more");
            let mode = 0o700 + i;
            fs::set_permissions(&x, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(seen(&y).0, mode);
            fs::set_permissions(&x, PermissionsExt::from_mode(0o755)).unwrap();
            assert_eq!(seen(&y).0, 0o755);
        }
    });
}
