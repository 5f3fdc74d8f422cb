//! How a client reaches the servers, in parts of which each promises one thing. A transport leads
//! to the MDS ([`Transport::mds`]), to all OSTs, and knows of all servers what is not durable
//! there; one to a single server that has both leads to itself.

use crate::client::chain_rows::ChainRows;
use crate::client::cluster::ClientIdentity;
use futures_util::future::join_all;
use glint_proto::chain::{Chain, Destination, Forward, PeerReply, PeerRequest};
use glint_proto::lock::{Grant, Recall, Return};
use glint_proto::message::{ObjectRead, Welcome};
use glint_proto::oss::OssInfo;
use glint_proto::{
    Bulk, Capability, Cred, Errno, FsResult, Ino, LocalObject, MdsReply, MdsRequest, ObjectId,
    OstReply, OstRequest,
};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An answer, and the locks that come with it.
pub type Granting = (FsResult<MdsReply>, Vec<Grant>);

/// The part of a client that keeps its locks.
pub trait LockClient: Send + Sync + 'static {
    /// Servers recall locks, or ask how large a file is. Returns at once.
    fn on_recall(&self, recalls: Vec<Recall>);

    /// All locks are lost: the server has started again, or (`evicted`) it has given this
    /// client up, and what was not written is lost. What is cached must be gone when this ends.
    /// Returns what to reclaim.
    fn on_server_restart(
        &self,
        evicted: bool,
    ) -> Pin<Box<dyn Future<Output = Vec<MdsRequest<'static>>> + '_>>;

    /// The answer to one of these has come.
    fn on_reclaimed(&self, request: &MdsRequest<'static>, reply: FsResult<MdsReply>);
}

/// Requests to the MDS. Each is executed once, or fails: it is sent again over any number of
/// connections and runs of the server, until it is answered or the client is evicted.
pub trait MdsRequests: Send + Sync + 'static {
    /// Sends a request and waits for its answer.
    fn request(&self, cred: &Cred, request: &MdsRequest<'_>) -> impl Future<Output = Granting>;

    /// Sends a request whose answer nobody waits for. It goes with the next one, or a little
    /// later.
    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) -> impl Future<Output = FsResult<()>>;
}

/// Requests to the OSTs of all servers, with the same promise.
pub trait OstRequests: Send + Sync + 'static {
    /// Sends a request, with what allows it if that is needed, and waits for its answer. Whether the
    /// locks for it are still held is asked last, after all that it waits for: EIO if not, because
    /// it would be sent in another session than that which had them.
    fn ost(
        &self,
        to: Destination,
        request: OstRequest,
        capability: Option<Capability>,
        bulk: Bulk<'_>,
        is_held: &dyn Fn() -> bool,
    ) -> impl Future<Output = FsResult<OstReply>>;

    /// Reads from several objects, and says of each what was read as it comes. Over a network, it is
    /// one request to each of their servers. What cannot be read at once is an error (EAGAIN where it
    /// may be read later), perhaps said twice: whoever needs it asks for it alone.
    fn read_objects(
        &self,
        reads: Vec<ObjectRead>,
        says: &dyn Fn(usize, FsResult<Vec<u8>>),
    ) -> impl Future<Output = ()> {
        let read = async |read: ObjectRead| {
            let mut data = vec![0; read.len as usize];
            let (bulk, is_held) = (Bulk::In(&mut data), &|| true);
            match self.ost(read.to, read.request(), read.capability, bulk, is_held).await? {
                OstReply::Data(len) => data.truncate(len as usize),
                _ => return Err(Errno::EPROTO),
            }
            Ok(data)
        };
        async move {
            let all = reads.into_iter().enumerate();
            join_all(all.map(async |(at, one)| says(at, read(one).await))).await;
        }
    }

    /// Hands an object without copies to the kernel, if its OST is in this process, no other client
    /// can change the file, and it is not better read by requests.
    fn hand_out(
        &self,
        _ost: u16,
        _object: ObjectId,
    ) -> impl Future<Output = FsResult<Option<Arc<dyn LocalObject>>>> {
        ready(Ok(None))
    }

    /// Has rows of chains be learnt that come with refusals (EREMCHG).
    fn share_rows(&self, _rows: &Arc<ChainRows>) {}

    /// The chain has another head: what this server was sent of it, and may lose, is to be sent to
    /// that one.
    fn move_chain(&self, _target: u16) {}

    /// Has changes be answered that were sent to this server again by threads that are gone.
    fn adopt_left(&self) {}
}

