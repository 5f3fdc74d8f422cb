//! The runtime of a thread of the data path: one io_uring.

use compio_driver::ProactorBuilder;
use compio_runtime::{Runtime, RuntimeBuilder};
use std::collections::HashSet;
use std::io;

/// Tasks of a thread that others may have woken before it looks. Who wakes one more waits for
/// it to look, so nobody may wake while it holds what that thread could wait for.
const WAKES_MAX: usize = 1 << 14;

/// A runtime for this thread, bound to `core` if one is given. (A core that is possible but
/// offline has no thread to bind.)
///
/// Completions are taken when the thread looks for them and do not interrupt it, which
/// would cost whoever causes one an interrupt of another core (IORING_SETUP_DEFER_TASKRUN
/// of io_uring_setup(2)).
pub fn runtime(core: Option<usize>) -> io::Result<Runtime> {
    let build = |deferred: bool| {
        let mut proactor = ProactorBuilder::new();
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
