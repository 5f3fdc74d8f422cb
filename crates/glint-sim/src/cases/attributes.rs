//! Attributes of files that a client has made by itself: it foretells those that the servers will
//! have.

use super::requests::in_a_world;
use crate::fuzz::at;
use crate::scenario::mount;
use crate::workload::make;
use crate::world::executor::Machine;
use crate::world::hosts::MDS;
use fastrand::Rng;
use glint_client::{Caller, Make, Vfs, WriteHow};
use glint_proto::{Attr, Cred, Errno, FileType, Ino, SetAttr, SetTime, Timestamp, XattrFlags};
use std::time::Duration;

const CLIENT: Machine = Machine(10);
const CAPABILITY: &[u8] = b"security.capability";
/// The owner of some files, another user, the superuser.
const USERS: [u32; 3] = [7, 8, 0];

/// One change of attributes as the kernel asks for it: a change of owner comes with the flag that
/// takes set-id bits.
fn change(random: &mut Rng) -> SetAttr {
    let none = SetAttr::default();
    match random.u8(..6) {
        0 | 1 => SetAttr { mode: Some(random.u32(..0o10000) | 0o600), ..none },
        2 => SetAttr { uid: Some(*random.choice(&USERS).unwrap()), kill_suidgid: true, ..none },
        3 => SetAttr { gid: Some(random.u32(6..9)), kill_suidgid: true, ..none },
        4 => {
            let at = SetTime::At(Timestamp { secs: random.i64(..1000), nanos: 5 });
            SetAttr { mtime: Some(at), atime: Some(SetTime::Now), ..none }
        }
        _ => SetAttr {
            uid: Some(*random.choice(&USERS).unwrap()),
            gid: Some(random.u32(6..9)),
            mode: Some(0o6755),
            kill_suidgid: random.bool(),
            ..none
        },
    }
}

fn told(attr: &Attr) -> (u32, u32, u32, Timestamp, Timestamp) {
    (attr.mode, attr.uid, attr.gid, attr.mtime, attr.ctime)
}

/// What a client says of changes that it has not sent is what the servers say later.
pub fn changes_of_attributes_are_foretold() {
    for seed in 0..40 {
        in_a_world(true, move |executor, hosts| async move {
            hosts.start(MDS);
            let servers = hosts.mds();
            executor.sleep(Duration::from_millis(1)).await;
            at(&executor, CLIENT, async move {
                let fs = mount(&servers, 0).await.unwrap();
                let other = mount(&servers, 1).await.unwrap();
                let random = &mut Rng::with_seed(seed);
                for n in 0..8 {
                    // One that nobody else has looked at.
                    let (name, kind) = (format!("n{n}"), make(FileType::Directory));
                    let parent = fs.make(&Caller::ROOT, Ino::ROOT, name.as_bytes(), kind).await;
                    let parent = parent.unwrap().attr.ino;
                    let kinds = [FileType::Regular, FileType::Directory, FileType::Symlink];
                    let kind = *random.choice(&kinds).unwrap();
                    let target: &[u8] = if kind == FileType::Symlink { b"target" } else { b"" };
                    let new = Make { target, ..make(kind) };
                    let made = fs.make(&Caller::ROOT, parent, name.as_bytes(), new).await;
                    let ino = made.unwrap().attr.ino;
                    let is_capable = kind == FileType::Regular && random.bool();
                    if is_capable {
                        let flags = XattrFlags::default();
                        fs.setxattr(&Caller::ROOT, ino, CAPABILITY, b"x", flags).await.unwrap();
                    }
                    let (mut last, mut kills) = (None, false);
                    for _ in 0..random.u8(1..6) {
                        let set = change(random);
                        let uid = *random.choice(&USERS).unwrap();
                        let cred = Cred { uid, gid: uid, groups: None };
                        match fs.setattr(&Caller { cred, pid: 0 }, ino, &set).await {
                            Ok(found) => {
                                kills |= set.uid.is_some() || set.gid.is_some();
                                last = Some(found.attr);
                            }
                            Err(errno) => assert_eq!(errno, Errno::EPERM, "{set:?} by {uid}"),
                        }
                    }
                    let here = fs.getattr(ino).await.unwrap().attr;
                    if let Some(last) = last {
                        assert_eq!(told(&here), told(&last), "seed {seed}, {name}");
                    }
                    let there = other.lookup(&Caller::ROOT, parent, name.as_bytes()).await;
                    let there = there.unwrap().attr;
                    assert_eq!(told(&here), told(&there), "seed {seed}, {name}");
                    if is_capable {
                        let left = other
                            .getxattr(&Caller::ROOT, ino, CAPABILITY, usize::MAX)
                            .await
                            .is_ok();
                        assert_eq!(left, !kills, "seed {seed}, {name}");
                    }
                }
            })
            .await;
        });
    }
}

/// A change of owner of a file that this client made costs no request.
pub fn a_change_of_owner_is_no_request() {
    let requests = in_a_world(true, |executor, hosts| async move {
        hosts.start(MDS);
        let servers = hosts.mds();
        executor.sleep(Duration::from_millis(1)).await;
        let counted = executor.clone();
        at(&executor, CLIENT, async move {
            let fs = mount(&servers, 0).await.unwrap();
            let kind = make(FileType::Directory);
            let directory = fs.make(&Caller::ROOT, Ino::ROOT, b"d", kind).await.unwrap();
            let regular = || make(FileType::Regular);
            let create = async |name: &[u8]| {
                let flags = libc::O_RDWR;
                fs.create(&Caller::ROOT, directory.attr.ino, name, regular(), flags).await.unwrap()
            };
            // Brings numbers of inodes, and space.
            let first = create(b"first").await;
            fs.write(first.handle, 0, b"x", WriteHow::default()).await.unwrap();
            counted.network.requests.set(0);
            let file = create(b"f").await;
            fs.write(file.handle, 0, b"x", WriteHow::default()).await.unwrap();
            let ino = file.attr.ino;
            let mode = SetAttr { mode: Some(0o6755), ..SetAttr::default() };
            let chown = SetAttr { uid: Some(7), gid: Some(7), ..SetAttr::default() };
            let chown = SetAttr { kill_suidgid: true, ..chown };
            for (set, is) in [(&mode, 0o6755), (&chown, 0o755), (&mode, 0o6755)] {
                let found = fs.setattr(&Caller::ROOT, ino, set).await.unwrap();
                assert_eq!(found.attr.mode & 0o7777, is);
            }
            let requests = counted.network.requests.get();
            // A write takes the bits before it returns.
            fs.write(file.handle, 1, b"y", WriteHow::default()).await.unwrap();
            assert_eq!(fs.getattr(ino).await.unwrap().attr.mode & 0o7777, 0o755);
            requests
        })
        .await
    });
    assert_eq!(requests, 0);
}
