//! Commands as a user types them, and their errors.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use support::paths::{as_field, quoted};
use support::*;

#[test]
fn what_was_there_is_there_after_a_restart() {
    let world = World::new();
    let up = world.up(&[]);
    let mnt = world.mount_point();
    fs::create_dir_all(mnt.join("a/b")).unwrap();
    fs::write(mnt.join("a/b/f"), b"words").unwrap();
    std::os::unix::fs::symlink("b/f", mnt.join("a/link")).unwrap();
    up.stop();
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0, "nothing is left at the mount point");
    world.assert_sound();

    let up = world.up(&["-o", "ro"]);
    assert_eq!(fs::read(mnt.join("a/link")).unwrap(), b"words");
    let error = fs::write(mnt.join("a/new"), b"").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    // A second server of the same data, a second mount at the same place.
    let elsewhere = world.path("elsewhere");
    let data = world.data();
    let message = refused(glint().args(["up", "--data", text(&data), "--mount", text(&elsewhere)]));
    assert!(message.contains(&format!("in use by process {}", up.pid())), "{message}");
    let message = refused(glint().args(["fsck", "--data", text(&data)]));
    assert!(message.contains("in use"), "{message}");
    let other = world.path("other");
    let message = refused(glint().args(["up", "--data", text(&other), "--mount", text(&mnt)]));
    assert!(message.contains("already mounted"), "{message}");
    // Ended by `glint umount` instead of Ctrl-C.
    run(glint().args(["umount", text(&mnt)]));
    eventually("the daemon ends", || up.has_event(event::STOPPED));
    let message = refused(glint().args(["umount", text(&mnt)]));
    assert!(message.contains("not a mount point"), "{message}");
}

#[test]
fn a_mount_left_by_a_crash_is_cleaned_up() {
    let world = World::new();
    let up = world.up(&[]);
    fs::write(world.mount_point().join("f"), b"acknowledged").unwrap();
    up_crashes(up);
    fs::metadata(world.mount_point()).unwrap_err();
    let up = world.up(&[]);
    assert!(up.has_event(event::STALE_MOUNT_REMOVED), "{}", up.log());
    assert_eq!(fs::read(world.mount_point().join("f")).unwrap(), b"acknowledged");
    up_crashes(up);
    run(glint().args(["umount", text(&world.mount_point())]));
    assert!(!is_mounted(&world.mount_point()));
}

/// Kills the process and leaves its mount, as a crash does.
fn up_crashes(up: Process) {
    let pid = up.pid();
    run(Command::new("kill").args(["-9", &pid.to_string()]));
    up.forget();
}

#[test]
fn foreign_damaged_and_future_directories_are_refused() {
    let world = World::new();
    let (data, mnt) = (world.data(), world.mount_point());
    let attempt = || refused(glint().args(["up", "--data", text(&data), "--mount", text(&mnt)]));

    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("holiday.jpg"), b"").unwrap();
    assert!(attempt().contains("not a Glint data directory"));
    assert!(data.join("holiday.jpg").exists());
    fs::remove_file(data.join("holiday.jpg")).unwrap();

    world.up(&[]).stop();
    let identity = data.join("glint.json");
    let original = fs::read_to_string(&identity).unwrap();
    let format = format!("\"format\": {}", glint_proto::limits::FORMAT_VERSION);
    fs::write(&identity, original.replace(&format, "\"format\": 77")).unwrap();
    assert!(attempt().contains("format version 77"));
    fs::write(&identity, "{ half").unwrap();
    assert!(attempt().contains("glint.json is damaged"));
    fs::write(&identity, original).unwrap();

    let message =
        refused(glint().args(["up", "--data", text(&data), "--mount", text(&mnt), "--osts", "5"]));
    assert!(message.contains("created with --osts 1, not 5"), "{message}");

    fs::write(mnt.join("in the way"), b"").unwrap();
    assert!(attempt().contains("not empty"));
    fs::remove_file(mnt.join("in the way")).unwrap();
    fs::remove_dir(&mnt).unwrap();
    fs::write(&mnt, b"").unwrap();
    assert!(attempt().contains("not a directory"));
}

