//! Attributes as find(1) and ls(1) show them.

use glint_proto::{Attr, FileType, Ino, Timestamp};
use serde_json::json;

/// One of the times of an inode.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(in crate::cmd) enum TimeOf {
    Access,
    #[default]
    Data,
    Inode,
}

impl TimeOf {
    /// Parses a word of ls(1) and du(1) after --time.
    pub(in crate::cmd) fn parse(word: &str) -> Result<TimeOf, String> {
        match word {
            "mtime" | "modification" => Ok(TimeOf::Data),
            "atime" | "access" | "use" => Ok(TimeOf::Access),
            "ctime" | "status" => Ok(TimeOf::Inode),
            _ => Err("say mtime, atime or ctime".into()),
        }
    }

    pub(in crate::cmd) fn of(self, attr: &Attr) -> Timestamp {
        match self {
            TimeOf::Access => attr.atime,
            TimeOf::Data => attr.mtime,
            TimeOf::Inode => attr.ctime,
        }
    }
}

/// The letter of a type, as find(1) has it.
pub(in crate::cmd) fn letter_of(kind: Option<FileType>) -> u8 {
    match kind {
        Some(FileType::Regular) => b'f',
        Some(FileType::Directory) => b'd',
        Some(FileType::Symlink) => b'l',
        Some(FileType::Fifo) => b'p',
        Some(FileType::Socket) => b's',
        Some(FileType::BlockDevice) => b'b',
        Some(FileType::CharDevice) => b'c',
        None => b'U',
    }
}

/// A mode as ls(1) shows it.
pub(in crate::cmd) fn symbolic(mode: u32) -> String {
    let kind = match letter_of(FileType::from_mode(mode)) {
        b'f' => '-',
        b'U' => '?',
        letter => letter.into(),
    };
    let mut text = String::from(kind);
    for (shift, special, with, without) in
        [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => with,
            (true, false) => without,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Prints a file as a JSON object in a line. Of a file whose attributes are not known it has less; a
/// path that is not UTF-8 is in `path_bytes`, too, and such a target in `target_bytes`.
pub(in crate::cmd) fn json_row(
    path: &[u8],
    (kind, ino, attr): (Option<FileType>, Ino, Option<&Attr>),
    target: Option<&[u8]>,
    out: &mut Vec<u8>,
) {
    let mut row = json!({
        "path": String::from_utf8_lossy(path),
        "type": char::from(letter_of(kind)).to_string(),
        "ino": ino.0,
    });
    if let Some(attr) = attr {
        let time = |time: Timestamp| json!(format!("{}.{:09}", time.secs, time.nanos));
        row["mode"] = json!(format!("{:04o}", attr.mode & 0o7777));
        row["links"] = json!(attr.nlink);
        row["uid"] = json!(attr.uid);
        row["gid"] = json!(attr.gid);
        row["size"] = json!(attr.size);
        row["allocated"] = json!(attr.blocks.saturating_mul(512));
        row["atime"] = time(attr.atime);
        row["mtime"] = time(attr.mtime);
        row["ctime"] = time(attr.ctime);
    }
    if std::str::from_utf8(path).is_err() {
        row["path_bytes"] = json!(path);
    }
    if let Some(target) = target {
        row["target"] = json!(String::from_utf8_lossy(target));
        if std::str::from_utf8(target).is_err() {
            row["target_bytes"] = json!(target);
        }
    }
    out.extend_from_slice(row.to_string().as_bytes());
    out.push(b'\n');
}
