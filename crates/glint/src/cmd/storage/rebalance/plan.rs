//! Which files move from which OST to which.
//!
//! Invariants:
//! - No move makes an OST that it takes from emptier, or one that it gives to fuller, than the mean of
//!   all: with all stripes of a file, and with all copies that move.
//! - A file with copies keeps those of its OSTs that it does not leave, where chains allow it; but none
//!   of those that have no part, where no new chain is laid.
//! - Files whose copies fail together, and need not, move before any other, whatever space there is.

use super::chains::BytesByOst;
use super::disks::{Disk, Disks};
use crate::cmd::storage::drain::{Placed, held};
use crate::cmd::storage::moves::Move;
use crate::signals::Stop;
use crate::target::Target;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::error::Error;

/// Looks for files whose move brings all OSTs within a share of the mean, without those that `stay`.
pub(super) fn plan(
    target: &Target,
    disks: &Disks,
    within: f64,
    stay: &HashSet<u64>,
    stop: &Stop,
) -> Result<Vec<Move>, Box<dyn Error>> {
    let moves = apart(target, disks, stay, stop)?;
    if !moves.is_empty() {
        // How full OSTs are is looked at after that.
        return Ok(moves);
    }
    let mut planner = Planner::new(disks, within);
    for from in disks.donors(within) {
        let mut files = held(target, from, stop)?.files;
        files.retain(|file| !stay.contains(&file.ino));
        planner.leave(from, files);
    }
    Ok(planner.moves)
}

/// Files whose copies fail together, and could lie elsewhere: they leave their chains first.
fn apart(
    target: &Target,
    disks: &Disks,
    stay: &HashSet<u64>,
    stop: &Stop,
) -> Result<Vec<Move>, Box<dyn Error>> {
    let mut files = BTreeMap::new();
    for ost in &disks.crowded {
        let held = held(target, *ost, stop)?.files.into_iter();
        let crowded = held.filter(|file| file.crowded && !stay.contains(&file.ino));
        files.extend(crowded.map(|file| (file.ino, file)));
    }
    Ok(files.values().filter_map(|file| move_apart(disks, file)).collect())
}

/// Has a file laid out as it is, over as many chains: those whose members fail together are not among
/// them. It is listed at the fullest OST that it may leave.
fn move_apart(disks: &Disks, file: &Placed) -> Option<Move> {
    let share = |ost: u16| disks.iter().find(|disk| disk.ost == ost).map_or(1.0, Disk::share);
    let osts = file.parts.keys().copied();
    Some(Move {
        ino: file.ino,
        bytes: file.parts.values().sum(),
        name: file.name(),
        from: osts.max_by(|one, other| share(*one).total_cmp(&share(*other)))?,
        words: vec![format!("stripe_count={}", file.stripes)],
        to: None,
    })
}

/// What is planned so far.
struct Planner {
    /// As they will be.
    disks: Disks,
    mean: f64,
    /// Distance from the mean at which nothing more is planned: half of what is wanted, so that what
    /// is written meanwhile does not undo it.
    enough: f64,
    chosen: HashSet<u64>,
    moves: Vec<Move>,
}

/// Where a file is to go.
struct Place {
    /// How that is asked for.
    words: Vec<String>,
    /// Bytes that each OST gets.
    gets: BTreeMap<u16, u64>,
    /// Bytes that each OST gives.
    gives: BTreeMap<u16, u64>,
}

impl Planner {
    fn new(disks: &Disks, within: f64) -> Planner {
        let (mean, disks) = (disks.mean(), disks.clone());
        let (chosen, moves) = (HashSet::new(), Vec::new());
        Planner { disks, mean, enough: within / 2.0, chosen, moves }
    }

    /// Has files leave an OST until it is as full as the mean, or all are close enough.
    fn leave(&mut self, from: u16, mut files: Vec<Placed>) {
        files.sort_by_key(|file| (Reverse(file.on(from)), file.ino));
        for file in files {
            // Empty files give no room.
            if self.room(from) >= 0 || file.on(from) == 0 || self.disks.are_within(self.enough) {
                return;
            }
            if self.chosen.contains(&file.ino) {
                continue;
            }
            let Some(Place { words, gets, gives }) = self.place(from, &file) else { continue };
            let Some(to) = self.emptiest(gets.keys().copied()) else { continue };
            for disk in &mut self.disks.disks {
                let of = |bytes: &BTreeMap<u16, u64>| bytes.get(&disk.ost).copied().unwrap_or(0);
                disk.used = (disk.used + of(&gets)).saturating_sub(of(&gives));
            }
            self.chosen.insert(file.ino);
            let bytes = gives.values().sum::<u64>();
            self.moves.push(Move {
                ino: file.ino,
                bytes,
                name: file.name(),
                words,
                from,
                to: Some(to),
            });
        }
    }

