//! A round: one operation, on many files of one directory, through system calls or through the
//! client library.

pub(crate) mod native;
pub(crate) mod posix;

use crate::sample::Sample;

/// Operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Operation {
    /// open(O_CREAT|O_EXCL|O_WRONLY) and close.
    Open,
    /// mknod of a regular file.
    Mknod,
    /// mkdir.
    Mkdir,
    /// unlink, of files made before.
    Unlink,
    /// stat, of files made before.
    Stat,
    /// open(O_RDONLY) and close of a file that is there.
    Read,
    /// rename within the directory, of files made before.
    Rename,
}

impl Operation {
    /// Name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Open => "open",
            Operation::Mknod => "mknod",
            Operation::Mkdir => "mkdir",
            Operation::Unlink => "unlink",
            Operation::Stat => "stat",
            Operation::Read => "read",
            Operation::Rename => "rename",
        }
    }

    /// Whether the files must be there first.
    pub(crate) fn needs_files(self) -> bool {
        use Operation::{Read, Rename, Stat, Unlink};
        matches!(self, Unlink | Stat | Read | Rename)
    }
}

/// A part of the work: files `from..from + count` by `procs` workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Operation.
    pub op: Operation,
    /// First file.
    pub from: u64,
    /// Number of files.
    pub count: u64,
    /// Workers.
    pub procs: u64,
    /// Operations that each has under way at once, where the target can do that.
    pub outstanding: u64,
}

impl Round {
    /// The part of worker `index`.
    pub(crate) fn share(&self, index: u64) -> (u64, u64) {
        let from = self.count * index / self.procs;
        let to = self.count * (index + 1) / self.procs;
        (self.from + from, to - from)
    }
}

/// Something that rounds can run on.
pub(crate) trait BenchTarget {
    /// Runs a round and says how long each operation took.
    fn run(&mut self, round: Round) -> Result<Sample, Box<dyn std::error::Error>>;
}
