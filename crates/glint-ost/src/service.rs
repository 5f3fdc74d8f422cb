//! Requests of an OST, and which thread waits for the disk meanwhile.
//!
//! Invariants:
//! - What asks for that ([`Way::Apart`]) has no thread but those of the disk wait for it: not for the
//!   device, nor for a lock that is held by who waits for it.
//! - Nothing else waits on the calling thread once the disk was seen to be slow, nor ever where others
//!   go on while it stands still ([`hand_over`]). Changes of an object are made in the order in
//!   which they came then, too, whoever still waits for them; also when the disk is prompt again.
//! - An object is removed after the changes that were begun before.
//! - A change that has to come [after](Apart::after) something else takes no thread before that is done,
//!   or is its own to do: then it is begun at once.

mod changing;
mod hand_over;
pub(crate) mod listing;
mod reading;
mod unreadable;
mod write_data;

use crate::disk::threads::{DiskThreads, First};
use crate::disk::{CallKind, Disk, DiskWatch, LocalDisk};
use crate::error::OstError;
use crate::object_watches::ObjectWatches;
use crate::settle_gate::SettleGate;
use crate::store::object_store::ObjectStore;
use changing::Changing;
use futures_channel::oneshot;
use glint_memory::BufferPool;
use glint_proto::{Bulk, ClientId, Errno, Extents, FsResult, Ino, ObjectId, OstReply, OstRequest};
use glint_telemetry::{Layer, Span};
use hand_over::HandOver;
use listing::NamesAhead;
use reading::Output;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use write_data::WriteData;

/// Kept until a disk is done with something, however long who asked for it waits.
pub type Kept = Box<dyn Send>;

/// On which thread a request waits for the disk.
pub enum Way {
    /// On the calling one as long as the disk is prompt, if nothing else is held up when it is not
    /// (`service/hand_over.rs`): none is woken.
    InPlace,
    /// On one of the disk's own. The request is executed whether or not anybody waits for it.
    Apart(Apart),
}

/// Goes on with a request, on whichever thread says so: with what is left to do first, if anything is.
pub type GoOn = Box<dyn FnOnce(Option<First>) + Send>;

/// What is done about a request that is executed apart, beside executing it.
#[derive(Default)]
pub struct Apart {
    /// Called with the request, which goes on when something else is done.
    pub after: Option<Box<dyn FnOnce(GoOn) + Send>>,
    /// Kept until the disk is done with the request.
    pub kept: Option<Kept>,
    /// The data is for a copy or a check, and none of it is added to what is kept in memory,
    /// whatever the object's size.
    pub adds_none: bool,
    /// Set when the object of a change had no bytes before it. Of several changes of it at once, one
    /// finds that at least.
    pub was_empty: Option<Arc<AtomicBool>>,
}

impl Apart {
    /// A request of which something is kept until the disk is done with it.
    fn keeping(kept: impl Send + 'static) -> Apart {
        Apart { kept: Some(Box::new(kept)), ..Apart::default() }
    }
}

/// Object in errors of requests that are for none.
const NONE: ObjectId = ObjectId { ino: Ino(0), stripe: 0 };

/// An object storage target.
pub struct Ost<D: Disk = LocalDisk> {
    store: Arc<ObjectStore<D>>,
    threads: DiskThreads,
    pub(crate) watch: Arc<DiskWatch>,
    settling: SettleGate,
    changing: Changing,
    /// For what is read and written apart.
    buffers: BufferPool,
    hand_over: HandOver,
    names_ahead: NamesAhead,
    /// Note changes that are made apart.
    object_watches: Arc<ObjectWatches>,
}

impl<D: Disk> Ost<D> {
    /// Serves a store.
    pub fn new(store: ObjectStore<D>) -> Ost<D> {
        let (threads, watch, settling, changing) = Default::default();
        let (buffers, hand_over, names_ahead, object_watches) = Default::default();
        let store = Arc::new(store);
        Ost {
            store,
            threads,
            watch,
            settling,
            changing,
            buffers,
            hand_over,
            names_ahead,
            object_watches,
        }
    }

    /// Notes changes that are made apart in these.
    pub(crate) fn noting_in(self, object_watches: Arc<ObjectWatches>) -> Ost<D> {
        Ost { object_watches, ..self }
    }

