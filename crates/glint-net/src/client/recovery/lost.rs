//! Loss of changes of metadata that were answered and could not be replayed: told to the inodes
//! that they changed or made, and to the directories of their names. The next fsync or close of
//! each fails.

use glint_proto::message::MdsRequest;
use glint_proto::{Errno, FsResult, Ino, MdsReply, deferred};

/// Inodes of which a change is lost, each with the reason: what the replay of `request` did not
/// do, and had been `answered` once.
pub(crate) fn lost(
    request: &MdsRequest<'_>,
    answered: &MdsReply,
    replayed: &FsResult<MdsReply>,
) -> Vec<(Ino, Errno)> {
    let mut lost = Vec::new();
    match (request, replayed) {
        (MdsRequest::Batch { changes, .. }, Ok(MdsReply::Batched { failed: now, .. })) => {
            // Failures of the first time were told then.
            let known = match answered {
                MdsReply::Batched { failed, .. } => &failed[..],
                _ => &[],
            };
            let is_new = |(at, _): &&(u32, Errno)| !known.iter().any(|(known, _)| known == at);
            let mut failed = now.iter().filter(is_new).copied().peekable();
            for (at, change) in (0u32..).zip(deferred::changes(changes).flatten()) {
                while failed.next_if(|(failed, _)| *failed < at).is_some() {}
                let Some((_, errno)) = failed.next_if(|(failed, _)| *failed == at) else {
                    continue;
                };
                let made = change.made.map(|(ino, _)| ino);
                lost.extend(changed(&change.request).chain(made).map(|ino| (ino, errno)));
            }
        }
        (MdsRequest::Batch { changes, .. }, Err(errno)) => {
            for change in deferred::changes(changes).flatten() {
                let made = change.made.map(|(ino, _)| ino);
                lost.extend(changed(&change.request).chain(made).map(|ino| (ino, *errno)));
            }
        }
        (request, Err(errno)) => {
            let made = match answered {
                MdsReply::Opened { attr, .. } => Some(attr.ino),
                MdsReply::Attr(attr) if matches!(request, MdsRequest::Create { .. }) => {
                    Some(attr.ino)
                }
                _ => None,
            };
            lost.extend(changed(request).chain(made).map(|ino| (ino, *errno)));
        }
        _ => {}
    }
    lost
}

/// Inodes that a request names, where it changes what users see of them.
fn changed(request: &MdsRequest<'_>) -> impl Iterator<Item = Ino> {
    let (first, second) = match request {
        // An open to write says that the objects know the size from then on.
        MdsRequest::Open { ino, flags } if flags.write || flags.truncate => (Some(*ino), None),
        MdsRequest::Setattr { ino, .. }
        | MdsRequest::Setxattr { ino, .. }
        | MdsRequest::Removexattr { ino, .. }
        | MdsRequest::SwitchLayout { ino, .. }
        | MdsRequest::SetLayout { ino, .. } => (Some(*ino), None),
        MdsRequest::Create { parent, .. }
        | MdsRequest::Unlink { parent, .. }
        | MdsRequest::Rmdir { parent, .. } => (Some(*parent), None),
        MdsRequest::Link { ino, parent, .. } => (Some(*parent), Some(*ino)),
        MdsRequest::Rename { parent, new_parent, .. } => {
            (Some(*parent), (parent != new_parent).then_some(*new_parent))
        }
        _ => (None, None),
    };
    first.into_iter().chain(second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::deferred::Deferred;
    use glint_proto::{OpenFlags, Placement, SetAttr, Timestamp};

    const DIRECTORY: Ino = Ino(2);

    /// Two changes of files that stand in one batch: files 10 and 11 are made.
    fn batch() -> Vec<u8> {
        let mut changes = Vec::new();
        for ino in [10, 11] {
            let request = MdsRequest::Create {
                parent: DIRECTORY,
                name: b"name",
                mode: 0o100644,
                umask: 0,
                rdev: 0,
                target: b"",
                open: None,
                exclusive: true,
            };
            let made = Some((Ino(ino), Placement { first: 0, osts: 1 }));
            let (time, uid, gid) = (Timestamp::default(), 0, 0);
            Deferred { uid, gid, time, made, request }.encode(&mut changes).unwrap();
        }
        changes
    }

    #[test]
    fn what_fails_in_a_replayed_batch_is_told_to_file_and_directory() {
        let changes = batch();
        let request = MdsRequest::Batch { epoch: 1, changes: &changes };
        let batched =
            |failed: &[(u32, Errno)]| MdsReply::Batched { done: 2, failed: failed.into() };
        let both = [(0, Errno::EIO), (1, Errno::ENOSPC)];
        let second = [(DIRECTORY, Errno::ENOSPC), (Ino(11), Errno::ENOSPC)];
        assert_eq!(lost(&request, &batched(&[]), &Ok(batched(&both[1..]))), second);
        assert_eq!(lost(&request, &batched(&both[..1]), &Ok(batched(&both))), second);
        assert_eq!(lost(&request, &batched(&both), &Ok(batched(&both))), []);
        assert_eq!(lost(&request, &batched(&[]), &Err(Errno::ESTALE)).len(), 4);
    }

    #[test]
    fn a_change_that_is_not_replayed_is_told_to_what_it_changed() {
        let request = MdsRequest::Setattr { ino: Ino(9), set: SetAttr::default() };
        assert_eq!(lost(&request, &MdsReply::Done, &Err(Errno::EIO)), [(Ino(9), Errno::EIO)]);
        assert_eq!(lost(&request, &MdsReply::Done, &Ok(MdsReply::Done)), []);
        for (write, told) in [(true, 1), (false, 0)] {
            let flags = OpenFlags { write, ..OpenFlags::default() };
            let open = MdsRequest::Open { ino: Ino(9), flags };
            assert_eq!(lost(&open, &MdsReply::Done, &Err(Errno::EIO)).len(), told);
        }
        let touch = MdsRequest::Touch { ino: Ino(9) };
        assert_eq!(lost(&touch, &MdsReply::Done, &Err(Errno::EIO)), []);
    }
}
