//! `glint bench`: the experiments that Glint is built on.

mod null_mount;

use crate::CommandResult;

/// Measure. Each benchmark prints JSON, one object a line, with --json.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(clap::Subcommand)]
enum Bench {
    NullMount(null_mount::Args),
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    match args.bench {
        Bench::NullMount(args) => null_mount::run(args),
    }
}
