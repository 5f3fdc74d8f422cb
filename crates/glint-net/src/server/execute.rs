//! Execution of one request by a worker: who may ask what, and who executes it.
//!
//! Invariants:
//! - Before a client has said hello, and when its session is over, nothing is done for it.
//! - What waits for a lock waits no longer than its connection lasts, and of a session no more than
//!   [`WAITING_PER_SESSION_MAX`].
//! - A request is what its body says: a header that says something else ends the connection.
//! - What failed because the server's own disk has is not answered while the server is about to end
//!   ([`commits`](super::commits)).

use crate::server::access::subtree::{self, Admission, Admission::Execute};
use crate::server::connection::ServedConnection;
use crate::server::reads::keep_read;
use crate::server::refusals::{
    check_slot, check_target, failed_with_disk, metadata_failed, metadata_unexecuted, not_admitted,
    refused,
};
use crate::server::worker::{EVICTED, Job, Worker};
use crate::transport::framing::{Envelope, append_frame};
use crate::{NetError, Service, capability, host, stats};
use glint_memory::PooledBuffer;
use glint_proto::chain::{Destination, Forward};
use glint_proto::frame::{FrameError, Header};
use glint_proto::limits::*;
use glint_proto::message::{Hello, NamespaceQuery, Reply, Request, Survived};
use glint_proto::oss::OssRequest;
use glint_proto::{
    Answer, Arrival, Bulk, Capability, ClientId, Cred, Errno, FsResult, MdsReply, MdsRequest,
    MetadataService, Op, OstReply, OstRequest, Owner, Reclaim, RequestId, Session, Timestamp,
};
use std::rc::Rc;
use std::sync::Arc;

/// Of what is reclaimed in one request, so much keeps others waiting at a time.
const RECLAIMS_AT_ONCE: usize = 64;

/// A request for data, and what allows it.
#[derive(Clone, Copy)]
pub(super) struct DataRequest {
    pub(super) to: Destination,
    pub(super) request: OstRequest,
    pub(super) capability: Option<Capability>,
    pub(super) forward: Option<Forward>,
}

/// A request that was received: from where, what its header says, and when.
pub(super) struct Received<'a, S: Service> {
    pub(super) connection: &'a Rc<ServedConnection<S>>,
    header: &'a Header,
    now: Timestamp,
}

impl<S: Service> Received<'_, S> {
    /// The session in which it was sent, which is not over.
    pub(super) fn session(&self) -> Result<&Arc<Session>, NetError> {
        match self.connection.session.get() {
            Some(session) if session.client() != self.header.client => {
                Err(refused("another client's request"))
            }
            Some(session) if session.is_over() => Err(refused(EVICTED)),
            Some(session) => Ok(session),
            None => Err(refused("a request before hello")),
        }
    }

    fn id(&self) -> RequestId {
        let Header { client, slot, xid, .. } = *self.header;
        RequestId { client, slot, xid }
    }
}

