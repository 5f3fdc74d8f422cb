//! What the servers may leave out of listings, since the expression does nothing with it.
//!
//! Invariant: what a filter leaves out has no effect: a test that comes before all that has one is
//! false for it, and before all that may fail, since errors are told. All that comes is looked at with
//! the whole expression. (An entry whose type is not that of its inode, which fsck repairs, counts as
//! what the entry says.)

use super::super::asks::Asks;
use super::super::expression::Expression;
use super::super::test::{Comparison, Test, Unit};
use crate::cmd::tree::show::TimeOf;
use glint_proto::Timestamp;
use glint_proto::posix::ScanFilter;

const SECOND: i128 = 1_000_000_000;

/// What is to be listed for an expression; `None` if that is everything.
pub(super) fn of(expression: &Expression) -> Option<ScanFilter> {
    let mut filter = ScanFilter::default();
    narrow(expression, &mut Needs::Name, &mut filter);
    (filter != ScanFilter::default()).then_some(filter)
}

/// What is needed to evaluate a part of an expression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Needs {
    /// Nothing but an entry.
    Name,
    /// Attributes, which may not be had.
    Attributes,
    /// An answer of others, who may fail.
    Answer,
}

impl Needs {
    fn of(expression: &Expression) -> Needs {
        let most = |parts: &[Expression]| parts.iter().map(Needs::of).max();
        match expression {
            Expression::Test(test) => match test {
                Test::Constant(_) | Test::Name(_) | Test::Path(_) | Test::Type(_) => Needs::Name,
                // The name service.
                Test::NoUser | Test::NoGroup => Needs::Answer,
                _ if Asks::of(expression).is_some() => Needs::Answer,
                _ => Needs::Attributes,
            },
            Expression::Not(inner) => Needs::of(inner),
            Expression::All(parts) | Expression::Any(parts) | Expression::List(parts) => {
                most(parts).unwrap_or(Needs::Name)
            }
            _ => Needs::Answer,
        }
    }
}

/// Narrows a filter by the tests before the first part that does something, or may fail. Returns whether
/// there was no such part; `needed` is what was needed so far.
fn narrow(expression: &Expression, needed: &mut Needs, filter: &mut ScanFilter) -> bool {
    if let Expression::All(parts) = expression {
        return parts.iter().all(|part| narrow(part, needed, filter));
    }
    *needed = Needs::of(expression).max(*needed);
    if *needed == Needs::Answer || !expression.is_pure() {
        return false;
    }
    if let Expression::Test(test) = expression {
        narrow_by(test, *needed, filter);
    }
    true
}

fn narrow_by(test: &Test, needed: Needs, filter: &mut ScanFilter) {
    match test {
        // That the attributes of others cannot be had has been told by now.
        Test::Name(_) | Test::Type(_) if needed > Needs::Name => {}
        Test::Name(pattern) => {
            let (begin, end) = pattern.ends();
            if begin.len() > filter.name_begin.len() {
                filter.name_begin = begin.to_vec();
            }
            if end.len() > filter.name_end.len() {
                filter.name_end = end.to_vec();
            }
        }
        Test::Type(kinds) => filter.narrow_types(kinds),
        Test::Size(count, unit) => {
            if let Some(sizes) = sizes(*count, *unit) {
                filter.narrow_size(sizes);
            }
        }
        Test::Uid(Comparison::Exactly(uid)) => filter.uid = u32::try_from(*uid).ok().or(filter.uid),
        Test::Gid(Comparison::Exactly(gid)) => filter.gid = u32::try_from(*gid).ok().or(filter.gid),
        Test::Age { of, age, now } => {
            let now = i128::from(now.secs) * SECOND + i128::from(now.nanos);
            let (youngest, oldest) = age.bounds();
            let from = oldest.map_or(i128::MIN, |age| now.saturating_sub(age));
            let to = youngest.map_or(i128::MAX, |age| now.saturating_sub(age));
            narrow_time(*of, (timestamp(from), timestamp(to)), filter);
        }
        Test::Newer { of, than } => narrow_time(*of, (*than, timestamp(i128::MAX)), filter),
        _ => {}
    }
}

/// Sizes that are so many units, rounded up.
fn sizes(count: Comparison, Unit(unit): Unit) -> Option<(u64, u64)> {
    match count {
        Comparison::Exactly(0) => Some((0, 0)),
        Comparison::Exactly(n) => Some(((n - 1).checked_mul(unit)? + 1, n.checked_mul(unit)?)),
        Comparison::More(n) => Some((n.checked_mul(unit)?.checked_add(1)?, u64::MAX)),
        Comparison::Less(0) => None,
        Comparison::Less(n) => Some((0, (n - 1).checked_mul(unit)?)),
    }
}

fn narrow_time(of: TimeOf, times: (Timestamp, Timestamp), filter: &mut ScanFilter) {
    match of {
        TimeOf::Data => filter.narrow_mtime(times),
        TimeOf::Inode => filter.narrow_ctime(times),
        // Clients may tell it later, and it is shown as they have told it.
        TimeOf::Access => {}
    }
}

