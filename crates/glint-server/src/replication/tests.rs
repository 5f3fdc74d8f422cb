//! Servers of one chain in one process, for tests: each has one OST, in memory, if nothing else is said.

use super::{Asked, Here, Peers, Replication};
use crate::process::data_dir::{DataDir, Role};
use crate::records::Records;
use glint_net::host;
use glint_ost::disk::memory::MemoryDisk;
use glint_ost::{ObjectStore, OstSet};
use glint_proto::chain::{
    Chain, ChainId, ChainVersion, Destination, Forward, Member, MemberEvent, MemberState,
    PeerReply, PeerRequest,
};
use glint_proto::limits::{BODY_BYTES_MAX, OBJECTS_PER_PAGE_MAX};
use glint_proto::oss::ObjectPage;
use glint_proto::{
    Bulk, ClientId, Errno, FsResult, Ino, Layout, ObjectId, OstReply, OstRequest, clock, message,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The chain.
pub(super) const ID: ChainId = ChainId { copies: 2, index: 0 };

/// Files from this inode on are laid out over the next chain.
pub(super) const OF_NEXT: u64 = 1 << 20;

/// The servers, and what the MDS says of them.
pub(super) struct World {
    servers: Vec<Server>,
    row: Mutex<Chain>,
    /// Objects that files have.
    pub(super) files: Mutex<BTreeSet<ObjectId>>,
    /// Files whose inodes are damaged.
    pub(super) damaged: Mutex<BTreeSet<Ino>>,
    /// Why the MDS does not say which.
    pub(super) mds_fails: Mutex<Option<Errno>>,
    /// Member that answers no requests for its objects by others.
    pub(super) silent: Mutex<Option<u16>>,
    /// How many servers are asked to commit at the moment, and at most were.
    pub(super) committing: Mutex<(usize, usize)>,
    /// A row that a member hears of just before it is told what is stable.
    pub(super) before_stable: Mutex<Option<Chain>>,
    /// Members, in another order or state, that all hear of once this one has made a change, and
    /// before its answer is there.
    pub(super) before_answer: Mutex<Option<(u16, Vec<Member>)>>,
    /// How many requests for objects by others come with a row that the member has not heard of.
    pub(super) early: Mutex<usize>,
}

/// One of them.
pub(super) struct Server {
    pub(super) replication: Replication,
    pub(super) osts: OstSet<MemoryDisk>,
    pub(super) disks: Vec<MemoryDisk>,
    pub(super) dir: tempfile::TempDir,
}

/// Way from one server to the others.
struct Way(Weak<World>);

/// A world in which no time passes.
pub(super) struct Still;

impl host::World for Still {
    fn spawn(&self, _: host::Task) {}

    fn sleep(&self, _: Duration) -> host::Task {
        Box::pin(std::future::pending())
    }

    fn connect(&self, _: &str) -> std::io::Result<host::Pipe> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

/// A world in which the time of short pauses passes at once, and nobody runs out of patience.
pub(super) struct Hurrying;

impl host::World for Hurrying {
    fn spawn(&self, _: host::Task) {}

    fn sleep(&self, time: Duration) -> host::Task {
        if time > Duration::from_millis(200) {
            return Box::pin(std::future::pending());
        }
        clock::simulate(Some(clock::now() + time));
        Box::pin(std::future::ready(()))
    }

    fn connect(&self, _: &str) -> std::io::Result<host::Pipe> {
        Err(std::io::ErrorKind::Unsupported.into())
    }
}

impl World {
    /// Servers of the OSTs from 0 on, in these states, all of which know that.
    pub(super) fn new(states: &[MemberState]) -> Arc<World> {
        World::limited(states, None)
    }

    /// The same, each of which heals with no more than so many bytes a second.
    pub(super) fn limited(states: &[MemberState], heal_bandwidth: Option<u64>) -> Arc<World> {
        host::simulate(Some(Rc::new(Still)));
        let members: Vec<Member> =
            (0..).zip(states).map(|(ost, state)| Member { ost, state: *state }).collect();
        let founders = members.iter().map(|member| member.ost).collect();
        let id = ChainId { copies: states.len() as u8, ..ID };
        let row = Chain { id, version: 1, members, founders, intact_since: 1 };
        let world = Arc::new(World {
            servers: states.iter().map(|_| Server::limited(1, heal_bandwidth)).collect(),
            row: Mutex::new(row.clone()),
            files: Mutex::default(),
            damaged: Mutex::default(),
            mds_fails: Mutex::default(),
            silent: Mutex::default(),
            committing: Mutex::default(),
            before_stable: Mutex::default(),
            before_answer: Mutex::default(),
            early: Mutex::default(),
        });
        for (ost, server) in world.servers.iter().enumerate() {
            server.replication.set_peers(Some(Arc::new(Way(Arc::downgrade(&world)))));
            server.replication.adopt(world.here(ost as u16), &row);
        }
        world
    }

    pub(super) fn row(&self) -> Chain {
        self.row.lock().clone()
    }

    pub(super) fn version(&self) -> ChainVersion {
        let row = self.row();
        ChainVersion { target: row.id.target(), version: row.version }
    }

    pub(super) fn server(&self, ost: u16) -> &Replication {
        &self.servers[usize::from(ost)].replication
    }

    pub(super) fn here(&self, ost: u16) -> Here<'_, MemoryDisk> {
        Here { osts: &self.servers[usize::from(ost)].osts, first: ost }
    }

    /// Has all servers hear of a row with another version, and this change. Returns the version.
    pub(super) fn next_row(&self, change: impl FnOnce(&mut Chain)) -> ChainVersion {
        {
            let mut row = self.row.lock();
            row.version += 1;
            change(&mut row);
        }
        for ost in 0..self.servers.len() as u16 {
            self.server(ost).adopt(self.here(ost), &self.row());
            self.server(ost).rows.mark_settled(&self.row());
        }
        self.version()
    }

    /// The disk of a server.
    pub(super) fn disk(&self, ost: u16) -> &MemoryDisk {
        &self.servers[usize::from(ost)].disks[0]
    }

    /// A server cannot write its logs any more, none of which it has opened yet.
    pub(super) fn lose_logs(&self, ost: u16) {
        std::fs::remove_dir_all(self.servers[usize::from(ost)].dir.path()).unwrap();
    }

    /// Writes to an object of one member alone.
    pub(super) fn write(&self, ost: u16, object: ObjectId, offset: u64, data: &[u8]) {
        let write = OstRequest::Write { object, offset, mtime: None, kept: false };
        let written = self.here(ost).osts.handle(ClientId::IN_PROCESS, 0, write, Bulk::Out(data));
        futures_lite::future::block_on(written).reply.unwrap();
    }

    /// What an object of a member has, up to a length.
    pub(super) fn read(&self, ost: u16, object: ObjectId, offset: u64, len: usize) -> Vec<u8> {
        let mut room = vec![0; len];
        let read = OstRequest::Read { object, offset, len: len as u32 };
        let read = self.here(ost).osts.handle(ClientId::IN_PROCESS, 0, read, Bulk::In(&mut room));
        match futures_lite::future::block_on(read).reply.unwrap() {
            OstReply::Data(len) => room.truncate(len as usize),
            other => panic!("{other:?}"),
        }
        room
    }

    fn answer(&self, ost: u16, event: MemberEvent) -> Chain {
        let mut row = self.row.lock();
        let state = match event {
            MemberEvent::Synced => MemberState::Serving,
            MemberEvent::Lost | MemberEvent::NotReady => MemberState::Offline,
            MemberEvent::Returned | MemberEvent::ReturnedWithout => MemberState::Syncing,
        };
        row.members.iter_mut().filter(|m| m.ost == ost).for_each(|m| m.state = state);
        row.members.sort_by_key(|member| match member.state {
            MemberState::Serving => 0,
            MemberState::Syncing => 1,
            _ => 2,
        });
        row.version += 1;
        row.clone()
    }
}

impl Server {
    pub(super) fn new() -> Server {
        Server::with(1)
    }

    /// One with so many OSTs.
    pub(super) fn with(osts: usize) -> Server {
        Server::limited(osts, None)
    }

    fn limited(osts: usize, heal_bandwidth: Option<u64>) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let records: Arc<dyn Records> =
            Arc::new(DataDir::open_or_create(dir.path(), None, Role::Oss).unwrap());
        let disks: Vec<MemoryDisk> = (0..osts).map(|_| MemoryDisk::default()).collect();
        let store =
            |disk: &MemoryDisk| ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        let stores = disks.iter().map(store).collect();
        Server {
            replication: Replication::load(&records, false, heal_bandwidth).unwrap(),
            osts: OstSet::start(stores, Arc::default(), None, false).unwrap(),
            disks,
            dir,
        }
    }
}

