//! Open inodes, and the clients that have them open. In memory only: after a restart clients say
//! again what they have open.
//!
//! Invariant: what a close says of a file's size is believed only if nothing can have changed
//! the size since it was asked: no other writer, no truncation by another client or by an open to
//! read, no later close. A close travels alone, and may arrive after what was done later. And only
//! of who had the file open for writing. Who opens it while another client is still cutting its
//! objects says nothing of its size before it had a lock on its data, which waits for that.
//!
//! A file that a rename replaced stays for a moment, as if somebody had it open: a call that has found it
//! by its name still reaches it, as on a local file system.

use glint_proto::{ClientId, Ino, ObjectAttr, Timestamp};
use glint_wait::Sharded;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

const SHARDS: usize = 64;

/// How long a file that was replaced stays for calls that are on their way to it.
const LINGER: Duration = Duration::from_secs(1);
/// How many do.
const LINGERING_MAX: usize = 1 << 16;

/// Opens of one inode by one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) readers: u32,
    pub(crate) writers: u32,
    /// The size that this client will report may be old.
    pub(crate) doubtful: bool,
}

impl Count {
    fn is_zero(self) -> bool {
        self.readers == 0 && self.writers == 0
    }
}

/// An inode while it is open.
#[derive(Default)]
struct OpenInode {
    clients: Vec<(ClientId, Count)>,
    /// The last name of the inode is gone; so is the rest with the last close.
    unlinked: bool,
    /// It was replaced a moment ago.
    lingers: bool,
    /// Nobody wrote since its first writer opened it, so its record still knows its size.
    unchanged: bool,
    /// The first writer made the file, so it had no objects.
    fresh: bool,
    /// The latest report of a writer that closed.
    latest: Option<Report>,
}

/// What a writer said when it closed the file.
struct Report {
    client: ClientId,
    /// In the order in which this client asked; it says nothing about reports of others.
    number: u64,
    objects: ObjectAttr,
}

/// Report of a client that closes a file that it wrote, numbered in the order of asking; the client
/// may not know the attributes.
pub(crate) type Wrote = (u64, Option<ObjectAttr>);

/// State of an inode after a close.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct AfterClose {
    /// Somebody still has it open for writing.
    pub(crate) writers: bool,
    /// Nobody has it open any more, and it has no name.
    pub(crate) gone: bool,
    /// See [`Opens::first_writer`].
    pub(crate) unchanged: bool,
    /// The file has no objects if it is unchanged.
    pub(crate) fresh: bool,
    /// Attributes of the objects, if a report of them is to be believed.
    pub(crate) wrote: Option<ObjectAttr>,
    /// Somebody said something that is not to be believed.
    pub(crate) doubtful: bool,
}

type Shard = HashMap<Ino, OpenInode>;

/// The table.
pub(crate) struct Opens {
    shards: Sharded<Mutex<Shard>>,
    /// Files that stay for a moment, and until when, in this order.
    lingering: Mutex<VecDeque<(Instant, Ino)>>,
}

