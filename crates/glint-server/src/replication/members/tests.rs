//! Tests of members on a disk that threads wait for.

use crate::process::data_dir::{DataDir, Role};
use crate::records::{Records, ServerLog};
use crate::replication::{Here, Replication};
use futures_lite::future::block_on;
use glint_net::host;
use glint_ost::{ObjectStore, OstSet};
use glint_proto::chain::{Chain, ChainId, ChainVersion, Destination, Forward, Member, MemberState};
use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstRequest};
use glint_telemetry::{Counter, counted_here};
use std::sync::Arc;

const CHANGES: u64 = 200;

/// Bytes of a record in the log of changed objects.
const RECORD_BYTES: usize = 36;

#[test]
fn noting_a_change_costs_no_hand_over_of_its_own() {
    host::simulate(None);
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::open_or_create(&dir.path().join("data"), None, Role::Oss).unwrap();
    let records: Arc<dyn Records> = Arc::new(data);
    let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
    let osts = OstSet::start(vec![store], Arc::default(), None, false).unwrap();
    let replication = Replication::load(&records, false, None).unwrap();
    let here = Here { osts: &osts, first: 1 };
    let row = Chain {
        id: ChainId { copies: 2, index: 0 },
        version: 1,
        members: [0, 1].map(|ost| Member { ost, state: MemberState::Serving }).to_vec(),
        founders: vec![0, 1],
        intact_since: 1,
    };
    replication.adopt(here, &row);
    let chain = ChainVersion { target: row.id.target(), version: row.version };
    let to = Destination { ost: 1, chain: Some(chain) };
    let before = counted_here(Counter::HandOvers);
    for n in 1..=CHANGES {
        let object = ObjectId { ino: Ino(n), stripe: 0 };
        let write = OstRequest::Write { object, offset: 0, mtime: None, kept: false };
        let (client, forward) = (ClientId(1), Forward { sequence: n, stable: 0 });
        let bulk = Bulk::Out(b"data");
        let made = replication.execute_forward(here, client, to, forward, write, bulk);
        block_on(made).reply.unwrap();
        let log = records.read_log(ServerLog::Recent).unwrap();
        assert_eq!(log.len(), n as usize * RECORD_BYTES, "it is noted when it is made");
    }
    assert_eq!(counted_here(Counter::HandOvers) - before, CHANGES);
}
