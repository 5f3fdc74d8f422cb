//! Rows `dies` and `freezes`: members are killed, or stand still, while programs write with fsync
//! and read.
//!
//! Each thread has files of chains in which the killed server has one role, so that calls of both
//! roles are seen, however long one of them waits.

use super::CopiesSetting;
use super::figures::{CopiesFigure, CopiesReach};
use super::place::{CopiesPlace, PATIENCE, sleep};
use crate::stream::forget_cached;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Files; there are 48 chains over three OSTs.
const FILES: usize = 144;
/// Bytes of each, and of a call.
const CALL_BYTES: usize = 64 << 10;
/// Threads of each role and each kind of call.
const THREADS: usize = 2;
/// How long programs run before a server is killed.
const BEFORE: Duration = Duration::from_secs(1);
/// How often is looked whether it is over.
const LOOK: Duration = Duration::from_millis(50);
/// Calls of each thread that end after the kill: the first one may have been answered before.
const CALLS_MIN: u64 = 2;
/// Seconds of the longest call that are aimed at.
const REACH_S: f64 = 5.0;

/// What a killed server was in the chain of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ChainRole {
    Head,
    Follower,
}

/// What a thread does to its files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DeathCall {
    Write,
    Read,
}

/// What is measured, and its name without what happens to the server.
const CELLS: [(ChainRole, DeathCall, &str); 4] = [
    (ChainRole::Head, DeathCall::Write, "longest write+fsync, the head"),
    (ChainRole::Head, DeathCall::Read, "longest read, the head"),
    (ChainRole::Follower, DeathCall::Write, "longest write+fsync, a follower"),
    (ChainRole::Follower, DeathCall::Read, "longest read, a follower"),
];

/// What happens to a server.
pub(super) struct DeathKind {
    row: &'static str,
    /// In the names of figures, and in that of the number of calls.
    verb: &'static str,
    calls: &'static str,
    /// It stands still until it goes on, and is not killed and started again.
    halts: bool,
}

/// It is killed.
pub(super) const KILLED: DeathKind =
    DeathKind { row: "dies", verb: "dies", calls: "calls_after_the_kill", halts: false };
/// It stands still.
pub(super) const HALTED: DeathKind =
    DeathKind { row: "freezes", verb: "stands still", calls: "calls_after_the_halt", halts: true };

impl DeathKind {
    fn begin(&self, place: &mut CopiesPlace, ost: usize) {
        match self.halts {
            true => place.halt(ost, true),
            false => place.kill(ost),
        }
    }

    fn end(&self, place: &mut CopiesPlace, ost: usize) -> Result<(), String> {
        match self.halts {
            true => {
                place.halt(ost, false);
                Ok(())
            }
            false => place.start_again(ost),
        }
    }
}

/// Calls that ended after a kill.
#[derive(Default)]
struct CallsSeen {
    calls: u64,
    longest: Duration,
    errors: u64,
}

impl CallsSeen {
    fn add(&mut self, other: &CallsSeen) {
        self.calls += other.calls;
        self.longest = self.longest.max(other.longest);
        self.errors += other.errors;
    }
}

/// A kill, as the threads see it.
struct Death {
    /// When the server was dead.
    killed: OnceLock<Instant>,
    is_over: AtomicBool,
    /// Calls of each thread that ended after that.
    ended: Vec<AtomicU64>,
}

/// Bytes on all servers.
pub(super) fn needed() -> u64 {
    super::place::SERVERS * (FILES * CALL_BYTES) as u64
}

