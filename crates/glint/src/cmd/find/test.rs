//! Tests of files, and what an expression does with one. Nothing here waits: a fact that costs a
//! request is asked for by the caller, and the expression is looked at again.

use super::c_library::{Pattern, group_name, user_name};
use super::entry::{Entry, Missing};
use super::expression::Expression;
use super::print;
use glint_proto::{FileType, Timestamp};

/// A number in an expression: N, +N or -N.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Comparison {
    Exactly(u64),
    More(u64),
    Less(u64),
}

/// Bytes in a unit of -size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unit(pub(super) u64);

/// One of the times of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TimeOf {
    Access,
    Data,
    Inode,
}

/// Permissions that are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Perm {
    Exactly(u32),
    All(u32),
    Any(u32),
}

/// A test of a file.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Test {
    Constant(bool),
    Name(Pattern),
    Path(Pattern),
    Target(Pattern),
    Type(Vec<FileType>),
    Size(Comparison, Unit),
    Perm(Perm),
    Links(Comparison),
    Ino(Comparison),
    Uid(Comparison),
    Gid(Comparison),
    NoUser,
    NoGroup,
    Empty,
    /// In days (fractions are dropped), or in minutes (N is the Nth minute before now).
    Age {
        of: TimeOf,
        seconds: i128,
        count: Comparison,
        now: Timestamp,
    },
    Newer {
        of: TimeOf,
        than: Timestamp,
    },
}

/// What an expression did with a file.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Applied {
    pub(super) printed: Vec<u8>,
    pub(super) pruned: bool,
    pub(super) quit: bool,
}

impl Comparison {
    pub(super) fn parse(text: &str) -> Option<Comparison> {
        let (make, digits): (fn(u64) -> Comparison, &str) = match text.as_bytes().first()? {
            b'+' => (Comparison::More, &text[1..]),
            b'-' => (Comparison::Less, &text[1..]),
            _ => (Comparison::Exactly, text),
        };
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok().map(make)).flatten()
    }

    fn holds(self, number: u64) -> bool {
        match self {
            Comparison::Exactly(n) => number == n,
            Comparison::More(n) => number > n,
            Comparison::Less(n) => number < n,
        }
    }
}

impl Unit {
    pub(super) fn parse(letter: char) -> Option<Unit> {
        Some(Unit(match letter {
            'c' => 1,
            'w' => 2,
            'b' => 512,
            'k' => 1 << 10,
            'M' => 1 << 20,
            'G' => 1 << 30,
            _ => return None,
        }))
    }
}

impl Perm {
    /// From octal digits or symbols (u=rw,g+r), after - for all or / for any of them.
    pub(super) fn parse(text: &str) -> Result<Perm, String> {
        let (make, rest): (fn(u32) -> Perm, &str) = match text.as_bytes().first() {
            Some(b'-') => (Perm::All, &text[1..]),
            Some(b'/') => (Perm::Any, &text[1..]),
            _ => (Perm::Exactly, text),
        };
        let octal = rest.starts_with(|first: char| first.is_ascii_digit());
        let mode = if octal { u32::from_str_radix(rest, 8).ok() } else { symbols(rest) };
        let mode = mode.filter(|mode| *mode <= 0o7777);
        mode.map(make).ok_or_else(|| {
            format!("-perm {text:?}: say a mode as 644 or u=rw,go=r, after - for all or / for any")
        })
    }

    fn holds(self, mode: u32) -> bool {
        let mode = mode & 0o7777;
        match self {
            Perm::Exactly(wanted) => mode == wanted,
            Perm::All(wanted) => mode & wanted == wanted,
            Perm::Any(wanted) => wanted == 0 || mode & wanted != 0,
        }
    }
}

/// A mode in symbols, as chmod(1) would make it of 0.
fn symbols(text: &str) -> Option<u32> {
    let mut mode = 0;
    for clause in text.split(',') {
        let at = clause.find(['=', '+', '-'])?;
        let mut who = 0;
        for letter in clause[..at].chars() {
            who |= match letter {
                'u' => 0o4700,
                'g' => 0o2070,
                'o' => 0o1007,
                'a' => 0o7777,
                _ => return None,
            };
        }
        let who = if at == 0 { 0o7777 } else { who };
        let mut bits = 0;
        for letter in clause[at + 1..].chars() {
            bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                's' => 0o6000,
                't' => 0o1000,
                _ => return None,
            };
        }
        // The sticky bit belongs to nobody.
        let bits = bits & (who | if at == 0 { 0 } else { 0o1000 });
        match &clause[at..=at] {
            "=" => mode = mode & !(who & 0o6777) | bits,
            "+" => mode |= bits,
            _ => mode &= !bits,
        }
    }
    Some(mode)
}

