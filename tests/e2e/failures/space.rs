//! A disk that runs full: ENOSPC at the call, nothing acknowledged lost, usable again
//! once space is freed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs;
use std::io::Write;
use support::disk::Disk;
use support::*;

fn is_enospc(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}

fn fill_and_free(kind: &str) {
    let world = World::new();
    let at = world.data();
    let image = world.path("image");
    let disk = Disk::new(&image, &at, kind, 320);
    let up = world.up(&[]);
    let mnt = world.mount_point();

    // With data.
    let mut files = 0;
    let refused = loop {
        let content = vec![files as u8; 1 << 20];
        let result = fs::File::create(mnt.join(format!("data{files}")))
            .and_then(|mut file| file.write_all(&content).and_then(|()| file.sync_all()));
        match result {
            Ok(()) => files += 1,
            Err(error) => break error,
        }
        assert!(files < 400, "a disk of 320 MiB took {files} MiB");
    };
    assert!(is_enospc(&refused), "{refused}");
    assert!(files > 50, "only {files} MiB fitted");
    // And then with names, which need less. A part of their room is taken, so that fewer fill it.
    let filler = at.join("lost+found/filler");
    fs::create_dir_all(at.join("lost+found")).unwrap();
    fs::write(&filler, vec![1; 8 << 20]).unwrap();
    let mut names = 0;
    let refused = loop {
        match fs::create_dir(mnt.join(format!("{names:0>200}"))) {
            Ok(()) => names += 1,
            Err(error) => break Some(error),
        }
        if names == 200_000 {
            break None;
        }
    };
    assert!(refused.as_ref().is_none_or(is_enospc), "{refused:?}");
    let remove_name = |name: i32| fs::remove_dir(mnt.join(format!("{name:0>200}"))).unwrap();
    // Removing names is journalled, too: it has its room while they fill the disk.
    let some = names / 4;
    assert!(some > 0, "only {names} names fitted");
    (0..some).for_each(remove_name);

    let check = || {
        for index in 0..files {
            let content = fs::read(mnt.join(format!("data{index}"))).unwrap();
            assert!(content == vec![index as u8; 1 << 20], "data{index} is damaged");
        }
    };
    check();
    // Full, and ended, and started again.
    up.stop();
    world.assert_sound();
    let up = world.up(&[]);
    check();
    // Freed by removing names, of which half go before there is more room, and by removing data.
    let half = names / 2;
    (some..half).for_each(remove_name);
    fs::remove_file(&filler).unwrap();
    (half..names).for_each(remove_name);
    for index in 0..files {
        fs::remove_file(mnt.join(format!("data{index}"))).unwrap();
    }
    // Less than was written: of a disk as small as this one the engine's journal may keep 64 MiB,
    // and its tables 32 MiB, until it has something to write again.
    eventually("space is back", || {
        let content = vec![1u8; 8 << 20];
        let result = fs::write(mnt.join("again"), &content);
        let _ = fs::remove_file(mnt.join("again"));
        result.is_ok()
    });
    up.stop();
    world.assert_sound();
    drop(disk);
}

#[test]
fn a_full_ext4() {
    fill_and_free("ext4");
}

#[test]
#[ignore = "make long: the same as on ext4"]
fn a_full_xfs() {
    fill_and_free("xfs");
}

/// Data that two clients write behind always finds its space: the write that has none is told so,
/// and none of those before it is lost.
#[test]
fn two_clients_fill_a_disk_and_lose_nothing() {
    let world = World::new();
    let at = world.data();
    let image = world.path("image");
    let disk = Disk::new(&image, &at, "ext4", 320);
    let port = free_port();
    let server = world.serve(port, &[]);
    let mounts = ["a", "b"].map(|name| world.mount(port, name, &[]));
    let writers: Vec<_> = mounts
        .iter()
        .enumerate()
        .map(|(who, (_, mount))| {
            let path = mount.join(format!("f{who}"));
            std::thread::spawn(move || {
                let mut file = fs::File::create(&path).unwrap();
                let mut written = 0u64;
                let refused = loop {
                    let content = vec![(written >> 16) as u8; 1 << 16];
                    match file.write_all(&content) {
                        Ok(()) => written += 1 << 16,
                        Err(error) => break error,
                    }
                    assert!(written < 400 << 20, "a disk of 320 MiB took more");
                };
                assert!(is_enospc(&refused), "{refused}");
                file.sync_all().unwrap();
                (path, written)
            })
        })
        .collect();
    let mut sum = 0;
    for writer in writers {
        let (path, written) = writer.join().unwrap();
        let content = fs::read(&path).unwrap();
        assert!(content.len() as u64 >= written, "{} of {written}", content.len());
        for (index, block) in content[..written as usize].chunks(1 << 16).enumerate() {
            assert!(block.iter().all(|byte| *byte == index as u8), "block {index}");
        }
        sum += written;
    }
    assert!(sum > 50 << 20, "only {sum} bytes fitted");
    for (mount, _) in mounts {
        mount.stop();
    }
    server.stop();
    world.assert_sound();
    drop(disk);
}

/// A client that tells of its files later is told in time that there is no room for more.
#[test]
fn a_client_that_writes_metadata_back_loses_nothing_on_a_full_disk() {
    let world = World::new();
    let at = world.data();
    let image = world.path("image");
    let disk = Disk::new(&image, &at, "ext4", 320);
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, directory) = world.mount(port, "a", &[]);
    let bytes = at_length(30_000, 20_000) as usize;
    let content = |file: u64| vec![file as u8; bytes];
    let path = |file: u64| directory.join(format!("d{}/f{file}", file / 500));
    let mut files = 0;
    let refused = loop {
        let made = match files % 500 {
            0 => fs::create_dir(directory.join(format!("d{}", files / 500))),
            _ => Ok(()),
        };
        match made.and_then(|()| fs::write(path(files), content(files))) {
            Ok(()) => files += 1,
            Err(error) => break error,
        }
        assert!(files < 20_000, "a disk of 320 MiB took more");
    };
    assert!(is_enospc(&refused), "{refused}");
    assert!(files > 2000, "only {files} files fitted");
    // And then names alone, until there is no room for these either, or enough of them.
    let many = at_length(10_000, 30_000);
    fs::create_dir(directory.join("names")).unwrap();
    let name = |name: u64| directory.join(format!("names/{name:0>200}"));
    let mut names = 0;
    while names < many {
        match fs::File::create_new(name(names)) {
            Ok(_) => names += 1,
            Err(error) => {
                assert!(is_enospc(&error), "{error}");
                break;
            }
        }
    }
    let (other, seen) = world.mount(port, "b", &[]);
    for file in 0..files {
        let found = fs::read(seen.join(path(file).strip_prefix(&directory).unwrap())).unwrap();
        assert!(found == content(file), "file {file} of {files}");
    }
    assert_eq!(fs::read_dir(seen.join("names")).unwrap().count() as u64, names);
    mount.assert_no(event::DATA_LOST);
    mount.assert_no(event::CHANGES_LOST);
    mount.stop();
    other.stop();
    server.stop();
    world.assert_sound();
    drop(disk);
}