/// Measures the row.
pub(super) fn measure(
    setting: &CopiesSetting<'_>,
    kind: &DeathKind,
) -> Result<Vec<CopiesFigure>, String> {
    let mut place = CopiesPlace::new(setting.data)?;
    let directory = place.directory("files", "replicas=3 stripe_count=1")?;
    let mut paths = Vec::new();
    for number in 0..FILES {
        let path = directory.join(number.to_string());
        std::fs::write(&path, vec![0_u8; CALL_BYTES])
            .map_err(|e| format!("{}: {e}", path.display()))?;
        paths.push(path);
    }
    let mut seen: [CallsSeen; CELLS.len()] = Default::default();
    for ost in 1..=place.cluster.osses.len() {
        place.settle(setting.asked)?;
        eprintln!("{}: the server of ost {ost}", kind.row);
        let of_death = death(&mut place, &paths, (ost, kind), setting)?;
        seen.iter_mut().zip(&of_death).for_each(|(all, some)| all.add(some));
    }
    let mut errors = 0;
    let mut figures = Vec::new();
    for ((_, _, name), seen) in CELLS.iter().zip(&seen) {
        errors += seen.errors;
        figures.push(CopiesFigure {
            row: kind.row,
            name: format!("{name} {}", kind.verb),
            value: (seen.calls > 0).then_some(seen.longest.as_secs_f64()),
            unit: "s",
            reach: Some(CopiesReach::AtMost(REACH_S)),
            parts: vec![(kind.calls.into(), seen.calls as f64)],
        });
    }
    figures.push(CopiesFigure {
        row: kind.row,
        name: "errors".into(),
        value: Some(errors as f64),
        unit: "calls",
        reach: Some(CopiesReach::AtMost(0.0)),
        parts: vec![("deaths".into(), place.cluster.osses.len() as f64)],
    });
    Ok(figures)
}

/// Has the server of an OST die under load, and come back. Returns the calls of each cell.
fn death(
    place: &mut CopiesPlace,
    paths: &[PathBuf],
    (ost, kind_of_death): (usize, &DeathKind),
    setting: &CopiesSetting<'_>,
) -> Result<[CallsSeen; CELLS.len()], String> {
    let chains = place.cluster.chains()?;
    let mut by_role: [Vec<&Path>; 2] = Default::default();
    for path in paths {
        let role = role_in(&chains, &chain_of(path)?, ost as u64)?;
        by_role[role as usize].push(path);
    }
    let mut shares = Vec::new();
    for (cell, (role, kind, name)) in CELLS.iter().enumerate() {
        let all = &by_role[*role as usize];
        // Half of the files are written, the others are read.
        let its = all.iter().skip(*kind as usize).step_by(2);
        let its: Vec<File> = its.map(|path| open(path)).collect::<Result<_, _>>()?;
        if its.is_empty() {
            return Err(format!("{name}: no file has ost {ost} in that role: {chains}"));
        }
        for thread in 0..THREADS {
            let of_thread: Vec<&File> = its.iter().skip(thread).step_by(THREADS).collect();
            // With one file only all threads have it.
            let of_thread = if of_thread.is_empty() { its.iter().collect() } else { of_thread };
            let own: std::io::Result<Vec<File>> =
                of_thread.into_iter().map(File::try_clone).collect();
            shares.push((cell, *kind, own.map_err(|e| e.to_string())?));
        }
    }
    let death = Death {
        killed: OnceLock::new(),
        is_over: AtomicBool::new(false),
        ended: shares.iter().map(|_| AtomicU64::new(0)).collect(),
    };
    let mut seen: [CallsSeen; CELLS.len()] = Default::default();
    let ended = std::thread::scope(|scope| {
        let death = &death;
        let threads: Vec<_> = shares
            .iter()
            .enumerate()
            .map(|(thread, (cell, kind, files))| {
                (*cell, scope.spawn(move || death.calls(thread, *kind, files)))
            })
            .collect();
        let ended = kill(place, death, (ost, kind_of_death), setting);
        death.is_over.store(true, Ordering::Relaxed);
        // Calls that still wait for it end now.
        let started = kind_of_death.end(place, ost);
        for (cell, thread) in threads {
            if let Ok(calls) = thread.join() {
                seen[cell].add(&calls);
            }
        }
        ended.and(started)
    });
    ended?;
    place.cluster.wait_until_whole(PATIENCE, setting.asked)?;
    Ok(seen)
}

