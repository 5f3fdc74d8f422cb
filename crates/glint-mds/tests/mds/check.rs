//! Damage in the store, as the check beside requests and that of a stopped server find it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::copies::place;
use crate::support::{ROOT, Tree, planted};
use futures_lite::future::block_on;
use glint_kv::{Batch, Keyspace, Kv, Pair};
use glint_mds::{check, clients_to_return};
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{MdsRequest, NamespacePage, NamespaceQuery, ObjectUse, UsedObject};
use glint_proto::{FileType, Ino, ObjectAttr, ObjectId, OpenFlags};

/// The entry of a name.
fn entry(tree: &Tree, name: &str) -> Pair {
    let all = tree.kv.scan(Keyspace::Entry, &[], &[0xff; 9], usize::MAX);
    let mut all = block_on(all).unwrap().into_iter();
    all.find(|(key, _)| key[16..] == *name.as_bytes()).unwrap()
}

fn put(tree: &Tree, keyspace: Keyspace, key: &[u8], value: &[u8]) {
    let mut batch = Batch::new();
    batch.put(keyspace, key, value);
    block_on(tree.kv.commit(batch, &[])).unwrap();
}

fn delete(tree: &Tree, keyspace: Keyspace, key: &[u8]) {
    let mut batch = Batch::new();
    batch.delete(keyspace, key);
    block_on(tree.kv.commit(batch, &[])).unwrap();
}

#[test]
fn a_lost_inode_is_missed_by_its_names() {
    let tree = planted();
    tree.must_be_sound();
    let ino = tree.ino("file");
    delete(&tree, Keyspace::Inode, &ino.key());
    let mut found = tree.findings_online();
    found.sort();
    let missed = |name: &str| {
        format!("entry {name:?} in {} names inode {ino}, which does not exist", Ino::ROOT)
    };
    assert_eq!(found, [missed("file"), missed("twin")]);
    let report = block_on(check(&tree.kv, false)).unwrap();
    let mut offline: Vec<String> = report.findings.into_iter().map(|one| one.what).collect();
    offline.sort();
    assert_eq!(offline, found, "the words are the same");
}

#[test]
fn a_lost_name_is_missed_by_its_inode() {
    let tree = planted();
    let (file, other) = (tree.ino("file"), tree.ino("other"));
    delete(&tree, Keyspace::Entry, &entry(&tree, "twin").0);
    delete(&tree, Keyspace::Entry, &entry(&tree, "other").0);
    let mut found = tree.findings_online();
    found.sort();
    let mut right = [
        format!("inode {file} has link count 2, should be 1"),
        format!("inode {other} has no name"),
    ];
    right.sort();
    assert_eq!(found, right);
}

#[test]
fn entries_say_the_type_and_are_where_they_are_searched() {
    let tree = planted();
    let (key, mut value) = entry(&tree, "other");
    value[8] = FileType::Symlink.dirent_type();
    put(&tree, Keyspace::Entry, &key, &value);
    let shown = format!("entry \"other\" in {}", Ino::ROOT);
    assert_eq!(tree.findings_online(), [format!("{shown} has the wrong type")]);
    value[8] = FileType::Regular.dirent_type();
    delete(&tree, Keyspace::Entry, &key);
    let elsewhere = [&key[..8], &[1; 8], &key[16..]].concat();
    put(&tree, Keyspace::Entry, &elsewhere, &value);
    assert_eq!(tree.findings_online(), [format!("{shown} has the wrong name hash")]);
}

#[test]
fn records_that_cannot_be_read_are_told() {
    let tree = planted();
    let ino = tree.ino("symlink");
    put(&tree, Keyspace::Inode, &ino.key(), b"short");
    put(&tree, Keyspace::Inode, &[0xfe; 12], b"");
    put(&tree, Keyspace::Entry, b"short", b"");
    put(&tree, Keyspace::Entry, &[&Ino::ROOT.key()[..], &[7; 8], &[b'n'; 300]].concat(), &[0; 9]);
    let (key, _) = entry(&tree, "other");
    put(&tree, Keyspace::Entry, &key, b"?");
    let found = tree.findings_online();
    let has = |text: &str| found.iter().filter(|one| one.contains(text)).count();
    assert_eq!(has(&format!("inode {ino}: record is 5 bytes")), 1, "{found:?}");
    assert_eq!(has("inode key [fe, "), 1, "{found:?}");
    assert_eq!(has("entry key ["), 2, "{found:?}");
    assert_eq!(has("has a malformed value: \"other\""), 1, "{found:?}");
}

