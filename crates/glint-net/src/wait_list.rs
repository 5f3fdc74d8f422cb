//! Tasks that wait for something, on whatever threads they run.
//!
//! Invariants:
//! - What comes after a look is not missed: who waits is in the list before the last look.
//! - Nobody is woken under the lock of the list.

use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};

/// Who waits. One that stops waiting leaves with the next [`WaitList::wake`].
#[derive(Default)]
pub(crate) struct WaitList {
    waiting: Mutex<Vec<Waker>>,
    /// Counts wakes: who was entered before the last one is not in the list any more.
    wakes: AtomicU64,
}

impl WaitList {
    /// Has all look again.
    pub(crate) fn wake(&self) {
        let waiting = {
            let mut waiting = self.waiting.lock();
            self.wakes.fetch_add(1, Ordering::AcqRel);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `ready` gives something. Polled for another reason, it takes no lock.
    pub(crate) async fn until<R>(&self, mut ready: impl FnMut() -> Option<R>) -> R {
        let mut entered: Option<(u64, Waker)> = None;
        poll_fn(|context| {
            if let Some(result) = ready() {
                return Poll::Ready(result);
            }
            let now = self.wakes.load(Ordering::Acquire);
            if let Some((at, waker)) = &entered
                && *at == now
                && waker.will_wake(context.waker())
            {
                return Poll::Pending;
            }
            {
                let mut waiting = self.waiting.lock();
                entered = Some((self.wakes.load(Ordering::Acquire), context.waker().clone()));
                waiting.push(context.waker().clone());
            }
            ready().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Context;

    #[test]
    fn one_that_is_polled_again_and_again_is_entered_once_for_each_wake() {
        let list = WaitList::default();
        let mut waits = pin!(list.until(|| None::<()>));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            (0..100).for_each(|_| assert!(waits.as_mut().poll(&mut context).is_pending()));
            assert_eq!(list.waiting.lock().len(), 1);
            list.wake();
            assert!(list.waiting.lock().is_empty());
        }
    }

    #[test]
    fn no_wake_is_missed_between_threads() {
        let (list, count) = (Arc::new(WaitList::default()), Arc::new(AtomicU32::new(0)));
        let counting = {
            let (list, count) = (list.clone(), count.clone());
            std::thread::spawn(move || {
                for _ in 0..1000 {
                    count.fetch_add(1, Ordering::AcqRel);
                    list.wake();
                    std::thread::yield_now();
                }
            })
        };
        for n in 1..=1000 {
            let seen = || (count.load(Ordering::Acquire) >= n).then_some(());
            block_on(list.until(seen));
        }
        counting.join().unwrap();
    }
}
