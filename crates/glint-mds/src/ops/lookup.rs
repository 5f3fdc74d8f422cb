//! lookup, getattr, readlink.

use crate::error::OpResult;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::limits::NAME_BYTES_MAX;
use glint_proto::lock::Bits;
use glint_proto::posix::EXEC;
use glint_proto::{Attr, Errno, FsResult, Ino, MdsReply};

impl<K: Kv> Mds<K> {
    pub(crate) async fn lookup(&self, context: &Context<'_>, parent: Ino, name: &[u8]) -> OpResult {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.look(context, parent)?;
        let directory = self.directory(parent).await?;
        self.permit(&directory, context.cred, EXEC).await?;
        let mut ino = match name {
            b"." => Some(parent),
            b".." => Some(directory.parent),
            _ => self.find_entry(parent, name).await?.map(|(ino, _)| ino),
        };
        if let Some(ino) = ino {
            self.look(context, ino)?;
        }
        if self.is_locking(context) {
            // Grants are entered before what they protect is read: a later change recalls them.
            match ino {
                Some(ino) => {
                    self.grant(context, ino, Bits::ENTRY);
                    self.grant_attributes(context, ino);
                }
                None => self.grant(context, parent, Bits::NEGATIVE),
            }
            if !matches!(name, b"." | b"..") {
                let again = self.find_entry(parent, name).await?.map(|(ino, _)| ino);
                if again != ino {
                    // The name leads elsewhere since: no locks, and nothing to cache.
                    self.withhold_bits(context);
                    ino = again;
                }
            }
        }
        // An unlink between the two reads is as if it had come before both.
        let record = self.find_inode(ino.ok_or(Errno::ENOENT)?).await?.ok_or(Errno::ENOENT)?;
        self.attributes(context, record.attr).await
    }

    pub(crate) async fn getattr(&self, context: &Context<'_>, ino: Ino) -> OpResult {
        self.look(context, ino)?;
        self.grant_attributes(context, ino);
        let attr = self.inode(ino).await?.attr;
        self.attributes(context, attr).await
    }

    /// Attributes as an answer, with what writers have not yet sent to the objects.
    async fn attributes(&self, context: &Context<'_>, attr: Attr) -> OpResult {
        if attr.size_on_ost
            && attr.is_file()
            && let Some((size, mtime)) = self.glimpse(context, attr.ino).await
        {
            return Ok(MdsReply::Glimpsed { attr, size, mtime });
        }
        Ok(MdsReply::Attr(attr))
    }

    pub(crate) async fn readlink(&self, ino: Ino) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        if record.attr.file_type() != glint_proto::FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        Ok(MdsReply::Bytes(record.target))
    }
}
