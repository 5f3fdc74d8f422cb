//! Time that passes. A simulation makes it pass faster.

use std::cell::Cell;
use std::time::{Duration, Instant};

thread_local! {
    static SIMULATED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Now: of the machine, or of the simulation that runs on this thread.
pub fn now() -> Instant {
    SIMULATED.get().unwrap_or_else(Instant::now)
}

/// Time since `then`.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// From now on time passes on this thread only when it is told to. `None` ends that.
pub fn simulate(now: Option<Instant>) {
    SIMULATED.set(now);
}
