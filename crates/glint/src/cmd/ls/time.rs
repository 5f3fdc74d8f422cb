//! Times as ls(1) shows them.

use crate::cmd::tree::c_library::date;
use glint_proto::Timestamp;
use std::ffi::CString;

/// Half of a year in the Gregorian calendar: times before that have another format, and so have those
/// of the future.
const RECENT_SECS: i64 = 31_556_952 / 2;

/// Formats of strftime(3), of which `%N` is the nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LsTimes {
    old: Vec<u8>,
    recent: Vec<u8>,
}

impl LsTimes {
    /// Parses a word after `--time-style`.
    pub(super) fn parse(word: &str) -> Result<LsTimes, String> {
        let formats = |old: &str, recent: &str| LsTimes {
            old: old.as_bytes().to_vec(),
            recent: recent.as_bytes().to_vec(),
        };
        // What has this prefix is not for the C locale.
        let word = if word.starts_with("posix-") { "locale" } else { word };
        Ok(match word.strip_prefix('+') {
            Some(format) if format.contains('\0') => return Err("a format has no byte 0".into()),
            Some(format) => match format.split_once('\n') {
                Some((_, recent)) if recent.contains('\n') => {
                    return Err("a format has two lines at most".into());
                }
                Some((old, recent)) => formats(old, recent),
                None => formats(format, format),
            },
            None => match word {
                "full-iso" => formats("%Y-%m-%d %H:%M:%S.%N %z", "%Y-%m-%d %H:%M:%S.%N %z"),
                "long-iso" => formats("%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M"),
                "iso" => formats("%Y-%m-%d ", "%m-%d %H:%M"),
                "locale" => formats("%b %e  %Y", "%b %e %H:%M"),
                _ => return Err("say full-iso, long-iso, iso, locale or +FORMAT".into()),
            },
        })
    }

    /// Returns a time as it is seen now.
    pub(super) fn show(&self, time: Timestamp, now: Timestamp) -> Vec<u8> {
        let begin = Timestamp { secs: now.secs.saturating_sub(RECENT_SECS), nanos: now.nanos };
        let format = if begin < time && time < now { &self.recent } else { &self.old };
        let format = with_nanoseconds(format, time.nanos);
        // A format has no byte 0, and digits are put into it.
        CString::new(format).map_or_else(|_| Vec::new(), |format| date(time, &format))
    }

    /// How many columns a time takes.
    pub(super) fn columns(&self) -> usize {
        // Like ls(1), of the first day of the era in the format of old ones: `?` is that wide.
        self.show(Timestamp { secs: 0, nanos: 0 }, Timestamp { secs: i64::MAX, nanos: 0 }).len()
    }
}

/// Puts nanoseconds into a format.
fn with_nanoseconds(format: &[u8], nanos: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(format.len() + 8);
    let mut rest = format;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at..];
        let columns = rest[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if rest.get(columns + 1) != Some(&b'N') {
            // Of `%%` both bytes.
            let (directive, after) = rest.split_at(rest.len().min(2));
            out.extend_from_slice(directive);
            rest = after;
            continue;
        }
        let columns = String::from_utf8_lossy(&rest[1..=columns]).parse().map_or(9, |n: usize| n);
        let digits = format!("{nanos:09}");
        out.extend_from_slice(&digits.as_bytes()[..columns.clamp(1, 9)]);
        rest = &rest[1 + rest[1..].iter().position(|byte| *byte == b'N').map_or(0, |at| at + 1)..];
    }
    out.extend_from_slice(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_formats_of_ls() {
        let at = |secs| Timestamp { secs, nanos: 123_456_789 };
        let shown = |word: &str, time, now| {
            String::from_utf8(LsTimes::parse(word).unwrap().show(time, now)).unwrap()
        };
        for (word, recent, old) in [
            ("locale", "Jan 24 03:33", "Jan 24  1970"),
            ("posix-iso", "Jan 24 03:33", "Jan 24  1970"),
            ("iso", "01-24 03:33", "1970-01-24 "),
            ("long-iso", "1970-01-24 03:33", "1970-01-24 03:33"),
            ("+%s%%N.%3N|%N", "2000000%N.123|123456789", "2000000%N.123|123456789"),
            ("+%Y\n%d", "24", "1970"),
            ("+", "", ""),
        ] {
            assert_eq!(shown(word, at(2_000_000), at(2_000_001)), recent, "{word}");
            assert_eq!(shown(word, at(2_000_000), at(2_000_000 + RECENT_SECS)), old, "{word}");
            assert_eq!(shown(word, at(2_000_000), at(1_999_999)), old, "{word}");
        }
        for wrong in ["", "now", "+a\nb\nc"] {
            LsTimes::parse(wrong).unwrap_err();
        }
    }
}
