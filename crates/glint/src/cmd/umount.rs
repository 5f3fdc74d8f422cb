//! `glint umount`.

use crate::CommandResult;
use glint_server::data_dir::DataDir;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long the daemon may take to bring everything to disk, and after which part of it is looked
/// whether it waits for somebody else.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);
const ELSEWHERE: Duration = Duration::from_secs(2);

/// Unmount a Glint file system, also one whose daemon is gone.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point [default: the only one that is].
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Detach now, end when its last user is gone.
    #[arg(long, short)]
    lazy: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let resolved = match &args.directory {
        Some(directory) => crate::target::resolve(directory),
        None => crate::target::only_mount()?,
    };
    let shown = args.directory.as_ref().unwrap_or(&resolved).display();
    let dead = glint_mount::is_dead(&resolved);
    let mount = match glint_mount::mounted_at(&resolved) {
        None => return Err(format!("{shown} is not a mount point").into()),
        Some(mount) if !mount.kind.starts_with("fuse.glint") => {
            return Err(format!("{shown} is a {} mount, not Glint's", mount.kind).into());
        }
        Some(mount) => mount,
    };
    glint_mount::unmount(&resolved, args.lazy || dead).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => {
            format!("{shown} is busy: files in it are open; close them or use --lazy")
        }
        Some(libc::EPERM) => format!("{shown}: unmounting needs root"),
        _ => format!("{shown}: {e}"),
    })?;
    // After `umount` the data directory can be used at once.
    let data = mount.source.strip_prefix("glint:").filter(|_| !args.lazy && !dead);
    if let Some(data) = data.map(Path::new)
        && !DataDir::wait_until_free(data, ELSEWHERE)
    {
        if let Some(pid) = glint_mount::holder_elsewhere(&mount) {
            return Err(format!(
                "{shown} is unmounted here, but process {pid} has it in a mount namespace of its own \
                 (a container?): the server of {} goes on until that ends",
                data.display()
            )
            .into());
        }
        if !DataDir::wait_until_free(data, SHUTDOWN_MAX) {
            return Err(format!(
                "{shown} is unmounted, but its server still brings data to {}",
                data.display()
            )
            .into());
        }
    }
    if args.json {
        crate::say!("{}", serde_json::json!({"unmounted": resolved.display().to_string()}));
    } else if args.directory.is_none() {
        crate::say!("{shown} is unmounted");
    }
    Ok(ExitCode::SUCCESS)
}
