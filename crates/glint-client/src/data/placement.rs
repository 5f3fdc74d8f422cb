//! Over which OSTs a client lays out the files that it makes by itself, and on which OST an object
//! is.
//!
//! Invariant: files are laid out as the MDS would have done it when it gave their inode numbers
//! last.

use glint_proto::chain::ChainTargets;
use glint_proto::{Avoided, Ino, Layout};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};

/// The OSTs that a client knows.
pub(crate) struct OstPlacement {
    /// Over which files are laid out that are made here.
    osts: AtomicU16,
    /// OSTs that new files avoided when the MDS last gave inode numbers.
    avoided: Mutex<Vec<u16>>,
    /// Chains of each number of copies.
    chains: Mutex<Vec<ChainTargets>>,
    /// OSTs of the server of the MDS.
    own: u16,
}

impl OstPlacement {
    /// Placement over `osts` OSTs, of which the server of the MDS has `own`.
    pub(crate) fn new(osts: u16, own: u16) -> OstPlacement {
        let (avoided, chains) = Default::default();
        OstPlacement { osts: AtomicU16::new(osts), avoided, chains, own }
    }

    /// The MDS has given inode numbers, for files over so many OSTs.
    pub(crate) fn note(&self, osts: u16, avoided: Vec<u16>, chains: Vec<ChainTargets>) {
        self.osts.store(osts, Ordering::Relaxed);
        *self.chains.lock() = chains;
        *self.avoided.lock() = avoided;
    }

    /// Over how many targets files with so many copies are laid out, OSTs or chains; 0 if that is
    /// not known.
    pub(crate) fn targets(&self, copies: u8) -> u16 {
        match copies {
            0 | 1 => self.osts.load(Ordering::Relaxed),
            _ => {
                let chains = self.chains.lock();
                chains.iter().find(|of| of.copies == copies).map_or(0, |of| of.count)
            }
        }
    }

    /// The layout of a new inode over so many OSTs, in a directory with that layout; `None` if a
    /// stripe would lie on a target that is avoided: the MDS knows whether it may.
    pub(crate) fn layout(
        &self,
        directory: Layout,
        ino: Ino,
        is_dir: bool,
        osts: u16,
    ) -> Option<Layout> {
        let over = |all: &[u16]| {
            let layout =
                directory.inherit(ino, is_dir, osts, Avoided { all, worst: all, gone: &[] });
            let mut avoided = all.iter().filter(|index| **index < osts);
            let is_good = is_dir || avoided.all(|index| !layout.has_stripe_at(*index));
            is_good.then_some(layout)
        };
        match directory.replicas {
            0 | 1 => over(&self.avoided.lock()),
            copies => {
                let chains = self.chains.lock();
                let of_it = chains.iter().find(|of| of.copies == copies);
                over(of_it.map_or(&[][..], |of| &of.avoided))
            }
        }
    }

    /// The OST with a stripe.
    pub(crate) fn ost_of(&self, layout: Layout, stripe: u16) -> u16 {
        layout.ost_of(stripe, self.own)
    }

    /// The OSTs of the server of the MDS.
    pub(crate) fn own(&self) -> std::ops::Range<u16> {
        0..self.own
    }
}
