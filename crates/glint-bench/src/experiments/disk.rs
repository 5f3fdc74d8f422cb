//! A disk of an experiment: xfs on a loop device over a sparse file, gone in the end.

use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// How long the last users of the disk may take to let it go.
const PATIENCE: Duration = Duration::from_secs(10);
/// The least size of a file system that mkfs.xfs makes, with some room.
const BYTES_MIN: u64 = 512 << 20;
/// What to do where there are no loop devices.
const ADVICE: &str = "install xfsprogs and util-linux and run it as root, or say `--plain` to use \
                      the file system of --data itself";

/// A mounted disk. It has the loop device until the end.
pub(crate) struct LoopDisk {
    at: PathBuf,
    device: PathBuf,
    /// The loop device reads and writes around the page cache, so that nothing of the disk is in
    /// memory twice, or beyond a limit of memory.
    pub is_direct: bool,
}

fn run(command: &mut Command) -> Result<Output, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}; {ADVICE}"))?;
    match output.status.success() {
        true => Ok(output),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("{name}: {}; {ADVICE}", said.lines().next().unwrap_or("failed")))
        }
    }
}

/// Attaches a file to a free loop device.
fn attach(image: &Path, direct: bool) -> Result<PathBuf, String> {
    let mut command = Command::new("losetup");
    command
        .args(["--find", "--show"])
        .arg(format!("--direct-io={}", if direct { "on" } else { "off" }));
    let output = run(command.arg(image))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

impl LoopDisk {
    /// Makes a sparse file `image` of so many bytes, or more, with a file system that is mounted at
    /// `at`.
    pub(crate) fn new(image: &Path, at: &Path, bytes: u64) -> Result<LoopDisk, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", image.display());
        let file = std::fs::File::create(image).map_err(failed)?;
        file.set_len(bytes.max(BYTES_MIN)).map_err(failed)?;
        run(Command::new("mkfs.xfs").arg("-q").arg(image))?;
        // Not all file systems below can do it.
        let device = attach(image, true).or_else(|_| attach(image, false))?;
        let name = device.file_name().unwrap_or_default();
        let dio = Path::new("/sys/block").join(name).join("loop/dio");
        let is_direct = std::fs::read_to_string(dio).is_ok_and(|text| text.trim() == "1");
        // From here on its end detaches the device.
        let disk = LoopDisk { at: at.to_owned(), device, is_direct };
        run(Command::new("mount").args(["-t", "xfs"]).arg(&disk.device).arg(&disk.at))?;
        Ok(disk)
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let begun = Instant::now();
        while rustix::mount::unmount(&self.at, UnmountFlags::empty())
            == Err(rustix::io::Errno::BUSY)
        {
            if begun.elapsed() > PATIENCE {
                let _ = rustix::mount::unmount(&self.at, UnmountFlags::DETACH);
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}
