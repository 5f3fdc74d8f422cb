//! Servers and disks that never come back, at the worst time: files with copies are used again, some
//! by themselves, others after a command that says first what is lost.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::path::PathBuf;
use support::*;

const FILES: u64 = 30;
const NXIO: i32 = rustix::io::Errno::NXIO.raw_os_error();

fn content(n: u64) -> Vec<u8> {
    (0..100_000u64).map(|at| (at * 7 + n * 13 + at / 251) as u8).collect()
}

/// A server with the MDS and two more, each with an OST that has a copy of everything.
struct ThreeServers {
    world: World,
    port: u16,
    ports: [u16; 2],
}

impl ThreeServers {
    fn new() -> ThreeServers {
        ThreeServers { world: World::new(), port: free_port(), ports: [free_port(), free_port()] }
    }

    fn serve(&self) -> Process {
        self.serve_with("3")
    }

    fn serve_with(&self, replicas: &str) -> Process {
        // An OST is given up when it was not heard of for half a lease, and a mount that ended
        // without a word is evicted after a whole one.
        self.world.serve(self.port, &["--replicas", replicas, "--lease", "8"])
    }

    fn oss(&self, n: u16) -> Process {
        self.world.oss(n, self.ports[usize::from(n) - 1], self.port, &[])
    }

