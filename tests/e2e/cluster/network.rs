//! Servers over TCP: several mounts of one server, lost servers, and whatever else comes in at a
//! port.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::random::Random;
use support::*;

#[test]
fn two_mounts_see_one_file_system() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "3"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &["-o", "transport=devfuse"]);

    fs::create_dir(a.join("d")).unwrap();
    let data: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(i) >> 3) as u8).collect();
    fs::write(a.join("d/f"), &data).unwrap();
    assert!(fs::read(b.join("d/f")).unwrap() == data);
    // Caches without locks are at most a second behind the other mount.
    fs::write(b.join("d/f"), b"short").unwrap();
    fs::rename(b.join("d"), b.join("e")).unwrap();
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(fs::read(a.join("e/f")).unwrap(), b"short");
    assert!(!a.join("d").exists());

    let status = run(glint().args(["status", "--json", &address(port)])).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["clients"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["osts"].as_array().unwrap().len(), 3);
    run(glint().args(["stats", &address(port)]));
    run(glint().args(["stats", text(&a)]));

    one.stop();
    two.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn files_are_striped_as_their_directory_says() {
    let world = World::new();
    let up = world.up(&["--osts", "4"]);
    let dir = world.mount_point().join("wide");
    fs::create_dir(&dir).unwrap();
    run(glint().args(["setstripe", "-c", "4", "-S", "64K", text(&dir)]));
    let data: Vec<u8> = (0..1_000_003u32).map(|i| (i >> 5) as u8 ^ i as u8).collect();
    let file = dir.join("f");
    fs::write(&file, &data).unwrap();
    assert!(fs::read(&file).unwrap() == data);
    let shown = run(glint().args(["getstripe", text(&file)])).stdout;
    let shown = String::from_utf8(shown).unwrap();
    assert!(shown.contains('4') && shown.contains("65536"), "{shown}");
    // Each OST has its share.
    let used =
        sh(&world.data(), "for o in ost[0-9]*; do du -s --apparent-size -B1 $o | cut -f1; done");
    for bytes in used.lines() {
        assert!(bytes.parse::<u64>().unwrap() > 240_000, "{used}");
    }
    fs::remove_file(&file).unwrap();
    eventually("objects are destroyed", || objects(&world.data()).0 == 0);
    up.stop();
    world.assert_sound();
}

#[test]
fn calls_wait_for_a_server_that_is_killed_and_go_on() {
    let world = World::new();
    let port = free_port();
    let mut server = world.serve(port, &[]);
    let (mount, dir) = world.mount(port, "m", &[]);
    let held = fs::File::create(dir.join("held")).unwrap();
    fs::remove_file(dir.join("held")).unwrap();
    (&held).write_all(b"still here").unwrap();

    let stop = Arc::<AtomicBool>::default();
    let worker = {
        let (dir, stop) = (dir.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                // Each fails if a request sent again is executed twice.
                let path = dir.join(format!("w{n}"));
                fs::create_dir(&path).unwrap();
                fs::rename(&path, dir.join(format!("r{n}"))).unwrap();
                n += 1;
            }
            n
        })
    };
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1200));
        server.kill();
        std::thread::sleep(Duration::from_millis(300));
        server = world.serve(port, &[]);
    }
    std::thread::sleep(Duration::from_millis(1200));
    stop.store(true, Ordering::Relaxed);
    let n = worker.join().unwrap();
    let names: Vec<String> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), n, "every acknowledged rename, and nothing else");
    assert!(names.iter().all(|name| name.starts_with('r')));
    // The open file without a name lived through all of it.
    assert_eq!(held.metadata().unwrap().size(), 10);
    let mut text = [0; 10];
    // It was opened to be written; whose it is may read it through another handle.
    let again = fs::File::open(format!("/proc/self/fd/{}", held.as_raw_fd())).unwrap();
    again.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"still here");
    drop((held, again));
    mount.stop();
    server.stop();
    world.assert_sound();
}

#[test]
fn strangers_get_one_clear_answer() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let mut stream = TcpStream::connect(address(port)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.write_all(&[0x5a; 4096]).ok();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok();
    // Half a frame, and then silence, disturbs nobody.
    let mut silent = TcpStream::connect(address(port)).unwrap();
    silent.write_all(&answer[..answer.len().min(10)]).unwrap();

    let (mount, dir) = world.mount(port, "m", &[]);
    fs::write(dir.join("f"), b"x").unwrap();
    mount.stop();
    eventually("it is said", || server.log().contains("not a Glint peer"));
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
    server.stop();
}

