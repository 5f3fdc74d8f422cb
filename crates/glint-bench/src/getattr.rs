//! `glint bench getattr`: round trips of the smallest request, beside a raw
//! ping-pong over the same kind of socket in the same run.

use crate::experiments::pvfs_2006;
use crate::rounds::native::connect;
use crate::sample::{Sample, ratio};
use glint::{CommandResult, say};
use glint_client::Vfs;
use glint_proto::Ino;
use serde_json::json;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Rounds into which the work is cut; they alternate with the ping-pong.
const ROUNDS: u64 = 5;
/// Bytes of a ping, and of a pong.
const PING_BYTES: usize = 64;

/// Ask a server for attributes, one request at a time, and compare with a raw
/// 64-byte ping-pong on loopback.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A server as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5640")]
    target: String,
    /// Number of requests.
    #[arg(long, default_value_t = 50_000)]
    count: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// A whole experiment: servers with one thread and one per core, with and without polling,
    /// on one core and on two; creates, and two clients with many creates under way. Only
    /// --count, --data and --report are used beside it.
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// Directory for the file systems of the experiment [default: the temporary directory].
    #[arg(long, value_name = "DIR", requires = "experiment")]
    data: Option<PathBuf>,
    /// Write a report of the experiment, with plots, into this directory.
    #[arg(long, value_name = "DIR", requires = "experiment")]
    report: Option<PathBuf>,
}

/// Experiments of this benchmark.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Experiment {
    /// PVFS2's getattr with one client and one server.
    #[value(name = "pvfs-2006")]
    Pvfs2006,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> CommandResult {
    if let Some(Experiment::Pvfs2006) = args.experiment {
        let parent = args.data.clone().unwrap_or_else(std::env::temp_dir);
        return pvfs_2006::run(args.count, &parent, args.report.as_deref(), args.json);
    }
    let client = connect(&args.target)?;
    let runtime = glint_net::runtime(None)?;
    let mut pings = PingPong::start(None, false)?;
    let (mut ours, mut raw) = (Sample::default(), Sample::default());
    for _ in 0..ROUNDS {
        let round = (args.count / ROUNDS).max(1);
        ours.add(&runtime.block_on(getattrs(&client, round))?);
        raw.add(&pings.run(round)?);
    }
    let ratio = ratio(ours.micros(0.5), raw.micros(0.5));
    if args.json {
        let line = json!({
            "bench": "getattr",
            "op": "getattr",
            "target": args.target,
            "count": args.count,
            "per_s": ours.per_s().round(),
            "us_p50": ours.micros(0.50),
            "us_p99": ours.micros(0.99),
            "ping_us_p50": raw.micros(0.50),
            "ping_us_p99": raw.micros(0.99),
            "ratio": ratio,
        });
        say!("{line}");
    } else {
        say!(
            "getattr on {}: p50 {} us, p99 {} us; raw ping-pong p50 {} us, p99 {} us; ratio {ratio:.2}",
            args.target,
            ours.micros(0.50),
            ours.micros(0.99),
            raw.micros(0.50),
            raw.micros(0.99)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Asks for the attributes of the root, one request at a time.
pub(crate) async fn getattrs(client: &impl Vfs, count: u64) -> glint_proto::FsResult<Sample> {
    let mut sample = Sample::default();
    let start = Instant::now();
    for _ in 0..count {
        let before = Instant::now();
        client.getattr(Ino::ROOT).await?;
        sample.record(before.elapsed().as_nanos() as u64);
    }
    sample.set_seconds(start.elapsed().as_secs_f64());
    Ok(sample)
}

/// Fills `bytes`, by looking again and again if the stream does not wait.
fn receive(stream: &mut TcpStream, bytes: &mut [u8]) -> std::io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match stream.read(&mut bytes[done..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Binds this thread to a core. Where that cannot be, it is not; the figures would show it.
pub(crate) fn bind(core: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A thread that sends back what it gets.
pub(crate) struct PingPong {
    stream: TcpStream,
}

impl PingPong {
    /// On this core, if one is named. With `polling` neither side ever sleeps.
    pub(crate) fn start(core: Option<usize>, polling: bool) -> std::io::Result<PingPong> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        stream.set_nonblocking(polling)?;
        peer.set_nonblocking(polling)?;
        std::thread::spawn(move || {
            if let Some(core) = core {
                bind(core);
            }
            let mut bytes = [0; PING_BYTES];
            while receive(&mut peer, &mut bytes).is_ok() && peer.write_all(&bytes).is_ok() {}
        });
        Ok(PingPong { stream })
    }

    /// Measures `count` round trips.
    pub(crate) fn run(&mut self, count: u64) -> std::io::Result<Sample> {
        let mut sample = Sample::default();
        let mut bytes = [0; PING_BYTES];
        let start = Instant::now();
        for _ in 0..count {
            let before = Instant::now();
            self.stream.write_all(&bytes)?;
            receive(&mut self.stream, &mut bytes)?;
            sample.record(before.elapsed().as_nanos() as u64);
        }
        sample.set_seconds(start.elapsed().as_secs_f64());
        Ok(sample)
    }
}
