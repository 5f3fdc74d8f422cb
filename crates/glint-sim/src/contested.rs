//! A file that all workers of all clients write, one after the other, some with an fsync(2) before
//! the next: whatever happens, it holds what was written last, as long as whoever wrote without
//! an fsync lives and is not evicted. Then the next one writes it anew.
//!
//! Invariant: a write begins when the one before it has returned. So what clients say again after
//! a loss of power must not bring back what somebody else has replaced.

use crate::oracle::Troubles;
use crate::workload::{Fs, make};
use crate::world::hosts::LEASE;
use futures_util::lock::Mutex;
use glint_client::{Caller, Handle, Vfs, WriteHow};
use glint_proto::{Errno, FileType, FsResult, Ino, OpenFlags, SetAttr, clock};
use std::cell::{Cell, RefCell};
use std::time::Instant;

const ROOT: &Caller = &Caller::ROOT;
const BYTES: usize = 100;
const WHAT: &str = "the contested file";

/// The file.
pub(crate) struct Contested {
    ino: Ino,
    turn: Mutex<()>,
    /// Values that it may be full of: two after an error was told, and then nobody goes on.
    values: RefCell<Vec<u8>>,
    /// The last write may be only at the client that made it.
    unsynced: Cell<bool>,
    /// The last writer is gone, perhaps with its data: anything may be in the file, until it is
    /// written anew and durable. From then on nothing of the lost writer comes back.
    in_doubt: Cell<bool>,
    /// When a server was last out of reach, and when an OSS last lost what it had not synced. Both
    /// together may take what was not synced: a client that gives its lock to others does not wait
    /// for an OSS longer than half a lease (docs/contract.md).
    outage: Cell<Option<Instant>>,
    loss: Cell<Option<Instant>>,
    /// Clients keep locks; without them an OST does not know who writes after whom.
    locks: bool,
}

/// How to write.
#[derive(Clone, Copy)]
pub(crate) struct Anew {
    pub(crate) truncate: bool,
    pub(crate) sync: bool,
}

impl Contested {
    pub(crate) async fn make(fs: &Fs, locks: bool) -> Result<Contested, String> {
        let text = |error: Errno| format!("the contested file: {error}");
        let regular = make(FileType::Regular);
        let made = fs.create(ROOT, Ino::ROOT, b"contested", regular, libc::O_RDWR).await;
        let open = made.map_err(text)?;
        fs.write(open.handle, 0, &[0; BYTES], WriteHow::default()).await.map_err(text)?;
        fs.release(open.handle).await.map_err(text)?;
        fs.sync().await.map_err(text)?;
        let values = RefCell::new(vec![0]);
        let (unsynced, in_doubt) = (Cell::new(false), Cell::new(false));
        let (ino, turn) = (open.attr.ino, Mutex::default());
        let (outage, loss) = (Cell::new(None), Cell::new(None));
        Ok(Contested { ino, turn, values, unsynced, in_doubt, outage, loss, locks })
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// Whether a server was out of reach until lately, so that a client may have given up what it had
    /// not made durable.
    pub(crate) fn had_outage(&self) -> bool {
        self.outage.get().is_some_and(|then| clock::since(then) < 2 * LEASE)
    }

    /// A server is out of reach from now on, for a while.
    pub(crate) fn note_outage(&self) {
        self.outage.set(Some(clock::now()));
        self.doubt();
    }

    /// An OSS has lost what it had not synced.
    pub(crate) fn note_loss(&self) {
        self.loss.set(Some(clock::now()));
        self.doubt();
    }

    fn doubt(&self) {
        let is_recent = |when: &Cell<Option<Instant>>| {
            when.get().is_some_and(|then| clock::since(then) < 2 * LEASE)
        };
        if self.unsynced.get() && is_recent(&self.outage) && is_recent(&self.loss) {
            self.in_doubt.set(true);
        }
    }

    /// Result of a call, if that is no error; an error has to be one that the troubles explain, or
    /// that a client gave up what it had written: a server that was out of reach did not make it
    /// durable in half a lease, and somebody else wanted the file.
    fn told<T>(&self, troubles: &Troubles, got: FsResult<T>) -> Result<Option<T>, String> {
        if matches!(got, Err(Errno::EIO)) && self.had_outage() {
            self.in_doubt.set(true);
            return Ok(None);
        }
        troubles.told(WHAT, Some(self.ino), got)
    }

    /// A client has died or is being evicted, perhaps with what it had written.
    pub(crate) fn lose_a_client(&self) {
        if self.unsynced.get() {
            self.in_doubt.set(true);
        }
    }

    /// A client looks at it, as long as it is not `gone`, and writes something else if `anew` says
    /// how.
    pub(crate) async fn turn(
        &self,
        fs: &Fs,
        gone: &Cell<bool>,
        anew: Option<Anew>,
        troubles: &Troubles,
    ) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        if gone.get() {
            return Ok(());
        }
        let took = self.take_turn(fs, anew, troubles).await;
        if gone.get() {
            self.in_doubt.set(true);
            return Ok(());
        }
        took
    }

