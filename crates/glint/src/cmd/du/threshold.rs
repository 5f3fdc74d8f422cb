//! Sizes that lines of du(1) have at least or at most.

use crate::cmd::tree::size::Scaled;

/// Which lines are printed: those of at least, or at most, so many bytes or inodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Threshold {
    AtLeast(u64),
    AtMost(u64),
}

impl Threshold {
    /// Parses the word after `-t`: a size, which a minus makes the largest one.
    pub(super) fn parse(text: &str) -> Result<Threshold, String> {
        let (make, size): (fn(u64) -> Threshold, &str) = match text.strip_prefix('-') {
            Some(size) => (Threshold::AtMost, size),
            None => (Threshold::AtLeast, text.strip_prefix('+').unwrap_or(text)),
        };
        let threshold = Scaled::parse(size).map(|scaled| make(scaled.bytes));
        threshold
            .filter(|threshold| *threshold != Threshold::AtMost(0))
            .ok_or_else(|| format!("{text:?} is no size: say SIZE for at least, -SIZE for at most"))
    }

    pub(super) fn holds(self, number: u64) -> bool {
        match self {
            Threshold::AtLeast(least) => number >= least,
            Threshold::AtMost(most) => number <= most,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minus_makes_a_threshold_the_largest_size() {
        for (text, number, expected) in [
            ("1K", 1024, true),
            ("1K", 1023, false),
            ("-1K", 1024, true),
            ("-1K", 1025, false),
            ("0", 0, true),
            ("-1kB", 1001, false),
        ] {
            assert_eq!(Threshold::parse(text).unwrap().holds(number), expected, "{text} {number}");
        }
        for wrong in ["-0", "", "-", "x", "--1"] {
            Threshold::parse(wrong).unwrap_err();
        }
    }
}
