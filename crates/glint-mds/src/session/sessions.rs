//! Sessions and exactly-once.
//!
//! Invariants:
//! - A client has one session at a time: the next one begins when the last one has ended, with
//!   everything that was being executed of it and all that was kept for it.
//! - A request is identified by (client, slot, xid). Within a slot xids rise, and a request is
//!   executed only if its xid is above the last one answered. Another request under the same
//!   xid is refused.
//! - What a client that is evicted had locked is free only when nothing of it is executed anywhere,
//!   and when its end is on stable storage: a server that starts again after a loss of power takes
//!   no reclaim from it (the edge conditions of RFC 8881, 8.4.2.1).
//! - The reply of an operation that changed anything is in the batch of the change, as the client
//!   hears it, so the two survive or vanish together.

mod abandoned;

use crate::background::reaper::Targets;
use crate::error::errno;
use crate::service::Mds;
use crate::store::keys;
use glint_kv::{Batch, Keyspace, Kv};
use glint_proto::chain::SERVER_MOUNT_POINT;
use glint_proto::limits::{SESSIONS_MAX, SESSIONS_PER_CERTIFICATE_MAX};
use glint_proto::lock::Grant;
use glint_proto::watch::{Moment, Watch};
use glint_proto::{ClientId, Errno, FsResult, MdsReply, Owner, RequestId, Session, message};
use glint_telemetry::{Counter, event};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many clients a line of the log names.
const CLIENTS_NAMED: usize = 10;

/// Replies that are deleted in one batch: some 70 KiB.
const REPLIES_AT_ONCE: usize = 4096;

/// The last answer of a slot.
#[derive(Clone, Default)]
pub(crate) struct LastReply {
    pub(crate) xid: u64,
    /// Of the request.
    pub(crate) digest: u32,
    pub(crate) reply: Option<FsResult<MdsReply>>,
    /// Grants that came with the reply. When the request comes again nobody knows whether they have
    /// arrived.
    pub(crate) grants: Vec<Grant>,
    /// Transaction that has to be durable for the reply to last.
    pub(crate) transaction: u64,
    /// Read from its record, so this run of the server has not seen its effects on
    /// what is kept in memory.
    pub(crate) recovered: bool,
}

pub(crate) type SlotState = Arc<futures_util::lock::Mutex<LastReply>>;

/// A client, as `glint status` shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// Identity.
    pub client: ClientId,
    /// Names the time until it ends or is evicted: no two sessions have the same number.
    pub session: u64,
    /// Name of its host.
    pub host: String,
    /// Mount point.
    pub mount_point: String,
    /// Open connections.
    pub connections: usize,
}

impl SessionInfo {
    /// Whether it is that of a server, as a client of the others.
    pub(crate) fn is_server(&self) -> bool {
        self.mount_point.starts_with(SERVER_MOUNT_POINT)
    }

    /// Whether it is that of a command without a mount: its name is in parentheses.
    fn is_command(&self) -> bool {
        self.mount_point.starts_with('(') && !self.is_server()
    }
}

struct Known {
    session: Arc<Session>,
    info: SessionInfo,
    /// Somebody sees to its end.
    ending: bool,
    /// When it was last heard of; the lease runs from here.
    heard: Moment,
    /// When its last connection ended, if it has none.
    left: Option<Moment>,
    slots: HashMap<u16, SlotState>,
}

