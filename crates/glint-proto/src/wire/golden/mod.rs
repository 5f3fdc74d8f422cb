//! The bytes of one message of each kind, so that nobody changes the protocol without a new
//! version: a variant or a field that is moved, added in between or encoded otherwise fails here.
//!
//! If the change is meant: raise [`PROTOCOL_VERSION`], and take the lines that the failure prints.

use crate::capability::{Access, Capability};
use crate::chain::{
    Chain, ChainId, ChainPolicy, ChainTargets, ChainVersion, Member, MemberEvent, MemberState,
};
use crate::frame::Header;
use crate::lock::{
    Bits, DataLock, Grant, PosixLock, PosixLockHow, PosixLockMode, Range, Recall, Return,
};
use crate::message::*;
use crate::oss::{
    Destroy, Heartbeat, ObjectPage, Orders, OssInfo, OssReply, OssRequest, ReplacedOst,
};
use crate::posix::ScanFilter;
use crate::{
    Attr, ClientId, Cred, Errno, FileType, Ino, Layout, ObjectId, Op, Owner, Reclaim, SetAttr,
    SetTime, Timestamp,
};
use serde::Serialize;
use std::fmt::Debug;

mod mds;
mod ost;

const CHAIN_VERSION: ChainVersion = ChainVersion { target: 0xa001, version: 2 };

fn chain() -> Chain {
    let member = |ost, state| Member { ost, state };
    let members = vec![member(1, MemberState::Serving), member(2, MemberState::Offline)];
    Chain {
        id: ChainId { copies: 2, index: 1 },
        version: 3,
        members,
        founders: vec![2, 1],
        intact_since: 2,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A message as its variant and its bytes.
fn line<T: Serialize + Debug>(message: &T) -> String {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    let shown = format!("{message:?}");
    let variant = shown.split(|c: char| !c.is_alphanumeric()).next().unwrap();
    format!("{variant} {}", hex(&bytes))
}

/// Compares messages with their lines.
fn must_be<T: Serialize + Debug>(messages: &[T], golden: &str) {
    let lines: Vec<String> = messages.iter().map(line).collect();
    let golden: Vec<&str> = golden.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, golden, "the wire format has changed; now it is\n{}", lines.join("\n"));
}

const TIME: Timestamp = Timestamp { secs: 3, nanos: 4 };
const RANGE: Range = Range { start: 5, end: 6 };
const LAYOUT: Layout = Layout {
    stripe_bytes_log2: 20,
    stripe_count: 2,
    first_ost: 3,
    osts: 4,
    replicas: 1,
    first_object: 0,
};
const MOVED: Layout = Layout { first_object: 5, ..LAYOUT };
const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 8 };
const LATER: Timestamp = Timestamp { secs: 5, nanos: 6 };
const STATE: ObjectAttr = ObjectAttr { size: 1, blocks: 2, mtime: TIME, ctime: LATER };
const SPACE: SpaceInfo = SpaceInfo { total: 1, free: 2, available: 3, file_system: 4 };
const CAPABILITY: Capability = Capability { access: Access(1), signature: [0xaa; 32] };
const OWNER: Owner = Owner { certificate: None, secret: 9 };
const LOCK: PosixLock = PosixLock {
    ino: Ino(1),
    owner: 2,
    pid: 3,
    range: RANGE,
    mode: PosixLockMode::Write,
    flock: true,
    how: PosixLockHow::Try,
    ticket: 4,
};

fn attr() -> Attr {
    Attr {
        ino: Ino(1),
        mode: 0o100_644,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 5,
        size: 6,
        blocks: 7,
        atime: Timestamp { secs: 1, nanos: 2 },
        mtime: TIME,
        ctime: LATER,
        size_on_ost: true,
        has_no_xattrs: false,
        layout: LAYOUT,
    }
}

fn oss() -> OssInfo {
    OssInfo { first_ost: 1, osts: 2, address: "a:1".into(), space: vec![SPACE] }
}

fn place() -> EntryPlace {
    EntryPlace { parent: Ino(1), cookie: 16, name: b"n".to_vec() }
}

