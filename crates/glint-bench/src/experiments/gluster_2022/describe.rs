//! The report of the experiment.

use super::super::report::{Plot, Report};
use super::{Measured, RUNS, Run};
use crate::smallfile::{SmallfileOp, Workload};
use serde_json::Value;

/// Files created in a second in each run, of GlusterFS with three copies on rotating disks: as it
/// was, and with directories of its index held open.
const PUBLISHED_RUNS: [(&str, [f64; RUNS]); 2] = [
    ("GlusterFS, index by path", [410.0, 440.0, 444.0, 483.0]),
    ("GlusterFS, index directories held open", [1823.0, 1149.0, 995.0, 1021.0]),
];
/// Files in a second in its daily benchmark, several clients on NVMe: as it was, and with the
/// change. In the order of [`SmallfileOp::ALL`].
const PUBLISHED: [(f64, f64); 11] = [
    (15_591.0, 17_277.0),
    (230_623.0, 235_367.0),
    (24_404.0, 24_340.0),
    (35_167.0, 35_199.0),
    (29_141.0, 29_025.0),
    (13_916.0, 15_205.0),
    (976.0, 985.0),
    (22_461.0, 22_603.0),
    (3_244.0, 3_241.0),
    (2_700.0, 2_689.0),
    (9_698.0, 9_482.0),
];
/// A row of statistics is shown if it has so many microseconds for each file.
const SHOWN_US: f64 = 0.1;

/// The whole report.
pub(super) fn describe(
    measured: &[Measured],
    against: Option<usize>,
    workload: &Workload,
    (rounds, servers): (u64, Option<u64>),
) -> Report {
    let name = if servers == Some(3) { "gluster-2022-3-servers" } else { "gluster-2022" };
    let mut out = Report::new(name, "smallfile: many small files on a used volume");
    let on = match servers {
        Some(1) => {
            "Each file system has one server; its copies are on OSTs of that one, and clients \
             reach it over TCP. "
        }
        Some(_) => {
            "Each file system has three servers on this machine, with an OST each; they and \
             clients reach each other over TCP. "
        }
        None => "",
    };
    let option = servers.filter(|servers| *servers > 1);
    let option = option.map(|servers| format!(" --servers {servers}")).unwrap_or_default();
    let Workload { threads, files, bytes, fsync, .. } = workload;
    let kib = bytes >> 10;
    let fsync = if *fsync { ", each with an fsync" } else { "" };
    out.say(&format!(
        "{threads} threads create {files} files of {kib} KiB each{fsync}, 100 in a directory, 10 \
         directories in one; everything is removed, and they do it again: {RUNS} times on the same \
         volume. Then all operations, {rounds} rounds in turns, medians. Before each operation \
         what is dirty is written and all caches of the machine are dropped. {on}Again with `glint \
         bench smallfile --experiment gluster-2022{option} --threads {threads} --files {files} \
         --size-kib {kib} --rounds {rounds}`."
    ));
    out.say(
        "GlusterFS found with latencies by layer that its index of files whose copies may differ \
         took 1.42 ms for each change of a mark and the layers below it 35 us; with the directories \
         of the index held open it took 48 us. What was left: on a used volume a mkdir took 28 times \
         and a create 19 times as long as on a new one.",
    );
    out.say("## The same volume again and again");
    again(&mut out, measured);
    if let Some(at) = against {
        copies(&mut out, measured, at);
    }
    out.say("## Operations");
    operations(&mut out, measured, against);
    index(&mut out, measured);
    let runs = |own: &Measured| own.runs.first().zip(own.runs.last()).is_some_and(has_layers);
    if measured.iter().any(runs) {
        out.say("## Where the time of creating goes");
        out.say(
            "By layer, each less the layers below it, in the first and in the last run: \
             directories, then files.",
        );
        measured.iter().filter(|own| runs(own)).for_each(|own| layers(&mut out, own, workload));
    }
    out
}

fn has_layers((first, last): (&Run, &Run)) -> bool {
    !first.layers.is_empty() && !last.layers.is_empty()
}

fn titles(titles: &[&str]) -> Vec<Vec<String>> {
    vec![titles.iter().map(|title| (*title).to_owned()).collect()]
}

