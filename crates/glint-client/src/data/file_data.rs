//! The data of one file as a client knows it: what was written and is not at the OSTs yet, where it
//! ends, what the objects said when they were last written, and what was lost. No byte that was
//! sent is kept.
//!
//! Invariants:
//! - The end and time of the furthest write are known exactly while something that was written is
//!   not at the OSTs; afterwards the objects say it, and others may have changed that.
//! - What the objects said is forgotten when the data may have changed elsewhere.
//! - Each loss is told to each open file once; to one that is opened later if nobody was told.

use crate::data::dirty::{Dirty, ExtentsInFlight, Failed};
use crate::data::extents::Due;
use crate::data::read_ahead::{BlockAhead, ReadAround, Regions};
use glint_proto::limits::BULK_BYTES_MAX;
use glint_proto::{Errno, FsResult, Layout, ObjectAttr, Timestamp};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of a block, in which the space of a file is counted (stat(2)).
pub(crate) const BLOCK_BYTES: u64 = 512;

/// Data of one file.
pub(crate) struct FileData {
    /// Layout of the data, once the file was opened.
    layout: Option<Layout>,
    /// Extents that wait to be sent, or are on their way.
    dirty: Dirty,
    /// End of the furthest write since all was clean, and when the last one was made.
    wrote_to: Option<(u64, Timestamp)>,
    /// Set by a program; what is written to the objects later takes it along.
    mtime: Option<Timestamp>,
    /// Attributes of the objects when they were last written, by stripe.
    objects: HashMap<u16, ObjectAttr>,
    /// Changes when what was read may not be so any more. Who reads keeps a stamp only of data that
    /// was made: for most inodes of a client nothing of this is.
    stamp: u64,
    /// Whether the kernel may have pages.
    pages: bool,
    /// All of it, asked for before anybody reads it, when the stamp was this.
    prefetched: Option<(u64, Arc<BlockAhead>)>,
    /// All of it was put into the pages of the kernel, and nobody has opened it since.
    stored: bool,
    /// Small reads of it anywhere, while it is open.
    around: Option<Box<ReadAround>>,
    /// Which of its regions were read, while it is open, and what those may cost that are fetched.
    regions: Option<Box<Regions>>,
    loss: Option<Loss>,
}

/// Data that was lost after its write had returned: a number that rises with each loss that
/// somebody has heard of, as that of errseq_t in Linux.
struct Loss {
    number: u64,
    errno: Errno,
    seen: bool,
}

impl Default for FileData {
    fn default() -> FileData {
        FileData {
            layout: None,
            dirty: Dirty::new(BULK_BYTES_MAX),
            wrote_to: None,
            mtime: None,
            objects: HashMap::new(),
            stamp: 0,
            pages: false,
            prefetched: None,
            stored: false,
            around: None,
            regions: None,
            loss: None,
        }
    }
}

impl FileData {
    /// Layout of the data, if it is known.
    pub(crate) fn layout(&self) -> Option<Layout> {
        self.layout
    }

    /// Notes where the data lies, unless it is known to have moved since.
    pub(crate) fn set_layout(&mut self, layout: Option<Layout>) {
        let is_old = |known: Layout| layout.is_some_and(|layout| layout.is_before(&known));
        if !self.layout.is_some_and(is_old) {
            self.layout = layout;
        }
    }

    /// Extents that wait to be sent, or are on their way.
    pub(crate) fn dirty(&self) -> &Dirty {
        &self.dirty
    }