    /// Bytes that an OST can get until it is as full as the mean; those that it has to give are
    /// negative. None if it has no part.
    fn room_of(&self, ost: u16) -> Option<i128> {
        let disk = self.disks.iter().find(|disk| disk.ost == ost)?;
        Some(i128::from(disk.at(self.mean)) - i128::from(disk.used))
    }

    /// See [`Planner::room_of`]; an OST without part has nothing to give.
    fn room(&self, ost: u16) -> i128 {
        self.room_of(ost).unwrap_or(0)
    }

    fn share(&self, ost: u16) -> f64 {
        self.disks.iter().find(|disk| disk.ost == ost).map_or(1.0, Disk::share)
    }

    fn emptiest(&self, osts: impl Iterator<Item = u16>) -> Option<u16> {
        osts.min_by(|one, other| self.share(*one).total_cmp(&self.share(*other)))
    }

    /// Whether no OST is on the other side of the mean after such a move.
    fn fits(&self, gets: &BTreeMap<u16, u64>, gives: &BTreeMap<u16, u64>) -> bool {
        let of =
            |bytes: &BTreeMap<u16, u64>, ost| i128::from(bytes.get(&ost).copied().unwrap_or(0));
        gets.keys().chain(gives.keys()).all(|ost| {
            let more = of(gets, *ost) - of(gives, *ost);
            match self.room_of(*ost) {
                Some(room) if more > 0 => more <= room,
                Some(room) if more < 0 => more >= room,
                Some(_) => true,
                // Files may leave one that is drained, or away, and none is given to it.
                None => more <= 0,
            }
        })
    }

    /// Where a file may go that leaves an OST.
    fn place(&self, from: u16, file: &Placed) -> Option<Place> {
        match (file.stripes, file.copies) {
            (0 | 1, _) => self.place_copies(from, file),
            (_, 0 | 1) => self.place_stripes(from, file),
            _ => self.place_chains(from, file),
        }
    }

    /// The file itself moves, or one of its copies; with those that are on OSTs without part.
    fn place_copies(&self, from: u16, file: &Placed) -> Option<Place> {
        let bytes = file.on(from);
        let has_part = |ost: u16| self.disks.iter().any(|disk| disk.ost == ost);
        let (stay, leave): (BTreeSet<u16>, BTreeSet<u16>) =
            file.parts.keys().partition(|ost| **ost != from && has_part(**ost));
        let gives: BTreeMap<u16, u64> = leave.iter().map(|ost| (*ost, file.on(*ost))).collect();
        let has_room = |ost: &u16| !file.parts.contains_key(ost) && self.room(*ost) >= bytes.into();
        let mut room: Vec<u16> = self.disks.iter().map(|disk| disk.ost).filter(has_room).collect();
        room.sort_by(|one, other| self.share(*one).total_cmp(&self.share(*other)));
        let to: BTreeSet<u16> = room.get(..gives.len())?.iter().copied().collect();
        let gets = to.iter().map(|ost| (*ost, bytes)).collect();
        if !self.fits(&gets, &gives) {
            return None;
        }
        let mut words = vec![self.avoiding_all_but(&(&stay | &to))];
        if file.copies > 1 {
            // No chain may lie over just these.
            let all_with_room = room.into_iter().collect();
            words.push(self.avoiding_all_but(&(&stay | &all_with_room)));
            words.dedup();
        }
        Some(Place { words, gets, gives })
    }

