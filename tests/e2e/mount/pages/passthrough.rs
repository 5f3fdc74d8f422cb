//! Files that the kernel reads from their objects by itself: they are what every call has made of
//! them, in memory that is mapped, too; and what cannot be read so is read as ever.

use super::{mix, on_both_transports};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::mapped::{map, map_to_read};
use support::*;

const BYTES: usize = 300_000;

fn content() -> Vec<u8> {
    (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect()
}

/// `glint up` with the option, where the kernel can do it.
fn up(world: &World, transport: &str, more: &[&str]) -> Option<Process> {
    let options = format!("passthrough=on,{transport}");
    let mut arguments = vec!["-o", &options];
    arguments.extend(more);
    let up = world.up(&arguments);
    if up.log().contains("reads no files by itself") {
        println!("this kernel has no passthrough");
        up.stop();
        return None;
    }
    Some(up)
}

/// How many opens were passed through.
fn passed(mount: &Path) -> u64 {
    let status = run(glint().args(["status", "--json", text(mount)])).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    status["counters"]["passthrough_opens"].as_u64().unwrap()
}

/// Opens a file to read it, and says whether the kernel reads it by itself.
fn open(world: &World, path: &Path) -> (File, bool) {
    let mount = world.mount_point();
    let before = passed(&mount);
    let file = File::open(path).unwrap();
    (file, passed(&mount) > before)
}

/// Makes a file.
fn make(path: PathBuf) -> PathBuf {
    fs::write(&path, content()).unwrap();
    path
}

fn read_all(mut file: &File) -> Vec<u8> {
    let mut data = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut data).unwrap();
    data
}

/// Two writers beside each other, which have it open since before it was passed through: the kernel
/// must not keep the object of an open that is over until the next one.
#[test]
fn no_open_is_refused_while_others_write() {
    on_both_transports(|world, _, transport| {
        let Some(up) = up(world, transport, &[]) else { return };
        let path = make(world.mount_point().join("f"));
        let write = |ends: &AtomicBool| {
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            while !ends.load(Ordering::Acquire) {
                file.write_all_at(&content(), 0).unwrap();
            }
        };
        let ends = &AtomicBool::new(false);
        let refused = std::thread::scope(|scope| {
            let writers = [scope.spawn(|| write(ends)), scope.spawn(|| write(ends))];
            std::thread::sleep(Duration::from_millis(100));
            let opens = (0..500).map(|_| File::open(&path));
            let refused = opens.filter_map(Result::err).next();
            ends.store(true, Ordering::Release);
            assert!(writers.into_iter().all(|writer| writer.join().is_ok()));
            refused
        });
        assert!(refused.is_none(), "{refused:?}");
        up.stop();
    });
}

#[test]
fn readers_see_what_others_change() {
    on_both_transports(|world, _, transport| {
        let Some(up) = up(world, transport, &["--osts", "2"]) else { return };
        let path = make(world.mount_point().join("f"));
        let (reader, is_passed) = open(world, &path);
        assert!(is_passed);
        let mut wanted = content();
        assert_eq!(read_all(&reader), wanted);
        let mapped = map_to_read(&reader);
        assert_eq!(mapped[..], wanted[..]);
        let mut check = |what: &str, change: &mut dyn FnMut(&mut Vec<u8>)| {
            change(&mut wanted);
            assert_eq!(read_all(&reader), wanted, "{what}");
            assert_eq!(fs::read(&path).unwrap(), wanted, "{what}");
            assert_eq!(fs::metadata(&path).unwrap().len(), wanted.len() as u64, "{what}");
            assert_eq!(mapped[..1000], wanted[..1000], "{what}");
        };
        check("a write", &mut |wanted| {
            let writer = OpenOptions::new().write(true).open(&path).unwrap();
            writer.write_all_at(b"written", 5).unwrap();
            wanted[5..12].copy_from_slice(b"written");
        });
        check("a write of who reads, too", &mut |wanted| {
            let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            writer.write_all_at(b"both", 100).unwrap();
            wanted[100..104].copy_from_slice(b"both");
            let mut found = [0; 4];
            writer.read_exact_at(&mut found, 100).unwrap();
            assert_eq!(&found, b"both");
        });
        check("an append", &mut |wanted| {
            let mut writer = OpenOptions::new().append(true).open(&path).unwrap();
            writer.write_all(b"appended").unwrap();
            wanted.extend(b"appended");
        });
        check("a truncation", &mut |wanted| {
            sh(Path::new("/"), &format!("truncate -s 200000 {path:?}"));
            wanted.truncate(200_000);
        });
        check("a hole", &mut |wanted| {
            sh(Path::new("/"), &format!("fallocate -p -o 4096 -l 8192 {path:?}"));
            wanted[4096..12_288].fill(0);
        });
        check("space behind the end", &mut |wanted| {
            sh(Path::new("/"), &format!("truncate -s 250000 {path:?}"));
            wanted.resize(250_000, 0);
        });
        let moved = rustix::fs::setxattr(
            &path,
            "glint.restripe",
            b"stripe_count=2",
            rustix::fs::XattrFlags::empty(),
        );
        assert_eq!(moved, Err(rustix::io::Errno::BUSY), "the kernel has its object");
        drop((reader, mapped));
        up.stop();
        world.assert_sound();
    });
}

