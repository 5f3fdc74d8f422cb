//! What writes by this client do to what it knows of a file, and who knows its size.

use crate::cache::inode::InodeState;
use crate::data::file_data::BLOCK_BYTES;
use glint_proto::lock::Range;
use glint_proto::{Attr, Timestamp};

impl InodeState {
    /// Something was written, and so many bytes take space perhaps: the attributes follow, if
    /// they are known.
    pub(crate) fn wrote(&mut self, end: u64, now: Timestamp, bytes: usize) {
        self.rare.make().data.wrote(end, now);
        if let Some(attr) = self.attributes_mut() {
            attr.size = attr.size.max(end);
            let all = attr.size.div_ceil(BLOCK_BYTES);
            let more = attr.blocks + (bytes as u64).div_ceil(BLOCK_BYTES);
            attr.blocks = attr.blocks.max(more.min(all));
            (attr.mtime, attr.ctime) = (now, attr.ctime.max(now));
        } else {
            // An answer under way may tell of the time before this.
            self.attrs.disturb();
        }
    }

    /// Learns the blocks of the objects, if all of them have said how many they take.
    pub(crate) fn learn_blocks(&mut self) {
        let protected = self.protects_attributes();
        let Some(attr) = self.attrs.get_mut(protected) else { return };
        let objects =
            self.rare.data.layout().and_then(|layout| self.rare.data.objects(layout, attr.size));
        if let Some(objects) = objects {
            attr.blocks = objects.blocks + self.rare.data.unsent_blocks();
        }
    }

    /// It was opened to be written: from now on its objects know its size, whatever older answers say.
    pub(crate) fn opened_to_write(&mut self) {
        if self.rare.delegation.is_exclusive() {
            return;
        }
        match self.attributes_mut() {
            Some(attr) => attr.size_on_ost |= attr.is_file(),
            None => self.attrs.disturb(),
        }
    }

    /// Whether its objects have a time that is not, or not only, in its record.
    pub(crate) fn objects_have_times(&self) -> bool {
        let written = |attr: &Attr| attr.is_file() && attr.size_on_ost;
        !self.rare.data.is_clean() || self.attributes().is_some_and(written)
    }

    /// Whether this client alone knows the size.
    pub(crate) fn owns_size(&self) -> bool {
        self.rare.data_locks.covers_write(Range::ALL) && self.attributes().is_some()
    }
}
