//! A list of tasks that wait, on whatever threads they run, and are woken together: each looks
//! whether it is for it. Where one takes what others want, too, there are [turns](crate::Turns).
//!
//! Invariants:
//! - What comes after a look is not missed: who waits is in the list before the last look, and who
//!   changes something looks into the list after the change. A fence on each side keeps it so.
//! - A waiter keeps its place until it has what it waits for, however often it is woken.
//! - Nobody is woken under the lock of the list.

use crate::sync::{AtomicU32, Mutex, Ordering, fence};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Tasks that wait, in the order in which they began to. A key says what for, where not all of a
/// list wait for the same.
pub struct WaitList<K = ()> {
    /// `None` until somebody waits: there are far more lists than waiters.
    entries: Mutex<Option<Box<Entries<K>>>>,
    /// How many there are, for those who wake.
    len: AtomicU32,
    /// Counts changes by those who wake; one that is woken looks long before this comes round.
    wakes: AtomicU32,
}

struct Entries<K> {
    next: u64,
    /// By number.
    waiting: VecDeque<Entry<K>>,
}

struct Entry<K> {
    number: u64,
    key: K,
    waker: Waker,
}

/// The place of a task in a list, which it leaves when it is dropped.
struct Place<'a, K> {
    list: &'a WaitList<K>,
    key: K,
    entered: Option<Entered>,
}

struct Entered {
    number: u64,
    /// `wakes` when it was last seen in the list, and with which waker.
    at: u32,
    waker: Waker,
}

impl<K> Default for Entries<K> {
    fn default() -> Entries<K> {
        Entries { next: 0, waiting: VecDeque::new() }
    }
}

impl<K> Default for WaitList<K> {
    fn default() -> WaitList<K> {
        WaitList { entries: Mutex::new(None), len: AtomicU32::new(0), wakes: AtomicU32::new(0) }
    }
}

impl<K> std::fmt::Debug for WaitList<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitList").finish_non_exhaustive()
    }
}

impl WaitList {
    /// Waits until `ready` gives something.
    pub async fn until<R>(&self, ready: impl FnMut() -> Option<R>) -> R {
        self.until_with((), ready).await
    }
}

impl<K> WaitList<K> {
    /// Has all look again.
    pub fn wake(&self) {
        self.take_out(|entries| std::mem::take(&mut entries.waiting));
    }

    /// Has those look again whose key is meant.
    pub fn wake_where(&self, mut is_meant: impl FnMut(&K) -> bool) {
        self.take_out(|entries| {
            if !entries.waiting.iter().any(|entry| is_meant(&entry.key)) {
                return VecDeque::new();
            }
            let all = std::mem::take(&mut entries.waiting).into_iter();
            let (woken, left) = all.partition(|entry| is_meant(&entry.key));
            entries.waiting = left;
            woken
        });
    }

    /// How many wait, but for those who have just been woken.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed) as usize
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take_out<W: IntoIterator<Item = Entry<K>>>(&self, take: impl FnOnce(&mut Entries<K>) -> W) {
        // A waiter that enters after this fence sees what its caller changed before.
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let woken = {
            let mut entries = self.entries.lock();
            let entries = entries.get_or_insert_default();
            let woken = take(entries);
            self.len.store(entries.waiting.len() as u32, Ordering::Relaxed);
            self.wakes.fetch_add(1, Ordering::Relaxed);
            woken
        };
        woken.into_iter().for_each(|entry| entry.waker.wake());
    }

    /// Waits until `ready` returns a result, like [`WaitList::until`], as one who waits for `key`.
    pub async fn until_with<R>(&self, key: K, mut ready: impl FnMut() -> Option<R>) -> R
    where
        K: Clone,
    {
        let mut place = Place { list: self, key, entered: None };
        poll_fn(|context| {
            if let Some(result) = ready() {
                place.leave();
                return Poll::Ready(result);
            }
            if place.is_entered(context.waker()) {
                return Poll::Pending;
            }
            place.enter(context.waker());
            // A waiter that entered after a change sees it now.
            fence(Ordering::SeqCst);
            match ready() {
                Some(result) => {
                    place.leave();
                    Poll::Ready(result)
                }
                None => Poll::Pending,
            }
        })
        .await
    }
}

impl<K> Entries<K> {
    /// Position of an entry, or the one where it belongs.
    fn find(&self, number: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&number, |entry| entry.number)
    }
}

impl<K> Place<'_, K> {
    /// Whether it is in the list with this waker, for all that is known without the lock: who took
    /// it out since has woken it, too.
    fn is_entered(&self, waker: &Waker) -> bool {
        let wakes = self.list.wakes.load(Ordering::Relaxed);
        self.entered.as_ref().is_some_and(|known| known.at == wakes && known.waker.will_wake(waker))
    }

    fn enter(&mut self, waker: &Waker)
    where
        K: Clone,
    {
        let mut entries = self.list.entries.lock();
        let entries = entries.get_or_insert_default();
        let number = self.entered.as_ref().map_or(entries.next, |known| known.number);
        entries.next = entries.next.max(number + 1);
        match entries.find(number) {
            Ok(at) => entries.waiting[at].waker.clone_from(waker),
            Err(at) => {
                let entry = Entry { number, key: self.key.clone(), waker: waker.clone() };
                entries.waiting.insert(at, entry);
            }
        }
        self.list.len.store(entries.waiting.len() as u32, Ordering::Relaxed);
        let at = self.list.wakes.load(Ordering::Relaxed);
        self.entered = Some(Entered { number, at, waker: waker.clone() });
    }

    /// Leaves the list, if it is in it.
    fn leave(&mut self) {
        let Some(entered) = self.entered.take() else { return };
        let mut entries = self.list.entries.lock();
        let entries = entries.get_or_insert_default();
        if let Ok(at) = entries.find(entered.number) {
            entries.waiting.remove(at);
        }
        self.list.len.store(entries.waiting.len() as u32, Ordering::Relaxed);
    }
}

impl<K> Drop for Place<'_, K> {
    fn drop(&mut self) {
        self.leave();
    }
}
