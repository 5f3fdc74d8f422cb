//! `glint ost`: the OSTs of a file system, for whoever looks after them.

mod under_way;

use super::{drain, lost, rebalance};
use crate::CommandResult;
use crate::output::counted;
use crate::target::TargetArg;
use glint_proto::limits::full_below;
use glint_server::data_dir::replace_ost;
use glint_server::human_bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Silence from which on a server is shown as one that is not heard.
const SILENT_MS: u64 = 2000;

/// Look after OSTs.
#[derive(clap::Subcommand)]
pub(crate) enum OstCommand {
    List(ListArgs),
    Replace(ReplaceArgs),
    Lost(lost::Args),
    /// Move all files away from an OST, while they are used
    ///
    /// New files avoid it from now on, and those that are there are moved to other OSTs, some at
    /// once, through the mount that is named. Who reads or writes a file waits while what changed last
    /// is copied, of small files all; one that others change too fast is tried again, and named in the
    /// end, with exit status 1.
    /// Ctrl-C ends after the files that are being moved; the same command goes on from there. When it
    /// has ended, nothing is lost with the OST: `glint ost remove` takes it away. For root, and
    /// administrators only.
    Drain(drain::DrainArgs),
    /// Have new files use an OST again that was drained
    Undrain(drain::Args),
    /// Take a drained OST away
    ///
    /// Its server runs until it has removed all objects, and is stopped when this asks for it.
    /// Nobody waits for it afterwards, and no chain is laid over it. It is refused while a file is
    /// there, or while it has something that other members of its chains have not.
    Remove(drain::Args),
    Rebalance(rebalance::Args),
    /// List the files that have data, or would have it, on an OST
    Files(drain::Args),
}

/// List the OSTs: their servers, their failure domains, and in how many chains of copies they do
/// not serve.
///
/// Copies of a file lie in different failure domains (`--failure-domain` of `glint oss` and `glint
/// serve`). An OST that does not serve in a chain is away, or is given what it missed; nothing
/// has to be done for that. One that is `emptied` was replaced: the others are told what it lacks.
/// At the end of a line stands how far a drain, a rebalance, heal and a scrub of the OST are.
/// Administrators only.
#[derive(clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    target: TargetArg,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// Put an empty directory in the place of an OST whose disk is lost.
///
/// Run it on the host of the OST, while its server is stopped, after the new disk is mounted at (or
/// linked from) DATA/ostN. Then start the server with the same command as ever: files with copies
/// are filled from their other copies, while they are used (`glint ost list` shows `emptied`, then
/// `syncing`, and in the end nothing). Files without copies have lost what was on the disk; how many
/// they are, `glint ost list` says.
#[derive(clap::Args)]
pub(crate) struct ReplaceArgs {
    /// Directory of the OST, in the data directory of its server, as the server names it when it
    /// does not start.
    #[arg(value_name = "DATA/ostN")]
    directory: PathBuf,
    /// The lost disk had the only copy of some data that was up to date: have the copy that has most,
    /// of those that are heard of, go on with what it has. Changes that it missed are lost. If no
    /// other copy has anything, all is lost.
    #[arg(long)]
    lose_last_copies: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: OstCommand) -> CommandResult {
    match command {
        OstCommand::List(args) => list(args),
        OstCommand::Replace(args) => replace(args),
        OstCommand::Lost(args) => lost::run(&args),
        OstCommand::Drain(args) => drain::drain(&args),
        OstCommand::Undrain(args) => drain::undrain(&args),
        OstCommand::Remove(args) => drain::remove(&args),
        OstCommand::Rebalance(args) => rebalance::run(&args),
        OstCommand::Files(args) => drain::files(&args),
    }
}

