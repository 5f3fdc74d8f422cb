//! Status that `glint status` shows, as JSON.

use crate::mds_server::MdsServer;
use crate::rates::Totals;
use crate::repairs::{RepairCount, Repairs};
use crate::replication::{HealRate, Here, PendingCount, Replication};
use crate::warm_start::{WarmProgress, WarmStart, WarmState};
use glint_kv::{CacheUse, Kv};
use glint_mds::{Seen, SessionInfo};
use glint_ost::disk::Disk;
use glint_ost::{Damage, OstSet, PassedBytes, ScrubReport};
use glint_proto::chain::{Chain, Member, MemberState};
use glint_proto::message::FilesToMove;
use glint_proto::{ObjectId, SpaceInfo};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Rows of the OSTs of a server, the first of which has the number `first`.
pub(crate) fn osts<D: Disk>(
    osts: &OstSet<D>,
    first: u16,
    repairs: &Repairs,
    warm_start: &WarmStart,
) -> Vec<Value> {
    let passed = |(limit, passed): (Option<u64>, PassedBytes)| {
        json!({
            "above_bytes": limit,
            "read_bytes": passed.read,
            "written_bytes": passed.written,
        })
    };
    let row = |(index, ((((path, space), scrub), through), warm))| {
        let (path, scrub): (&Path, ScrubReport) = (path, scrub);
        let space: SpaceInfo = space;
        json!({
            "index": first + index,
            "path": path.display().to_string(),
            "total_bytes": space.total,
            "free_bytes": space.free,
            "available_bytes": space.available,
            "passed_through": passed(through),
            "searching": osts.awaits_search(index),
            "searched": osts.searched(index).map(|(done, found)| json!({
                "done": done,
                "found": found,
            })),
            "failed": osts.failure(index).is_some(),
            "warm_start": warm_start_row(warm, "objects"),
            "scrub": scrub_row(
                &scrub,
                repairs.count(index, scrub.damage.iter()),
            ),
        })
    };
    let rows = osts.paths().zip(osts.spaces()).zip(osts.scrub_reports()).zip(osts.passed());
    (0..).zip(rows.zip(warm_start.osts())).map(row).collect()
}

/// How far the warm start of the tables or of an OST is, with what it loads.
fn warm_start_row(warm: WarmProgress, items: &str) -> Value {
    let state = match warm.state {
        WarmState::Off => "off",
        WarmState::Running => "running",
        WarmState::Done => "done",
        WarmState::Full => "full",
        WarmState::MemoryShort => "memory short",
    };
    json!({
        "state": state,
        "done": warm.done,
        "total": warm.total,
        items: warm.loaded,
        "bytes": warm.bytes,
        "seconds": (warm.time().as_secs_f64() * 10.0).round() / 10.0,
    })
}

/// How the cache of the engine is used.
fn cache_row(cache: CacheUse) -> Value {
    json!({
        "limit_bytes": cache.limit,
        "bytes": cache.size,
        "hits": cache.hits,
        "misses": cache.misses,
        "evicted_bytes": cache.evicted,
    })
}

/// Space of an OST.
fn space_row(space: &SpaceInfo) -> Value {
    json!({
        "total_bytes": space.total,
        "free_bytes": space.free,
        "available_bytes": space.available,
    })
}

/// Space of an OST of another server, and what its server has said of it if that is not all well.
fn other_row(space: &SpaceInfo, seen: Option<Seen>) -> Value {
    let mut row = space_row(space);
    match seen {
        Some(Seen::Searched) => row["searching"] = json!(true),
        Some(Seen::Failed) => row["failed"] = json!(true),
        _ => {}
    }
    row
}

