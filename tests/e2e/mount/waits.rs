//! Requests that wait: for locks of programs, for servers that are away. They keep nobody from being
//! served, and signals end them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_telemetry::event;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use support::paths::quoted;
use support::stalls::Stalls;
use support::*;

fn python(mounts: [&Path; 2], script: &str) {
    let [a, b] = mounts.map(quoted);
    // A script that waits for ever fails, too.
    sh(Path::new("/"), &format!("timeout 300 python3 - {a} {b} <<'E'\n{script}\nE"));
}

#[test]
fn requests_that_wait_keep_nobody_from_being_served() {
    enable_uring();
    for transport in TRANSPORTS {
        let world = World::new();
        let port = free_port();
        let server = world.serve(port, &[]);
        let (one, a) = world.narrow_mount(port, "a", transport);
        let (two, b) = world.narrow_mount(port, "b", transport);
        let script = "
import fcntl, os, sys, threading, time
a, b = sys.argv[1:]
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.mkdir(a + '/d')
holder = os.open(a + '/f', os.O_CREAT | os.O_RDWR)
fcntl.flock(holder, fcntl.LOCK_EX)
got = []
def wait():
    f = os.open(a + '/f', os.O_RDWR)
    fcntl.flock(f, fcntl.LOCK_EX)
    got.append(1)
    os.close(f)
threads = [threading.Thread(target=wait) for _ in range(60)]
for t in threads: t.start()
time.sleep(1)
assert not got
# Others are served, and so is who lets them go on.
os.mkdir(a + '/d/e')
assert os.listdir(a + '/d') == ['e'] and os.listdir(b + '/d') == ['e']
open(a + '/d/file', 'w').write('text')
assert open(b + '/d/file').read() == 'text'
fcntl.flock(holder, fcntl.LOCK_UN)
for t in threads: t.join(200)
assert len(got) == 60, got
";
        python([&a, &b], script);
        one.stop();
        two.stop();
        server.stop();
        world.assert_sound();
    }
}

