//! What `glint status` says of a server, as gauges of Prometheus.

use glint_proto::limits::full_below;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Gauges, each with its rows: labels and value.
#[derive(Default)]
struct Gauges(BTreeMap<&'static str, Vec<(String, f64)>>);

impl Gauges {
    /// Adds a row, unless there is no such value.
    fn add(&mut self, name: &'static str, labels: &str, value: &Value) {
        let value = value.as_f64().or_else(|| value.as_bool().map(|yes| f64::from(u8::from(yes))));
        if let Some(value) = value {
            self.0.entry(name).or_default().push((labels.to_owned(), value));
        }
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (name, rows) in self.0 {
            let help = help(name);
            // Writing to a string does not fail.
            let _ = writeln!(text, "# HELP glint_{name} {help}\n# TYPE glint_{name} gauge");
            for (labels, value) in rows {
                let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "glint_{name}{labels} {value}");
            }
        }
        text
    }
}

fn help(name: &str) -> &'static str {
    match name {
        "space_total_bytes" => "Space of all OSTs, or of those of this server if it is an OSS.",
        "space_free_bytes" => "Space that their disks have left.",
        "space_available_bytes" => "Space that users may still fill.",
        "inodes" => "Inodes of the file system.",
        "engine_cache_bytes" => "Blocks of tables that the engine of the MDS keeps in memory.",
        "engine_cache_limit_bytes" => "Most bytes of them.",
        "engine_cache_hits" => "Blocks of tables that were wanted and in memory, in this run.",
        "engine_cache_misses" => "Blocks of tables that were wanted and not in memory.",
        "engine_cache_evicted_bytes" => "Blocks of tables that made room for others.",
        "warm_start_running" => "1 while tables that were read most before the start are loaded.",
        "warm_start_keys" => "Keys of them that were loaded.",
        "warm_start_bytes" => "Bytes of these keys and their values.",
        "clients" => "Clients with a session.",
        "awaited_clients" => "Clients of the run before that are not back.",
        "ost_total_bytes" => "Space of an OST.",
        "ost_free_bytes" => "Space that the disk of an OST has left.",
        "ost_available_bytes" => "Space of an OST that users may still fill.",
        "ost_passed_read_bytes" => "Bytes read in this run that the OST keeps no pages of.",
        "ost_passed_written_bytes" => "Bytes written in this run that it keeps no pages of.",
        "ost_warm_start_running" => {
            "1 while objects that were read most before the start are loaded."
        }
        "ost_warm_start_objects" => "Objects of them that were loaded.",
        "ost_warm_start_bytes" => "Bytes of their data that were read ahead.",
        "ost_full" => "1 if new files avoid the OST as it is nearly full.",
        "ost_searching" => "1 while the OST is searched after a loss of power.",
        "ost_failed" => "1 if the OST has failed, for as long as its server runs.",
        "rebalancing" => "1 while a command moves files from fuller to emptier OSTs.",
        "ost_drained" => "1 if new files avoid the OST.",
        "ost_files_to_move" => "Files that a drain or a rebalance has still to move off the OST.",
        "ost_bytes_to_move" => "Bytes that move with these files.",
        "ost_given_up" => "1 if an administrator has given the OST up.",
        "ost_damaged_objects" => "Objects that the last scrub of the OST found damaged.",
        "ost_repaired_objects" => "Of the damaged objects, those of which a repair was begun.",
        "ost_scrub_done" => "Part of the OST that the scrub under way has compared, up to 1.",
        "ost_scrub_running" => "1 while the data of the OST is compared with its checksums.",
        "ost_lost_files" => "Files without copies that lost data when the OST was replaced.",
        "oss_silent_seconds" => {
            "How long another server of OSTs was not heard of, since this MDS started at most."
        }
        "chains" => "Chains of copies; whole if all members serve that were not given up.",
        "ost_not_serving_chains" => {
            "Chains in which an OST does not serve, by its state; not if given up."
        }
        "heal_pending_objects" => {
            "Objects of which an OST lacks changes, as this server knows them."
        }
        "heal_pending_bytes" => "Bytes of these changes, without those of a size not known.",
        "heal_pending_everything" => "1 if the OST lacks a whole chain, or what is not counted.",
        "heal_gives_way" => "1 while this server heals slowly because users are served beside it.",
        "heal_paused" => "1 while heal rests.",
        "heal_objects_per_second" => "Objects that this server heals on an OST.",
        "heal_bytes_per_second" => "Bytes that this server copies to an OST to heal it.",
        _ => "See glint status.",
    }
}

