//! A warm start of an MDS and an OST on a data directory.

use super::*;
use crate::process::data_dir::{DataDir, Role};
use futures_lite::future::block_on;
use glint_kv::Batch;
use glint_kv::local::{LocalKv, Options};
use glint_mds::Config;
use glint_memory::{Supply, SupplyLook};
use glint_ost::ObjectStore;
use glint_proto::{Bulk, ClientId, Ino, Layout, ObjectId, OstRequest};
use std::path::Path;
use std::sync::Arc;

const INODES: u64 = 5000;

/// An MDS and an OST in a directory, with the warm start of their server.
struct WarmedServer {
    data: DataDir,
    kv: Arc<LocalKv>,
    mds: Mds<Arc<LocalKv>>,
    osts: OstSet,
    warm_start: WarmStart,
}

impl WarmedServer {
    /// With as much memory as it likes.
    fn start(path: &Path, is_on: bool) -> WarmedServer {
        let ample = SupplyLook { supply: Supply::Ample, spare: u64::MAX };
        WarmedServer::start_in(path, is_on, Box::new(move || ample))
    }

    fn start_in(path: &Path, is_on: bool, memory: MemoryProbe) -> WarmedServer {
        let data = DataDir::open_or_create(path, Some(1), Role::Mds).unwrap();
        let options = Options {
            cache_bytes: 1 << 20,
            memtable_bytes: 1 << 20,
            journal_bytes: 64 << 20,
            segment_bytes: 1 << 20,
            open_tables: 64,
            commit_interval: Duration::from_secs(1),
            readers: 0,
        };
        let config = Config {
            osts: 1,
            lease: Duration::from_secs(30),
            layout: Layout::default(),
            commit_sync: false,
            after_power_loss: false,
            mounted: false,
            locks: false,
            hash_seed: None,
            boot_verifier: 1,
        };
        let kv = Arc::new(LocalKv::open(&data.mds(), options).unwrap());
        let mds = block_on(Mds::start(kv.clone(), config)).unwrap();
        let store = ObjectStore::open(&data.ost(0), 64, Arc::default()).unwrap();
        let osts = OstSet::start(vec![store], Arc::default(), None, false).unwrap();
        let warm_start = WarmStart::asking(memory, is_on, true, 1);
        WarmedServer { data, kv, mds, osts, warm_start }
    }

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    fn write(&self) {
        let mut batch = Batch::new();
        for ino in 1000..1000 + INODES {
            batch.put(Keyspace::Inode, &ino.to_be_bytes(), &[1; 100]);
        }
        block_on(self.kv.commit(batch, &[])).unwrap();
        for ino in 0..200 {
            let (object, mtime) = (WarmedServer::object(ino), None);
            let write = OstRequest::Write { object, offset: 0, mtime, kept: false };
            let done = self.osts.handle(ClientId(1), 0, write, Bulk::Out(b"data"));
            block_on(done).reply.unwrap();
        }
    }

    fn read(&self) {
        let (from, to) = (1000u64.to_be_bytes(), (1000 + INODES).to_be_bytes());
        block_on(self.kv.scan(Keyspace::Inode, &from, &to, usize::MAX)).unwrap();
        for ino in 0..200 {
            let stat = OstRequest::Stat { object: WarmedServer::object(ino) };
            block_on(self.osts.handle(ClientId(1), 0, stat, Bulk::None)).reply.unwrap();
        }
    }

    fn step(&self) {
        block_on(self.warm_start.step_tables(&self.data, &self.mds));
        self.warm_start.step_objects(&self.data, &self.osts);
    }

    /// Goes on to the end. Returns what was loaded: keys and objects.
    fn load(&self) -> (u64, u64) {
        self.load_some();
        let (tables, ost) = (self.warm_start.tables(), self.warm_start.osts()[0]);
        assert_eq!((tables.done, ost.done), (tables.total, ost.total));
        (tables.loaded, ost.loaded)
    }

    /// Goes on until it says that it has ended.
    fn load_some(&self) {
        // Disks load by themselves.
        let begun = Instant::now();
        while self.warm_start.running() > 0 && begun.elapsed() < Duration::from_secs(60) {
            self.step();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.warm_start.running(), 0);
    }

    fn stop(self) {
        block_on(self.warm_start.keep(&self.data, self.mds.heat(), &self.osts));
    }
}

