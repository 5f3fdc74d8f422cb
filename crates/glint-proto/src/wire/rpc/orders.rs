//! Orders of administrators about OSTs. Commands ask a mount for them in words.

use crate::Ino;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Request of an administrator about OSTs, as commands ask a mount for it in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OstOrder {
    /// It does not exist any more.
    GiveUp(GiveUp),
    /// Files shall leave it.
    Drain(DrainOst),
    /// Files shall be spread over all.
    Balance(BalanceTurn),
}

impl OstOrder {
    /// The request that these words are.
    pub fn parse(words: &str) -> Option<OstOrder> {
        let give_up = GiveUp::parse(words).map(OstOrder::GiveUp);
        let drain = || DrainOst::parse(words).map(OstOrder::Drain);
        let balance = || BalanceTurn::parse(words).map(OstOrder::Balance);
        give_up.or_else(drain).or_else(balance)
    }
}

impl fmt::Display for OstOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OstOrder::GiveUp(request) => request.fmt(f),
            OstOrder::Drain(request) => request.fmt(f),
            OstOrder::Balance(request) => request.fmt(f),
        }
    }
}

/// Request of an administrator about an OST that does not exist any more; also in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GiveUp {
    /// The OST.
    pub ost: u16,
    /// What is asked for.
    pub step: GiveUpStep,
}

/// Steps in which an OST is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum GiveUpStep {
    /// Only say what is lost with it: all chains, and a page of files from this inode on.
    Preview(Ino),
    /// Give it up, if chains lose what the preview with this number has said.
    Confirmed(u64),
    /// The same of one that is drained, and only of that: it is taken away.
    Drained(u64),
}

impl GiveUp {
    /// The request that these words are.
    pub fn parse(words: &str) -> Option<GiveUp> {
        let words: Vec<&str> = words.split(' ').collect();
        let ["give-up", ost, step, number] = words[..] else { return None };
        let number = number.parse().ok()?;
        let step = match step {
            "preview" => GiveUpStep::Preview(Ino(number)),
            "confirmed" => GiveUpStep::Confirmed(number),
            "drained" => GiveUpStep::Drained(number),
            _ => return None,
        };
        Some(GiveUp { ost: ost.parse().ok()?, step })
    }
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ost = self.ost;
        match self.step {
            GiveUpStep::Preview(ino) => write!(f, "give-up {ost} preview {}", ino.0),
            GiveUpStep::Confirmed(number) => write!(f, "give-up {ost} confirmed {number}"),
            GiveUpStep::Drained(number) => write!(f, "give-up {ost} drained {number}"),
        }
    }
}

/// Request of an administrator about an OST that files shall leave; also in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DrainOst {
    /// The OST.
    pub ost: u16,
    /// What is asked for.
    pub step: DrainStep,
}

/// Steps in which an OST is drained.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DrainStep {
    /// New files avoid it from now on.
    Begin,
    /// New files use it again.
    End,
    /// A page of the files that have a stripe there, from this inode on.
    Files(Ino),
    /// A command moves files away, and has so many left. It says so again and again, and without
    /// files when it has ended. One that rebalances says it, too, of the files that it has chosen.
    Moves(FilesToMove),
}

/// Files that a command has still to move away from an OST.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FilesToMove {
    /// How many these are.
    pub files: u64,
    /// How much data moves with them.
    pub bytes: u64,
}

impl DrainOst {
    /// The request that these words are.
    pub fn parse(words: &str) -> Option<DrainOst> {
        let words: Vec<&str> = words.split(' ').collect();
        let (ost, step) = match words[..] {
            ["drain", ost, "begin"] => (ost, DrainStep::Begin),
            ["drain", ost, "end"] => (ost, DrainStep::End),
            ["drain", ost, "files", from] => (ost, DrainStep::Files(Ino(from.parse().ok()?))),
            ["drain", ost, "moves", files, bytes] => {
                let (files, bytes) = (files.parse().ok()?, bytes.parse().ok()?);
                (ost, DrainStep::Moves(FilesToMove { files, bytes }))
            }
            _ => return None,
        };
        Some(DrainOst { ost: ost.parse().ok()?, step })
    }
}

