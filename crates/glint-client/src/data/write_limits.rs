//! Limits of what is written behind: bytes for each OST and in all, requests on their way, space
//! that OSTs keep.
//!
//! Invariants:
//! - Whoever waits gets what it waits for in its [turn](Turns): a file that is written without a
//!   pause leaves room and requests to the others of its OST.
//! - What an OST keeps is either here or goes with data that is counted as dirty.

use glint_proto::limits::{
    BULK_BYTES_MAX, DIRTY_BYTES_MAX, DIRTY_BYTES_PER_OST_MAX, RPCS_PER_OST_MAX,
};
use glint_telemetry::Counter;
use glint_wait::Turns;
use parking_lot::Mutex;

/// Least limit of all data: an OST gets full requests one after the other.
const DIRTY_BYTES_MIN: usize = 4 * BULK_BYTES_MAX;
/// The same while memory is short.
const DIRTY_BYTES_SHORT: usize = 2 * BULK_BYTES_MAX;

#[derive(Default)]
struct Room {
    total: usize,
    /// Bytes of memory that this process may use, once somebody has asked for them.
    memory: Option<u64>,
    /// How often the limit of all is halved.
    steps: u32,
    osts: Vec<OstLimits>,
    errors: u64,
}

#[derive(Default)]
struct OstLimits {
    dirty: usize,
    requests: usize,
    /// Space that it keeps for this client.
    kept: u64,
    /// Offset at which the OST's largest object ends, once it has said so.
    object_bytes_max: Option<u64>,
}

/// Resource of an OST that is waited for.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Room,
    Request,
}

/// Limits of what is written behind.
#[derive(Default)]
pub(crate) struct WriteLimits {
    room: Mutex<Room>,
    turns: Turns<(u16, What)>,
}

/// Permission to have a request on its way to an OST.
pub(crate) struct Permit<'a>(&'a WriteLimits, u16);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.room.lock().ost(self.1).requests -= 1;
        self.0.turns.call(&(self.1, What::Request));
    }
}

impl Room {
    fn ost(&mut self, ost: u16) -> &mut OstLimits {
        let index = usize::from(ost);
        if self.osts.len() <= index {
            self.osts.resize_with(index + 1, OstLimits::default);
        }
        &mut self.osts[index]
    }

    /// An eighth of the memory that this process may use, and not more than the limit.
    fn most(&mut self) -> usize {
        let memory = *self.memory.get_or_insert_with(|| {
            let info = rustix::system::sysinfo();
            info.totalram * u64::from(info.mem_unit).max(1)
        });
        let most = usize::try_from(memory / 8).unwrap_or(usize::MAX);
        most.clamp(DIRTY_BYTES_MIN, DIRTY_BYTES_MAX)
    }

    /// The same, and less while memory is short.
    fn total_max(&mut self) -> usize {
        (self.most() >> self.steps).max(DIRTY_BYTES_SHORT)
    }

    fn take(&mut self, ost: u16, what: What) -> bool {
        match what {
            What::Room => {
                // First, so that this OST is among those whose waiters are woken.
                let has_room = self.ost(ost).dirty < DIRTY_BYTES_PER_OST_MAX;
                has_room && self.total < self.total_max()
            }
            What::Request => {
                let ost = self.ost(ost);
                let may = ost.requests < RPCS_PER_OST_MAX;
                ost.requests += usize::from(may);
                may
            }
        }
    }
}

impl WriteLimits {
    /// Says how much memory this process may use.
    pub(crate) fn set_memory(&self, bytes: Option<u64>) {
        let mut room = self.room.lock();
        room.memory = bytes.or(room.memory);
    }

    /// Limit of all data, as things are.
    pub(crate) fn bytes_max(&self) -> usize {
        self.room.lock().total_max()
    }

    /// Halves the limit of all data so many times: there is less memory than before, or more.
    pub(crate) fn set_steps(&self, steps: u32) {
        let mut room = self.room.lock();
        room.steps = steps;
        let osts = room.osts.len() as u16;
        drop(room);
        (0..osts).for_each(|ost| self.turns.call(&(ost, What::Room)));
    }

    /// After how many steps all data that is here would still have room.
    pub(crate) fn steps_that_fit(&self) -> u32 {
        let mut room = self.room.lock();
        // No step takes what always has room.
        let bytes = if room.total > DIRTY_BYTES_SHORT { room.total } else { 0 };
        glint_memory::steps_that_fit(bytes, room.most())
    }

    /// Waits for room for data of an OST.
    pub(crate) async fn room(&self, ost: u16) {
        self.wait(ost, What::Room).await;
    }

