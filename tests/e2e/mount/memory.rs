//! Memory of a server: what data leaves in the page cache of the disk of an OST.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    assert!(cache["hits"].is_u64() && cache["misses"].is_u64(), "{cache}");
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
