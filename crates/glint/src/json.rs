//! What `glint status` shows, as JSON.

use crate::rates::Totals;
use crate::servers::Servers;
use glint_proto::SpaceInfo;
use serde_json::{Value, json};

/// State of the servers: OSTs, clients, space, inodes, totals of operations.
pub fn status(servers: &Servers) -> Value {
    let osts: Vec<Value> = servers
        .ost_spaces()
        .iter()
        .enumerate()
        .map(|(index, space)| {
            json!({
                "index": index,
                "path": servers.data().ost(index as u16).display().to_string(),
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
            })
        })
        .collect();
    let silence = servers.other_servers().silence();
    let osses: Vec<Value> = std::iter::zip(servers.other_servers().infos(), silence)
        .map(|(oss, silence)| {
            let space = SpaceInfo::sum(oss.space);
            json!({
                "address": oss.address,
                "first_ost": oss.first_ost,
                "osts": oss.osts,
                "silent_ms": silence.as_millis() as u64,
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
            })
        })
        .collect();
    let clients: Vec<Value> = servers
        .mds()
        .sessions()
        .iter()
        .map(|session| {
            json!({
                "id": session.client.to_string(),
                "host": session.host,
                "mount_point": session.mount_point,
                "connections": session.connections,
            })
        })
        .collect();
    let space = servers.space();
    let totals = Totals::now();
    let rates = servers.rates(&totals);
    let (locked_inodes, locked_data) = servers.mds().lock_counts();
    let counters: serde_json::Map<String, Value> =
        glint_telemetry::counters().iter().map(|(c, n)| (c.name().into(), json!(n))).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "data": servers.data().path().display().to_string(),
        "uuid": format!("{:032x}", servers.data().uuid()),
        "uptime_s": servers.uptime().as_secs(),
        "pid": std::process::id(),
        "inodes": servers.mds().inode_count(),
        "space": {
            "total_bytes": space.total,
            "free_bytes": space.free,
            "available_bytes": space.available,
        },
        "osts": osts,
        "osses": osses,
        "clients": clients,
        "locks": {
            "inodes": locked_inodes,
            "data": locked_data,
            "programs": servers.mds().advisory_count(),
        },
        "operations": totals.operations,
        "per_s": {
            "operations": rates.operations.round(),
            "us_avg": (rates.us_avg * 10.0).round() / 10.0,
            "read_bytes": rates.read.round(),
            "written_bytes": rates.written.round(),
        },
        "counters": counters,
    })
}
