//! `glint up`: create if absent, serve, mount; one process.

use super::serve::{BoundListener, note_address};
use super::serving::{Serving, keep_files_private, ost_count};
use crate::control::{Control, MountServers};
use crate::live::Live;
use crate::metrics;
use crate::signals::Stop;
use crate::{CommandResult, daemon};
use glint_client::{RunningClient, Vfs};
use glint_mount::{Mount, MountFlags, TransportKind};
use glint_net::{AdminService, Cluster, InProcess};
use glint_proto::limits::AWAY_END_MS;
use glint_proto::message::{NamespacePage, NamespaceQuery, OstOrder};
use glint_server::data_dir::{Role, ServedDir};
use glint_server::{MdsServer, RunningMds, Settings};
use glint_telemetry::event;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked at what has ended.
const LOOK: Duration = Duration::from_millis(5);
/// Longest time in which a mount ends while a disk stands still or a server is away, also if others
/// are written meanwhile.
const BESIDE_STILL_MAX: Duration = Duration::from_secs(60);

/// Create a file system if there is none, serve it and mount it, in one process.
///
/// Runs until Ctrl-C, SIGTERM or `glint umount`, and then unmounts cleanly.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that holds everything; created if absent.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Mount point; an empty directory, created if absent.
    #[arg(long, value_name = "DIR")]
    mount: PathBuf,
    /// Number of OSTs, fixed when the file system is created [default: 1].
    #[arg(long, value_name = "N", value_parser = ost_count())]
    osts: Option<u16>,
    /// Serve other clients at this address too; unix:PATH is a socket for root of this host.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Allow --listen HOST:PORT without --cert: unencrypted, and to everybody who reaches it.
    #[arg(long)]
    insecure: bool,
    /// Mount options, as of `glint mount`.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
    /// Serve statistics for Prometheus at http://HOST:PORT/metrics.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    #[command(flatten)]
    serving: Serving,
    /// Go to the background when the mount is ready.
    #[arg(long)]
    daemon: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    glint_mount::check_rights(&args.mount)?;
    keep_files_private();
    let start = Instant::now();
    // Whatever may be refused is looked at before the directory is created.
    let options = super::mount_options::parse(&args.options, false)?;
    if args.listen.is_some() {
        options.refuse_local_ones()?;
    }
    options.apply();
    let found = ServedDir::find(&args.data, args.osts, Role::Mds)?;
    let listener = BoundListener::bind_said(args.listen.as_deref(), args.insecure)?;
    let metrics = metrics::Bound::bind(args.metrics.as_deref())?;
    let threads = args.serving.threads(found.osts())?;
    let looked = std::fs::symlink_metadata(&args.mount);
    if looked.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        let made = std::fs::create_dir_all(&args.mount);
        // For everybody, as it would be without the mask.
        made.and_then(|()| std::fs::set_permissions(&args.mount, Permissions::from_mode(0o755)))
            .map_err(|e| format!("mount point {}: {e}", args.mount.display()))?;
    }
    let mount_point = glint_mount::prepare(&args.mount)?;
    let data = found.create()?;
    if args.daemon && !daemon::is_background() {
        drop((listener, metrics));
        return daemon::start_server(data);
    }
    // An option of the mount that switches something off wins.
    let settings = args.serving.apply();
    options.apply();
    let stop = Stop::listen()?;
    let data_path = args.data.canonicalize().unwrap_or_else(|_| args.data.clone());
    let source = format!("glint:{}", data_path.display());
    let shared = listener.is_some();
    note_address(&args.data, listener.as_ref())?;
    let running = RunningMds::start(data, Settings { shared, mounted: true, ..settings })?;
    running.reach_peers(crate::identity::get()?);
    let cluster = Cluster::new(
        InProcess::new(running.server.clone()),
        crate::identity::get()?,
        mount_point.display().to_string(),
    );
    let client = RunningClient::start(cluster, options.noatime())?;
    options.set_up(&client);
    // Alone, its files are as trustworthy as those of any local file system.
    let flags = if shared { super::mount::flags_unless_said()? } else { MountFlags::empty() };
    let mount_options = options.mount(source, flags);
    // The mount is the last that can fail: nobody would answer it then.
    let serve = |l: BoundListener| l.serve(running.server.clone(), threads);
    let server = listener.map(serve).transpose()?;
    let admin = running.server.clone();
    let metrics = metrics.serve(Some(Box::new(move || admin.status())))?;
    let mount = Mount::new(client.clone(), &mount_point, &mount_options, options.transport)?;
    let servers = ServersHere(running.server.clone());
    let control = Control::start(&mount_point, client.clone(), options.own(), servers);
    announce(&mount, start.elapsed());
    daemon::say_ready();

    let mut live = Live::new();
    while !stop.is_asked() && !mount.is_finished() && running.server.failure().is_none() {
        std::thread::sleep(Duration::from_millis(50));
        live.tick(|| running.server.in_short());
    }
    live.end();
    drop((control, metrics));
    if let Some(reason) = running.server.failure() {
        // First, so that nobody waits for a server that is gone.
        let detached = mount.unmount();
        let told = running.give_up(&reason);
        return Err(detached.err().map_or(told.clone(), |e| format!("{told}; {e}")).into());
    }
    // What goes on while a disk stands still, or another server is away, is seen by changes of
    // others.
    let (server_here, ends) = (&running.server, Arc::downgrade(&client));
    let is_away = || ends.upgrade().is_some_and(|client| client.is_away());
    let is_still = || server_here.has_still_disk() || is_away();
    let still_at = || is_still().then(|| server_here.osts().next_change());
    let clean = unmount(&mount, &still_at)?;
    if clean {
        mount.wait();
    } else {
        tracing::warn!(
            path = %mount_point.display(),
            "files are still open; the mount point is detached, their users will get errors"
        );
    }
    end(client, &still_at);
    // Not before: what the client wrote is stable once members on other servers have asked this
    // one.
    if let Some(server) = server {
        server.stop();
    }
    running.shut_down().map_err(|error| format!("shutting down: {error}"))?;
    tracing::info!(event = event::STOPPED, "stopped; everything is on disk");
    Ok(ExitCode::SUCCESS)
}