fn timestamp(nanos: i128) -> Timestamp {
    let secs = nanos.div_euclid(SECOND);
    let nanos = nanos.rem_euclid(SECOND) as u32;
    match i64::try_from(secs) {
        Ok(secs) => Timestamp { secs, nanos },
        Err(_) if secs < 0 => Timestamp { secs: i64::MIN, nanos: 0 },
        Err(_) => Timestamp { secs: i64::MAX, nanos: 999_999_999 },
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::entry::tests::entry;
    use super::super::super::expression::parse;
    use super::super::super::test::Applied;
    use super::*;
    use crate::cmd::tree::Names;
    use std::ffi::OsString;

    fn expression(words: &str) -> Expression {
        let words: Vec<OsString> = words.split_whitespace().map(OsString::from).collect();
        parse(&words, Timestamp { secs: 1_000_000, nanos: 5 }, false).unwrap().expression
    }

    #[test]
    fn what_has_an_effect_is_not_left_out() {
        for words in [
            "",
            "-true",
            "-size 1 -o -type f",
            "-print -size 1",
            "! -size 1",
            "-name *",
            "-prune -o -size 1",
            "-iname a.c",
            "-name [a].[c]",
            "-atime 1",
            "-size 1 , -print",
            "-nouser -size 1",
            "-xattr a -name a",
            "-ost 1 -uid 3",
            "! -lname a -size 1",
        ] {
            assert_eq!(of(&expression(words)), None, "{words}");
        }
        for words in [
            "-size 1",
            "-type f -size +1M -print -name a",
            "( -uid 3 -o -uid 4 ) -gid 1",
            "-true ( -name *.c -mtime +1 ) -exec rm {} ;",
            "-newermt @7",
            "-gid 7 -nouser -ls",
            "( -name a -o -name b ) -type f",
        ] {
            assert_ne!(of(&expression(words)), None, "{words}");
        }
        let filter = of(&expression("-size 1 -name a* -type f")).unwrap();
        assert_eq!(
            (filter.types, &filter.name_begin[..]),
            (u16::MAX, &b""[..]),
            "it may have failed"
        );
        let filter = of(&expression("-name a*.tar.gz -print -name b*")).unwrap();
        assert_eq!((&filter.name_begin[..], &filter.name_end[..]), (&b"a"[..], &b".tar.gz"[..]));
    }

    /// All files of some sizes, times, names and types, with all of these expressions.
    #[test]
    fn what_an_expression_finds_is_listed() {
        let expressions = [
            "-size 0",
            "-size 1",
            "-size -1",
            "-size -2",
            "-size +0",
            "-size +1",
            "-size 3c",
            "-size +512c",
            "-size -1M",
            "-size 1M",
            "-mtime 1",
            "-mtime +1",
            "-mtime -1",
            "-mmin 3",
            "-mmin +3",
            "-mmin -3",
            "-mtime 0",
            "-mtime 0.5",
            "-ctime +0",
            "-ctime -9",
            "-newermt @900000",
            "-newercm /",
            "-uid 3",
            "-gid 4",
            "-uid +3",
            "-name a*",
            "-name *.c",
            "-name a.c",
            "-name [a]*c",
            "-name \\a*",
            "-name *\\c",
            "-name ?.c",
            "-name a[",
            "-name *]",
            "-type f",
            "-type f,l",
            "-type d",
            "-size 18446744073709551615M",
        ];
        let (mut found, mut left_out) = (0, 0);
        let sizes = [0, 1, 3, 511, 512, 513, 1 << 20, (1 << 20) + 1];
        let times = [
            0, 1, 179, 180, 181, 239, 240, 86_399, 86_400, 86_401, 172_799, 172_800, 172_801,
            999_999,
        ];
        for words in expressions {
            let expression = expression(words);
            let filter = of(&expression).unwrap_or_default();
            for (number, name) in
                [&b"a.c"[..], b"b.c", b"a", b"[", b"a[", b"]", b"\\a", b"c"].iter().enumerate()
            {
                let mode = [libc::S_IFREG, libc::S_IFLNK, libc::S_IFDIR][number % 3];
                for (size, age) in sizes.iter().flat_map(|size| times.map(|age| (*size, age))) {
                    let mut entry = entry(name, mode | 0o644);
                    let attr = entry.attr.as_mut().unwrap();
                    let time = Timestamp { secs: 1_000_000 - age, nanos: 5 };
                    (attr.size, attr.mtime, attr.ctime) = (size, time, time);
                    (attr.uid, attr.gid) = (number as u32, number as u32);
                    let kind = (mode >> 12) as u8;
                    let is_listed = filter.wants_name(name, kind) && filter.wants(attr);
                    let mut outcome = Applied::default();
                    let holds = expression.apply(&entry, &Names::default(), &mut outcome);
                    assert!(is_listed || holds == Ok(false), "{words}: {name:?} {size} {age}");
                    found += usize::from(holds == Ok(true));
                    left_out += usize::from(!is_listed);
                }
            }
        }
        assert!(found > 1000 && left_out > 5000, "{found} {left_out}");
    }
}
