//! `glint bench`: the program `glint-bench`, which has what only benchmarks need.

use crate::{CommandResult, Common, program};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Name of the program.
const PROGRAM: &str = "glint-bench";

/// Measure; `glint bench --help` lists what.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// A benchmark, and its options.
    #[arg(value_name = "BENCHMARK", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

impl Args {
    /// Arguments of `glint help bench ...`, which only the benchmarks can answer.
    pub(crate) fn of_help(call: &[OsString]) -> Option<Args> {
        let [_, help, bench, rest @ ..] = call else { return None };
        let is_it = help == "help" && bench == "bench";
        let arguments = std::iter::once(help).chain(rest).cloned().collect();
        is_it.then_some(Args { arguments })
    }
}

/// Becomes the program: signals, the terminal and the exit code are its own.
pub(crate) fn run(args: Args, common: &Common) -> CommandResult {
    let mut command = Command::new(program::path(PROGRAM));
    let error = command.args(common.words()).args(args.arguments).exec();
    Err(program::not_started(PROGRAM, &error).into())
}