/// A value of a label: backslashes, quotes and ends of lines are escaped.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn contains(list: &Value, ost: u64) -> Value {
    rows(list).any(|one| one.as_u64() == Some(ost)).into()
}

/// Whether new files avoid an OST for its space; nothing if that is not known.
fn is_full(space: &Value) -> Value {
    let (total, available) = (space["total_bytes"].as_u64(), space["available_bytes"].as_u64());
    total.zip(available).map(|(total, available)| available < full_below(total)).into()
}

/// Whether a warm start is under way; nothing where there is none.
fn is_running(warm: &Value) -> Value {
    warm["state"].as_str().map(|state| state == "running").into()
}

/// The gauges of a server, from its status.
pub(super) fn text(status: &Value) -> String {
    let mut gauges = Gauges::default();
    gauges.add("space_total_bytes", "", &status["space"]["total_bytes"]);
    gauges.add("space_free_bytes", "", &status["space"]["free_bytes"]);
    gauges.add("space_available_bytes", "", &status["space"]["available_bytes"]);
    gauges.add("inodes", "", &status["inodes"]);
    let cache = &status["engine_cache"];
    gauges.add("engine_cache_bytes", "", &cache["bytes"]);
    gauges.add("engine_cache_limit_bytes", "", &cache["limit_bytes"]);
    gauges.add("engine_cache_hits", "", &cache["hits"]);
    gauges.add("engine_cache_misses", "", &cache["misses"]);
    gauges.add("engine_cache_evicted_bytes", "", &cache["evicted_bytes"]);
    let warm = &status["warm_start"];
    gauges.add("warm_start_running", "", &is_running(warm));
    gauges.add("warm_start_keys", "", &warm["keys"]);
    gauges.add("warm_start_bytes", "", &warm["bytes"]);
    let count = |list: &Value| Value::from(list.as_array().map(Vec::len));
    gauges.add("clients", "", &count(&status["clients"]));
    gauges.add("awaited_clients", "", &count(&status["awaited"]));
    gauges.add("rebalancing", "", &status["rebalancing"]);
    osts(status, &mut gauges);
    chains(status, &mut gauges);
    heal(status, &mut gauges);
    gauges.text()
}

fn osts(status: &Value, gauges: &mut Gauges) {
    let is_mds = status["drained"].is_array();
    let row = |gauges: &mut Gauges, ost: u64, labels: &str, space: &Value, given_up: &Value| {
        gauges.add("ost_total_bytes", labels, &space["total_bytes"]);
        gauges.add("ost_free_bytes", labels, &space["free_bytes"]);
        gauges.add("ost_available_bytes", labels, &space["available_bytes"]);
        gauges.add("ost_full", labels, &is_full(space));
        gauges.add("ost_searching", labels, &(space["searching"] == true).into());
        gauges.add("ost_failed", labels, &(space["failed"] == true).into());
        if is_mds {
            gauges.add("ost_drained", labels, &contains(&status["drained"], ost));
            gauges.add("ost_given_up", labels, &contains(given_up, ost));
        }
        let passed = &space["passed_through"];
        gauges.add("ost_passed_read_bytes", labels, &passed["read_bytes"]);
        gauges.add("ost_passed_written_bytes", labels, &passed["written_bytes"]);
        let warm = &space["warm_start"];
        gauges.add("ost_warm_start_running", labels, &is_running(warm));
        gauges.add("ost_warm_start_objects", labels, &warm["objects"]);
        gauges.add("ost_warm_start_bytes", labels, &warm["bytes"]);
        if let scrub @ Value::Object(_) = &space["scrub"] {
            gauges.add("ost_damaged_objects", labels, &scrub["damaged"]);
            gauges.add("ost_repaired_objects", labels, &scrub["repaired"]);
            gauges.add("ost_scrub_running", labels, &scrub["running"]);
            if scrub["running"] == true {
                gauges.add("ost_scrub_done", labels, &scrub["done"]);
            }
        }
    };
    for own in rows(&status["osts"]) {
        let ost = own["index"].as_u64().unwrap_or_default();
        row(gauges, ost, &format!("ost=\"{ost}\""), own, &Value::Null);
    }
    for oss in rows(&status["osses"]) {
        let first = oss["first_ost"].as_u64().unwrap_or_default();
        let address = escaped(oss["address"].as_str().unwrap_or_default());
        // One that was not heard of since the MDS started has not said what space it has.
        let count = oss["osts"].as_u64().unwrap_or_default();
        for (at, ost) in (first..first + count).enumerate() {
            let labels = format!("ost=\"{ost}\",oss=\"{address}\"");
            row(gauges, ost, &labels, &oss["space"][at], &oss["given_up"]);
        }
        if oss["given_up"].as_array().is_some_and(|given_up| given_up.len() as u64 >= count) {
            // Nobody waits for it any more.
            continue;
        }
        let silent = oss["silent_ms"].as_f64().map(|ms| ms / 1000.0);
        gauges.add("oss_silent_seconds", &format!("oss=\"{address}\""), &silent.into());
    }
    for moving in rows(&status["moving"]) {
        let labels = format!("ost=\"{}\"", moving["ost"]);
        gauges.add("ost_files_to_move", &labels, &moving["files"]);
        gauges.add("ost_bytes_to_move", &labels, &moving["bytes"]);
    }
    for replaced in rows(&status["replaced"]) {
        let labels = format!("ost=\"{}\"", replaced["ost"]);
        gauges.add("ost_lost_files", &labels, &replaced["lost_files"]);
    }
}