#[test]
fn damaged_metadata_is_healed_or_named() {
    let world = World::new();
    let up = world.up(&[]);
    for i in 0..2000 {
        fs::write(world.mount_point().join(format!("f{i}")), b"").unwrap();
    }
    up.stop();
    // Records that the tables lose with their own journal are still in the journal in front of
    // them; where the damage cannot be told from a write that was cut short, the file is named
    // instead.
    let journals = sh(&world.data(), "find mds -name '*.jnl' -size +0");
    let journal = world.data().join(journals.lines().next().expect("a journal"));
    let file = fs::OpenOptions::new().write(true).read(true).open(&journal).unwrap();
    let mut whole = [0; 64];
    file.read_exact_at(&mut whole, 4000).unwrap();
    file.write_all_at(&whole.map(|byte| !byte), 4000).unwrap();
    let (data, mnt) = (world.data(), world.mount_point());
    let mut again = glint();
    again.args(["up", "--daemon", "--data", text(&data), "--mount", text(&mnt)]);
    let output = again.output().unwrap();
    if output.status.success() {
        assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2000);
        run(glint().args(["umount", text(&mnt)]));
    } else {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(".jnl is damaged"), "{message}");
        assert!(message.contains("restore"), "{message}");
        file.write_all_at(&whole, 4000).unwrap();
    }
    let up = world.up(&[]);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2000);
    up.stop();
    world.assert_sound();
    // Damage that no copy can repair is an error that says where.
    fs::write(world.data().join("mds/version"), b"garbage").unwrap();
    let message = refused(glint().args(["up", "--data", text(&data), "--mount", text(&mnt)]));
    assert!(message.contains(text(&data.join("mds"))), "{message}");
    let report = fsck(&data, &["--json"], 8);
    assert!(report["error"].as_str().unwrap().contains(text(&data.join("mds"))), "{report}");
}

