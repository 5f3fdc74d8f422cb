//! Inputs that the fuzz targets begin with, in `fuzz/seeds/TARGET`: real encodings of each decoder.
//! Here each of them, and what is nearly one, goes through its target, without a fuzzer.
//!
//! After a change of a format, `cargo test --workspace --test fuzz_seeds -- --ignored` writes those
//! made below anew. An input that a fuzzer failed with belongs into the folder of its target.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use glint_proto::chain::Destination;
use glint_proto::frame::Header;
use glint_proto::message::{Reply, Request, decode, encode};
use glint_proto::{ClientId, Cred, MdsReply, MdsRequest, Op, OstReply, OstRequest};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

type Target = (&'static str, fn(&[u8]));

const TARGETS: [Target; 12] = [
    ("acl", glint_mds::fuzz::acl),
    ("frame", glint_proto::fuzz::frame),
    ("heat", glint_ost::fuzz::heat),
    ("hostile", glint_sim::fuzz::hostile),
    ("kernel_request", glint_mount::fuzz::kernel_request),
    ("keys", glint_mds::fuzz::keys),
    ("layout", glint_client::fuzz::layout),
    ("message", glint_proto::fuzz::message),
    ("object_name", glint_ost::fuzz::object_name),
    ("record", glint_mds::fuzz::record),
    ("reply", glint_mds::fuzz::reply),
    ("sums", glint_ost::fuzz::sums),
];

/// How many inputs that are nearly a seed are tried for each.
const CHANGED: usize = 200;

/// The bytes of messages, records and keys, in hexadecimal: sources whose tests fail when a format
/// changes.
const GOLDEN_MESSAGES: [&str; 3] = [
    include_str!("../../glint-proto/src/wire/golden/mod.rs"),
    include_str!("../../glint-proto/src/wire/golden/mds.rs"),
    include_str!("../../glint-proto/src/wire/golden/ost.rs"),
];
const GOLDEN_RECORDS: &str = include_str!("../../glint-mds/src/store/golden.rs");

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn directory(target: &str) -> PathBuf {
    root().join("fuzz/seeds").join(target)
}

#[test]
fn each_target_has_seeds_and_takes_them() {
    let mut names: Vec<String> = fs::read_dir(root().join("fuzz/fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names, TARGETS.map(|(name, _)| name));
    let mut random = fastrand::Rng::with_seed(1);
    for (name, run) in TARGETS {
        let mut seeds = 0;
        for entry in fs::read_dir(directory(name)).unwrap() {
            let seed = fs::read(entry.unwrap().path()).unwrap();
            run(&seed);
            seeds += 1;
            // The hostile client has random sequences in a test of its own.
            let changed = if name == "hostile" { 0 } else { CHANGED };
            for _ in 0..changed {
                run(&changed_a_little(&seed, &mut random));
            }
        }
        assert!(seeds > 0, "{name} has no seeds");
    }
}

/// Seeds of an older format would be noise to their targets.
#[test]
fn seeds_are_those_of_the_formats_of_today() {
    let mut files = 0;
    for (name, _) in TARGETS {
        files += fs::read_dir(directory(name)).unwrap().count();
    }
    // Of several with one name the last one is written.
    let named = |(target, name, bytes)| ((target, name), bytes);
    let seeds: BTreeMap<(&str, String), Vec<u8>> = seeds().into_iter().map(named).collect();
    assert_eq!(files, seeds.len(), "write_seeds writes them; remove what is left over");
    for ((target, name), bytes) in seeds {
        let found = fs::read(directory(target).join(&name)).unwrap_or_default();
        assert!(found == bytes, "{target}/{name} is another one: write_seeds writes it anew");
    }
}

fn changed_a_little(seed: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..random.usize(1..4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.usize(0..bytes.len());
        match random.u8(0..5) {
            0 => bytes[at] ^= 1 << random.u8(0..8),
            1 => bytes[at] = [0, 0x7f, 0x80, 0xff][random.usize(0..4)],
            2 => bytes.insert(at, random.u8(..)),
            3 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

#[test]
#[ignore = "writes into the sources"]
fn write_seeds() {
    for (target, name, bytes) in seeds() {
        fs::create_dir_all(directory(target)).unwrap();
        fs::write(directory(target).join(name), bytes).unwrap();
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.len().is_multiple_of(2) && text.bytes().all(|c| c.is_ascii_hexdigit());
    let bytes = (0..text.len()).step_by(2);
    digits.then(|| bytes.map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect())
}

/// Lines `Variant HEX` of the golden messages, where they decode to a message of that variant.
fn messages() -> Vec<(String, Vec<u8>)> {
    let cred = Cred { uid: 1, gid: 2, groups: Some(vec![3]) };
    let mut found = Vec::new();
    for line in GOLDEN_MESSAGES.iter().flat_map(|text| text.lines()) {
        let Some((variant, hex)) = line.trim().split_once(' ') else { continue };
        let Some(bytes) = unhex(hex.trim_end_matches(['"', ',', ';'])) else { continue };
        let is =
            |shown: String| shown.split(|c: char| !c.is_alphanumeric()).next() == Some(variant);
        let name = variant.to_lowercase();
        if let Ok(request) = decode::<Request<'_>>(&bytes)
            && is(format!("{request:?}"))
        {
            found.push((format!("request-{name}"), bytes.clone()));
        }
        if let Ok(reply) = decode::<Reply>(&bytes)
            && is(format!("{reply:?}"))
        {
            found.push((format!("reply-{name}"), bytes.clone()));
        }
        if let Ok(request) = decode::<MdsRequest<'_>>(&bytes)
            && is(format!("{request:?}"))
        {
            let request = Request::Mds { cred: cred.clone(), request };
            let mut bytes = Vec::new();
            encode(&request, &mut bytes).unwrap();
            found.push((format!("mds-{name}"), bytes));
        }
        if let Ok(reply) = decode::<MdsReply>(&bytes)
            && is(format!("{reply:?}"))
        {
            let reply = Reply::Mds { transaction: 1, reply: Ok(reply), grants: Vec::new() };
            let mut bytes = Vec::new();
            encode(&reply, &mut bytes).unwrap();
            found.push((format!("mds-reply-{name}"), bytes));
        }
        if let Ok(request) = decode::<OstRequest>(&bytes)
            && is(format!("{request:?}"))
        {
            let to = Destination { ost: 1, chain: None };
            let request = Request::Ost { to, request, capability: None, forward: None };
            let mut bytes = Vec::new();
            encode(&request, &mut bytes).unwrap();
            found.push((format!("ost-{name}"), bytes));
        }
        if let Ok(reply) = decode::<OstReply>(&bytes)
            && is(format!("{reply:?}"))
        {
            let reply = Reply::Ost { transaction: 1, reply: Ok(reply) };
            let mut bytes = Vec::new();
            encode(&reply, &mut bytes).unwrap();
            found.push((format!("ost-reply-{name}"), bytes));
        }
    }
    found
}

/// Requests of a kernel: each operation on the root, with arguments of zeros and two names.
fn kernel_requests() -> Vec<(String, Vec<u8>)> {
    let request = |opcode: u32| {
        let payload = [&[0; 64][..], b"name\0other\0"].concat();
        let len = (40 + payload.len()) as u32;
        // fuse_in_header: len, opcode, unique, nodeid, uid, gid, pid, padding.
        let mut bytes = [len.to_le_bytes(), opcode.to_le_bytes()].concat();
        bytes.extend([1u64, 1].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend([0u32, 0, 1, 0].into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(payload);
        bytes
    };
    (1..=52).map(|opcode| (format!("opcode-{opcode:02}"), request(opcode))).collect()
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// Checksums of an object as at rest, but for the sum of all, which the target appends.
fn sums(size: u64) -> Vec<u8> {
    let mut bytes = vec![1, 16];
    bytes.extend(size.to_le_bytes());
    bytes.extend((0..size.div_ceil(1 << 16)).flat_map(|block| (block as u32).to_le_bytes()));
    bytes
}

/// What was read most: counts of these cells.
fn heat(shift: u8, cells: &[(u8, u64, u32)]) -> Vec<u8> {
    let mut bytes = b"GLHT".to_vec();
    bytes.extend([1, shift]);
    bytes.extend((cells.len() as u32).to_be_bytes());
    for (table, cell, count) in cells {
        bytes.push(*table);
        bytes.extend(cell.to_be_bytes());
        bytes.extend(count.to_be_bytes());
    }
    bytes
}

/// The value of a line `name: HEX` of the golden keys.
fn golden_key(name: &str) -> Vec<u8> {
    let lines = GOLDEN_RECORDS.lines().map(str::trim);
    let hex = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).next();
    unhex(hex.unwrap().trim_end_matches(['"', ';'])).unwrap()
}

fn golden_record() -> Vec<u8> {
    let (_, rest) = GOLDEN_RECORDS.split_once("let golden = \"").unwrap();
    let (hex, _) = rest.split_once('"').unwrap();
    unhex(&hex.replace(|c: char| !c.is_ascii_hexdigit(), "")).unwrap()
}

fn seeds() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |target, name: &str, bytes| all.push((target, name.to_owned(), bytes));
    for (name, bytes) in messages() {
        add("message", &name, bytes);
    }
    for (name, bytes) in kernel_requests() {
        add("kernel_request", &name, bytes);
    }
    for (name, op) in [("create", Op::Create), ("read", Op::ObjRead)] {
        let header = Header {
            op,
            reply: op == Op::ObjRead,
            client: ClientId(1),
            slot: 2,
            xid: 3,
            boot_verifier: 4,
            committed: 5,
            body_len: 6,
            body_crc: 7,
            bulk_len: 4096,
            bulk_crc: 9,
        };
        add("frame", name, header.encode().to_vec());
    }
    add("record", "symlink", golden_record());
    for name in ["entry", "entry value", "orphan that is open", "orphan to destroy", "after"] {
        add("keys", &name.replace(' ', "-"), golden_key(name));
    }
    add("reply", "removed", golden_key("reply value"));
    let (user, group, other) = ((1, 7, u32::MAX), (4, 5, u32::MAX), (32, 5, u32::MAX));
    add("acl", "trivial", acl(&[user, group, other]));
    add("acl", "named", acl(&[user, (2, 6, 1000), group, (8, 4, 1), (16, 7, u32::MAX), other]));
    for (name, size) in [("empty", 0), ("one-block", 1), ("three-blocks", 150_000)] {
        add("sums", name, sums(size));
    }
    add("heat", "nothing", heat(10, &[]));
    add("heat", "cells", heat(12, &[(0, 1, 7), (0, 2, 6), (1, 5, 1), (1, u64::MAX >> 12, 300)]));
    add("heat", "widest", heat(63, &[(0, 0, u32::MAX), (0, 1, u32::MAX), (6, 0, 1)]));
    add("object_name", "first", b"0000000000000002.0000".to_vec());
    add("object_name", "last", b"ffffffffffffffff.ffff".to_vec());
    add("layout", "count", b"stripe_count=4".to_vec());
    let shown = "stripe_count=4 stripe_size=1048576 first_ost=0 osts=8 replicas=2";
    add("layout", "shown", shown.as_bytes().to_vec());
    let mut random = fastrand::Rng::with_seed(3);
    for name in ["1", "2", "3"] {
        add("hostile", name, (0..1500).map(|_| random.u8(..)).collect());
    }
    all
}
