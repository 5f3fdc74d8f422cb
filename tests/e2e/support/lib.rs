//! A file system of the real binary on real mounts, for the end-to-end tests.
//!
//! Promises: whatever a test starts, mounts or writes is gone when it ends, also when it fails. A
//! test waits for what it needs, not for a time.
//!
//! Does not know: what is inside of the binary. The tests need root and /dev/fuse, and say so when
//! they miss them.

#![allow(missing_docs, clippy::new_without_default, reason = "only the suites use it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

pub mod binary;
pub mod copies;
pub mod disk;
pub mod events;
/// What tests have of this machine for themselves, and other hosts.
pub mod host {
    pub mod claims;
    pub mod memory_limit;
    pub mod mount_helper;
    pub mod namespace;
    pub mod switch;
}
pub mod load;
pub mod mapped;
pub mod pair;
pub mod paths;
pub mod random;
pub mod stalls;
pub mod tail;

use glint_telemetry::event;
pub use host::claims::{claim, free_port};
pub use host::mount_helper::MountHelper;
pub use host::{claims, namespace, switch};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a start, a stop or a reconnection may take at most, on a machine that has much else
/// to do.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// The binary under test.
pub fn glint() -> Command {
    Command::new(binary::glint())
}

/// A directory on the disk of the build, removed at the end.
pub fn scratch() -> tempfile::TempDir {
    // The runner of the tests cleans up in one of its own.
    let builds = std::env::var_os("E2E_SCRATCH")
        .map_or_else(|| binary::build_directory().with_file_name("tmp"), PathBuf::from);
    fs::create_dir_all(&builds).unwrap();
    tempfile::Builder::new().prefix("e2e-").tempdir_in(builds).unwrap()
}

/// How much of something a test does: more in `make long`, where the runner says so.
pub fn at_length(usually: u64, long: u64) -> u64 {
    if std::env::var_os("E2E_LONG").is_some() { long } else { usually }
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a shell script that must succeed, and returns what it printed.
pub fn sh(directory: &Path, script: &str) -> String {
    let script = format!("set -euo pipefail\n{script}");
    let output = run(Command::new("bash").args(["-c", &script]).current_dir(directory));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with one message and no panic; returns the message.
pub fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{command:?} succeeded");
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Whether the other side has closed a connection, as a read of it says; a time-out says nothing.
pub fn is_closed(read: std::io::Result<usize>) -> bool {
    read.map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |n| n == 0)
}

/// Pause before the next look of many: a twentieth of the time so far, as some start a process.
fn pause(start: Instant) {
    let part = start.elapsed() / 20;
    std::thread::sleep(part.clamp(Duration::from_millis(10), Duration::from_millis(200)));
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        pause(start);
    }
}

/// Waits until nothing is left that `one_left` names.
pub fn eventually_none(what: &str, mut one_left: impl FnMut() -> Option<String>) {
    let start = Instant::now();
    while let Some(left) = one_left() {
        assert!(start.elapsed() < PATIENCE, "{what}, still after {PATIENCE:?}: {left}");
        pause(start);
    }
}

/// How many chains there are, and how many are whole; `target` is a mount or a server.
pub fn chains(target: &str) -> serde_json::Value {
    let output = run(glint().args(["status", "--json", target]));
    let mut status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    status["chains"].take()
}

/// Waits until all members of all chains serve, those that were given up, too.
pub fn wait_until_whole(target: &str) {
    eventually("all members serve", || {
        let chains = chains(target);
        chains["count"] != 0 && chains["not_serving"].as_array().is_some_and(Vec::is_empty)
    });
}

/// How many objects a data directory has, and how much they hold. They may go while they are
/// counted, as find(1) does not like it.
pub fn objects(data: &Path) -> (u64, u64) {
    fn add(directory: &Path, sum: &mut (u64, u64)) {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => add(&entry.path(), sum),
                Ok(meta) => *sum = (sum.0 + 1, sum.1 + meta.len()),
                Err(_) => {}
            }
        }
    }
    let mut sum = (0, 0);
    for ost in fs::read_dir(data).unwrap().flatten() {
        add(&ost.path().join("objects"), &mut sum);
    }
    sum
}

/// Whether a file system is mounted exactly there.
pub fn is_mounted(path: &Path) -> bool {
    paths::mount_line(path).is_some()
}

/// A process of Glint, with its log.
pub struct Process {
    child: Option<Child>,
    log: PathBuf,
    mount: Option<PathBuf>,
}

impl Process {
    /// Starts `glint` with these arguments.
    pub fn start(arguments: &[&str], log: PathBuf, mount: Option<&Path>) -> Process {
        Process::start_as(glint().args(arguments), log, mount)
    }

    /// Starts a command that becomes `glint`.
    pub fn start_as(command: &mut Command, log: PathBuf, mount: Option<&Path>) -> Process {
        assert!(rustix::process::geteuid().is_root(), "the end-to-end tests need root");
        let file = fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Process { child: Some(child), log, mount: mount.map(Path::to_owned) }
    }

