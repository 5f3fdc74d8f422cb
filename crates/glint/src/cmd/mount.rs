//! `glint mount`: mount the file system of a server on the network. Also what
//! `mount -t fuse.glint` and /etc/fstab call.

use crate::metrics::Metrics;
use crate::signals::Stop;
use crate::{CommandResult, daemon};
use glint_client::Running;
use glint_mount::{Mount, MountOptions, TransportKind};
use glint_net::{Cluster, Remote, RemoteOptions};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Mount the file system that a server at HOST:PORT serves.
///
/// Also as `mount -t fuse.glint HOST:PORT DIR` and in /etc/fstab, once `glint` is
/// linked as /sbin/mount.fuse.glint (`make install` does it).
#[derive(clap::Args)]
pub struct Args {
    /// The server: HOST:PORT, or unix:PATH on this host.
    #[arg(value_name = "HOST:PORT")]
    server: String,
    /// Where to mount; an empty directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options, separated by commas: ro, rw, allow_other, noatime, noexec, nosuid,
    /// nodev, direct_io, remount, transport=auto|uring|devfuse, keep_awake=auto|off,
    /// polling=auto|off, cert=DIR (the same as --cert), wbmeta (the default) or nowbmeta: whether changes in directories
    /// that nobody else uses may be told to the server up to a second later. Those of mount(8) that are its own affair (defaults, _netdev, nofail, ...) are accepted.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    options: Vec<String>,
    /// Serve statistics for Prometheus at http://HOST:PORT/metrics.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Go to the background when the mount is ready.
    #[arg(long)]
    daemon: bool,
}

/// Set by `glint bench ior --experiment lustre-ssf`, to show what it was like to count dirty
/// pages instead of looking for what is contiguous.
pub const COUNT_PAGES: &str = "GLINT_BENCH_COUNT_PAGES";

const IGNORED_PREFIXES: [&str; 5] = ["x-", "comment=", "user_id=", "group_id=", "max_read="];

/// Parsed mount options.
pub struct ParsedOptions {
    /// For the kernel.
    pub mount: MountOptions,
    /// How requests reach us.
    pub transport: TransportKind,
    /// Reading never changes an inode.
    pub noatime: bool,
    /// Cores are kept out of their sleep states while requests come in bursts.
    pub keep_awake: bool,
    /// Threads look for replies for a short time before they sleep.
    pub polling: bool,
    /// Changes in directories that this client has for itself are told to servers later.
    pub write_back_metadata: bool,
    /// Who this host is; see `--cert`.
    pub cert: Option<PathBuf>,
    /// Only change the flags of a mount that is there.
    pub remount: bool,
}

impl ParsedOptions {
    /// Sets this process up. What was switched off already stays off.
    pub fn apply(&self) {
        crate::identity::set(self.cert.clone());
        if !self.keep_awake {
            glint_net::keep_awake::enable(false);
        }
        if !self.polling {
            glint_net::polling::enable(false);
        }
    }
}

/// Parses `-o` options; one that nobody knows is an error.
pub fn parse_options(options: &[String]) -> Result<ParsedOptions, String> {
    let mut parsed = ParsedOptions {
        mount: MountOptions {
            source: String::new(),
            read_only: false,
            allow_other: true,
            exec: true,
            suid: true,
            dev: true,
            direct_io: false,
        },
        transport: TransportKind::Auto,
        noatime: false,
        keep_awake: true,
        polling: true,
        write_back_metadata: true,
        cert: None,
        remount: false,
    };
    for option in options.iter().filter(|option| !option.is_empty()) {
        match option.as_str() {
            "ro" => parsed.mount.read_only = true,
            "rw" => parsed.mount.read_only = false,
            "allow_other" => parsed.mount.allow_other = true,
            "exec" => parsed.mount.exec = true,
            "noexec" => parsed.mount.exec = false,
            "suid" => parsed.mount.suid = true,
            "nosuid" => parsed.mount.suid = false,
            "dev" => parsed.mount.dev = true,
            "nodev" => parsed.mount.dev = false,
            "remount" => parsed.remount = true,
            "direct_io" => parsed.mount.direct_io = true,
            "keep_awake=auto" => parsed.keep_awake = true,
            "keep_awake=off" => parsed.keep_awake = false,
            "polling=auto" => parsed.polling = true,
            "polling=off" => parsed.polling = false,
            "wbmeta" => parsed.write_back_metadata = true,
            "nowbmeta" => parsed.write_back_metadata = false,
            "noatime" => parsed.noatime = true,
            other if other.starts_with("cert=") => {
                parsed.cert = Some(other["cert=".len()..].into());
            }
            "atime" | "relatime" => parsed.noatime = false,
            "transport=auto" => parsed.transport = TransportKind::Auto,
            "transport=uring" => parsed.transport = TransportKind::Uring,
            "transport=devfuse" => parsed.transport = TransportKind::DevFuse,
            "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "nofail" | "_netdev"
            | "async" | "diratime" | "nodiratime" => {}
            // What the kernel shows of a mount, mount(8) passes again when it remounts.
            "default_permissions" => {}
            other if IGNORED_PREFIXES.iter().any(|prefix| other.starts_with(prefix)) => {}
            other => {
                return Err(format!(
                    "mount option {other}: unknown; see `glint mount --help` for those there are"
                ));
            }
        }
    }
    Ok(parsed)
}