#[test]
fn bad_arguments_get_a_reason() {
    let world = World::new();
    let mnt = world.mount_point();
    let colour = refused(glint().args(["mount", "127.0.0.1:1", text(&mnt), "-o", "colour"]));
    assert!(colour.contains("colour"), "{colour}");
    let missing = refused(glint().args(["mount", "127.0.0.1:1", text(&mnt)]));
    assert!(missing.contains("create it first"), "{missing}");
    let data = world.data();
    let none = fsck(&data, &["--json"], 8);
    assert!(none["error"].as_str().unwrap().contains("not a Glint data directory"), "{none}");
    let no_device = refused(Command::new("unshare").args([
        "-m",
        "sh",
        "-c",
        &format!(
            "mount -t tmpfs none /dev && exec {} up --data {} --mount {}",
            quoted(Path::new(binary::glint())),
            quoted(&data),
            quoted(&mnt)
        ),
    ]));
    assert!(no_device.contains("/dev/fuse"), "{no_device}");
    let nobody = address(free_port());
    let told = format!("no server listens at {nobody}; start one with `glint serve");
    for asks in [
        vec!["status", &nobody],
        vec!["stats", &nobody],
        vec!["scrub", &nobody],
        vec!["mount", &nobody, text(&mnt)],
    ] {
        let said = refused(glint().args(&asks));
        assert!(said.contains(&told), "{asks:?}: {said}");
    }
    let far = refused(glint().args(["status", "127.0.0.1:77990"]));
    assert!(far.contains("port \"77990\" is no number"), "{far}");
    let wrong = glint().args(["fsck", "--colour"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(16));
    for command in ["up", "serve", "mount", "umount", "status", "stats", "fsck", "bench"] {
        let help = run(glint().args([command, "--help"]));
        assert!(help.stdout.len() > 200, "{command} --help");
    }
}

/// The number of OSTs and the role of a directory are fixed for good when it is created.
#[test]
fn a_command_that_is_refused_creates_no_data_directory() {
    let world = World::new();
    let (data, mnt) = (world.data(), world.mount_point());
    let (data, mnt) = (text(&data), text(&mnt));
    for wrong in [
        vec!["up", "--mount", "/etc"],
        vec!["up", "--mount", mnt, "-o", "nonsense"],
        vec!["up", "--mount", mnt, "--metrics", "foo"],
        vec!["up", "--mount", mnt, "--listen", "127.0.0.1:0"],
        vec!["up", "--mount", mnt, "--daemon", "--metrics", "foo"],
        vec!["up", "--mount", mnt, "--cert", "/nonexistent"],
        vec!["serve", "--listen", "192.0.2.1:0", "--insecure"],
        vec!["serve", "--listen", "127.0.0.1:0"],
        vec!["serve", "--listen", "nosuch.invalid:7701", "--insecure"],
        vec!["serve", "--osts", "100000"],
        vec!["up", "--mount", mnt, "-o", "transport=foo"],
        vec!["serve", "--metrics", "foo"],
        vec!["serve", "--cert", "/nonexistent"],
        vec!["oss", "--mds", "192.0.2.1:1"],
        vec!["oss", "--mds", "192.0.2.1:1", "--listen", "127.0.0.1:0", "--insecure"],
        vec!["oss", "--mds", "unix:/nonexistent", "--metrics", "foo"],
        vec!["oss", "--mds", "unix:/nonexistent", "--advertise", "foo"],
    ] {
        refused(glint().args(&wrong).args(["--data", data]));
        assert!(!Path::new(data).exists(), "{wrong:?}");
    }
}

#[test]
fn mount_8_mounts_it_and_fstab_does_too() {
    let _helper = MountHelper::install();
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let mnt = world.mount_point();
    fs::create_dir(&mnt).unwrap();
    run(Command::new("mount")
        .args(["-t", "fuse.glint", "-o", "noatime", &address(port)])
        .arg(&mnt));
    fs::write(mnt.join("f"), b"x").unwrap();
    run(Command::new("umount").arg(&mnt));

    let fstab = world.path("fstab");
    let line = format!("{} {} fuse.glint defaults,_netdev 0 0\n", address(port), as_field(&mnt));
    fs::write(&fstab, line).unwrap();
    run(Command::new("mount").arg("-T").arg(&fstab).arg(&mnt));
    assert_eq!(fs::read(mnt.join("f")).unwrap(), b"x");
    run(Command::new("umount").arg(&mnt));
    server.stop();
}

/// The last line of `glint fsck`, which ends with this code.
fn fsck(data: &Path, more: &[&str], code: i32) -> serde_json::Value {
    let output = glint().args(["fsck", "--data", text(data)]).args(more).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    serde_json::from_str(said.lines().last().expect("a summary")).unwrap()
}

#[test]
fn a_damaged_object_is_reported_and_not_read() {
    let world = World::new();
    let up = world.up(&[]);
    let data: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    fs::write(world.mount_point().join("f"), &data).unwrap();
    up.stop();
    world.assert_sound();
    let object = sh(&world.data(), "find ost0/objects -type f").trim().to_owned();
    let file = fs::OpenOptions::new().write(true).open(world.data().join(&object)).unwrap();
    file.write_all_at(b"rust never sleeps", 100_000).unwrap();
    drop(file);

    let data = world.data();
    let report = glint().args(["fsck", "--data", text(&data)]).output().unwrap();
    assert_eq!(report.status.code(), Some(4));
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    let name = object.rsplit('/').next().unwrap();
    assert!(report.contains(name), "{report}");
    assert!(report.contains("1 findings, 1 that --repair cannot put right"), "{report}");
    let left = fsck(&data, &["--repair", "--json"], 4);
    assert_eq!((&left["findings"], &left["unrepaired"]), (&1.into(), &1.into()), "{left}");

    let up = world.up(&[]);
    let error = fs::read(world.mount_point().join("f")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert!(up.log().contains(name), "{}", up.log());
    up.stop();
}

/// Clients write objects of files that they have made before the MDS hears of these.
#[test]
fn objects_of_which_a_client_may_tell_that_comes_back_are_kept() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, directory) = world.mount(port, "mount", &[]);
    fs::write(directory.join("f"), vec![5u8; 100_000]).unwrap();
    fs::File::open(&directory).unwrap().sync_all().unwrap();
    server.kill();
    // As if it were of a file that the mount has made.
    let object = world.data().join(sh(&world.data(), "find ost0/objects -type f").trim());
    let name = object.file_name().unwrap().to_str().unwrap();
    let (ino, stripe) = name.split_once('.').unwrap();
    let other = u64::from_str_radix(ino, 16).unwrap() ^ 1;
    fs::copy(&object, object.with_file_name(format!("{other:016x}.{stripe}"))).unwrap();
    let data = world.data();
    for _ in 0..2 {
        let kept = fsck(&data, &["--repair", "--json"], 0);
        assert_eq!((&kept["untold"], &kept["objects"]), (&1.into(), &2.into()), "{kept}");
    }
    let server = world.serve(port, &[]);
    // It says goodbye, although it has only just found the server again.
    fs::write(directory.join("g"), b"").unwrap();
    mount.stop();
    server.stop();
    let removed = fsck(&data, &["--repair", "--json"], 1);
    assert_eq!((&removed["untold"], &removed["findings"]), (&0.into(), &1.into()), "{removed}");
    world.assert_sound();
}

