//! `--metrics HOST:PORT`: statistics for Prometheus, on a thread of their own.
//!
//! Invariant: one connection at a time, for a short time. Who floods this port costs one thread
//! and one descriptor.

mod servers;

use crate::cmd::serve::{not_bound, resolve};
use glint_net::stats::op_name;
use std::fmt::{Arguments, Write as _};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a connection may take, and how long it may wait for its next bytes.
const TIME: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(500);
/// Longest request.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// Asks the servers of this process for their status, which is JSON.
pub(crate) type Status = Box<dyn Fn() -> String + Send>;

/// The address of `--metrics`, if there is one, before anything is served at it: a wrong one is
/// said before there is a mount or a server that would have to end.
pub(crate) struct Bound(Option<(TcpListener, SocketAddr)>);

impl Bound {
    /// Binds.
    pub(crate) fn bind(address: Option<&str>) -> Result<Bound, String> {
        let Some(address) = address else { return Ok(Bound(None)) };
        resolve("--metrics", address)?;
        let bound = TcpListener::bind(address).and_then(|listener| {
            let own = listener.local_addr()?;
            Ok((listener, own))
        });
        bound.map(|bound| Bound(Some(bound))).map_err(|e| not_bound("--metrics", address, &e))
    }

    /// Serves `/metrics` from now on; with the status of servers, if this process has some.
    pub(crate) fn serve(self, status: Option<Status>) -> Result<Option<Metrics>, String> {
        let Some((listener, address)) = self.0 else { return Ok(None) };
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || serve(&listener, &stopped, status.as_ref()))
            .map_err(|e| format!("--metrics {address}: starting a thread: {e}"))?;
        tracing::info!("metrics at http://{address}/metrics");
        Ok(Some(Metrics { address, stop, thread: Some(thread) }))
    }
}

/// The HTTP server.
pub(crate) struct Metrics {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // The thread waits for a connection.
        let woken = TcpStream::connect_timeout(&self.address, TIME).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            // The thread ends with the server; if it panicked there is nothing to do.
            let _ = thread.join();
        }
    }
}

fn serve(listener: &TcpListener, stop: &AtomicBool, status: Option<&Status>) {
    for connection in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let answered = connection.and_then(|connection| answer(connection, status));
        if let Err(error) = answered {
            tracing::debug!(%error, "answering a request for metrics");
            // Out of descriptors, perhaps; others may give some back.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn answer(mut connection: TcpStream, status: Option<&Status>) -> io::Result<()> {
    connection.set_read_timeout(Some(PAUSE))?;
    connection.set_write_timeout(Some(TIME))?;
    let request = read_head(&mut connection)?;
    let target = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match target.split('?').next() {
        Some("/metrics") => ("200 OK", text(status)),
        _ => ("404 Not Found", "see /metrics\n".to_owned()),
    };
    // Version 0.0.4 is the text format that every Prometheus reads.
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let body = if request.starts_with("HEAD ") { "" } else { &body };
    connection.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    connection.shutdown(Shutdown::Write)
}

/// A request up to the empty line that ends its head.
fn read_head(connection: &mut impl Read) -> io::Result<String> {
    let start = Instant::now();
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = connection.read(&mut part)?;
        if read == 0 || head.len() > REQUEST_BYTES_MAX || start.elapsed() > TIME {
            return Err(ErrorKind::InvalidData.into());
        }
        head.extend_from_slice(&part[..read]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// The text format of Prometheus, durations in seconds.
fn text(status: Option<&Status>) -> String {
    let mut out = String::new();
    let seconds = |nanos: u64| nanos as f64 / 1e9;
    let mut line = |args: Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{args}");
    };
    line(format_args!("# HELP glint_operation_seconds Time of an operation in a layer."));
    line(format_args!("# TYPE glint_operation_seconds summary"));
    let rows = glint_telemetry::snapshot();
    for row in &rows {
        let labels = format!("layer=\"{}\",op=\"{}\"", row.layer.name(), op_name(row.op));
        let h = &row.histogram;
        for q in [0.5, 0.99] {
            let value = seconds(h.quantile(q));
            line(format_args!("glint_operation_seconds{{{labels},quantile=\"{q}\"}} {value}"));
        }
        line(format_args!("glint_operation_seconds_sum{{{labels}}} {}", seconds(h.sum())));
        line(format_args!("glint_operation_seconds_count{{{labels}}} {}", h.count()));
    }
    line(format_args!("# HELP glint_operation_self_seconds_total Time in the layer itself."));
    line(format_args!("# TYPE glint_operation_self_seconds_total counter"));
    for row in &rows {
        let (layer, op, own) = (row.layer.name(), op_name(row.op), seconds(row.histogram.own()));
        line(format_args!(
            "glint_operation_self_seconds_total{{layer=\"{layer}\",op=\"{op}\"}} {own}"
        ));
    }
    for (counter, value) in glint_telemetry::counters() {
        let name = counter.name();
        line(format_args!("# TYPE glint_{name}_total counter\nglint_{name}_total {value}"));
    }
    if let Some(status) = status {
        match serde_json::from_str(&status()) {
            Ok(status) => out.push_str(&servers::text(&status)),
            Err(error) => tracing::debug!(%error, "a status that is no JSON"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Again if the server has lost patience: this thread may have to wait for a core for longer.
    fn ask(address: SocketAddr, request: &str) -> String {
        let attempt = || -> io::Result<String> {
            let mut connection = TcpStream::connect(address)?;
            connection.write_all(request.as_bytes())?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer)?;
            if answer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
        };
        (0..20).find_map(|_| attempt().ok()).expect("an answer")
    }

    #[test]
    fn a_wrong_address_is_told_what_to_say() {
        for (wrong, told) in [
            ("foo", "say HOST:PORT, as 127.0.0.1:"),
            ("127.0.0.1:77990", "port \"77990\""),
            ("nosuch.invalid:1", "no host of that name"),
        ] {
            let said = Bound::bind(Some(wrong)).err().unwrap();
            assert!(said.contains(&format!("--metrics {wrong}: ")), "{said}");
            assert!(said.contains(told), "{said}");
        }
    }

    #[test]
    fn many_silent_connections_cost_one_thread_and_a_while() {
        let metrics = Bound::bind(Some("127.0.0.1:0")).unwrap().serve(None).unwrap().unwrap();
        // One that this thread starts has its name, unless it is given another.
        let is_ours = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "metrics\n")
        };
        let threads = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            tasks.flatten().filter(is_ours).count()
        };
        let silent: Vec<TcpStream> =
            (0..50).map(|_| TcpStream::connect(metrics.address).unwrap()).collect();
        std::thread::sleep(Duration::from_millis(50));
        assert!(threads() <= 1);
        drop(silent);
        let answer = ask(metrics.address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("glint_operation_seconds"), "{answer}");
        let other = ask(metrics.address, "GET / HTTP/1.0\r\n\r\n");
        assert!(other.contains("404") && other.ends_with("see /metrics\n"), "{other}");
    }
}
