//! Faults of clients that are put in on purpose, so that a test sees that a run finds them. The
//! code under test knows nothing of them.

use crate::workload::Fs;
use crate::world::executor::{Executor, NOWHERE};
use crate::world::hosts::Hosts;
use crate::world::peers::client_id;
use glint_net::{Cluster, LockClient, LockTraffic, Remote, Transport};
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{FsResult, Ino, MdsReply, MdsRequest};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Pause before it is looked again whether locks can be returned that the client has not heard of.
const RETURNED: Duration = Duration::from_millis(20);

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lapse {
    /// The kernels of clients keep pages that they are told to forget.
    PagesKept,
    /// Clients return the lock on the absent names of a directory, and remember them.
    AbsentNamesKept,
}

/// A listener before a client, which does not hear that the lock on absent names is recalled.
///
/// The MDS takes a recall as answered when all that it asked for is returned at once. So that lock
/// goes back with the others of its recall, once the client has returned those.
#[derive(Default)]
pub(crate) struct DeafClient {
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
    /// Listens to a connection, before its client does.
    pub(crate) fn listen(connection: &Cluster<Remote>) -> Arc<DeafClient> {
        let deaf: Arc<DeafClient> = Arc::default();
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
                    (left & owed.bits & !Bits::NEGATIVE).is_empty()
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
                Recall::Bits { ino, bits, number } if bits.contains(Bits::NEGATIVE) => {
                    self.owed.lock().push(OwedBits { ino, bits, number });
                    let bits = bits & !Bits::NEGATIVE;
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