    /// A client writes it and leaves it open, so that it has not sent what it wrote.
    pub(crate) async fn leave_open(
        &self,
        fs: &Fs,
        gone: &Cell<bool>,
        troubles: &Troubles,
    ) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        let values = self.values.borrow().clone();
        let ([value], false) = (&values[..], gone.get() || self.in_doubt.get()) else {
            return Ok(());
        };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let open = fs.open(ROOT, self.ino, flags).await;
        let Some(open) = self.told(troubles, open)? else { return Ok(()) };
        let anew = Some(Anew { truncate: false, sync: false });
        let done = self.use_open(fs, open.handle, *value, anew, troubles).await;
        if gone.get() {
            self.in_doubt.set(true);
            return Ok(());
        }
        if let Some(value) = done? {
            self.values.replace(vec![value]);
        }
        Ok(())
    }

    async fn take_turn(
        &self,
        fs: &Fs,
        anew: Option<Anew>,
        troubles: &Troubles,
    ) -> Result<(), String> {
        let is_in_doubt = self.in_doubt.get();
        let values = self.values.borrow().clone();
        let (value, anew) = match (&values[..], anew) {
            // Whatever was begun is done anew, and to its end. Without locks whoever is gone may
            // still bring back what it wrote, as long as it is not evicted.
            ([.., value], Some(_)) if is_in_doubt && self.locks => {
                (*value, Some(Anew { truncate: false, sync: true }))
            }
            ([value], anew) if !is_in_doubt => (*value, anew),
            _ => return Ok(()),
        };
        let flags = OpenFlags { read: true, write: true, ..OpenFlags::default() };
        let open = fs.open(ROOT, self.ino, flags).await;
        let Some(open) = self.told(troubles, open)? else { return Ok(()) };
        let done = self.use_open(fs, open.handle, value, anew, troubles).await?;
        let released = self.told(troubles, fs.release(open.handle).await)?;
        if let (Some(value), Some(())) = (done, released) {
            self.values.replace(vec![value]);
            if is_in_doubt && anew.is_some() {
                self.in_doubt.set(false);
            }
        }
        Ok(())
    }

    /// Returns what it is full of then, if that is known.
    async fn use_open(
        &self,
        fs: &Fs,
        handle: Handle,
        value: u8,
        anew: Option<Anew>,
        troubles: &Troubles,
    ) -> Result<Option<u8>, String> {
        let mut data = vec![0xff; BYTES + 1];
        let read = fs.read(handle, 0, &mut data, true).await;
        let Some(len) = self.told(troubles, read)? else { return Ok(None) };
        if data[..len] != [value; BYTES] && !self.in_doubt.get() {
            return Err(format!("{WHAT} is {:?}, not {value}", &data[..len]));
        }
        let Some(Anew { truncate, sync }) = anew else { return Ok(Some(value)) };
        let next = value.wrapping_add(1);
        self.values.borrow_mut().push(next);
        self.unsynced.set(true);
        if truncate {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            let truncated = fs.setattr(ROOT, self.ino, &set).await;
            let Some(_) = self.told(troubles, truncated)? else { return Ok(None) };
        }
        let written = fs.write(handle, 0, &[next; BYTES], WriteHow::default()).await;
        let Some(_) = self.told(troubles, written)? else { return Ok(None) };
        if !sync && self.locks {
            self.doubt();
            return Ok(Some(next));
        }
        let synced = self.told(troubles, fs.fsync(handle).await)?;
        self.unsynced.set(synced.is_none());
        Ok(synced.map(|()| next))
    }
}