#[test]
fn a_mapping_outlives_its_file() {
    on_both_transports(|world, _, transport| {
        let Some(up) = up(world, transport, &[]) else { return };
        let mount = world.mount_point();
        let (path, other) = (make(mount.join("f")), mount.join("g"));
        let (reader, is_passed) = open(world, &path);
        assert!(is_passed);
        let mapped = map_to_read(&reader);
        drop(reader);
        // One who comes later has pages that are those of the mapping.
        let mut stores = map(&path);
        stores[..6].copy_from_slice(b"stored");
        assert_eq!(mapped[..6], *b"stored", "before msync");
        fs::rename(&path, &other).unwrap();
        assert_eq!(fs::read(&other).unwrap()[..6], *b"stored");
        fs::remove_file(&other).unwrap();
        assert_eq!(mapped[6..], content()[6..]);
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(objects(&world.data()).0, 1, "it is in use");
        drop((mapped, stores));
        eventually("the object is removed", || objects(&world.data()).0 == 0);
        up.stop();
        world.assert_sound();
    });
}

#[test]
fn what_is_stored_to_a_mapping_has_its_time_and_then_its_checksums() {
    on_both_transports(|world, _, transport| {
        let Some(running) = up(world, transport, &[]) else { return };
        let path = make(world.mount_point().join("f"));
        sh(Path::new("/"), &format!("touch -d @1000 {path:?}"));
        assert_eq!(fs::metadata(&path).unwrap().mtime(), 1000);
        let (reader, is_passed) = open(world, &path);
        assert!(is_passed);
        let mut stores = map(&path);
        stores[200_000..200_006].copy_from_slice(b"stored");
        let mut found = [0; 6];
        reader.read_exact_at(&mut found, 200_000).unwrap();
        assert_eq!(&found, b"stored");
        stores.flush().unwrap();
        let stored = fs::metadata(&path).unwrap().mtime();
        assert!(stored > 1000, "it is mapped");
        drop((reader, stores));
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(fs::metadata(&path).unwrap().mtime(), stored, "it is closed");
        running.stop();
        // Compares all data with its checksums.
        world.assert_sound();
        let Some(again) = up(world, transport, &[]) else { return };
        let (reader, is_passed) = open(world, &path);
        assert!(is_passed);
        reader.read_exact_at(&mut found, 200_000).unwrap();
        assert_eq!(&found, b"stored");
        drop(reader);
        again.stop();
    });
}

#[test]
fn what_the_kernel_cannot_read_by_itself_is_read_as_ever() {
    on_both_transports(|world, _, transport| {
        let Some(running) = up(world, transport, &["--osts", "2"]) else { return };
        let mount = world.mount_point();
        let path = make(mount.join("f"));
        // Opened to write only, it has no pages, and is not in the way once it has written;
        // otherwise it has.
        let writer = OpenOptions::new().write(true).open(&path).unwrap();
        assert!(!open(world, &path).1);
        writer.write_all_at(&content()[..1], 0).unwrap();
        let begun = Instant::now();
        while !open(world, &path).1 {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(writer);
        std::thread::sleep(Duration::from_millis(500));
        let both = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (reader, is_passed) = open(world, &path);
        assert!(!is_passed && read_all(&reader) == content());
        both.write_all_at(b"x", 0).unwrap();
        assert_eq!(read_all(&reader)[0], b'x');
        drop((both, reader));
        File::create(mount.join("empty")).unwrap();
        assert!(!open(world, &mount.join("empty")).1);
        let small = mount.join("small");
        fs::write(&small, &content()[..200_000]).unwrap();
        let (reader, is_passed) = open(world, &small);
        assert!(!is_passed && read_all(&reader) == content()[..200_000]);
        drop(reader);
        fs::create_dir(mount.join("striped")).unwrap();
        sh(&mount, "setfattr -n glint.layout -v stripe_count=2 striped");
        let striped = mount.join("striped/f");
        fs::write(&striped, vec![7; 400_000]).unwrap();
        let (reader, is_passed) = open(world, &striped);
        let data = read_all(&reader);
        assert!(!is_passed && data.len() == 400_000 && data.iter().all(|byte| *byte == 7));
        drop(reader);
        running.stop();

        // Damage at rest is found before the kernel has the object.
        let object = sh(&world.data(), &format!("find ost*/objects -type f -size {BYTES}c"));
        let object = world.data().join(object.trim());
        let raw = OpenOptions::new().read(true).write(true).open(object).unwrap();
        let mut byte = [0];
        raw.read_exact_at(&mut byte, 150_000).unwrap();
        raw.write_all_at(&[byte[0] ^ 1], 150_000).unwrap();
        drop(raw);
        let Some(running) = up(world, transport, &[]) else { return };
        let (reader, is_passed) = open(world, &path);
        assert!(!is_passed);
        let damaged = reader.read_at(&mut [0; 4096], 150_000).unwrap_err();
        assert_eq!(damaged.raw_os_error(), Some(libc::EIO));
        drop(reader);
        running.stop();

        // Off unless it is said, and refused where others may come.
        let plain = world.up(&["-o", transport]);
        assert!(!open(world, &striped).1 && !open(world, &path).1);
        plain.stop();
        let data = world.data();
        let mut listens = glint();
        listens.args(["up", "--data", text(&data), "--mount", text(&mount)]);
        let socket = format!("unix:{}", text(&world.short("socket")));
        let said = refused(listens.args(["--listen", &socket, "-o", "passthrough=on"]));
        assert!(said.contains("passthrough=on"), "{said}");
    });
}

/// All of them at once: see the tests above this module.
#[test]
fn everybody_at_once_in_process() {
    on_both_transports(|world, _, transport| {
        let Some(up) = up(world, transport, &[]) else { return };
        mix(&[world.mount_point()]);
        up.stop();
        world.assert_sound();
    });
}
