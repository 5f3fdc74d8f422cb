//! The experiment of Lustre's createmany (lustre-devel, February 2009): 150 000 files
//! in one directory, made by one process on the metadata server's own node.

use super::report::{Plot, Report};
use super::stage::Stage;
use crate::rounds::{BenchTarget, Operation, Round, native, posix};
use crate::sample::{median, ratio};
use glint::{CommandResult, say};
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

const RUNS: usize = 5;
const OPERATIONS: [Operation; 3] = [Operation::Open, Operation::Mknod, Operation::Mkdir];
/// Results that Lustre published for its own local file system, before and after its changes.
const PUBLISHED: (f64, f64) = (0.17, 0.34);
const TMPFS: &str = "/dev/shm";

/// Results of one target: rates of the runs, and latencies.
struct Row {
    target: &'static str,
    rates: Vec<f64>,
    p50: f64,
    p99: f64,
}

impl Row {
    fn spread(&self) -> f64 {
        let max = self.rates.iter().copied().fold(0.0, f64::max);
        let min = self.rates.iter().copied().fold(f64::MAX, f64::min);
        (max - min) / median(self.rates.clone()) * 100.0
    }

    /// Median of the ratios of runs that followed each other.
    fn against(&self, other: &Row) -> f64 {
        let pairs = self.rates.iter().zip(&other.rates);
        median(pairs.map(|(ours, theirs)| ratio(*ours, *theirs)).collect())
    }
}

/// Runs the experiment.
pub(crate) fn run(
    count: u64,
    parent: &Path,
    report: Option<&Path>,
    as_json: bool,
) -> CommandResult {
    let mut stage = Stage::new(parent)?;
    let local = stage.path("local")?;
    let mount = stage.mount("mnt", true, "transport=auto")?;
    let null = stage.mount("null", false, "transport=auto")?;
    let served = stage.serve("tcp", "", &[])?;
    let mut out = Report::new("lustre-2009", "createmany: many files in one directory");
    out.say(&format!(
        "{count} files in one directory, one process, {RUNS} runs in turns; medians, and the spread \
         of the runs (max - min over median). *To local* and *to null mount* are medians of the \
         ratios of runs that followed each other. Again with \
         `glint bench createmany --experiment lustre-2009 --count {count}`."
    ));
    out.say(&format!(
        "Lustre had {:.2} of its own local file system before its changes and {:.2} after \
         them, with client and server on one node.",
        PUBLISHED.0, PUBLISHED.1
    ));
    let mut lines = Vec::new();
    for op in OPERATIONS {
        glint_telemetry::reset();
        let mut rows: Vec<Row> = Vec::new();
        for run in 0..RUNS {
            let mut targets: Vec<(&'static str, Box<dyn BenchTarget>)> = vec![
                ("local", Box::new(posix::Directory::new(&local, false)?)),
                ("tmpfs", Box::new(posix::Directory::new(Path::new(TMPFS), false)?)),
                ("native", Box::new(native::InProcessTarget::new(&local)?)),
                ("null mount", Box::new(posix::Directory::new(&null, false)?)),
                ("mount", Box::new(posix::Directory::new(&mount, false)?)),
                ("TCP", Box::new(native::RemoteTarget::new(&served.address, 1)?)),
            ];
            for (index, (target, work)) in targets.iter_mut().enumerate() {
                eprintln!("{} run {} of {RUNS}: {target}", op.name(), run + 1);
                let sample = work.run(Round { op, from: 0, count, procs: 1, outstanding: 1 })?;
                if run == 0 {
                    let rates = Vec::new();
                    rows.push(Row { target, rates, p50: 0.0, p99: 0.0 });
                }
                let row = &mut rows[index];
                row.rates.push(sample.per_s());
                (row.p50, row.p99) = (sample.micros(0.5), sample.micros(0.99));
            }
        }
        lines.extend(rows.iter().map(|row| as_line(op, count, row, &rows)));
        describe(&mut out, op, &rows);
        if op == Operation::Open {
            layers(&mut out, count * RUNS as u64);
        }
    }
    if as_json {
        lines.iter().for_each(|line| say!("{line}"));
    }
    if !as_json || report.is_some() {
        out.finish(report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn as_line(op: Operation, count: u64, row: &Row, rows: &[Row]) -> Value {
    json!({
        "bench": "createmany", "experiment": "lustre-2009", "op": op.name(), "count": count,
        "target": row.target,
        "per_s": median(row.rates.clone()).round(),
        "spread_percent": row.spread().round(),
        "us_p50": row.p50, "us_p99": row.p99,
        "to_local": row.against(&rows[0]),
        "to_tmpfs": row.against(&rows[1]),
        "to_null_mount": row.against(&rows[3]),
    })
}

fn describe(out: &mut Report, op: Operation, rows: &[Row]) {
    out.say(&format!("## {}", op.name()));
    let titles = [
        "target",
        "per second",
        "spread %",
        "p50 us",
        "p99 us",
        "to local",
        "to tmpfs",
        "to null mount",
    ];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    for row in rows {
        table.push(vec![
            row.target.to_owned(),
            format!("{:.0}", median(row.rates.clone())),
            format!("{:.0}", row.spread()),
            row.p50.to_string(),
            row.p99.to_string(),
            format!("{:.2}", row.against(&rows[0])),
            format!("{:.2}", row.against(&rows[1])),
            format!("{:.2}", row.against(&rows[3])),
        ]);
    }
    out.table(&table);
    let bars = rows.iter().map(|row| (row.target.to_owned(), median(row.rates.clone()))).collect();
    out.plot(
        op.name(),
        Plot { title: format!("{} per second", op.name()), bars, ..Plot::default() },
    );
}

/// Time of a native create by layer, as this process has recorded it.
fn layers(out: &mut Report, creates: u64) {
    let mut table = vec![vec!["layer".to_owned(), "operation".into(), "us per create".into()]];
    for row in glint_net::stats::rows("native") {
        let each = row["self_sum"].as_f64().unwrap_or(0.0) / creates as f64;
        // Clients of the TCP server are in this process, too.
        if each >= 0.01 && row["layer"] != "net_send" {
            let text = |key: &str| row[key].as_str().unwrap_or("").to_owned();
            table.push(vec![text("layer"), text("op"), format!("{each:.2}")]);
        }
    }
    out.say("Where the time goes in this process (native and the client side of TCP), by layer, each less the layers below it:");
    out.table(&table);
}
