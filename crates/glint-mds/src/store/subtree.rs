//! Parts of the tree that clients are bound to.
//!
//! Invariant: an inode is taken to be in a part only if a chain of directories that hold each
//! other leads from it to there. A file with several names counts as where it was made, or last
//! renamed to, as long as it has a name there.

use crate::service::Mds;
use futures_lite::future::yield_now;
use glint_kv::Kv;
use glint_proto::{Errno, FsResult, Ino};

/// Directories deeper than this are in no part.
const DEPTH_MAX: usize = 4096;
/// After so many directories others have their turn.
const DEPTH_OF_TURN: usize = 256;

impl<K: Kv> Mds<K> {
    /// The directory at a path from the root, whoever has just made it.
    pub(crate) async fn find_directory(&self, path: &str) -> FsResult<Ino> {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            self.client_locks.make_visible(at).await;
            let entry = self.find_entry(at, name.as_bytes()).await?;
            at = entry.ok_or(Errno::ENOENT)?.0;
            self.directory(at).await?;
        }
        Ok(at)
    }

    /// Whether an inode is in the part of the tree below `top`, or is it.
    pub(crate) async fn is_below(&self, top: Ino, ino: Ino) -> FsResult<bool> {
        let mut at = ino;
        for depth in 1..=DEPTH_MAX {
            // A hostile client makes deep directories, and names many of them at once.
            if depth.is_multiple_of(DEPTH_OF_TURN) {
                yield_now().await;
            }
            if at == top {
                return Ok(true);
            }
            if at == Ino::ROOT || at == Ino(0) {
                return Ok(false);
            }
            at = self.inode(at).await?.parent;
        }
        Ok(false)
    }
}
