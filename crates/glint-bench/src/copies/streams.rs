//! Row `streams`: large files, written with fsync and read, with three copies and with one.

use super::figures::{CopiesFigure, CopiesReach};
use super::memory::touch;
use super::place::{CopiesPlace, SERVERS, sleep};
use super::{CopiesSetting, LARGE_FILES};
use crate::sample::median;
use crate::smallfile::Asked;
use crate::stream::forget_cached;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of a call.
const CALL_BYTES: usize = 1 << 20;
/// Servers destroy the files of one turn before the next one.
const REST: Duration = Duration::from_secs(2);
/// Layouts that are compared, and what they are called.
const LAYOUTS: [(&str, &str); 2] = [("replicas=1", "copies-1"), ("replicas=3", "copies-3")];
/// What is measured, and the least ratio that is aimed at.
const OPERATIONS: [(&str, f64); 2] = [("write+fsync", 0.4), ("read", 0.95)];

/// Measures the row.
pub(super) fn measure(setting: &CopiesSetting<'_>) -> Result<Vec<CopiesFigure>, String> {
    let place = CopiesPlace::new(setting.data)?;
    // Of each operation, of each layout, of each round.
    let mut rates: [[Vec<f64>; 2]; 2] = Default::default();
    for round in 0..setting.rounds {
        eprintln!("streams: round {} of {}", round + 1, setting.rounds);
        for (at, (layout, name)) in LAYOUTS.into_iter().enumerate() {
            let directory = place.directory(name, layout)?;
            let both = turn(&directory, setting)?;
            for (op, rate) in both.into_iter().enumerate() {
                rates[op][at].push(rate);
            }
            std::fs::remove_dir_all(&directory)
                .map_err(|e| format!("{}: {e}", directory.display()))?;
            place.unwritten()?.write()?;
            sleep(REST, setting.asked)?;
        }
    }
    let figure = |((name, least), [one, three]): ((&str, f64), [Vec<f64>; 2])| {
        let (one, three) = (median(one), median(three));
        CopiesFigure {
            row: "streams",
            name: format!("{name}, 3 copies against 1"),
            value: Some(three / one),
            unit: "x",
            reach: Some(CopiesReach::AtLeast(least)),
            parts: vec![("copies_3_mib_per_s".into(), three), ("copies_1_mib_per_s".into(), one)],
        }
    };
    Ok(OPERATIONS.into_iter().zip(rates).map(figure).collect())
}

/// Writes and reads all files at once. Returns both rates in MiB a second.
fn turn(directory: &Path, setting: &CopiesSetting<'_>) -> Result<[f64; 2], String> {
    let bytes = setting.size * LARGE_FILES;
    let mib = bytes as f64 / f64::from(1 << 20);
    // The same for all layouts: as much as all copies need, and some of it is taken back meanwhile.
    touch(bytes * (SERVERS + 1), setting.asked)?;
    let begun = Instant::now();
    write_all(directory, setting.size, setting.asked)?;
    let written = mib / begun.elapsed().as_secs_f64();
    // What the kernel caches of the mount.
    touch(2 * bytes, setting.asked)?;
    let begun = Instant::now();
    for_each(directory, &|path| read(path, setting.asked))?;
    Ok([written, mib / begun.elapsed().as_secs_f64()])
}

/// Writes the large files of a directory, all at once.
pub(super) fn write_all(directory: &Path, bytes: u64, asked: Asked<'_>) -> Result<(), String> {
    for_each(directory, &|path| write(path, bytes, asked))
}

/// A thread for each large file. Fails as the first of them that has failed.
fn for_each(
    directory: &Path,
    work: &(dyn Fn(&Path) -> Result<(), String> + Sync),
) -> Result<(), String> {
    let paths: Vec<PathBuf> =
        (0..LARGE_FILES).map(|number| directory.join(format!("large-{number}"))).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = paths.iter().map(|path| scope.spawn(move || work(path))).collect();
        let ended = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("a thread of the benchmark panicked".into()))
        });
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

fn write(path: &Path, bytes: u64, asked: Asked<'_>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = File::create(path).map_err(failed)?;
    let mut buffer: Vec<u8> = (0..CALL_BYTES).map(|at| (at * 131) as u8).collect();
    let mut done: u64 = 0;
    while done < bytes {
        if asked() {
            return Err("interrupted".into());
        }
        // The number makes each block unlike the others.
        buffer[..8].copy_from_slice(&done.to_le_bytes());
        let some = (bytes - done).min(CALL_BYTES as u64);
        file.write_all(&buffer[..some as usize]).map_err(failed)?;
        done += some;
    }
    file.sync_all().map_err(failed)
}

fn read(path: &Path, asked: Asked<'_>) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = File::open(path).map_err(failed)?;
    forget_cached(&file, false).map_err(failed)?;
    let mut buffer = vec![0; CALL_BYTES];
    while file.read(&mut buffer).map_err(failed)? > 0 {
        if asked() {
            return Err("interrupted".into());
        }
    }
    Ok(())
}
