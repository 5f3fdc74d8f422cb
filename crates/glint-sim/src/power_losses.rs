//! Small files on a server that loses its power again and again, while one client writes them and
//! others read them.
//!
//! What a client has closed is at the server, and for a while not on stable storage. If it is lost, the
//! client writes it again, before anybody else is given a lock on it; until then the server has what
//! was there before. So data that is read before its lock is granted, beside the request for that, may
//! be old: whoever uses it must know that nobody else could write.
//!
//! Invariant: no client dies here or is cut off for long, and the MDS goes on. So each call has to
//! succeed, and a read finds what was closed before it began, or something newer.

use crate::fuzz::at;
use crate::oracle::runs;
use crate::scenario::{Outcome, alone, begin, text};
use crate::workload::{Fs, make};
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{Hosts, MDS};
use crate::world::lapses::DeafClient;
use crate::world::peers::connect;
use futures_util::future::{try_join_all, try_join3};
use glint_client::{Caller, Vfs, WriteHow};
use glint_proto::lock::Bits;
use glint_proto::{FileType, FsResult, Ino, Layout, OpenFlags};
use glint_telemetry::{Counter, counted_here};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

const ROOT: &Caller = &Caller::ROOT;
/// The server that loses its power. It and that with the MDS have an OST each.
const OSS: usize = 1;
/// Clients that read, of odd numbers: those prefetch nothing, so that they read beside their locks.
const READERS: [u32; 2] = [1, 3];
const WRITER: u32 = 0;
/// Files at that server, and how many are made at most until there are so many.
const FILES: usize = 4;
const TRIES: usize = 100;
/// Bytes of each.
const LEN: usize = 300;
const ROUNDS: u64 = 8;
/// Files that are written in a round, and read meanwhile by each reader, at most.
const WRITTEN_MAX: u64 = 3;
const READ_MAX: u64 = 4;
/// How soon each of that happens, and the loss, and how long it lasts, at most.
const SOON_US: u64 = 60_000;
const DOWN_US: u64 = 200_000;
/// Pauses between rounds, at most: all may be on stable storage after one.
const PAUSE_US: u64 = 3_000_000;
const SOON: Duration = Duration::from_millis(1);
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(600);

/// A file, full of one value.
struct LostFile {
    name: String,
    ino: Ino,
    /// What was closed last, and what was begun last.
    closed: Cell<u8>,
    begun: Cell<u8>,
}

impl LostFile {
    async fn write(&self, fs: &Fs, value: u8) -> FsResult<()> {
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        let handle = fs.open(ROOT, self.ino, flags).await?.handle;
        let written = fs.write(handle, 0, &[value; LEN], WriteHow::default()).await;
        let released = fs.release(handle).await;
        written.and(released)
    }

    /// Looks the file up and reads it.
    async fn read(&self, fs: &Fs) -> FsResult<Vec<u8>> {
        fs.lookup(ROOT, Ino::ROOT, self.name.as_bytes()).await?;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let handle = fs.open(ROOT, self.ino, flags).await?.handle;
        let mut data = vec![0; LEN + 1];
        let read = fs.read(handle, 0, &mut data, true).await;
        let released = fs.release(handle).await;
        data.truncate(read?);
        released.map(|()| data)
    }

    /// Whether it may be read like this by who began when `closed` was what was closed last.
    fn may_be(&self, closed: u8, data: &[u8]) -> bool {
        let newest = self.begun.get().wrapping_sub(closed);
        data.len() == LEN && data.iter().all(|byte| byte.wrapping_sub(closed) <= newest)
    }
}

/// The world of a run.
struct PowerLosses {
    executor: Rc<Executor>,
    hosts: Rc<Hosts>,
    /// Readers do not hear that UNWRITTEN is recalled.
    is_deaf: bool,
    /// The writer, and the readers.
    clients: RefCell<Vec<(Machine, Fs)>>,
    files: RefCell<Vec<Rc<LostFile>>>,
    outcome: Cell<Outcome>,
}

/// Runs one seed in which a server loses its power while small files on it are written and read. An
/// error says what was wrong.
pub fn run_power_losses(seed: u64) -> Result<Outcome, String> {
    alone(move || run_here(seed, false))
}

/// The same on this thread; readers are deaf on purpose.
pub(crate) fn run_here(seed: u64, is_deaf: bool) -> Result<Outcome, String> {
    let executor = Executor::new(seed);
    let world = Rc::new(PowerLosses {
        executor: executor.clone(),
        hosts: Hosts::new(&executor, &[1, 1], true, Layout::default()),
        is_deaf,
        clients: RefCell::default(),
        files: RefCell::default(),
        outcome: Cell::default(),
    });
    let read_before = counted_here(Counter::ReadsBesideLockUsed);
    let result = executor.run(LIMIT, world.clone().main()).and_then(|result| result);
    let mut outcome = world.outcome.get();
    outcome.read_beside_lock = counted_here(Counter::ReadsBesideLockUsed) - read_before;
    outcome.steps = executor.steps();
    outcome.seconds = executor.now().as_secs();
    outcome.next = executor.below(u64::MAX);
    executor.end();
    result.map(|()| outcome)
}

