//! Requests of an OST. What may block on the disk runs on a pool of threads; what
//! the page cache can answer is answered at once.

use crate::disk::{Disk, DiskFile, LocalDisk};
use crate::error::OstError;
use crate::store::object_store::ObjectStore;
use glint_proto::{Bulk, ClientId, Errno, Extents, FsResult, ObjectId, OstReply, OstRequest};
use glint_telemetry::{Counter, Layer, Span};
use std::io;
use std::sync::Arc;

/// An object storage target.
pub struct Ost<D: Disk = LocalDisk> {
    store: Arc<ObjectStore<D>>,
}

impl<D: Disk> Ost<D> {
    /// Serves a store.
    pub fn new(store: ObjectStore<D>) -> Ost<D> {
        Ost { store: Arc::new(store) }
    }

    /// The store.
    pub fn store(&self) -> &ObjectStore<D> {
        &self.store
    }

    /// Executes a request.
    pub async fn handle(
        &self,
        client: ClientId,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> FsResult<OstReply> {
        let _span = Span::start(Layer::ObjectIo, request.op() as u8);
        let store = &self.store;
        store.turn().await;
        let (object, result) = match request {
            OstRequest::Read { object, offset, len } => {
                let Bulk::In(buffer) = bulk else { return Err(Errno::EPROTO) };
                let room = buffer.get_mut(..len as usize).ok_or(Errno::EPROTO)?;
                (object, self.read(object, offset, room).await.map(OstReply::Data))
            }
            OstRequest::Write { object, offset, mtime, kept } => {
                let Bulk::Out(data) = bulk else { return Err(Errno::EPROTO) };
                let write = |kept| store.write(object, offset, data, mtime, kept);
                let result = self.use_kept(client, data.len() as u64, kept, write);
                (object, result.map(OstReply::Written))
            }
            OstRequest::WriteExtents { object, count, mtime, kept } => {
                let Bulk::Out(bulk) = bulk else { return Err(Errno::EPROTO) };
                let extents = Extents::parse(bulk, count)?;
                let bytes = extents.bytes() as u64;
                let write = |kept| store.write_extents(object, extents, mtime, kept);
                let result = self.use_kept(client, bytes, kept, write);
                (object, result.map(OstReply::Written))
            }
            OstRequest::Truncate { object, size } => {
                (object, store.truncate(object, size).map(|()| OstReply::Done))
            }
            OstRequest::Fallocate { object, mode, offset, len } => {
                let result = self.in_pool(move |s| s.allocate(object, mode, offset, len)).await;
                (object, result.map(|()| OstReply::Done))
            }
            OstRequest::Sync { object } => {
                let result = self.in_pool(move |store| store.sync(object)).await;
                (object, result.map(|()| OstReply::Done))
            }
            OstRequest::Stat { object } => (object, store.stat(object).map(OstReply::Stat)),
            OstRequest::Seek { object, offset, hole } => {
                (object, store.seek(object, offset, hole).map(OstReply::Offset))
            }
            OstRequest::SetTime { object, mtime } => {
                (object, store.set_mtime(object, mtime).map(|()| OstReply::Done))
            }
            OstRequest::Space => {
                let none = ObjectId { ino: glint_proto::Ino(0), stripe: 0 };
                (none, store.space().map(OstReply::Space))
            }
            OstRequest::GrantSpace { bytes } => {
                let none = ObjectId { ino: glint_proto::Ino(0), stripe: 0 };
                let object_bytes_max = store.object_bytes_max();
                let reserved = |bytes| OstReply::SpaceGranted { bytes, object_bytes_max };
                (none, store.grant(client, bytes).map(reserved))
            }
        };
        result.map_err(|source| {
            let path = store.path().display().to_string();
            OstError::Object { object, path, source }.errno()
        })
    }

    /// Writes into space that was kept for a client, if it says so and all of it was: what was
    /// not must leave the rest to what was written before it.
    fn use_kept<T>(
        &self,
        client: ClientId,
        bytes: u64,
        kept: bool,
        write: impl FnOnce(bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let used = if kept { self.store.grants().use_up(client, bytes) } else { 0 };
        let result = write(kept && used == bytes);
        if result.is_err() {
            self.store.grants().give_back(client, used);
        }
        result
    }

    /// Brings to stable storage the changes of a request.
    pub async fn commit(&self, request: &OstRequest) -> FsResult<()> {
        match *request {
            OstRequest::Write { object, .. }
            | OstRequest::WriteExtents { object, .. }
            | OstRequest::Truncate { object, .. }
            | OstRequest::Fallocate { object, .. }
            | OstRequest::SetTime { object, .. } => self
                .handle(ClientId::IN_PROCESS, OstRequest::Sync { object }, Bulk::None)
                .await
                .map(drop),
            _ => Ok(()),
        }
    }

    /// Everything to stable storage.
    pub async fn commit_all(&self) -> FsResult<()> {
        self.in_pool(ObjectStore::sync_all).await.map_err(|e| Errno::from_io(&e))
    }

    async fn in_pool<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ObjectStore<D>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if !D::WAITS {
            return work(&self.store);
        }
        let store = self.store.clone();
        blocking::unblock(move || work(&store)).await
    }

    /// Reads until `buffer` is full or the object ends. What is in memory is copied
    /// at once; only a miss goes to the pool.
    async fn read(&self, object: ObjectId, offset: u64, buffer: &mut [u8]) -> io::Result<u32> {
        let Some(file) = self.store.file(object, None)? else { return Ok(0) };
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let cached = file.checked_read(at, &mut buffer[done..], |file, room| {
                Ok(file.read_cached(room, at)?)
            });
            let n = match cached.map_err(|e| (e.raw_os_error(), e)) {
                Ok(n) => n,
                Err((Some(libc::EINTR), _)) => continue,
                Err((Some(libc::EAGAIN | libc::EOPNOTSUPP), _)) => {
                    let (file, len) = (file.clone(), buffer.len() - done);
                    let data = blocking::unblock(move || {
                        let mut data = vec![0u8; len];
                        let read = |file: &D::File, room: &mut [u8]| Ok(file.read(room, at)?);
                        let n = file.checked_read(at, &mut data, read)?;
                        data.truncate(n);
                        Ok::<_, io::Error>(data)
                    })
                    .await?;
                    buffer[done..done + data.len()].copy_from_slice(&data);
                    glint_telemetry::count(Counter::BytesCopied, data.len() as u64);
                    data.len()
                }
                Err((_, error)) => return Err(error),
            };
            if n == 0 {
                break;
            }
            done += n;
        }
        Ok(done as u32)
    }
}
