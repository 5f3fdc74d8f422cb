//! Layouts with copies: over which chains files lie, and who has chains made.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ANN, ROOT, Tree, planted};
use futures_lite::future::block_on;
use glint_mds::Placed;
use glint_proto::chain::{ChainId, MemberEvent};
use glint_proto::limits::OBJECTS_PER_PAGE_MAX;
use glint_proto::{Errno, FileType, FsResult, Ino, Layout, MdsRequest, ObjectId};
use std::collections::{BTreeMap, BTreeSet};

fn place(tree: &Tree, osts: u16) {
    let placed = (0..osts).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect();
    tree.mds.note_ost_count(osts);
    block_on(tree.mds.place_chains(placed));
}

fn set(tree: &Tree, who: &glint_proto::Cred, path: &str, replicas: u8) -> FsResult<Layout> {
    let layout = Layout { replicas, ..Layout::default() };
    let request = MdsRequest::SetLayout { ino: tree.ino(path), layout };
    tree.ask_attr(who, &request).map(|attr| attr.layout)
}

#[test]
fn chains_are_made_when_a_layout_wants_them() {
    let tree = planted();
    place(&tree, 2);
    assert_eq!(set(&tree, &ROOT, "dir", 3), Err(Errno::ENOSPC), "there are two hosts");
    assert_eq!(set(&tree, &ANN, "dir", 2), Err(Errno::EPERM));
    assert!(tree.mds.chains().since(0).0.is_empty(), "nobody may have wanted them");
    set(&tree, &ROOT, "dir", 2).unwrap();
    let few = tree.mds.chains().since(0).0.len() as u16;
    let made = |name: &str| tree.make(&ROOT, name, FileType::Regular, 0o644).unwrap().layout;
    assert_eq!((made("dir/few").replicas, made("dir/few2").osts), (2, few));
    place(&tree, 4);
    let many = tree.mds.chains().since(0).0.len() as u16;
    assert!(many > few, "they reach over those that join");
    assert_eq!(made("dir/many").osts, many);
    assert_eq!(set(&tree, &ROOT, "dir/many", 3).unwrap().replicas, 3, "it is empty");
    tree.must_be_sound();
}

#[test]
fn new_files_avoid_chains_in_which_nobody_serves() {
    let tree = planted();
    place(&tree, 4);
    set(&tree, &ROOT, "dir", 2).unwrap();
    for ost in [0, 1] {
        block_on(tree.mds.on_ost(ost, MemberEvent::Lost)).unwrap();
    }
    let (rows, _) = tree.mds.chains().since(0);
    assert!(rows.iter().any(|row| row.head().is_none()), "{rows:?}");
    for n in 0..2 * rows.len() {
        let path = format!("dir/file{n}");
        let made = tree.make(&ROOT, &path, FileType::Regular, 0o644).unwrap();
        let target = made.layout.ost_of(0, 1);
        assert!(ChainId::of_target(target).is_some());
        assert!(tree.mds.chains().get(target).unwrap().head().is_some(), "{target:#x}");
    }
}

/// An OST away in some chains is not away in those of others.
#[test]
fn an_ost_is_awaited_where_nobody_stands_in_for_it() {
    let tree = planted();
    place(&tree, 2);
    set(&tree, &ROOT, "dir", 2).unwrap();
    let away = |ost| {
        let away = tree.mds.chains().away(ost);
        (away.somewhere, away.everywhere, away.awaited)
    };
    assert_eq!(away(0), (false, false, false));
    assert_eq!(away(7), (false, true, false), "it is no member");
    block_on(tree.mds.on_ost(0, MemberEvent::Lost)).unwrap();
    assert_eq!(away(0), (true, true, false));
    block_on(tree.mds.on_ost(1, MemberEvent::Lost)).unwrap();
    assert_eq!(away(1), (true, true, true));
}

#[test]
fn all_objects_of_a_chain_are_listed_page_by_page() {
    let tree = planted();
    place(&tree, 3);
    set(&tree, &ROOT, "dir", 2).unwrap();
    let mut must: BTreeMap<u16, BTreeSet<ObjectId>> = BTreeMap::new();
    for n in 0..3000 {
        let made = tree.make(&ROOT, &format!("dir/file{n}"), FileType::Regular, 0o644).unwrap();
        let target = made.layout.ost_of(0, 0);
        must.entry(target).or_default().insert(made.layout.object(made.ino, 0));
    }
    let wide = Layout { replicas: 2, stripe_count: 0, ..Layout::default() };
    let set_wide = MdsRequest::SetLayout { ino: tree.ino("dir"), layout: wide };
    tree.ask_attr(&ROOT, &set_wide).unwrap();
    let made = tree.make(&ROOT, "dir/wide", FileType::Regular, 0o644).unwrap();
    for stripe in 0..made.layout.stripe_count {
        let target = made.layout.ost_of(stripe, 0);
        must.entry(target).or_default().insert(made.layout.object(made.ino, stripe));
    }
    assert!(must.len() > 1, "over several chains");
    for (target, must) in must {
        let mut after = ObjectId { ino: Ino(0), stripe: 0 };
        let (mut found, mut pages) = (BTreeSet::new(), 0);
        loop {
            let page = block_on(tree.mds.objects_of(target, after)).unwrap();
            assert!(page.objects.len() <= OBJECTS_PER_PAGE_MAX);
            found.extend(page.objects);
            pages += 1;
            let Some(last) = page.last else { break };
            assert!(last > after);
            after = last;
        }
        assert_eq!(found, must);
        assert!(pages <= 10 + must.len() / OBJECTS_PER_PAGE_MAX, "{pages} pages");
    }
}