fn again(out: &mut Report, measured: &[Measured]) {
    let mut table = titles(&["files created in a second, in run", "1", "2", "3", "4", "4 to 1"]);
    let mut row = |name: &str, rates: [f64; RUNS]| {
        let mut row = vec![name.to_owned()];
        row.extend(rates.map(|rate| format!("{rate:.0}")));
        row.push(format!("{:.2}", rates[RUNS - 1] / rates[0]));
        table.push(row);
    };
    PUBLISHED_RUNS.iter().for_each(|(name, rates)| row(name, *rates));
    for own in measured {
        row(&own.directory.name, std::array::from_fn(|run| own.create(run)));
    }
    out.table(&table);
    let bars = measured.iter().flat_map(|own| {
        (0..RUNS).map(|run| (format!("{} {}", own.directory.name, run + 1), own.create(run)))
    });
    let title = "files created in a second, by run".into();
    out.plot("create", Plot { title, bars: bars.collect(), ..Plot::default() });
    let mut table = titles(&[
        "target",
        "run",
        "create p50 us",
        "p99 us",
        "done when the first thread ended",
        "mkdir p50 us",
        "p99 us",
        "files removed in a second",
    ]);
    for own in measured {
        for (run, Run { figures: [tree, create, cleanup], .. }) in own.runs.iter().enumerate() {
            table.push(vec![
                own.directory.name.clone(),
                (run + 1).to_string(),
                create.micros(0.5).to_string(),
                create.micros(0.99).to_string(),
                format!("{:.1} %", create.first().1),
                tree.micros(0.5).to_string(),
                tree.micros(0.99).to_string(),
                format!("{:.0}", cleanup.per_s()),
            ]);
        }
    }
    out.table(&table);
}

/// Copies against what the disk of the OSTs does with as much data, and against one copy.
fn copies(out: &mut Report, measured: &[Measured], against: usize) {
    let named = |name: &str| measured.iter().find(|own| own.directory.name == name);
    let (Some(one), Some(three)) = (named("1 copy"), named("3 copies")) else { return };
    let local = &measured[against];
    out.say(
        "The file system of the OSTs writes each file once, three copies are three times as much: \
         what they reach is against a third of its rate.",
    );
    let mut table = titles(&["3 copies", "run 1", "2", "3", "4"]);
    let mut row = |name: &str, ratio: &dyn Fn(usize) -> f64| {
        let ratios = (0..RUNS).map(|run| format!("{:.2}", ratio(run)));
        table.push(std::iter::once(name.to_owned()).chain(ratios).collect());
    };
    let third = format!("create to a third of {}", local.directory.name);
    row(&third, &|run| three.create(run) * 3.0 / local.create(run));
    row("create to 1 copy", &|run| three.create(run) / one.create(run));
    out.table(&table);
}

fn operations(out: &mut Report, measured: &[Measured], against: Option<usize>) {
    out.say(
        "Files in a second. GlusterFS: its daily benchmark, several clients, on NVMe, before and \
         after the change. A cleanup comes last: it looks for each name that may be left, and \
         finds only directories.",
    );
    let mut table = titles(&["operation", "GlusterFS before", "after"]);
    for (index, own) in measured.iter().enumerate() {
        let name = &own.directory.name;
        table[0].extend([name.clone(), "p50 us".into(), "p99 us".into()]);
        if let Some(at) = against.filter(|at| *at != index) {
            table[0].push(format!("{name} to {}", measured[at].directory.name));
        }
    }
    let ratio = |own: &Measured, op: usize| {
        against.map(|at| own.figures[op].per_s() / measured[at].figures[op].per_s())
    };
    for (op, (before, after)) in PUBLISHED.iter().enumerate() {
        let name = SmallfileOp::ALL[op].name().to_owned();
        let mut row = vec![name, before.to_string(), after.to_string()];
        for (index, own) in measured.iter().enumerate() {
            let figures = &own.figures[op];
            row.push(format!("{:.0}", figures.per_s()));
            row.extend([0.5, 0.99].map(|quantile| figures.micros(quantile).to_string()));
            let ratio = ratio(own, op).filter(|_| against != Some(index));
            row.extend(ratio.map(|ratio| format!("{ratio:.2}")));
        }
        table.push(row);
    }
    out.table(&table);
    let Some(at) = against else { return };
    for (index, own) in measured.iter().enumerate().filter(|(index, _)| *index != at) {
        let bars = (0..SmallfileOp::ALL.len())
            .map(|op| (short(SmallfileOp::ALL[op]).to_owned(), ratio(own, op).unwrap_or(0.0)));
        let title = format!("{} to {}", own.directory.name, measured[at].directory.name);
        out.plot(
            &format!("ratio-{}", index + 1),
            Plot { title, bars: bars.collect(), ..Plot::default() },
        );
    }
}

