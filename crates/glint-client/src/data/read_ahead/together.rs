//! Parts of an open file that are read ahead: those at equal distances in one request to each of their
//! servers, and large ones each in its own, whose data stays where it was received.

use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::{BlockAhead, BlockOnItsWay, is_large};
use glint_net::{Transport, host};
use glint_proto::limits::{BULK_BYTES_MAX, OBJECT_READS_MAX};
use glint_proto::message::ObjectRead;
use glint_proto::{FsResult, Layout};
use std::sync::{Arc, Weak};

impl<T: Transport> Client<T> {
    /// Begins to read blocks of an open file: together what lies in one piece of an object each.
    pub(crate) fn begin_to_fetch(&self, file: &Arc<OpenFile>, blocks: Vec<Arc<BlockAhead>>) {
        let Some(client) = self.me.get().and_then(Weak::upgrade) else {
            return blocks.iter().for_each(|block| block.give_up());
        };
        let layout = self.layout_of_open(file);
        for batch in batches(blocks, layout) {
            let (client, file) = (client.clone(), file.clone());
            let coming: Vec<_> = batch.into_iter().map(BlockOnItsWay).collect();
            host::spawn(async move {
                match &coming[..] {
                    [block] if !is_large_piece(&block.0, layout) => {
                        client.fetch_ahead(&file, &block.0).await;
                    }
                    coming => client.fetch_pieces(&file, layout, coming).await,
                }
            });
        }
    }

    /// Reads blocks of an open file that each lie in one object.
    pub(super) async fn fetch_pieces(
        &self,
        file: &OpenFile,
        layout: Layout,
        coming: &[BlockOnItsWay],
    ) {
        let known = self.parameters.needs_capabilities.then(|| self.cache.find(file.ino)).flatten();
        let read = |BlockOnItsWay(block): &BlockOnItsWay| {
            let piece = layout.pieces(block.offset, block.len).next()?;
            let object = layout.object(file.ino, piece.stripe);
            let to = self.placement.ost_of(layout, piece.stripe).into();
            let (offset, len) = (piece.object_offset, piece.len as u32);
            let mut read = ObjectRead { to, object, offset, len, capability: None };
            if let Some(inode) = &known {
                read.capability = inode.lock().rare.capabilities.for_request(&read.request());
            }
            Some(read)
        };
        let reads: Vec<ObjectRead> = coming.iter().filter_map(read).collect();
        let says = |at: usize, data: FsResult<Vec<u8>>| {
            let BlockOnItsWay(block) = &coming[at];
            match data {
                // Of one of several objects a short one may be a hole.
                Ok(data) if data.len() as u64 == block.len || layout.stripe_count <= 1 => {
                    block.fill(Some(data));
                }
                _ => block.give_up(),
            }
        };
        self.transport.read_objects(reads, &says).await;
    }
}

/// Whether a block lies in one object, and is so large that its data is kept where it was received.
pub(super) fn is_large_piece(block: &BlockAhead, layout: Layout) -> bool {
    is_large(&(block.offset..block.end())) && is_one_piece(block, layout)
}

fn is_one_piece(block: &BlockAhead, layout: Layout) -> bool {
    layout.pieces(block.offset, block.len).nth(1).is_none()
}

/// Blocks as they are read together.
fn batches(blocks: Vec<Arc<BlockAhead>>, layout: Layout) -> Vec<Vec<Arc<BlockAhead>>> {
    let is_whole = |block: &Arc<BlockAhead>| is_one_piece(block, layout);
    let (whole, parted): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_whole);
    let mut batches: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0;
    for block in whole {
        let fits = bytes + block.len <= BULK_BYTES_MAX as u64;
        match batches.last_mut().filter(|batch| fits && batch.len() < OBJECT_READS_MAX) {
            Some(batch) => {
                bytes += block.len;
                batch.push(block);
            }
            None => {
                bytes = block.len;
                batches.push(vec![block]);
            }
        }
    }
    batches.extend(parted.into_iter().map(|block| vec![block]));
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::read_ahead::ReadAheadMemory;

    const MIB: u64 = 1 << 20;

    fn sizes(blocks: &[(u64, u64)], layout: Layout) -> Vec<usize> {
        let memory = ReadAheadMemory::default();
        let coming =
            |(offset, len): &(u64, u64)| BlockAhead::coming(*offset, *len, &memory).unwrap();
        let batches = batches(blocks.iter().map(coming).collect(), layout);
        for batch in batches.iter().filter(|batch| batch.len() > 1) {
            assert!(batch.iter().map(|block| block.len).sum::<u64>() <= BULK_BYTES_MAX as u64);
        }
        batches.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_request_has_no_more_than_it_may() {
        let layout = Layout { stripe_count: 1, ..Layout::default() };
        let large: Vec<_> = (0..9).map(|n| (8 * n * MIB, MIB)).collect();
        assert_eq!(sizes(&large, layout), [4, 4, 1]);
        let small: Vec<_> = (0..100).map(|n| (n * MIB, 4096)).collect();
        assert_eq!(sizes(&small, layout), [64, 36]);
        assert_eq!(sizes(&[], layout), [0; 0]);
    }

    #[test]
    fn what_lies_in_several_objects_goes_alone() {
        let layout = Layout { stripe_count: 4, stripe_bytes_log2: 20, ..Layout::default() };
        let blocks = [(0, 4096), (MIB - 4096, 8192), (5 * MIB, MIB)];
        assert_eq!(sizes(&blocks, layout), [2, 1]);
    }
}
