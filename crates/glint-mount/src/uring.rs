//! FUSE over io_uring (Linux 6.14): one thread per possible CPU, pinned to it, with
//! one ring. The kernel gives a request to the queue of the CPU that made it, so
//! the answer needs no other core. Replying and fetching the next request is one
//! command, and all commands of a pass are one system call.

use crate::dispatch::{Adapter, Request};
use crate::error::MountError;
use crate::reply::Outcome;
use crate::ring_entry::{Command, Entry};
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_client::Vfs;
use glint_net::keep_awake;
use glint_proto::limits::{FUSE_IO_BYTES_MAX, FUSE_QUEUE_BYTES_MAX};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Most requests that one CPU may have in flight.
const DEPTH_MAX: usize = 32;
/// Fewest, however many CPUs there are.
const DEPTH_MIN: usize = 2;

/// Whether the administrator enabled the transport.
pub(crate) fn is_enabled() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|value| value.trim() == "Y")
}

/// Requests in flight per queue, so that all payload buffers together stay within
/// their limit on a machine with many CPUs.
fn depth(queues: usize) -> usize {
    (FUSE_QUEUE_BYTES_MAX / FUSE_IO_BYTES_MAX / queues).clamp(DEPTH_MIN, DEPTH_MAX)
}

/// Starts the threads. They end when the file system is unmounted.
pub(crate) fn start<F: Vfs>(
    fd: &Arc<OwnedFd>,
    adapter: &Arc<Adapter<F>>,
) -> Result<Vec<std::thread::JoinHandle<()>>, MountError> {
    // The kernel makes a queue for each possible CPU.
    let queues = keep_awake::possible_cores();
    let mut threads = Vec::new();
    for queue in 0..queues {
        let (fd, adapter) = (fd.clone(), adapter.clone());
        let thread = std::thread::Builder::new()
            .name(format!("fuse-uring-{queue}"))
            .spawn(move || {
                if let Err(error) = serve_queue(&fd, &adapter, queue as u16, depth(queues)) {
                    tracing::error!(queue, %error, "FUSE queue ended");
                }
            })
            .map_err(|e| MountError::io("starting a FUSE thread", e))?;
        threads.push(thread);
    }
    Ok(threads)
}

fn serve_queue<F: Vfs>(
    fd: &Arc<OwnedFd>,
    adapter: &Arc<Adapter<F>>,
    queue: u16,
    depth: usize,
) -> io::Result<()> {
    glint_net::runtime(Some(queue as usize))?.block_on(async {
        let mut entries: FuturesUnordered<_> = (0..depth)
            .map(|_| {
                let (fd, adapter) = (fd.clone(), adapter.clone());
                compio_runtime::spawn(
                    async move { serve_entry(fd.as_raw_fd(), &adapter, queue).await },
                )
            })
            .collect();
        while let Some(ended) = entries.next().await {
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => tracing::error!(queue, "a request panicked"),
            }
        }
        Ok(())
    })
}

/// Submits a command; false when the file system was unmounted.
async fn submit(command: Command) -> io::Result<bool> {
    match compio_runtime::submit(command).await.0 {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED) => Ok(false),
            _ => Err(error),
        },
    }
}

async fn serve_entry<F: Vfs>(fd: RawFd, adapter: &Adapter<F>, queue: u16) -> io::Result<()> {
    let mut entry = Entry::new(FUSE_IO_BYTES_MAX);
    let mut connected = submit(entry.register(fd, queue)).await?;
    while connected {
        keep_awake::beat(queue as usize);
        let header = entry.in_header();
        let fixed = entry.fixed();
        let (buffer, len) = entry.payload();
        let outcome = adapter.dispatch(Request { header, fixed: &fixed, buffer, len }).await;
        match outcome {
            Outcome::Done(len) => entry.set_reply(header.unique, 0, len),
            Outcome::Failed(errno) => entry.set_reply(header.unique, -errno.0, 0),
            // The kernel sends what needs no reply through /dev/fuse, but an answer
            // is what brings the entry back in any case.
            Outcome::NoReply => entry.set_reply(header.unique, 0, 0),
        }
        connected = submit(entry.commit_and_fetch(fd, queue)).await?;
    }
    Ok(())
}
