//! The experiment of Lustre's single shared file (LU-8515: full extents, not counted pages): one
//! writer and eight, one client and eight, over 1 to 16 stripes of OSTs whose bandwidth is
//! limited, so that it shows how full their requests are and how well they are used.

use super::report::{Plot, Report};
use super::stage::{Served, Stage};
use crate::ior::{Pattern, Throughput, run_pattern};
use glint::{CommandResult, say};
use glint_proto::limits::BULK_BYTES_MAX;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const STRIPES: [u16; 4] = [1, 2, 8, 16];
const MOUNTS: usize = 8;
/// Seconds of writing at full bandwidth.
const SECONDS: u64 = 4;
/// Bytes of IOR's odd transfers in the published runs and their successors.
const ODD: usize = 47_008;
/// MB/s of one and of eight writers, before and after, over as many stripes.
const PUBLISHED: [(&str, [Option<f64>; 4]); 3] = [
    ("1 writer", [Some(330.0), Some(617.0), Some(1270.0), None]),
    ("8 writers, before", [Some(89.0), Some(176.0), Some(712.0), Some(1462.0)]),
    ("8 writers, after", [Some(344.0), Some(608.0), Some(1950.0), Some(3082.0)]),
];
/// Counters of requests with data, by how much they bring.
const SIZES: [(&str, &str); 4] = [
    ("<= 64 KiB", "object_writes_to_64k"),
    ("<= 1 MiB", "object_writes_to_1m"),
    ("< 4 MiB", "object_writes_below_4m"),
    ("4 MiB", "object_writes_4m"),
];

/// A row of the experiment.
struct Case {
    name: &'static str,
    /// Count dirty pages, as Lustre did before its extents.
    pages: bool,
    mounts: usize,
    writers: usize,
    transfer: usize,
    strided: bool,
}

const CASES: [Case; 8] = [
    case("1 writer, counting pages", true, 1, 1, BULK_BYTES_MAX, false),
    case("8 writers, counting pages", true, 1, 8, BULK_BYTES_MAX, false),
    case("1 writer", false, 1, 1, BULK_BYTES_MAX, false),
    case("8 writers", false, 1, 8, BULK_BYTES_MAX, false),
    case("8 writers, strided 1 MiB", false, 1, 8, 1 << 20, true),
    case("4 writers, 47 008 bytes", false, 1, 4, ODD, false),
    case("8 mounts", false, MOUNTS, 8, BULK_BYTES_MAX, false),
    case("8 mounts, strided 1 MiB", false, MOUNTS, 8, 1 << 20, true),
];

const fn case(
    name: &'static str,
    pages: bool,
    mounts: usize,
    writers: usize,
    transfer: usize,
    strided: bool,
) -> Case {
    Case { name, pages, mounts, writers, transfer, strided }
}

struct Row {
    case: &'static Case,
    stripes: u16,
    rates: Throughput,
    /// Of the bandwidth of all OSTs.
    efficiency: f64,
    sizes: [u64; 4],
}

impl Row {
    fn full(&self) -> f64 {
        self.sizes[3] as f64 / self.sizes.iter().sum::<u64>().max(1) as f64
    }
}

fn sizes(served: &Served) -> Result<[u64; 4], String> {
    let mut all = [0; 4];
    for (size, (_, counter)) in all.iter_mut().zip(SIZES) {
        *size = served.counter(counter)?;
    }
    Ok(all)
}