impl<S: Service> Worker<S> {
    /// Executes one request and queues its reply.
    pub(crate) async fn execute(
        self: &Rc<Self>,
        job: Job<S>,
        now: Timestamp,
    ) -> Result<(), NetError> {
        let Job { connection, pass, frame, .. } = job;
        let header = &frame.header;
        let request: Request<'_> = glint_proto::message::decode(pass.body(&frame))
            .map_err(|_| FrameError::Body(header.op.name()))?;
        // The request was queued as the operation that its header says.
        if request.op() != header.op {
            return Err(FrameError::Body(header.op.name()).into());
        }
        if let Some(spare) = &self.spare {
            spare.permits(&*self.service, &connection.peer, header.client, &request).await;
        }
        check_slot(header, &request)?;
        let received = Received { connection: &connection, header, now };
        // The head of a chain is told at once, and goes on with the other members.
        let is_forward = matches!(request, Request::Ost { forward: Some(_), .. });
        let mut bulk = PooledBuffer::default();
        let reply = match request {
            Request::Status => Reply::Json(connection.status()),
            Request::Stats => Reply::Json(stats::as_json("server")),
            Request::ResetStats => reset_stats(&connection),
            Request::Scrub { begins } => self.scrub(&connection, begins),
            Request::Heal { paused } => self.pause_heal(&connection, paused).await,
            Request::GiveUpOst(request) => {
                self.order(&connection, self.service.give_up_ost(request)).await
            }
            Request::DrainOst(request) => {
                self.order(&connection, self.service.drain_ost(request)).await
            }
            Request::BalanceTurn(request) => {
                self.order(&connection, self.service.balance_turn(request)).await
            }
            Request::Check(query) => self.check_namespace(&connection, query).await,
            Request::Hello(hello) => self.greet(&received, hello).await?,
            Request::Osses => {
                received.session()?;
                Reply::Osses(self.service.welcome().osses)
            }
            Request::Oss(request) => self.execute_oss(&connection, request).await?,
            Request::Ping { commit, hurry } => self.ping(&received, commit, hurry).await?,
            Request::Bye => {
                self.service.goodbye(received.session()?).await;
                self.pong()
            }
            Request::Recovered => {
                let session = received.session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                self.service.end_recovery(session);
                self.pong()
            }
            Request::Return(returns) => {
                let session = received.session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                self.service.return_locks(session, &returns);
                self.pong()
            }
            Request::Listen => self.listen(&received)?,
            Request::Mds { cred, request } if request.is_patient() => {
                match received.session()?.wait() {
                    Err(errno) => metadata_failed(errno),
                    Ok(_waiting) => {
                        let done = self.metadata(&received, cred, request, None, None);
                        connection.while_it_lasts(done).await.ok_or(NetError::Closed)??
                    }
                }
            }
            Request::Mds { cred, request } => {
                self.metadata(&received, cred, request, None, None).await?
            }
            Request::Reclaim(items) => self.reclaim(&received, items).await?,
            Request::Replay { cred, request, reply, capability } => {
                self.metadata(&received, cred, request, Some(reply), capability).await?
            }
            Request::Chains => {
                received.session()?;
                Reply::Chains(self.service.chains())
            }
            Request::Peer(request) => {
                let session = received.session()?;
                let _running = session.enter().map_err(|_| refused(EVICTED))?;
                Reply::Peer(match connection.peer.may_be_oss() {
                    true => self.service.execute_peer(request).await,
                    false => Err(Errno::EACCES),
                })
            }
            Request::Ost { to, request, capability, forward } => {
                let written = pass.bulk(&frame);
                let asked = DataRequest { to, request, capability, forward };
                self.data(&received, asked, written, &mut bulk).await?
            }
            Request::ReadObjects(reads) => self.read_objects(&received, &reads, &mut bulk).await?,
        };
        if !is_forward && failed_with_disk(&reply) && self.service.has_failed() {
            Box::pin(self.until_it_goes_on(&connection)).await?;
        }
        let committed = match reply {
            Reply::Mds { .. } => self.service.last_committed().mds,
            Reply::Ost { .. } => self.service.last_committed().ost,
            _ => 0,
        };
        self.reply(&connection, header, committed, &reply, bulk)
    }

    /// Begins the session of a connection: its client says who it is.
    async fn greet(&self, received: &Received<'_, S>, mut hello: Hello) -> Result<Reply, NetError> {
        let (connection, client) = (received.connection, received.header.client);
        let rights = connection.rights();
        if connection.session.get().is_some() {
            return Err(refused("hello was said before"));
        }
        hello.check().map_err(not_admitted)?;
        let mut welcome = self.service.welcome();
        // Before it is known to anybody: who is refused is not waited for later.
        if let Some(path) = rights.and_then(|rights| rights.subtree.as_deref()) {
            let found = self.service.metadata().resolve(path).await;
            let absent = |errno| NetError::Refused(format!("its subtree {path}: {errno}"));
            welcome.root = found.map_err(absent)?;
            connection.top.set(Some(welcome.root));
        }
        if client == ClientId::IN_PROCESS {
            return Err(refused("this is nobody's id"));
        }
        connection.admit_peer()?;
        let certificate = connection.peer.certificate;
        let owner = Owner { certificate, secret: hello.secret };
        let connected = self.service.connect(client, &hello, owner).await;
        let (is_new, session) = connected.map_err(not_admitted)?;
        welcome.session = session.number();
        // Of two hellos at the same time one is too many.
        if let Err(session) = connection.session.set(session) {
            self.service.disconnect(&session);
            return Err(refused("hello was said before"));
        }
        welcome.capabilities = rights.is_some();
        let survived = self.service.survival(hello.boot_verifier);
        welcome.evicted = hello.known && (is_new || survived.is_none());
        welcome.survived = survived.unwrap_or(Survived::ALL);
        Ok(Reply::Welcome(welcome))
    }

    /// Has data compared with its checksums or ends that, for who may do everything.
    fn scrub(&self, connection: &ServedConnection<S>, begins: bool) -> Reply {
        if connection.rights().is_some() {
            return Reply::Failed(Errno::EACCES);
        }
        self.service.scrub(begins);
        Reply::Json("[]".into())
    }

