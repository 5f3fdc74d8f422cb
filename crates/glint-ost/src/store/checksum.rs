//! Checksums of an object at rest: one crc32c for each block.
//!
//! A block is 64 KiB, doubled until the sums of an object fit the extended
//! attribute that holds them (`user.glint.sums`):
//!
//! ```text
//! version 1 byte | log2 of block 1 | size 8 LE | crc32c 4 LE for each block | crc32c 4 LE of all before
//! ```

use crate::disk::DiskResult;
use crate::store::written::UNIT_BYTES;
use glint_proto::limits::FILE_BYTES_MAX;
use std::io;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

const VERSION: u8 = 1;
const BLOCK_LOG2_MIN: u8 = 16;
/// Checksums that fit beside the header in an attribute of 2 KiB, which every local file system
/// takes.
const BLOCKS_MAX: u64 = 500;
/// Blocks up to this size are read whole to check a part of them.
const BLOCK_LOG2_WHOLE_MAX: u8 = 20;

/// The sums of an object, and which blocks were found right since it was opened.
pub(crate) struct Sums {
    size: u64,
    block_log2: u8,
    sums: Vec<u32>,
    checked: Vec<AtomicU64>,
}

/// Bytes that are not what was written.
#[derive(Debug, thiserror::Error)]
#[error("bytes {from}..{to} do not match their checksum")]
pub struct Mismatch {
    /// First byte of the block.
    pub from: u64,
    /// End of the block.
    pub to: u64,
}

impl From<Mismatch> for io::Error {
    fn from(mismatch: Mismatch) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, mismatch)
    }
}

impl Sums {
    fn new(size: u64, block_log2: u8, sums: Vec<u32>) -> Sums {
        let checked = (0..sums.len().div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Sums { size, block_log2, sums, checked }
    }

    /// Computes the sums of the first `size` bytes of a file, from those of units that were taken as
    /// they were `written`, and from what `read` reads.
    pub(crate) fn compute(
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
        size: u64,
        written: &[Option<u32>],
    ) -> io::Result<Sums> {
        let mut block_log2 = BLOCK_LOG2_MIN;
        while size.div_ceil(1 << block_log2) > BLOCKS_MAX {
            block_log2 += 1;
        }
        let mut sums = Vec::new();
        let mut buffer = vec![0u8; (1usize << BLOCK_LOG2_WHOLE_MAX).min(size as usize)];
        let mut offset = 0;
        while offset < size {
            let end = (offset + (1 << block_log2)).min(size);
            let mut sum = 0;
            while offset < end {
                let unit_end = (offset + UNIT_BYTES).min(end);
                let unit = written.get((offset / UNIT_BYTES) as usize);
                sum = match unit.copied().flatten().filter(|_| unit_end - offset == UNIT_BYTES) {
                    Some(of_unit) => joined(sum, of_unit),
                    None => crc_by(&mut read, sum, (offset, unit_end), &mut buffer)?,
                };
                offset = unit_end;
            }
            sums.push(sum);
        }
        Ok(Sums::new(size, block_log2, sums))
    }

    /// Size of the object when it was sealed.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// As the value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION, self.block_log2];
        value.extend_from_slice(&self.size.to_le_bytes());
        for sum in &self.sums {
            value.extend_from_slice(&sum.to_le_bytes());
        }
        let all = crc32c::crc32c(&value);
        value.extend_from_slice(&all.to_le_bytes());
        value
    }

    /// Reads an attribute; `None` if it is damaged or of another version.
    pub(crate) fn decode(value: &[u8]) -> Option<Sums> {
        let (rest, all) = value.split_last_chunk::<4>()?;
        if crc32c::crc32c(rest) != u32::from_le_bytes(*all) {
            return None;
        }
        let (&[version, block_log2], rest) = rest.split_first_chunk::<2>()?;
        let (size, rest) = rest.split_first_chunk::<8>()?;
        let size = u64::from_le_bytes(*size);
        let (sums, left) = rest.as_chunks::<4>();
        let known = version == VERSION && (BLOCK_LOG2_MIN..64).contains(&block_log2);
        // Of what is larger, the end of a block is no number.
        if !known
            || size > FILE_BYTES_MAX
            || !left.is_empty()
            || sums.len() as u64 != size.div_ceil(1 << block_log2)
        {
            return None;
        }
        Some(Sums::new(size, block_log2, sums.iter().map(|s| u32::from_le_bytes(*s)).collect()))
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.sums.len()
    }

    /// Sum that a block should have.
    pub(crate) fn expected(&self, index: usize) -> u32 {
        self.sums[index]
    }

    /// First byte and end of a block.
    pub(crate) fn block(&self, index: usize) -> (u64, u64) {
        let from = (index as u64) << self.block_log2;
        (from, (from + (1 << self.block_log2)).min(self.size))
    }

