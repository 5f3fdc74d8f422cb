//! Several mounts of one file system are one file system: what a call returned on one of them
//! is what every later call on any of them sees.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::pair::{both_ways, pair};
use support::*;

fn gone(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

#[test]
fn names() {
    let pair = pair();
    both_ways(&pair, "names", |x, y| {
        for i in 0..20 {
            let (f, g) = (format!("f{i}"), format!("g{i}"));
            // A name that was looked for and not found, on both.
            assert!(gone(&x.join(&f)) && gone(&y.join(&f)));
            fs::write(x.join(&f), b"1").unwrap();
            assert_eq!(fs::metadata(y.join(&f)).unwrap().len(), 1, "created, seen");
            assert!(y.join(&f).exists());
            fs::rename(x.join(&f), x.join(&g)).unwrap();
            assert!(gone(&y.join(&f)), "renamed away");
            assert_eq!(fs::read(y.join(&g)).unwrap(), b"1");
            fs::rename(y.join(&g), y.join(&f)).unwrap();
            assert!(gone(&x.join(&g)) && x.join(&f).exists());
            fs::hard_link(x.join(&f), x.join(&g)).unwrap();
            assert_eq!(fs::metadata(y.join(&f)).unwrap().nlink(), 2);
            fs::remove_file(y.join(&f)).unwrap();
            assert!(gone(&x.join(&f)), "removed");
            assert_eq!(fs::metadata(x.join(&g)).unwrap().nlink(), 1);
            // Replaced by another inode of the same name.
            fs::write(y.join(&f), b"other").unwrap();
            fs::rename(y.join(&f), y.join(&g)).unwrap();
            assert_eq!(fs::read(x.join(&g)).unwrap(), b"other");
            symlink(&g, x.join(&f)).unwrap();
            assert_eq!(fs::read(y.join(&f)).unwrap(), b"other");
            fs::remove_file(x.join(&f)).unwrap();
            symlink("nowhere", x.join(&f)).unwrap();
            assert_eq!(fs::read_link(y.join(&f)).unwrap(), Path::new("nowhere"));
        }
    });
}

#[test]
fn directories() {
    let pair = pair();
    both_ways(&pair, "directories", |x, y| {
        for i in 0..10 {
            let d = format!("d{i}");
            fs::create_dir(x.join(&d)).unwrap();
            assert_eq!(fs::read_dir(y.join(&d)).unwrap().count(), 0);
            fs::write(y.join(&d).join("f"), b"").unwrap();
            let names: Vec<_> =
                fs::read_dir(x.join(&d)).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["f"]);
            assert_eq!(
                fs::remove_dir(x.join(&d)).unwrap_err().raw_os_error(),
                Some(libc::ENOTEMPTY)
            );
            fs::remove_file(x.join(&d).join("f")).unwrap();
            assert_eq!(fs::read_dir(y.join(&d)).unwrap().count(), 0);
            let before = fs::metadata(y.join(&d)).unwrap().mtime_nsec();
            fs::write(x.join(&d).join("g"), b"").unwrap();
            assert_ne!(
                fs::metadata(y.join(&d)).unwrap().mtime_nsec(),
                before,
                "the directory changed"
            );
            fs::rename(x.join(&d), x.join("moved")).unwrap();
            assert!(gone(&y.join(&d)) && y.join("moved/g").exists());
            fs::remove_dir_all(y.join("moved")).unwrap();
            assert!(gone(&x.join("moved")));
        }
    });
}

