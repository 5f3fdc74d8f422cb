//! Rounds: each side in turns, in all phases, with all scans.

use super::ScanSetting;
use super::figures::{AllFigures, MemoryFigures};
use super::places::{Places, drop_caches, word};
use super::programs::{self, Ran, Scanned, memory};
use super::rows::{ScanPhase, ScanSide, TreeScan, VARIANTS};
use super::streaming::{Paced, Streamer, calibrate};
use crate::experiments::memory::MemoryGroup;
use crate::experiments::stage::Served;
use crate::smallfile::Asked;
use crate::unwritten::Unwritten;
use glint::program;
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How much longer than its patience a walk may take until it has noticed that.
const NOTICE: Duration = Duration::from_secs(60);

/// Pause between two looks whether a warm start has ended.
const WARM_START_LOOK: Duration = Duration::from_millis(50);

/// How long one may stand still because memory is short before it is waited for no more.
const WARM_START_SHORT_MAX: Duration = Duration::from_secs(30);

/// How far the warm start of a server is, which is as far as the last of its parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum WarmStart {
    Ended,
    /// It stands still until there is memory.
    Short,
    Running,
}

impl WarmStart {
    /// As a server says it, of its MDS and of each OST.
    fn of(status: &Value) -> WarmStart {
        let osts = status["osts"].as_array().into_iter().flatten();
        let parts = osts.chain([status]).map(|part| match part["warm_start"]["state"].as_str() {
            Some("running") => WarmStart::Running,
            Some("memory short") => WarmStart::Short,
            _ => WarmStart::Ended,
        });
        parts.max().unwrap_or(WarmStart::Ended)
    }
}

/// Who is killed at the limit of a client, and what to do.
const CLIENT_KILLED: &str = "the mount or its scan at its limit: say a higher --client-memory";

/// The same of local scans and streams.
const LOCAL_KILLED: &str = "; the kernel has killed a local scan or the streams at their limit: say \
                            a higher --memory";

/// Measuring, as far as it has come.
pub(super) struct Measuring<'a> {
    pub setting: &'a ScanSetting,
    pub places: Places,
    pub all: AllFigures,
    pub asked: Asked<'a>,
}

/// A scan to do: where, and beside what.
#[derive(Clone, Copy)]
struct ToScan {
    side: ScanSide,
    phase: ScanPhase,
    scan: TreeScan,
    is_counted: bool,
}

