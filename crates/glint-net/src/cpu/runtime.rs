//! The runtime of a thread of the data path: one io_uring.

use compio_driver::ProactorBuilder;
use compio_driver::op::OpCodeFlag;
use compio_runtime::{Runtime, RuntimeBuilder};
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

/// Tasks of a thread that others may have woken before it looks. Who wakes one more waits for
/// it to look, so nobody may wake while it holds what that thread could wait for.
const WAKES_MAX: usize = 1 << 14;

/// Operations that a ring takes before it is handed to the kernel, and where there is no memory for
/// that.
const RING_ENTRIES: [u32; 2] = [1024, 64];

/// How long it is tried again while rings of processes that have ended keep their memory, and how
/// often.
const RELEASED: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(10);

/// A runtime for this thread, bound to `core` if one is given. (A core that is possible but
/// offline has no thread to bind.)
///
/// Completions are taken when the thread looks for them and do not interrupt it, which
/// would cost whoever causes one an interrupt of another core (IORING_SETUP_DEFER_TASKRUN
/// of io_uring_setup(2)).
///
/// The kernel counts rings as locked memory of their user (RLIMIT_MEMLOCK of getrlimit(2), often 8 MiB),
/// unless that has CAP_IPC_LOCK, and gives it back some time after the process has ended. The driver asks
/// once, with a ring of its own, what the kernel's rings can do. If there is no memory for that one, it
/// would leave calls to threads instead, and close sockets under them: so this is asked first.
pub fn runtime(core: Option<usize>) -> io::Result<Runtime> {
    let begun = Instant::now();
    loop {
        for entries in RING_ENTRIES {
            match with_ring(core, entries) {
                Err(error)
                    if [io::ErrorKind::OutOfMemory, io::ErrorKind::Unsupported]
                        .contains(&error.kind()) => {}
                built => return built,
            }
        }
        if begun.elapsed() > RELEASED {
            let why = "no memory for an io_uring: this user has locked as much as it may \
                       (ulimit -l); or the kernel is older than 5.6";
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, why));
        }
        std::thread::sleep(AGAIN);
    }
}

fn with_ring(core: Option<usize>, entries: u32) -> io::Result<Runtime> {
    let build = |deferred: bool| {
        let mut proactor = ProactorBuilder::new();
        proactor.capacity(entries).detect_opcode_support(OpCodeFlag::Connect);
        proactor.single_issuer(deferred).defer_taskrun(deferred).taskrun_flag(deferred);
        let mut builder = RuntimeBuilder::new();
        builder.with_proactor(proactor).sync_queue_size(WAKES_MAX);
        if let Some(core) = core {
            builder.thread_affinity(HashSet::from([core]));
        }
        builder.build()
    };
    // Kernels before 6.1 do not know it.
    build(true).or_else(|_| build(false))
}
