//! A disk that can be filled and cut off.

use super::{eventually, run};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

/// A small disk of its own, on a loop device that it has until the end: mount(8) would take the one
/// of the mount before, which may be going away.
pub struct Disk<'a> {
    at: &'a Path,
    device: PathBuf,
}

impl Disk<'_> {
    pub fn new<'a>(image: &Path, at: &'a Path, kind: &str, megabytes: u64) -> Disk<'a> {
        let file = fs::File::create(image).unwrap();
        file.set_len(megabytes << 20).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(image));
        fs::create_dir_all(at).unwrap();
        let device = run(Command::new("losetup").args(["--find", "--show"]).arg(image)).stdout;
        let disk = Disk { at, device: String::from_utf8(device).unwrap().trim().into() };
        disk.mount();
        disk
    }

    fn mount(&self) {
        run(Command::new("mount").arg(&self.device).arg(self.at));
    }

    fn unmount(&self) {
        eventually("the disk is let go", || {
            Command::new("umount").arg(self.at).output().unwrap().status.success()
        });
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
        self.unmount();
        self.mount();
    }

    /// Mounted again, with nothing of it in memory.
    pub fn remount(&self) {
        self.unmount();
        self.mount();
    }

    /// Mounted again, after what is below it failed.
    pub fn repair(&self) {
        self.unmount();
        // 1: something was repaired.
        let code = Command::new("e2fsck").args(["-fy"]).arg(&self.device).output().unwrap();
        assert!(matches!(code.status.code(), Some(0 | 1)), "{code:?}");
        self.mount();
    }
}

/// A disk that stands still until it is thawed. Another process keeps it so: whoever touches the
/// disk meanwhile hangs, and might be this one. That process thaws it also when this one is gone,
/// and in the end by itself, because a frozen disk cannot even be unmounted.
pub struct Frozen {
    keeper: Child,
}

impl Frozen {
    /// No test takes so long; one that does fails when it thaws.
    const LIMIT_SECONDS: u64 = 300;

    /// The disk stands still when this returns.
    pub fn new(at: &Path) -> Frozen {
        // The end of its input is the order to thaw; read(1) says more than 128 for a time-out.
        let script = format!(
            "trap '' INT TERM HUP PIPE
            fsfreeze -f \"$0\" || exit 1
            echo frozen
            read -r -t {}
            late=$(($? > 128))
            fsfreeze -u \"$0\" && exit $late",
            Frozen::LIMIT_SECONDS
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).arg(at).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "frozen\n", "{}", at.display());
        Frozen { keeper }
    }

    /// The disk goes on. It must have stood still until now.
    pub fn thaw(mut self) {
        let status = self.end();
        assert!(status.success(), "thawed before it was time: {status}");
    }

    fn end(&mut self) -> ExitStatus {
        drop(self.keeper.stdin.take());
        self.keeper.wait().unwrap()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.end();
    }
}

/// A disk in memory.
pub struct Memory<'a>(pub &'a Path);

impl Memory<'_> {
    pub fn new(at: &Path, megabytes: u64) -> Memory<'_> {
        fs::create_dir_all(at).unwrap();
        let size = format!("size={megabytes}m");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(at));
        Memory(at)
    }

    /// Takes all of its space.
    pub fn fill(&self) {
        // Fails in the end.
        let _ = std::io::copy(
            &mut std::io::repeat(1),
            &mut fs::File::create(self.0.join("filler")).unwrap(),
        );
    }

    /// Gives it back.
    pub fn empty(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at).status();
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

/// Takes all space of the disk on which a new file is.
pub fn fill(filler: &Path) {
    let disk = statvfs(filler.parent().unwrap()).unwrap();
    let (file, mut len) = (fs::File::create(filler).unwrap(), 0);
    let mut step = disk.f_bfree * disk.f_frsize;
    // Others take and give space meanwhile.
    while step >= disk.f_frsize {
        match fallocate(&file, FallocateFlags::empty(), len, step) {
            Ok(()) => len += step,
            Err(_) => step /= 2,
        }
    }
}

/// Moves an OST of a data directory that nobody serves to another disk.
pub fn move_ost(data: &Path, ost: u16, to: &Path) {
    let at = data.join(format!("ost{ost}"));
    let moved = to.join(format!("ost{ost}"));
    run(Command::new("cp").arg("-a").arg(&at).arg(&moved));
    fs::remove_dir_all(&at).unwrap();
    symlink(&moved, &at).unwrap();
}
