//! `glint bench`: the experiments that Glint is built on.

mod createmany;
mod getattr;
mod ior;
mod lustre_2009;
mod lustre_ssf;
mod native;
mod null_mount;
mod posix;
mod pvfs_2006;
mod report;
mod sample;
mod stage;
mod start;
mod stream;
mod untar;

use crate::CommandResult;

/// Measure. Each benchmark prints JSON, one object a line, with --json.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    Createmany(createmany::Args),
    Getattr(getattr::Args),
    Ior(ior::Args),
    NullMount(null_mount::Args),
    Start(start::Args),
    Stream(stream::Args),
    Untar(untar::Args),
    #[command(hide = true)]
    Worker(posix::WorkerArgs),
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    match args.bench {
        Bench::Createmany(args) => createmany::run(args),
        Bench::Getattr(args) => getattr::run(args),
        Bench::Ior(args) => ior::run(args),
        Bench::NullMount(args) => null_mount::run(args),
        Bench::Start(args) => start::run(args),
        Bench::Stream(args) => stream::run(args),
        Bench::Untar(args) => untar::run(args),
        Bench::Worker(args) => posix::work(args),
    }
}
