//! Stage of an experiment: servers and mounts of this binary in processes of their own, and
//! directories for them, all gone afterwards.

use super::disk::LoopDisk;
use super::memory::MemoryGroup;
use glint::program;
use rustix::mount::UnmountFlags;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long a process may take until it is ready.
const PATIENCE: Duration = Duration::from_secs(20);

/// Directories and processes of one experiment.
pub(crate) struct Stage {
    directory: PathBuf,
    processes: Vec<(Child, Option<PathBuf>)>,
    /// Processes are in groups of their own: a terminal sends them no signals.
    is_apart: bool,
    /// Where processes are that are started from now on.
    group: Option<Rc<MemoryGroup>>,
    /// After the processes, which have files on them, and before the directory goes.
    disks: Vec<LoopDisk>,
}

/// A server.
pub(crate) struct Served {
    /// HOST:PORT.
    pub address: String,
    /// Process ID.
    pub pid: u32,
}

fn is_mount(path: &Path) -> bool {
    let device = |path: &Path| rustix::fs::stat(path).map(|stat| stat.st_dev).ok();
    path.parent().is_some_and(|parent| device(path).is_some() && device(path) != device(parent))
}

fn end(mut child: Child, mount: Option<PathBuf>) {
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
    }
    let _ = child.wait();
    if let Some(mount) = mount.filter(|mount| is_mount(mount)) {
        let _ = rustix::mount::unmount(mount, UnmountFlags::DETACH);
    }
}

impl Stage {
    /// Below `parent`, which decides which disk is measured.
    pub(crate) fn new(parent: &Path) -> Result<Stage, String> {
        let directory = parent.join(format!("glint-stage-{}", std::process::id()));
        std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        let (processes, disks) = (Vec::new(), Vec::new());
        Ok(Stage { directory, processes, is_apart: false, group: None, disks })
    }

    /// As [`Stage::new`], for an experiment that listens to Ctrl-C: its processes do not hear it,
    /// and are there until the experiment has ended what it does with them.
    pub(crate) fn apart(parent: &Path) -> Result<Stage, String> {
        let mut stage = Stage::new(parent)?;
        stage.is_apart = true;
        Ok(stage)
    }

    /// Has processes that are started from now on join this control group.
    pub(crate) fn join(&mut self, group: Option<&Rc<MemoryGroup>>) {
        self.group = group.cloned();
    }

    /// Makes a disk of so many bytes, mounted at a directory of the stage. Returns whether it reads
    /// and writes around the page cache of the file that it is.
    pub(crate) fn add_disk(&mut self, name: &str, bytes: u64) -> Result<bool, String> {
        let at = self.path(name)?;
        let disk = LoopDisk::new(&self.directory.join(format!("{name}.img")), &at, bytes)?;
        let is_direct = disk.is_direct;
        self.disks.push(disk);
        Ok(is_direct)
    }

    fn spawn(&mut self, mut command: Command, mount: Option<&Path>) -> Result<u32, String> {
        if let Some(group) = &self.group {
            command = group.wrap(&command);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if self.is_apart {
            command.process_group(0);
        }
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|error| program::not_started(&program, &error))?;
        let pid = child.id();
        self.processes.push((child, mount.map(Path::to_owned)));
        Ok(pid)
    }

