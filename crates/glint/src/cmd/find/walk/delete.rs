//! The action -delete: names are removed one by one, each only if it is still that of the file for
//! which the expression holds.
//!
//! Between the listing and the removal a command of -exec may have run for minutes, and a name may
//! have become another file's. It is looked up right before it is removed. What happens after that look
//! is as with find(1), which has no look at all.

use super::super::entry::{Entry, Facts, Missing};
use super::super::test::Applied;
use super::{Sink, Walk};
use crate::cmd::tree::Source;
use glint_proto::{Attr, Errno};

/// Why a file was not deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotDeleted {
    Refused(Errno),
    /// The name is another file's.
    Replaced,
    /// The expression does not hold any more.
    Changed,
    /// The same, after this walk has removed another name of the file, as find(1) would have seen.
    ChangedByOtherName,
}

impl From<Errno> for NotDeleted {
    fn from(error: Errno) -> NotDeleted {
        NotDeleted::Refused(error)
    }
}

impl<S: Source, O: Sink> Walk<'_, S, O> {
    /// Takes the action -delete, whose number this is; returns whether it ended well.
    pub(super) async fn take_delete(&self, entry: &Entry, action: usize) -> bool {
        let Err(why) = self.delete(entry, action).await else { return true };
        let path = &entry.path[..];
        match why {
            NotDeleted::ChangedByOtherName => {}
            NotDeleted::Refused(error) => {
                self.sink.fail(&[b"cannot delete '", path, b"'"].concat(), error);
            }
            NotDeleted::Replaced | NotDeleted::Changed => {
                let why = match why {
                    NotDeleted::Replaced => "another file has this name now",
                    _ => "it has changed, and the expression does not hold any more",
                };
                let path = String::from_utf8_lossy(path);
                self.sink.tell(&format!("cannot delete '{path}': {why}"));
                self.sink.note_failure();
            }
        }
        false
    }

    async fn delete(&self, entry: &Entry, action: usize) -> Result<(), NotDeleted> {
        // As find(1) has it, which stands in that directory.
        if entry.path == b"." {
            return Ok(());
        }
        let parent = entry.parent.ok_or(Errno::EBUSY)?;
        let now = self.source.lookup(parent, entry.name()).await?;
        if now.ino != entry.ino {
            // A starting point may be a link to what was found.
            return Err(if entry.depth == 0 {
                Errno::ENOTDIR.into()
            } else {
                NotDeleted::Replaced
            });
        }
        let (is_directory, nlink) = (now.is_dir(), now.nlink);
        // Of a directory: it has changed because what was in it was deleted, and is only removed if
        // nothing is in it.
        if !is_directory
            && has_changed(entry, &now)
            && !self.still_holds(entry, now, action).await?
        {
            return Err(match self.removed_links.borrow().contains(&entry.ino) {
                true => NotDeleted::ChangedByOtherName,
                false => NotDeleted::Changed,
            });
        }
        self.source.remove(parent, entry.name(), is_directory).await?;
        if !is_directory && nlink > 1 {
            self.removed_links.borrow_mut().insert(entry.ino);
        }
        Ok(())
    }

    /// Whether the expression still leads to an action, with the attributes that a file has now. Actions
    /// before it have been taken, and are not taken again.
    async fn still_holds(&self, entry: &Entry, now: Attr, action: usize) -> Result<bool, Errno> {
        let mut entry = Entry { attr: Ok(now), ..entry.clone() };
        let facts = Facts { is_empty: None, target: None, xattrs: None, osts: None, ..entry.facts };
        entry.facts = facts;
        loop {
            let applied = self.call.expression.apply(&entry, &self.names, &mut Applied::default());
            match applied {
                Err(Missing::Action(next)) => return Ok(next == action),
                Err(
                    missing
                    @ (Missing::IsEmpty | Missing::Target | Missing::Xattrs | Missing::Osts),
                ) => {
                    self.ask(&mut entry, missing).await?;
                }
                Err(Missing::Name(error)) => return Err(error),
                Err(Missing::Attributes) | Ok(_) => return Ok(false),
            }
        }
    }
}

/// Whether a file is not as it was when it was listed. Reading it, as -exec may have done, is no change.
fn has_changed(entry: &Entry, now: &Attr) -> bool {
    let what = |attr: &Attr| (attr.mtime, attr.ctime, attr.layout);
    entry.attr.as_ref().is_ok_and(|was| what(was) != what(now))
}
