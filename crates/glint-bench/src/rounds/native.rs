//! A round on the client library, without a kernel in between: with the servers in
//! this process, or over TCP.

use super::{BenchTarget, Operation, Round};
use crate::sample::Sample;
use futures_util::StreamExt;
use glint_client::{Caller, Client, Make, Vfs};
use glint_net::{InProcess, Remote, RemoteOptions};
use glint_proto::{FileType, FsResult, Ino, OpenFlags, RenameFlags};
use glint_server::data_dir::{DataDir, Role};
use glint_server::{MdsServer, RunningMds, Settings};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::Instant;

/// The library with the servers in this process, on a file system of its own.
pub(crate) struct InProcessTarget {
    client: Arc<Client<InProcess<MdsServer>>>,
    directory: Ino,
    running: Option<RunningMds>,
    path: PathBuf,
}

/// The library over TCP.
pub(crate) struct RemoteTarget {
    clients: Vec<Arc<Client<Remote>>>,
    directory: Ino,
    name: String,
}

fn directory_name() -> String {
    format!("glint-bench-{}", std::process::id())
}

fn make(kind: FileType, permissions: u32) -> Make<'static> {
    Make { mode: kind.mode_bits() | permissions, umask: 0o22, rdev: 0, target: b"" }
}

/// The client library, connected to a server.
pub(crate) fn connect(address: &str) -> Result<Client<Remote>, String> {
    let mount_point = "(benchmark)".into();
    let options = RemoteOptions { address: glint::identity::address(address)?, mount_point };
    let remote = Remote::connect(options).map_err(|e| format!("server {address}: {e}"))?;
    Ok(Client::new(remote, false))
}

impl InProcessTarget {
    /// Makes a file system in a new directory below `parent`.
    pub(crate) fn new(parent: &Path) -> Result<InProcessTarget, Box<dyn std::error::Error>> {
        let path = parent.join(format!("{}-data", directory_name()));
        let running = RunningMds::start(
            DataDir::open_or_create(&path, Some(1), Role::Mds)?,
            Settings::default(),
        )?;
        let client = Arc::new(Client::new(InProcess::new(running.server.clone()), false));
        let directory = on_a_runtime(make_directory(&*client))??;
        Ok(InProcessTarget { client, directory, running: Some(running), path })
    }
}

impl Drop for InProcessTarget {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.shut_down();
        }
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl RemoteTarget {
    /// Connects so many clients to a server.
    pub(crate) fn new(
        address: &str,
        clients: u64,
    ) -> Result<RemoteTarget, Box<dyn std::error::Error>> {
        let connect = |_| connect(address).map(Arc::new);
        let clients = (0..clients).map(connect).collect::<Result<Vec<_>, _>>()?;
        let directory = on_a_runtime(make_directory(&*clients[0]))??;
        Ok(RemoteTarget { clients, directory, name: directory_name() })
    }
}

impl Drop for RemoteTarget {
    fn drop(&mut self) {
        let _ = on_a_runtime(remove_directory(&*self.clients[0], self.directory, &self.name));
    }
}

impl BenchTarget for InProcessTarget {
    fn run(&mut self, round: Round) -> Result<Sample, Box<dyn std::error::Error>> {
        run_round(std::slice::from_ref(&self.client), self.directory, round)
    }
}

impl BenchTarget for RemoteTarget {
    fn run(&mut self, round: Round) -> Result<Sample, Box<dyn std::error::Error>> {
        run_round(&self.clients, self.directory, round)
    }
}

fn on_a_runtime<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    Ok(glint_net::runtime(None)?.block_on(future))
}

async fn make_directory(fs: &impl Vfs) -> FsResult<Ino> {
    let name = directory_name();
    let make = make(FileType::Directory, 0o755);
    Ok(fs.make(&Caller::ROOT, Ino::ROOT, name.as_bytes(), make).await?.attr.ino)
}

