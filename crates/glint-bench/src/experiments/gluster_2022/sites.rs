//! Places where the experiment runs when nobody names any: servers and mounts that are made for it,
//! beside a directory of the file system that their OSTs are on.

use super::super::served_cluster::ServedCluster;
use super::super::space;
use super::super::stage::Stage;
use crate::smallfile::{BenchedDir, Workload};
use serde_json::Value;
use std::path::Path;

/// Copies that are compared.
const COPIES: [u64; 2] = [1, 3];
/// What a file takes beside its content: an inode and a block of attributes for each copy, its part
/// of a directory, its entry in the metadata and in their journals.
const FILE_BYTES: u64 = 8 << 10;

/// A file system of the experiment.
pub(super) struct Site {
    /// Its mount.
    pub directory: BenchedDir,
    /// Addresses of its servers, that of the MDS first.
    pub servers: Vec<String>,
}

/// Bytes that the experiment has on its disk at most: all copies of all files after an append.
pub(super) fn needed(workload: &Workload) -> u64 {
    let Workload { threads, files, bytes, .. } = *workload;
    let each = 2 * (bytes as u64).next_multiple_of(4096) + FILE_BYTES;
    threads.saturating_mul(files).saturating_mul(each).saturating_mul(COPIES[1])
}

/// Says what the experiment needs below `data`; an error if that is not there.
pub(super) fn check_space(data: &Path, workload: &Workload) -> Result<(), String> {
    space::check(data, needed(workload), "say --data DIR on another disk, or fewer --files")
}

/// Serves and mounts a file system with one copy and one with three, each on this many servers.
pub(super) fn serve(stage: &mut Stage, servers: u64) -> Result<Vec<Site>, String> {
    COPIES.into_iter().map(|copies| site(stage, servers, copies)).collect()
}

fn site(stage: &mut Stage, servers: u64, copies: u64) -> Result<Site, String> {
    let at = format!("copies-{copies}");
    let cluster = ServedCluster::serve(stage, &at, servers, copies)?;
    let path = stage.mount_remote(&at, &cluster.mds.address, false)?;
    let name = if copies == 1 { "1 copy".into() } else { format!("{copies} copies") };
    Ok(Site { directory: BenchedDir { name, path }, servers: cluster.addresses() })
}

/// Has rows of statistics say which server they are from, if there are several.
pub(super) fn name_server(rows: &mut [Value], number: usize) {
    for row in rows.iter_mut().filter(|row| row["process"] == "server") {
        row["process"] = format!("server {number}").into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_for_all_copies_after_an_append() {
        let workload =
            Workload { threads: 8, files: 10_000, bytes: 64 << 10, fsync: false, cold: true };
        assert_eq!(needed(&workload), 80_000 * (136 << 10) * 3);
    }
}