/// All sessions of one MDS.
pub(crate) struct Sessions {
    map: Mutex<HashMap<ClientId, Known>>,
    /// Sessions of evicted clients of which something may still be executed.
    leaving: Mutex<Vec<Arc<Session>>>,
    watch: Arc<Watch>,
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

pub(crate) fn decode_reply(value: &[u8]) -> FsResult<LastReply> {
    let (xid, rest) = value.split_first_chunk::<8>().ok_or(Errno::EIO)?;
    let (digest, reply) = rest.split_first_chunk::<4>().ok_or(Errno::EIO)?;
    Ok(LastReply {
        xid: u64::from_be_bytes(*xid),
        digest: u32::from_be_bytes(*digest),
        reply: Some(Ok(message::decode(reply)?)),
        // A run gives no locks of the one before it.
        grants: Vec::new(),
        transaction: 0,
        recovered: true,
    })
}

/// Whether one more session may begin.
fn has_room(map: &HashMap<ClientId, Known>, owner: &Owner) -> bool {
    let same = |known: &&Known| {
        let certificate = |owner: Owner| owner.certificate;
        owner.certificate.is_some()
            && known.session.owner().and_then(certificate) == owner.certificate
    };
    map.len() < SESSIONS_MAX && map.values().filter(same).count() < SESSIONS_PER_CERTIFICATE_MAX
}

/// The value of a session record: host, mount point, number, owner, with zeros between.
/// `host | 0 | mount point | 0 | number | 0 | owner`, numbers in hexadecimal.
pub(crate) fn session_value(info: &SessionInfo, owner: &Owner) -> Vec<u8> {
    format!("{}\0{}\0{:x}\0{owner}", info.host, info.mount_point, info.session).into_bytes()
}

/// Whether a session record is that of a server, as a client of the others: it makes no files.
pub(crate) fn is_of_server(value: &[u8]) -> bool {
    let mount_point = value.split(|byte| *byte == 0).nth(1);
    mount_point.is_some_and(|name| name.starts_with(SERVER_MOUNT_POINT.as_bytes()))
}

fn parse_session(client: ClientId, value: &[u8], heard: Moment) -> Known {
    let text = String::from_utf8_lossy(value);
    let mut parts = text.split('\0');
    let mut next = || parts.next().unwrap_or_default();
    let (host, mount_point) = (next().to_owned(), next().to_owned());
    // One from before sessions had numbers has none at an OSS either.
    let session = u64::from_str_radix(next(), 16).unwrap_or(0);
    // One from before they had owners nobody can prove to be.
    let owner = next().parse().ok();
    Known::new(SessionInfo { client, session, host, mount_point, connections: 0 }, owner, heard)
}

impl<K: Kv> Mds<K> {
    /// A client connects, for the first time or again. Returns whether it was not known, and
    /// its session. EACCES if that belongs to another owner, EAGAIN while its last session is
    /// being ended, EMFILE if there are too many.
    pub async fn connect(
        &self,
        client: ClientId,
        owner: Owner,
        host: &str,
        mount_point: &str,
    ) -> FsResult<(bool, Arc<Session>)> {
        let (is_new, session, info, clients) = {
            let mut map = self.sessions.map.lock();
            let is_new = !map.contains_key(&client);
            if is_new && !has_room(&map, &owner) {
                return Err(Errno::EMFILE);
            }
            let known = map.entry(client).or_insert_with(|| {
                let number = self.sessions.count.fetch_add(1, Ordering::AcqRel) + 1;
                let session = self.config.boot_verifier.wrapping_add(number);
                let (host, mount_point) = (String::new(), String::new());
                let info = SessionInfo { client, session, host, mount_point, connections: 0 };
                Known::new(info, Some(owner), self.watch.now())
            });
            if known.session.owner() != Some(owner) {
                return Err(Errno::EACCES);
            }
            if known.session.is_over() {
                return Err(Errno::EAGAIN);
            }
            host.clone_into(&mut known.info.host);
            mount_point.clone_into(&mut known.info.mount_point);
            known.info.connections += 1;
            known.left = None;
            known.heard = self.sessions.watch.now();
            (is_new, known.session.clone(), known.info.clone(), map.len())
        };
        if is_new {
            let mut batch = Batch::new();
            batch.put(Keyspace::Session, &client.0.to_be_bytes(), &session_value(&info, &owner));
            self.kv.commit(batch, &[]).await.map_err(errno)?;
        }
        // The client that shares this process is never in the map.
        if (clients > 1 || self.config.mounted) && self.sharing.enable() {
            self.sync().await?;
        }
        Ok((is_new, session))
    }

