//! Figures of scans, and what follows from them.

use super::amounts::ScanAmounts;
use super::programs::Scanned;
use super::rows::{ScanPhase, ScanSide, TreeScan};
use super::streaming::Paced;
use super::walk::Walked;
use crate::sample::median;
use std::collections::BTreeMap;
use std::time::Duration;

/// Figures of one scan, on one side, in one phase.
#[derive(Default)]
pub(super) struct ScanFigures {
    /// Files in a second, of each round whose scan has seen all, or has said what it had seen.
    rates: Vec<f64>,
    /// The same of what a scan had printed when it was ended, the least of all rounds: it keeps some
    /// of its output, so it has seen so many at least.
    least: Option<f64>,
    /// Bytes a second that streams moved meanwhile, of each round.
    streams: Vec<f64>,
    /// Calls, where they were timed.
    walks: Vec<Walked>,
    /// Bytes that the process of the scan has read from disks, the most of all rounds.
    pub disk_bytes: Option<u64>,
    /// It was ended in some round because it took too long.
    pub is_cut: bool,
    /// Why it failed in some round.
    pub failure: Option<String>,
}

impl ScanFigures {
    /// Adds a round.
    pub(super) fn add(&mut self, scanned: Scanned) {
        let rate = scanned.files / scanned.seconds;
        match scanned.is_least {
            true => self.least = Some(self.least.map_or(rate, |least| least.min(rate))),
            false => self.rates.push(rate),
        }
        self.streams.extend(scanned.streams);
        self.walks.extend(scanned.walked);
        self.disk_bytes = self.disk_bytes.max(scanned.disk_bytes);
        self.is_cut |= scanned.is_cut;
    }

    /// Files in a second, the median of the rounds; none if that is not known of each of them.
    pub(super) fn per_s(&self) -> Option<f64> {
        let is_known = self.least.is_none() && !self.rates.is_empty();
        is_known.then(|| median(self.rates.clone()))
    }

    /// Files in a second at least, where it is not known how many a scan had seen when it was ended.
    pub(super) fn least_per_s(&self) -> Option<f64> {
        self.least
    }

    /// Bytes a second of streams, the median of the rounds.
    pub(super) fn streams(&self) -> Option<f64> {
        (!self.streams.is_empty()).then(|| median(self.streams.clone()))
    }

    fn worst(&self, of: fn(&Walked) -> f64) -> Option<f64> {
        self.walks.iter().map(of).reduce(f64::max)
    }

    /// Milliseconds of the longest stat(2) of all rounds.
    pub(super) fn stat_ms_max(&self) -> Option<f64> {
        self.worst(|walk| walk.stat_ms_max)
    }

    /// The same of 99 of 100, in the worst round.
    pub(super) fn stat_ms_p99(&self) -> Option<f64> {
        self.worst(|walk| walk.stat_ms_p99)
    }

    /// Milliseconds of the longest call that read a directory.
    pub(super) fn list_ms_max(&self) -> Option<f64> {
        self.worst(|walk| walk.list_ms_max)
    }
}

/// Memory of processes, the most of all rounds.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct MemoryFigures {
    /// Bytes of the server, MDS and OST together.
    pub server: u64,
    /// Bytes of a mount that was scanned.
    pub mount: u64,
    /// Bytes of `glint find` or `glint du`.
    pub tool: u64,
    /// Bytes that the group of a mount and its scan had, with what the kernel keeps for them.
    pub client_group: u64,
    /// Bytes that a mount had more after a scan for each inode that it had cached, of each round.
    pub each_inode: Vec<f64>,
}

impl MemoryFigures {
    /// Bytes of a mount for each inode, the median.
    pub(super) fn each_inode(&self) -> Option<f64> {
        (!self.each_inode.is_empty()).then(|| median(self.each_inode.clone()))
    }
}

