//! Data directories of every format version that there was: each was served by the Glint of its
//! time, changed, synced, changed again and killed. `tests/e2e/directories/` keeps them as they were
//! left; a new version of the format adds its own (`scripts/keep-directory`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use support::paths::quoted;
use support::*;

const VERSIONS: u32 = glint_proto::limits::FORMAT_VERSION;

/// The tree that all of them hold.
fn verify(dir: &Path) {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let meta = |name: &str| fs::symlink_metadata(dir.join(name)).unwrap();
    for n in (1..=40).filter(|n| ![7, 8, 9].contains(n)) {
        assert_eq!(read(&format!("dir/f{n}")), format!("content {n}\n"));
    }
    assert_eq!(read("renamed"), "content 8\n");
    assert!(["dir/f7", "dir/f8", "dir/f9"].iter().all(|name| !dir.join(name).exists()));
    assert!(fs::read(dir.join("big")).unwrap() == vec![b'x'; 300_000]);
    assert_eq!((meta("dir/hard").ino(), meta("dir/hard").nlink()), (meta("dir/f1").ino(), 2));
    assert_eq!(fs::read_link(dir.join("soft")).unwrap(), Path::new("dir/f2"));
    assert_eq!(sh(dir, "getfattr --only-values -n user.k dir/f3"), "value");
    assert_eq!(meta("dir/f4").mode() & 0o7777, 0o4711);
    assert_eq!((meta("dir/f5").uid(), meta("dir/f5").gid()), (1000, 1000));
    let then = UNIX_EPOCH + Duration::from_secs(981_173_106);
    assert_eq!(meta("dir/f6").modified().unwrap(), then);
    assert!(meta("fifo").file_type().is_fifo());
    assert!(meta("sparse").len() == 1_000_000 && meta("sparse").blocks() < 8);
    // Changes after the last sync, and before the end of the process.
    assert!(read("last") == "unsynced\n" && meta("lastdir").is_dir());
    assert!(meta("dir/sub").is_dir() && meta("dir").nlink() == 3);
}

#[test]
fn directories_of_all_earlier_versions_are_served() {
    let archives = Path::new(env!("CARGO_MANIFEST_DIR")).join("directories");
    for version in 1..=VERSIONS {
        let world = World::new();
        let archive = archives.join(format!("v{version}.tar.gz"));
        let unpack = "tar --xattrs --xattrs-include='user.*' -xzf";
        sh(&world.path("."), &format!("{unpack} {}", quoted(&archive)));
        let identity = fs::read_to_string(world.data().join("glint.json")).unwrap();
        assert!(identity.contains(&format!("\"format\": {version}")), "{identity}");
        for _ in 0..2 {
            let up = world.up(&[]);
            verify(&world.mount_point());
            up.stop();
        }
        let up = world.up(&[]);
        fs::write(world.mount_point().join("new"), "new").unwrap();
        fs::remove_dir_all(world.mount_point().join("dir")).unwrap();
        up.stop();
        world.assert_sound();
        println!("version {version} is served and sound");
    }
}
