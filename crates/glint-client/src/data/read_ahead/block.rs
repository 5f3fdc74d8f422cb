//! A part of a file that is read before anybody asks for it: who waits for it, and who gives it up.

use crate::data::read_ahead::ReadAheadMemory;
use glint_telemetry::Counter;
use glint_wait::Monitor;
use std::sync::Arc;

enum Content {
    Coming,
    Here(Arc<Vec<u8>>),
    Failed,
}

/// Data that is read ahead.
pub(crate) struct BlockAhead {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    content: Monitor<Content>,
    memory: ReadAheadMemory,
}

impl Drop for BlockAhead {
    fn drop(&mut self) {
        self.memory.give(self.len as usize);
    }
}

impl BlockAhead {
    /// A block that is about to come, if there is memory for it.
    pub(crate) fn coming(
        offset: u64,
        len: u64,
        memory: &ReadAheadMemory,
    ) -> Option<Arc<BlockAhead>> {
        let content = Monitor::new(Content::Coming);
        let block = |()| Arc::new(BlockAhead { offset, len, content, memory: memory.clone() });
        memory.take(len as usize).then_some(()).map(block)
    }

    /// Keeps it, if there is a place: see [`ReadAheadMemory::keep`].
    pub(super) fn keep(self: &Arc<BlockAhead>) -> bool {
        self.memory.keep(self)
    }

    /// Keeps it no longer.
    pub(super) fn let_go(self: &Arc<BlockAhead>) {
        self.memory.let_go(self);
    }

    /// Where it ends in the file.
    pub(super) fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// Whoever waits for it reads by itself, unless it is here.
    pub(crate) fn give_up(&self) {
        self.content.change(|content| {
            if matches!(content, Content::Coming) {
                *content = Content::Failed;
            }
        });
    }

    /// Ends the wait for this block, with its data or without.
    pub(crate) fn fill(&self, data: Option<Vec<u8>>) {
        let content = match data {
            Some(data) => Content::Here(Arc::new(data)),
            None => Content::Failed,
        };
        self.content.change(|before| *before = content);
    }

    /// Whether it does not come.
    pub(crate) fn has_failed(&self) -> bool {
        matches!(*self.content.lock(), Content::Failed)
    }

    /// All of its data, if that is here.
    pub(crate) fn whole(&self) -> Option<Arc<Vec<u8>>> {
        match &*self.content.lock() {
            Content::Here(data) if data.len() as u64 == self.len => Some(data.clone()),
            _ => None,
        }
    }

    /// Copies what it has from `offset` on, once it is here. Returns how much; `None` if it
    /// did not come.
    pub(crate) async fn copy(&self, offset: u64, room: &mut [u8]) -> Option<usize> {
        let mut look = |content: &mut Content| match content {
            Content::Coming => None,
            Content::Here(data) => {
                let data = data.get((offset - self.offset) as usize..).unwrap_or_default();
                let len = data.len().min(room.len());
                room[..len].copy_from_slice(&data[..len]);
                glint_telemetry::count(Counter::BytesCopied, len as u64);
                Some(Some(len))
            }
            Content::Failed => Some(None),
        };
        self.content.until(&mut look).await
    }
}

/// The task that reads a block: if it is dropped, nobody waits for that.
pub(crate) struct BlockOnItsWay(pub(crate) Arc<BlockAhead>);

impl Drop for BlockOnItsWay {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