/// mount(8) calls its helpers as
/// `mount.fuse.glint SOURCE DIR [-sfnv] [-o OPTIONS] [-t TYPE]`
/// and expects the mount to be there when they return.
pub fn helper_arguments(arguments: Vec<OsString>) -> Vec<OsString> {
    let is_helper = arguments
        .first()
        .and_then(|name| std::path::Path::new(name).file_name())
        .is_some_and(|name| name.to_string_lossy().starts_with("mount."));
    if !is_helper {
        return arguments;
    }
    let mut translated: Vec<OsString> = vec!["glint".into(), "mount".into(), "--daemon".into()];
    let ignored = ["-s", "-f", "-n", "-v"];
    let mut rest = arguments.into_iter().skip(1);
    while let Some(argument) = rest.next() {
        if argument == "-t" {
            rest.next();
        } else if !ignored.iter().any(|i| argument == *i) {
            translated.push(argument);
        }
    }
    translated
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let options = parse_options(&args.options)?;
    options.apply();
    if options.remount {
        glint_mount::remount(&args.directory, &options.mount)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mount_point = glint_mount::prepare(&args.directory)?;
    if args.daemon && !daemon::is_background() {
        let name = mount_point.display().to_string().replace('/', "-");
        return daemon::start(&std::env::temp_dir().join(format!("glint-mount{name}.log")));
    }
    let start = Instant::now();
    let stop = Stop::listen()?;
    let remote = Remote::connect(RemoteOptions {
        address: crate::identity::address(&args.server)?,
        mount_point: mount_point.display().to_string(),
    })
    .map_err(|e| format!("server {}: {e}", args.server))?;
    let cluster = Cluster::new(remote, crate::identity::get()?, mount_point.display().to_string());
    let client = Running::start(cluster, options.noatime)?;
    if !options.write_back_metadata {
        client.tell_changes_at_once();
    }
    if std::env::var_os(COUNT_PAGES).is_some() {
        client.count_pages();
    }
    let mount_options = MountOptions { source: args.server.clone(), ..options.mount };
    let mount = Mount::new(client.clone(), &mount_point, &mount_options, options.transport)?;
    let _metrics = Metrics::start(args.metrics.as_deref(), None)?;
    super::up::announce(&mount, start.elapsed());
    daemon::say_ready();
    while !stop.is_asked() && !mount.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    if mount.unmount()? {
        mount.wait();
    } else {
        tracing::warn!("files are still open; the mount point is detached");
    }
    drop(client);
    tracing::info!("unmounted {}", args.directory.display());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_8_passes_is_understood() {
        let call = [
            "/sbin/mount.fuse.glint",
            "host:1",
            "/mnt",
            "-n",
            "-t",
            "fuse.glint",
            "-o",
            "rw,noatime",
        ];
        let call: Vec<OsString> = call.iter().map(OsString::from).collect();
        let expected = ["glint", "mount", "--daemon", "host:1", "/mnt", "-o", "rw,noatime"]
            .map(OsString::from);
        assert_eq!(helper_arguments(call), expected);
    }

    #[test]
    fn an_unknown_option_is_named() {
        let error = parse_options(&["ro".into(), "colour".into()]).err().unwrap();
        assert!(error.contains("colour"), "{error}");
    }
}
