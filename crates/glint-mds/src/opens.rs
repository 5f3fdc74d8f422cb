//! Which inodes are open, and by whom. In memory only: after a restart clients
//! say again what they have open.

use glint_proto::{ClientId, Ino};
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 64;

/// Opens of one inode by one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) readers: u32,
    pub(crate) writers: u32,
}

impl Count {
    fn is_zero(self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

type Shard = HashMap<Ino, Vec<(ClientId, Count)>>;

/// The table.
pub(crate) struct Opens {
    shards: Vec<Mutex<Shard>>,
}

impl Opens {
    pub(crate) fn new() -> Opens {
        Opens { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Counts an open.
    pub(crate) fn add(&self, client: ClientId, ino: Ino, write: bool) {
        self.set(client, ino, |count| if write { count.writers += 1 } else { count.readers += 1 });
    }

    /// Takes an open back.
    pub(crate) fn remove(&self, client: ClientId, ino: Ino, write: bool) {
        self.set(client, ino, |count| {
            let which = if write { &mut count.writers } else { &mut count.readers };
            *which = which.saturating_sub(1);
        });
    }

    /// What a client has open, said by itself after a restart.
    pub(crate) fn replace(&self, client: ClientId, ino: Ino, count: Count) {
        self.set(client, ino, |old| *old = count);
    }

    fn set(&self, client: ClientId, ino: Ino, change: impl FnOnce(&mut Count)) {
        let mut shard = self.shard(ino).lock();
        let clients = shard.entry(ino).or_default();
        let index = clients.iter().position(|(id, _)| *id == client).unwrap_or_else(|| {
            clients.push((client, Count::default()));
            clients.len() - 1
        });
        change(&mut clients[index].1);
        if clients[index].1.is_zero() {
            clients.swap_remove(index);
        }
        if clients.is_empty() {
            shard.remove(&ino);
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    pub(crate) fn has_writer(&self, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        shard.get(&ino).is_some_and(|clients| clients.iter().any(|(_, c)| c.writers > 0))
    }

    /// A client is gone. Returns how many inodes it had open.
    pub(crate) fn forget_client(&self, client: ClientId) -> usize {
        let mut gone = 0;
        for shard in &self.shards {
            shard.lock().retain(|_, clients| {
                let before = clients.len();
                clients.retain(|(id, _)| *id != client);
                gone += before - clients.len();
                !clients.is_empty()
            });
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_close_counts() {
        let opens = Opens::new();
        let (a, b) = (ClientId(1), ClientId(2));
        opens.add(a, Ino(5), true);
        opens.add(a, Ino(5), false);
        opens.add(b, Ino(5), false);
        opens.remove(a, Ino(5), true);
        assert!(!opens.has_writer(Ino(5)) && opens.is_open(Ino(5)));
        assert_eq!(opens.forget_client(a), 1);
        assert!(opens.is_open(Ino(5)));
        opens.remove(b, Ino(5), false);
        assert!(!opens.is_open(Ino(5)));
    }
}