    /// All stripes move, to as many OSTs that follow each other; behind the last comes the first.
    fn place_stripes(&self, from: u16, file: &Placed) -> Option<Place> {
        let (count, gives) = (self.disks.count, &file.parts);
        let stripes = u16::try_from(file.stripes).ok().filter(|stripes| *stripes <= count)?;
        let each = gives.values().sum::<u64>().div_ceil(file.stripes);
        let row = |first: u16| (first..first + stripes).map(|ost| ost % count).collect();
        let fits = |osts: &BTreeSet<u16>| {
            let gets: BTreeMap<u16, u64> = osts.iter().map(|ost| (*ost, each)).collect();
            let is_sound = !osts.contains(&from) && self.fits(&gets, gives);
            is_sound.then_some(gets)
        };
        let fullest =
            |gets: &BTreeMap<u16, u64>| gets.keys().map(|ost| self.share(*ost)).fold(0.0, f64::max);
        let all = (0..count).map(row).filter_map(|osts: BTreeSet<u16>| fits(&osts));
        let gets = all.min_by(|one, other| fullest(one).total_cmp(&fullest(other)))?;
        let words = vec![self.avoiding_all_but(&gets.keys().copied().collect())];
        Some(Place { words, gets, gives: gives.clone() })
    }

    /// All stripes move with all copies, to as many chains that follow each other.
    fn place_chains(&self, from: u16, file: &Placed) -> Option<Place> {
        let gives = &file.parts;
        let each = gives.values().sum::<u64>().div_ceil(file.stripes * file.copies);
        let runs = self.disks.chains.runs(file.copies, file.stripes, each);
        // The server takes the first of them from where the number of the file says.
        let wish = usize::try_from(file.ino.checked_rem(runs.len() as u64)?).ok()?;
        let taken = |osts: &BTreeSet<u16>| {
            let mut in_order = runs[wish..].iter().chain(&runs[..wish]).flatten();
            in_order.find(|gets| gets.keys().all(|ost| osts.contains(ost)))
        };
        let on_all = usize::from(self.disks.count);
        let sound = |osts: BTreeSet<u16>| {
            let gets = taken(&osts).filter(|_| osts.len() < on_all)?;
            let is_less = gets.get(&from).copied().unwrap_or(0) < file.on(from);
            (is_less && self.fits(gets, gives)).then_some((osts, gets))
        };
        let fullest =
            |gets: &BytesByOst| gets.keys().map(|ost| self.share(*ost)).fold(0.0, f64::max);
        let osts_of = |gets: &BytesByOst| gets.keys().copied().collect();
        let all: BTreeSet<BTreeSet<u16>> = runs.iter().flatten().map(osts_of).collect();
        let all = all.into_iter().filter_map(sound);
        let (osts, gets) =
            all.min_by(|(_, one), (_, other)| fullest(one).total_cmp(&fullest(other)))?;
        let words = vec![self.avoiding_all_but(&osts)];
        Some(Place { words, gets: gets.clone(), gives: gives.clone() })
    }

