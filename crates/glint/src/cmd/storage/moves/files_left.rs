//! How many files a command has still to move away from each OST. The server with the MDS is told, so
//! that others can ask how far the command is (`glint ost list`).

use super::Move;
use crate::cmd::storage::order::ask;
use crate::target::Target;
use glint_proto::limits::BALANCE_TURN_MS;
use glint_proto::message::{DrainOst, DrainStep, FilesToMove};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often the server is told, and how often at least: of many OSTs that takes a while, in which the
/// results of moves wait.
pub(super) const SAY: Duration = Duration::from_secs(2);
const SAY_MAX: Duration = Duration::from_millis(BALANCE_TURN_MS / 3);

/// Files that are left, by the OST that they are to leave; until it is dropped.
pub(super) struct FilesLeft {
    target: Target,
    osts: BTreeMap<u16, FilesToMove>,
    /// When the server is told again.
    next: Instant,
    /// Whether the server has heard what was said last.
    is_heard: bool,
}

impl FilesLeft {
    pub(super) fn new(target: Target) -> FilesLeft {
        FilesLeft { target, osts: BTreeMap::new(), next: Instant::now(), is_heard: true }
    }

    /// Begins anew with these files.
    pub(super) fn begin(&mut self, moves: &[Move]) {
        self.clear();
        for one in moves {
            let left = self.osts.entry(one.from).or_default();
            left.files += 1;
            left.bytes += one.bytes;
        }
        self.say();
    }

    /// A file has moved. Those that could not are left.
    pub(super) fn on_moved(&mut self, one: &Move) {
        if let Some(left) = self.osts.get_mut(&one.from) {
            left.files = left.files.saturating_sub(1);
            left.bytes = left.bytes.saturating_sub(one.bytes);
        }
    }

    /// Tells the server, if it is time to.
    pub(super) fn say_in_time(&mut self) {
        if Instant::now() >= self.next {
            self.say();
        }
    }

    /// Tells the server now. If it does not answer, it is told the next time.
    pub(super) fn say(&mut self) {
        let begun = Instant::now();
        let said = |(ost, left): (&u16, &FilesToMove)| {
            ask(&self.target, &DrainOst { ost: *ost, step: DrainStep::Moves(*left) }).is_ok()
        };
        self.is_heard = self.osts.iter().all(said);
        if self.is_heard {
            self.osts.retain(|_, left| left.files > 0);
        }
        self.next = Instant::now() + (begun.elapsed() * 4).clamp(SAY, SAY_MAX);
    }

    /// No files are left of any OST that the server was told of.
    fn clear(&mut self) {
        self.osts.values_mut().for_each(|left| *left = FilesToMove::default());
    }
}

impl Drop for FilesLeft {
    fn drop(&mut self) {
        self.clear();
        // A server that is away is not waited for once more: it forgets this command by itself.
        if self.is_heard {
            self.say();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_left_of_their_osts_until_they_have_moved() {
        let one = |from, bytes| Move {
            ino: 1,
            bytes,
            name: String::new(),
            words: Vec::new(),
            from,
            to: None,
        };
        // Nobody answers there.
        let mut left = FilesLeft::new(Target::Mount("/nosuch".into()));
        let now = |left: &FilesLeft| -> Vec<(u16, u64, u64)> {
            left.osts.iter().map(|(ost, left)| (*ost, left.files, left.bytes)).collect()
        };
        let moves = [one(3, 10), one(1, 5), one(3, 7)];
        left.begin(&moves);
        assert_eq!(now(&left), [(1, 1, 5), (3, 2, 17)]);
        moves[1..].iter().for_each(|one| left.on_moved(one));
        assert_eq!(now(&left), [(1, 0, 0), (3, 1, 10)], "the server is told that none is left");
        left.begin(&[one(2, 1)]);
        assert_eq!(now(&left), [(1, 0, 0), (2, 1, 1), (3, 0, 0)]);
    }
}
