//! Rounds: each row on the local file system, on a null mount if that is asked for, then on each
//! setup; after a fresh mount wherever there is one.

use super::commands::{self, FioEnd};
use super::material::{LARGE, Lists, Material, Place, REPOSITORY, WorkPlaces};
use super::rows::{Job, REQUEST, WorkRow};
use super::switches::{SwitchCount, SwitchWatch, Switcher};
use super::turns::TreeTurns;
use crate::experiments::stage::{Served, Stage};
use crate::ior::{Pattern, read_pattern};
use crate::sample::median;
use crate::smallfile::{Asked, SmallfileOp};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// Where the mounts of an own file system are, in the stage: most rows have the first one only.
pub(super) const MOUNTS: [&str; 2] = ["mnt", "mnt-2"];
/// Where the null mount is.
pub(super) const NULL_MOUNT: &str = "null";
/// One thing that git says of a repository in which nothing has changed: nothing.
const GIT_STATUS: &str = "test -z \"$(git status --porcelain)\"";

/// Random reads are of one block in so many of the large file: hardly two jobs read the same one.
const READ_PART: u64 = 4;
/// Bytes of a random read.
const BLOCK: u64 = 4096;

/// What is measured against the local file system.
pub(super) enum WorkMounts<'a> {
    /// Mounts of an own file system, afresh for each row, with each of these options in turns.
    Own {
        /// Where they are.
        stage: &'a mut Stage,
        /// The server; none where `glint up` is one with each mount.
        served: Option<Served>,
        /// Options of a mount; empty for those that it has by itself.
        options: Vec<String>,
    },
    /// A directory of any file system.
    Other {
        /// Where the null mount is.
        stage: &'a mut Stage,
        /// Command that mounts it afresh.
        remount: Option<String>,
    },
}

/// Requests by operation.
type Counts = BTreeMap<String, u64>;

/// One row on one side.
struct Done {
    /// Units in a second.
    per_s: f64,
    /// Units for which requests are counted.
    units: f64,
}

/// Figures of a row, of one setup or of the local file system.
#[derive(Default)]
pub(super) struct RowFigures {
    rates: Vec<f64>,
    requests: Vec<f64>,
    /// For each unit, voluntary and involuntary.
    switches: BTreeMap<Switcher, [Vec<f64>; 2]>,
    /// Requests of the last round, by operation.
    pub by_op: Counts,
}

impl RowFigures {
    /// Units in a second, the median of the rounds.
    pub(super) fn per_s(&self) -> f64 {
        median(self.rates.clone())
    }

    /// The same of a row that may have been left out.
    pub(super) fn per_s_if_done(&self) -> Option<f64> {
        (!self.rates.is_empty()).then(|| self.per_s())
    }

    /// Requests for each unit, the median of the rounds, if they were counted.
    pub(super) fn requests(&self) -> Option<f64> {
        (!self.requests.is_empty()).then(|| median(self.requests.clone()))
    }

    /// Context switches for each unit, voluntary and involuntary, the medians of the rounds.
    pub(super) fn switches(&self) -> BTreeMap<Switcher, [f64; 2]> {
        let medians = |rounds: &[Vec<f64>; 2]| rounds.each_ref().map(|all| median(all.clone()));
        self.switches.iter().map(|(who, rounds)| (*who, medians(rounds))).collect()
    }

    fn add_switches(&mut self, counts: BTreeMap<Switcher, SwitchCount>, units: f64) {
        for (who, count) in counts {
            let [voluntary, involuntary] = self.switches.entry(who).or_default();
            voluntary.push(count.voluntary as f64 / units);
            involuntary.push(count.involuntary as f64 / units);
        }
    }
}

/// All figures, by row.
pub(super) struct WorkFigures {
    /// Names of the setups.
    pub setups: Vec<String>,
    /// Of each row, of the local file system.
    pub local: Vec<RowFigures>,
    /// Of each row, of the null mount, if there is one.
    pub null: Option<Vec<RowFigures>>,
    /// Of each setup, of each row.
    pub mounted: Vec<Vec<RowFigures>>,
}