    fn avoiding_all_but(&self, osts: &BTreeSet<u16>) -> String {
        let others = (0..self.disks.count).filter(|ost| !osts.contains(ost));
        let others: Vec<String> = others.map(|ost| ost.to_string()).collect();
        format!("avoid={}", others.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::storage::rebalance::chains::ShownChains;
    use serde_json::{Value, json};

    fn disks(used: &[u64]) -> Disks {
        let row = |(ost, used): (usize, &u64)| json!({ "ost": ost, "total_bytes": 1000, "free_bytes": 1000 - used });
        Disks::of(&used.iter().enumerate().map(row).collect::<Vec<_>>())
    }

    fn file(ino: u64, bytes: u64, osts: &[u16]) -> Placed {
        Placed::for_test(ino, bytes, 1, osts.len() as u64, osts)
    }

    fn striped(ino: u64, bytes: u64, osts: &[u16]) -> Placed {
        Placed::for_test(ino, bytes, osts.len() as u64, 1, osts)
    }

    /// What is asked for, by file.
    fn words(planner: &Planner) -> Vec<(u64, Vec<&str>)> {
        let all = planner.moves.iter();
        all.map(|one| (one.ino, one.words.iter().map(String::as_str).collect())).collect()
    }

    fn used(planner: &Planner) -> Vec<u64> {
        planner.disks.iter().map(|disk| disk.used).collect()
    }

    #[test]
    fn the_fuller_give_to_the_emptier_and_none_goes_beyond_the_mean() {
        let all = disks(&[800, 700, 0]);
        assert!(!all.are_within(0.05) && all.are_within(0.51));
        assert_eq!(all.donors(0.05), [0, 1]);
        let mut planner = Planner::new(&all, 0.05);
        for from in [0, 1] {
            let files = (0..100).map(|n| file(u64::from(from) * 100 + n, 1 + n, &[from]));
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
    fn copies_that_fail_together_leave_the_fullest_ost_first() {
        let moved = move_apart(&disks(&[300, 900, 100]), &file(1, 50, &[0, 1])).unwrap();
        assert_eq!((moved.from, moved.bytes, moved.to), (1, 100, None));
        assert_eq!(moved.words, ["stripe_count=1"]);
        let striped = Placed::for_test(1, 50, 4, 2, &[0, 1]);
        let moved = move_apart(&disks(&[300, 900, 100]), &striped).unwrap();
        assert_eq!(moved.words, ["stripe_count=4"], "it keeps its stripes, or stays");
    }

    #[test]
    fn copies_stay_on_the_other_osts_and_move_once() {
        let mut planner = Planner::new(&disks(&[900, 300, 900, 100, 100]), 0.05);
        planner.leave(0, vec![file(1, 50, &[0, 2])]);
        assert_eq!(words(&planner), [(1, vec!["avoid=0,1,4", "avoid=0"])]);
        // It is listed by both OSTs.
        planner.leave(2, vec![file(1, 50, &[0, 2])]);
        assert_eq!(planner.moves.len(), 1);
        assert_eq!(used(&planner), [850, 300, 900, 150, 100]);
    }

    #[test]
    fn copies_do_not_stay_on_osts_that_are_drained() {
        let mut all = disks(&[900, 500, 500, 100, 100]);
        all.disks.retain(|disk| disk.ost != 1);
        let mut planner = Planner::new(&all, 0.05);
        planner.leave(0, vec![file(1, 50, &[0, 1, 2])]);
        assert_eq!(words(&planner), [(1, vec!["avoid=0,1"])]);
        assert_eq!(used(&planner), [850, 500, 150, 150], "two copies move");
    }

    #[test]
    fn all_stripes_of_a_file_are_counted_where_they_were_and_where_they_go() {
        let mut planner = Planner::new(&disks(&[900, 800, 100, 100, 100]), 0.05);
        planner.leave(0, vec![striped(1, 60, &[0, 1]), striped(2, 40, &[0, 1, 2])]);
        let expected = [(1, vec!["avoid=0,1,4"]), (2, vec!["avoid=0,1"])];
        assert_eq!(words(&planner), expected);
        assert_eq!(used(&planner), [800, 700, 160, 200, 140]);
    }

    #[test]
    fn stripes_with_copies_go_where_the_server_will_lay_them() {
        let chains: Vec<Value> = [[0, 1], [1, 2], [2, 3], [3, 1]]
            .iter()
            .enumerate()
            .map(|(index, osts)| {
                let members = osts.map(|ost| json!({ "ost": ost }));
                json!({ "id": format!("2x{index}"), "members": members, "avoided": false })
            })
            .collect();
        let mut all = disks(&[900, 400, 100, 100]);
        // Of two stripes that take 45 bytes.
        let file = |ino| Placed::for_test(ino, 30, 2, 2, &[0, 1, 2]);
        let moved = |all: &Disks, ino| {
            let mut planner = Planner::new(all, 0.05);
            planner.leave(0, vec![file(ino)]);
            let words = planner.moves.first().map(|one| one.words.concat());
            (words, used(&planner))
        };
        assert_eq!(moved(&all, 1).0, None, "not all chains are known");
        all.chains = ShownChains::of(&json!({ "chains": { "count": 4, "rows": chains } }));
        let to = Some("avoid=0".to_owned());
        assert_eq!(moved(&all, 1), (to, vec![870, 393, 116, 123]), "chains 1 and 2");
        // It would come to chains 2 and 3, and be taken from one that is emptier than the mean.
        assert_eq!(moved(&all, 2).0, None);
    }

    #[test]
    fn no_stripe_is_taken_from_an_ost_that_is_emptier_than_the_mean() {
        let mut planner = Planner::new(&disks(&[900, 100, 100, 100]), 0.05);
        planner.leave(0, vec![striped(1, 60, &[0, 1])]);
        assert_eq!(words(&planner), [(1, vec!["avoid=0,3"])], "it gets it back");
        let mut planner = Planner::new(&disks(&[900, 300, 300, 900]), 0.05);
        planner.leave(0, vec![striped(1, 60, &[0, 1, 2]), striped(2, 60, &[0, 1, 2, 3])]);
        assert!(planner.moves.is_empty(), "there is no other row of three, nor of four");
    }
}
