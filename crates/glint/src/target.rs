//! Target of a command: a mount or a server, or the only one that is there.

use crate::control;
use crate::identity::{DATA, LISTEN, SOCKET, in_full, is_path};
use glint_mount::MountedAt;
use glint_net::{Address, NetError, Remote, UNIX_PREFIX};
use glint_server::data_dir::DataDir;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long a call on a mount may take before this gives up.
const CALL_MAX: Duration = Duration::from_secs(10);
/// Why somebody else is not answered at a socket.
const FOR_ROOT: &str = "permission denied; a socket and a data directory are for root of the host \
                        that serves: run it with sudo, or ask a mount";
/// Commands that start a server with an MDS, and one of OSTs only.
const SERVE: &str = "glint serve --listen";
const OSS: &str = "glint oss";
/// Orders that only root may give on a mount, by how they begin, and the commands that give them.
const ORDERS_OF_ROOT: [(&str, &str); 5] = [
    ("scrub", "the beginning and the end of a scrub"),
    ("heal", "`glint heal pause` and `resume`"),
    ("give-up", "`glint ost lost` and `remove`"),
    ("drain", "`glint ost drain`, `undrain`, `files` and `remove`"),
    ("balance", "moves of `glint ost rebalance`"),
];
/// Flags that /proc/net/unix shows of a socket at which somebody listens.
const LISTENS: &str = "00010000";

/// Argument of a command that any server can answer.
#[derive(clap::Args)]
pub(crate) struct TargetArg {
    /// A path in a mount, or a server as HOST or HOST:PORT, or on this host by its socket or its
    /// data directory [default: the only one that is mounted, or served at a socket, here].
    #[arg(value_name = "DIR|HOST:PORT")]
    target: Option<String>,
}

/// Argument of a command that the server with the MDS carries out.
#[derive(clap::Args)]
pub(crate) struct MdsArg {
    /// A path in a mount, or the server with the MDS as HOST or HOST:PORT, or on this host by its
    /// socket or its data directory [default: the only one that is mounted, or served at a socket,
    /// here].
    #[arg(value_name = "DIR|HOST:PORT")]
    target: Option<String>,
}

/// Help of [`MdsArg`] for a command that moves files, and so needs a mount.
pub(crate) const MOUNT_HELP: &str =
    "A path in a mount, through which the files move [default: the only mount here]";

impl TargetArg {
    /// Finds the target that is meant.
    pub(crate) fn find(&self) -> Result<Target, String> {
        Target::find(self.target.as_deref())
    }
}

impl MdsArg {
    /// Finds the target that is meant.
    pub(crate) fn find(&self) -> Result<Target, String> {
        Target::find(self.target.as_deref())
    }
}

/// Process to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The process behind the mount here.
    Mount(PathBuf),
    /// A server at this address.
    Server(String),
    /// A server of OSTs only, of a file system that is there.
    Oss(String),
}

/// All mounts of Glint.
pub(crate) fn mounts() -> Vec<MountedAt> {
    let mut mounts = glint_mount::mounts();
    mounts.retain(|mount| mount.kind == glint_mount::FS_TYPE && mount.source != "glint-null");
    mounts
}

/// Servers of this host that listen at a socket in their data directory.
fn servers() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let mut found: Vec<String> = text
        .lines()
        .filter(|line| line.split_whitespace().nth(3) == Some(LISTENS))
        .filter_map(|line| Some(line[line.find(" /")? + 1..].to_owned()))
        .filter(|path| Path::new(path).file_name().is_some_and(|name| name == SOCKET))
        .map(|path| format!("{UNIX_PREFIX}{path}"))
        .collect();
    found.dedup();
    found
}

/// Where the server listens that holds a data directory, as it has said there.
fn listens_at(data: &Path) -> Option<String> {
    // What one has said that does not run may be the address of another one by now.
    let is_held = !DataDir::wait_until_free(data, Duration::ZERO);
    let said = std::fs::read_to_string(data.join(LISTEN)).ok().filter(|_| is_held);
    said.filter(|address| !address.is_empty())
}

fn only<T>(mut found: Vec<T>, list: impl Fn(&T) -> String) -> Result<Option<T>, String> {
    if found.len() > 1 {
        let lines: String = found.iter().map(|one| format!("\n  {}", list(one))).collect();
        return Err(format!("there are several; say which:{lines}"));
    }
    Ok(found.pop())
}