impl Measuring<'_> {
    /// Measures all rounds.
    pub(super) fn run(&mut self) -> Result<(), String> {
        for round in 1..=self.setting.rounds {
            for side in self.all.sides.clone() {
                eprintln!("round {round} of {}: {}", self.setting.rounds, side.name());
                match side {
                    ScanSide::Glint(variant) => self.glint(variant)?,
                    _ => self.local(side)?,
                }
            }
        }
        Ok(())
    }

    /// The phases in which servers keep running, or those in which they start again.
    fn phases(&self, restarted: bool) -> Vec<ScanPhase> {
        let is_it = |phase: &ScanPhase| phase.is_restarted() == restarted;
        self.all.phases.iter().copied().filter(is_it).collect()
    }

    fn glint(&mut self, variant: usize) -> Result<(), String> {
        let side = ScanSide::Glint(variant);
        let served = self.places.serve(&VARIANTS[variant])?;
        // What is read now is in the caches of the server, as far as it fits.
        for scan in [TreeScan::Find, TreeScan::GlintFind] {
            let phase = ScanPhase::Warm;
            self.scan_glint(ToScan { side, phase, scan, is_counted: false }, &served, None)?;
        }
        for phase in self.phases(false) {
            self.beside(phase, &served, side.scans(), side)?;
        }
        self.places.stop(&served);
        for phase in self.phases(true) {
            for scan in side.scans() {
                let served = self.places.serve(&VARIANTS[variant])?;
                self.await_warm_start(&served)?;
                self.beside(phase, &served, &[*scan], side)?;
                self.places.stop(&served);
            }
        }
        Ok(())
    }

    /// Waits until a server has loaded what was read most before its start, or had no memory for that
    /// for a while.
    fn await_warm_start(&mut self, served: &Served) -> Result<(), String> {
        let begun = Instant::now();
        let mut is_short_since: Option<Instant> = None;
        loop {
            match WarmStart::of(&served.ask("status")?) {
                WarmStart::Ended => break,
                WarmStart::Running => is_short_since = None,
                WarmStart::Short => {
                    let since = is_short_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > WARM_START_SHORT_MAX {
                        self.all.short_warm_starts += 1;
                        break;
                    }
                }
            }
            if (self.asked)() {
                return Err("interrupted".into());
            }
            if begun.elapsed() > self.setting.patience {
                return Err("the warm start of the server has not ended within --patience".into());
            }
            std::thread::sleep(WARM_START_LOOK);
        }
        self.all.warm_start = self.all.warm_start.max(begun.elapsed());
        Ok(())
    }

    /// Scans beside streams, if the phase has them.
    fn beside(
        &mut self,
        phase: ScanPhase,
        served: &Served,
        scans: &[TreeScan],
        side: ScanSide,
    ) -> Result<(), String> {
        let mut streams = None;
        if phase.is_streamed() {
            let mount = self.places.mount_streams(served)?;
            let at = mount.at.clone();
            streams = Some((self.stream(&at, None)?, mount));
        }
        for scan in scans {
            let to_scan = ToScan { side, phase, scan: *scan, is_counted: true };
            let streamer = streams.as_mut().map(|(streamer, _)| streamer);
            self.scan_glint(to_scan, served, streamer)?;
        }
        if let Some((streamer, mount)) = streams {
            drop(streamer);
            self.places.unmount(&mount);
        }
        Ok(())
    }

    /// Begins streams in a directory; at the pace that was said, or at one that is found first.
    /// Returns when they have filled the memory.
    fn stream(&mut self, base: &Path, group: Option<&Rc<MemoryGroup>>) -> Result<Streamer, String> {
        let (amounts, group) = (self.setting.amounts, group.map(Rc::as_ref));
        let said = self.setting.stream_rate.map(|rate| Paced { rate, cores: 0.0 });
        let paced = match self.all.paced.or(said) {
            Some(paced) => paced,
            None => {
                let found = calibrate(base, &amounts, group, self.asked)?;
                eprintln!("  streams: {} MB/s, {:.2} cores", found.rate / 1_000_000, found.cores);
                found
            }
        };
        self.all.paced = Some(paced);
        let mut streamer = Streamer::start(base, &amounts, paced.rate, group)?;
        streamer.fill(amounts.streamed / 2, self.asked)?;
        Ok(streamer)
    }

    fn scan_glint(
        &mut self,
        to_scan: ToScan,
        served: &Served,
        streamer: Option<&mut Streamer>,
    ) -> Result<(), String> {
        let scan = to_scan.scan;
        let group = self.places.groups.client.clone();
        let kills = group.as_ref().map_or(0, |group| group.kills());
        let server_kills = self.places.groups.servers.as_ref().map_or(0, |group| group.kills());
        let mut used = MemoryFigures::default();
        let mut ran = if scan.is_mounted() {
            let mount = self.places.mount(served)?;
            let before = mount.resident();
            let ran = self.run_scan(scan, &word(&mount.at), group.as_deref());
            used.mount = memory(mount.pid, "VmHWM").unwrap_or(0);
            let is_clean = to_scan.phase == ScanPhase::Warm && ran.is_ok();
            if let Some(inodes) = mount.cached_inodes().filter(|inodes| *inodes > 0 && is_clean) {
                let more = mount.resident().saturating_sub(before);
                used.each_inode.push(more as f64 / inodes as f64);
            }
            self.places.unmount(&mount);
            ran
        } else {
            self.run_scan(scan, &served.address, group.as_deref())
        };
        used.server = memory(served.pid, "VmHWM").unwrap_or(0);
        used.client_group = group.as_ref().map_or(0, |group| group.peak());
        if group.is_some_and(|group| group.kills() > kills) {
            ran = ran.map_err(|why| format!("{why}; the kernel has killed {CLIENT_KILLED}"));
        }
        if let Some(ran) = ran.as_ref().ok().filter(|_| !scan.is_mounted()) {
            used.tool = ran.resident;
        }
        self.note(to_scan, ran, streamer)?;
        if to_scan.is_counted {
            self.remember(to_scan.side, used);
        }
        let status = served.ask("status").map_err(|why| {
            let kills = self.places.groups.servers.as_ref().map_or(0, |group| group.kills());
            match kills > server_kills {
                false => why,
                true => "the kernel has killed the server, which needs more than its limit: say a \
                      higher --memory"
                    .into(),
            }
        })?;
        if let Some(bytes) = status["osts"][0]["passed_through"]["above_bytes"].as_u64() {
            self.all.passed_above.insert(to_scan.side, bytes);
        }
        Ok(())
    }

    /// Keeps the most that was used.
    fn remember(&mut self, side: ScanSide, used: MemoryFigures) {
        let kept = self.all.resident.entry(side).or_default();
        kept.server = kept.server.max(used.server);
        kept.mount = kept.mount.max(used.mount);
        kept.tool = kept.tool.max(used.tool);
        kept.client_group = kept.client_group.max(used.client_group);
        kept.each_inode.extend(used.each_inode);
    }

    fn local(&mut self, side: ScanSide) -> Result<(), String> {
        let group = match side {
            ScanSide::Local => self.places.groups.local.clone(),
            _ => None,
        };
        drop_caches(&Unwritten::Anywhere)?;
        let warm = ToScan { side, phase: ScanPhase::Warm, scan: TreeScan::Find, is_counted: false };
        self.scan_local(warm, group.as_ref(), None)?;
        let phases = match side {
            ScanSide::Local => self.all.phases.clone(),
            _ => vec![ScanPhase::Warm],
        };
        for phase in phases {
            let mut streamer = None;
            for scan in side.scans() {
                if phase.is_restarted() {
                    streamer = None;
                    drop_caches(&Unwritten::Anywhere)?;
                }
                if phase.is_streamed() && streamer.is_none() {
                    let base = self.places.local.clone();
                    streamer = Some(self.stream(&base, group.as_ref())?);
                }
                let to_scan = ToScan { side, phase, scan: *scan, is_counted: true };
                self.scan_local(to_scan, group.as_ref(), streamer.as_mut())?;
            }
        }
        Ok(())
    }

    fn scan_local(
        &mut self,
        to_scan: ToScan,
        group: Option<&Rc<MemoryGroup>>,
        streamer: Option<&mut Streamer>,
    ) -> Result<(), String> {
        let place = word(&self.places.local);
        let kills = || group.map_or(0, |group| group.kills());
        let before = kills();
        let ran = self.run_scan(to_scan.scan, &place, group.map(Rc::as_ref));
        let explained = |why: String| match kills() > before {
            true => format!("{why}{LOCAL_KILLED}"),
            false => why,
        };
        // Streams beside it, too, have ended if the kernel has killed them.
        self.note(to_scan, ran.map_err(explained), streamer).map_err(explained)
    }

    /// Runs the program of a scan.
    fn run_scan(
        &self,
        scan: TreeScan,
        place: &str,
        group: Option<&MemoryGroup>,
    ) -> Result<Ran, String> {
        let mut patience = self.setting.patience;
        let words = scan.words(place);
        let mut command;
        if scan == TreeScan::Stat {
            command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
            command.args(["scan-walk", "--patience", &patience.as_secs_f64().to_string()]);
            command.args(words);
            patience += NOTICE;
        } else if scan.is_mounted() {
            command = Command::new(&words[0]);
            command.args(&words[1..]);
        } else {
            command = Command::new(program::path("glint"));
            command.args(words);
        }
        if let Some(group) = group {
            command = group.wrap(&command);
        }
        programs::run(&mut command, patience, self.asked)
    }

    /// Notes what a scan did. It failed if it has seen another number of files than there are.
    fn note(
        &mut self,
        to_scan: ToScan,
        ran: Result<Ran, String>,
        streamer: Option<&mut Streamer>,
    ) -> Result<(), String> {
        let ToScan { side, phase, scan, is_counted } = to_scan;
        let streams = streamer.map(|streamer| streamer.check().map(|()| streamer.rate()));
        let streams = streams.transpose()?;
        let amounts = self.setting.amounts;
        let scanned = ran.and_then(|ran| Scanned::of(scan, &ran, &amounts, streams));
        if (self.asked)() {
            return Err("interrupted".into());
        }
        let (title, phase_title) = (side.title_of(scan), phase.title());
        match &scanned {
            Ok(scanned) => {
                let per_s = scanned.files / scanned.seconds;
                let cut = if scanned.is_cut { ", not to its end" } else { "" };
                let least = if scanned.is_least { ">= " } else { "" };
                let warming = if is_counted { "" } else { " (does not count)" };
                eprintln!("  {phase_title}: {title}: {least}{per_s:.0} files/s{cut}{warming}");
            }
            Err(why) => eprintln!("  {phase_title}: {title}: FAILED: {why}"),
        }
        if is_counted {
            let cell = self.all.cells.entry((side, phase, scan)).or_default();
            match scanned {
                Ok(scanned) => cell.add(scanned),
                Err(why) => cell.failure = Some(why),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_warm_start_that_waits_for_memory_has_not_ended() {
        let of = |mds: &str, ost: &str| {
            WarmStart::of(&json!({
                "warm_start": { "state": mds },
                "osts": [{ "warm_start": { "state": "done" } }, { "warm_start": { "state": ost } }],
            }))
        };
        assert_eq!(of("done", "full"), WarmStart::Ended);
        assert_eq!(of("off", "memory short"), WarmStart::Short);
        assert_eq!(of("memory short", "running"), WarmStart::Running);
        assert_eq!(WarmStart::of(&json!({ "osts": [] })), WarmStart::Ended);
    }
}