    /// Whether a client has a session of this number, which belongs to this owner.
    pub fn has_session(&self, client: ClientId, session: u64, owner: &Owner) -> bool {
        let map = self.sessions.map.lock();
        map.get(&client).is_some_and(|known| {
            known.session.is(client, session, owner) && !known.session.is_over()
        })
    }

    /// A connection of a client is gone.
    pub fn disconnect(&self, session: &Session) {
        self.sessions.with(session, |known| {
            known.info.connections = known.info.connections.saturating_sub(1);
            known.left = (known.info.connections == 0).then(|| self.sessions.watch.now());
        });
    }

    /// A client says that it lives.
    pub fn heard(&self, session: &Session) {
        self.sessions.with(session, |known| known.heard = self.sessions.watch.now());
    }

    /// Whether a client is known.
    pub fn knows(&self, client: ClientId) -> bool {
        self.sessions.map.lock().get(&client).is_some_and(|known| !known.session.is_over())
    }

    /// A client ends by itself.
    pub async fn goodbye(&self, session: &Session) -> FsResult<()> {
        let client = session.client();
        match self.sessions.end(client, Some(session.number())) {
            Some(ended) => {
                self.recovery.returned(client);
                ended.0.quiet().await;
                self.forget(&[ended]).await
            }
            None => Ok(()),
        }
    }

    /// All clients.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        self.sessions.map.lock().values().map(|known| known.info.clone()).collect()
    }

