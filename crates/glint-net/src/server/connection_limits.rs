//! Limits of connections: how many a server takes, and from whom.
//!
//! Descriptors of connections are counted apart from those of data. A peer that has not said who
//! it is gets few of them, for a short time; one that has, cannot take those of all others.
//!
//! Invariants:
//! - There are never more connections than the server has descriptors for.
//! - Strangers have no more than a quarter of these, from one address no more than half of that.
//! - One certificate has no more than three quarters.

use crate::transport::stream::Origin;
use glint_proto::clock;
use glint_proto::limits::{STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX};
use glint_telemetry::event;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is said that connections are refused.
const COMPLAIN: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Counts {
    all: usize,
    strangers: HashMap<Origin, usize>,
    certificates: HashMap<[u8; 32], usize>,
    /// Refused since somebody was told, and when that was.
    refused: u64,
    told: Option<Instant>,
}

/// Counts the connections of a server.
pub(crate) struct ConnectionLimits {
    limit: usize,
    counts: Mutex<Counts>,
}

/// Holder of a place.
#[derive(Clone, Copy, Debug)]
enum Holder {
    /// Nobody knows yet.
    Stranger(Origin),
    /// A peer that has said hello.
    Known(Option<[u8; 32]>),
}

/// The place of a connection; free when this is dropped.
pub(crate) struct Place {
    limits: Arc<ConnectionLimits>,
    holder: Holder,
}

fn add<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K, limit: usize) -> bool {
    let count = counts.entry(key).or_default();
    let fits = *count < limit;
    *count += usize::from(fits);
    fits
}

fn remove<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

impl ConnectionLimits {
    /// For so many connections.
    pub(crate) fn new(limit: usize) -> Arc<ConnectionLimits> {
        Arc::new(ConnectionLimits { limit, counts: Mutex::default() })
    }

    /// A place for a connection that has just come, if there is one. Where not, it is said now
    /// and then.
    pub(crate) fn enter(self: &Arc<ConnectionLimits>, from: Origin) -> Option<Place> {
        let strangers_max = (self.limit / 4).clamp(1, STRANGERS_MAX);
        let from_one = strangers_max.div_ceil(2).min(STRANGERS_PER_ADDRESS_MAX);
        let mut counts = self.counts.lock();
        let strangers: usize = counts.strangers.values().sum();
        let why = if counts.all >= self.limit {
            "there are as many as this process may have"
        } else if strangers >= strangers_max {
            "too many have not said who they are"
        } else if !add(&mut counts.strangers, from, from_one) {
            "too many from one address have not said who they are"
        } else {
            counts.all += 1;
            let holder = Holder::Stranger(from);
            return Some(Place { limits: self.clone(), holder });
        };
        counts.refused += 1;
        if counts.told.is_none_or(|told| clock::since(told) > COMPLAIN) {
            counts.told = Some(clock::now());
            let refused = std::mem::take(&mut counts.refused);
            tracing::warn!(
                event = event::CONNECTIONS_REFUSED, %from, connections = counts.all, refused,
                "connections are refused: {why}"
            );
        }
        None
    }
}

impl Place {
    /// The peer has said who it is. Returns whether so many of that certificate may come.
    pub(crate) fn known(&mut self, certificate: Option<[u8; 32]>) -> bool {
        let Holder::Stranger(from) = self.holder else { return true };
        let mut counts = self.limits.counts.lock();
        let limit = (self.limits.limit * 3 / 4).max(1);
        if let Some(certificate) = certificate
            && !add(&mut counts.certificates, certificate, limit)
        {
            return false;
        }
        remove(&mut counts.strangers, from);
        self.holder = Holder::Known(certificate);
        true
    }

    /// Whether its peer has not yet said who it is.
    pub(crate) fn is_stranger(&self) -> bool {
        matches!(self.holder, Holder::Stranger(_))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock();
        counts.all -= 1;
        match self.holder {
            Holder::Stranger(from) => remove(&mut counts.strangers, from),
            Holder::Known(Some(certificate)) => remove(&mut counts.certificates, certificate),
            Holder::Known(None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn host(n: u8) -> Origin {
        Origin::Host(IpAddr::V4(Ipv4Addr::new(10, 0, 0, n)))
    }

    #[test]
    fn strangers_take_nobody_elses_place() {
        let limits = ConnectionLimits::new(40);
        let mut known: Vec<Place> = Vec::new();
        for _ in 0..20 {
            let mut place = limits.enter(host(1)).unwrap();
            assert!(place.known(None));
            known.push(place);
        }
        let silent: Vec<Place> = std::iter::from_fn(|| limits.enter(host(2))).collect();
        assert_eq!(silent.len(), 5, "half of a quarter");
        let others: Vec<Place> = (10..100).filter_map(|n| limits.enter(host(n))).collect();
        assert_eq!(others.len(), 5, "the rest of the quarter");
        assert!(limits.enter(Origin::Here).is_none());
        drop(silent);
        assert!(limits.enter(Origin::Here).is_some());
        assert!(others[0].is_stranger());
        drop((known, others));
        let counts = limits.counts.lock();
        assert_eq!((counts.all, counts.strangers.len()), (0, 0));
    }

    #[test]
    fn one_certificate_does_not_take_all() {
        let limits = ConnectionLimits::new(8);
        let mut kept = Vec::new();
        for n in 0..8 {
            let mut place = limits.enter(host(n)).unwrap();
            let may = place.known(Some([1; 32]));
            assert_eq!(may, n < 6, "{n}");
            if may {
                kept.push(place);
            }
        }
        assert!(limits.enter(host(9)).unwrap().known(Some([2; 32])));
        kept.clear();
        assert!(limits.counts.lock().certificates.is_empty());
    }
}