/// A mount looks several names up, and knows the directory from then on.
#[test]
fn names_of_a_directory_that_was_learned() {
    let pair = pair();
    both_ways(&pair, "learned", |x, y| {
        for i in 0..10 {
            let d = format!("d{i}");
            fs::create_dir(x.join(&d)).unwrap();
            let (x, y) = (x.join(&d), y.join(&d));
            sh(&x, "mkdir e; touch {1..9}; ln 8 g");
            for name in ["1", "2", "3", "8", "g", "e"] {
                assert!(y.join(name).exists());
            }
            assert!(gone(&y.join("new")) && gone(&y.join("e/new")));
            fs::write(x.join("new"), b"1").unwrap();
            assert_eq!(fs::read(y.join("new")).unwrap(), b"1", "made elsewhere");
            fs::rename(x.join("1"), x.join("old")).unwrap();
            assert!(gone(&y.join("1")) && y.join("old").exists(), "renamed");
            fs::remove_file(x.join("2")).unwrap();
            assert!(gone(&y.join("2")), "removed");
            fs::remove_file(x.join("g")).unwrap();
            assert!(gone(&y.join("g")) && y.join("8").exists(), "one of two names");
            fs::hard_link(x.join("3"), x.join("h")).unwrap();
            assert_eq!(fs::metadata(y.join("h")).unwrap().nlink(), 2, "linked");
            fs::write(y.join("other"), b"").unwrap();
            fs::remove_file(y.join("4")).unwrap();
            assert!(x.join("other").exists() && gone(&x.join("4")) && gone(&y.join("4")));
            fs::set_permissions(x.join("5"), fs::Permissions::from_mode(0o600)).unwrap();
            assert_eq!(fs::metadata(y.join("5")).unwrap().mode() & 0o777, 0o600);
            let count = |at: &Path| fs::read_dir(at).unwrap().count();
            assert_eq!((count(&x), count(&y)), (11, 11));
        }
    });
}

#[test]
fn attributes() {
    let pair = pair();
    both_ways(&pair, "attributes", |x, y| {
        fs::write(x.join("f"), b"abc").unwrap();
        for mode in [0o600, 0o644, 0o400, 0o755] {
            fs::metadata(x.join("f")).unwrap();
            fs::metadata(y.join("f")).unwrap();
            fs::set_permissions(x.join("f"), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(fs::metadata(y.join("f")).unwrap().mode() & 0o777, mode);
            std::os::unix::fs::chown(y.join("f"), Some(mode), None).unwrap();
            assert_eq!(fs::metadata(x.join("f")).unwrap().uid(), mode);
        }
        let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let file = OpenOptions::new().write(true).open(x.join("f")).unwrap();
        file.set_modified(time).unwrap();
        assert_eq!(fs::metadata(y.join("f")).unwrap().modified().unwrap(), time);
        drop(file);
        assert_eq!(fs::metadata(y.join("f")).unwrap().modified().unwrap(), time);
        // Both know that there are none.
        for at in [x, y] {
            assert_eq!(sh(at, "getfattr -d -m - f"), "");
            assert!(!sh(at, "getfacl -c f").contains("mask"));
        }
        sh(x, "setfattr -n user.a -v 1 f");
        assert!(sh(y, "getfattr -n user.a f").contains("\"1\""));
        sh(y, "setfattr -n user.a -v 2 f");
        assert!(sh(x, "getfattr -n user.a f").contains("\"2\""));
        sh(x, "setfacl -m u:77:rw f; setfacl -d -m u:78:r .");
        assert!(sh(y, "getfacl -c f").contains("user:77:rw-"));
        assert!(sh(y, "getfacl -c .").contains("default:user:78:r--"));
        // What a new file inherits is an attribute, too.
        fs::write(y.join("g"), b"").unwrap();
        assert!(sh(x, "getfacl -c g").contains("user:78:r--"));
    });
}

#[test]
fn data_through_open_files() {
    let pair = pair();
    both_ways(&pair, "data", |x, y| {
        let writer = File::create(x.join("f")).unwrap();
        let mut reader = File::open(y.join("f")).unwrap();
        let mut both = OpenOptions::new().read(true).write(true).open(y.join("f")).unwrap();
        let mut text = String::new();
        for i in 0..50u64 {
            writer.write_all_at(format!("{i:04}").as_bytes(), i * 4).unwrap();
            assert_eq!(fs::metadata(y.join("f")).unwrap().len(), i * 4 + 4, "the size, at once");
            text.clear();
            reader.seek(SeekFrom::Start(0)).unwrap();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text.len() as u64, i * 4 + 4);
            assert!(text.ends_with(&format!("{i:04}")), "{text}");
            both.seek(SeekFrom::Start(0)).unwrap();
            both.write_all(b"#").unwrap();
            assert_eq!(fs::read(x.join("f")).unwrap()[0], b'#');
            writer.write_all_at(b"0", 0).unwrap();
            let mut byte = [0];
            both.read_exact_at(&mut byte, 0).unwrap();
            assert_eq!(byte, *b"0");
        }
        writer.set_len(3).unwrap();
        assert_eq!(fs::read(y.join("f")).unwrap(), b"000");
        both.set_len(0).unwrap();
        assert_eq!(fs::metadata(x.join("f")).unwrap().len(), 0);
        fs::write(x.join("f"), b"new").unwrap();
        text.clear();
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "new", "truncated by an open and written again");
        // An open file stays, whoever removes it.
        fs::remove_file(x.join("f")).unwrap();
        assert!(gone(&y.join("f")));
        both.write_all_at(b"still here", 0).unwrap();
        let mut still = [0; 10];
        reader.read_exact_at(&mut still, 0).unwrap();
        assert_eq!(&still, b"still here");
    });
}

