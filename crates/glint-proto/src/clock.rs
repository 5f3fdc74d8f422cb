//! Time that passes, also while the host is suspended. A simulation makes it pass faster.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// When simulations begin, in seconds since the epoch.
const SIMULATED_SECS: u64 = 1_800_000_000;

/// When a simulation began, and what time it is there.
#[derive(Clone, Copy)]
struct Simulated {
    began: Instant,
    now: Instant,
}

thread_local! {
    static SIMULATED: Cell<Option<Simulated>> = const { Cell::new(None) };
}

/// Time since the host was started (CLOCK_BOOTTIME). The clock of [`Instant`] stands still
/// while a host is suspended, and leases do not.
fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Now: of the machine, or of the simulation that runs on this thread. Not to be compared with
/// [`Instant::now`].
pub fn now() -> Instant {
    static START: OnceLock<(Instant, Duration)> = OnceLock::new();
    SIMULATED.get().map(|simulated| simulated.now).unwrap_or_else(|| {
        let (start, boot) = START.get_or_init(|| (Instant::now(), since_boot()));
        *start + since_boot().saturating_sub(*boot)
    })
}

/// Time since `then`.
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// From now on time passes on this thread only when it is told to. `None` ends that.
pub fn simulate(now: Option<Instant>) {
    let began = SIMULATED.get().map(|simulated| simulated.began);
    SIMULATED.set(now.map(|now| Simulated { began: began.unwrap_or(now), now }));
}

/// Time since the epoch.
pub fn date() -> Duration {
    match SIMULATED.get() {
        Some(Simulated { began, now }) => {
            Duration::from_secs(SIMULATED_SECS) + now.saturating_duration_since(began)
        }
        None => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}