#[test]
fn signals_end_waits_for_locks() {
    enable_uring();
    for transport in TRANSPORTS {
        let world = World::new();
        let port = free_port();
        let _server = world.serve(port, &[]);
        let (_one, a) = world.narrow_mount(port, "a", transport);
        let (_two, b) = world.narrow_mount(port, "b", transport);
        let script = "
import fcntl, os, signal, sys, time
a, b = sys.argv[1:]
class Tick(Exception): pass
def tick(*_): raise Tick
signal.signal(signal.SIGALRM, tick)
h = os.open(b + '/f', os.O_CREAT | os.O_RDWR)
f = os.open(a + '/f', os.O_RDWR)
for lock in (fcntl.flock, fcntl.lockf):
    # A lock of fcntl(2) would be of this process, whichever file it was taken through.
    child = os.fork()
    if child == 0:
        h = os.open(b + '/f', os.O_RDWR)
        lock(h, fcntl.LOCK_EX)
        open(b + '/held', 'w')
        signal.pause()
    while not os.path.exists(b + '/held'): time.sleep(0.01)
    os.unlink(b + '/held')
    # Others use this machine, too: of several waits one ends as soon as it should.
    took = []
    for again in range(5):
        begun = time.time()
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            lock(f, fcntl.LOCK_EX)
        except Tick: took.append(time.time() - begun)
        else: raise AssertionError('got it')
    assert min(took) < 1, took
    took = []
    for again in range(3):
        waits = os.fork()
        if waits == 0:
            lock(f, fcntl.LOCK_EX)
            os._exit(1)
        time.sleep(0.2)
        begun = time.time()
        os.kill(waits, signal.SIGKILL)
        assert os.waitpid(waits, 0)[1] == signal.SIGKILL
        took.append(time.time() - begun)
    assert min(took) < 1, took
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # Nobody waits any more, and nobody has it.
    other = os.fork()
    if other == 0:
        h = os.open(b + '/f', os.O_RDWR)
        until = time.time() + 60
        while True:
            try: lock(h, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.time() > until: os._exit(1)
                time.sleep(0.01)
            else: os._exit(0)
    assert os.waitpid(other, 0)[1] == 0
";
        python([&a, &b], script);
    }
}

/// A program that waits for a server: `call` does, on a directory `a`.
fn waiting(directory: &Path, call: &str) -> Child {
    let script = format!(
        "
import os, signal, sys
a = sys.argv[1]
class Tick(Exception): pass
def tick(*_): raise Tick
signal.signal(signal.SIGALRM, tick)
try:
    print('now', flush=True)
    {call}
except Tick: pass
"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]).arg(directory).current_dir("/").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = [0; 3];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    // The child waits if it sleeps at each of several looks.
    let stat = format!("/proc/{}/stat", child.id());
    let sleeps = || {
        let stat = fs::read_to_string(&stat).unwrap();
        assert!(!stat.contains(") Z "), "{call} did not wait");
        stat.contains(") S ")
    };
    eventually("it waits", || {
        (0..20).all(|_| {
            std::thread::sleep(Duration::from_millis(10));
            sleeps()
        })
    });
    child
}

fn ends(child: &mut Child) {
    eventually("the end of a program", || child.try_wait().unwrap().is_some());
}

#[test]
fn signals_end_waits_for_a_server_and_what_was_asked_is_done_once() {
    enable_uring();
    let stalls = Stalls::start();
    for transport in TRANSPORTS {
        let world = World::new();
        let port = free_port();
        // Long enough for what is known to be relied on until the end.
        let lease = ["--lease", "600"];
        let server = world.serve(port, &lease);
        let (mount, a) = world.narrow_mount(port, "a", transport);
        // So that what waits is the change, and not the look whether the name is there: each has its
        // directory, of which nobody believes that it has no such name while something is made there.
        for directory in ["x", "y", "z", "z/d"] {
            fs::create_dir(a.join(directory)).unwrap();
        }
        let names = ["x/made", "y/opened", "z/e"];
        assert!(names.iter().all(|name| !a.join(name).exists()));
        server.kill();
        let end = |call: &str, signal: Signal| {
            let mut child = waiting(&a, call);
            let pid = Pid::from_child(&child);
            let ((), took) = stalls.timed(|| {
                kill_process(pid, signal).unwrap();
                ends(&mut child);
            });
            assert!(took < Duration::from_secs(5), "{call}: {took:?}");
            (child.wait().unwrap(), took)
        };
        let killed = ["os.statvfs(a)", "os.listdir(a)"];
        let took = killed.iter().cycle().take(6).map(|call| end(call, Signal::KILL).1);
        let fastest = took.min().unwrap();
        assert!(fastest < Duration::from_secs(2), "{fastest:?}");
        let calls = [
            "os.mkdir(a + '/x/made')",
            "os.open(a + '/y/opened', os.O_CREAT | os.O_WRONLY)",
            "os.open(a + '/z/d', os.O_RDONLY); os.listdir(a + '/z/d')",
            "os.rename(a + '/z/d', a + '/z/e')",
        ];
        let mut fastest = Duration::MAX;
        for call in calls {
            let (status, took) = end(call, Signal::ALARM);
            assert!(status.success(), "{call}");
            fastest = fastest.min(took);
        }
        assert!(fastest < Duration::from_millis(1500), "{fastest:?}");
        let server = world.serve(port, &lease);
        eventually("what was asked is done", || {
            a.join("x/made").is_dir() && a.join("y/opened").is_file() && a.join("z/e").is_dir()
        });
        assert!(!a.join("z/d").exists());
        fs::remove_file(a.join("y/opened")).unwrap();
        mount.stop();
        server.stop();
        world.assert_sound();
    }
}

/// The kernel has heard that the changes were interrupted, and keeps what it knew of the directories.
#[test]
fn what_a_killed_program_has_changed_is_seen_when_it_is_done() {
    enable_uring();
    for transport in TRANSPORTS {
        let world = World::new();
        let port = free_port();
        let server = world.serve(port, &["--lease", "600"]);
        let (mount, a) = world.narrow_mount(port, "a", transport);
        for directory in ["v", "w", "x", "y", "y/goes", "z", "z/moves"] {
            fs::create_dir(a.join(directory)).unwrap();
        }
        fs::write(a.join("kept"), "").unwrap();
        fs::hard_link(a.join("kept"), a.join("w/goes")).unwrap();
        fs::write(a.join("v/open"), "").unwrap();
        let open = fs::File::open(a.join("v/open")).unwrap();
        assert!(!a.join("x/made").exists() && !a.join("there").exists());
        let links = |name: &str| fs::metadata(a.join(name)).unwrap().nlink();
        assert_eq!(["kept", "x", "y", "z"].map(links), [2, 2, 3, 3]);
        server.halt(true);
        let calls = [
            "os.mkdir(a + '/x/made')",
            "os.rmdir(a + '/y/goes')",
            "os.unlink(a + '/v/open')",
            "os.unlink(a + '/w/goes')",
            "os.rename(a + '/z/moves', a + '/there')",
        ];
        for call in calls {
            let mut child = waiting(&a, call);
            kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
            ends(&mut child);
        }
        server.halt(false);
        eventually("what was asked is done", || {
            let is_gone = |name: &str| !a.join(name).exists();
            let gone = ["v/open", "w/goes", "y/goes", "z/moves"];
            a.join("x/made").is_dir() && gone.into_iter().all(is_gone)
        });
        eventually("links are what was made of them", || {
            let of_open = open.metadata().unwrap().nlink();
            (of_open, ["kept", "x", "y", "z"].map(links)) == (0, [1, 3, 2, 2])
        });
        drop(open);
        mount.stop();
        server.stop();
        world.assert_sound();
    }
}

#[test]
fn a_mount_whose_server_is_gone_can_be_ended() {
    enable_uring();
    let (ways, stalls) = (["umount -l", "umount -f", "kill"], Stalls::start());
    for (way, transport) in ways.iter().zip(TRANSPORTS.iter().cycle()) {
        let world = World::new();
        let port = free_port();
        let server = world.serve(port, &[]);
        let (mount, a) = world.narrow_mount(port, "a", transport);
        server.kill();
        let mut uses = waiting(&a, "os.stat(a + '/x')");
        let target = if *way == "kill" { mount.pid().to_string() } else { quoted(&a) };
        let ((), took) = stalls.timed(|| {
            // With -f the kernel says that it is still in use, and ends its requests.
            let _ = Command::new("sh").args(["-c", &format!("{way} {target}")]).output().unwrap();
            ends(&mut uses);
            mount.ended();
        });
        assert!(took < Duration::from_secs(30), "{way}: {took:?}");
        assert!(!is_mounted(&a) || *way == "umount -f", "{way}");
    }
}

/// A mount whose server is gone is detached, and another one is mounted at its path. If the first is
/// `over` by then, the second has its number.
fn the_next_one_stays(over: bool) {
    let worlds = [World::new(), World::new()];
    let ports = [free_port(), free_port()];
    let servers = [worlds[0].serve(ports[0], &[]), worlds[1].serve(ports[1], &[])];
    let at = worlds[0].short("a");
    fs::create_dir_all(&at).unwrap();
    let mount = |nth: usize| {
        let (server, log) = (address(ports[nth]), worlds[nth].path("a.log"));
        let mount = Process::start(&["mount", "-f", &server, text(&at)], log, None);
        mount.wait_for_event(event::MOUNTED);
        mount
    };
    let [server, other] = servers;
    let first = mount(0);
    let mut open = Some(fs::File::create(at.join("open")).unwrap());
    // The first gives up, too, after some time.
    server.kill();
    sh(Path::new("/"), &format!("umount -l {}", quoted(&at)));
    if over {
        open.take();
    }
    let second = mount(1);
    fs::write(at.join("of the second"), b"x").unwrap();
    first.signal(Signal::TERM);
    first.ended();
    assert_eq!(fs::read(at.join("of the second")).unwrap(), b"x");
    drop(open);
    second.stop();
    other.stop();
}

#[test]
fn a_mount_that_was_detached_leaves_the_next_one_alone() {
    the_next_one_stays(false);
}

#[test]
fn a_mount_that_is_over_leaves_the_next_one_alone_that_has_its_number() {
    the_next_one_stays(true);
}

/// Somebody has a mount in a mount namespace of their own, as a container does.
#[test]
fn a_mount_that_another_namespace_has_ends_with_its_server() {
    let world = World::new();
    let up = world.up(&[]);
    let keep = ["-m", "--propagation", "private", "sh", "-c", "echo here; exec sleep 1000"];
    let holder = || {
        let mut keeper = Command::new("unshare").args(keep).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(keeper.stdout.as_mut().unwrap(), &mut said).unwrap();
        keeper
    };
    let mut elsewhere = holder();
    let said = refused(glint().args(["umount", text(&world.mount_point())]));
    assert!(said.contains(&format!("process {}", elsewhere.id())), "{said}");
    assert!(!is_mounted(&world.mount_point()));
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    up.forget_ended();
    // A server that is told to end does not wait for them.
    let up = world.up(&[]);
    let mut elsewhere = holder();
    up.stop();
    assert!(elsewhere.try_wait().unwrap().is_none());
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    world.assert_sound();
}
