//! Space that is kept for clients: what they have in their write caches must not meet a full
//! disk when it comes.
//!
//! Invariant: what is kept for one client nobody else can use up. A write takes from what is
//! kept for its client first, and gives it back if it fails: it will be tried again.

use glint_proto::ClientId;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// A client is given at most this part of what is available.
const PART: u64 = 8;

/// Bytes kept for clients, of the disks under all OSTs of a server together.
#[derive(Default)]
pub struct SpaceGrants {
    clients: Mutex<HashMap<ClientId, u64>>,
    total: AtomicU64,
}

impl SpaceGrants {
    /// Keeps up to `bytes` of the `available` ones for a client. Returns how many.
    pub fn grant(&self, client: ClientId, bytes: u64, available: u64) -> u64 {
        let mut clients = self.clients.lock();
        let free = available.saturating_sub(self.total());
        let granted = bytes.min(free / PART);
        *clients.entry(client).or_default() += granted;
        self.total.fetch_add(granted, Ordering::Relaxed);
        granted
    }

    /// A client writes. Returns how much of it was kept for it: if all, it must not be
    /// refused, because what the disk lost to others meanwhile, the reserve has room for.
    pub fn use_up(&self, client: ClientId, bytes: u64) -> u64 {
        if self.total() == 0 {
            return 0;
        }
        let mut clients = self.clients.lock();
        let Some(kept) = clients.get_mut(&client) else { return 0 };
        let used = bytes.min(*kept);
        *kept -= used;
        self.total.fetch_sub(used, Ordering::Relaxed);
        used
    }

    /// A client could not write, and still has what it wanted to.
    pub fn give_back(&self, client: ClientId, used: u64) {
        if used > 0 {
            *self.clients.lock().entry(client).or_default() += used;
            self.total.fetch_add(used, Ordering::Relaxed);
        }
    }

    /// Keeps nothing for clients that are gone.
    pub fn retain(&self, is_known: impl Fn(ClientId) -> bool) {
        self.clients.lock().retain(|client, kept| {
            let known = is_known(*client);
            if !known {
                self.total.fetch_sub(*kept, Ordering::Relaxed);
            }
            known
        });
    }

    /// Bytes kept for all clients together.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_one_is_not_given_to_another() {
        let grants = SpaceGrants::default();
        let (a, b) = (ClientId(1), ClientId(2));
        assert_eq!(grants.grant(a, 100, 8000), 100);
        assert_eq!(grants.grant(b, 100_000, 8100), 1000);
        assert_eq!(grants.use_up(a, 30), 30);
        assert_eq!(grants.total(), 1070);
        grants.give_back(a, 30);
        assert_eq!(grants.use_up(a, 30), 30);
        assert_eq!(grants.use_up(a, 1000), 70);
        assert_eq!(grants.total(), 1000, "no more than was kept for it");
        assert_eq!(grants.grant(a, 1, 900), 0);
        grants.retain(|client| client == a);
        assert_eq!(grants.total(), 0);
    }
}
