//! What may be removed or replaced: unlink(2), rmdir(2), rename(2).

use crate::{Attr, Errno, FsResult};

/// unlink(2) of a name: EISDIR for a directory.
pub fn may_unlink(target: &Attr) -> FsResult<()> {
    if target.is_dir() { Err(Errno::EISDIR) } else { Ok(()) }
}

/// rmdir(2) of a name: ENOTDIR, ENOTEMPTY.
pub fn may_rmdir(target: &Attr, is_empty: bool) -> FsResult<()> {
    match (target.is_dir(), is_empty) {
        (false, _) => Err(Errno::ENOTDIR),
        (true, false) => Err(Errno::ENOTEMPTY),
        (true, true) => Ok(()),
    }
}

/// rename(2) over an existing name: a directory replaces only an empty directory, anything else
/// none.
pub fn may_replace(source: &Attr, target: &Attr, is_empty: bool) -> FsResult<()> {
    if source.is_dir() { may_rmdir(target, is_empty) } else { may_unlink(target) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posix::create::tests::attr;

    #[test]
    fn directories_and_others_replace_their_like() {
        let (dir, file) = (attr(0o040755), attr(0o100644));
        for (source, target, is_empty, result) in [
            (&file, &file, true, Ok(())),
            (&file, &dir, true, Err(Errno::EISDIR)),
            (&dir, &file, true, Err(Errno::ENOTDIR)),
            (&dir, &dir, true, Ok(())),
            (&dir, &dir, false, Err(Errno::ENOTEMPTY)),
        ] {
            assert_eq!(may_replace(source, target, is_empty), result);
        }
    }
}
