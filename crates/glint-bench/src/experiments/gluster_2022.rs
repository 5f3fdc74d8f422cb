//! The experiment of GlusterFS's issue on its index translator (2022): smallfile creates and
//! removes 80 000 files four times on the same volume, on which the last time had 0.56 of the rate
//! of the first one; then all operations of its daily benchmark. With latencies by layer, by which
//! they found what was slow.

mod describe;
mod sites;

use super::stage::Stage;
use crate::sample::ratio;
use crate::smallfile::{
    Asked,
    BenchedDir,
    Figures,
    SmallfileOp,
    Volume,
    Workload,
    finish,
    rounds, //
};
use crate::unwritten::Unwritten;
use glint::{CommandResult, program, say};
use serde_json::{Value, json};
use sites::Site;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// How often the volume is used again.
const RUNS: usize = 4;
/// The operations of each of these runs: directories, files, and their removal.
const AGING: [SmallfileOp; 3] = [SmallfileOp::Tree, SmallfileOp::Create, SmallfileOp::Cleanup];

/// The work of the experiment, and where it is done.
pub(crate) struct Setting {
    /// Directories; if there are none, a mount that is made for it.
    pub targets: Vec<BenchedDir>,
    /// The directory that they are compared with.
    pub against: Option<BenchedDir>,
    /// Where a mount is made.
    pub data: PathBuf,
    /// Servers of a mount that is made.
    pub servers: u64,
    /// The work.
    pub workload: Workload,
    /// Times all operations are done.
    pub rounds: u64,
}

/// One run on one directory.
struct Run {
    /// In the order of [`AGING`].
    figures: [Figures; 3],
    /// Rows of `glint stats`, up to the end of the create.
    layers: Vec<Value>,
}

/// A directory, and all that was measured there.
struct Measured {
    directory: BenchedDir,
    runs: Vec<Run>,
    /// In the order of [`SmallfileOp::ALL`].
    figures: Vec<Figures>,
}

impl Measured {
    fn create(&self, run: usize) -> f64 {
        self.runs[run].figures[1].per_s()
    }
}

/// Statistics of a directory: of its mount, and of servers that are known.
struct Layers {
    /// Each with the number of its server, if there are several.
    sources: Vec<(String, Option<usize>)>,
}

impl Layers {
    /// Keeps the sources that answer.
    fn of(mount: String, servers: &[String]) -> Layers {
        let several = servers.len() > 1;
        let numbered = servers.iter().zip(1..).map(|(at, n)| (at.clone(), several.then_some(n)));
        let mut sources = vec![(mount, None)];
        sources.extend(numbered);
        sources.retain(|(source, _)| stats(source, "--json").is_some());
        Layers { sources }
    }

    fn reset(&self) -> Result<(), String> {
        for (source, _) in &self.sources {
            stats(source, "--reset").ok_or_else(|| format!("`glint stats {source}` failed"))?;
        }
        Ok(())
    }

    fn rows(&self) -> Result<Vec<Value>, String> {
        let mut rows = Vec::new();
        for (source, number) in &self.sources {
            let failed = || format!("`glint stats {source}` failed");
            let text = String::from_utf8(stats(source, "--json").ok_or_else(failed)?.stdout);
            let first = rows.len();
            for line in text.map_err(|e| e.to_string())?.lines() {
                rows.push(serde_json::from_str(line).map_err(|e| format!("{source}: {e}"))?);
            }
            if let Some(number) = number {
                sites::name_server(&mut rows[first..], *number);
            } else if self.sources.len() > 1 && first == 0 {
                // A mount asks the server of the MDS, too.
                rows.retain(|row: &Value| row["process"] != "server");
            }
        }
        Ok(rows)
    }
}

fn stats(source: &str, option: &str) -> Option<Output> {
    let output = Command::new(program::path("glint")).args(["stats", source, option]).output();
    output.ok().filter(|output| output.status.success())
}

