//! A cache that fills by itself, in memory that has room for a part of it.

use super::*;
use proptest::prelude::*;

const LOOK: Duration = Duration::from_millis(100);
const ALL: usize = 524_288;

fn cache(entries: usize) -> CacheLook {
    CacheLook { entries, entries_max: ALL, data_steps: STEPS_MAX, was_used: true, idle_after: None }
}

/// What becomes of a cache that is filled with so many entries a second where there is room for some.
struct Run {
    at: Duration,
    allowance: Allowance,
    entries: usize,
    /// Entries that were given up, and how often that began.
    lost: usize,
    steps_down: usize,
    most: usize,
}

impl Run {
    fn new() -> Run {
        let allowance = Allowance::default();
        Run { at: Duration::ZERO, allowance, entries: 0, lost: 0, steps_down: 0, most: 0 }
    }

    fn go(&mut self, time: Duration, per_s: usize, wanted: usize, room: usize) {
        let end = self.at + time;
        while self.at < end {
            self.at += LOOK;
            self.entries = (self.entries + per_s / 10).min(wanted.max(self.entries));
            self.most = self.most.max(self.entries);
            let supply = match self.entries {
                n if n > room - room / 8 => Supply::Short,
                n if n > room - room / 8 * 5 / 4 => Supply::Tight,
                _ => Supply::Ample,
            };
            self.steps_down +=
                usize::from(self.allowance.look(self.at, supply, cache(self.entries)));
            let max = self.allowance.entries_max();
            // The kernel gives up some at a time.
            let excess = self.entries.saturating_sub(max).min(20_000);
            (self.entries, self.lost) = (self.entries - excess, self.lost + excess);
        }
    }
}

#[test]
fn with_ample_memory_all_is_allowed() {
    let mut run = Run::new();
    run.go(Duration::from_secs(60), 50_000, ALL, 10 * ALL);
    assert_eq!((run.steps_down, run.lost, run.entries), (0, 0, ALL));
    assert_eq!(run.allowance.entries_max(), usize::MAX);
}

#[test]
fn a_cache_that_does_not_fit_stays_below_and_is_seldom_cut() {
    let mut run = Run::new();
    run.go(Duration::from_secs(3600), 5_000, ALL, 100_000);
    assert!(run.most < 100_000, "{} of 100 000", run.most);
    // Twenty in an hour; without longer pauses it would be some hundreds.
    assert!((2..=30).contains(&run.steps_down), "{} cuts", run.steps_down);
    assert!(run.entries > 25_000, "it is used: {}", run.entries);
}

#[test]
fn what_was_cut_grows_back_when_memory_is_ample_again() {
    let mut run = Run::new();
    run.go(Duration::from_secs(20), 50_000, ALL, 2 * ALL);
    // Another program needs nearly all.
    run.go(Duration::from_secs(20), 50_000, ALL, 20_000);
    assert!(run.entries <= 20_000, "{}", run.entries);
    assert!(run.allowance.steps() >= 4);
    run.go(Duration::from_secs(15 * STEPS_MAX as u64), 50_000, ALL, 2 * ALL);
    assert_eq!(run.allowance.steps(), 0);
    assert_eq!(run.entries, ALL);
}

#[test]
fn an_idle_cache_is_halved_again_and_again_and_all_is_allowed_with_its_first_use() {
    let mut allowance = Allowance::default();
    let idle_after = Some(Duration::from_secs(600));
    let mut look = |second: u64, was_used, entries| {
        let look = CacheLook { was_used, idle_after, ..cache(entries) };
        let less = allowance.look(Duration::from_secs(second), Supply::Ample, look);
        (less, allowance.entries_max(), allowance.is_idle())
    };
    assert_eq!(look(5, true, 1000), (false, usize::MAX, false));
    assert_eq!(look(604, false, 1000), (false, usize::MAX, false));
    assert_eq!(look(605, false, 1000), (true, 500, true));
    assert_eq!(look(664, false, 500), (false, 500, true));
    assert_eq!(look(665, false, 500), (true, 250, true));
    assert_eq!(look(725, false, 1), (true, 0, true));
    assert_eq!(look(730, true, 1), (false, usize::MAX, false));
    assert_eq!(look(1329, false, 1000), (false, usize::MAX, false));
    assert_eq!(look(1330, false, 1000), (true, 500, true));
}