#[test]
fn osts_of_files_exist() {
    let tree = planted();
    place(&tree, 4);
    for n in 0..8 {
        tree.make(&ROOT, &format!("empty/{n}"), FileType::Regular, 0o644).unwrap();
    }
    tree.must_be_sound();
    // It starts with one.
    let tree = tree.restarted();
    let found = tree.findings_online();
    let is_of_ost = |one: &String| one.contains(" lies on OST ") && one.ends_with("not exist");
    assert!(!found.is_empty() && found.iter().all(is_of_ost), "{found:?}");
    tree.mds.note_ost_count(4);
    tree.must_be_sound();
}

#[test]
fn pages_have_a_limit_and_leave_nothing_out() {
    let tree = planted();
    for n in 0..2 * CHECKED_RECORDS_MAX {
        tree.make(&ROOT, &format!("empty/{n}"), FileType::Regular, 0o644).unwrap();
    }
    let mut seen = 0;
    let mut next = Some(NamespaceQuery::Inodes(Ino(0)));
    while let Some(query) = next {
        let page: NamespacePage = block_on(tree.mds.namespace_page(query)).unwrap();
        assert!(page.inodes.len() <= CHECKED_RECORDS_MAX);
        seen += page.inodes.len() as u64;
        next = page.next;
    }
    assert_eq!(seen, tree.mds.inode_count());
    tree.must_be_sound();
    let inodes = vec![Ino::ROOT; CHECKED_RECORDS_MAX + 1];
    let many = NamespaceQuery::Again { inodes, entries: Vec::new() };
    assert!(block_on(tree.mds.namespace_page(many)).is_err());
}

#[test]
fn objects_are_of_their_files_or_of_nobody() {
    let tree = planted();
    let uses = |objects: &[ObjectId]| {
        let uses = block_on(tree.mds.object_uses(objects, 1));
        uses.map(|uses| uses.into_iter().map(|one| one.used).collect::<Vec<_>>())
    };
    let first = ObjectId { ino: tree.ino("file"), stripe: 0 };
    let directory = ObjectId { ino: Ino::ROOT, ..first };
    let moved = ObjectId { stripe: 9, ..first };
    let gone = ObjectId { ino: Ino(1 << 40), ..first };
    let found = uses(&[first, directory, moved, gone]).unwrap();
    let (nobody, unknown) = (ObjectUse::Nobody, ObjectUse::Unknown);
    let right = [ObjectUse::Alone(0), unknown.clone(), nobody.clone(), nobody];
    assert_eq!(found, right);
    // A server that is there tells of no file, and a client may.
    put(&tree, Keyspace::Session, &8u64.to_be_bytes(), b"one\0(copies) one:5641\0a\0");
    assert_eq!(uses(&[gone]).unwrap(), [ObjectUse::Nobody]);
    assert_eq!(block_on(clients_to_return(&tree.kv)).unwrap(), 0);
    put(&tree, Keyspace::Session, &9u64.to_be_bytes(), b"one\0/mnt\0b\0");
    assert_eq!(uses(&[gone]).unwrap(), [ObjectUse::Unknown]);
    assert_eq!(block_on(clients_to_return(&tree.kv)).unwrap(), 1);
    delete(&tree, Keyspace::Session, &9u64.to_be_bytes());
    // They are to be destroyed, all of the file and this one.
    put(&tree, Keyspace::Orphan, &gone.ino.key(), &[0]);
    put(&tree, Keyspace::Orphan, &moved.key(), &[0]);
    assert_eq!(uses(&[moved, gone]).unwrap(), [unknown.clone(), unknown]);
    assert!(uses(&vec![first; CHECKED_RECORDS_MAX + 1]).is_err());
}

#[test]
fn ends_are_said_of_files_that_have_names_and_are_not_written() {
    let tree = planted();
    let ino = tree.ino("other");
    let object = ObjectId { ino, stripe: 0 };
    let ends = || block_on(tree.mds.object_ends(Ino(0), 1)).unwrap();
    let end = || block_on(tree.mds.object_uses(&[object], 1)).unwrap().remove(0).end;
    let write = OpenFlags { write: true, ..OpenFlags::default() };
    assert!(
        ends().uses.is_empty() && ends().next.is_none() && end().is_none(),
        "nothing was written"
    );
    tree.ask(&ROOT, &MdsRequest::Open { ino, flags: write }).unwrap();
    let wrote = ObjectAttr { size: 9, blocks: 1, mtime: tree.now(), ctime: tree.now() };
    let wrote = Some((1, Some(wrote)));
    tree.ask(&ROOT, &MdsRequest::Release { ino, write: true, wrote }).unwrap();
    assert_eq!(ends().uses, [UsedObject { object, used: ObjectUse::Alone(0), end: Some(9) }]);
    assert_eq!(end(), Some(9));
    assert!(block_on(tree.mds.object_ends(Ino(ino.0 + 1), 1)).unwrap().uses.is_empty());
    // Whoever opens it to write it may cut it.
    tree.ask(&ROOT, &MdsRequest::Open { ino, flags: write }).unwrap();
    assert!(ends().uses.is_empty() && end().is_none());
}
