//! `glint status`.

use crate::CommandResult;
use crate::live::human_bytes;
use std::path::Path;
use std::process::ExitCode;

/// Show servers, OSTs, clients, space and inodes.
#[derive(clap::Args)]
pub struct Args {
    /// A mount point, or a server as HOST:PORT or unix:PATH.
    #[arg(value_name = "HOST:PORT|DIR", default_value = "127.0.0.1:5640")]
    target: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Whether this is a path in a mount, and not the address of a server.
fn is_mount(target: &str) -> bool {
    let is_path = Path::new(target).exists() || target.contains('/');
    is_path && !target.starts_with(glint_net::UNIX_PREFIX)
}

/// Asks a mount or a server for its state dump or its statistics.
pub fn ask(target: &str, what: &str) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let path = Path::new(target);
    let text = if is_mount(target) {
        super::ask_mount(path, &format!("glint.{what}"))?
    } else {
        glint_net::Remote::ask(&crate::identity::address(target)?, what)
            .map_err(|e| format!("server {target}: {e}"))?
    };
    Ok(serde_json::from_str(&text)?)
}

/// Starts the statistics of a mount or a server again.
pub fn reset(target: &str) -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(target);
    if is_mount(target) {
        let flags = rustix::fs::XattrFlags::empty();
        return rustix::fs::setxattr(path, "glint.stats", b"reset", flags)
            .map_err(|e| format!("{}: {e}", path.display()).into());
    }
    glint_net::Remote::ask(&crate::identity::address(target)?, "reset")
        .map_err(|e| format!("server {target}: {e}"))?;
    Ok(())
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let status = ask(&args.target, "status")?;
    if args.json {
        crate::say!("{status}");
        return Ok(ExitCode::SUCCESS);
    }
    let text = |value: &serde_json::Value| value.as_str().unwrap_or("?").to_owned();
    let bytes = |value: &serde_json::Value| human_bytes(value.as_u64().unwrap_or(0));
    crate::say!("glint {} on {}", text(&status["version"]), text(&status["data"]));
    crate::say!("  uuid     {}", text(&status["uuid"]));
    crate::say!("  uptime   {} s, process {}", status["uptime_s"], status["pid"]);
    let is_oss = status["role"] == "oss";
    if is_oss {
        let mds = &status["mds"];
        let silent = if mds["reached"] == true { "" } else { ", NOT REACHED: requests wait" };
        crate::say!("  mds      {}{silent}", text(&mds["address"]));
    } else {
        crate::say!("  inodes   {}", status["inodes"]);
    }
    let space = &status["space"];
    crate::say!(
        "  space    {} of {} available",
        bytes(&space["available_bytes"]),
        bytes(&space["total_bytes"])
    );
    if !is_oss {
        show_load(&status);
    }
    if let Some(client) = status["client"].as_object() {
        crate::say!(
            "  mount    {} inodes cached, {} not sent, {} errors of writing behind",
            client["cached_inodes"],
            bytes(&client["unsent_bytes"]),
            client["write_errors"]
        );
    }
    for ost in status["osts"].as_array().into_iter().flatten() {
        crate::say!(
            "  ost {:<4} {} free, {}",
            ost["index"],
            bytes(&ost["free_bytes"]),
            text(&ost["path"])
        );
    }
    for oss in status["osses"].as_array().into_iter().flatten() {
        let (first, count) = (oss["first_ost"].as_u64(), oss["osts"].as_u64());
        let (first, count) = (first.unwrap_or(0), count.unwrap_or(0));
        let silent = match oss["silent_ms"].as_u64().unwrap_or(0) {
            0..2000 => String::new(),
            ms => format!(", NOT HEARD OF for {} s", ms / 1000),
        };
        crate::say!(
            "  ost {first}-{} {} free, at {}{silent}",
            first + count.saturating_sub(1),
            bytes(&oss["free_bytes"]),
            text(&oss["address"]),
        );
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
    Ok(ExitCode::SUCCESS)
}

/// What a server with an MDS does and holds.
fn show_load(status: &serde_json::Value) {
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
