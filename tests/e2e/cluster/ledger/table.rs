//! The table of the ledger: figures, and the versions of the programs that they were counted with.
//!
//! A figure says nothing exact about other versions: there it is a ceiling, with some slack.

use super::LEDGER;
use std::collections::BTreeMap;
use std::process::Command;
use support::run;

/// Programs that work is done with, and what prints their version, before any other one.
const PROGRAMS: &[(&str, &[&str])] = &[
    (LINUX, &["uname", "-r"]),
    ("coreutils", &["cp", "--version"]),
    ("tar", &["tar", "--version"]),
    ("rsync", &["rsync", "--version"]),
    ("find", &["find", "--version"]),
    ("diff", &["diff", "--version"]),
    ("git", &["git", "--version"]),
    ("unzip", &["unzip", "-v"]),
    ("make", &["make", "--version"]),
    ("cc", &["cc", "-dumpfullversion"]),
    ("ld", &["ld", "--version"]),
    ("sqlite", &["python3", "-c", "import sqlite3; print(sqlite3.sqlite_version)"]),
];

/// Part of all work.
const LINUX: &str = "linux";

/// Begins a line of the table with a program and its version.
const VERSION: &str = "# version: ";

/// Versions of programs.
pub(super) type Versions<'a> = BTreeMap<&'a str, String>;

/// Returns the versions on this machine.
pub(super) fn versions_here() -> Versions<'static> {
    let version = |(name, command): &(&'static str, &[&str])| {
        let output = run(Command::new(command[0]).args(&command[1..])).stdout;
        let text = String::from_utf8_lossy(&output).into_owned();
        let version = version_in(&text);
        (*name, version.unwrap_or_else(|| panic!("{command:?} says no version: {text}")))
    };
    PROGRAMS.iter().map(version).collect()
}

/// Returns the first version that a program says: two numbers of it, because others are repairs.
fn version_in(text: &str) -> Option<String> {
    let mut words = text.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')'));
    words.find_map(|word| {
        let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        let mut numbers = word[..end].split('.').filter(|number| !number.is_empty());
        Some(format!("{}.{}", numbers.next()?, numbers.next()?))
    })
}

/// Returns the programs of which there are other versions here than the table has, each as a phrase.
pub(super) fn differences<'a>(table: &Versions<'a>, here: &Versions<'a>) -> Versions<'a> {
    let names = table.keys().chain(here.keys()).copied();
    let version = |versions: &Versions<'a>, name| {
        versions.get(name).cloned().unwrap_or_else(|| "unknown".into())
    };
    let differs = names.filter(|name| table.get(name) != here.get(name));
    differs
        .map(|name| (name, format!("{name} {}, not {}", version(here, name), version(table, name))))
        .collect()
}

/// Returns those of the differences that matter to work with these programs.
pub(super) fn of_work<'a>(differences: &'a Versions<'_>, programs: &[&str]) -> Vec<&'a str> {
    let all = programs.iter().chain([&LINUX]);
    let is_known = |name: &&str| PROGRAMS.iter().any(|(known, _)| known == name);
    assert!(all.clone().all(is_known), "nobody knows the version of all of {programs:?}");
    all.filter_map(|name| differences.get(*name).map(String::as_str)).collect()
}

/// A figure of the ledger.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Figure {
    Exactly(u64),
    AtMost(u64),
}

impl Figure {
    fn parse(text: &str) -> Figure {
        match text.strip_prefix("<=") {
            Some(number) => Figure::AtMost(number.trim().parse().unwrap()),
            None => Figure::Exactly(text.parse().unwrap()),
        }
    }

    /// Returns the figure for another version of a program: a ceiling that is a tenth higher.
    pub(super) fn with_slack(self) -> Figure {
        let (Figure::Exactly(number) | Figure::AtMost(number)) = self;
        Figure::AtMost(number + number.div_ceil(10).max(1))
    }

    pub(super) fn is_exceeded(self, count: u64) -> bool {
        let (Figure::Exactly(number) | Figure::AtMost(number)) = self;
        count > number
    }

    /// Says how a count differs, if that is an error.
    pub(super) fn judge(self, count: u64) -> Option<String> {
        match self {
            Figure::Exactly(number) | Figure::AtMost(number) if self.is_exceeded(count) => {
                Some(format!("{count}, which is {} more than {number}", count - number))
            }
            Figure::Exactly(number) if count < number => {
                let less = number - count;
                Some(format!("{count}, {less} fewer than {number}: less is written down"))
            }
            _ => None,
        }
    }

