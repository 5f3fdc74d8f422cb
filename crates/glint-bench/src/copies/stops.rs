//! Row `stops`: servers are stopped as an administrator does, and started again, while a program
//! writes to a database with fsync.
//!
//! The database has three stripes, whose chains have their heads at three servers: each server that
//! is stopped is the head for some of its blocks.

use super::CopiesSetting;
use super::figures::{CopiesFigure, CopiesReach};
use super::place::{CopiesPlace, PATIENCE, SERVERS, sleep};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a call.
const BLOCK_BYTES: u64 = 4096;
/// Bytes that are written at once when the database is made.
const FILL_BYTES: u64 = 1 << 20;
/// How long the program runs before a server is stopped, and before that is started again.
const BEFORE: Duration = Duration::from_secs(1);
const AWAY: Duration = Duration::from_secs(3);
/// Seconds of the longest call that are aimed at.
const REACH_S: f64 = 0.5;

/// What happens to a server; the measured ones have names.
const PHASES: [Option<&str>; 4] = [
    None,
    Some("longest write+fsync, a server is stopped"),
    Some("longest write+fsync, a server comes back"),
    None,
];
const STOPPED: usize = 1;
const STARTED: usize = 2;
const OVER: usize = 3;

/// Calls of each phase in which one began or ended.
#[derive(Default)]
struct StopCalls {
    calls: [u64; PHASES.len()],
    longest: [Duration; PHASES.len()],
    errors: u64,
}

impl StopCalls {
    fn note(&mut self, phases: std::ops::RangeInclusive<usize>, took: Duration) {
        for phase in phases {
            self.calls[phase] += 1;
            self.longest[phase] = self.longest[phase].max(took);
        }
    }

    fn add(&mut self, other: &StopCalls) {
        self.calls.iter_mut().zip(other.calls).for_each(|(all, some)| *all += some);
        let longest = self.longest.iter_mut().zip(other.longest);
        longest.for_each(|(all, some)| *all = some.max(*all));
        self.errors += other.errors;
    }
}

/// Bytes on all servers for a database of so many.
pub(super) fn needed(database: u64) -> u64 {
    database.saturating_mul(SERVERS)
}

/// Measures the row.
pub(super) fn measure(setting: &CopiesSetting<'_>) -> Result<Vec<CopiesFigure>, String> {
    let mut place = CopiesPlace::new(setting.data)?;
    let directory = place.directory("stops", "replicas=3 stripe_count=3")?;
    eprintln!("stops: making a database of {} MiB", setting.database >> 20);
    let database = make(&directory.join("database"), setting)?;
    let mut seen = StopCalls::default();
    for ost in 1..=place.cluster.osses.len() {
        place.settle(setting.asked)?;
        eprintln!("stops: the server of ost {ost}");
        seen.add(&stop(&mut place, &database, ost, setting)?);
    }
    let mut figures = Vec::new();
    for (phase, name) in PHASES.iter().enumerate() {
        let Some(name) = name else { continue };
        let calls = seen.calls[phase];
        figures.push(CopiesFigure {
            row: "stops",
            name: (*name).into(),
            value: (calls > 0).then_some(seen.longest[phase].as_secs_f64()),
            unit: "s",
            reach: Some(CopiesReach::AtMost(REACH_S)),
            parts: vec![
                ("calls".into(), calls as f64),
                ("database_mib".into(), (setting.database >> 20) as f64),
            ],
        });
    }
    figures.push(CopiesFigure {
        row: "stops",
        name: "errors".into(),
        value: Some(seen.errors as f64),
        unit: "calls",
        reach: Some(CopiesReach::AtMost(0.0)),
        parts: vec![("stops".into(), place.cluster.osses.len() as f64)],
    });
    Ok(figures)
}

/// Makes the database, without holes.
fn make(path: &Path, setting: &CopiesSetting<'_>) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let data = vec![5; FILL_BYTES as usize];
    for at in (0..setting.database).step_by(FILL_BYTES as usize) {
        if setting.asked() {
            return Err("interrupted".into());
        }
        file.write_all_at(&data, at).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}

/// Stops the server of an OST under load, and starts it again. Returns the calls of the program.
fn stop(
    place: &mut CopiesPlace,
    database: &File,
    ost: usize,
    setting: &CopiesSetting<'_>,
) -> Result<StopCalls, String> {
    let (phase, blocks) = (AtomicUsize::new(0), setting.database / BLOCK_BYTES);
    let (ended, seen) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| calls(database, blocks, &phase));
        let ended = stop_and_start(place, &phase, ost, setting);
        phase.store(OVER, Ordering::Relaxed);
        (ended, writer.join())
    });
    ended?;
    seen.map_err(|_| "the program that writes has panicked".to_owned())
}

fn stop_and_start(
    place: &mut CopiesPlace,
    phase: &AtomicUsize,
    ost: usize,
    setting: &CopiesSetting<'_>,
) -> Result<(), String> {
    sleep(BEFORE, setting.asked)?;
    phase.store(STOPPED, Ordering::Relaxed);
    place.stop(ost);
    sleep(AWAY, setting.asked)?;
    phase.store(STARTED, Ordering::Relaxed);
    place.start_again(ost)?;
    place.cluster.wait_until_whole(PATIENCE, setting.asked)
}

/// Writes blocks in a random order, until all is over.
fn calls(database: &File, blocks: u64, phase: &AtomicUsize) -> StopCalls {
    let mut seen = StopCalls::default();
    let data = vec![6; BLOCK_BYTES as usize];
    let mut random = 1_u64;
    loop {
        let from = phase.load(Ordering::Relaxed);
        if from == OVER {
            return seen;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let at = (random >> 33) % blocks.max(1) * BLOCK_BYTES;
        let begun = Instant::now();
        let done = database.write_all_at(&data, at).and_then(|()| database.sync_data());
        let took = begun.elapsed();
        if let Err(error) = done {
            if seen.errors == 0 {
                eprintln!("stops: {error}");
            }
            seen.errors += 1;
        }
        seen.note(from..=phase.load(Ordering::Relaxed), took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_counts_in_each_phase_that_it_lasts_in() {
        let (mut all, mut seen) = (StopCalls::default(), StopCalls::default());
        let ms = Duration::from_millis;
        seen.note(0..=0, ms(9));
        seen.note(0..=STOPPED, ms(7));
        seen.note(STOPPED..=STARTED, ms(5));
        all.add(&seen);
        all.add(&seen);
        assert_eq!(all.calls, [4, 4, 2, 0]);
        assert_eq!(all.longest, [ms(9), ms(7), ms(5), ms(0)]);
    }
}
