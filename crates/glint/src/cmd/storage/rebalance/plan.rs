//! Which files move from which OST to which.
//!
//! Invariants:
//! - No move makes its source emptier, or its destination fuller, than the mean of all.
//! - A file with copies keeps those of its OSTs that it does not leave, where chains allow it.

use crate::cmd::storage::drain::{Placed, held};
use crate::cmd::storage::moves::Move;
use crate::cmd::storage::ost::rows;
use crate::signals::Stop;
use crate::target::Target;
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::error::Error;

/// Silence from which on an OST has no part in it.
const SILENT_MS: u64 = 2000;

/// Space of an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    pub(super) ost: u16,
    total: u64,
    used: u64,
}

impl Disk {
    /// Used share, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        self.used as f64 / self.total.max(1) as f64
    }

    /// Bytes in use if so much of it were.
    fn at(&self, share: f64) -> u64 {
        (self.total as f64 * share) as u64
    }
}

/// The OSTs that have part in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disks {
    disks: Vec<Disk>,
    /// How many OSTs there are.
    count: u16,
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
        Ok(Disks::of(&rows(&status)))
    }

    /// Of rows of `glint ost list`.
    fn of(rows: &[Value]) -> Disks {
        let disk = |row: &Value| {
            let has_part = row["drained"] != true
                && row["given_up"] != true
                && row["silent_ms"].as_u64().unwrap_or(0) < SILENT_MS;
            let total = row["total_bytes"].as_u64().filter(|total| has_part && *total > 0)?;
            // What is kept for clients, and kept back, is not used.
            let used = total.saturating_sub(row["free_bytes"].as_u64()?);
            Some(Disk { ost: row["ost"].as_u64()?.try_into().ok()?, total, used })
        };
        Disks { disks: rows.iter().filter_map(disk).collect(), count: rows.len() as u16 }
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
    fn mean(&self) -> f64 {
        let sum = |of: fn(&Disk) -> u64| self.iter().map(of).sum::<u64>() as f64;
        sum(|disk| disk.used) / sum(|disk| disk.total).max(1.0)
    }

    /// Whether each is as close to the mean as is wanted.
    pub(super) fn are_within(&self, within: f64) -> bool {
        let mean = self.mean();
        self.iter().all(|disk| (disk.share() - mean).abs() <= within)
    }

    /// OSTs that files leave, the fullest first.
    fn donors(&self, within: f64) -> Vec<u16> {
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

    fn get_mut(&mut self, ost: u16) -> Option<&mut Disk> {
        self.disks.iter_mut().find(|disk| disk.ost == ost)
    }
}

/// Looks for files whose move brings all OSTs within a share of the mean, without those that `stay`.
pub(super) fn plan(
    target: &Target,
    disks: &Disks,
    within: f64,
    stay: &HashSet<u64>,
    stop: &Stop,
) -> Result<Vec<Move>, Box<dyn Error>> {
    let mut planner = Planner::new(disks, within);
    for from in disks.donors(within) {
        let mut files = held(target, from, stop)?.files;
        files.retain(|file| !stay.contains(&file.ino));
        planner.leave(from, files);
    }
    Ok(planner.moves)
}

/// What is planned so far.
struct Planner {
    /// As they will be.
    disks: Disks,
    mean: f64,
    /// Distance from the mean at which nothing more is planned: half of what is wanted, so that what
    /// is written meanwhile does not undo it.
    enough: f64,
    /// OSTs that may get files: emptier than the mean.
    emptier: BTreeSet<u16>,
    chosen: HashSet<u64>,
    moves: Vec<Move>,
}

impl Planner {
    fn new(disks: &Disks, within: f64) -> Planner {
        let mean = disks.mean();
        let emptier =
            disks.iter().filter(|disk| disk.share() < mean).map(|disk| disk.ost).collect();
        let disks = disks.clone();
        let (chosen, moves) = (HashSet::new(), Vec::new());
        Planner { disks, mean, enough: within / 2.0, emptier, chosen, moves }
    }

    /// Has files leave an OST until it is as full as the mean, or all are close enough.
    fn leave(&mut self, from: u16, mut files: Vec<Placed>) {
        files.sort_by_key(|file| (Reverse(file.bytes), file.ino));
        for file in files {
            let Some(disk) = self.disks.get_mut(from) else { return };
            let excess = disk.used.saturating_sub(disk.at(self.mean));
            // Empty files give no room.
            if excess == 0 || file.bytes == 0 || self.disks.are_within(self.enough) {
                return;
            }
            if file.bytes > excess || self.chosen.contains(&file.ino) {
                continue;
            }
            let Some((words, to)) = self.place(from, &file) else { continue };
            for (ost, gets) in [(from, false), (to, true)] {
                if let Some(disk) = self.disks.get_mut(ost) {
                    disk.used = match gets {
                        true => disk.used + file.bytes,
                        false => disk.used.saturating_sub(file.bytes),
                    };
                }
            }
            self.chosen.insert(file.ino);
            let (ino, bytes, name) = (file.ino, file.bytes, file.name());
            self.moves.push(Move { ino, bytes, name, words, way: Some((from, to)) });
        }
    }

    /// Where a file may go that leaves an OST: how that is asked for, and the OST that gets it.
    fn place(&self, from: u16, file: &Placed) -> Option<(Vec<String>, u16)> {
        let mut room: Vec<&Disk> = self
            .disks
            .iter()
            .filter(|disk| self.emptier.contains(&disk.ost) && !file.osts.contains(&disk.ost))
            .filter(|disk| disk.used + file.bytes <= disk.at(self.mean))
            .collect();
        room.sort_by(|one, other| one.share().total_cmp(&other.share()));
        let to = room.first()?.ost;
        let all_with_room: BTreeSet<u16> = room.iter().map(|disk| disk.ost).collect();
        if file.stripes > 1 {
            // Others of its stripes move with it: it needs as many OSTs in a row.
            let is_wide_enough = |osts: &BTreeSet<u16>| self.in_a_row(osts) >= file.stripes;
            return is_wide_enough(&all_with_room)
                .then(|| (vec![self.avoiding_all_but(&all_with_room)], to));
        }
        let stays: BTreeSet<u16> = file.osts.iter().copied().filter(|ost| *ost != from).collect();
        let mut words = vec![self.avoiding_all_but(&(&stays | &BTreeSet::from([to])))];
        if !stays.is_empty() {
            // No chain may lie over just these.
            words.push(self.avoiding_all_but(&(&stays | &all_with_room)));
        }
        Some((words, to))
    }

    fn avoiding_all_but(&self, osts: &BTreeSet<u16>) -> String {
        let others = (0..self.disks.count).filter(|ost| !osts.contains(ost));
        let others: Vec<String> = others.map(|ost| ost.to_string()).collect();
        format!("avoid={}", others.join(","))
    }

    /// How many of these OSTs follow each other at most; behind the last comes the first.
    fn in_a_row(&self, osts: &BTreeSet<u16>) -> u64 {
        let (mut longest, mut row) = (0, 0);
        let count = self.disks.count;
        for ost in (0..count).chain(0..count) {
            row = if osts.contains(&ost) { row + 1 } else { 0 };
            longest = row.max(longest);
        }
        longest.min(u64::from(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn disks(used: &[u64]) -> Disks {
        let row = |(ost, used): (usize, &u64)| json!({ "ost": ost, "total_bytes": 1000, "free_bytes": 1000 - used });
        Disks::of(&used.iter().enumerate().map(row).collect::<Vec<_>>())
    }

    fn file(ino: u64, bytes: u64, stripes: u64, osts: &[u16]) -> Placed {
        Placed::for_test(ino, bytes, stripes, osts.to_vec())
    }

    fn used(planner: &Planner) -> Vec<u64> {
        planner.disks.iter().map(|disk| disk.used).collect()
    }

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

    #[test]
    fn the_fuller_give_to_the_emptier_and_none_goes_beyond_the_mean() {
        let all = disks(&[800, 700, 0]);
        assert!(!all.are_within(0.05) && all.are_within(0.51));
        assert_eq!(all.donors(0.05), [0, 1]);
        let mut planner = Planner::new(&all, 0.05);
        for from in [0, 1] {
            let files = (0..100).map(|n| file(u64::from(from) * 100 + n, 1 + n, 1, &[from]));
            planner.leave(from, files.collect());
        }
        let used = used(&planner);
        assert!(planner.disks.are_within(0.025), "{used:?}");
        assert!(used[0] >= 500 && used[1] >= 500 && used[2] <= 500, "{used:?}");
        assert!(planner.moves.iter().all(|one| one.words == ["avoid=0,1"]));
        assert!(disks(&[500, 520, 540]).donors(0.05).is_empty());
        assert_eq!(disks(&[600, 600, 600, 600, 500]).donors(0.05).len(), 4, "one is too empty");
    }

    #[test]
    fn copies_stay_on_the_other_osts_and_stripes_need_osts_in_a_row() {
        let mut planner = Planner::new(&disks(&[900, 300, 900, 100, 100]), 0.05);
        planner.leave(0, vec![file(1, 50, 1, &[0, 2]), file(2, 40, 2, &[]), file(3, 30, 3, &[])]);
        let words: Vec<_> = planner.moves.iter().map(|one| (one.ino, one.words.clone())).collect();
        let of = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            words,
            [(1, of(&["avoid=0,1,4", "avoid=0"])), (2, of(&["avoid=0,2"])),],
            "three in a row have no room"
        );
        // A file that is listed by two OSTs moves once.
        planner.leave(2, vec![file(1, 50, 1, &[0, 2])]);
        assert_eq!(planner.moves.len(), 2);
    }
}
