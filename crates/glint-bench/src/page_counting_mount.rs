//! `glint bench page-counting-mount`: what one side of `ior --experiment lustre-ssf` runs.

use glint::CommandResult;
use glint::mount_options::parse;
use glint::signals::Stop;
use glint_client::RunningClient;
use glint_mount::{Mount, MountFlags};
use glint_net::{Cluster, Remote, RemoteOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Mount as `glint mount -f` does, with a client that counts dirty pages to decide what to send.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The server, as of `glint mount`.
    server: String,
    /// Mount point; an empty directory.
    directory: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let options = parse(&[], false)?;
    options.apply();
    let mount_point = glint_mount::prepare(&args.directory)?;
    let (start, stop) = (Instant::now(), Stop::listen()?);
    let shown = mount_point.display().to_string();
    let address = glint::identity::address(&args.server)?;
    let remote = Remote::connect(RemoteOptions { address, mount_point: shown.clone() })?;
    let cluster = Cluster::new(remote, glint::identity::get()?, shown);
    let client = RunningClient::start(cluster, options.noatime())?;
    client.count_pages();
    let mount_options = options.mount(args.server, MountFlags::empty());
    let mount = Mount::new(client.clone(), &mount_point, &mount_options, options.transport)?;
    glint::announce(&mount, start.elapsed());
    while !stop.is_asked() && !mount.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    if mount.unmount()? {
        mount.wait();
    }
    Ok(ExitCode::SUCCESS)
}
