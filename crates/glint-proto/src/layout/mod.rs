//! Where the bytes of a file lie: RAID-0 over objects on OSTs, or on chains of them.
//!
//! Stripe `i` of a file is object `(ino, first_object + i)` on OST `(first_ost + i) % osts`, where
//! `osts` is how many there were when the file was laid out: a file system that gets more of them
//! leaves what is there where it is. File block `b` of `stripe_bytes` lies in stripe
//! `b % stripe_count`, at block `b / stripe_count` of its object.
//!
//! A file with replicas is laid out over chains ([`crate::chain`]) as one without is over OSTs:
//! `first_ost` and `osts` count the chains with so many members, and each member has the object.

//!
//! A file whose data moves gets other objects: `first_object` rises each time, but for its highest
//! bit, so of two layouts of a file that it once had it is known which is the later one. That bit
//! says that the objects lie on chains: what is asked of one OST alone for one of them is refused.

pub mod chain;
pub(crate) mod local_object;
mod stored;

use crate::limits::{
    CHAINS_MAX, OST_COUNT_MAX, REPLICAS_MAX, STRIPE_BYTES_LOG2_DEFAULT, STRIPE_BYTES_LOG2_MAX,
    STRIPE_BYTES_LOG2_MIN,
};
use crate::{Ino, ObjectId};
use chain::ChainId;
use serde::{Deserialize, Serialize};

/// Layout of a file, or the default for new files of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    /// Base-2 logarithm of the stripe size in bytes.
    pub stripe_bytes_log2: u8,
    /// Number of objects. In a directory 0 means "all OSTs".
    pub stripe_count: u16,
    /// OST of the first object.
    pub first_ost: u16,
    /// How many OSTs there were to lay the file out over; 0 for those of the MDS's own server.
    /// In a directory always 0.
    pub osts: u16,
    /// How many OSTs have each object; 1 for one alone.
    pub replicas: u8,
    /// Number of the object of the first stripe; [`Layout::has_moved`] but for 0 and
    /// [`ObjectId::OF_CHAINS`].
    pub first_object: u16,
}

/// Bits of the number of an object that rise when data moves.
const RISING: u16 = ObjectId::OF_CHAINS - 1;

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            stripe_bytes_log2: STRIPE_BYTES_LOG2_DEFAULT,
            stripe_count: 1,
            first_ost: 0,
            osts: 0,
            replicas: 1,
            first_object: 0,
        }
    }
}

/// On which OSTs a file was laid out: on the first and those that follow, of so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// See [`Layout::first_ost`].
    pub first: u16,
    /// See [`Layout::osts`].
    pub osts: u16,
}

/// Targets that new files are better not laid out over.
#[derive(Clone, Copy, Default, Debug)]
pub struct Avoided<'a> {
    /// All of them. Who has so many stripes that it needs one gets one.
    pub all: &'a [u16],
    /// Those of them that are taken last: after the others of them.
    pub worst: &'a [u16],
    /// Those of them that are not to be used again. A file gets fewer stripes, and none of them.
    pub gone: &'a [u16],
}