async fn remove_directory(fs: &impl Vfs, directory: Ino, name: &str) -> FsResult<()> {
    let handle = fs.opendir(&Caller::ROOT, directory).await?;
    loop {
        let page = fs.readdir(&Caller::ROOT, handle, 2, 64 << 10, false).await?;
        if page.entries.is_empty() {
            break;
        }
        for entry in page.entries {
            if entry.dirent_type == FileType::Directory.dirent_type() {
                fs.rmdir(&Caller::ROOT, directory, &entry.name).await?;
            } else {
                fs.unlink(&Caller::ROOT, directory, &entry.name).await?;
            }
        }
    }
    fs.release(handle).await?;
    fs.rmdir(&Caller::ROOT, Ino::ROOT, name.as_bytes()).await
}

fn run_round<F: Vfs>(
    clients: &[Arc<F>],
    directory: Ino,
    round: Round,
) -> Result<Sample, Box<dyn std::error::Error>> {
    if round.op.needs_files() {
        on_a_runtime(async {
            for index in round.from..round.from + round.count {
                one(&*clients[0], directory, Operation::Mknod, &format!("f{index}")).await?;
            }
            FsResult::Ok(())
        })??;
    }
    let barrier = Arc::new(Barrier::new(round.procs as usize + 1));
    let threads: Vec<_> = (0..round.procs)
        .map(|index| {
            let fs = clients[index as usize % clients.len()].clone();
            let (barrier, share) = (barrier.clone(), round.share(index));
            std::thread::spawn(move || -> Result<Sample, String> {
                let names: Vec<String> =
                    (share.0..share.0 + share.1).map(|index| format!("f{index}")).collect();
                let work = async {
                    let mut sample = Sample::default();
                    barrier.wait();
                    let timed = async |name: &String| {
                        let start = Instant::now();
                        one(&*fs, directory, round.op, name).await?;
                        FsResult::Ok(start.elapsed().as_nanos() as u64)
                    };
                    let all = futures_util::stream::iter(names.iter().map(timed));
                    let mut all = all.buffer_unordered(round.outstanding as usize);
                    while let Some(nanos) = all.next().await {
                        sample.record(nanos?);
                    }
                    FsResult::Ok(sample)
                };
                on_a_runtime(work).map_err(|e| e.to_string())?.map_err(|e| e.to_string())
            })
        })
        .collect();
    barrier.wait();
    let start = Instant::now();
    let mut sample = Sample::default();
    for thread in threads {
        let part = thread.join().map_err(|_| "a worker panicked")??;
        sample.merge(&part);
    }
    sample.set_seconds(start.elapsed().as_secs_f64());
    Ok(sample)
}

async fn one(fs: &impl Vfs, directory: Ino, op: Operation, name: &str) -> FsResult<()> {
    let (root, name) = (&Caller::ROOT, name.as_bytes());
    match op {
        Operation::Open => {
            let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
            let make = make(FileType::Regular, 0o644);
            let open = fs.create(root, directory, name, make, flags).await?;
            fs.release(open.handle).await
        }
        Operation::Mknod => {
            fs.make(root, directory, name, make(FileType::Regular, 0o644)).await.map(drop)
        }
        Operation::Mkdir => {
            fs.make(root, directory, name, make(FileType::Directory, 0o755)).await.map(drop)
        }
        Operation::Unlink => fs.unlink(root, directory, name).await.map(drop),
        Operation::Stat => fs.lookup(root, directory, name).await.map(drop),
        Operation::Read => {
            let found = fs.lookup(root, directory, name).await?;
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let open = fs.open(root, found.attr.ino, flags).await?;
            fs.release(open.handle).await
        }
        Operation::Rename => {
            let new = [name, b"r"].concat();
            let (from, to) = ((directory, name), (directory, new.as_slice()));
            fs.rename(root, from, to, RenameFlags::default()).await.map(drop)
        }
    }
}
