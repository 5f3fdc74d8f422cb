//! Checksums of an object at rest: one crc32c for each block.
//!
//! A block is 64 KiB, doubled until the sums of an object fit the extended
//! attribute that holds them (`user.glint.sums`):
//!
//! ```text
//! version 1 byte | log2 of block 1 | size 8 LE | crc32c 4 LE for each block | crc32c 4 LE of all before
//! ```
//!
//! Version 2 has a bit for each block behind their sums, least significant first, in whole bytes:
//! set for those that are damaged, of which there is at least one. They do not match their sums.
//!
//! Invariant: while a block is not touched its sum is carried over from one seal to the next
//! ([`Sums::compute`]). So damage beside what was changed gets no sum that it matches, and an
//! object that lost its tail keeps the size that it should have.

mod blocks;

use crate::disk::DiskResult;
use crate::store::passing::Range;
use crate::store::written::UNIT_BYTES;
use blocks::BlockStates;
use glint_proto::limits::FILE_BYTES_MAX;
use std::io;
use std::sync::LazyLock;

const VERSION: u8 = 1;
/// Version with a bit for each block.
const VERSION_OF_DAMAGED: u8 = 2;
const BLOCK_LOG2_MIN: u8 = 16;
/// Checksums that fit, with a bit for each, beside the header in an attribute of
/// [`VALUE_BYTES_MAX`].
const BLOCKS_MAX: u64 = 493;
/// Bytes of an attribute that every local file system takes.
const VALUE_BYTES_MAX: u64 = 2048;
const _: () = assert!(14 + BLOCKS_MAX * 4 + BLOCKS_MAX.div_ceil(8) <= VALUE_BYTES_MAX);
/// Blocks up to this size are read whole to check a part of them.
const BLOCK_LOG2_WHOLE_MAX: u8 = 20;

/// The sums of an object, and what became of its blocks since it was opened or sealed.
pub(crate) struct Sums {
    size: u64,
    block_log2: u8,
    sums: Vec<u32>,
    states: BlockStates,
}

/// A block that was not touched since its sum was taken.
struct KeptBlock {
    sum: u32,
    end: u64,
    is_damaged: bool,
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
    fn new(size: u64, block_log2: u8, sums: Vec<u32>, is_damaged: impl Fn(usize) -> bool) -> Sums {
        let states = BlockStates::new(sums.len(), is_damaged);
        Sums { size, block_log2, sums, states }
    }

    /// Computes the sums of the first `size` bytes of a file: from those `before` of blocks that
    /// were not touched, from those of units that were taken as they were `written`, and from
    /// what `read` reads. What was damaged, and not overwritten, gets a sum that it does not match.
    /// If blocks that were not touched lie behind `size`, that is the size no more: they are lost.
    pub(crate) fn compute(
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
        size: u64,
        written: &[Option<u32>],
        before: Option<&Sums>,
    ) -> io::Result<Sums> {
        let there = size;
        let size = before.map_or(size, |before| size.max(before.untouched_end()));
        let block_log2 = block_log2_of(size);
        let (mut sums, mut damaged) = (Vec::new(), Vec::new());
        let mut buffer = vec![0u8; (1usize << BLOCK_LOG2_WHOLE_MAX).min(size as usize)];
        let mut offset = 0;
        while offset < size {
            let (from, end) = (offset, (offset + (1 << block_log2)).min(size));
            let (mut sum, mut is_damaged, mut is_wrong) = (0, false, false);
            while offset < end {
                if let Some(kept) = before.and_then(|before| before.kept_block(offset, end)) {
                    sum = if offset == from {
                        kept.sum
                    } else {
                        joined(sum, kept.sum, kept.end - offset)
                    };
                    is_damaged |= kept.is_damaged;
                    offset = kept.end;
                    continue;
                }
                is_wrong |= before.is_some_and(|before| before.is_damaged_at(offset));
                // Behind a kept block that was the last one, this is no multiple of a unit.
                let unit_end = ((offset / UNIT_BYTES + 1) * UNIT_BYTES).min(end);
                is_wrong |= unit_end > there;
                let unit = written.get((offset / UNIT_BYTES) as usize);
                sum = match unit.copied().flatten().filter(|_| unit_end - offset == UNIT_BYTES) {
                    Some(of_unit) => joined(sum, of_unit, UNIT_BYTES),
                    None => crc_by(&mut read, sum, (offset, unit_end), &mut buffer)?,
                };
                offset = unit_end;
            }
            sums.push(if is_wrong { !sum } else { sum });
            damaged.push(is_wrong || is_damaged);
        }
        if let Some(before) = before.filter(|before| before.is_cut(block_log2)) {
            before.compare_parts(block_log2, &mut sums, &mut damaged);
        }
        Ok(Sums::new(size, block_log2, sums, |index| damaged[index]))
    }

