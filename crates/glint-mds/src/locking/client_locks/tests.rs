//! Locks of clients, in single steps.

use super::*;
use crate::service::Config;
use futures_lite::future::block_on;
use futures_util::FutureExt;
use glint_kv::memory::MemoryKv;
use glint_lock::held::HeldBits;
use glint_proto::{Arrival, Cred, Layout, RequestId};
use std::time::Duration;

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
    let id = Some(RequestId { client: other, slot: 0, xid: 1 });
    let arrival = Arrival { id, ..Arrival::default() };
    let context = Context::new(&arrival, &Cred::ROOT);
    assert!(client_locks.data(&context, ino, Range::ALL, true).now_or_never().is_some());
    assert_eq!(client_locks.counts().0, 0);
}

#[test]
fn what_was_withheld_goes_with_the_inode() {
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
    let mds = block_on(Mds::start(Arc::<MemoryKv>::default(), config)).unwrap();
    let (client, ino) = (ClientId(7), Ino(5));
    mds.client_locks.recalls.expect(client);
    let id = Some(RequestId { client, slot: 0, xid: 1 });
    let arrival = Arrival { id, ..Arrival::default() };
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
