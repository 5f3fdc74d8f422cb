//! Programs that scan: their lines are counted, their memory is watched, and they are ended when
//! they take too long.

use super::amounts::ScanAmounts;
use super::rows::TreeScan;
use super::walk::Walked;
use crate::smallfile::Asked;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often a program is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Ticks in a second of times that the kernel shows to programs, whatever its own are.
const TICKS_PER_S: f64 = 100.0;
/// Bytes of the end of the output that are kept.
const TAIL_BYTES: usize = 1024;

/// What a program did.
#[derive(Debug)]
pub(super) struct Ran {
    /// From its start to its end.
    pub seconds: f64,
    /// Lines that it has printed.
    pub lines: u64,
    /// The last one.
    pub last: String,
    /// The most bytes of memory that it had, as far as that was seen.
    pub resident: u64,
    /// Bytes that it has read from disks, where the kernel counts them.
    pub disk_bytes: Option<u64>,
    /// It was ended because it took too long.
    pub is_cut: bool,
}

/// One time that a scan was done.
pub(super) struct Scanned {
    /// Files that it has seen.
    pub files: f64,
    /// It has seen so many at least: what it had not printed yet when it was ended is unknown.
    pub is_least: bool,
    /// The time that it took.
    pub seconds: f64,
    /// It was ended before it had seen all.
    pub is_cut: bool,
    /// Calls, if they were timed.
    pub walked: Option<Walked>,
    /// Bytes a second of streams beside it.
    pub streams: Option<f64>,
    /// Bytes that its process has read from disks, where the kernel counts them.
    pub disk_bytes: Option<u64>,
}

impl Scanned {
    /// What a program has seen of the tree; an error if that is another number of files than there
    /// are.
    pub(super) fn of(
        scan: TreeScan,
        ran: &Ran,
        amounts: &ScanAmounts,
        streams: Option<f64>,
    ) -> Result<Scanned, String> {
        let files = amounts.files;
        let walked = match scan {
            TreeScan::Stat => {
                let walked = Walked::parse(&ran.last);
                Some(walked.ok_or("it took too long, and did not say how far it had come")?)
            }
            _ => None,
        };
        let (seen, is_cut) = match (walked, scan.lines(amounts)) {
            (Some(walked), _) if walked.is_cut || walked.files == files => {
                (walked.files as f64, walked.is_cut)
            }
            (Some(walked), _) => return Err(format!("{} files instead of {files}", walked.files)),
            (None, lines) if ran.is_cut => (files as f64 * ran.lines as f64 / lines as f64, true),
            (None, lines) if ran.lines == lines => (files as f64, false),
            (None, lines) => return Err(format!("{} lines instead of {lines}", ran.lines)),
        };
        let (seconds, disk_bytes) = (ran.seconds, ran.disk_bytes);
        let is_least = is_cut && walked.is_none();
        Ok(Scanned { files: seen, is_least, seconds, is_cut, walked, streams, disk_bytes })
    }
}

/// A number of bytes of /proc/PID/status.
pub(super) fn memory(pid: u32, key: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? << 10)
}

/// Seconds in which processors of the machine were busy so far: with processes, and with what the kernel
/// does for them in threads of its own and in interrupts.
pub(super) fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let all = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks = all.split_whitespace().map(|n| n.parse::<u64>().unwrap_or(0));
    // user, nice, system; then idle and iowait, which are not busy; then irq and softirq.
    let busy = ticks.enumerate().filter(|(at, _)| matches!(at, 0..=2 | 5..=6));
    busy.map(|(_, ticks)| ticks).sum::<u64>() as f64 / TICKS_PER_S
}

/// A number of /proc/PID/io.
fn io(pid: u32, key: &str) -> Option<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    io.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')?.trim().parse().ok())
}

/// Bytes that a process has read and written so far.
pub(super) fn moved_bytes(pid: u32) -> u64 {
    io(pid, "rchar").unwrap_or(0) + io(pid, "wchar").unwrap_or(0)
}

/// Waits until a process has ended, and returns the bytes that it has read from disks: the kernel
/// knows that until its parent has taken note of the end.
fn disk_bytes_at_end(pid: Pid) -> Option<u64> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::io::retry_on_intr(|| waitid(WaitId::Pid(pid), options)).ok()?;
    io(pid.as_raw_nonzero().get().unsigned_abs(), "read_bytes")
}

