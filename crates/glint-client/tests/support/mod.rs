//! A transport to servers that are not there: the MDS gives every lock, objects are in memory,
//! and each data request fails as the test says.

mod durability;
mod kernel_pages;
mod tree;
mod watched;

use futures_util::future::join_all;
use glint_client::{Caller, Handle, RunningClient, Vfs, WriteHow};
use glint_net::{
    ClientIdentity, Granting, LockClient, LockTraffic, MdsRequests, MdsSession, OstRequests,
    ServerStatistics, Transport,
};
use glint_proto::lock::{Bits, DataLock, Grant, Range, Return};
use glint_proto::message::{ObjectRead, Survived, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{
    Attr, Bulk, Capability, ClientId, Cred, Errno, Extents, FileType, FsResult, Ino, Layout,
    MdsReply, MdsRequest, ObjectAttr, ObjectId, Op, OpenFlags, OstReply, OstRequest, SpaceInfo,
    Timestamp, clock,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) use kernel_pages::KernelPages;
pub(crate) use tree::Tree;
use watched::WatchedObject;

pub(crate) const LEASE_MS: u64 = glint_proto::limits::LEASE_MS_MIN;
pub(crate) const FILE: Ino = Ino(7);
/// Offset at which objects end.
pub(crate) const OBJECT_BYTES_MAX: u64 = 1 << 43;
/// Blocks of 512 bytes in a page, which is what an object takes space in.
const PAGE_BLOCKS: u64 = 8;
pub(crate) const PAGE: u64 = 4096;

type Fault = Box<dyn FnMut(&OstRequest) -> Option<Errno> + Send>;

/// Makes another answer of one of the MDS.
type Turn = Box<dyn FnMut(&Cred, &MdsRequest<'_>, Granting) -> Granting + Send>;

/// Report of a close about the data.
pub(crate) type Wrote = Option<(u64, Option<ObjectAttr>)>;

#[derive(Default)]
pub(crate) struct World {
    pub objects: HashMap<ObjectId, Vec<u8>>,
    /// Data requests so far.
    pub requests: Vec<OstRequest>,
    /// How many of them came in each request for several.
    pub together: Vec<usize>,
    /// How long each takes more than a moment.
    pub slow: Duration,
    /// Files that the MDS counts as open, and what closes have said.
    pub opens: i32,
    pub released: Vec<Wrote>,
    pub fault: Option<Fault>,
    /// Data requests that are not answered meanwhile, and how many of them came.
    pub stands_still: Option<fn(&OstRequest) -> bool>,
    pub unanswered: usize,
    /// Requests to the MDS so far, what it answers, and whether the answers are on their way.
    pub asked: Vec<Op>,
    /// Bytes of pages of directories that were asked for.
    pub pages: Vec<u32>,
    pub turn: Option<Turn>,
    pub holds_answers: bool,
    /// Closes that are on their way, and whether they stay so.
    pub closing: usize,
    pub holds_closes: bool,
    /// Locks that were returned, and whether the MDS is away when they are.
    pub returns: Vec<Return>,
    pub holds_returns: bool,
    /// Space that is kept for the client.
    pub kept: i64,
    pub layout: Layout,
    pub size: u64,
    pub locks: u64,
    /// Whether something would be sent again after a loss of power.
    pub uncommitted: bool,
    /// How often it was asked for what servers may have lost.
    pub sent_again: usize,
    /// Objects that are to be synced before their lock is returned; how often that was given up,
    /// and whether something that is sent again is not over meanwhile.
    pub unstable: Vec<(u16, ObjectId)>,
    pub abandons: usize,
    pub holds_resends: bool,
    pub watched: WatchedObject,
    /// When the servers were heard of last, if not just now.
    pub heard_at: Option<Instant>,
}

impl World {
    pub(crate) fn attr(&self) -> Attr {
        let now = Timestamp::now();
        Attr {
            ino: FILE,
            mode: FileType::Regular.mode_bits() | 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: self.size,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            size_on_ost: self.opens > 0,
            has_no_xattrs: false,
            layout: self.layout,
        }
    }

    fn mds(&mut self, request: &MdsRequest<'_>) -> FsResult<MdsReply> {
        match request {
            MdsRequest::Open { .. } => {
                self.opens += 1;
                Ok(MdsReply::Attr(self.attr()))
            }
            MdsRequest::Release { wrote, .. } => {
                self.opens -= 1;
                self.released.push(*wrote);
                Ok(MdsReply::Done)
            }
            MdsRequest::Lock { .. } => {
                self.locks += 1;
                let (number, range) = (self.locks, Range::ALL);
                Ok(MdsReply::Locked(DataLock { number, range, write: true }))
            }
            MdsRequest::Getattr { .. } | MdsRequest::Touch { .. } => {
                Ok(MdsReply::Attr(self.attr()))
            }
            MdsRequest::Setattr { set, .. } => {
                self.size = set.size.unwrap_or(self.size);
                Ok(MdsReply::Attr(self.attr()))
            }
            MdsRequest::Sync => Ok(MdsReply::Done),
            MdsRequest::Statfs => Ok(MdsReply::Statfs { inodes: 1 + self.objects.len() as u64 }),
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    fn answer(&mut self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        self.asked.push(request.op());
        if let MdsRequest::Readdir { bytes_max, .. } = request {
            self.pages.push(*bytes_max);
        }
        let bits = Bits::ATTR | Bits::ENTRY | Bits::PLAIN;
        let reply = self.mds(request);
        let number = self.locks + 1;
        let grants = match reply {
            Ok(MdsReply::Attr(_)) => vec![Grant::Bits { ino: FILE, bits, number }],
            _ => Vec::new(),
        };
        match &mut self.turn {
            Some(turn) => turn(cred, request, (reply, grants)),
            None => (reply, grants),
        }
    }

    fn put(&mut self, object: ObjectId, offset: u64, data: &[u8]) {
        let content = self.objects.entry(object).or_default();
        let end = offset as usize + data.len();
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(data);
        self.kept -= data.len() as i64;
    }

    fn get(&self, object: ObjectId, offset: u64, room: &mut [u8]) -> u32 {
        let content = self.objects.get(&object).map_or(&b""[..], Vec::as_slice);
        let content = content.get(offset as usize..).unwrap_or_default();
        let len = content.len().min(room.len());
        room[..len].copy_from_slice(&content[..len]);
        len as u32
    }

    fn punch(&mut self, object: ObjectId, offset: u64, len: u64) {
        let Some(content) = self.objects.get_mut(&object) else { return };
        let end = offset.saturating_add(len).min(content.len() as u64);
        content.get_mut(offset as usize..end as usize).unwrap_or_default().fill(0);
    }

    /// An object whose pages of zeros are holes.
    fn stat(&self, object: ObjectId) -> Option<ObjectAttr> {
        let content = self.objects.get(&object)?;
        let pages = content.chunks(PAGE as usize).filter(|page| page.iter().any(|b| *b != 0));
        let blocks = pages.count() as u64 * PAGE_BLOCKS;
        Some(ObjectAttr { size: content.len() as u64, blocks, ..ObjectAttr::default() })
    }

    fn seek(&self, object: ObjectId, offset: u64, hole: bool) -> Option<u64> {
        let Some(content) = self.objects.get(&object) else { return hole.then_some(offset) };
        let end = content.len() as u64;
        let is_hole = |page: u64| {
            let page = content.chunks(PAGE as usize).nth(page as usize);
            page.is_none_or(|page| page.iter().all(|b| *b == 0))
        };
        let mut at = offset;
        while at < end && is_hole(at / PAGE) != hole {
            at = (at / PAGE + 1) * PAGE;
        }
        match offset < end && (at < end || hole) {
            true => Some(at.min(end)),
            false => None,
        }
    }

    fn ost(&mut self, request: OstRequest, bulk: Bulk<'_>) -> FsResult<OstReply> {
        self.requests.push(request);
        if let Some(errno) = self.fault.as_mut().and_then(|fault| fault(&request)) {
            return Err(errno);
        }
        if let Some(watched) = self.watched.answer(&request) {
            return watched;
        }
        Ok(match (request, bulk.borrowed()) {
            (OstRequest::Write { object, offset, .. }, Bulk::Out(data)) => {
                self.put(object, offset, data);
                OstReply::Written(self.stat(object).unwrap_or_default())
            }
            (OstRequest::WriteExtents { object, count, .. }, Bulk::Out(bulk)) => {
                for (offset, data) in Extents::parse(bulk, count)? {
                    self.put(object, offset, data);
                }
                OstReply::Written(self.stat(object).unwrap_or_default())
            }
            (OstRequest::Read { object, offset, .. }, Bulk::In(room)) => {
                let len = self.get(object, offset, room);
                if let Some((offset, data)) = self.watched.next_change() {
                    self.put(object, offset, &data);
                }
                OstReply::Data(len)
            }
            (OstRequest::Stat { object }, _) => OstReply::Stat(self.stat(object)),
            // Each is on a disk of its own.
            (OstRequest::Space, _) => {
                let spaces = self.requests.iter().filter(|asked| **asked == OstRequest::Space);
                let file_system = spaces.count() as u64;
                OstReply::Space(SpaceInfo { total: 4, free: 3, available: 2, file_system })
            }
            (OstRequest::Seek { object, offset, hole }, _) => {
                OstReply::Offset(self.seek(object, offset, hole))
            }
            (OstRequest::GrantSpace { bytes }, _) => {
                self.kept += bytes as i64;
                OstReply::SpaceGranted { bytes, object_bytes_max: OBJECT_BYTES_MAX }
            }
            (OstRequest::Truncate { object, size }, _) => {
                self.objects.entry(object).or_default().resize(size as usize, 0);
                OstReply::Done
            }
            (OstRequest::Fallocate { object, mode, offset, len }, _)
                if mode & libc::FALLOC_FL_PUNCH_HOLE != 0 =>
            {
                self.punch(object, offset, len);
                OstReply::Done
            }
            (
                OstRequest::Fallocate { .. } | OstRequest::Sync { .. } | OstRequest::SetTime { .. },
                _,
            ) => OstReply::Done,
            _ => return Err(Errno::EOPNOTSUPP),
        })
    }
}

/// The transport, and the world behind it.
#[derive(Clone, Default)]
pub(crate) struct Fake(pub Arc<Mutex<World>>);

impl MdsRequests for Fake {
    async fn request(&self, cred: &Cred, request: &MdsRequest<'_>) -> Granting {
        let answer = self.0.lock().answer(cred, request);
        while self.0.lock().holds_answers {
            glint_net::host::sleep(Duration::from_millis(1)).await;
        }
        answer
    }

    async fn post(&self, cred: &Cred, request: &MdsRequest<'_>) -> FsResult<()> {
        self.0.lock().closing += 1;
        while self.0.lock().holds_closes {
            glint_net::host::sleep(Duration::from_millis(1)).await;
        }
        self.0.lock().closing -= 1;
        self.request(cred, request).await.0.map(drop)
    }
}

impl OstRequests for Fake {
    async fn ost(
        &self,
        _: glint_proto::chain::Destination,
        request: OstRequest,
        _: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> FsResult<OstReply> {
        if !is_held() {
            return Err(Errno::EIO);
        }
        // A pause lets others run in between, as they would.
        let pause = Duration::from_micros(100) + self.0.lock().slow;
        glint_net::host::sleep(pause).await;
        let is_unanswered = || self.0.lock().stands_still.is_some_and(|kind| kind(&request));
        if is_unanswered() {
            self.0.lock().unanswered += 1;
        }
        while is_unanswered() {
            glint_net::host::sleep(Duration::from_millis(1)).await;
        }
        self.0.lock().ost(request, bulk)
    }

    async fn read_objects(&self, reads: Vec<ObjectRead>, says: &dyn Fn(usize, FsResult<Vec<u8>>)) {
        self.0.lock().together.push(reads.len());
        let read = async |read: ObjectRead| {
            let mut data = vec![0; read.len as usize];
            let (bulk, is_held) = (Bulk::In(&mut data), &|| true);
            match self.ost(read.to, read.request(), read.capability, bulk, is_held).await? {
                OstReply::Data(len) => data.truncate(len as usize),
                _ => return Err(Errno::EPROTO),
            }
            Ok(data)
        };
        let all = reads.into_iter().enumerate();
        join_all(all.map(async |(at, one)| says(at, read(one).await))).await;
    }
}

impl MdsSession for Fake {
    async fn chains(&self) -> FsResult<Vec<glint_proto::chain::Chain>> {
        Ok(Vec::new())
    }

    fn welcome(&self) -> Welcome {
        Welcome {
            fs_uuid: 1,
            boot_verifier: 1,
            osts: 4,
            own_osts: 4,
            osses: Vec::new(),
            session: 1,
            cache_ms: 0,
            commit_sync: false,
            lease_ms: LEASE_MS,
            locks: true,
            root: Ino::ROOT,
            capabilities: false,
            survived: Survived::ALL,
            evicted: false,
        }
    }

    fn identity(&self) -> ClientIdentity {
        ClientIdentity::new(ClientId(1))
    }

    fn silence(&self) -> Duration {
        self.0.lock().heard_at.map_or(Duration::ZERO, clock::since)
    }

    async fn osses(&self) -> FsResult<Vec<OssInfo>> {
        Ok(Vec::new())
    }
}

impl LockTraffic for Fake {
    fn set_lock_client(&self, _: Weak<dyn LockClient>) {}

    async fn listen(&self) {
        std::future::pending::<()>().await;
    }

    async fn return_locks(&self, returns: Vec<Return>) -> FsResult<()> {
        while self.0.lock().holds_returns {
            glint_net::host::sleep(Duration::from_millis(1)).await;
        }
        self.0.lock().returns.extend(returns);
        Ok(())
    }
}

impl ServerStatistics for Fake {
    async fn status(&self) -> FsResult<String> {
        Ok("{}".into())
    }

    async fn stats(&self) -> FsResult<String> {
        Ok("{}".into())
    }

    async fn reset_stats(&self) -> FsResult<()> {
        Ok(())
    }
}

impl Transport for Fake {
    type Mds = Fake;

    fn mds(&self) -> &Fake {
        self
    }

    fn is_away(&self) -> bool {
        false
    }
}

pub(crate) const READ_WRITE: OpenFlags = OpenFlags {
    read: true,
    write: true,
    truncate: false,
    exec: false,
    kill_suidgid: false,
    append: false,
};

impl Fake {
    /// Requests from now on fail as this says.
    pub(crate) fn fail(&self, fault: impl FnMut(&OstRequest) -> Option<Errno> + Send + 'static) {
        self.0.lock().fault = Some(Box::new(fault));
    }

    /// Nothing fails any more.
    pub(crate) fn heal(&self) {
        self.0.lock().fault = None;
    }

    /// Answers of the MDS from now on are other ones.
    pub(crate) fn turn(
        &self,
        turn: impl FnMut(&Cred, &MdsRequest<'_>, Granting) -> Granting + Send + 'static,
    ) {
        self.0.lock().turn = Some(Box::new(turn));
    }

    /// Answers of the MDS are on their way, until they are not any more.
    pub(crate) fn hold_answers(&self, holds: bool) {
        self.0.lock().holds_answers = holds;
    }

    /// Requests of a kind to the MDS, so far.
    pub(crate) fn asked(&self, op: Op) -> usize {
        self.0.lock().asked.iter().filter(|asked| **asked == op).count()
    }

    pub(crate) fn data(&self, stripe: u16) -> Vec<u8> {
        self.0.lock().objects.get(&ObjectId { ino: FILE, stripe }).cloned().unwrap_or_default()
    }

    /// Data requests of a kind, so far.
    pub(crate) fn count(&self, kind: impl Fn(&OstRequest) -> bool) -> usize {
        self.0.lock().requests.iter().filter(|request| kind(request)).count()
    }
}

/// Runs a test with a client of a fake world.
pub(crate) fn with_client<F: Future<Output = ()>>(
    test: impl FnOnce(Fake, Arc<glint_client::Client<Fake>>) -> F,
) {
    let fake = Fake::default();
    let client = RunningClient::start(fake.clone(), true).unwrap();
    let runtime = glint_net::runtime(None).unwrap();
    runtime.block_on(test(fake, client.clone()));
}

pub(crate) async fn open(client: &glint_client::Client<Fake>) -> Handle {
    client.open(&Caller::ROOT, FILE, READ_WRITE).await.unwrap().handle
}

pub(crate) async fn write(
    client: &glint_client::Client<Fake>,
    handle: Handle,
    offset: u64,
    data: &[u8],
) -> FsResult<()> {
    client.write(handle, offset, data, WriteHow::default()).await
}