/// Everything that was measured, and under which conditions.
pub(super) struct AllFigures {
    /// Amounts of the tree and of the streams.
    pub amounts: ScanAmounts,
    /// Limit of servers, and of local scans.
    pub memory: Option<u64>,
    /// Limit of a client.
    pub client_memory: Option<u64>,
    /// Rounds.
    pub rounds: u64,
    /// Whether the disk is around the page cache of the file that it is; none where there is no such
    /// disk.
    pub is_direct: Option<bool>,
    /// The pace of streams.
    pub paced: Option<Paced>,
    /// The longest warm start, which scans after a restart wait for.
    pub warm_start: Duration,
    /// How many of them were not waited for to their end, because they had no memory.
    pub short_warm_starts: u64,
    /// Sides, in the order of a round.
    pub sides: Vec<ScanSide>,
    /// Options of the servers, by the number of their variant.
    pub options: Vec<String>,
    /// Phases.
    pub phases: Vec<ScanPhase>,
    /// Scans.
    pub cells: BTreeMap<(ScanSide, ScanPhase, TreeScan), ScanFigures>,
    /// Memory, by side.
    pub resident: BTreeMap<ScanSide, MemoryFigures>,
    /// Bytes above which objects leave nothing in the memory of a server, as it said last.
    pub passed_above: BTreeMap<ScanSide, u64>,
}

impl AllFigures {
    /// Figures of a scan, if there are any.
    pub(super) fn cell(
        &self,
        side: ScanSide,
        phase: ScanPhase,
        scan: TreeScan,
    ) -> Option<&ScanFigures> {
        self.cells.get(&(side, phase, scan))
    }

    /// Files in a second.
    pub(super) fn per_s(&self, side: ScanSide, phase: ScanPhase, scan: TreeScan) -> Option<f64> {
        self.cell(side, phase, scan)?.per_s()
    }

    /// A rate to that of warm servers without streams.
    pub(super) fn to_warm(&self, side: ScanSide, phase: ScanPhase, scan: TreeScan) -> Option<f64> {
        let (own, warm) =
            (self.per_s(side, phase, scan)?, self.per_s(side, ScanPhase::Warm, scan)?);
        Some(own / warm)
    }

    /// Warm scans of the local file system that others are compared with: without a limit, if one
    /// was measured.
    pub(super) fn local_side(&self) -> ScanSide {
        let is_unlimited = |side: &ScanSide| *side == ScanSide::Unlimited;
        self.sides.iter().copied().find(is_unlimited).unwrap_or(ScanSide::Local)
    }

    /// A rate to that of the local file system with warm caches.
    pub(super) fn to_local(&self, side: ScanSide, phase: ScanPhase, scan: TreeScan) -> Option<f64> {
        let local = self.per_s(self.local_side(), ScanPhase::Warm, scan.local())?;
        Some(self.per_s(side, phase, scan)? / local)
    }

