//! Several servers of one file system, with chains over them.

use super::stage::{Served, Stage};
use crate::smallfile::Asked;
use serde_json::Value;
use std::time::{Duration, Instant};

/// How long chains over the OSTs of new servers may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often is asked whether chains are whole.
const LOOK: Duration = Duration::from_millis(20);

/// Servers of one file system.
pub(crate) struct ServedCluster {
    /// The server with the MDS; it has OSTs, too.
    pub mds: Served,
    /// The other servers, each of one OST, in the order of the numbers of these.
    pub osses: Vec<Served>,
    /// What their names in the stage begin with.
    at: String,
}

impl ServedCluster {
    /// Serves a file system with so many copies on so many servers. With one server copies are on
    /// OSTs of it, each a failure domain.
    pub(crate) fn serve(
        stage: &mut Stage,
        at: &str,
        servers: u64,
        copies: u64,
    ) -> Result<ServedCluster, String> {
        let osts = if servers > 1 { 1 } else { copies };
        let numbers = [osts.to_string(), copies.to_string()];
        let options = ["--osts", &numbers[0], "--replicas", &numbers[1]];
        let mds = stage.serve(&format!("{at}-server"), "", &options)?;
        let mut cluster = ServedCluster { mds, osses: Vec::new(), at: at.to_owned() };
        for index in 1..servers {
            let oss = stage.serve_osts(&cluster.name(index), &cluster.mds)?;
            cluster.osses.push(oss);
        }
        if copies > 1 {
            cluster.wait_until_whole(PATIENCE, &|| false)?;
        }
        Ok(cluster)
    }

    /// Name in the stage of the server that has OST `index`, where each server has one OST.
    pub(crate) fn name(&self, index: u64) -> String {
        match index {
            0 => format!("{}-server", self.at),
            index => format!("{}-server-{}", self.at, index + 1),
        }
    }

    /// Addresses of all servers, that of the MDS first.
    pub(crate) fn addresses(&self) -> Vec<String> {
        let all = std::iter::once(&self.mds).chain(&self.osses);
        all.map(|server| server.address.clone()).collect()
    }

    /// The table of chains, as `glint status --json` shows it.
    pub(crate) fn chains(&self) -> Result<Value, String> {
        Ok(self.mds.ask("status")?["chains"].take())
    }

    /// Waits until all members of all chains serve.
    pub(crate) fn wait_until_whole(
        &self,
        patience: Duration,
        asked: Asked<'_>,
    ) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let chains = self.chains()?;
            if is_whole(&chains) {
                return Ok(());
            }
            if asked() {
                return Err("interrupted".into());
            }
            if begun.elapsed() > patience {
                return Err(format!("chains are not whole after {patience:?}: {chains}"));
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether there are chains, and all members of all of them serve.
pub(crate) fn is_whole(chains: &Value) -> bool {
    let is_some = chains["count"].as_u64().is_some_and(|count| count > 0);
    is_some && chains["count"] == chains["whole"]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn chains_are_whole_if_there_are_some_and_all_are() {
        for (count, whole, is) in [(0, 0, false), (48, 47, false), (48, 48, true)] {
            assert_eq!(is_whole(&json!({"count": count, "whole": whole})), is, "{count}");
        }
    }
}
