//! Parts of an MDS, its start, and the commit of an operation.

use crate::background::destroyed::Destroyed;
use crate::chains::drain;
use crate::chains::membership::Seen;
use crate::chains::placement::Placed;
use crate::chains::policy;
use crate::chains::table::{ChainError, ChainTable};
use crate::error::{MdsError, OpResult, errno};
use crate::locking::client_locks::ClientLocks;
use crate::locking::commit_on_sharing::Sharing;
use crate::locking::move_doubts::MoveDoubts;
use crate::locking::namespace_locks::{Held, Locks, Want};
use crate::locking::posix_locks::ClientPosixLocks;
use crate::session::boot_history::BootHistory;
pub(crate) use crate::session::context::Context;
use crate::session::open_files::Opens;
use crate::session::recovery::Recovery;
use crate::session::sessions::{Sessions, encode_reply};
use crate::store::alloc::Allocator;
use crate::store::directories::Directories;
use crate::store::keys;
use crate::store::names::Names;
use crate::store::record::InodeRecord;
use glint_kv::{Batch, CacheUse, Keyspace, Kv, KvError, Loaded};
use glint_proto::capability::SECRET_BYTES;
use glint_proto::chain::{Chain, ChainPolicy, ChainVersion, MemberEvent};
use glint_proto::watch::{Beat, Watch};
use glint_proto::{
    Avoided, ClientId, Errno, FileType, FsResult, Ino, Layout, MdsReply, Timestamp, clock,
};
use glint_telemetry::Heat;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

/// How an MDS is set up.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Number of OSTs, those of all servers.
    pub osts: u16,
    /// How long a client that is not heard of keeps its opens.
    pub lease: Duration,
    /// Layout of new files where no directory says otherwise.
    pub layout: Layout,
    /// Answer only after a change is on stable storage.
    pub commit_sync: bool,
    /// The disk may have lost what was not synced when the last run ended.
    pub after_power_loss: bool,
    /// A client shares this process.
    pub mounted: bool,
    /// Clients are given locks.
    pub locks: bool,
    /// Seed of the hash of names in a new file system; drawn at random if there is none.
    pub hash_seed: Option<u64>,
    /// Names this run.
    pub boot_verifier: u64,
}

/// A metadata server.
pub struct Mds<K> {
    pub(crate) kv: K,
    pub(crate) config: Config,
    /// Over which new files are laid out.
    pub(crate) osts: AtomicU16,
    /// OSTs that new files avoid: not heard of, or drained; and those of them that none gets: given
    /// up, or drained.
    pub(crate) avoided: Mutex<(Vec<u16>, Vec<u16>)>,
    /// True if `avoided` is not empty; creates read it without the lock.
    has_avoided: AtomicBool,
    /// OSTs that an administrator drains, sorted.
    pub(crate) drained: Mutex<Vec<u16>>,
    /// Chains of OSTs that have copies of the same objects.
    pub(crate) chains: ChainTable,
    /// Rules for all chains.
    pub(crate) chain_policy: Mutex<ChainPolicy>,
    /// OSTs that chains are laid out over.
    pub(crate) placed: Mutex<Vec<Placed>>,
    pub(crate) locks: Locks,
    pub(crate) client_locks: ClientLocks,
    pub(crate) posix_locks: ClientPosixLocks,
    pub(crate) opens: Opens,
    pub(crate) directories: Directories,
    pub(crate) names: Names,
    pub(crate) allocator: Allocator,
    pub(crate) sessions: Sessions,
    pub(crate) inodes: AtomicI64,
    pub(crate) inodes_stored: AtomicI64,
    pub(crate) hash_seed: u64,
    /// Set while the disk is too full to accept what needs space.
    pub(crate) full: AtomicBool,
    /// Signals the reaper that there is something to destroy.
    pub(crate) orphans: AtomicU64,
    pub(crate) destroyed: Mutex<Destroyed>,
    /// Orphan keys of objects that clients of this run copy data to.
    pub(crate) plans: Mutex<HashMap<Vec<u8>, u64>>,
    /// Raised when OSTs were replaced or given up, and before they are filled.
    pub(crate) doubts: MoveDoubts,
    pub(crate) sharing: Sharing,
    pub(crate) recovery: Recovery,
    /// By which clients are late.
    pub(crate) watch: Arc<Watch>,
    /// Last transaction that the last run left.
    pub(crate) recovered: u64,
    /// Runs of the server, with the transactions of each that survived it.
    pub(crate) boot_history: BootHistory,
    /// Key that capabilities are signed with. It outlives runs, as sessions do.
    pub(crate) secret: [u8; SECRET_BYTES],
}

