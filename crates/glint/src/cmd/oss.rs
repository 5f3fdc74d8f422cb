//! `glint oss`: more OSTs for a file system, on another host or another disk.

use super::serve::{BoundListener, note_address};
use super::serving::{Alone, keep_files_private, serve_until};
use crate::metrics;
use crate::signals::Stop;
use crate::{CommandResult, daemon, identity};
use glint_net::{Address, AdminService, UNIX_PREFIX};
use glint_server::RunningOss;
use glint_server::data_dir::{Role, ServedDir};
use glint_telemetry::event;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;

/// Serve more OSTs of a file system, from another host or another disk.
///
/// The first time, the data directory joins the file system that is served at --mds and gets
/// the next numbers of OSTs; new files are laid out over them, too, and what is there stays
/// where it is. Clients find it by themselves. It serves as long as it hears of the server of
/// the MDS, and goes on when that comes back.
// How long clients may be silent, and how many copies files have, is the affair of the MDS.
#[derive(clap::Args)]
#[command(mut_arg("lease", |lease| lease.hide(true)), mut_arg("replicas", |arg| arg.hide(true)),
          mut_arg("min_replicas", |arg| arg.hide(true)), mut_arg("mds_cache", |arg| arg.hide(true)))]
pub(crate) struct Args {
    /// Directory that holds everything; created if absent.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The server with the MDS, as clients reach it.
    #[arg(long, value_name = "HOST:PORT")]
    mds: String,
    /// Address to listen at, or unix:PATH for a socket [default: glint.sock in the data
    /// directory, for root of this host; only where --mds is a socket, too].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Address that clients are told, if it is another one [default: that of --listen, or of
    /// this host as it reaches the MDS].
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    #[command(flatten)]
    alone: Alone,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    keep_files_private();
    // Whatever may be refused is looked at before the directory is created.
    let found = ServedDir::find(&args.data, args.alone.osts, Role::Oss)?;
    let mds = identity::address(&args.mds)?;
    let said = BoundListener::bind_said(args.listen.as_deref(), args.alone.insecure)?;
    let advertised = match (&args.advertise, &said) {
        (Some(address), _) => {
            if !address.starts_with(UNIX_PREFIX) {
                identity::host_and_port(address)
                    .map_err(|why| format!("--advertise {address}: {why}"))?;
            }
            address.clone()
        }
        (None, Some(listener)) => advertised(&listener.address().to_string(), &mds)?,
        (None, None) => {
            let socket = std::path::absolute(args.data.join(identity::SOCKET))?;
            advertised(&format!("{UNIX_PREFIX}{}", socket.display()), &mds)?
        }
    };
    let metrics = metrics::Bound::bind(args.alone.metrics.as_deref())?;
    let threads = args.alone.serving.threads(found.osts())?;
    let data = found.create()?;
    if args.alone.daemon && !daemon::is_background() {
        drop((said, metrics));
        return daemon::start_server(data);
    }
    let path = data.path().display().to_string();
    let settings = args.alone.serving.apply();
    let stop = Stop::listen()?;
    let listener = BoundListener::or_in(said, &args.data)?;
    note_address(&args.data, Some(&listener))?;
    let domain = args.alone.failure_domain.unwrap_or_default();
    let running = RunningOss::start(data, settings, mds, advertised.clone(), domain)?;
    let server = listener.serve(running.oss.clone(), threads)?;
    let admin = running.oss.clone();
    let metrics = metrics.serve(Some(Box::new(move || admin.status())))?;
    let joined = running.wait_joined(|| stop.is_asked(), daemon::say_waiting);
    if let Ok(true) = joined {
        tracing::info!(
            event = event::SERVING,
            "serving OSTs of {} to clients at {advertised}, for the file system at {}",
            path,
            args.mds
        );
        let oss = &running.oss;
        if let Some(reason) = serve_until(&stop, || oss.in_short(), || oss.failure()) {
            return Err(running.give_up(&reason).into());
        }
    }
    drop(metrics);
    server.stop();
    running.shut_down().map_err(|error| format!("shutting down: {error}"))?;
    joined.map_err(|reason| format!("--mds {}: {reason}", args.mds))?;
    tracing::info!(event = event::STOPPED, "stopped; everything is on disk");
    Ok(ExitCode::SUCCESS)
}

/// The address at which others reach a server that listens at `listen`: where that is all
/// addresses of this host, the one from which it reaches `mds`. Refuses one that leads nowhere from
/// the hosts that reach the MDS: clients would wait for its OSTs for ever.
fn advertised(listen: &str, mds: &Address) -> Result<String, String> {
    let unreachable = || {
        format!(
            "clients of the file system at --mds {mds} could not reach {listen} from other hosts; \
             say --listen HOST:PORT, or --advertise for what they are told"
        )
    };
    let is_near = matches!(mds, Address::Unix(_));
    let Ok(address) = listen.parse::<SocketAddr>() else {
        return if is_near { Ok(listen.to_owned()) } else { Err(unreachable()) };
    };
    let far = mds.resolve();
    if !address.ip().is_unspecified() {
        let is_far = |far: &Vec<SocketAddr>| !far.iter().any(|mds| mds.ip().is_loopback());
        let is_lost = address.ip().is_loopback() && !is_near && far.is_ok_and(|far| is_far(&far));
        return if is_lost { Err(unreachable()) } else { Ok(listen.to_owned()) };
    }
    // Nothing is sent: connecting only chooses a route.
    let socket = UdpSocket::bind((address.ip(), 0)).and_then(|socket| {
        socket.connect(far?.as_slice())?;
        socket.local_addr()
    });
    let own = socket.map_err(|error| {
        format!("--mds {mds}: no way there ({error}); say --advertise for what clients are told")
    })?;
    Ok(SocketAddr::new(own.ip(), address.port()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(listen: &str, mds: &str) -> Result<String, String> {
        advertised(listen, &Address::parse(mds))
    }

    #[test]
    fn clients_are_told_an_address_that_they_can_reach() {
        assert_eq!(told("10.1.2.3:5641", "127.0.0.1:1"), Ok("10.1.2.3:5641".into()));
        assert_eq!(told("unix:/run/oss", "unix:/run/mds"), Ok("unix:/run/oss".into()));
        assert_eq!(told("127.0.0.1:5641", "127.0.0.1:1"), Ok("127.0.0.1:5641".into()));
        assert_eq!(told("0.0.0.0:5641", "127.0.0.1:1"), Ok("127.0.0.1:5641".into()));
        for (listen, mds) in [("unix:/run/oss", "10.1.2.3:1"), ("127.0.0.1:5641", "10.1.2.3:1")] {
            assert!(told(listen, mds).unwrap_err().contains("--advertise"));
        }
    }
}
