//! What the runner says: a line for each test that has ended, what runs while none ends, the logs of
//! failures, and the sum.

use crate::Args;
use crate::logs::tail;
use crate::one_test::{self, Outcome};
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Pause between two lines about what runs, while no test ends.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Tells how far the tests are.
pub(crate) struct Report {
    state: Arc<Mutex<Progress>>,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
}

struct Progress {
    begun: Instant,
    usual: BTreeMap<String, u64>,
    running: BTreeMap<(String, u32), Instant>,
    runs: BTreeMap<String, u32>,
    said: Instant,
    total: usize,
    ended: usize,
    failures: Vec<Outcome>,
    failed: usize,
    flaky: usize,
    times: BTreeMap<String, Duration>,
    record: Option<File>,
    sum: Option<File>,
}

/// Locks, also where another thread has panicked meanwhile.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Prints a line. Where nobody reads any more, tests end as after a signal.
pub(crate) fn print(line: std::fmt::Arguments) {
    if writeln!(std::io::stdout(), "{line}").is_err() {
        one_test::interrupt();
    }
}

impl Report {
    /// Says what is going to be run.
    pub(crate) fn begin(
        args: &Args,
        plan: &Plan,
        alone: &[String],
        together: &[String],
    ) -> Result<Report, String> {
        let all = || alone.iter().chain(together);
        let usual: BTreeMap<String, u64> =
            all().map(|name| (name.clone(), plan.usual_seconds(name))).collect();
        let usually = |names: &[String]| names.iter().map(|name| usual[name]).sum::<u64>();
        let jobs = args.jobs.max(1) as u64;
        let longest = together.iter().map(|name| usual[name]).max().unwrap_or(0);
        let expected = (usually(together) / jobs).max(longest) + usually(alone);
        let total = (alone.len() + together.len()) * args.repeat as usize;
        say!(
            "e2e: {total} tests, {jobs} at once, {} of them alone; usually {} s",
            alone.len() * args.repeat as usize,
            expected * u64::from(args.repeat)
        );
        // Cargo runs this in the folder of the package.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let open = |path: &PathBuf| {
            let opened = OpenOptions::new().create(true).append(true).open(root.join(path));
            opened.map_err(|error| format!("{}: {error}", path.display()))
        };
        let record = args.record.as_ref().map(open).transpose()?;
        let sum = args.sum.as_ref().map(open).transpose()?;
        let now = Instant::now();
        let state = Progress {
            begun: now,
            usual,
            running: BTreeMap::new(),
            runs: BTreeMap::new(),
            said: now,
            total,
            ended: 0,
            failures: Vec::new(),
            failed: 0,
            flaky: 0,
            times: BTreeMap::new(),
            record,
            sum,
        };
        let state = Arc::new(Mutex::new(state));
        let (stop, stopped) = channel();
        let its = state.clone();
        let ticker = std::thread::spawn(move || {
            while stopped.recv_timeout(Duration::from_secs(1)) == Err(RecvTimeoutError::Timeout) {
                locked(&its).say_what_runs();
            }
        });
        Ok(Report { state, ticker: Some((stop, ticker)) })
    }

    /// Notes the start of a test. Returns which of its runs this is.
    pub(crate) fn begins(&self, name: &str) -> u32 {
        let mut state = locked(&self.state);
        let run = state.runs.entry(name.to_owned()).or_default();
        *run += 1;
        let run = *run;
        state.running.insert((name.to_owned(), run), Instant::now());
        run
    }

    /// Notes the end of a test.
    pub(crate) fn ended(&self, outcome: Outcome) {
        locked(&self.state).ended(outcome);
    }

    /// Takes the tests that have failed.
    pub(crate) fn failures(&self) -> Vec<Outcome> {
        std::mem::take(&mut locked(&self.state).failures)
    }

    /// Records the second run of a test that had failed.
    pub(crate) fn ran_again(&self, first: Outcome, second: Outcome) {
        let mut state = locked(&self.state);
        state.running.remove(&(second.name.clone(), second.run));
        let result = if second.failure.is_some() { "FAILED AGAIN" } else { "FLAKY" };
        say!("{result} {} ({})", second.name, seconds(second.took));
        if second.failure.is_some() {
            state.failures.push(second);
            return;
        }
        state.failed -= 1;
        state.flaky += 1;
        say!("--- first run, {}:\n{}", first.logs(), tail(&first.log));
        say!("--- second run, {}:\n{}", second.logs(), tail(&second.log));
    }

    /// Says the sum; false if a test failed.
    pub(crate) fn end(mut self) -> bool {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            let _ = ticker.join();
        }
        let mut state = locked(&self.state);
        let mut slowest: Vec<_> = state.times.iter().collect();
        slowest.sort_by_key(|(_, took)| std::cmp::Reverse(**took));
        say!("e2e: the slowest were");
        for (name, took) in slowest.into_iter().take(10) {
            say!("  {:>7} {name}", seconds(*took));
        }
        for failed in &state.failures {
            let why = failed.failure.as_deref().unwrap_or_default();
            say!("--- {} FAILED: {why}; {}", failed.name, failed.logs());
        }
        let (passed, failed, flaky) = (state.ended - state.failed, state.failed, state.flaky);
        let took = seconds(state.begun.elapsed());
        say!("e2e: {passed} passed, {failed} failed, {flaky} flaky, in {took}");
        if let Some(sum) = &mut state.sum
            && let Err(error) = writeln!(sum, "{passed} {failed} {flaky}")
        {
            say!("the sum cannot be written: {error}");
        }
        if one_test::interrupted() {
            say!("e2e: interrupted, {} tests were not run", state.total - state.ended);
        }
        state.failed == 0 && !one_test::interrupted()
    }
}

impl Progress {
    fn ended(&mut self, outcome: Outcome) {
        self.ended += 1;
        self.running.remove(&(outcome.name.clone(), outcome.run));
        let took = self.times.entry(outcome.name.clone()).or_default();
        *took = outcome.took.max(*took);
        let result = if outcome.failure.is_some() { "FAILED" } else { "ok" };
        let usual = self.usual.get(&outcome.name).copied().unwrap_or(0);
        let usually = if outcome.took.as_secs() > 2 * usual + 5 {
            format!(", usually {usual} s")
        } else {
            String::new()
        };
        say!(
            "[{:>3}/{}] {result:6} {} ({}{usually})",
            self.ended,
            self.total,
            outcome.name,
            seconds(outcome.took)
        );
        if let Some(record) = &mut self.record {
            let line = format!("{} {result} {:.1}\n", outcome.name, outcome.took.as_secs_f64());
            if let Err(error) = record.write_all(line.as_bytes()) {
                say!("the record cannot be written: {error}");
            }
        }
        if let Some(why) = &outcome.failure {
            say!("--- {}: {why}; {}\n{}---", outcome.name, outcome.logs(), tail(&outcome.log));
            self.failed += 1;
            self.failures.push(outcome);
        }
        self.said = Instant::now();
    }

    fn say_what_runs(&mut self) {
        if self.said.elapsed() < SILENCE_MAX || self.running.is_empty() {
            return;
        }
        let runs = self.running.iter().map(|((name, _), since)| {
            let usual = self.usual.get(name).copied().unwrap_or(0);
            format!("{name} ({} s, usually {usual})", since.elapsed().as_secs())
        });
        say!("          running: {}", runs.collect::<Vec<_>>().join(", "));
        self.said = Instant::now();
    }
}
