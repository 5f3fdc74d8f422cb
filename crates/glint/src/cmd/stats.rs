//! `glint stats`.

use crate::CommandResult;
use crate::signals::Stop;
use crate::target::{Target, TargetArg};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Show latencies per layer and operation, in microseconds.
///
/// Layers are nested: mount contains client, client contains net or handler and object_io,
/// handler contains kv_read, journal and lock_wait. Of files with copies, at the head of a chain,
/// handler contains index (noting which objects are changed) and forward (having all members make
/// a change), and forward contains object_io; heal is the copying of an object to a member that
/// was away. `self` is what a layer spent itself, so the `self` of all layers of an operation add
/// up to its whole; what other members do meanwhile are rows of their own, and so is index_write,
/// the writing of notes to their log in the object_io of a change.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    target: TargetArg,
    /// Show again every second what happened in it, until Ctrl-C; quantiles stay those of
    /// the whole time.
    #[arg(long)]
    watch: bool,
    /// Start all statistics again (needs root on a mount).
    #[arg(long, conflicts_with = "watch")]
    reset: bool,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

const INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    let target = args.target.find()?;
    if args.reset {
        target.ask("reset")?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.watch {
        return watch(&target, args.json);
    }
    show(&rows(&target)?, args.json);
    Ok(ExitCode::SUCCESS)
}

fn rows(target: &Target) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    match serde_json::from_str(&target.ask("stats")?)? {
        Value::Array(rows) => Ok(rows),
        _ => Err("that is something else than statistics".into()),
    }
}

fn show(rows: &[Value], json: bool) {
    if json {
        for row in rows {
            crate::say!("{row}");
        }
        return;
    }
    crate::say!(
        "{:<8}{:<13}{:<14}{:>10}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}",
        "process",
        "layer",
        "operation",
        "count",
        "avg",
        "self",
        "min",
        "max",
        "p50",
        "p99"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        let text = |key: &str| row[key].as_str().unwrap_or("?").to_owned();
        crate::say!(
            "{:<8}{:<13}{:<14}{:>10}{:>10.1}{:>10.1}{:>10.1}{:>12.1}{:>10.1}{:>10.1}",
            text("process"),
            text("layer"),
            text("op"),
            number("count"),
            number("avg"),
            number("self"),
            number("min"),
            number("max"),
            number("p50"),
            number("p99"),
        );
    }
}

fn watch(target: &Target, json: bool) -> CommandResult {
    let stop = Stop::listen()?;
    let mut before = rows(target)?;
    while !stop.is_asked() {
        let start = Instant::now();
        while start.elapsed() < INTERVAL && !stop.is_asked() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = rows(target)?;
        let changed = since(&before, &now);
        if !json && std::io::stdout().is_terminal() {
            crate::say_part!("\x1b[2J\x1b[H");
        }
        show(&changed, json);
        std::io::stdout().flush()?;
        before = now;
    }
    Ok(ExitCode::SUCCESS)
}

/// Statistics between two moments: counts and averages of rows that changed.
fn since(before: &[Value], now: &[Value]) -> Vec<Value> {
    let key = |row: &Value| ["process", "layer", "op"].map(|k| row[k].as_str().map(str::to_owned));
    let old: HashMap<_, _> = before.iter().map(|row| (key(row), row)).collect();
    let mut changed = Vec::new();
    for row in now {
        let before = |k: &str| old.get(&key(row)).and_then(|row| row[k].as_f64()).unwrap_or(0.0);
        let grown = |k: &str| row[k].as_f64().unwrap_or(0.0) - before(k);
        let count = grown("count");
        if count < 1.0 {
            continue;
        }
        let mut row = row.clone();
        row["count"] = count.into();
        for (average, sum) in [("avg", "sum"), ("self", "self_sum")] {
            row[average] = ((grown(sum) / count * 100.0).round() / 100.0).into();
        }
        changed.push(row);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::since;
    use serde_json::json;

    #[test]
    fn an_interval_has_its_own_count_and_average() {
        let row = |op: &str, count: u64, sum: f64| {
            json!({"process": "server", "layer": "handler", "op": op, "count": count, "sum": sum,
                   "self_sum": sum / 2.0, "avg": 0.0, "self": 0.0})
        };
        let before = [row("create", 10, 100.0), row("lookup", 5, 5.0)];
        let now = [row("create", 30, 160.0), row("lookup", 5, 5.0), row("unlink", 1, 7.0)];
        let changed = since(&before, &now);
        assert_eq!(changed.len(), 2, "what did not happen is not shown");
        assert_eq!((&changed[0]["count"], &changed[0]["avg"]), (&json!(20.0), &json!(3.0)));
        assert_eq!(changed[0]["self"], json!(1.5));
        assert_eq!(changed[1]["avg"], json!(7.0));
    }
}
