//! The service loop: a thread per core accepts connections and handles their
//! requests where they were received.
//!
//! A pass handles everything that one read brought; a request that has to wait is
//! parked as a task; the replies of a pass leave in one write.

use crate::connection::{Envelope, Frame, FrameReader, FrameWriter, Pass, append_frame};
use crate::stream::{Listener, Stream};
use crate::{NetError, Service, keep_awake, stats};
use glint_proto::frame::FrameError;
use glint_proto::limits::{CONNECTIONS_PER_CLIENT_MAX, SLOTS_PER_CONNECTION};
use glint_proto::message::{Reply, Request};
use glint_proto::{Bulk, ClientId, FsResult, OstReply, OstRequest, RequestId};
use glint_telemetry::{Counter, traced};
use parking_lot::Mutex;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;

/// Slots of a client, over all its connections.
const SLOTS_MAX: u16 = SLOTS_PER_CONNECTION * CONNECTIONS_PER_CLIENT_MAX;

/// Ends the threads of a server.
#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Stop {
    fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        for waker in self.wakers.lock().drain(..) {
            waker.wake();
        }
    }

    async fn asked(&self) {
        poll_fn(|context| {
            let mut wakers = self.wakers.lock();
            if self.asked.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            wakers.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Serves a [`Service`] at an address.
pub struct Server;

/// A server that runs.
pub struct ServerHandle {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    socket_file: Option<PathBuf>,
}

impl Server {
    /// Serves on `listener`, with a thread for each core.
    pub fn start<S: Service>(listener: Listener, service: Arc<S>) -> io::Result<ServerHandle> {
        let stop = Arc::new(Stop::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut threads = Vec::new();
        for core in 0..cores {
            let (listener, service, stop) = (listener.try_clone()?, service.clone(), stop.clone());
            let thread =
                std::thread::Builder::new().name(format!("serve-{core}")).spawn(move || {
                    if let Err(error) = run(listener, service, &stop) {
                        tracing::error!(%error, "service thread ended");
                    }
                })?;
            threads.push(thread);
        }
        Ok(ServerHandle { stop, threads, socket_file: listener.socket_file() })
    }
}

impl ServerHandle {
    /// Closes all connections and ends the threads.
    pub fn stop(self) {
        self.stop.ask();
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a service thread panicked");
            }
        }
        if let Some(path) = self.socket_file {
            // One that is left over is taken over by the next server.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn run<S: Service>(listener: Listener, service: Arc<S>, stop: &Stop) -> io::Result<()> {
    let runtime = compio_runtime::Runtime::new()?;
    runtime.block_on(async {
        let listener = listener.accept_here()?;
        let accept = async {
            loop {
                match listener.accept().await {
                    Ok((stream, peer)) => {
                        let service = service.clone();
                        compio_runtime::spawn(async move {
                            if let Err(error) = serve(stream, service).await {
                                tracing::warn!(peer, "connection closed: {error}");
                            }
                        })
                        .detach();
                    }
                    Err(error) => {
                        // Out of descriptors, most likely: others may end meanwhile.
                        tracing::error!(%error, "accepting a connection");
                        compio_runtime::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                }
            }
        };
        futures_util::future::select(Box::pin(accept), Box::pin(stop.asked())).await;
        Ok(())
    })
}

/// One connection.
struct Connection<S: Service> {
    service: Arc<S>,
    writer: FrameWriter,
    /// Who is at the other end, once it has said so.
    client: Cell<Option<ClientId>>,
    boot_verifier: u64,
}

impl<S: Service> Drop for Connection<S> {
    fn drop(&mut self) {
        if let Some(client) = self.client.get() {
            self.service.disconnect(client);
        }
    }
}

async fn serve<S: Service>(stream: Stream, service: Arc<S>) -> Result<(), NetError> {
    let boot_verifier = service.welcome().boot_verifier;
    let mut reader = FrameReader::new(stream.clone());
    let connection = Rc::new(Connection {
        service,
        writer: FrameWriter::new(stream),
        client: Cell::new(None),
        boot_verifier,
    });
    loop {
        let (pass, frames) = match reader.next_pass().await {
            Ok(pass) => pass,
            Err(NetError::Closed) => return Ok(()),
            Err(error) => {
                connection.refuse(&error).await;
                return Err(error);
            }
        };
        keep_awake::beat_here();
        glint_telemetry::count(Counter::Passes, 1);
        glint_telemetry::count(Counter::Requests, frames.len() as u64);
        for frame in frames {
            let mut answer = Box::pin(traced(connection.clone().answer(pass.clone(), frame)));
            match futures_util::poll!(answer.as_mut()) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    connection.refuse(&error).await;
                    return Err(error);
                }
                Poll::Pending => {
                    let connection = connection.clone();
                    compio_runtime::spawn(async move {
                        match answer.await {
                            Ok(()) => drop(connection.writer.flush().await),
                            Err(error) => tracing::warn!(%error, "request refused"),
                        }
                    })
                    .detach();
                }
            }
        }
        connection.writer.flush().await?;
    }
}

impl<S: Service> Connection<S> {
    /// Tells the peer why, before the connection is closed.
    async fn refuse(&self, error: &NetError) {
        let reason = match error {
            NetError::Refused(reason) => reason.clone(),
            other => other.to_string(),
        };
        let envelope = Envelope {
            op: glint_proto::Op::Other,
            reply: true,
            client: ClientId(0),
            slot: u16::MAX,
            xid: 0,
            boot_verifier: self.boot_verifier,
            committed: 0,
        };
        let reply = Reply::Refused(reason);
        let queued = append_frame(&mut self.writer.queue(), envelope, &reply, &[]);
        if queued.is_ok() {
            // The peer may be gone; there is nobody else to tell.
            let _ = self.writer.flush().await;
        }
    }

    /// Executes one request and queues its reply.
    async fn answer(self: Rc<Self>, pass: Rc<Pass>, frame: Frame) -> Result<(), NetError> {
        let header = frame.header;
        let request: Request<'_> = glint_proto::message::decode(pass.body(&frame))
            .map_err(|_| FrameError::Body(header.op.name()))?;
        let mut bulk = Vec::new();
        let reply = match request {
            Request::Status => Reply::Json(self.service.status()),
            Request::Stats => Reply::Json(stats::as_json("server")),
            Request::ResetStats => {
                glint_telemetry::reset();
                Reply::Json("[]".into())
            }
            Request::Hello(hello) => {
                match self.service.connect(header.client, &hello).await {
                    Ok(()) => self.client.set(Some(header.client)),
                    Err(errno) => return Err(NetError::Refused(errno.to_string())),
                }
                Reply::Welcome(self.service.welcome())
            }
            _ if self.client.get() != Some(header.client) => {
                return Err(NetError::Refused("a request before hello".into()));
            }
            // A client's replies are remembered for each of its slots. Before it has any,
            // it uses the highest number.
            _ if header.slot >= SLOTS_MAX && header.slot != u16::MAX => {
                let reason = format!("slot {}: a client has {SLOTS_MAX}", header.slot);
                return Err(NetError::Refused(reason));
            }
            Request::Mds { cred, request } => {
                let id = RequestId { client: header.client, slot: header.slot, xid: header.xid };
                Reply::Mds(self.service.mds(&cred, Some(id), &request).await)
            }
            Request::Ost { ost, request } => {
                let received = pass.bulk(&frame);
                Reply::Ost(self.ost(ost, request, received, &mut bulk).await)
            }
        };
        let envelope = Envelope {
            op: header.op,
            reply: true,
            client: header.client,
            slot: header.slot,
            xid: header.xid,
            boot_verifier: self.boot_verifier,
            committed: self.service.committed(),
        };
        append_frame(&mut self.writer.queue(), envelope, &reply, &bulk)
            .map_err(|_| FrameError::Body(header.op.name()).into())
    }

    async fn ost(
        &self,
        ost: u16,
        request: OstRequest,
        received: &[u8],
        bulk: &mut Vec<u8>,
    ) -> FsResult<OstReply> {
        let space = match request {
            OstRequest::Write { .. } => Bulk::Out(received),
            OstRequest::Read { len, .. } => {
                if len as usize > glint_proto::limits::BULK_BYTES_MAX {
                    return Err(glint_proto::Errno::EINVAL);
                }
                bulk.resize(len as usize, 0);
                Bulk::In(bulk)
            }
            _ => Bulk::None,
        };
        let reply = self.service.ost(ost, request, space).await;
        match reply {
            Ok(OstReply::Data(len)) => bulk.truncate(len as usize),
            _ => bulk.clear(),
        }
        reply
    }
}