#[test]
fn a_scrub_finds_damage_while_the_data_is_used() {
    let world = World::new();
    let up = world.up(&["--osts", "2"]);
    let mnt = world.mount_point();
    for i in 0..20u64 {
        fs::write(mnt.join(format!("f{i}")), vec![i as u8; 200_000]).unwrap();
    }
    up.stop();
    let up = world.up(&[]);
    let scrub = |more: &[&str]| {
        let output = glint().arg("scrub").args(more).arg(text(&mnt)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.success(), text + &String::from_utf8_lossy(&output.stderr))
    };
    let (is_right, told) = scrub(&["--status"]);
    // The first one of a server that is new begins by itself, soon after its start.
    let has_not_ended = told.contains("not ended since the start") || told.contains(" % done");
    assert!(is_right && has_not_ended, "{told}");
    let (is_right, told) = scrub(&[]);
    assert!(is_right, "{told}");
    assert_eq!(told.matches(" 0 damaged").count(), 2, "{told}");

    let object = sh(&world.data(), "find ost*/objects -type f | head -1").trim().to_owned();
    let path = world.data().join(&object);
    let bad = vec![99u8; 4096];
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&bad, 8192).unwrap();
    let ino = object.rsplit('/').next().unwrap().split('.').next().unwrap().to_owned();
    let ino = u64::from_str_radix(&ino, 16).unwrap();
    let (is_right, told) = scrub(&[]);
    assert!(!is_right && told.contains("bytes 0..65536 do not match their checksum"), "{told}");
    assert!(told.contains(&format!("find MOUNT -inum {ino}")), "{told}");
    let name = sh(&mnt, &format!("find . -inum {ino}"));
    let name = mnt.join(name.trim());
    assert!(up.has_event(event::OBJECT_DAMAGED), "{}", up.log());
    let (_, told) = scrub(&["--status", "--json"]);
    let rows: Vec<serde_json::Value> =
        told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["damaged"].as_u64().unwrap()).sum::<u64>(), 1, "{told}");
    assert_eq!(rows.iter().map(|row| row["objects"].as_u64().unwrap()).sum::<u64>(), 20, "{told}");

    // Written anew, it is right again; in the meantime it has no checksums.
    fs::write(&name, vec![7u8; 200_000]).unwrap();
    let (is_right, told) = scrub(&[]);
    assert!(is_right, "{told}");

    // A directory that is not there ends no pass, and nothing is called right.
    let hidden = |from: &str, to: &str| fs::rename(world.data().join(from), world.data().join(to));
    hidden("ost0/objects/80", "hidden").unwrap();
    let (is_right, told) = scrub(&[]);
    assert!(!is_right && told.contains("1 could not be compared"), "{told}");
    assert!(told.contains(" 0 damaged"), "{told}");
    assert!(up.has_event(event::NOT_COMPARED), "{}", up.log());
    hidden("hidden", "ost0/objects/80").unwrap();
    assert!(scrub(&[]).0);

    let (began, told) = scrub(&["--background"]);
    assert!(began, "{told}");
    assert!(scrub(&["--stop"]).0);
    up.stop();
    world.assert_sound();
}

#[test]
fn a_lost_object_is_reported_and_its_file_put_right() {
    let world = World::new();
    let up = world.up(&["--osts", "2"]);
    let mnt = world.mount_point();
    run(glint().args(["setstripe", "-c", "2", "-S", "64K", text(&mnt)]));
    fs::write(mnt.join("whole"), vec![1u8; 300_000]).unwrap();
    fs::write(mnt.join("short"), vec![2u8; 150_000]).unwrap();
    up.stop();
    world.assert_sound();
    // The last bytes of "short" lie in its first object, 65536..131072 in the other.
    let ino = "$(ls ost0/objects/* | sort | uniq | grep -o '^[0-9a-f]*\\.' | sort | tail -1)";
    sh(&world.data(), &format!("rm ost*/objects/*/{ino}0000"));
    let data = world.data();
    let report = glint().args(["fsck", "--data", text(&data)]).output().unwrap();
    assert_eq!(report.status.code(), Some(4));
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(report.contains("has 150000 bytes, its objects 131072"), "{report}");
    assert!(report.contains("1 findings; --repair puts them right"), "{report}");
    // One that nobody can repair beside it.
    let stray = data.join("ost0/objects/00/stray");
    fs::write(&stray, b"").unwrap();
    let both = fsck(&data, &["--repair", "--json"], 5);
    assert_eq!((&both["findings"], &both["unrepaired"]), (&2.into(), &1.into()), "{both}");
    fs::remove_file(&stray).unwrap();
    world.assert_sound();
    let up = world.up(&[]);
    assert_eq!(fs::metadata(mnt.join("short")).unwrap().len(), 131_072);
    assert!(fs::read(mnt.join("whole")).unwrap() == vec![1u8; 300_000]);
    up.stop();
}

