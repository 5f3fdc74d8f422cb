//! A client with a certificate that limits it, which keeps to no rule: it sends any message at
//! any time, with any number in it, and remembers what it is told to use it where it should not.
//!
//! What it does is decided by [`Dice`]: a seed in the simulation, a fuzzer's bytes in
//! [`crate::fuzz`].

mod namespace;

use crate::workload::Fs;
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{MDS, address};
use crate::world::network::Network;
use glint_client::{Caller, Make, Vfs};
use glint_net::host::Pipe;
use glint_net::rights::{Rights, Squash};
use glint_proto::by_hand::{Heard, request_frame};
use glint_proto::extents::put_extents;
use glint_proto::frame::{FrameError, NO_SLOT};
use glint_proto::limits::OBJECT_READS_MAX;
use glint_proto::lock::{Bits, Grant, Range, Return};
use glint_proto::message::{Hello, ObjectRead, Reply, Request};
use glint_proto::oss::OssRequest;
use glint_proto::posix::ScanFilter;
use glint_proto::{
    Access, Attr, Capability, ClientId, Cred, FsResult, Ino, Layout, MdsReply, MdsRequest,
    ObjectAttr, ObjectId, OpenFlags, OstRequest, PosixLock, PosixLockHow, PosixLockMode, Reclaim,
    RenameFlags, SetAttr, SetTime, Timestamp, XattrFlags,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Source of decisions.
pub(crate) trait Dice {
    /// A number below `limit`; `None` when there are no more.
    fn roll(&self, limit: u64) -> Option<u64>;
}

impl Dice for Executor {
    fn roll(&self, limit: u64) -> Option<u64> {
        Some(self.below(limit))
    }
}

/// Machine of the hostile client.
pub(crate) const HOSTILE: Machine = Machine(99);

/// The directory in which such a client may make something.
pub(crate) async fn home(fs: &Fs) -> FsResult<Ino> {
    let make = Make { mode: 0o040_777, umask: 0, rdev: 0, target: b"" };
    let found = fs.make(&Caller::ROOT, Ino::ROOT, HOME.as_bytes(), make).await?;
    fs.sync().await?;
    Ok(found.attr.ino)
}

/// Gives a machine a certificate with one of some limits. Returns whether it is bound to the
/// home of hostile clients.
pub(crate) fn limit(network: &Network, machine: Machine, which: u64) -> bool {
    let rights = Rights {
        subtree: (which < 2).then(|| format!("/{HOME}")),
        squash: if which == 0 { Squash::Root } else { Squash::All },
        read_only: which == 3,
        ..Rights::default()
    };
    network.limited.borrow_mut().insert(machine, rights);
    which < 2
}

const HOME: &str = "home";
const NAMES: [&[u8]; 6] = [b"a", b"b", b"mine", b".", b"..", b"a/b"];
/// Numbers of objects, without and with copies.
const STRIPES: [u16; 8] =
    [0, 0, 1, u16::MAX, ObjectId::OF_CHAINS, ObjectId::OF_CHAINS, ObjectId::OF_CHAINS, 0x7fff];
/// Numbers at which arithmetic goes wrong.
const EDGES: [u64; 10] =
    [0, 1, 2, 1 << 18, 1 << 40, 1 << 48, (1 << 63) - 1, 1 << 63, u64::MAX - (1 << 19), u64::MAX];

/// A hostile client, with what it knows.
pub(crate) struct Hostile<D> {
    dice: Rc<D>,
    client: ClientId,
    /// Directory in which it may do something.
    home: Ino,
    /// The client's certificate binds it to its home: no request to the MDS concerns others.
    bound: bool,
    /// Inodes of others, and those that it has made.
    others: Vec<Ino>,
    known: Vec<Ino>,
    capabilities: Vec<(Ino, Capability)>,
    /// Files whose objects it may write, even when they are removed: what it leaves of them is
    /// its own.
    pub(crate) writable: Rc<RefCell<BTreeSet<Ino>>>,
    xid: u64,
    boot_verifier: u64,
    session: u64,
}

impl<D: Dice> Hostile<D> {
    /// One that may do something in `home`, and has heard of what others have.
    pub(crate) fn new(dice: Rc<D>, home: Ino, bound: bool, others: Vec<Ino>) -> Hostile<D> {
        Hostile {
            dice,
            client: ClientId(99),
            home,
            bound,
            others,
            known: vec![home],
            capabilities: Vec::new(),
            writable: Rc::default(),
            xid: 0,
            boot_verifier: 0,
            session: 0,
        }
    }

    /// Connects, and says up to `count` things. `None` when there are no more decisions.
    pub(crate) async fn speak(
        &mut self,
        executor: &Rc<Executor>,
        machine: Machine,
        count: u64,
    ) -> Option<()> {
        let Ok(pipe) = Network::connect(executor, machine, &address(MDS)) else { return Some(()) };
        let mut heard = Heard::default();
        let hello = self.hello()?;
        self.say(&pipe, self.client, NO_SLOT, 0, &hello, &[]);
        for _ in 0..count {
            if !self.listen(&pipe, &mut heard).await {
                return Some(());
            }
            self.message(&pipe)?;
        }
        Some(())
    }

    /// Hears what has come. False at the end of the connection.
    async fn listen(&mut self, pipe: &Pipe, heard: &mut Heard) -> bool {
        let patience = glint_net::host::sleep(std::time::Duration::from_millis(2));
        let bytes = futures_lite::future::or(pipe.receive(), async {
            patience.await;
            Some(Vec::new())
        });
        let Some(bytes) = bytes.await else { return false };
        heard.push(&bytes);
        loop {
            match heard.take_reply() {
                Ok(Some(reply)) => self.learn(&reply),
                Ok(None) => return true,
                Err(FrameError::Body(_)) => {}
                Err(_) => return false,
            }
        }
    }

    fn learn(&mut self, reply: &Reply) {
        match reply {
            Reply::Welcome(welcome) => {
                (self.boot_verifier, self.session) = (welcome.boot_verifier, welcome.session);
            }
            Reply::Mds { reply: Ok(reply), grants, .. } => {
                if let MdsReply::Attr(attr) | MdsReply::Opened { attr, .. } = reply {
                    self.known.push(attr.ino);
                }
                for grant in grants {
                    if let Grant::Capability { ino, capability } = *grant {
                        if capability.access.contains(Access::WRITE) {
                            self.writable.borrow_mut().insert(ino);
                        }
                        self.capabilities.push((ino, capability));
                    }
                }
            }
            Reply::Checked(page) => panic!("it has read what is not its own: {page:?}"),
            _ => {}
        }
        // Inodes and capabilities of long ago are of no use.
        let (inos, capabilities) = (self.known.len(), self.capabilities.len());
        self.known.drain(..inos.saturating_sub(64));
        self.capabilities.drain(..capabilities.saturating_sub(64));
    }

    fn roll(&self, limit: u64) -> Option<u64> {
        self.dice.roll(limit)
    }

    fn flip(&self) -> Option<bool> {
        Some(self.roll(2)? == 0)
    }

    fn pick<T: Copy>(&self, all: &[T]) -> Option<T> {
        all.get(self.roll(all.len() as u64)? as usize).copied()
    }

    fn number(&self) -> Option<u64> {
        Some(match self.roll(4)? {
            0 => self.pick(&EDGES)?,
            1 => self.roll(100)?,
            _ => self.ino()?.0,
        })
    }

    fn ino(&self) -> Option<Ino> {
        Some(match self.roll(6)? {
            0 => Ino(self.pick(&EDGES)?),
            1 => self.home,
            2 => self.pick(&self.others)?,
            3 => Ino(self.pick(&self.others)?.0.wrapping_add(self.roll(9)?).wrapping_sub(4)),
            _ => self.pick(&self.known)?,
        })
    }

    fn name(&self) -> Option<&'static [u8]> {
        self.pick(&NAMES)
    }

    fn flags(&self) -> Option<OpenFlags> {
        let bits = self.roll(64)?;
        let bit = |n: u64| bits >> n & 1 == 1;
        Some(OpenFlags {
            read: bit(0),
            write: bit(1),
            truncate: bit(2),
            exec: bit(3),
            kill_suidgid: bit(4),
            append: bit(5),
        })
    }

    fn time(&self) -> Option<Timestamp> {
        Some(Timestamp {
            secs: self.number()? as i64,
            nanos: if self.roll(64)? == 0 { u32::MAX } else { 999_999_999 },
        })
    }

    fn range(&self) -> Option<Range> {
        Some(match self.flip()? {
            true => Range::ALL,
            false => Range { start: self.number()?, end: self.number()? },
        })
    }

    fn capability(&self, ino: Ino) -> Option<Option<Capability>> {
        let own = self.capabilities.iter().rev().find(|(of, _)| *of == ino).map(|(_, c)| *c);
        Some(match self.roll(4)? {
            0 => None,
            1 => Some(Capability { access: Access(self.roll(16)? as u8), signature: [7; 32] }),
            2 if !self.capabilities.is_empty() => Some(self.pick(&self.capabilities)?.1),
            _ => own,
        })
    }

    fn attr(&self) -> Option<Attr> {
        Some(Attr {
            ino: Ino(self.number()?),
            mode: self.mode()?,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: self.number()?,
            blocks: 0,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            size_on_ost: self.flip()?,
            has_no_xattrs: self.flip()?,
            layout: Layout { osts: self.roll(4)? as u16, ..Layout::default() },
        })
    }

    fn mode(&self) -> Option<u32> {
        Some(
            self.pick(&[0o100_000, 0o040_000, 0o120_000, 0o020_000, 0])?
                | self.roll(0o10000)? as u32,
        )
    }

    fn set(&self) -> Option<SetAttr> {
        let time = |set| if set { Some(SetTime::Now) } else { None };
        Some(SetAttr {
            mode: if self.flip()? { Some(0o777) } else { None },
            uid: if self.flip()? { Some(0) } else { None },
            gid: None,
            size: if self.flip()? { Some(self.number()?) } else { None },
            atime: time(self.flip()?),
            mtime: if self.flip()? { Some(SetTime::At(self.time()?)) } else { None },
            ctime: None,
            kill_suidgid: self.flip()?,
            kill_capability: self.flip()?,
        })
    }

    fn create(&self) -> Option<MdsRequest<'static>> {
        Some(MdsRequest::Create {
            parent: self.ino()?,
            name: self.name()?,
            mode: self.mode()?,
            umask: 0,
            rdev: 0,
            target: if self.flip()? { b"" } else { b"target" },
            open: if self.flip()? { Some(self.flags()?) } else { None },
            exclusive: self.flip()?,
        })
    }

    fn metadata(&self) -> Option<MdsRequest<'static>> {
        let ino = self.ino()?;
        Some(match self.roll(27)? {
            0 => MdsRequest::Lookup { parent: ino, name: self.name()? },
            1 => MdsRequest::Getattr { ino },
            2 => MdsRequest::Setattr { ino, set: self.set()? },
            3..=6 => self.create()?,
            7 => MdsRequest::Tmpfile { parent: ino, mode: 0o600, umask: 0 },
            // Anybody may give a file another name, and have a lock on its data, as long as the
            // kernel does not say otherwise. Here nobody else's files are to change at all.
            8 | 18 if !self.bound => MdsRequest::Statfs,
            8 => MdsRequest::Link { ino, parent: self.ino()?, name: self.name()? },
            9 => MdsRequest::Unlink { parent: ino, name: self.name()? },
            10 => MdsRequest::Rmdir { parent: ino, name: self.name()? },
            11 => MdsRequest::Rename {
                parent: ino,
                name: self.name()?,
                new_parent: self.ino()?,
                new_name: self.name()?,
                flags: RenameFlags { no_replace: self.flip()?, exchange: self.flip()? },
            },
            12..=13 => MdsRequest::Open { ino, flags: self.flags()? },
            14 => {
                let size = ObjectAttr { size: self.number()?, ..ObjectAttr::default() };
                let size = if self.flip()? { Some(size) } else { None };
                let wrote = if self.flip()? { Some((self.number()?, size)) } else { None };
                MdsRequest::Release { ino, write: self.flip()?, wrote }
            }
            15 => MdsRequest::Setxattr {
                ino,
                name: self.pick(&[b"user.x".as_slice(), b"trusted.x", b"security.capability"])?,
                value: b"value",
                flags: XattrFlags::default(),
            },
            16 => MdsRequest::SetLayout { ino, layout: Layout::default() },
            17 => MdsRequest::Reopen {
                ino,
                readers: self.roll(3)? as u32,
                writers: self.roll(3)? as u32,
                capability: self.capability(ino)?,
            },
            18 => MdsRequest::Lock {
                ino,
                range: self.range()?,
                write: self.flip()?,
                reclaim: self.flip()?,
                capability: self.capability(ino)?,
            },
            19 => MdsRequest::AddOpens { ino, readers: self.roll(3)? as u32 },
            20 => MdsRequest::PosixLock(PosixLock {
                ino,
                owner: self.number()?,
                pid: 1,
                ticket: self.number()?,
                range: self.range()?,
                mode: self.pick(&[
                    PosixLockMode::Read,
                    PosixLockMode::Write,
                    PosixLockMode::Unlock,
                ])?,
                flock: self.flip()?,
                how: self.pick(&[PosixLockHow::Try, PosixLockHow::Test, PosixLockHow::Reclaim])?,
            }),
            21 => MdsRequest::GrantInodes { count: self.number()? as u32, epoch: 1 },
            22 => MdsRequest::WritesBack { epoch: 1 },
            23 => MdsRequest::ReclaimDelegation { ino },
            25 => MdsRequest::Prefetch { inos: vec![ino; self.roll(100)? as usize] },
            26 => MdsRequest::Scan {
                directories: vec![(ino, self.number()?); self.roll(300)? as usize],
                bytes_max: self.number()? as u32,
                filter: match self.flip()? {
                    true => Some(Box::new(ScanFilter { size: (0, 3), ..ScanFilter::default() })),
                    false => None,
                },
            },
            24 => MdsRequest::Batch { epoch: 1, changes: b"\x01\x02\x03" },
            _ => MdsRequest::Readdir { ino, cookie: self.number()?, bytes_max: 4096, plus: true },
        })
    }

    /// Something that it says it had.
    fn reclaim(&self) -> Option<Reclaim> {
        let (ino, write) = (self.ino()?, self.flip()?);
        let (range, capability) = (self.range()?, self.capability(ino)?);
        let (readers, writers) = (self.roll(3)? as u32, self.roll(3)? as u32);
        let mode = if write { PosixLockMode::Write } else { PosixLockMode::Read };
        let (owner, ticket, flock) = (self.number()?, 0, self.flip()?);
        let how = PosixLockHow::Reclaim;
        Some(match self.roll(5)? {
            0 => Reclaim::Open { ino, readers, writers, capability },
            1 => Reclaim::WritesBack { epoch: 1 },
            2 => Reclaim::Delegation { ino },
            // As for one that comes alone.
            3 if !self.bound => Reclaim::WritesBack { epoch: 2 },
            3 => Reclaim::Lock { ino, range, write, capability },
            _ => Reclaim::PosixLock(PosixLock {
                ino,
                owner,
                pid: 1,
                ticket,
                range,
                mode,
                flock,
                how,
            }),
        })
    }

    fn data(&self) -> Option<OstRequest> {
        let object = ObjectId { ino: self.ino()?, stripe: self.pick(&STRIPES)? };
        let offset = self.roll(1000)?;
        Some(match self.roll(8)? {
            0 => OstRequest::Read { object, offset, len: 100 },
            1..=2 => OstRequest::Write { object, offset, mtime: None, kept: self.flip()? },
            3 => OstRequest::Truncate { object, size: offset },
            4 => OstRequest::Stat { object },
            5 => OstRequest::SetTime { object, mtime: self.time()? },
            6 => OstRequest::WriteExtents { object, count: 1, mtime: None, kept: false },
            _ => OstRequest::GrantSpace { bytes: self.number()? },
        })
    }

    fn hello(&self) -> Option<Request<'static>> {
        let known = self.flip()?;
        Some(Request::Hello(Hello {
            host: "hostile".into(),
            mount_point: "/".into(),
            known,
            boot_verifier: if known { self.boot_verifier } else { self.number()? },
            session: if known { self.session } else { self.number()? },
            secret: 7,
        }))
    }

    /// One message, of whichever kind.
    fn message(&mut self, pipe: &Pipe) -> Option<()> {
        let request = match self.roll(22)? {
            0..=6 => Request::Mds { cred: self.cred()?, request: self.metadata()? },
            7..=10 => {
                let attr = self.attr()?;
                let capability = self.capability(attr.ino)?;
                let reply = match self.roll(3)? {
                    0 => MdsReply::Attr(attr),
                    1 => MdsReply::Opened { attr, created: self.flip()? },
                    _ => MdsReply::Done,
                };
                let request = if self.flip()? { self.create()? } else { self.metadata()? };
                Request::Replay { cred: self.cred()?, request, reply, capability }
            }
            11..=14 => {
                let request = self.data()?;
                let capability = match request.object() {
                    Some(object) => self.capability(object.ino)?,
                    None => None,
                };
                Request::Ost { to: 0.into(), request, capability, forward: None }
            }
            15 => {
                let (ino, number) = (self.ino()?, self.number()?);
                let seen = Some((self.number()?, self.time()?));
                Request::Return(vec![match self.roll(3)? {
                    0 => Return::Bits { ino, bits: Bits::ALL, number },
                    1 => Return::Data { ino, number },
                    _ => Return::Glimpse { ino, number, seen },
                }])
            }
            16 => self.pick(&[0, 1, 2, 3]).map(|n| match n {
                0 => Request::Recovered,
                1 => Request::Listen,
                2 => Request::Ping { commit: false, hurry: false },
                _ => Request::Status,
            })?,
            17 => Request::Oss(OssRequest::CheckSession {
                client: ClientId(1000),
                session: self.number()?,
                owner: glint_proto::Owner { certificate: None, secret: 0 },
            }),
            18 => self.hello()?,
            19 => {
                let count = self.roll(4)?;
                Request::Reclaim((0..count).map(|_| self.reclaim()).collect::<Option<_>>()?)
            }
            20 => {
                let read = || {
                    let object = ObjectId { ino: self.ino()?, stripe: self.pick(&STRIPES)? };
                    let (offset, len) = (self.roll(1000)?, self.pick(&[0, 1, 100, u32::MAX])?);
                    let (to, capability) = (0.into(), self.capability(object.ino)?);
                    Some(ObjectRead { to, object, offset, len, capability })
                };
                let count = self.pick(&[0, 1, 3, OBJECT_READS_MAX + 1])?;
                Request::ReadObjects((0..count).map(|_| read()).collect::<Option<_>>()?)
            }
            _ => match self.roll(8)? {
                0 => Request::Bye,
                1..=4 => Request::Check(self.namespace_query()?),
                _ => Request::Osses,
            },
        };
        let client = match self.roll(16)? {
            0 => ClientId(self.pick(&[0, 1, 1000, 1001])?),
            _ => self.client,
        };
        let slot = self.pick(&[0, 0, 0, 1, 2, NO_SLOT, 60_000])?;
        self.xid += 1;
        let xid = if self.roll(16)? == 0 { self.pick(&EDGES)? } else { self.xid };
        self.say(pipe, client, slot, xid, &request, b"written by somebody hostile");
        Some(())
    }

    fn cred(&self) -> Option<Cred> {
        Some(Cred { uid: self.pick(&[0, 65534, 1000])?, gid: 0, groups: None })
    }

    fn say(
        &self,
        pipe: &Pipe,
        client: ClientId,
        slot: u16,
        xid: u64,
        request: &Request<'_>,
        data: &[u8],
    ) {
        let mut extents = Vec::new();
        let bulk = match request {
            Request::Ost { request: OstRequest::Write { .. }, .. } => data,
            Request::Ost { request: OstRequest::WriteExtents { .. }, .. } => {
                put_extents([(0, data)].into_iter(), &mut extents);
                &extents
            }
            _ => b"",
        };
        // Requests that cannot be encoded are not sent.
        if let Ok(frame) = request_frame(client, slot, xid, request, bulk) {
            pipe.send(&frame);
        }
    }
}
