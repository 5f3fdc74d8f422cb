//! Watches whether the servers are heard of.
//!
//! Invariant: a client that has not heard of its servers for most of its lease stops to rely on what
//! it has cached: when the servers give its locks to others, it knows nothing that could be old.

use crate::client::Client;
use glint_net::{MdsSession, Transport};
use glint_proto::lock::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the servers have been silent for so long that nothing cached is used.
#[derive(Default)]
pub(crate) struct Suspension(AtomicBool);

impl Suspension {
    pub(crate) fn is_now(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it. Returns whether it was so before.
    fn set(&self, suspended: bool) -> bool {
        self.0.swap(suspended, Ordering::AcqRel)
    }
}

impl<T: Transport> Client<T> {
    /// Looks whether the servers were heard of. Waits for nothing.
    pub(crate) fn watch(&self) {
        let silent = self.transport.mds().silence();
        if silent > self.parameters.lease * 2 / 3 {
            if !self.locks.suspension.set(true) {
                tracing::warn!(
                    "no word from the servers for {} s: what is cached is not used",
                    silent.as_secs()
                );
                self.end_delegations();
                self.forget_cached().into_iter().for_each(blocking::Task::detach);
            }
        } else {
            self.locks.suspension.set(false);
        }
    }

    /// Relies on nothing that locks on inodes protect. Returns how the kernel forgets: that may
    /// wait for requests that wait for the servers, for each inode.
    pub(crate) fn forget_cached(&self) -> Vec<blocking::Task<()>> {
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
        let mut forgetting = vec![blocking::unblock(move || {
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
                forgetting.push(blocking::unblock(move || _ = kernel.forget_attributes(ino)));
            }
            if pages {
                let (kernel, ino) = (kernel.clone(), inode.ino);
                blocking::unblock(move || kernel.forget_pages(ino, Range::ALL)).detach();
            }
        }
        forgetting
    }
}
