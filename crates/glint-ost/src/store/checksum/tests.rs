//! Tests of checksums.

use super::*;
use crate::disk::DiskFile;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

fn file(len: usize) -> (std::fs::File, OwnedFd, Vec<u8>) {
    let data: Vec<u8> = (0..len).map(|i| ((i * 31) >> 3) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&data).unwrap();
    let same = file.try_clone().unwrap().into();
    (file, same, data)
}

#[test]
fn sums_survive_their_encoding_and_notice_a_flipped_bit() {
    for len in [0, 1, 65536, 65537, 40_000_000] {
        let (file, fd, data) = file(len);
        let sums = Sums::compute(|room, at| fd.read(room, at), len as u64, &[], None).unwrap();
        let value = sums.encode();
        assert!(value.len() <= 2048, "{}", value.len());
        let sums = Sums::decode(&value).unwrap();
        sums.check_all(|room, at| fd.read(room, at)).unwrap();
        sums.check_read(|room, at| fd.read(room, at), 0, &data).unwrap();
        for cut in 0..value.len() {
            assert!(Sums::decode(&value[..cut]).is_none());
        }
        if len > 0 {
            let at = len as u64 / 2;
            file.write_all_at(&[data[len / 2] ^ 4], at).unwrap();
            assert!(sums.check_all(|room, at| fd.read(room, at)).is_err());
            let fresh = Sums::decode(&value).unwrap();
            let byte = [data[len / 2] ^ 4];
            assert!(
                fresh.check_read(|room, at| fd.read(room, at), at, &byte).is_err(),
                "a small read, too"
            );
        }
    }
}

#[test]
fn what_was_checked_is_not_read_again() {
    let (file, fd, data) = file(100_000);
    let sums = Sums::compute(|room, at| fd.read(room, at), 100_000, &[], None).unwrap();
    sums.check_read(|room, at| fd.read(room, at), 0, &data[..10]).unwrap();
    file.write_all_at(&[!data[0]], 0).unwrap();
    sums.check_read(|room, at| fd.read(room, at), 0, &[!data[0]]).unwrap();
    assert!(sums.check_all(|room, at| fd.read(room, at)).is_err());
}

#[test]
fn blocks_are_checked_one_by_one_and_each_once() {
    let (file, fd, data) = file(200_000);
    let read = |room: &mut [u8], at| fd.read(room, at);
    let sums = Sums::compute(read, 200_000, &[], None).unwrap();
    assert_eq!(sums.unchecked_bytes(), 200_000);
    // The second block.
    sums.check_read(read, 1 << 16, &data[1 << 16..1 << 17]).unwrap();
    assert_eq!(sums.unchecked_bytes(), 200_000 - (1 << 16));
    assert!(sums.check_next(read).unwrap() && sums.check_next(read).unwrap());
    file.write_all_at(&[!data[199_999]], 199_999).unwrap();
    assert!(sums.check_next(read).is_err() && sums.check_next(read).is_err());
    file.write_all_at(&[data[199_999]], 199_999).unwrap();
    assert!(sums.check_next(read).unwrap());
    assert!(!sums.check_next(read).unwrap());
    assert_eq!(sums.unchecked_bytes(), 0);
}

#[test]
fn units_that_were_written_are_not_read() {
    for len in [65_536, 65_540, 3 << 20, 40_000_000] {
        let (_, fd, data) = file(len);
        let read = |room: &mut [u8], at| fd.read(room, at);
        let value = Sums::compute(read, len as u64, &[], None).unwrap().encode();
        let units = data.as_chunks::<{ UNIT_BYTES as usize }>().0;
        let all: Vec<_> = units.iter().map(|unit| Some(crc32c::crc32c(unit))).collect();
        let some = |(at, sum): (usize, &Option<u32>)| sum.filter(|_| at % 3 > 0);
        let some: Vec<_> = all.iter().enumerate().map(some).collect();
        let is_read = |sums: &[Option<u32>]| {
            let mut bytes = 0;
            let counted = |room: &mut [u8], at| fd.read(room, at).inspect(|n| bytes += n);
            let again = Sums::compute(counted, len as u64, sums, None).unwrap().encode();
            assert_eq!(again, value);
            bytes
        };
        assert_eq!(is_read(&all), len % UNIT_BYTES as usize, "the end");
        assert!(is_read(&some) < len || some.len() < 2);
        // Of an object that was longer.
        assert_eq!(is_read(&[&all[..], &[Some(1)]].concat()), len % UNIT_BYTES as usize);
    }
}

/// The bytes of an attribute: a seal of today must be read by every later version.
#[test]
fn an_attribute_is_written_as_ever() {
    let (_, fd, _) = file(65_540);
    let value = Sums::compute(|room, at| fd.read(room, at), 65_540, &[], None).unwrap().encode();
    let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "011004000100000000001051ef29cae9ad417282f852");
}

