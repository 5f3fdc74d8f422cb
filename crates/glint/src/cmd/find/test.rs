//! Tests of files, and what an expression does with one. Nothing here waits: a fact that costs a
//! request is asked for by the caller, and the expression is looked at again.

use super::age::AskedAge;
use super::entry::{Entry, Missing};
use super::expression::Expression;
use super::layout::{self, WantedLayout};
use super::perm::Perm;
use super::print;
use crate::cmd::tree::Names;
use crate::cmd::tree::c_library::Pattern;
use crate::cmd::tree::show::TimeOf;
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
    Layout(WantedLayout),
    /// An object of the file is on one of these OSTs.
    Ost(Vec<u16>),
    /// An extended attribute has a name that matches the pattern with this number.
    Xattr(usize),
    Age {
        of: TimeOf,
        age: AskedAge,
        now: Timestamp,
    },
    /// Changed later than that.
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
    /// A test or an action needed attributes that are not to be had: it was false.
    pub(super) refused: bool,
}

impl Applied {
    /// Without attributes a test is false, and an action does nothing.
    fn unless_refused(&mut self, holds: Result<bool, Missing>) -> Result<bool, Missing> {
        match holds {
            Err(Missing::Attributes) => {
                self.refused = true;
                Ok(false)
            }
            other => other,
        }
    }
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

    pub(super) fn holds(self, number: u64) -> bool {
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

/// Parses the letters after -type.
pub(super) fn types(text: &str) -> Result<Vec<FileType>, String> {
    let one = |letter: &str| match letter {
        "f" => Ok(FileType::Regular),
        "d" => Ok(FileType::Directory),
        "l" => Ok(FileType::Symlink),
        "p" => Ok(FileType::Fifo),
        "s" => Ok(FileType::Socket),
        "b" => Ok(FileType::BlockDevice),
        "c" => Ok(FileType::CharDevice),
        _ => Err(format!("-type {text:?}: say one or more of f d l p s b c, with commas between")),
    };
    let kinds: Vec<FileType> = text.split(',').map(one).collect::<Result<_, _>>()?;
    match kinds.iter().enumerate().find(|(at, kind)| kinds[..*at].contains(kind)) {
        Some(_) => Err(format!("-type {text:?}: says the same type twice")),
        None => Ok(kinds),
    }
}

fn nanos(time: Timestamp) -> i128 {
    i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos)
}

impl Test {
    fn holds(&self, entry: &Entry, names: &Names) -> Result<bool, Missing> {
        let attr = || entry.attr();
        Ok(match self {
            Test::Constant(value) => *value,
            Test::Name(pattern) => pattern.matches(entry.name()),
            Test::Path(pattern) => pattern.matches(&entry.path),
            Test::Target(pattern) => {
                FileType::from_mode(attr()?.mode) == Some(FileType::Symlink)
                    && pattern.matches(entry.facts.target.as_ref().ok_or(Missing::Target)?)
            }
            Test::Type(kinds) => entry.kind()?.is_some_and(|kind| kinds.contains(&kind)),
            Test::Size(count, Unit(unit)) => count.holds(attr()?.size.div_ceil(*unit)),
            Test::Perm(perm) => perm.holds(attr()?.mode),
            Test::Links(count) => count.holds(attr()?.nlink.into()),
            Test::Ino(count) => count.holds(entry.ino()?.0),
            Test::Uid(count) => count.holds(attr()?.uid.into()),
            Test::Gid(count) => count.holds(attr()?.gid.into()),
            Test::NoUser => names.user(attr()?.uid).map_err(Missing::Name)?.is_none(),
            Test::NoGroup => names.group(attr()?.gid).map_err(Missing::Name)?.is_none(),
            Test::Empty => match FileType::from_mode(attr()?.mode) {
                Some(FileType::Regular) => attr()?.size == 0,
                Some(FileType::Directory) => entry.facts.is_empty.ok_or(Missing::IsEmpty)?,
                _ => false,
            },
            Test::Layout(wanted) => wanted.holds(attr()?),
            Test::Ost(osts) => layout::is_on(osts, entry)?,
            Test::Xattr(pattern) => entry.has_xattr(*pattern)?,
            Test::Age { of, age, now } => age.holds(nanos(*now) - nanos(of.of(attr()?))),
            Test::Newer { of, than } => nanos(of.of(attr()?)) > nanos(*than),
        })
    }
}

impl Expression {
    /// Whether it says something of a file, and does nothing.
    pub(super) fn is_pure(&self) -> bool {
        match self {
            Expression::Test(_) => true,
            Expression::Not(inner) => inner.is_pure(),
            Expression::All(parts) | Expression::Any(parts) | Expression::List(parts) => {
                parts.iter().all(Expression::is_pure)
            }
            _ => false,
        }
    }

    /// Whether it may keep the walk out of a directory.
    pub(super) fn may_prune(&self) -> bool {
        match self {
            Expression::Prune => true,
            Expression::Not(inner) => inner.may_prune(),
            Expression::All(parts) | Expression::Any(parts) | Expression::List(parts) => {
                parts.iter().any(Expression::may_prune)
            }
            _ => false,
        }
    }

