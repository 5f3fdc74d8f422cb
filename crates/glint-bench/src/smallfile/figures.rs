//! Figures of one operation on one target, over its rounds.

use super::operation::SmallfileOp;
use super::volume::{Outcome, Unfinished, Workload};
use crate::sample::{Sample, median};
use serde_json::{Value, json};

/// Rounds of one operation.
#[derive(Default)]
pub(crate) struct Figures {
    latencies: Sample,
    rates: Vec<f64>,
    /// Rates and parts in % when the first thread had ended.
    first: Vec<(f64, f64)>,
    finished: u64,
    wanted: u64,
    unfinished: Option<Unfinished>,
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Figures {
    /// Adds a round.
    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.latencies.merge(&outcome.sample);
        if outcome.finished > 0 {
            self.rates.push(outcome.sample.per_s());
        }
        if let Some((finished, seconds)) = outcome.first {
            let percent = finished as f64 / outcome.wanted as f64 * 100.0;
            self.first.push((finished as f64 / seconds, percent));
        }
        self.finished += outcome.finished;
        self.wanted += outcome.wanted;
        self.unfinished = self.unfinished.take().or(outcome.unfinished);
    }

    /// Whether all files were done, and why not.
    pub(crate) fn check(&self, op: SmallfileOp, target: &str) -> Result<(), String> {
        let (op, percent) = (op.name(), self.percent());
        match &self.unfinished {
            None => Ok(()),
            Some(why) => Err(format!("{op} on {target}: {percent:.2} % of the files: {why}")),
        }
    }

    /// Whether there was a round at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.wanted == 0
    }

    /// Files that were done, in %. Only all of them are 100.
    pub(crate) fn percent(&self) -> f64 {
        // Rounded down.
        (self.finished as f64 / self.wanted.max(1) as f64 * 10_000.0).floor() / 100.0
    }

    /// Files in a second, the median of the rounds.
    pub(crate) fn per_s(&self) -> f64 {
        if self.rates.is_empty() { 0.0 } else { median(self.rates.clone()) }
    }

    /// MiB in a second, if data moves.
    pub(crate) fn mib_per_s(&self, op: SmallfileOp, workload: &Workload) -> Option<f64> {
        let mib = workload.bytes as f64 / f64::from(1 << 20);
        op.has_data().then(|| hundredths(self.per_s() * mib))
    }

    /// A quantile of the latencies, in microseconds.
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        self.latencies.micros(quantile)
    }

    /// The figures that smallfile reports: files in a second, and in %, when the first thread had
    /// ended.
    pub(crate) fn first(&self) -> (f64, f64) {
        let middle = |of: fn(&(f64, f64)) -> f64| match self.first.is_empty() {
            true => 0.0,
            false => median(self.first.iter().map(of).collect()),
        };
        (middle(|first| first.0), middle(|first| first.1))
    }

    /// A line of JSON, without what only the caller knows.
    pub(crate) fn line(&self, op: SmallfileOp, workload: &Workload) -> Value {
        let (first_per_s, first_percent) = self.first();
        let mut line = json!({
            "bench": "smallfile", "op": op.name(), "threads": workload.threads,
            "files": workload.files, "bytes": workload.bytes, "fsync": workload.fsync,
            "cold": workload.cold, "percent": self.percent(), "per_s": self.per_s().round(),
            "us_p50": self.micros(0.5), "us_p99": self.micros(0.99),
            "first_per_s": first_per_s.round(), "first_percent": hundredths(first_percent),
        });
        if let Some(mib_per_s) = self.mib_per_s(op, workload) {
            line["mib_per_s"] = json!(mib_per_s);
        }
        if let Some(why) = &self.unfinished {
            line["unfinished"] = json!(why.to_string());
        }
        line
    }
}
