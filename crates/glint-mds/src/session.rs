//! Sessions and exactly-once.
//!
//! Invariant: a request is identified by (client, slot, xid). Within a slot xids
//! rise, and a request is executed only if its xid is above the last one answered. Another
//! request under the same xid is refused.
//! The reply of an operation that changed anything is in the batch of the change,
//! so the two survive or vanish together.

use crate::error::errno;
use crate::keys;
use crate::reaper::Targets;
use crate::service::Mds;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{ClientId, Errno, FsResult, MdsReply, RequestId, clock, message};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The last answer of a slot.
#[derive(Clone, Default)]
pub(crate) struct Last {
    pub(crate) xid: u64,
    /// Of the request.
    pub(crate) digest: u32,
    pub(crate) reply: Option<FsResult<MdsReply>>,
    /// What has to be durable for it to last.
    pub(crate) transaction: u64,
    /// Read from its record, so this run of the server has not seen its effects on
    /// what is kept in memory.
    pub(crate) recovered: bool,
}

pub(crate) type SlotState = Arc<futures_util::lock::Mutex<Last>>;

/// A client, as `glint status` shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Identity.
    pub client: ClientId,
    /// Names the time until it ends or is evicted: no two sessions have the same number.
    pub session: u64,
    /// Name of its host.
    pub host: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Open connections.
    pub connections: usize,
}

struct Session {
    info: SessionInfo,
    /// When it was last heard of; the lease runs from here.
    heard: Instant,
    slots: HashMap<u16, SlotState>,
}

/// All sessions of one MDS.
#[derive(Default)]
pub(crate) struct Sessions {
    map: Mutex<HashMap<ClientId, Session>>,
    /// How many there have been in this run.
    count: AtomicU64,
}

/// The value of a reply record: xid, digest of the request, encoded reply.
pub(crate) fn encode_reply(xid: u64, digest: u32, reply: &MdsReply) -> FsResult<Vec<u8>> {
    let mut value = Vec::with_capacity(128);
    value.extend_from_slice(&xid.to_be_bytes());
    value.extend_from_slice(&digest.to_be_bytes());
    message::encode(reply, &mut value)?;
    Ok(value)
}

pub(crate) fn decode_reply(value: &[u8]) -> FsResult<Last> {
    let (xid, rest) = value.split_first_chunk::<8>().ok_or(Errno::EIO)?;
    let (digest, reply) = rest.split_first_chunk::<4>().ok_or(Errno::EIO)?;
    Ok(Last {
        xid: u64::from_be_bytes(*xid),
        digest: u32::from_be_bytes(*digest),
        reply: Some(Ok(message::decode(reply)?)),
        transaction: 0,
        recovered: true,
    })
}

/// The value of a session record: host, mount point, number, with zeros between.
fn session_value(info: &SessionInfo) -> Vec<u8> {
    format!("{}\0{}\0{:x}", info.host, info.mount_point, info.session).into_bytes()
}

fn parse_session(client: ClientId, value: &[u8]) -> SessionInfo {
    let text = String::from_utf8_lossy(value);
    let mut parts = text.split('\0');
    let mut next = || parts.next().unwrap_or_default();
    let (host, mount_point) = (next().to_owned(), next().to_owned());
    // One from before sessions had numbers has none at an OSS either.
    let session = u64::from_str_radix(next(), 16).unwrap_or(0);
    SessionInfo { client, session, host, mount_point, connections: 0 }
}

impl<K: Kv> Mds<K> {
    /// A client connects, for the first time or again. Returns whether it was not known, and
    /// the number of its session.
    pub async fn connect(
        &self,
        client: ClientId,
        host: &str,
        mount_point: &str,
    ) -> FsResult<(bool, u64)> {
        let (is_new, info, clients) = {
            let mut map = self.sessions.map.lock();
            let is_new = !map.contains_key(&client);
            let session = map.entry(client).or_insert_with(|| {
                let number = self.sessions.count.fetch_add(1, Ordering::AcqRel) + 1;
                let session = self.config.boot_verifier.wrapping_add(number);
                let (host, mount_point) = (String::new(), String::new());
                Session::new(SessionInfo { client, session, host, mount_point, connections: 0 })
            });
            session.info.host = host.to_owned();
            session.info.mount_point = mount_point.to_owned();
            session.info.connections += 1;
            session.heard = clock::now();
            (is_new, session.info.clone(), map.len())
        };
        if is_new {
            let mut batch = Batch::new();
            batch.put(Keyspace::Session, &client.0.to_be_bytes(), &session_value(&info));
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        // The client that shares this process is never in the map.
        if (clients > 1 || self.config.mounted) && self.sharing.enable() {
            self.sync().await?;
        }
        Ok((is_new, info.session))
    }

    /// Whether there is a session of this number.
    pub fn has_session(&self, session: u64) -> bool {
        let map = self.sessions.map.lock();
        session != 0 && map.values().any(|known| known.info.session == session)
    }

    /// A connection of a client is gone.
    pub fn disconnect(&self, client: ClientId) {
        if let Some(session) = self.sessions.map.lock().get_mut(&client) {
            session.info.connections = session.info.connections.saturating_sub(1);
        }
    }

    /// A client says that it lives.
    pub fn heard(&self, client: ClientId) {
        if let Some(session) = self.sessions.map.lock().get_mut(&client) {
            session.heard = clock::now();
        }
    }

    /// Whether a client is known.
    pub fn knows(&self, client: ClientId) -> bool {
        self.sessions.map.lock().contains_key(&client)
    }

    /// A client ends by itself.
    pub async fn goodbye(&self, client: ClientId) -> FsResult<()> {
        self.recovery.returned(client);
        self.forget_session(client);
        self.evict(client).await
    }

    /// All clients.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.map.lock().values().map(|session| session.info.clone()).collect()
    }

