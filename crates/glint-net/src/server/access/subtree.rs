//! Clients that are bound to a part of the tree: what they name must be in it. (For data, what
//! they have opened there: [`crate::server::access::capability`].)

use glint_proto::limits::SCAN_DIRECTORIES_MAX;
use glint_proto::{Errno, FsResult, Ino, MdsReply, MdsRequest, MetadataService};
use std::collections::HashSet;

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
        // Each of its directories is admitted by itself.
        Scan { .. } => [None, None],
    }
}

/// Decision about a request of a client that may be bound to a part of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission<'a> {
    /// This is executed: the request, or the part of a scan that is admitted.
    Execute(MdsRequest<'a>),
    /// This is the answer, and nothing is executed.
    Answer(MdsReply),
}

/// EACCES for an inode that is outside of `top`.
async fn check(metadata: &impl MetadataService, top: Ino, ino: Ino) -> FsResult<()> {
    metadata.is_within(top, ino).await?.then_some(()).ok_or(Errno::EACCES)
}

/// Decides about a request of a client that sees the tree from `top` on: EACCES if the request names
/// something outside of it.
///
/// A scan is admitted up to the first directory that is outside or gone, and that one is refused alone
/// when it comes first: others may remove or move any directory while a client lists many.
pub(crate) async fn admit<'a>(
    metadata: &impl MetadataService,
    top: Option<Ino>,
    mut request: MdsRequest<'a>,
) -> FsResult<Admission<'a>> {
    let Some(top) = top else { return Ok(Admission::Execute(request)) };
    if matches!(request, MdsRequest::Lookup { parent, name: b".." } if parent == top) {
        return Err(Errno::EACCES);
    }
    for ino in named(&request).into_iter().flatten() {
        check(metadata, top, ino).await?;
    }
    if let MdsRequest::Scan { directories, .. } = &mut request {
        if directories.len() > SCAN_DIRECTORIES_MAX {
            return Err(Errno::EINVAL);
        }
        let (mut admitted, mut checked) = (0, HashSet::new());
        for (ino, _) in directories.iter() {
            if checked.contains(ino) {
                admitted += 1;
                continue;
            }
            match check(metadata, top, *ino).await {
                Ok(()) => {
                    checked.insert(*ino);
                    admitted += 1;
                }
                Err(errno) if admitted == 0 => {
                    return Ok(Admission::Answer(MdsReply::Scanned {
                        pages: vec![Err(errno)],
                        unsent: Vec::new(),
                    }));
                }
                Err(_) => break,
            }
        }
        directories.truncate(admitted);
    }
    Ok(Admission::Execute(request))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;
    use glint_proto::{Answer, Arrival, Cred};
    use std::future::ready;

    /// Inodes below 100 are within, 404 is gone, and all others are outside.
    struct Tree;

    impl MetadataService for Tree {
        fn handle(
            &self,
            _: &Arrival<'_>,
            _: &Cred,
            _: &MdsRequest<'_>,
        ) -> impl Future<Output = Answer<MdsReply>> {
            ready(Answer::unchanged(Err(Errno::EOPNOTSUPP)))
        }

        fn resolve(&self, _: &str) -> impl Future<Output = FsResult<Ino>> {
            ready(Err(Errno::ENOENT))
        }

        fn is_within(&self, _: Ino, ino: Ino) -> impl Future<Output = FsResult<bool>> {
            ready(if ino == Ino(404) { Err(Errno::ESTALE) } else { Ok(ino.0 < 100) })
        }
    }

    fn scan(directories: &[u64]) -> MdsRequest<'static> {
        let directories = directories.iter().map(|ino| (Ino(*ino), 7)).collect();
        MdsRequest::Scan { directories, bytes_max: 1 << 20, filter: None }
    }

    fn decided(request: MdsRequest<'_>) -> FsResult<Admission<'_>> {
        block_on(admit(&Tree, Some(Ino(9)), request))
    }

    #[test]
    fn a_bound_client_scans_nothing_outside_and_all_that_is_within() {
        let refused = |errno| {
            let (pages, unsent) = (vec![Err(errno)], Vec::new());
            Ok(Admission::Answer(MdsReply::Scanned { pages, unsent }))
        };
        for (asked, admitted) in [
            (&[9, 10, 11][..], &[9, 10, 11][..]),
            (&[9, 10, 404, 11], &[9, 10]),
            (&[9, 200, 404, 11], &[9]),
            (&[], &[]),
        ] {
            assert_eq!(decided(scan(asked)), Ok(Admission::Execute(scan(admitted))), "{asked:?}");
        }
        assert_eq!(decided(scan(&[200, 9])), refused(Errno::EACCES));
        assert_eq!(decided(scan(&[404, 9])), refused(Errno::ESTALE));
        assert_eq!(decided(scan(&[1; SCAN_DIRECTORIES_MAX + 1])), Err(Errno::EINVAL));
        // Who is bound to nothing is asked nothing.
        let free = block_on(admit(&Tree, None, scan(&[200, 404])));
        assert_eq!(free, Ok(Admission::Execute(scan(&[200, 404]))));
    }

    #[test]
    fn a_bound_client_names_nothing_outside() {
        let inside = MdsRequest::Getattr { ino: Ino(10) };
        assert_eq!(decided(inside.clone()), Ok(Admission::Execute(inside)));
        for request in [
            MdsRequest::Getattr { ino: Ino(200) },
            MdsRequest::Lookup { parent: Ino(9), name: b".." },
            MdsRequest::Link { ino: Ino(200), parent: Ino(10), name: b"x" },
        ] {
            assert_eq!(decided(request.clone()), Err(Errno::EACCES), "{request:?}");
        }
        assert_eq!(decided(MdsRequest::Readlink { ino: Ino(404) }), Err(Errno::ESTALE));
    }
}
