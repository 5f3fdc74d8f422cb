//! `plan.txt`: how long tests usually take, and which of them need the machine for themselves.
//!
//! A line is `NAME SECONDS MARK ...`; tests without a line take less than five seconds and run
//! beside others. Marks: `alone` (measures rates, drops caches, fills memory, or shows nothing where
//! somebody calls sync(2)), `busy` (computes most of the time: a few of these run at once), `quick`
//! (runs in `make quick`).

use std::collections::BTreeMap;
use std::path::Path;

/// What is known about each test.
pub(crate) struct Plan {
    lines: BTreeMap<String, Line>,
}

#[derive(Default)]
struct Line {
    seconds: u64,
    alone: bool,
    busy: bool,
    quick: bool,
}

/// Seconds of a test without a line.
const SHORT: u64 = 2;

impl Plan {
    /// Reads the file.
    pub(crate) fn read(path: &Path) -> Result<Plan, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        Plan::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Plan, String> {
        let mut lines = BTreeMap::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let (Some(name), Some(seconds)) = (words.next(), words.next()) else {
                return Err(format!("{line:?} is not NAME SECONDS MARK ..."));
            };
            let seconds =
                seconds.parse().map_err(|_| format!("{seconds:?} of {name} is not a number"))?;
            let mut entry = Line { seconds, ..Line::default() };
            for mark in words {
                match mark {
                    "alone" => entry.alone = true,
                    "busy" => entry.busy = true,
                    "quick" => entry.quick = true,
                    _ => return Err(format!("{mark:?} of {name} is no mark")),
                }
            }
            if lines.insert(name.to_owned(), entry).is_some() {
                return Err(format!("{name} has two lines"));
            }
        }
        Ok(Plan { lines })
    }

    /// Refuses lines of tests that are not there.
    pub(crate) fn knows_only(&self, tests: &[String]) -> Result<(), String> {
        match self.lines.keys().find(|name| !tests.contains(name)) {
            Some(name) => Err(format!("{name} is no test: rename or remove its line")),
            None => Ok(()),
        }
    }

    /// How long a test usually takes.
    pub(crate) fn usual_seconds(&self, name: &str) -> u64 {
        self.lines.get(name).map_or(SHORT, |line| line.seconds)
    }

    /// True if no other test may run beside it.
    pub(crate) fn is_alone(&self, name: &str) -> bool {
        self.lines.get(name).is_some_and(|line| line.alone)
    }

    /// True if it keeps a core busy.
    pub(crate) fn is_busy(&self, name: &str) -> bool {
        self.lines.get(name).is_some_and(|line| line.busy)
    }

    /// True if it is one of those that stand for their kind.
    pub(crate) fn is_quick(&self, name: &str) -> bool {
        self.lines.get(name).is_some_and(|line| line.quick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_a_name_seconds_and_marks() {
        let plan = Plan::parse("# comment\n\na::b 12 alone quick\nc::d 5 busy\n").unwrap();
        assert!(plan.is_alone("a::b") && plan.is_quick("a::b"));
        assert!(!plan.is_alone("c::d") && !plan.is_quick("c::d"));
        assert!(plan.is_busy("c::d") && !plan.is_busy("a::b") && !plan.is_busy("e"));
        let seconds = ["a::b", "c::d", "e"].map(|name| plan.usual_seconds(name));
        assert_eq!(seconds, [12, 5, SHORT]);
        assert!(plan.knows_only(&["a::b".to_owned(), "c::d".to_owned()]).is_ok());
        assert!(plan.knows_only(&["a::b".to_owned()]).is_err());
        for wrong in ["a", "a b", "a 1 slow", "a 1\na 2"] {
            assert!(Plan::parse(wrong).is_err(), "{wrong}");
        }
    }
}