#[test]
fn a_file_opened_without_a_word_survives_its_removal() {
    let pair = pair();
    both_ways(&pair, "opened", |x, y| {
        let open_and_remove = |i| {
            let name = format!("f{i}");
            fs::write(x.join(&name), b"content").unwrap();
            // The second open is one of those that no server hears of.
            drop(File::open(y.join(&name)).unwrap());
            let open = File::open(y.join(&name)).unwrap();
            fs::remove_file(x.join(&name)).unwrap();
            assert!(gone(&y.join(&name)));
            open
        };
        let files: Vec<File> = (0..10).map(open_and_remove).collect();
        copies::wait_until_destroyed(x, &pair.world.data().join("ost0"));
        for open in files {
            let mut content = [0; 7];
            open.read_exact_at(&mut content, 0).unwrap();
            assert_eq!(&content, b"content");
        }
    });
}

#[test]
fn mapped_memory() {
    let pair = pair();
    both_ways(&pair, "mapped", |x, y| {
        let pages = 4;
        fs::write(x.join("f"), vec![b'-'; pages * 4096]).unwrap();
        let (mut one, mut two) = (mapped::map(&x.join("f")), mapped::map(&y.join("f")));
        for i in 0..20usize {
            let at = (i % pages) * 4096 + i;
            one[at] = b'a' + i as u8;
            one.flush().unwrap();
            assert_eq!(two[at], b'a' + i as u8, "stored by one, loaded by the other");
            two[at + 1] = b'A' + i as u8;
            let read = fs::read(x.join("f")).unwrap();
            assert_eq!(read[at + 1], b'A' + i as u8, "stored by one, read by the other");
        }
    });
}

