//! `glint scrub`.

use crate::CommandResult;
use crate::live;
use crate::signals::Stop;
use crate::target::{Target, TargetArg};
use glint_proto::clock;
use glint_server::human_bytes;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Compare stored data with its checksums now, on all servers of a file system.
///
/// Servers do this by themselves every week, slowly (--scrub-bandwidth). Data gets its checksums
/// some seconds after its last change. What is damaged is never returned by a read. A file with
/// copies is repaired from another one by itself, which this waits to see begin; restore others. A
/// copy that lags behind is not taken for that, as it may be older, until it has everything and
/// serves. Exits with 1 if something is damaged that is not repaired, or could not be compared (the
/// server's log says why), or if a server could not be asked.
///
/// Ctrl-C ends only the display; the servers go on.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArg,
    /// Begin, and do not wait for the end.
    #[arg(long, conflicts_with_all = ["stop", "status"])]
    background: bool,
    /// Only show how far it is, or what was found last.
    #[arg(long)]
    status: bool,
    /// End what is under way.
    #[arg(long, conflicts_with = "status")]
    stop: bool,
    /// Print JSON, an object for each OST.
    #[arg(long)]
    json: bool,
}

const INTERVAL: Duration = Duration::from_millis(500);

/// A server of the file system, as it can be asked from here.
pub(crate) struct Server {
    pub(crate) target: Target,
    name: String,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let stop = Stop::listen()?;
    let servers = servers(args.target.find()?)?;
    let mut failed = Vec::new();
    if !args.status {
        let what = if args.stop { "scrub-stop" } else { "scrub" };
        let refused = servers.iter().map(|server| (server, server.target.ask(what)));
        failed = refused.filter_map(|(server, asked)| Some(server.error(&asked.err()?))).collect();
    }
    let waits = !(args.background || args.status || args.stop);
    let begun = Instant::now();
    let is_shown = waits && std::io::stderr().is_terminal();
    let rows = loop {
        let rows: Vec<Value> = servers.iter().flat_map(rows).collect();
        if !waits || !rows.iter().any(is_busy) || stop.is_asked() {
            break rows;
        }
        if is_shown {
            live::show(&format!("\r\x1b[J{}", progress(&rows, begun.elapsed())));
        }
        std::thread::sleep(INTERVAL);
    };
    if is_shown {
        live::show("\r\x1b[J");
    }
    for row in &rows {
        if args.json {
            crate::say!("{row}");
        } else {
            show(row);
        }
    }
    let unread = rows.iter().filter_map(|row| row["error"].as_str().map(str::to_owned));
    failed.extend(unread);
    failed.dedup();
    if !failed.is_empty() {
        return Err(failed.join("\n").into());
    }
    Ok(if rows.iter().all(is_right) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Server {
    pub(crate) fn error(&self, error: &str) -> String {
        format!("{}: {error}", self.name)
    }
}

/// The server that `target` leads to, and those of OSTs that it knows, but for those of which all
/// were given up.
pub(crate) fn servers(target: Target) -> Result<Vec<Server>, Box<dyn std::error::Error>> {
    let status: Value = serde_json::from_str(&target.ask("status")?)?;
    if status["server"]["reached"] == false {
        return Err("its server is not reached".into());
    }
    let mut servers = vec![Server { target, name: "the server with the MDS".into() }];
    for oss in status["osses"].as_array().into_iter().flatten().filter(|oss| !is_given_up(oss)) {
        let address = oss["address"].as_str().ok_or(
            "who is not an administrator is not told where the servers of OSTs are; run it on a \
             server, or with an administrator's certificate",
        )?;
        let name = format!("the server of OSTs at {address}");
        servers.push(Server { target: Target::Oss(address.to_owned()), name });
    }
    Ok(servers)
}

/// Whether all OSTs of a server were given up: it does not exist any more.
fn is_given_up(oss: &Value) -> bool {
    let given_up = oss["given_up"].as_array().map_or(0, Vec::len) as u64;
    given_up > 0 && given_up == number(oss, "osts")
}

/// A row for each OST of a server; one with an error if it does not answer.
fn rows(server: &Server) -> Vec<Value> {
    let asked = server.target.ask("status");
    let status = asked.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
    let status: Value = match status {
        Ok(status) => status,
        Err(error) => return vec![json!({"error": server.error(&error), "damaged": 0})],
    };
    let row = |ost: &Value| {
        let mut row = ost["scrub"].clone();
        row["ost"] = ost["index"].clone();
        row
    };
    status["osts"].as_array().into_iter().flatten().map(row).collect()
}

pub(super) fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or(0)
}

/// Whether more is to be compared, or it is not decided yet what becomes of damage.
fn is_busy(row: &Value) -> bool {
    row["running"] == true || number(row, "pending") > 0
}

/// Whether nothing is damaged that is not repaired, and everything could be compared.
fn is_right(row: &Value) -> bool {
    number(row, "damaged") <= number(row, "repaired") && number(row, "not_compared") == 0
}

/// One line for all of them.
fn progress(rows: &[Value], elapsed: Duration) -> String {
    let sum = |key: &str| rows.iter().map(|row| number(row, key)).sum::<u64>();
    let done: f64 =
        rows.iter().filter_map(|row| row["done"].as_f64()).fold(0.0, |sum, done| sum + done);
    let done = done / rows.len().max(1) as f64;
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = human_bytes((sum("bytes") as f64 / seconds) as u64);
    let left = match done {
        0.02.. => format!(", {} s left", (seconds / done - seconds).ceil()),
        _ => String::new(),
    };
    let repairs = match sum("pending") {
        0 => String::new(),
        count => format!(", {count} repairs to begin"),
    };
    format!(
        "{:.0} %, {} objects, {} at {rate}/s{left}, {} damaged{repairs}",
        done * 100.0,
        sum("objects"),
        human_bytes(sum("bytes")),
        sum("damaged"),
    )
}

fn show(row: &Value) {
    if row["error"].is_string() {
        return;
    }
    crate::say!("{}", line(row));
    for damage in row["damage"].as_array().into_iter().flatten() {
        let (ino, stripe) = (&damage["ino"], &damage["stripe"]);
        let reason = damage["reason"].as_str().unwrap_or("?");
        crate::say!("  DAMAGED  inode {ino}, stripe {stripe}: {reason}");
        crate::say!("           its name: find MOUNT -inum {ino}");
    }
    let told = row["damage"].as_array().map_or(0, Vec::len) as u64;
    if (1..number(row, "damaged")).contains(&told) {
        crate::say!("  and {} more", number(row, "damaged") - told);
    }
}

/// What was compared and found of an OST, in one line.
fn line(row: &Value) -> String {
    let state = match (row["running"] == true, row["finished"].as_u64()) {
        (true, _) => format!("{:.0} % done", row["done"].as_f64().unwrap_or(0.0) * 100.0),
        (false, Some(seconds)) => format!("ended {}", ago(seconds)),
        (false, None) => "not ended since the start of the server".into(),
    };
    let not_compared = match number(row, "not_compared") {
        0 => String::new(),
        count => format!(", {count} could not be compared (the server's log says why)"),
    };
    let repaired = match number(row, "repaired") {
        0 => String::new(),
        count => format!(", {count} of these are written anew from other copies"),
    };
    let left = match number(row, "left") {
        0 => String::new(),
        count => {
            format!(", {count} stay so: no other copy that serves can be read, or there is none")
        }
    };
    // Beyond those that the server keeps, or their repair has failed and is tried again.
    let known = number(row, "repaired") + number(row, "pending") + number(row, "left");
    let later = match number(row, "damaged").saturating_sub(known) {
        0 => String::new(),
        count => format!(", {count} are not repaired as yet"),
    };
    format!(
        "ost {:<4} {state}: {} objects and {} compared, {} without checksums as yet, \
         {} damaged{repaired}{left}{later}{not_compared}",
        row["ost"].to_string(),
        number(row, "objects"),
        human_bytes(number(row, "bytes")),
        number(row, "unsealed"),
        number(row, "damaged"),
    )
}

/// How long a time, in seconds since the epoch, is ago.
fn ago(seconds: u64) -> String {
    let since = clock::date().as_secs().saturating_sub(seconds);
    match since {
        0..120 => format!("{since} s ago"),
        120..7_200 => format!("{} min ago", since / 60),
        7_200..172_800 => format!("{} h ago", since / 3_600),
        _ => format!("{} days ago", since / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_compared_is_not_called_right() {
        assert!(is_right(&json!({"damaged": 0, "not_compared": 0})));
        assert!(!is_right(&json!({"damaged": 0, "not_compared": 1})));
        assert!(!is_right(&json!({"damaged": 1, "not_compared": 0})));
        assert!(is_right(&json!({"damaged": 0})), "of an older server");
    }

    #[test]
    fn damage_that_stays_is_told_from_damage_that_is_repaired() {
        let said = |damaged: u64, repaired: u64, pending: u64, left: u64| {
            let row = json!({"ost": 2, "objects": 9, "bytes": 1024, "unsealed": 0,
                "damaged": damaged, "repaired": repaired, "pending": pending, "left": left});
            let line = line(&row);
            line.split_once(" as yet, ").unwrap().1.to_owned()
        };
        assert_eq!(said(0, 0, 0, 0), "0 damaged");
        assert_eq!(said(3, 2, 1, 0), "3 damaged, 2 of these are written anew from other copies");
        assert_eq!(
            said(3, 1, 0, 2),
            "3 damaged, 1 of these are written anew from other copies, 2 stay so: no other copy \
             that serves can be read, or there is none"
        );
        let many = said(1200, 998, 0, 2);
        assert!(many.ends_with("or there is none, 200 are not repaired as yet"), "{many}");
    }

    #[test]
    fn servers_that_were_given_up_are_not_asked() {
        assert!(is_given_up(&json!({"osts": 2, "given_up": [3, 4]})));
        assert!(!is_given_up(&json!({"osts": 2, "given_up": [3]})));
        assert!(!is_given_up(&json!({"osts": 1, "given_up": []})));
        assert!(!is_given_up(&json!({"osts": 1})), "of an older server");
    }

    #[test]
    fn repairs_that_have_not_begun_are_waited_for() {
        assert!(is_busy(&json!({"running": true, "pending": 0})));
        assert!(is_busy(&json!({"running": false, "damaged": 5, "pending": 5})));
        assert!(!is_busy(&json!({"running": false, "damaged": 5, "pending": 0})));
    }

    #[test]
    fn the_line_of_progress_is_of_all_osts() {
        let row = |done: f64, bytes: u64, damaged: u64| json!({"running": true, "done": done, "bytes": bytes, "objects": 3, "damaged": damaged});
        let rows = [row(0.5, 8 << 20, 0), row(0.3, 12 << 20, 1)];
        let line = progress(&rows, Duration::from_secs(10));
        assert_eq!(line, "40 %, 6 objects, 20.0 MiB at 2.0 MiB/s, 15 s left, 1 damaged");
        assert_eq!(progress(&[], Duration::ZERO), "0 %, 0 objects, 0 B at 0 B/s, 0 damaged");
    }
}
