//! `glint stats`.

use crate::CommandResult;
use std::process::ExitCode;

/// Show latencies per layer and operation, in microseconds.
///
/// Layers are nested: mount contains client, client contains net and handler,
/// handler contains kv_read, journal and lock_wait.
#[derive(clap::Args)]
pub struct Args {
    /// A mount point, or a server as HOST:PORT.
    #[arg(value_name = "HOST:PORT|DIR", default_value = "127.0.0.1:5640")]
    target: String,
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let stats = super::status::ask(&args.target, "stats")?;
    let rows = stats.as_array().cloned().unwrap_or_default();
    if args.json {
        for row in rows {
            println!("{row}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{:<13}{:<14}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}",
        "layer", "operation", "count", "avg", "min", "max", "p50", "p99"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        println!(
            "{:<13}{:<14}{:>10}{:>10.1}{:>10.1}{:>12.1}{:>10.1}{:>10.1}",
            row["layer"].as_str().unwrap_or("?"),
            row["op"].as_str().unwrap_or("?"),
            row["count"].as_u64().unwrap_or(0),
            number("avg"),
            number("min"),
            number("max"),
            number("p50"),
            number("p99"),
        );
    }
    Ok(ExitCode::SUCCESS)
}