    /// Whether blocks that were not touched are larger than those to come: their sums cannot be
    /// carried over.
    fn is_cut(&self, block_log2: u8) -> bool {
        self.block_log2 > block_log2 && self.untouched_end() > 0
    }

    /// Compares blocks that were not touched with the sums of their parts: smaller blocks, of which
    /// those that are `damaged` have a sum that they do not match.
    fn compare_parts(&self, block_log2: u8, sums: &mut [u32], damaged: &mut [bool]) {
        for index in 0..self.blocks() {
            let (from, to) = self.block(index);
            // One that is not full is the last one, which is touched if blocks become smaller.
            let is_full = to - from == 1u64 << self.block_log2;
            if !is_full || self.states.is_touched(index) || self.states.is_damaged(index) {
                continue;
            }
            let parts = (from >> block_log2) as usize..(to >> block_log2) as usize;
            let sum =
                sums[parts.clone()].iter().fold(0, |sum, of| joined(sum, *of, 1 << block_log2));
            if sum != self.sums[index] && self.states.found_wrong(index) {
                for (sum, is_damaged) in
                    std::iter::zip(&mut sums[parts.clone()], &mut damaged[parts])
                {
                    *sum = if *is_damaged { *sum } else { !*sum };
                    *is_damaged = true;
                }
            }
        }
    }

    /// Bytes that are not read to compute the sums of the object, which now has this size.
    pub(crate) fn kept_bytes(&self, size: u64) -> u64 {
        if self.is_cut(block_log2_of(size)) {
            return 0;
        }
        let kept = (0..self.blocks()).filter(|index| !self.states.is_touched(*index));
        kept.map(|index| self.block(index)).map(|(from, to)| to - from).sum()
    }

    /// End of the last block that was not touched. A change that cuts blocks off touches them.
    fn untouched_end(&self) -> u64 {
        let last = (0..self.blocks()).rev().find(|index| !self.states.is_touched(*index));
        last.map_or(0, |index| self.block(index).1)
    }

    /// The block that begins at `offset`, if its sum holds and it ends at `end` at the latest.
    fn kept_block(&self, offset: u64, end: u64) -> Option<KeptBlock> {
        let index = usize::try_from(offset >> self.block_log2).ok()?;
        let sum = *self.sums.get(index)?;
        let (from, to) = self.block(index);
        let is_kept = from == offset && to <= end && !self.states.is_touched(index);
        is_kept.then(|| KeptBlock { sum, end: to, is_damaged: self.states.is_damaged(index) })
    }

    /// Whether the block in which this offset lies is damaged.
    fn is_damaged_at(&self, offset: u64) -> bool {
        offset < self.size && self.states.is_damaged((offset >> self.block_log2) as usize)
    }

    /// Blocks in which bytes of a range lie.
    fn blocks_in(&self, (from, to): Range) -> std::ops::Range<usize> {
        let to = to.min(self.size);
        if from >= to {
            return 0..0;
        }
        (from >> self.block_log2) as usize..((to - 1) >> self.block_log2) as usize + 1
    }

