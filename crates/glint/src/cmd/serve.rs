//! `glint serve`: the servers without a mount.

use super::serving::{Alone, keep_files_private, serve_until};
use crate::identity::LISTEN;
use crate::metrics;
use crate::signals::Stop;
use crate::{CommandResult, daemon};
use glint_net::{Address, AdminService, Server, ServerHandle, ServerOptions, Service, UNIX_PREFIX};
use glint_server::data_dir::{Role, ServedDir};
use glint_server::{RunningMds, Settings};
use glint_telemetry::event;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Serve a file system to clients; create it if there is none.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory that holds everything; created if absent.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address to listen at, or unix:PATH for a socket [default: glint.sock in the data
    /// directory, for root of this host].
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    #[command(flatten)]
    alone: Alone,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    keep_files_private();
    // Whatever may be refused is looked at before the directory is created.
    let found = ServedDir::find(&args.data, args.alone.osts, Role::Mds)?;
    let said = BoundListener::bind_said(args.listen.as_deref(), args.alone.insecure)?;
    let metrics = metrics::Bound::bind(args.alone.metrics.as_deref())?;
    let threads = args.alone.serving.threads(found.osts())?;
    let data = found.create()?;
    if args.alone.daemon && !daemon::is_background() {
        drop((said, metrics));
        return daemon::start_server(data);
    }
    let path = data.path().display().to_string();
    let failure_domain = args.alone.failure_domain.clone().unwrap_or_default();
    let settings = Settings { failure_domain, ..args.alone.serving.apply() };
    let stop = Stop::listen()?;
    let listener = BoundListener::or_in(said, &args.data)?;
    note_address(&args.data, Some(&listener))?;
    let running = RunningMds::start(data, Settings { shared: true, ..settings })?;
    running.reach_peers(crate::identity::get()?);
    let address = listener.address.clone();
    let server = listener.serve(running.server.clone(), threads)?;
    let admin = running.server.clone();
    let metrics = metrics.serve(Some(Box::new(move || admin.status())))?;
    tracing::info!(event = event::SERVING, "serving {} at {address}", path);
    let (in_short, failure) = (|| running.server.in_short(), || running.server.failure());
    if let Some(reason) = serve_until(&stop, in_short, failure) {
        return Err(running.give_up(&reason).into());
    }
    drop(metrics);
    server.stop();
    running.shut_down().map_err(|error| format!("shutting down: {error}"))?;
    tracing::info!(event = event::STOPPED, "stopped; everything is on disk");
    Ok(ExitCode::SUCCESS)
}

/// How long a server that was killed may still be seen holding its port, while the
/// kernel takes its io_uring apart.
const LINGER: Duration = Duration::from_secs(3);

