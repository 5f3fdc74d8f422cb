//! `glint heal`: what OSTs lack that were away, and whether they are given it now.

use super::scrub::{Server, number, servers};
use crate::CommandResult;
use crate::target::{MdsArg, TargetArg};
use glint_server::human_bytes;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Look after the copies that lag behind.
///
/// An OST that was away, or was replaced, gets by itself what it missed (`glint ost list` shows
/// `syncing`). That can rest for a while, to leave disks and networks to users; new changes reach
/// all copies meanwhile, as ever. For a limit of its bandwidth see `--heal-bandwidth` of `glint
/// serve`, `oss` and `up`.
#[derive(clap::Subcommand)]
pub(crate) enum HealCommand {
    Info(InfoArgs),
    /// Have heal rest on all servers, also when they restart, until it is resumed
    Pause(RestArgs),
    /// Have heal go on, on all servers, after a pause
    Resume(RestArgs),
}

/// Show what each OST lacks, how fast that is copied, and how long it will take.
///
/// It counts the objects that the index of changes names, of which some may be equal all the same:
/// `glint fsck`, which compares copies of stopped servers, counts as outstanding only those that
/// differ. It shows what the servers know that are reached, and names the others: the exit status is
/// 1 then.
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    #[command(flatten)]
    target: TargetArg,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// File system whose heal rests, or goes on.
