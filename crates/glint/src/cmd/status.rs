//! `glint status`.

use crate::CommandResult;
use crate::target::TargetArg;
use glint_server::human_bytes;
use serde_json::Value;
use std::process::ExitCode;

/// Show servers, OSTs, clients, space and inodes.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArg,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let target = args.target.find()?;
    let status: Value = serde_json::from_str(&target.ask("status")?)?;
    let reached = status["server"]["reached"] != false;
    let code = if reached { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    if args.json {
        crate::say!("{status}");
        return Ok(code);
    }
    if !reached {
        show_without_server(&status);
        return Ok(code);
    }
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let bytes = |value: &Value| human_bytes(value.as_u64().unwrap_or(0));
    // A client that is not an administrator is not told the paths.
    let on = status["data"].as_str().map(|data| format!(" on {data}")).unwrap_or_default();
    crate::say!("glint {}{on}", text(&status["version"]));
    crate::say!("  uuid     {}", text(&status["uuid"]));
    let process = status["pid"].as_u64().map(|pid| format!(", process {pid}"));
    crate::say!("  uptime   {} s{}", status["uptime_s"], process.unwrap_or_default());
    let is_oss = status["role"] == "oss";
    if is_oss {
        let mds = &status["mds"];
        let silent = if mds["reached"] == true { "" } else { ", NOT REACHED: requests wait" };
        crate::say!("  mds      {}{silent}", text(&mds["address"]));
    } else {
        crate::say!("  inodes   {}", status["inodes"]);
        show_engine_cache(&status["engine_cache"]);
        if let Some(warm) = warm_start(&status["warm_start"], "keys") {
            crate::say!("  warm     {warm}");
        }
    }
    let space = &status["space"];
    crate::say!("  space    {}, of {}", room(space), bytes(&space["total_bytes"]));
    if !is_oss {
        show_load(&status);
    }
    show_mount(&status);
    for ost in status["osts"].as_array().into_iter().flatten() {
        let index = ost["index"].to_string();
        let path = ost["path"].as_str().map(|path| format!(", {path}")).unwrap_or_default();
        let state = match (ost["failed"] == true, ost["searching"] == true) {
            (true, _) => ", FAILED: not used until its server is started again".to_owned(),
            (false, true) => searched(&ost["searched"]),
            (false, false) => String::new(),
        };
        crate::say!("  ost {index:<4} {}{path}{state}", room(ost));
        if let Some(passed) = passed_through(&ost["passed_through"]) {
            crate::say!("           {passed}");
        }
        if let Some(warm) = warm_start(&ost["warm_start"], "objects") {
            crate::say!("           {warm}");
        }
    }
    for oss in status["osses"].as_array().into_iter().flatten() {
        let (first, count) = (oss["first_ost"].as_u64(), oss["osts"].as_u64());
        let (first, count) = (first.unwrap_or(0), count.unwrap_or(0));
        let silent = match oss["silent_ms"].as_u64().unwrap_or(0) {
            0..2000 => String::new(),
            ms => format!(", NOT HEARD OF for {} s", ms / 1000),
        };
        let address = text(&oss["address"]);
        crate::say!("  ost {:<4} {}, at {address}{silent}", numbers(first, count), room(oss));
    }
    if let Some(chains) = chains(&status) {
        crate::say!("  chains   {chains}");
    }
    for client in status["clients"].as_array().into_iter().flatten() {
        crate::say!(
            "  client   {} {} at {}, {} connections",
            text(&client["id"]),
            text(&client["host"]),
            text(&client["mount_point"]),
            client["connections"],
        );
    }
    for client in status["awaited"].as_array().into_iter().flatten() {
        let (host, mount_point) = (text(&client["host"]), text(&client["mount_point"]));
        let id = text(&client["id"]);
        crate::say!("  AWAITED  {id} {host} at {mount_point}, to go on after the restart");
    }
    Ok(ExitCode::SUCCESS)
}

/// Space, in the same words everywhere: what users may still fill, and what the disk has, which is
/// more by what servers keep for themselves and the local file system for root.
fn room(space: &Value) -> String {
    let bytes = |key: &str| human_bytes(space[key].as_u64().unwrap_or(0));
    format!("{} available, {} free", bytes("available_bytes"), bytes("free_bytes"))
}

/// The numbers of so many OSTs.
fn numbers(first: u64, count: u64) -> String {
    match count {
        0 | 1 => first.to_string(),
        _ => format!("{first}-{}", first + count - 1),
    }
}

/// How many chains of copies there are, how many are whole, and which OSTs do not serve in how many.
fn chains(status: &Value) -> Option<String> {
    let all = |list: &'_ Value| list.as_array().cloned().unwrap_or_default();
    let chains = &status["chains"];
    let count = chains["count"].as_u64().filter(|count| *count > 0)?;
    let given_up: Vec<Value> =
        all(&status["osses"]).iter().flat_map(|oss| all(&oss["given_up"])).collect();
    let missing = |row: &Value| {
        let state = match given_up.contains(&row["ost"]) {
            // Nobody waits for it.
            true => "given up",
            false => row["state"].as_str().unwrap_or("?"),
        };
        format!("OST {}: {state} in {}", row["ost"], row["chains"])
    };
    let missing: Vec<String> = all(&chains["not_serving"]).iter().map(missing).collect();
    let whole = format!("{count}, {} whole", chains["whole"]);
    match missing.is_empty() {
        true => Some(whole),
        false => Some(format!("{whole} ({})", missing.join(", "))),
    }
}

