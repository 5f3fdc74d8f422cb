//! Statistics of this process with their names, as they travel and as users see them.

use glint_proto::Op;
use serde_json::{Value, json};

/// Name of an operation. Work in the background belongs to none.
pub fn op_name(op: u8) -> &'static str {
    Op::from_u8(op).map_or("-", Op::name)
}

/// A row for each layer and operation; times in microseconds.
pub fn rows(process: &str) -> Vec<Value> {
    let us = |nanos: u64| (nanos as f64 / 10.0).round() / 100.0;
    glint_telemetry::snapshot()
        .iter()
        .map(|row| {
            let h = &row.histogram;
            let count = h.count().max(1);
            json!({
                "process": process,
                "layer": row.layer.name(),
                "op": op_name(row.op),
                "count": h.count(),
                "avg": us(h.sum() / count),
                "self": us(h.own() / count),
                "min": us(h.min()),
                "max": us(h.max()),
                "p50": us(h.quantile(0.50)),
                "p99": us(h.quantile(0.99)),
                "sum": us(h.sum()),
                "self_sum": us(h.own()),
            })
        })
        .collect()
}

/// [`rows`], as text.
pub fn as_json(process: &str) -> String {
    Value::Array(rows(process)).to_string()
}
