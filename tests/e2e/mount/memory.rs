//! Memory of a server: what data leaves in the page cache of the disk of an OST, and what a restart
//! brings back. That of clients: `memory/clients.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod clients;

use glint_telemetry::event;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::disk::Disk;
use support::*;

const MIB: u64 = 1 << 20;
const LARGE: u64 = 64 * MIB;
const SMALL: u64 = MIB;
/// Pages of a large object that may be there: of what the kernel has read ahead and nobody came to.
const NEARLY_NONE: u64 = 4 * MIB;

/// The only object of this size.
fn object(world: &World, size: u64) -> PathBuf {
    let objects = world.data().join("ost0/objects");
    let find = format!("find {objects:?} -type f -size {size}c");
    let found = sh(Path::new("/"), &find);
    assert_eq!(found.lines().count(), 1, "{found}");
    found.trim().into()
}

/// Bytes of a file that are in memory.
fn in_memory(path: &Path) -> u64 {
    let output = run(Command::new("fincore").args(["-b", "-n", "-o", "RES"]).arg(path));
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

/// Drops a file from memory.
fn forget(path: &Path) {
    let mut dd = Command::new("dd");
    run(dd.arg(format!("if={}", text(path))).args(["iflag=nocache", "count=0", "status=none"]));
    assert_eq!(in_memory(path), 0);
}

fn content(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at / 7 % 251) as u8).collect()
}

fn status(world: &World) -> serde_json::Value {
    let output = run(glint().args(["status", "--json", text(&world.mount_point())]));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn passed(world: &World, what: &str) -> u64 {
    status(world)["osts"][0]["passed_through"][what].as_u64().unwrap()
}

fn large_objects_pass_through(kind: &str) {
    let world = World::new();
    let (at, image) = (world.data(), world.path("image"));
    let disk = Disk::new(&image, &at, kind, 640);
    let (large, small) = (world.mount_point().join("large"), world.mount_point().join("small"));

    let strict = ["--object-cache-max", "8M"];
    let up = world.up(&[&strict[..], &["--mds-cache", "48M"]].concat());
    for (path, size) in [(&large, LARGE), (&small, SMALL)] {
        let mut file = fs::File::create(path).unwrap();
        content(size).chunks(MIB as usize).for_each(|chunk| file.write_all(chunk).unwrap());
        file.sync_all().unwrap();
    }
    let objects = (object(&world, LARGE), object(&world, SMALL));
    // What it had before it was large goes after a commit interval.
    eventually("a large object leaves memory", || in_memory(&objects.0) <= NEARLY_NONE);
    assert_eq!(in_memory(&objects.1), SMALL, "a small one stays");
    let written = passed(&world, "written_bytes");
    assert!((LARGE - 16 * MIB..=LARGE).contains(&written), "{written}");
    let cache = status(&world)["engine_cache"].take();
    assert_eq!(cache["limit_bytes"], 48 * MIB, "{cache}");
    assert!(["hits", "misses", "evicted_bytes"].iter().all(|key| cache[key].is_u64()), "{cache}");
    let shown = run(glint().arg("status").arg(world.mount_point())).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains("of 48.0 MiB with blocks of tables"), "{shown}");
    assert!(shown.contains("of objects above 8.0 MiB passed through memory"), "{shown}");
    // It is sealed now.
    up.stop();
    assert!(in_memory(&objects.0) <= NEARLY_NONE, "{}", in_memory(&objects.0));

    // The client knows nothing any more.
    forget(&objects.1);
    let up = world.up(&strict);
    assert!(fs::read(&large).unwrap() == content(LARGE));
    assert!(fs::read(&small).unwrap() == content(SMALL));
    assert!(in_memory(&objects.0) <= NEARLY_NONE, "{}", in_memory(&objects.0));
    assert_eq!(in_memory(&objects.1), SMALL, "a small one stays");
    assert!(passed(&world, "read_bytes") >= LARGE);
    up.stop();
    forget(&objects.1);
    world.assert_sound();
    let left = (in_memory(&objects.0), in_memory(&objects.1));
    assert!(left.0 <= NEARLY_NONE && left.1 <= NEARLY_NONE, "fsck leaves {left:?}");

    // Pages that fsck has left are marked to be dropped, by whoever reads them next.
    forget(&objects.0);
    let up = world.up(&["--object-cache-max", "off"]);
    assert!(fs::read(&large).unwrap() == content(LARGE));
    assert_eq!(in_memory(&objects.0), LARGE, "the kernel keeps it if it may");
    up.stop();
    drop(disk);
}

