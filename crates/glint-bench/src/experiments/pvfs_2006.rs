//! The experiment of PVFS2's getattr (pvfs2-developers, December 2006): the round trip of
//! the smallest request, with different numbers of server threads, with and without polling,
//! on one core and on two.

use super::report::{Plot, Report};
use super::stage::Stage;
use crate::getattr::{PingPong, bind, getattrs};
use crate::rounds::native::{RemoteTarget, connect};
use crate::rounds::{BenchTarget, Operation, Round};
use crate::sample::{Sample, ratio};
use glint::{CommandResult, say};
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Rounds in which what is compared takes turns.
const ROUNDS: u64 = 5;
/// Operations under way at once in the last part, by each of two clients.
const OUTSTANDING: u64 = 32;

/// How threads are placed.
struct Setup {
    name: &'static str,
    /// Cores of the server, and options of it.
    server: &'static str,
    workers: &'static str,
    /// Core of the client, if it is bound to one.
    client: Option<usize>,
    polling: bool,
}

const SETUPS: [Setup; 6] = [
    Setup { name: "1 worker, polling", server: "1", workers: "1", client: Some(0), polling: true },
    Setup {
        name: "1 worker, sleeping",
        server: "1",
        workers: "1",
        client: Some(0),
        polling: false,
    },
    Setup { name: "per core, polling", server: "", workers: "", client: None, polling: true },
    Setup { name: "per core, sleeping", server: "", workers: "", client: None, polling: false },
    Setup { name: "one core, polling", server: "0", workers: "1", client: Some(0), polling: true },
    Setup {
        name: "one core, sleeping",
        server: "0",
        workers: "1",
        client: Some(0),
        polling: false,
    },
];

/// Results of one setup.
struct Row {
    name: &'static str,
    getattr: Sample,
    create: Sample,
    sleeping: Sample,
    polling: Sample,
    sleeps: f64,
    calls: Option<f64>,
}