/// Prints the state of a mount.
fn show_mount(status: &Value) {
    if let Some(client) = status["client"].as_object() {
        crate::say!(
            "  mount    {} of {} inodes cached, {} evicted; {} not sent, {} errors of writing behind",
            client["cached_inodes"],
            client["memory"]["inodes_max"],
            client["evicted_inodes"],
            human_bytes(client["unsent_bytes"].as_u64().unwrap_or(0)),
            client["write_errors"]
        );
        if let Some(ahead) = ahead(&client["prefetched"]) {
            crate::say!("  ahead    {ahead}");
        }
        if let Some(memory) = memory(&client["memory"]) {
            crate::say!("  memory   {memory}");
        }
    }
}

/// What a mount keeps of files that it has prefetched, if it does that, and of directories.
fn ahead(prefetched: &Value) -> Option<String> {
    let limit = prefetched["limit_bytes"].as_u64().filter(|limit| *limit > 0)?;
    let bytes = human_bytes(prefetched["unread_bytes"].as_u64()?);
    let open = |of: &str| prefetched[of].as_u64().filter(|count| *count > 0);
    let pages = open("open_directories").zip(open("open_directories_max"));
    let pages = pages.map(|(now, max)| format!("; pages of {now} of {max} open directories"));
    Some(format!(
        "{bytes} of {} with prefetched files that are not read yet{}",
        human_bytes(limit),
        pages.unwrap_or_default()
    ))
}

/// What limits the caches of a mount, if they may hold less than usual.
fn memory(memory: &Value) -> Option<String> {
    let (now, ample) = (memory["inodes_max"].as_u64()?, memory["inodes_max_ample"].as_u64()?);
    let (supply, part) = (memory["supply"].as_str()?, memory["data_part"].as_str()?);
    let why = if memory["idle"] == true { "not used for long" } else { supply };
    let is_less = now < ample || part != "all";
    (is_less || supply == "short")
        .then(|| format!("{why}: at most {now} of {ample} inodes, {part} of what data may take"))
}

/// Prints what a mount knows of itself while its server is away.
fn show_without_server(status: &Value) {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let server = &status["server"];
    crate::say!("glint {} at {}", text(&status["version"]), text(&status["mount_point"]));
    let (address, error) = (text(&server["address"]), text(&server["error"]));
    crate::say!("  server   {address} NOT REACHED for {} s ({error})", server["silent_s"]);
    show_mount(status);
}

/// Prints how the cache of the engine of an MDS is used.
fn show_engine_cache(cache: &Value) {
    let Some(limit) = cache["limit_bytes"].as_u64() else { return };
    let number = |key: &str| cache[key].as_u64().unwrap_or(0);
    let (hits, misses) = (number("hits"), number("misses"));
    crate::say!(
        "  cache    {} of {} with blocks of tables; {hits} hits, {misses} misses, {} evicted",
        human_bytes(number("bytes")),
        human_bytes(limit),
        human_bytes(number("evicted_bytes")),
    );
}

/// What was loaded of what was read most before the start, if there was anything.
fn warm_start(warm: &Value, items: &str) -> Option<String> {
    let number = |key: &str| warm[key].as_u64().unwrap_or(0);
    let total = Some(number("total")).filter(|total| *total > 0)?;
    let state = match warm["state"].as_str()? {
        "running" => "loading what was read most before the start",
        "done" => "has loaded what was read most before the start",
        "memory short" => "waits for memory to load what was read most before the start",
        "full" => "has loaded as much as there is room for of what was read most before the start",
        _ => return None,
    };
    let done = number("done") * 100 / total;
    let (loaded, bytes) = (number(items), human_bytes(number("bytes")));
    let seconds = warm["seconds"].as_f64().unwrap_or(0.0);
    Some(format!("{state}: {done}%, {loaded} {items}, {bytes} in {seconds} s"))
}

/// How far the search of an OST is, as the state of the OST.
fn searched(searched: &Value) -> String {
    let far = searched["done"].as_f64().map(|done| {
        format!(": {}%, {} found", (done * 100.0) as u64, searched["found"].as_u64().unwrap_or(0))
    });
    let far = far.unwrap_or_default();
    format!(", searched for copies that were changed before power was lost{far}")
}

/// What passed through the memory of an OST, if anything did.
fn passed_through(passed: &Value) -> Option<String> {
    let above = passed["above_bytes"].as_u64()?;
    let bytes = |key: &str| passed[key].as_u64().unwrap_or(0);
    let (read, written) = (bytes("read_bytes"), bytes("written_bytes"));
    (read + written > 0).then(|| {
        format!(
            "of objects above {} passed through memory: {} read, {} written",
            human_bytes(above),
            human_bytes(read),
            human_bytes(written),
        )
    })
}