    /// Has heal rest or go on, for who may do everything.
    async fn pause_heal(&self, connection: &ServedConnection<S>, paused: bool) -> Reply {
        if connection.rights().is_some() {
            return Reply::Failed(Errno::EACCES);
        }
        match self.service.pause_heal(paused).await {
            Ok(()) => Reply::Json("[]".into()),
            Err(errno) => Reply::Refused(format!("{errno}; ask the server with the MDS")),
        }
    }

    /// Carries out an order about an OST, for who may do everything.
    async fn order(
        &self,
        connection: &ServedConnection<S>,
        carried_out: impl Future<Output = Result<String, String>>,
    ) -> Reply {
        if connection.rights().is_some() {
            return Reply::Failed(Errno::EACCES);
        }
        match carried_out.await {
            Ok(text) => Reply::Json(text),
            Err(reason) => Reply::Refused(reason),
        }
    }

    /// Reads a part of the namespace, for who may do everything.
    async fn check_namespace(
        &self,
        connection: &ServedConnection<S>,
        query: NamespaceQuery,
    ) -> Reply {
        if connection.rights().is_some() {
            return Reply::Failed(Errno::EACCES);
        }
        match self.service.check_namespace(query).await {
            Ok(page) => Reply::Checked(page),
            Err(reason) => Reply::Refused(reason),
        }
    }

    /// Answers another server, if the certificate says that it may be one.
    async fn execute_oss(
        &self,
        connection: &ServedConnection<S>,
        request: OssRequest,
    ) -> Result<Reply, NetError> {
        if !connection.peer.may_be_oss() {
            return Ok(Reply::Oss(Err(Errno::EACCES)));
        }
        connection.admit_peer()?;
        Ok(Reply::Oss(self.service.execute_oss(connection.peer.name.as_deref(), request).await))
    }

    /// Has a connection carry recalls from now on.
    fn listen(self: &Rc<Self>, received: &Received<'_, S>) -> Result<Reply, NetError> {
        let session = received.session()?;
        let _running = session.enter().map_err(|_| refused(EVICTED))?;
        let listening = self.service.listen(session);
        let (connection, session) = (received.connection.clone(), session.clone());
        host::spawn(self.clone().send_recalls(connection, session, listening));
        Ok(Reply::Recalls(Vec::new()))
    }

    /// Executes a metadata request, or says again what was answered (`replay`) before a restart.
    async fn metadata(
        &self,
        received: &Received<'_, S>,
        cred: Cred,
        request: MdsRequest<'_>,
        replay: Option<MdsReply>,
        capability: Option<Capability>,
    ) -> Result<Reply, NetError> {
        let session = &**received.session()?;
        let (id, digest) = (Some(received.id()), received.header.body_crc);
        let arrival = Arrival { session: Some(session), id, digest, now: received.now, replay };
        let (connection, replay) = (received.connection, arrival.replay.as_ref());
        let admitted = self.admit(connection, session, cred, request, replay, capability).await;
        let (cred, request) = match admitted {
            Ok((cred, Execute(request))) => (cred, request),
            Ok((_, Admission::Answer(reply))) => return Ok(metadata_unexecuted(Ok(reply))),
            Err(errno) => return Ok(metadata_failed(errno)),
        };
        let Answer { transaction, mut reply, mut grants } =
            self.service.metadata().handle(&arrival, &cred, &request).await;
        if let (Some(rights), Ok(reply)) = (connection.rights(), &mut reply) {
            rights.reply(reply);
            if let Some(key) = self.service.capability_key() {
                grants.extend(key.grants(session.number(), &request, reply));
            }
        }
        Ok(Reply::Mds { transaction, reply, grants })
    }

    /// Takes what a client had before a restart, each item as if it had come alone.
    async fn reclaim(
        &self,
        received: &Received<'_, S>,
        items: Vec<Reclaim>,
    ) -> Result<Reply, NetError> {
        if items.len() > RECLAIMS_MAX {
            return Err(refused("too much is reclaimed at once"));
        }
        let mut replies = Vec::with_capacity(items.len());
        for item in items {
            let reply = self.metadata(received, Cred::ROOT, item.request(), None, None).await?;
            replies.push(match reply {
                Reply::Mds { reply, .. } => reply,
                _ => Err(Errno::EPROTO),
            });
            if replies.len() % RECLAIMS_AT_ONCE == 0 {
                futures_lite::future::yield_now().await;
            }
        }
        Ok(Reply::Reclaimed(replies))
    }

