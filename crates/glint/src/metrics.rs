//! `--metrics HOST:PORT`: statistics for Prometheus, on a thread of their own.

use crate::servers::Servers;
use glint_net::stats::op_name;
use glint_proto::SpaceInfo;
use std::fmt::{Arguments, Write};
use std::sync::Arc;
use std::thread::JoinHandle;

/// The HTTP server.
pub struct Metrics {
    server: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Serves `/metrics` at `address`, if one is given; of servers too, if this process
    /// has them.
    pub fn start(
        address: Option<&str>,
        servers: Option<Arc<Servers>>,
    ) -> Result<Option<Metrics>, String> {
        let Some(address) = address else { return Ok(None) };
        let failed = |e: String| format!("--metrics {address}: {e}");
        let server = tiny_http::Server::http(address).map_err(|e| failed(e.to_string()))?;
        let server = Arc::new(server);
        tracing::info!("metrics at http://{}/metrics", server.server_addr());
        let for_thread = server.clone();
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || answer(&for_thread, servers.as_deref()))
            .map_err(|e| failed(e.to_string()))?;
        Ok(Some(Metrics { server, thread: Some(thread) }))
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // It ends with the server; if it panicked there is nothing to do.
            let _ = thread.join();
        }
    }
}

fn answer(server: &tiny_http::Server, servers: Option<&Servers>) {
    for request in server.incoming_requests() {
        let response = match request.url() {
            "/metrics" => tiny_http::Response::from_string(text(servers)),
            _ => tiny_http::Response::from_string("see /metrics\n").with_status_code(404),
        };
        // Version 0.0.4 is the text format that every Prometheus reads.
        let kind = "Content-Type: text/plain; version=0.0.4; charset=utf-8";
        let response = match kind.parse::<tiny_http::Header>() {
            Ok(header) => response.with_header(header),
            Err(()) => response,
        };
        if let Err(error) = request.respond(response) {
            tracing::debug!(%error, "answering a request for metrics");
        }
    }
}

/// Space of each OST of this server, and of each other server of OSTs, and whether that is heard of.
fn osts(servers: &Servers, line: &mut impl FnMut(Arguments<'_>)) {
    let own = (0..).zip(servers.ost_spaces()).map(|(ost, space)| (format!("ost=\"{ost}\""), space));
    let others = servers.other_servers().infos();
    let elsewhere = others.iter().map(|oss| {
        let labels = format!("first_ost=\"{}\",oss=\"{}\"", oss.first_ost, oss.address);
        (labels, SpaceInfo::sum(oss.space.clone()))
    });
    let all: Vec<(String, SpaceInfo)> = own.chain(elsewhere).collect();
    for (number, kind) in ["total", "free", "available"].into_iter().enumerate() {
        line(format_args!("# TYPE glint_ost_{kind}_bytes gauge"));
        for (labels, space) in &all {
            let bytes = [space.total, space.free, space.available][number];
            line(format_args!("glint_ost_{kind}_bytes{{{labels}}} {bytes}"));
        }
    }
    line(format_args!("# TYPE glint_oss_silent_seconds gauge"));
    for (oss, silence) in std::iter::zip(&others, servers.other_servers().silence()) {
        let (address, silent) = (&oss.address, silence.as_secs_f64());
        line(format_args!("glint_oss_silent_seconds{{oss=\"{address}\"}} {silent}"));
    }
}

/// The text format of Prometheus, durations in seconds.
fn text(servers: Option<&Servers>) -> String {
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
    if let Some(servers) = servers {
        let space = servers.space();
        for (name, value) in [
            ("space_total_bytes", space.total),
            ("space_free_bytes", space.free),
            ("space_available_bytes", space.available),
            ("inodes", servers.mds().inode_count()),
            ("clients", servers.mds().sessions().len() as u64),
        ] {
            line(format_args!("# TYPE glint_{name} gauge\nglint_{name} {value}"));
        }
        osts(servers, &mut line);
    }
    out
}