/// A contiguous piece of a file within one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Stripe index, the object.
    pub stripe: u16,
    /// Offset in the object.
    pub object_offset: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Layout {
    /// Stripe size in bytes.
    pub fn stripe_bytes(&self) -> u64 {
        1 << self.stripe_bytes_log2
    }

    /// Whether the values are inside their limits.
    pub fn is_valid(&self) -> bool {
        (STRIPE_BYTES_LOG2_MIN..=STRIPE_BYTES_LOG2_MAX).contains(&self.stripe_bytes_log2)
            && self.stripe_count <= OST_COUNT_MAX
            && self.first_ost < self.targets_max()
            && self.osts <= self.targets_max()
            && (1..=REPLICAS_MAX).contains(&self.replicas)
            && (self.replicas > 1 || self.first_object < ObjectId::OF_CHAINS)
            && fits(self.first_object & RISING, self.stripe_count)
    }

    /// Whether data of the file has moved.
    pub fn has_moved(&self) -> bool {
        self.first_object & RISING != 0
    }

    /// Numbers objects from this one on, as those of files with copies if it has copies.
    pub fn number_objects(&mut self, first: u16) {
        let of_chains = if self.replicas > 1 { ObjectId::OF_CHAINS } else { 0 };
        self.first_object = first & RISING | of_chains;
    }

    /// The object of a stripe.
    pub fn object(&self, ino: Ino, stripe: u16) -> ObjectId {
        ObjectId { ino, stripe: self.first_object.wrapping_add(stripe) }
    }

    /// Which stripe an object is; `None` for one of another layout of the file.
    pub fn stripe_of(&self, object: ObjectId) -> Option<u16> {
        let stripe = object.stripe.checked_sub(self.first_object)?;
        (stripe < self.stripe_count.max(1)).then_some(stripe)
    }

    /// Numbers the objects of a layout that comes after another one of the file.
    pub fn number_after(&mut self, other: &Layout) {
        let next = (other.first_object & RISING) + other.stripe_count.max(1);
        self.number_objects(if fits(next, self.stripe_count) { next } else { 1 });
    }

    /// Whether this layout of a file is one that came before another, however often the numbers
    /// of objects have begun anew.
    pub fn is_before(&self, other: &Layout) -> bool {
        let ahead = other.first_object.wrapping_sub(self.first_object) & RISING;
        (1..RISING.div_ceil(2)).contains(&ahead)
    }

    /// How many targets there can be: OSTs, or chains of so many members.
    fn targets_max(&self) -> u16 {
        if self.replicas > 1 { CHAINS_MAX } else { OST_COUNT_MAX }
    }

    /// Layout of a new inode in a directory with this layout, on `osts` of which some are
    /// `avoided`: a directory the same, a file a definite number of stripes, beginning at an OST
    /// that its number chooses.
    pub fn inherit(&self, ino: Ino, is_dir: bool, osts: u16, avoided: Avoided<'_>) -> Layout {
        let mut layout = *self;
        if !is_dir {
            let osts = osts.max(1);
            if layout.stripe_count == 0 || layout.stripe_count > osts {
                layout.stripe_count = osts.min(OST_COUNT_MAX);
            }
            layout.place(ino, osts, avoided);
            layout.number_objects(0);
        }
        layout
    }

    /// Lays a file out over `osts`, from one on that its number chooses, or from the next one from
    /// which on no stripe lies on one that is avoided, if there is such a place; else on none of the
    /// worst, if that can be. It gets no more stripes than fit between two that are gone, unless all
    /// are.
    pub fn place(&mut self, ino: Ino, osts: u16, avoided: Avoided<'_>) {
        let count = osts.max(1);
        let fit = between(avoided.gone, count);
        if fit > 0 {
            self.stripe_count = self.stripe_count.min(fit);
        }
        let wish = (ino.0 % u64::from(count)) as u16;
        let layout = *self;
        let first = |these: &[u16]| {
            let avoids = |first: &u16| {
                let from_there = Layout { first_ost: *first, osts: count, ..layout };
                let mut these = these.iter().filter(|index| **index < count);
                these.all(|index| !from_there.has_stripe_at(*index))
            };
            (wish..count).chain(0..wish).find(avoids)
        };
        let good = first(avoided.all).or_else(|| first(avoided.worst));
        let first = good.or_else(|| first(avoided.gone));
        self.first_ost = first.unwrap_or(wish);
        self.osts = osts;
    }

    /// Whether a stripe lies on the OST or chain at this position of those that it is laid out over.
    pub fn has_stripe_at(&self, index: u16) -> bool {
        let count = self.osts.max(1);
        (index + count - self.first_ost) % count < self.stripe_count.max(1)
    }

    /// Which OSTs it lies on.
    pub fn placement(&self) -> Placement {
        Placement { first: self.first_ost, osts: self.osts }
    }

    /// Target that holds a stripe: an OST, or a chain of them ([`ChainId::target`]). `own` OSTs are
    /// those of the MDS's own server.
    pub fn ost_of(&self, stripe: u16, own: u16) -> u16 {
        let osts = if self.osts == 0 { own.max(1) } else { self.osts };
        let index = ((self.first_ost as u32 + stripe as u32) % osts as u32) as u16;
        match self.replicas {
            0 | 1 => index,
            copies => ChainId { copies, index }.target(),
        }
    }

    /// Whether an object of the file is on an OST from `own` on.
    pub fn reaches_beyond(&self, own: u16) -> bool {
        (0..self.stripe_count.max(1)).any(|stripe| self.ost_of(stripe, own) >= own)
    }

    /// Cuts the range `offset..offset + len` of the file into pieces, each in one
    /// object, in file order. With one stripe that is always one piece.
    pub fn pieces(&self, offset: u64, len: u64) -> Pieces {
        Pieces { layout: *self, offset, end: offset.saturating_add(len) }
    }

    /// Offset in the file of `object_offset` in object `stripe`.
    pub fn file_offset(&self, stripe: u16, object_offset: u64) -> u64 {
        if self.stripe_count <= 1 {
            return object_offset;
        }
        let block = object_offset >> self.stripe_bytes_log2;
        let within = object_offset & (self.stripe_bytes() - 1);
        let file_block = block.saturating_mul(self.stripe_count as u64) + stripe as u64;
        file_block.saturating_mul(self.stripe_bytes()).saturating_add(within)
    }

    /// Size of the file if object `stripe` has `object_size` bytes and no other
    /// object reaches further.
    pub fn file_size(&self, stripe: u16, object_size: u64) -> u64 {
        if object_size == 0 { 0 } else { self.file_offset(stripe, object_size - 1) + 1 }
    }

    /// Size of object `stripe` when the file has `file_size` bytes.
    pub fn object_size(&self, stripe: u16, file_size: u64) -> u64 {
        if self.stripe_count <= 1 {
            return file_size;
        }
        let count = self.stripe_count as u64;
        let full = file_size >> self.stripe_bytes_log2;
        let rest = file_size & (self.stripe_bytes() - 1);
        let blocks = full / count + u64::from(full % count > stripe as u64);
        let tail = if full % count == stripe as u64 { rest } else { 0 };
        blocks * self.stripe_bytes() + tail
    }
}

