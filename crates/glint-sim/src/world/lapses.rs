//! Faults of clients that are put in on purpose, so that a test sees that a run finds them. The
//! code under test knows nothing of them.

use crate::workload::Fs;
use crate::world::executor::{Executor, Machine, NOWHERE};
use crate::world::hosts::Hosts;
use crate::world::peers::{client_id, connect};
use glint_net::{Cluster, LockClient, LockTraffic, OstRequests, Remote, Transport};
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{Bulk, FsResult, Ino, MdsReply, MdsRequest, ObjectId, OstRequest};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Pause before it is looked again whether locks can be returned that the client has not heard of.
const RETURNED: Duration = Duration::from_millis(20);
/// The machine that says old truncations, and how often it looks whether a row has changed.
const LATE: Machine = Machine(97);
const LOOKED: Duration = Duration::from_millis(5);

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lapse {
    /// The kernels of clients keep pages that they are told to forget.
    PagesKept,
    /// Clients return the lock on the absent names of a directory, and remember them.
    AbsentNamesKept,
    /// Truncations of files come once more when the rows of their chains have changed.
    OldTruncations,
    /// Clients return UNWRITTEN, and rely on it: they use data that was read before its lock was
    /// granted although others may have written it again since.
    UnwrittenKept,
}

/// Somebody truncates these objects to nothing, one of a few times that the rows of their chains
/// have changed.
pub(crate) fn repeat_truncations(
    executor: &Rc<Executor>,
    hosts: &Rc<Hosts>,
    objects: Vec<(u16, ObjectId)>,
) {
    let (executor, hosts) = (executor.clone(), hosts.clone());
    executor.clone().spawn_on(LATE, async move {
        let Ok(client) = connect(&hosts.mds(), LATE.0).await else { return };
        let mut known = BTreeMap::new();
        loop {
            executor.sleep(LOOKED).await;
            for (target, object) in &objects {
                let row = hosts.mds().mds().chains().get(*target);
                let version = row.map_or(0, |row| row.version);
                let before = known.insert(*object, version);
                if before.is_none_or(|before| before == version) || !executor.one_in(3) {
                    continue;
                }
                let truncate = OstRequest::Truncate { object: *object, size: 0 };
                // Whether it is refused is not looked at.
                let _ = client.ost((*target).into(), truncate, None, Bulk::None, &|| true).await;
            }
        }
    });
}

/// A listener before a client, which does not hear that one of its locks is recalled.
///
/// The MDS takes a recall as answered when all that it asked for is returned at once. So that lock
/// goes back with the others of its recall, once the client has returned those.
pub(crate) struct DeafClient {
    /// The lock.
    unheard: Bits,
    client: OnceLock<Weak<dyn LockClient>>,
    owed: Mutex<Vec<OwedBits>>,
}

/// Bits that one recall asks for, with those that the client does not hear of.
struct OwedBits {
    ino: Ino,
    bits: Bits,
    number: u64,
}

impl DeafClient {
    /// Listens to a connection, before its client does, which does not hear of `unheard`.
    pub(crate) fn listen(connection: &Cluster<Remote>, unheard: Bits) -> Arc<DeafClient> {
        let (client, owed) = Default::default();
        let deaf = Arc::new(DeafClient { unheard, client, owed });
        let listener: Arc<dyn LockClient> = deaf.clone();
        connection.mds().set_lock_client(Arc::downgrade(&listener));
        deaf
    }

    /// Passes on to the client what it does hear, and returns the locks for it.
    pub(crate) fn begin(
        self: Arc<Self>,
        fs: &Fs,
        index: u32,
        executor: &Rc<Executor>,
        hosts: &Rc<Hosts>,
    ) {
        let client: Arc<dyn LockClient> = fs.clone();
        let _ = self.client.set(Arc::downgrade(&client));
        let (executor, hosts) = (executor.clone(), hosts.clone());
        executor.clone().spawn_on(NOWHERE, async move {
            loop {
                executor.sleep(RETURNED).await;
                if self.owed.lock().is_empty() {
                    continue;
                }
                let (servers, client) = (hosts.mds(), client_id(index));
                let is_heard = |owed: &mut OwedBits| {
                    let left = servers.mds().owed_bits(client, owed.ino, owed.number);
                    (left & owed.bits & !self.unheard).is_empty()
                };
                let heard: Vec<OwedBits> = self.owed.lock().extract_if(.., is_heard).collect();
                let returned = |OwedBits { ino, bits, number }| Return::Bits { ino, bits, number };
                let returns: Vec<Return> = heard.into_iter().map(returned).collect();
                servers.mds().return_locks(client, &returns);
            }
        });
    }

    fn client(&self) -> Option<Arc<dyn LockClient>> {
        self.client.get().and_then(Weak::upgrade)
    }
}

impl LockClient for DeafClient {
    fn on_recall(&self, recalls: Vec<Recall>) {
        let mut heard = Vec::new();
        for recall in recalls {
            match recall {
                Recall::Bits { ino, bits, number } if bits.contains(self.unheard) => {
                    self.owed.lock().push(OwedBits { ino, bits, number });
                    let bits = bits & !self.unheard;
                    if !bits.is_empty() {
                        heard.push(Recall::Bits { ino, bits, number });
                    }
                }
                recall => heard.push(recall),
            }
        }
        if let Some(client) = self.client() {
            client.on_recall(heard);
        }
    }

    fn on_server_restart(
        &self,
        evicted: bool,
    ) -> Pin<Box<dyn Future<Output = Vec<MdsRequest<'static>>> + '_>> {
        Box::pin(async move {
            match self.client() {
                Some(client) => client.on_server_restart(evicted).await,
                None => Vec::new(),
            }
        })
    }

    fn on_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>) {
        if let Some(client) = self.client() {
            client.on_reclaimed(request, reply);
        }
    }
}
