//! Ends a copy to or from an OST that does not answer.

use super::LOOK;
use futures_util::future::{Either, select};
use glint_net::host;
use glint_proto::{Errno, FsResult, clock};
use std::cell::Cell;
use std::pin::pin;
use std::time::Duration;

/// Pause between two looks whether the copy goes on.
const PAUSE: Duration = LOOK.saturating_mul(10);

/// How many parts of a file were copied, and for how long none may be.
pub(super) struct CopyProgress {
    parts: Cell<u64>,
    most: Duration,
    is_given_up: Cell<bool>,
}

impl CopyProgress {
    /// A copy that begins now, and of which some part is to be copied every `most`.
    pub(super) fn new(most: Duration) -> CopyProgress {
        CopyProgress { parts: Cell::new(0), most, is_given_up: Cell::new(false) }
    }

    /// Notes that the copy goes on.
    pub(super) fn made(&self) {
        self.parts.set(self.parts.get() + 1);
    }

    /// Whether nothing more is to be sent, as nothing was copied for too long.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    /// Waits for a part of the copy: ETIMEDOUT if nothing was copied for too long. That is given to
    /// `tell` at once; when this returns, nothing that was sent is under way.
    pub(super) async fn unless_stalled<R>(
        &self,
        copy: impl Future<Output = FsResult<R>>,
        tell: impl FnOnce(FsResult<()>),
    ) -> FsResult<R> {
        let stalled = async {
            let (mut parts, mut stands) = (self.parts.get(), Duration::ZERO);
            while stands < self.most {
                let begun = clock::now();
                host::sleep(PAUSE).await;
                // That this machine, or this process, was halted meanwhile says little.
                stands += clock::since(begun).min(self.most / 4);
                if parts != self.parts.get() {
                    (parts, stands) = (self.parts.get(), Duration::ZERO);
                }
            }
        };
        match select(pin!(copy), pin!(stalled)).await {
            Either::Left((copied, _)) => copied,
            Either::Right(((), copy)) => {
                self.is_given_up.set(true);
                tell(Err(Errno::ETIMEDOUT));
                let _ = copy.await;
                Err(Errno::ETIMEDOUT)
            }
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
        let (told, has_ended) = (Cell::new(None), Cell::new(false));
        // What was sent ends long after the copy was given up.
        let stands_still = async {
            while told.get().is_none() {
                yield_now().await;
            }
            for _ in 0..10 {
                yield_now().await;
            }
            has_ended.set(progress.is_given_up());
            Ok(())
        };
        let result = progress.unless_stalled(stands_still, |error| told.set(Some(error)));
        assert_eq!(block_on(result), Err(Errno::ETIMEDOUT));
        assert_eq!(told.get(), Some(Err(Errno::ETIMEDOUT)));
        assert!(has_ended.get(), "it is waited for");
        let progress = CopyProgress::new(Duration::from_secs(30));
        let begun = clock::now();
        let goes_on = async {
            while clock::since(begun) < Duration::from_secs(100) {
                progress.made();
                yield_now().await;
            }
            Ok(7)
        };
        assert_eq!(block_on(progress.unless_stalled(goes_on, |_| ())), Ok(7));
        // The machine is suspended for an hour.
        let progress = CopyProgress::new(Duration::from_secs(30));
        let is_suspended = async {
            yield_now().await;
            clock::simulate(Some(clock::now() + Duration::from_secs(3600)));
            for _ in 0..10 {
                yield_now().await;
            }
            Ok(8)
        };
        assert_eq!(block_on(progress.unless_stalled(is_suspended, |_| ())), Ok(8));
        clock::simulate(None);
        host::simulate(None);
    }
}