impl Opens {
    pub(crate) fn new() -> Opens {
        Opens { shards: Sharded::new(SHARDS), lingering: Mutex::default() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        self.shards.of(ino.0)
    }

    /// Counts an open.
    pub(crate) fn add(&self, client: ClientId, ino: Ino, write: bool) {
        match write {
            true => self.set(client, ino, |count| {
                count.writers = count.writers.saturating_add(1);
            }),
            false => self.add_readers(client, ino, 1),
        }
    }

    /// Counts opens for reading, as many as a client says.
    pub(crate) fn add_readers(&self, client: ClientId, ino: Ino, readers: u32) {
        self.set(client, ino, |count| count.readers = count.readers.saturating_add(readers));
    }

    fn set(&self, client: ClientId, ino: Ino, change: impl FnOnce(&mut Count)) {
        self.shard(ino).lock().entry(ino).or_default().set(client, change);
    }

    /// Counts an open for writing, of a file whose record knows its size until somebody
    /// writes; `fresh` if this made it.
    pub(crate) fn first_writer(&self, client: ClientId, ino: Ino, fresh: bool) {
        let mut shard = self.shard(ino).lock();
        let open = shard.entry(ino).or_default();
        (open.unchanged, open.fresh) = (true, fresh);
        // What is written from now on no earlier report knows of.
        open.latest = None;
        open.set(client, |count| count.writers = count.writers.saturating_add(1));
    }

    /// Takes an open back.
    pub(crate) fn remove(
        &self,
        client: ClientId,
        ino: Ino,
        write: bool,
        wrote: Option<Wrote>,
    ) -> AfterClose {
        let mut shard = self.shard(ino).lock();
        let Some(open) = shard.get_mut(&ino) else {
            // Nobody knows what happened since.
            return AfterClose { doubtful: wrote.is_some(), ..AfterClose::default() };
        };
        open.unchanged &= wrote.is_none();
        let mut doubtful = open.count(client).doubtful;
        // Only who may write is believed.
        let wrote = wrote.filter(|_| open.count(client).writers > 0);
        if let Some((number, objects)) = wrote {
            // Others asked before this, or will.
            open.doubt_all_but(client);
            let is_later = |known: &Report| known.client == client && known.number >= number;
            match objects {
                // Others who close would be believed with it.
                Some(_) if doubtful => open.latest = None,
                // One of another client is older: else this one would be doubtful.
                Some(objects) if !open.latest.as_ref().is_some_and(is_later) => {
                    open.latest = Some(Report { client, number, objects });
                }
                Some(_) => {}
                None => {
                    // Other closes of the client may have asked before it wrote.
                    open.latest = None;
                    open.set(client, |count| count.doubtful = true);
                }
            }
        }
        doubtful &= wrote.is_some() || open.latest.is_some();
        open.set(client, |count| {
            let which = if write { &mut count.writers } else { &mut count.readers };
            *which = which.saturating_sub(1);
        });
        let last = open.is_closed();
        let left = AfterClose {
            writers: open.has_writer(),
            gone: last && open.unlinked,
            unchanged: open.unchanged,
            fresh: open.fresh,
            wrote: open.latest.as_ref().map(|latest| latest.objects).filter(|_| !doubtful),
            doubtful,
        };
        if last {
            shard.remove(&ino);
        }
        left
    }

    /// Replaces the opens of a client by what it says after a restart.
    pub(crate) fn replace(&self, client: ClientId, ino: Ino, count: Count, unlinked: bool) {
        let mut shard = self.shard(ino).lock();
        let open = shard.entry(ino).or_default();
        open.unlinked |= unlinked;
        open.set(client, |old| *old = Count { doubtful: true, ..count });
        if open.is_closed() {
            shard.remove(&ino);
        }
    }

    /// The last name of an inode goes. Returns whether it is open, and so stays.
    pub(crate) fn unlink(&self, ino: Ino) -> bool {
        match self.shard(ino).lock().get_mut(&ino) {
            Some(open) => {
                open.unlinked = true;
                true
            }
            None => false,
        }
    }

    /// A file loses its last name to another file that takes it: it stays for a moment, unless too many
    /// do.
    pub(crate) fn linger(&self, ino: Ino, now: Instant) {
        let mut lingering = self.lingering.lock();
        if lingering.len() < LINGERING_MAX {
            lingering.push_back((now + LINGER, ino));
            self.shard(ino).lock().entry(ino).or_default().lingers = true;
        }
    }

    /// Lets go of files whose moment is over. Returns how many are gone with that.
    pub(crate) fn let_go(&self, now: Instant) -> u64 {
        let mut lingering = self.lingering.lock();
        let over = lingering.partition_point(|(until, _)| *until <= now);
        let over: Vec<_> = lingering.drain(..over).collect();
        drop(lingering);
        let mut gone = 0;
        for (_, ino) in over {
            let mut shard = self.shard(ino).lock();
            let Some(open) = shard.get_mut(&ino) else { continue };
            open.lingers = false;
            if open.is_closed() {
                gone += u64::from(open.unlinked);
                shard.remove(&ino);
            }
        }
        gone
    }

    /// An open file without a name got one.
    pub(crate) fn link(&self, ino: Ino) {
        if let Some(open) = self.shard(ino).lock().get_mut(&ino) {
            open.unlinked = false;
        }
    }

    /// A client set the size of a file: its record is not to be believed any more, nor what
    /// others will say of it. (The client itself says nothing old: it waits for the answers
    /// to its closes before it sets a size, and asks for none until its objects have it.)
    pub(crate) fn resized(&self, client: ClientId, ino: Ino) {
        if let Some(open) = self.shard(ino).lock().get_mut(&ino) {
            open.unchanged = false;
            open.latest = None;
            open.doubt_all_but(client);
        }
    }

    /// A client opened a file to read, and cuts it: its closes may say what was before, and none will
    /// say what is after, because only those of writers are believed.
    pub(crate) fn cut_by_reader(&self, client: ClientId, ino: Ino) {
        self.set(client, ino, |count| count.doubtful = true);
    }

    /// A client set the time of a file: what others will say of it may be older.
    pub(crate) fn dated(&self, client: ClientId, ino: Ino, mtime: Timestamp) {
        if let Some(open) = self.shard(ino).lock().get_mut(&ino) {
            if let Some(latest) = &mut open.latest {
                latest.objects.mtime = mtime;
            }
            open.doubt_all_but(client);
        }
    }

    pub(crate) fn is_open(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    /// Whether this client has it open for writing.
    pub(crate) fn is_writer(&self, client: ClientId, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|open| open.count(client).writers > 0)
    }

    /// Whether another client has it open for writing.
    pub(crate) fn has_other_writer(&self, client: ClientId, ino: Ino) -> bool {
        let shard = self.shard(ino).lock();
        let open = shard.get(&ino);
        open.is_some_and(|o| o.clients.iter().any(|(id, count)| *id != client && count.writers > 0))
    }

    /// A client is gone. Returns how many inodes it had open.
    pub(crate) fn forget_client(&self, client: ClientId) -> usize {
        let mut gone = 0;
        for shard in &self.shards {
            shard.lock().retain(|_, open| {
                let before = open.clients.len();
                if open.count(client).writers > 0 {
                    open.latest = None;
                }
                open.clients.retain(|(id, _)| *id != client);
                // Nobody has reported what the client wrote.
                open.unchanged &= before == open.clients.len();
                gone += before - open.clients.len();
                !open.is_closed()
            });
        }
        gone
    }
}

impl OpenInode {
    /// Whether nobody has it open, and it need not stay.
    fn is_closed(&self) -> bool {
        self.clients.is_empty() && !self.lingers
    }

    fn count(&self, client: ClientId) -> Count {
        let known = self.clients.iter().find(|(id, _)| *id == client);
        known.map(|(_, count)| *count).unwrap_or_default()
    }

    fn doubt_all_but(&mut self, client: ClientId) {
        for (_, count) in self.clients.iter_mut().filter(|(id, _)| *id != client) {
            count.doubtful = true;
        }
    }

    fn set(&mut self, client: ClientId, change: impl FnOnce(&mut Count)) {
        let known = self.clients.iter().position(|(id, _)| *id == client);
        let index = known.unwrap_or_else(|| {
            self.clients.push((client, Count::default()));
            self.clients.len() - 1
        });
        change(&mut self.clients[index].1);
        if self.clients[index].1.is_zero() {
            self.clients.swap_remove(index);
        }
    }

    fn has_writer(&self) -> bool {
        self.clients.iter().any(|(_, count)| count.writers > 0)
    }
}

#[cfg(test)]
mod tests;
