//! Options of `glint ls`. Of those that exclude each other the last one counts, as in ls(1).

use super::entry::{Hidden, LsCall, Needed, Order};
use super::line::{Indicator, LsStyle};
use super::quote::{Quoting, QuotingStyle};
use super::time::LsTimes;
use crate::cmd::tree::show::TimeOf;
use crate::cmd::tree::size::SizeUnit;
use clap::ArgAction;
use std::ffi::OsString;
use std::io::IsTerminal;

const HELP: &str = "\
Names are sorted by their bytes, and text is that of the C locale: output is that of ls(1) with LC_ALL=C.
There is one name a line, on a terminal, too. Links are followed only on the command line, to
directories, and not with -d, -F or -l.

SIZE is a number of bytes, or one with a unit: K, M, G, T, P, E (powers of 1024; KiB is the same) or KB,
MB ... (powers of 1000).

Exit code: 0, 1 if a file or directory below a PATH could not be looked at, 2 if a PATH could not be.

Examples:
  glint ls -lR /mnt/glint/project
  glint ls -la --full-time /mnt/glint
  glint ls -R --zero server:5640/project
  glint ls --json -A -R /mnt/glint/home";

/// List directories, as ls(1) does, by asking the servers instead of a mount.
///
/// Many directories are listed at once, and their attributes come with the names.
#[derive(clap::Args)]
#[command(
    after_help = HELP,
    disable_help_flag = true,
    args_override_self = true,
)]
pub(crate) struct Args {
    /// List the directories below a PATH, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Long lines: mode, links, owner, group, size, time.
    #[arg(short = 'l')]
    long: bool,
    /// Names that begin with a dot, too.
    #[arg(short = 'a', long, overrides_with = "almost_all")]
    all: bool,
    /// The same, but for `.` and `..`.
    #[arg(short = 'A', long, overrides_with = "all")]
    almost_all: bool,
    /// Directories themselves, not what is in them.
    #[arg(short = 'd', long)]
    directory: bool,
    /// One name a line, as is done anyway.
    #[arg(short = '1')]
    one: bool,
    /// Inode numbers.
    #[arg(short = 'i', long)]
    inode: bool,
    /// Space that files use, in KiB.
    #[arg(short = 's', long)]
    size: bool,
    /// -l, with numbers of users and groups.
    #[arg(short = 'n', long)]
    numeric_uid_gid: bool,
    /// -l without owners.
    #[arg(short = 'g')]
    no_owner: bool,
    /// -l without groups.
    #[arg(short = 'o')]
    long_no_group: bool,
    /// No groups in long lines.
    #[arg(short = 'G', long)]
    no_group: bool,
    /// Sizes for people: 1.5K, 234M, 2.1G.
    #[arg(short = 'h', long, overrides_with_all = ["si", "block_size"])]
    human_readable: bool,
    /// The same, with powers of 1000.
    #[arg(long, overrides_with_all = ["human_readable", "block_size"])]
    si: bool,
    /// -s counts KiB, as is done anyway.
    #[arg(short = 'k', long)]
    kibibytes: bool,
    /// Sizes in units of SIZE; `human-readable` and `si` are units, too.
    #[arg(long, value_name = "SIZE", value_parser = SizeUnit::parse,
          overrides_with_all = ["human_readable", "si"])]
    block_size: Option<SizeUnit>,
    /// The other way round.
    #[arg(short = 'r', long)]
    reverse: bool,
    /// Sort by time, the latest first.
    #[arg(short = 't', overrides_with_all = ["by_size", "by_extension", "unsorted", "sort"])]
    by_time: bool,
    /// Sort by size, the largest first.
    #[arg(short = 'S', overrides_with_all = ["by_time", "by_extension", "unsorted", "sort"])]
    by_size: bool,
    /// Sort by what comes after the last dot of a name.
    #[arg(short = 'X', overrides_with_all = ["by_time", "by_size", "unsorted", "sort"])]
    by_extension: bool,
    /// Do not sort.
    #[arg(short = 'U', overrides_with_all = ["by_time", "by_size", "by_extension", "sort"])]
    unsorted: bool,
    /// Sort by name, size, time or extension, or by none.
    #[arg(long, value_name = "WORD", value_parser = order_of,
          overrides_with_all = ["by_time", "by_size", "by_extension", "unsorted"])]
    sort: Option<Order>,
    /// Times of the last read (atime): shown with -l, or else sorted by.
    #[arg(short = 'u', overrides_with_all = ["changed", "time"])]
    read: bool,
    /// Times of the last change of the inode (ctime), in the same way.
    #[arg(short = 'c', overrides_with_all = ["read", "time"])]
    changed: bool,
    /// The same by a word: mtime (modification), atime (access, use) or ctime (status).
    #[arg(long, value_name = "WORD", value_parser = TimeOf::parse,
          overrides_with_all = ["read", "changed"])]
    time: Option<TimeOf>,
    /// A letter after names: / directory, * can be executed, @ link, | FIFO, = socket.
    #[arg(short = 'F', long, overrides_with_all = ["file_type", "slash"])]
    classify: bool,
    /// The same, without *.
    #[arg(long, overrides_with_all = ["classify", "slash"])]
    file_type: bool,
    /// A slash after names of directories.
    #[arg(short = 'p', overrides_with_all = ["classify", "file_type"])]
    slash: bool,
    /// Names with backslashes.
    #[arg(short = 'b', long, overrides_with_all = ["literal", "quote_name", "quoting_style"])]
    escape: bool,
    /// Names as they are.
    #[arg(short = 'N', long, overrides_with_all = ["escape", "quote_name", "quoting_style"])]
    literal: bool,
    /// Names as strings of C.
    #[arg(short = 'Q', long, overrides_with_all = ["escape", "literal", "quoting_style"])]
    quote_name: bool,
    /// How names are quoted; shell-escape on a terminal, and else literal.
    #[arg(long, value_name = "STYLE", value_enum,
          overrides_with_all = ["escape", "literal", "quote_name"])]
    quoting_style: Option<QuotingStyle>,
    /// Show bytes that cannot be printed as question marks, as on a terminal.
    #[arg(short = 'q', long, overrides_with = "show_control_chars")]
    hide_control_chars: bool,
    /// Show them as they are.
    #[arg(long, overrides_with = "hide_control_chars")]
    show_control_chars: bool,
    /// End lines with a byte 0, and leave names as they are unless a style is said.
    #[arg(short = '0', long)]
    zero: bool,
    /// How times are shown: full-iso, long-iso, iso, locale or +FORMAT of date(1).
    /// TIME_STYLE of the environment is it where none is said.
    #[arg(long, value_name = "STYLE", value_parser = LsTimes::parse)]
    time_style: Option<LsTimes>,
    /// -l --time-style=full-iso
    #[arg(long)]
    full_time: bool,
    /// There are no colours: never, or auto, which is the same here.
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true,
          default_missing_value = "always", value_parser = no_colors)]
    color: Option<String>,
    /// Print a JSON object for each file, one a line.
    #[arg(long)]
    json: bool,
    /// Print help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Paths in mounts of Glint, or HOST:PORT/PATH.
    #[arg(value_name = "PATH")]
    pub(super) paths: Vec<OsString>,
}

