//! A histogram that one thread writes and others read.
//!
//! Buckets are powers of two cut into eight (the layout of HdrHistogram, Gil
//! Tene), so the relative error of a quantile is at most 1/8.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SUB_BITS: u32 = 3;
const BUCKETS: usize = 40 << SUB_BITS;

/// Count, sum, extremes and distribution of durations, and how much of them was spent
/// in the layer itself.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    count: AtomicU64,
    timed: AtomicU64,
    sum: AtomicU64,
    own: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            count: AtomicU64::new(0),
            timed: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            own: AtomicU64::new(0),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
        }
    }
}

fn bucket_of(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let log2 = 63 - value.leading_zeros();
    let sub = (value >> (log2 - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    ((((log2 - SUB_BITS + 1) << SUB_BITS) as u64 + sub) as usize).min(BUCKETS - 1)
}

fn middle_of(bucket: usize) -> u64 {
    if bucket < 1 << SUB_BITS {
        return bucket as u64;
    }
    let log2 = (bucket >> SUB_BITS) as u32 + SUB_BITS - 1;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    let width = 1u64 << (log2 - SUB_BITS);
    (1 << log2) + sub * width + width / 2
}

impl Histogram {
    /// Adds a value, `own` of which was spent here and not in layers below. Called by one
    /// thread at a time per histogram: the read-modify-write is not atomic, because that
    /// would cost a locked bus cycle.
    pub fn add(&self, value: u64, own: u64) {
        let bump = |cell: &AtomicU64, by: u64| cell.store(cell.load(Relaxed) + by, Relaxed);
        bump(&self.buckets[bucket_of(value)], 1);
        bump(&self.count, 1);
        bump(&self.timed, 1);
        bump(&self.sum, value);
        bump(&self.own, own);
        if value < self.min.load(Relaxed) {
            self.min.store(value, Relaxed);
        }
        if value > self.max.load(Relaxed) {
            self.max.store(value, Relaxed);
        }
    }

    /// Counts a value that was not timed. Called as [`Histogram::add`] is.
    pub fn tick(&self) {
        self.count.store(self.count.load(Relaxed) + 1, Relaxed);
    }

    /// Adds everything in `other`.
    pub fn merge(&self, other: &Histogram) {
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            mine.fetch_add(theirs.load(Relaxed), Relaxed);
        }
        self.count.fetch_add(other.count.load(Relaxed), Relaxed);
        self.timed.fetch_add(other.timed.load(Relaxed), Relaxed);
        self.sum.fetch_add(other.sum.load(Relaxed), Relaxed);
        self.own.fetch_add(other.own.load(Relaxed), Relaxed);
        self.min.fetch_min(other.min.load(Relaxed), Relaxed);
        self.max.fetch_max(other.max.load(Relaxed), Relaxed);
    }

    /// Forgets everything.
    pub fn clear(&self) {
        for bucket in &self.buckets {
            bucket.store(0, Relaxed);
        }
        self.count.store(0, Relaxed);
        self.timed.store(0, Relaxed);
        self.sum.store(0, Relaxed);
        self.own.store(0, Relaxed);
        self.min.store(u64::MAX, Relaxed);
        self.max.store(0, Relaxed);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Sum of the values; those that were not timed count as the average of the others.
    pub fn sum(&self) -> u64 {
        self.scaled(self.sum.load(Relaxed))
    }

    fn scaled(&self, sum: u64) -> u64 {
        let (count, timed) = (self.count(), self.timed.load(Relaxed).max(1));
        (u128::from(sum) * u128::from(count) / u128::from(timed)) as u64
    }

    /// Sum of what was spent here and not in layers below.
    pub fn own(&self) -> u64 {
        self.scaled(self.own.load(Relaxed))
    }

    /// Smallest value; 0 if there is none.
    pub fn min(&self) -> u64 {
        if self.timed.load(Relaxed) == 0 { 0 } else { self.min.load(Relaxed) }
    }

    /// Largest value.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// The value below which a share `q` (0 to 1) of all values lies.
    pub fn quantile(&self, q: f64) -> u64 {
        let rank = (self.timed.load(Relaxed) as f64 * q).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Relaxed);
            if seen >= rank {
                return middle_of(index).clamp(self.min(), self.max());
            }
        }
        self.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_close() {
        let histogram = Histogram::default();
        for value in 1..=100_000u64 {
            histogram.add(value, value);
        }
        for (q, exact) in [(0.5, 50_000.0), (0.99, 99_000.0)] {
            let got = histogram.quantile(q) as f64;
            assert!((got - exact).abs() / exact < 0.125, "{q}: {got} for {exact}");
        }
        assert_eq!((histogram.min(), histogram.max()), (1, 100_000));
        assert_eq!(histogram.count(), 100_000);
    }

    #[test]
    fn every_value_has_a_bucket_and_buckets_are_ordered() {
        let mut last = 0;
        for shift in 0..64 {
            let bucket = bucket_of(1 << shift);
            assert!(bucket >= last && bucket < BUCKETS);
            last = bucket;
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }
}