#[derive(clap::Args)]
pub(crate) struct RestArgs {
    #[command(flatten)]
    target: MdsArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(command: HealCommand) -> CommandResult {
    match command {
        HealCommand::Info(args) => info(&args),
        HealCommand::Pause(args) => rest(&args, true),
        HealCommand::Resume(args) => rest(&args, false),
    }
}

fn rest(args: &RestArgs, paused: bool) -> CommandResult {
    let what = if paused { "heal-pause" } else { "heal-resume" };
    args.target.find()?.ask(what)?;
    match (args.json, paused) {
        (true, _) => crate::say!("{}", json!({ "paused": paused })),
        (false, true) => crate::say!("heal rests until `glint heal resume`"),
        (false, false) => crate::say!("heal goes on"),
    }
    Ok(ExitCode::SUCCESS)
}

fn info(args: &InfoArgs) -> CommandResult {
    let servers = servers(args.target.find()?)?;
    let mut failed = Vec::new();
    let mut statuses = Vec::new();
    for server in &servers {
        match status(server) {
            Ok(status) => statuses.push(status),
            Err(error) => failed.push(server.error(&error)),
        }
    }
    let rows = rows(&statuses);
    let paused = statuses.iter().any(|status| status["heal"]["paused"] == true);
    if paused && !args.json {
        crate::say!("heal rests until `glint heal resume`");
    }
    let gives_way = rows.iter().any(|row| row["gives_way"] == true);
    if gives_way && !args.json {
        crate::say!("heal gives way to users, who are served beside it");
    }
    for row in &rows {
        match args.json {
            true => crate::say!("{row}"),
            false => crate::say!("{}", shown(row)),
        }
    }
    if rows.is_empty() && !args.json {
        crate::say!("no copy lacks anything");
    }
    match failed.is_empty() {
        true => Ok(ExitCode::SUCCESS),
        false => Err(failed.join("\n").into()),
    }
}

fn status(server: &Server) -> Result<Value, String> {
    serde_json::from_str(&server.target.ask("status")?).map_err(|error| error.to_string())
}

/// A row for each OST that lacks something, or is emptied, as the servers know it.
pub(super) fn rows(statuses: &[Value]) -> Vec<Value> {
    // All members of a chain that serve know it. The head says it best.
    let mut lacking: BTreeMap<(u64, &str), &Value> = BTreeMap::new();
    let pending = |status: &'_ Value| status["pending"].as_array().cloned().unwrap_or_default();
    let all: Vec<Value> = statuses.iter().flat_map(pending).collect();
    for one in &all {
        let key = (number(one, "ost"), one["chain"].as_str().unwrap_or("?"));
        let known = lacking.entry(key).or_insert(one);
        let weight = |one: &Value| (one["head"] == true, number(one, "objects"));
        if weight(one) > weight(known) {
            *known = one;
        }
    }
    let mut osts: BTreeMap<u64, [u64; 5]> = BTreeMap::new();
    for ((ost, _), one) in lacking {
        let [chains, objects, bytes, open_ended, everything] = osts.entry(ost).or_default();
        *chains += 1;
        *everything += u64::from(one["everything"] == true);
        *objects += number(one, "objects");
        *bytes += number(one, "bytes");
        *open_ended += number(one, "open_ended");
    }
    let rate = |ost: u64, key: &str| -> u64 {
        let rates = statuses.iter().flat_map(|status| status["heal"]["rates"].as_array());
        rates.flatten().filter(|rate| rate["ost"] == ost).map(|rate| number(rate, key)).sum()
    };
    let paused = statuses.iter().any(|status| status["heal"]["paused"] == true);
    let gives_way = |ost: u64| {
        statuses.iter().map(|status| &status["heal"]).any(|heal| {
            let mut rates = heal["rates"].as_array().into_iter().flatten();
            heal["gives_way"] == true && rates.any(|rate| rate["ost"] == ost)
        })
    };
    let row = |(ost, [chains, objects, bytes, open_ended, everything]): (u64, [u64; 5])| {
        let objects_per_s = rate(ost, "objects_per_s");
        // How many objects there are in all nobody has counted.
        let is_known = !paused && objects_per_s > 0 && everything == 0;
        let left = is_known.then(|| objects.div_ceil(objects_per_s));
        json!({
            "ost": ost,
            "chains": chains,
            "objects": objects,
            "bytes": bytes,
            "open_ended": open_ended,
            "everything_of_chains": everything,
            "objects_per_s": objects_per_s,
            "bytes_per_s": rate(ost, "bytes_per_s"),
            "seconds_left": left,
            "paused": paused,
            "gives_way": gives_way(ost),
        })
    };
    osts.into_iter().map(row).collect()
}

/// A row for people.
fn shown(row: &Value) -> String {
    format!("ost {:<4} {}", row["ost"].to_string(), lacking(row))
}

/// What the OST of a row lacks, for people.
pub(super) fn lacking(row: &Value) -> String {
    let (objects, chains) = (number(row, "objects"), number(row, "chains"));
    let (bytes, open_ended) = (number(row, "bytes"), number(row, "open_ended"));
    let is_more = open_ended > 0 || number(row, "everything_of_chains") > 0;
    let size = match (bytes, open_ended) {
        (0, _) if is_more => "size not known".to_owned(),
        (_, 0) => format!("at least {}", human_bytes(bytes)),
        (_, some) => format!("at least {} ({some} of them to their ends)", human_bytes(bytes)),
    };
    let rate = match number(row, "objects_per_s") {
        0 => String::new(),
        objects => {
            format!(", {objects} objects and {} a second", human_bytes(number(row, "bytes_per_s")))
        }
    };
    let left = match row["seconds_left"].as_u64() {
        Some(seconds) => format!(", {seconds} s left"),
        None => String::new(),
    };
    let everything = match number(row, "everything_of_chains") {
        0 => String::new(),
        chains => {
            format!(", and all objects of {chains} of them: more changes than are remembered")
        }
    };
    format!("lacks {objects} objects of {chains} chains, {size}{everything}{rate}{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chain_counts_once_as_its_head_knows_it() {
        let pending = |chain: &str, ost: u64, objects: u64, head: bool| json!({"chain": chain, "ost": ost, "objects": objects, "bytes": objects << 20, "head": head});
        let rates = json!([{"ost": 2, "objects_per_s": 5, "bytes_per_s": 1048576}]);
        let one = json!({
            "pending": [pending("3x0", 2, 10, true), pending("3x1", 2, 99, false)],
            "heal": { "paused": false, "rates": [] },
        });
        let two = json!({
            "pending": [pending("3x0", 2, 11, false), pending("3x1", 2, 20, true)],
            "heal": { "paused": false, "rates": rates },
        });
        let mut statuses = [one, two];
        let shown_now: Vec<String> = rows(&statuses).iter().map(shown).collect();
        assert_eq!(
            shown_now,
            ["ost 2    lacks 30 objects of 2 chains, at least 30.0 MiB, 5 objects and 1.0 MiB a \
                 second, 6 s left"]
        );
        statuses[1]["pending"][1]["open_ended"] = json!(20);
        assert_eq!(
            shown(&rows(&statuses)[0]),
            "ost 2    lacks 30 objects of 2 chains, at least 30.0 MiB (20 of them to their ends), 5 \
             objects and 1.0 MiB a second, 6 s left"
        );
        let truncated =
            json!({ "ost": 2, "objects": 36, "chains": 7, "bytes": 0, "open_ended": 36 });
        assert_eq!(shown(&truncated), "ost 2    lacks 36 objects of 7 chains, size not known");
        statuses[1]["pending"][1]["open_ended"] = json!(0);
        statuses[1]["pending"][1]["everything"] = json!(true);
        assert_eq!(
            shown(&rows(&statuses)[0]),
            "ost 2    lacks 30 objects of 2 chains, at least 30.0 MiB, and all objects of 1 of \
             them: more changes than are remembered, 5 objects and 1.0 MiB a second"
        );
        assert_eq!(rows(&statuses)[0]["gives_way"], false);
        statuses[0]["heal"]["gives_way"] = json!(true);
        assert_eq!(rows(&statuses)[0]["gives_way"], false, "that server heals another OST");
        statuses[1]["heal"]["gives_way"] = json!(true);
        assert_eq!(rows(&statuses)[0]["gives_way"], true);
        statuses[0]["heal"]["paused"] = json!(true);
        assert_eq!(rows(&statuses)[0]["seconds_left"], Value::Null);
        assert!(rows(&[]).is_empty());
    }
}
