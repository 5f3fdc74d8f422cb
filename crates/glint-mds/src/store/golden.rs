//! The bytes of what the engine holds, so that nobody changes the format without a new version: a
//! data directory of today must be read by every later version.

use crate::session::sessions::{SessionInfo, encode_reply, session_value};
use crate::store::keys::{self, Orphan};
use crate::store::record::InodeRecord;
use glint_proto::{Attr, ClientId, FileType, Ino, Layout, MdsReply, Owner, Timestamp};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const LAYOUT: Layout = Layout {
    stripe_bytes_log2: 20,
    stripe_count: 2,
    first_ost: 3,
    osts: 4,
    replicas: 1,
    first_object: 0,
};

#[test]
fn an_inode_record() {
    let time = |secs| Timestamp { secs, nanos: secs as u32 + 1 };
    let attr = Attr {
        ino: Ino(1),
        mode: FileType::Symlink.mode_bits() | 0o777,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 5,
        size: 6,
        blocks: 7,
        atime: time(8),
        mtime: time(10),
        ctime: time(-12),
        size_on_ost: true,
        has_no_xattrs: true,
        mtime_set: false,
        layout: LAYOUT,
    };
    let mut record = InodeRecord::of(attr);
    record.target = b"to".to_vec();
    record.gains_name(Ino(0x14));
    record.gains_name(Ino(0x14));
    record.gains_name(Ino(0x15));
    let golden = "0121140002000300ffa100000200000003000000040000000500000004000000\
        060000000000000007000000000000000800000000000000090000000a000000\
        000000000b000000f4fffffffffffffff5ffffff140000000000000002000000\
        150000000000000000000000000000000000000000000000000000003899e68b\
        746f";
    assert_eq!(hex(&record.encode()), golden);
    let flags = |change: fn(&mut InodeRecord)| {
        let mut record = InodeRecord::new(Ino(1), 0o100_644, time(0));
        change(&mut record);
        record.encode()[1]
    };
    assert_eq!(flags(|_| {}), 0);
    assert_eq!(flags(|record| record.attr.size_on_ost = true), 1 | 32);
    assert_eq!(flags(|record| record.attr.has_no_xattrs = false), 2);
    assert_eq!(flags(|record| record.has_acl = true), 4);
    assert_eq!(flags(|record| record.has_default_acl = true), 8);
    assert_eq!(flags(|record| record.layout_set = true), 16);
    assert_eq!(flags(|record| record.has_objects = true), 32);
    assert_eq!(flags(|record| record.attr.mtime_set = true), 64);
}

#[test]
fn keys_and_small_values() {
    let (host, mount_point) = ("h".to_owned(), "m".to_owned());
    let info = SessionInfo { client: ClientId(1), session: 2, host, mount_point, connections: 0 };
    let owner = Owner { certificate: Some([0xcc; 32]), secret: 3 };
    let lines = [
        ("entry", keys::entry(Ino(1), b"name", 7)),
        ("entry value", keys::entry_value(Ino(2), FileType::Directory).to_vec()),
        ("xattr", keys::xattr(Ino(1), b"user.a")),
        ("reply", keys::reply(1, 2).to_vec()),
        ("reply value", encode_reply(3, 4, &MdsReply::Removed { ino: Ino(5) }).unwrap()),
        ("session", session_value(&info, &owner)),
        ("after", keys::after(Ino(0xff)).to_vec()),
        ("orphan that is open", Orphan::Open.value()),
        ("orphan to destroy", Orphan::Destroy(LAYOUT).value()),
    ];
    let lines: Vec<String> =
        lines.iter().map(|(what, bytes)| format!("{what}: {}", hex(bytes))).collect();
    let golden = "
        entry: 00000000000000017722e9219dc8171a6e616d65
        entry value: 000000000000000204
        xattr: 0000000000000001757365722e61
        reply: 00000000000000010002
        reply value: 0000000000000003000000040105
        session: 68006d003200303030303030303030303030303030303030303030303030303030303030303363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363636363
        after: 0000000000000100
        orphan that is open: 00
        orphan to destroy: 0114000200030004";
    let golden: Vec<&str> = golden.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, golden, "now it is\n{}", lines.join("\n"));
    let kinds = [
        FileType::Fifo,
        FileType::CharDevice,
        FileType::Directory,
        FileType::BlockDevice,
        FileType::Regular,
        FileType::Symlink,
        FileType::Socket,
    ];
    assert_eq!(kinds.map(FileType::dirent_type), [1, 2, 4, 6, 8, 10, 12]);
}
