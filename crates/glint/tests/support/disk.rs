//! A disk that can be filled and cut off.

use super::{eventually, run};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A small disk of its own, on a loop device.
pub struct Disk<'a> {
    at: &'a Path,
    image: PathBuf,
}

impl Disk<'_> {
    pub fn new<'a>(image: &Path, at: &'a Path, kind: &str, megabytes: u64) -> Disk<'a> {
        let file = fs::File::create(image).unwrap();
        file.set_len(megabytes << 20).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(image));
        fs::create_dir_all(at).unwrap();
        run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(at));
        Disk { at, image: image.to_owned() }
    }

    /// Everything that was not synced is gone, as after a loss of power: whoever uses it is
    /// killed, the file system is shut down without its log (the ioctl of xfstests' godown)
    /// and mounted again.
    pub fn lose_power(&self, kill: impl FnOnce()) {
        let script =
            r#"$f = pack("L", 2); open(F, "<", $ARGV[0]) && ioctl(F, 0x8004587d, $f) || die $!"#;
        // First, or it would see and report that its disk is gone.
        kill();
        run(Command::new("perl").args(["-e", script]).arg(self.at));
        eventually("the disk is let go", || {
            Command::new("umount").arg(self.at).output().unwrap().status.success()
        });
        run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(self.at));
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at).status();
    }
}