/// How far the scrubbing of an OST is, and what it found.
fn scrub_row(scrub: &ScrubReport, repairs: RepairCount) -> Value {
    let damage = |damage: &Damage| {
        json!({
            "ino": damage.object.ino.0,
            // Without the bit that says that it has copies.
            "stripe": damage.object.stripe & !ObjectId::OF_CHAINS,
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
        "repaired": repairs.repaired,
        "pending": repairs.pending,
        "left": repairs.left,
        "damage": scrub.damage.iter().map(damage).collect::<Vec<_>>(),
        "finished": scrub.finished.map(|finished| finished.secs),
    })
}

/// Rows of chains that are shown: all have room in an attribute of a mount.
const CHAIN_ROWS: usize = 256;

/// Whether all members of a chain serve that were not given up: nobody waits for those, which stay
/// until others take their places.
pub(crate) fn is_whole(row: &Chain, given_up: &[u16]) -> bool {
    let mut waited_for = row.members.iter().filter(|member| !given_up.contains(&member.ost));
    row.head().is_some() && waited_for.all(|member| member.state == MemberState::Serving)
}

/// The chains: how many there are, in how many an OST does not serve, and rows, those first in which
/// not all serve.
fn chains<K: Kv, D: Disk>(server: &MdsServer<K, D>) -> Value {
    let (mut chains, _) = server.mds().chains().since(0);
    let given_up = server.other_servers().given_up().concat();
    let is_whole = |row: &Chain| is_whole(row, &given_up);
    let whole = chains.iter().filter(|row| is_whole(row)).count();
    chains.sort_by_key(is_whole);
    let mut counts = BTreeMap::<(u16, &str), u64>::new();
    let members = chains.iter().flat_map(|row| &row.members);
    for member in members.filter(|member| member.state != MemberState::Serving) {
        *counts.entry((member.ost, member.state.name())).or_default() += 1;
    }
    let count = |((ost, state), chains)| json!({ "ost": ost, "state": state, "chains": chains });
    let mut former = BTreeMap::<u16, u64>::new();
    for (_, ost) in server.mds().chains().former() {
        *former.entry(ost).or_default() += 1;
    }
    let former_row = |(ost, chains)| json!({ "ost": ost, "chains": chains });
    let member = |member: &Member| json!({ "ost": member.ost, "state": member.state.name() });
    let row = |row: &Chain| {
        let members: Vec<Value> = row.members.iter().map(member).collect();
        let avoided = server.mds().chains().is_avoided(row.id);
        json!({ "id": row.id.to_string(), "version": row.version, "members": members,
            "avoided": avoided })
    };
    json!({
        "count": chains.len(),
        "whole": whole,
        "not_serving": counts.into_iter().map(count).collect::<Vec<_>>(),
        "former": former.into_iter().map(former_row).collect::<Vec<_>>(),
        "crowded_osts": server.mds().chains().crowded_osts(),
        "rows": chains.iter().take(CHAIN_ROWS).map(row).collect::<Vec<_>>(),
    })
}

/// Changes that members of chains lack, as a server knows them.
pub(crate) fn pending<D: Disk>(replication: &Replication, here: Here<'_, D>) -> Value {
    let row = |one: PendingCount| {
        json!({
            "chain": one.chain.to_string(),
            "ost": one.ost,
            "objects": one.lack.objects,
            "bytes": one.lack.bytes,
            "open_ended": one.lack.open_ended,
            "everything": one.lack.everything,
            "head": one.is_head,
        })
    };
    replication.pending(here).into_iter().map(row).collect()
}

/// Whether members that lag are healed, and how fast by this server.
pub(crate) fn heal(replication: &Replication) -> Value {
    let rate = |rate: &HealRate| {
        json!({
            "ost": rate.ost,
            "objects_per_s": rate.objects_per_s.round() as u64,
            "bytes_per_s": rate.bytes_per_s.round() as u64,
        })
    };
    let policy = replication.policy();
    json!({
        "paused": policy.heal_paused,
        "gives_way": replication.heal_gives_way(),
        "min_replicas": policy.min_replicas,
        "min_replicas_fails": policy.min_replicas_fails,
        "rates": replication.heal_rates().iter().map(rate).collect::<Vec<_>>(),
    })
}

/// Files that commands have still to move away from OSTs.
fn moving(left: &[(u16, FilesToMove)]) -> Value {
    let row = |(ost, left): &(u16, FilesToMove)| {
        let FilesToMove { files, bytes } = left;
        json!({ "ost": ost, "files": files, "bytes": bytes })
    };
    left.iter().map(row).collect()
}

/// State of the server: OSTs, clients, space, inodes, totals of operations.
pub(crate) fn status<K: Kv, D: Disk>(server: &MdsServer<K, D>) -> Value {
    let osses = server.other_servers();
    let not_ready = |ost| osses.not_ready(ost);
    let heard = std::iter::zip(osses.silence(), osses.domain_names());
    let heard = std::iter::zip(heard, osses.given_up());
    let osses: Vec<Value> = std::iter::zip(osses.infos(), heard)
        .map(|(oss, ((silence, domain), given_up))| {
            let each = (oss.first_ost..).zip(&oss.space);
            let each: Vec<Value> =
                each.map(|(ost, space)| other_row(space, not_ready(ost))).collect();
            let space = SpaceInfo::sum(oss.space);
            json!({
                "address": oss.address,
                "first_ost": oss.first_ost,
                "osts": oss.osts,
                "silent_ms": silence.as_millis() as u64,
                "failure_domain": domain,
                "given_up": given_up,
                "total_bytes": space.total,
                "free_bytes": space.free,
                "available_bytes": space.available,
                "space": each,
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
    let mut own = osts(server.osts(), 0, server.repairs(), server.warm_start());
    for (row, domain) in std::iter::zip(&mut own, server.failure_domains()) {
        row["failure_domain"] = json!(domain);
    }
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
        "engine_cache": server.mds().engine_cache().map(cache_row),
        "space": {
            "total_bytes": space.total,
            "free_bytes": space.free,
            "available_bytes": space.available,
        },
        "ost_count": server.mds().osts(),
        "warm_start": warm_start_row(server.warm_start().tables(), "keys"),
        "osts": own,
        "osses": osses,
        "drained": server.mds().drained(),
        "moving": moving(&server.moving()),
        "rebalancing": server.is_balancing(),
        "chains": chains(server),
        "pending": pending(server.replication(), server.here()),
        "heal": heal(server.replication()),
        "replaced": server.filling().status(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Ino;
    use glint_proto::chain::ChainId;
    use glint_proto::chain::MemberState::{Emptied, Offline, Serving};

    #[test]
    fn damage_of_files_with_copies_has_the_number_of_the_stripe() {
        let object = ObjectId { ino: Ino(9), stripe: ObjectId::OF_CHAINS + 2 };
        let damage = Damage { object, reason: "checksum".into(), pass: 1 };
        let scrub = ScrubReport { damage: vec![damage], ..ScrubReport::default() };
        let row = scrub_row(&scrub, RepairCount::default());
        assert_eq!((&row["damage"][0]["ino"], &row["damage"][0]["stripe"]), (&json!(9), &json!(2)));
    }

    #[test]
    fn a_chain_is_whole_without_a_member_that_was_given_up() {
        let row = |states: [MemberState; 3]| Chain {
            id: ChainId { copies: 3, index: 0 },
            version: 1,
            members: (0..).zip(states).map(|(ost, state)| Member { ost, state }).collect(),
            founders: vec![0, 1, 2],
            intact_since: 1,
        };
        assert!(is_whole(&row([Serving; 3]), &[]));
        assert!(!is_whole(&row([Serving, Serving, Offline]), &[]));
        for state in [Offline, Emptied] {
            assert!(is_whole(&row([Serving, Serving, state]), &[2]), "{state:?}");
        }
        assert!(!is_whole(&row([Serving, Offline, Emptied]), &[2]), "another one is away");
        assert!(!is_whole(&row([Offline, Emptied, Emptied]), &[0, 1, 2]), "there is no copy");
    }
}
