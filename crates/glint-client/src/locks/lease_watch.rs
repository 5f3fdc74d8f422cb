//! Watches whether the servers are heard of.
//!
//! Invariant: a client that has not heard of its servers for most of its lease stops to rely on what
//! it has cached: when the servers give its locks to others, it knows nothing that could be old.
//!
//! Each call that is answered from the cache looks at the clock itself. Where this process or its
//! machine stood still, the first call afterwards may come before the thread that watches.

use crate::client::Client;
use glint_net::host::{self, UnblockedWork};
use glint_net::{MdsSession, Transport};
use glint_proto::clock;
use glint_proto::lock::Range;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Until when what is cached may be used, as the servers were heard of.
pub(crate) struct Suspension {
    /// When this client began.
    begun: Instant,
    /// Until when it may be used at least, in nanoseconds since then.
    until_ns: AtomicU64,
    /// Whether the servers have been silent for so long that nothing cached is used. Held while it
    /// is forgotten.
    is_suspended: Mutex<bool>,
    /// One owner more for each file whose pages the kernel is about to forget.
    forgetting: Arc<()>,
}

impl Default for Suspension {
    fn default() -> Suspension {
        Suspension {
            begun: clock::now(),
            until_ns: AtomicU64::new(0),
            is_suspended: Mutex::new(false),
            forgetting: Arc::default(),
        }
    }
}

impl Suspension {
    /// Whether the servers were heard of so late that nothing has to be looked at again.
    fn is_confirmed(&self) -> bool {
        let now = clock::since(self.begun);
        now < Duration::from_nanos(self.until_ns.load(Ordering::Acquire))
    }

    /// From `now` on, what is cached may be used for this time.
    fn confirm(&self, now: Instant, left: Duration) {
        let until = now.saturating_duration_since(self.begun).saturating_add(left);
        let until_ns = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.until_ns.store(until_ns, Ordering::Release);
    }

    /// Whether the kernel may still have pages that it is about to forget.
    fn is_forgetting_pages(&self) -> bool {
        Arc::strong_count(&self.forgetting) > 1
    }
}

impl<T: Transport> Client<T> {
    /// Whether the servers have been silent for so long that nothing cached may be used. Waits for
    /// no server. Takes the locks of inodes if it is so.
    pub(crate) fn is_suspended(&self) -> bool {
        self.has_locks() && !self.locks.suspension.is_confirmed() && self.watch()
    }

    /// Whether the kernel may go on to use pages of a file that it read before an open.
    pub(crate) fn pages_are_current(&self) -> bool {
        !self.is_suspended() && !self.locks.suspension.is_forgetting_pages()
    }

    /// Looks whether the servers were heard of, and forgets what is cached if they were not.
    /// Returns whether that is so. Waits for no server.
    pub(crate) fn watch(&self) -> bool {
        let suspension = &self.locks.suspension;
        // Whoever comes meanwhile goes on when everything is forgotten.
        let mut is_suspended = suspension.is_suspended.lock();
        // Before the silence is looked at: time that passes in between makes it end earlier.
        let now = clock::now();
        let silent = self.transport.mds().silence();
        match (self.parameters.lease * 2 / 3).checked_sub(silent) {
            Some(left) => {
                suspension.confirm(now, left);
                *is_suspended = false;
            }
            None if !*is_suspended => {
                tracing::warn!(
                    "no word from the servers for {} s: what is cached is not used",
                    silent.as_secs()
                );
                self.end_delegations();
                self.forget_cached().into_iter().for_each(UnblockedWork::detach);
                *is_suspended = true;
            }
            None => {}
        }
        *is_suspended
    }

    /// Relies on nothing that locks on inodes protect. Returns how the kernel forgets: that may
    /// wait for requests that wait for the servers, for each inode.
    pub(crate) fn forget_cached(&self) -> Vec<UnblockedWork<()>> {
        let kernel = self.cache.kernel().cloned();
        let inodes = self.cache.all();
        for inode in &inodes {
            let mut state = inode.lock();
            state.on_silence();
            if let Some(rare) = state.rare.made() {
                rare.data.forget_read();
            }
            if !state.rare.delegation.is_delegated() {
                state.dentries.clear();
            }
        }
        self.forget_foreign_children(&inodes);
        let Some(kernel) = kernel else { return Vec::new() };
        let names = kernel.clone();
        let mut forgetting = vec![host::unblock(move || {
            if !names.forget_all_names() {
                tracing::warn!(
                    "this kernel cannot forget all names at once; they are looked up anew \
                     when their inodes are"
                );
            }
        })];
        for inode in &inodes {
            let (known, pages) = {
                let state = inode.lock();
                (self.cache.is_in_kernel(inode, &state), state.rare.data.has_pages())
            };
            if known {
                let (kernel, ino) = (kernel.clone(), inode.ino);
                forgetting.push(host::unblock(move || _ = kernel.forget_attributes(ino)));
            }
            if pages {
                let (kernel, ino) = (kernel.clone(), inode.ino);
                let forgetting = self.locks.suspension.forgetting.clone();
                let forget = move || {
                    kernel.forget_pages(ino, Range::ALL);
                    drop(forgetting);
                };
                host::unblock(forget).detach();
            }
        }
        forgetting
    }
}
