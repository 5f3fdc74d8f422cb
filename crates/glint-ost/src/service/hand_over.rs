//! Disks that no calling thread waits for, because others go on when one of them stands still.
//!
//! What might wait is handed over to threads of the disk, also while it is prompt: changes, and
//! whatever else may meet a lock that is held by a thread that waits.
//!
//! Invariants:
//! - Nothing that is asked of such an OST waits on the calling thread, nor does the question how much
//!   space there is: the answer is the one that the disk gave last.
//! - At most one thread of a disk asks for that at a time.

use super::{Apart, Ost};
use crate::OstSet;
use crate::disk::{CallKind, Disk};
use crate::store::object_store::ObjectStore;
use glint_proto::{SpaceInfo, clock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The disk is asked for its space again after this time.
const SPACE_AGAIN: Duration = Duration::from_millis(200);

/// What is handed over to threads of a disk.
#[derive(Default)]
pub(super) struct HandOver {
    /// There if no calling thread waits for the disk at any time.
    space: Option<KnownSpace>,
    /// Requests of clients, who have nobody else to ask, for which a thread of the disk may wait. A flush
    /// of all that there is counts for none: nothing that a client owes waits for it.
    awaited: AtomicUsize,
}

impl HandOver {
    /// Whether requests of clients may wait for the disk.
    fn may_be_awaited(&self) -> bool {
        self.space.is_none() || self.awaited.load(Ordering::Acquire) > 0
    }
}

/// Space of a disk, for who does not wait for it.
#[derive(Clone)]
struct KnownSpace(Arc<Mutex<LastSpace>>);

/// Space as the disk has said it last.
#[derive(Default)]
struct LastSpace {
    space: Option<SpaceInfo>,
    asked: Option<Instant>,
    is_being_asked: bool,
}

/// A question for the space, until it is dropped: also where there is no thread for it.
struct Asking(KnownSpace);

impl KnownSpace {
    /// The space as it was said last, and a question if it is time for one.
    fn last(&self) -> (Option<SpaceInfo>, Option<Asking>) {
        let mut last = self.0.lock();
        let is_due = last.asked.is_none_or(|asked| clock::since(asked) >= SPACE_AGAIN);
        let asks = is_due && !last.is_being_asked;
        if asks {
            (last.asked, last.is_being_asked) = (Some(clock::now()), true);
        }
        (last.space, asks.then(|| Asking(self.clone())))
    }
}

impl Asking {
    fn answer(self, space: SpaceInfo) {
        self.0.0.lock().space = Some(space);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.0.lock().is_being_asked = false;
    }
}

/// A request that is awaited, until it is dropped.
pub(super) struct AwaitedRequest<'a>(&'a AtomicUsize);

impl Drop for AwaitedRequest<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl<D: Disk> Ost<D> {
    /// Has no calling thread wait for the disk from now on. Waits for it this once.
    fn hand_over(&mut self) {
        let last = LastSpace { space: self.store().space().ok(), ..LastSpace::default() };
        self.hand_over.space = Some(KnownSpace(Arc::new(Mutex::new(last))));
    }

    /// Whether what might wait for the disk is handed over to its threads.
    pub(super) fn hands_over(&self) -> bool {
        self.hand_over.space.is_some() || self.watch.is_slow()
    }

    /// Counts a request of a client, if it is for an object without copies and may be handed over.
    pub(super) fn await_disk(&self, is_alone: bool) -> Option<AwaitedRequest<'_>> {
        let awaited = &self.hand_over.awaited;
        (is_alone && self.hands_over()).then(|| {
            awaited.fetch_add(1, Ordering::AcqRel);
            AwaitedRequest(awaited)
        })
    }

    /// Space as the disk has said it last, if no calling thread waits for it.
    pub(super) fn last_space(&self) -> Option<SpaceInfo> {
        let (space, asking) = self.hand_over.space.as_ref()?.last();
        if let Some(asking) = asking {
            let ask = move |store: &ObjectStore<D>| store.space().map(|it| asking.answer(it));
            // Whoever asks next has the answer.
            drop(self.apart_unless_dropped(CallKind::Short, Apart::default(), ask));
        }
        space
    }

    /// Space, if it can be told.
    pub(crate) fn space(&self) -> Option<SpaceInfo> {
        match self.hand_over.space {
            Some(_) => self.last_space(),
            None => self.store().space().ok(),
        }
    }
}

