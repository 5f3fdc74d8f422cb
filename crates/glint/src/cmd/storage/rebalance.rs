//! `glint ost rebalance`: files move from fuller to emptier OSTs while they are used.

mod chains;
mod disks;
mod plan;
mod turn;

use super::moves::{AtOnce, Move, Mover};
use crate::CommandResult;
use crate::live;
use crate::output::counted;
use crate::signals::Stop;
use crate::target::{MdsArg, Target};
use disks::{Disk, Disks};
use glint_server::human_bytes;
use plan::plan;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use turn::Turn;

/// Looks at the space after which it is given up: somebody writes as fast as files move.
const PASSES_MAX: u32 = 8;
/// Longest time in which objects of moved files are waited for, which go a lease later (30 s where
/// nothing else is said), and the first and longest pause between two looks: each reads the keys of
/// all objects that are to be removed.
const LEAVING_MAX: Duration = Duration::from_secs(120);
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// How soon a signal ends a pause.
const LOOK: Duration = Duration::from_millis(100);
/// How soon servers say how much space they have.
const SPACE_IS_KNOWN: Duration = Duration::from_secs(2);
/// Files that are named with the reason why they did not move.
const NAMED: usize = 8;

/// Move files from fuller to emptier OSTs, while they are used.
///
/// For after OSTs were added. Files move until the used share of each OST is within some per cent
/// (--within) of the used share of all together; the largest move first, so that few do, and none
/// that would make an emptier OST the fuller one. Copies of a file stay in different failure domains;
/// those that are not, as servers have joined since they were made, are brought there first.
/// Files over several OSTs keep their number of stripes; those over all OSTs stay: `glint restripe -c
/// 0` lays them out over the new ones, too. OSTs that are drained or not heard of have no part.
///
/// The space of a file becomes free a lease after it moved (`--lease` of the server), and the command
/// waits for that before it looks whether it is done. Ctrl-C ends after the files that are being
/// moved; the same command goes on from there. One at a time moves files of a file system: another one
/// is refused meanwhile. The exit status is 1 if an OST is not within the limit in the end. Files move
/// through a mount: a server can be named only with --dry-run. For root, and administrators only.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: MdsArg,
    /// How far the used share of an OST may be from that of all together, in per cent of its space.
    /// What is closer costs more moves than it gives room: new files go to all OSTs alike.
    #[arg(long, value_name = "PERCENT", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=50))]
    within: u8,
    /// Only say what would move.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    at_once: AtOnce,
    /// Print JSON: an object for each file, and one about all.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> CommandResult {
    let target = args.target.find()?;
    let stop = Stop::listen()?;
    let within = f64::from(args.within) / 100.0;
    if args.dry_run {
        let disks = Disks::ask(&target)?;
        let moves = plan(&target, &disks, within, &HashSet::new(), &stop)?;
        preview(args, &disks, &moves);
        return Ok(ExitCode::SUCCESS);
    }
    let mut mover = Mover::new(&target, &args.at_once, args.json, &stop)?;
    let turn = Turn::take(&target, &stop)?;
    let before = Disks::ask(&target)?;
    // Files that did not move are not tried again in this run.
    let (mut stay, mut left) = (HashSet::new(), Vec::new());
    let mut ended_by = "others write as fast as files move";
    for _ in 0..PASSES_MAX {
        let (disks, is_known) = until_known(args, &target, &turn, &stop)?;
        if !is_known && mover.moved.files > 0 {
            // What has moved would be counted twice.
            ended_by = "what has moved takes space where it was still";
            break;
        }
        let moves = plan(&target, &disks, within, &stay, &stop)?;
        if moves.is_empty() || stop.is_asked() {
            ended_by = "no other file fits";
            break;
        }
        for (file, reason) in mover.pass(&moves) {
            stay.insert(file.ino);
            left.push((file.name.clone(), reason));
        }
        if stop.is_asked() {
            break;
        }
    }
    if let Some(reason) = turn.lost() {
        return Err(
            format!("stopped before all were moved: {reason}; run it again to go on").into()
        );
    }
    let after = Disks::ask(&target)?;
    let is_balanced = after.are_within(within) && !stop.is_asked();
    let (files, bytes) = (mover.moved.files, mover.moved.bytes);
    if args.json {
        let osts: Vec<Value> = before.pairs(&after).map(|(was, is)| disk_row(was, is)).collect();
        crate::say!(
            "{}",
            json!({ "moved": files, "bytes": bytes, "left": left.len(), "within": args.within,
                "balanced": is_balanced, "osts": osts })
        );
    } else {
        for (name, reason) in left.iter().take(NAMED) {
            eprintln!("glint: {name}: {reason}");
        }
        crate::say!("{} with {} moved", counted(files, "file"), human_bytes(bytes));
        before.pairs(&after).for_each(|(was, is)| show(was, is));
        match (is_balanced, stop.is_asked()) {
            (_, true) => crate::say!("ended before all were moved; run it again to go on"),
            (true, _) => crate::say!("all OSTs are within {} % of the mean", args.within),
            (false, _) => crate::say!(
                "not all OSTs are within {} %: {}; run it again later",
                args.within,
                match left.len() {
                    0 => ended_by.to_owned(),
                    some => format!("{some} files did not move"),
                }
            ),
        }
    }
    Ok(if is_balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Waits until files that have moved take no space any more where they were. Returns how much is
/// used then, and whether it came to that.
fn until_known(
    args: &Args,
    target: &Target,
    turn: &Turn,
    stop: &Stop,
) -> Result<(Disks, bool), Box<dyn Error>> {
    let is_shown = !args.json && std::io::stderr().is_terminal();
    let (begun, mut pause) = (Instant::now(), PAUSE_MIN);
    let mut has_waited = false;
    let is_known = loop {
        let count = turn.moved()?;
        if count == 0 || stop.is_asked() || begun.elapsed() > LEAVING_MAX {
            break count == 0;
        }
        has_waited = true;
        if is_shown {
            live::show(&format!("\r\x1b[J{count} files that have moved take space still"));
        }
        let until = Instant::now() + pause;
        while Instant::now() < until && !stop.is_asked() {
            std::thread::sleep(LOOK);
        }
        pause = PAUSE_MAX.min(pause * 2);
    };
    if is_shown && has_waited {
        live::show("\r\x1b[J");
    }
    if has_waited && !stop.is_asked() {
        std::thread::sleep(SPACE_IS_KNOWN);
    }
    Ok((Disks::ask(target)?, is_known))
}

/// Says what would move.
fn preview(args: &Args, disks: &Disks, moves: &[Move]) {
    let bytes: u64 = moves.iter().map(|file| file.bytes).sum();
    for Move { ino, name, bytes, from, to, .. } in moves {
        match (args.json, to) {
            (true, _) => crate::say!(
                "{}",
                json!({ "ino": ino, "path": name, "bytes": bytes, "from": from, "to": to })
            ),
            (false, Some(to)) => {
                crate::say!("{name}: {} from OST {from} to OST {to}", human_bytes(*bytes));
            }
            (false, None) => crate::say!("{name}: {}", human_bytes(*bytes)),
        }
    }
    let is_balanced = disks.are_within(f64::from(args.within) / 100.0);
    if args.json {
        let osts: Vec<Value> = disks.iter().map(|disk| disk_row(disk, disk)).collect();
        crate::say!(
            "{}",
            json!({ "files": moves.len(), "bytes": bytes, "within": args.within,
                "balanced": is_balanced, "osts": osts })
        );
        return;
    }
    disks.iter().for_each(|disk| crate::say!("ost {:<4} {:.1} % used", disk.ost, percent(disk)));
    match is_balanced && moves.is_empty() {
        true => crate::say!("all OSTs are within {} %; nothing would move", args.within),
        false => {
            crate::say!("{} files with {} would move", moves.len(), human_bytes(bytes));
        }
    }
}

fn percent(disk: &Disk) -> f64 {
    disk.share() * 100.0
}

fn disk_row(was: &Disk, is: &Disk) -> Value {
    let rounded = |disk| (percent(disk) * 10.0).round() / 10.0;
    json!({ "ost": is.ost, "used_percent_before": rounded(was), "used_percent": rounded(is) })
}

fn show(was: &Disk, is: &Disk) {
    crate::say!("ost {:<4} {:.1} % used, {:.1} % before", is.ost, percent(is), percent(was));
}
