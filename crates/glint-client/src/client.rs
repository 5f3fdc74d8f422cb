//! The client of one file system, on any transport: what its calls are made of.

use crate::cache::Cache;
use crate::cache::attr_update::AttrUpdate;
use crate::cache::in_flight::Asked;
use crate::cache::inode::CachedInode;
use crate::cache::prune::KernelMemory;
use crate::calls::attributes::LastFsStat;
use crate::calls::groups::supplementary_groups;
use crate::calls::open::exclusion::CloseExclusion;
use crate::calls::open_files::Handles;
use crate::calls::snapshots::Snapshots;
use crate::data::SharedByFiles;
use crate::data::placement::OstPlacement;
use crate::listing::from_memory::NameOrder;
use crate::listing::{DirectoriesAhead, pages_ahead};
use crate::locks::LockKeeping;
use crate::memory::MemoryKeeping;
use crate::meta_log::log::WriteBackLog;
use crate::parameters::ClientParameters;
use crate::vfs::{Caller, Found, Valid};
use glint_net::{MdsRequests, MdsSession, Transport};
use glint_proto::{Attr, Cred, Errno, FsResult, Ino, Layout, MdsReply, MdsRequest, Timestamp};
use glint_telemetry::{Counter, Layer, Span};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A client core.
pub struct Client<T> {
    pub(crate) transport: T,
    pub(crate) parameters: ClientParameters,
    /// Cache of names and inodes, and under which locks.
    pub(crate) cache: Cache,
    /// Changes of names that were made without asking.
    pub(crate) log: Arc<WriteBackLog>,
    pub(crate) handles: Handles,
    pub(crate) closes: CloseExclusion,
    /// Values of virtual attributes that are being read.
    pub(crate) snapshots: Snapshots,
    pub(crate) data: SharedByFiles,
    /// Directories that were listed before a program did.
    pub(crate) directories_ahead: Arc<DirectoriesAhead>,
    pub(crate) name_order: NameOrder,
    pub(crate) placement: OstPlacement,
    pub(crate) last_fs_stat: LastFsStat,
    pub(crate) locks: LockKeeping,
    pub(crate) kernel_memory: KernelMemory,
    pub(crate) memory: MemoryKeeping,
    /// Leads to this client itself, if it keeps locks; see [`crate::RunningClient`].
    pub(crate) me: OnceLock<Weak<Client<T>>>,
}

impl<T: Transport> Client<T> {
    /// A client on `transport`, without locks if nobody keeps them: see [`crate::RunningClient`].
    /// With `noatime` reading never changes an inode.
    pub fn new(transport: T, noatime: bool) -> Client<T> {
        let welcome = transport.mds().welcome();
        let log = Arc::new(WriteBackLog::default());
        if welcome.commit_sync {
            log.turn_off();
        }
        Client {
            parameters: ClientParameters::of(
                &welcome,
                transport.mds().identity().is_in_process(),
                noatime,
            ),
            cache: Cache::new(log.clone()),
            log,
            handles: Handles::default(),
            closes: CloseExclusion::default(),
            snapshots: Snapshots::default(),
            data: SharedByFiles::default(),
            directories_ahead: Arc::default(),
            name_order: NameOrder::default(),
            placement: OstPlacement::new(welcome.osts, welcome.own_osts),
            last_fs_stat: LastFsStat::default(),
            locks: LockKeeping::default(),
            kernel_memory: KernelMemory::default(),
            memory: MemoryKeeping::default(),
            me: OnceLock::new(),
            transport,
        }
    }

    /// From now on data is sent when there are enough dirty pages for a request, contiguous or
    /// not: what clients did before they looked for full extents. For a benchmark.
    pub fn count_pages(&self) {
        self.data.count_pages();
    }

    /// From now on files of so many bytes and more are copied before they are locked, when they are
    /// moved. For a simulation, whose files are small.
    pub fn copy_ahead_from(&self, bytes: u64) {
        let _ = self.data.ahead_bytes_min.set(bytes);
    }

    /// From now on every change of metadata is made by the servers before its call returns.
    pub fn tell_changes_at_once(&self) {
        self.log.turn_off();
    }

    /// From now on small files are prefetched, and directories that a walk comes to are listed ahead,
    /// if they are not in this process.
    pub fn prefetch_files(&self) {
        if self.parameters.reads_ahead && self.has_locks() {
            self.data.prefetched.turn_on();
            self.directories_ahead.turn_on();
        }
    }