/// A name that fits below a bar.
fn short(op: SmallfileOp) -> &'static str {
    if op == SmallfileOp::DeleteRenamed { "delete" } else { op.name() }
}

/// Share of the index in a change, as GlusterFS has shown it.
fn index(out: &mut Report, measured: &[Measured]) {
    let mut table = titles(&[
        "target",
        "run",
        "process",
        "operation",
        "changes noted",
        "us in the index each",
        "us below it each",
        "index to below",
    ]);
    for own in measured {
        for (run, Run { layers, .. }) in own.runs.iter().enumerate() {
            for index in layers.iter().filter(|row| row["layer"] == "index") {
                let of_change = |layer: &str| {
                    let is_of_it = |row: &&Value| {
                        row["layer"] == layer
                            && ["process", "op"].iter().all(|key| row[*key] == index[*key])
                    };
                    layers.iter().find(is_of_it)
                };
                let Some(below) = of_change("object_io") else { continue };
                let of = |row: &Value, key: &str| row[key].as_f64().unwrap_or(0.0);
                // Notes are written by the thread that makes the change, in the time below the index.
                let written = of_change("index_write").map_or(0.0, |row| of(row, "self_sum"));
                let noting = (of(index, "self_sum") + written) / of(index, "count").max(1.0);
                let making = of(below, "self") - written / of(below, "count").max(1.0);
                table.push(vec![
                    own.directory.name.clone(),
                    (run + 1).to_string(),
                    index["process"].as_str().unwrap_or("?").to_owned(),
                    index["op"].as_str().unwrap_or("?").to_owned(),
                    index["count"].to_string(),
                    format!("{noting:.2}"),
                    format!("{making:.2}"),
                    format!("{:.1} %", 100.0 * noting / making),
                ]);
            }
        }
    }
    if table.len() > 1 {
        out.say("## The index and the layer below it");
        out.say(
            "What noting that an object is changed takes, and reading and writing the object \
             itself, at all members; of the create.",
        );
        out.table(&table);
    }
}

fn layers(out: &mut Report, own: &Measured, workload: &Workload) {
    let (Some(first), Some(last)) = (own.runs.first(), own.runs.last()) else { return };
    let files = (workload.threads * workload.files) as f64;
    let key = |row: &Value| ["process", "layer", "op"].map(|k| row[k].as_str().map(str::to_owned));
    let mut keys: Vec<_> = first.layers.iter().chain(&last.layers).map(key).collect();
    let mut seen = std::collections::HashSet::new();
    keys.retain(|key| seen.insert(key.clone()));
    let mut table = titles(&[
        "process",
        "layer",
        "operation",
        "calls, run 1",
        "run 4",
        "us for each call, run 1",
        "run 4",
        "us for each file, run 1",
        "run 4",
    ]);
    for wanted in keys {
        let rows = [first, last].map(|run| run.layers.iter().find(|row| key(row) == wanted));
        let of = |name: &str| rows.map(|row| row.and_then(|row| row[name].as_f64()).unwrap_or(0.0));
        let each = of("self_sum").map(|sum| sum / files);
        if each.iter().all(|us| *us < SHOWN_US) {
            continue;
        }
        let mut row: Vec<String> = wanted.map(Option::unwrap_or_default).into();
        row.extend(of("count").map(|count| format!("{count:.0}")));
        row.extend(of("self").map(|us| format!("{us:.2}")));
        row.extend(each.map(|us| format!("{us:.2}")));
        table.push(row);
    }
    out.say(&format!("{}:", own.directory.name));
    out.table(&table);
}
