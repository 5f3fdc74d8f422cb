//! When stored data is compared with its checksums, and how fast.
//!
//! Invariants:
//! - In the background no more is read in a second than was allowed; a pass that somebody asked
//!   for does not wait.
//! - A pass that somebody asked for compares all objects after that, unless somebody else has asked
//!   for it before.
//! - A pass in the background begins [`SCRUB_INTERVAL`] after the end of the last one, also across
//!   restarts.

use crate::records::Records;
use glint_ost::disk::Disk;
use glint_ost::{Bandwidth, OstSet, ScrubStep};
use glint_proto::clock;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time from the end of a pass to the beginning of the next one.
pub(crate) const SCRUB_INTERVAL: Duration = Duration::from_secs(7 * 24 * 3600);
/// Bytes a second that are read in the background, where nothing else is said.
pub(crate) const SCRUB_BANDWIDTH: u64 = 8 << 20;

/// Bytes that an object costs at least: it is looked for and opened.
const OBJECT_COST_BYTES: u64 = 16 << 10;

/// The scrubbing of the OSTs of a server.
pub(crate) struct Scrubbing {
    /// `None`: only when it is asked for.
    background: Option<Bandwidth>,
    /// Somebody waits for the pass that is under way.
    is_asked: AtomicBool,
    /// When the next pass begins by itself.
    next: Mutex<Instant>,
    /// When a pass in the background goes on.
    rests_until: Mutex<Instant>,
}

impl Scrubbing {
    /// As what `records` say of the last pass; with this bandwidth in the background, if it is not
    /// 0.
    pub(crate) fn new(records: &dyn Records, bandwidth: u64) -> Scrubbing {
        let since = clock::date().saturating_sub(records.scrubbed().unwrap_or_default());
        Scrubbing {
            background: (bandwidth > 0).then(|| Bandwidth::new(bandwidth)),
            is_asked: AtomicBool::new(false),
            next: Mutex::new(clock::now() + SCRUB_INTERVAL.saturating_sub(since)),
            rests_until: Mutex::new(clock::now()),
        }
    }

    /// Begins a pass that somebody waits for; one in the background that is under way begins anew, one
    /// that was asked for goes on. Or, if not `begins`, ends a pass before its end: the next one by
    /// itself is as far away as after its end.
    pub(crate) fn ask<D: Disk>(&self, osts: &OstSet<D>, begins: bool) {
        let was_asked = self.is_asked.swap(begins, Ordering::AcqRel);
        if begins {
            if !was_asked {
                // What it has compared, as it does from the start of a server on, may be damaged since.
                osts.stop_scrub();
            }
            osts.begin_scrub();
        } else {
            osts.stop_scrub();
            *self.next.lock() = clock::now() + SCRUB_INTERVAL;
        }
    }

