//! OSTs that are drained: new files avoid them, and those that are there are listed.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::copies::{place, set};
use crate::support::{ROOT, Tree, planted};
use futures_lite::future::block_on;
use glint_mds::{DrainError, GiveUpError, HeldPart};
use glint_proto::chain::ChainId;
use glint_proto::{FileType, Ino, Layout, MdsReply, MdsRequest};
use std::collections::BTreeSet;

const OWN: u16 = 1;

fn targets(layout: Layout) -> Vec<u16> {
    (0..layout.stripe_count.max(1)).map(|stripe| layout.ost_of(stripe, OWN)).collect()
}

/// Whether a file may have data on an OST.
fn is_on(tree: &Tree, layout: Layout, ost: u16) -> bool {
    targets(layout).into_iter().any(|target| match ChainId::of_target(target) {
        Some(_) => tree.mds.chains().get(target).unwrap().members.iter().any(|m| m.ost == ost),
        None => target == ost,
    })
}

fn listed(tree: &Tree, ost: u16) -> BTreeSet<String> {
    let (files, next) = block_on(tree.mds.files_on(ost, OWN, Ino(0))).unwrap();
    assert_eq!(next, None);
    for file in &files {
        let HeldPart { stripes, copies, osts, .. } = &file.says;
        assert!(*stripes == 1 && osts.len() == usize::from(*copies), "{file:?}");
        assert!(osts.get(&ost).is_some_and(|bytes| *bytes <= file.size), "{file:?}");
    }
    files.into_iter().map(|file| String::from_utf8(file.path.unwrap()).unwrap()).collect()
}

#[test]
fn new_files_avoid_an_ost_that_is_drained_and_its_files_are_listed() {
    let tree = planted();
    place(&tree, 4);
    set(&tree, &ROOT, "dir", 3).unwrap();
    let make = |path: String| (tree.make(&ROOT, &path, FileType::Regular, 0o644).unwrap(), path);
    let make_all = |from: u32| -> Vec<_> {
        let both = |n| [make(format!("dir/{n}")), make(format!("{n}"))];
        (from..from + 60).flat_map(both).collect()
    };
    let before = make_all(0);
    let on_it = before.iter().filter(|(made, _)| is_on(&tree, made.layout, 2));
    let on_it: BTreeSet<String> = on_it.map(|(_, path)| format!("/{path}")).collect();
    for copies in [true, false] {
        assert!(on_it.iter().any(|path| path.starts_with("/dir/") == copies), "{on_it:?}");
    }
    let all = listed(&tree, 2);
    assert!(all.is_superset(&on_it));
    let known = |path: &String| before.iter().any(|(_, made)| format!("/{made}") == **path);
    assert!(all.difference(&on_it).all(|path| !known(path)), "those of others are not there");

    block_on(tree.mds.begin_drain(2)).unwrap();
    // What the server says again and again does not end it.
    tree.mds.set_absent(Vec::new(), &[]);
    assert_eq!(tree.mds.drained(), [2]);
    for (made, path) in make_all(100) {
        assert!(!is_on(&tree, made.layout, 2), "{path}: {:?}", made.layout);
    }
    let numbers = MdsRequest::GrantInodes { count: 10, epoch: 1 };
    if let Ok(MdsReply::Inodes { avoided, chains, .. }) = tree.ask(&ROOT, &numbers) {
        assert_eq!(avoided, [2]);
        assert!(chains.iter().all(|of| !of.avoided.is_empty()));
    }

    assert_eq!(block_on(tree.mds.end_drain(2)), Ok(true));
    assert_eq!(block_on(tree.mds.end_drain(2)), Ok(false));
    tree.mds.set_absent(Vec::new(), &[]);
    assert!(make_all(200).iter().any(|(made, _)| is_on(&tree, made.layout, 2)));
    tree.must_be_sound();
}

#[test]
fn an_ost_is_not_drained_where_files_would_have_no_place() {
    let tree = planted();
    place(&tree, 3);
    for ost in [0, 1] {
        block_on(tree.mds.begin_drain(ost)).unwrap();
    }
    let none_left = block_on(tree.mds.begin_drain(2)).unwrap_err();
    assert!(matches!(none_left, DrainError::NoPlace(_)));
    for ost in [0, 1] {
        block_on(tree.mds.end_drain(ost)).unwrap();
    }
    set(&tree, &ROOT, "dir", 3).unwrap();
    let error = block_on(tree.mds.begin_drain(1)).unwrap_err().to_string();
    let said = "without OST 1, 3 copies need 3 failure domains, and there are 2";
    assert!(error.starts_with(said), "{error}");
    assert!(tree.mds.drained().is_empty());
    let take_away = |ost| {
        let said = tree.mds.chains().losses(ost, &BTreeSet::new()).number();
        block_on(tree.mds.take_away_ost(ost, &BTreeSet::new(), said))
    };
    assert_eq!(take_away(1), Err(GiveUpError::NotDrained), "its drain was refused");
    // One more, and there is a place, though all chains so far have one of the first three.
    place(&tree, 4);
    block_on(tree.mds.begin_drain(1)).unwrap();
    let made = tree.make(&ROOT, "dir/file", FileType::Regular, 0o644).unwrap();
    assert!(!is_on(&tree, made.layout, 1));
    assert!(take_away(1).is_ok());
}
