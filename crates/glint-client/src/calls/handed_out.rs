//! Files whose data the kernel of this host reads by itself, from their object.
//!
//! Invariants:
//! - Only where there is no other client, and so nothing that this one has written and not sent:
//!   what it acknowledged is in the object.
//! - As long as the open file is there by which an object was handed out, the data of the file does
//!   not move to others.

use crate::client::Client;
use crate::vfs::Handle;
use glint_net::Transport;
use glint_proto::limits::PASSED_BYTES_MIN;
use glint_proto::{FsResult, LocalObject};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl<T: Transport> Client<T> {
    /// See [`crate::Vfs::hand_out`].
    pub(crate) async fn hand_out(&self, handle: Handle) -> FsResult<Option<Arc<dyn LocalObject>>> {
        let file = self.handles.get(handle)?;
        if !self.parameters.is_alone() || file.is_dir {
            return Ok(None);
        }
        // While somebody is inside, the data does not move.
        let _inside = self.data.gate.enter(file.ino).await;
        let layout = self.layout_of_open(&file);
        if layout.stripe_count > 1 || layout.replicas > 1 {
            return Ok(None);
        }
        let (ost, object) = (self.placement.ost_of(layout, 0), layout.object(file.ino, 0));
        let Some(handed) = self.transport.hand_out(ost, object).await? else { return Ok(None) };
        // What is missing behind its end reads as zeros, for all but the kernel.
        let size = self.size_of(file.ino).await?;
        if size < PASSED_BYTES_MIN || handed.size()? != size {
            return Ok(None);
        }
        file.handed_out.store(true, Ordering::Release);
        Ok(Some(handed))
    }

    /// See [`crate::Vfs::note_passed`].
    pub(crate) async fn note_passed(&self, handle: Handle, stores: bool) {
        let Ok(file) = self.handles.get(handle) else { return };
        if stores {
            file.wrote.store(true, Ordering::Release);
        }
        self.touch(&file).await;
    }
}