/// Whether so many objects from a number on have numbers without the bit of those on chains.
fn fits(first: u16, stripes: u16) -> bool {
    first + stripes.max(1) <= ObjectId::OF_CHAINS
}

/// How many of `count` targets in a circle follow each other between two that are gone, at most.
fn between(gone: &[u16], count: u16) -> u16 {
    let mut gone: Vec<u16> = gone.iter().copied().filter(|one| *one < count).collect();
    gone.sort_unstable();
    gone.dedup();
    let Some(first) = gone.first() else { return count };
    let next = gone.iter().skip(1).copied().chain([first + count]);
    std::iter::zip(&gone, next).map(|(one, next)| next - one - 1).max().unwrap_or(0)
}

/// Iterator of [`Layout::pieces`].
#[derive(Clone, Debug)]
pub struct Pieces {
    layout: Layout,
    offset: u64,
    end: u64,
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.offset >= self.end {
            return None;
        }
        let file_offset = self.offset;
        if self.layout.stripe_count <= 1 {
            self.offset = self.end;
            let len = self.end - file_offset;
            return Some(Piece { stripe: 0, object_offset: file_offset, file_offset, len });
        }
        let size = self.layout.stripe_bytes();
        let count = self.layout.stripe_count as u64;
        let block = file_offset >> self.layout.stripe_bytes_log2;
        let within = file_offset & (size - 1);
        let len = (size - within).min(self.end - file_offset);
        self.offset += len;
        Some(Piece {
            stripe: (block % count) as u16,
            object_offset: (block / count) * size + within,
            file_offset,
            len,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_on_more_chains_than_there_can_be_osts() {
        for (replicas, osts) in [(1, OST_COUNT_MAX), (2, CHAINS_MAX), (3, 1056)] {
            let wide = Layout { replicas, stripe_count: 0, ..Layout::default() };
            for ino in [1, 1023, 1024, 4095] {
                let layout = wide.inherit(Ino(ino), false, osts, Avoided::default());
                assert!(layout.is_valid(), "{layout:?}");
            }
        }
        assert!(!Layout { osts: OST_COUNT_MAX + 1, ..Layout::default() }.is_valid());
    }

    #[test]
    fn objects_of_the_next_layout_are_others_and_later() {
        let mut layout = Layout { stripe_count: 1000, ..Layout::default() };
        for n in 0..200 {
            let mut next = Layout { stripe_count: 700, replicas: 1 + n % 3 / 2, ..layout };
            next.number_after(&layout);
            assert!(next.is_valid() && next.has_moved());
            assert_eq!(next.object(Ino(7), 699).is_of_chain(), next.replicas > 1);
            assert!(layout.is_before(&next) && !next.is_before(&layout));
            assert!(!layout.is_before(&layout));
            for stripe in [0, 699] {
                let object = next.object(Ino(7), stripe);
                assert_eq!(next.stripe_of(object), Some(stripe));
                assert_eq!(layout.stripe_of(object), None);
            }
            layout = next;
        }
        assert!(!Layout { first_object: u16::MAX, ..Layout::default() }.is_valid());
        let of_chains = Layout { first_object: ObjectId::OF_CHAINS, ..Layout::default() };
        assert!(!of_chains.is_valid() && !of_chains.has_moved());
        assert!(Layout { replicas: 2, ..of_chains }.is_valid());
        assert!(Layout { replicas: 2, ..Layout::default() }.is_valid(), "of an early version");
    }

    #[test]
    fn files_are_laid_out_over_osts_that_are_there() {
        let place = |stripes, ino, osts, absent: &[u16]| {
            let mut layout = Layout { stripe_count: stripes, ..Layout::default() };
            layout.place(Ino(ino), osts, Avoided { all: absent, worst: absent, gone: &[] });
            layout.first_ost
        };
        assert_eq!(place(1, 7, 4, &[]), 3);
        assert_eq!(place(1, 7, 4, &[3]), 0);
        assert_eq!(place(2, 6, 4, &[3]), 0, "two stripes from the third on reach the fourth");
        assert_eq!(place(2, 7, 4, &[0, 9]), 1, "and from the fourth on the first");
        assert_eq!(place(4, 6, 4, &[1]), 2, "there is no choice");
        assert_eq!(place(1, 6, 4, &[0, 1, 2, 3]), 2);
        assert_eq!(place(1, 6, 0, &[]), 0);
        let wide = |worst: &[u16]| {
            let mut layout = Layout { stripe_count: 2, ..Layout::default() };
            layout.place(Ino(4), 4, Avoided { all: &[0, 2], worst, gone: &[] });
            layout.first_ost
        };
        assert_eq!((wide(&[0]), wide(&[0, 2])), (1, 0), "the worst are the last choice");
    }
    use proptest::prelude::*;

    #[test]
    fn files_get_fewer_stripes_rather_than_one_on_an_ost_that_is_gone() {
        let place = |stripes, ino, absent: &[u16], gone: &[u16]| {
            let wide = Layout { stripe_count: stripes, ..Layout::default() };
            let layout =
                wide.inherit(Ino(ino), false, 6, Avoided { all: absent, worst: absent, gone });
            let osts = (0..layout.stripe_count).map(|stripe| layout.ost_of(stripe, 1));
            osts.collect::<Vec<u16>>()
        };
        assert_eq!(place(0, 0, &[2], &[]), [0, 1, 2, 3, 4, 5], "it may come back");
        assert_eq!(place(0, 0, &[2], &[2]), [3, 4, 5, 0, 1]);
        assert_eq!(place(0, 5, &[2, 4], &[2, 4]), [5, 0, 1]);
        assert_eq!(place(2, 1, &[2, 4], &[2, 4]), [5, 0], "there are two in a row elsewhere");
        assert_eq!(place(4, 1, &[1, 4, 5], &[4, 5]), [0, 1, 2, 3], "one that may come back");
        assert_eq!(place(3, 1, &[0, 2, 4], &[0, 2, 4]), [1]);
        assert_eq!(place(1, 1, &[0, 1, 2, 3, 4, 5], &[0, 1, 2, 3, 4, 5]), [1], "all are gone");
    }

    proptest! {
        #[test]
        fn no_stripe_is_on_one_that_is_gone_unless_all_are(
            stripes in 0u16..12, ino in 0u64..100, osts in 1u16..12,
            absent in proptest::collection::vec(0u16..12, 0..4),
            gone in proptest::collection::vec(0u16..12, 0..6),
        ) {
            let absent = [absent, gone.clone()].concat();
            let wide = Layout { stripe_count: stripes, ..Layout::default() };
            let avoided = Avoided { all: &absent, worst: &absent, gone: &gone };
            let layout = wide.inherit(Ino(ino), false, osts, avoided);
            let is_good = |stripe| !gone.contains(&layout.ost_of(stripe, 1));
            let are_all_gone = (0..osts).all(|ost| gone.contains(&ost));
            prop_assert!(are_all_gone || (0..layout.stripe_count.max(1)).all(is_good));
        }

        #[test]
        fn pieces_cover_the_range_and_map_back(
            log2 in 16u8..=20, count in 1u16..9, offset in 0u64..1 << 30, len in 0u64..1 << 24
        ) {
            let layout =
                Layout { stripe_bytes_log2: log2, stripe_count: count, ..Layout::default() };
            let mut at = offset;
            for piece in layout.pieces(offset, len) {
                prop_assert_eq!(piece.file_offset, at);
                prop_assert_eq!(layout.file_offset(piece.stripe, piece.object_offset), at);
                at += piece.len;
            }
            prop_assert_eq!(at, offset + len);
        }

        #[test]
        fn object_sizes_and_file_size_agree(
            log2 in 16u8..=20, count in 1u16..9, size in 0u64..1 << 26
        ) {
            let layout =
                Layout { stripe_bytes_log2: log2, stripe_count: count, ..Layout::default() };
            let objects: Vec<u64> = (0..count).map(|i| layout.object_size(i, size)).collect();
            prop_assert_eq!(objects.iter().sum::<u64>(), size);
            let back = (0..count).map(|i| layout.file_size(i, objects[i as usize])).max();
            prop_assert_eq!(back, Some(size));
        }
    }
}
