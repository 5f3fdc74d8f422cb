//! How much caches may hold: less in steps while memory is short, more again slowly, and nearly
//! nothing where nobody has used them for long. A state machine, without I/O and clock.
//!
//! - A step halves what there is: the limit is half of it afterwards, or of the limit before. The next
//!   one comes when the first has had its effect, or has had time for it, and only if caches hold more
//!   than it allows: a client that holds little gives up nothing.
//! - A step back comes when memory was ample without a pause for some time, or not short for six times
//!   as long. If it was short again soon after one, the next takes twice as long: where memory has room
//!   for a part of what caches could hold, they do not lose and regain that again and again.
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
/// So many times as long it must not be short before one, where it is not ample either.
const TIGHT: u32 = 6;
/// Part of the time after which caches are idle that is between two of their steps.
const IDLE_STEPS: u32 = 10;

/// What is known of a cache when it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct CacheLook {
    /// Entries that it has.
    pub entries: usize,
    /// Most that it may have with ample memory.
    pub entries_max: usize,
    /// Steps after which caches of bytes could still hold what they hold, see [`steps_that_fit`].
    pub data_steps: u32,
    /// Somebody has used it since the last look.
    pub was_used: bool,
    /// It is idle if nobody has used it for so long; never, if there is none.
    pub idle_after: Option<Duration>,
}

/// Returns after how many steps a cache of bytes, of which ample memory allows `most`, may still hold
/// so many.
pub fn steps_that_fit(bytes: usize, most: usize) -> u32 {
    (0..STEPS_MAX).find(|steps| bytes > most >> (steps + 1)).unwrap_or(STEPS_MAX)
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
    /// How long was waited for it, if it was one back.
    waited: Option<Duration>,
    /// When memory was last not ample, and when it was last short.
    not_ample: Duration,
    short: Duration,
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
            waited: None,
            not_ample: Duration::ZERO,
            short: Duration::ZERO,
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
                self.short = at;
                let is_in_effect = cache.entries <= self.entries && cache.data_steps >= self.steps;
                let is_done = is_in_effect && since_step >= STEP / 8;
                let is_time = self.steps == 0 || is_done || since_step >= STEP;
                if is_time && self.is_worth_a_step(cache) {
                    self.step_down(at, cache);
                }
            }
            Supply::Ample | Supply::Tight if self.steps > 0 => {
                let since = |then: Duration| at.saturating_sub(then.max(self.stepped));
                let pauses = [(self.not_ample, self.pause), (self.short, TIGHT * self.pause)];
                let mut passed = pauses.into_iter().filter(|(then, pause)| since(*then) >= *pause);
                if let Some((_, waited)) = passed.next() {
                    self.step_back(at, cache, waited);
                }
            }
            Supply::Ample if since_step >= AMPLE_MAX => self.pause = AMPLE_MIN,
            Supply::Ample | Supply::Tight => {}
        }
    }

    /// Returns true if more is held than the next step would allow.
    fn is_worth_a_step(&self, cache: CacheLook) -> bool {
        let floor = ENTRIES_MIN.min(cache.entries_max);
        let has_entries = self.entries > floor && cache.entries > floor;
        has_entries || (self.steps < STEPS_MAX && cache.data_steps <= self.steps)
    }

    fn step_down(&mut self, at: Duration, cache: CacheLook) {
        let floor = ENTRIES_MIN.min(cache.entries_max);
        let since_step = at.saturating_sub(self.stepped);
        if self.waited.is_some_and(|waited| since_step < 2 * waited) {
            self.pause = (2 * self.pause).min(AMPLE_MAX);
        }
        let entries = self.entries.min(cache.entries).min(cache.entries_max);
        self.entries = (entries / 2).max(floor);
        self.steps = (self.steps + 1).min(STEPS_MAX);
        (self.stepped, self.waited) = (at, None);
    }

    fn step_back(&mut self, at: Duration, cache: CacheLook, waited: Duration) {
        self.steps -= 1;
        self.entries = match self.steps {
            0 => usize::MAX,
            _ => self.entries.saturating_mul(2).min(cache.entries_max),
        };
        (self.stepped, self.waited) = (at, Some(waited));
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