    /// Log of the process so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where it logs.
    pub fn log_path(&self) -> PathBuf {
        self.log.clone()
    }

    /// Waits for a sentence that a user has to read.
    pub fn wait_for(&self, text: &str) {
        self.wait_until_logged(text, |log| log.contains(text));
    }

    /// Waits until the log is as it should be, which is called `what`.
    fn wait_until_logged(&self, what: &str, is_logged: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            // Before the log is read: what ends logs first.
            let has_ended = self.has_ended();
            let log = self.log();
            if is_logged(&log) {
                return;
            }
            assert!(!has_ended, "ended before {what:?}: {log}");
            assert!(start.elapsed() < PATIENCE, "no {what:?} in: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn has_ended(&self) -> bool {
        use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
        let pid = Pid::from_raw(self.pid() as i32).unwrap();
        let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), looks).unwrap().is_some()
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Halts it, or lets it go on.
    pub fn halt(&self, halt: bool) {
        use rustix::process::Signal;
        self.signal(if halt { Signal::STOP } else { Signal::CONT });
    }

    /// As Ctrl-C does; it must end cleanly.
    pub fn stop(mut self) {
        self.signal(rustix::process::Signal::INT);
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        assert!(!self.log().contains("panicked"), "{}", self.log());
        if let Some(mount) = &self.mount {
            assert!(!is_mounted(mount), "still mounted after a clean end");
        }
    }

