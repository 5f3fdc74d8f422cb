//! Paths with any characters: the directory of the build may have spaces and quotes in its name.

use super::text;
use std::fs;
use std::path::{Path, PathBuf};

/// Quotes a path for a shell.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", text(path).replace('\'', r"'\''"))
}

/// Characters that fstab(5) and /proc/mounts write as octal numbers, because they end a field.
const ESCAPED: [(char, &str); 5] =
    [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012"), ('#', "\\043")];

/// Writes a path as a field of fstab(5).
pub fn as_field(path: &Path) -> String {
    ESCAPED.iter().fold(text(path).to_owned(), |field, (plain, octal)| field.replace(*plain, octal))
}

/// Returns the line of /proc/mounts about the mount at a path.
pub fn mount_line(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let is_it = |line: &&str| line.split(' ').nth(1).is_some_and(|at| from_field(at) == path);
    mounts.lines().find(is_it).map(str::to_owned)
}

/// Reads a path from a field of /proc/mounts.
pub fn from_field(field: &str) -> PathBuf {
    // The backslash comes last: what it begins is no number any more.
    let read =
        |field: String, (plain, octal): &(char, &str)| field.replace(octal, &plain.to_string());
    ESCAPED.iter().rev().fold(field.to_owned(), read).into()
}
