//! Runs the end-to-end tests, each in a process of its own: several at once, the longest first, of
//! those that `plan.txt` marks `busy` as many as there are cores, and those that it marks `alone` one
//! after the other at the end.
//!
//! A test that fails is run once more, alone. If it passes then, it is reported as FLAKY with both
//! logs; `--strict` counts it as failed and runs nothing twice.
//!
//! Promises: a test that hangs is ended after [`one_test::LIMIT`], or three times what it usually
//! takes if that is longer than this, and fails; whatever a test leaves behind is removed, and makes
//! it fail, and so does a panic in a log of one of its processes. Logs of a test that fails are kept.

/// Prints a line for who has started the runner.
macro_rules! say {
    ($($words:tt)*) => { $crate::report::print(format_args!($($words)*)) };
}

mod leftovers;
mod logs;
mod one_test;
mod plan;
mod queue;
mod report;

use clap::Parser;
use one_test::Tests;
use plan::Plan;
use queue::TestQueue;
use report::Report;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;

/// Runs the end-to-end tests of Glint, each in a process of its own.
#[derive(Parser)]
#[command(name = "glint-e2e")]
struct Args {
    /// The binary with the tests.
    binary: PathBuf,
    /// Parts of names: only tests that have one of them.
    filters: Vec<String>,
    /// How many tests run at once. Most of them wait most of the time.
    #[arg(long, default_value_t = 8)]
    jobs: usize,
    /// How often each test runs.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    /// Prints the names of all tests.
    #[arg(long)]
    list: bool,
    /// One test of each kind: those that plan.txt marks `quick`.
    #[arg(long)]
    quick: bool,
    /// Also the tests that `make test` leaves out, and more of what the others do.
    #[arg(long)]
    long: bool,
    /// Runs nothing twice: a test that fails once has failed.
    #[arg(long)]
    strict: bool,
    /// Appends a line for each run of a test to this file of the repository: name, result, seconds.
    #[arg(long)]
    record: Option<PathBuf>,
    /// Appends a line to this file of the repository: how many tests passed, failed, were flaky.
    #[arg(long)]
    sum: Option<PathBuf>,
    /// Where tests, their usual times and marks are listed.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/plan.txt"))]
    plan: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say!("glint-e2e: {error}");
            ExitCode::from(2)
        }
    }
}

/// Runs all tests that were asked for; false if one failed.
fn run(args: &Args) -> Result<bool, String> {
    one_test::listen_to_signals().map_err(|error| error.to_string())?;
    let plan = Plan::read(&args.plan)?;
    support::binary::named()?;
    let all = one_test::list(&args.binary, false)?;
    if all.is_empty() {
        return Err(format!("{} has no tests", args.binary.display()));
    }
    let left_out = one_test::list(&args.binary, true)?;
    plan.knows_only(&all).map_err(|error| format!("{}: {error}", args.plan.display()))?;
    if args.list {
        all.iter().for_each(|name| say!("{name}"));
        return Ok(true);
    }
    for part in &args.filters {
        if part.is_empty() {
            return Err("\"\" is in all names: leave it out to run all tests".to_owned());
        }
        let named: Vec<_> = all.iter().filter(|name| name.contains(part.as_str())).collect();
        if named.is_empty() {
            return Err(format!("no test has {part:?} in its name; --list shows them"));
        }
        if !args.long && named.iter().all(|name| left_out.contains(name)) {
            return Err(format!("{part:?} runs with --long only"));
        }
        if args.quick && !named.iter().any(|name| plan.is_quick(name)) {
            let plan = args.plan.display();
            return Err(format!("{part:?} is in no name that {plan} marks quick; see --list"));
        }
    }
    let tests = Tests {
        binary: args.binary.clone(),
        at_length: args.long,
        logs: logs::directory(),
        limit: one_test::LIMIT,
        plan,
    };
    let plan = &tests.plan;
    let _locked = logs::lock(&tests.logs)?;
    let is_wanted = |name: &String| {
        let is_named = args.filters.iter().any(|part| name.contains(part.as_str()));
        (args.filters.is_empty() || is_named)
            && (!args.quick || plan.is_quick(name))
            && (args.long || !left_out.contains(name))
    };
    let mut names: Vec<String> = all.into_iter().filter(is_wanted).collect();
    if names.is_empty() {
        return Err("no such test: --quick, --long and the names leave none".to_owned());
    }
    names.sort_by_key(|name| std::cmp::Reverse(plan.usual_seconds(name)));
    let (alone, together): (Vec<_>, Vec<_>) =
        names.into_iter().partition(|name| plan.is_alone(name));
    if args.long {
        say!("e2e: also {}, which `make test` leaves out", left_out.join(", "));
    }
    let report = Report::begin(args, plan, &alone, &together)?;
    run_together(args, &tests, &together, &report);
    for _ in 0..args.repeat {
        run_each(&tests, &alone, &report);
    }
    if !args.strict && !one_test::interrupted() {
        for first in report.failures() {
            let run = report.begins(&first.name);
            let second = tests.run(&first.name, run);
            report.ran_again(first, second);
        }
    }
    Ok(report.end())
}

/// Runs tests on `jobs` threads, about in their order.
fn run_together(args: &Args, tests: &Tests, names: &[String], report: &Report) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(TestQueue::new((0..args.repeat).flat_map(|_| names), cores));
    std::thread::scope(|scope| {
        for _ in 0..args.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let Some(name) = report::locked(&queue).begin(&tests.plan) else { return };
                    if one_test::interrupted() {
                        return;
                    }
                    run_one(tests, name, report);
                    report::locked(&queue).end(&tests.plan, name);
                }
            });
        }
    });
}

fn run_each(tests: &Tests, names: &[String], report: &Report) {
    for name in names {
        if !one_test::interrupted() {
            run_one(tests, name, report);
        }
    }
}

fn run_one(tests: &Tests, name: &str, report: &Report) {
    let run = report.begins(name);
    report.ended(tests.run(name, run));
}
