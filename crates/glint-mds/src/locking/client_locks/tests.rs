//! Locks of clients, in single steps.

use super::*;
use crate::service::Config;
use futures_lite::future::{block_on, poll_once};
use futures_util::FutureExt;
use glint_kv::memory::MemoryKv;
use glint_lock::held::HeldBits;
use glint_proto::limits::DATA_LOCKS_OWED_MAX;
use glint_proto::{Arrival, Cred, Errno, Layout, MdsReply, RequestId};
use proptest::prelude::*;
use std::cell::RefCell;
use std::pin::Pin;
use std::time::Duration;

const INO: Ino = Ino(7);
const CLIENTS: [ClientId; 3] = [ClientId(1), ClientId(2), ClientId(3)];

fn start() -> Mds<Arc<MemoryKv>> {
    let config = Config {
        osts: 1,
        lease: Duration::from_secs(30),
        layout: Layout::default(),
        commit_sync: false,
        after_power_loss: false,
        locks: true,
        mounted: false,
        hash_seed: Some(7),
        boot_verifier: 1,
    };
    block_on(Mds::start(Arc::<MemoryKv>::default(), config)).unwrap()
}

/// A request of a client.
fn of(client: ClientId) -> Arrival<'static> {
    let id = Some(RequestId { client, slot: 0, xid: 1 });
    Arrival { id, ..Arrival::default() }
}

#[test]
fn who_was_granted_something_while_it_was_forgotten_holds_nobody_up() {
    let client_locks = ClientLocks::new(true, Arc::default());
    let (gone, other, ino) = (ClientId(1), ClientId(2), Ino(7));
    client_locks.recalls.expect(gone);
    client_locks.evict(gone);
    // An operation of that client was under way, and looked before the eviction.
    assert!(client_locks.grant(gone, ino, Bits::ATTR | Bits::DELEGATION).is_some());
    assert!(client_locks.shard(ino).lock().extents.try_all(gone, ino, true).is_some());
    assert!(client_locks.clear(other, ino, Bits::ALL).now_or_never().is_some());
    let arrival = of(other);
    let context = Context::new(&arrival, &Cred::ROOT);
    assert!(client_locks.data(&context, ino, Range::ALL, true).now_or_never().is_some());
    assert_eq!(client_locks.counts().0, 0);
}

#[test]
fn what_was_withheld_goes_with_the_inode() {
    let (mds, client, ino) = (start(), ClientId(7), Ino(5));
    mds.client_locks.recalls.expect(client);
    let arrival = of(client);
    let mut held = HeldBits::default();
    // The second one changes nothing in what the client may use of the first.
    for (withholds, bits) in [(false, Bits::ENTRY), (true, Bits::ENTRY | Bits::ATTR)] {
        let context = Context::new(&arrival, &Cred::ROOT);
        mds.grant(&context, ino, bits);
        if withholds {
            mds.withhold_bits(&context);
        }
        for grant in context.grants.into_inner() {
            let Grant::Bits { bits, number, .. } = grant else { panic!("{grant:?}") };
            held.grant(bits, number);
        }
        assert_eq!(held.bits(), Bits::ENTRY);
    }
    let (bits, number) = held.return_all().unwrap();
    mds.return_locks(client, &[Return::Bits { ino, bits, number }]);
    assert_eq!(mds.lock_counts(), (0, 0));
}

#[test]
fn nobody_is_asked_for_a_bit_by_who_gets_no_lock() {
    let mds = start();
    let [owes, other, _] = CLIENTS;
    for at in 0..DATA_LOCKS_OWED_MAX as u64 {
        let range = Range::of(2 * at, 1);
        assert!(
            mds.client_locks.shard(INO).lock().extents.reclaim(owes, INO, range, false).is_some()
        );
    }
    let listening = mds.listen(other);
    assert!(mds.client_locks.grant(other, INO, Bits::UNWRITTEN).is_some());
    let arrival = of(owes);
    let context = Context::new(&arrival, &Cred::ROOT);
    let asked = mds.lock_data(&context, INO, Range::ALL, true, false).now_or_never();
    assert!(matches!(asked, Some(Err(Stop::Refused(Errno::ENOLCK)))), "{asked:?}");
    assert!(mds.recalls(other, listening).now_or_never().is_none());
}