    /// Looks at a file. If a fact is missing, nothing in `outcome` counts but what was printed before an
    /// action that is to be taken.
    pub(super) fn apply(
        &self,
        entry: &Entry,
        names: &Names,
        outcome: &mut Applied,
    ) -> Result<bool, Missing> {
        if outcome.quit {
            return Ok(false);
        }
        match self {
            Expression::Test(test) => return outcome.unless_refused(test.holds(entry, names)),
            Expression::Not(inner) => return Ok(!inner.apply(entry, names, outcome)?),
            Expression::All(parts) => {
                for part in parts {
                    if !part.apply(entry, names, outcome)? {
                        return Ok(false);
                    }
                }
            }
            Expression::Any(parts) => {
                for part in parts {
                    if part.apply(entry, names, outcome)? {
                        return Ok(true);
                    }
                }
                return Ok(false);
            }
            Expression::List(parts) => {
                let mut last = true;
                for part in parts {
                    last = part.apply(entry, names, outcome)?;
                }
                return Ok(last);
            }
            // As find(1) has it: it looks at a file before it prunes it.
            Expression::Prune => {
                let known = outcome.unless_refused(entry.attr().map(|_| true))?;
                outcome.pruned |= known;
                return Ok(known);
            }
            Expression::Quit => outcome.quit = true,
            Expression::Print(end) => {
                outcome.printed.extend_from_slice(&entry.path);
                outcome.printed.push(*end);
            }
            Expression::Printf(format) => {
                let before = outcome.printed.len();
                let printed = format.print(entry, names, &mut outcome.printed);
                if printed.is_err() {
                    outcome.printed.truncate(before);
                }
                return outcome.unless_refused(printed.map(|()| true));
            }
            Expression::Ls(now) => {
                let printed = super::ls::line(entry, names, *now, &mut outcome.printed);
                return outcome.unless_refused(printed.map(|()| true));
            }
            Expression::Action(number) => return entry.taken(*number),
            Expression::Json => {
                let printed = print::json(entry, &mut outcome.printed);
                return outcome.unless_refused(printed.map(|()| true));
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::super::print::Format;
    use super::*;
    use glint_proto::Errno;

    #[test]
    fn sizes_are_rounded_up_to_units() {
        let file = entry(b"a", libc::S_IFREG | 0o644);
        for (count, unit, expected) in [
            (Comparison::Exactly(2), 512, true),
            (Comparison::Less(1), 1 << 20, false),
            (Comparison::More(999), 1, true),
            (Comparison::Exactly(1), 1 << 30, true),
        ] {
            assert_eq!(
                Test::Size(count, Unit(unit)).holds(&file, &Names::default()),
                Ok(expected),
                "{count:?}"
            );
        }
    }

    #[test]
    fn a_fact_is_asked_for_only_where_it_decides() {
        let (directory, names) = (entry(b"a", libc::S_IFDIR | 0o755), Names::default());
        let empty = Expression::Test(Test::Empty);
        let never = Expression::Test(Test::Constant(false));
        assert_eq!(empty.apply(&directory, &names, &mut Applied::default()), Err(Missing::IsEmpty));
        let all = Expression::All(vec![never, empty]);
        assert_eq!(all.apply(&directory, &names, &mut Applied::default()), Ok(false));
    }

    #[test]
    fn a_name_that_cannot_be_looked_up_is_not_missing() {
        let (file, names) = (entry(b"a", libc::S_IFREG), Names::without_root(Errno::EIO));
        for test in [Test::NoUser, Test::NoGroup] {
            let test = Expression::Test(test);
            let not = Expression::Not(Box::new(test.clone()));
            for expression in [test, not] {
                let held = expression.apply(&file, &names, &mut Applied::default());
                assert_eq!(held, Err(Missing::Name(Errno::EIO)));
            }
        }
        let mut out = Vec::new();
        Format::parse(b"%u %g").unwrap().print(&file, &names, &mut out).unwrap();
        assert_eq!(out, b"0 0");
    }

    #[test]
    fn without_attributes_a_test_is_false() {
        let (mut file, names) = (entry(b"a", libc::S_IFREG), Names::default());
        (file.attr, file.kind) = (Err(Errno::EACCES), Some(FileType::Regular));
        for (test, expected, refused) in [
            (Test::Type(vec![FileType::Regular]), true, false),
            (Test::Ino(Comparison::Exactly(77)), true, false),
            (Test::Uid(Comparison::Exactly(0)), false, true),
            (Test::Empty, false, true),
            (Test::NoUser, false, true),
        ] {
            let mut outcome = Applied::default();
            let held = Expression::Test(test.clone()).apply(&file, &names, &mut outcome);
            assert_eq!((held, outcome.refused), (Ok(expected), refused), "{test:?}");
        }
        let print = Format::parse(b"%p %s").unwrap();
        let mut outcome = Applied::default();
        assert_eq!(Expression::Printf(print).apply(&file, &names, &mut outcome), Ok(false));
        assert_eq!((outcome.refused, outcome.printed.len()), (true, 0));
    }
}
