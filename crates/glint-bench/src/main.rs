//! `glint-bench`: the experiments that Glint is built on. `glint bench` runs it.

mod copies;
mod createmany;
mod experiments;
mod getattr;
mod ior;
mod null_mount;
mod pace;
mod page_counting_mount;
mod rounds;
mod sample;
mod scan;
mod smallfile;
mod start;
mod stream;
mod untar;
mod unwritten;
mod work;

use clap::{Parser, Subcommand};
use glint::{CommandResult, Common};
use std::process::ExitCode;

/// Measure. Each benchmark prints JSON, one object a line, with --json.
#[derive(Parser)]
#[command(bin_name = "glint bench", version, max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    Copies(copies::Args),
    Createmany(createmany::Args),
    Getattr(getattr::Args),
    Ior(ior::Args),
    NullMount(null_mount::Args),
    Scan(scan::Args),
    Smallfile(smallfile::Args),
    Start(start::Args),
    Stream(stream::Args),
    Untar(untar::Args),
    Work(work::Args),
    #[command(hide = true)]
    PageCountingMount(page_counting_mount::Args),
    #[command(hide = true)]
    ScanStream(scan::StreamArgs),
    #[command(hide = true)]
    ScanWalk(scan::WalkArgs),
    #[command(hide = true)]
    Worker(rounds::posix::WorkerArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    cli.common.apply();
    glint::end(run(cli.bench))
}

fn run(bench: Bench) -> CommandResult {
    match bench {
        Bench::Copies(args) => copies::run(args),
        Bench::Createmany(args) => createmany::run(args),
        Bench::Getattr(args) => getattr::run(args),
        Bench::Ior(args) => ior::run(args),
        Bench::NullMount(args) => null_mount::run(args),
        Bench::PageCountingMount(args) => page_counting_mount::run(args),
        Bench::Scan(args) => scan::run(args),
        Bench::ScanStream(args) => scan::stream(args),
        Bench::ScanWalk(args) => scan::walk(args),
        Bench::Smallfile(args) => smallfile::run(args),
        Bench::Start(args) => start::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Untar(args) => untar::run(args),
        Bench::Work(args) => work::run(args),
        Bench::Worker(args) => rounds::posix::work(args),
    }
}
