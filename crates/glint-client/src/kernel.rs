//! Interface to the kernel that a client serves: to have it forget.

use glint_proto::Ino;
use glint_proto::lock::Range;

/// A kernel that caches what a mount told it.
pub trait Kernel: Send + Sync + 'static {
    /// Forgets the attributes of an inode. Does not wait. Returns whether it knew the inode.
    fn forget_attributes(&self, ino: Ino) -> bool;

    /// Forgets pages of a file, after writing those that are dirty. Waits for requests under
    /// way that hold them.
    fn forget_pages(&self, ino: Ino, range: Range);

    /// Forgets a name. Waits for requests under way in its directory.
    fn forget_name(&self, parent: Ino, name: &[u8]);

    /// Forgets inodes that nobody uses; those that somebody does it keeps. May wait for requests
    /// under way. Returns whether it can do that.
    fn forget_unused(&self, inos: &[Ino]) -> bool;

    /// Forgets all names at once, and does not wait. Returns whether it can do that.
    fn forget_all_names(&self) -> bool;
}