/// Prints the load of a server with an MDS.
fn show_load(status: &Value) {
    let per_s = &status["per_s"];
    crate::say!(
        "  requests {}; now {}/s, {} us, read {}/s, write {}/s",
        status["operations"],
        per_s["operations"],
        per_s["us_avg"],
        human_bytes(per_s["read_bytes"].as_f64().unwrap_or(0.0) as u64),
        human_bytes(per_s["written_bytes"].as_f64().unwrap_or(0.0) as u64),
    );
    let locks = &status["locks"];
    crate::say!(
        "  locks    of clients on {} inodes and {} ranges of data; of programs {}",
        locks["inodes"],
        locks["data"],
        locks["programs"]
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_is_told_once_something_did() {
        let told = |read, written| {
            let passed = serde_json::json!({
                "above_bytes": 8 << 20, "read_bytes": read, "written_bytes": written,
            });
            passed_through(&passed)
        };
        assert_eq!(told(0, 0), None);
        assert!(told(0, 1 << 20).unwrap().contains("above 8"), "{:?}", told(0, 1 << 20));
        assert_eq!(passed_through(&Value::Null), None, "of a server without it");
    }

    #[test]
    fn how_far_a_search_is_is_told() {
        let of = |state: Value| searched(&state);
        assert!(of(serde_json::json!({"done": 0.5, "found": 7})).ends_with("lost: 50%, 7 found"));
        assert!(of(Value::Null).ends_with("lost"), "of a server that does not say it");
    }

    #[test]
    fn osts_that_do_not_serve_are_named_beside_the_chains() {
        let told = |whole: u64, not_serving: Value| {
            chains(&serde_json::json!({
                "osses": [{ "given_up": [] }, { "given_up": [3] }],
                "chains": { "count": 10, "whole": whole, "not_serving": not_serving },
            }))
        };
        assert_eq!(told(10, serde_json::json!([])).unwrap(), "10, 10 whole");
        let away = serde_json::json!([
            { "ost": 2, "state": "offline", "chains": 10 },
            { "ost": 3, "state": "emptied", "chains": 4 },
        ]);
        assert_eq!(
            told(0, away).unwrap(),
            "10, 0 whole (OST 2: offline in 10, OST 3: given up in 4)"
        );
        assert_eq!(chains(&serde_json::json!({ "chains": { "count": 0 } })), None, "no copies");
        assert_eq!(chains(&Value::Null), None, "of an OSS");
    }

    #[test]
    fn prefetched_files_are_told_where_there_may_be_some() {
        let told = |limit: u64| {
            let state = serde_json::json!({"unread_bytes": 3 << 20, "limit_bytes": limit});
            ahead(&state)
        };
        let expected = "3.0 MiB of 32.0 MiB with prefetched files that are not read yet";
        assert_eq!(told(32 << 20).unwrap(), expected);
        assert_eq!((told(0), ahead(&Value::Null)), (None, None), "it prefetches none");
        let state = serde_json::json!({"unread_bytes": 3 << 20, "limit_bytes": 32 << 20,
            "open_directories": 2, "open_directories_max": 64});
        let with_pages = format!("{expected}; pages of 2 of 64 open directories");
        assert_eq!(ahead(&state), Some(with_pages));
    }

    #[test]
    fn limits_of_memory_are_told_when_they_are_less_than_usual() {
        let told = |supply, now, part, idle| {
            let state = serde_json::json!({"supply": supply, "inodes_max": now, "idle": idle,
                "inodes_max_ample": 500, "data_part": part});
            memory(&state)
        };
        assert_eq!(told("ample", 500, "all", false), None);
        let short = told("short", 250, "1/2", false).unwrap();
        assert_eq!(short, "short: at most 250 of 500 inodes, 1/2 of what data may take");
        assert!(told("ample", 7, "all", true).unwrap().starts_with("not used for long: at most 7"));
        assert_eq!(memory(&Value::Null), None, "of a mount without it");
    }

    #[test]
    fn a_warm_start_is_shown_once_there_was_something_to_load() {
        let warm = |state: &str, total: u64| {
            serde_json::json!({
                "state": state, "done": 3, "total": total, "keys": 700, "bytes": 2 << 20,
                "seconds": 1.5,
            })
        };
        assert_eq!(
            warm_start(&warm("running", 4), "keys").unwrap(),
            "loading what was read most before the start: 75%, 700 keys, 2.0 MiB in 1.5 s"
        );
        assert!(warm_start(&warm("done", 3), "keys").unwrap().contains("100%"));
        for nothing in [warm("done", 0), warm("off", 0), Value::Null] {
            assert_eq!(warm_start(&nothing, "keys"), None);
        }
    }

    #[test]
    fn one_ost_is_no_range() {
        assert_eq!(numbers(8, 1), "8");
        assert_eq!(numbers(8, 3), "8-10");
    }
}
