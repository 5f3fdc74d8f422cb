//! Cost of requests to a server and its network: counted, or sent by hand.

use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::{Fs, make};
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{Hosts, LEASE, MDS, address};
use crate::world::network::Network;
use crate::world::peers::{connect, connect_as};
use glint_client::{Caller, Vfs, WriteHow};
use glint_net::host::Pipe;
use glint_net::rights::Rights;
use glint_net::{MdsSession, ObjectService, OstRequests, Transport};
use glint_proto::by_hand::{Heard, hello, request_frame};
use glint_proto::chain::{ChainVersion, Destination};
use glint_proto::frame::NO_SLOT;
use glint_proto::limits::{PATIENT_REQUESTS_MAX, RECLAIMS_MAX, WAITING_PER_SESSION_MAX};
use glint_proto::lock::Range;
use glint_proto::message::{ObjectRead, Reply, Request};
use glint_proto::{
    Access, Bulk, Capability, ClientId, Cred, Errno, FileType, FsResult, Ino, Layout, MdsReply,
    MdsRequest, ObjectId, OstReply, PosixLock, PosixLockHow, PosixLockMode,
};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

pub(super) const CLIENT: Machine = Machine(10);
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs this in a world of its own.
pub(super) fn in_a_world<T: 'static, F: Future<Output = T> + 'static>(
    locks: bool,
    test: impl FnOnce(Rc<Executor>, Rc<Hosts>) -> F,
) -> T {
    in_a_world_of(&[1], Layout::default(), locks, test)
}

/// Runs this in a world of its own, with servers of so many OSTs.
pub(super) fn in_a_world_of<T: 'static, F: Future<Output = T> + 'static>(
    osts: &[u16],
    layout: Layout,
    locks: bool,
    test: impl FnOnce(Rc<Executor>, Rc<Hosts>) -> F,
) -> T {
    let executor = Executor::new(1);
    let hosts = Hosts::new(&executor, osts, locks, layout);
    let result = executor.run(LIMIT, test(executor.clone(), hosts));
    executor.end();
    result.unwrap()
}

/// A server that starts again hears of open files and locks in batches.
pub fn thousands_of_files_and_locks_come_back_in_few_requests() {
    const FILES: usize = 5000;
    let requests = in_a_world(true, |executor, hosts| async move {
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.sleep(Duration::from_millis(1)).await;
        let fs = at(&executor, CLIENT, async move {
            let fs = mount(&servers, 0).await.unwrap();
            for n in 0..FILES {
                let (name, regular) = (format!("f{n}"), make(FileType::Regular));
                let made =
                    fs.create(&Caller::ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_RDWR);
                let handle = made.await.unwrap().handle;
                fs.write(handle, 0, b"x", WriteHow::default()).await.unwrap();
            }
            fs.sync().await.unwrap();
            fs
        })
        .await;
        hosts.stop(MDS);
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.network.requests.set(0);
        at(&executor, CLIENT, async move { fs.statfs().await.unwrap() }).await;
        assert!(servers.mds().lock_counts().1 >= FILES);
        executor.network.requests.get()
    });
    let least = 2 * FILES.div_ceil(RECLAIMS_MAX) as u64;
    assert!((least..least + 20).contains(&requests), "{requests} requests");
}

/// A connection of a client that speaks by hand.
struct Hand {
    pipe: Pipe,
    client: ClientId,
    heard: Heard,
}

impl Hand {
    async fn connect(executor: &Rc<Executor>, client: u64) -> Hand {
        let pipe = Network::connect(executor, Machine(client as u32), &address(MDS)).unwrap();
        let mut hand = Hand { pipe, client: ClientId(client), heard: Heard::default() };
        hand.say(&Request::Hello(hello("", client.into())), NO_SLOT, 0);
        // Before it is welcome it says nothing.
        assert_eq!(hand.hear(executor).await, []);
        hand
    }

    fn say(&mut self, request: &Request<'_>, slot: u16, xid: u64) {
        self.pipe.send(&request_frame(self.client, slot, xid, request, b"").unwrap());
    }

    /// A lock of a program on a whole file.
    fn lock(&mut self, how: PosixLockHow, mode: PosixLockMode, owner: u64, xid: u64) {
        let (ino, range, flock) = (Ino(77), Range::ALL, false);
        let lock = PosixLock { ino, owner, pid: 1, range, mode, flock, how, ticket: xid };
        let slot = if how == PosixLockHow::Wait { NO_SLOT } else { 0 };
        let request = MdsRequest::PosixLock(lock);
        self.say(&Request::Mds { cred: Cred::ROOT, request }, slot, xid);
    }