#[test]
fn listening_to_the_world_must_be_said() {
    let world = World::new();
    let data = world.data();
    let mut serve = glint();
    serve.args(["serve", "--data", text(&data), "--listen", "0.0.0.0:0"]);
    assert!(refused(&mut serve).contains("--insecure"));

    let port = free_port();
    let server = world.serve(port, &[]);
    let other = world.path("other");
    let mut second = glint();
    second.args(["serve", "--insecure", "--data", text(&other), "--listen", &address(port)]);
    let message = refused(&mut second);
    assert!(message.contains("the port is in use"), "{message}");
    server.stop();

    let nobody = free_port();
    let dir = world.path("m");
    fs::create_dir(&dir).unwrap();
    let message = refused(glint().args(["mount", &address(nobody), text(&dir)]));
    assert!(message.contains(&nobody.to_string()), "{message}");
}

/// The library is used from several runtimes of one thread, one after the other: each has
/// to get a connection of its own.
#[test]
fn benchmarks_over_tcp_come_to_an_end_and_clean_up() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    for more in [&["--op", "open"][..], &["--op", "rename", "--procs", "2"]] {
        let mut bench = Command::new("timeout");
        bench.args(["300", binary::glint(), "bench", "createmany", "--json"]);
        bench.args(["--target", &address(port), "--count", "300"]).args(more);
        let line = run(&mut bench).stdout;
        let line: serde_json::Value = serde_json::from_slice(&line).unwrap();
        assert!(line["per_s"].as_f64().unwrap() > 0.0, "{line}");
    }
    let status = run(glint().args(["status", "--json", &address(port)])).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    assert_eq!(status["inodes"], 1, "only the root is left");
    server.stop();
    world.assert_sound();
}

#[test]
fn a_unix_socket_needs_no_permission_and_survives_a_crash() {
    let world = World::new();
    let socket = format!("unix:{}", text(&world.path("socket")));
    let server = world.serve_at(&socket, &[]);
    let (mount, dir) = world.mount_from(&socket, "m", &[]);
    fs::write(dir.join("f"), b"local").unwrap();
    let mut second = glint();
    second.args(["serve", "--data", text(&world.path("other")), "--listen", &socket]);
    let message = refused(&mut second);
    assert!(message.contains("a server listens there"), "{message}");
    server.kill();
    let server = world.serve_at(&socket, &[]);
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"local");
    run(glint().args(["status", &socket]));
    mount.stop();
    server.stop();
    assert!(!world.path("socket").exists(), "it cleans up");
    world.assert_sound();
}

/// Reads of slow OSTs are foreseen, and what was read ahead is not used when somebody has
/// written since.
#[test]
fn what_is_read_ahead_is_never_old() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--osts", "4", "--ost-bandwidth", "30M"]);
    let (mount, a) = world.mount(port, "a", &[]);
    let (other_mount, b) = world.mount(port, "b", &[]);
    sh(&b, "setfattr -n glint.layout -v 'stripe_count=4 stripe_size=1048576' .");
    const MIB: u64 = 1 << 20;
    let content = |block: u64, version: u8| vec![version.wrapping_add(block as u8); MIB as usize];
    let ahead = || {
        let status: serde_json::Value =
            serde_json::from_str(&sh(&a, "getfattr --only-values -n glint.status .")).unwrap();
        status["client"]["read_ahead_bytes"].as_u64().unwrap()
    };
    // From one end to the other, and one block of four.
    for (distance, direct) in [(1, false), (4, false), (1, true)] {
        let name = format!("f{distance}{direct}");
        let path = (a.join(&name), b.join(&name));
        let blocks = 24 * distance;
        let writer = fs::File::create(&path.1).unwrap();
        for block in (0..blocks).step_by(distance as usize) {
            writer.write_all_at(&content(block, 0), block * MIB).unwrap();
        }
        writer.sync_all().unwrap();
        let before = ahead();
        // The kernel does not cache what is open to read and write.
        let reader = fs::File::options().read(true).write(direct).open(&path.0).unwrap();
        let other = fs::File::options().write(true).open(&path.0).unwrap();
        let mut found = vec![0; MIB as usize];
        let mut newest = vec![0u8; blocks as usize];
        for n in 0..24 {
            let at = n * distance;
            reader.read_exact_at(&mut found, at * MIB).unwrap();
            assert!(found == content(at, newest[at as usize]), "block {at} of {name}");
            // On its way already, and written by another client, or here, or cut off.
            let next = at + 2 * distance;
            if next >= blocks {
                continue;
            }
            match n % 8 {
                5 => writer.write_all_at(&content(next, 100), next * MIB).unwrap(),
                7 => other.write_all_at(&content(next, 100), next * MIB).unwrap(),
                _ => continue,
            }
            newest[next as usize] = 100;
        }
        assert!(ahead() > before + 4 * MIB, "{name}: {} were read ahead", ahead() - before);
        writer.set_len(5 * MIB).unwrap();
        assert_eq!(reader.read_at(&mut found, 5 * MIB).unwrap(), 0);
    }
    mount.stop();
    other_mount.stop();
    server.stop();
    world.assert_sound();
}

