//! Requests to the MDS, and its answers.

use super::*;
use crate::Placement;
use crate::deferred::Deferred;

#[test]
fn requests_to_the_mds() {
    let (ino, parent, name) = (Ino(1), Ino(2), b"n".as_slice());
    let flags = OpenFlags { write: true, append: true, ..OpenFlags::default() };
    let set = SetAttr {
        mode: Some(1),
        uid: None,
        gid: Some(2),
        size: None,
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(TIME)),
        ctime: None,
        kill_suidgid: true,
        kill_capability: false,
    };
    let (new_parent, new_name) = (Ino(3), b"m".as_slice());
    let exchange = RenameFlags { no_replace: false, exchange: true };
    let replace = XattrFlags { create: false, replace: true, kill_sgid: false };
    let requests = [
        MdsRequest::Lookup { parent, name },
        MdsRequest::Getattr { ino },
        MdsRequest::Setattr { ino, set },
        MdsRequest::Create {
            parent,
            name,
            mode: 3,
            umask: 4,
            rdev: 5,
            target: b"t",
            open: Some(flags),
            exclusive: true,
        },
        MdsRequest::Tmpfile { parent, mode: 3, umask: 4 },
        MdsRequest::Link { ino, parent, name },
        MdsRequest::Unlink { parent, name },
        MdsRequest::Rmdir { parent, name },
        MdsRequest::Rename { parent, name, new_parent, new_name, flags: exchange },
        MdsRequest::Open { ino, flags },
        MdsRequest::Release { ino, write: true, wrote: Some((2, Some(STATE))) },
        MdsRequest::Readdir { ino, cookie: 2, bytes_max: 3, plus: true },
        MdsRequest::Readlink { ino },
        MdsRequest::Getxattr { ino, name },
        MdsRequest::Setxattr { ino, name, value: b"v", flags: replace },
        MdsRequest::Listxattr { ino },
        MdsRequest::Removexattr { ino, name },
        MdsRequest::Statfs,
        MdsRequest::Sync,
        MdsRequest::SetLayout { ino, layout: LAYOUT },
        MdsRequest::Reopen { ino, readers: 2, writers: 3, capability: Some(CAPABILITY) },
        MdsRequest::Touch { ino },
        MdsRequest::Lock { ino, range: RANGE, write: true, reclaim: false, capability: None },
        MdsRequest::AddOpens { ino, readers: 2 },
        MdsRequest::PosixLock(LOCK),
        MdsRequest::GrantInodes { count: 1, epoch: 2 },
        MdsRequest::WritesBack { epoch: 1 },
        MdsRequest::ReclaimDelegation { ino },
        MdsRequest::Batch { epoch: 1, changes: b"c" },
        MdsRequest::PlanLayout { ino, layout: LAYOUT, avoid: vec![4] },
        MdsRequest::SwitchLayout { ino, from: LAYOUT, to: MOVED },
        MdsRequest::DropLayout { ino, layout: MOVED },
        MdsRequest::Prefetch { inos: vec![ino, parent] },
        MdsRequest::Scan { directories: vec![(ino, 3)], bytes_max: 4, filter: None },
        MdsRequest::Scan {
            directories: vec![(ino, 3)],
            bytes_max: 4,
            filter: Some(Box::new(ScanFilter {
                types: 1,
                name_begin: b"n".to_vec(),
                name_end: b"e".to_vec(),
                size: (2, 3),
                mtime: (TIME, TIME),
                ctime: (TIME, TIME),
                uid: Some(4),
                gid: None,
            })),
        },
    ];
    must_be(
        &requests,
        "
         Lookup 0002016e
         Getattr 0101
         Setattr 0201010100010200010001010604000100
         Create 0302016e03040501740100010000000101
         Tmpfile 04020304
         Link 050102016e
         Unlink 0602016e
         Rmdir 0702016e
         Rename 0802016e03016d0001
         Open 0901000100000001
         Release 0a0101010201010206040a06
         Readdir 0b01020301
         Readlink 0c01
         Getxattr 0d01016e
         Setxattr 0e01016e0176000100
         Listxattr 0f01
         Removexattr 1001016e
         Statfs 11
         Sync 12
         SetLayout 13011402030401
         Reopen 140102030101aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
         Touch 1501
         Lock 16010506010000
         AddOpens 170102
         PosixLock 18010203050601010104
         GrantInodes 190102
         WritesBack 1a01
         ReclaimDelegation 1b01
         Batch 1c010163
         PlanLayout 1d0114020304010104
         SwitchLayout 1e011402030401140203048105
         DropLayout 1f01140203048105
         Prefetch 20020102
         Scan 210101030400
         Scan 21010103040101016e016502030604060406040604010400",
    );
}

#[test]
fn answers_of_the_mds() {
    let entry = DirEntry {
        ino: Ino(1),
        cookie: 2,
        dirent_type: 3,
        name: b"n".to_vec(),
        attr: Some(attr()),
    };
    let chains = ChainTargets { copies: 2, count: 5, avoided: vec![6] };
    let replies = [
        MdsReply::Done,
        MdsReply::Removed { ino: Ino(1) },
        MdsReply::Attr(Attr { has_no_xattrs: true, ..attr() }),
        MdsReply::Opened { attr: attr(), created: true },
        MdsReply::Dir(DirPage { entries: vec![entry], end: true }),
        MdsReply::Bytes(b"b".to_vec()),
        MdsReply::Statfs { inodes: 1 },
        MdsReply::Glimpsed { attr: attr(), size: 2, mtime: TIME },
        MdsReply::Locked(DataLock { number: 1, range: RANGE, write: true }),
        MdsReply::Blocked(Some(LOCK)),
        MdsReply::Inodes {
            first: 1,
            count: 2,
            osts: 3,
            avoided: vec![4],
            chains: vec![chains],
            name_seed: 7,
        },
        MdsReply::Batched { done: 1, failed: vec![(2, Errno::EIO)] },
        MdsReply::Scanned {
            pages: vec![Ok(DirPage::default()), Err(Errno::EIO)],
            unsent: vec![(Ino(1), 2, TIME)],
        },
    ];
    must_be(
        &replies,
        "
         Done 00
         Removed 0101
         Attr 0201a48302020304050607020206040a06031402030401
         Opened 0301a48302020304050607020206040a0601140203040101
         Dir 0401010203016e0101a48302020304050607020206040a0601140203040101
         Bytes 050162
         Statfs 0601
         Glimpsed 0701a48302020304050607020206040a06011402030401020604
         Locked 0801050601
         Blocked 0901010203050601010104
         Inodes 0a0102030104010205010607
         Batched 0b0101020a
         Scanned 0c02000000010a0101020604",
    );
}

#[test]
fn a_change_that_a_client_made_by_itself() {
    let change = Deferred {
        uid: 1,
        gid: 2,
        time: TIME,
        made: Some((Ino(3), Placement { first: 4, osts: 5 })),
        request: MdsRequest::Unlink { parent: Ino(6), name: b"n" },
    };
    must_be(
        &[change],
        "
         Deferred 01020604010304050606016e",
    );
}