#[test]
fn statistics_add_up_and_can_be_reset_watched_and_scraped() {
    let world = World::new();
    let metrics = address(free_port());
    let up = world.up(&["--metrics", &metrics]);
    let mnt = world.mount_point();
    let work = |name: &str| {
        for i in 0..200 {
            fs::write(mnt.join(format!("{name}{i}")), b"some data").unwrap();
        }
    };
    work("a");
    let stats = || -> Vec<serde_json::Value> {
        let output = run(glint().args(["stats", "--json", text(&mnt)])).stdout;
        String::from_utf8(output)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    };
    let rows = stats();
    let creates: Vec<_> = rows.iter().filter(|row| row["op"] == "create").collect();
    let of = |layer: &str| creates.iter().find(|row| row["layer"] == layer).unwrap();
    assert_eq!(of("mount")["count"], 200);
    assert_eq!(of("handler")["count"], 200, "a create is one request");
    let whole = of("mount")["sum"].as_f64().unwrap();
    let parts: f64 = creates.iter().map(|row| row["self_sum"].as_f64().unwrap()).sum();
    assert!((whole - parts).abs() < whole * 0.01, "whole {whole} us, parts {parts} us");

    let scraped = scrape(&metrics);
    let wanted = "glint_operation_seconds_count{layer=\"mount\",op=\"create\"} 200";
    assert!(scraped.contains(wanted), "{scraped}");

    run(glint().args(["stats", "--reset", text(&mnt)]));
    assert!(!stats().iter().any(|row| row["op"] == "create"), "they begin again");
    let watch = glint()
        .args(["stats", "--watch", "--json", text(&mnt)])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut watch = watch.unwrap();
    let out = watch.stdout.take().unwrap();
    let seen = std::thread::spawn(move || {
        let lines = std::io::BufRead::lines(std::io::BufReader::new(out));
        lines.map_while(Result::ok).any(|line| line.contains("\"op\":\"create\""))
    });
    let mut round = 0;
    eventually("what happens is shown", || {
        round += 1;
        work(&format!("b{round}-"));
        seen.is_finished()
    });
    assert!(seen.join().unwrap());
    // Nobody reads what it says any more, so it may be gone already.
    let _ = Command::new("kill").args(["-INT", &watch.id().to_string()]).output();
    let _ = watch.wait().unwrap();
    up.stop();
}

/// A name is one thing for all commands, and a path is one from wherever it is seen.
#[test]
fn a_name_without_a_slash_may_be_a_path() {
    let world = World::new();
    let (here, dir) = (world.path(""), world.short("m"));
    fs::create_dir(&dir).unwrap();
    let named = |arguments: &[&str]| {
        let mut command = glint();
        command.current_dir(&here).args(arguments);
        command
    };
    run(&mut named(&["serve", "--daemon", "--data", "data"]));
    let status: serde_json::Value =
        serde_json::from_slice(&run(&mut named(&["status", "--json", "data"])).stdout).unwrap();
    assert_eq!(status["data"], text(&world.data()));
    let pid = status["pid"].to_string();
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    let mut mount = named(&["mount", "-f", "data", text(&dir)]);
    let mount = Process::start_as(&mut mount, world.path("m.log"), Some(&dir));
    mount.wait_for_event(event::MOUNTED);
    for command in ["ls", "find", "du"] {
        run(glint().args([command, text(&dir)]).current_dir("/"));
    }
    mount.stop();
    run(Command::new("kill").arg(&pid));
    eventually("it ends", || !Path::new(&format!("/proc/{pid}")).exists());
    for (options, expected) in
        [(&[][..], "no server listens there"), (&["-o", "inodes=x"], "a number of inodes")]
    {
        let said = refused(named(&["mount", "/nosuch", text(&dir)]).args(options));
        assert!(said.contains(expected), "{said}");
    }
}
