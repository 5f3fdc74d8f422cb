//! Parts of an open file at equal distances, which are read ahead in one request to each of their
//! servers.

use crate::calls::open_files::OpenFile;
use crate::client::Client;
use crate::data::read_ahead::{BlockAhead, BlockOnItsWay};
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
            match <[Arc<BlockAhead>; 1]>::try_from(batch) {
                Ok([block]) => host::spawn(client.fetch_ahead(file, block)),
                Err(batch) => host::spawn(client.fetch_together(file, layout, batch)),
            }
        }
    }

    async fn fetch_together(
        self: Arc<Self>,
        file: Arc<OpenFile>,
        layout: Layout,
        blocks: Vec<Arc<BlockAhead>>,
    ) {
        let coming: Vec<BlockOnItsWay> = blocks.into_iter().map(BlockOnItsWay).collect();
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

/// Blocks as they are read together.
fn batches(blocks: Vec<Arc<BlockAhead>>, layout: Layout) -> Vec<Vec<Arc<BlockAhead>>> {
    let is_one_piece =
        |block: &Arc<BlockAhead>| layout.pieces(block.offset, block.len).nth(1).is_none();
    let (whole, parted): (Vec<_>, Vec<_>) = blocks.into_iter().partition(is_one_piece);
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
