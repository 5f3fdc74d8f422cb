//! Chains that the rounds of a server work at, each apart from the others.
//!
//! Invariants:
//! - A chain that waits, for a disk or another server, keeps no other waiting whose head is on another
//!   disk. A pass of a round leaves a chain at which an earlier pass still works to that one, and the
//!   next pass begins without waiting for either ([`Round`](crate::rounds::Round)).
//! - No two passes of a round work at a chain at once.
//! - Of each head here a round works at no more than so many chains at once, in all its passes: those
//!   that wait for the disk of one head take no place of those of another.
//! - A pass that waits has a chain that no other has, so there are not more of them than chains.

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// Chains that each round works at.
#[derive(Default)]
pub(super) struct AtWork {
    pub(super) takeover: ChainsAtWork,
    pub(super) doubts: ChainsAtWork,
    pub(super) heal: ChainsAtWork,
    /// OSTs here that are being searched, in the place of chains and heads.
    pub(super) searches: ChainsAtWork,
    /// The same of those of which it is found out whose objects were found there.
    pub(super) naming: ChainsAtWork,
}

/// Chains that one round works at, and their heads.
#[derive(Default)]
pub(super) struct ChainsAtWork(Mutex<BTreeMap<u16, u16>>);

/// A chain that a pass works at, until it is dropped.
struct ChainAtWork<'a> {
    all: &'a ChainsAtWork,
    target: u16,
}

impl Drop for ChainAtWork<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.target);
    }
}

impl ChainsAtWork {
    /// Begins to work at a chain, unless another pass does, or works at `most` of this head.
    fn begin(&self, target: u16, head: u16, most: usize) -> Option<ChainAtWork<'_>> {
        let mut all = self.0.lock();
        let of_head = all.values().filter(|its| **its == head).count();
        if of_head >= most || all.contains_key(&target) {
            return None;
        }
        all.insert(target, head);
        Some(ChainAtWork { all: self, target })
    }

    /// One pass: does `work` at these chains, given as targets and heads, in their order and at no more
    /// than `most` of each head at once. Returns whether there is more to do at one of them.
    pub(super) async fn pass(
        &self,
        chains: &[(u16, u16)],
        most: usize,
        work: impl AsyncFn(u16) -> bool,
    ) -> bool {
        let work = &work;
        let heads: BTreeSet<u16> = chains.iter().map(|(_, head)| *head).collect();
        let of_heads = heads.into_iter().map(|head| {
            let its = chains.iter().filter(move |one| one.1 == head).map(|one| one.0);
            let worked = stream::iter(its).map(move |target| async move {
                match self.begin(target, head, most) {
                    Some(_at_work) => work(target).await,
                    None => false,
                }
            });
            worked.buffer_unordered(most).fold(false, async |all, more| all | more)
        });
        join_all(of_heads).await.contains(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once, yield_now};
    use std::cell::RefCell;
    use std::future::pending;
    use std::pin::pin;

    static CHAINS: [(u16, u16); 4] = [(1, 0), (2, 0), (3, 0), (4, 1)];

    /// Works at a chain; the disk of OST 0 stands still.
    async fn work(worked: &RefCell<Vec<u16>>, target: u16) -> bool {
        worked.borrow_mut().push(target);
        if target < 4 {
            pending::<()>().await;
        }
        yield_now().await;
        true
    }

    /// A pass over some chains, two of each head at once.
    async fn pass(
        at_work: &ChainsAtWork,
        chains: &[(u16, u16)],
        worked: &RefCell<Vec<u16>>,
    ) -> bool {
        at_work.pass(chains, 2, async |target| work(worked, target).await).await
    }

    #[test]
    fn chains_of_a_disk_that_stands_still_keep_no_others() {
        let (at_work, worked) = (ChainsAtWork::default(), RefCell::default());
        let pass = || pass(&at_work, &CHAINS, &worked);
        {
            let mut first = pin!(pass());
            (0..9).for_each(|_| assert!(block_on(poll_once(first.as_mut())).is_none()));
            assert_eq!(worked.take(), [1, 2, 4], "two of each head");
            assert!(block_on(pass()));
            assert_eq!(worked.take(), [4]);
        }
        let mut next = pin!(pass());
        assert!(block_on(poll_once(next.as_mut())).is_none());
        assert_eq!(worked.take(), [1, 2, 4], "what was dropped has left its place");
    }

    #[test]
    fn no_two_passes_work_at_a_chain_at_once() {
        let (at_work, worked) = (ChainsAtWork::default(), RefCell::default());
        let pass = || pass(&at_work, &CHAINS[3..], &worked);
        let mut first = pin!(pass());
        assert!(block_on(poll_once(first.as_mut())).is_none());
        assert!(!block_on(pass()));
        assert!(block_on(first));
        assert_eq!(worked.take(), [4]);
    }

    #[test]
    fn all_chains_have_their_turn_in_a_pass() {
        let (at_work, worked) = (ChainsAtWork::default(), RefCell::new(Vec::new()));
        let chains: Vec<(u16, u16)> = (0..100).map(|target| (target, target % 3)).collect();
        let is_more = block_on(at_work.pass(&chains, 2, async |target| {
            yield_now().await;
            worked.borrow_mut().push(target);
            target == 50
        }));
        assert!(is_more);
        let mut all = worked.take();
        all.sort_unstable();
        assert_eq!(all, (0..100).collect::<Vec<u16>>());
    }
}