    /// Checks blocks that bytes `offset..` of a reply touch and that were not checked
    /// before. Blocks that `data` holds wholly are taken from it, others are read by `read`.
    pub(crate) fn check_read(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
        offset: u64,
        data: &[u8],
    ) -> io::Result<()> {
        if data.is_empty() || offset >= self.size {
            return Ok(());
        }
        let end = (offset + data.len() as u64).min(self.size);
        let (first, last) = (offset >> self.block_log2, (end - 1) >> self.block_log2);
        for index in first as usize..=last as usize {
            let (word, bit) = (&self.checked[index / 64], 1u64 << (index % 64));
            if word.load(Ordering::Relaxed) & bit != 0 {
                continue;
            }
            let (from, to) = self.block(index);
            let sum = if from >= offset && to <= end {
                crc32c::crc32c(&data[(from - offset) as usize..(to - offset) as usize])
            } else if self.block_log2 <= BLOCK_LOG2_WHOLE_MAX {
                crc_by(&mut read, 0, (from, to), &mut vec![0u8; (to - from) as usize])?
            } else {
                continue;
            };
            if sum != self.sums[index] {
                return Err(Mismatch { from, to }.into());
            }
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    fn is_checked(&self, index: usize) -> bool {
        self.checked[index / 64].load(Ordering::Relaxed) & (1 << (index % 64)) != 0
    }

    /// Bytes of blocks that were not found right yet.
    pub(crate) fn unchecked_bytes(&self) -> u64 {
        let unchecked = (0..self.blocks()).filter(|index| !self.is_checked(*index));
        unchecked.map(|index| self.block(index)).map(|(from, to)| to - from).sum()
    }

    /// Checks the first block that was not found right yet, which `read` reads. Returns false if
    /// there is none.
    pub(crate) fn check_next(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
    ) -> io::Result<bool> {
        let Some(index) = (0..self.blocks()).find(|index| !self.is_checked(*index)) else {
            return Ok(false);
        };
        let (from, to) = self.block(index);
        let mut buffer = vec![0u8; ((to - from) as usize).min(1 << BLOCK_LOG2_WHOLE_MAX)];
        if crc_by(&mut read, 0, (from, to), &mut buffer)? != self.sums[index] {
            return Err(Mismatch { from, to }.into());
        }
        self.checked[index / 64].fetch_or(1 << (index % 64), Ordering::Relaxed);
        Ok(true)
    }

    /// Checks the whole object, which `read` reads.
    pub(crate) fn check_all(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0u8; (1usize << BLOCK_LOG2_WHOLE_MAX).min(self.size as usize)];
        for (index, expected) in self.sums.iter().enumerate() {
            let (from, to) = self.block(index);
            if crc_by(&mut read, 0, (from, to), &mut buffer)? != *expected {
                return Err(Mismatch { from, to }.into());
            }
        }
        Ok(())
    }
}

/// Sum of some bytes and a unit behind them.
fn joined(before: u32, unit: u32) -> u32 {
    // Appending zeros is linear, so it is known from what it does to each bit.
    static APPENDED: LazyLock<[u32; 32]> = LazyLock::new(|| {
        std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, UNIT_BYTES as usize))
    });
    let bits = (0..32).filter(|bit| before & (1 << bit) != 0);
    bits.fold(unit, |sum, bit| sum ^ APPENDED[bit])
}

/// Sum of bytes of which that before the range is `sum`; what lies beyond the end of the file is missing from it.
fn crc_by(
    mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
    mut sum: u32,
    (from, to): (u64, u64),
    buffer: &mut [u8],
) -> io::Result<u32> {
    let mut at = from;
    while at < to {
        let want = buffer.len().min((to - at) as usize);
        match read(&mut buffer[..want], at) {
            Ok(0) => break,
            Ok(got) => {
                sum = crc32c::crc32c_append(sum, &buffer[..got]);
                at += got as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
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
            let sums = Sums::compute(|room, at| fd.read(room, at), len as u64, &[]).unwrap();
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
        let sums = Sums::compute(|room, at| fd.read(room, at), 100_000, &[]).unwrap();
        sums.check_read(|room, at| fd.read(room, at), 0, &data[..10]).unwrap();
        file.write_all_at(&[!data[0]], 0).unwrap();
        sums.check_read(|room, at| fd.read(room, at), 0, &[!data[0]]).unwrap();
        assert!(sums.check_all(|room, at| fd.read(room, at)).is_err());
    }

    #[test]
    fn blocks_are_checked_one_by_one_and_each_once() {
        let (file, fd, data) = file(200_000);
        let read = |room: &mut [u8], at| fd.read(room, at);
        let sums = Sums::compute(read, 200_000, &[]).unwrap();
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
            let value = Sums::compute(read, len as u64, &[]).unwrap().encode();
            let units = data.as_chunks::<{ UNIT_BYTES as usize }>().0;
            let all: Vec<_> = units.iter().map(|unit| Some(crc32c::crc32c(unit))).collect();
            let some = |(at, sum): (usize, &Option<u32>)| sum.filter(|_| at % 3 > 0);
            let some: Vec<_> = all.iter().enumerate().map(some).collect();
            let is_read = |sums: &[Option<u32>]| {
                let mut bytes = 0;
                let counted = |room: &mut [u8], at| fd.read(room, at).inspect(|n| bytes += n);
                let again = Sums::compute(counted, len as u64, sums).unwrap().encode();
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
        let value = Sums::compute(|room, at| fd.read(room, at), 65_540, &[]).unwrap().encode();
        let hex: String = value.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "011004000100000000001051ef29cae9ad417282f852");
    }
}
