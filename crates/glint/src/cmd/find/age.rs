//! Ages of files, and points in time, as words of an expression say them.

use crate::cmd::tree::c_library::local_time;
use glint_proto::Timestamp;
use std::cmp::Ordering;

const SECOND: i128 = 1_000_000_000;
/// Seconds of a day.
pub(super) const DAY: u64 = 86400;
/// Seconds of a minute.
pub(super) const MINUTE: u64 = 60;

/// An age in days or minutes: N, +N or -N, where N may have a fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AskedAge {
    /// Files of that age, older or younger ones.
    which: Ordering,
    nanos: i128,
    unit: i128,
}

impl AskedAge {
    /// Parses an age in units of [`DAY`] or [`MINUTE`].
    pub(super) fn parse(text: &str, unit: u64) -> Option<AskedAge> {
        let (which, number) = match text.as_bytes().first()? {
            b'+' => (Ordering::Greater, &text[1..]),
            b'-' => (Ordering::Less, &text[1..]),
            _ => (Ordering::Equal, text),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() + fraction.len() == 0 {
            return None;
        }
        let unit = i128::from(unit) * SECOND;
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let fraction: f64 = format!("0.{fraction}").parse().ok()?;
        let nanos = i128::from(whole) * unit + (fraction * unit as f64) as i128;
        Some(AskedAge { which, nanos, unit })
    }

    /// Ages of which it holds none that is less or more than these, in nanoseconds.
    pub(super) fn bounds(self) -> (Option<i128>, Option<i128>) {
        let AskedAge { which, nanos, unit } = self;
        let youngest = nanos - unit;
        match which {
            Ordering::Equal => (Some(youngest), Some(nanos + unit)),
            Ordering::Greater => (Some(youngest), None),
            Ordering::Less => (None, Some(nanos + SECOND)),
        }
    }

    /// Whether it is the age of a file, in nanoseconds, as find(1) counts: a file is N days old for
    /// a day from then on, and N minutes for a minute until then; less than a day gets a second more.
    pub(super) fn holds(self, age: i128) -> bool {
        let AskedAge { which, nanos, unit } = self;
        let is_minutes = unit == i128::from(MINUTE) * SECOND;
        let from = if is_minutes { nanos - unit } else { nanos };
        match which {
            Ordering::Equal => (from..from + unit).contains(&age),
            Ordering::Greater => age > from + unit,
            Ordering::Less => age < nanos + if is_minutes { 0 } else { SECOND },
        }
    }
}

/// A point in time: @SECONDS, or YYYY-MM-DD, which HH:MM or HH:MM:SS may follow after a space or a T;
/// in local time, or with a Z in that of Greenwich. Seconds may have a fraction.
pub(super) fn point_in_time(text: &str) -> Option<Timestamp> {
    if let Some(seconds) = text.strip_prefix('@') {
        let (seconds, nanos) = with_fraction(seconds)?;
        return Some(Timestamp { secs: seconds, nanos });
    }
    let (text, is_utc) = match text.strip_suffix('Z') {
        Some(text) => (text, true),
        None => (text, false),
    };
    let (day, time) = text.split_once([' ', 'T']).unwrap_or((text, "00:00"));
    let mut day = day.splitn(3, '-').map(|part| number(part, 4));
    let (year, month, day) = (day.next()??, day.next()??, day.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (number(time.next()?, 2)?, number(time.next()?, 2)?);
    let (second, nanos) = with_fraction(time.next().unwrap_or("0"))?;
    let is_there = (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && (0..=60).contains(&second);
    let secs = is_there
        .then(|| local_time([year, month, day, hour, minute, second as i32], is_utc))
        .flatten()?;
    Some(Timestamp { secs, nanos })
}

fn number(text: &str, digits_max: usize) -> Option<i32> {
    let is_number = (1..=digits_max).contains(&text.len());
    (is_number && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// Seconds, and nanoseconds of their fraction.
fn with_fraction(text: &str) -> Option<(i64, u32)> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(fraction) || !is_number(seconds.strip_prefix('-').unwrap_or(seconds)) {
        return None;
    }
    let (seconds, nanos) =
        (seconds.parse::<i64>().ok()?, format!("{fraction:0<9}")[..9].parse().ok()?);
    // Before 1970 a fraction leads further back.
    match text.starts_with('-') && nanos > 0 {
        true => Some((seconds - 1, 1_000_000_000 - nanos)),
        false => Some((seconds, nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_counted_as_find_does() {
        for (tenths, unit, asked, expected) in [
            (0, DAY, "0", true),
            (863_990, DAY, "0", true),
            (864_000, DAY, "1", true),
            (864_010, DAY, "+0", true),
            (863_990, DAY, "+0", false),
            (864_005, DAY, "-1", true),
            (864_015, DAY, "-1", false),
            (3, DAY, "-0", true),
            (1_295_995, DAY, "+0.5", false),
            (1_296_005, DAY, "+0.5", true),
            (432_005, DAY, "-.5", true),
            (432_015, DAY, "-0.5", false),
            (300, MINUTE, "1", true),
            (600, MINUTE, "1", false),
            (610, MINUTE, "+1", true),
            (590, MINUTE, "-1", true),
            (605, MINUTE, "-1", false),
            (895, MINUTE, "+1.5", false),
            (905, MINUTE, "+1.5", true),
        ] {
            let found = AskedAge::parse(asked, unit).unwrap().holds(tenths * SECOND / 10);
            assert_eq!(found, expected, "{tenths} {unit} {asked}");
        }
        for wrong in ["", "+", ".", "1.5.2", "1e1", "+-1", "x", "99999999999999999999"] {
            assert_eq!(AskedAge::parse(wrong, DAY), None, "{wrong}");
        }
    }

    #[test]
    fn points_in_time_are_dates_or_seconds() {
        for (text, secs, nanos) in [
            ("@5", 5, 0),
            ("@-1.5", -2, 500_000_000),
            ("1970-01-02Z", 86400, 0),
            ("2020-02-03T04:05:06.789Z", 1_580_702_706, 789_000_000),
            ("2020-02-03 04:05Z", 1_580_702_700, 0),
        ] {
            assert_eq!(point_in_time(text), Some(Timestamp { secs, nanos }), "{text}");
        }
        assert!(point_in_time("2020-02-03").is_some());
        for wrong in
            ["", "@", "@x", "2020", "2020-13-01", "2020-01-01 25:00", "2020-01-01 1", "now"]
        {
            assert_eq!(point_in_time(wrong), None, "{wrong}");
        }
    }
}
