//! `glint mount`: mount the file system of a server on the network. Also what
//! `mount -t fuse.glint` and /etc/fstab call.

mod namespace_walk;

use super::mount_options::{self, Flags, ParsedOptions};
use crate::control::{self, Control, MountServers};
use crate::metrics;
use crate::signals::Stop;
use crate::target::not_reached;
use crate::{CommandResult, Usage, daemon};
use glint_client::{Client, RunningClient, Vfs};
use glint_mount::{Mount, MountFlags};
use glint_net::{Address, Cluster, NamespaceReader, Remote, RemoteOptions};
use glint_proto::limits::AWAY_END_MS;
use glint_proto::message::{NamespacePage, NamespaceQuery, OstOrder};
use glint_telemetry::event;
use namespace_walk::NamespaceWalks;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Mount a file system, in the background: it is usable when the command returns.
///
/// The log is below /var/log/glint, or $XDG_STATE_HOME/glint for other users than root. Also as `mount -t fuse.glint HOST:PORT DIR` and in /etc/fstab, once `glint` is
/// linked as /sbin/mount.fuse.glint (`make install` does it).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server with the MDS: HOST or HOST:PORT, or on this host its socket or the data directory
    /// that has it.
    #[arg(value_name = "SERVER")]
    server: String,
    /// Mount point; an empty directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", help = mount_options::HELP)]
    options: Vec<String>,
    /// Serve statistics for Prometheus at http://HOST:PORT/metrics.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Stay in the foreground, and log to the terminal, until Ctrl-C or `glint umount`.
    #[arg(short = 'f', long)]
    foreground: bool,
    /// The default: go to the background when the mount is ready.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    daemon: bool,
    /// As mount(8) -f: do everything but mount.
    #[arg(long, hide = true)]
    fake: bool,
    /// As mount(8) -s: options that nobody knows are left out.
    #[arg(long, hide = true)]
    sloppy: bool,
    /// As mount(8) -N.
    #[arg(short = 'N', hide = true)]
    namespace: Option<String>,
}

/// A call of this program, as it is to be understood.
pub(crate) struct Call {
    /// Words of the call.
    pub arguments: Vec<OsString>,
    /// Whether mount(8) called it as its helper.
    pub is_helper: bool,
}

/// mount(8) calls its helpers as
/// `mount.fuse.glint SOURCE DIR [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]`
/// and expects the mount to be there when they return.
pub(crate) fn translate(arguments: Vec<OsString>) -> Call {
    let is_helper = arguments
        .first()
        .and_then(|name| std::path::Path::new(name).file_name())
        .is_some_and(|name| name.to_string_lossy().starts_with("mount."));
    if !is_helper {
        return Call { arguments, is_helper };
    }
    let mut translated: Vec<OsString> = vec!["glint".into(), "mount".into()];
    let mut rest = arguments.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy().into_owned();
        match text.as_str() {
            "-t" => drop(rest.next()),
            "-o" | "-N" => translated.extend([Some(argument), rest.next()].into_iter().flatten()),
            // -n: there is no mtab to write. -v: there is nothing more to say.
            letters if letters.len() > 1 && letters.strip_prefix('-').is_some_and(is_letters) => {
                for (letter, long) in [('f', "--fake"), ('s', "--sloppy")] {
                    if letters.contains(letter) {
                        translated.push(long.into());
                    }
                }
            }
            _ => translated.push(argument),
        }
    }
    Call { arguments: translated, is_helper }
}

fn is_letters(letters: &str) -> bool {
    letters.chars().all(|letter| "sfnv".contains(letter))
}

/// The flags of a mount that nothing was said of. Who may put files into a file system without
/// a certificate must not become root by it.
pub(crate) fn flags_unless_said() -> Result<MountFlags, String> {
    Ok(match crate::identity::get()? {
        None => MountFlags::NOSUID | MountFlags::NODEV,
        Some(_) => MountFlags::empty(),
    })
}

/// Flags that cannot be changed on a mount that is there.
const FIXED: [(MountFlags, &str); 7] = [
    (MountFlags::NOATIME, "noatime"),
    (MountFlags::SYNCHRONOUS, "sync"),
    (MountFlags::DIRSYNC, "dirsync"),
    (MountFlags::NODIRATIME, "nodiratime"),
    (MountFlags::STRICTATIME, "strictatime"),
    (MountFlags::RELATIME, "relatime"),
    (MountFlags::LAZYTIME, "lazytime"),
];