/// Runs the experiment.
pub(crate) fn run(
    count: u64,
    parent: &Path,
    report: Option<&Path>,
    as_json: bool,
) -> CommandResult {
    let mut rows = Vec::new();
    for setup in &SETUPS {
        eprintln!("{}", setup.name);
        // A thread of its own, which is bound and then gone.
        let result = std::thread::scope(|scope| {
            scope.spawn(|| measure(setup, count, parent).map_err(|e| e.to_string())).join()
        });
        rows.push(result.map_err(|_| "the measuring thread panicked")??);
    }
    glint_net::polling::enable(true);
    eprintln!("two clients, {OUTSTANDING} outstanding each");
    let load = load(count, parent)?;
    if as_json {
        rows.iter().for_each(|row| say!("{}", as_line(row, count)));
        say!("{}", json!({ "bench": "getattr", "experiment": "pvfs-2006", "load": load }));
    }
    if !as_json || report.is_some() {
        describe(&rows, count, &load).finish(report)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(setup: &Setup, count: u64, parent: &Path) -> Result<Row, Box<dyn std::error::Error>> {
    let mut stage = Stage::new(parent)?;
    let mut options = vec!["--polling", if setup.polling { "auto" } else { "off" }];
    if !setup.workers.is_empty() {
        options.extend(["--workers", setup.workers]);
    }
    let served = stage.serve("server", setup.server, &options)?;
    glint_net::polling::enable(setup.polling);
    if let Some(core) = setup.client {
        bind(core);
    }
    let peer = setup.server.parse::<usize>().ok();
    let mut sleeping = PingPong::start(peer, false)?;
    let client = connect(&served.address)?;
    let mut row = Row {
        name: setup.name,
        getattr: Sample::default(),
        create: Sample::default(),
        sleeping: Sample::default(),
        polling: Sample::default(),
        sleeps: 0.0,
        calls: None,
    };
    let round = (count / ROUNDS).max(1);
    let runtime = glint_net::runtime(None)?;
    let mut slept = 0;
    for _ in 0..ROUNDS {
        let before = served.sleeps();
        row.getattr.add(&runtime.block_on(getattrs(&client, round))?);
        slept += served.sleeps() - before;
        row.sleeping.add(&sleeping.run(round)?);
        // On one core two that poll only take turns.
        if setup.server != "0" {
            // The other side of the ping-pong spins as long as it lives.
            row.polling.add(&PingPong::start(peer, true)?.run(round)?);
        }
    }
    row.sleeps = slept as f64 / (round * ROUNDS) as f64;
    row.calls = served.system_calls(|| {
        runtime.block_on(getattrs(&client, round)).map(drop).map_err(|e| e.to_string())
    });
    drop(client);
    let mut target = RemoteTarget::new(&served.address, 1)?;
    for index in 0..ROUNDS {
        let op = Operation::Open;
        let work = Round { op, from: index * round, count: round, procs: 1, outstanding: 1 };
        row.create.add(&target.run(work)?);
    }
    Ok(row)
}

/// Creates of two clients with many under way.
fn load(count: u64, parent: &Path) -> Result<serde_json::Value, Box<dyn std::error::Error>> {
    let mut stage = Stage::new(parent)?;
    let served = stage.serve("server", "", &[])?;
    let mut target = RemoteTarget::new(&served.address, 2)?;
    let round = |from| Round {
        op: Operation::Open,
        from,
        count: 2 * count,
        procs: 2,
        outstanding: OUTSTANDING,
    };
    target.run(round(0))?;
    let (sleeps, writes) = (served.sleeps(), served.counter("journal_writes")?);
    let requests = served.counter("requests")?;
    let sample = target.run(round(2 * count))?;
    let creates = 2.0 * count as f64;
    let requests = (served.counter("requests")? - requests) as f64;
    let each = |n: u64, of: f64| (n as f64 / of * 1e4).round() / 1e4;
    let sleeps = served.sleeps() - sleeps;
    let writes = served.counter("journal_writes")? - writes;
    Ok(json!({
        "clients": 2,
        "outstanding": OUTSTANDING,
        "creates_per_s": sample.per_s().round(),
        "sleeps_per_request": each(sleeps, requests),
        "journal_writes_per_create": each(writes, creates),
        "requests_per_create": ratio(requests, creates),
    }))
}

fn as_line(row: &Row, count: u64) -> serde_json::Value {
    json!({
        "bench": "getattr", "experiment": "pvfs-2006", "setup": row.name, "count": count,
        "us_p50": row.getattr.micros(0.5), "us_p99": row.getattr.micros(0.99),
        "ping_us_p50": row.sleeping.micros(0.5),
        "polling_ping_us_p50": row.polling.micros(0.5),
        "to_ping": ratio(row.getattr.micros(0.5), row.sleeping.micros(0.5)),
        "create_us_p50": row.create.micros(0.5),
        "create_to_getattr": ratio(row.create.micros(0.5), row.getattr.micros(0.5)),
        "sleeps_per_getattr": (row.sleeps * 1000.0).round() / 1000.0,
        "system_calls_per_getattr": row.calls.map(|n| (n / (count / ROUNDS) as f64 * 100.0).round() / 100.0),
    })
}

fn describe(rows: &[Row], count: u64, load: &serde_json::Value) -> Report {
    let mut out = Report::new("pvfs-2006", "getattr: the round trip of the smallest request");
    out.say(&format!(
        "{count} getattr of one client over TCP on loopback, no cache, in turns with a raw ping-pong \
         of 64 bytes whose threads are placed in the same way. *Worker*: the server has one thread \
         on a core of its own; *per core*: one thread per core; *one core*: client and server share \
         a core. Again with `glint bench getattr --experiment pvfs-2006 --count {count}`."
    ));
    out.say(
        "PVFS2 had 44 us with four server threads, 35 us with one and 29 us with one and a \
         fast clock; its create took four requests and four times as long.",
    );
    let titles = [
        "setup",
        "getattr p50 us",
        "p99 us",
        "raw ping-pong p50 us",
        "ratio",
        "raw polling ping-pong p50 us",
        "sleeps of the server per getattr",
        "its system calls per getattr",
        "create+close p50 us",
        "create to getattr",
    ];
    let mut table = vec![titles.map(str::to_owned).to_vec()];
    for row in rows {
        let line = as_line(row, count);
        let show = |key: &str| match &line[key] {
            serde_json::Value::Null => "-".to_owned(),
            value => value.to_string(),
        };
        table.push(vec![
            row.name.to_owned(),
            show("us_p50"),
            show("us_p99"),
            show("ping_us_p50"),
            show("to_ping"),
            if row.polling.micros(0.5) > 0.0 { show("polling_ping_us_p50") } else { "-".into() },
            show("sleeps_per_getattr"),
            show("system_calls_per_getattr"),
            show("create_us_p50"),
            show("create_to_getattr"),
        ]);
    }
    out.table(&table);
    let bars = rows.iter().map(|row| (row.name.to_owned(), row.getattr.micros(0.5))).collect();
    out.plot(
        "getattr",
        Plot { title: "getattr over TCP, p50 in us".into(), bars, ..Plot::default() },
    );
    out.say("## Two clients, many creates under way");
    let mut table = vec![vec!["what".to_owned(), "figure".into()]];
    for (key, value) in load.as_object().into_iter().flatten() {
        table.push(vec![key.replace('_', " "), value.to_string()]);
    }
    out.table(&table);
    out
}