impl<D: Disk> OstSet<D> {
    /// Has no calling thread wait for the disk of an OST from now on, so that others go on when it
    /// stands still. Each change costs a hand-over to a thread of the disk and back.
    pub fn hand_over(&mut self, index: u16) {
        if let Some(ost) = self.osts.get_mut(usize::from(index)) {
            ost.hand_over();
        }
    }

    /// Whether a disk stands still for which requests of clients may wait that have nobody else to ask:
    /// where they wait on the threads that they came to, they are not counted.
    pub fn holds_up_clients(&self) -> bool {
        let holds_up = |ost: &Ost<D>| ost.watch().stands_still() && ost.hand_over.may_be_awaited();
        self.osts.iter().any(holds_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::threads::THREADS_MAX;
    use crate::service::Way;
    use futures_lite::future::{block_on, poll_once};
    use futures_util::future::join_all;
    use glint_proto::{Bulk, ClientId, Ino, ObjectId, OstReply, OstRequest};
    use glint_telemetry::{Counter, counted_here};
    use std::pin::pin;
    use std::sync::mpsc;
    use tempfile::TempDir;

    const CLIENT: ClientId = ClientId(1);

    fn object(ino: u64) -> ObjectId {
        ObjectId { ino: Ino(ino), stripe: 0 }
    }

    fn write(ino: u64) -> OstRequest {
        OstRequest::Write { object: object(ino), offset: 0, mtime: None, kept: false }
    }

    fn read(ost: &Ost, ino: u64) -> u64 {
        let mut room = [0; 8];
        let read = OstRequest::Read { object: object(ino), offset: 0, len: 8 };
        let read = ost.handle(CLIENT, read, Bulk::In(&mut room), Way::InPlace);
        assert_eq!(block_on(read), Ok(OstReply::Data(8)));
        u64::from_le_bytes(room)
    }

    fn ost(dir: &TempDir) -> Ost {
        Ost::new(ObjectStore::open(dir.path(), 64, Arc::default()).unwrap())
    }

    /// Holds up all threads of a disk until this is dropped.
    fn hold_threads(ost: &Ost) -> mpsc::Sender<()> {
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..THREADS_MAX {
            let held = held.clone();
            let hang = move |_: &ObjectStore| {
                let _ = held.lock().recv();
                Ok(())
            };
            drop(ost.apart_unless_dropped(CallKind::Long, Apart::default(), hang));
        }
        release
    }

    #[test]
    fn an_ost_hands_over_when_it_was_told_to() {
        let dir = tempfile::tempdir().unwrap();
        let mut ost = ost(&dir);
        let requests = |ost: &Ost| {
            let before = counted_here(Counter::HandOvers);
            for ino in 1..=50 {
                let written = ost.handle(CLIENT, write(ino), Bulk::Out(&[7; 8]), Way::InPlace);
                block_on(written).unwrap();
                // Once it is open and in memory nothing about it can wait.
                let stat = OstRequest::Stat { object: object(ino) };
                block_on(ost.handle(CLIENT, stat, Bulk::None, Way::InPlace)).unwrap();
            }
            assert!(ost.space().is_some_and(|space| space.total > 0));
            counted_here(Counter::HandOvers) - before
        };
        assert_eq!((requests(&ost), ost.threads()), (0, 0));
        ost.hand_over();
        // With one for the space.
        assert_eq!(requests(&ost), 51);
    }

    /// Changes of some objects come in an order from one thread, and are made by many.
    #[test]
    fn changes_of_an_object_are_made_in_the_order_in_which_they_came() {
        let dir = tempfile::tempdir().unwrap();
        let mut ost = ost(&dir);
        ost.hand_over();
        for round in 0..60_u64 {
            let change = |n: u64| {
                let (ost, data) = (&ost, Arc::new((round + n).to_le_bytes().to_vec()));
                async move {
                    let bulk = Bulk::Shared(&data);
                    ost.handle(CLIENT, write(1 + n % 3), bulk, Way::InPlace).await.unwrap();
                }
            };
            block_on(join_all((0..30).map(change)));
            assert_eq!([1, 2, 3].map(|ino| read(&ost, ino)), [27, 28, 29].map(|n| round + n));
        }
    }

    /// The thread of a disk is held up, and with it an object: nobody else is, nor is data copied for
    /// changes that wait.
    #[test]
    fn a_change_that_does_not_end_holds_up_no_calling_thread_and_no_other_object() {
        let dir = tempfile::tempdir().unwrap();
        let mut ost = ost(&dir);
        ost.hand_over();
        let (release, held) = mpsc::channel::<()>();
        let change = block_on(ost.changing.in_turn(object(1)));
        let hang = move |_: &ObjectStore| {
            // Until the other end is dropped.
            let _ = held.recv();
            Ok(())
        };
        drop(ost.apart_unless_dropped(CallKind::Long, Apart::keeping(change), hang));
        let number = Arc::new(5_u64.to_le_bytes().to_vec());
        let mut waits = pin!(ost.handle(CLIENT, write(1), Bulk::Shared(&number), Way::InPlace));
        assert!(block_on(poll_once(waits.as_mut())).is_none());
        assert_eq!(Arc::strong_count(&number), 1, "it is kept by who waits alone");
        let awaited = || ost.hand_over.awaited.load(Ordering::Acquire);
        assert_eq!(awaited(), 1);
        let other = ost.handle(CLIENT, write(2), Bulk::Shared(&number), Way::InPlace);
        block_on(other).unwrap();
        assert_eq!(read(&ost, 2), 5);
        assert!(ost.space().is_some());
        drop(release);
        block_on(waits).unwrap();
        assert_eq!((read(&ost, 1), awaited()), (5, 0));
    }

    #[test]
    fn a_change_of_a_prompt_disk_comes_after_those_that_wait_for_their_turns() {
        let dir = tempfile::tempdir().unwrap();
        let ost = ost(&dir);
        let change = |ino, data: &'static [u8; 8]| {
            ost.handle(CLIENT, write(ino), Bulk::Out(data), Way::InPlace)
        };
        let first = block_on(ost.changing.in_turn(object(1)));
        let mut second = pin!(change(1, &[2; 8]));
        let mut third = pin!(change(1, &[3; 8]));
        assert!(block_on(poll_once(second.as_mut())).is_none());
        assert!(block_on(poll_once(third.as_mut())).is_none());
        block_on(change(2, &[1; 8])).unwrap();
        drop(first);
        let mut last = pin!(change(1, &[4; 8]));
        assert!(block_on(poll_once(last.as_mut())).is_none(), "others came before");
        block_on(second).unwrap();
        block_on(third).unwrap();
        block_on(last).unwrap();
        assert_eq!(read(&ost, 1), u64::from_le_bytes([4; 8]));
        let before = counted_here(Counter::HandOvers);
        block_on(change(1, &[5; 8])).unwrap();
        assert_eq!(counted_here(Counter::HandOvers), before);
    }

    #[test]
    fn a_flush_before_an_answer_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let mut ost = ost(&dir);
        ost.hand_over();
        block_on(ost.handle(CLIENT, write(1), Bulk::Out(&[7; 8]), Way::InPlace)).unwrap();
        let release = hold_threads(&ost);
        let awaited = || ost.hand_over.awaited.load(Ordering::Acquire);
        let written = write(1);
        for is_alone in [false, true] {
            let mut flush = pin!(ost.commit(&written, is_alone));
            assert!(block_on(poll_once(flush.as_mut())).is_none());
            assert_eq!(awaited(), usize::from(is_alone), "others may have copies");
        }
        let last = ost.commit(&written, true);
        drop(release);
        block_on(last).unwrap();
        assert_eq!(awaited(), 0);
    }