fn replace(args: ReplaceArgs) -> CommandResult {
    let index = replace_ost(&args.directory, args.lose_last_copies)?;
    let path = args.directory.display();
    match args.json {
        true => crate::say!("{}", json!({ "index": index, "path": path.to_string() })),
        false => crate::say!(
            "{path} is an empty OST now; start its server, and it is filled from other copies"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: ListArgs) -> CommandResult {
    let target = args.target.find()?;
    let status: Value = serde_json::from_str(&target.ask("status")?)?;
    if status["server"]["reached"] == false {
        return Err("its server is not reached".into());
    }
    if !status["osses"].is_array() {
        return Err(
            "only administrators are told which servers have OSTs, and only the server with \
             the MDS knows all; run it there, or with an administrator's certificate"
                .into(),
        );
    }
    let mut rows = rows(&status);
    under_way::add(&mut rows, &under_way::statuses(&status));
    for row in rows {
        match args.json {
            true => crate::say!("{row}"),
            false => crate::say!("{}", shown(&row)),
        }
    }
    if status["rebalancing"] == true && !args.json {
        crate::say!("`glint ost rebalance` moves files from fuller to emptier OSTs");
    }
    Ok(ExitCode::SUCCESS)
}

/// A row for each OST.
pub(super) fn rows(status: &Value) -> Vec<Value> {
    let mut missing: BTreeMap<u64, BTreeMap<String, u64>> = BTreeMap::new();
    for row in status["chains"]["not_serving"].as_array().into_iter().flatten() {
        if let (Some(ost), Some(state)) = (row["ost"].as_u64(), row["state"].as_str()) {
            let chains = row["chains"].as_u64().unwrap_or_default();
            missing.entry(ost).or_default().insert(state.to_owned(), chains);
        }
    }
    let former_chains = |ost: u64| {
        let mut former = status["chains"]["former"].as_array().into_iter().flatten();
        former.find(|row| row["ost"] == ost).map_or(0, |row| row["chains"].as_u64().unwrap_or(0))
    };
    let lost_files = |ost: u64| {
        let mut replaced = status["replaced"].as_array().into_iter().flatten();
        replaced
            .find(|row| row["ost"] == ost)
            .map_or(0, |row| row["lost_files"].as_u64().unwrap_or(0))
    };
    let is_drained = |ost: u64| {
        let mut drained = status["drained"].as_array().into_iter().flatten();
        drained.any(|one| one.as_u64() == Some(ost))
    };
    let row = |(ost, space): (u64, &Value),
               server: &Value,
               domain: &Value,
               silent_ms: u64,
               given_up: bool| {
        json!({
            "total_bytes": space["total_bytes"],
            "available_bytes": space["available_bytes"],
            "free_bytes": space["free_bytes"],
            "ost": ost,
            "full": is_full(space),
            "searching": space["searching"] == true,
            "failed": space["failed"] == true,
            "drained": is_drained(ost),
            "given_up": given_up,
            "server": server,
            "failure_domain": domain,
            "silent_ms": silent_ms,
            "not_serving": missing.get(&ost).cloned().unwrap_or_default(),
            "former_chains": former_chains(ost),
            "lost_files": lost_files(ost),
        })
    };
    let own = status["osts"].as_array().into_iter().flatten().filter_map(|ost| {
        let index = ost["index"].as_u64()?;
        Some(row((index, ost), &json!("mds"), &ost["failure_domain"], 0, false))
    });
    let others = status["osses"].as_array().into_iter().flatten().flat_map(|oss| {
        let first = oss["first_ost"].as_u64().unwrap_or(0);
        let osts = first..first + oss["osts"].as_u64().unwrap_or(0);
        let silent_ms = oss["silent_ms"].as_u64().unwrap_or(0);
        let given_up = |ost: u64| {
            let mut all = oss["given_up"].as_array().into_iter().flatten();
            all.any(|one| one.as_u64() == Some(ost))
        };
        osts.map(move |ost| {
            let space = &oss["space"][(ost - first) as usize];
            row((ost, space), &oss["address"], &oss["failure_domain"], silent_ms, given_up(ost))
        })
    });
    own.chain(others).collect()
}

/// Whether new files avoid an OST for its space.
fn is_full(space: &Value) -> bool {
    let (total, available) = (space["total_bytes"].as_u64(), space["available_bytes"].as_u64());
    total.zip(available).is_some_and(|(total, available)| available < full_below(total))
}

/// A row for people.
fn shown(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
    let silent = match row["silent_ms"].as_u64().unwrap_or(0) {
        0..SILENT_MS => String::new(),
        _ if row["given_up"] == true => ", GIVEN UP".into(),
        ms => format!(", NOT HEARD OF for {} s", ms / 1000),
    };
    let space = match (row["available_bytes"].as_u64(), row["total_bytes"].as_u64()) {
        (Some(available), Some(total)) => {
            format!(", {} of {} free", human_bytes(available), human_bytes(total))
        }
        _ => String::new(),
    };
    let flags = [
        ("full", ", FULL"),
        ("failed", ", FAILED"),
        ("searching", ", searched after a loss of power"),
        ("drained", ", DRAINED"),
    ];
    let flags: String =
        flags.iter().filter(|(key, _)| row[*key] == true).map(|(_, is)| *is).collect();
    let states = row["not_serving"].as_object().into_iter().flatten();
    let in_chains = |chains: &Value| counted(chains.as_u64().unwrap_or(0), "chain");
    let states: String =
        states.map(|(state, chains)| format!(", {state} in {}", in_chains(chains))).collect();
    let former = match row["former_chains"].as_u64().unwrap_or(0) {
        0 => String::new(),
        chains => format!(", to be cleared of {}", counted(chains, "chain")),
    };
    let lost = match row["lost_files"].as_u64().unwrap_or(0) {
        0 => String::new(),
        files => {
            let files = counted(files, "file");
            format!(", {files} without copies LOST DATA when it was replaced")
        }
    };
    let (ost, server, domain) = (row["ost"].to_string(), text("server"), text("failure_domain"));
    format!(
        "ost {ost:<4} at {server}{space}, fails with {domain}{silent}{flags}{states}{former}{lost}{}",
        under_way::shown(row)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ost_is_shown_with_what_it_misses() {
        let status = json!({
            "osts": [
                { "index": 0, "total_bytes": 2048, "available_bytes": 512, "failure_domain": "ost0" },
            ],
            "osses": [{
                "address": "b:1", "first_ost": 1, "osts": 2, "silent_ms": 4500,
                "failure_domain": "rack7",
                "space": [null, { "total_bytes": 999, "available_bytes": 8, "failed": true }],
            }, {
                "address": "c:1", "first_ost": 3, "osts": 1, "silent_ms": 9000,
                "failure_domain": "c:1", "given_up": [3],
            }],
            "replaced": [{ "ost": 0, "lost_files": 3 }, { "ost": 1, "found_objects": 9 }],
            "chains": { "not_serving": [
                { "ost": 1, "state": "syncing", "chains": 1 },
                { "ost": 2, "state": "offline", "chains": 2 },
            ], "former": [{ "ost": 3, "chains": 6 }] },
        });
        let shown: Vec<String> = rows(&status).iter().map(shown).collect();
        assert_eq!(
            shown,
            [
                "ost 0    at mds, 512 B of 2.0 KiB free, fails with ost0, 3 files without copies LOST \
                 DATA when it was replaced",
                "ost 1    at b:1, fails with rack7, NOT HEARD OF for 4 s, syncing in 1 chain",
                "ost 2    at b:1, 8 B of 999 B free, fails with rack7, NOT HEARD OF for 4 s, FULL, FAILED, offline in 2 chains",
                "ost 3    at c:1, fails with c:1, GIVEN UP, to be cleared of 6 chains",
            ]
        );
    }
}