/// Has the server die, and returns when calls of all threads have gone on without it, or that takes
/// too long.
fn kill(
    place: &mut CopiesPlace,
    death: &Death,
    (ost, kind): (usize, &DeathKind),
    setting: &CopiesSetting<'_>,
) -> Result<(), String> {
    let slept = sleep(BEFORE, setting.asked);
    kind.begin(place, ost);
    let killed = *death.killed.get_or_init(Instant::now);
    slept?;
    while killed.elapsed() < setting.dies {
        if setting.asked() {
            return Err("interrupted".into());
        }
        let ended = death.ended.iter().all(|ended| ended.load(Ordering::Relaxed) >= CALLS_MIN);
        if ended && is_out(&place.cluster.chains()?, ost as u64) {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

impl Death {
    /// Calls of one thread, until all is over.
    fn calls(&self, thread: usize, kind: DeathCall, files: &[File]) -> CallsSeen {
        let mut seen = CallsSeen::default();
        let mut buffer = vec![3; CALL_BYTES];
        for file in files.iter().cycle() {
            if self.is_over.load(Ordering::Relaxed) {
                break;
            }
            let begun = Instant::now();
            let done = call(file, kind, &mut buffer);
            let ended = Instant::now();
            if let Err(error) = done {
                if seen.errors == 0 {
                    eprintln!("{kind:?}: {error}");
                }
                seen.errors += 1;
            }
            if self.killed.get().is_some_and(|killed| ended > *killed) {
                seen.calls += 1;
                seen.longest = seen.longest.max(ended.saturating_duration_since(begun));
                self.ended[thread].fetch_add(1, Ordering::Relaxed);
            }
        }
        seen
    }
}

fn open(path: &Path) -> Result<File, String> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|e| format!("{}: {e}", path.display()))
}

fn call(file: &File, kind: DeathCall, buffer: &mut [u8]) -> std::io::Result<()> {
    match kind {
        DeathCall::Write => {
            file.write_all_at(buffer, 0)?;
            file.sync_all()
        }
        DeathCall::Read => {
            forget_cached(file, false)?;
            file.read_exact_at(buffer, 0)
        }
    }
}

/// Name of the chain that has the first stripe of a file.
fn chain_of(path: &Path) -> Result<String, String> {
    let mut value = [0; 256];
    let bytes = rustix::fs::getxattr(path, "glint.layout", &mut value[..])
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let layout = String::from_utf8_lossy(&value[..bytes]).into_owned();
    chain_in(&layout).ok_or_else(|| format!("{} has no copies: {layout}", path.display()))
}

fn chain_in(layout: &str) -> Option<String> {
    let of = |key: &str| layout.split_whitespace().find_map(|word| word.strip_prefix(key));
    Some(format!("{}x{}", of("replicas=")?, of("first_ost=")?))
}

/// The role of an OST in a chain: the head is the first member that serves.
fn role_in(chains: &Value, chain: &str, ost: u64) -> Result<ChainRole, String> {
    let mut rows = chains["rows"].as_array().into_iter().flatten();
    let row = rows.find(|row| row["id"] == chain);
    let members = row.and_then(|row| row["members"].as_array());
    let members = members.ok_or_else(|| format!("there is no chain {chain}: {chains}"))?;
    if !members.iter().any(|member| member["ost"] == ost) {
        return Err(format!("chain {chain} has no member on ost {ost}: {chains}"));
    }
    let head = members.iter().find(|member| member["state"] == "serving");
    match head.is_some_and(|head| head["ost"] == ost) {
        true => Ok(ChainRole::Head),
        false => Ok(ChainRole::Follower),
    }
}

/// Whether no chain counts on an OST any more, where it is a member of each.
fn is_out(chains: &Value, ost: u64) -> bool {
    let states = chains["not_serving"].as_array().into_iter().flatten();
    let its = states.filter(|state| state["ost"] == ost);
    let out: u64 = its.filter_map(|state| state["chains"].as_u64()).sum();
    Some(out) == chains["count"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_have_the_role_of_their_chain() {
        let layout = "stripe_count=1 stripe_size=4194304 first_ost=7 osts=48 replicas=3";
        assert_eq!(chain_in(layout).as_deref(), Some("3x7"));
        assert_eq!(chain_in("stripe_count=1 first_ost=7 osts=48"), None);
        let member = |ost: u64, state: &str| json!({"ost": ost, "state": state});
        let members = [member(2, "offline"), member(1, "serving"), member(0, "serving")];
        let chains = json!({
            "count": 1, "rows": [{"id": "3x7", "members": members}],
            "not_serving": [{"ost": 2, "state": "offline", "chains": 1}],
        });
        for (ost, role) in [(0, ChainRole::Follower), (1, ChainRole::Head)] {
            assert_eq!(role_in(&chains, "3x7", ost), Ok(role));
        }
        assert!(role_in(&chains, "3x7", 3).is_err() && role_in(&chains, "3x8", 1).is_err());
        assert!(is_out(&chains, 2) && !is_out(&chains, 1));
    }
}
