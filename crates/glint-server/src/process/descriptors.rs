//! How many files this process may have open, and who gets them.
//!
//! Invariant: a cache of descriptors never takes those that connections and the engine need.
//! Each has a part of the real limit, which is raised as far as it goes.

use glint_proto::limits::{Descriptors, descriptors, descriptors_min};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Number that stands for no limit at all.
const UNLIMITED: u64 = 1 << 20;

/// Raises the soft limit to the hard one: the usual 1024 is for programs that use select(2).
pub fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::debug!(%error, "raising the limit on open files");
    }
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED)
}

/// How a server with so many OSTs divides what it has.
pub fn budget(osts: u16) -> Result<Descriptors, String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let (limit, osts) = (limit(), u64::from(osts));
    descriptors(limit, cores, osts).ok_or_else(|| {
        format!(
            "this process may have {limit} files open, and a server with {osts} OSTs needs {} or \
             more; raise the hard limit (`ulimit -Hn`, LimitNOFILE= of a systemd unit)",
            descriptors_min(cores, osts)
        )
    })
}
