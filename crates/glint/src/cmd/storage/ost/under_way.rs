//! What is under way on each OST, as the servers say that are heard of.

use super::SILENT_MS;
use crate::cmd::storage::heal;
use crate::cmd::storage::scrub::number;
use crate::output::counted;
use crate::target::Target;
use glint_server::human_bytes;
use serde_json::{Value, json};

/// Statuses of the server with the MDS and of those of OSTs. One that does not answer is left out:
/// what is under way there is not shown.
pub(super) fn statuses(mds: &Value) -> Vec<Value> {
    let osses = mds["osses"].as_array().into_iter().flatten();
    let heard = osses.filter(|oss| number(oss, "silent_ms") < SILENT_MS);
    let ask = |oss: &Value| -> Option<Value> {
        let target = Target::Oss(oss["address"].as_str()?.to_owned());
        serde_json::from_str(&target.ask("status").ok()?).ok()
    };
    std::iter::once(mds.clone()).chain(heard.filter_map(ask)).collect()
}

/// Adds to rows of OSTs which files are to leave each, what it lacks, and how far the scrub of each
/// is that is compared.
pub(super) fn add(rows: &mut [Value], statuses: &[Value]) {
    let heals = heal::rows(statuses);
    for row in rows {
        let ost = number(row, "ost");
        let mut moving = statuses.iter().flat_map(|status| status["moving"].as_array()).flatten();
        let moving = moving.find(|moving| moving["ost"] == ost);
        row["moving"] = moving
            .map(|moving| json!({ "files": moving["files"], "bytes": moving["bytes"] }))
            .unwrap_or_default();
        row["heal"] = heals.iter().find(|heal| heal["ost"] == ost).cloned().unwrap_or_default();
        let all = statuses.iter().flat_map(|status| status["osts"].as_array()).flatten();
        let its = all.filter(|one| one["index"] == ost).map(|one| &one["scrub"]);
        let running = its.filter(|scrub| scrub["running"] == true);
        let mut scrubs =
            running.map(|scrub| json!({ "done": scrub["done"], "bytes": scrub["bytes"] }));
        row["scrub"] = scrubs.next().unwrap_or_default();
    }
}

/// The same for people, behind what else is said of an OST.
pub(super) fn shown(row: &Value) -> String {
    let mut text = String::new();
    if row["moving"].is_object() {
        let how = if row["drained"] == true { "draining" } else { "rebalancing" };
        let files = counted(number(&row["moving"], "files"), "file");
        let bytes = human_bytes(number(&row["moving"], "bytes"));
        text += &format!(", {how}: {files} with {bytes} left");
    }
    if row["heal"].is_object() {
        text += &format!(", {}", heal::lacking(&row["heal"]));
        text += match (row["heal"]["paused"] == true, row["heal"]["gives_way"] == true) {
            (true, _) => ", heal rests",
            (false, true) => ", heal gives way to users",
            (false, false) => "",
        };
    }
    if let Some(done) = row["scrub"]["done"].as_f64() {
        text += &format!(", {:.0} % scrubbed", done * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_said_of_the_ost_that_it_is_about() {
        let scrub = json!({ "running": true, "done": 0.25, "bytes": 7 });
        let statuses = [
            json!({
                "osts": [{ "index": 0, "scrub": { "running": false, "done": 1.0 } }],
                "moving": [
                    { "ost": 2, "files": 1, "bytes": 9 },
                    { "ost": 3, "files": 1234, "bytes": 5_u64 << 30 },
                ],
                "pending": [{ "ost": 1, "chain": "2x0", "objects": 3, "bytes": 2048, "head": true }],
                "heal": { "rates": [{ "ost": 1, "objects_per_s": 2, "bytes_per_s": 1024 }] },
            }),
            json!({ "osts": [{ "index": 1, "scrub": scrub }], "pending": [] }),
        ];
        let row = |ost: u64| json!({ "ost": ost, "drained": ost == 3 });
        let mut rows = [0, 1, 2, 3].map(row);
        add(&mut rows, &statuses);
        assert_eq!(shown(&rows[0]), "");
        assert_eq!(shown(&rows[2]), ", rebalancing: 1 file with 9 B left");
        assert_eq!(shown(&rows[3]), ", draining: 1234 files with 5.0 GiB left");
        assert_eq!(
            shown(&rows[1]),
            ", lacks 3 objects of 1 chains, at least 2.0 KiB, 2 objects and 1.0 KiB a second, \
             2 s left, 25 % scrubbed"
        );
        assert_eq!(rows[1]["heal"]["seconds_left"], 2);
        for (key, said) in [("gives_way", "heal gives way to users"), ("paused", "heal rests")] {
            rows[1]["heal"][key] = json!(true);
            assert!(shown(&rows[1]).contains(said), "{}", shown(&rows[1]));
        }
        assert_eq!((&rows[0]["heal"], &rows[0]["moving"]), (&Value::Null, &Value::Null));
        assert_eq!(rows[2]["moving"], json!({ "files": 1, "bytes": 9 }));
    }
}