    /// The answers to requests to the MDS, until nothing comes for a while.
    async fn hear(&mut self, executor: &Rc<Executor>) -> Vec<Result<MdsReply, Errno>> {
        let mut answers = Vec::new();
        loop {
            let patience = executor.sleep(Duration::from_millis(100));
            let bytes = futures_lite::future::or(self.pipe.receive(), async {
                patience.await;
                Some(Vec::new())
            });
            let bytes = bytes.await.expect("the connection was closed");
            if bytes.is_empty() {
                return answers;
            }
            self.heard.push(&bytes);
            while let Some(reply) = self.heard.take_reply().unwrap() {
                match reply {
                    Reply::Mds { reply, .. } => answers.push(reply),
                    Reply::Welcome(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

/// Requests that wait for locks have a bound, and go with their connection.
pub fn what_waits_for_locks_has_a_bound_and_ends_with_its_connection() {
    in_a_world(true, |executor, hosts| async move {
        hosts.start(MDS);
        executor.sleep(Duration::from_millis(1)).await;
        let mut holder = Hand::connect(&executor, 5).await;
        holder.lock(PosixLockHow::Try, PosixLockMode::Write, 1, 1);
        assert_eq!(holder.hear(&executor).await, [Ok(MdsReply::Done)]);
        // The rounds are so many that more would wait than may, if requests of lost connections
        // did.
        for round in 0..3 {
            let mut connections = Vec::new();
            for part in 0..WAITING_PER_SESSION_MAX / PATIENT_REQUESTS_MAX {
                let mut hand = Hand::connect(&executor, 6).await;
                for n in 0..PATIENT_REQUESTS_MAX {
                    let xid = (part * PATIENT_REQUESTS_MAX + n + 1) as u64;
                    hand.lock(PosixLockHow::Wait, PosixLockMode::Write, xid, xid);
                }
                assert_eq!(hand.hear(&executor).await, [], "round {round}");
                connections.push(hand);
            }
            let mut last = Hand::connect(&executor, 6).await;
            last.lock(PosixLockHow::Wait, PosixLockMode::Write, 1 << 20, 1 << 20);
            assert_eq!(last.hear(&executor).await, [Err(Errno::ENOLCK)], "round {round}");
            drop((connections, last));
            executor.sleep(Duration::from_secs(1)).await;
        }
        // Nobody waits any more: who comes now is the next one.
        let mut next = Hand::connect(&executor, 7).await;
        next.lock(PosixLockHow::Wait, PosixLockMode::Write, 1, 1);
        assert_eq!(next.hear(&executor).await, []);
        holder.lock(PosixLockHow::Try, PosixLockMode::Unlock, 1, 2);
        assert_eq!(next.hear(&executor).await, [Ok(MdsReply::Done)]);
    });
}

/// A program stops to wait for its calls, each at another moment.
pub fn calls_that_are_dropped_leave_nothing_open_or_locked_at_the_server() {
    const CALLS: u64 = 300;
    in_a_world(true, |executor, hosts| async move {
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.sleep(Duration::from_millis(1)).await;
        let before = servers.mds().inode_count();
        let (world, to) = (executor.clone(), servers.clone());
        at(&executor, CLIENT, async move {
            let fs = mount(&to, 0).await.unwrap();
            let name = |n: u64| format!("f{}", n / 3).into_bytes();
            let mut dropped = 0;
            for n in 0..CALLS {
                let flags = if n % 3 == 2 { libc::O_RDWR | libc::O_TRUNC } else { libc::O_RDWR };
                let name = name(n);
                let regular = make(FileType::Regular);
                let create = fs.create(&Caller::ROOT, Ino::ROOT, &name, regular, flags);
                let patience = world.sleep(Duration::from_micros(n * 37 % 4000));
                let done = futures_lite::future::or(async { Some(create.await) }, async {
                    patience.await;
                    None
                });
                match done.await {
                    Some(open) => fs.release(open.unwrap().handle).await.unwrap(),
                    None => dropped += 1,
                }
            }
            assert!((CALLS / 10..CALLS).contains(&dropped), "{dropped} calls were dropped");
            world.sleep(Duration::from_secs(1)).await;
            for n in (0..CALLS).step_by(3) {
                let gone = fs.unlink(&Caller::ROOT, Ino::ROOT, &name(n)).await;
                assert!(matches!(gone, Ok(_) | Err(Errno::ENOENT)), "{gone:?}");
            }
            fs.limit_inodes(0);
            world.sleep(Duration::from_secs(5)).await;
        })
        .await;
        assert_eq!(servers.mds().inode_count(), before, "files that are gone and open");
        assert_eq!(servers.mds().lock_counts(), (0, 0));
    });
}

/// Machine of another client.
const READER: Machine = Machine(11);

/// What a machine with limited rights shows.
const CERTIFICATE: [u8; 32] = [1; 32];

/// Content of a file.
fn content(n: usize) -> Vec<u8> {
    vec![b'a' + n as u8; 100 + n]
}

/// Makes files; returns the reads of their objects, without capabilities.
async fn make_files(fs: &Fs, count: usize) -> Vec<ObjectRead> {
    let mut reads = Vec::new();
    for n in 0..count {
        let (name, regular) = (format!("f{n}"), make(FileType::Regular));
        let made = fs.create(&Caller::ROOT, Ino::ROOT, name.as_bytes(), regular, libc::O_RDWR);
        let (handle, attr) = made.await.map(|open| (open.handle, open.attr)).unwrap();
        fs.write(handle, 0, &content(n), WriteHow::default()).await.unwrap();
        fs.release(handle).await.unwrap();
        let (to, object) = (attr.layout.ost_of(0, 1).into(), attr.layout.object(attr.ino, 0));
        reads.push(ObjectRead { to, object, offset: 0, len: 1000, capability: None });
    }
    fs.sync().await.unwrap();
    reads
}

/// Reads all of these together: the answers, in the order in which they came.
async fn read_together(
    servers: &impl OstRequests,
    reads: &[ObjectRead],
) -> Vec<(usize, FsResult<Vec<u8>>)> {
    let answers = RefCell::default();
    let says = |at: usize, data: FsResult<Vec<u8>>| {
        let answers: &RefCell<Vec<_>> = &answers;
        answers.borrow_mut().push((at, data));
    };
    servers.read_objects(reads.to_vec(), &says).await;
    answers.into_inner()
}

/// Reads one object, in a request of its own.
async fn read_alone(servers: &impl OstRequests, read: &ObjectRead) -> FsResult<Vec<u8>> {
    let mut data = vec![0; read.len as usize];
    let (bulk, is_held) = (Bulk::In(&mut data), &|| true);
    match servers.ost(read.to, read.request(), read.capability, bulk, is_held).await? {
        OstReply::Data(len) => data.truncate(len as usize),
        other => panic!("{other:?}"),
    }
    Ok(data)
}

/// A batch allows nothing that its reads would not be allowed alone.
pub fn each_read_of_a_batch_is_allowed_by_its_own_capability() {
    in_a_world(true, |executor, hosts| async move {
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.sleep(Duration::from_millis(1)).await;
        let to = servers.clone();
        let (_fs, files) = at(&executor, CLIENT, async move {
            let fs = mount(&to, 0).await.unwrap();
            let files = make_files(&fs, 4).await;
            (fs, files)
        })
        .await;
        let rights = Rights { read_only: true, ..Rights::default() };
        executor.network.limited.borrow_mut().insert(READER, rights);
        at(&executor, READER, async move {
            let certificate = Some(CERTIFICATE);
            let reader = connect_as(&servers, 1, certificate).await.unwrap();
            let session = reader.mds().welcome().session;
            let allows = |session: u64, ino: Ino, access: Access| {
                Some(servers.capability_key().unwrap().issue(session, ino, access))
            };
            let good = |read: ObjectRead| {
                let capability = allows(session, read.object.ino, Access::READ);
                ObjectRead { capability, ..read }
            };
            let nobodys = Ino(files[3].object.ino.0 + 1000);
            let forged = Some(Capability { access: Access::READ, signature: [7; 32] });
            let object = files[1].object;
            let reads = [
                good(files[0]),
                // None, a forged one, one of another session, of another file, to write.
                files[1],
                ObjectRead { capability: forged, ..files[1] },
                ObjectRead {
                    capability: allows(session + 1, object.ino, Access::READ),
                    ..files[1]
                },
                ObjectRead { capability: good(files[2]).capability, ..files[1] },
                ObjectRead { capability: allows(session, object.ino, Access::WRITE), ..files[1] },
                good(files[2]),
                good(ObjectRead { object: ObjectId { ino: nobodys, stripe: 0 }, ..files[0] }),
                good(files[3]),
            ];
            let refused = || Err(Errno::EACCES);
            let mut answers = vec![Ok(content(0))];
            answers.extend((0..5).map(|_| refused()));
            // An object that is not there is as one of which nothing was written.
            answers.extend([Ok(content(2)), Ok(Vec::new()), Ok(content(3))]);
            let answers: Vec<_> = answers.into_iter().enumerate().collect();
            assert_eq!(read_together(&reader, &reads).await, answers);
            for (read, (_, answer)) in reads.iter().zip(answers) {
                assert_eq!(read_alone(&reader, read).await, answer, "{read:?}");
            }
            // Its own capability allows what was refused before.
            assert_eq!(read_together(&reader, &[good(files[1])]).await, [(0, Ok(content(1)))]);
        })
        .await;
    });
}

/// One server has members of all chains. Its answer has data for reads by rows that are still in
/// force, and none for the others.
pub fn each_read_of_a_batch_is_by_its_own_row() {
    const FILES: usize = 6;
    let layout = Layout { replicas: 2, ..Layout::default() };
    in_a_world_of(&[3], layout, true, |executor, hosts| async move {
        hosts.start(MDS);
        while !hosts.have_joined() {
            executor.sleep(Duration::from_millis(100)).await;
        }
        let servers = hosts.mds();
        let rows = servers.clone();
        at(&executor, CLIENT, async move {
            let fs = mount(&servers, 0).await.unwrap();
            let mut reads = make_files(&fs, FILES).await;
            let changes = [0, 1, 0, u32::MAX, 0, 0];
            for (read, change) in reads.iter_mut().zip(changes) {
                let row = rows.mds().chains().get(read.to.ost).unwrap();
                let version = row.version.wrapping_add(change);
                let chain = Some(ChainVersion { target: read.to.ost, version });
                read.to = Destination { ost: row.head().unwrap(), chain };
            }
            let answer = |n: usize| match changes[n] {
                0 => Ok(content(n)),
                _ => Err(Errno::EREMCHG),
            };
            let answers: Vec<_> = (0..FILES).map(|n| (n, answer(n))).collect();
            assert_eq!(read_together(fs.transport().mds(), &reads).await, answers);
        })
        .await;
    });
}

/// A client that knows old rows of some chains, because a server is gone, reads from all of them.
pub fn reads_by_old_rows_are_refused_alone_and_bring_the_new_ones() {
    const FILES: usize = 24;
    let layout = Layout { replicas: 2, ..Layout::default() };
    in_a_world_of(&[1, 1, 1], layout, true, |executor, hosts| async move {
        (0..3).for_each(|host| hosts.start(host));
        while !hosts.have_joined() {
            executor.sleep(Duration::from_millis(100)).await;
        }
        let servers = hosts.mds();
        let to = servers.clone();
        let (_fs, reads, reader) = at(&executor, CLIENT, async move {
            let fs = mount(&to, 0).await.unwrap();
            let reads = make_files(&fs, FILES).await;
            let reader = connect(&to, 1).await.unwrap();
            for (n, read) in reads.iter().enumerate() {
                // It knows the rows of today.
                assert_eq!(read_alone(&reader, read).await, Ok(content(n)));
            }
            (fs, reads, reader)
        })
        .await;
        let version = |read: &ObjectRead| servers.mds().chains().get(read.to.ost).unwrap().version;
        let before: Vec<u32> = reads.iter().map(version).collect();
        hosts.stop(2);
        executor.sleep(3 * LEASE).await;
        let is_old: Vec<bool> = reads.iter().zip(before).map(|(r, v)| version(r) > v).collect();
        assert!(is_old.contains(&true) && is_old.contains(&false));

        at(&executor, CLIENT, async move {
            let mut answers = read_together(&reader, &reads).await;
            answers.sort_by_key(|(n, _)| *n);
            for (n, data) in answers {
                // EAGAIN where news of the row came first, and its head is to be told something.
                match is_old[n] {
                    true => assert!(matches!(data, Err(Errno::EREMCHG | Errno::EAGAIN)), "{n}"),
                    false => assert_eq!(data, Ok(content(n)), "{n}"),
                }
            }
            // The refusal has it ask for the new ones. A chain with another head is read alone first:
            // that tells the head what the old one may have lost.
            for (n, data) in read_together(&reader, &reads).await {
                if data == Err(Errno::EAGAIN) && is_old[n] {
                    assert_eq!(read_alone(&reader, &reads[n]).await, Ok(content(n)));
                } else {
                    assert_eq!(data, Ok(content(n)), "{n}");
                }
            }
            let mut answers = read_together(&reader, &reads).await;
            answers.sort_by_key(|(n, _)| *n);
            let all: Vec<_> = (0..FILES).map(|n| (n, Ok(content(n)))).collect();
            assert_eq!(answers, all);
        })
        .await;
    });
}