/// Parses a word after --sort.
fn order_of(word: &str) -> Result<Order, String> {
    match word {
        "name" => Ok(Order::Name),
        "size" => Ok(Order::Size),
        "time" => Ok(Order::Time),
        "extension" => Ok(Order::Extension),
        "none" => Ok(Order::Unsorted),
        _ => Err("say name, size, time, extension or none".into()),
    }
}

/// Parses a word after --color, as those of ls(1) that ask for none on what is no terminal.
fn no_colors(word: &str) -> Result<String, String> {
    match word {
        "never" | "no" | "none" | "auto" | "tty" | "if-tty" => Ok(word.into()),
        _ => Err("there are no colours; say never or auto".into()),
    }
}

impl Args {
    fn is_long(&self) -> bool {
        self.long || self.numeric_uid_gid || self.no_owner || self.long_no_group || self.full_time
    }

    fn time(&self) -> TimeOf {
        match (self.time, self.read, self.changed) {
            (Some(time), ..) => time,
            (_, true, _) => TimeOf::Access,
            (.., true) => TimeOf::Inode,
            _ => TimeOf::Data,
        }
    }

    fn indicator(&self) -> Indicator {
        match (self.classify, self.file_type, self.slash) {
            (true, ..) => Indicator::Classes,
            (_, true, _) => Indicator::Types,
            (.., true) => Indicator::Directories,
            _ => Indicator::None,
        }
    }

