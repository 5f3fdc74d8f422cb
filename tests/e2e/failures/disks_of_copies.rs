//! Files with copies on disks that differ or fail: one member's disk keeps nobody else from going on.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use support::disk::Disk;
use support::*;

/// Moves an OST of a data directory that nobody serves to another disk.
fn move_ost(data: &Path, ost: u16, to: &Path) {
    let at = data.join(format!("ost{ost}"));
    let moved = to.join("ost");
    run(std::process::Command::new("cp").arg("-a").arg(&at).arg(&moved));
    fs::remove_dir_all(&at).unwrap();
    symlink(&moved, &at).unwrap();
}

/// A disk whose largest file is smaller than that of the others.
#[test]
fn the_smallest_limit_of_all_members_counts() {
    let world = World::new();
    let options = ["--osts", "2", "--replicas", "2"];
    world.up(&options).stop();
    let at = world.path("disk");
    // Small ones have blocks of 1 KiB, and so files of 4 TiB at most.
    let disk = Disk::new(&world.path("image"), &at, "ext4", 100);
    move_ost(&world.data(), 1, &at);
    let process = world.up(&options);
    let mount: PathBuf = world.mount_point();
    wait_until_whole(text(&mount));
    // Either OST is the head of some.
    for n in 0..8 {
        let path = mount.join(format!("file{n}"));
        fs::write(&path, b"before").unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let error = file.set_len(6 << 40).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFBIG), "{error}");
        file.set_len(1 << 40).unwrap();
        file.set_len(6).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"before");
    }
    let chains = chains(text(&mount));
    assert_eq!(chains["count"], chains["whole"], "{chains}");
    let said = process.log();
    assert!(!said.contains("it is taken out"), "{said}");
    process.stop();
    world.assert_sound();
    drop(disk);
}
