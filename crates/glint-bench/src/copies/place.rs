//! Three servers of one OST each, with three copies of everything, and a mount.

use crate::experiments::served_cluster::{ServedCluster, is_whole};
use crate::experiments::stage::Stage;
use crate::smallfile::Asked;
use crate::unwritten::Unwritten;
use glint::program;
use rustix::fs::XattrFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Servers, and copies of a file.
pub(super) const SERVERS: u64 = 3;
/// How long members may take to have everything.
pub(super) const PATIENCE: Duration = Duration::from_secs(1800);
/// How long servers are left alone after files were made: clients have brought them to stable
/// storage then, and servers do not take them for changed just before a crash.
const SETTLE: Duration = Duration::from_secs(3);
/// How often an end is asked for meanwhile.
const LOOK: Duration = Duration::from_millis(50);

/// Servers and a mount, all gone in the end.
pub(super) struct CopiesPlace {
    /// Where they are.
    pub stage: Stage,
    /// The servers.
    pub cluster: ServedCluster,
    /// The mount.
    pub mount: PathBuf,
}

impl CopiesPlace {
    /// Starts it all below `data`.
    pub(super) fn new(data: &Path) -> Result<CopiesPlace, String> {
        let mut stage = Stage::apart(data)?;
        let cluster = ServedCluster::serve(&mut stage, "copies", SERVERS, SERVERS)?;
        let mount = stage.mount_remote("mount", &cluster.mds.address, false)?;
        Ok(CopiesPlace { stage, cluster, mount })
    }

    /// Makes a directory of the mount whose files have this layout.
    pub(super) fn directory(&self, name: &str, layout: &str) -> Result<PathBuf, String> {
        let path = self.mount.join(name);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        rustix::fs::setxattr(&path, "glint.layout", layout.as_bytes(), XattrFlags::empty())
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Kills the server of an OST, which is not that of the MDS.
    pub(super) fn kill(&mut self, ost: usize) {
        self.stage.kill(&self.cluster.osses[ost - 1]);
    }

    /// Has it stand still, or go on.
    pub(super) fn halt(&self, ost: usize, halts: bool) {
        self.stage.halt(&self.cluster.osses[ost - 1], halts);
    }

    /// Stops it as an administrator does.
    pub(super) fn stop(&mut self, ost: usize) {
        self.stage.stop(&self.cluster.osses[ost - 1]);
    }

    /// Starts it again.
    pub(super) fn start_again(&mut self, ost: usize) -> Result<(), String> {
        let name = self.cluster.name(ost as u64);
        let ended = &self.cluster.osses[ost - 1];
        let served = self.stage.serve_osts_again(&name, &self.cluster.mds, ended)?;
        self.cluster.osses[ost - 1] = served;
        Ok(())
    }

    /// Directory of an OST.
    pub(super) fn ost(&self, ost: usize) -> Result<PathBuf, String> {
        Ok(self.stage.data(&self.cluster.name(ost as u64))?.join("ost0"))
    }

    /// Data that servers have to write: all of them have theirs in one file system.
    pub(super) fn unwritten(&self) -> Result<Unwritten, String> {
        Ok(Unwritten::In(vec![self.stage.data(&self.cluster.name(0))?]))
    }

    /// Waits until chains go on without a member that has left.
    pub(super) fn wait_until_missed(&self, asked: Asked<'_>) -> Result<(), String> {
        while is_whole(&self.cluster.chains()?) {
            sleep(LOOK, asked)?;
        }
        Ok(())
    }

    /// Waits until servers have nothing left to do for what was made, and all copies are there.
    pub(super) fn settle(&self, asked: Asked<'_>) -> Result<(), String> {
        self.unwritten()?.write()?;
        sleep(SETTLE, asked)?;
        self.cluster.wait_until_whole(PATIENCE, asked)
    }
}

impl Drop for CopiesPlace {
    fn drop(&mut self) {
        // While there are servers for what it has still to send.
        self.stage.unmount(&self.mount);
    }
}

/// Sleeps, unless an end is asked for.
pub(super) fn sleep(time: Duration, asked: Asked<'_>) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        if asked() {
            return Err("interrupted".into());
        }
        std::thread::sleep(LOOK.min(time));
    }
    Ok(())
}

/// Runs `glint` with these words.
pub(super) fn glint(words: &[&str]) -> Result<Output, String> {
    let output = Command::new(program::path("glint")).args(words).output();
    output.map_err(|error| program::not_started("glint", &error))
}