    /// A directory of the stage.
    pub(crate) fn path(&self, name: &str) -> Result<PathBuf, String> {
        let path = self.directory.join(name);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    fn wait(&mut self, what: &str, mut is_ready: impl FnMut() -> bool) -> Result<(), String> {
        let start = Instant::now();
        while !is_ready() {
            let last = self.processes.last_mut();
            let ended = last.is_some_and(|(child, _)| !matches!(child.try_wait(), Ok(None)));
            if ended || start.elapsed() > PATIENCE {
                return Err(format!("{what} did not start; try the same command by hand"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Runs `glint up`, or `glint bench null-mount` without data.
    pub(crate) fn mount(
        &mut self,
        name: &str,
        data: bool,
        options: &str,
    ) -> Result<PathBuf, String> {
        let at = self.path(name)?;
        let mut command = Command::new(program::path("glint"));
        if data {
            let data = self.path(&format!("{name}-data"))?;
            command.arg("up").arg("--data").arg(data).arg("--mount").arg(&at);
        } else {
            command.args(["bench", "null-mount"]).arg(&at);
        }
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        self.mounted(name, at, command)
    }

    /// Runs `glint bench null-mount` with the names and sizes of all files in `like`.
    pub(crate) fn mount_null_like(&mut self, name: &str, like: &Path) -> Result<PathBuf, String> {
        let at = self.path(name)?;
        let mut command = Command::new(program::path("glint"));
        command.args(["bench", "null-mount"]).arg(&at).arg("--like").arg(like);
        self.mounted(name, at, command)
    }

    /// Runs `glint mount`, or with `pages` one whose client counts dirty pages to decide what to
    /// send.
    pub(crate) fn mount_remote(
        &mut self,
        name: &str,
        address: &str,
        pages: bool,
    ) -> Result<PathBuf, String> {
        let at = self.path(name)?;
        let mut command = Command::new(program::path("glint"));
        match pages {
            true => command.args(["bench", "page-counting-mount", address]).arg(&at),
            false => command.args(["mount", "-f", address]).arg(&at),
        };
        self.mounted(name, at, command)
    }

    /// Runs `glint mount` with these options, if there are any.
    pub(crate) fn mount_with(
        &mut self,
        name: &str,
        address: &str,
        options: &str,
    ) -> Result<PathBuf, String> {
        let at = self.path(name)?;
        let mut command = Command::new(program::path("glint"));
        command.args(["mount", "-f", address]).arg(&at);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        self.mounted(name, at, command)
    }

    fn mounted(&mut self, name: &str, at: PathBuf, command: Command) -> Result<PathBuf, String> {
        self.spawn(command, Some(&at))?;
        self.wait(name, || is_mount(&at))?;
        Ok(at)
    }

    /// Process of a mount.
    pub(crate) fn mount_pid(&self, at: &Path) -> Option<u32> {
        let of = self.processes.iter().rfind(|(_, mount)| mount.as_deref() == Some(at));
        of.map(|(child, _)| child.id())
    }

    /// Ends a mount; all that it has still to send is sent then.
    pub(crate) fn unmount(&mut self, at: &Path) {
        let is_it = |(_, mount): &(Child, Option<PathBuf>)| mount.as_deref() == Some(at);
        while let Some(index) = self.processes.iter().rposition(is_it) {
            let (child, mount) = self.processes.remove(index);
            end(child, mount);
        }
    }

    /// Runs `glint serve`, on these cores only if any are named.
    pub(crate) fn serve(
        &mut self,
        name: &str,
        cores: &str,
        more: &[&str],
    ) -> Result<Served, String> {
        let glint = program::path("glint");
        let mut command = match cores {
            "" => Command::new(glint),
            cores => {
                let mut command = Command::new("taskset");
                command.args(["-c", cores]).arg(glint);
                command
            }
        };
        command.arg("serve").args(more);
        self.start(name, command, None)
    }

    /// Runs `glint oss`, for the file system that `mds` serves.
    pub(crate) fn serve_osts(&mut self, name: &str, mds: &Served) -> Result<Served, String> {
        let mut command = Command::new(program::path("glint"));
        command.args(["oss", "--mds", &mds.address]);
        self.start(name, command, None)
    }

    /// Runs `glint oss` again, on the data and at the address of one that has ended: clients and
    /// other servers look for it there.
    pub(crate) fn serve_osts_again(
        &mut self,
        name: &str,
        mds: &Served,
        ended: &Served,
    ) -> Result<Served, String> {
        let mut command = Command::new(program::path("glint"));
        command.args(["oss", "--mds", &mds.address]);
        self.start(name, command, Some(&ended.address))
    }

    /// Data directory of a server.
    pub(crate) fn data(&self, name: &str) -> Result<PathBuf, String> {
        self.path(&format!("{name}-data"))
    }

    fn start(
        &mut self,
        name: &str,
        mut command: Command,
        address: Option<&str>,
    ) -> Result<Served, String> {
        let data = self.data(name)?;
        let free = || TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = match address {
            Some(address) => address.to_owned(),
            None => free().map_err(|e| e.to_string())?.to_string(),
        };
        command.arg("--data").arg(data).args(["--listen", &address, "--insecure"]);
        let pid = self.spawn(command, None)?;
        let at = glint::identity::address(&address)?;
        self.wait(name, || glint_net::Remote::ask(&at, "status").is_ok())?;
        Ok(Served { address, pid })
    }

    /// Ends a server; all that it has answered is on its disk then.
    pub(crate) fn stop(&mut self, served: &Served) {
        if let Some(index) = self.processes.iter().position(|(child, _)| child.id() == served.pid) {
            let (child, mount) = self.processes.remove(index);
            end(child, mount);
        }
    }

    /// Kills a server: it says nothing to anybody any more.
    pub(crate) fn kill(&mut self, served: &Served) {
        if let Some(index) = self.processes.iter().position(|(child, _)| child.id() == served.pid) {
            let (mut child, _) = self.processes.remove(index);
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Has a server stand still, or go on.
    pub(crate) fn halt(&self, served: &Served, halts: bool) {
        use rustix::process::Signal;
        let signal = if halts { Signal::STOP } else { Signal::CONT };
        if let Some(pid) = rustix::process::Pid::from_raw(served.pid as i32) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Ends all processes.
    pub(crate) fn clear(&mut self) {
        self.processes.drain(..).rev().for_each(|(child, mount)| end(child, mount));
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.clear();
        self.disks.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Served {
    /// `status` or `stats`.
    pub(crate) fn ask(&self, what: &str) -> Result<Value, String> {
        let address = glint::identity::address(&self.address)?;
        let text = glint_net::Remote::ask(&address, what).map_err(|e| e.to_string())?;
        serde_json::from_str(&text).map_err(|e| e.to_string())
    }

    /// One of its counters.
    pub(crate) fn counter(&self, name: &str) -> Result<u64, String> {
        Ok(self.ask("status")?["counters"][name].as_u64().unwrap_or(0))
    }

    /// Requests that it has received so far, by operation; without those that are no work:
    /// connections, signs of life and the question for these figures.
    pub(crate) fn requests(&self) -> Result<BTreeMap<String, u64>, String> {
        let rows = self.ask("stats")?;
        let received = rows.as_array().ok_or("that is something else than statistics")?.iter();
        let received = received.filter(|row| row["layer"] == "net_queue");
        let counts = received.filter_map(|row| Some((row["op"].as_str()?, row["count"].as_u64()?)));
        let is_work = |op: &str| !["hello", "ping", "stats"].contains(&op);
        Ok(counts.filter(|(op, _)| is_work(op)).map(|(op, n)| (op.to_owned(), n)).collect())
    }

    /// Service threads of the server, in /proc.
    fn threads(&self) -> Vec<PathBuf> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let serves = |path: &PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.starts_with("serve-"))
        };
        tasks.flatten().map(|task| task.path()).filter(serves).collect()
    }

    /// Voluntary context switches of its service threads so far: how often one slept.
    pub(crate) fn sleeps(&self) -> u64 {
        let of_thread = |path: &PathBuf| {
            let status = std::fs::read_to_string(path.join("status")).ok()?;
            let count = status.lines().find_map(|l| l.strip_prefix("voluntary_ctxt_switches:"))?;
            count.trim().parse::<u64>().ok()
        };
        self.threads().iter().filter_map(of_thread).sum()
    }

    /// System calls of its service threads while `work` runs, if perf(1) is there to count.
    pub(crate) fn system_calls(&self, work: impl Fn() -> Result<(), String>) -> Option<f64> {
        let numbers: Vec<String> = self
            .threads()
            .iter()
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        let perf = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-t", &numbers.join(",")])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .ok()?;
        // perf has to attach first.
        std::thread::sleep(Duration::from_millis(300));
        work().ok()?;
        let pid = rustix::process::Pid::from_raw(perf.id() as i32)?;
        rustix::process::kill_process(pid, rustix::process::Signal::INT).ok()?;
        let text = String::from_utf8(perf.wait_with_output().ok()?.stderr).ok()?;
        text.lines().find(|line| line.contains("sys_enter"))?.split(',').next()?.parse().ok()
    }
}