    /// Returns what is listed.
    pub(super) fn call(&self) -> LsCall {
        let (long, indicator) = (self.is_long(), self.indicator());
        let said = [
            (self.by_time, Order::Time),
            (self.by_size, Order::Size),
            (self.by_extension, Order::Extension),
            (self.unsorted, Order::Unsorted),
        ];
        let said = said.into_iter().find(|(is_said, _)| *is_said).map(|(_, order)| order);
        let order = self.sort.or(said).unwrap_or(match self.time() {
            TimeOf::Access | TimeOf::Inode if !long => Order::Time,
            _ => Order::Name,
        });
        let needs_attributes = long || self.size || self.inode || self.json;
        let needed = match indicator {
            _ if needs_attributes || matches!(order, Order::Size | Order::Time) => {
                Needed::Attributes
            }
            Indicator::Classes => Needed::Class,
            Indicator::None if !self.recursive => Needed::Name,
            _ => Needed::Type,
        };
        LsCall {
            recursive: self.recursive && !self.directory,
            directories_as_files: self.directory,
            follows_links: !(long || self.directory || self.classify),
            hidden: match (self.all, self.almost_all) {
                (true, _) => Hidden::All,
                (_, true) => Hidden::AlmostAll,
                _ => Hidden::Hide,
            },
            needed,
            shows_targets: long || self.json,
            classifies_targets: long && matches!(indicator, Indicator::Types | Indicator::Classes),
            shows_acls: long && !self.json,
            order,
            is_reversed: self.reverse,
            time: self.time(),
        }
    }

    /// Returns how it is printed.
    pub(super) fn style(&self) -> Result<LsStyle, String> {
        let is_terminal = std::io::stdout().is_terminal() && !self.zero;
        let said = [
            (self.escape, QuotingStyle::Escape),
            (self.literal, QuotingStyle::Literal),
            (self.quote_name, QuotingStyle::C),
        ];
        let said = said.into_iter().find(|(is_said, _)| *is_said).map(|(_, style)| style);
        let style = self.quoting_style.or(said).unwrap_or(match is_terminal {
            true => QuotingStyle::ShellEscape,
            false => QuotingStyle::Literal,
        });
        let indicator = self.indicator();
        // As ls(1) has it: letters that it puts after names, and spaces that end them.
        let also: &[u8] = match (style, indicator) {
            (QuotingStyle::Escape, Indicator::Types) => b" *=>@|",
            (QuotingStyle::Escape, Indicator::Classes) => b" =>@|",
            (QuotingStyle::Escape, _) => b" ",
            (_, Indicator::Types) => b"*=>@|",
            (_, Indicator::Classes) => b"=>@|",
            _ => b"",
        };
        let hides = (is_terminal && !self.show_control_chars) || self.hide_control_chars;
        let size_unit = match (self.human_readable, self.si) {
            (true, _) => Some(SizeUnit::Largest { base: 1024 }),
            (_, true) => Some(SizeUnit::Largest { base: 1000 }),
            _ => self.block_size,
        };
        let times = match (&self.time_style, std::env::var("TIME_STYLE")) {
            _ if self.full_time => LsTimes::parse("full-iso")?,
            (Some(said), _) => said.clone(),
            (None, Ok(said)) if self.is_long() => {
                LsTimes::parse(&said).map_err(|why| format!("TIME_STYLE {said:?}: {why}"))?
            }
            _ => LsTimes::parse("locale")?,
        };
        Ok(LsStyle {
            json: self.json,
            long: self.is_long(),
            inodes: self.inode,
            blocks: self.size,
            owner: !self.no_owner,
            group: !(self.no_group || self.long_no_group),
            numeric: self.numeric_uid_gid,
            block_unit: size_unit.unwrap_or(SizeUnit::Blocks(1024)),
            size_unit: size_unit.unwrap_or(SizeUnit::Blocks(1)),
            time: self.time(),
            times,
            indicator,
            names: Quoting { style, also, hides },
            end: if self.zero { 0 } else { b'\n' },
        })
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
        let words = std::iter::once("ls").chain(words.split_whitespace());
        Cli::try_parse_from(words).map(|cli| cli.args)
    }

