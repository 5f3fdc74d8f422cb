//! The operations: for dispatch, frames and statistics.

/// Every operation, for dispatch, frames and statistics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Op {
    Hello,
    Status,
    Stats,
    Lookup,
    Getattr,
    Setattr,
    Create,
    Tmpfile,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    Release,
    Readdir,
    Readlink,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    Statfs,
    Sync,
    SetLayout,
    Reopen,
    Touch,
    ObjRead,
    ObjWrite,
    ObjTruncate,
    ObjFallocate,
    ObjSync,
    ObjStat,
    ObjSeek,
    ObjSetTime,
    ObjSpace,
    Read,
    Write,
    Fsync,
    Fallocate,
    Seek,
    CopyRange,
    Forget,
    Ping,
    Recovery,
    Other,
}

impl Op {
    /// All operations in the order of their numbers.
    pub const ALL: [Op; 44] = {
        use Op::*;
        [
            Hello,
            Status,
            Stats,
            Lookup,
            Getattr,
            Setattr,
            Create,
            Tmpfile,
            Link,
            Unlink,
            Rmdir,
            Rename,
            Open,
            Release,
            Readdir,
            Readlink,
            Getxattr,
            Setxattr,
            Listxattr,
            Removexattr,
            Statfs,
            Sync,
            SetLayout,
            Reopen,
            Touch,
            ObjRead,
            ObjWrite,
            ObjTruncate,
            ObjFallocate,
            ObjSync,
            ObjStat,
            ObjSeek,
            ObjSetTime,
            ObjSpace,
            Read,
            Write,
            Fsync,
            Fallocate,
            Seek,
            CopyRange,
            Forget,
            Ping,
            Recovery,
            Other,
        ]
    };

    /// Whether others wait for it to be answered: it goes before all that is not.
    pub fn is_urgent(self) -> bool {
        matches!(self, Op::Hello | Op::Ping | Op::Recovery | Op::Reopen)
    }

    /// Inverse of `op as u8`.
    pub fn from_u8(byte: u8) -> Option<Op> {
        Op::ALL.get(byte as usize).copied()
    }

    /// Lower-case name, as statistics show it.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; 44] = [
            "hello",
            "status",
            "stats",
            "lookup",
            "getattr",
            "setattr",
            "create",
            "tmpfile",
            "link",
            "unlink",
            "rmdir",
            "rename",
            "open",
            "release",
            "readdir",
            "readlink",
            "getxattr",
            "setxattr",
            "listxattr",
            "removexattr",
            "statfs",
            "sync",
            "set_layout",
            "reopen",
            "touch",
            "obj_read",
            "obj_write",
            "obj_truncate",
            "obj_fallocate",
            "obj_sync",
            "obj_stat",
            "obj_seek",
            "obj_set_time",
            "obj_space",
            "read",
            "write",
            "fsync",
            "fallocate",
            "seek",
            "copy_range",
            "forget",
            "ping",
            "recovery",
            "other",
        ];
        NAMES[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_its_number_and_name() {
        for (number, op) in Op::ALL.iter().enumerate() {
            assert_eq!(*op as usize, number);
            assert!(!op.name().is_empty());
        }
    }
}
