//! Time and its end: servers that stand still or start again, clients that are slow, cut off or
//! have opened one file a thousand times.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::namespace::Host;
use support::*;

#[test]
fn files_that_were_opened_without_a_word_survive_a_restart_and_their_removal() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (one, a) = world.mount(port, "a", &[]);
    let (_two, b) = world.mount(port, "b", &[]);
    let name = |n: u32| format!("f{n}");
    for n in 0..5 {
        fs::write(b.join(name(n)), format!("precious {n}")).unwrap();
    }
    for n in 0..5 {
        // The second open asks nobody.
        drop(File::open(a.join(name(n))).unwrap());
    }
    let files: Vec<File> = (0..5).map(|n| File::open(a.join(name(n))).unwrap()).collect();
    server.kill();
    let server = world.serve(port, &[]);
    for n in 0..5 {
        fs::remove_file(b.join(name(n))).unwrap();
    }
    copies::wait_until_destroyed(&b, &world.data().join("ost0"));
    for (n, file) in files.iter().enumerate() {
        let mut content = [0; 10];
        file.read_exact_at(&mut content, 0).unwrap();
        assert_eq!(content, *format!("precious {n}").as_bytes());
    }
    server.assert_no(event::REQUEST_REFUSED);
    one.assert_no(event::REOPEN_FAILED);
}

#[test]
fn a_server_that_stood_still_evicts_nobody() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &["--lease", "6"]);
    let (one, a) = world.mount(port, "a", &[]);
    let (two, b) = world.mount(port, "b", &[]);
    let mut file = File::create(a.join("f")).unwrap();
    for n in 0..2 {
        file.write_all(b"unsent").unwrap();
        let asking = {
            // Locks that are recalled just before the pause are not owed for its time.
            let path = b.join("f");
            std::thread::spawn(move || fs::read(path).unwrap())
        };
        server.halt(true);
        std::thread::sleep(Duration::from_millis(8_000));
        server.halt(false);
        file.write_all(b" and more").unwrap();
        file.sync_all().unwrap();
        assert!(asking.join().unwrap().len() >= 6 + 15 * n);
    }
    for (mount, process) in [(&a, &one), (&b, &two)] {
        assert_eq!(fs::read(mount.join("f")).unwrap(), b"unsent and more".repeat(2));
        process.assert_no(event::SESSION_LOST);
    }
    server.assert_no(event::CLIENT_EVICTED);
}

/// Whether a program sleeps, at each of several looks.
fn sleeps(child: &Child) -> bool {
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.contains(") S ") || stat.contains(") D ")
    })
}

/// A client that is cut off while it has more to return than it can says shows nothing old, though
/// its kernel has it.
#[test]
fn who_is_cut_off_while_it_gives_locks_up_shows_nothing_old() {
    let world = World::new();
    let host = Host::new();
    let address = format!("{}:{}", host.address, free_port());
    let _server = world.serve_at(&address, &["--insecure", "--lease", "8"]);
    let (_stays, b) = world.mount_from(&address, "b", &[]);
    let (cut_off, a) = host.mount(&world, &address);
    fs::write(b.join("f"), b"old").unwrap();
    assert_eq!(fs::read(a.join("f")).unwrap(), b"old");
    // More directories of its own than it keeps: it begins to give them up.
    for n in 0..4_200 {
        fs::create_dir(a.join(format!("d{n}"))).unwrap();
    }
    host.connect(false);
    // The client goes on as long as it can by itself, and then waits.
    let busy = {
        let a = a.clone();
        std::thread::spawn(move || {
            for n in 0..4_200 {
                let _ = fs::create_dir(a.join(format!("d{n}/sub")));
            }
        })
    };
    fs::write(b.join("f"), b"newer").unwrap();
    // Asks now: it gets an answer, or waits for one until the host is connected again.
    let mut cat = Command::new("cat");
    let mut cat = cat.arg(a.join("f")).stdout(Stdio::piped()).spawn().unwrap();
    eventually("it has asked", || cat.try_wait().unwrap().is_some() || sleeps(&cat));
    host.connect(true);
    let answer = cat.wait_with_output().unwrap();
    // A call that was under way when the client was evicted may fail, and only then.
    match answer.status.success() {
        true => assert_eq!(answer.stdout, b"newer", "it was written when this began"),
        false => {
            assert_eq!(answer.stdout, b"");
            cut_off.wait_for_event(event::SESSION_LOST);
        }
    }
    busy.join().unwrap();
    // Each of its connections may fail what was under way when it hears of the eviction; what is
    // answered is what is there.
    eventually("it goes on", || match fs::read(a.join("f")) {
        Ok(content) => {
            assert_eq!(content, b"newer");
            true
        }
        Err(_) => false,
    });
}