impl WorkMounts<'_> {
    fn stage(&mut self) -> &mut Stage {
        match self {
            WorkMounts::Own { stage, .. } | WorkMounts::Other { stage, .. } => stage,
        }
    }

    /// Names of the setups: the options of the mounts.
    fn setups(&self) -> Vec<String> {
        match self {
            WorkMounts::Own { options, .. } => options.clone(),
            WorkMounts::Other { .. } => vec![String::new()],
        }
    }

    /// Mounts so many times afresh. Returns the requests so far.
    pub(super) fn mount(
        &mut self,
        setup: usize,
        mounts: usize,
        place: &Place,
        asked: Asked<'_>,
    ) -> Result<Option<Counts>, String> {
        match self {
            WorkMounts::Own { stage, served, options } => match served {
                None => {
                    stage.mount(MOUNTS[0], true, &options[setup])?;
                    Ok(None)
                }
                Some(served) => {
                    for name in &MOUNTS[..mounts] {
                        stage.mount_with(name, &served.address, &options[setup])?;
                    }
                    served.requests().map(Some)
                }
            },
            WorkMounts::Other { remount, .. } => {
                let parent = place.base.parent().unwrap_or(Path::new("/"));
                let target = [("TARGET", parent)];
                if let Some(command) = remount {
                    commands::script(command, Path::new("/"), &target, asked)?;
                }
                Ok(None)
            }
        }
    }

    /// Processes of the mounts and of the server, as far as they are known.
    fn processes(&self) -> Result<Vec<(Switcher, u32)>, String> {
        let WorkMounts::Own { stage, served, .. } = self else { return Ok(Vec::new()) };
        let mut processes = Vec::new();
        for name in MOUNTS {
            let mount = stage.mount_pid(&stage.path(name)?);
            processes.extend(mount.map(|pid| (Switcher::Mounts, pid)));
        }
        processes.extend(served.iter().map(|served| (Switcher::Server, served.pid)));
        Ok(processes)
    }

    /// Ends the mounts. Returns the requests since `before`, by operation.
    pub(super) fn unmount(&mut self, before: Option<Counts>) -> Result<Option<Counts>, String> {
        let WorkMounts::Own { stage, served, .. } = self else { return Ok(None) };
        for name in MOUNTS {
            let mount = stage.path(name)?;
            stage.unmount(&mount);
        }
        let (Some(served), Some(before)) = (served, before) else { return Ok(None) };
        let mut counts = served.requests()?;
        for (op, count) in &mut counts {
            *count -= before.get(op).copied().unwrap_or(0).min(*count);
        }
        counts.retain(|_, count| *count > 0);
        Ok(Some(counts))
    }
}