    /// Whether everything is at the OSTs.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_clean()
    }

    /// Puts a write of a program into an object. Returns by how many bytes the dirty data grew, and
    /// whether there was none before. [`wrote`](FileData::wrote) says afterwards what all the
    /// pieces are to the file.
    pub(crate) fn write(
        &mut self,
        stripe: u16,
        offset: u64,
        data: &[u8],
        now: Instant,
    ) -> (usize, bool) {
        let first = self.dirty.is_clean();
        (self.dirty.write(stripe, offset, data, now), first)
    }

    /// A program has written up to this end.
    pub(crate) fn wrote(&mut self, end: u64, now: Timestamp) {
        self.stamp += 1;
        self.forget_prefetched();
        self.mtime = Some(now);
        // The data may have been sent before the time is noted.
        if !self.dirty.is_clean() {
            let before = self.wrote_to.map_or(0, |(end, _)| end);
            self.wrote_to = Some((before.max(end), now));
        }
    }

    /// The data may be another from now on: it was changed here, or may be changed elsewhere.
    pub(crate) fn change(&mut self) {
        self.stamp += 1;
        self.forget_prefetched();
        // The known attributes of the objects are of before.
        self.objects.clear();
    }

    /// What was read may be changed elsewhere.
    pub(crate) fn forget_read(&mut self) {
        self.stamp += 1;
        self.forget_prefetched();
    }

    /// Changes when what was read may not be so any more.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Keeps all of a small file for who reads it first. A lock on it is held.
    pub(crate) fn set_prefetched(&mut self, block: Arc<BlockAhead>) {
        self.prefetched = Some((self.stamp, block));
    }

    /// Whether all of it was asked for, and nobody has read it since, or opened it if the kernel has
    /// it.
    pub(crate) fn is_prefetched(&self) -> bool {
        self.prefetched.is_some() || self.stored
    }

    /// Whether it was, and does not come: it is read alone.
    pub(crate) fn is_prefetched_in_vain(&self) -> bool {
        self.prefetched.as_ref().is_some_and(|(_, block)| block.has_failed())
    }

    /// Whether this is what was asked for of the file as it is.
    pub(crate) fn has_prefetched(&self, block: &Arc<BlockAhead>) -> bool {
        let is_it = |(stamp, known): &(u64, Arc<BlockAhead>)| {
            *stamp == self.stamp && Arc::ptr_eq(known, block)
        };
        self.prefetched.as_ref().is_some_and(is_it)
    }

    /// The kernel has what was asked for. Returns false if somebody has taken it meanwhile.
    pub(crate) fn note_stored(&mut self, block: &Arc<BlockAhead>) -> bool {
        let is_stored = self.has_prefetched(block);
        if is_stored {
            (self.prefetched, self.stored) = (None, true);
        }
        is_stored
    }

    /// Whether the kernel has all of it, and nobody has opened it since.
    pub(crate) fn is_stored(&self) -> bool {
        self.stored
    }

    /// Somebody opens the file. Returns whether the kernel has all of it.
    pub(crate) fn take_stored(&mut self) -> bool {
        std::mem::take(&mut self.stored)
    }

    fn forget_prefetched(&mut self) {
        (self.prefetched, self.stored) = (None, false);
    }

    /// What was asked for, for who reads it, or because it takes memory.
    pub(crate) fn take_prefetched(&mut self) -> Option<(u64, Arc<BlockAhead>)> {
        self.prefetched.take()
    }

    /// Small reads of the file, which has `size` bytes. There is room for files of `room` bytes.
    pub(crate) fn around(&mut self, size: u64, room: u64) -> &mut ReadAround {
        self.around.get_or_insert_with(|| Box::new(ReadAround::new(size, room)))
    }

    /// Forgets a window that was fetched around a read.
    pub(crate) fn forget_window(&mut self, window: &Arc<BlockAhead>) {
        if let Some(around) = &mut self.around {
            around.forget(window);
        }
        if let Some(regions) = &mut self.regions {
            regions.forget_window(window);
        }
    }

    /// Regions of the file that were read.
    pub(crate) fn regions(&mut self) -> &mut Regions {
        self.regions.get_or_insert_default()
    }

    /// Forgets what was read of the file and what was fetched for that, but not what that has cost.
    pub(crate) fn forget_around(&mut self) {
        self.around = None;
        self.regions = self.regions.take().and_then(|one| one.after_close()).map(Box::new);
    }

    /// Notes that the kernel may get pages.
    pub(crate) fn note_pages(&mut self) {
        self.pages = true;
    }

    /// Whether the kernel may have pages.
    pub(crate) fn has_pages(&self) -> bool {
        self.pages
    }

    /// Sets the time of the last change, as a program did. What is written later is sent with it,
    /// unless somebody writes anew.
    pub(crate) fn set_mtime(&mut self, mtime: Timestamp) {
        self.mtime = Some(mtime);
        if let Some((_, time)) = &mut self.wrote_to {
            *time = mtime;
        }
    }

    /// The time that goes to the objects with what is sent.
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        self.mtime
    }

    /// End and time of the data that was written and is perhaps not at the OSTs.
    pub(crate) fn unsent(&self) -> Option<(u64, Timestamp)> {
        self.wrote_to
    }

    /// Blocks of space that it takes perhaps.
    pub(crate) fn unsent_blocks(&self) -> u64 {
        (self.dirty.unsent() as u64).div_ceil(BLOCK_BYTES)
    }

    /// Takes out what is due and may be sent together: see [`Dirty::take`].
    pub(crate) fn take(
        &mut self,
        due: Due,
        now: Instant,
        stripes: impl Fn(u16) -> bool,
    ) -> Option<ExtentsInFlight> {
        self.dirty.take(due, now, stripes)
    }

    /// A request has been executed, and the object looks like this now.
    pub(crate) fn on_arrived(&mut self, request: &ExtentsInFlight, attr: ObjectAttr) {
        self.dirty.on_completed(request);
        let known = self.objects.entry(request.stripe).or_insert(attr);
        known.size = known.size.max(attr.size);
        known.blocks = known.blocks.max(attr.blocks);
        known.mtime = known.mtime.max(attr.mtime);
        known.ctime = known.ctime.max(attr.ctime);
        self.settle();
    }

    /// A request could not be executed: what it carried waits for another attempt, or is lost.
    pub(crate) fn on_failed(
        &mut self,
        request: ExtentsInFlight,
        errno: Errno,
        now: Instant,
    ) -> Failed {
        let failed = self.dirty.on_failed(request, errno, now);
        if failed.lost > 0 {
            self.lose(errno);
        }
        failed
    }

    /// A request is given up with all that it carried.
    pub(crate) fn give_up(&mut self, request: &ExtentsInFlight, errno: Errno) {
        self.dirty.on_completed(request);
        self.lose(errno);
    }

    /// Gives everything up that was not sent. Returns how much waited, by stripe.
    pub(crate) fn discard(&mut self, errno: Errno) -> Vec<(u16, usize)> {
        let discarded = self.dirty.discard();
        match discarded.is_empty() {
            true => self.settle(),
            false => self.lose(errno),
        }
        discarded
    }

    /// Notes that something was lost.
    pub(crate) fn lose(&mut self, errno: Errno) {
        let loss = self.loss.get_or_insert(Loss { number: 0, errno, seen: true });
        // Until somebody has heard of it, it is one loss.
        loss.number += u64::from(loss.seen);
        (loss.errno, loss.seen) = (errno, false);
        self.settle();
    }

    fn settle(&mut self) {
        if self.dirty.is_clean() {
            // From now on the objects know.
            self.wrote_to = None;
        }
    }

    /// Tells an open file what was lost, if it does not know.
    pub(crate) fn tell(&mut self, told: &AtomicU64) -> FsResult<()> {
        let Some(loss) = &mut self.loss else { return Ok(()) };
        if told.fetch_max(loss.number, Ordering::AcqRel) >= loss.number {
            return Ok(());
        }
        loss.seen = true;
        Err(loss.errno)
    }

    /// Losses that a file that is opened just now counts as told: all, if others have heard of it,
    /// or if the data that is left is cut off.
    pub(crate) fn told_to_new(&self, truncates: bool) -> u64 {
        match &self.loss {
            Some(loss) if loss.seen || truncates => loss.number,
            Some(loss) => loss.number - 1,
            None => 0,
        }
    }

    /// Whether something was lost that nobody was told of.
    pub(crate) fn has_untold_loss(&self) -> bool {
        self.loss.as_ref().is_some_and(|loss| !loss.seen)
    }

    /// Whether an object said something since it may have changed elsewhere.
    pub(crate) fn has_objects(&self) -> bool {
        !self.objects.is_empty()
    }

    /// Attributes of the objects of a file of this size, if all of them have said it.
    pub(crate) fn objects(&self, layout: Layout, size: u64) -> Option<ObjectAttr> {
        let mut whole = ObjectAttr { size, ..ObjectAttr::default() };
        for stripe in 0..layout.stripe_count.max(1) {
            match self.objects.get(&stripe) {
                Some(object) => whole.add(object),
                // The stripe has no object if the file ends before it.
                None if layout.object_size(stripe, size) == 0 => {}
                None => return None,
            }
        }
        Some(whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_ahead::ReadAheadMemory;
    use proptest::prelude::*;
    use std::time::Duration;

    const TIME: Timestamp = Timestamp { secs: 7, nanos: 0 };

    /// An open file, and the number of the loss that it was told of.
    #[derive(Default)]
    struct File(AtomicU64, u32);

    #[test]
    fn what_the_objects_said_is_complete_or_nothing() {
        let layout = Layout { stripe_bytes_log2: 12, stripe_count: 2, ..Layout::default() };
        let mut data = FileData::default();
        let now = Instant::now();
        data.write(0, 0, &[1; 100], now);
        let request = data.take(Due::Before(now), now, |_| true).unwrap();
        data.on_arrived(&request, ObjectAttr { size: 100, blocks: 8, ..ObjectAttr::default() });
        assert_eq!(data.objects(layout, 100).map(|whole| whole.blocks), Some(8));
        assert_eq!(data.objects(layout, 5000), None, "the other object is not known");
        data.change();
        assert_eq!(data.objects(layout, 100), None);
    }

    #[test]
    fn what_was_sent_before_its_end_was_said_leaves_no_end_behind() {
        let mut data = FileData::default();
        let now = Instant::now();
        data.write(0, 99, b"x", now);
        let request = data.take(Due::Before(now), now, |_| true).unwrap();
        data.on_arrived(&request, ObjectAttr::default());
        data.wrote(100, TIME);
        assert_eq!(data.unsent(), None);
        let (_, first) = data.write(0, 0, b"x", now);
        data.wrote(1, TIME);
        assert_eq!((first, data.unsent()), (true, Some((1, TIME))));
    }

    #[test]
    fn a_block_that_does_not_come_was_prefetched_in_vain() {
        let (mut data, memory) = (FileData::default(), ReadAheadMemory::default());
        assert!(!data.is_prefetched_in_vain(), "it was not prefetched");
        let [fails, comes] = [(); 2].map(|()| BlockAhead::coming(0, 100, &memory).unwrap());
        data.set_prefetched(fails.clone());
        assert!(!data.is_prefetched_in_vain(), "it is on its way");
        fails.give_up();
        assert!(data.is_prefetched_in_vain() && data.is_prefetched());
        data.set_prefetched(comes.clone());
        comes.fill(Some(vec![7; 100]));
        assert!(!data.is_prefetched_in_vain());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Writes of one byte, each sent by itself, come to objects or are lost.
        #[test]
        fn an_end_is_known_while_it_is_not_sent_and_a_loss_is_told_once(
            steps in proptest::collection::vec((0u8..9, 0u64..20), 0..100),
        ) {
            let mut data = FileData::default();
            let (begun, mut rounds, mut stamp) = (Instant::now(), 0, 0);
            let (mut sent, mut files): (Vec<ExtentsInFlight>, Vec<File>) = Default::default();
            // The furthest end since all was clean, losses, and whether the last was told.
            let (mut end, mut losses, mut told) = (None::<u64>, 0u32, true);
            for (step, at) in steps {
                rounds += 1;
                let now = begun + Duration::from_secs(rounds);
                let lost_now = match step {
                    0 | 1 => {
                        let (_, first) = data.write(0, at * 2, b"x", now);
                        prop_assert_eq!(first, end.is_none());
                        data.wrote(at * 2 + 1, TIME);
                        end = Some(end.unwrap_or(0).max(at * 2 + 1));
                        false
                    }
                    2 => {
                        sent.extend(data.take(Due::Before(now), now, |_| true));
                        false
                    }
                    3 => {
                        if let Some(request) = sent.pop() {
                            data.on_arrived(&request, ObjectAttr::default());
                        }
                        false
                    }
                    4 => match sent.pop() {
                        Some(request) => data.on_failed(request, Errno::EIO, now).lost > 0,
                        None => false,
                    },
                    5 => match sent.pop() {
                        Some(request) => {
                            data.give_up(&request, Errno::EIO);
                            true
                        }
                        None => false,
                    },
                    6 => !data.discard(Errno::EIO).is_empty(),
                    7 => {
                        let new = data.told_to_new(false);
                        prop_assert_eq!(new + u64::from(!told), u64::from(losses));
                        files.push(File(AtomicU64::new(new), losses - u32::from(!told)));
                        false
                    }
                    _ => {
                        if let Some(File(number, heard)) = files.get_mut(at as usize) {
                            prop_assert_eq!(data.tell(number).is_err(), *heard < losses);
                            prop_assert_eq!(data.tell(number), Ok(()), "once");
                            told |= *heard < losses;
                            *heard = losses;
                        }
                        false
                    }
                };
                losses += u32::from(lost_now && told);
                told &= !lost_now;
                end = end.filter(|_| !data.is_clean());
                prop_assert_eq!(data.unsent(), end.map(|end| (end, TIME)));
                prop_assert_eq!(data.unsent_blocks() > 0, end.is_some());
                prop_assert_eq!(data.has_untold_loss(), !told);
                prop_assert!(data.stamp() >= stamp);
                stamp = data.stamp();
            }
        }
    }
}