#[test]
fn large_objects_leave_no_pages_on_xfs() {
    large_objects_pass_through("xfs");
}

#[test]
#[ignore = "make long: the same as on xfs"]
fn large_objects_leave_no_pages_on_ext4() {
    large_objects_pass_through("ext4");
}

const FILES: usize = 3000;
/// Not each read is counted, so some of them may be in no range.
const MOST: usize = FILES * 9 / 10;
const FILE_BYTES: u64 = 5000;

/// Waits until the warm start has ended. Returns the keys and the objects that were loaded, and how it
/// ended.
fn warm_start(world: &World) -> (u64, u64, String) {
    let parts = || {
        let status = status(world);
        [status["warm_start"].clone(), status["osts"][0]["warm_start"].clone()]
    };
    eventually("the warm start ends", || parts().iter().all(|part| part["state"] != "running"));
    let [tables, objects] = parts();
    assert_eq!(tables["state"], objects["state"], "{tables} {objects}");
    assert_eq!((&tables["done"], &objects["done"]), (&tables["total"], &objects["total"]));
    let state = tables["state"].as_str().unwrap().to_owned();
    (tables["keys"].as_u64().unwrap(), objects["objects"].as_u64().unwrap(), state)
}

/// Objects of [`FILE_BYTES`] that are in memory as a whole.
fn objects_in_memory(world: &World) -> usize {
    let objects = world.data().join("ost0/objects");
    let each =
        format!("find {objects:?} -type f -size {FILE_BYTES}c -exec fincore -bno RES {{}} +");
    let found = sh(Path::new("/"), &each);
    found.lines().filter(|line| line.trim().parse::<u64>().unwrap() >= FILE_BYTES).count()
}

fn read_all(world: &World) {
    let read = sh(&world.mount_point(), "find . -type f -size +0 -exec cat {} + | wc -c");
    assert_eq!(read.trim(), (FILES as u64 * FILE_BYTES).to_string());
}

#[test]
fn what_was_read_most_is_in_memory_again_after_a_restart() {
    let world = World::new();
    let (at, image) = (world.data(), world.path("image"));
    let disk = Disk::new(&image, &at, "xfs", 640);
    let up = world.up(&[]);
    for file in 0..FILES {
        let directory = world.mount_point().join((file / 300).to_string());
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(file.to_string()), content(FILE_BYTES)).unwrap();
    }
    up.stop();

    let hints = ["hot.tables", "hot.ost0"].map(|name| at.join(name));
    // As after a reboot.
    let restart = |more: &[&str]| {
        disk.remount();
        fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
        world.up(more)
    };
    // Of a version that remembered nothing.
    for hint in &hints {
        let _ = fs::remove_file(hint);
    }
    let up = restart(&[]);
    assert_eq!(warm_start(&world), (0, 0, "done".into()));
    assert_eq!(objects_in_memory(&world), 0);
    read_all(&world);
    up.stop();
    let kept = hints.each_ref().map(|hint| fs::read(hint).unwrap());

    let up = restart(&["--warm-start", "off"]);
    assert_eq!(warm_start(&world), (0, 0, "off".into()));
    assert_eq!(objects_in_memory(&world), 0);
    up.stop();

    let up = restart(&[]);
    let (keys, objects, state) = warm_start(&world);
    assert!(keys >= 2 * MOST as u64 && objects >= MOST as u64, "{keys} {objects}");
    assert_eq!(state, "done");
    eventually("objects are in memory", || objects_in_memory(&world) >= MOST);
    let shown = run(glint().arg("status").arg(world.mount_point())).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(shown.matches("has loaded what was read most before the start: 100%").count(), 2);
    up.assert_no(event::WARM_START_SKIPPED);
    up.stop();

    // Whatever becomes of its files is told once, and they are written anew.
    fs::write(&hints[0], b"GLHT and nothing that it should be").unwrap();
    fs::write(&hints[1], &kept[1][..kept[1].len() - 1]).unwrap();
    let up = restart(&[]);
    assert_eq!(warm_start(&world), (0, 0, "done".into()));
    assert_eq!(up.events(event::WARM_START_SKIPPED), 2);
    read_all(&world);
    up.stop();

    let up = restart(&[]);
    let begun = Instant::now();
    let (keys, objects, _) = warm_start(&world);
    assert!(keys >= 2 * MOST as u64 && objects >= MOST as u64, "{keys} {objects}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    up.stop();
    world.assert_sound();
    drop(disk);
}