/// The only mount.
pub(crate) fn only_mount() -> Result<PathBuf, String> {
    let list = |mount: &MountedAt| format!("{} ({})", mount.path.display(), mount.source);
    let mount = only(mounts(), list)?;
    Ok(mount.ok_or("no file system of Glint is mounted here")?.path)
}

/// A path without links, as far as that can be found out without a look at what is mounted at
/// it: that may wait for a server, or be dead.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    if glint_mount::mounted_at(&absolute).is_some() {
        return absolute;
    }
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => absolute,
    }
}

impl Target {
    /// Finds the target that is meant.
    pub(crate) fn find(said: Option<&str>) -> Result<Target, String> {
        let Some(said) = said else {
            let mounts = mounts();
            if !mounts.is_empty() {
                return only_mount().map(Target::Mount);
            }
            let server = only(servers(), String::clone)?;
            return server.map(Target::Server).ok_or_else(|| {
                "no file system of Glint is mounted here, and none is served at a socket; say \
                 which: a mount point, or a server as HOST or HOST:PORT"
                    .to_owned()
            });
        };
        if said.starts_with(UNIX_PREFIX) || !is_path(said) {
            return Ok(Target::Server(in_full(said)));
        }
        // First of all as it is written: nothing must be looked up in a mount that waits.
        for path in [std::path::absolute(said).unwrap_or_default(), resolve(Path::new(said))] {
            let all = glint_mount::mounts();
            let shown = glint_mount::mount_showing(&all, &path);
            if let Some(mount) = shown.filter(|mount| mount.kind == glint_mount::FS_TYPE) {
                return Ok(Target::Mount(mount.path.clone()));
            }
        }
        let address = in_full(&format!("{UNIX_PREFIX}{said}"));
        let socket = address.strip_prefix(UNIX_PREFIX).unwrap_or(&address);
        match std::fs::metadata(socket) {
            Ok(_) => Ok(Target::Server(address)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Err(format!("{said}: {FOR_ROOT}"))
            }
            // That of a server with `--listen` has no socket.
            Err(_) if Path::new(said).join(DATA).exists() => {
                listens_at(Path::new(said)).map(Target::Server).ok_or_else(|| {
                    format!(
                        "{said}: no server runs that says where it listens in this data \
                         directory; start it, or say HOST:PORT of it, or where it is mounted"
                    )
                })
            }
            Err(_) => Err(format!("{said} is not in a Glint mount, and no server listens there")),
        }
    }

    /// Asks for `status` or `stats`, or gives an order: to `reset` the latter, about a scrub or
    /// heal, or about an OST. Returns in some seconds, whatever has happened to servers.
    pub(crate) fn ask(&self, what: &str) -> Result<String, String> {
        match self {
            Target::Server(address) | Target::Oss(address) => {
                let command = if matches!(self, Target::Oss(_)) { OSS } else { SERVE };
                let address = crate::identity::exact(address)
                    .map_err(|why| format!("server {address}: {why}"))?;
                Remote::ask(&address, what).map_err(|error| explained(&address, &error, command))
            }
            Target::Mount(path) => match control::ask(path, what) {
                Some(answer) => answer,
                None => match ORDERS_OF_ROOT.iter().find(|(word, _)| what.starts_with(word)) {
                    Some((_, commands)) => {
                        Err(format!("on a mount {commands} are for root: run it with sudo"))
                    }
                    None => ask_through(path, what),
                },
            },
        }
    }
}

/// Why a server could not be asked, and what to do.
pub(crate) fn not_reached(address: &Address, error: &NetError) -> String {
    explained(address, error, SERVE)
}

/// The same of a server that `command` starts.
fn explained(address: &Address, error: &NetError, command: &str) -> String {
    use ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, NotFound, TimedOut};
    if let NetError::Refused(reason) = error {
        return format!("server {address}: {reason}");
    }
    let plain = format!("server {address}: {error}");
    let NetError::Io { source, .. } = error else { return plain };
    match (source.kind(), address) {
        (ErrorKind::PermissionDenied, Address::Unix(_)) => format!("server {address}: {FOR_ROOT}"),
        (NotFound | ConnectionRefused, Address::Unix(_)) => format!(
            "server {address}: no server listens there; say HOST, HOST:PORT, or the data directory \
             or the socket of one on this host"
        ),
        (ConnectionRefused, _) => format!(
            "no server listens at {address}; start one with `{command}`, or check the address"
        ),
        (TimedOut | HostUnreachable | NetworkUnreachable, _) => {
            format!("{plain}; check the address, and that its host is up and lets you through")
        }
        _ => match address.resolve() {
            Ok(_) => plain,
            Err(e) => format!("server {address}: no host of that name ({e}); check the address"),
        },
    }
}

