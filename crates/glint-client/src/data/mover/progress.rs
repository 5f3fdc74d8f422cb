//! Ends a copy to or from an OST that does not answer.

use super::LOOK;
use futures_util::future::{Either, select};
use glint_net::host;
use glint_proto::{Errno, FsResult, clock};
use std::cell::Cell;
use std::pin::pin;
use std::time::{Duration, Instant};

/// When a part of a file was copied last, and for how long none may be.
pub(super) struct CopyProgress {
    last: Cell<Instant>,
    most: Duration,
}

impl CopyProgress {
    /// A copy that begins now, and of which some part is to be copied every `most`.
    pub(super) fn new(most: Duration) -> CopyProgress {
        CopyProgress { last: Cell::new(clock::now()), most }
    }

    /// Notes that the copy goes on.
    pub(super) fn made(&self) {
        self.last.set(clock::now());
    }

    /// Waits for a part of the copy: ETIMEDOUT if nothing was copied for too long.
    pub(super) async fn unless_stalled<R>(
        &self,
        copy: impl Future<Output = FsResult<R>>,
    ) -> FsResult<R> {
        self.made();
        let stalled = async {
            while clock::since(self.last.get()) < self.most {
                host::sleep(10 * LOOK).await;
            }
        };
        match select(pin!(copy), pin!(stalled)).await {
            Either::Left((copied, _)) => copied,
            Either::Right(((), _)) => Err(Errno::ETIMEDOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, yield_now};
    use std::rc::Rc;

    /// A world in which each pause passes while others do a step.
    struct StepByStep;

    impl host::World for StepByStep {
        fn spawn(&self, _: host::Task) {}

        fn sleep(&self, time: Duration) -> host::Task {
            clock::simulate(Some(clock::now() + time));
            Box::pin(yield_now())
        }

        fn connect(&self, _: &str) -> std::io::Result<host::Pipe> {
            Err(std::io::ErrorKind::Unsupported.into())
        }
    }

    #[test]
    fn a_copy_ends_that_does_not_go_on() {
        host::simulate(Some(Rc::new(StepByStep)));
        clock::simulate(Some(clock::now()));
        let progress = CopyProgress::new(Duration::from_secs(30));
        let stands_still = progress.unless_stalled(std::future::pending::<FsResult<()>>());
        assert_eq!(block_on(stands_still), Err(Errno::ETIMEDOUT));
        let begun = clock::now();
        let goes_on = async {
            while clock::since(begun) < Duration::from_secs(100) {
                progress.made();
                yield_now().await;
            }
            Ok(7)
        };
        assert_eq!(block_on(progress.unless_stalled(goes_on)), Ok(7));
        clock::simulate(None);
        host::simulate(None);
    }
}