fn chains(status: &Value, gauges: &mut Gauges) {
    let chains = &status["chains"];
    if let (Some(all), Some(whole)) = (chains["count"].as_u64(), chains["whole"].as_u64()) {
        gauges.add("chains", "whole=\"yes\"", &whole.into());
        gauges.add("chains", "whole=\"no\"", &all.saturating_sub(whole).into());
    }
    let osses = rows(&status["osses"]);
    let given_up: Vec<&Value> = osses.flat_map(|oss| rows(&oss["given_up"])).collect();
    // Nobody waits for those: their chains are whole without them.
    let is_awaited = |row: &&Value| !given_up.contains(&&row["ost"]);
    for row in rows(&chains["not_serving"]).filter(is_awaited) {
        let state = row["state"].as_str().unwrap_or_default();
        let labels = format!("ost=\"{}\",state=\"{state}\"", row["ost"]);
        gauges.add("ost_not_serving_chains", &labels, &row["chains"]);
    }
}

fn heal(status: &Value, gauges: &mut Gauges) {
    // Several chains for each OST, and each head knows what the others lack.
    let mut lacks = BTreeMap::<u64, (u64, u64, bool)>::new();
    for row in rows(&status["pending"]).filter(|row| row["head"] == true) {
        let lack = lacks.entry(row["ost"].as_u64().unwrap_or_default()).or_default();
        lack.0 += row["objects"].as_u64().unwrap_or_default();
        lack.1 += row["bytes"].as_u64().unwrap_or_default();
        lack.2 |= row["everything"] == true;
    }
    for (ost, (objects, bytes, everything)) in lacks {
        let labels = format!("ost=\"{ost}\"");
        gauges.add("heal_pending_objects", &labels, &objects.into());
        gauges.add("heal_pending_bytes", &labels, &bytes.into());
        gauges.add("heal_pending_everything", &labels, &everything.into());
    }
    gauges.add("heal_paused", "", &status["heal"]["paused"]);
    gauges.add("heal_gives_way", "", &status["heal"]["gives_way"]);
    for rate in rows(&status["heal"]["rates"]) {
        let labels = format!("ost=\"{}\"", rate["ost"]);
        gauges.add("heal_objects_per_second", &labels, &rate["objects_per_s"]);
        gauges.add("heal_bytes_per_second", &labels, &rate["bytes_per_s"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines(status: &Value) -> Vec<String> {
        let text = text(status);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn what_an_mds_knows_of_osts_chains_and_heal_is_a_row_each() {
        let lines = lines(&json!({
            "space": { "total_bytes": 30, "free_bytes": 20, "available_bytes": 10 },
            "inodes": 7, "clients": [{}, {}], "awaited": [],
            "osts": [{
                "index": 0, "total_bytes": 10, "free_bytes": 9, "available_bytes": 8,
                "scrub": { "damaged": 2, "repaired": 1, "running": true, "done": 0.25 },
                "passed_through": { "above_bytes": 8, "read_bytes": 77, "written_bytes": 78 },
                "warm_start": { "state": "done", "objects": 57, "bytes": 58 },
            }],
            "engine_cache": {
                "bytes": 3, "limit_bytes": 4, "hits": 5, "misses": 6, "evicted_bytes": 9,
            },
            "warm_start": { "state": "running", "keys": 55, "bytes": 56 },
            "osses": [{
                "address": "a\"b:1", "first_ost": 1, "osts": 3, "silent_ms": 1500, "given_up": [2],
                "space": [
                    { "total_bytes": 1100, "available_bytes": 5 },
                    { "total_bytes": 9, "failed": true },
                ],
            }, {
                "address": "c:1", "first_ost": 4, "osts": 1, "silent_ms": 9, "given_up": [4], "space": [],
            }],
            "drained": [1],
            "rebalancing": true,
            "moving": [{ "ost": 1, "files": 12, "bytes": 34 }],
            "replaced": [{ "ost": 0, "lost_files": 3 }, { "ost": 1, "found_objects": 3 }],
            "chains": {
                "count": 12, "whole": 10,
                "not_serving": [
                    { "ost": 1, "state": "syncing", "chains": 2 },
                    { "ost": 4, "state": "emptied", "chains": 10 },
                ],
            },
            "pending": [
                { "ost": 2, "objects": 3, "bytes": 40, "everything": false, "head": true },
                { "ost": 2, "objects": 4, "bytes": 50, "everything": true, "head": true },
                { "ost": 1, "objects": 4, "bytes": 50, "everything": false, "head": false },
            ],
            "heal": {
                "paused": false, "gives_way": true,
                "rates": [{ "ost": 2, "objects_per_s": 5, "bytes_per_s": 6 }],
            },
        }));
        for wanted in [
            "glint_space_available_bytes 10",
            "glint_clients 2",
            "glint_ost_free_bytes{ost=\"0\"} 9",
            "glint_ost_damaged_objects{ost=\"0\"} 2",
            "glint_ost_passed_written_bytes{ost=\"0\"} 78",
            "glint_engine_cache_misses 6",
            "glint_engine_cache_evicted_bytes 9",
            "glint_warm_start_running 1",
            "glint_warm_start_keys 55",
            "glint_ost_warm_start_running{ost=\"0\"} 0",
            "glint_ost_warm_start_objects{ost=\"0\"} 57",
            "glint_ost_scrub_running{ost=\"0\"} 1",
            "glint_ost_available_bytes{ost=\"1\",oss=\"a\\\"b:1\"} 5",
            "glint_ost_drained{ost=\"1\",oss=\"a\\\"b:1\"} 1",
            "glint_ost_given_up{ost=\"2\",oss=\"a\\\"b:1\"} 1",
            "glint_ost_drained{ost=\"3\",oss=\"a\\\"b:1\"} 0",
            "glint_ost_given_up{ost=\"4\",oss=\"c:1\"} 1",
            "glint_oss_silent_seconds{oss=\"a\\\"b:1\"} 1.5",
            "glint_ost_lost_files{ost=\"0\"} 3",
            "glint_chains{whole=\"no\"} 2",
            "glint_ost_not_serving_chains{ost=\"1\",state=\"syncing\"} 2",
            "glint_heal_pending_objects{ost=\"2\"} 7",
            "glint_heal_pending_bytes{ost=\"2\"} 90",
            "glint_heal_pending_everything{ost=\"2\"} 1",
            "glint_heal_paused 0",
            "glint_heal_gives_way 1",
            "glint_rebalancing 1",
            "glint_ost_files_to_move{ost=\"1\"} 12",
            "glint_ost_bytes_to_move{ost=\"1\"} 34",
            "glint_ost_full{ost=\"0\"} 0",
            "glint_ost_full{ost=\"1\",oss=\"a\\\"b:1\"} 1",
            "glint_ost_failed{ost=\"1\",oss=\"a\\\"b:1\"} 0",
            "glint_ost_failed{ost=\"2\",oss=\"a\\\"b:1\"} 1",
            "glint_ost_scrub_done{ost=\"0\"} 0.25",
            "glint_heal_bytes_per_second{ost=\"2\"} 6",
        ] {
            assert!(lines.iter().any(|line| line == wanted), "{wanted} is not in {lines:#?}");
        }
        for without in [
            "pending_objects{ost=\"1\"}",
            "silent_seconds{oss=\"c:1\"}",
            "not_serving_chains{ost=\"4\"",
        ] {
            assert!(!lines.iter().any(|line| line.contains(without)), "{without} is in {lines:#?}");
        }
    }

    #[test]
    fn each_gauge_has_a_type_once_and_help_of_its_own() {
        let status = json!({
            "osts": [{ "index": 3, "total_bytes": 1 }, { "index": 4, "total_bytes": 2 }],
            "moving": [{ "ost": 3, "files": 1, "bytes": 2 }],
            "heal": { "paused": true, "gives_way": false, "rates": [] },
        });
        let text = text(&status);
        assert_eq!(text.matches("# TYPE glint_ost_total_bytes gauge").count(), 1, "{text}");
        assert!(!text.contains("See glint status"), "{text}");
        assert!(!text.contains("drained"), "an OSS does not know: {text}");
    }
}