impl fmt::Display for DrainOst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ost = self.ost;
        match self.step {
            DrainStep::Begin => write!(f, "drain {ost} begin"),
            DrainStep::End => write!(f, "drain {ost} end"),
            DrainStep::Files(from) => write!(f, "drain {ost} files {}", from.0),
            DrainStep::Moves(FilesToMove { files, bytes }) => {
                write!(f, "drain {ost} moves {files} {bytes}")
            }
        }
    }
}

/// Request of a command that moves files from fuller to emptier OSTs; also in words. One at a time
/// has the turn, until it ends it or was not heard of for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BalanceTurn {
    /// Drawn by the command when it began.
    pub token: u64,
    /// What is asked for.
    pub step: BalanceStep,
}

/// Steps of a command that moves files between OSTs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BalanceStep {
    /// It begins, or goes on.
    Keep,
    /// It goes on, and asks how many files have moved whose objects are not removed yet.
    Moved,
    /// It has ended.
    End,
}

impl BalanceTurn {
    /// The request that these words are.
    pub fn parse(words: &str) -> Option<BalanceTurn> {
        let words: Vec<&str> = words.split(' ').collect();
        let ["balance", token, step] = words[..] else { return None };
        let step = match step {
            "keep" => BalanceStep::Keep,
            "moved" => BalanceStep::Moved,
            "end" => BalanceStep::End,
            _ => return None,
        };
        Some(BalanceTurn { token: token.parse().ok()?, step })
    }
}

impl fmt::Display for BalanceTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.step {
            BalanceStep::Keep => "keep",
            BalanceStep::Moved => "moved",
            BalanceStep::End => "end",
        };
        write!(f, "balance {} {step}", self.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_drain_are_the_request_that_they_were_made_of() {
        let moves = DrainStep::Moves(FilesToMove { files: 1, bytes: u64::MAX });
        for step in [DrainStep::Begin, DrainStep::End, DrainStep::Files(Ino(u64::MAX)), moves] {
            let request = DrainOst { ost: 3, step };
            assert_eq!(DrainOst::parse(&request.to_string()), Some(request));
            assert!(request.to_string().len() < 64);
        }
        let others = ["drain", "drain 1", "drain 70000 end", "drain 1 files", "drain 1 files x"];
        let others = others.into_iter().chain(["drain 1 moves 2", "drain 1 moves 2 x"]);
        for words in others {
            assert_eq!(DrainOst::parse(words), None, "{words}");
        }
    }

    #[test]
    fn words_are_the_request_that_they_were_made_of() {
        let numbered = [GiveUpStep::Confirmed(u64::MAX), GiveUpStep::Drained(u64::MAX)];
        for step in numbered.into_iter().chain([GiveUpStep::Preview(Ino(0))]) {
            let request = GiveUp { ost: 3, step };
            let words = request.to_string();
            assert_eq!(GiveUp::parse(&words), Some(request));
            // A mount reads no longer ones.
            assert!(words.len() < 64);
        }
        let others = ["status", "give-up", "give-up 70000 preview 0", "give-up 1", "give-up 1 x 2"];
        assert!(others.iter().all(|words| GiveUp::parse(words).is_none()));
    }

    #[test]
    fn words_of_a_turn_are_the_request_that_they_were_made_of() {
        for step in [BalanceStep::Keep, BalanceStep::Moved, BalanceStep::End] {
            let order = OstOrder::Balance(BalanceTurn { token: u64::MAX, step });
            assert_eq!(OstOrder::parse(&order.to_string()), Some(order));
            assert!(order.to_string().len() < 64);
        }
        assert!(
            ["balance", "balance 1", "balance x end"].iter().all(|w| OstOrder::parse(w).is_none())
        );
    }
}
