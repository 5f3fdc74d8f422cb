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

/// Steps of a copy, and for how long it may make none.
pub(super) struct CopyProgress {
    steps: Cell<u64>,
    most: Duration,
    is_given_up: Cell<bool>,
}

/// For how long nothing at all was copied.
#[derive(Default)]
struct Standstill {
    /// Time in which this process ran.
    ran: Duration,
    /// The longest time in which it did not, as it, or this machine, was halted.
    halted: Duration,
}

impl Standstill {
    /// Adds a look that has taken so long.
    fn add(&mut self, took: Duration) {
        let ran = took.min(2 * PAUSE);
        self.ran += ran;
        self.halted = self.halted.max(took.saturating_sub(ran));
    }

    /// Whether this is longer than `most`. Halts count once, however many there are, and never for
    /// all of it: what was asked for before is answered after them.
    fn is_over(&self, most: Duration) -> bool {
        self.ran + self.halted.min(most / 4 * 3) >= most
    }
}

impl CopyProgress {
    /// A copy that begins now, and is to make a step every `most`.
    pub(super) fn new(most: Duration) -> CopyProgress {
        CopyProgress { steps: Cell::new(0), most, is_given_up: Cell::new(false) }
    }

    /// Waits for an answer, and notes that it came: a step, however small.
    pub(super) async fn step<R>(&self, asked: impl Future<Output = FsResult<R>>) -> FsResult<R> {
        let answer = asked.await;
        self.steps.set(self.steps.get() + 1);
        answer
    }

    /// Whether nothing more is to be sent, as no step was made for too long.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up.get()
    }

    /// Waits for a part of the copy: ETIMEDOUT if it made no step for too long. That is given to
    /// `tell` at once; when this returns, nothing that was sent is under way.
    pub(super) async fn unless_stalled<R>(
        &self,
        copy: impl Future<Output = FsResult<R>>,
        tell: impl FnOnce(FsResult<()>),
    ) -> FsResult<R> {
        let stalled = async {
            let (mut steps, mut still) = (self.steps.get(), Standstill::default());
            while !still.is_over(self.most) {
                let begun = clock::now();
                host::sleep(PAUSE).await;
                still.add(clock::since(begun));
                if steps != self.steps.get() {
                    (steps, still) = (self.steps.get(), Standstill::default());
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
                let answer = async {
                    yield_now().await;
                    Ok(())
                };
                progress.step(answer).await?;
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
        // It is halted again and again, each time for less than the copy may stand still.
        let progress = CopyProgress::new(Duration::from_secs(30));
        let is_halted = async {
            for _ in 0..20 {
                yield_now().await;
                clock::simulate(Some(clock::now() + Duration::from_secs(29)));
            }
            yield_now().await;
            Ok(9)
        };
        assert_eq!(block_on(progress.unless_stalled(is_halted, |_| ())), Ok(9));
        clock::simulate(None);
        host::simulate(None);
    }
}