    /// Clients as people know them: the first of them, and how many more there are.
    pub(crate) fn named(&self, clients: &HashSet<ClientId>) -> String {
        let map = self.sessions.map.lock();
        let known = clients.iter().filter_map(|client| map.get(client));
        let name = |known: &Known| format!("{} at {}", known.info.host, known.info.mount_point);
        let mut names: Vec<String> = known.map(name).collect();
        names.sort_unstable();
        let more = names.len().saturating_sub(CLIENTS_NAMED);
        names.truncate(CLIENTS_NAMED);
        if more > 0 {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }

    /// Whether somebody sees to the end of a client's session.
    pub(crate) fn is_ending(&self, client: ClientId) -> bool {
        self.sessions.map.lock().get(&client).is_some_and(|known| known.ending)
    }

    /// Whether a client was not heard of for so long.
    pub(crate) fn is_silent(&self, client: ClientId, time: Duration) -> bool {
        let map = self.sessions.map.lock();
        map.get(&client).is_none_or(|known| self.watch.is_silent(known.heard, time))
    }

    pub(crate) fn session(&self, client: ClientId) -> Option<SessionInfo> {
        self.sessions.map.lock().get(&client).map(|known| known.info.clone())
    }

    /// State of a slot, read from its record if this server has not seen it yet.
    pub(crate) async fn slot(
        &self,
        session: Option<&Session>,
        id: RequestId,
    ) -> FsResult<SlotState> {
        let session = session.ok_or(Errno::ESTALE)?;
        let known = self.sessions.with(session, |known| known.slots.get(&id.slot).cloned());
        if let Some(state) = known.ok_or(Errno::ESTALE)? {
            return Ok(state);
        }
        let key = keys::reply(id.client.0, id.slot);
        let answer = match self.kv.get(Keyspace::Reply, &key).await.map_err(errno)? {
            // The transaction of the reply is not known, but it was before the end of the last run.
            Some(value) => {
                LastReply { transaction: self.recovered, ..decode_reply(value.as_ref())? }
            }
            None => LastReply::default(),
        };
        let entry = |known: &mut Known| {
            known.slots.entry(id.slot).or_insert_with(|| Arc::new(answer.into())).clone()
        };
        self.sessions.with(session, entry).ok_or(Errno::ESTALE)
    }

    /// After a restart: clients of the last run may come back within their lease.
    pub(crate) async fn load_sessions(&self) -> FsResult<HashSet<ClientId>> {
        let all = self.kv.scan(Keyspace::Session, &[], &[0xff; 9], usize::MAX);
        let all = all.await.map_err(errno)?;
        let mut map = self.sessions.map.lock();
        for (key, value) in all {
            let client = ClientId(keys::parse_u64(&key).ok_or(Errno::EIO)?);
            map.insert(client, parse_session(client, &value, self.watch.now()));
        }
        Ok(map.keys().copied().collect())
    }

    /// Evicts clients whose lease ended, and ends sessions of commands that were killed.
    pub(crate) fn expire_sessions(&self, lease: Duration, targets: &impl Targets) {
        self.end_abandoned(targets);
        let expired: Vec<SessionInfo> = {
            let map = self.sessions.map.lock();
            let is_gone =
                |known: &&Known| !known.ending && self.watch.is_silent(known.heard, lease);
            let gone = map.values().filter(is_gone);
            let mut gone: Vec<SessionInfo> = gone.map(|known| known.info.clone()).collect();
            gone.sort_unstable_by_key(|info| info.client);
            gone
        };
        // A recovery evicts those that it waits for, in its own time.
        let expired = expired.into_iter().filter(|info| !self.recovery.waits_for(info.client));
        for info in expired {
            tracing::warn!(
                event = event::CLIENT_EVICTED,
                client = %info.client, host = info.host, mount_point = info.mount_point,
                "client was not heard of for {} s and is evicted: its open files are closed",
                lease.as_secs()
            );
            self.evict(info.client, targets);
        }
    }

    /// Gives clients their time anew for what they owe while a disk that stands still holds up a
    /// request of theirs: they may have to bring data there first. All others owe as before. To be
    /// called as often as time passes; it waits for nothing.
    pub fn hold_debts(&self, targets: &impl Targets) {
        let held: Vec<ClientId> = {
            let map = self.sessions.map.lock();
            let is_held = |known: &&Known| targets.holds_up(&known.session);
            map.values().filter(is_held).map(|known| known.info.client).collect()
        };
        self.client_locks.recalls.hold(&held);
        // One of the last run may be writing again there.
        held.iter().for_each(|client| self.recovery.note_at_work(*client));
    }

    /// Evicts clients that have not returned a recalled lock in their lease.
    pub(crate) fn expire_unanswered(&self, lease: Duration, targets: &impl Targets) {
        for (client, allowed) in self.client_locks.recalls.overdue(lease) {
            if self.is_ending(client) {
                continue;
            }
            tracing::warn!(
                event = event::CLIENT_EVICTED, %client,
                "client has not returned a recalled lock in {} s and is evicted",
                allowed.as_secs()
            );
            self.evict(client, targets);
        }
    }

    /// Ends the session of a client that may still be writing somewhere. See
    /// [`Mds::forget_quiet`] for the rest: nothing here waits, so that one that ends late keeps no
    /// other.
    pub(crate) fn evict(&self, client: ClientId, targets: &impl Targets) {
        if client == ClientId::IN_PROCESS {
            return self.free(client);
        }
        let Some(ended) = self.sessions.end(client, None) else { return };
        glint_telemetry::count(Counter::Evictions, 1);
        targets.fence(ended.0.number());
        self.sessions.leaving.lock().push(ended.0.clone());
    }

    /// Forgets clients that were evicted and of which nothing is executed any more, anywhere. What
    /// others still wait for at some disk keeps none of these.
    pub(crate) async fn forget_quiet(&self, targets: &impl Targets) -> FsResult<()> {
        let is_quiet =
            |session: &mut Arc<Session>| session.is_quiet() && targets.is_fenced(session.number());
        let quiet = self.sessions.leaving.lock().extract_if(.., is_quiet).collect::<Vec<_>>();
        if quiet.is_empty() {
            return Ok(());
        }
        // If this fails, all stay evicted and are tried again.
        let quiet: Vec<_> = quiet.into_iter().map(|s| Ended(s, &self.sessions)).collect();
        self.forget(&quiet).await
    }

    /// Forgets sessions that are over and quiet: first their records go, durably, then their locks
    /// are free, then their clients may begin others. One of which that fails keeps no other.
    async fn forget(&self, ended: &[Ended<'_>]) -> FsResult<()> {
        let mut gone = Vec::with_capacity(ended.len());
        let mut result = Ok(());
        for Ended(session, _) in ended {
            match self.delete_session(session.client()).await {
                Ok(()) => gone.push(session.client()),
                Err(errno) => result = Err(errno),
            }
        }
        self.sync().await?;
        for client in gone {
            self.free(client);
            self.sessions.map.lock().remove(&client);
        }
        result
    }

    /// Deletes the record of a session, and the replies that were kept for it: no more at a time
    /// than the journal takes.
    async fn delete_session(&self, client: ClientId) -> FsResult<()> {
        let mut batch = Batch::new();
        batch.delete(Keyspace::Session, &client.0.to_be_bytes());
        let (from, to) = (keys::reply(client.0, 0), keys::reply(client.0, u16::MAX));
        let replies = self.kv.scan(Keyspace::Reply, &from, &to, usize::MAX).await.map_err(errno)?;
        for (at, (key, _)) in replies.iter().enumerate() {
            batch.delete(Keyspace::Reply, key);
            if (at + 1).is_multiple_of(REPLIES_AT_ONCE) {
                self.kv.commit(std::mem::take(&mut batch), &[]).await.map_err(errno)?;
            }
        }
        self.kv.commit(batch, &[]).await.map_err(errno).map(drop)
    }

    /// Frees what a client has: its locks and its opens.
    fn free(&self, client: ClientId) {
        self.client_locks.evict(client);
        self.posix_locks.evict(client);
        self.opens.forget_client(client);
        self.allocator.forget_client(client);
        // Some may have had no name any more.
        self.orphans.fetch_add(1, Ordering::AcqRel);
    }
}

impl Known {
    fn new(info: SessionInfo, owner: Option<Owner>, heard: Moment) -> Known {
        let session = Session::new(info.client, info.session, owner);
        Known { session, info, ending: false, heard, left: None, slots: HashMap::new() }
    }
}

/// A session that is over, and is being forgotten. If that fails, somebody else may try; unless it
/// is to be forgotten later.
struct Ended<'a>(Arc<Session>, &'a Sessions);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if !self.1.leaving.lock().iter().any(|session| Arc::ptr_eq(session, &self.0)) {
            self.1.with(&self.0, |known| known.ending = false);
        }
    }
}

impl Sessions {
    /// Sessions whose clients are late by this watch.
    pub(crate) fn new(watch: Arc<Watch>) -> Sessions {
        let (map, leaving, count) = Default::default();
        Sessions { map, leaving, watch, count }
    }

    /// Does something with what is known of a session, if that is still its client's.
    fn with<R>(&self, session: &Session, work: impl FnOnce(&mut Known) -> R) -> Option<R> {
        let mut map = self.map.lock();
        let known = map.get_mut(&session.client())?;
        (known.info.session == session.number()).then(|| work(known))
    }

    /// Nothing of a client is taken any more, in its session of this number, if one is given.
    /// `None` if somebody else sees to that.
    fn end(&self, client: ClientId, number: Option<u64>) -> Option<Ended<'_>> {
        let mut map = self.map.lock();
        let known = map.get_mut(&client).filter(|known| !known.ending)?;
        if number.is_some_and(|number| number != known.info.session) {
            return None;
        }
        known.ending = true;
        known.session.end();
        Some(Ended(known.session.clone(), self))
    }
}