/// Makes what the rows need at all places, and leaves it to the servers and the disk.
pub(super) fn prepare(
    material: &Material,
    mounts: &mut WorkMounts<'_>,
    places: &mut WorkPlaces,
    asked: Asked<'_>,
) -> Result<(), String> {
    let start = Instant::now();
    eprintln!("making the files: local");
    material.make(&mut places.local, asked)?;
    places.show_null();
    eprintln!("making the files: mounted");
    let before = mounts.mount(0, 1, &places.mounted, asked)?;
    material.make(&mut places.mounted, asked)?;
    mounts.unmount(before)?;
    rustix::fs::sync();
    eprintln!("  {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Measures the rows in so many rounds, after one that does not count: it fills the caches of the
/// server and of the local file system, and it compares what is read.
pub(super) fn rounds(
    rows: &[&WorkRow],
    rounds: u64,
    mounts: &mut WorkMounts<'_>,
    places: &mut WorkPlaces,
    lists: &Lists,
    asked: Asked<'_>,
) -> Result<WorkFigures, String> {
    let setups = mounts.setups();
    let none = || rows.iter().map(|_| RowFigures::default()).collect::<Vec<_>>();
    let mounted = setups.iter().map(|_| none()).collect();
    let null = places.null.is_some().then(none);
    let mut all = WorkFigures { setups, local: none(), null, mounted };
    let mut left = String::new();
    for round in 0..=rounds {
        let start = Instant::now();
        match round {
            0 => eprintln!("a round that does not count, in which data is compared:"),
            round => eprintln!("round {round} of {rounds}{left}"),
        }
        for (index, row) in rows.iter().enumerate() {
            let is_first = round == 0;
            let named = |why: String| if asked() { "interrupted".into() } else { why };
            let since = |from: Instant| format!("{:.1} s", from.elapsed().as_secs_f64());
            let from = Instant::now();
            let done = one(row, &mut places.local, lists, is_first, asked).map_err(named)?;
            let mut took = vec![format!("{} local", since(from))];
            if !is_first {
                all.local[index].rates.push(done.per_s);
            }
            let from = Instant::now();
            let done = on_null(row, mounts, places, lists, asked).map_err(named)?;
            if let (Some(done), Some(null)) = (done, &mut all.null) {
                took.push(format!("{} null mount", since(from)));
                if !is_first {
                    null[index].rates.push(done.per_s);
                }
            }
            let place = &mut places.mounted;
            for (setup, figures) in all.mounted.iter_mut().enumerate() {
                let from = Instant::now();
                let before = mounts.mount(setup, row.job.mounts(), place, asked).map_err(named)?;
                let watch = SwitchWatch::start(&mounts.processes().map_err(named)?);
                let done = one(row, place, lists, is_first, asked).map_err(named)?;
                let switches = watch.end();
                let counts = mounts.unmount(before).map_err(named)?;
                took.push(since(from));
                let figures = &mut figures[index];
                if let Some(counts) = counts.filter(|_| !is_first) {
                    figures.requests.push(counts.values().sum::<u64>() as f64 / done.units);
                    figures.by_op = counts;
                }
                if !is_first {
                    figures.rates.push(done.per_s);
                    figures.add_switches(switches, done.units);
                }
            }
            if is_first {
                eprintln!("  {}: {} mounted", row.title, took.join(", "));
            }
        }
        let more = (rounds - round) as f64 * start.elapsed().as_secs_f64();
        left = format!(", {more:.0} s to go");
    }
    Ok(all)
}

/// Does a row on the null mount, if there is one and it can be done there.
fn on_null(
    row: &WorkRow,
    mounts: &mut WorkMounts<'_>,
    places: &mut WorkPlaces,
    lists: &Lists,
    asked: Asked<'_>,
) -> Result<Option<Done>, String> {
    let Some(null) = places.null.as_mut().filter(|_| !row.job.needs_data()) else {
        return Ok(None);
    };
    mounts.stage().mount_null_like(NULL_MOUNT, &places.local.base)?;
    // What IOR reads is not what it wrote.
    let is_compared = false;
    let done = one(row, null, lists, is_compared, asked)?;
    mounts.stage().unmount(&null.base);
    Ok(Some(done))
}

/// Does a row at one place.
fn one(
    row: &WorkRow,
    place: &mut Place,
    lists: &Lists,
    is_compared: bool,
    asked: Asked<'_>,
) -> Result<Done, String> {
    let base = place.base.as_path();
    let variables = [("NAMES", lists.names.as_path()), ("SHUFFLED", lists.shuffled.as_path())];
    let of_files = |files: u64, seconds: f64| {
        let units = files as f64;
        Done { per_s: units / seconds, units }
    };
    match row.job {
        Job::Script { script, trees } => {
            let seconds = commands::script(script, base, &variables, asked)?;
            Ok(of_files(lists.amounts.files * trees, seconds))
        }
        Job::GitStatus => {
            let seconds = commands::script(GIT_STATUS, &base.join(REPOSITORY), &[], asked)?;
            Ok(of_files(lists.amounts.files, seconds))
        }
        Job::Smallfile(threads) => {
            let volume = place.volumes.iter_mut().find(|(of, _)| *of == threads);
            let (_, volume) = volume.ok_or("the trees of smallfile were not made")?;
            let outcome = volume.run(SmallfileOp::Read, asked)?;
            match outcome.unfinished {
                Some(why) => Err(format!("{} in {}: {why}", row.title, place.base.display())),
                None => Ok(Done { per_s: outcome.sample.per_s(), units: outcome.finished as f64 }),
            }
        }
        Job::Ior { readers, transfer, strided, random, opened } => {
            let path = base.join(LARGE);
            let open = opened.then(|| File::open(&path)).transpose();
            let _open = open.map_err(|e| format!("{}: {e}", path.display()))?;
            let total = lists.amounts.large;
            let pattern = Pattern { writers: readers, transfer, total, strided, random };
            let targets = [base.to_owned()];
            let seconds = read_pattern(&targets, LARGE, pattern, is_compared)?;
            let bytes = pattern.bytes() as f64;
            Ok(Done { per_s: bytes / 1e6 / seconds, units: bytes / REQUEST as f64 })
        }
        Job::RandomRead(jobs) => {
            let end = match place.is_local {
                true => FioEnd::Second,
                false => FioEnd::Bytes(lists.amounts.large / READ_PART / jobs / BLOCK * BLOCK),
            };
            let (per_s, units) = commands::fio(jobs, base, LARGE, end, asked)?;
            Ok(Done { per_s, units })
        }
        Job::Turns(by) => {
            let bases = [base, place.beside.as_path()];
            let turns = TreeTurns::new(bases, lists.amounts.files, is_compared, asked);
            let (files, seconds) = turns.take(by)?;
            Ok(of_files(files, seconds))
        }
    }
}
