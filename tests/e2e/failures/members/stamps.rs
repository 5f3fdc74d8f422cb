//! Content that says of each part where it belongs and which change wrote it, so that what is found
//! in a wrong place or comes back from the past is known by name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// What shares a stamp's place: each of them has it several times.
const BLOCK: usize = 512;
/// Where stamps begin: at multiples of this.
pub(super) const STAMP: usize = 16;

/// Content of a part of a file, as a change of a number writes it.
pub(super) fn stamped(file: u32, change: u64, from: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| stamp(file, change, at / BLOCK)[at % STAMP];
    (from..from + len).map(byte).collect()
}

fn stamp(file: u32, change: u64, block: usize) -> [u8; STAMP] {
    // Never all zeros, as holes are: files and changes are counted from 1.
    let all = u128::from(file) << 96 | (block as u128) << 64 | u128::from(change);
    all.to_be_bytes()
}

/// What the stamp says in which a byte lies.
fn read_stamp(content: &[u8], at: usize) -> String {
    let begin = at / STAMP * STAMP;
    let Some(bytes) = content.get(begin..begin + STAMP) else {
        return format!("{:?}", &content[at.min(content.len())..]);
    };
    if bytes.iter().all(|byte| *byte == 0) {
        return "zeros".to_owned();
    }
    let all = u128::from_be_bytes(bytes.try_into().unwrap());
    let block = all >> 64 & 0xffff_ffff;
    format!("file {} block {block} change {}", all >> 96, all & u128::from(u64::MAX))
}

/// How what was found differs from what must be there, from an offset of a file on, where a stamp
/// begins; nothing if it is the same.
pub(super) fn difference(expected: &[u8], found: &[u8], offset: usize) -> Option<String> {
    if expected == found {
        return None;
    }
    let both = expected.iter().zip(found);
    let at = both.clone().position(|(one, other)| one != other);
    let wrong = both.filter(|(one, other)| one != other).count();
    let (there, wanted) = (found.len(), expected.len());
    let sizes = format!("{there} bytes from {offset} on instead of {wanted}");
    Some(match at {
        None => sizes,
        Some(at) => format!(
            "{sizes}, {wrong} wrong from {} on: {} instead of {}",
            offset + at,
            read_stamp(found, at),
            read_stamp(expected, at)
        ),
    })
}

/// A whole file from the servers, around what the kernel of this host has.
pub(super) fn read_around(path: &Path) -> std::io::Result<Vec<u8>> {
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path)?;
    read_from(&file, 0, usize::MAX)
}

/// Reads so much, or to the end of a file.
pub(super) fn read_from(file: &File, offset: usize, len: usize) -> std::io::Result<Vec<u8>> {
    let mut found = Vec::new();
    let mut part = vec![0; 128 << 10];
    while found.len() < len {
        let wanted = part.len().min(len - found.len());
        match file.read_at(&mut part[..wanted], (offset + found.len()) as u64)? {
            0 => break,
            n => found.extend_from_slice(&part[..n]),
        }
    }
    Ok(found)
}
