//! The commands of Glint. The binary `glint` is one call of this library; the other one,
//! `glint-bench`, starts servers in its process and speaks to people in the same way.
//!
//! Promises: what fails is said in one message, with what, where and what to do, and in the exit
//! code that mount(8) has for it.
//!
//! Does not know: how anything of a file system is decided. This crate wires the others together
//! and talks to people. A subcommand is a file in `cmd`; public is what `glint-bench` needs.

mod cmd;
mod control;
mod daemon;
pub mod identity;
mod live;
mod logging;
mod metrics;
pub mod output;
pub mod program;
pub mod signals;
pub mod size;
mod target;

pub use cmd::mount_options;
pub use cmd::up::announce;

use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// A parallel file system: metadata servers, object storage targets, a caching
/// client, a FUSE mount.
///
/// Try it: `glint up --data /tmp/glint-data --mount /mnt/glint` creates, serves and
/// mounts a file system; Ctrl-C unmounts it, and everything is there next time.
#[derive(Parser)]
#[command(version, max_term_width = 100, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(clap::Args, Default)]
pub struct Common {
    /// Log more: -v for details, -vv for everything. GLINT_LOG takes filters as
    /// RUST_LOG does.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Identity of this process on a network: a directory that `glint cert issue` made. Everything
    /// that goes over TCP is encrypted then, and both sides show certificates.
    #[arg(long, global = true, env = "GLINT_CERT", value_name = "DIR")]
    cert: Option<PathBuf>,
}

impl Common {
    /// Sets this process up.
    pub fn apply(&self) {
        logging::start(self.verbose);
        glint_server::descriptors::raise();
        identity::set(self.cert.clone());
    }

    /// Options as the words of a command line.
    fn words(&self) -> Vec<OsString> {
        let mut words = vec!["-v".into(); self.verbose.into()];
        words.extend(self.cert.iter().flat_map(|cert| ["--cert".into(), cert.into()]));
        words
    }
}

#[derive(Subcommand)]
enum Command {
    Up(cmd::up::Args),
    Serve(cmd::serve::Args),
    Oss(cmd::oss::Args),
    Mount(cmd::mount::Args),
    Umount(cmd::umount::Args),
    Status(cmd::status::Args),
    Stats(cmd::stats::Args),
    Setstripe(cmd::storage::stripe::SetArgs),
    Restripe(cmd::storage::restripe::Args),
    Getstripe(cmd::storage::stripe::GetArgs),
    #[command(subcommand)]
    Ost(cmd::storage::ost::OstCommand),
    #[command(subcommand)]
    Heal(cmd::storage::heal::HealCommand),
    Du(cmd::du::Args),
    Find(cmd::find::Args),
    Ls(cmd::ls::Args),
    Fsck(cmd::fsck::Args),
    Scrub(cmd::storage::scrub::Args),
    #[command(subcommand)]
    Cert(cmd::cert::CertCommand),
    Bench(cmd::bench::Args),
}

/// Result of a command for the shell: a message that says what, where and what to do.
pub type CommandResult = Result<ExitCode, Box<dyn std::error::Error>>;

/// Exit codes, those of mount(8); `fsck` has those of fsck(8).
mod exit_code {
    /// Something is wrong, or was called wrongly.
    pub(crate) const USAGE: u8 = 1;
    /// See [`USAGE`].
    pub(crate) const FAILED: u8 = 1;
    /// A mount, or the end of one, failed.
    pub(crate) const MOUNT_FAILED: u8 = 32;
}

/// A mount was asked for in a way that cannot be understood, or by somebody who may not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The binary `glint`.
pub fn main() -> ExitCode {
    let call = cmd::mount::translate(std::env::args_os().collect());
    if let Some(args) = cmd::bench::Args::of_help(&call.arguments) {
        return end(cmd::bench::run(args, &Common::default()));
    }
    let cli = match Cli::try_parse_from(&call.arguments) {
        Ok(cli) => cli,
        Err(error) => {
            return not_understood(&call, &error);
        }
    };
    cli.common.apply();
    match cli.command {
        Command::Mount(args) => end_with(cmd::mount::run(args), exit_code::MOUNT_FAILED),
        Command::Umount(args) => end_with(cmd::umount::run(args), exit_code::MOUNT_FAILED),
        Command::Fsck(args) => end_with(cmd::fsck::run(args), cmd::fsck::FAILED),
        other => end(run(other, &cli.common)),
    }
}

/// Says why the words of a call cannot be understood, or its help, and returns what the shell is told.
/// Commands that stand for those of every system are as brief as they, and have their exit codes.
fn not_understood(call: &cmd::mount::Call, error: &clap::Error) -> ExitCode {
    let command = command_of(&call.arguments);
    let (code, is_brief) = match command.as_deref() {
        _ if call.is_helper => (exit_code::USAGE, false),
        Some("fsck") => (cmd::fsck::USAGE, false),
        Some("find" | "du") => (exit_code::USAGE, true),
        Some("ls") => (cmd::ls::USAGE, true),
        _ => (error.exit_code() as u8, false),
    };
    // Standard error may have been closed by its reader.
    let _ = match command {
        Some(command) if is_brief && error.use_stderr() => {
            writeln!(std::io::stderr(), "{}", in_a_line(&command, error))
        }
        _ => error.print(),
    };
    ExitCode::from(if error.use_stderr() { code } else { 0 })
}

