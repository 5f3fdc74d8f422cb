//! lookup, getattr, readlink.

use crate::error::{OpResult, Stop};
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use crate::store::record::InodeRecord;
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
        let mut ino = self.find_child(&directory, name).await?;
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
                    if let Some(ino) = ino {
                        self.look(context, ino)?;
                    }
                }
            }
        }
        let record = match self.find_inode(ino.ok_or(Errno::ENOENT)?).await? {
            // One without a name has just been replaced, and is kept for who had found it before.
            Some(record) if record.attr.nlink > 0 => record,
            _ => self.lookup_locked(context, parent, name).await?,
        };
        self.attributes(context, record.attr).await
    }

    /// Looks up a name whose inode went between the two reads. After an unlink there is no name
    /// either; but a rename has put another inode in its place, and to a name that was there all the
    /// time ENOENT is no answer. The locks keep the name as it is, so this cannot happen again.
    async fn lookup_locked(
        &self,
        context: &Context<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<InodeRecord, Stop> {
        self.withhold_bits(context);
        let name_key = Key::Name(parent, self.cookie(name));
        let wanted = [Want::shared(Key::Dir(parent)), Want::shared(name_key)];
        let _held = self.locks.acquire(&wanted).await;
        let directory = self.directory(parent).await?;
        let ino = self.find_child(&directory, name).await?.ok_or(Errno::ENOENT)?;
        self.look(context, ino)?;
        Ok(self.find_inode(ino).await?.ok_or(Errno::ENOENT)?)
    }

    /// The inode that a name leads to, "." and ".." too.
    async fn find_child(&self, directory: &InodeRecord, name: &[u8]) -> FsResult<Option<Ino>> {
        match name {
            b"." => Ok(Some(directory.attr.ino)),
            b".." => Ok(Some(directory.parent)),
            _ => Ok(self.find_entry(directory.attr.ino, name).await?.map(|(ino, _)| ino)),
        }
    }

    pub(crate) async fn getattr(&self, context: &Context<'_>, ino: Ino) -> OpResult {
        self.look(context, ino)?;
        self.grant_attributes(context, ino);
        let attr = self.inode(ino).await?.attr;
        self.attributes(context, attr).await
    }

    /// Attributes as an answer, with what writers have not yet sent to the objects.
    async fn attributes(&self, context: &Context<'_>, attr: Attr) -> OpResult {
        self.withhold_uncertain(context, &attr);
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
