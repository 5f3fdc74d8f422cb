//! What is under way on each OST, as the servers say that are heard of.

use super::SILENT_MS;
use crate::cmd::storage::heal;
use crate::cmd::storage::scrub::number;
use crate::target::Target;
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

/// Adds to rows of OSTs what each lacks, and how far the scrub of each is that is compared.
pub(super) fn add(rows: &mut [Value], statuses: &[Value]) {
    let heals = heal::rows(statuses);
    for row in rows {
        let ost = number(row, "ost");
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
    if row["heal"].is_object() {
        text += &format!(", {}", heal::lacking(&row["heal"]));
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
                "pending": [{ "ost": 1, "chain": "2x0", "objects": 3, "bytes": 2048, "head": true }],
                "heal": { "rates": [{ "ost": 1, "objects_per_s": 2, "bytes_per_s": 1024 }] },
            }),
            json!({ "osts": [{ "index": 1, "scrub": scrub }], "pending": [] }),
        ];
        let mut rows = [json!({ "ost": 0 }), json!({ "ost": 1 })];
        add(&mut rows, &statuses);
        assert_eq!(shown(&rows[0]), "");
        assert_eq!(
            shown(&rows[1]),
            ", lacks 3 objects of 1 chains, at least 2.0 KiB, 2 objects and 1.0 KiB a second, \
             2 s left, 25 % scrubbed"
        );
        assert_eq!(rows[1]["heal"]["seconds_left"], 2);
        assert_eq!(rows[0]["heal"], Value::Null);
    }
}
