//! How files are printed: the formats of -printf, and JSON.

use super::entry::{Entry, Missing};
use crate::cmd::tree::Names;
use crate::cmd::tree::c_library::{date, short};
use crate::cmd::tree::show::{TimeOf, json_row, letter_of, symbolic};
use glint_proto::{Attr, FileType, Timestamp};
use std::ffi::CStr;

/// Columns of a directive, at most.
const WIDTH_MAX: usize = 4096;

/// A format of -printf.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Format(Vec<Part>);

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Text(Vec<u8>),
    Field(Field, Shape),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    /// A directive of one letter.
    Letter(u8),
    /// A time, as a whole.
    Time(TimeOf),
    /// A part of a time.
    TimePart(TimeOf, u8),
}

impl Format {
    /// Parses a format; an error names the directive.
    pub(super) fn parse(text: &[u8]) -> Result<Format, String> {
        let mut parts = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            match byte {
                b'\\' => match escape(&mut rest) {
                    Some(byte) => plain.push(byte),
                    // \c: nothing is printed any more.
                    None if rest.first() == Some(&b'c') => break,
                    None => plain.push(b'\\'),
                },
                b'%' if rest.first() == Some(&b'%') => {
                    plain.push(b'%');
                    rest = &rest[1..];
                }
                b'%' => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(field(&mut rest)?);
                }
                _ => plain.push(byte),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Format(parts))
    }

    /// Whether targets of symbolic links are printed.
    pub(super) fn shows_targets(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Field(Field::Letter(b'l'), _)))
    }

    /// Prints a file.
    pub(super) fn print(
        &self,
        entry: &Entry,
        names: &Names,
        out: &mut Vec<u8>,
    ) -> Result<(), Missing> {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Field(field, shape) => {
                    let (value, number) = field.value(entry, names)?;
                    shape.print(value, number, out);
                }
            }
        }
        Ok(())
    }
}

/// A number that printf(3) prints as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Number {
    Decimal,
    Octal,
}

/// Flags, width and precision of a directive.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Shape {
    flags: Vec<u8>,
    width: usize,
    precision: Option<usize>,
}

impl Shape {
    fn has(&self, flag: u8) -> bool {
        self.flags.contains(&flag)
    }

    fn print(&self, mut value: Vec<u8>, number: Option<Number>, out: &mut Vec<u8>) {
        let mut sign: &[u8] = b"";
        match number {
            None => value.truncate(self.precision.unwrap_or(value.len())),
            Some(number) => {
                match number {
                    Number::Decimal if self.has(b'+') => sign = b"+",
                    Number::Decimal if self.has(b' ') => sign = b" ",
                    Number::Octal if self.has(b'#') && !value.starts_with(b"0") => {
                        value.insert(0, b'0');
                    }
                    _ => {}
                }
                let filled = self.has(b'0') && !self.has(b'-');
                let digits = match self.precision {
                    None if filled => self.width.saturating_sub(sign.len()),
                    precision => precision.unwrap_or(0),
                };
                let zeros = digits.saturating_sub(value.len());
                value.splice(0..0, sign.iter().copied().chain(std::iter::repeat_n(b'0', zeros)));
            }
        }
        let fill = self.width.saturating_sub(value.len());
        let (before, after) = if self.has(b'-') { (0, fill) } else { (fill, 0) };
        out.resize(out.len() + before, b' ');
        out.extend_from_slice(&value);
        out.resize(out.len() + after, b' ');
    }
}

/// Takes an escape after its backslash; `None`, and nothing is taken, if it is none or \c.
fn escape(rest: &mut &[u8]) -> Option<u8> {
    let octal = rest.iter().take(3).take_while(|byte| (b'0'..=b'7').contains(byte)).count();
    let (byte, len) = match rest.first()? {
        b'a' => (7, 1),
        b'b' => (8, 1),
        b'f' => (12, 1),
        b'n' => (b'\n', 1),
        b'r' => (b'\r', 1),
        b't' => (b'\t', 1),
        b'v' => (11, 1),
        b'\\' => (b'\\', 1),
        b'0'..=b'7' => {
            let value =
                rest[..octal].iter().fold(0u32, |all, byte| all * 8 + u32::from(byte - b'0'));
            (value as u8, octal)
        }
        _ => return None,
    };
    *rest = &rest[len..];
    Some(byte)
}