/// A message as the network takes it.
fn sent(message: &impl serde::Serialize) -> FsResult<()> {
    let mut bytes = Vec::new();
    message::encode(message, &mut bytes)?;
    if bytes.len() <= BODY_BYTES_MAX { Ok(()) } else { Err(Errno::E2BIG) }
}

impl Peers for Way {
    fn forward<'a>(
        &'a self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'a>,
    ) -> Asked<'a, OstReply> {
        Box::pin(async move {
            let world = self.0.upgrade().ok_or(Errno::EIO)?;
            if *world.silent.lock() == Some(to.ost) {
                return Err(Errno::EIO);
            }
            {
                let early = &mut *world.early.lock();
                if *early > 0 {
                    *early -= 1;
                    return Err(Errno::EREMCHG);
                }
            }
            let (server, here) = (world.server(to.ost), world.here(to.ost));
            let client = ClientId::IN_PROCESS;
            let reply =
                server.execute_forward(here, client, to, forward, request, bulk).await.reply;
            let members = world.before_answer.lock().take_if(|(ost, _)| *ost == to.ost);
            if let Some((_, members)) = members {
                world.next_row(|row| row.members = members);
                futures_lite::future::yield_now().await;
            }
            reply
        })
    }

    fn ask(&self, ost: u16, request: PeerRequest) -> Asked<'_, PeerReply> {
        Box::pin(async move {
            let world = self.0.upgrade().ok_or(Errno::EIO)?;
            sent(&request)?;
            let is_commit = matches!(request, PeerRequest::Commit(_));
            if is_commit {
                {
                    let (now, most) = &mut *world.committing.lock();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                futures_lite::future::yield_now().await;
                world.committing.lock().0 -= 1;
            }
            let is_stable = matches!(request, PeerRequest::Stable(..));
            if let Some(row) = is_stable.then(|| world.before_stable.lock().take()).flatten() {
                world.server(ost).adopt(world.here(ost), &row);
            }
            let reply = world.server(ost).answer(world.here(ost), request).await?;
            sent(&reply)?;
            Ok(reply)
        })
    }

    fn keep(&self) -> Asked<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn objects(&self, _: u16, after: ObjectId) -> Asked<'_, ObjectPage> {
        Box::pin(async move {
            let world = self.0.upgrade().ok_or(Errno::EIO)?;
            if let Some(errno) = *world.mds_fails.lock() {
                return Err(errno);
            }
            let mut objects: Vec<ObjectId> = world.files.lock().range(after..).copied().collect();
            objects.retain(|object| *object > after);
            let is_last = objects.len() <= OBJECTS_PER_PAGE_MAX;
            objects.truncate(OBJECTS_PER_PAGE_MAX);
            let last = objects.last().copied().filter(|_| !is_last);
            Ok(ObjectPage { objects, last })
        })
    }

    fn layout(&self, ino: Ino) -> Asked<'_, Option<Layout>> {
        Box::pin(async move {
            let world = self.0.upgrade().ok_or(Errno::EIO)?;
            if let Some(errno) = *world.mds_fails.lock() {
                return Err(errno);
            }
            if world.damaged.lock().contains(&ino) {
                return Err(Errno::EIO);
            }
            let (replicas, first_ost) = (world.row().id.copies, u16::from(ino.0 >= OF_NEXT));
            let layout = Layout { replicas, first_ost, osts: 2, ..Layout::default() };
            let is_there = world.files.lock().contains(&ObjectId { ino, stripe: 0 });
            Ok(is_there.then_some(layout))
        })
    }

    fn tell(&self, chain: ChainVersion, ost: u16, event: MemberEvent) -> Asked<'_, Chain> {
        Box::pin(async move {
            let world = self.0.upgrade().ok_or(Errno::EIO)?;
            match world.version() == chain {
                true => Ok(world.answer(ost, event)),
                false => Ok(world.row()),
            }
        })
    }
}