/// The recovery in which it was admitted has ended since.
#[test]
fn a_lock_to_write_is_not_reclaimed_beside_who_relies_on_it_that_nobody_writes() {
    let mds = start();
    let [late, other, _] = CLIENTS;
    assert!(mds.client_locks.grant(other, INO, Bits::UNWRITTEN).is_some());
    let arrival = of(late);
    let reclaim = |write| {
        let context = Context::new(&arrival, &Cred::ROOT);
        block_on(mds.lock_data(&context, INO, Range::ALL, write, true))
    };
    let refused = reclaim(true);
    assert!(matches!(refused, Err(Stop::Refused(Errno::ESTALE))), "{refused:?}");
    assert!(matches!(reclaim(false), Ok(MdsReply::Locked(_))));
    return_bits(&mds.client_locks, other);
    assert!(matches!(reclaim(true), Ok(MdsReply::Locked(_))));
}

/// Locks that were given, perhaps a part of later ones since.
type Given = RefCell<Vec<(ClientId, u64)>>;

/// Asks for a lock as a request does, again when a conflict is over.
async fn ask(client_locks: &ClientLocks, client: ClientId, write: bool, given: &Given) {
    let arrival = of(client);
    let context = Context::new(&arrival, &Cred::ROOT);
    let mut wanted = Vec::new();
    loop {
        match client_locks.data(&context, INO, Range::ALL, write).await {
            Ok(lock) => return given.borrow_mut().push((client, lock.number)),
            Err(Stop::Conflict(Conflict { holder, ino, bits })) => {
                wanted.push(client_locks.clear(holder, ino, bits).await);
            }
            Err(Stop::Refused(errno)) => panic!("{errno}"),
        }
    }
}

/// A client returns all bits, or all locks on data.
fn return_bits(client_locks: &ClientLocks, client: ClientId) {
    let returned = Return::Bits { ino: INO, bits: Bits::ALL, number: u64::MAX };
    client_locks.return_locks(client, &[returned]);
}

fn return_data(client_locks: &ClientLocks, client: ClientId, given: &Given) {
    let of_client: Vec<_> = given.borrow_mut().extract_if(.., |(of, _)| *of == client).collect();
    for (_, number) in of_client {
        client_locks.return_locks(client, &[Return::Data { ino: INO, number }]);
    }
}

proptest! {
    /// Clients are told that nobody else writes, ask for locks, drop these requests, return what they
    /// have, and vanish, in any order.
    #[test]
    fn no_other_client_may_write_what_one_holds_to_be_unwritten(
        steps in proptest::collection::vec((0u8..9, 0usize..3), 0..120)
    ) {
        let client_locks = ClientLocks::new(true, Arc::default());
        CLIENTS.iter().for_each(|client| client_locks.recalls.expect(*client));
        let given = Given::default();
        let mut asking: Vec<Pin<Box<dyn Future<Output = ()> + '_>>> = Vec::new();
        for (step, at) in steps {
            let client = CLIENTS[at];
            match step {
                0..=2 => {
                    client_locks.grant(client, INO, Bits::ATTR | Bits::UNWRITTEN);
                }
                3 => asking.push(Box::pin(ask(&client_locks, client, false, &given))),
                4 => asking.push(Box::pin(ask(&client_locks, client, true, &given))),
                5 => return_bits(&client_locks, client),
                6 => return_data(&client_locks, client, &given),
                7 if !asking.is_empty() => drop(asking.swap_remove(at % asking.len())),
                7 => {}
                _ => {
                    client_locks.evict(client);
                    client_locks.recalls.expect(client);
                    given.borrow_mut().retain(|(of, _)| *of != client);
                }
            }
            asking.retain_mut(|asks| block_on(poll_once(asks)).is_none());
            let shard = client_locks.shard(INO).lock();
            for client in CLIENTS {
                let writers = shard.extents.writers(INO, client);
                let is_told = shard.bits.held(client, INO).contains(Bits::UNWRITTEN);
                prop_assert!(!is_told || writers.is_empty(), "{client} beside {writers:?}");
            }
        }
        // Whoever waits gets its lock once the others have returned theirs.
        for _ in 0..=asking.len() {
            for client in CLIENTS {
                return_bits(&client_locks, client);
                return_data(&client_locks, client, &given);
                asking.retain_mut(|asks| block_on(poll_once(asks)).is_none());
            }
        }
        prop_assert!(asking.is_empty());
    }
}