#[test]
fn after_a_dip_what_was_cut_grows_back_though_memory_is_never_ample() {
    let mut allowance = Allowance::default();
    let mut look = |ms: u64, supply, entries| {
        allowance.look(Duration::from_millis(ms), supply, cache(entries));
        allowance.steps()
    };
    look(0, Supply::Tight, ALL);
    for n in 0..40 {
        look(1000 + 250 * n, Supply::Short, ALL >> n.min(8));
    }
    let steps = look(11_000, Supply::Tight, ENTRIES_MIN);
    assert!(steps >= 4, "{steps}");
    let seconds = |seconds: u64| 11_000 + 1000 * seconds;
    assert_eq!(look(seconds(30), Supply::Tight, ENTRIES_MIN), steps, "that is too soon");
    for second in 30..61 * u64::from(steps) {
        // Ample for moments: that alone takes longer.
        let supply = if second % 7 == 0 { Supply::Ample } else { Supply::Tight };
        look(seconds(second), supply, ENTRIES_MIN);
    }
    assert_eq!(look(seconds(1000), Supply::Tight, ENTRIES_MIN), 0);
    assert_eq!(allowance.entries_max(), usize::MAX);
}

#[test]
fn who_holds_little_gives_up_nothing() {
    let mut allowance = Allowance::default();
    let mut look = |second: u64, entries, data_steps| {
        let look = CacheLook { data_steps, ..cache(entries) };
        let less = allowance.look(Duration::from_secs(second), Supply::Short, look);
        (less, allowance.steps(), allowance.entries_max())
    };
    for second in 1..20 {
        assert_eq!(look(second, ENTRIES_MIN, STEPS_MAX), (false, 0, usize::MAX));
    }
    // Data above what one step allows, and above what two allow.
    assert_eq!(look(20, 100, 0), (true, 1, ENTRIES_MIN));
    assert_eq!(look(30, 100, 2), (false, 1, ENTRIES_MIN));
    assert_eq!(look(40, 100, 1), (true, 2, ENTRIES_MIN));
    // Inodes that the kernel does not forget are no reason.
    assert_eq!(look(50, 2 * ENTRIES_MIN, STEPS_MAX), (false, 2, ENTRIES_MIN));
    let mut allowance = Allowance::default();
    assert!(allowance.look(Duration::ZERO, Supply::Short, cache(ENTRIES_MIN + 1)));
    assert_eq!(allowance.entries_max(), ENTRIES_MIN, "inodes alone are one");
}

#[test]
fn steps_fit_as_long_as_their_part_is_not_passed() {
    let fits = |bytes| steps_that_fit(bytes, 6400);
    assert_eq!([0, 100, 101, 1600, 3200, 3201, 6400, 7000].map(fits), [6, 6, 5, 2, 1, 0, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever memory says, a cache in use may hold some entries, and no step follows another
    /// that had no time.
    #[test]
    fn there_is_a_floor_and_time_between_steps(
        looks in proptest::collection::vec((1u64..5000, 0u8..3, 0usize..ALL, 0..=STEPS_MAX), 1..200),
        entries_max in prop_oneof![Just(ALL), 1usize..10_000],
    ) {
        let mut allowance = Allowance::default();
        let (mut at, mut stepped) = (Duration::ZERO, None);
        for (ms, supply, entries, data_steps) in looks {
            at += Duration::from_millis(ms);
            let supply = [Supply::Ample, Supply::Tight, Supply::Short][usize::from(supply)];
            let look = CacheLook { entries_max, data_steps, ..cache(entries) };
            let before = allowance.steps();
            let less = allowance.look(at, supply, look);
            prop_assert!(allowance.entries_max() >= ENTRIES_MIN.min(entries_max));
            prop_assert!(allowance.steps() <= STEPS_MAX);
            prop_assert_eq!(allowance.steps() == 0, allowance.entries_max() == usize::MAX);
            prop_assert!(!less || supply == Supply::Short);
            if less {
                let early = stepped.is_some_and(|stepped: Duration| at.saturating_sub(stepped) < STEP / 8);
                prop_assert!(!early || before == 0);
                stepped = Some(at);
            }
        }
    }
}