    #[test]
    fn a_change_that_nobody_waits_for_any_more_is_noted_when_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let store = ObjectStore::open(dir.path(), 64, Arc::default()).unwrap();
        let mut osts = OstSet::start(vec![store], Arc::default(), None, false).unwrap();
        osts.hand_over(0);
        let ask = |request| block_on(osts.handle(CLIENT, 0, request, Bulk::None)).reply.unwrap();
        let object = object(1);
        let OstReply::Watched { watch } = ask(OstRequest::Watch { object }) else { panic!() };
        let has_changed = |round| match ask(OstRequest::Changed { object, watch, round, after: 0 })
        {
            OstReply::Changed { extents } => extents[0] != (0, 0),
            other => panic!("{other:?}"),
        };
        let release = hold_threads(&osts.osts[0]);
        {
            let (request, bulk) = (write(1), Bulk::Out(&[7; 8]));
            let _change = osts.begin_change(&request, &bulk);
            let mut writing = pin!(osts.handle(CLIENT, 0, request, bulk));
            assert!(block_on(poll_once(writing.as_mut())).is_none());
        }
        assert!(has_changed(1) && !has_changed(2), "it was given up");
        drop(release);
        let is_noted = |round| {
            std::thread::sleep(Duration::from_millis(10));
            has_changed(round)
        };
        assert!((3..1000).any(is_noted), "it was made");
    }
}
