//! Clients that are bound to a part of the tree: what they name must be in it. (For data, what
//! they have opened there: [`crate::server::access::capability`].)

use glint_proto::{Errno, FsResult, Ino, MdsRequest, MetadataService};

/// Inodes that a request names.
fn named(request: &MdsRequest<'_>) -> [Option<Ino>; 2] {
    use MdsRequest::*;
    match *request {
        Lookup { parent, .. }
        | Create { parent, .. }
        | Tmpfile { parent, .. }
        | Unlink { parent, .. }
        | Rmdir { parent, .. } => [Some(parent), None],
        Link { ino, parent, .. } => [Some(ino), Some(parent)],
        Rename { parent, new_parent, .. } => [Some(parent), Some(new_parent)],
        Getattr { ino }
        | Setattr { ino, .. }
        | Open { ino, .. }
        | Release { ino, .. }
        | Readdir { ino, .. }
        | Readlink { ino }
        | Getxattr { ino, .. }
        | Setxattr { ino, .. }
        | Listxattr { ino }
        | Removexattr { ino, .. }
        | SetLayout { ino, .. }
        | PlanLayout { ino, .. }
        | SwitchLayout { ino, .. }
        | DropLayout { ino, .. }
        | Reopen { ino, .. }
        | Touch { ino }
        | Lock { ino, .. }
        | AddOpens { ino, .. }
        | ReclaimDelegation { ino } => [Some(ino), None],
        PosixLock(lock) => [Some(lock.ino), None],
        // Requests that name no inode; a batch, and a prefetch, are only for clients that
        // are bound to no subtree.
        Statfs | Sync | GrantInodes { .. } | WritesBack { .. } | Batch { .. } | Prefetch { .. } => {
            [None, None]
        }
        // Named by `scanned`.
        Scan { .. } => [None, None],
    }
}

/// Directories that a request scans.
fn scanned<'a>(request: &'a MdsRequest<'_>) -> impl Iterator<Item = Ino> + 'a {
    let directories = match request {
        MdsRequest::Scan { directories, .. } => directories.as_slice(),
        _ => &[],
    };
    directories.iter().map(|(ino, _)| *ino)
}

/// EACCES for a request that names something outside of `top`.
pub(crate) async fn admit(
    metadata: &impl MetadataService,
    top: Option<Ino>,
    request: &MdsRequest<'_>,
) -> FsResult<()> {
    let Some(top) = top else { return Ok(()) };
    if matches!(request, MdsRequest::Lookup { parent, name: b".." } if *parent == top) {
        return Err(Errno::EACCES);
    }
    for ino in named(request).into_iter().flatten().chain(scanned(request)) {
        if !metadata.is_within(top, ino).await? {
            return Err(Errno::EACCES);
        }
    }
    Ok(())
}