    /// The store.
    pub fn store(&self) -> &Arc<ObjectStore<D>> {
        &self.store
    }

    /// Threads that wait for its disk, or have just done so.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.threads.count()
    }

    /// Its disk, as somebody has to watch it.
    pub fn watch(&self) -> &DiskWatch {
        &self.watch
    }

    /// Executes a request.
    pub async fn handle(
        &self,
        client: ClientId,
        request: OstRequest,
        bulk: Bulk<'_>,
        way: Way,
    ) -> FsResult<OstReply> {
        let _span = Span::start(Layer::ObjectIo, request.op() as u8);
        let object = request.object().unwrap_or(NONE);
        let _awaited = self.await_disk(matches!(way, Way::InPlace));
        self.store.note_read(&request);
        let result = match (request, bulk) {
            (OstRequest::Read { offset, len, .. }, Bulk::In(buffer)) => {
                let room = buffer.get_mut(..len as usize).ok_or(Errno::EPROTO)?;
                self.read(object, offset, Output::Borrowed(room), way).await.map(OstReply::Data)
            }
            (OstRequest::Read { offset, len, .. }, Bulk::Lent(room))
                if room.len() == len as usize =>
            {
                self.read(object, offset, Output::Lent(room), way).await.map(OstReply::Data)
            }
            (OstRequest::Read { .. }, _) => return Err(Errno::EPROTO),
            (request, bulk @ (Bulk::Out(_) | Bulk::Shared(_))) => {
                self.execute(client, request, bulk, way).await
            }
            (request, _) if request.is_write() => return Err(Errno::EPROTO),
            (request, _) => self.execute(client, request, Bulk::None, way).await,
        };
        self.outcome(object, result)
    }

    /// Removes an object if it exists.
    pub async fn remove(&self, object: ObjectId, kept: Option<Kept>) -> FsResult<()> {
        let change = self.changing.after_others(object).await;
        let work = move |store: &ObjectStore<D>| store.remove(object);
        let removed = self.apart(CallKind::Short, Apart::keeping((kept, change)), work).await;
        self.outcome(object, removed)
    }

    /// Removes objects that exist. Returns those that could not be; nothing if there was no thread for
    /// it.
    pub(crate) async fn remove_all(
        &self,
        mut objects: Vec<ObjectId>,
    ) -> Option<Vec<(ObjectId, Errno)>> {
        // One that was named twice would wait for itself; in one order, so that no two wait for each
        // other.
        objects.sort_unstable();
        objects.dedup();
        // A change that somebody has given up waiting for would make the object anew.
        let mut changes = Vec::with_capacity(objects.len());
        for object in &objects {
            changes.push(self.changing.after_others(*object).await);
        }
        let watch = self.watch.clone();
        let remove = move |store: &ObjectStore<D>| {
            let remove = |object: ObjectId| {
                let _call = watch.begin(CallKind::Short);
                store.remove(object).err().map(|error| (object, Errno::from_io(&error)))
            };
            Ok(objects.into_iter().filter_map(remove).collect())
        };
        self.apart(CallKind::Long, Apart::keeping(changes), remove).await.ok()
    }

    fn outcome<T>(&self, object: ObjectId, result: io::Result<T>) -> FsResult<T> {
        result.map_err(|source| {
            let path = self.store.path().display().to_string();
            OstError::Object { object, path, source }.errno()
        })
    }

    /// Executes a request that is not a read.
    async fn execute(
        &self,
        client: ClientId,
        request: OstRequest,
        bulk: Bulk<'_>,
        way: Way,
    ) -> io::Result<OstReply> {
        let kind = match request {
            OstRequest::Sync { .. } => CallKind::Flush,
            _ => CallKind::Short,
        };
        if request == OstRequest::Space
            && let Some(space) = self.last_space()
        {
            return Ok(OstReply::Space(space));
        }
        let takes_long = matches!(request, OstRequest::Fallocate { .. } | OstRequest::Sync { .. });
        let changed = request.object().filter(|_| request.is_modifying());
        let apart = match way {
            Way::InPlace
                if !takes_long
                    && !self.hands_over()
                    && changed.is_none_or(|object| self.changing.is_free(object)) =>
            {
                let _call = self.watch.begin(kind);
                self.store.turn().await;
                return perform(&self.store, client, request, bulk.data(), false);
            }
            Way::InPlace => match changed {
                // Beside the state of the request, which is that of all that wait for nothing.
                Some(object) => Apart::keeping(Box::pin(self.changing.in_turn(object)).await),
                None => Apart::default(),
            },
            Way::Apart(Apart { after, kept, adds_none, was_empty }) => {
                let change = changed.map(|object| self.changing.beside_others(object));
                Apart { after, adds_none, was_empty, ..Apart::keeping((kept, change)) }
            }
        };
        if let OstRequest::Stat { object } = request
            && let Some(file) = self.store.open_file(object)
        {
            self.store.turn().await;
            if let Some(state) = file.state_at_once() {
                return state.map(|state| OstReply::Stat(Some(state)));
            }
        }
        // Who asked may have gone before it is written. Nothing was copied while it waited for its turn.
        let data = WriteData::keep(&self.buffers, &bulk);
        let adds_none = request.object().filter(|_| apart.adds_none && request.is_write());
        let was_empty = changed.zip(apart.was_empty.clone());
        // Who would note the change may be gone before it is made.
        let watches = changed.map(|_| self.object_watches.clone());
        let work = move |store: &ObjectStore<D>| {
            if let Some((object, was_empty)) = was_empty
                && store.is_empty(object)?
            {
                was_empty.store(true, Ordering::Release);
            }
            let done = perform(store, client, request, &data, adds_none.is_some());
            if let Some(watches) = watches {
                watches.note(&request, &data);
            }
            if let Some(object) = adds_none {
                store.passing().drop_later(object, (0, u64::MAX));
            }
            done
        };
        self.apart(kind, apart, work).await
    }

    /// Brings to stable storage the changes of a request, for an object without copies if it `is_alone`.
    pub async fn commit(&self, request: &OstRequest, is_alone: bool) -> FsResult<()> {
        let _awaited = self.await_disk(is_alone);
        match *request {
            OstRequest::Write { object, .. }
            | OstRequest::WriteExtents { object, .. }
            | OstRequest::Truncate { object, .. }
            | OstRequest::Fallocate { object, .. }
            | OstRequest::SetTime { object, .. } => {
                let sync = OstRequest::Sync { object };
                let way = Way::Apart(Apart::default());
                self.handle(ClientId::IN_PROCESS, sync, Bulk::None, way).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Everything to stable storage.
    pub async fn commit_all(&self) -> FsResult<()> {
        let done = match D::WAITS {
            true => self.apart(CallKind::Flush, Apart::default(), ObjectStore::sync_all).await,
            // At once: a simulated disk has no threads.
            false => self.store.sync_all(),
        };
        done.map_err(|e| Errno::from_io(&e))
    }

    /// Settles the store, see [`ObjectStore::settle`], and says to `done` whether that went well;
    /// unless it is being settled. Waits for nothing. Returns whether it began.
    pub(crate) fn settle(
        &self,
        idle: Duration,
        noted: Instant,
        done: impl FnOnce(bool) + Send + 'static,
    ) -> bool {
        self.buffers.trim();
        let Some(settling) = self.settling.begin() else { return false };
        let settle = move |store: &ObjectStore<D>| {
            let settled = store.settle(idle, Some(noted));
            if let Err(error) = &settled
                && store.failure().is_none()
            {
                tracing::error!(%error, path = %store.path().display(), "could not seal objects; they have no checksums yet");
            }
            done(settled.is_ok());
            drop(settling);
            settled
        };
        match D::WAITS {
            true => drop(self.apart_unless_dropped(CallKind::Long, Apart::default(), settle)),
            // See `commit_all`.
            false => _ = settle(&self.store),
        }
        true
    }

    /// Brings all changes to stable storage before the end.
    pub(crate) fn flush_last(&self) -> io::Result<()> {
        self.settling.wait();
        self.store.flush_changed()
    }

    /// Has the disk do something apart from this thread.
    async fn apart<T: Send + 'static>(
        &self,
        kind: CallKind,
        apart: Apart,
        work: impl FnOnce(&ObjectStore<D>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let done = self.apart_unless_dropped(kind, apart, work);
        // It was dropped: there was no thread for it.
        done.await.unwrap_or_else(|_| Err(io::ErrorKind::WouldBlock.into()))
    }

    pub(crate) fn apart_unless_dropped<T: Send + 'static>(
        &self,
        kind: CallKind,
        Apart { after, kept, .. }: Apart,
        work: impl FnOnce(&ObjectStore<D>) -> io::Result<T> + Send + 'static,
    ) -> oneshot::Receiver<io::Result<T>> {
        let (says, done) = oneshot::channel();
        let (store, watch, threads) =
            (self.store.clone(), self.watch.clone(), self.threads.clone());
        let go_on = move |first: Option<First>| {
            let execute = move |store: &ObjectStore<D>| {
                let result = work(store);
                drop(kept);
                result
            };
            if D::WAITS {
                let work = move |done: io::Result<()>| {
                    // This disk is not blamed for what comes first, which may wait for another one.
                    let result = done.and_then(|()| {
                        let _call = watch.begin(kind);
                        execute(&store)
                    });
                    // Who asked may have gone.
                    let _ = says.send(result);
                };
                threads.run(first, Box::new(work));
            } else {
                let (done, disk) = (first.map_or(Ok(()), |first| first()), store.clone());
                let task = async move {
                    let call = watch.begin(kind);
                    store.turn().await;
                    let result = done.and_then(|()| execute(&store));
                    drop(call);
                    let _ = says.send(result);
                };
                disk.spawn(Box::pin(task));
            }
        };
        match after {
            Some(after) => after(Box::new(go_on)),
            None => go_on(None),
        }
        done
    }
}

/// Executes a request that is neither a read nor about a watch, on this thread. A write that
/// `adds_none` leaves less in memory.
fn perform<D: Disk>(
    store: &ObjectStore<D>,
    client: ClientId,
    request: OstRequest,
    data: &[u8],
    adds_none: bool,
) -> io::Result<OstReply> {
    match request {
        OstRequest::Write { object, offset, mtime, kept } => {
            let write = |kept| match adds_none {
                true => store.write_adding_none(object, offset, data, mtime, kept),
                false => store.write(object, offset, data, mtime, kept),
            };
            use_kept(store, client, data.len() as u64, kept, write).map(OstReply::Written)
        }
        OstRequest::WriteExtents { object, count, mtime, kept } => {
            let failed = |errno: Errno| io::Error::from_raw_os_error(errno.0);
            let extents = Extents::parse(data, count).map_err(failed)?;
            let bytes = extents.bytes() as u64;
            let write = |kept| store.write_extents(object, extents, mtime, kept);
            use_kept(store, client, bytes, kept, write).map(OstReply::Written)
        }
        OstRequest::Truncate { object, size } => {
            store.truncate(object, size).map(|()| OstReply::Done)
        }
        OstRequest::Fallocate { object, mode, offset, len } => {
            store.allocate(object, mode, offset, len).map(|()| OstReply::Done)
        }
        OstRequest::Sync { object } => store.sync(object).map(|()| OstReply::Done),
        OstRequest::Stat { object } => store.stat(object).map(OstReply::Stat),
        OstRequest::Seek { object, offset, hole } => {
            store.seek(object, offset, hole).map(OstReply::Offset)
        }
        OstRequest::SetTime { object, mtime } => {
            store.set_mtime(object, mtime).map(|()| OstReply::Done)
        }
        OstRequest::Space => store.space().map(OstReply::Space),
        OstRequest::GrantSpace { bytes } => {
            let object_bytes_max = store.object_bytes_max();
            let reserved = |bytes| OstReply::SpaceGranted { bytes, object_bytes_max };
            store.grant(client, bytes).map(reserved)
        }
        OstRequest::Read { .. } | OstRequest::Watch { .. } | OstRequest::Changed { .. } => {
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

/// Writes into space that was kept for a client, if it says so and all of it was: what was
/// not must leave the rest to what was written before it.
fn use_kept<D: Disk, T>(
    store: &ObjectStore<D>,
    client: ClientId,
    bytes: u64,
    kept: bool,
    write: impl FnOnce(bool) -> io::Result<T>,
) -> io::Result<T> {
    let used = if kept { store.grants().use_up(client, bytes) } else { 0 };
    let result = write(kept && used == bytes);
    if result.is_err() {
        store.grants().give_back(client, used);
    }
    result
}
