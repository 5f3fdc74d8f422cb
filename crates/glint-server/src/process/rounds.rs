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
                true => wait(pause, || is_stopping(&server), glint_net::host::sleep).await,
                false => {
                    let sleep = async |part: Duration| std::thread::sleep(part);
                    wait(pause, || is_stopping(&server), sleep).await
                }
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

/// Waits so long, in parts for which it `sleep`s: once also if that is no time. Returns false if it
/// is to stop.
async fn wait(
    mut left: Duration,
    is_stopping: impl Fn() -> bool,
    sleep: impl AsyncFn(Duration),
) -> bool {
    while !is_stopping() {
        let part = left.min(LOOK);
        sleep(part).await;
        left -= part;
        if left.is_zero() {
            break;
        }
    }
    !is_stopping()
}

fn give_way() {
    // On Linux this is about the calling thread.
    if let Err(error) = rustix::process::setpriority_process(None, GIVES_WAY_NICE) {
        tracing::debug!(%error, "housekeeping at the usual priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    #[test]
    fn a_long_pause_ends_soon_after_its_server_is_told_to_stop() {
        let (slept, stops) = (RefCell::new(Vec::new()), Cell::new(usize::MAX));
        let pause = |pause| {
            slept.borrow_mut().clear();
            let sleep = async |part: Duration| slept.borrow_mut().push(part);
            block_on(wait(pause, || slept.borrow().len() >= stops.get(), sleep))
        };
        assert!(pause(Duration::from_millis(250)));
        assert_eq!(slept.take(), [LOOK, LOOK, LOOK / 2]);
        assert!(pause(Duration::ZERO));
        assert_eq!(slept.take(), [Duration::ZERO], "answers are received");
        stops.set(2);
        assert!(!pause(Duration::from_secs(60)));
        assert_eq!(slept.take(), [LOOK, LOOK]);
    }
}
