//! `glint find`: find(1) on the servers themselves, many directories at once.

mod action;
mod age;
mod asks;
mod entry;
mod expression;
mod layout;
mod ls;
mod perm;
mod print;
mod test;
mod walk;

use super::tree::{Console, NoPlace, Place, Tree, until_stopped, without_number};
use crate::CommandResult;
use crate::exit_code::USAGE;
use action::Action;
use expression::FindCall;
use glint_proto::{Errno, Timestamp};
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use walk::{Sink, Walk};

/// Find files, as find(1) does, by asking the servers instead of a mount.
///
/// Many directories are listed at once, so that the order of what is printed differs from run to
/// run; a directory comes before what is in it, or after it with -depth.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct Args {
    /// Print a JSON object for each file, one a line. Comes before the paths.
    #[arg(long)]
    json: bool,
    /// Paths in mounts of Glint, or HOST:PORT/PATH; then an expression.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PATH|EXPRESSION")]
    words: Vec<OsString>,
}

const HELP: &str = "\
Tests (N is exactly N, +N more, -N less):
  -name -iname -path (-wholename) -ipath (-iwholename) -lname -ilname PATTERN
  -type f,d,l,p,s,b,c   -size N[cwbkMG]   -empty   -perm MODE, -MODE or /MODE
  -mtime -atime -ctime N (days)   -mmin -amin -cmin N (minutes), with fractions
  -newer -anewer -cnewer FILE
  -newerXY FILE (X and Y: a, c or m)   -newerXt TIME (YYYY-MM-DD, YYYY-MM-DD HH:MM:SS,
  with T between them or Z for UTC at the end, too; @SECONDS)
  -user -group NAME   -uid -gid -links -inum N   -nouser -nogroup   -true -false
  -xattr PATTERN (a name that listxattr(2) shows, such as user.project; not its value)
  -layout stripe_count=N,stripe_size=N,replicas=N,first_ost=N,osts=N (some of them; what `glint
  getstripe` shows, N of stripe_size with K or M; of directories what new files get)
  -ost N,... (files with an object on one of these OSTs, or a copy of one)
Actions: -print -print0 -printf FORMAT -ls -prune -quit
  -delete (the servers do it; directories when they are empty; not a file that was replaced, or
  changed so that the expression does not hold any more: that is told)
  -exec COMMAND ;   -exec COMMAND {} +   (paths in a mount; {} is the path)
Options: -maxdepth N -mindepth N -depth (-d) -xdev -mount   -P, before the paths
Operators, by precedence: ( )  ! -not  -a -and  -o -or  ,

Examples:
  glint find /mnt/glint -type f -size +1G
  glint find /mnt/glint -name .git -prune -o -mtime -1 -print0
  glint find /mnt/glint/tmp -mtime +30 -delete
  glint find /mnt/glint -type f -size +1G -layout stripe_count=1 -ost 3
  glint find --json server:5640/project -user alice";

/// Exit code if something could not be looked at, or done.
const FAILED: u8 = 1;

/// Standard output and standard error.
struct Terminal {
    console: Console,
    /// Files that walks came to.
    files: Cell<u64>,
}

impl Terminal {
    fn say(&self, why: &str) {
        self.console.say(FAILED, why);
    }

    fn tell_missing(&self, path: &[u8], why: NoPlace) {
        match why {
            NoPlace::Refused(error) => self.fail(path, error),
            NoPlace::Told(why) => self.say(&why),
        }
    }
}

impl Sink for Terminal {
    fn print(&self, bytes: &[u8]) {
        self.console.put(bytes);
    }

    fn flush(&self) {
        self.console.flush();
    }

    fn is_over(&self) -> bool {
        crate::output::is_lost() || crate::signals::is_end_asked()
    }

    fn came_to(&self, files: usize) {
        self.files.set(self.files.get() + files as u64);
        self.console.progress(self.files.get());
    }

    fn fail(&self, path: &[u8], error: Errno) {
        let (path, error) = (String::from_utf8_lossy(path), error.to_string());
        self.say(&format!("{path}: {}", without_number(&error)));
    }

    fn tell(&self, why: &str) {
        self.console.say(0, why);
    }

    fn note_failure(&self) {
        self.console.note(FAILED);
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let words = &args.words[expression::count_options(&args.words)..];
    let (starts, words) = words.split_at(expression::count_starts(words));
    let terminal = Terminal { console: Console::new("find", FAILED), files: Cell::new(0) };
    let call = match expression::parse(words, Timestamp::now(), args.json) {
        Ok(call) => call,
        Err(why) => {
            terminal.say(&why);
            return Ok(ExitCode::from(USAGE));
        }
    };
    let here = [OsString::from(".")];
    let starts = if starts.is_empty() { &here } else { starts };
    let stop = until_stopped(walk_all(&call, starts, &terminal))?;
    terminal.console.flush();
    stop.end_if_asked();
    terminal.console.end_if_lost();
    Ok(ExitCode::from(terminal.console.status()))
}

/// Returns why actions are not to be taken at a starting point, and below it.
fn refusal(actions: &[Action], place: &Place) -> Option<String> {
    if !place.is_in_mount() && actions.iter().any(Action::needs_mount) {
        return Some("-exec needs a path in a mount, which the command can open".into());
    }
    let below = place.mounted_below.as_ref().filter(|_| !actions.is_empty());
    if let Some(other) = below {
        return Some(format!("{} is mounted below it; use find(1)", other.display()));
    }
    // A command may change nothing, and hears it itself if it tries.
    let is_refused = place.is_read_only && actions.contains(&Action::Delete);
    is_refused.then(|| "Read-only file system".into())
}

/// Refuses to look for files on OSTs that a file system does not have.
fn must_have(tree: Tree, address: &str, osts: &[u16]) -> Result<Tree, String> {
    let count = tree.ost_count();
    match osts.iter().find(|ost| **ost >= count) {
        None => Ok(tree),
        Some(ost) => Err(format!(
            "-ost {ost}: there is no such OST at {address}; they have the numbers 0 to {}",
            count.saturating_sub(1)
        )),
    }
}

/// Walks over all starting points.
async fn walk_all(call: &FindCall, starts: &[OsString], terminal: &Terminal) {
    // Of those that are not reached there is none: the other starting points are looked at.
    let mut trees: HashMap<String, Option<Tree>> = HashMap::new();
    for start in starts {
        let path = start.as_bytes();
        let place = match Place::find(start) {
            Ok(place) => place,
            Err(why) => {
                terminal.tell_missing(path, why);
                continue;
            }
        };
        if let Some(why) = refusal(&call.actions, &place) {
            terminal.say(&format!("{}: {why}", start.to_string_lossy()));
            continue;
        }
        let tree = trees.entry(place.address.clone()).or_insert_with(|| {
            let tree = Tree::connect(&place.address, "find");
            let tree = tree.and_then(|tree| must_have(tree, &place.address, &call.osts));
            tree.map_err(|why| terminal.say(&why)).ok()
        });
        let Some(tree) = tree else { continue };
        let goes_on = match tree.resolve(&place).await {
            Ok((attr, parent)) => Walk::new(call, tree, terminal).run(path, attr, parent).await,
            Err(why) => {
                terminal.tell_missing(path, why);
                true
            }
        };
        if !goes_on {
            return;
        }
    }
}