    pub(crate) async fn permit(&self, ost: u16) -> Permit<'_> {
        self.wait(ost, What::Request).await;
        Permit(self, ost)
    }

    async fn wait(&self, ost: u16, what: What) {
        let take = || self.room.lock().take(ost, what).then_some(());
        self.turns.take((ost, what), take).await;
    }

    pub(crate) fn add(&self, ost: u16, bytes: usize) {
        let mut room = self.room.lock();
        room.total += bytes;
        room.ost(ost).dirty += bytes;
    }

    pub(crate) fn remove(&self, ost: u16, bytes: usize) {
        let mut room = self.room.lock();
        let was_full = room.total >= room.total_max();
        room.total -= bytes;
        room.ost(ost).dirty -= bytes;
        let osts = room.osts.len() as u16;
        drop(room);
        match was_full {
            // Writes to other OSTs wait for the memory, too.
            true => (0..osts).for_each(|ost| self.turns.call(&(ost, What::Room))),
            false => self.turns.call(&(ost, What::Room)),
        }
    }

    /// Whether an OST has as many requests as it gets: more of them, and smaller ones, would
    /// bring nothing there any sooner.
    pub(crate) fn is_busy(&self, ost: u16) -> bool {
        self.room.lock().ost(ost).requests >= RPCS_PER_OST_MAX
    }

    /// Whether somebody waits for room, and nothing is on its way that would make some.
    pub(crate) fn is_stuck(&self) -> bool {
        self.turns.is_awaited(|(_, what)| *what == What::Room)
            && self.room.lock().osts.iter().all(|ost| ost.requests == 0)
    }

    /// Takes from what an OST keeps, if it keeps enough.
    pub(crate) fn take_kept(&self, ost: u16, bytes: u64) -> bool {
        let mut room = self.room.lock();
        let kept = &mut room.ost(ost).kept;
        let enough = *kept >= bytes;
        *kept -= if enough { bytes } else { 0 };
        enough
    }

    /// An OST keeps more, or what was taken from it was not needed.
    pub(crate) fn keeps(&self, ost: u16, bytes: u64) {
        self.room.lock().ost(ost).kept += bytes;
    }

    /// An OST has said where its largest object ends.
    pub(crate) fn objects_end(&self, ost: u16, bytes: u64) {
        self.room.lock().ost(ost).object_bytes_max = Some(bytes);
    }

    /// Offset at which the OST's largest object ends, if it has said so.
    pub(crate) fn object_bytes_max(&self, ost: u16) -> Option<u64> {
        self.room.lock().ost(ost).object_bytes_max
    }

    /// The servers have forgotten what they kept.
    pub(crate) fn nothing_is_kept(&self) {
        self.room.lock().osts.iter_mut().for_each(|ost| ost.kept = 0);
    }

    /// Something that was accepted is lost.
    pub(crate) fn count_error(&self) {
        self.room.lock().errors += 1;
        glint_telemetry::count(Counter::WriteErrors, 1);
    }

    /// Dirty bytes, and errors so far.
    pub(crate) fn counts(&self) -> (usize, u64) {
        let room = self.room.lock();
        (room.total, room.errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake, Waker};

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn one_event_wakes_one_and_a_dropped_turn_is_passed_on() {
        let limits = WriteLimits::default();
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        let mut permits = Vec::new();
        for _ in 0..RPCS_PER_OST_MAX {
            match pin!(limits.permit(3)).poll(&mut context) {
                Poll::Ready(permit) => permits.push(permit),
                Poll::Pending => panic!("there are as many"),
            }
        }
        let mut waiting: Vec<_> = (0..100).map(|_| Box::pin(limits.permit(3))).collect();
        for task in &mut waiting {
            assert!(task.as_mut().poll(&mut context).is_pending());
        }
        permits.pop();
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(pin!(limits.permit(3)).poll(&mut context).is_pending(), "others wait");
        // The first is gone before it can use its turn.
        drop(waiting.remove(0));
        assert_eq!(counter.0.load(Ordering::Relaxed), 2);
        let permit = waiting[0].as_mut().poll(&mut context);
        assert!(permit.is_ready());
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
    }

    #[test]
    fn who_waits_for_an_ost_that_has_nothing_yet_is_woken() {
        let limits = WriteLimits::default();
        let total = limits.room.lock().total_max();
        let per_ost = total.div_ceil(2);
        (0..2).for_each(|ost| limits.add(ost, per_ost));
        let mut waits = pin!(limits.room(7));
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        limits.remove(0, per_ost);
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(waits.poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn there_is_less_room_while_memory_is_short_and_who_waits_goes_on_when_it_is_not() {
        let limits = WriteLimits::default();
        limits.set_memory(Some(4 << 30));
        assert_eq!(limits.room.lock().total_max(), 512 << 20);
        limits.set_memory(None);
        limits.set_steps(6);
        assert_eq!(limits.room.lock().total_max(), 8 << 20);
        limits.set_steps(30);
        assert_eq!(limits.room.lock().total_max(), DIRTY_BYTES_SHORT);
        limits.add(0, DIRTY_BYTES_SHORT);
        assert_eq!(limits.steps_that_fit(), 6);
        limits.add(0, 200 << 20);
        assert_eq!(limits.steps_that_fit(), 1, "of 512 MiB");
        limits.remove(0, 200 << 20);
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        let mut waits = pin!(limits.room(0));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        limits.set_steps(1);
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert!(waits.poll(&mut Context::from_waker(&waker)).is_ready());
        limits.set_memory(Some(64 << 20));
        assert_eq!(limits.room.lock().total_max(), DIRTY_BYTES_SHORT, "of a small control group");
    }

    #[test]
    fn room_goes_round() {
        let limits = WriteLimits::default();
        limits.add(0, DIRTY_BYTES_PER_OST_MAX);
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..10).map(|_| Box::pin(limits.room(0))).collect();
        for task in &mut waiting {
            assert!(task.as_mut().poll(&mut context).is_pending());
        }
        assert!(limits.is_stuck());
        limits.remove(0, 4096);
        for (done, task) in waiting.iter_mut().enumerate() {
            assert_eq!(counter.0.load(Ordering::Relaxed), done + 1, "each wakes the next");
            assert!(task.as_mut().poll(&mut context).is_ready());
        }
    }
}