#[test]
fn appending_in_turns_and_at_once() {
    let pair = pair();
    let path = |mount: &Path| mount.join("log");
    File::create(path(&pair.a)).unwrap();
    let open = |mount: &Path| OpenOptions::new().append(true).open(path(mount)).unwrap();
    let (mut one, mut two) = (open(&pair.a), open(&pair.b));
    let started = Instant::now();
    for i in 0..1000 {
        let file = if i % 2 == 0 { &mut one } else { &mut two };
        file.write_all(format!("{i:05}\n").as_bytes()).unwrap();
    }
    let rate = 1000.0 / started.elapsed().as_secs_f64();
    println!("{rate:.0} hand-overs a second");
    let text = fs::read_to_string(path(&pair.a)).unwrap();
    let expected: String = (0..1000).map(|i| format!("{i:05}\n")).collect();
    assert!(text == expected, "appended in turns: {} bytes of {}", text.len(), expected.len());

    let threads: Vec<_> = [one, two]
        .into_iter()
        .enumerate()
        .map(|(who, mut file)| {
            std::thread::spawn(move || {
                for i in 0..500 {
                    file.write_all(format!("{who}{i:04}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let text = fs::read_to_string(path(&pair.b)).unwrap();
    let mut lines: Vec<&str> = text.lines().skip(1000).collect();
    assert_eq!(lines.len(), 1000, "nothing is lost, and nothing is written over");
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 1000);
}

#[test]
fn creating_in_one_directory_in_turns_and_at_once() {
    let pair = pair();
    fs::create_dir(pair.a.join("d")).unwrap();
    let started = Instant::now();
    for i in 0..1000 {
        let mount = if i % 2 == 0 { &pair.a } else { &pair.b };
        let other = if i % 2 == 0 { &pair.b } else { &pair.a };
        File::create_new(mount.join(format!("d/f{i}"))).unwrap();
        let again = File::create_new(other.join(format!("d/f{i}"))).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    }
    println!("{:.0} hand-overs a second", 1000.0 / started.elapsed().as_secs_f64());
    let threads: Vec<_> = [&pair.a, &pair.b]
        .into_iter()
        .enumerate()
        .map(|(who, mount)| {
            let directory = mount.join("d");
            std::thread::spawn(move || {
                for i in 0..300 {
                    let name = directory.join(format!("{who}-{i}"));
                    fs::write(&name, b"x").unwrap();
                    if i % 3 == 0 {
                        fs::remove_file(&name).unwrap();
                    } else if i % 3 == 1 {
                        fs::rename(&name, directory.join(format!("{who}-{i}-renamed"))).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for mount in [&pair.a, &pair.b] {
        assert_eq!(fs::read_dir(mount.join("d")).unwrap().count(), 1000 + 400);
    }
}

#[test]
fn locks_of_programs() {
    let pair = pair();
    File::create(pair.a.join("l")).unwrap();
    let open =
        |mount: &Path| OpenOptions::new().read(true).write(true).open(mount.join("l")).unwrap();
    let (one, two) = (open(&pair.a), open(&pair.b));
    rustix::fs::flock(&one, FlockOperation::LockExclusive).unwrap();
    let busy = rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap_err();
    assert_eq!(busy, rustix::io::Errno::WOULDBLOCK);
    let waiting = std::thread::spawn(move || {
        rustix::fs::flock(&two, FlockOperation::LockExclusive).unwrap();
        two
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    rustix::fs::flock(&one, FlockOperation::Unlock).unwrap();
    drop(waiting.join().unwrap());
    // The kernel tells of the last close a little later.
    eventually("the last close frees it", || {
        rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    // fcntl, in processes of their own: a deadlock is refused, the end of a process frees.
    let script = r#"
import fcntl, os, sys, time, errno
a, b = sys.argv[1:]
def lock(f, start, how=fcntl.LOCK_EX):
    fcntl.lockf(f, how, 1, start)
fa, fb = open(a, "r+"), open(b, "r+")
locked, told = os.pipe()
pid = os.fork()
if pid == 0:
    lock(fb, 1)
    os.write(told, b"x")
    time.sleep(0.3)
    try:
        lock(fb, 0)
    except OSError as e:
        os._exit(3 if e.errno == errno.EDEADLK else 4)
    os._exit(0)
lock(fa, 0)
os.read(locked, 1)
try:
    lock(fb, 1, fcntl.LOCK_EX | fcntl.LOCK_NB)
    sys.exit("the lock of the other mount was not seen")
except OSError as e:
    assert e.errno in (errno.EAGAIN, errno.EACCES), e
# Who asks last is refused: mostly the child, which waits before it does.
expected = 3
try:
    lock(fa, 1)
except OSError as e:
    assert e.errno == errno.EDEADLK, e
    lock(fa, 0, fcntl.LOCK_UN)
    expected = 0
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == expected, (status, expected)
"#;
    let (a, b) = (pair.a.join("l"), pair.b.join("l"));
    run(Command::new("python3").args(["-c", script, text(&a), text(&b)]));
}

/// Programs look at a file all the time while another one of the same mount truncates it, appends
/// and closes it: an answer that is overtaken by a write takes nothing of it back.
#[test]
fn a_file_that_is_looked_at_while_it_is_written_ends_where_it_was_written_to() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let (other, elsewhere) = world.mount(port, "o", &[]);
    let path = dir.join("f");
    fs::write(&path, b"").unwrap();
    let stop = AtomicBool::new(false);
    // As the shell's `>` and `>>` in one, which std does not let through otherwise.
    let append = rustix::fs::OFlags::APPEND.bits() as i32;
    let is_over = || stop.load(Ordering::Relaxed);
    let rounds = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over() {
                    fs::metadata(&path).unwrap();
                }
            });
        }
        let work = || {
            let (begun, mut rounds) = (Instant::now(), 0);
            while begun.elapsed() < Duration::from_secs(at_length(3, 6)) {
                let mut options = OpenOptions::new();
                options.write(true).truncate(true).custom_flags(append);
                let mut file = options.open(&path).map_err(|e| e.to_string())?;
                for piece in 0..4u8 {
                    file.write_all(&[b'a' + piece; 100]).map_err(|e| e.to_string())?;
                }
                let size = file.metadata().map_err(|e| e.to_string())?.len();
                drop(file);
                let closed = fs::metadata(&path).map_err(|e| e.to_string())?.len();
                if (size, closed) != (400, 400) {
                    return Err(format!("round {rounds}: {size} bytes, {closed} after the close"));
                }
                rounds += 1;
            }
            Ok(rounds)
        };
        let done = work();
        stop.store(true, Ordering::Relaxed);
        done
    });
    let rounds = rounds.unwrap();
    println!("{rounds} rounds");
    let content: Vec<u8> = (0..4u8).flat_map(|piece| [b'a' + piece; 100]).collect();
    assert!(fs::read(elsewhere.join("f")).unwrap() == content);
    mount.stop();
    other.stop();
    server.stop();
    world.assert_sound();
}

/// One mount removes a name, or moves it away, while the other one waits to make it again, and other
/// programs of the first look for it and for a name that is not there: whoever looks after both have
/// returned finds it.
#[test]
fn a_name_that_is_made_again_at_once_is_there_for_who_took_it_away() {
    let pair = pair();
    both_ways(&pair, "again", |taker, maker| {
        let begun = Instant::now();
        for round in 0.. {
            if begun.elapsed() > Duration::from_secs(at_length(2, 3)) {
                println!("{round} rounds");
                break;
            }
            let name = format!("x{}", round % 7);
            let (taken, made) = (taker.join(&name), maker.join(&name));
            OpenOptions::new().create(true).append(true).open(&taken).unwrap();
            fs::metadata(&made).unwrap();
            assert!(fs::read_dir(taker).unwrap().count() > 0);
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let absent = taker.join(format!("absent{round}"));
                        while !is_over.load(Ordering::Relaxed) {
                            let _ = fs::metadata(&taken);
                            assert!(gone(&absent));
                            std::thread::sleep(Duration::from_micros(20));
                        }
                    });
                }
                let again = scope.spawn(|| {
                    let begun = Instant::now();
                    loop {
                        match File::create_new(&made) {
                            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                                assert!(begun.elapsed() < Duration::from_secs(60), "never free");
                            }
                            made => break made,
                        }
                    }
                });
                let is_taken = match round % 2 {
                    0 => fs::remove_file(&taken),
                    _ => fs::rename(&taken, taker.join(format!("{name}.old"))),
                };
                let again = again.join();
                is_over.store(true, Ordering::Relaxed);
                is_taken.unwrap();
                again.unwrap().unwrap();
            });
            let numbers = [&taken, &made].map(|path| fs::metadata(path).map(|meta| meta.ino()));
            assert!(
                matches!(&numbers, [Ok(one), Ok(other)] if one == other),
                "round {round}: {numbers:?}"
            );
        }
    });
}