impl TimeOf {
    pub(super) fn of(self, entry: &Entry) -> Timestamp {
        match self {
            TimeOf::Access => entry.attr.atime,
            TimeOf::Data => entry.attr.mtime,
            TimeOf::Inode => entry.attr.ctime,
        }
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

/// Whether a file is so old, in units of days or minutes as find(1) counts either.
fn is_aged(age: i128, seconds: i128, count: Comparison) -> bool {
    let unit = seconds * 1_000_000_000;
    let at = |n: u64| i128::from(n) * unit;
    match (seconds, count) {
        (60, Comparison::Exactly(n)) => (at(n) - unit..at(n)).contains(&age),
        (60, Comparison::More(n)) => age > at(n),
        (_, Comparison::More(n)) => age > at(n) + unit,
        (_, Comparison::Less(n)) => age < at(n),
        (_, Comparison::Exactly(n)) => (at(n)..at(n) + unit).contains(&age),
    }
}

impl Test {
    fn holds(&self, entry: &Entry) -> Result<bool, Missing> {
        let attr = &entry.attr;
        Ok(match self {
            Test::Constant(value) => *value,
            Test::Name(pattern) => pattern.matches(entry.name()),
            Test::Path(pattern) => pattern.matches(&entry.path),
            Test::Target(pattern) => {
                entry.kind() == Some(FileType::Symlink)
                    && pattern.matches(entry.facts.target.as_ref().ok_or(Missing::Target)?)
            }
            Test::Type(kinds) => entry.kind().is_some_and(|kind| kinds.contains(&kind)),
            Test::Size(count, Unit(unit)) => count.holds(attr.size.div_ceil(*unit)),
            Test::Perm(perm) => perm.holds(attr.mode),
            Test::Links(count) => count.holds(attr.nlink.into()),
            Test::Ino(count) => count.holds(attr.ino.0),
            Test::Uid(count) => count.holds(attr.uid.into()),
            Test::Gid(count) => count.holds(attr.gid.into()),
            Test::NoUser => user_name(attr.uid).is_none(),
            Test::NoGroup => group_name(attr.gid).is_none(),
            Test::Empty => match entry.kind() {
                Some(FileType::Regular) => attr.size == 0,
                Some(FileType::Directory) => entry.facts.is_empty.ok_or(Missing::IsEmpty)?,
                _ => false,
            },
            Test::Age { of, seconds, count, now } => {
                is_aged(nanos(*now) - nanos(of.of(entry)), *seconds, *count)
            }
            Test::Newer { of, than } => nanos(of.of(entry)) > nanos(*than),
        })
    }
}

impl Expression {
    /// Looks at a file. If a fact is missing, nothing in `outcome` counts.
    pub(super) fn apply(&self, entry: &Entry, outcome: &mut Applied) -> Result<bool, Missing> {
        if outcome.quit {
            return Ok(false);
        }
        match self {
            Expression::Test(test) => return test.holds(entry),
            Expression::Not(inner) => return Ok(!inner.apply(entry, outcome)?),
            Expression::All(parts) => {
                for part in parts {
                    if !part.apply(entry, outcome)? {
                        return Ok(false);
                    }
                }
            }
            Expression::Any(parts) => {
                for part in parts {
                    if part.apply(entry, outcome)? {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            Expression::List(parts) => {
                let mut last = true;
                for part in parts {
                    last = part.apply(entry, outcome)?;
                }
                return Ok(last);
            }
            Expression::Prune => outcome.pruned = true,
            Expression::Quit => outcome.quit = true,
            Expression::Print(end) => {
                outcome.printed.extend_from_slice(&entry.path);
                outcome.printed.push(*end);
            }
            Expression::Printf(format) => format.print(entry, &mut outcome.printed)?,
            Expression::Json => print::json(entry, &mut outcome.printed)?,
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::*;

    #[test]
    fn sizes_are_rounded_up_to_units() {
        let file = entry(b"a", libc::S_IFREG | 0o644);
        for (count, unit, expected) in [
            (Comparison::Exactly(2), 512, true),
            (Comparison::Less(1), 1 << 20, false),
            (Comparison::More(999), 1, true),
            (Comparison::Exactly(1), 1 << 30, true),
        ] {
            assert_eq!(Test::Size(count, Unit(unit)).holds(&file), Ok(expected), "{count:?}");
        }
    }

    #[test]
    fn ages_are_counted_as_find_does() {
        const SECOND: i128 = 1_000_000_000;
        for (age, seconds, count, expected) in [
            (0, 86400, Comparison::Exactly(0), true),
            (86399, 86400, Comparison::Exactly(0), true),
            (86400, 86400, Comparison::Exactly(1), true),
            (86401, 86400, Comparison::More(0), true),
            (86399, 86400, Comparison::More(0), false),
            (86399, 86400, Comparison::Less(1), true),
            (30, 60, Comparison::Exactly(1), true),
            (60, 60, Comparison::Exactly(1), false),
            (61, 60, Comparison::More(1), true),
            (59, 60, Comparison::Less(1), true),
        ] {
            let found = is_aged(age * SECOND, seconds, count);
            assert_eq!(found, expected, "{age} {seconds} {count:?}");
        }
    }

    #[test]
    fn modes_are_digits_or_symbols() {
        for (text, mode) in [
            ("644", 0o644),
            ("u=rw,go=r", 0o644),
            ("a+x", 0o111),
            ("+t", 0o1000),
            ("u+s", 0o4000),
            ("g=s", 0o2000),
            ("u=rwx,u-x", 0o600),
        ] {
            assert_eq!(Perm::parse(text), Ok(Perm::Exactly(mode)), "{text}");
        }
        assert!(Perm::parse("-111").unwrap().holds(0o755) && !Perm::All(0o022).holds(0o755));
        assert!(Perm::parse("/000").unwrap().holds(0) && Perm::Any(0o011).holds(0o010));
    }

    #[test]
    fn a_fact_is_asked_for_only_where_it_decides() {
        let directory = entry(b"a", libc::S_IFDIR | 0o755);
        let empty = Expression::Test(Test::Empty);
        let never = Expression::Test(Test::Constant(false));
        assert_eq!(empty.apply(&directory, &mut Applied::default()), Err(Missing::IsEmpty));
        let all = Expression::All(vec![never, empty]);
        assert_eq!(all.apply(&directory, &mut Applied::default()), Ok(false));
    }
}
