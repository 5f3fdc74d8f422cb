//! `glint bench null-mount`: the adapter over answers from memory.

use glint::CommandResult;
use glint::mount_options::parse;
use glint::signals::Stop;
use glint_mount::{Mount, MountFlags, NullFs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Mount a file system that answers from memory and stores no data: the limit of
/// what any mount can do here. Runs until Ctrl-C or `glint umount`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Mount point; an empty directory.
    directory: PathBuf,
    /// Mount options, as of `glint mount`.
    #[arg(short = 'o', long = "options", value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let options = parse(&args.options, false)?;
    options.apply();
    let mount_point = glint_mount::prepare(&args.directory)?;
    let start = Instant::now();
    let stop = Stop::listen()?;
    let mount_options = options.mount("glint-null".into(), MountFlags::empty());
    let fs = Arc::new(NullFs::default());
    let mount = Mount::new(fs, &mount_point, &mount_options, options.transport)?;
    glint::announce(&mount, start.elapsed());
    while !stop.is_asked() && !mount.is_finished() {
        std::thread::sleep(Duration::from_millis(50));
    }
    if mount.unmount()? {
        mount.wait();
    }
    Ok(ExitCode::SUCCESS)
}
