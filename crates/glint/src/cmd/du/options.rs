//! Options of `glint du`. Of those that say a unit the last one counts, as in du(1).

use super::report::{Style, TimeStyle};
use super::threshold::Threshold;
use super::walk::DuCall;
use crate::Usage;
use crate::cmd::tree::c_library::Pattern;
use crate::cmd::tree::show::TimeOf;
use crate::cmd::tree::size::SizeUnit;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command, FromArgMatches};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

const HELP: &str = "\
SIZE is a number of bytes, or one with a unit: K, M, G, T, P, E (powers of 1024; KiB is the same) or KB,
MB ... (powers of 1000). Without an option the unit is that of DU_BLOCK_SIZE, BLOCK_SIZE or BLOCKSIZE,
or 1024 bytes.

Examples:
  glint du -sh /mnt/glint/project
  glint du -h -d 1 -t 1G /mnt/glint | sort -h
  glint du --inodes -d 2 --exclude .git /mnt/glint
  glint du -0 -a -b server:5640/project
  glint du --json -s /mnt/glint/home/*";

/// Sum up the space of files, as du(1) does, by asking the servers instead of a mount.
///
/// Many directories are listed at once. Lines come in the order of the listings, each directory
/// after what is in it; a file of several links counts where it is found first.
#[derive(clap::Args)]
#[command(
    after_help = HELP,
    disable_help_flag = true,
    args_override_self = true,
)]
struct Options {
    /// Files have lines, too, not only directories.
    #[arg(short, long, conflicts_with = "summarize")]
    all: bool,
    /// A line for each PATH only.
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// A line for what is at most N names below a PATH.
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// A line for the total of all PATHs, at the end.
    #[arg(short = 'c', long)]
    total: bool,
    /// A directory does not count the directories in it.
    #[arg(short = 'S', long)]
    separate_dirs: bool,
    /// Count a file once for each of its links, and each PATH even if another one leads to it.
    #[arg(short = 'l', long)]
    count_links: bool,
    /// Sizes for people: 1.5K, 234M, 2.1G.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// The same, with powers of 1000.
    #[arg(long)]
    si: bool,
    /// Sizes in KiB.
    #[arg(short = 'k')]
    kibi: bool,
    /// Sizes in MiB.
    #[arg(short = 'm')]
    mebi: bool,
    /// Sizes in units of SIZE; `human-readable` and `si` are units, too.
    #[arg(short = 'B', long, value_name = "SIZE", value_parser = SizeUnit::parse)]
    block_size: Option<SizeUnit>,
    /// Bytes that can be read, instead of space on disk: holes count, and copies do not.
    #[arg(long)]
    apparent_size: bool,
    /// --apparent-size --block-size=1
    #[arg(short = 'b', long)]
    bytes: bool,
    /// Numbers of inodes instead of sizes.
    #[arg(long)]
    inodes: bool,
    /// No lines of less than SIZE; of more, if it begins with a minus. Inodes with --inodes.
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true,
          value_parser = Threshold::parse)]
    threshold: Option<Threshold>,
    /// Leave out what matches a pattern of the shell: its path, or a part after a slash.
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<OsString>,
    /// Show the latest time of what is in a directory: mtime, atime (access, use) or ctime (status).
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true,
          default_missing_value = "mtime", value_parser = TimeOf::parse)]
    time: Option<TimeOf>,
    /// How times are shown.
    #[arg(long, value_name = "STYLE", value_enum, default_value = "long-iso")]
    time_style: TimeStyle,
    /// End lines with a byte 0.
    #[arg(short = '0', long)]
    null: bool,
    /// Changes nothing: what is mounted over a directory is never seen.
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Changes nothing: links are not followed.
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Print a JSON object for each line: bytes, whatever the unit is.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Paths in mounts of Glint, or HOST:PORT/PATH.
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<OsString>,
}

/// What `glint du` was called with.
pub(crate) struct Args {
    options: Options,
    unit: Option<SizeUnit>,
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        Options::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Options::augment_args_for_update(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Args, clap::Error> {
        let options = Options::from_arg_matches(matches)?;
        let said = [
            ("human_readable", Some(SizeUnit::Largest { base: 1024 })),
            ("si", Some(SizeUnit::Largest { base: 1000 })),
            ("kibi", Some(SizeUnit::Blocks(1 << 10))),
            ("mebi", Some(SizeUnit::Blocks(1 << 20))),
            ("bytes", Some(SizeUnit::Blocks(1))),
            ("block_size", options.block_size),
        ];
        let last = said.into_iter().filter_map(|(id, unit)| {
            let is_said = matches.value_source(id) == Some(ValueSource::CommandLine);
            let at = matches.indices_of(id).filter(|_| is_said)?.max()?;
            Some((at, unit?))
        });
        let unit = last.max_by_key(|(at, _)| *at).map(|(_, unit)| unit);
        Ok(Args { options, unit })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Args::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args {
    pub(super) fn starts(&self) -> &[OsString] {
        &self.options.paths
    }

    pub(super) fn has_total(&self) -> bool {
        self.options.total
    }

    /// Returns what is summed up, and how it is printed.
    pub(super) fn understood(&self) -> Result<(DuCall, Style), Usage> {
        let said = &self.options;
        let pattern = |word: &OsString| {
            let pattern = Pattern::new(word.as_bytes(), false);
            pattern.ok_or_else(|| Usage("--exclude: a pattern has no byte 0".into()))
        };
        let call = DuCall {
            excludes: said.exclude.iter().map(pattern).collect::<Result<_, _>>()?,
            all: said.all,
            separate: said.separate_dirs,
            counts_links: said.count_links,
            depth_max: if said.summarize { 0 } else { said.max_depth.unwrap_or(usize::MAX) },
            time: said.time.unwrap_or_default(),
        };
        // du(1) counts inodes one by one, unless they are shown for people.
        let unit = match self.unit.unwrap_or_else(SizeUnit::of_environment) {
            SizeUnit::Largest { base } => SizeUnit::Largest { base },
            _ if said.inodes => SizeUnit::Blocks(1),
            unit => unit,
        };
        let style = Style {
            unit,
            apparent: said.apparent_size || said.bytes,
            inodes: said.inodes,
            threshold: said.threshold.unwrap_or(Threshold::AtLeast(0)),
            times: said.time.map(|_| said.time_style),
            json: said.json,
            end: if said.null { 0 } else { b'\n' },
        };
        Ok((call, style))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("du").chain(words.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.args)
    }

    #[test]
    fn the_last_unit_counts() {
        for (words, unit, apparent) in [
            ("-h -k", SizeUnit::Blocks(1024), false),
            ("-k -h", SizeUnit::Largest { base: 1024 }, false),
            ("-b -m a -b -m", SizeUnit::Blocks(1 << 20), true),
            ("-k -B 512 --si --si", SizeUnit::Largest { base: 1000 }, false),
            ("--si -B2K", SizeUnit::Blocks(2048), false),
            ("-b --inodes", SizeUnit::Blocks(1), true),
            ("-ch --inodes", SizeUnit::Largest { base: 1024 }, false),
        ] {
            let (_, style) = parsed(words).unwrap().understood().unwrap();
            assert_eq!((style.unit, style.apparent), (unit, apparent), "{words}");
        }
    }

    #[test]
    fn words_that_exclude_each_other_are_refused() {
        for words in ["-a -s", "-s -d 1", "-t -0", "-B 0", "-d x", "--time=now", "-L"] {
            assert!(parsed(words).is_err(), "{words}");
        }
        let (call, _) = parsed("-s a b").unwrap().understood().unwrap();
        assert_eq!(call.depth_max, 0);
        assert_eq!(parsed("").unwrap().starts(), [OsString::from(".")]);
        let (call, style) = parsed("-t -5K --time=atime -0").unwrap().understood().unwrap();
        assert_eq!((call.time, style.end), (TimeOf::Access, 0));
        assert_eq!(style.threshold, Threshold::AtMost(5120));
    }
}
