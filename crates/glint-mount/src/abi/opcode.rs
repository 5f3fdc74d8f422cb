//! Operations of kernel requests, for statistics.

use crate::abi::Opcode;
use glint_proto::Op;

/// The operation of an opcode.
pub(crate) fn op_of(opcode: Opcode) -> Op {
    match opcode {
        Opcode::Lookup => Op::Lookup,
        Opcode::Getattr => Op::Getattr,
        Opcode::Setattr => Op::Setattr,
        Opcode::Readlink => Op::Readlink,
        Opcode::Symlink | Opcode::Mknod | Opcode::Mkdir | Opcode::Create => Op::Create,
        Opcode::Unlink => Op::Unlink,
        Opcode::Rmdir => Op::Rmdir,
        Opcode::Rename | Opcode::Rename2 => Op::Rename,
        Opcode::Link => Op::Link,
        Opcode::Open | Opcode::Opendir => Op::Open,
        Opcode::Read => Op::Read,
        Opcode::Write => Op::Write,
        Opcode::Statfs => Op::Statfs,
        Opcode::Release | Opcode::Releasedir => Op::Release,
        Opcode::Fsync | Opcode::Fsyncdir | Opcode::Syncfs => Op::Fsync,
        Opcode::Setxattr => Op::Setxattr,
        Opcode::Getxattr => Op::Getxattr,
        Opcode::Listxattr => Op::Listxattr,
        Opcode::Removexattr => Op::Removexattr,
        Opcode::Readdir | Opcode::Readdirplus => Op::Readdir,
        Opcode::Fallocate => Op::Fallocate,
        Opcode::Lseek => Op::Seek,
        Opcode::CopyFileRange => Op::CopyRange,
        Opcode::Tmpfile => Op::Tmpfile,
        Opcode::Forget | Opcode::BatchForget => Op::Forget,
        Opcode::Flush => Op::Flush,
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw => Op::Flock,
        _ => Op::Other,
    }
}
