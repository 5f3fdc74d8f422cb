//! Row `rebuild`: a member whose disk was replaced is filled from other copies, beside users.

use super::figures::{CopiesFigure, CopiesReach};
use super::memory::touch;
use super::place::{CopiesPlace, PATIENCE, glint, sleep};
use super::streams::write_all;
use super::users::{CallCount, UserLoad};
use super::{CopiesSetting, LARGE_FILES};
use crate::scan::drop_caches;
use crate::smallfile::Asked;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The member that is emptied.
const EMPTIED: usize = 1;
/// How long users run before they are measured.
const WARM_UP: Duration = Duration::from_secs(3);
/// What users are asked for, as a part of what they do alone.
const PACED: f64 = 0.5;
/// Bytes of a call of the plain copy, as of a heal.
const CALL_BYTES: usize = 1 << 20;

/// What users did, in calls a second.
struct UserRates {
    alone: f64,
    /// What they were asked for from then on.
    pace: f64,
    /// At that pace, while all copies were there.
    paced: f64,
    /// At that pace, during the rebuild.
    beside: f64,
}

/// Measures the row.
pub(super) fn measure(setting: &CopiesSetting<'_>) -> Result<Vec<CopiesFigure>, String> {
    let mut place = CopiesPlace::new(setting.data)?;
    eprintln!("rebuild: making {LARGE_FILES} files of {} MiB", setting.size >> 20);
    let layout = "replicas=3 stripe_count=1";
    let load = UserLoad::new(&place.directory("users", layout)?)?;
    write_all(&place.directory("large", layout)?, setting.size, setting.asked)?;
    place.settle(setting.asked)?;
    eprintln!("rebuild: a plain copy");
    let copy = plain_copy(&place, setting)?;
    eprintln!("rebuild: users, alone and then beside a rebuild");
    let (seconds, users) = std::thread::scope(|scope| {
        for path in load.paths() {
            let load = &load;
            scope.spawn(move || load.run(path));
        }
        let measured = beside_users(&mut place, &load, setting);
        load.end();
        measured
    })?;
    let objects = objects_of(&place, EMPTIED)?;
    let bytes: u64 =
        objects.iter().map(|path| path.metadata().map_or(0, |found| found.len())).sum();
    let rebuilt = bytes as f64 / seconds;
    let mib = f64::from(1 << 20);
    Ok(vec![
        CopiesFigure {
            row: "rebuild",
            name: "bytes a second, against a plain copy".into(),
            value: Some(rebuilt / copy),
            unit: "x",
            reach: Some(CopiesReach::AtLeast(0.5)),
            parts: vec![
                ("rebuild_mib_per_s".into(), rebuilt / mib),
                ("copy_mib_per_s".into(), copy / mib),
                ("mib".into(), bytes as f64 / mib),
                ("seconds".into(), seconds),
            ],
        },
        CopiesFigure {
            row: "rebuild",
            name: "users, against their pace".into(),
            value: Some(users.beside / users.pace),
            unit: "x",
            reach: Some(CopiesReach::AtLeast(0.7)),
            parts: vec![
                ("calls_per_s".into(), users.beside),
                ("pace_per_s".into(), users.pace),
                ("paced_per_s".into(), users.paced),
                ("alone_per_s".into(), users.alone),
            ],
        },
    ])
}