/// Small files that are read one after the other are asked for before, and what was asked for is not
/// used when somebody has changed it since.
#[test]
fn small_files_that_are_prefetched_are_never_old() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (mount, a) = world.mount(port, "a", &[]);
    let (other_mount, b) = world.mount(port, "b", &[]);
    let prefetched = || {
        let status: serde_json::Value =
            serde_json::from_str(&sh(&a, "getfattr --only-values -n glint.status .")).unwrap();
        let count = |name: &str| status["client"]["prefetched"][name].as_u64().unwrap();
        (count("files"), count("read"))
    };
    let mut random = Random(1);
    let mut content = |version: u8| vec![version; 1 + random.below(70_000) as usize];
    let mut version = 0u8;
    const FILES: usize = 60;
    for round in 0..6 {
        let name = |n: usize| format!("d{round}/f{n:02}");
        // Whoever has written them has locks as long as it is there.
        let (maker, made) = world.mount(port, &format!("maker{round}"), &[]);
        fs::create_dir(made.join(format!("d{round}"))).unwrap();
        let mut newest: Vec<Option<Vec<u8>>> = Vec::new();
        for n in 0..FILES {
            version = version.wrapping_add(1);
            newest.push(Some(content(version)));
            fs::write(made.join(name(n)), newest[n].as_ref().unwrap()).unwrap();
        }
        maker.stop();
        let listed = fs::read_dir(a.join(format!("d{round}"))).unwrap();
        let sizes: Vec<u64> =
            listed.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        assert_eq!(sizes.len(), FILES);
        for at in 0..FILES {
            // In the order of names, or backwards.
            let n = if round % 2 == 0 { at } else { FILES - 1 - at };
            let found = fs::read(a.join(name(n))).ok();
            assert!(found == newest[n], "{} is not what it was changed to last", name(n));
            let ahead = at + 1 + at % 5;
            if round < 2 || ahead >= FILES || at % 3 != 0 {
                continue;
            }
            let n = if round % 2 == 0 { ahead } else { FILES - 1 - ahead };
            let (path, here) = (b.join(name(n)), a.join(name(n)));
            version = version.wrapping_add(1);
            let new = content(version);
            match at / 3 % 6 {
                0 => fs::write(&path, &new).unwrap(),
                1 => {
                    fs::write(b.join("new"), &new).unwrap();
                    fs::rename(b.join("new"), &path).unwrap();
                }
                2 => {
                    fs::remove_file(&path).unwrap();
                    newest[n] = None;
                    continue;
                }
                3 => fs::write(&here, &new).unwrap(),
                4 => {
                    let file = fs::File::options().write(true).open(&path).unwrap();
                    file.set_len(new.len() as u64 / 2).unwrap();
                    let before = newest[n].take().unwrap_or_default();
                    let mut cut = before;
                    cut.resize(new.len() / 2, 0);
                    newest[n] = Some(cut);
                    continue;
                }
                _ => {
                    let mut file = fs::File::options().append(true).open(&path).unwrap();
                    file.write_all(&new).unwrap();
                    newest[n].get_or_insert_default().extend(new);
                    continue;
                }
            }
            newest[n] = Some(new);
        }
        if round == 1 {
            let (files, read) = prefetched();
            assert!(read >= 90 && files - read <= 10, "of {files} prefetched {read} were read");
        }
    }
    [mount, other_mount, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

/// Small files are asked for together, with one request to each of their servers: one that stands still
/// keeps no file of another one back.
#[test]
fn files_that_are_prefetched_wait_for_no_server_but_their_own() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let [still, other] = [1, 2].map(|n| world.oss(n, free_port(), port, &[]));
    let (maker, made) = world.mount(port, "maker", &[]);
    fs::create_dir(made.join("d")).unwrap();
    const FILES: u64 = 120;
    let bytes = |n: u64| vec![n as u8; 5000 + n as usize];
    let name = |n: u64| format!("d/f{n:03}");
    for n in 0..FILES {
        fs::write(made.join(name(n)), bytes(n)).unwrap();
    }
    maker.stop();
    let (mount, a) = world.mount(port, "a", &[]);
    let layouts = sh(&a, "ls -l d > /dev/null; getfattr -n glint.layout d/*");
    let lies_on: Vec<&str> = layouts.lines().filter(|line| line.contains("first_ost=")).collect();
    assert_eq!(lies_on.len() as u64, FILES, "{layouts}");
    let (of_still, others): (Vec<u64>, Vec<u64>) =
        (0..FILES).partition(|n| lies_on[*n as usize].contains("first_ost=1"));
    assert!(of_still.len() > 20 && others.len() > 40, "{layouts}");
    let read = |n: u64| assert!(fs::read(a.join(name(n))).unwrap() == bytes(n), "{n}");
    still.halt(true);
    for n in others {
        let begun = Instant::now();
        read(n);
        assert!(begun.elapsed() < Duration::from_millis(1500), "{n}: {:?}", begun.elapsed());
    }
    let status: serde_json::Value =
        serde_json::from_str(&sh(&a, "getfattr --only-values -n glint.status .")).unwrap();
    let prefetched = status["client"]["prefetched"]["read"].as_u64().unwrap();
    assert!(prefetched > 20, "of the files that were read, {prefetched} were prefetched");
    still.halt(false);
    of_still.into_iter().for_each(read);
    [mount, still, other, server].into_iter().for_each(Process::stop);
    world.assert_sound();
}

