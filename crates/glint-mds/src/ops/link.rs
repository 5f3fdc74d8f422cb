//! link: one more name for an inode.

use crate::error::OpResult;
use crate::locking::namespace_locks::{Key, Want};
use crate::service::{Context, Mds};
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::lock::Bits;
use glint_proto::message::check_name;
use glint_proto::posix::{linked, may_link};
use glint_proto::{Errno, Ino, MdsReply};

impl<K: Kv> Mds<K> {
    pub(crate) async fn link(
        &self,
        context: &Context<'_>,
        ino: Ino,
        parent: Ino,
        name: &[u8],
    ) -> OpResult {
        check_name(name)?;
        let _held = self
            .lock(
                context,
                &[
                    Want::shared(Key::Dir(parent)),
                    Want::exclusive(Key::Name(parent, self.cookie(name))),
                    Want::exclusive(Key::Inode(ino)),
                ],
            )
            .await;
        let mut directory = self.directory(parent).await?;
        self.may_change_entries(&directory, context.cred).await?;
        self.need_space(context)?;
        let mut record = self.find_inode(ino).await?.ok_or(Errno::ENOENT)?;
        may_link(&record.attr)?;
        if self.find_entry(parent, name).await?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        self.claim(context, parent, Bits::NEGATIVE | Bits::ATTR)?;
        self.claim(context, ino, Bits::ATTR)?;
        let mut batch = Batch::new();
        if record.attr.nlink == 0 {
            // An O_TMPFILE gets its first name; the kernel admits nothing else.
            batch.delete(Keyspace::Orphan, &ino.key());
        }
        record.gains_name(parent);
        linked(&mut directory.attr, &mut record.attr, context.now);
        self.put_entry(&mut batch, parent, name, ino, record.attr.file_type());
        self.put_inode(&mut batch, &record);
        self.put_directory(context, &mut batch, &mut directory);
        let reply = self.commit(context, batch, MdsReply::Attr(record.attr)).await?;
        self.opens.link(ino);
        Ok(reply)
    }
}