/// Waits until something is so, or a disk stands still or a server is away, and nothing goes on
/// beside it for too long. Meanwhile the number of the last change is `still_at`. Returns whether
/// it is so.
fn unless_still(is_done: impl Fn() -> bool, still_at: &impl Fn() -> Option<u64>) -> bool {
    let (begun, mut since, mut last) = (Instant::now(), Instant::now(), None);
    while !is_done() {
        std::thread::sleep(LOOK);
        let at = still_at();
        if at.is_none() || at != last {
            (since, last) = (Instant::now(), at);
        }
        let is_over = since.elapsed() > Duration::from_millis(AWAY_END_MS);
        if is_over || (at.is_some() && begun.elapsed() > BESIDE_STILL_MAX) {
            tracing::error!(
                event = event::DATA_LOST,
                "a disk stands still, or a server is away: what was not written to it is lost"
            );
            return false;
        }
    }
    true
}

/// Unmounts; calls that wait for too long for a disk which stands still, or a server that is away,
/// fail. Returns whether nobody uses the mount any more.
fn unmount(mount: &Mount, still_at: &(impl Fn() -> Option<u64> + Sync)) -> std::io::Result<bool> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if !unless_still(|| is_done.load(Ordering::Acquire), still_at) {
                mount.abort();
            }
        });
        let unmounted = mount.unmount();
        is_done.store(true, Ordering::Release);
        unmounted
    })
}

/// Ends a client, whose threads may wait for a disk that stands still or a server that is away.
fn end(client: impl Send + 'static, still_at: &impl Fn() -> Option<u64>) {
    let ending = std::thread::spawn(move || drop(client));
    if unless_still(|| ending.is_finished(), still_at) && ending.join().is_err() {
        tracing::error!("the end of the client panicked");
    }
}

/// Servers of a mount, which are in its process.
struct ServersHere(Arc<MdsServer>);

impl MountServers for ServersHere {
    fn status(&self) -> String {
        AdminService::status(&*self.0)
    }

    fn stats(&self) -> Vec<Value> {
        glint_net::stats::rows("server")
    }

    fn reset_stats(&self) -> Result<String, String> {
        // The counters of this process are reset already.
        Ok(String::new())
    }

    fn heal(&self, paused: bool) -> Result<String, String> {
        let done = futures_lite::future::block_on(AdminService::pause_heal(&*self.0, paused));
        done.map(|()| String::new()).map_err(|errno| errno.to_string())
    }

    fn order(&self, order: OstOrder) -> Result<String, String> {
        let server = &*self.0;
        futures_lite::future::block_on(async {
            match order {
                OstOrder::GiveUp(request) => AdminService::give_up_ost(server, request).await,
                OstOrder::Drain(request) => AdminService::drain_ost(server, request).await,
                OstOrder::Balance(request) => AdminService::balance_turn(server, request).await,
            }
        })
    }

    fn scrub(&self, begins: bool) -> Result<String, String> {
        AdminService::scrub(&*self.0, begins);
        Ok(String::new())
    }

    fn check_namespace(&self, query: NamespaceQuery) -> Result<NamespacePage, String> {
        futures_lite::future::block_on(AdminService::check_namespace(&*self.0, query))
    }
}

/// Says that a mount is usable, by which transport, and how it could be faster.
pub fn announce(mount: &Mount, took: Duration) {
    let transport = match mount.transport() {
        TransportKind::Uring => "io_uring",
        _ => "/dev/fuse",
    };
    if mount.transport() == TransportKind::DevFuse
        && let Some(hint) = glint_mount::uring_hint()
    {
        tracing::info!("{hint}");
    }
    let ms = took.as_millis();
    let path = mount.path().display();
    tracing::info!(event = event::MOUNTED, "mounted at {path} through {transport} in {ms} ms");
}
