//! The entrance of a fuzzer that speaks as a client with a limited certificate: its bytes decide
//! what is said, to which server, and when that loses power.

use crate::hostile::{self, Dice, HOSTILE, Hostile};
use crate::scenario::{check, mount, text};
use crate::workload::{Fs, list};
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{self, Hosts, MDS};
use glint_client::{Caller, Make, Vfs, WriteHow};
use glint_proto::{Attr, FsResult, Ino, Layout, OpenFlags};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// The machine of who looks on.
const WITNESS: Machine = Machine(10);
const LIMIT: Duration = Duration::from_secs(3600);
const SECRET: &[u8] = b"what nobody else reads or changes";

/// Decisions of a fuzzer.
struct Bytes {
    all: Vec<u8>,
    at: Cell<usize>,
}

impl Dice for Bytes {
    fn roll(&self, limit: u64) -> Option<u64> {
        let count = if limit <= 256 { 1 } else { 8 };
        let bytes = self.all.get(self.at.get()..self.at.get() + count)?;
        self.at.set(self.at.get() + count);
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)) % limit.max(1))
    }
}

/// Files of others, as they were before the attack.
struct Theirs {
    fs: Fs,
    files: Vec<Attr>,
    private: Ino,
}

/// A hostile client says what these bytes decide. Panics if anybody else notices.
pub fn hostile(bytes: &[u8]) {
    let bytes = bytes.to_vec();
    // A thread of its own, so that its thread-local connections end with it.
    let result = std::thread::spawn(move || attack(bytes)).join();
    match result {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => panic!("{failure}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn attack(bytes: Vec<u8>) -> Result<(), String> {
    let dice = Rc::new(Bytes { all: bytes, at: Cell::new(0) });
    let executor = Executor::new(1);
    let locks = dice.roll(2) == Some(0);
    let hosts = Hosts::new(&executor, &[1], locks, Layout::default());
    let files = Rc::<RefCell<BTreeSet<Ino>>>::default();
    let main = act(executor.clone(), hosts.clone(), dice, files.clone());
    let result = executor.run(LIMIT, main).and_then(|result| result);
    let result = result.and_then(|()| check(&hosts, &files.borrow(), false));
    executor.end();
    result
}

async fn act(
    executor: Rc<Executor>,
    hosts: Rc<Hosts>,
    dice: Rc<Bytes>,
    files: Rc<RefCell<BTreeSet<Ino>>>,
) -> Result<(), String> {
    hosts.start(MDS);
    let servers = hosts.mds();
    executor.sleep(Duration::from_millis(1)).await;
    let (theirs, home) = at(&executor, WITNESS, async move {
        let fs = mount(&servers, 0).await?;
        let home = hostile::home(&fs).await.map_err(text)?;
        Ok::<_, String>((Theirs::make(fs).await.map_err(text)?, home))
    })
    .await?;
    let theirs = Rc::new(theirs);
    let bound = hostile::limit(&executor.network, HOSTILE, dice.roll(4).unwrap_or_default());
    let mut others: Vec<Ino> = theirs.files.iter().map(|attr| attr.ino).collect();
    others.extend([Ino::ROOT, theirs.private]);
    let hostile = Rc::new(RefCell::new(Some(Hostile::new(dice.clone(), home, bound, others))));
    loop {
        let (world, slot) = (executor.clone(), hostile.clone());
        let Some(mut speaking) = hostile.take() else { return Err("it speaks already".into()) };
        speaking.writable = files.clone();
        let goes_on = at(&executor, HOSTILE, async move {
            let goes_on = speaking.speak(&world, HOSTILE, 40).await;
            slot.replace(Some(speaking));
            goes_on
        })
        .await;
        if goes_on.is_none() {
            break;
        }
        let restart = dice.roll(4);
        if restart == Some(0) || restart == Some(1) {
            hosts.stop(MDS);
            if restart == Some(0) {
                hosts.lose_power(MDS);
            }
            hosts.start(MDS);
            // No process starts faster; who waits to connect again misses few of its runs.
            executor.sleep(Duration::from_millis(20)).await;
        }
    }
    executor.kill(HOSTILE);
    executor.network.cut(Some(HOSTILE));
    let looking = theirs.clone();
    at(&executor, WITNESS, async move { looking.is_as_before().await }).await?;
    // Time for what was removed to be destroyed, and for the dead to be forgotten.
    executor.sleep(3 * hosts::LEASE).await;
    hosts.stop(MDS);
    Ok(())
}

/// Runs something on a machine.
pub(crate) async fn at<T: 'static>(
    executor: &Rc<Executor>,
    machine: Machine,
    task: impl Future<Output = T> + 'static,
) -> T {
    let result = Rc::new(RefCell::new(None));
    let slot = result.clone();
    executor.spawn_on(machine, async move {
        let value = task.await;
        slot.replace(Some(value));
    });
    loop {
        if let Some(value) = result.take() {
            return value;
        }
        executor.sleep(Duration::from_millis(1)).await;
    }
}

impl Theirs {
    async fn make(fs: Fs) -> FsResult<Theirs> {
        let of = |mode| Make { mode, umask: 0, rdev: 0, target: b"" };
        let root = &Caller::ROOT;
        let private = fs.make(root, Ino::ROOT, b"private", of(0o040_700)).await?.attr.ino;
        let mut files = Vec::new();
        for (parent, mode) in [(Ino::ROOT, 0o100_600), (Ino::ROOT, 0o100_644), (private, 0o100_600)]
        {
            let name = format!("file {mode:o}");
            let open = fs.create(root, parent, name.as_bytes(), of(mode), libc::O_RDWR).await?;
            fs.write(open.handle, 0, SECRET, WriteHow::default()).await?;
            fs.fsync(open.handle).await?;
            fs.release(open.handle).await?;
            files.push(open.attr.ino);
        }
        fs.sync().await?;
        let mut theirs = Theirs { fs, files: Vec::new(), private };
        for ino in files {
            theirs.files.push(theirs.attr(ino).await?);
        }
        Ok(theirs)
    }

    /// Attributes that must stay. Others may give a file names where they may, and read it.
    async fn attr(&self, ino: Ino) -> FsResult<Attr> {
        let mut attr = self.fs.getattr(ino).await?.attr;
        (attr.atime, attr.size_on_ost, attr.blocks) = Default::default();
        (attr.mtime, attr.ctime) = Default::default();
        // Who may set attributes of users (`user.`) is asked of the kernel of a client only.
        attr.has_no_xattrs = true;
        Ok(attr)
    }

    async fn is_as_before(&self) -> Result<(), String> {
        for before in &self.files {
            let now = self.attr(before.ino).await.map_err(text)?;
            if now != *before {
                return Err(format!("{now:?} was {before:?}"));
            }
            let flags = OpenFlags { read: true, ..OpenFlags::default() };
            let open = self.fs.open(&Caller::ROOT, before.ino, flags).await.map_err(text)?;
            let mut content = vec![0; 2 * SECRET.len()];
            let len = self.fs.read(open.handle, 0, &mut content, true).await.map_err(text)?;
            if &content[..len] != SECRET {
                return Err(format!("{}: {:?}", before.ino, String::from_utf8_lossy(&content)));
            }
            self.fs.release(open.handle).await.map_err(text)?;
        }
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let root: BTreeSet<String> = names(&["file 100600", "file 100644", "home", "private"]);
        for (directory, want) in [(Ino::ROOT, root), (self.private, names(&["file 100600"]))] {
            let found = list(&self.fs, directory).await.map_err(text)?;
            if found != want {
                return Err(format!("{directory}: {found:?}"));
            }
        }
        Ok(())
    }
}
