//! `glint ost drain`, `undrain`, `files` and `remove`: files leave an OST while they are used.

use super::moves::{AtOnce, Move, Moved, Mover};
use super::order::{WhichOst, ask, pages};
use crate::CommandResult;
use crate::output::counted;
use crate::signals::Stop;
use crate::target::{MOUNT_HELP, Target};
use glint_proto::Ino;
use glint_proto::message::{DrainOst, DrainStep, GiveUp, GiveUpStep};
use glint_server::human_bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

/// Looks for files in a row that move none of those that are left, before it is given up.
const IDLE_PASSES_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);
/// Files that are named with the reason why they did not move.
const NAMED: usize = 8;

/// OST and file system of these commands.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    which: WhichOst,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// Options of `drain`, which moves files through a mount.
#[derive(clap::Args)]
#[command(mut_arg("target", |arg| arg.help(MOUNT_HELP).value_name("DIR")))]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    args: Args,
    #[command(flatten)]
    at_once: AtOnce,
}

/// File with a stripe on an OST.
pub(super) struct Placed {
    pub(super) ino: u64,
    size: u64,
    path: Option<String>,
    pub(super) stripes: u64,
    pub(super) copies: u64,
    /// Bytes of it on each of the OSTs that it lies on.
    pub(super) parts: BTreeMap<u16, u64>,
    /// Copies fail together, and could lie elsewhere.
    pub(super) crowded: bool,
}

impl Placed {
    /// Name of the file for people.
    pub(super) fn name(&self) -> String {
        self.path.clone().unwrap_or_else(|| format!("inode {}", self.ino))
    }

    /// Bytes of it on an OST.
    pub(super) fn on(&self, ost: u16) -> u64 {
        self.parts.get(&ost).copied().unwrap_or(0)
    }

    /// File of a test of those who choose files, with so many bytes on each of these OSTs.
    #[cfg(test)]
    pub(super) fn for_test(
        ino: u64,
        bytes: u64,
        stripes: u64,
        copies: u64,
        osts: &[u16],
    ) -> Placed {
        let parts = osts.iter().map(|ost| (*ost, bytes)).collect();
        Placed { ino, size: bytes * stripes, path: None, stripes, copies, parts, crowded: false }
    }
}

/// Everything that an OST has.
pub(super) struct Held {
    pub(super) files: Vec<Placed>,
    /// Removed or moved files whose objects are not removed there yet.
    leaving: u64,
}

/// Asks for all files with a stripe on an OST.
pub(super) fn held(
    target: &Target,
    ost: u16,
    stop: &Stop,
) -> Result<Held, Box<dyn std::error::Error>> {
    let (mut files, mut leaving) = (Vec::new(), 0);
    let request = |from: Ino| DrainOst { ost, step: DrainStep::Files(from) };
    for page in pages(target, request).take_while(|_| !stop.is_asked()) {
        let page = page?;
        let Some(rows) = page["files"].as_array() else {
            return Err("the server cannot say which files are there".into());
        };
        files.extend(rows.iter().filter_map(|row| {
            let parts = row["osts"].as_array().into_iter().flatten();
            let part = |part: &Value| Some((part[0].as_u64()?.try_into().ok()?, part[1].as_u64()?));
            Some(Placed {
                ino: row["ino"].as_u64()?,
                size: row["size"].as_u64()?,
                path: row["path"].as_str().map(str::to_owned),
                stripes: row["stripes"].as_u64()?,
                copies: row["copies"].as_u64()?,
                parts: parts.filter_map(part).collect(),
                crowded: row["crowded"] == true,
            })
        }));
        leaving = page["leaving"].as_u64().unwrap_or(leaving);
    }
    Ok(Held { files, leaving })
}