impl<K: Kv> Mds<K> {
    /// Starts on an engine; makes the root if the engine is empty.
    pub async fn start(kv: K, config: Config) -> Result<Mds<K>, MdsError> {
        let read = |key: &'static [u8]| {
            let kv = &kv;
            async move {
                let value = kv.get(Keyspace::Meta, key).await?;
                Ok::<_, MdsError>(value.and_then(|value| keys::parse_u64(value.as_ref())))
            }
        };
        let (hash_seed, mark, inodes) = match read(keys::META_HASH_SEED).await? {
            Some(seed) => {
                if kv.get(Keyspace::Inode, &Ino::ROOT.key()).await?.is_none() {
                    return Err(MdsError::NoRoot);
                }
                let mark = read(keys::META_NEXT_INO).await?.unwrap_or(2);
                (seed, mark, read(keys::META_INODES).await?.unwrap_or(1))
            }
            None => {
                let random = || getrandom::u64().unwrap_or(0x5eed);
                let seed = config.hash_seed.unwrap_or_else(random);
                make_root(&kv, seed, config.layout).await?;
                (seed, 2, 1)
            }
        };
        let chains = ChainTable::load(&kv).await.map_err(|_| MdsError::Chains)?;
        let chain_policy = policy::load(&kv).await.map_err(|_| MdsError::Chains)?;
        let drained = drain::load(&kv).await.map_err(|_| MdsError::Chains)?;
        chains.set_drained(&drained);
        let watch = Arc::<Watch>::default();
        let mut mds = Mds {
            kv,
            osts: AtomicU16::new(config.osts),
            has_avoided: AtomicBool::new(!drained.is_empty()),
            avoided: Mutex::new((drained.clone(), drained.clone())),
            drained: Mutex::new(drained),
            chains,
            chain_policy: Mutex::new(chain_policy),
            placed: Mutex::default(),
            config,
            locks: Locks::new(),
            client_locks: ClientLocks::new(config.locks, watch.clone()),
            posix_locks: ClientPosixLocks::default(),
            opens: Opens::new(),
            directories: Directories::new(),
            names: Names::new(),
            allocator: Allocator::new(mark),
            sessions: Sessions::new(watch.clone()),
            inodes: AtomicI64::new(inodes as i64),
            inodes_stored: AtomicI64::new(inodes as i64),
            hash_seed,
            full: AtomicBool::new(false),
            orphans: AtomicU64::new(1),
            destroyed: Mutex::default(),
            plans: Mutex::default(),
            doubts: MoveDoubts::default(),
            sharing: Sharing::new(),
            recovery: Recovery::new(watch.clone()),
            watch,
            recovered: 0,
            boot_history: BootHistory::default(),
            secret: [0; SECRET_BYTES],
        };
        mds.recovered = mds.kv.accepted();
        let mut returning = mds.load_sessions().await.map_err(|_| MdsError::NoRoot)?;
        // Servers that are clients of each other have nothing here.
        returning.retain(|client| mds.session(*client).is_none_or(|info| !info.is_server()));
        // The last run may have ended before all had replayed what the one before it lost.
        let unfinished = mds.kv.get(Keyspace::Meta, keys::META_REPLAYING).await?.is_some();
        let replays = !returning.is_empty() && (config.after_power_loss || unfinished);
        mds.begin_run(replays).await?;
        if !returning.is_empty() {
            mds.destroyed.lock().left_kept = Some(clock::now() + config.lease);
            tracing::info!(
                clients = returning.len(),
                replays,
                "waiting for clients of the last run: {}; {} s of silence end in eviction",
                mds.named(&returning),
                config.lease.as_secs()
            );
            mds.recovery.begin(returning, config.lease, replays, config.locks);
        }
        Ok(mds)
    }

    /// Key that capabilities of this file system are signed with.
    pub fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Why nothing can be called durable any more, if that is so.
    pub fn failure(&self) -> Option<String> {
        self.kv.failure()
    }

    /// How the engine's cache is used, if it has one.
    pub fn engine_cache(&self) -> Option<CacheUse> {
        self.kv.cache()
    }

    /// Which keys of its engine are read most, if that counts them.
    pub fn heat(&self) -> Option<&Heat> {
        self.kv.heat()
    }

    /// Has the engine read keys into memory; see [`Kv::load`].
    pub async fn load(
        &self,
        keyspace: Keyspace,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Loaded, KvError> {
        self.kv.load(keyspace, from, to, limit).await
    }

    /// Lets time pass; see [`Watch::look`].
    pub fn time_passes(&self) {
        self.watch.look();
    }

    /// One more thread hears clients.
    pub fn beat(&self) -> Beat {
        self.watch.add_thread()
    }

    /// Over how many OSTs new files are laid out.
    pub fn osts(&self) -> u16 {
        self.osts.load(Ordering::Acquire)
    }

    /// There are more OSTs than before.
    pub fn note_ost_count(&self, osts: u16) {
        self.osts.fetch_max(osts, Ordering::AcqRel);
    }

    /// Sets the OSTs that are not heard of, so that new files are laid out over others where they
    /// can be, or chains without them, and those of them that were given up, which no new file gets.
    pub fn set_absent(&self, absent: Vec<u16>, given_up: &[u16]) {
        // Before the drained ones are read: nobody sets older lists after this.
        let mut avoided = self.avoided.lock();
        let with_drained = |mut osts: Vec<u16>| {
            osts.extend(self.drained.lock().iter());
            osts.sort_unstable();
            osts.dedup();
            osts
        };
        let now = (with_drained([&absent, given_up].concat()), with_drained(given_up.to_vec()));
        if *avoided != now {
            self.has_avoided.store(!now.0.is_empty(), Ordering::Release);
            self.chains.set_absent(&absent, given_up);
            *avoided = now;
        }
    }

    /// Hands out the OSTs that new files avoid.
    pub(crate) fn with_avoided<T>(&self, use_them: impl FnOnce(Avoided<'_>) -> T) -> T {
        match self.has_avoided.load(Ordering::Acquire) {
            false => use_them(Avoided::default()),
            true => {
                let (all, gone) = &*self.avoided.lock();
                use_them(Avoided { all, worst: all, gone })
            }
        }
    }

    /// Sets the OSTs that there are, each with what it fails together with, and makes the chains
    /// over new ones: of so many members as are in use, and as new files get by default.
    pub async fn place_chains(&self, osts: Vec<Placed>) {
        *self.placed.lock() = osts;
        let mut wanted = self.chains.copies();
        wanted.insert(self.config.layout.replicas);
        // Servers may have been too few in all runs that said it.
        wanted.extend(self.inode(Ino::ROOT).await.map(|root| root.attr.layout.replicas));
        for copies in wanted.into_iter().filter(|copies| *copies > 1) {
            if let Err(error) = self.make_chains(copies).await {
                tracing::warn!(copies, %error, "new files with so many copies cannot be made");
            }
        }
        // There are others now.
        self.chains.set_domains(&self.placed.lock());
    }

    /// Makes the chains of so many members that are missing. Returns how many there are.
    pub(crate) async fn make_chains(&self, copies: u8) -> Result<u16, ChainError> {
        let mut placed = self.placed.lock().clone();
        placed.retain(|placed| !self.drained.lock().contains(&placed.ost));
        self.chains.extend(&self.kv, copies, &placed).await
    }

    /// The table of chains.
    pub fn chains(&self) -> &ChainTable {
        &self.chains
    }

    /// Something happened to an OST. Returns the rows that are others now.
    pub async fn on_ost(&self, ost: u16, event: MemberEvent) -> FsResult<Vec<Chain>> {
        self.chains.on_event(&self.kv, ost, event).await
    }

    /// The server of an OST has started again, while others were seen so. Until it is said that
    /// it is back ([`Mds::on_ost`]), its members are as lost.
    pub async fn on_restart(&self, ost: u16, seen: impl Fn(u16) -> Seen) -> FsResult<()> {
        self.chains.on_restart(&self.kv, ost, seen).await
    }

    /// Somebody has looked which OSTs are there, and knows which have lost their memory since they
    /// served. Returns the rows that are others now.
    pub async fn on_look(
        &self,
        seen: impl Fn(u16) -> Seen,
        has_restarted: impl Fn(u16) -> bool,
    ) -> FsResult<Vec<Chain>> {
        self.chains.on_look(&self.kv, seen, has_restarted).await
    }

    /// Something happened to a member of a chain, seen by somebody who knew this version. Returns the
    /// row as it is then.
    pub async fn on_member(
        &self,
        chain: ChainVersion,
        ost: u16,
        event: MemberEvent,
    ) -> FsResult<Chain> {
        self.chains.on_member(&self.kv, chain.target, chain.version, ost, event).await
    }

    /// Over how many targets files with so many copies are laid out, OSTs or chains, and those of
    /// them that are better left alone.
    pub(crate) fn with_targets<T>(
        &self,
        copies: u8,
        use_them: impl FnOnce(u16, Avoided<'_>) -> T,
    ) -> FsResult<T> {
        if copies <= 1 {
            return Ok(self.with_avoided(|avoided| use_them(self.osts(), avoided)));
        }
        self.chains.with_count(copies, |count, avoided| match count {
            // There are too few servers so far; `place_chains` has said so.
            0 => Err(Errno::ENOSPC),
            _ => Ok(use_them(count, avoided)),
        })
    }

    /// Commits an operation together with its reply record: what this returns is the answer, and
    /// nothing else ([`Context::is_as_committed`]).
    pub(crate) async fn commit(
        &self,
        context: &Context<'_>,
        mut batch: Batch,
        reply: MdsReply,
    ) -> OpResult {
        context.begin()?;
        if batch.is_empty() {
            return Ok(reply);
        }
        if let Some(id) = context.arrival.id {
            let record = context.progress.as_ref().unwrap_or(&reply);
            let value = encode_reply(id.xid, context.arrival.digest, record)?;
            batch.put(Keyspace::Reply, &keys::reply(id.client.0, id.slot), &value);
        }
        let transaction = self.commit_batch(batch).await?;
        context.transaction.set(transaction);
        for key in context.changes.borrow().iter() {
            self.sharing.note(context.client, *key, transaction, self.kv.durable());
        }
        if self.config.commit_sync {
            self.kv.sync().await.map_err(errno)?;
        }
        context.note_committed(&reply);
        Ok(reply)
    }

    /// Commits what may change inodes. Returns the transaction.
    pub(crate) async fn commit_batch(&self, batch: Batch) -> FsResult<u64> {
        let renewal = self.directories.prepare(&batch);
        let transaction = self.kv.commit(batch, &[]).await.map_err(errno)?;
        self.directories.renew(renewal);
        Ok(transaction)
    }

    /// Takes the locks of an operation. What other clients did to them is durable then.
    pub(crate) async fn lock(&self, context: &Context<'_>, wanted: &[Want]) -> Held<'_> {
        let held = self.locks.acquire(wanted).await;
        let durable = self.kv.durable();
        let depends = |want: &Want| self.sharing.depends(context.client, want.key, durable);
        if wanted.iter().any(depends)
            && let Err(error) = self.kv.sync().await
        {
            // The engine takes no more commits, so this operation will not succeed.
            tracing::error!(
                %error,
                "could not commit what another client did; nothing is shared that rests on it"
            );
        }
        context.changes.borrow_mut().extend(wanted.iter().filter(|w| w.shares).map(|w| w.key));
        held
    }

    /// ENOSPC while the disk is too full for anything that needs space. What a client has done
    /// by itself was acknowledged long ago: for that there is the reserve, and it ends with the
    /// inode numbers that were given out.
    pub(crate) fn need_space(&self, context: &Context<'_>) -> FsResult<()> {
        let full = self.full.load(Ordering::Relaxed) && context.progress.is_none();
        if full { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// Says whether the disk under the journal is too full.
    pub fn set_full(&self, full: bool) {
        if self.full.swap(full, Ordering::Relaxed) != full {
            if full {
                tracing::warn!("disk is full: only operations that free space are accepted");
            } else {
                tracing::info!("space is available again");
            }
        }
    }

    /// Everything accepted so far to stable storage.
    pub async fn sync(&self) -> FsResult<()> {
        self.kv.sync().await.map_err(errno)
    }

    /// The engine's count of durable transactions, for replies.
    pub fn committed(&self) -> u64 {
        self.kv.durable()
    }

    /// Number of inodes in use.
    pub fn inode_count(&self) -> u64 {
        self.inodes.load(Ordering::Relaxed).max(0) as u64
    }

    /// Ends the service cleanly: nothing is open any more, everything is durable.
    pub async fn shut_down(&self) -> FsResult<()> {
        self.opens.forget_client(ClientId::IN_PROCESS);
        self.store_inode_count().await?;
        self.sync().await
    }
}

async fn make_root(kv: &impl Kv, seed: u64, layout: Layout) -> Result<(), MdsError> {
    let mode = FileType::Directory.mode_bits() | 0o755;
    let mut root = InodeRecord::new(Ino::ROOT, mode, Timestamp::now());
    root.attr.nlink = 2;
    root.attr.layout = layout;
    root.parent = Ino::ROOT;
    let mut batch = Batch::new();
    batch.put(Keyspace::Inode, &Ino::ROOT.key(), &root.encode());
    batch.put(Keyspace::Meta, keys::META_HASH_SEED, &seed.to_be_bytes());
    batch.put(Keyspace::Meta, keys::META_NEXT_INO, &2u64.to_be_bytes());
    batch.put(Keyspace::Meta, keys::META_INODES, &1u64.to_be_bytes());
    kv.commit(batch, &[]).await?;
    kv.sync().await?;
    Ok(())
}
