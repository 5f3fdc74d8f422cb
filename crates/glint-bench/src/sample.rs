//! Measurements of a round.

use hdrhistogram::Histogram;

/// Longest latency that is told apart: a minute, in nanoseconds.
const NANOS_MAX: u64 = 60_000_000_000;

/// A ratio as reports show it, with three decimals.
pub(crate) fn ratio(ours: f64, theirs: f64) -> f64 {
    (ours / theirs * 1000.0).round() / 1000.0
}

/// The middle one of some measurements; of an even number, the upper one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Latencies of operations, and the time they took together.
pub(crate) struct Sample {
    histogram: Histogram<u64>,
    seconds: f64,
}

impl Default for Sample {
    fn default() -> Sample {
        // Two digits are more than a busy machine repeats. The bounds are constants
        // that the constructor accepts.
        #[allow(clippy::expect_used)]
        let histogram = Histogram::new_with_max(NANOS_MAX, 2).expect("constant bounds are valid");
        Sample { histogram, seconds: 0.0 }
    }
}

impl Sample {
    /// Notes one operation.
    pub(crate) fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos);
    }

    /// Notes how long the round took from its start to its last operation.
    pub(crate) fn set_seconds(&mut self, seconds: f64) {
        self.seconds = seconds;
    }

    /// Adds a round that came after this one.
    pub(crate) fn add(&mut self, other: &Sample) {
        self.merge(other);
        self.seconds += other.seconds;
    }

    /// Adds a worker of the same round.
    pub(crate) fn merge(&mut self, other: &Sample) {
        // Both have the same bounds, so nothing can be out of range.
        let _ = self.histogram.add(&other.histogram);
    }

    /// Operations per second.
    pub(crate) fn per_s(&self) -> f64 {
        self.histogram.len() as f64 / self.seconds
    }

    /// A quantile in microseconds, with two decimals.
    pub(crate) fn micros(&self, quantile: f64) -> f64 {
        (self.histogram.value_at_quantile(quantile) as f64 / 10.0).round() / 100.0
    }

    /// As text for another process: `nanos:count` pairs.
    pub(crate) fn to_text(&self) -> String {
        let cells = self.histogram.iter_recorded();
        let pairs: Vec<String> = cells
            .map(|cell| format!("{}:{}", cell.value_iterated_to(), cell.count_at_value()))
            .collect();
        pairs.join(" ")
    }

    /// Inverse of [`Sample::to_text`].
    pub(crate) fn from_text(text: &str) -> Option<Sample> {
        let mut sample = Sample::default();
        for pair in text.split_whitespace() {
            let (nanos, count) = pair.split_once(':')?;
            sample.histogram.saturating_record_n(nanos.parse().ok()?, count.parse().ok()?);
        }
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;

    #[test]
    fn a_sample_travels_as_text() {
        let mut sample = Sample::default();
        for nanos in 1..=1000 {
            sample.record(nanos * 1000);
        }
        sample.set_seconds(2.0);
        let mut back = Sample::from_text(&sample.to_text()).unwrap();
        back.set_seconds(2.0);
        assert_eq!(back.per_s(), 500.0);
        assert!((back.micros(0.5) - 500.0).abs() < 10.0, "{}", back.micros(0.5));
    }
}
