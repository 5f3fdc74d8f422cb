//! `glint umount`.

use crate::CommandResult;
use glint_server::data_dir::DataDir;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// How long the daemon may take to bring everything to disk.
const SHUTDOWN_MAX: Duration = Duration::from_secs(60);

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
    let source = match glint_mount::mounted_at(&resolved) {
        None => return Err(format!("{shown} is not a mount point").into()),
        Some(mount) if !mount.kind.starts_with("fuse.glint") => {
            return Err(format!("{shown} is a {} mount, not Glint's", mount.kind).into());
        }
        Some(mount) => mount.source,
    };
    glint_mount::unmount(&resolved, args.lazy || dead).map_err(|e| match e.raw_os_error() {
        Some(libc::EBUSY) => {
            format!("{shown} is busy: files in it are open; close them or use --lazy")
        }
        Some(libc::EPERM) => format!("{shown}: unmounting needs root"),
        _ => format!("{shown}: {e}"),
    })?;
    // After `umount` the data directory can be used at once.
    if let Some(data) = source.strip_prefix("glint:").filter(|_| !args.lazy && !dead) {
        DataDir::wait_until_free(Path::new(data), SHUTDOWN_MAX);
    }
    if args.json {
        crate::say!("{}", serde_json::json!({"unmounted": resolved.display().to_string()}));
    }
    Ok(ExitCode::SUCCESS)
}