/// Sums that are carried over are those that are taken anew, whatever size the blocks get.
#[test]
fn sums_of_what_was_not_touched_are_carried_over() {
    let sizes = [700_000, 33_000_000, 66_000_000];
    let pairs = sizes.iter().flat_map(|from| sizes.iter().map(move |to| (*from, *to)));
    for (from, to) in pairs {
        let (file, fd, data) = file(from);
        let read = |room: &mut [u8], at| fd.read(room, at);
        let before = Sums::compute(read, from as u64, &[], None).unwrap();
        file.set_len(to as u64).unwrap();
        before.touch((to as u64, u64::MAX));
        before.overwrite((to as u64, u64::MAX));
        file.write_all_at(b"new", 9).unwrap();
        before.touch((9, 12));
        let mut bytes = 0usize;
        let counted = |room: &mut [u8], at| fd.read(room, at).inspect(|n| bytes += n);
        let carried = Sums::compute(counted, to as u64, &[], Some(&before)).unwrap();
        let anew = Sums::compute(read, to as u64, &[], None).unwrap();
        assert!(carried.encode() == anew.encode(), "{from} {to}");
        let most = if to < from { to } else { to - from + (1 << 18) };
        assert!(bytes <= most, "{from} {to}: {bytes} bytes are read");

        // The same with a flipped bit, which nobody has seen.
        let before = Sums::compute(read, to as u64, &[], None).unwrap();
        let at = to.min(from) as u64 / 2;
        file.write_all_at(&[data[at as usize] ^ 4], at).unwrap();
        file.set_len(from as u64).unwrap();
        before.touch((from as u64, u64::MAX));
        let carried = Sums::compute(read, from as u64, &[], Some(&before)).unwrap();
        assert!(carried.check_all(read).is_err(), "{to} {from}");
        let carried = Sums::decode(&carried.encode()).unwrap();
        assert!(carried.check_read(read, at, &[data[at as usize] ^ 4]).is_err(), "{to} {from}");
    }
}

#[test]
fn damaged_blocks_are_known_from_their_attribute() {
    let (file, fd, data) = file(700_000);
    let read = |room: &mut [u8], at| fd.read(room, at);
    let before = Sums::compute(read, 700_000, &[], None).unwrap();
    let right = before.encode();
    for at in [0, 650_000] {
        file.write_all_at(&[!data[at as usize]], at).unwrap();
        assert!(before.check_read(read, at, &[!data[at as usize]]).is_err());
        before.touch((at + 1, at + 2));
    }
    let value = Sums::compute(read, 700_000, &[], Some(&before)).unwrap().encode();
    assert_eq!((right[0], value[0], value.len()), (1, 2, right.len() + 2));
    assert_eq!(value[value.len() - 6..value.len() - 4], [1, 2], "the first block and the tenth");
    let sums = Sums::decode(&value).unwrap();
    assert_eq!(sums.encode(), value);
    assert_eq!(sums.unchecked_bytes(), 700_000);
    assert!(sums.check_next(read).is_err());
    sums.touch((1, 2));
    assert!(sums.check_next(read).is_err(), "still damaged");
    for cut in 0..value.len() {
        assert!(Sums::decode(&value[..cut]).is_none());
    }
    // No block is damaged, or one that there is not.
    for bits in [[0, 0], [1, 8]] {
        let mut value = value[..value.len() - 6].to_vec();
        value.extend_from_slice(&bits);
        let all = crc32c::crc32c(&value);
        value.extend_from_slice(&all.to_le_bytes());
        assert!(Sums::decode(&value).is_none(), "{bits:?}");
    }
}

#[test]
fn a_lost_tail_keeps_the_size_that_it_should_have() {
    let (file, fd, data) = file(300_000);
    let read = |room: &mut [u8], at| fd.read(room, at);
    let before = Sums::compute(read, 300_000, &[], None).unwrap();
    before.check_end(300_000).unwrap();
    file.set_len(150_000).unwrap();
    // The third block of five is partly there, and the fourth becomes a hole that is not.
    before.touch((150_000, 210_000));
    before.overwrite((150_000, 210_000));
    assert_eq!(before.check_end(150_000).unwrap_err().from, 4 << 16);
    let sums = Sums::compute(read, 150_000, &[], Some(&before)).unwrap();
    assert_eq!((sums.size(), sums.encode()[0]), (300_000, 2));
    let is_right = |at: usize| sums.check_read(read, at as u64, &data[at..=at]).is_ok();
    assert!(is_right(0) && is_right(131_071) && !is_right(131_072) && !is_right(290_000));
}

#[test]
fn an_attribute_with_damage_is_no_longer_than_every_file_system_takes() {
    for blocks in [BLOCKS_MAX, BLOCKS_MAX + 7] {
        let zeros = |room: &mut [u8], _: u64| {
            room.fill(0);
            Ok(room.len())
        };
        let sums = Sums::compute(zeros, blocks << BLOCK_LOG2_MIN, &[], None).unwrap();
        assert!(sums.check_read(zeros, 0, &[1 << 7; 1 << 18]).is_err());
        let value = sums.encode();
        assert!(value[0] == 2 && value.len() as u64 <= VALUE_BYTES_MAX, "{}", value.len());
        assert!(Sums::decode(&value).is_some());
    }
}

#[test]
fn a_block_that_matches_after_all_is_not_damaged_any_more() {
    let (file, fd, data) = file(100_000);
    let read = |room: &mut [u8], at| fd.read(room, at);
    let before = Sums::compute(read, 100_000, &[], None).unwrap();
    let right = before.encode();
    file.write_all_at(&[!data[5]], 5).unwrap();
    assert!(before.check_all(read).is_err());
    let value = Sums::compute(read, 100_000, &[], Some(&before)).unwrap().encode();
    file.write_all_at(&[data[5]], 5).unwrap();
    let sums = Sums::decode(&value).unwrap();
    assert_eq!((value[0], sums.encode() == value), (2, true));
    sums.check_all(read).unwrap();
    assert_eq!(sums.encode(), right, "copies are compared by it");
}