impl PowerLosses {
    async fn main(self: Rc<Self>) -> Result<(), String> {
        self.begin().await?;
        let (writer, readers) = (0, 1..=READERS.len());
        for _ in 0..ROUNDS {
            // The first reader has the writer return its locks. So the next one is told that nobody
            // else may write.
            for reader in readers.clone() {
                self.read_all(reader).await?;
            }
            let reads = readers.clone().map(|reader| self.read_some(reader));
            try_join3(self.lose_power(), self.write_some(writer), try_join_all(reads)).await?;
            self.pause(PAUSE_US).await;
        }
        for reader in readers {
            self.read_all(reader).await?;
        }
        Ok(())
    }

    /// Starts the servers and the clients, and makes the files.
    async fn begin(&self) -> Result<(), String> {
        [MDS, OSS].into_iter().for_each(|host| self.hosts.start(host));
        self.executor.sleep(SOON).await;
        while !self.hosts.have_joined() {
            self.executor.sleep(SOON).await;
        }
        for index in [WRITER].into_iter().chain(READERS) {
            let machine = Machine(10 + index);
            let (executor, hosts) = (self.executor.clone(), self.hosts.clone());
            let is_deaf = self.is_deaf && index != WRITER;
            let mounted = at(&self.executor, machine, async move {
                let connection = connect(&hosts.mds(), index).await?;
                let deaf = is_deaf.then(|| DeafClient::listen(&connection, Bits::UNWRITTEN));
                let fs = begin(connection, index);
                if let Some(deaf) = deaf {
                    deaf.begin(&fs, index, &executor, &hosts);
                }
                Ok::<_, String>(fs)
            });
            let fs = mounted.await?;
            self.clients.borrow_mut().push((machine, fs));
        }
        let (machine, fs) = self.client(0);
        let made = at(&self.executor, machine, async move { make_files(&fs).await });
        self.files.replace(made.await.map_err(text)?.into_iter().map(Rc::new).collect());
        match self.files.borrow().len() {
            FILES => Ok(()),
            count => Err(format!("{count} files are at the server")),
        }
    }

    fn client(&self, number: usize) -> (Machine, Fs) {
        let (machine, fs) = &self.clients.borrow()[number];
        (*machine, fs.clone())
    }

    fn a_file(&self) -> Rc<LostFile> {
        let files = self.files.borrow();
        files[self.executor.below(files.len() as u64) as usize].clone()
    }

    async fn pause(&self, us: u64) {
        self.executor.sleep(Duration::from_micros(self.executor.below(us))).await;
    }

    /// The server loses its power, in most rounds.
    async fn lose_power(&self) -> Result<(), String> {
        self.pause(2 * SOON_US).await;
        if self.executor.one_in(4) {
            return Ok(());
        }
        tracing::debug!(at = ?self.executor.now(), "the server loses its power");
        self.hosts.stop(OSS);
        self.hosts.lose_power(OSS);
        self.pause(DOWN_US).await;
        self.hosts.start(OSS);
        let mut outcome = self.outcome.get();
        outcome.power_losses += 1;
        self.outcome.set(outcome);
        Ok(())
    }

    /// The writer gives some files their next values.
    async fn write_some(&self, writer: usize) -> Result<(), String> {
        for _ in 0..1 + self.executor.below(WRITTEN_MAX) {
            self.pause(SOON_US).await;
            let (file, (machine, fs)) = (self.a_file(), self.client(writer));
            let value = file.begun.get().wrapping_add(1);
            file.begun.set(value);
            let its = file.clone();
            let written = at(&self.executor, machine, async move { its.write(&fs, value).await });
            written.await.map_err(|errno| format!("write {}: {errno}", file.name))?;
            file.closed.set(value);
        }
        Ok(())
    }

    /// A reader reads some files.
    async fn read_some(&self, reader: usize) -> Result<(), String> {
        for _ in 0..1 + self.executor.below(READ_MAX) {
            self.pause(2 * SOON_US).await;
            self.look(reader, &self.a_file()).await?;
        }
        Ok(())
    }

    async fn read_all(&self, reader: usize) -> Result<(), String> {
        let files = self.files.borrow().clone();
        for file in files {
            self.look(reader, &file).await?;
        }
        Ok(())
    }

    /// A reader reads a file, which has to be as it was left.
    async fn look(&self, reader: usize, file: &Rc<LostFile>) -> Result<(), String> {
        let (machine, fs) = self.client(reader);
        let (its, closed) = (file.clone(), file.closed.get());
        let read = at(&self.executor, machine, async move { its.read(&fs).await }).await;
        let data = read.map_err(|errno| format!("read {}: {errno}", file.name))?;
        if file.may_be(closed, &data) {
            return Ok(());
        }
        let (found, newest, now) = (runs(&data), file.begun.get(), self.executor.now());
        let name = &file.name;
        Err(format!(
            "{name} is read as {found} by {machine:?} at {now:?}, not {closed} to {newest}"
        ))
    }
}

/// Makes the files.
async fn make_files(fs: &Fs) -> FsResult<Vec<LostFile>> {
    let mut files = Vec::new();
    for number in 0..TRIES {
        let (name, regular) = (format!("f{number}"), make(FileType::Regular));
        let made = fs.create(ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_WRONLY).await?;
        let (ino, layout) = (made.attr.ino, made.attr.layout);
        fs.write(made.handle, 0, &[0; LEN], WriteHow::default()).await?;
        fs.release(made.handle).await?;
        if usize::from(layout.ost_of(0, 1)) == OSS {
            let (closed, begun) = Default::default();
            files.push(LostFile { name, ino, closed, begun });
        }
        if files.len() == FILES {
            break;
        }
    }
    fs.sync().await?;
    Ok(files)
}
