//! How full OSTs are, and what else of them decides which files move.

use super::chains::ShownChains;
use crate::cmd::storage::ost::rows;
use crate::target::Target;
use serde_json::Value;
use std::error::Error;

/// Silence from which on an OST has no part in it.
const SILENT_MS: u64 = 2000;

/// Space of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) ost: u16,
    total: u64,
    pub(super) used: u64,
}

impl Disk {
    /// Used share, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        self.used as f64 / self.total.max(1) as f64
    }

    /// Bytes in use if so much of it were.
    pub(super) fn at(&self, share: f64) -> u64 {
        (self.total as f64 * share) as u64
    }
}

/// The OSTs that have part in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disks {
    pub(super) disks: Vec<Disk>,
    /// How many OSTs there are.
    pub(super) count: u16,
    /// Those in chains whose members fail together, where files are to leave these.
    pub(super) crowded: Vec<u16>,
    pub(super) chains: ShownChains,
}

impl Disks {
    /// Asks for the space of all OSTs.
    pub(super) fn ask(target: &Target) -> Result<Disks, Box<dyn Error>> {
        let status: Value = serde_json::from_str(&target.ask("status")?)?;
        if status["server"]["reached"] == false {
            return Err("its server is not reached".into());
        }
        if !status["osses"].is_array() {
            return Err(
                "only administrators are told how much space OSTs have, and only the server \
                        with the MDS knows all"
                    .into(),
            );
        }
        let crowded = status["chains"]["crowded_osts"].as_array().into_iter().flatten();
        let crowded = crowded.filter_map(|ost| ost.as_u64()?.try_into().ok()).collect();
        let chains = ShownChains::of(&status);
        Ok(Disks { crowded, chains, ..Disks::of(&rows(&status)) })
    }

    /// Of rows of `glint ost list`.
    pub(super) fn of(rows: &[Value]) -> Disks {
        let disk = |row: &Value| {
            let has_part = row["drained"] != true
                && row["given_up"] != true
                && row["silent_ms"].as_u64().unwrap_or(0) < SILENT_MS;
            let total = row["total_bytes"].as_u64().filter(|total| has_part && *total > 0)?;
            // What is kept for clients, and kept back, is not used.
            let used = total.saturating_sub(row["free_bytes"].as_u64()?);
            Some(Disk { ost: row["ost"].as_u64()?.try_into().ok()?, total, used })
        };
        let disks = rows.iter().filter_map(disk).collect();
        let (count, crowded, chains) = (rows.len() as u16, Vec::new(), ShownChains::default());
        Disks { disks, count, crowded, chains }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Disk> {
        self.disks.iter()
    }

    /// Each OST with what it is in `after`.
    pub(super) fn pairs<'a>(
        &'a self,
        after: &'a Disks,
    ) -> impl Iterator<Item = (&'a Disk, &'a Disk)> {
        after.iter().filter_map(|is| Some((self.iter().find(|was| was.ost == is.ost)?, is)))
    }

    /// Used share of all together.
    pub(super) fn mean(&self) -> f64 {
        let sum = |of: fn(&Disk) -> u64| self.iter().map(of).sum::<u64>() as f64;
        sum(|disk| disk.used) / sum(|disk| disk.total).max(1.0)
    }

    /// Whether each is as close to the mean as is wanted.
    pub(super) fn are_within(&self, within: f64) -> bool {
        let mean = self.mean();
        self.iter().all(|disk| (disk.share() - mean).abs() <= within)
    }

    /// OSTs that files leave, the fullest first.
    pub(super) fn donors(&self, within: f64) -> Vec<u16> {
        if self.are_within(within) {
            return Vec::new();
        }
        let mean = self.mean();
        let above = |least: f64| -> Vec<Disk> {
            self.iter().filter(|disk| disk.share() > least).copied().collect()
        };
        let mut donors = above(mean + within);
        if donors.is_empty() {
            // One is too empty, while none of the others is too full.
            donors = above(mean);
        }
        donors.sort_by(|one, other| other.share().total_cmp(&one.share()));
        donors.iter().map(|disk| disk.ost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_osts_that_are_there_have_part() {
        let row = |ost, word, value: Value| {
            let mut row = json!({ "ost": ost, "total_bytes": 100, "free_bytes": 40 });
            row[word] = value;
            row
        };
        let rows = [
            row(0, "drained", json!(false)),
            row(1, "drained", json!(true)),
            row(2, "given_up", json!(true)),
            row(3, "silent_ms", json!(3000)),
            row(4, "total_bytes", Value::Null),
        ];
        let disks = Disks::of(&rows);
        assert_eq!(disks.iter().map(|disk| (disk.ost, disk.used)).collect::<Vec<_>>(), [(0, 60)]);
        assert_eq!(disks.count, 5);
    }
}
