//! A line of -ls, as find(1) and `ls -dils` print it.

use super::entry::{Entry, Missing};
use super::print::target;
use crate::cmd::tree::Names;
use crate::cmd::tree::c_library::date;
use crate::cmd::tree::show::symbolic;
use glint_proto::{Attr, FileType, Timestamp};

/// Six months: dates that are further from now have a year in the place of the hour, and so have
/// those of the future, but for an hour.
const RECENT_SECS: i64 = 6 * 30 * 24 * 3600;
const AHEAD_SECS: i64 = 3600;

/// Adds the line of a file.
pub(super) fn line(
    entry: &Entry,
    names: &Names,
    now: Timestamp,
    out: &mut Vec<u8>,
) -> Result<(), Missing> {
    let attr = entry.attr()?;
    let target = target(entry)?;
    let text = format!(
        "{:>9} {:>6} {} {:>3} ",
        attr.ino.0,
        attr.blocks.div_ceil(2),
        symbolic(attr.mode),
        attr.nlink,
    );
    out.extend_from_slice(text.as_bytes());
    for name in [names.shown_user(attr.uid), names.shown_group(attr.gid)] {
        let fill = 8usize.saturating_sub(name.len());
        out.extend_from_slice(&name);
        out.resize(out.len() + fill + 1, b' ');
    }
    out.extend_from_slice(size(attr).as_bytes());
    let age = now.secs - attr.mtime.secs;
    let format =
        if (-AHEAD_SECS..=RECENT_SECS).contains(&age) { c"%b %e %H:%M" } else { c"%b %e  %Y" };
    out.extend_from_slice(&date(attr.mtime, format));
    out.push(b' ');
    escape(&entry.path, out);
    if FileType::from_mode(attr.mode) == Some(FileType::Symlink) {
        out.extend_from_slice(b" -> ");
        escape(target, out);
    }
    out.push(b'\n');
    Ok(())
}

/// Size, or the numbers of a device.
fn size(attr: &Attr) -> String {
    match FileType::from_mode(attr.mode) {
        Some(FileType::BlockDevice | FileType::CharDevice) => {
            let device = attr.rdev.into();
            format!("{:>3}, {:>3} ", libc::major(device), libc::minor(device))
        }
        _ => format!("{:>8} ", attr.size),
    }
}

/// Adds a name so that a line has one.
fn escape(name: &[u8], out: &mut Vec<u8>) {
    for &byte in name {
        let letter = match byte {
            b'\n' => b'n',
            b'\x08' => b'b',
            b'\r' => b'r',
            b'\t' => b't',
            b'\x0c' => b'f',
            b'\\' | b' ' | b'"' => byte,
            b'!'..=b'~' => {
                out.push(byte);
                continue;
            }
            _ => {
                out.extend_from_slice(format!("\\{byte:03o}").as_bytes());
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', letter]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::tests::entry;
    use super::*;

    #[test]
    fn lines_are_those_of_find() {
        let mut file = entry(b"d/a b\xe4\"\n", libc::S_IFREG | 0o644);
        let at = |secs| Timestamp { secs, nanos: 0 };
        let shown = |entry: &Entry, now| {
            let mut out = Vec::new();
            line(entry, &Names::default(), at(now), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let begin = "       77      2 -rw-r--r--   1 root     root         1000 Jan 24 ";
        assert_eq!(shown(&file, 2_000_000), format!("{begin}03:33 d/a\\ b\\344\\\"\\n\n"));
        assert_eq!(shown(&file, 20_000_000), format!("{begin} 1970 d/a\\ b\\344\\\"\\n\n"));
        let attr = file.attr.as_mut().unwrap();
        (attr.mode, attr.rdev) = (libc::S_IFCHR | 0o600, libc::makedev(1, 3) as u32);
        assert!(shown(&file, 2_000_000).contains(" root       1,   3 Jan"), "{}", shown(&file, 0));
        let link = entry(b"l", libc::S_IFLNK | 0o777);
        assert_eq!(line(&link, &Names::default(), at(0), &mut Vec::new()), Err(Missing::Target));
    }
}
