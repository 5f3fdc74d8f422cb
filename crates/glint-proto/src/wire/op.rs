//! The operations: for dispatch, frames and statistics.

macro_rules! operations {
    ($($op:ident = $name:literal,)*) => {
        /// Every operation, for dispatch, frames and statistics.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        #[allow(missing_docs)]
        pub enum Op {
            $($op,)*
        }

        impl Op {
            /// All operations in the order of their numbers.
            pub const ALL: &[Op] = &[$(Op::$op),*];

            /// Lower-case name, as statistics show it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Op::$op => $name,)*
                }
            }
        }
    };
}

// The order of the operations is that of their numbers on the wire.
operations! {
    Hello = "hello",
    Status = "status",
    Stats = "stats",
    Lookup = "lookup",
    Getattr = "getattr",
    Setattr = "setattr",
    Create = "create",
    Tmpfile = "tmpfile",
    Link = "link",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Rename = "rename",
    Open = "open",
    Release = "release",
    Readdir = "readdir",
    Readlink = "readlink",
    Getxattr = "getxattr",
    Setxattr = "setxattr",
    Listxattr = "listxattr",
    Removexattr = "removexattr",
    Statfs = "statfs",
    Sync = "sync",
    SetLayout = "set_layout",
    Reopen = "reopen",
    Touch = "touch",
    ObjRead = "obj_read",
    ObjWrite = "obj_write",
    ObjTruncate = "obj_truncate",
    ObjFallocate = "obj_fallocate",
    ObjSync = "obj_sync",
    ObjStat = "obj_stat",
    ObjSeek = "obj_seek",
    ObjSetTime = "obj_set_time",
    ObjSpace = "obj_space",
    Read = "read",
    Write = "write",
    Fsync = "fsync",
    Fallocate = "fallocate",
    Seek = "seek",
    CopyRange = "copy_range",
    Forget = "forget",
    Ping = "ping",
    Recovery = "recovery",
    Lock = "lock",
    Return = "return",
    Flock = "flock",
    Recall = "recall",
    Flush = "flush",
    ObjGrantSpace = "obj_grant_space",
    GrantInodes = "grant_inodes",
    Batch = "batch",
    Other = "other",
    MoveLayout = "move_layout",
    Scan = "scan",
    ObjWatch = "obj_watch",
}

impl Op {
    /// Whether others wait for it to be answered: it goes before all that is not.
    pub fn is_urgent(self) -> bool {
        matches!(self, Op::Hello | Op::Ping | Op::Recovery | Op::Reopen | Op::Return)
    }

    /// Inverse of `op as u8`.
    pub fn from_u8(byte: u8) -> Option<Op> {
        Op::ALL.get(byte as usize).copied()
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