fn bind_patiently(address: &Address) -> std::io::Result<glint_net::ListeningSocket> {
    let start = Instant::now();
    loop {
        match glint_net::ListeningSocket::bind(address) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && start.elapsed() < LINGER => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

/// The first address of the HOST:PORT that an option says.
pub(crate) fn resolve(option: &str, text: &str) -> Result<SocketAddr, String> {
    let wrong = |why: String| format!("{option} {text}: {why}");
    crate::identity::host_and_port(text).map_err(wrong)?;
    let found = text.to_socket_addrs().map_err(|e| {
        wrong(format!(
            "no host of that name is known here ({e}); say an address of this host (`ip address` \
             lists them), or 0.0.0.0 for all"
        ))
    })?;
    found.into_iter().next().ok_or_else(|| wrong("the name stands for no address".into()))
}

/// Why nobody can listen at an address that an option said, and what to do.
pub(crate) fn not_bound(option: &str, address: &str, error: &std::io::Error) -> String {
    let what = match error.kind() {
        ErrorKind::AddrInUse if address.starts_with(UNIX_PREFIX) => {
            "a server listens there; choose another or stop it".into()
        }
        ErrorKind::AddrInUse => "the port is in use; choose another or stop its user".into(),
        ErrorKind::AddrNotAvailable => {
            "this host does not have that address; say one of its own (`ip address` lists them), \
             or 0.0.0.0 for all"
                .into()
        }
        _ => error.to_string(),
    };
    format!("{option} {address}: {what}")
}

/// Leaves word in a data directory that is held of where its server listens, if it does: for
/// commands that are told the directory.
pub(crate) fn note_address(data: &Path, listener: Option<&BoundListener>) -> Result<(), String> {
    let path = data.join(LISTEN);
    let noted = match listener {
        Some(listener) => std::fs::write(&path, &listener.said),
        None => match std::fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed,
        },
    };
    noted.map_err(|error| format!("{}: {error}", path.display()))
}

/// A bound address, before anything is served at it.
pub(crate) struct BoundListener {
    listener: glint_net::ListeningSocket,
    address: Address,
    /// The address as it was said, in full.
    said: String,
}

impl BoundListener {
    /// Binds where an option says, if one does. Refuses a certificate that cannot be used in any
    /// case.
    pub(crate) fn bind_said(
        text: Option<&str>,
        insecure: bool,
    ) -> Result<Option<BoundListener>, String> {
        crate::identity::get()?;
        text.map(|text| BoundListener::bind(text, insecure)).transpose()
    }

    /// The one that was said, or one at a socket in the data directory.
    pub(crate) fn or_in(said: Option<BoundListener>, data: &Path) -> Result<BoundListener, String> {
        let at_socket = || BoundListener::bind(&format!("{UNIX_PREFIX}{}", data.display()), false);
        said.map_or_else(at_socket, Ok)
    }

    /// Binds; refuses addresses of TCP without certificates unless `insecure`: whoever reaches
    /// one, any user of this host, too, is believed to be root if he says so.
    pub(crate) fn bind(text: &str, insecure: bool) -> Result<BoundListener, String> {
        let identity = crate::identity::get()?;
        let text = &crate::identity::in_full(text);
        let mut address = Address::parse(text);
        if let Address::Tcp(_) = &address {
            let resolved = resolve("--listen", text)?;
            if identity.is_none() && !insecure {
                let who = match resolved.ip().is_loopback() {
                    true => "by every user of this host",
                    false => "from other hosts",
                };
                return Err(format!(
                    "--listen {text} can be reached {who}, unencrypted, and whoever does may do \
                     anything; say --cert DIR (`glint cert --help` tells how to make it), or \
                     --insecure if that is what you want"
                ));
            }
            address = Address::parse_as(&resolved.to_string(), identity);
        }
        let listener = bind_patiently(&address).map_err(|e| not_bound("--listen", text, &e))?;
        Ok(BoundListener { listener, address, said: text.clone() })
    }

    /// Address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Serves clients from now on.
    pub(crate) fn serve<S: Service>(
        self,
        service: Arc<S>,
        threads: ServerOptions,
    ) -> Result<ServerHandle, String> {
        Server::start(self.listener, service, threads).map_err(|e| e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_says_where_its_server_listens() {
        let dir = tempfile::tempdir().unwrap();
        let noted = || std::fs::read_to_string(dir.path().join(LISTEN)).ok();
        let listener = BoundListener::bind("127.0.0.1:0", true).unwrap();
        note_address(dir.path(), Some(&listener)).unwrap();
        assert_eq!(noted().as_deref(), Some("127.0.0.1:0"));
        (0..2).for_each(|_| note_address(dir.path(), None).unwrap());
        assert_eq!(noted(), None);
    }

    #[test]
    fn a_name_that_does_not_resolve_is_no_malformed_address() {
        let said = BoundListener::bind("nosuch.invalid:7701", true).err().unwrap();
        assert!(said.contains("--listen nosuch.invalid:7701: no host of that name"), "{said}");
        let said = BoundListener::bind("127.0.0.1:77990", true).err().unwrap();
        assert!(said.contains("--listen 127.0.0.1:77990: port \"77990\""), "{said}");
    }
}
