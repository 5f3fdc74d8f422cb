//! Status that `glint status` shows, as JSON.

use crate::mds_server::MdsServer;
use crate::rates::Totals;
use glint_kv::Kv;
use glint_mds::SessionInfo;
use glint_ost::disk::Disk;
use glint_ost::{Damage, OstSet, ScrubReport};
use glint_proto::SpaceInfo;
use serde_json::{Value, json};
use std::path::Path;

/// Rows of the OSTs of a server, the first of which has the number `first`.
pub(crate) fn osts<D: Disk>(osts: &OstSet<D>, first: u16) -> Vec<Value> {
    let row = |(index, (path, space, scrub)): (u16, (&Path, SpaceInfo, ScrubReport))| {
        json!({
            "index": first + index,
            "path": path.display().to_string(),
            "total_bytes": space.total,
            "free_bytes": space.free,
            "available_bytes": space.available,
            "scrub": scrub_row(&scrub),
        })
    };
    let spaces = osts.paths().zip(osts.spaces()).zip(osts.scrub_reports());
    (0..).zip(spaces.map(|((path, space), scrub)| (path, space, scrub))).map(row).collect()
}

/// How far the scrubbing of an OST is, and what it found.
fn scrub_row(scrub: &ScrubReport) -> Value {
    let damage = |damage: &Damage| {
        json!({
            "ino": damage.object.ino.0,
            "stripe": damage.object.stripe,
            "reason": damage.reason,
        })
    };
    json!({
        "running": scrub.is_running,
        "done": scrub.done,
        "objects": scrub.objects,
        "bytes": scrub.bytes,
        "unsealed": scrub.unsealed,
        "not_compared": scrub.not_compared,
        "damaged": scrub.damaged,
        "damage": scrub.damage.iter().map(damage).collect::<Vec<_>>(),
        "finished": scrub.finished.map(|finished| finished.secs),
    })
}

/// State of the server: OSTs, clients, space, inodes, totals of operations.
pub(crate) fn status<K: Kv, D: Disk>(server: &MdsServer<K, D>) -> Value {
    let silence = server.other_servers().silence();
    let osses: Vec<Value> = std::iter::zip(server.other_servers().infos(), silence)
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
    let client = |session: &SessionInfo| {
        json!({
            "id": session.client.to_string(),
            "host": session.host,
            "mount_point": session.mount_point,
            "connections": session.connections,
        })
    };
    let clients: Vec<Value> = server.mds().sessions().iter().map(client).collect();
    let awaited: Vec<Value> = server.mds().awaited().iter().map(client).collect();
    let space = server.space();
    let totals = Totals::now();
    let rates = server.rates(&totals);
    let (locked_inodes, locked_data) = server.mds().lock_counts();
    let counters: serde_json::Map<String, Value> =
        glint_telemetry::counters().iter().map(|(c, n)| (c.name().into(), json!(n))).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "data": server.records().name(),
        "uuid": format!("{:032x}", server.records().uuid()),
        "uptime_s": server.uptime().as_secs(),
        "pid": std::process::id(),
        "failure": server.failure(),
        "inodes": server.mds().inode_count(),
        "space": {
            "total_bytes": space.total,
            "free_bytes": space.free,
            "available_bytes": space.available,
        },
        "ost_count": server.mds().osts(),
        "osts": osts(server.osts(), 0),
        "osses": osses,
        "clients": clients,
        "awaited": awaited,
        "locks": {
            "inodes": locked_inodes,
            "data": locked_data,
            "programs": server.mds().posix_lock_count(),
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