/// Changes the flags of a mount that is there: what is not named stays.
fn remount(directory: &Path, options: &ParsedOptions) -> CommandResult {
    let path = crate::target::resolve(directory);
    let shown = path.display();
    let there = glint_mount::mounted_at(&path).filter(|m| m.kind.starts_with("fuse.glint"));
    let there =
        there.ok_or_else(|| format!("{shown}: no file system of Glint is mounted there"))?;
    let mut now = Flags::of_mount(&there.options);
    if !now.intersects(MountFlags::NOATIME | MountFlags::RELATIME) {
        // The kernel does not show it.
        now |= MountFlags::STRICTATIME;
    }
    let flags = options.flags.over(now);
    // The process behind the mount does these, or nobody, and is not told.
    let fixed = FIXED.iter().find(|(flag, _)| flags.contains(*flag) != now.contains(*flag));
    let own = match control::ask(&path, "options") {
        Some(Ok(own)) => own,
        // Nobody knows how it was mounted.
        _ => String::new(),
    };
    if let Some(name) = fixed.map(|(_, name)| *name).or_else(|| options.differs(&own)) {
        return Err(format!(
            "{shown}: {name} cannot be changed while it is mounted; unmount it and mount it again"
        )
        .into());
    }
    glint_mount::remount(&path, flags)?;
    Ok(ExitCode::SUCCESS)
}