    /// From now on the kernel is asked to forget when it knows more than so many inodes.
    pub fn limit_inodes(&self, limit: usize) {
        self.kernel_memory.limit(limit);
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Whether the servers give locks, and this client keeps them.
    pub(crate) fn has_locks(&self) -> bool {
        self.parameters.gives_locks && self.me.get().is_some()
    }

    /// Asks the MDS; once more with supplementary groups if it refuses without. What the
    /// answer grants is known afterwards.
    pub(crate) async fn ask(
        &self,
        caller: &Caller,
        request: &MdsRequest<'_>,
    ) -> FsResult<MdsReply> {
        self.ask_to_learn(caller, request, &mut Asked::now()).await
    }

    /// Asks the MDS, like [`Client::ask`], and notes what the answer was read under.
    pub(crate) async fn ask_to_learn(
        &self,
        caller: &Caller,
        request: &MdsRequest<'_>,
        asked: &mut Asked,
    ) -> FsResult<MdsReply> {
        let _span = Span::start(Layer::Client, request.op() as u8);
        if self.log.is_busy() {
            self.flush_before(request).await;
        }
        asked.on_sent(&self.cache);
        let cred = &caller.cred;
        // No lock comes with a lock of a program, which may be waited for without end.
        let may_grant = self.has_locks() && !matches!(request, MdsRequest::PosixLock(_));
        let _in_flight = may_grant.then(|| self.cache.begin_request());
        let reply = self.ask_once(cred, request, asked).await;
        if matches!(reply, Err(Errno::EACCES | Errno::EPERM))
            && cred.groups.is_none()
            && !cred.is_superuser()
        {
            let groups = match caller.pid {
                0 => Vec::new(),
                pid => supplementary_groups(pid),
            };
            let cred = Cred { groups: Some(groups), ..cred.clone() };
            return self.ask_once(&cred, request, asked).await;
        }
        reply
    }

    /// One request, whose grants are known before anything else is waited for: a call may be
    /// dropped whenever it waits.
    async fn ask_once(
        &self,
        cred: &Cred,
        request: &MdsRequest<'_>,
        asked: &mut Asked,
    ) -> FsResult<MdsReply> {
        tracing::trace!(op = request.op().name(), ?request, "asks the MDS");
        let generation = self.cache.generation();
        let (reply, grants) = self.transport.mds().request(cred, request).await;
        if !grants.is_empty() {
            asked.brought(&grants);
            self.learn_grants(&grants, generation);
        }
        reply
    }

    /// Asks the MDS as the superuser, for this client itself.
    pub(crate) async fn ask_as_root(&self, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        self.ask(&Caller::ROOT, request).await
    }

    /// Asks for attributes.
    pub(crate) async fn ask_attr(
        &self,
        caller: &Caller,
        request: &MdsRequest<'_>,
        asked: &mut Asked,
    ) -> FsResult<Attr> {
        let (attr, others) = said_attr(self.ask_to_learn(caller, request, asked).await?)?;
        asked.keep(self.cache.find(attr.ino));
        self.with_unsent(attr, others).await
    }

    /// Attributes that the MDS said, with what the objects say if they know better, and what
    /// writers have not yet sent to them.
    pub(crate) async fn with_unsent(
        &self,
        attr: Attr,
        others: Option<(u64, Timestamp)>,
    ) -> FsResult<Attr> {
        // Before the objects are asked: what is sent meanwhile they know.
        let inode = if attr.size_on_ost { self.cache.find(attr.ino) } else { None };
        let unsent = inode.and_then(|inode| {
            let state = inode.lock();
            let blocks = state.rare.data.unsent_blocks();
            state.rare.data.unsent().map(|(size, time)| (size, time, blocks))
        });
        let mut attr = self.complete(attr).await?;
        // Data that others have to send takes an unknown space: more than none, which would say
        // that there is nothing but a hole.
        let others = others.map(|(size, mtime)| (size, mtime, u64::from(attr.blocks == 0)));
        for (size, mtime, blocks) in [others, unsent].into_iter().flatten() {
            attr.size = attr.size.max(size);
            attr.blocks += blocks;
            attr.mtime = attr.mtime.max(mtime);
            attr.ctime = attr.ctime.max(mtime);
        }
        Ok(attr)
    }

    pub(crate) async fn ask_bytes(
        &self,
        caller: &Caller,
        request: &MdsRequest<'_>,
    ) -> FsResult<Vec<u8>> {
        match self.ask(caller, request).await? {
            MdsReply::Bytes(bytes) => Ok(bytes),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Cached inode, if this client keeps locks.
    pub(crate) fn inode(&self, ino: Ino) -> Option<Arc<CachedInode>> {
        self.has_locks().then(|| self.cache.inode(ino))
    }

    /// Begins an update of inodes of which the cache may know something.
    pub(crate) fn begin_update(&self, inos: &[Ino]) -> Option<AttrUpdate> {
        self.has_locks().then(|| self.cache.begin_update(inos))
    }

    /// For how long a caller may rely on what was just learned.
    pub(crate) fn learn_attr(&self, attr: Attr, asked: &Asked) -> Found {
        match self.has_locks() {
            true => self.cache.learn(attr, asked),
            false => Found { attr, valid: Valid::timed(self.parameters.cache_time) },
        }
    }

    /// Learns an answer about a name.
    pub(crate) fn learn_name(
        &self,
        parent: Ino,
        name: &[u8],
        attr: Attr,
        asked: &Asked,
        learns: bool,
    ) -> Found {
        match self.has_locks() {
            true => self.cache.learn_name(parent, name, &attr, asked, learns),
            false => Found { attr, valid: Valid::timed(self.parameters.cache_time) },
        }
    }

    /// How long nothing was heard of the servers.
    pub fn silence(&self) -> Duration {
        self.transport.mds().silence()
    }

    /// Whether something that was done here is at no server, or may be lost with one.
    pub fn owes(&self) -> bool {
        let (unsent, _) = self.data.limits.counts();
        unsent > 0 || self.log.is_busy() || self.transport.has_uncommitted()
    }

    /// The state of the servers, with that of this client.
    pub fn status(&self, servers: String) -> Vec<u8> {
        match serde_json::from_str(&servers) {
            Ok(Value::Object(mut status)) if self.has_locks() => {
                let (unsent, errors) = self.data.limits.counts();
                let counted = glint_telemetry::counters();
                let count = |counter: Counter| counted[counter as usize].1;
                let prefetched = json!({"files": count(Counter::FilesPrefetched),
                    "read": count(Counter::FilesPrefetchedRead),
                    "unread_bytes": self.data.prefetched.bytes(),
                    "limit_bytes": self.data.prefetched.limit(),
                    "open_directories": self.directories_ahead.with_pages.count(),
                    "open_directories_max": pages_ahead::DIRECTORIES_MAX,
                    "directories": count(Counter::DirectoriesListedAhead),
                    "directories_listed": count(Counter::DirectoriesListedAheadUsed)});
                let ahead = count(Counter::BytesReadAhead);
                let own = json!({"cached_inodes": self.cache.len(),
                    "evicted_inodes": count(Counter::InodesEvicted), "memory": self.memory_status(),
                    "unsent_bytes": unsent,
                    "unsent_changes": self.log.len(), "read_ahead_bytes": ahead, "prefetched": prefetched,
                    "write_errors": errors});
                status.insert("client".into(), own);
                Value::Object(status).to_string().into_bytes()
            }
            _ => servers.into_bytes(),
        }
    }

    /// Whether it is known that an inode has no extended attributes: its attributes are known and
    /// say so, or it was made here without, and nobody else has seen it.
    pub(crate) fn has_no_xattrs(&self, ino: Ino) -> bool {
        let inode = if self.is_suspended() { None } else { self.cache.find(ino) };
        inode.is_some_and(|inode| {
            let state = inode.lock();
            state.rare.delegation.has_no_xattrs()
                || state.attributes().is_some_and(|attr| attr.has_no_xattrs)
        })
    }

    pub(crate) async fn size_of(&self, ino: Ino) -> FsResult<u64> {
        match self.getattr_locally(ino) {
            Some(found) => Ok(found.attr.size),
            None => {
                let request = MdsRequest::Getattr { ino };
                Ok(self.ask_attr(&Caller::ROOT, &request, &mut Asked::now()).await?.size)
            }
        }
    }

    pub(crate) async fn layout_of(&self, ino: Ino) -> FsResult<Layout> {
        let known = self.cache.find(ino).and_then(|inode| inode.lock().rare.data.layout());
        if let Some(layout) = known {
            return Ok(layout);
        }
        match self.ask_as_root(&MdsRequest::Getattr { ino }).await? {
            MdsReply::Attr(attr) | MdsReply::Glimpsed { attr, .. } => Ok(attr.layout),
            _ => Err(Errno::EPROTO),
        }
    }
}

/// Attributes in an answer, and what writers said that have not sent it yet.
pub(crate) fn said_attr(reply: MdsReply) -> FsResult<(Attr, Option<(u64, Timestamp)>)> {
    match reply {
        MdsReply::Attr(attr) => Ok((attr, None)),
        MdsReply::Glimpsed { attr, size, mtime } => Ok((attr, Some((size, mtime)))),
        _ => Err(Errno::EPROTO),
    }
}
