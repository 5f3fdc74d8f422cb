//! Sessions and exactly-once.
//!
//! Invariant: a request is identified by (client, slot, xid). Within a slot xids
//! rise, and a request is executed only if its xid is above the last one answered.
//! The reply of an operation that changed anything is in the batch of the change,
//! so the two survive or vanish together.

use crate::error::errno;
use crate::keys;
use crate::service::Mds;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::{ClientId, Errno, FsResult, MdsReply, RequestId, message};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The last answer of a slot.
#[derive(Clone, Default)]
pub(crate) struct Answer {
    pub(crate) xid: u64,
    pub(crate) reply: Option<FsResult<MdsReply>>,
    /// Read from its record, so this run of the server has not seen its effects on
    /// what is kept in memory.
    pub(crate) recovered: bool,
}

pub(crate) type SlotState = Arc<futures_util::lock::Mutex<Answer>>;

/// A client, as `glint status` shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Identity.
    pub client: ClientId,
    /// Name of its host.
    pub host: String,
    /// Where it is mounted.
    pub mount_point: String,
    /// Open connections.
    pub connections: usize,
}

struct Session {
    info: SessionInfo,
    /// When the last connection went; the lease runs from here.
    since: Instant,
    slots: HashMap<u16, SlotState>,
}

/// All sessions of one MDS.
#[derive(Default)]
pub(crate) struct Sessions {
    map: Mutex<HashMap<ClientId, Session>>,
}

/// The value of a reply record: xid, then the encoded reply.
pub(crate) fn encode_reply(xid: u64, reply: &MdsReply) -> FsResult<Vec<u8>> {
    let mut value = xid.to_be_bytes().to_vec();
    message::encode(reply, &mut value)?;
    Ok(value)
}

pub(crate) fn decode_reply(value: &[u8]) -> FsResult<Answer> {
    let (xid, reply) = value.split_first_chunk::<8>().ok_or(Errno::EIO)?;
    Ok(Answer {
        xid: u64::from_be_bytes(*xid),
        reply: Some(Ok(message::decode(reply)?)),
        recovered: true,
    })
}

impl<K: Kv> Mds<K> {
    /// A client connects, for the first time or again.
    pub async fn connect(&self, client: ClientId, host: &str, mount_point: &str) -> FsResult<()> {
        let is_new = {
            let mut map = self.sessions.map.lock();
            let is_new = !map.contains_key(&client);
            let session = map.entry(client).or_insert_with(|| Session::new(client));
            session.info.host = host.to_owned();
            session.info.mount_point = mount_point.to_owned();
            session.info.connections += 1;
            is_new
        };
        if is_new {
            let mut batch = Batch::new();
            batch.put(Keyspace::Session, &client.0.to_be_bytes(), b"");
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        Ok(())
    }

    /// A connection of a client is gone. Its lease begins to run out with the last.
    pub fn disconnect(&self, client: ClientId) {
        if let Some(session) = self.sessions.map.lock().get_mut(&client) {
            session.info.connections = session.info.connections.saturating_sub(1);
            session.since = Instant::now();
        }
    }

    /// All clients.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.map.lock().values().map(|session| session.info.clone()).collect()
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
            Some(value) => decode_reply(value.as_ref())?,
            None => Answer::default(),
        };
        let mut map = self.sessions.map.lock();
        let session = map.get_mut(&id.client).ok_or(Errno::ESTALE)?;
        Ok(session.slots.entry(id.slot).or_insert_with(|| Arc::new(answer.into())).clone())
    }

    /// After a restart: clients of the last run may come back within their lease.
    pub(crate) async fn load_sessions(&self) -> FsResult<usize> {
        let all = self.kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX);
        let all = all.await.map_err(errno)?;
        let mut map = self.sessions.map.lock();
        for (key, _) in all {
            let client = ClientId(keys::parse_u64(&key).ok_or(Errno::EIO)?);
            map.insert(client, Session::new(client));
        }
        Ok(map.len())
    }

    /// Forgets clients whose lease ended: their opens and their replies.
    pub(crate) async fn expire_sessions(&self, lease: Duration) -> FsResult<()> {
        let expired: Vec<SessionInfo> = {
            let mut map = self.sessions.map.lock();
            let gone = |s: &Session| s.info.connections == 0 && s.since.elapsed() > lease;
            let expired = map.values().filter(|s| gone(s)).map(|s| s.info.clone()).collect();
            map.retain(|_, session| !gone(session));
            expired
        };
        for info in expired {
            let opens = self.opens.forget_client(info.client);
            // Some may have had no name any more.
            self.orphans.fetch_add(1, Ordering::AcqRel);
            tracing::warn!(
                client = %info.client, host = info.host, opens,
                "client was not heard of for {} s; its open files are closed", lease.as_secs()
            );
            let mut batch = Batch::new();
            batch.delete(Keyspace::Session, &info.client.0.to_be_bytes());
            let (from, to) = (keys::reply(info.client.0, 0), keys::reply(info.client.0, u16::MAX));
            let replies = self.kv.scan(Keyspace::Reply, &from, &to, usize::MAX);
            for (key, _) in replies.await.map_err(errno)? {
                batch.delete(Keyspace::Reply, &key);
            }
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        Ok(())
    }
}

impl Session {
    fn new(client: ClientId) -> Session {
        Session {
            info: SessionInfo {
                client,
                host: String::new(),
                mount_point: String::new(),
                connections: 0,
            },
            since: Instant::now(),
            slots: HashMap::new(),
        }
    }
}
