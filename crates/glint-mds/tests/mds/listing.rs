//! Directories that are listed in pages, while others change them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use crate::support::{ANN, ROOT, Tree};
use glint_proto::limits::{
    DIR_PAGE_BYTES_MAX, DIR_PAGE_BYTES_MIN, DIR_PAGE_ENTRIES_MAX, NAME_BYTES_MAX,
    SCAN_DIRECTORIES_MAX,
};
use glint_proto::posix::ScanFilter;
use glint_proto::{Cred, DirPage, Errno, FileType, FsResult, Ino, MdsReply, MdsRequest, SetAttr};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn page(tree: &Tree, cookie: u64, bytes_max: u32, plus: bool) -> DirPage {
    let request = MdsRequest::Readdir { ino: Ino::ROOT, cookie, bytes_max, plus };
    match tree.ask(&ROOT, &request) {
        Ok(MdsReply::Dir(page)) => page,
        other => panic!("{other:?}"),
    }
}

/// A name with this number, as long as it may be if it is a `long` one.
fn name(number: u16, long: bool) -> String {
    if long { format!("{number:0width$}", width = NAME_BYTES_MAX) } else { number.to_string() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A listing has each name that is there all the time exactly once, and no other name twice,
    /// however large its pages are and whatever comes and goes between them.
    #[test]
    fn each_name_is_listed_once(
        stay in btree_set((0u16..2000, any::<bool>()), 0..300),
        pages in vec((0u32..80_000, any::<bool>()), 1..8),
        smallest in any::<bool>(),
        changes in vec((2000u16..2040, any::<bool>()), 0..400),
    ) {
        let tree = Tree::new();
        let stay: BTreeSet<String> = stay.into_iter().map(|(n, long)| name(n, long)).collect();
        for name in &stay {
            tree.make(&ROOT, name, FileType::Regular, 0o600).unwrap();
        }
        let mut changes = changes.into_iter();
        let mut listed = BTreeMap::<Vec<u8>, u32>::new();
        let (mut cookie, mut turn) = (0, 0);
        loop {
            let (bytes_max, plus) = pages[turn % pages.len()];
            let bytes_max = if smallest { 0 } else { bytes_max };
            turn += 1;
            let page = page(&tree, cookie, bytes_max, plus);
            prop_assert!(page.end || !page.entries.is_empty(), "it goes on");
            prop_assert!(page.entries.len() <= DIR_PAGE_ENTRIES_MAX);
            let bytes: usize = page.entries.iter().map(|entry| entry.name.len()).sum();
            let wish = bytes_max as usize;
            prop_assert!(bytes <= wish.clamp(DIR_PAGE_BYTES_MIN, DIR_PAGE_BYTES_MAX));
            for entry in page.entries {
                prop_assert!(entry.cookie > cookie, "in their order");
                cookie = entry.cookie;
                *listed.entry(entry.name).or_default() += 1;
            }
            if page.end {
                break;
            }
            for (number, long) in changes.by_ref().take(20) {
                let name = name(number, long);
                match tree.find(&name) {
                    Ok(_) => {
                        let unlink = MdsRequest::Unlink { parent: Ino::ROOT, name: name.as_bytes() };
                        tree.ask(&ROOT, &unlink).unwrap();
                    }
                    Err(_) => drop(tree.make(&ROOT, &name, FileType::Regular, 0o600).unwrap()),
                }
            }
        }
        prop_assert!(listed.values().all(|times| *times == 1), "{listed:?}");
        for name in stay.iter().map(String::as_str).chain([".", ".."]) {
            prop_assert!(listed.contains_key(name.as_bytes()), "{name} is missing");
        }
    }
}

fn scan(
    tree: &Tree,
    cred: &Cred,
    directories: &[(Ino, u64)],
    bytes_max: u32,
) -> FsResult<Vec<FsResult<DirPage>>> {
    scan_for(tree, cred, directories, bytes_max, None)
}

fn scan_for(
    tree: &Tree,
    cred: &Cred,
    directories: &[(Ino, u64)],
    bytes_max: u32,
    filter: Option<ScanFilter>,
) -> FsResult<Vec<FsResult<DirPage>>> {
    let (directories, filter) = (directories.to_vec(), filter.map(Box::new));
    match tree.ask(cred, &MdsRequest::Scan { directories, bytes_max, filter })? {
        MdsReply::Scanned { pages, .. } => Ok(pages),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_scan_lists_many_directories() {
    let tree = Tree::new();
    let mut expected = BTreeMap::new();
    let mut left = Vec::new();
    for directory in 0..9 {
        let path = format!("d{directory}");
        let made = tree.make(&ROOT, &path, FileType::Directory, 0o755).unwrap().ino;
        left.push((made, 0));
        for file in 0..directory * 20 {
            // Inodes of directories lie between each other.
            let path = format!("d{}/f{file}", (directory + file) % (directory + 1));
            if let Ok(attr) = tree.make(&ROOT, &path, FileType::Regular, 0o600) {
                expected.insert(attr.ino, attr);
            }
        }
    }
    let mut turns = 0;
    while !left.is_empty() {
        turns += 1;
        let pages = scan(&tree, &ROOT, &left, 1 << 13).unwrap();
        assert!((1..=left.len()).contains(&pages.len()));
        let rest = left.split_off(pages.len());
        for (page, (directory, cookie)) in pages.into_iter().zip(std::mem::replace(&mut left, rest))
        {
            let page = page.unwrap();
            let last = page.entries.last().map_or(cookie, |last| last.cookie);
            for entry in page.entries {
                assert_eq!(expected.remove(&entry.ino), entry.attr, "{:?}", entry.name);
            }
            if !page.end {
                left.push((directory, last));
            }
        }
    }
    assert!(expected.is_empty() && turns > 9, "{turns} {expected:?}");
}

#[test]
fn a_scan_is_refused_for_each_directory_by_itself() {
    let tree = Tree::new();
    let make = |path, mode| tree.make(&ROOT, path, FileType::Directory, mode).unwrap().ino;
    let (closed, open, gone) = (make("closed", 0o700), make("open", 0o755), make("gone", 0o755));
    let file = tree.make(&ROOT, "open/file", FileType::Regular, 0o600).unwrap().ino;
    tree.ask(&ROOT, &MdsRequest::Rmdir { parent: Ino::ROOT, name: b"gone" }).unwrap();
    let directories = [(closed, 0), (open, 0), (gone, 0), (file, 0)];
    let pages = scan(&tree, &ANN, &directories, 1 << 16).unwrap();
    let said = pages.into_iter().map(|page| page.map(|page| page.entries.len()));
    let expected = [Err(Errno::EACCES), Ok(1), Err(Errno::ENOENT), Err(Errno::ENOTDIR)];
    assert_eq!(said.collect::<Vec<_>>(), expected);
    for count in [0, SCAN_DIRECTORIES_MAX + 1] {
        assert_eq!(scan(&tree, &ANN, &vec![(open, 0); count], 1 << 16), Err(Errno::EINVAL));
    }
}

/// The names that a scan tells of a directory, and how many requests it takes.
fn scanned_for(
    tree: &Tree,
    cred: &Cred,
    directory: Ino,
    filter: &ScanFilter,
) -> (Vec<String>, u32) {
    let (mut names, mut cookie, mut requests) = (Vec::new(), 0, 0);
    loop {
        requests += 1;
        let pages = scan_for(tree, cred, &[(directory, cookie)], 1 << 13, Some(filter.clone()));
        let page = pages.unwrap().remove(0).unwrap();
        cookie = page.entries.last().map_or(cookie, |last| last.cookie);
        names.extend(page.entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()));
        if page.end {
            names.sort();
            return (names, requests);
        }
    }
}

#[test]
fn a_scan_leaves_out_what_is_not_wanted() {
    let tree = Tree::new();
    let directory = tree.make(&ROOT, "d", FileType::Directory, 0o755).unwrap().ino;
    tree.ask(&ROOT, &MdsRequest::Setattr { ino: directory, set: mode(0o777) }).unwrap();
    for number in 0..500 {
        let cred = if number % 100 == 7 { &ANN } else { &ROOT };
        tree.make(cred, &format!("d/f{number}"), FileType::Regular, 0o600).unwrap();
    }
    tree.make(&ROOT, "d/sub", FileType::Directory, 0o755).unwrap();
    let (all, requests) = scanned_for(&tree, &ROOT, directory, &ScanFilter::default());
    assert_eq!(all.len(), 501);
    let of_ann = ScanFilter { uid: Some(ANN.uid), ..ScanFilter::default() };
    let ends = ScanFilter { name_end: b"99".to_vec(), ..ScanFilter::default() };
    let mut links = ScanFilter::default();
    links.narrow_types(&[FileType::Symlink]);
    for (filter, wanted) in [(of_ann, 5), (ends, 5), (links, 0)] {
        let (names, asked) = scanned_for(&tree, &ROOT, directory, &filter);
        assert!(names.contains(&"sub".to_owned()), "{filter:?}");
        // Those that a page ends with come, too. It costs no more than all of them.
        assert!((wanted + 1..=wanted + requests as usize).contains(&names.len()), "{names:?}");
        assert_eq!(asked, requests);
    }
    // Who may not search a directory hears that of each file.
    tree.ask(&ROOT, &MdsRequest::Setattr { ino: directory, set: mode(0o744) }).unwrap();
    let small = ScanFilter { size: (7, 7), ..ScanFilter::default() };
    assert_eq!(scanned_for(&tree, &ANN, directory, &small).0.len(), 501);
    assert!(scanned_for(&tree, &ROOT, directory, &small).0.len() < 10);
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}