#[test]
fn the_header_of_a_frame() {
    let header = Header {
        op: Op::Create,
        reply: true,
        client: ClientId(1),
        slot: 2,
        xid: 3,
        boot_verifier: 4,
        committed: 5,
        body_len: 6,
        body_crc: 7,
        bulk_len: 8,
        bulk_crc: 9,
    };
    let mut bytes = header.encode();
    assert_eq!(bytes[4..6], crate::limits::PROTOCOL_VERSION.to_le_bytes());
    // The version and what depends on it.
    bytes[4..6].fill(0);
    bytes[60..].fill(0);
    let golden = "474c4e5400000601010000000000000002000000060000000300000000000000\
         0400000000000000050000000000000008000000090000000700000000000000";
    assert_eq!(hex(&bytes), golden);
}

#[test]
fn requests_and_replies_of_a_connection() {
    let hello = Hello {
        host: "h".into(),
        mount_point: "m".into(),
        known: true,
        boot_verifier: 1,
        session: 2,
        secret: 3,
    };
    let cred = Cred { uid: 1, gid: 2, groups: Some(vec![3]) };
    let returned = Return::Bits { ino: Ino(1), bits: Bits::ATTR, number: 2 };
    let requests = [
        Request::Hello(hello),
        Request::Osses,
        Request::Oss(OssRequest::CheckSession { client: ClientId(1), session: 2, owner: OWNER }),
        Request::Status,
        Request::Stats,
        Request::ResetStats,
        Request::Ping { commit: true, hurry: false },
        Request::Replay {
            cred: cred.clone(),
            request: MdsRequest::Statfs,
            reply: MdsReply::Done,
            capability: Some(CAPABILITY),
        },
        Request::Recovered,
        Request::Listen,
        Request::Return(vec![returned]),
        Request::Bye,
        Request::Mds { cred, request: MdsRequest::Sync },
        Request::Ost {
            to: 1.into(),
            request: OstRequest::Space,
            capability: Some(CAPABILITY),
            forward: None,
        },
        Request::Reclaim(vec![Reclaim::Delegation { ino: Ino(1) }]),
        Request::Scrub { begins: true },
        Request::Heal { paused: true },
        Request::GiveUpOst(GiveUp { ost: 3, step: GiveUpStep::Preview(Ino(1)) }),
        Request::GiveUpOst(GiveUp { ost: 3, step: GiveUpStep::Confirmed(1) }),
        Request::GiveUpOst(GiveUp { ost: 3, step: GiveUpStep::Drained(1) }),
        Request::DrainOst(DrainOst { ost: 3, step: DrainStep::Begin }),
        Request::DrainOst(DrainOst { ost: 3, step: DrainStep::End }),
        Request::DrainOst(DrainOst { ost: 3, step: DrainStep::Files(Ino(1)) }),
        Request::DrainOst(DrainOst {
            ost: 3,
            step: DrainStep::Moves(FilesToMove { files: 1, bytes: 2 }),
        }),
        Request::ReadObjects(vec![ObjectRead {
            to: 1.into(),
            object: OBJECT,
            offset: 2,
            len: 3,
            capability: None,
        }]),
        Request::BalanceTurn(BalanceTurn { token: 3, step: BalanceStep::End }),
        Request::Check(NamespaceQuery::Inodes(Ino(1))),
        Request::Check(NamespaceQuery::Entries(vec![2])),
        Request::Check(NamespaceQuery::Again { inodes: vec![Ino(1)], entries: vec![place()] }),
        Request::Check(NamespaceQuery::Stored { ost: 1, after: Some(OBJECT) }),
        Request::Check(NamespaceQuery::StoredAgain { ost: 1, objects: vec![OBJECT] }),
        Request::Check(NamespaceQuery::Uses(vec![OBJECT])),
        Request::Check(NamespaceQuery::Ends(Ino(1))),
    ];
    must_be(
        &requests,
        "
         Hello 000168016d01010203
         Osses 01
         Oss 020101020009
         Status 03
         Stats 04
         ResetStats 05
         Ping 060100
         Replay 07010201010311000101aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         Recovered 08
         Listen 09
         Return 0a0100010202
         Bye 0b
         Mds 0c010201010312
         Ost 0d0100090101aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa00
         Reclaim 10010201
         Scrub 1101
         Heal 1201
         GiveUpOst 13030001
         GiveUpOst 13030101
         GiveUpOst 13030201
         DrainOst 140300
         DrainOst 140301
         DrainOst 14030201
         DrainOst 1403030102
         ReadObjects 150101000708020300
         BalanceTurn 160302
         Check 170001
         Check 17010102
         Check 17020101010110016e
         Check 170301010708
         Check 170401010708
         Check 1705010708
         Check 170601",
    );
    let welcome = Welcome {
        fs_uuid: 1,
        boot_verifier: 2,
        osts: 3,
        own_osts: 4,
        osses: vec![oss()],
        session: 5,
        cache_ms: 6,
        commit_sync: true,
        lease_ms: 7,
        locks: false,
        root: Ino(8),
        capabilities: true,
        survived: Survived { mds: 9, ost: 10 },
        evicted: false,
    };
    let members = vec![Member { ost: 1, state: MemberState::Serving }];
    let copies = ObjectUse::Copies { chain: chain().id, version: 3, members };
    let page = NamespacePage {
        inodes: vec![InodeFact {
            ino: Ino(7),
            kind: FileType::Regular,
            links: 1,
            parent: Ino(1),
            ctime: TIME,
            missing_target: Some(9),
        }],
        entries: vec![EntryFact {
            place: place(),
            ino: Ino(7),
            kind: FileType::Regular,
            is_misplaced: true,
        }],
        damaged: vec!["d".into()],
        next: Some(NamespaceQuery::Entries(vec![2])),
        stored: [
            (Err(Errno::EIO), StoredSeal::None),
            (Ok(1), StoredSeal::Whole { size: 2, block_log2: 16, digest: 3 }),
            (Ok(1), StoredSeal::Damaged),
        ]
        .map(|(size, seal)| StoredFact { object: OBJECT, size, seal })
        .to_vec(),
        uses: vec![
            UsedObject { object: OBJECT, used: ObjectUse::Alone(1), end: Some(2) },
            UsedObject { object: OBJECT, used: copies, end: None },
        ],
    };
    let replies = [
        Reply::Welcome(welcome),
        Reply::Osses(vec![oss()]),
        Reply::Oss(Ok(OssReply::SessionIsGood(true))),
        Reply::Json("{}".into()),
        Reply::Failed(Errno::EIO),
        Reply::Mds {
            transaction: 1,
            reply: Err(Errno::ENOENT),
            grants: vec![Grant::Capability { ino: Ino(2), capability: CAPABILITY }],
        },
        Reply::Ost { transaction: 1, reply: Ok(OstReply::Done) },
        Reply::Pong(Committed { mds: 1, ost: 2 }),
        Reply::Recalls(vec![Recall::Data { ino: Ino(1), number: 2 }]),
        Reply::Busy { retry_ms: 1 },
        Reply::Refused("r".into()),
        Reply::Reclaimed(vec![Ok(MdsReply::Done), Err(Errno::ESTALE)]),
        Reply::ObjectsRead(vec![Ok(1), Err(Errno::ENXIO)]),
        Reply::Checked(page),
    ];
    must_be(
        &replies,
        "
         Welcome 000102030401010203613a31010102030405060107000801090a00
         Osses 0101010203613a310101020304
         Oss 05000101
         Json 06027b7d
         Failed 070a
         Mds 0801010401020201aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         Ost 09010000
         Pong 0a0102
         Recalls 0b01010102
         Busy 0c01
         Refused 0d0172
         Reclaimed 0e02000001e801
         ObjectsRead 0f020001010c
         Checked 10010704010106040109010110016e07040101016401010102030708010a00070800010102100307080001020207080201010207080302010301010000",
    );
}