    pub(crate) fn session(&self, client: ClientId) -> Option<SessionInfo> {
        self.sessions.map.lock().get(&client).map(|session| session.info.clone())
    }

    /// State of a slot, read from its record if this server has not seen it yet.
    pub(crate) async fn slot(&self, id: RequestId) -> FsResult<SlotState> {
        let known = |sessions: &Sessions| {
            let map = sessions.map.lock();
            map.get(&id.client).and_then(|session| session.slots.get(&id.slot).cloned())
        };
        if let Some(state) = known(&self.sessions) {
            return Ok(state);
        }
        let key = keys::reply(id.client.0, id.slot);
        let answer = match self.kv.get(Keyspace::Reply, &key).await.map_err(errno)? {
            // Its transaction is not known, but it was before the end of the last run.
            Some(value) => Last { transaction: self.recovered, ..decode_reply(value.as_ref())? },
            None => Last::default(),
        };
        let mut map = self.sessions.map.lock();
        let session = map.get_mut(&id.client).ok_or(Errno::ESTALE)?;
        Ok(session.slots.entry(id.slot).or_insert_with(|| Arc::new(answer.into())).clone())
    }

    /// After a restart: clients of the last run may come back within their lease.
    pub(crate) async fn load_sessions(&self) -> FsResult<HashSet<ClientId>> {
        let all = self.kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX);
        let all = all.await.map_err(errno)?;
        let mut map = self.sessions.map.lock();
        for (key, value) in all {
            let client = ClientId(keys::parse_u64(&key).ok_or(Errno::EIO)?);
            map.insert(client, Session::new(parse_session(client, &value)));
        }
        Ok(map.keys().copied().collect())
    }

    /// Forgets clients whose lease ended: their opens and their replies.
    pub(crate) async fn expire_sessions(
        &self,
        lease: Duration,
        targets: &impl Targets,
    ) -> FsResult<()> {
        let expired: Vec<SessionInfo> = {
            let map = self.sessions.map.lock();
            let gone = map.values().filter(|session| clock::since(session.heard) > lease);
            let mut gone: Vec<SessionInfo> = gone.map(|session| session.info.clone()).collect();
            gone.sort_unstable_by_key(|info| info.client);
            gone
        };
        for info in expired {
            tracing::warn!(
                client = %info.client, host = info.host, mount_point = info.mount_point,
                "client was not heard of for {} s and is evicted: its open files are closed",
                lease.as_secs()
            );
            self.fence_and_evict(info.client, targets).await?;
        }
        Ok(())
    }

    /// Forgets clients that were asked for a lock and have not given it up in their lease.
    pub(crate) async fn expire_questions(
        &self,
        lease: Duration,
        targets: &impl Targets,
    ) -> FsResult<()> {
        for client in self.claims.mailboxes.overdue(lease) {
            tracing::warn!(
                %client,
                "client was asked for a lock and has not given it up in {} s: it is evicted",
                lease.as_secs()
            );
            self.fence_and_evict(client, targets).await?;
        }
        Ok(())
    }

    /// Nothing of this client is taken any more. Returns the number of its session.
    fn forget_session(&self, client: ClientId) -> Option<u64> {
        self.sessions.map.lock().remove(&client).map(|session| session.info.session)
    }

    /// Forgets a client that may still be writing somewhere. What it has locked is free only
    /// when it cannot any more.
    pub(crate) async fn fence_and_evict(
        &self,
        client: ClientId,
        targets: &impl Targets,
    ) -> FsResult<()> {
        if let Some(session) = self.forget_session(client) {
            targets.fence(session).await;
        }
        self.evict(client).await
    }

    /// Forgets a client: its opens and its replies.
    async fn evict(&self, client: ClientId) -> FsResult<()> {
        self.claims.evict(client);
        self.advisory.evict(client);
        self.opens.forget_client(client);
        // Some may have had no name any more.
        self.orphans.fetch_add(1, Ordering::AcqRel);
        let mut batch = Batch::new();
        batch.delete(Keyspace::Session, &client.0.to_be_bytes());
        let (from, to) = (keys::reply(client.0, 0), keys::reply(client.0, u16::MAX));
        let replies = self.kv.scan(Keyspace::Reply, &from, &to, usize::MAX);
        for (key, _) in replies.await.map_err(errno)? {
            batch.delete(Keyspace::Reply, &key);
        }
        self.kv.commit(batch, &[]).await.map_err(errno).map(drop)
    }
}

impl Session {
    fn new(info: SessionInfo) -> Session {
        Session { info, heard: clock::now(), slots: HashMap::new() }
    }
}