/// Measures users, empties the member, and returns the seconds until it has everything again.
fn beside_users(
    place: &mut CopiesPlace,
    load: &UserLoad,
    setting: &CopiesSetting<'_>,
) -> Result<(f64, UserRates), String> {
    let asked = setting.asked;
    sleep(WARM_UP.min(setting.users), asked)?;
    let alone = rate(load, load.count()?, setting)?;
    let pace = alone * PACED;
    load.set_pace(pace);
    // A call that was under way is not at that pace yet.
    sleep(WARM_UP.min(setting.users), asked)?;
    let paced = rate(load, load.count()?, setting)?;
    place.stop(EMPTIED);
    place.wait_until_missed(asked)?;
    let ost = place.ost(EMPTIED)?;
    let failed = |e: std::io::Error| format!("{}: {e}", ost.display());
    std::fs::remove_dir_all(&ost).and_then(|()| std::fs::create_dir(&ost)).map_err(failed)?;
    let output = glint(&["ost", "replace", &ost.to_string_lossy()])?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    forget_and_touch(place, setting)?;
    let (before, begun) = (load.count()?, Instant::now());
    place.start_again(EMPTIED)?;
    place.cluster.wait_until_whole(PATIENCE, asked)?;
    let seconds = begun.elapsed().as_secs_f64();
    let beside = load.count()?.per_s_since(before);
    Ok((seconds, UserRates { alone, pace, paced, beside }))
}

/// Calls a second of users from `before` on, for as long as they are measured.
fn rate(load: &UserLoad, before: CallCount, setting: &CopiesSetting<'_>) -> Result<f64, String> {
    sleep(setting.users, setting.asked)?;
    let rate = load.count()?.per_s_since(before);
    if rate > 0.0 {
        Ok(rate)
    } else {
        Err("users have done nothing: say more --users-seconds".into())
    }
}

/// Drops all caches, and uses as much memory once as a copy of the large files needs, with what it
/// is copied from.
fn forget_and_touch(place: &CopiesPlace, setting: &CopiesSetting<'_>) -> Result<(), String> {
    drop_caches(&place.unwritten()?)?;
    touch(3 * setting.size * LARGE_FILES, setting.asked)
}

/// Files of objects of an OST.
fn objects_of(place: &CopiesPlace, ost: usize) -> Result<Vec<PathBuf>, String> {
    let top = place.ost(ost)?.join("objects");
    let entries = |path: &Path| -> Result<Vec<PathBuf>, String> {
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let found: std::io::Result<Vec<_>> = std::fs::read_dir(path).map_err(failed)?.collect();
        Ok(found.map_err(failed)?.into_iter().map(|entry| entry.path()).collect())
    };
    let mut objects = Vec::new();
    for folder in entries(&top)?.into_iter().filter(|folder| folder.is_dir()) {
        objects.extend(entries(&folder)?.into_iter().filter(|object| object.is_file()));
    }
    Ok(objects)
}

/// Copies the objects of a member to where the emptied one has its own, with fsync. Returns bytes a
/// second.
fn plain_copy(place: &CopiesPlace, setting: &CopiesSetting<'_>) -> Result<f64, String> {
    let objects = objects_of(place, 0)?;
    // The directory of the data of that server, which is on its disk.
    let target = place.stage.data(&place.cluster.name(EMPTIED as u64))?.join("plain-copy");
    std::fs::create_dir(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    forget_and_touch(place, setting)?;
    let begun = Instant::now();
    let mut bytes = 0;
    for object in &objects {
        let name = object.file_name().unwrap_or_default();
        bytes += copy(object, &target.join(name), setting.asked)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    std::fs::remove_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
    match bytes {
        0 => Err("the first server has no objects".into()),
        bytes => Ok(bytes as f64 / seconds),
    }
}

/// By calls: a file system may copy a file by itself without any of its bytes.
fn copy(from: &Path, to: &Path, asked: Asked<'_>) -> Result<u64, String> {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut source = File::open(from).map_err(|e| failed(from, e))?;
    let mut target = File::create(to).map_err(|e| failed(to, e))?;
    let (mut buffer, mut bytes) = (vec![0; CALL_BYTES], 0);
    loop {
        if asked() {
            return Err("interrupted".into());
        }
        match source.read(&mut buffer).map_err(|e| failed(from, e))? {
            0 => break,
            some => {
                target.write_all(&buffer[..some]).map_err(|e| failed(to, e))?;
                bytes += some as u64;
            }
        }
    }
    target.sync_all().map_err(|e| failed(to, e))?;
    Ok(bytes)
}