/// Runs a program in a group of its own until it ends, or has taken as long as `patience`.
pub(super) fn run(
    command: &mut Command,
    patience: Duration,
    asked: Asked<'_>,
) -> Result<Ran, String> {
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
    let words: Vec<_> = std::iter::once(command.get_program().to_string_lossy().into_owned())
        .chain(words)
        .collect();
    let name = words.join(" ");
    let failed = |e: std::io::Error| format!("{name}: {e}");
    let start = Instant::now();
    let mut child = command.spawn().map_err(failed)?;
    let (pid, mut out, mut err) = (child.id(), child.stdout.take(), child.stderr.take());
    let group = Pid::from_raw(pid as i32);
    let (resident, is_cut) = (AtomicU64::new(0), AtomicBool::new(false));
    let (ended, end) = channel::<()>();
    std::thread::scope(|scope| {
        let (resident, is_cut) = (&resident, &is_cut);
        scope.spawn(move || {
            while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                resident.fetch_max(memory(pid, "VmHWM").unwrap_or(0), Ordering::Relaxed);
                let is_late = start.elapsed() > patience;
                if let Some(group) = group.filter(|_| is_late || asked()) {
                    is_cut.store(is_late, Ordering::Relaxed);
                    let signal = rustix::process::Signal::KILL;
                    let _ = rustix::process::kill_process_group(group, signal);
                }
            }
        });
        let said = scope.spawn(move || {
            let mut said = String::new();
            let _ = err.as_mut().map(|err| err.read_to_string(&mut said));
            said
        });
        let counted = out.as_mut().map_or(Ok((0, String::new())), count);
        let disk_bytes = group.and_then(disk_bytes_at_end);
        let status = child.wait();
        let seconds = start.elapsed().as_secs_f64();
        drop(ended);
        let said = said.join().unwrap_or_default();
        if asked() {
            return Err("interrupted".into());
        }
        let ((lines, last), status) = (counted.map_err(failed)?, status.map_err(failed)?);
        let is_cut = is_cut.load(Ordering::Relaxed);
        let is_well = status.success() && said.is_empty();
        if !is_cut && !is_well {
            let said = said.lines().next().unwrap_or_default();
            return Err(format!("`{name}`: {status}: {said}"));
        }
        let resident = resident.load(Ordering::Relaxed);
        Ok(Ran { seconds, lines, last, resident, disk_bytes, is_cut })
    })
}

/// Counts lines, and keeps the last one.
fn count(out: &mut impl Read) -> std::io::Result<(u64, String)> {
    let (mut buffer, mut tail, mut lines) = (vec![0; 256 << 10], Vec::new(), 0);
    loop {
        let bytes = match out.read(&mut buffer)? {
            0 => break,
            bytes => &buffer[..bytes],
        };
        lines += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL_BYTES)..]);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
    }
    let tail = String::from_utf8_lossy(&tail);
    Ok((lines, tail.lines().last().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, patience: Duration) -> Result<Ran, String> {
        run(Command::new("sh").args(["-c", script]), patience, &|| false)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lines_are_counted_and_the_last_is_kept() {
        let ran = shell("seq 100000; sleep 0.1", LONG).unwrap();
        assert_eq!((ran.lines, ran.last.as_str(), ran.is_cut), (100_000, "100000", false));
        assert!(ran.seconds >= 0.1 && ran.resident > 100 << 10, "{ran:?}");
        // Some kernels do not count it.
        assert!(ran.disk_bytes.is_some() || !std::path::Path::new("/proc/self/io").exists());
    }

    #[test]
    fn who_takes_too_long_is_ended_with_what_was_printed_so_far() {
        let ran = shell("echo a; sleep 60 | sleep 60", Duration::from_millis(300)).unwrap();
        assert_eq!((ran.lines, ran.is_cut), (1, true));
        assert!(ran.seconds < 30.0);
    }

    #[test]
    fn a_scan_with_another_number_of_lines_fails_and_one_that_was_cut_counts_in_part() {
        let amounts = ScanAmounts { files: 1000, streamed: 0 };
        let ran = |lines, is_cut, last: &str| {
            let (last, disk_bytes) = (last.to_owned(), None);
            let is_find = last.is_empty();
            let ran = Ran { seconds: 2.0, lines, last, resident: 0, disk_bytes, is_cut };
            let scan = if is_find { TreeScan::Find } else { TreeScan::Stat };
            Scanned::of(scan, &ran, &amounts, None)
                .map(|seen| (seen.files, seen.is_cut, seen.is_least))
        };
        assert_eq!(ran(50, false, ""), Ok((1000.0, false, false)));
        assert_eq!(ran(49, false, ""), Err("49 lines instead of 50".into()));
        assert_eq!(ran(25, true, ""), Ok((500.0, true, true)));
        let walked = |files, is_cut| {
            format!(
                r#"{{"files":{files},"is_cut":{is_cut},"stat_ms_max":1,"stat_ms_p99":1,"list_ms_max":1}}"#
            )
        };
        assert_eq!(ran(1, false, &walked(1000, false)), Ok((1000.0, false, false)));
        assert_eq!(ran(1, false, &walked(300, true)), Ok((300.0, true, false)));
        let missed = ran(1, false, &walked(999, false));
        assert_eq!(missed, Err("999 files instead of 1000".into()));
    }

    #[test]
    fn failures_are_told() {
        assert!(shell("echo no >&2", LONG).unwrap_err().ends_with("no"));
        assert!(shell("exit 3", LONG).unwrap_err().contains("exit status: 3"));
        let ended = run(Command::new("sleep").arg("60"), LONG, &|| true);
        assert_eq!(ended.err(), Some("interrupted".into()));
    }

    #[test]
    fn a_process_is_seen_from_outside() {
        let own = std::process::id();
        assert!(memory(own, "VmHWM").unwrap() >= memory(own, "VmRSS").unwrap() / 2);
        let before = moved_bytes(own);
        std::fs::read("/proc/self/status").unwrap();
        assert!(moved_bytes(own) > before);
        let busy = Instant::now();
        let begun = busy_seconds();
        while busy_seconds() < begun + 0.1 {
            assert!(busy.elapsed() < LONG);
        }
        let cores = std::thread::available_parallelism().unwrap().get() as f64;
        let most = cores * busy.elapsed().as_secs_f64();
        assert!(busy_seconds() - begun <= most + 0.1 * cores, "no time in which nothing was done");
    }
}