#[test]
fn locks_and_what_is_said_of_them() {
    let (ino, bits, number) = (Ino(1), Bits::ATTR | Bits::PLAIN, 2);
    let lock = DataLock { number, range: RANGE, write: true };
    let grants = [
        Grant::Bits { ino, bits, number },
        Grant::Data { ino, lock },
        Grant::Capability { ino, capability: CAPABILITY },
        Grant::Layout { ino, layout: MOVED },
        Grant::Changed { ino, nlink: 3, time: TIME },
    ];
    must_be(
        &grants,
        "
         Bits 00012202
         Data 010102050601
         Capability 020101aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         Layout 0301140203048105
         Changed 0401030604",
    );
    let recalls = [
        Recall::Bits { ino, bits, number },
        Recall::Data { ino, number },
        Recall::Glimpse { ino, number },
    ];
    must_be(
        &recalls,
        "
         Bits 00012202
         Data 010102
         Glimpse 020102",
    );
    let returns = [
        Return::Bits { ino, bits, number },
        Return::Data { ino, number },
        Return::Glimpse { ino, number, seen: Some((3, TIME)) },
    ];
    must_be(
        &returns,
        "
         Bits 00012202
         Data 010102
         Glimpse 02010201030604",
    );
    let reclaims = [
        Reclaim::Open { ino, readers: 2, writers: 3, capability: Some(CAPABILITY) },
        Reclaim::WritesBack { epoch: 1 },
        Reclaim::Delegation { ino },
        Reclaim::Lock { ino, range: RANGE, write: true, capability: None },
        Reclaim::PosixLock(LOCK),
    ];
    must_be(
        &reclaims,
        "
         Open 000102030101aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         WritesBack 0101
         Delegation 0201
         Lock 030105060100
         PosixLock 04010203050601010104",
    );
    must_be(
        &[PosixLockMode::Read, PosixLockMode::Write, PosixLockMode::Unlock],
        "
         Read 00
         Write 01
         Unlock 02",
    );
    let hows = [
        PosixLockHow::Wait,
        PosixLockHow::Try,
        PosixLockHow::Test,
        PosixLockHow::Reclaim,
        PosixLockHow::Cancel,
    ];
    must_be(
        &hows,
        "
         Wait 00
         Try 01
         Test 02
         Reclaim 03
         Cancel 04",
    );
    let shared =
        [Bits::ENTRY, Bits::ATTR, Bits::NEGATIVE, Bits::OPEN, Bits::PLAIN, Bits::UNWRITTEN];
    assert_eq!(shared.map(|bits| bits.0), [1, 2, 4, 8, 32, 64]);
    assert_eq!([Bits::DELEGATION, Bits::SHARED, Bits::ALL].map(|bits| bits.0), [16, 111, 127]);
    assert_eq!(Bits::ALL.0.count_ones() as usize, Bits::COUNT);
}

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
        held_up: vec![9],
    };
    let requests = [
        OssRequest::Heartbeat(Box::new(heartbeat)),
        OssRequest::CheckSession { client: ClientId(1), session: 2, owner: OWNER },
        OssRequest::Member { chain: CHAIN_VERSION, ost: 1, event: MemberEvent::Synced },
        OssRequest::Layout(Ino(1)),
        OssRequest::Objects { target: 0xa001, after: OBJECT },
    ];
    must_be(
        &requests,
        "
         Heartbeat 0001020161030104050601070801010203040708016401010101010101020109
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

#[test]
fn operations_keep_their_numbers() {
    let names: Vec<&str> = Op::ALL.iter().map(|op| op.name()).collect();
    let golden = "hello status stats lookup getattr setattr create tmpfile link unlink rmdir
         rename open release readdir readlink getxattr setxattr listxattr removexattr
         statfs sync set_layout reopen touch obj_read obj_write obj_truncate
         obj_fallocate obj_sync obj_stat obj_seek obj_set_time obj_space read write fsync
         fallocate seek copy_range forget ping recovery lock return flock recall flush
         obj_grant_space grant_inodes batch other move_layout scan obj_watch";
    assert_eq!(names.join(" "), golden.split_whitespace().collect::<Vec<_>>().join(" "));
}
