//! lookup, getattr, readlink.

use crate::permission::EXEC;
use crate::service::{Context, Mds};
use glint_kv::Kv;
use glint_proto::limits::NAME_BYTES_MAX;
use glint_proto::{Errno, FsResult, Ino, MdsReply};

impl<K: Kv> Mds<K> {
    pub(crate) async fn lookup(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
    ) -> FsResult<MdsReply> {
        if name.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let directory = self.directory(parent).await?;
        self.permit(&directory, context.cred, EXEC).await?;
        let ino = match name {
            b"." => parent,
            b".." => directory.parent,
            _ => self.find_entry(parent, name).await?.ok_or(Errno::ENOENT)?.0,
        };
        // An unlink between the two reads is as if it had come before both.
        let record = self.find_inode(ino).await?.ok_or(Errno::ENOENT)?;
        Ok(MdsReply::Attr(record.attr))
    }

    pub(crate) async fn getattr(&self, ino: Ino) -> FsResult<MdsReply> {
        Ok(MdsReply::Attr(self.inode(ino).await?.attr))
    }

    pub(crate) async fn readlink(&self, ino: Ino) -> FsResult<MdsReply> {
        let record = self.inode(ino).await?;
        if record.attr.file_type() != glint_proto::FileType::Symlink {
            return Err(Errno::EINVAL);
        }
        Ok(MdsReply::Bytes(record.target))
    }
}
