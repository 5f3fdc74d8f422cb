//! Servers and mounts of the experiment, each within its limit of memory, and the files on the local
//! file system beside them.

use super::material;
use super::programs::memory;
use super::rows::ServerVariant;
use super::{ScanAmounts, ScanSetting};
use crate::experiments::memory::MemoryGroup;
use crate::experiments::stage::{Served, Stage};
use crate::smallfile::Asked;
use crate::unwritten::Unwritten;
use glint::program;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

/// Where the disk is mounted, in the stage.
const DISK: &str = "disk";
/// Mount points.
const MOUNT: &str = "mnt";
const STREAM_MOUNT: &str = "streams";
/// Drops what is cached, if root writes to it.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";
/// Options of each server: nothing reads data by itself while it is measured.
const SERVE: [&str; 2] = ["--scrub-bandwidth", "0"];

/// Groups that limit memory.
#[derive(Default)]
pub(super) struct ScanGroups {
    /// Of servers.
    pub servers: Option<Rc<MemoryGroup>>,
    /// Of a mount that is scanned, and of what scans it.
    pub client: Option<Rc<MemoryGroup>>,
    /// Of scans and streams of the local file system.
    pub local: Option<Rc<MemoryGroup>>,
}

/// All places.
pub(super) struct Places {
    /// Processes and the disk; the first that is dropped: the groups are empty after that.
    stage: Stage,
    /// Limits.
    pub groups: ScanGroups,
    /// Directory of the local files.
    pub local: PathBuf,
    /// Help of `glint serve`.
    help: String,
    /// See [`super::figures::AllFigures::is_direct`].
    pub is_direct: Option<bool>,
}

/// A mount, and its process.
pub(super) struct ScannedMount {
    /// Where it is.
    pub at: PathBuf,
    /// Number of its process.
    pub pid: u32,
}

/// Writes this, and drops all that the machine has cached and that is not dirty.
pub(crate) fn drop_caches(unwritten: &Unwritten) -> Result<(), String> {
    unwritten.write()?;
    std::fs::write(DROP_CACHES, "3").map_err(|e| format!("{DROP_CACHES}: {e}"))
}

impl Places {
    /// Makes disk and groups.
    pub(super) fn new(setting: &ScanSetting) -> Result<Places, String> {
        let group = |name, bytes: Option<u64>| {
            bytes.map(|bytes| MemoryGroup::new(name, bytes).map(Rc::new)).transpose()
        };
        let groups = ScanGroups {
            servers: group("servers", setting.memory)?,
            client: group("client", setting.client_memory)?,
            local: group("local", setting.memory)?,
        };
        let mut stage = Stage::apart(&setting.data)?;
        // More than is needed: a file system is slow when it is nearly full.
        let bytes = setting.amounts.disk_bytes().saturating_mul(3) / 2;
        let is_direct = match setting.is_plain {
            true => None,
            false => Some(stage.add_disk(DISK, bytes)?),
        };
        let local = stage.path(&format!("{DISK}/local"))?;
        let help = Command::new(program::path("glint")).args(["serve", "--help"]).output();
        let help = help.map_err(|error| program::not_started("glint", &error))?.stdout;
        let help = String::from_utf8_lossy(&help).into_owned();
        Ok(Places { stage, groups, local, help, is_direct })
    }

    /// Makes the files at both places; servers have no limit meanwhile.
    pub(super) fn make(&mut self, amounts: &ScanAmounts, asked: Asked<'_>) -> Result<(), String> {
        material::make(&self.local, "local", amounts, asked)?;
        let served = self.stage.serve(&format!("{DISK}/server"), "", &SERVE)?;
        let mount = self.stage.mount_with(MOUNT, &served.address, "")?;
        material::make(&mount, "glint", amounts, asked)?;
        self.stage.unmount(&mount);
        self.stage.stop(&served);
        drop_caches(&Unwritten::Anywhere)
    }

    /// Options that a variant of the servers has.
    pub(super) fn options(&self, variant: &ServerVariant) -> Vec<&'static str> {
        variant.options_in(&self.help)
    }

    /// Starts the server, with nothing in the caches of the machine.
    pub(super) fn serve(&mut self, variant: &ServerVariant) -> Result<Served, String> {
        drop_caches(&Unwritten::Anywhere)?;
        self.stage.join(self.groups.servers.as_ref());
        let mut options = SERVE.to_vec();
        options.extend(self.options(variant));
        let served = self.stage.serve(&format!("{DISK}/server"), "", &options);
        self.stage.join(None);
        served
    }

    /// Ends the server.
    pub(super) fn stop(&mut self, served: &Served) {
        self.stage.stop(served);
    }

    /// Mounts for a scan, within the limit of a client.
    pub(super) fn mount(&mut self, served: &Served) -> Result<ScannedMount, String> {
        self.stage.join(self.groups.client.as_ref());
        let mounted = self.stage.mount_with(MOUNT, &served.address, "");
        self.stage.join(None);
        self.with_pid(mounted?)
    }

    /// Mounts for streams: another client, which keeps none of what it reads.
    pub(super) fn mount_streams(&mut self, served: &Served) -> Result<ScannedMount, String> {
        let mounted = self.stage.mount_with(STREAM_MOUNT, &served.address, "direct_io")?;
        self.with_pid(mounted)
    }

    fn with_pid(&self, at: PathBuf) -> Result<ScannedMount, String> {
        let pid = self.stage.mount_pid(&at).ok_or("the mount has ended")?;
        Ok(ScannedMount { at, pid })
    }

    /// Ends a mount.
    pub(super) fn unmount(&mut self, mount: &ScannedMount) {
        self.stage.unmount(&mount.at);
    }
}

impl ScannedMount {
    /// Bytes of memory of its process now.
    pub(super) fn resident(&self) -> u64 {
        memory(self.pid, "VmRSS").unwrap_or(0)
    }

    /// Inodes that it has cached.
    pub(super) fn cached_inodes(&self) -> Option<u64> {
        let mut command = Command::new(program::path("glint"));
        let output = command.args(["status", "--json"]).arg(&self.at).output().ok()?;
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status["client"]["cached_inodes"].as_u64()
    }
}

/// A directory as a word of a command.
pub(super) fn word(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
