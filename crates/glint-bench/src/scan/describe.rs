//! Figures as tables for a terminal, and as JSON.

use super::figures::{AllFigures, ScanFigures};
use super::rows::{ScanPhase, ScanSide, TreeScan, VARIANTS};
use crate::experiments::report::aligned;
use serde_json::{Value, json};
use std::fmt::Write;

/// What was measured, and the command that does it again.
pub(crate) struct ScanResults {
    pub(super) all: AllFigures,
    pub(super) again: String,
}

/// A table; the first row names the columns.
pub(crate) type ScanTable = Vec<Vec<String>>;

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// A number with so many decimals, or none.
fn shown(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.decimals$}"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn is_reached(reached: Option<bool>) -> String {
    reached.map_or("-", |reached| if reached { "yes" } else { "no" }).into()
}

impl ScanResults {
    /// See [`AllFigures::failure`].
    pub(super) fn failure(&self) -> Option<String> {
        self.all.failure()
    }

    /// The command that does the same again.
    pub(crate) fn again(&self) -> &str {
        &self.again
    }

    /// Conditions under which it was measured, in some sentences.
    pub(crate) fn conditions(&self) -> String {
        let all = &self.all;
        let limit = |bytes: Option<u64>| {
            bytes.map_or("no limit".into(), |bytes| format!("{:.0} MiB", mib(bytes)))
        };
        let disk = match all.is_direct {
            Some(true) => "xfs on a loop device, around the page cache of the disk below",
            Some(false) => "xfs on a loop device, which the page cache of the disk below has, too",
            None => "the file system of --data",
        };
        let (files, bytes) = all.amounts.streamed_files();
        let mut text = format!(
            "{} files in {} directories, {} of them large; storage is {disk}. Memory of the server, \
             and of local scans: {}; of a mount and its scan: {}. Streams read {files} files of \
             {:.0} MiB and write as many.",
            all.amounts.files,
            all.amounts.directories(),
            all.amounts.large(),
            limit(all.memory),
            limit(all.client_memory),
            mib(bytes),
        );
        let _ = match all.local_disk_bytes() {
            None => Ok(()),
            Some(0) => write!(text, " A warm local find read nothing from the disk."),
            Some(bytes) => write!(
                text,
                " A warm local find read up to {:.1} MiB from the disk: metadata was not all in memory.",
                mib(bytes)
            ),
        };
        if let Some(paced) = all.paced {
            let _ = write!(text, " Their pace is {:.0} MB/s", paced.rate as f64 / 1e6);
            if paced.cores > 0.0 {
                let _ = write!(
                    text,
                    ": when it was found, {:.2} cores were busy at it, kernel and disk included",
                    paced.cores
                );
            }
            text.push('.');
        }
        if all.phases.iter().any(|phase| phase.is_restarted()) {
            let seconds = all.warm_start.as_secs_f64();
            let _ = write!(
                text,
                " Scans after a restart begin when the server's warm start has ended, which took up to \
                 {seconds:.1} s; the local file system has none."
            );
            if all.short_warm_starts > 0 {
                let _ = write!(
                    text,
                    " {} of them stood still for lack of memory, and were not waited for to their end.",
                    all.short_warm_starts
                );
            }
        }
        text
    }

    /// Meaning of each variant of the servers.
    pub(crate) fn variants(&self) -> String {
        let of = |side: &ScanSide| match side {
            ScanSide::Glint(number) => {
                let (variant, options) = (&VARIANTS[*number], &self.all.options[*number]);
                let how = match (variant.options, options.as_str()) {
                    ([], _) => variant.title.to_owned(),
                    (_, "") => "as the server is, which has no settings for it".into(),
                    _ => format!("{} (`{options}`)", variant.title),
                };
                Some(format!("*{}*: {how}", variant.name))
            }
            _ => None,
        };
        let all: Vec<_> = self.all.sides.iter().filter_map(of).collect();
        format!("{}.", all.join("; "))
    }

    /// Files in a second, and ratios to warm.
    pub(crate) fn rates(&self) -> ScanTable {
        let mut titles = row(["scan", "servers", "files/s, warm", "to local"]);
        for phase in self.all.phases.iter().filter(|phase| **phase != ScanPhase::Warm) {
            titles.extend([phase.title().to_owned(), "to warm".into()]);
        }
        let mut table = vec![titles];
        for scan in TreeScan::GLINT.into_iter().chain([TreeScan::Du]) {
            for side in self.all.sides.iter().filter(|side| side.scans().contains(&scan)) {
                table.push(self.rate_row(*side, scan));
            }
        }
        table
    }