    /// The worst ratio to warm of some scans.
    pub(super) fn worst_to_warm(
        &self,
        side: ScanSide,
        phase: ScanPhase,
        scans: &[TreeScan],
    ) -> Option<f64> {
        let ratios: Vec<_> = scans.iter().map(|scan| self.to_warm(side, phase, *scan)).collect();
        ratios.into_iter().collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::min)
    }

    /// The longest stat(2) of a side, in milliseconds.
    pub(super) fn stat_ms_max(&self, side: ScanSide) -> Option<f64> {
        let of = |phase: &ScanPhase| self.cell(side, *phase, TreeScan::Stat)?.stat_ms_max();
        self.phases.iter().filter_map(of).reduce(f64::max)
    }

    /// Bytes that a warm find(1) on the local file system within the limit has read from disks at
    /// most: more than nothing if the metadata did not fit. Other programs may read themselves.
    pub(super) fn local_disk_bytes(&self) -> Option<u64> {
        self.cell(ScanSide::Local, ScanPhase::Warm, TreeScan::Find)?.disk_bytes
    }

    /// The first failure, if there is one.
    pub(super) fn failure(&self) -> Option<String> {
        self.cells.iter().find_map(|((side, phase, scan), figures)| {
            let why = figures.failure.as_ref()?;
            Some(format!("{}, {}, {}: {why}", side.name(), phase.title(), side.title_of(*scan)))
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn scanned(files: f64, seconds: f64) -> Scanned {
        Scanned {
            files,
            is_least: false,
            seconds,
            is_cut: false,
            walked: None,
            streams: None,
            disk_bytes: None,
        }
    }

    /// Two sides in all phases, with rates by their numbers.
    pub(in super::super) fn few() -> AllFigures {
        let sides = vec![ScanSide::Glint(0), ScanSide::Glint(1), ScanSide::Local];
        let phases = ScanPhase::ALL.to_vec();
        let mut cells = BTreeMap::<_, ScanFigures>::new();
        for (number, side) in sides.iter().enumerate() {
            for (at, phase) in phases.iter().enumerate() {
                for scan in side.scans() {
                    let cell = cells.entry((*side, *phase, *scan)).or_default();
                    cell.add(scanned(1000.0, (1 + number * at) as f64));
                    if *scan == TreeScan::Stat {
                        cell.walks.push(Walked {
                            files: 1000,
                            is_cut: false,
                            stat_ms_max: at as f64,
                            stat_ms_p99: 0.5,
                            list_ms_max: 2.0,
                        });
                    }
                }
            }
        }
        let amounts = ScanAmounts { files: 1000, streamed: 1 << 30 };
        let resident = MemoryFigures { each_inode: vec![400.0], ..MemoryFigures::default() };
        AllFigures {
            amounts,
            memory: Some(256 << 20),
            client_memory: None,
            rounds: 1,
            is_direct: Some(true),
            paced: Some(Paced { rate: 100 << 20, cores: 0.5 }),
            warm_start: Duration::ZERO,
            short_warm_starts: 0,
            sides,
            options: vec![String::new(); 2],
            phases,
            cells,
            resident: BTreeMap::from([(ScanSide::Glint(0), resident)]),
            passed_above: BTreeMap::new(),
        }
    }

    #[test]
    fn ratios_are_to_warm_and_to_local() {
        let all = few();
        let (policy, common) = (ScanSide::Glint(0), ScanSide::Glint(1));
        assert_eq!(all.to_warm(policy, ScanPhase::Streamed, TreeScan::Find), Some(1.0));
        assert_eq!(all.to_warm(common, ScanPhase::Streamed, TreeScan::Find), Some(0.5));
        let scans = [TreeScan::Ls, TreeScan::Find];
        assert_eq!(all.worst_to_warm(common, ScanPhase::Restarted, &scans), Some(1.0 / 3.0));
        assert_eq!(all.to_local(common, ScanPhase::Restarted, TreeScan::GlintDu), Some(1.0 / 3.0));
        assert_eq!(all.stat_ms_max(policy), Some(3.0));
        assert_eq!(all.failure(), None);
    }

    #[test]
    fn the_median_counts_and_what_was_cut_is_said() {
        let mut figures = ScanFigures::default();
        assert_eq!((figures.per_s(), figures.streams()), (None, None));
        for seconds in [1.0, 4.0, 2.0] {
            figures.add(scanned(8.0, seconds));
        }
        assert_eq!((figures.per_s(), figures.is_cut), (Some(4.0), false));
        figures.add(Scanned { is_cut: true, streams: Some(5.0), ..scanned(1.0, 1.0) });
        assert_eq!((figures.is_cut, figures.streams()), (true, Some(5.0)));
        assert_eq!((figures.per_s(), figures.least_per_s()), (Some(4.0), None));
        for files in [6.0, 2.0] {
            figures.add(Scanned { is_cut: true, is_least: true, ..scanned(files, 1.0) });
        }
        assert_eq!((figures.per_s(), figures.least_per_s()), (None, Some(2.0)), "no rate is wrong");
    }
}