    fn glint(&self, words: &[&str], more: &[&str]) -> String {
        let output = run(glint().args(words).arg(address(self.port)).args(more));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until each chain waits for one member, or serves.
    fn states(&self, ost: &str, state: &str) {
        eventually(&format!("{ost} is {state}"), || {
            let list = self.glint(&["ost", "list"], &[]);
            list.lines().any(|line| line.starts_with(ost) && line.contains(state))
        });
    }

    /// Gives up an OST, as soon as that acknowledges nothing any more: half a lease after it was heard
    /// of last.
    fn give_up(&self, ost: &str) {
        eventually(&format!("OST {ost} is given up"), || {
            let mut lost = glint();
            lost.args(["ost", "lost", ost, &address(self.port), "--yes"]);
            lost.output().unwrap().status.success()
        });
    }

    fn disk(&self, n: u16) -> PathBuf {
        if n == 0 { self.world.data().join("ost0") } else { self.world.oss_data(n).join("ost0") }
    }

    /// Puts an empty disk in the place of that of an OST.
    fn exchange(&self, n: u16, more: &[&str]) {
        fs::remove_dir_all(self.disk(n)).unwrap();
        fs::create_dir(self.disk(n)).unwrap();
        run(glint().args(["ost", "replace"]).args(more).arg(self.disk(n)));
    }
}

fn write(directory: &std::path::Path) {
    for n in 0..FILES {
        let path = directory.join(format!("file{n}"));
        fs::write(&path, content(n)).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
}

/// Reads all files. Returns numbers of those that nobody has any more.
fn read_all(directory: &std::path::Path) -> Vec<u64> {
    let is_lost = |n: &u64| match fs::read(directory.join(format!("file{n}"))) {
        Ok(read) => {
            assert!(read == content(*n), "file{n} is another one");
            false
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(NXIO), "file{n}: {error}");
            true
        }
    };
    (0..FILES).filter(is_lost).collect()
}

fn must_read(directory: &std::path::Path) {
    for n in 0..FILES {
        let read = fs::read(directory.join(format!("file{n}"))).unwrap();
        assert!(read == content(n), "file{n} is another one");
    }
}

#[test]
fn two_of_three_servers_that_died_at_once_go_on_without_the_third() {
    let three = ThreeServers::new();
    let (server, first, second) = (three.serve(), three.oss(1), three.oss(2));
    let (client, a) = three.world.mount(three.port, "a", &[]);
    write(&a);
    client.stop();
    [server, first, second].into_iter().for_each(Process::kill);
    fs::remove_dir_all(three.world.oss_data(2)).unwrap();

    let (server, first) = (three.serve(), three.oss(1));
    let (client, a) = three.world.mount(three.port, "b", &[]);
    must_read(&a);
    fs::write(a.join("new"), b"new").unwrap();
    // It is given up; nothing is lost with it.
    three.states("ost 2", "NOT HEARD OF");
    let said = three.glint(&["ost", "lost", "2"], &["--dry-run"]);
    assert!(said.contains("nothing is lost") && said.contains("no file loses anything"), "{said}");
    let said = refused(glint().args(["ost", "lost", "1", &address(three.port), "--yes"]));
    assert!(said.contains("is heard of"), "{said}");
    three.glint(&["ost", "lost", "2"], &["--yes"]);
    three.states("ost 2", "emptied in");
    must_read(&a);
    // A mount waits at its end for servers that it knows; another one does not know this one.
    client.signal(rustix::process::Signal::INT);
    client.ends();
    let (client, c) = three.world.mount(three.port, "c", &[]);
    must_read(&c);
    [client, first, server].into_iter().for_each(Process::stop);
}

#[test]
fn a_chain_goes_on_with_a_member_that_lives_when_the_last_one_is_given_up() {
    let three = ThreeServers::new();
    let (server, first, second) = (three.serve(), three.oss(1), three.oss(2));
    let (client, a) = three.world.mount(three.port, "a", &[]);
    write(&a);
    fs::create_dir(a.join("alone")).unwrap();
    run(glint().args(["setstripe", "-r", "1", "-c", "3", text(&a.join("alone"))]));
    fs::write(a.join("alone/file"), vec![1; 4 << 20]).unwrap();
    sh(&a, "sync -f .");
    client.stop();
    // A member that has just come may still be synced; heal rests after this.
    wait_until_whole(&address(three.port));
    // The member at the MDS lags, and the one that has more than that is dead, too.
    three.glint(&["heal", "pause"], &[]);
    server.kill();
    let server = three.serve();
    three.states("ost 0", "syncing");
    first.kill();
    three.states("ost 1", "offline");
    second.kill();
    fs::remove_dir_all(three.world.oss_data(2)).unwrap();
    three.states("ost 2", "last serving");

    let said = three.glint(&["ost", "lost", "2"], &["--dry-run"]);
    assert!(said.contains("/file29") && said.contains("/alone/file"), "{said}");
    assert!(said.contains("1 file: data is lost"), "{said}");
    let rows = three.glint(&["ost", "lost", "2"], &["--dry-run", "--json"]);
    let count = |what: &str| rows.lines().filter(|line| line.contains(what)).count();
    assert_eq!(count("\"loses\":\"changes\",\"path\""), FILES as usize, "{rows}");
    let said = refused(glint().args(["ost", "lost", "2", &address(three.port)]));
    assert!(said.contains("--yes"), "{said}");
    three.states("ost 2", "last serving");
    three.give_up("2");
    let (client, a) = three.world.mount(three.port, "b", &[]);
    must_read(&a);
    fs::write(a.join("new"), b"new").unwrap();
    three.glint(&["heal", "resume"], &[]);
    let first = three.oss(1);
    // A stripe of it is on each OST.
    let errno = fs::read(a.join("alone/file")).unwrap_err().raw_os_error();
    assert_eq!(errno, Some(NXIO));
    eventually("the other one has everything, too", || {
        let list = three.glint(&["ost", "list"], &[]);
        !list.lines().any(|line| line.starts_with("ost 1") && line.contains(" in "))
    });
    must_read(&a);
    [client, first, server].into_iter().for_each(Process::stop);
}

/// Two of three servers are given up, and with them all chains over these two: nobody waits for them.
#[test]
fn what_nobody_has_any_more_is_an_error_and_new_files_are_elsewhere() {
    let three = ThreeServers::new();
    let (server, first, second) = (three.serve_with("2"), three.oss(1), three.oss(2));
    let at = address(three.port);
    eventually("there are chains", || chains(&at)["count"] != 0);
    wait_until_whole(&at);
    let (client, a) = three.world.mount(three.port, "a", &[]);
    write(&a);
    fs::create_dir(a.join("alone")).unwrap();
    run(glint().args(["setstripe", "-r", "1", "-c", "0", text(&a.join("alone"))]));
    fs::create_dir(a.join("wide")).unwrap();
    run(glint().args(["setstripe", "-r", "2", "-c", "0", text(&a.join("wide"))]));
    sh(&a, "sync -f .");
    let late = fs::OpenOptions::new().write(true).open(a.join("file0")).unwrap();
    [first, second].into_iter().for_each(Process::kill);
    [1, 2].into_iter().for_each(|n| fs::remove_dir_all(three.world.oss_data(n)).unwrap());
    three.states("ost 1", "offline");
    three.states("ost 2", "offline");
    // This one waits for a member that may come back.
    let reader = {
        let a = a.clone();
        std::thread::spawn(move || read_all(&a))
    };
    for ost in ["1", "2"] {
        three.give_up(ost);
    }
    let lost = reader.join().unwrap();
    assert!(!lost.is_empty() && lost.len() < FILES as usize, "{lost:?} of {FILES}");
    assert_eq!(read_all(&a), lost);
    // Writes, too, at once or when they are to be on stable storage.
    for n in &lost {
        let path = a.join(format!("file{n}"));
        let written = fs::OpenOptions::new().write(true).open(&path).and_then(|file| {
            std::os::unix::fs::FileExt::write_all_at(&file, b"more", 0)?;
            file.sync_all()
        });
        assert_eq!(written.unwrap_err().raw_os_error(), Some(NXIO), "file{n}");
        fs::remove_file(&path).unwrap();
    }
    drop(late);
    three.glint(&["heal", "info"], &[]);
    three.glint(&["scrub"], &[]);
    client.signal(rustix::process::Signal::INT);
    client.ends();
    let (client, b) = three.world.mount(three.port, "b", &[]);
    // No stripe of new files is there. (Mounts of before may have numbers for files that were laid out
    // over these.)
    for directory in ["alone", "wide", "."] {
        for n in 0..8 {
            let path = b.join(directory).join(format!("new{n}"));
            fs::write(&path, vec![n; 4 << 20]).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            assert!(fs::read(&path).unwrap() == vec![n; 4 << 20]);
        }
    }
    [client, server].into_iter().for_each(Process::stop);
}

/// One of two servers is lost for good. Another one that joins takes its places, and is filled; when
/// the first comes back after all, it has nothing of the files.
#[test]
fn a_server_that_joins_takes_the_places_of_one_that_was_given_up() {
    let three = ThreeServers::new();
    let (server, first) = (three.serve_with("2"), three.oss(1));
    let at = address(three.port);
    wait_until_whole(&at);
    let (client, a) = three.world.mount(three.port, "a", &[]);
    write(&a);
    fs::write(a.join("removed"), content(99)).unwrap();
    sh(&a, "sync -f .");
    client.stop();
    first.kill();
    three.states("ost 1", "offline");
    three.give_up("1");
    // There is no other failure domain.
    three.states("ost 1", "emptied in");
    let (client, b) = three.world.mount(three.port, "b", &[]);
    must_read(&b);

    let second = three.oss(2);
    wait_until_whole(&at);
    let table = chains(&at);
    let rows = table["rows"].as_array().unwrap().iter();
    let members = rows.flat_map(|row| row["members"].as_array().unwrap());
    assert!(members.map(|member| &member["ost"]).all(|ost| *ost == 0 || *ost == 2), "{table}");
    let stored = |n| objects(&three.world.oss_data(n)).0;
    assert!(stored(2) > FILES && stored(1) > FILES, "{} and {}", stored(2), stored(1));
    must_read(&b);
    fs::write(b.join("file0"), content(0)).unwrap();
    // Its object is at the one that is away, too.
    fs::remove_file(b.join("removed")).unwrap();
    sh(&b, "sync -f .");

    let first = three.oss(1);
    eventually("it has nothing of the files", || stored(1) == 0);
    wait_until_whole(&at);
    must_read(&b);
    [client, first, second, server].into_iter().for_each(Process::stop);
    // All copies are equal, and there are no others.
    three.world.assert_sound_with(&three.world.data(), &[1, 2]);
}

#[test]
fn a_file_system_begins_with_nothing_when_all_disks_were_replaced() {
    let three = ThreeServers::new();
    let (server, first, second) = (three.serve(), three.oss(1), three.oss(2));
    let (client, a) = three.world.mount(three.port, "a", &[]);
    write(&a);
    [client, second, first].into_iter().for_each(Process::stop);
    ["ost 1", "ost 2"].into_iter().for_each(|ost| three.states(ost, "offline"));
    server.stop();
    for n in 0..3 {
        three.exchange(n, &[]);
    }
    // The server with the MDS was stopped last: its OST has the only copy that nothing is missing in.
    let (data, listen) = (three.world.data(), address(three.port));
    let mut serve = glint();
    serve.args(["serve", "--data", text(&data), "--listen", &listen, "--replicas", "3"]);
    let said = refused(serve.args(secured(&[])));
    assert!(said.contains("--lose-last-copies"), "{said}");
    for n in 0..3 {
        run(glint().args(["ost", "replace", "--lose-last-copies"]).arg(three.disk(n)));
    }
    let (server, first, second) = (three.serve(), three.oss(1), three.oss(2));
    wait_until_whole(&address(three.port));
    let (client, a) = three.world.mount(three.port, "b", &[]);
    for n in 0..FILES {
        let read = fs::read(a.join(format!("file{n}"))).unwrap();
        assert!(read.iter().all(|byte| *byte == 0), "what is lost reads as zeros");
    }
    write(&a);
    must_read(&a);
    [client, first, second, server].into_iter().for_each(Process::stop);
}
