//! `glint find`: find(1) on the servers themselves, many directories at once.

mod c_library;
mod entry;
mod expression;
mod place;
mod print;
mod test;
mod walk;

use crate::target::not_reached;
use crate::{CommandResult, Usage};
use glint_client::{Caller, Client, Handle, Vfs};
use glint_net::{Cluster, Remote, RemoteOptions};
use glint_proto::{Attr, Cred, Errno, FsResult, Ino, Timestamp};
use place::Place;
use std::cell::Cell;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use walk::{Named, Sink, Source, Walk};

/// Bytes of a listing that are asked for at once.
const PAGE_BYTES: u32 = 256 << 10;

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
  -name -iname -path -ipath -lname -ilname PATTERN
  -type f,d,l,p,s,b,c   -size N[cwbkMG]   -empty   -perm MODE, -MODE or /MODE
  -mtime -atime -ctime N (days)   -mmin -amin -cmin N (minutes)   -newer -anewer -cnewer FILE
  -user -group NAME   -uid -gid -links -inum N   -nouser -nogroup   -true -false
Actions: -print -print0 -printf FORMAT -prune -quit
Options: -maxdepth N -mindepth N -depth
Operators, by precedence: ( )  ! -not  -a -and  -o -or  ,

Examples:
  glint find /mnt/glint -type f -size +1G
  glint find /mnt/glint -name .git -prune -o -mtime -1 -print0
  glint find --json server:5640/project -user alice";

type FindClient = Client<Cluster<Remote>>;

/// A file system, as who called this command may see it.
struct Tree {
    address: String,
    client: FindClient,
    caller: Caller,
}

/// A directory that is being listed, up to a cookie.
struct Listing {
    handle: Handle,
    cookie: u64,
}

impl Tree {
    fn connect(address: &str) -> Result<Tree, String> {
        let shown = "(find)".to_owned();
        let to = crate::identity::address(address)?;
        let options = RemoteOptions { address: to.clone(), mount_point: shown.clone() };
        let remote = Remote::connect(options).map_err(|error| not_reached(&to, &error))?;
        let cluster = Cluster::new(remote, crate::identity::get()?, shown);
        let groups = rustix::process::getgroups().unwrap_or_default();
        let cred = Cred {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: Some(groups.into_iter().map(rustix::process::Gid::as_raw).collect()),
        };
        // Without locks: nothing is looked at twice. Reading changes no times, as nobody reads data.
        let client = Client::new(cluster, true);
        Ok(Tree { address: address.to_owned(), client, caller: Caller { cred, pid: 0 } })
    }

    async fn resolve(&self, names: &[Vec<u8>]) -> FsResult<Attr> {
        let mut attr = self.client.getattr(self.client.root()).await?.attr;
        for name in names {
            attr = self.client.lookup(&self.caller, attr.ino, name).await?.attr;
        }
        Ok(attr)
    }
}

impl Source for Tree {
    type Listing = Listing;

    async fn open(&self, directory: Ino) -> FsResult<Listing> {
        Ok(Listing { handle: self.client.opendir(&self.caller, directory).await?, cookie: 0 })
    }

    async fn next(&self, listing: &mut Listing) -> FsResult<Option<Vec<Named>>> {
        let Listing { handle, cookie } = *listing;
        let page = self.client.readdir(&self.caller, handle, cookie, PAGE_BYTES, true).await?;
        let Some(last) = page.entries.last() else { return Ok(None) };
        listing.cookie = last.cookie;
        let names =
            page.entries.into_iter().filter(|entry| ![&b"."[..], b".."].contains(&&*entry.name));
        Ok(Some(names.map(|entry| Named { name: entry.name, attr: entry.attr }).collect()))
    }

    async fn close(&self, listing: Listing) {
        // What was read is read, whatever becomes of the handle.
        let _ = self.client.release(listing.handle).await;
    }

    async fn lookup(&self, directory: Ino, name: &[u8]) -> FsResult<Attr> {
        Ok(self.client.lookup(&self.caller, directory, name).await?.attr)
    }

    async fn target(&self, link: Ino) -> FsResult<Vec<u8>> {
        self.client.readlink(link).await
    }
}

/// Standard output and standard error.
#[derive(Default)]
struct Terminal {
    failed: Cell<bool>,
}

impl Terminal {
    fn say(&self, path: &[u8], error: &str) {
        self.failed.set(true);
        let shown = String::from_utf8_lossy(path);
        let _ = writeln!(std::io::stderr(), "glint find: {shown}: {error}");
    }
}

impl Sink for Terminal {
    fn print(&self, bytes: &[u8]) {
        crate::output::write_bytes(bytes);
    }

    fn fail(&self, path: &[u8], error: Errno) {
        let error = error.to_string();
        // find(1) shows no numbers.
        self.say(path, error.split(" (os error").next().unwrap_or(&error));
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let (starts, words) = args.words.split_at(expression::count_starts(&args.words));
    let call = expression::parse(words, Timestamp::now(), args.json).map_err(Usage)?;
    let here = [OsString::from(".")];
    let starts = if starts.is_empty() { &here } else { starts };
    let terminal = Terminal::default();
    let mut trees: Vec<Tree> = Vec::new();
    let runtime = glint_net::runtime(None)?;
    for start in starts {
        let path = start.as_bytes();
        let place = match Place::find(start) {
            Ok(place) => place,
            Err(why) => {
                terminal.failed.set(true);
                let _ = writeln!(std::io::stderr(), "glint find: {why}");
                continue;
            }
        };
        if !trees.iter().any(|tree| tree.address == place.address) {
            trees.push(Tree::connect(&place.address)?);
        }
        let Some(tree) = trees.iter().find(|tree| tree.address == place.address) else { continue };
        let goes_on = runtime.block_on(async {
            match tree.resolve(&place.names).await {
                Ok(attr) => Walk::new(&call, tree, &terminal).run(path, attr).await,
                Err(error) => {
                    terminal.fail(path, error);
                    true
                }
            }
        });
        if !goes_on {
            break;
        }
    }
    Ok(ExitCode::from(u8::from(terminal.failed.get())))
}