    /// Goes on, by a chunk of each OST at most. Returns whether there is more to do at once.
    pub(crate) fn step<D: Disk>(&self, osts: &OstSet<D>, records: &dyn Records) -> bool {
        let now = clock::now();
        if self.background.is_some() && now >= *self.next.lock() {
            *self.next.lock() = now + SCRUB_INTERVAL;
            osts.begin_scrub();
        }
        if now < *self.rests_until.lock() && !self.is_asked.load(Ordering::Acquire) {
            return false;
        }
        let (mut cost, mut has_ended) = (0, false);
        for step in osts.scrub() {
            match step {
                ScrubStep::Idle => {}
                ScrubStep::Read(bytes) => cost += bytes.max(OBJECT_COST_BYTES),
                ScrubStep::Ended => has_ended = true,
            }
        }
        if has_ended && !osts.is_scrubbing() {
            self.is_asked.store(false, Ordering::Release);
            *self.next.lock() = clock::now() + SCRUB_INTERVAL;
            if let Err(error) = records.store_scrubbed(clock::date()) {
                tracing::warn!(
                    %error,
                    "could not store when data was compared with its checksums; it may be compared \
                    again early"
                );
            }
        }
        if let Some(bandwidth) = &self.background
            && !self.is_asked.load(Ordering::Acquire)
        {
            *self.rests_until.lock() = now + bandwidth.take(cost, now);
        }
        cost > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::data_dir::{DataDir, Role};
    use glint_ost::ObjectStore;
    use glint_ost::disk::memory::{DiskOperation, Fault, MemoryDisk};
    use glint_proto::{Errno, Ino, ObjectId};
    use std::path::Path;
    use std::sync::Arc;

    const MIB: usize = 1 << 20;

    /// A store on this disk with objects of a MiB.
    fn store(disk: &MemoryDisk, objects: u64) -> ObjectStore<MemoryDisk> {
        let store = ObjectStore::on(disk.clone(), Path::new("ost"), 64, Arc::default());
        for ino in 1..=objects {
            let object = ObjectId { ino: Ino(ino), stripe: 0 };
            store.write(object, 0, &vec![7; MIB], None, false).unwrap();
        }
        store
    }

    /// OSTs with sealed objects.
    fn sealed(stores: Vec<ObjectStore<MemoryDisk>>) -> OstSet<MemoryDisk> {
        let osts = OstSet::start(stores, Arc::default(), None, false).unwrap();
        // The first time it sees how often they were changed, and the second that it is no more.
        for _ in 0..2 {
            osts.settle(Duration::ZERO, clock::now() + Duration::from_secs(1));
        }
        osts
    }

    /// Bytes of a pass that is under way, and what is done of it, after so many seconds.
    fn after(
        seconds: u64,
        start: Instant,
        scrubbing: &Scrubbing,
        osts: &OstSet<MemoryDisk>,
        data: &DataDir,
    ) -> (u64, bool) {
        for tenth in 0..seconds * 10 {
            clock::simulate(Some(start + Duration::from_millis(100 * tenth)));
            while scrubbing.step(osts, data) {}
        }
        let report = osts.scrub_reports().next().unwrap();
        (report.bytes, report.is_running)
    }

    #[test]
    fn it_is_slow_by_itself_and_fast_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let start = Instant::now();
        clock::simulate(Some(start));
        let osts = sealed(vec![store(&MemoryDisk::default(), 100)]);
        let never = Scrubbing::new(&data, 0);
        assert_eq!(after(5, start, &never, &osts, &data), (0, false));
        never.ask(&osts, true);
        assert_eq!(after(1, start, &never, &osts, &data), (100 * MIB as u64, false), "all at once");
        assert_eq!(data.scrubbed().unwrap().as_secs(), clock::date().as_secs());

        // The last one was just now, so the next is a week away.
        let slow = Scrubbing::new(&data, 8 << 20);
        assert!(!after(5, start + Duration::from_secs(3600), &slow, &osts, &data).1);
        let (bytes, runs) = after(5, start + SCRUB_INTERVAL, &slow, &osts, &data);
        assert!(runs && (40..=45).contains(&(bytes / MIB as u64)), "{bytes} in 5 s");
        slow.ask(&osts, true);
        assert!(!after(1, start + SCRUB_INTERVAL, &slow, &osts, &data).1, "somebody waits");
        let (_, runs) =
            after(5, start + 2 * SCRUB_INTERVAL + Duration::from_secs(60), &slow, &osts, &data);
        assert!(runs);
        slow.ask(&osts, false);
        assert!(
            !after(5, start + 2 * SCRUB_INTERVAL + Duration::from_secs(90), &slow, &osts, &data).1
        );
        clock::simulate(None);
    }

    #[test]
    fn a_pass_that_is_asked_for_compares_what_one_in_the_background_has_compared_before() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let start = Instant::now();
        clock::simulate(Some(start));
        let disk = MemoryDisk::default();
        let osts = sealed(vec![store(&disk, 100)]);
        let scrubbing = Scrubbing::new(&data, 8 << 20);
        let (bytes, runs) = after(5, start, &scrubbing, &osts, &data);
        assert!(runs && bytes > MIB as u64, "it begins with the server");
        let first = ObjectId { ino: Ino(1), stripe: 0 }.to_string();
        disk.fail(Fault::new(DiskOperation::Read, &first, Errno::EIO.0, u32::MAX));
        scrubbing.ask(&osts, true);
        let (_, runs) = after(1, start + Duration::from_secs(5), &scrubbing, &osts, &data);
        clock::simulate(None);
        let report = osts.scrub_reports().next().unwrap();
        assert_eq!((runs, report.objects, report.damaged), (false, 100, 1));
    }

    #[test]
    fn an_ost_that_cannot_be_read_stops_neither_the_others_nor_a_pass() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open_or_create(dir.path(), Some(1), Role::Mds).unwrap();
        let disk = MemoryDisk::default();
        let osts = sealed(vec![store(&disk, 1), store(&MemoryDisk::default(), 3)]);
        disk.fail(Fault::new(DiskOperation::List, "/", Errno::EIO.0, u32::MAX));
        let scrubbing = Scrubbing::new(&data, 0);
        scrubbing.ask(&osts, true);
        for _ in 0..1000 {
            scrubbing.step(&osts, &data);
        }
        assert!(!osts.is_scrubbing() && data.scrubbed().is_some());
        assert!(!scrubbing.is_asked.load(Ordering::Acquire));
        let reports = osts.scrub_reports().map(|report| (report.objects, report.not_compared));
        assert_eq!(reports.collect::<Vec<_>>(), [(0, 256), (3, 0)]);
    }
}