/// Takes a directive after its percent sign.
fn field(rest: &mut &[u8]) -> Result<Part, String> {
    let mut after: &[u8] = rest;
    let count = after.iter().take_while(|byte| b"-+ #0".contains(byte)).count();
    let flags = after[..count].to_vec();
    after = &after[count..];
    let width = columns(&mut after)?.unwrap_or(0);
    let precision = match after.strip_prefix(b".") {
        Some(digits) => {
            after = digits;
            Some(columns(&mut after)?.unwrap_or(0))
        }
        None => None,
    };
    let mut take = |count: usize| {
        *rest = &after[count..];
    };
    let of = |letter: u8| match letter.to_ascii_lowercase() {
        b'a' => TimeOf::Access,
        b'c' => TimeOf::Inode,
        _ => TimeOf::Data,
    };
    let what = match after {
        [letter @ (b'a' | b'c' | b't'), ..] => {
            take(1);
            Field::Time(of(*letter))
        }
        [letter @ (b'A' | b'C' | b'T'), part, ..]
            if b"@+YymdjHIMSTpaAbBhUWwZkleDFGgVuPRCczsntrxX".contains(part) =>
        {
            take(2);
            Field::TimePart(of(*letter), *part)
        }
        [letter, ..] if b"pfhPHdsbkmMniuUgGylFS".contains(letter) => {
            take(1);
            Field::Letter(*letter)
        }
        [] => return Err("-printf: the format ends within a directive".into()),
        _ => {
            let len = if b"ACT".contains(&after[0]) { 2 } else { 1 };
            let shown = String::from_utf8_lossy(&after[..len.min(after.len())]);
            return Err(format!("-printf: %{shown} is no directive of this command"));
        }
    };
    Ok(Part::Field(what, Shape { flags, width, precision }))
}

/// Takes a number of columns.
fn columns(rest: &mut &[u8]) -> Result<Option<usize>, String> {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, after) = rest.split_at(digits);
    *rest = after;
    if digits == 0 {
        return Ok(None);
    }
    let columns = String::from_utf8_lossy(number).parse().ok();
    let columns = columns.filter(|columns| *columns <= WIDTH_MAX);
    columns.map(Some).ok_or_else(|| format!("-printf: a width is at most {WIDTH_MAX}"))
}

impl Field {
    /// The value, and how it is a number.
    fn value(self, entry: &Entry, names: &Names) -> Result<(Vec<u8>, Option<Number>), Missing> {
        let letter = match self {
            Field::Letter(letter) => letter,
            Field::Time(of) => return Ok((whole_time(of.of(entry.attr()?)), None)),
            Field::TimePart(of, part) => {
                return Ok((part_of_time(of.of(entry.attr()?), part), None));
            }
        };
        let attr = || entry.attr();
        let bytes = match letter {
            b'p' => entry.path.clone(),
            b'f' => entry.shown_name(),
            b'h' => entry.parent().to_vec(),
            b'P' => entry.below().to_vec(),
            b'H' => entry.path[..entry.start].to_vec(),
            b'M' => symbolic(attr()?.mode).into_bytes(),
            b'u' => names.shown_user(attr()?.uid).to_vec(),
            b'g' => names.shown_group(attr()?.gid).to_vec(),
            b'y' => vec![letter_of(entry.kind()?)],
            b'l' => target(entry)?.to_vec(),
            b'F' => glint_mount::FS_TYPE.into(),
            b'S' => match attr()? {
                Attr { size: 0, blocks: 0, .. } => short(1.0),
                Attr { size, blocks, .. } => short(*blocks as f64 * 512.0 / *size as f64),
            },
            number => {
                let text = match number {
                    b'd' => entry.depth.to_string(),
                    b's' => attr()?.size.to_string(),
                    b'b' => attr()?.blocks.to_string(),
                    b'k' => attr()?.blocks.div_ceil(2).to_string(),
                    b'm' => format!("{:o}", attr()?.mode & 0o7777),
                    b'n' => attr()?.nlink.to_string(),
                    b'i' => entry.ino()?.0.to_string(),
                    b'U' => attr()?.uid.to_string(),
                    _ => attr()?.gid.to_string(),
                };
                // find(1) prints all of these but %d and %m as text.
                let kind = match number {
                    b'd' => Some(Number::Decimal),
                    b'm' => Some(Number::Octal),
                    _ => None,
                };
                return Ok((text.into_bytes(), kind));
            }
        };
        Ok((bytes, None))
    }
}

