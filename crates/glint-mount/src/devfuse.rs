//! FUSE through reads and writes of /dev/fuse, on any kernel.
//!
//! One thread; several requests may be under way at once. A reader keeps the
//! device until its request has to wait for something: as long as requests can be
//! answered at once, one task with one warm buffer does everything.

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::dispatch::{Adapter, Request};
use crate::error::MountError;
use crate::reply::Outcome;
use compio_driver::op::{Interest, PollOnce};
use futures_util::lock::Mutex;
use glint_client::Vfs;
use glint_net::keep_awake;
use glint_proto::limits::FUSE_IO_BYTES_MAX;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use zerocopy::{FromBytes, IntoBytes};

/// Requests under way at once.
const TASKS: usize = 32;
/// Room for headers and fixed parts before the payload.
const HEAD_BYTES: usize = 4096;
/// When requests come through io_uring, only messages without reply arrive here;
/// they are taken in groups.
const LAZY_PAUSE: Duration = Duration::from_millis(100);

/// How the thread waits for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// They come here.
    Eager,
    /// They come through io_uring.
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

fn serve<F: Vfs>(fd: &Arc<OwnedFd>, adapter: &Arc<Adapter<F>>, pace: Pace) -> io::Result<()> {
    let runtime = glint_net::runtime(None)?;
    runtime.block_on(async {
        let turn = Rc::new(Mutex::new(()));
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| {
                let (fd, adapter, turn) = (fd.clone(), adapter.clone(), turn.clone());
                compio_runtime::spawn(async move { serve_task(&fd, &adapter, &turn, pace).await })
            })
            .collect();
        for task in tasks {
            match task.await {
                Ok(ended) => ended?,
                Err(_) => tracing::error!("a request panicked"),
            }
        }
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

async fn serve_task<F: Vfs>(
    fd: &Arc<OwnedFd>,
    adapter: &Adapter<F>,
    turn: &Mutex<()>,
    pace: Pace,
) -> io::Result<()> {
    let mut buffer = vec![0u8; HEAD_BYTES + FUSE_IO_BYTES_MAX];
    let mut reading = Some(turn.lock().await);
    loop {
        if reading.is_none() {
            reading = Some(turn.lock().await);
        }
        let len = read_request(fd, &mut buffer).await?;
        if pace == Pace::Eager {
            keep_awake::beat_here();
        }
        let Ok((header, _)) = InHeader::read_from_prefix(&buffer[..len]) else {
            return Ok(());
        };
        let head = size_of::<InHeader>();
        let fixed_len = Opcode::from_u32(header.opcode).map_or(0, Opcode::in_len);
        let split = (head + fixed_len).min(len);
        // The fixed part is copied aside, because the reply may grow over it.
        let mut fixed = [0u8; 128];
        fixed[..split - head].copy_from_slice(&buffer[head..split]);
        let fixed = &fixed[..split - head];
        let request = Request { header, fixed, buffer: &mut buffer[split..], len: len - split };
        let outcome = {
            let mut answer = std::pin::pin!(adapter.dispatch(request));
            match futures_util::poll!(&mut answer) {
                std::task::Poll::Ready(outcome) => outcome,
                std::task::Poll::Pending => {
                    // This one has to wait: let another task read meanwhile.
                    reading = None;
                    answer.await
                }
            }
        };
        match outcome {
            Outcome::NoReply if pace == Pace::Lazy => {
                compio_runtime::time::sleep(LAZY_PAUSE).await;
            }
            Outcome::NoReply => {}
            Outcome::Done(len) => reply(fd, header.unique, 0, &buffer[split..split + len])?,
            Outcome::Failed(errno) => reply(fd, header.unique, -errno.0, &[])?,
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
