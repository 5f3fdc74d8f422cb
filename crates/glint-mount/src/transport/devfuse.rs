//! FUSE through reads and writes of /dev/fuse, on any kernel.
//!
//! One thread; several requests may be under way at once. A reader keeps the
//! device until its request has to wait for something: as long as requests can be
//! answered at once, one task with one warm buffer does everything.

use crate::abi::reply::Outcome;
use crate::abi::{InHeader, Opcode, OutHeader};
use crate::adapter::dispatch::{Adapter, Request};
use crate::error::MountError;
use crate::transport::uring;
use crate::transport::waiting::{Takers, Waiting};
use compio_driver::op::{Interest, PollOnce};
use futures_util::lock::Mutex;
use glint_client::Vfs;
use glint_net::{host, keep_awake, note_work};
use glint_proto::limits::FUSE_IO_BYTES_MAX;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Requests under way at once; more when these wait.
const TASKS: usize = 32;
/// Room for headers and fixed parts before the payload.
const HEAD_BYTES: usize = 4096;
/// When requests come through io_uring, only messages without reply arrive here;
/// they are taken in groups. Signals among them have to be heard of soon.
const LAZY_PAUSE: Duration = Duration::from_millis(30);

/// How the thread waits for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// Requests come here.
    Eager,
    /// Requests come through io_uring.
    Lazy,
}

/// Starts the thread. It ends when the file system is unmounted.
pub(crate) fn start<F: Vfs>(
    fd: &Arc<OwnedFd>,
    adapter: &Arc<Adapter<F>>,
    pace: Pace,
) -> Result<std::thread::JoinHandle<()>, MountError> {
    rustix::io::ioctl_fionbio(&**fd, true).map_err(|e| MountError::io("/dev/fuse", e))?;
    let (fd, adapter) = (fd.clone(), adapter.clone());
    std::thread::Builder::new()
        .name("fuse-dev".into())
        .spawn(move || {
            if let Err(error) = serve(&fd, &adapter, pace) {
                tracing::error!(%error, "FUSE device ended");
            }
        })
        .map_err(|e| MountError::io("starting a FUSE thread", e))
}

/// The device, as all tasks see it.
struct Device<F: Vfs> {
    fd: Arc<OwnedFd>,
    waiting: Rc<Waiting<F>>,
    turn: Rc<Mutex<()>>,
    pace: Pace,
}

impl<F: Vfs> Clone for Device<F> {
    fn clone(&self) -> Device<F> {
        let (fd, waiting, turn) = (self.fd.clone(), self.waiting.clone(), self.turn.clone());
        Device { fd, waiting, turn, pace: self.pace }
    }
}

impl<F: Vfs> Takers for Device<F> {
    fn add(&self, _: Vec<u64>) {
        let (device, taker) = (self.clone(), self.waiting.taker());
        host::spawn(async move {
            let _taker = taker;
            if let Err(error) = device.serve().await {
                tracing::error!(%error, "FUSE device ended");
            }
        });
    }
}

fn serve<F: Vfs>(fd: &Arc<OwnedFd>, adapter: &Arc<Adapter<F>>, pace: Pace) -> io::Result<()> {
    let runtime = glint_net::runtime(None)?;
    runtime.block_on(async {
        let waiting = Waiting::new(adapter);
        let device = Device { fd: fd.clone(), waiting, turn: Rc::default(), pace };
        for _ in 0..uring::depth_wanted().unwrap_or(TASKS) {
            device.add(Vec::new());
        }
        host::spawn(device.waiting.clone().watch(device.clone()));
        if adapter.passthrough.get().is_some() {
            host::spawn(adapter.clone().watch_passed());
        }
        device.waiting.served().await;
        adapter.end_passthrough().await;
        Ok(())
    })
}

/// Reads a request; 0 when the file system was unmounted.
async fn read_request(fd: &Arc<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    use rustix::io::Errno;
    loop {
        match rustix::io::read(&**fd, &mut *buffer) {
            Ok(len) => return Ok(len),
            Err(Errno::NODEV | Errno::NOTCONN) => return Ok(0),
            // A request that was interrupted before it was read.
            Err(Errno::INTR | Errno::NOENT) => {}
            Err(Errno::AGAIN) => {
                let poll = PollOnce::new(fd.clone(), Interest::Readable);
                compio_runtime::submit(poll).await.0?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl<F: Vfs> Device<F> {
    async fn serve(&self) -> io::Result<()> {
        let mut buffer = vec![0u8; HEAD_BYTES + FUSE_IO_BYTES_MAX];
        let mut reading = None;
        loop {
            let ready = self.waiting.ready();
            if reading.is_none() {
                reading = Some(self.turn.lock().await);
            }
            let len = read_request(&self.fd, &mut buffer).await?;
            drop(ready);
            if self.pace == Pace::Eager {
                keep_awake::beat_here();
                note_work(1);
            }
            let Ok((header, _)) = InHeader::read_from_prefix(&buffer[..len]) else {
                self.waiting.unmounted();
                return Ok(());
            };
            let head = size_of::<InHeader>();
            let opcode = Opcode::from_u32(header.opcode);
            let fixed_len = opcode.map_or(0, Opcode::in_len);
            let split = (head + fixed_len).min(len);
            // The fixed part is copied aside, because the reply may grow over it.
            let mut fixed = [0u8; 128];
            fixed[..split - head].copy_from_slice(&buffer[head..split]);
            let fixed = &fixed[..split - head];
            let request = Request { header, fixed, buffer: &mut buffer[split..], len: len - split };
            let (outcome, is_waited_for) = {
                let mut answer = pin!(self.waiting.dispatch(request));
                match futures_util::poll!(&mut answer) {
                    Poll::Ready(outcome) => (outcome, true),
                    Poll::Pending => {
                        // The request has to wait: let another task read meanwhile.
                        reading = None;
                        match self.waiting.outcome(&header, answer.as_mut(), self).await {
                            Some(outcome) => (outcome, true),
                            None => {
                                reply(&self.fd, header.unique, -libc::EINTR, &[])?;
                                (self.waiting.finish(&header, answer).await, false)
                            }
                        }
                    }
                }
            };
            match outcome {
                Outcome::NoReply => {
                    if self.pace == Pace::Lazy && opcode != Some(Opcode::Interrupt) {
                        host::sleep(LAZY_PAUSE).await;
                    }
                }
                outcome if !is_waited_for => {
                    self.waiting.abandon(&header, fixed, &buffer[split..], outcome).await;
                }
                Outcome::Unlinked(_) => reply(&self.fd, header.unique, 0, &[])?,
                Outcome::Done(len) => {
                    reply(&self.fd, header.unique, 0, &buffer[split..split + len])?;
                }
                Outcome::Failed(errno) => reply(&self.fd, header.unique, -errno.0, &[])?,
            }
            if self.waiting.ready_count() > TASKS {
                // The task was started when too few were ready.
                return Ok(());
            }
        }
    }
}

fn reply(fd: &OwnedFd, unique: u64, error: i32, payload: &[u8]) -> io::Result<()> {
    use rustix::io::Errno;
    let len = (size_of::<OutHeader>() + payload.len()) as u32;
    let header = OutHeader { len, error, unique };
    loop {
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(payload)];
        match rustix::io::writev(fd, &parts) {
            // The caller was interrupted, or the file system unmounted.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "FUSE reply refused by the kernel");
                return Ok(());
            }
        }
    }
}
