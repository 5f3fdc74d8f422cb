//! Row `heal`: a member that was away while some files of many were changed gets what it missed.

use super::CopiesSetting;
use super::figures::{CopiesFigure, CopiesReach};
use super::place::{CopiesPlace, PATIENCE, glint};
use crate::experiments::served_cluster::is_whole;
use crate::sample::median;
use crate::smallfile::Asked;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a file.
const FILE_BYTES: usize = 4096;
/// Files of a directory.
const DIRECTORY_FILES: u64 = 500;
/// Threads that make them.
const MAKERS: u64 = 8;
/// The member that is away.
const AWAY: usize = 1;
/// How often `glint heal info` is run after a heal at least.
const INFOS: usize = 5;
/// Between two of them.
const LOOK: Duration = Duration::from_millis(20);

/// Heals among so many files.
struct Healed {
    files: u64,
    /// From the start of the member until nothing is left.
    seconds: f64,
    /// Of one `glint heal info`, during heals and after them.
    info_ms: f64,
}

/// Bytes of so many files on all servers, with what they take beside their content.
pub(super) fn needed(files: u64) -> u64 {
    files.saturating_mul(super::place::SERVERS * (FILE_BYTES as u64 + (8 << 10)))
}

/// Measures the row.
pub(super) fn measure(setting: &CopiesSetting<'_>) -> Result<Vec<CopiesFigure>, String> {
    let mut amounts = setting.files.to_vec();
    amounts.sort_unstable();
    amounts.dedup();
    let mut all = Vec::new();
    for files in amounts {
        all.push(heals(files, setting)?);
    }
    let changed = setting.changed;
    let mut figures = Vec::new();
    for Healed { files, seconds, .. } in &all {
        figures.push(CopiesFigure {
            row: "heal",
            name: format!("{changed} changed files of {files}"),
            value: Some(*seconds),
            unit: "s",
            reach: None,
            parts: vec![("files".into(), *files as f64), ("changed".into(), changed as f64)],
        });
    }
    if let [few, .., many] = &all[..] {
        figures.push(CopiesFigure {
            row: "heal",
            name: format!("{changed} of {} against of {}", many.files, few.files),
            value: Some(many.seconds / few.seconds),
            unit: "x",
            reach: Some(CopiesReach::AtMost(1.5)),
            parts: vec![("many_s".into(), many.seconds), ("few_s".into(), few.seconds)],
        });
    }
    if let Some(most) = all.last() {
        figures.push(CopiesFigure {
            row: "heal",
            name: "glint heal info".into(),
            value: Some(most.info_ms),
            unit: "ms",
            reach: Some(CopiesReach::AtMost(50.0)),
            parts: vec![("files".into(), most.files as f64)],
        });
    }
    Ok(figures)
}

/// Has the member be away and come back, again and again.
fn heals(files: u64, setting: &CopiesSetting<'_>) -> Result<Healed, String> {
    let mut place = CopiesPlace::new(setting.data)?;
    eprintln!("heal: making {files} files");
    let directory = place.mount.join("many");
    make(&directory, files, setting.asked)?;
    let (mut seconds, mut infos) = (Vec::new(), Vec::new());
    for round in 0..setting.rounds {
        eprintln!("heal of {files} files: round {} of {}", round + 1, setting.rounds);
        place.settle(setting.asked)?;
        place.kill(AWAY);
        for number in 0..setting.changed {
            if setting.asked() {
                return Err("interrupted".into());
            }
            // All over the tree. It returns when the member was taken out.
            change(&path_of(&directory, number * files / setting.changed), round as u8 + 1)?;
        }
        let begun = Instant::now();
        place.start_again(AWAY)?;
        seconds.push(wait_until_healed(&place, begun, &mut infos, setting.asked)?);
        for _ in 0..INFOS {
            info(&place, &mut infos)?;
        }
    }
    Ok(Healed { files, seconds: median(seconds), info_ms: median(infos) })
}

/// Runs `glint heal info`, notes its milliseconds, and returns whether nothing is left.
fn info(place: &CopiesPlace, infos: &mut Vec<f64>) -> Result<bool, String> {
    let begun = Instant::now();
    let output = glint(&["heal", "info", "--json", &place.cluster.mds.address])?;
    // A server that has just started may not be known yet.
    if !output.status.success() {
        return Ok(false);
    }
    infos.push(begun.elapsed().as_secs_f64() * 1000.0);
    Ok(output.stdout.is_empty())
}

fn wait_until_healed(
    place: &CopiesPlace,
    begun: Instant,
    infos: &mut Vec<f64>,
    asked: Asked<'_>,
) -> Result<f64, String> {
    loop {
        // Before a member is synced, it may lack something that nobody has asked about yet.
        if info(place, infos)? && is_whole(&place.cluster.chains()?) {
            return Ok(begun.elapsed().as_secs_f64());
        }
        if asked() {
            return Err("interrupted".into());
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("the heal has not ended after {PATIENCE:?}"));
        }
        std::thread::sleep(LOOK);
    }
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join((number / DIRECTORY_FILES).to_string()).join(number.to_string())
}

fn change(path: &Path, content: u8) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
    file.write_all_at(&[content; FILE_BYTES], 0).map_err(failed)?;
    file.sync_all().map_err(failed)
}

/// Makes so many files by some threads.
fn make(directory: &Path, files: u64, asked: Asked<'_>) -> Result<(), String> {
    let directories = files.div_ceil(DIRECTORY_FILES);
    for number in 0..directories {
        let path = directory.join(number.to_string());
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let share = |maker: u64| {
        for of in (maker..directories).step_by(MAKERS as usize) {
            for number in of * DIRECTORY_FILES..files.min((of + 1) * DIRECTORY_FILES) {
                if asked() {
                    return Err("interrupted".to_owned());
                }
                let path = path_of(directory, number);
                std::fs::write(&path, [0_u8; FILE_BYTES])
                    .map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
        Ok(())
    };
    let share = &share;
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..MAKERS).map(|maker| scope.spawn(move || share(maker))).collect();
        let ended = makers.into_iter().map(|maker| {
            maker.join().unwrap_or_else(|_| Err("a thread of the benchmark panicked".into()))
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_where_they_are_looked_for() {
        let here = tempfile::tempdir().unwrap();
        let files = DIRECTORY_FILES + 3;
        make(here.path(), files, &|| false).unwrap();
        for number in [0, DIRECTORY_FILES - 1, DIRECTORY_FILES, files - 1] {
            let path = path_of(here.path(), number);
            assert_eq!(std::fs::read(&path).unwrap(), [0_u8; FILE_BYTES], "{number}");
            change(&path, 7).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), [7_u8; FILE_BYTES], "{number}");
        }
        assert!(!path_of(here.path(), files).exists());
        assert!(make(here.path(), 1, &|| true).is_err());
    }
}