/// Returns which command the words of a call, which cannot be understood, are about.
fn command_of(arguments: &[OsString]) -> Option<String> {
    let matches = Cli::command().ignore_errors(true).try_get_matches_from(arguments);
    matches.ok()?.subcommand_name().map(str::to_owned)
}

/// Returns what is wrong with the words of a command, without a table of all that they may be.
fn in_a_line(command: &str, error: &clap::Error) -> String {
    let text = error.render().to_string();
    let why: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    let why = why.join(" ");
    let why = why.strip_prefix("error: ").unwrap_or(&why);
    format!("glint {command}: {why}; try `glint {command} --help`")
}

/// Ends a command: says what failed, and returns what the shell is told.
pub fn end(result: CommandResult) -> ExitCode {
    end_with(result, exit_code::FAILED)
}

fn end_with(result: CommandResult, failed: u8) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            daemon::say_failed(&error);
            let _ = writeln!(std::io::stderr(), "glint: {error}");
            let usage = error.downcast_ref::<Usage>().is_some();
            ExitCode::from(if usage { exit_code::USAGE } else { failed })
        }
    }
}

fn run(command: Command, common: &Common) -> CommandResult {
    match command {
        Command::Up(args) => cmd::up::run(args),
        Command::Serve(args) => cmd::serve::run(args),
        Command::Oss(args) => cmd::oss::run(args),
        Command::Mount(args) => cmd::mount::run(args),
        Command::Umount(args) => cmd::umount::run(args),
        Command::Status(args) => cmd::status::run(args),
        Command::Stats(args) => cmd::stats::run(args),
        Command::Setstripe(args) => cmd::storage::stripe::set(args),
        Command::Restripe(args) => cmd::storage::restripe::run(args),
        Command::Getstripe(args) => cmd::storage::stripe::get(args),
        Command::Scrub(args) => cmd::storage::scrub::run(args),
        Command::Du(args) => cmd::du::run(args),
        Command::Find(args) => cmd::find::run(args),
        Command::Ls(args) => cmd::ls::run(args),
        Command::Fsck(args) => cmd::fsck::run(args),
        Command::Heal(command) => cmd::storage::heal::run(command),
        Command::Ost(command) => cmd::storage::ost::run(command),
        Command::Cert(command) => cmd::cert::run(command),
        Command::Bench(args) => cmd::bench::run(args, common),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_osts_is_refused_with_its_range() {
        for command in ["up", "serve", "oss"] {
            for count in ["0", "1025", "100000"] {
                let more = match command {
                    "up" => ["--mount", "m"],
                    "oss" => ["--mds", "m"],
                    _ => ["--lease", "10"],
                };
                let call = ["glint", command, "--data", "d", "--osts", count];
                let call = call.into_iter().chain(more);
                let said = Cli::try_parse_from(call).err().unwrap().to_string();
                assert!(said.contains("'--osts <N>'") && said.contains("1..=1024"), "{said}");
            }
        }
    }

    #[test]
    fn the_command_of_a_wrong_call_is_known() {
        for (call, expected) in [
            (&["glint", "fsck", "--colour"][..], Some("fsck")),
            (&["glint", "fsck"], Some("fsck")),
            (&["glint", "--cert", "/c", "-v", "fsck", "a", "b"], Some("fsck")),
            (&["glint", "status", "--colour", "fsck"], Some("status")),
            (&["glint", "du", "-a", "-s"], Some("du")),
            (&["glint", "--colour"], None),
        ] {
            let arguments: Vec<OsString> = call.iter().map(OsString::from).collect();
            assert!(Cli::try_parse_from(&arguments).is_err(), "{call:?}");
            assert_eq!(command_of(&arguments).as_deref(), expected, "{call:?}");
        }
    }

    #[test]
    fn a_wrong_word_is_told_in_a_line() {
        for (call, told) in [
            (
                &["glint", "du", "--colour"][..],
                "glint du: unexpected argument '--colour' found; try",
            ),
            (&["glint", "du", "-a", "-s"], "cannot be used with"),
            (&["glint", "du", "-d", "x"], "invalid value 'x' for '--max-depth <N>': "),
            (&["glint", "du", "--time-style=x"], "[possible values: full-iso, long-iso, iso]; try"),
            (&["glint", "ls", "--block-size", "0"], "glint ls: invalid value '0'"),
        ] {
            let error = Cli::try_parse_from(call).err().unwrap();
            let said = in_a_line(call[1], &error);
            assert!(said.contains(told) && !said.contains('\n'), "{said}");
            assert!(said.ends_with(&format!("`glint {} --help`", call[1])), "{said}");
        }
    }
}