/// Waits some time for servers that are away, if they lack something. If they stay away, the mount
/// is ended as it is, and whoever uses it gets errors: with this process goes what was not sent to
/// them.
fn end_without_servers(client: &Client<Cluster<Remote>>, mount: &Mount) {
    let asked = Instant::now();
    while client.is_away() && client.owes() {
        if asked.elapsed() > Duration::from_millis(AWAY_END_MS) {
            tracing::error!(
                event = event::DATA_LOST,
                "servers are away: what was not sent to them is lost"
            );
            mount.abort();
            std::process::exit(1);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Ends this process when servers have been away for too long while it was ending, or do not hear
/// that it has.
fn limit_the_end(client: &Weak<Client<Cluster<Remote>>>) {
    let (mut since, mut owes) = (Instant::now(), true);
    while since.elapsed() < Duration::from_millis(AWAY_END_MS) {
        std::thread::sleep(Duration::from_millis(100));
        // Nothing but its sessions is left when it cannot be asked any more.
        if let Some(client) = client.upgrade() {
            owes = client.owes();
            if !client.is_away() {
                since = Instant::now();
            }
        }
    }
    match owes {
        true => tracing::error!(
            event = event::DATA_LOST,
            "servers are away: what was not sent to them is lost"
        ),
        false => tracing::warn!("servers are away: this mount ends without them"),
    }
    std::process::exit(i32::from(owes || client.strong_count() > 0));
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if args.namespace.is_some() {
        return Err(Usage("-N is not supported: use nsenter(1)".into()).into());
    }
    let options = mount_options::parse(&args.options, args.sloppy).map_err(Usage)?;
    options.apply();
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    if options.remount {
        return remount(&args.directory, &options);
    }
    options.refuse_local_ones().map_err(Usage)?;
    glint_mount::check_rights(&args.directory).map_err(|e| Usage(e.to_string()))?;
    let mount_point = glint_mount::prepare(&args.directory)?;
    if !args.foreground && !daemon::is_background() {
        return daemon::start_mount(&mount_point);
    }
    let start = Instant::now();
    // Before threads start.
    glint_client::share_heaps();
    let stop = Stop::listen()?;
    let metrics = metrics::Bound::bind(args.metrics.as_deref())?;
    let address = crate::identity::address(&args.server)?;
    let remote = Remote::connect(RemoteOptions {
        address: address.clone(),
        mount_point: mount_point.display().to_string(),
    })
    .map_err(|error| not_reached(&address, &error))?;
    let cluster = Cluster::new(remote, crate::identity::get()?, mount_point.display().to_string());
    let client = RunningClient::start(cluster, options.noatime())?;
    options.set_up(&client);
    let mut mount_options =
        options.mount(crate::identity::as_source(&args.server), flags_unless_said()?);
    let rights = crate::identity::get()?.map(|identity| identity.rights().clone());
    // A client that may only read is shown so, and has its writes refused here.
    let only_reads = rights.is_some_and(|rights| rights.read_only);
    mount_options
        .flags
        .set(MountFlags::RDONLY, only_reads || mount_options.flags.contains(MountFlags::RDONLY));
    // The mount is the last that can fail: nobody would answer it then.
    let _metrics = metrics.serve(None)?;
    let mount = Mount::new(client.clone(), &mount_point, &mount_options, options.transport)?;
    let shown = mount_point.display().to_string();
    let servers = ServersElsewhere {
        address,
        client: client.clone(),
        mount_point: shown,
        walks: RefCell::default(),
    };
    let control = Control::start(&mount_point, client.clone(), options.own(), servers);
    super::up::announce(&mount, start.elapsed());
    daemon::say_ready();
    let mut looked = Instant::now();
    while !stop.is_asked() && !mount.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
        // `umount -l` of a mount whose server is gone: nobody can end it otherwise.
        if client.is_away() && looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            if !mount.is_attached() {
                break;
            }
        }
    }
    if !mount.is_finished() {
        end_without_servers(&client, &mount);
    }
    drop(control);
    let ends = Arc::downgrade(&client);
    std::thread::spawn(move || limit_the_end(&ends));
    if mount.unmount()? {
        mount.wait();
    } else {
        tracing::warn!("files are still open; the mount point is detached");
    }
    drop(client);
    tracing::info!(event = event::UNMOUNTED, "unmounted {}", mount_point.display());
    Ok(ExitCode::SUCCESS)
}

/// Servers of a mount, which are elsewhere.
struct ServersElsewhere {
    address: Address,
    client: Arc<Client<Cluster<Remote>>>,
    mount_point: String,
    walks: RefCell<NamespaceWalks>,
}

impl MountServers for ServersElsewhere {
    fn status(&self) -> String {
        Remote::ask(&self.address, "status").unwrap_or_else(|error| {
            let (silent_s, error) = (self.client.silence().as_secs(), error.to_string());
            let (address, path) = (self.address.to_string(), &self.mount_point);
            json!({"version": env!("CARGO_PKG_VERSION"), "mount_point": path, "server":
                {"address": address, "reached": false, "silent_s": silent_s, "error": error}})
            .to_string()
        })
    }

    fn stats(&self) -> Vec<Value> {
        let mut rows = glint_net::stats::rows("client");
        let servers = Remote::ask(&self.address, "stats").ok();
        if let Some(Value::Array(more)) = servers.and_then(|text| serde_json::from_str(&text).ok())
        {
            rows.extend(more);
        }
        rows
    }

    fn reset_stats(&self) -> Result<String, String> {
        let address = &self.address;
        Remote::ask(address, "reset").map_err(|error| not_reached(address, &error))
    }

    fn heal(&self, paused: bool) -> Result<String, String> {
        let (address, what) = (&self.address, if paused { "heal-pause" } else { "heal-resume" });
        Remote::ask(address, what).map_err(|error| not_reached(address, &error))
    }

    fn order(&self, order: OstOrder) -> Result<String, String> {
        let address = &self.address;
        Remote::ask(address, &order.to_string()).map_err(|error| not_reached(address, &error))
    }

    fn scrub(&self, begins: bool) -> Result<String, String> {
        let (address, what) = (&self.address, if begins { "scrub" } else { "scrub-stop" });
        Remote::ask(address, what).map_err(|error| not_reached(address, &error))
    }

    fn check_namespace(&self, query: NamespaceQuery) -> Result<NamespacePage, String> {
        let address = self.address.clone();
        self.walks.borrow_mut().page(query, move |first, next| {
            let walked = NamespaceReader::default().walk(&address, first, next);
            walked.map_err(|error| not_reached(&address, &error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(call: &[&str]) -> Vec<OsString> {
        call.iter().map(OsString::from).collect()
    }

    #[test]
    fn what_mount_8_passes_is_understood() {
        let helper = "/sbin/mount.fuse.glint";
        let plain = translate(words(&[helper, "host:1", "/mnt", "-n", "-t", "x", "-o", "rw"]));
        assert_eq!(plain.arguments, words(&["glint", "mount", "host:1", "/mnt", "-o", "rw"]));
        let fake = translate(words(&[helper, "host:1", "/mnt", "-sfnv", "-o", "-v"]));
        let expected = ["glint", "mount", "host:1", "/mnt", "--fake", "--sloppy", "-o", "-v"];
        assert_eq!(fake.arguments, words(&expected));
        // -f of the command is something else.
        let typed = words(&["/usr/bin/glint", "mount", "-f", "host:1", "/mnt"]);
        assert_eq!(translate(typed.clone()).arguments, typed);
    }
}