    #[test]
    fn the_last_of_some_options_counts() {
        for (words, hidden, order) in [
            ("", Hidden::Hide, Order::Name),
            ("-a -A -tSU", Hidden::AlmostAll, Order::Unsorted),
            ("-Aa -UtS -tS", Hidden::All, Order::Size),
            ("-St", Hidden::Hide, Order::Time),
            ("-u", Hidden::Hide, Order::Time),
            ("-lc", Hidden::Hide, Order::Name),
            ("-t --sort=extension", Hidden::Hide, Order::Extension),
            ("--sort=size -X", Hidden::Hide, Order::Extension),
            ("-X --sort none", Hidden::Hide, Order::Unsorted),
            ("--time=ctime", Hidden::Hide, Order::Time),
            ("-u --sort=name", Hidden::Hide, Order::Name),
            ("--color=auto --color=never -k --time=mtime", Hidden::Hide, Order::Name),
        ] {
            let call = parsed(words).unwrap().call();
            assert_eq!((call.hidden, call.order), (hidden, order), "{words}");
        }
        for (words, style, unit) in [
            ("-bQN", QuotingStyle::Literal, SizeUnit::Blocks(1)),
            (
                "-N --quoting-style=shell -h --si",
                QuotingStyle::Shell,
                SizeUnit::Largest { base: 1000 },
            ),
            (
                "--quoting-style=c -b --si -h",
                QuotingStyle::Escape,
                SizeUnit::Largest { base: 1024 },
            ),
            ("-h --block-size=K -Q", QuotingStyle::C, SizeUnit::parse("K").unwrap()),
        ] {
            let got = parsed(words).unwrap().style().unwrap();
            assert_eq!((got.names.style, got.size_unit), (style, unit), "{words}");
        }
    }

    #[test]
    fn no_more_is_asked_for_than_is_shown() {
        for (words, needed) in [
            ("", Needed::Name),
            ("-a1U", Needed::Name),
            ("-R", Needed::Type),
            ("-p", Needed::Type),
            ("-F", Needed::Class),
            ("-i", Needed::Attributes),
            ("-s", Needed::Attributes),
            ("-S", Needed::Attributes),
            ("--json", Needed::Attributes),
        ] {
            assert_eq!(parsed(words).unwrap().call().needed, needed, "{words}");
        }
        for (words, follows) in
            [("", true), ("-p", true), ("-F", false), ("-d", false), ("-g", false)]
        {
            assert_eq!(parsed(words).unwrap().call().follows_links, follows, "{words}");
        }
        for wrong in [
            "--time-style=now",
            "--quoting-style=x",
            "-x",
            "--block-size=0",
            "-Z",
            "--color",
            "--color=always",
            "--sort=version",
            "--time=birth",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        for (words, time) in [
            ("-lu --time=ctime", TimeOf::Inode),
            ("--time=status -u", TimeOf::Access),
            ("-c --time=modification", TimeOf::Data),
        ] {
            assert_eq!(parsed(words).unwrap().call().time, time, "{words}");
        }
    }
}
