//! Layouts with copies: over which chains files lie, and who has chains made.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ANN, ROOT, Tree, planted};
use futures_lite::future::block_on;
use glint_mds::{GiveUpError, LosesData, Loss, Losses, NamedFile, Placed, Seen};
use glint_proto::chain::{ChainId, MemberEvent};
use glint_proto::limits::OBJECTS_PER_PAGE_MAX;
use glint_proto::{
    Errno, FileType, FsResult, Ino, Layout, MdsReply, MdsRequest, ObjectId, OpenFlags,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn place(tree: &Tree, osts: u16) {
    let placed = (0..osts).map(|ost| Placed { ost, domain: format!("host{ost}") }).collect();
    tree.mds.note_ost_count(osts);
    block_on(tree.mds.place_chains(placed));
}

pub(crate) fn set(
    tree: &Tree,
    who: &glint_proto::Cred,
    path: &str,
    replicas: u8,
) -> FsResult<Layout> {
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

#[test]
fn new_files_are_laid_out_over_chains_whose_members_all_serve_and_have_room() {
    let tree = planted();
    place(&tree, 4);
    set(&tree, &ROOT, "dir", 2).unwrap();
    let rows = || tree.mds.chains().since(0).0;
    let members_of_new = |round: &str| {
        let mut members = BTreeSet::new();
        for n in 0..2 * rows().len() {
            let path = format!("dir/{round}{n}");
            let made = tree.make(&ROOT, &path, FileType::Regular, 0o644).unwrap();
            let chain = tree.mds.chains().get(made.layout.ost_of(0, 1)).unwrap();
            assert!(chain.head().is_some(), "{chain:?}");
            members.extend(chain.members.iter().map(|member| member.ost));
        }
        members.into_iter().collect::<Vec<u16>>()
    };
    assert_eq!(members_of_new("all"), [0, 1, 2, 3]);
    tree.mds.set_absent(vec![2], &[]);
    assert_eq!(members_of_new("full"), [0, 1, 3]);
    tree.mds.set_absent(Vec::new(), &[]);
    assert_eq!(members_of_new("free"), [0, 1, 2, 3]);
    block_on(tree.mds.on_ost(1, MemberEvent::Lost)).unwrap();
    assert_eq!(members_of_new("lost"), [0, 2, 3]);
    // No chain is without one of these: all of them are used, but for those without a head.
    tree.mds.set_absent(vec![0, 2], &[]);
    assert_eq!(members_of_new("none"), [0, 1, 2, 3]);
    let numbers = MdsRequest::GrantInodes { count: 10, epoch: 1 };
    if let Ok(MdsReply::Inodes { chains, .. }) = tree.ask(&ROOT, &numbers) {
        assert!(chains.iter().all(|of| of.avoided.is_empty()), "clients choose by themselves");
    }
}

#[test]
fn striped_files_keep_their_stripes_when_their_copies_move_apart() {
    let tree = planted();
    let place = |domains: &[&str]| {
        let placed = |(ost, domain): (u16, &&str)| Placed { ost, domain: (*domain).into() };
        tree.mds.note_ost_count(domains.len() as u16);
        block_on(tree.mds.place_chains((0..).zip(domains).map(placed).collect()));
    };
    place(&["ost0", "ost1"]);
    let layout = Layout { replicas: 2, stripe_count: 2, ..Layout::default() };
    tree.ask_attr(&ROOT, &MdsRequest::SetLayout { ino: tree.ino("dir"), layout }).unwrap();
    let made = tree.make(&ROOT, "dir/file", FileType::Regular, 0o644).unwrap();
    assert_eq!(made.layout.stripe_count, 2);
    place(&["mds", "mds", "one", "two"]);
    let plan = |stripe_count| {
        let layout = Layout { stripe_count, first_ost: 0, osts: 0, ..made.layout };
        let plan = MdsRequest::PlanLayout { ino: made.ino, layout, avoid: Vec::new() };
        tree.ask_attr(&ROOT, &plan).map(|attr| attr.layout)
    };
    let planned = plan(2).unwrap();
    assert_eq!(planned.stripe_count, 2);
    for stripe in 0..2 {
        let row = tree.mds.chains().get(planned.ost_of(stripe, 1)).unwrap();
        assert!(row.members.iter().any(|member| member.ost > 1), "they fail together: {row}");
    }
    let all = tree.mds.chains().since(0).0.len() as u16;
    assert_eq!(plan(all), Err(Errno::ENOSPC), "there are not so many others");
}

#[test]
fn new_files_have_no_stripe_where_nobody_is_to_come_back() {
    let tree = planted();
    place(&tree, 4);
    let wide = |replicas| {
        let layout = Layout { replicas, stripe_count: 0, ..Layout::default() };
        let request = MdsRequest::SetLayout { ino: tree.ino("dir"), layout };
        tree.ask_attr(&ROOT, &request).unwrap();
    };
    let make = |name: &str| {
        let made = tree.make(&ROOT, &format!("dir/{name}"), FileType::Regular, 0o644).unwrap();
        let layout = made.layout;
        (0..layout.stripe_count).map(|stripe| layout.ost_of(stripe, 0)).collect::<Vec<u16>>()
    };
    wide(1);
    tree.mds.set_absent(vec![0, 1], &[]);
    assert_eq!(make("waits").len(), 4, "they are to come back");
    tree.mds.set_absent(vec![0, 1], &[1]);
    let stripes = make("three");
    assert!(stripes.len() == 3 && !stripes.contains(&1), "{stripes:?}");
    let four = Layout { stripe_count: 4, ..Layout::default() };
    let set_four = MdsRequest::SetLayout { ino: tree.ino("dir/three"), layout: four };
    assert_eq!(tree.ask_attr(&ROOT, &set_four), Err(Errno::ENOSPC));

    wide(2);
    for ost in [0, 1] {
        block_on(tree.mds.on_ost(ost, MemberEvent::Lost)).unwrap();
    }
    let all = tree.mds.chains().since(0).0;
    assert_eq!(make("wide").len(), all.len(), "their members are to come back");
    tree.mds.set_absent(vec![0, 1], &[0, 1]);
    let is_lost = |target: u16| {
        let row = tree.mds.chains().get(target).unwrap();
        row.members.iter().all(|member| member.ost <= 1)
    };
    assert!(all.iter().any(|row| is_lost(row.id.target())), "{all:?}");
    let stripes = make("narrow");
    assert!(!stripes.is_empty() && !stripes.iter().any(|target| is_lost(*target)), "{stripes:?}");
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

/// Files that lose something with an OST are named, and only these.
#[test]
fn what_is_lost_with_an_ost_is_said_before() {
    let tree = planted();
    place(&tree, 3);
    set(&tree, &ROOT, "dir", 3).unwrap();
    tree.make(&ROOT, "dir/below", FileType::Directory, 0o755).unwrap();
    let write = |path: &str| {
        let made = tree.make(&ROOT, path, FileType::Regular, 0o644).unwrap();
        let flags = OpenFlags { write: true, ..OpenFlags::default() };
        tree.ask(&ROOT, &MdsRequest::Open { ino: made.ino, flags }).unwrap();
        made.layout
    };
    let copies: Vec<String> = (0..8).map(|n| format!("dir/below/file{n}")).collect();
    for path in &copies {
        write(path);
    }
    let alone: Vec<(String, Layout)> =
        (0..8).map(|n| format!("alone{n}")).map(|path| (path.clone(), write(&path))).collect();
    tree.make(&ROOT, "dir/empty", FileType::Regular, 0o644).unwrap();
    let on_it = alone.iter().filter(|(_, layout)| layout.ost_of(0, 3) == 2);
    let mut on_it: Vec<String> = on_it.map(|(path, _)| format!("/{path}")).collect();
    assert!(!on_it.is_empty());
    on_it.sort();
    let losses = |heard: &[u16]| tree.mds.chains().losses(2, &heard.iter().copied().collect());
    let lost = || {
        let losses = losses(&[]);
        let (files, next) = block_on(tree.mds.lost_files(2, &losses, 3, Ino(0))).unwrap();
        assert_eq!(next, None);
        assert!(files.iter().all(|file| file.changed.is_none()), "all are open for writing");
        let of = |loses_data: bool| {
            let files = files.iter().filter(|file| file.says == LosesData(loses_data));
            let path = |file: &NamedFile<LosesData>| {
                String::from_utf8(file.path.clone().unwrap()).unwrap()
            };
            let mut paths: Vec<String> = files.map(path).collect();
            paths.sort();
            paths
        };
        (of(true), of(false))
    };
    let each = |heard: &[u16], loss: Loss, others: &[u16]| {
        let chains = losses(heard).chains;
        assert!(!chains.is_empty());
        for chain in chains {
            assert_eq!((chain.loss, chain.heard), (loss, heard.to_vec()));
            assert_eq!(BTreeSet::from_iter(chain.others), BTreeSet::from_iter(others.to_vec()));
        }
    };
    assert_eq!(lost(), (on_it.clone(), vec![]), "two other copies are there");
    each(&[0], Loss::Nothing, &[0, 1]);
    let said = losses(&[]).number();
    assert!(Losses::is_nothing(said));

    for ost in 0..3 {
        block_on(tree.mds.on_ost(ost, MemberEvent::Lost)).unwrap();
    }
    let copies: Vec<String> = copies.iter().map(|path| format!("/{path}")).collect();
    assert_eq!(lost(), (on_it, copies));
    assert!(losses(&[]).chains.iter().all(|chain| chain.others == [1, 0]));
    each(&[0], Loss::Changes, &[0, 1]);
    assert!(!Losses::is_nothing(losses(&[]).number()));

    // More is lost now than was said, and with another member than with the one that is heard of.
    let heard = BTreeSet::from([0]);
    let give_up = |said| block_on(tree.mds.give_up_ost(2, &heard, said));
    assert_eq!(give_up(said), Err(GiveUpError::OtherLosses));
    assert_eq!(give_up(losses(&[1]).number()), Err(GiveUpError::OtherLosses));
    let chains = tree.mds.chains().since(0).0.len();
    assert_eq!(give_up(losses(&[0]).number()), Ok(chains));
    assert!(losses(&[]).chains.is_empty());
    assert_eq!(give_up(losses(&[]).number()), Ok(0), "that is done");
    // Nobody goes on before somebody is heard of.
    let look = |heard: u16| {
        let seen = move |ost| if ost == heard { Seen::Here } else { Seen::Lost };
        block_on(tree.mds.on_look(seen, |_| false)).unwrap()
    };
    assert!(look(9).is_empty());
    assert!(look(0).iter().all(|row| row.head() == Some(0)));

    // The two others were emptied. Until one of them has got everything, that is said of it.
    let members: BTreeSet<(u16, u16)> =
        tree.mds.chains().since(0).0.iter().map(|row| (row.id.target(), 1)).collect();
    assert_eq!(block_on(tree.mds.are_indexed(&members, &[])), Ok(chains));
    let loss = |ost: u16, heard| tree.mds.chains().losses(ost, &BTreeSet::from([heard])).chains;
    assert!(loss(0, 1).iter().all(|chain| chain.loss == Loss::Everything && chain.heard == [1]));
    block_on(tree.mds.on_ost(1, MemberEvent::Returned)).unwrap();
    assert!(loss(0, 1).iter().all(|chain| chain.loss == Loss::Everything));
    block_on(tree.mds.on_ost(1, MemberEvent::Synced)).unwrap();
    assert!(loss(0, 1).iter().all(|chain| chain.loss == Loss::Nothing));
    tree.must_be_sound();
}