/// Runs the experiment.
pub(crate) fn run(
    setting: Setting,
    report: Option<&Path>,
    as_json: bool,
    asked: Asked<'_>,
) -> CommandResult {
    let Setting { mut targets, mut against, data, servers, workload, rounds: times } = setting;
    let mut stage = None;
    let mut addresses = Vec::new();
    let mut unwritten = Unwritten::Anywhere;
    if targets.is_empty() {
        sites::check_space(&data, &workload)?;
        let stage = stage.insert(Stage::apart(&data)?);
        for Site { directory, servers } in sites::serve(stage, servers)? {
            targets.push(directory);
            addresses.push(servers);
        }
        let path = stage.path("local")?;
        let local = BenchedDir { name: "local".into(), path: path.clone() };
        let local = against.get_or_insert(local).path.clone();
        // Servers have their data beside the first of them.
        unwritten = Unwritten::In(if local == path { vec![path] } else { vec![path, local] });
    }
    let compared = against.is_some();
    let directories: Vec<BenchedDir> = targets.into_iter().chain(against).collect();
    let work = (workload, &unwritten);
    let runs = age(&directories, &addresses, work, asked)?;
    eprintln!("all operations, {times} rounds");
    let all = rounds(&directories, work, &SmallfileOp::ALL, times, asked)?;
    finish(&directories, &SmallfileOp::ALL, &all)?;
    let measured: Vec<Measured> = directories
        .into_iter()
        .zip(runs)
        .zip(all)
        .map(|((directory, runs), figures)| Measured { directory, runs, figures })
        .collect();
    let against = compared.then(|| measured.len() - 1);
    if as_json {
        lines(&measured, against, &workload).iter().for_each(|line| say!("{line}"));
    }
    if !as_json || report.is_some() {
        let servers = if addresses.is_empty() { None } else { Some(servers) };
        describe::describe(&measured, against, &workload, (times, servers)).finish(report)?;
    }
    finish(&[], &[], &[])
}

/// Creates and cleans up, again and again on the same volumes.
fn age(
    directories: &[BenchedDir],
    servers: &[Vec<String>],
    (workload, unwritten): (Workload, &Unwritten),
    asked: Asked<'_>,
) -> Result<Vec<Vec<Run>>, String> {
    let mut volumes = Vec::new();
    for (index, directory) in directories.iter().enumerate() {
        let volume = Volume::new(&directory.path, workload)?.after(unwritten);
        let top = std::path::absolute(volume.top()).map_err(|e| e.to_string())?;
        let own = top.to_string_lossy().into_owned();
        let servers = servers.get(index).map_or(&[][..], Vec::as_slice);
        volumes.push((volume, Layers::of(own, servers)));
    }
    let mut all: Vec<Vec<Run>> = directories.iter().map(|_| Vec::new()).collect();
    for run in 0..RUNS {
        for (index, (volume, layers)) in volumes.iter_mut().enumerate() {
            let name = &directories[index].name;
            eprintln!("run {} of {RUNS}: {name}", run + 1);
            layers.reset()?;
            let mut measured = Run { figures: Default::default(), layers: Vec::new() };
            for (op, figures) in AGING.into_iter().zip(&mut measured.figures) {
                figures.add(volume.run(op, asked)?);
                figures.check(op, name)?;
                if op == SmallfileOp::Create {
                    measured.layers = layers.rows()?;
                }
            }
            all[index].push(measured);
        }
    }
    Ok(all)
}

fn lines(measured: &[Measured], against: Option<usize>, workload: &Workload) -> Vec<Value> {
    let mut lines = Vec::new();
    for own in measured {
        for (run, figures) in own.runs.iter().enumerate() {
            for (op, figures) in AGING.iter().zip(&figures.figures) {
                let mut line = figures.line(*op, workload);
                line["run"] = json!(run + 1);
                let first =
                    own.runs[0].figures[AGING.iter().position(|o| o == op).unwrap_or(0)].per_s();
                line["to_first_run"] = json!(ratio(figures.per_s(), first));
                lines.push((own, line));
            }
        }
        for (index, (op, figures)) in SmallfileOp::ALL.iter().zip(&own.figures).enumerate() {
            let mut line = figures.line(*op, workload);
            if let Some(theirs) = against.map(|at| &measured[at]) {
                line["against"] = json!(theirs.directory.name);
                line["ratio"] = json!(ratio(figures.per_s(), theirs.figures[index].per_s()));
            }
            lines.push((own, line));
        }
    }
    let named = |(own, mut line): (&Measured, Value)| {
        line["experiment"] = json!("gluster-2022");
        line["target"] = json!(own.directory.name);
        line
    };
    lines.into_iter().map(named).collect()
}
