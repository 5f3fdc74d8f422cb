//! `glint bench getattr`: round trips of the smallest request, beside a raw
//! ping-pong over the same kind of socket in the same run.

use super::native::connect;
use super::sample::{Sample, ratio};
use crate::CommandResult;
use glint_client::Vfs;
use glint_proto::Ino;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

/// Rounds into which the work is cut; they alternate with the ping-pong.
const ROUNDS: u64 = 5;
/// Bytes of a ping, and of a pong.
const PING_BYTES: usize = 64;

/// Ask a server for attributes, one request at a time, and compare with a raw
/// 64-byte ping-pong on loopback.
#[derive(clap::Args)]
pub struct Args {
    /// A server as HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:5640")]
    target: String,
    /// Number of requests.
    #[arg(long, default_value_t = 50_000)]
    count: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> CommandResult {
    let client = connect(&args.target)?;
    let runtime = glint_net::runtime(None)?;
    let mut pings = PingPong::start()?;
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
        println!("{line}");
    } else {
        println!(
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

async fn getattrs(client: &impl Vfs, count: u64) -> glint_proto::FsResult<Sample> {
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

/// A thread that sends back what it gets.
struct PingPong {
    stream: TcpStream,
}

impl PingPong {
    fn start() -> std::io::Result<PingPong> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        stream.set_nodelay(true)?;
        let (mut peer, _) = listener.accept()?;
        peer.set_nodelay(true)?;
        std::thread::spawn(move || {
            let mut bytes = [0; PING_BYTES];
            while peer.read_exact(&mut bytes).is_ok() && peer.write_all(&bytes).is_ok() {}
        });
        Ok(PingPong { stream })
    }

    fn run(&mut self, count: u64) -> std::io::Result<Sample> {
        let mut sample = Sample::default();
        let mut bytes = [0; PING_BYTES];
        let start = Instant::now();
        for _ in 0..count {
            let before = Instant::now();
            self.stream.write_all(&bytes)?;
            self.stream.read_exact(&mut bytes)?;
            sample.record(before.elapsed().as_nanos() as u64);
        }
        sample.set_seconds(start.elapsed().as_secs_f64());
        Ok(sample)
    }
}
