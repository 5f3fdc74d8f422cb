//! Lines of `glint du`, its errors, and how far it is.

use super::sum::Sum;
use super::threshold::Threshold;
use super::walk::{Refused, SumSink};
use crate::cmd::tree::c_library::date;
use crate::cmd::tree::size::SizeUnit;
use crate::cmd::tree::{Console, without_number};
use glint_proto::{Errno, Timestamp};
use serde_json::json;

/// Exit code of du(1) if anything could not be looked at.
const FAILED: u8 = 1;

/// How times are printed.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(super) enum TimeStyle {
    /// YYYY-MM-DD HH:MM:SS, nanoseconds and the time zone.
    FullIso,
    /// YYYY-MM-DD HH:MM.
    #[default]
    LongIso,
    /// YYYY-MM-DD.
    Iso,
}

impl TimeStyle {
    fn show(self, time: Timestamp) -> Vec<u8> {
        match self {
            TimeStyle::FullIso => {
                let nanos = format!(".{:09}", time.nanos).into_bytes();
                [date(time, c"%Y-%m-%d %H:%M:%S"), nanos, date(time, c" %z")].concat()
            }
            TimeStyle::LongIso => date(time, c"%Y-%m-%d %H:%M"),
            TimeStyle::Iso => date(time, c"%Y-%m-%d"),
        }
    }
}

/// What a line has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Style {
    pub(super) unit: SizeUnit,
    pub(super) apparent: bool,
    pub(super) inodes: bool,
    pub(super) threshold: Threshold,
    pub(super) times: Option<TimeStyle>,
    pub(super) json: bool,
    /// Byte after a line.
    pub(super) end: u8,
}

impl Style {
    fn number(&self, sum: &Sum) -> u64 {
        match (self.inodes, self.apparent) {
            (true, _) => sum.inodes,
            (false, true) => sum.apparent,
            (false, false) => sum.allocated,
        }
    }

    /// Returns a line; `path` is `None` for the total.
    fn line(&self, path: Option<&[u8]>, sum: &Sum) -> Vec<u8> {
        if self.json {
            return self.row(path, sum);
        }
        let mut line = self.unit.show(self.number(sum)).into_bytes();
        if let Some(style) = self.times {
            line.push(b'\t');
            line.extend_from_slice(&style.show(sum.latest));
        }
        line.push(b'\t');
        line.extend_from_slice(path.unwrap_or(b"total"));
        line.push(self.end);
        line
    }

    /// Returns a line with a JSON object. A path that is not UTF-8 is in `path_bytes`, too.
    fn row(&self, path: Option<&[u8]>, sum: &Sum) -> Vec<u8> {
        let mut row =
            json!({ "allocated": sum.allocated, "size": sum.apparent, "inodes": sum.inodes });
        match path {
            Some(path) => {
                row["path"] = json!(String::from_utf8_lossy(path));
                if std::str::from_utf8(path).is_err() {
                    row["path_bytes"] = json!(path);
                }
            }
            None => row["total"] = json!(true),
        }
        if self.times.is_some() && sum.inodes > 0 {
            row["time"] = json!(format!("{}.{:09}", sum.latest.secs, sum.latest.nanos));
        }
        let mut row = row.to_string().into_bytes();
        row.push(b'\n');
        row
    }
}

/// Prints lines and errors.
pub(super) struct DuReport {
    style: Style,
    pub(super) console: Console,
}

impl DuReport {
    pub(super) fn new(style: Style) -> DuReport {
        DuReport { style, console: Console::new("du", 1) }
    }

    pub(super) fn say(&self, why: &str) {
        self.console.say(FAILED, why);
    }

    pub(super) fn total(&self, sum: &Sum) {
        self.console.put(&self.style.line(None, sum));
    }
}

impl SumSink for DuReport {
    fn line(&self, path: &[u8], sum: &Sum) {
        if self.style.threshold.holds(self.style.number(sum)) {
            self.console.put(&self.style.line(Some(path), sum));
        }
    }

    fn fail(&self, refused: Refused, path: &[u8], error: Errno) {
        let what = match refused {
            Refused::Access => "cannot access",
            Refused::Read => "cannot read directory",
        };
        let (path, error) = (String::from_utf8_lossy(path), error.to_string());
        self.say(&format!("{what} '{path}': {}", without_number(&error)));
    }

    fn progress(&self, files: u64) {
        self.console.progress(files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style() -> Style {
        Style {
            unit: SizeUnit::Blocks(1024),
            apparent: false,
            inodes: false,
            threshold: Threshold::AtLeast(0),
            times: None,
            json: false,
            end: b'\n',
        }
    }

    #[test]
    fn a_line_has_what_was_asked_for() {
        let latest = Timestamp { secs: 5, nanos: 7 };
        let sum = Sum { allocated: 5000, apparent: 70_000, inodes: 3, latest };
        for (style, expected) in [
            (style(), &b"5\ta\xff\n"[..]),
            (Style { apparent: true, end: 0, ..style() }, b"69\ta\xff\0"),
            (Style { inodes: true, unit: SizeUnit::Blocks(1), ..style() }, b"3\ta\xff\n"),
        ] {
            assert_eq!(style.line(Some(b"a\xff"), &sum), expected);
        }
        let style = Style { json: true, times: Some(TimeStyle::Iso), ..style() };
        let row: serde_json::Value =
            serde_json::from_slice(&style.line(Some(b"a\xff"), &sum)).unwrap();
        assert_eq!((&row["allocated"], &row["inodes"]), (&json!(5000), &json!(3)));
        assert_eq!((&row["path_bytes"], &row["time"]), (&json!(b"a\xff"), &json!("5.000000007")));
        let total: serde_json::Value = serde_json::from_slice(&style.line(None, &sum)).unwrap();
        assert_eq!((&total["total"], total.get("path")), (&json!(true), None));
    }
}