/// Lists the files.
pub(crate) fn files(args: &Args) -> CommandResult {
    let target = args.which.target()?;
    let held = held(&target, args.which.ost, &Stop::listen()?)?;
    for Placed { ino, size, path, .. } in &held.files {
        match (args.json, path) {
            (true, path) => crate::say!("{}", json!({ "ino": ino, "path": path, "size": size })),
            (false, Some(path)) => crate::say!("{path}"),
            (false, None) => crate::say!("inode {ino} (its name was not found)"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Has new files use it again.
pub(crate) fn undrain(args: &Args) -> CommandResult {
    let target = args.which.target()?;
    let ost = args.which.ost;
    let answer = ask(&target, &DrainOst { ost, step: DrainStep::End })?;
    match (args.json, answer["was_drained"] == true) {
        (true, _) => crate::say!("{answer}"),
        (false, true) => crate::say!("new files use OST {ost} again"),
        (false, false) => crate::say!("OST {ost} was not drained; nothing was done"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves all files away.
pub(crate) fn drain(DrainArgs { args, at_once }: &DrainArgs) -> CommandResult {
    let (ost, target) = (args.which.ost, args.which.target()?);
    let stop = Stop::listen()?;
    let mut mover = Mover::new(&target, at_once, args.json, &stop)?;
    let begun = ask(&target, &DrainOst { ost, step: DrainStep::Begin })?;
    let mut idle = 0;
    let (left, leaving) = loop {
        let Held { files: found, leaving } = held(&target, ost, &stop)?;
        if found.is_empty() && !stop.is_asked() {
            break (Vec::new(), leaving);
        }
        let words = vec![format!("avoid={ost}")];
        let to_move = |file: Placed| Move {
            ino: file.ino,
            bytes: file.size,
            name: file.name(),
            words: words.clone(),
            from: ost,
            to: None,
        };
        let moves: Vec<Move> = found.into_iter().map(to_move).collect();
        let before = mover.moved.files;
        let left = mover.pass(&moves);
        let left: Vec<(String, String)> =
            left.into_iter().map(|(file, reason)| (file.name.clone(), reason)).collect();
        idle = if mover.moved.files > before { 0 } else { idle + 1 };
        if stop.is_asked() || idle == IDLE_PASSES_MAX {
            break (left, leaving);
        }
        if !left.is_empty() {
            std::thread::sleep(PAUSE);
        }
    };
    let next = next_step(ost, leaving, begun["given_up"] == true);
    report(args, &mover.moved, &left, (leaving, next.as_str()), stop.is_asked());
    let is_done = left.is_empty() && !stop.is_asked();
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says what was done. `leaving` are the files that have objects there still, with what to do next.
fn report(
    args: &Args,
    moved: &Moved,
    left: &[(String, String)],
    (leaving, next): (u64, &str),
    is_stopped: bool,
) {
    let (ost, Moved { files, bytes }) = (args.which.ost, moved);
    if args.json {
        let left = left.len();
        crate::say!(
            "{}",
            json!({ "ost": ost, "moved": files, "bytes": bytes, "left": left, "leaving": leaving })
        );
        return;
    }
    for (name, reason) in left.iter().take(NAMED) {
        eprintln!("glint: {name}: {reason}");
    }
    let bytes = human_bytes(*bytes);
    crate::say!("{} with {bytes} moved", counted(*files, "file"));
    match (left.len(), is_stopped) {
        (_, true) => crate::say!(
            "ended before all were moved; new files avoid OST {ost} still: run it again to go on, or \
             `glint ost undrain {ost}`"
        ),
        (0, _) => crate::say!("no file is on OST {ost} any more; {next}"),
        (left, _) => crate::say!(
            "{} left on OST {ost}, which new files avoid still (`glint ost files {ost}`): run it \
             again",
            counted(left as u64, "file")
        ),
    }
}

/// What comes after a drain of an OST that has objects of so many files that were there.
fn next_step(ost: u16, leaving: u64, is_given_up: bool) -> String {
    match is_given_up {
        true => "it was taken away or given up before, and nothing is left to do".into(),
        false => format!(
            "its server removes objects of {leaving} that were, some time later (--lease), so let it \
             run. To take it away, run `glint ost remove {ost}`, and stop its server when that asks \
             for it"
        ),
    }
}

/// Takes an OST away that has no files.
pub(crate) fn remove(args: &Args) -> CommandResult {
    let (ost, target) = (args.which.ost, args.which.target()?);
    let stop = Stop::listen()?;
    let held = held(&target, ost, &stop)?;
    if stop.is_asked() {
        return Err("nothing was done".into());
    }
    if !held.files.is_empty() {
        let files = counted(held.files.len() as u64, "file");
        return Err(format!(
            "OST {ost} has {files} (`glint ost files {ost}`): run `glint ost drain {ost}` first"
        )
        .into());
    }
    if held.leaving > 0 {
        return Err(format!(
            "OST {ost} has objects of {} that were moved or removed, which its server \
             removes some time later (--lease): start it if it is stopped, and try again. If it \
             does not exist any more: `glint ost lost {ost}`",
            counted(held.leaving, "file")
        )
        .into());
    }
    let preview = ask(&target, &GiveUp { ost, step: GiveUpStep::Preview(Ino(0)) })?;
    let is_lossy = |chain: &Value| chain["loses"] != "nothing";
    if preview["chains"].as_array().is_none_or(|chains| chains.iter().any(is_lossy)) {
        return Err(format!(
            "other members of chains do not have everything that OST {ost} has: wait until they are \
             synced (`glint ost list`)"
        )
        .into());
    }
    let number = preview["number"].as_u64().ok_or("the server cannot say what is lost")?;
    let answer = ask(&target, &GiveUp { ost, step: GiveUpStep::Drained(number) })?;
    match args.json {
        true => crate::say!("{}", json!({ "removed": ost, "chains": answer["chains"] })),
        false => crate::say!("OST {ost} is removed; nobody waits for it"),
    }
    Ok(ExitCode::SUCCESS)
}
