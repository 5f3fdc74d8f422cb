//! Whether the store of an OST is being settled: by one at a time, and the end waits for it.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// Whether a store is being settled.
#[derive(Clone, Default)]
pub(crate) struct SettleGate(Arc<(Mutex<bool>, Condvar)>);

/// The store is being settled until this is dropped, also where there is no thread for it.
pub(crate) struct SettlingOnce(SettleGate);

impl SettleGate {
    /// Begins, unless the store is being settled.
    pub(crate) fn begin(&self) -> Option<SettlingOnce> {
        let (is_settling, _) = &*self.0;
        let was_settling = std::mem::replace(&mut *is_settling.lock(), true);
        (!was_settling).then(|| SettlingOnce(self.clone()))
    }

    /// Waits until the store is not being settled.
    pub(crate) fn wait(&self) {
        let (is_settling, ended) = &*self.0;
        ended.wait_while(&mut is_settling.lock(), |is_settling| *is_settling);
    }
}

impl Drop for SettlingOnce {
    fn drop(&mut self) {
        let SettlingOnce(SettleGate(shared)) = self;
        let (is_settling, ended) = &**shared;
        *is_settling.lock() = false;
        ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn one_settles_at_a_time_and_its_end_is_waited_for() {
        let settling = SettleGate::default();
        settling.wait();
        let once = settling.begin().unwrap();
        assert!(settling.begin().is_none());
        let (says, hears) = mpsc::channel();
        let waits = settling.clone();
        let waiting = std::thread::spawn(move || {
            waits.wait();
            says.send(()).unwrap();
        });
        assert!(hears.recv_timeout(Duration::from_millis(20)).is_err());
        drop(once);
        hears.recv_timeout(Duration::from_secs(10)).unwrap();
        waiting.join().unwrap();
        assert!(settling.begin().is_some());
    }
}