#[test]
fn what_was_read_most_is_loaded_by_the_next_run_and_the_one_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = WarmedServer::start(dir.path(), true);
    server.write();
    server.read();
    // It has not read yet what another run may have kept, so it keeps nothing.
    server.stop();
    assert!(!dir.path().join("hot.tables").exists());

    let server = WarmedServer::start(dir.path(), true);
    assert_eq!(server.load(), (0, 0), "nothing was kept");
    server.read();
    server.stop();
    for _ in 0..2 {
        let server = WarmedServer::start(dir.path(), true);
        let (keys, objects) = server.load();
        assert!(keys >= INODES && objects == 200, "{keys} {objects}");
        assert_eq!(server.warm_start.tables().state, WarmState::Done);
        server.stop();
    }

    let server = WarmedServer::start(dir.path(), false);
    assert_eq!(server.load(), (0, 0), "it is off");
    assert_eq!(server.warm_start.tables().state, WarmState::Off);
    server.stop();
    assert!(WarmedServer::start(dir.path(), true).load().0 >= INODES, "it was kept all the same");
}

#[test]
fn a_damaged_hint_is_left_out_and_kept_anew() {
    let dir = tempfile::tempdir().unwrap();
    let hint = |part| dir.path().join(format!("hot.{part}"));
    WarmedServer::start(dir.path(), true).stop();
    for damage in [&b"GLHT"[..], b"", &[0xff; 100_000]] {
        for part in [HotPart::Tables, HotPart::Ost(0)] {
            std::fs::write(hint(part), damage).unwrap();
        }
        let server = WarmedServer::start(dir.path(), true);
        server.write();
        assert_eq!(server.load(), (0, 0));
        server.stop();
        for part in [HotPart::Tables, HotPart::Ost(0)] {
            let kept = std::fs::read(hint(part)).unwrap();
            Heat::default().restore(&kept).unwrap();
        }
    }
    let server = WarmedServer::start(dir.path(), true);
    server.load();
    server.read();
    server.stop();
    assert!(WarmedServer::start(dir.path(), true).load().0 >= INODES);
}

#[test]
fn it_is_kept_every_minute_and_forgotten_in_hours() {
    let start = Instant::now();
    clock::simulate(Some(start));
    let dir = tempfile::tempdir().unwrap();
    let server = WarmedServer::start(dir.path(), true);
    server.write();
    server.load();
    server.read();
    let kept = || std::fs::read(dir.path().join("hot.tables")).ok();
    server.step();
    assert_eq!(kept(), None);
    clock::simulate(Some(start + KEEP_EVERY));
    server.step();
    let first = kept().unwrap();
    clock::simulate(Some(start + 3 * AGE_EVERY));
    server.step();
    assert_eq!(kept().unwrap(), first, "nothing was read");
    server.read();
    clock::simulate(Some(start + 3 * AGE_EVERY + KEEP_EVERY));
    server.step();
    let cells = |bytes: &[u8]| {
        let heat = Heat::default();
        heat.restore(bytes).unwrap();
        let bytes = heat.encode();
        bytes[10..].chunks(13).map(|row| u32::from(row[12])).sum::<u32>()
    };
    let (before, after) = (cells(&first), cells(&kept().unwrap()));
    assert!(after > before / 2 && after < 2 * before, "{before} {after}");
    clock::simulate(None);
}

#[test]
fn it_pauses_while_memory_is_short_and_ends_when_its_room_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let server = WarmedServer::start(dir.path(), true);
    server.write();
    server.load();
    server.read();
    server.stop();

    let memory = Arc::new(Mutex::new(SupplyLook { supply: Supply::Short, spare: 0 }));
    let asked = memory.clone();
    let server = WarmedServer::start_in(dir.path(), true, Box::new(move || *asked.lock()));
    let states = |server: &WarmedServer| {
        (server.warm_start.tables().state, server.warm_start.osts()[0].state)
    };
    while server.warm_start.tables().is_running() {
        server.step();
    }
    // Tables are in the cache of the engine, which has its memory.
    assert_eq!(states(&server), (WarmState::Done, WarmState::MemoryShort));
    assert_eq!(server.warm_start.osts()[0].loaded, 0);
    *memory.lock() = SupplyLook { supply: Supply::Ample, spare: u64::MAX };
    assert_eq!(server.load().1, 200, "it goes on");
    assert_eq!(states(&server), (WarmState::Done, WarmState::Done));
    server.stop();

    // A quarter of what is there has room for about 100 objects.
    let little = SupplyLook { supply: Supply::Ample, spare: 4 * 100 * 2052 };
    let server = WarmedServer::start_in(dir.path(), true, Box::new(move || little));
    server.load_some();
    assert_eq!(states(&server), (WarmState::Done, WarmState::Full));
    let loaded = server.warm_start.osts()[0].loaded;
    assert!((99..=101).contains(&loaded), "{loaded}");
}
