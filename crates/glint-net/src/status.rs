//! The state of a server, as far as it is for everybody: administrators see all of it.

use serde_json::{Map, Value};

/// Keys of the status that every client may see; of OSTs not where they are, of clients only itself.
const FOR_EVERYBODY: [&str; 12] = [
    "version",
    "role",
    "uuid",
    "uptime_s",
    "inodes",
    "space",
    "ost_count",
    "osts",
    "clients",
    "locks",
    "operations",
    "per_s",
];

/// Part of the JSON `status` that every client may see: of clients only the one named `own`.
pub fn status_for_everybody(status: &str, own: Option<&str>) -> String {
    let Ok(Value::Object(mut status)) = serde_json::from_str(status) else {
        return "{}".into();
    };
    status.retain(|field, _| FOR_EVERYBODY.contains(&field.as_str()));
    let rows = |rows: &mut Value, keep: &dyn Fn(&mut Map<String, Value>) -> bool| {
        if let Value::Array(rows) = rows {
            rows.retain_mut(|row| row.as_object_mut().is_some_and(keep));
        }
    };
    if let Some(osts) = status.get_mut("osts") {
        rows(osts, &|ost| {
            ost.remove("path");
            ost.remove("failure_domain");
            if let Some(Value::Object(scrub)) = ost.get_mut("scrub") {
                scrub.remove("damage");
            }
            true
        });
    }
    if let Some(clients) = status.get_mut("clients") {
        rows(clients, &|client| own.is_some() && client["id"].as_str() == own);
    }
    Value::Object(status).to_string()
}