    /// Returns the figure to write after this count.
    pub(super) fn rewritten(self, count: u64) -> String {
        match self {
            Figure::Exactly(_) => count.to_string(),
            Figure::AtMost(number) => format!("<= {}", number.max(count)),
        }
    }
}

/// Figures of the table, by work and operation.
pub(super) fn figures() -> BTreeMap<(&'static str, &'static str), Figure> {
    let rows = LEDGER.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut figures = BTreeMap::new();
    for row in rows {
        let [work, op, figure] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("a row of the ledger is `work | operation | requests`, not {row:?}");
        };
        let old = figures.insert((work, op), Figure::parse(figure));
        assert!(old.is_none(), "{work} has two rows for {op}");
    }
    figures
}

/// Versions of the table.
pub(super) fn versions() -> Versions<'static> {
    let lines = LEDGER.lines().filter_map(|line| line.strip_prefix(VERSION));
    lines.map(|line| line.split_once(' ').expect("a program and its version")).map(own).collect()
}

fn own<'a>((name, version): (&'a str, &str)) -> (&'a str, String) {
    (name, version.to_owned())
}

/// Returns the head of the table: what it says, and these versions.
pub(super) fn head(versions: &Versions<'_>) -> String {
    let comments =
        LEDGER.lines().filter(|line| line.starts_with('#') && !line.starts_with(VERSION));
    let mut lines: Vec<String> = comments.map(str::to_owned).collect();
    // The last one names the columns.
    let columns = lines.pop();
    lines.extend(versions.iter().map(|(name, version)| format!("{VERSION}{name} {version}")));
    lines.into_iter().chain(columns).fold(String::new(), |head, line| head + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_other_versions_are_ceilings_with_slack() {
        let exactly = Figure::Exactly(300);
        assert!(exactly.judge(301).is_some() && exactly.judge(299).is_some());
        let other = exactly.with_slack();
        assert_eq!(other, Figure::AtMost(330));
        assert!(other.judge(330).is_none() && other.judge(0).is_none());
        assert_eq!(other.judge(331).unwrap(), "331, which is 1 more than 330");
        let slack = [0, 1, 10, 11].map(|number| Figure::AtMost(number).with_slack());
        assert_eq!(slack, [1, 2, 11, 13].map(Figure::AtMost));
    }

    #[test]
    fn work_differs_where_its_programs_or_linux_do() {
        let versions = |linux: &str, tar: &str| {
            Versions::from([(LINUX, linux.to_owned()), ("tar", tar.to_owned())])
        };
        let table = versions("6.18", "1.34");
        let differing = |here| differences(&table, &here);
        assert!(differing(versions("6.18", "1.34")).is_empty());
        let tar = differing(versions("6.18", "1.35"));
        assert_eq!(of_work(&tar, &["find", "tar"]), ["tar 1.35, not 1.34"]);
        assert!(of_work(&tar, &["find"]).is_empty());
        assert_eq!(of_work(&differing(versions("6.17", "1.34")), &["find"]).len(), 1);
        let new = differences(&Versions::new(), &table);
        assert_eq!(of_work(&new, &["tar"])[0], "tar 1.34, not unknown");
    }

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (text, version) in [
            ("6.18.44-fc-v669", "6.18"),
            ("tar (GNU tar) 1.34\nCopyright", "1.34"),
            ("rsync  version 3.5.0  protocol version 32", "3.5"),
            ("UnZip 6.00 of 20 April 2009", "6.00"),
            ("GNU ld (GNU Binutils for Ubuntu) 2.42", "2.42"),
            ("GNU ld version 2.41-38.fc40", "2.41"),
            ("git version 2.39.5", "2.39"),
        ] {
            assert_eq!(version_in(text).as_deref(), Some(version), "{text}");
        }
        assert_eq!(version_in("2 of none."), None);
    }

    #[test]
    fn the_table_names_a_version_of_each_program_and_is_written_as_it_was_read() {
        let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
        let mut versions = versions();
        assert!(
            names.iter().all(|name| versions.contains_key(name)) && versions.len() == names.len()
        );
        assert!(LEDGER.starts_with(&head(&versions)));
        versions.insert("tar", "99.0".into());
        assert!(head(&versions).contains("# version: tar 99.0\n"));
    }
}