    /// The process was told to end, and must do so cleanly.
    pub fn forget_ended(mut self) {
        let status = self.child.take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// The process ends by itself, as the commands that it runs do. Returns how.
    pub fn ends(mut self) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let mut status = None;
        eventually("the process ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// The process ends by itself soon, in whatever way.
    pub fn ended(mut self) {
        let mut child = self.child.take().unwrap();
        eventually("the end of a process", || child.try_wait().unwrap().is_some());
    }

    /// The process is dead already; its mount is left as it is.
    pub fn forget(mut self) {
        self.child.take().unwrap().wait().unwrap();
        self.mount = None;
    }

    /// As a crash does.
    pub fn kill(mut self) {
        self.kill_and_stay_mounted();
    }

    /// Kills it with SIGKILL. What it mounted stays until this is dropped: who works there gets
    /// errors, and makes nothing in the directory below.
    pub fn kill_and_stay_mounted(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            if std::thread::panicking() {
                eprintln!("--- log of {}:\n{}", child.id(), self.log());
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(mount) = &self.mount {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

/// A file system in a directory of its own.
pub struct World {
    dir: tempfile::TempDir,
    /// Where it is mounted: tests bind sockets there, whose paths have 108 bytes, wherever the
    /// build is.
    mounts: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        let mounts = tempfile::Builder::new().prefix("glint-").tempdir().unwrap();
        World { dir: scratch(), mounts }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path of the log of a process that starts. That of its earlier life stays, as `NAME.N.log`.
    pub fn new_log(&self, name: &str) -> PathBuf {
        let log = self.path(name);
        if log.exists() {
            let earlier = (1..).map(|n| log.with_extension(format!("{n}.log")));
            fs::rename(&log, earlier.into_iter().find(|path| !path.exists()).unwrap()).unwrap();
        }
        log
    }

    /// A short path, on another disk perhaps.
    pub fn short(&self, name: &str) -> PathBuf {
        self.mounts.path().join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.path("data")
    }

    pub fn mount_point(&self) -> PathBuf {
        self.short("mnt")
    }

    /// `glint up` with more arguments; returns when the mount is ready.
    pub fn up(&self, more: &[&str]) -> Process {
        let (data, mount) = (self.data(), self.mount_point());
        let mut arguments = vec!["up", "--data", text(&data), "--mount", text(&mount)];
        arguments.extend(more);
        let log = self.new_log("up.log");
        let process = Process::start(&arguments, log, Some(&mount));
        process.wait_for_event(event::MOUNTED);
        process
    }

    /// `glint serve` on a port, with more arguments.
    pub fn serve(&self, port: u16, more: &[&str]) -> Process {
        self.serve_at(&address(port), more)
    }

    /// `glint serve` at any address.
    pub fn serve_at(&self, address: &str, more: &[&str]) -> Process {
        let data = self.data();
        let mut arguments = vec!["serve", "--data", text(&data), "--listen", address];
        arguments.extend(secured(more));
        arguments.extend(more);
        let log = self.new_log("serve.log");
        let process = Process::start(&arguments, log, None);
        process.wait_for_event(event::SERVING);
        process
    }

    /// `glint oss` number `n` of this world, for the file system at a port.
    pub fn oss(&self, n: u16, port: u16, mds: u16, more: &[&str]) -> Process {
        let (data, listen, mds) = (self.oss_data(n), address(port), address(mds));
        let mut arguments = vec!["oss", "--data", text(&data), "--listen", &listen, "--mds", &mds];
        arguments.extend(secured(more));
        arguments.extend(more);
        let log = self.new_log(&format!("oss{n}.log"));
        let process = Process::start(&arguments, log, None);
        process.wait_for_event(event::SERVING);
        process
    }

    pub fn oss_data(&self, n: u16) -> PathBuf {
        self.path(&format!("oss{n}"))
    }

    /// `glint mount` of a port at a directory of this world.
    pub fn mount(&self, port: u16, name: &str, more: &[&str]) -> (Process, PathBuf) {
        self.mount_from(&address(port), name, more)
    }

    /// `glint mount` of any address.
    pub fn mount_from(&self, address: &str, name: &str, more: &[&str]) -> (Process, PathBuf) {
        let directory = self.short(name);
        fs::create_dir_all(&directory).unwrap();
        let mut arguments = vec!["mount", "-f", address, text(&directory)];
        arguments.extend(more);
        let log = self.new_log(&format!("{name}.log"));
        let process = Process::start(&arguments, log, Some(&directory));
        process.wait_for_event(event::MOUNTED);
        (process, directory)
    }

    /// A mount with two entries for each queue, or two tasks.
    pub fn narrow_mount(&self, port: u16, name: &str, transport: &str) -> (Process, PathBuf) {
        let (log, directory) = (self.new_log(&format!("{name}.log")), self.short(name));
        fs::create_dir_all(&directory).unwrap();
        let (address, options) = (address(port), format!("{transport},nowbmeta"));
        let arguments = ["mount", "-f", &address, text(&directory), "-o", &options];
        let mut command = glint();
        command.args(arguments).env("GLINT_FUSE_DEPTH", "2");
        let process = Process::start_as(&mut command, log, Some(&directory));
        process.wait_for_event(event::MOUNTED);
        (process, directory)
    }

    /// `glint fsck` of the stopped file system must find nothing.
    pub fn assert_sound(&self) {
        self.assert_sound_at(&self.data());
    }

    /// Has `glint fsck` remove objects that belong to no file; it must find nothing else.
    pub fn remove_objects_without_file(&self) {
        let data = self.data();
        let mut fsck = glint();
        fsck.args(["fsck", "--repair", "--json", "--data", text(&data)]);
        let output = fsck.output().unwrap();
        // Of fsck(8): nothing was wrong, or it was put right.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut findings = report.lines().filter(|line| line.contains("\"finding\":"));
        assert!(findings.all(|line| line.contains("belongs to no file")), "{report}");
    }

    /// `glint fsck` of another data directory must find nothing.
    pub fn assert_sound_at(&self, data: &Path) {
        self.assert_sound_with(data, &[]);
    }

    /// `glint fsck` of a data directory and those of servers of OSTs must find nothing.
    pub fn assert_sound_with(&self, data: &Path, osses: &[u16]) {
        let osses = osses.iter().flat_map(|n| ["--oss".into(), self.oss_data(*n)]);
        let output = run(glint().args(["fsck", "--json", "--data", text(data)]).args(osses));
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(report.contains("\"findings\":0"), "{report}");
        assert!(!report.contains("\"untold\"") || report.contains("\"untold\":0"), "{report}");
    }
}

impl Drop for World {
    /// Leaves the logs to the runner of the tests, which looks at them when the test has ended.
    fn drop(&mut self) {
        let Some(scratch) = std::env::var_os("E2E_SCRATCH") else { return };
        let name = self.dir.path().file_name().unwrap().to_string_lossy().into_owned();
        let kept = Path::new(&scratch).join(format!("logs-of-{name}"));
        let entries = fs::read_dir(self.dir.path()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".log")) {
            // What cannot be moved is lost; a test does not fail for that.
            let _ = fs::create_dir_all(&kept);
            let _ = fs::rename(entry.path(), kept.join(entry.file_name()));
        }
    }
}

/// Options that a server which listens at a port needs beside `more`.
pub fn secured(more: &[&str]) -> &'static [&'static str] {
    let is_said = more.iter().any(|word| ["--cert", "--insecure"].contains(word));
    if is_said { &[] } else { &["--insecure"] }
}

/// What a process says at the address of its `--metrics`.
pub fn scrape(metrics: &str) -> String {
    let mut scraped = String::new();
    let mut http = std::net::TcpStream::connect(metrics).unwrap();
    http.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    http.read_to_string(&mut scraped).unwrap();
    scraped
}

pub fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Both ways in which requests come from the kernel.
pub const TRANSPORTS: [&str; 2] = ["transport=uring", "transport=devfuse"];

/// Enables FUSE over io_uring, where the kernel has it.
pub fn enable_uring() -> bool {
    let switch = "/sys/module/fuse/parameters/enable_uring";
    fs::write(switch, "Y").is_ok()
}