/// Runs the experiment.
pub(crate) fn run(
    parent: &Path,
    limit: u64,
    report: Option<&Path>,
    as_json: bool,
) -> CommandResult {
    let mut rows = Vec::new();
    for case in &CASES {
        let mut stage = Stage::new(parent)?;
        let (osts, limit_text) = (STRIPES[STRIPES.len() - 1].to_string(), limit.to_string());
        let served = stage.serve("ssf", "", &["--osts", &osts, "--ost-bandwidth", &limit_text])?;
        let mounts = (0..case.mounts)
            .map(|n| stage.mount_remote(&format!("mnt{n}"), &served.address, case.pages))
            .collect::<Result<Vec<PathBuf>, String>>()?;
        for stripes in STRIPES {
            eprintln!("{}, {stripes} stripes", case.name);
            rows.push(measure(case, stripes, limit, &served, &mounts)?);
        }
    }
    if as_json {
        for row in &rows {
            say!(
                "{}",
                json!({
                    "bench": "ior", "experiment": "lustre-ssf", "case": row.case.name,
                    "stripes": row.stripes, "limit": limit,
                    "write_mb_per_s": (row.rates.write / 1e6).round(),
                    "read_mb_per_s": (row.rates.read / 1e6).round(),
                    "efficiency": (row.efficiency * 1000.0).round() / 1000.0,
                    "full_requests": (row.full() * 1000.0).round() / 1000.0,
                    "requests": row.sizes,
                })
            );
        }
    }
    if !as_json || report.is_some() {
        describe(&rows, limit).finish(report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    case: &'static Case,
    stripes: u16,
    limit: u64,
    served: &Served,
    mounts: &[PathBuf],
) -> Result<Row, String> {
    let directory = format!("stripes-{stripes}");
    let path = mounts[0].join(&directory);
    std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let layout = format!("stripe_count={stripes}");
    rustix::fs::setxattr(&path, "glint.layout", layout.as_bytes(), rustix::fs::XattrFlags::empty())
        .map_err(|e| format!("{}: {e}", path.display()))?;
    // A whole number of requests for each writer and stripe.
    let unit = (BULK_BYTES_MAX * case.writers) as u64 * u64::from(stripes);
    let total = (limit * u64::from(stripes) * SECONDS).div_ceil(unit) * unit;
    let Case { writers, transfer, strided, .. } = *case;
    let pattern = Pattern { writers, transfer, total, strided, random: false };
    let targets: Vec<PathBuf> = mounts.iter().map(|mount| mount.join(&directory)).collect();
    let before = sizes(served)?;
    let rates = run_pattern(&targets, "shared", pattern)?;
    let mut counts = sizes(served)?;
    counts.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
    let efficiency = rates.write / (limit * u64::from(stripes)) as f64;
    Ok(Row { case, stripes, rates, efficiency, sizes: counts })
}

fn describe(rows: &[Row], limit: u64) -> Report {
    let mut out = Report::new("lustre-ssf", "One shared file, several writers");
    let mb = limit / 1_000_000;
    out.say(&format!(
        "One file over 1, 2, 8 and 16 OSTs of {mb} MB/s each, {SECONDS} seconds of it; written, \
         synced, and read back by another writer or mount, with the caches dropped, and every \
         word compared. *Counting pages* is the policy before the change that Lustre \
         describes: a request is sent when there are enough dirty pages for one, contiguous or \
         not. Again with `glint bench ior --experiment lustre-ssf --limit {limit}`."
    ));
    let text = |value: f64| format!("{value:.0}");
    let titles = ["MB/s written over stripes", "1", "2", "8", "16"].map(String::from);
    let mut published = vec![titles.to_vec()];
    for (name, values) in PUBLISHED {
        let mut row = vec![name.to_owned()];
        row.extend(values.map(|value| value.map_or("-".into(), text)));
        published.push(row);
    }
    out.say("Lustre, on a machine of its own:");
    out.table(&published);
    let mut table = vec![titles.to_vec()];
    let mut efficiency = vec![titles.to_vec()];
    let mut full = vec![titles.to_vec()];
    let mut read = vec![titles.to_vec()];
    efficiency[0][0] = "of the bandwidth of all OSTs".into();
    full[0][0] = "requests of 4 MiB".into();
    read[0][0] = "MB/s read".into();
    for case in &CASES {
        let own: Vec<&Row> = rows.iter().filter(|row| row.case.name == case.name).collect();
        let line = |value: &dyn Fn(&Row) -> String| {
            let mut line = vec![case.name.to_owned()];
            line.extend(own.iter().map(|row| value(row)));
            line
        };
        table.push(line(&|row| text(row.rates.write / 1e6)));
        efficiency.push(line(&|row| format!("{:.2}", row.efficiency)));
        full.push(line(&|row| format!("{:.1} %", row.full() * 100.0)));
        read.push(line(&|row| text(row.rates.read / 1e6)));
    }
    out.say("Here:");
    [table, efficiency, full, read].iter().for_each(|rows| out.table(rows));
    for stripes in [STRIPES[0], STRIPES[3]] {
        let of: Vec<&Row> = rows.iter().filter(|row| row.stripes == stripes).collect();
        let bars = of.iter().map(|row| (short(row.case), row.rates.write / 1e6)).collect();
        let title = format!("MB/s written, {stripes} stripes");
        out.plot(&format!("{stripes}-stripes"), Plot { title, bars, ..Plot::default() });
    }
    out.say("Requests by the data that they bring, over all stripes:");
    let mut histogram = vec![vec!["case".to_owned()]];
    histogram[0].extend(SIZES.map(|(size, _)| size.to_owned()));
    for case in &CASES {
        let own = rows.iter().filter(|row| row.case.name == case.name);
        let sums = own.fold([0; 4], |mut sums: [u64; 4], row| {
            sums.iter_mut().zip(row.sizes).for_each(|(sum, size)| *sum += size);
            sums
        });
        let mut line = vec![case.name.to_owned()];
        line.extend(sums.map(|sum| sum.to_string()));
        histogram.push(line);
    }
    out.table(&histogram);
    out
}

/// A name that fits below a bar.
fn short(case: &Case) -> String {
    let writers =
        if case.mounts > 1 { "8 m" } else { if case.writers == 1 { "1 w" } else { "8 w" } };
    let kind = match (case.pages, case.transfer, case.strided) {
        (true, ..) => " pages",
        (_, ODD, _) => " odd",
        (_, _, true) => " strided",
        _ => "",
    };
    format!("{writers}{kind}")
}
