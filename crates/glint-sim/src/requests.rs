//! Cost of requests to a server and its network: counted, or sent by hand.

use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::make;
use crate::world::executor::{Executor, Machine};
use crate::world::hosts::{Hosts, MDS, address};
use crate::world::network::Network;
use glint_client::{Caller, Vfs, WriteHow};
use glint_net::host::Pipe;
use glint_proto::by_hand::{Heard, hello, request_frame};
use glint_proto::frame::NO_SLOT;
use glint_proto::limits::{PATIENT_REQUESTS_MAX, RECLAIMS_MAX, WAITING_PER_SESSION_MAX};
use glint_proto::lock::Range;
use glint_proto::message::{Reply, Request};
use glint_proto::{
    ClientId, Cred, Errno, FileType, Ino, Layout, MdsReply, MdsRequest, PosixLock, PosixLockHow,
    PosixLockMode,
};
use std::rc::Rc;
use std::time::Duration;

const CLIENT: Machine = Machine(10);
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs this in a world of its own.
pub(crate) fn in_a_world<T: 'static, F: Future<Output = T> + 'static>(
    locks: bool,
    test: impl FnOnce(Rc<Executor>, Rc<Hosts>) -> F,
) -> T {
    let executor = Executor::new(1);
    let hosts = Hosts::new(&executor, &[1], locks, Layout::default());
    let result = executor.run(LIMIT, test(executor.clone(), hosts));
    executor.end();
    result.unwrap()
}

#[test]
fn thousands_of_files_and_locks_come_back_in_few_requests() {
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

#[test]
fn what_waits_for_locks_has_a_bound_and_ends_with_its_connection() {
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
#[test]
fn calls_that_are_dropped_leave_nothing_open_or_locked_at_the_server() {
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
                assert!(matches!(gone, Ok(()) | Err(Errno::ENOENT)), "{gone:?}");
            }
            fs.limit_inodes(0);
            world.sleep(Duration::from_secs(5)).await;
        })
        .await;
        assert_eq!(servers.mds().inode_count(), before, "files that are gone and open");
        assert_eq!(servers.mds().lock_counts(), (0, 0));
    });
}