/// Target of a symbolic link; nothing for other files.
pub(super) fn target(entry: &Entry) -> Result<&[u8], Missing> {
    match FileType::from_mode(entry.attr()?.mode) {
        Some(FileType::Symlink) => entry.facts.target.as_deref().ok_or(Missing::Target),
        _ => Ok(b""),
    }
}

/// Nanoseconds as find(1) shows them: with a tenth digit.
fn fraction(time: Timestamp) -> Vec<u8> {
    format!(".{:09}0", time.nanos).into_bytes()
}

fn with_fraction(time: Timestamp, before: &CStr, after: &CStr) -> Vec<u8> {
    [date(time, before), fraction(time), date(time, after)].concat()
}

fn whole_time(time: Timestamp) -> Vec<u8> {
    with_fraction(time, c"%a %b %e %H:%M:%S", c" %Y")
}

fn part_of_time(time: Timestamp, part: u8) -> Vec<u8> {
    match part {
        b'@' => [time.secs.to_string().into_bytes(), fraction(time)].concat(),
        b'+' => with_fraction(time, c"%Y-%m-%d+%H:%M:%S", c""),
        b'S' => with_fraction(time, c"%S", c""),
        b'T' | b'X' => with_fraction(time, c"%H:%M:%S", c""),
        _ => {
            let format = [b'%', part, 0];
            CStr::from_bytes_until_nul(&format).map_or(Vec::new(), |format| date(time, format))
        }
    }
}

/// Prints a file as a JSON object in a line.
pub(super) fn json(entry: &Entry, out: &mut Vec<u8>) -> Result<(), Missing> {
    let attr = entry.attr()?;
    let kind = entry.kind()?;
    let target = if kind == Some(FileType::Symlink) { Some(target(entry)?) } else { None };
    json_row(&entry.path, (kind, entry.ino, Some(attr)), target, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::*;
    use serde_json::json;

    fn printed(format: &[u8], entry: &Entry) -> String {
        let mut out = Vec::new();
        Format::parse(format).unwrap().print(entry, &Names::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn directives_and_escapes() {
        let file = entry(b"d/x", libc::S_IFREG | 0o4755);
        for (format, expected) in [
            (&b"%p %f %h %P %H %d"[..], "d/x x d x d 1"),
            (b"%s %b %k %n %i", "1000 3 2 1 77"),
            (b"%m %M %y %u %U", "4755 -rwsr-xr-x f root 0"),
            (b"[%6s][%-6s][%03d]%%", "[  1000][1000  ][001]%"),
            (b"a\\tb\\n\\101\\\\\\q", "a\tb\nA\\\\q"),
            (b"a\\cb", "a"),
            (b"%T@", "2000000.0000000050"),
            (b"%TA %Ta|%Cj|%AI%Ap", "Saturday Sat|035|01PM"),
            (b"%l", ""),
            (b"%+d|% d|%+5d|%-+4d|%+05d|%.3d", "+1| 1|   +1|+1  |+0001|001"),
            (b"%#m|%#6m|%.2p|%5.1p|%+s", "04755| 04755|d/|    d|1000"),
            (b"%S %F", "1.536 fuse.glint"),
        ] {
            assert_eq!(printed(format, &file), expected, "{}", String::from_utf8_lossy(format));
        }
        let link = entry(b"l", libc::S_IFLNK | 0o777);
        assert_eq!(
            Format::parse(b"%l").unwrap().print(&link, &Names::default(), &mut Vec::new()),
            Err(Missing::Target)
        );
        for wrong in [&b"%"[..], b"%q", b"%T", b"%Tq", b"%99999s"] {
            Format::parse(wrong).unwrap_err();
        }
    }

    #[test]
    fn json_keeps_names_and_targets_that_are_no_text() {
        let row = |entry: &Entry| -> serde_json::Value {
            let mut out = Vec::new();
            super::json(entry, &mut out).unwrap();
            serde_json::from_slice(&out).unwrap()
        };
        assert_eq!(row(&entry(b"d/\xff", libc::S_IFREG))["path_bytes"], json!(b"d/\xff"));
        let mut link = entry(b"l", libc::S_IFLNK | 0o777);
        link.facts.target = Some(b"../\xfe".to_vec());
        let shown = row(&link);
        assert_eq!(shown["target_bytes"], json!(b"../\xfe"));
        assert_eq!((&shown["target"], shown.get("path_bytes")), (&json!("../\u{fffd}"), None));
        link.facts.target = Some(b"text".to_vec());
        assert_eq!((&row(&link)["target"], row(&link).get("target_bytes")), (&json!("text"), None));
    }
}