    /// Executes a data request, a change of it once. `written` came with it, `bulk` is what is
    /// read.
    async fn data(
        &self,
        received: &Received<'_, S>,
        asked: DataRequest,
        written: &[u8],
        bulk: &mut PooledBuffer,
    ) -> Result<Reply, NetError> {
        let (session, header) = (received.session()?, received.header);
        let digest = (header.body_crc, header.bulk_crc);
        let DataRequest { to, request, .. } = asked;
        let change = self.ost(session, asked, written, bulk);
        let Answer { transaction, reply, .. } =
            match self.admit_ost(received.connection, session, &asked) {
                Err(errno) => Answer::unchanged(Err(errno)),
                Ok(()) if request.is_modifying() => {
                    self.reply_cache.run(session, received.id(), digest, change).await
                }
                Ok(()) => change.await,
            };
        if reply == Err(Errno::EREMCHG)
            && let Some(chain) = to.chain
            && let Some(row) = self.service.chain(chain.target)
        {
            return Ok(Reply::ChainMoved(row));
        }
        Ok(Reply::Ost { transaction, reply })
    }

    /// Decides what is executed for a request of a client, and with which credentials; an error if
    /// the client has no right to it.
    async fn admit<'a>(
        &self,
        connection: &ServedConnection<S>,
        session: &Session,
        cred: Cred,
        request: MdsRequest<'a>,
        replay: Option<&MdsReply>,
        capability: Option<Capability>,
    ) -> FsResult<(Cred, Admission<'a>)> {
        let Some(rights) = connection.rights() else { return Ok((cred, Execute(request))) };
        let made = replay.and_then(|reply| capability::made(&request, reply));
        let made = made.map(|ino| (ino, capability));
        self.key()?.admit_mds(session.number(), &request, made)?;
        let (request, top) = (rights.mds(request)?, connection.top.get());
        let admission = subtree::admit(self.service.metadata(), top, request).await?;
        Ok((rights.cred(cred), admission))
    }

    pub(super) fn admit_ost(
        &self,
        connection: &ServedConnection<S>,
        session: &Session,
        asked: &DataRequest,
    ) -> FsResult<()> {
        asked.request.check().and(check_target(asked.to, &asked.request))?;
        if asked.forward.is_some() {
            // The head has asked the client for what allows it.
            let is_good = connection.peer.may_be_oss() && asked.to.chain.is_some();
            return is_good.then_some(()).ok_or(Errno::EACCES);
        }
        let Some(rights) = connection.rights() else { return Ok(()) };
        rights.ost(&asked.request)?;
        self.key()?.admit_ost(session.number(), &asked.request, asked.capability)
    }

    fn key(&self) -> FsResult<&capability::Key> {
        self.service.capability_key().ok_or(Errno::EAGAIN)
    }

    /// Sends recalls on a connection, until the connection or its session is gone.
    async fn send_recalls(
        self: Rc<Self>,
        connection: Rc<ServedConnection<S>>,
        session: Arc<Session>,
        listening: u64,
    ) {
        while let Some(recalls) = self.service.recalls(&session, listening).await {
            let envelope = Envelope {
                reply: true,
                boot_verifier: self.boot_verifier,
                ..Envelope::request(Op::Recall, session.client())
            };
            let reply = Reply::Recalls(recalls);
            let queued = append_frame(&mut connection.writer.queue(), envelope, &reply, &[]);
            if queued.is_err() || connection.writer.flush().await.is_err() {
                // It sees the end of this connection, listens anew, and all are sent again.
                connection.writer.close();
                return;
            }
        }
    }

    async fn ost(
        &self,
        session: &Session,
        DataRequest { to, request, forward, .. }: DataRequest,
        received: &[u8],
        bulk: &mut PooledBuffer,
    ) -> Answer<OstReply> {
        let space = match request {
            _ if request.is_write() => Bulk::Out(received),
            OstRequest::Read { len, .. } => {
                if len as usize > BULK_BYTES_MAX {
                    return Answer::unchanged(Err(Errno::EINVAL));
                }
                *bulk = self.buffers.dirty(len as usize);
                Bulk::Lent(bulk.data_mut())
            }
            _ => Bulk::None,
        };
        let answer = match forward {
            None => self.service.execute_data(session, to, request, space).await,
            Some(forward) => {
                self.service.execute_forward(session, to, forward, request, space).await
            }
        };
        keep_read(bulk, &answer.reply);
        answer
    }
}

/// Starts the statistics of this process again, for who may do everything.
fn reset_stats<S: Service>(connection: &ServedConnection<S>) -> Reply {
    if connection.rights().is_some() {
        return Reply::Failed(Errno::EACCES);
    }
    glint_telemetry::reset();
    Reply::Json("[]".into())
}
