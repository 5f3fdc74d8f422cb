//! A state under a lock, and those who wait for a change of it.

use crate::WaitList;
use parking_lot::{Mutex, MutexGuard};

/// A state under a lock, and those who wait for a change of it. Who changes it wakes them when the
/// lock is free again.
#[derive(Debug)]
pub struct Monitor<T, K = ()> {
    state: Mutex<T>,
    waiting: WaitList<K>,
}

impl<T: Default, K> Default for Monitor<T, K> {
    fn default() -> Monitor<T, K> {
        Monitor::new(T::default())
    }
}

impl<T, K> Monitor<T, K> {
    /// A state that nobody waits for.
    pub fn new(state: T) -> Monitor<T, K> {
        Monitor { state: Mutex::new(state), waiting: WaitList::default() }
    }

    /// The state.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock()
    }

    /// The state, if nobody has it just now.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.state.try_lock()
    }

    /// Changes the state, and has all look again who wait.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.wake();
        result
    }

    /// See [`WaitList::wake`].
    pub fn wake(&self) {
        self.waiting.wake();
    }

    /// See [`WaitList::wake_where`].
    pub fn wake_where(&self, is_meant: impl FnMut(&K) -> bool) {
        self.waiting.wake_where(is_meant);
    }

    /// Waits until `look` finds what it wants, as one who waits for `key`.
    pub async fn until_with<R>(&self, key: K, mut look: impl FnMut(&mut T) -> Option<R>) -> R
    where
        K: Clone,
    {
        self.waiting.until_with(key, || look(&mut self.lock())).await
    }
}

impl<T> Monitor<T> {
    /// Waits until `look` finds what it wants.
    pub async fn until<R>(&self, look: impl FnMut(&mut T) -> Option<R>) -> R {
        self.until_with((), look).await
    }
}
