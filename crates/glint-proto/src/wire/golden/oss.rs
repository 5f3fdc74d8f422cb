//! What servers of OSTs and the MDS say to each other.

use super::*;
use crate::oss::{Destroy, Heartbeat, ObjectPage, Orders, ReplacedOst};

#[test]
fn what_servers_of_osts_and_the_mds_say() {
    let heartbeat = Heartbeat {
        uuid: 1,
        fs_uuid: 2,
        address: "a".into(),
        osts: 3,
        fenced: vec![4],
        done: (5, 6),
        failed: vec![OBJECT],
        space: vec![SPACE],
        boot_verifier: 7,
        chains: 8,
        failure_domain: "d".into(),
        replaced: vec![ReplacedOst { ost: 1, lose_last: true }],
        leaves: true,
        searching: vec![1],
        failed_osts: vec![2],
    };
    let requests = [
        OssRequest::Heartbeat(heartbeat),
        OssRequest::CheckSession { client: ClientId(1), session: 2, owner: OWNER },
        OssRequest::Member { chain: CHAIN_VERSION, ost: 1, event: MemberEvent::Synced },
        OssRequest::Layout(Ino(1)),
        OssRequest::Objects { target: 0xa001, after: OBJECT },
    ];
    must_be(
        &requests,
        "
         Heartbeat 000102016103010405060107080101020304070801640101010101010102
         CheckSession 0101020009
         Member 0281c002020103
         Layout 0301
         Objects 0481c0020708",
    );
    let orders = Orders {
        fs_uuid: 1,
        sequence: 2,
        first_ost: 3,
        lease_ms: 4,
        fence: vec![5],
        more_to_fence: true,
        orders: vec![(6, Destroy { ost: 7, objects: vec![OBJECT] })],
        chains: vec![chain()],
        last_change: 8,
        known_everywhere: 9,
        policy: ChainPolicy { heal_paused: true, min_replicas: 2, min_replicas_fails: true },
    };
    let replies = [
        OssReply::Orders { orders, secret: [0xbb; 32] },
        OssReply::SessionIsGood(true),
        OssReply::Chain { row: chain(), is_settled: true },
        OssReply::Layout(Some(LAYOUT)),
        OssReply::Objects(ObjectPage { objects: vec![OBJECT], last: Some(OBJECT) }),
    ];
    must_be(&replies, "
         Orders 0001020304010501010607010708010201030201000203020201020809010201bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
         SessionIsGood 0101
         Chain 0202010302010002030202010201
         Layout 03011402030401
         Objects 04010708010708");
}