#[test]
fn a_subtree_that_another_client_has_just_made_can_be_mounted() {
    let world = World::new();
    let authority = world.path("ca");
    let issue = |words: &[&str]| {
        run(glint().args(["cert", "issue", text(&authority)]).args(words));
    };
    run(glint().args(["cert", "init", text(&authority)]));
    issue(&["server", "--host", "127.0.0.1"]);
    issue(&["all", "--client"]);
    issue(&["part", "--client", "--subtree", "/new/sub"]);
    let port = free_port();
    let _server = world.serve(port, &["--cert", text(&authority.join("server"))]);
    let (_one, a) = world.mount(port, "a", &["--cert", text(&authority.join("all"))]);
    fs::create_dir_all(a.join("new/sub")).unwrap();
    fs::write(a.join("new/sub/f"), b"1").unwrap();
    let (_two, b) = world.mount(port, "b", &["--cert", text(&authority.join("part"))]);
    assert_eq!(fs::read(b.join("f")).unwrap(), b"1");
}

/// The cost of opening and closing one file does not grow, nor the wait of the next client.
#[test]
fn opening_one_file_again_and_again_leaves_one_lock() {
    let world = World::new();
    let port = free_port();
    let _server = world.serve(port, &[]);
    let (_one, a) = world.mount(port, "a", &[]);
    let (_two, b) = world.mount(port, "b", &[]);
    fs::write(b.join("log"), b"").unwrap();
    for _ in 0..3_000 {
        let mut log = OpenOptions::new().append(true).open(a.join("log")).unwrap();
        log.write_all(b"x").unwrap();
    }
    let status = run(glint().args(["status", &address(port)]));
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    let ranges = status.lines().find_map(|line| {
        let before = line.split(" ranges of data").next().filter(|before| *before != line)?;
        before.split(' ').next_back()?.parse::<usize>().ok()
    });
    assert!(ranges.is_some_and(|ranges| ranges < 20), "{status}");
    assert_eq!(fs::read(b.join("log")).unwrap().len(), 3_000);
}

/// After a restart it is shown for whom the server still waits.
#[test]
fn status_shows_for_whom_a_recovery_waits() {
    let world = World::new();
    let port = free_port();
    let server = world.serve(port, &[]);
    let (halted, a) = world.mount(port, "a", &[]);
    let (_stays, b) = world.mount(port, "b", &[]);
    fs::write(a.join("f"), b"1").unwrap();
    halted.halt(true);
    server.kill();
    let _server = world.serve(port, &[]);
    let status = |more: &[&str]| {
        let shown = run(glint().arg("status").arg(address(port)).args(more));
        String::from_utf8_lossy(&shown.stdout).into_owned()
    };
    let awaited = || {
        let status: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
        let awaited = status["awaited"].as_array().unwrap().clone();
        awaited.iter().map(|one| one["mount_point"].as_str().unwrap().to_owned()).collect()
    };
    let is_a = |list: Vec<String>| list == [text(&a)];
    eventually("the other one is back", || is_a(awaited()));
    let shown = status(&[]);
    let lines: Vec<&str> = shown.lines().filter(|line| line.contains("AWAITED")).collect();
    assert!(lines.len() == 1 && lines[0].contains(text(&a)), "{shown}");
    halted.halt(false);
    fs::write(b.join("g"), b"2").unwrap();
    assert!(awaited().is_empty() && !status(&[]).contains("AWAITED"));
}
