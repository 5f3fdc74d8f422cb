//! Runs seeds of the simulation, and says how to run one that failed again.

use clap::Parser;
use glint_sim::Outcome;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Simulate clients and servers that fail, and check that nothing acknowledged is lost and
/// nothing is executed twice.
#[derive(Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run each twice: the second run must be the same.
    #[arg(long)]
    twice: bool,
    /// Give files copies in every seed, not in some.
    #[arg(long)]
    copies: bool,
    /// Instead of all that, cut files with copies off and write them anew, while members of their
    /// chains come and go.
    #[arg(long, conflicts_with = "copies")]
    truncations: bool,
    /// Run this seed only, and log what happens.
    #[arg(long)]
    seed: Option<u64>,
}

impl Args {
    fn run(&self, seed: u64) -> Result<Outcome, String> {
        match self.truncations {
            true => glint_sim::run_truncations(seed),
            false => glint_sim::run(seed, self.copies),
        }
    }

    /// What `make sim` is told besides the seed.
    fn said(&self) -> &'static str {
        match (self.truncations, self.copies) {
            (true, _) => " TRUNCATIONS=1",
            (false, true) => " COPIES=1",
            (false, false) => "",
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(seed) = args.seed {
        let filter = tracing_subscriber::EnvFilter::new("debug,glint_server=trace,glint_mds=trace");
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
        return match args.run(seed) {
            Ok(outcome) => {
                println!("seed {seed}: {outcome:?}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                println!("seed {seed}: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let start = Instant::now();
    let (next, failed) = (AtomicU64::new(args.from), AtomicU64::new(0));
    let end = args.from + args.seeds;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut total = Outcome::default();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut total = Outcome::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            return total;
                        }
                        match args.run(seed) {
                            Ok(outcome) if args.twice && args.run(seed) != Ok(outcome) => {
                                failed.fetch_add(1, Ordering::Relaxed);
                                println!("seed {seed}: another run of it was another one");
                            }
                            Ok(outcome) => total.add(&outcome),
                            Err(error) => {
                                failed.fetch_add(1, Ordering::Relaxed);
                                let said = args.said();
                                println!(
                                    "seed {seed}: {error}\n  again: make sim SEED={seed}{said}"
                                );
                            }
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            if let Ok(part) = worker.join() {
                total.add(&part);
            }
        }
    });
    let failed = failed.into_inner();
    println!(
        "{} seeds in {:.1} s, {failed} failed: {} steps, {} s of simulated time, {} kills, {} losses of \
         power, {} failed disks, {} dead and {} cut off clients, {} \
         heads felled, {} OSTs given up, {} of their places taken, {} objects removed, {} files \
         moved, {} rests of heal, {} files read in kernels and {} stored there, {} rewritten while \
         {} disks were full and {} rows changed; next {:016x}",
        args.seeds,
        start.elapsed().as_secs_f64(),
        total.steps,
        total.seconds,
        total.kills,
        total.power_losses,
        total.disk_failures,
        total.dead_clients,
        total.cut_off_clients,
        total.felled_heads,
        total.given_up,
        total.places_taken,
        total.removed,
        total.moved,
        total.heal_rests,
        total.read_in_kernel,
        total.stored_in_kernel,
        total.rewritten,
        total.filled,
        total.rows,
        total.next
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