    fn rate_row(&self, side: ScanSide, scan: TreeScan) -> Vec<String> {
        let all = &self.all;
        let mut cells = row([side.title_of(scan), side.name()]);
        for phase in &all.phases {
            let cell = all.cell(side, *phase, scan);
            let mut rate = match cell.and_then(ScanFigures::least_per_s) {
                Some(least) => format!(">= {least:.0}"),
                None => shown(cell.and_then(ScanFigures::per_s), 0),
            };
            // It has not seen all.
            if cell.is_some_and(|cell| cell.is_cut) {
                rate.push_str(" (cut)");
            }
            if cell.is_some_and(|cell| cell.failure.is_some()) {
                rate.push_str(" (FAILED)");
            }
            cells.push(rate);
            cells.push(match phase {
                ScanPhase::Warm => shown(all.to_local(side, *phase, scan), 2),
                phase => shown(all.to_warm(side, *phase, scan), 2),
            });
        }
        cells
    }

    /// What one call takes at most.
    pub(crate) fn calls(&self) -> ScanTable {
        let titles =
            ["servers", "phase", "longest stat, ms", "p99", "longest readdir", "streams, MB/s"];
        let mut table = vec![row(titles)];
        for side in &self.all.sides {
            for phase in &self.all.phases {
                let Some(cell) = self.all.cell(*side, *phase, TreeScan::Stat) else { continue };
                let mut cells = row([side.name(), phase.title()]);
                cells.push(shown(cell.stat_ms_max(), 1));
                cells.push(shown(cell.stat_ms_p99(), 3));
                cells.push(shown(cell.list_ms_max(), 1));
                cells.push(shown(cell.streams().map(|bytes| bytes / 1e6), 0));
                table.push(cells);
            }
        }
        table
    }

    /// Memory of processes.
    pub(crate) fn memory(&self) -> ScanTable {
        let mut table = vec![row([
            "servers",
            "server, MiB",
            "mount, MiB",
            "glint find or du, MiB",
            "mount and scan with the kernel's caches, MiB",
            "bytes of a mount for each inode",
        ])];
        for (side, used) in &self.all.resident {
            let mut cells = row([side.name()]);
            let bytes = [used.server, used.mount, used.tool, used.client_group];
            cells.extend(bytes.map(|bytes| format!("{:.0}", mib(bytes))));
            cells.push(shown(used.each_inode(), 0));
            table.push(cells);
        }
        table
    }

    /// What is aimed at, and what of it is reached, by the servers as they are by themselves.
    pub(crate) fn reaches(&self) -> ScanTable {
        let (all, own) = (&self.all, ScanSide::Glint(0));
        let both = [TreeScan::Find, TreeScan::GlintFind];
        let warm = |scan| all.per_s(own, ScanPhase::Warm, scan);
        let is_cut =
            |side, phase, scan| all.cell(side, phase, scan).is_some_and(|cell| cell.is_cut);
        let is_cut_warm = |scan| is_cut(own, ScanPhase::Warm, scan);
        let mut table = vec![row(["what", "reach", "measured", "reached"])];
        let mut at_least = |what: &str, reach: f64, value: Option<f64>, decimals, is_cut| {
            let measured = match value {
                None if is_cut => "cut".into(),
                value => shown(value, decimals),
            };
            table.push(vec![
                what.into(),
                format!(">= {reach}"),
                measured,
                is_reached(value.map(|value| value >= reach)),
            ]);
        };
        for (what, reach, scan) in [
            ("find -size on a fresh mount, files/s", 60_000.0, TreeScan::Find),
            ("ls -lR on a fresh mount, files/s", 60_000.0, TreeScan::Ls),
            ("glint find -size, files/s", 300_000.0, TreeScan::GlintFind),
        ] {
            at_least(what, reach, warm(scan), 0, is_cut_warm(scan));
        }
        let to_local = all.to_local(own, ScanPhase::Warm, TreeScan::GlintFind);
        let cut = is_cut_warm(TreeScan::GlintFind)
            || is_cut(all.local_side(), ScanPhase::Warm, TreeScan::Find);
        at_least("glint find -size to find(1) on local xfs, warm", 1.0, to_local, 2, cut);
        for phase in &all.phases {
            let Some(reach) = phase.reach() else { continue };
            let what = format!("worse of find and glint find {}, to warm", phase.title());
            let cut = both.iter().any(|scan| is_cut(own, *phase, *scan) || is_cut_warm(*scan));
            at_least(&what, reach, all.worst_to_warm(own, *phase, &both), 2, cut);
        }
        let mut at_most = |what: &str, reach: f64, value: Option<f64>| {
            table.push(vec![
                what.into(),
                format!("<= {reach:.0}"),
                shown(value, 0),
                is_reached(value.map(|value| value <= reach)),
            ]);
        };
        at_most("longest stat, ms", 50.0, all.stat_ms_max(own));
        if let Some(used) = all.resident.get(&own) {
            at_most("memory of a mount that is scanned, MiB", 256.0, Some(mib(used.mount)));
            at_most("memory of glint find and du, MiB", 256.0, Some(mib(used.tool)));
            at_most("bytes of a mount for each inode", 400.0, used.each_inode());
        }
        table
    }