    /// Bytes of a range change from now on: the sums of their blocks say nothing any more.
    pub(crate) fn touch(&self, range: Range) {
        self.blocks_in(range).for_each(|index| self.states.touch(index));
    }

    /// All bytes of a range, which was [touched](Sums::touch) before, have been overwritten or are
    /// gone.
    pub(crate) fn overwrite(&self, range: Range) {
        for index in self.blocks_in(range) {
            let block = self.block(index);
            let part = (range.0.max(block.0), range.1.min(block.1));
            self.states.overwrite(index, block, part);
        }
    }

    /// Takes up the sum that a block has. The error is damage.
    fn compare(&self, index: usize, sum: u32) -> Result<(), Mismatch> {
        if sum == self.sums[index] {
            self.states.found_right(index);
        } else if self.states.found_wrong(index) {
            return Err(self.mismatch(index));
        }
        Ok(())
    }

    /// Whether these are the sums of the same bytes, whatever is known of their blocks.
    pub(crate) fn are_as(&self, other: &Sums) -> bool {
        let parts = |sums: &Sums| (sums.size, sums.block_log2);
        parts(self) == parts(other) && self.sums == other.sums
    }

    /// A block did not match its sum here. Returns whether that is damage.
    pub(crate) fn found_damaged(&self, index: usize) -> bool {
        self.states.found_wrong(index)
    }

    fn mismatch(&self, index: usize) -> Mismatch {
        let (from, to) = self.block(index);
        Mismatch { from, to }
    }

    /// Whether any block is damaged.
    pub(crate) fn has_damage(&self) -> bool {
        (0..self.blocks()).any(|index| self.states.is_damaged(index))
    }

    /// Size of the object when it was sealed.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Size of its blocks.
    pub(crate) fn block_log2(&self) -> u8 {
        self.block_log2
    }

    /// As the value of the attribute.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let is_damaged = |index: &usize| self.states.is_damaged(*index);
        let has_damage = self.has_damage();
        let version = if has_damage { VERSION_OF_DAMAGED } else { VERSION };
        let mut value = vec![version, self.block_log2];
        value.extend_from_slice(&self.size.to_le_bytes());
        for sum in &self.sums {
            value.extend_from_slice(&sum.to_le_bytes());
        }
        if has_damage {
            let mut bits = vec![0u8; self.blocks().div_ceil(8)];
            (0..self.blocks()).filter(is_damaged).for_each(|at| bits[at / 8] |= 1 << (at % 8));
            value.extend_from_slice(&bits);
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
        // Of what is larger, the end of a block is no number.
        if !(BLOCK_LOG2_MIN..64).contains(&block_log2) || size > FILE_BYTES_MAX {
            return None;
        }
        let blocks = usize::try_from(size.div_ceil(1 << block_log2)).ok()?;
        let (sums, bits) = rest.split_at_checked(blocks.checked_mul(4)?)?;
        let is_set = |at: usize| bits.get(at / 8).is_some_and(|byte| *byte & (1 << (at % 8)) != 0);
        let is_right = match version {
            VERSION => bits.is_empty(),
            VERSION_OF_DAMAGED => {
                let is_any = (0..blocks).any(is_set);
                bits.len() == blocks.div_ceil(8) && is_any && !(blocks..bits.len() * 8).any(is_set)
            }
            _ => false,
        };
        let (sums, _) = sums.as_chunks::<4>();
        let sums = sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        is_right.then(|| Sums::new(size, block_log2, sums, is_set))
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

    /// Time has passed: blocks that were found right are compared again when they are read.
    pub(crate) fn grow_stale(&self) {
        self.states.grow_stale();
    }

    /// Checks blocks that bytes `offset..` of a reply touch and that were not checked
    /// of late. Blocks that `data` holds wholly are taken from it, others are read by `read`.
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
        for index in self.blocks_in((offset, end)) {
            if self.states.is_done_of_late(index) {
                continue;
            }
            if self.states.is_touched(index) && self.states.is_damaged(index) {
                return Err(self.mismatch(index).into());
            }
            let (from, to) = self.block(index);
            let sum = if from >= offset && to <= end {
                crc32c::crc32c(&data[(from - offset) as usize..(to - offset) as usize])
            } else if self.block_log2 <= BLOCK_LOG2_WHOLE_MAX {
                crc_by(&mut read, 0, (from, to), &mut vec![0u8; (to - from) as usize])?
            } else if self.states.is_damaged(index) {
                return Err(self.mismatch(index).into());
            } else {
                continue;
            };
            self.compare(index, sum)?;
        }
        Ok(())
    }

