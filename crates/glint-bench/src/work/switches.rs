//! Context switches of the programs, the mounts and the server while a row is done. They are read
//! before it and after it only: what counts them must not cause them.

use std::collections::BTreeMap;
use std::fs::{read_dir, read_to_string};

/// Who switches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Switcher {
    /// All programs that the row starts, and the threads of this one.
    Programs,
    /// The mounts; with the server where both are one process.
    Mounts,
    /// The server.
    Server,
}

impl Switcher {
    /// All of them.
    pub(super) const ALL: [Switcher; 3] = [Switcher::Programs, Switcher::Mounts, Switcher::Server];

    /// Name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Switcher::Programs => "programs",
            Switcher::Mounts => "mount",
            Switcher::Server => "server",
        }
    }
}

/// Context switches.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct SwitchCount {
    /// A thread had to wait.
    pub voluntary: u64,
    /// Its core was taken from a thread.
    pub involuntary: u64,
}

impl SwitchCount {
    fn plus(self, more: SwitchCount) -> SwitchCount {
        SwitchCount {
            voluntary: self.voluntary + more.voluntary,
            involuntary: self.involuntary + more.involuntary,
        }
    }

    /// Those since `before`. Where there were more then, it was another thread of the same number.
    fn since(self, before: SwitchCount) -> SwitchCount {
        let voluntary = self.voluntary.checked_sub(before.voluntary);
        let involuntary = self.involuntary.checked_sub(before.involuntary);
        match (voluntary, involuntary) {
            (Some(voluntary), Some(involuntary)) => SwitchCount { voluntary, involuntary },
            _ => self,
        }
    }

    /// Those in the status of a thread.
    fn of_status(status: &str) -> Option<SwitchCount> {
        let number = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().parse::<u64>().ok()
        };
        Some(SwitchCount {
            voluntary: number("voluntary_ctxt_switches:")?,
            involuntary: number("nonvoluntary_ctxt_switches:")?,
        })
    }
}

/// Counts of the threads of a process, by their numbers.
type ByThread = BTreeMap<String, SwitchCount>;

/// Processes whose switches are counted from now on.
pub(super) struct SwitchWatch {
    programs: SwitchCount,
    processes: Vec<(Switcher, u32, ByThread)>,
}

impl SwitchWatch {
    /// Counts from now on those of these processes, and of programs.
    pub(super) fn start(processes: &[(Switcher, u32)]) -> SwitchWatch {
        let processes = processes.iter().map(|(who, pid)| (*who, *pid, threads(*pid))).collect();
        SwitchWatch { processes, programs: programs() }
    }

    /// Returns those since the start. The kernel counts threads of other processes only as long as
    /// they are there: of one that has ended meanwhile all are missing.
    pub(super) fn end(self) -> BTreeMap<Switcher, SwitchCount> {
        let programs = programs().since(self.programs);
        let mut counts = BTreeMap::from([(Switcher::Programs, programs)]);
        for (who, pid, before) in self.processes {
            let since = |(thread, now): (String, SwitchCount)| {
                now.since(before.get(&thread).copied().unwrap_or_default())
            };
            let all = threads(pid).into_iter().map(since);
            let count = counts.entry(who).or_default();
            *count = all.fold(*count, SwitchCount::plus);
        }
        counts
    }
}

/// Those of each thread of a process so far.
fn threads(pid: u32) -> ByThread {
    let tasks = read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let counted = tasks.filter_map(|task| {
        // It may have ended.
        let status = read_to_string(task.path().join("status")).ok()?;
        let thread = task.file_name().to_string_lossy().into_owned();
        Some((thread, SwitchCount::of_status(&status)?))
    });
    counted.collect()
}

/// Those of this process and of all programs that have ended below it, with all their threads.
fn programs() -> SwitchCount {
    let of = |who| {
        // SAFETY: a structure of integers, for which zeroes are a value.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the structure lives through the call.
        let failed = unsafe { libc::getrusage(who, &raw mut usage) } != 0;
        if failed {
            return SwitchCount::default();
        }
        SwitchCount { voluntary: usage.ru_nvcsw as u64, involuntary: usage.ru_nivcsw as u64 }
    };
    of(libc::RUSAGE_SELF).plus(of(libc::RUSAGE_CHILDREN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn what_waits_is_counted_for_each() {
        let pid = std::process::id();
        let watch = SwitchWatch::start(&[(Switcher::Server, pid), (Switcher::Mounts, pid)]);
        (0..5).for_each(|_| std::thread::sleep(Duration::from_millis(2)));
        let counts = watch.end();
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), Switcher::ALL);
        assert!(counts.values().all(|count| count.voluntary >= 5), "{counts:?}");
    }

    #[test]
    fn programs_are_counted_with_those_that_they_start() {
        let watch = SwitchWatch::start(&[]);
        let script = "for n in 1 2 3 4 5 6; do sleep 0.01; done";
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        let counts = watch.end();
        // The shell and what it starts wait for each other.
        assert!(counts[&Switcher::Programs].voluntary >= 12, "{counts:?}");
        assert_eq!(counts.len(), 1);
    }

    #[test]
    fn a_thread_of_the_same_number_is_another_one() {
        let count = |voluntary, involuntary| SwitchCount { voluntary, involuntary };
        assert_eq!(count(9, 4).since(count(5, 4)), count(4, 0));
        assert_eq!(count(9, 3).since(count(5, 4)), count(9, 3));
        let status = "Name:\tf\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t3\n";
        assert_eq!(SwitchCount::of_status(status), Some(count(12, 3)));
        assert_eq!(SwitchCount::of_status("Name:\tf\n"), None);
    }
}