    /// The rates to warm, or of warm servers, of these scans on all sides; for a plot.
    pub(crate) fn bars(&self, phase: &'static str) -> Vec<(String, f64, Option<f64>)> {
        let all = &self.all;
        let Some(phase) = ScanPhase::ALL.into_iter().find(|known| known.name() == phase) else {
            return Vec::new();
        };
        let of = |(scan, side): (TreeScan, ScanSide)| {
            let value = match phase {
                ScanPhase::Warm => all.per_s(side, phase, scan)?,
                phase => all.to_warm(side, phase, scan)?,
            };
            let reach = phase.reach().filter(|_| matches!(side, ScanSide::Glint(_)));
            Some((format!("{} {}", scan.name(), side.name()), value, reach))
        };
        let scans = [TreeScan::Ls, TreeScan::Find, TreeScan::GlintFind];
        let limited = all.sides.iter().copied().filter(|side| *side != ScanSide::Unlimited);
        let sides: Vec<_> = limited.collect();
        scans
            .into_iter()
            .flat_map(|s| sides.iter().map(move |side| (s, *side)))
            .filter_map(of)
            .collect()
    }

    /// Lines of JSON.
    pub(super) fn json(&self) -> Vec<Value> {
        let all = &self.all;
        let cells = all.cells.iter().map(|((side, phase, scan), cell)| {
            let round = |value: Option<f64>| value.map(|value| (value * 1e3).round() / 1e3);
            json!({
                "bench": "scan", "servers": side.name(), "phase": phase.name(),
                "scan": scan.name(), "files": all.amounts.files, "rounds": all.rounds,
                "memory": all.memory, "files_per_s": cell.per_s().map(f64::round),
                "files_per_s_least": cell.least_per_s().map(f64::round),
                "to_warm": round(all.to_warm(*side, *phase, *scan)),
                "to_local": round(all.to_local(*side, *phase, *scan)),
                "is_cut": cell.is_cut, "failure": cell.failure, "disk_bytes": cell.disk_bytes,
                "stat_ms_max": round(cell.stat_ms_max()), "stat_ms_p99": round(cell.stat_ms_p99()),
                "list_ms_max": round(cell.list_ms_max()),
                "streams_mb_per_s": cell.streams().map(|bytes| (bytes / 1e6).round()),
            })
        });
        let resident = all.resident.iter().map(|(side, used)| {
            json!({
                "bench": "scan", "servers": side.name(), "files": all.amounts.files,
                "server_bytes": used.server, "mount_bytes": used.mount, "tool_bytes": used.tool,
                "client_group_bytes": used.client_group,
                "passed_above_bytes": all.passed_above.get(side),
                "mount_bytes_each_inode": used.each_inode().map(f64::round),
            })
        });
        cells.chain(resident).collect()
    }

    /// Tables for a terminal.
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n", self.conditions());
        for table in [self.rates(), self.calls(), self.memory(), self.reaches()] {
            let _ = write!(text, "\n{}", aligned(&table));
        }
        text
    }
}
