//! Spans: pieces of work that are timed, nested as the layers are.
//!
//! What a layer spent itself is its time less that of the spans within. They are found by
//! a sum that each thread keeps; [`traced`] gives every task its own, because tasks that
//! wait are mixed on one thread.
//!
//! Reading the clock costs more than most layers take. So a thread that has timed some
//! thousands of operations goes on with one in eight, all layers of it, and counts the rest.

use crate::recorder::{RESETS, tick};
use crate::{Layer, OP_NONE, record};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Position of a task in its open spans.
#[derive(Clone, Copy)]
struct Place {
    /// Nanoseconds of finished spans within the one that is open.
    within: u64,
    /// Operation of the one that is open.
    op: u8,
    /// One is open, and it is timed.
    open: bool,
    timed: bool,
}

const NOWHERE: Place = Place { within: 0, op: OP_NONE, open: false, timed: false };
/// Operations that a thread times, from its start or a reset on, before it goes over to some.
const ALL: u64 = 4096;
/// Afterwards it times one in so many.
const ONE_IN: u64 = 8;

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(NOWHERE) };
    /// Operations since the last reset, and which one that was.
    static OPERATIONS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Times a piece of work; recorded when it goes out of scope.
#[must_use]
pub struct Span {
    layer: Layer,
    op: u8,
    outer: Place,
    /// None while nothing is kept.
    start: Option<Instant>,
}

static ENABLED: AtomicBool = AtomicBool::new(true);

/// Whether spans are timed; they are unless somebody wants to know what that costs.
pub fn enable(enabled: bool) {
    ENABLED.store(enabled, Ordering::Relaxed);
}

/// Whether the operation that begins is one to time.
fn is_timed() -> bool {
    let resets = RESETS.load(Ordering::Relaxed);
    let (count, seen) = OPERATIONS.get();
    let count = if seen == resets { count } else { 0 };
    OPERATIONS.set((count + 1, resets));
    (count < ALL || count.is_multiple_of(ONE_IN)) && ENABLED.load(Ordering::Relaxed)
}

impl Span {
    /// Starts the clock for an operation.
    pub fn start(layer: Layer, op: u8) -> Span {
        let outer = PLACE.get();
        let timed = if outer.open { outer.timed } else { is_timed() };
        PLACE.set(Place { within: 0, op, open: true, timed });
        let start = timed.then(Instant::now);
        Span { layer, op, outer, start }
    }

    /// Starts the clock for a part of the operation that is under way.
    pub fn part(layer: Layer) -> Span {
        Span::start(layer, PLACE.get().op)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(start) = self.start else {
            PLACE.set(self.outer);
            return tick(self.layer, self.op);
        };
        let nanos = start.elapsed().as_nanos() as u64;
        let within = PLACE.get().within;
        PLACE.set(Place { within: self.outer.within + nanos, ..self.outer });
        record(self.layer, self.op, nanos, nanos.saturating_sub(within));
    }
}

/// Runs a task whose spans are not mixed with those of others on its thread. The task is borrowed:
/// a future that owns another one has room for it twice.
pub async fn traced<F: Future>(mut task: Pin<&mut F>) -> F::Output {
    let mut place = NOWHERE;
    poll_fn(|context| {
        let outer = PLACE.replace(place);
        let polled = task.as_mut().poll(context);
        place = PLACE.replace(outer);
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    /// Yields once.
    async fn wait() {
        let mut waited = false;
        poll_fn(
            |_| if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending },
        )
        .await;
    }

    async fn operation(op: u8) {
        let _whole = Span::start(Layer::Handler, op);
        wait().await;
        let _part = Span::part(Layer::KvRead);
        std::thread::sleep(Duration::from_millis(5));
    }

    #[test]
    fn what_each_layer_spent_adds_up_although_tasks_are_mixed() {
        let (one, two) = (pin!(operation(40)), pin!(operation(41)));
        let (mut one, mut two) = (pin!(traced(one)), pin!(traced(two)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(one.as_mut().poll(&mut context).is_pending());
        assert!(two.as_mut().poll(&mut context).is_pending());
        assert!(one.as_mut().poll(&mut context).is_ready());
        assert!(two.as_mut().poll(&mut context).is_ready());
        for op in [40, 41] {
            let rows = snapshot();
            let row = |layer| rows.iter().find(|r| r.layer == layer && r.op == op).unwrap();
            let (whole, part) = (&row(Layer::Handler).histogram, &row(Layer::KvRead).histogram);
            assert_eq!(whole.own() + part.own(), whole.sum());
            assert!(part.own() >= 5_000_000);
        }
    }

    #[test]
    fn a_busy_thread_counts_all_and_times_some() {
        std::thread::spawn(|| {
            const MANY: u64 = 100_000;
            for _ in 0..MANY {
                let _whole = Span::start(Layer::Handler, 42);
                let _part = Span::part(Layer::Journal);
            }
            let rows = snapshot();
            let row = |layer| rows.iter().find(|r| r.layer == layer && r.op == 42).unwrap();
            let (whole, part) = (&row(Layer::Handler).histogram, &row(Layer::Journal).histogram);
            assert_eq!((whole.count(), part.count()), (MANY, MANY));
            let error = (whole.own() + part.own()).abs_diff(whole.sum());
            assert!(error <= 2, "{error} ns are missing");
            assert!(whole.quantile(0.5) > 0);
        })
        .join()
        .unwrap();
    }
}
