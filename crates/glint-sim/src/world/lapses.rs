//! Faults of clients that are put in on purpose, so that a test sees that a run finds them. The
//! code under test knows nothing of them.

use crate::workload::Fs;
use crate::world::executor::{Executor, NOWHERE};
use crate::world::hosts::Hosts;
use crate::world::peers::client_id;
use glint_net::{Cluster, LockClient, LockTraffic, Remote, Transport};
use glint_proto::lock::{Bits, Recall, Return};
use glint_proto::{FsResult, MdsReply, MdsRequest};
use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Pause before locks are returned of which the client has not heard.
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
#[derive(Default)]
pub(crate) struct DeafClient {
    client: OnceLock<Weak<dyn LockClient>>,
    returns: Mutex<Vec<Return>>,
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
                let returns = std::mem::take(&mut *self.returns.lock());
                if !returns.is_empty() {
                    hosts.mds().mds().return_locks(client_id(index), &returns);
                }
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
                    let bits = bits & !Bits::NEGATIVE;
                    let returned = Return::Bits { ino, bits: Bits::NEGATIVE, number };
                    self.returns.lock().push(returned);
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