/// Asks through the file system itself, as who may not use the other way.
fn ask_through(path: &Path, what: &str) -> Result<String, String> {
    let (answer, answered) = mpsc::channel();
    let (mount, what) = (path.to_owned(), what.to_owned());
    std::thread::spawn(move || {
        let flags = rustix::fs::XattrFlags::empty();
        let result = match what.as_str() {
            "reset" => rustix::fs::setxattr(&mount, "glint.stats", b"reset", flags)
                .map(|()| String::new())
                .map_err(|e| format!("{}: {e}", mount.display())),
            what => crate::cmd::ask_mount(&mount, &format!("glint.{what}")),
        };
        // Nobody may be waiting any more.
        let _ = answer.send(result);
    });
    answered.recv_timeout(CALL_MAX).unwrap_or_else(|_| {
        let seconds = CALL_MAX.as_secs();
        Err(format!("{} has not answered for {seconds} s: a server is away", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn commands_say_in_the_same_words_what_they_can_be_about() {
        fn helps(command: &clap::Command, found: &mut BTreeSet<String>) {
            let targets = command.get_arguments().filter(|arg| arg.get_id().as_str() == "target");
            found.extend(targets.filter_map(clap::Arg::get_help).map(ToString::to_string));
            command.get_subcommands().for_each(|command| helps(command, found));
        }
        let mut found = BTreeSet::new();
        helps(&<crate::Cli as clap::CommandFactory>::command(), &mut found);
        // Any server, the one with the MDS, or a mount.
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_data_directory_without_a_socket_is_told_from_other_places() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let said = || Target::find(Some(path)).unwrap_err();
        assert!(said().contains("is not in a Glint mount"), "{}", said());
        std::fs::write(dir.path().join(DATA), "{}").unwrap();
        assert!(said().contains("say HOST:PORT"), "{}", said());
        std::fs::write(dir.path().join(LISTEN), "10.0.0.1:7").unwrap();
        assert!(said().contains("say HOST:PORT"), "nobody runs: {}", said());
        let lock = std::fs::File::create(dir.path().join("lock")).unwrap();
        lock.lock().unwrap();
        assert_eq!(Target::find(Some(path)), Ok(Target::Server("10.0.0.1:7".into())));
        std::fs::write(dir.path().join(SOCKET), "").unwrap();
        assert!(matches!(Target::find(Some(path)), Ok(Target::Server(_))));
    }

    #[test]
    fn a_user_is_told_which_command_is_for_root() {
        // Nobody answers at the socket of a mount that is not there.
        let mount = Target::Mount("/nosuch".into());
        for (order, command) in [("heal-pause", "`glint heal pause`"), ("drain 3 end", "`undrain`")]
        {
            let said = mount.ask(order).unwrap_err();
            assert!(said.contains(command) && said.contains("sudo"), "{said}");
        }
    }

    #[test]
    fn who_cannot_be_reached_is_told_what_to_do() {
        for (address, kind, told) in [
            ("10.0.0.1:7", ErrorKind::ConnectionRefused, "start one with `glint serve"),
            ("unix:/nosuch", ErrorKind::NotFound, "or the data directory"),
            ("unix:/nosuch", ErrorKind::PermissionDenied, "sudo"),
            ("10.0.0.1:7", ErrorKind::TimedOut, "its host is up"),
            ("nosuch.invalid:7", ErrorKind::Other, "no host of that name"),
            ("127.0.0.1:7", ErrorKind::BrokenPipe, "broken pipe"),
        ] {
            let error = NetError::Io { what: "connecting".into(), source: kind.into() };
            let said = not_reached(&Address::parse(address), &error);
            assert!(said.contains(address) && said.contains(told), "{said}");
            assert!(!said.contains("os error"), "{said}");
        }
        let error = NetError::Refused("there is no OST 9".into());
        let said = not_reached(&Address::parse("10.0.0.1:7"), &error);
        assert_eq!(said, "server 10.0.0.1:7: there is no OST 9");
        let kind = ErrorKind::ConnectionRefused;
        let error = NetError::Io { what: "connecting".into(), source: kind.into() };
        // The other command would make a file system of its own.
        let said = explained(&Address::parse("10.0.0.1:7"), &error, OSS);
        assert!(said.contains("`glint oss`") && !said.contains("glint serve"), "{said}");
    }
}