/// Requests of one server to another, about the chains that both are members of.
pub trait PeerRequests: Send + Sync + 'static {
    /// Has a member make a change that its head has ordered. EREMCHG if there is another row.
    fn forward(
        &self,
        to: Destination,
        forward: Forward,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = FsResult<OstReply>>;

    /// Asks the server of an OST.
    fn peer(&self, ost: u16, request: PeerRequest) -> impl Future<Output = FsResult<PeerReply>>;
}

/// The session of a client at the MDS: who it is, with what, and how long that has not been heard
/// of. Waits for the server only where it asks.
pub trait MdsSession: Send + Sync + 'static {
    /// Welcome of the server: properties of it and of the file system.
    fn welcome(&self) -> Welcome;

    /// Identity of this client, the same at every server.
    fn identity(&self) -> ClientIdentity;

    /// How long nothing was heard of the server.
    fn silence(&self) -> Duration;

    /// Asks which servers of OSTs there are beside this one.
    fn osses(&self) -> impl Future<Output = FsResult<Vec<OssInfo>>>;

    /// Asks for the table of chains.
    fn chains(&self) -> impl Future<Output = FsResult<Vec<Chain>>>;
}

/// Locks that the MDS recalls and the client returns. A recall comes until it is answered, and
/// in the way of no answer.
pub trait LockTraffic: Send + Sync + 'static {
    /// Names who keeps locks. Before that none are given.
    fn set_lock_client(&self, lock_client: Weak<dyn LockClient>);

    /// Brings recalls to the lock client until the client ends. Run it on a thread that does
    /// nothing that a recall could wait for.
    fn listen(&self) -> impl Future<Output = ()>;

    /// Returns locks, and answers questions.
    fn return_locks(&self, returns: Vec<Return>) -> impl Future<Output = FsResult<()>>;
}

/// State and statistics of servers for people, as JSON.
pub trait ServerStatistics: Send + Sync + 'static {
    /// State dump of the servers.
    fn status(&self) -> impl Future<Output = FsResult<String>>;

    /// Statistics of this process and of the servers.
    fn stats(&self) -> impl Future<Output = FsResult<String>>;

    /// Starts all statistics again.
    fn reset_stats(&self) -> impl Future<Output = FsResult<()>>;
}

/// Requests that servers answered and have not made durable, to be sent again if one loses power. A
/// server in the same process loses nothing without its client: for it are the methods that have a
/// body.
pub trait Durability: Send + Sync + 'static {
    /// Everything that was answered so far to stable storage.
    fn commit(&self) -> impl Future<Output = FsResult<()>>;

    /// The same, until nothing of it is left that would have to be sent again: a server does not
    /// wait for a chain that may have lost some of it.
    fn until_stable(&self) -> impl Future<Output = FsResult<()>> {
        self.commit()
    }

    /// Whether something was answered that would have to be sent again.
    fn has_uncommitted(&self) -> bool {
        false
    }

    /// Sends again what servers of chains may have lost or have in their memory alone. Calls on a
    /// chain do it first; of a client that makes none this is asked every now and then.
    fn send_again(&self) -> impl Future<Output = ()> {
        ready(())
    }

    /// Objects of a file, with their OSTs, which this client would change again.
    fn unstable(&self, _ino: Ino) -> Vec<(u16, ObjectId)> {
        Vec::new()
    }

    /// Halves so many times what all servers together may leave to be sent again.
    fn limit_uncommitted(&self, _steps: u32) {}

    /// After how many of these steps what is left now would still fit.
    fn uncommitted_steps(&self) -> u32 {
        u32::MAX
    }

    /// Does not change objects of a file again, because others may change them from now on. Waits
    /// until what is sent again just now is answered, or no server makes it any more.
    fn abandon(&self, _ino: Ino) -> impl Future<Output = ()> {
        ready(())
    }

    /// Waits until no server makes a change of a file's data any more, or of any, that was sent to it
    /// again and is not waited for otherwise: no lock of the file is returned before.
    fn until_answered(&self, _ino: Option<Ino>) -> impl Future<Output = ()> {
        ready(())
    }

    /// Why data of a file, which was answered, lost with its server and sent again, could not be
    /// written then. Says it once.
    fn take_failure(&self, _ino: Ino) -> Option<Errno> {
        None
    }
}

/// All that leads to the MDS.
pub trait MdsTransport: MdsRequests + MdsSession + LockTraffic + ServerStatistics {}

impl<T: MdsRequests + MdsSession + LockTraffic + ServerStatistics> MdsTransport for T {}

/// A way to all servers of a file system.
pub trait Transport: OstRequests + Durability {
    /// The way to the MDS.
    type Mds: MdsTransport;

    /// Leads to the MDS.
    fn mds(&self) -> &Self::Mds;

    /// Whether some server cannot be reached just now, so that requests wait for it.
    fn is_away(&self) -> bool;
}
