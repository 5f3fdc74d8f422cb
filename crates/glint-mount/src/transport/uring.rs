//! FUSE over io_uring (Linux 6.14): one thread per possible CPU, pinned to it, with
//! one ring. The kernel gives a request to the queue of the CPU that made it, so
//! the answer needs no other core. Replying and fetching the next request is one
//! command, and all commands of a pass are one system call.

use crate::abi::reply::Outcome;
use crate::adapter::dispatch::{Adapter, Request};
use crate::error::MountError;
use crate::transport::notify::ask_for_reply;
use crate::transport::ring_entry::{Command, Entry, Payload};
use crate::transport::waiting::{Taker, Takers, Waiting};
use glint_client::Vfs;
use glint_net::{host, keep_awake, note_work};
use glint_proto::limits::{FUSE_IO_BYTES_MAX, FUSE_QUEUE_BYTES_MAX};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Most requests that one CPU may have in flight.
const DEPTH_MAX: usize = 32;
/// Fewest, however many CPUs there are.
const DEPTH_MIN: usize = 2;

/// For tests: how many requests one CPU, or /dev/fuse, has in flight to begin with.
const DEPTH_VARIABLE: &str = "GLINT_FUSE_DEPTH";
/// After this time a command that was queued has been submitted.
const REGISTERED: Duration = Duration::from_millis(1);

/// Depth of the queues that the environment asks for, if it does.
pub(crate) fn depth_wanted() -> Option<usize> {
    std::env::var(DEPTH_VARIABLE).ok()?.parse().ok()
}

/// Whether the administrator enabled the transport.
pub(crate) fn is_enabled() -> bool {
    std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring")
        .is_ok_and(|value| value.trim() == "Y")
}

/// Requests in flight per queue, so that all payload buffers together stay within
/// their limit on a machine with many CPUs.
fn depth(queues: usize) -> usize {
    let fits = FUSE_QUEUE_BYTES_MAX / FUSE_IO_BYTES_MAX / queues;
    depth_wanted().unwrap_or(fits).clamp(DEPTH_MIN, DEPTH_MAX)
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
        let ring = Ring { fd: fd.clone(), queue, waiting: Waiting::new(adapter) };
        for _ in 0..depth {
            ring.start();
        }
        host::spawn(ring.waiting.clone().watch(ring.clone()));
        ring.waiting.served().await;
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

/// The queue of one CPU.
struct Ring<F: Vfs> {
    fd: Arc<OwnedFd>,
    queue: u16,
    waiting: Rc<Waiting<F>>,
}

impl<F: Vfs> Clone for Ring<F> {
    fn clone(&self) -> Ring<F> {
        let (fd, waiting) = (self.fd.clone(), self.waiting.clone());
        Ring { fd, queue: self.queue, waiting }
    }
}

impl<F: Vfs> Takers for Ring<F> {
    fn add(&self, nodes: Vec<u64>) {
        self.start();
        let ring = self.clone();
        host::spawn(async move {
            // The kernel gives an entry what has come before it only after a reply; so it has
            // one to make, once the entry is there.
            host::sleep(REGISTERED).await;
            if !nodes.iter().any(|node| ask_for_reply(&ring.fd, *node)) {
                tracing::debug!(queue = ring.queue, "a FUSE queue was not woken");
            }
        });
    }
}

impl<F: Vfs> Ring<F> {
    /// One more entry.
    fn start(&self) {
        match Entry::new(FUSE_IO_BYTES_MAX) {
            Ok((entry, payload)) => {
                let command = entry.register(self.fd.as_raw_fd(), self.queue);
                self.clone().spawn(entry, payload, command);
            }
            Err(error) => {
                tracing::error!(
                    queue = self.queue, %error,
                    "no memory for a FUSE entry; the queue has fewer"
                );
            }
        }
    }

    /// Goes on with an entry whose reply is in place.
    fn start_with(self, entry: Entry, payload: Payload) {
        let command = entry.commit_and_fetch(self.fd.as_raw_fd(), self.queue);
        self.spawn(entry, payload, command);
    }

    fn spawn(self, entry: Entry, payload: Payload, command: Command) {
        let (queue, taker) = (self.queue, self.waiting.taker());
        host::spawn(async move {
            if let Err(error) = self.serve(entry, payload, command, taker).await {
                tracing::error!(queue, %error, "FUSE entry ended");
            }
        });
    }

    /// Serves the requests of an entry, beginning with what a command brings.
    async fn serve(
        self,
        mut entry: Entry,
        mut payload: Payload,
        first: Command,
        taker: Taker<F>,
    ) -> io::Result<()> {
        let fd = self.fd.as_raw_fd();
        let mut command = first;
        loop {
            let ready = self.waiting.ready();
            if !submit(command).await? {
                return Ok(());
            }
            drop(ready);
            keep_awake::beat(self.queue as usize);
            note_work(1);
            let (header, fixed, len) = (entry.in_header(), entry.fixed(), entry.payload_len());
            let request = Request { header, fixed: &fixed, buffer: &mut payload, len };
            let (outcome, kept) = {
                let mut answer = pin!(self.waiting.dispatch(request));
                match self.waiting.outcome(&header, answer.as_mut(), &self).await {
                    Some(outcome) => (outcome, Some(entry)),
                    None => match entry.renew() {
                        Ok(renewed) => {
                            // The caller is answered and the entry reused with other memory, while
                            // the request is finished.
                            entry.set_reply(header.unique, -libc::EINTR, 0);
                            self.clone().start_with(entry, renewed);
                            (self.waiting.finish(&header, answer).await, None)
                        }
                        Err(_) => (answer.await, Some(entry)),
                    },
                }
            };
            let Some(kept) = kept else {
                drop(taker);
                self.waiting.abandon(&header, &fixed, &payload, outcome).await;
                return Ok(());
            };
            entry = kept;
            match outcome {
                Outcome::Done(len) => entry.set_reply(header.unique, 0, len),
                Outcome::Failed(errno) => entry.set_reply(header.unique, -errno.0, 0),
                // The kernel sends what needs no reply through /dev/fuse, but an answer
                // is what brings the entry back in any case.
                Outcome::Unlinked(_) | Outcome::NoReply => entry.set_reply(header.unique, 0, 0),
            }
            command = entry.commit_and_fetch(fd, self.queue);
        }
    }
}
