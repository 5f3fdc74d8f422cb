//! The rounds of a server in a process: a thread for each.

use crate::rounds::Round;
use futures_lite::future::block_on;
use glint_ost::SEAL_IDLE;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a thread that pauses looks whether its server stops.
const LOOK: Duration = Duration::from_millis(100);
/// See nice(2): about a tenth of a core that others want to use.
const GIVES_WAY_NICE: i32 = 10;

/// Starts them. They end soon after the server `is_stopping`.
pub(super) fn spawn<S: Send + Sync + 'static>(
    server: &Arc<S>,
    rounds: Vec<Round<S>>,
    is_stopping: impl Fn(&S) -> bool + Clone + Send + 'static,
) -> std::io::Result<Vec<JoinHandle<()>>> {
    let start = |round: Round<S>| {
        let (server, is_stopping) = (server.clone(), is_stopping.clone());
        let thread = std::thread::Builder::new().name(round.name.into());
        thread.spawn(move || {
            if round.gives_way {
                give_way();
            }
            let asks = round.asks;
            let pause = async |pause| match asks {
                // Answers of other servers are received meanwhile.
                true => {
                    glint_net::host::sleep(pause).await;
                    !is_stopping(&server)
                }
                false => wait(pause, || is_stopping(&server)),
            };
            let keep = round.keep(&*server, || SEAL_IDLE, pause);
            if !round.asks {
                return block_on(keep);
            }
            match glint_net::runtime(None) {
                Ok(runtime) => runtime.block_on(keep),
                Err(error) => {
                    tracing::error!(%error, round.name, "could not start a thread's work");
                }
            }
        })
    };
    rounds.into_iter().map(start).collect()
}

/// Waits so long. Returns false if it is to stop.
fn wait(mut left: Duration, is_stopping: impl Fn() -> bool) -> bool {
    while !left.is_zero() && !is_stopping() {
        let part = left.min(LOOK);
        std::thread::sleep(part);
        left -= part;
    }
    !is_stopping()
}

fn give_way() {
    // On Linux this is about the calling thread.
    if let Err(error) = rustix::process::setpriority_process(None, GIVES_WAY_NICE) {
        tracing::debug!(%error, "housekeeping at the usual priority");
    }
}