    /// Returns a range with the whole of those blocks that [`Sums::check_read`] compares for it.
    pub(crate) fn with_blocks_to_check(&self, range: Range) -> Range {
        if self.block_log2 > BLOCK_LOG2_WHOLE_MAX {
            return range;
        }
        let to_check = self.blocks_in(range).filter(|index| !self.states.is_done_of_late(*index));
        to_check
            .map(|index| self.block(index))
            .fold(range, |range, block| (range.0.min(block.0), range.1.max(block.1)))
    }

    /// Checks that the object may end at `offset`, where a read found its end: no block there or
    /// behind was cut off but by a change.
    pub(crate) fn check_end(&self, offset: u64) -> Result<(), Mismatch> {
        let mut blocks = self.blocks_in((offset, self.size));
        let is_lost =
            |&index: &usize| !self.states.is_touched(index) && self.states.found_wrong(index);
        blocks.find(is_lost).map_or(Ok(()), |index| Err(self.mismatch(index)))
    }

    /// Bytes from `offset` on were cut off by somebody else: their blocks are damaged.
    pub(crate) fn lose_from(&self, offset: u64) {
        for index in self.blocks_in((offset, self.size)) {
            self.states.found_wrong(index);
        }
    }

    /// Bytes of blocks that were not found right yet, though their sums hold, and of damaged ones.
    pub(crate) fn unchecked_bytes(&self) -> u64 {
        let unchecked = (0..self.blocks()).filter(|index| !self.states.is_done(*index));
        unchecked.map(|index| self.block(index)).map(|(from, to)| to - from).sum()
    }

    /// Checks the first of these blocks, which `read` reads. Returns false if there is none.
    pub(crate) fn check_next(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
    ) -> io::Result<bool> {
        let Some(index) = (0..self.blocks()).find(|index| !self.states.is_done(*index)) else {
            return Ok(false);
        };
        if self.states.is_touched(index) {
            return Err(self.mismatch(index).into());
        }
        let (from, to) = self.block(index);
        let mut buffer = vec![0u8; ((to - from) as usize).min(1 << BLOCK_LOG2_WHOLE_MAX)];
        self.compare(index, crc_by(&mut read, 0, (from, to), &mut buffer)?)?;
        Ok(true)
    }

    /// Checks the whole object, which `read` reads. A block that matches is not damaged any more.
    pub(crate) fn check_all(
        &self,
        mut read: impl FnMut(&mut [u8], u64) -> DiskResult<usize>,
    ) -> io::Result<()> {
        let mut buffer = vec![0u8; (1usize << BLOCK_LOG2_WHOLE_MAX).min(self.size as usize)];
        for index in 0..self.blocks() {
            self.compare(index, crc_by(&mut read, 0, self.block(index), &mut buffer)?)?;
        }
        Ok(())
    }
}

/// Size of the blocks of an object of this size.
fn block_log2_of(size: u64) -> u8 {
    let mut block_log2 = BLOCK_LOG2_MIN;
    while size.div_ceil(1 << block_log2) > BLOCKS_MAX {
        block_log2 += 1;
    }
    block_log2
}

/// Sum of some bytes and `len` bytes behind them, whose sum is `unit`.
fn joined(before: u32, unit: u32, len: u64) -> u32 {
    if len != UNIT_BYTES {
        return crc32c::crc32c_combine(before, unit, len as usize);
    }
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
mod tests;
