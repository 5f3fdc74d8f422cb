//! How much caches may hold: less in steps while memory is short, more again slowly, and nearly
//! nothing where nobody has used them for long. A state machine, without I/O and clock.
//!
//! - A step halves what there is: the limit is half of it afterwards, or of the limit before. The next
//!   one comes when the first has had its effect, or has had time for it.
//! - A step back comes when memory was ample without a pause for some time. If it was short again soon
//!   after one, the next takes twice as long: where memory has room for a part of what caches
//!   could hold, they do not lose and regain that again and again.
//! - Caches that nobody uses are halved from some time on, and again after each tenth of it. The first
//!   use ends that.
//!
//! Invariant: there is a floor of entries, whatever memory says, so that calls find what the call
//! before has learned. Idle caches have none.

use crate::Supply;
use std::time::Duration;

/// Most steps: caches of bytes hold one part in 64 then.
pub(crate) const STEPS_MAX: u32 = 6;
/// Fewest entries that a cache may hold while it is used.
pub(crate) const ENTRIES_MIN: usize = 4096;
/// Time for a step to have its effect.
const STEP: Duration = Duration::from_secs(2);
/// How long memory must be ample before a step back, at first and at most.
const AMPLE_MIN: Duration = Duration::from_secs(10);
const AMPLE_MAX: Duration = Duration::from_secs(320);
/// Part of the time after which caches are idle that is between two of their steps.
const IDLE_STEPS: u32 = 10;

/// What is known of a cache when it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct CacheLook {
    /// Entries that it has.
    pub entries: usize,
    /// Most that it may have with ample memory.
    pub entries_max: usize,
    /// Somebody has used it since the last look.
    pub was_used: bool,
    /// It is idle if nobody has used it for so long; never, if there is none.
    pub idle_after: Option<Duration>,
}

/// How much caches may hold.
#[derive(Debug)]
pub struct Allowance {
    /// Steps from all that caches may hold.
    steps: u32,
    /// Entries, if there are steps.
    entries: usize,
    /// When the last step was done, down or back.
    stepped: Duration,
    was_back: bool,
    /// When memory was last not ample.
    not_ample: Duration,
    /// How long it has to be ample before the next step back.
    pause: Duration,
    /// When caches were used last.
    used: Duration,
    /// Steps since they are idle, and entries that are left.
    idle_steps: u32,
    idle_entries: usize,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance {
            steps: 0,
            entries: usize::MAX,
            stepped: Duration::ZERO,
            was_back: false,
            not_ample: Duration::ZERO,
            pause: AMPLE_MIN,
            used: Duration::ZERO,
            idle_steps: 0,
            idle_entries: usize::MAX,
        }
    }
}

impl Allowance {
    /// Decides anew, at a time since any beginning. Returns true if less is allowed than before.
    pub fn look(&mut self, at: Duration, supply: Supply, cache: CacheLook) -> bool {
        let before = (self.entries_max(), self.steps);
        self.look_at_supply(at, supply, cache);
        self.look_at_use(at, cache);
        self.entries_max() < before.0 || self.steps > before.1
    }

    fn look_at_supply(&mut self, at: Duration, supply: Supply, cache: CacheLook) {
        if supply != Supply::Ample {
            self.not_ample = at;
        }
        let since_step = at.saturating_sub(self.stepped);
        match supply {
            Supply::Short => {
                let is_done = cache.entries <= self.entries && since_step >= STEP / 8;
                if self.steps == 0 || is_done || since_step >= STEP {
                    self.step_down(at, cache);
                }
            }
            Supply::Ample if self.steps > 0 => {
                if at.saturating_sub(self.not_ample.max(self.stepped)) >= self.pause {
                    self.step_back(at, cache);
                }
            }
            Supply::Ample if since_step >= AMPLE_MAX => self.pause = AMPLE_MIN,
            Supply::Ample | Supply::Tight => {}
        }
    }

    fn step_down(&mut self, at: Duration, cache: CacheLook) {
        let floor = ENTRIES_MIN.min(cache.entries_max);
        let is_soon = self.was_back && at.saturating_sub(self.stepped) < 2 * self.pause;
        if is_soon {
            self.pause = (2 * self.pause).min(AMPLE_MAX);
        }
        let entries = self.entries.min(cache.entries).min(cache.entries_max);
        self.entries = (entries / 2).max(floor);
        self.steps = (self.steps + 1).min(STEPS_MAX);
        (self.stepped, self.was_back) = (at, false);
    }

    fn step_back(&mut self, at: Duration, cache: CacheLook) {
        self.steps -= 1;
        self.entries = match self.steps {
            0 => usize::MAX,
            _ => self.entries.saturating_mul(2).min(cache.entries_max),
        };
        (self.stepped, self.was_back) = (at, true);
    }

    fn look_at_use(&mut self, at: Duration, cache: CacheLook) {
        if cache.was_used {
            (self.used, self.idle_steps, self.idle_entries) = (at, 0, usize::MAX);
        }
        let Some(idle_after) = cache.idle_after else { return };
        let due = self
            .used
            .saturating_add(idle_after)
            .saturating_add(idle_after / IDLE_STEPS * self.idle_steps);
        if at >= due {
            self.idle_entries = self.idle_entries.min(cache.entries) / 2;
            self.idle_steps = self.idle_steps.saturating_add(1);
        }
    }

    /// Most entries that caches may hold now.
    pub fn entries_max(&self) -> usize {
        self.entries.min(self.idle_entries)
    }

    /// Most entries that caches in use may hold now.
    pub fn entries_max_used(&self) -> usize {
        self.entries
    }

    /// Steps from all that caches of bytes may hold: each halves it.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Returns true if nobody has used the caches for long.
    pub fn is_idle(&self) -> bool {
        self.idle_steps > 0
    }
}

#[cfg(test)]
mod tests;