/// The examples of the client library: programs that use a file system without a mount.
#[test]
fn programs_use_the_client_library_without_a_mount() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let example = |name: &str, more: &[&str]| {
        let binary = std::path::PathBuf::from(glint().get_program());
        let program = binary.with_file_name("examples").join(name);
        let mut command = Command::new(program);
        String::from_utf8(run(command.arg(address(port)).args(more)).stdout).unwrap()
    };
    let text = "written by a program without a mount\n";
    assert_eq!(example("write_and_read", &["hello"]), text);
    // With files of that name there, too.
    assert_eq!(example("write_and_read", &["hello"]), text);
    let created = example("create_many", &["500", "16"]);
    assert!(created.starts_with("500 files in "), "{created}");
    let listed = example("list", &[]);
    let ends = |end: &str| listed.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!(ends(" 37 /hello"), 1, "{listed}");
    assert_eq!(listed.lines().count(), 502, "{listed}");
    let (mount, dir) = world.mount(port, "m", &[]);
    assert_eq!(fs::read_to_string(dir.join("hello")).unwrap(), text);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    mount.stop();
    server.stop();
    world.assert_sound();
}

/// The mount in the process of the server keeps no changes to itself: nobody could take a batch of it.
#[test]
fn a_mount_of_up_that_others_reach_loses_nothing() {
    let world = World::new();
    let port = free_port();
    let listen = address(port);
    let up = || world.up(&["--listen", &listen, "--insecure"]);
    let mut server = up();
    let top = world.mount_point();
    let paths = || (0..20).map(|i| top.join(format!("d{i}/a/b/file")));
    for path in paths() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, b"made here").unwrap();
    }
    let (other, b) = world.mount(port, "other", &[]);
    for path in paths() {
        let there = b.join(path.strip_prefix(&top).unwrap());
        assert_eq!(fs::read(&there).unwrap(), b"made here", "{there:?}");
    }
    fs::File::open(&top).unwrap().sync_all().unwrap();
    other.stop();
    server.stop();
    server = up();
    for path in paths() {
        assert_eq!(fs::read(&path).unwrap(), b"made here", "{path:?}");
    }
    server.stop();
    world.assert_sound();
}
