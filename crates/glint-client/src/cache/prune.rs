//! The kernel keeps inodes for as long as it has memory, and what it keeps is known here. So it is
//! asked to forget when that is too many.
//!
//! Invariants:
//! - An inode that the kernel does not forget, because a program watches it or works in it, is asked
//!   for after twice as many rounds each time. So an idle mount asks for next to nothing, however
//!   many of them there are.
//! - While nothing is asked for, and not more becomes known, the inodes are not even looked at in
//!   each round.
//! - An inode that was never pinned, because only a lock that came made it known, is found when the
//!   inodes are looked at, and forgotten like those that are not pinned any more.

use crate::cache::inode::CachedInode;
use crate::cache::{Cache, SHARDS};
use glint_proto::Ino;
use glint_proto::limits::KNOWN_INODES_MAX;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Inodes that the kernel is asked to forget in one message: what a pipe of it takes in pages.
const BATCH: usize = 1024;
/// Doublings of the rounds after which the kernel is asked again for an inode.
const IN_VAIN_MAX: u32 = 9;
/// Doublings of the rounds after which inodes are looked at again, where none was asked for.
const PAUSE_MAX: u32 = 5;
/// What more must be known than when they were looked at last for that to be done at once: this part.
const MORE: usize = 128;

/// How much the kernel may keep.
pub(crate) struct KernelMemory {
    /// Inodes above which the kernel is asked to forget some.
    inodes_max: AtomicUsize,
    asking: Mutex<Asking>,
}

/// A round in which the kernel may be asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Round(u32);

#[derive(Default)]
struct Asking {
    /// Somebody asks it just now.
    is_asked: bool,
    /// Rounds so far, and those before it is asked again.
    round: u32,
    pause: u32,
    /// How often nothing was asked for, one time after the other.
    in_vain: u32,
    /// Inodes that were known when it was asked last.
    known: usize,
}

impl Default for KernelMemory {
    fn default() -> KernelMemory {
        KernelMemory { inodes_max: AtomicUsize::new(KNOWN_INODES_MAX), asking: Mutex::default() }
    }
}

impl KernelMemory {
    /// Sets how many inodes the kernel may keep.
    pub(crate) fn limit(&self, inodes_max: usize) {
        self.inodes_max.store(inodes_max, Ordering::Relaxed);
    }

    /// How many that are.
    pub(crate) fn inodes_max(&self) -> usize {
        self.inodes_max.load(Ordering::Relaxed)
    }

    /// Begins a round in which more inodes are `known` than may be. Returns it if the kernel is to be
    /// asked now; [`end_to_ask`](KernelMemory::end_to_ask) follows then.
    pub(crate) fn begin_to_ask(&self, known: usize) -> Option<Round> {
        let mut asking = self.asking.lock();
        asking.round = asking.round.wrapping_add(1);
        if known > asking.known + asking.known / MORE {
            (asking.pause, asking.in_vain) = (0, 0);
        }
        if asking.is_asked || asking.pause > 0 {
            asking.pause = asking.pause.saturating_sub(1);
            return None;
        }
        (asking.is_asked, asking.known) = (true, known);
        Some(Round(asking.round))
    }

    /// The kernel was asked for so many inodes.
    pub(crate) fn end_to_ask(&self, inodes: usize) {
        let mut asking = self.asking.lock();
        asking.is_asked = false;
        match inodes {
            0 => {
                asking.pause = 1 << asking.in_vain;
                asking.in_vain = (asking.in_vain + 1).min(PAUSE_MAX);
            }
            _ => (asking.pause, asking.in_vain) = (0, 0),
        }
    }
}

/// When the kernel may be asked to forget an inode: the round, whether the file was opened since the last
/// look for inodes to forget, and how often it was asked in vain.
#[derive(Default)]
pub(crate) struct NextAsk(AtomicU32);

impl NextAsk {
    const IN_VAIN: u32 = 0xf;
    /// Such a file has a second chance, as in the CLOCK algorithm. (Of a stat that the kernel answers
    /// nothing is heard.)
    const IS_USED: u32 = 0x10;
    const ROUND_SHIFT: u32 = 5;
    const ROUND: u32 = u32::MAX << NextAsk::ROUND_SHIFT;

    /// Whether it may be asked in this round.
    fn is_due(&self, Round(round): Round) -> bool {
        let next = self.0.load(Ordering::Relaxed);
        // Rounds are counted in the bits that are left, and begin anew after some months.
        let wait = (next & Self::ROUND).wrapping_sub(round << Self::ROUND_SHIFT);
        let longest = 1 << (IN_VAIN_MAX + Self::ROUND_SHIFT);
        next & Self::IN_VAIN == 0 || wait == 0 || wait > longest
    }

    /// It is asked in this round.
    fn note_asked(&self, Round(round): Round) {
        let in_vain = self.0.load(Ordering::Relaxed) & Self::IN_VAIN;
        let next = round.wrapping_add(1 << in_vain) << Self::ROUND_SHIFT;
        self.0.store(next | (in_vain + 1).min(IN_VAIN_MAX), Ordering::Relaxed);
    }

    /// It has forgotten the inode.
    pub(crate) fn forgotten(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The file is opened.
    pub(crate) fn note_use(&self) {
        if self.0.load(Ordering::Relaxed) & Self::IS_USED == 0 {
            self.0.fetch_or(Self::IS_USED, Ordering::Relaxed);
        }
    }

    /// Whether the file was opened since the last time that this was asked.
    fn take_use(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::IS_USED != 0
            && self.0.fetch_and(!Self::IS_USED, Ordering::Relaxed) & Self::IS_USED != 0
    }
}

impl Cache {
    /// Asks the kernel to forget as many inodes as are known above `limit`: of one part after the
    /// other those whose locks are oldest, but not those that were opened since the last look. May wait
    /// for requests under way. Returns how many inodes it was asked for.
    pub(crate) fn prune(&self, limit: usize, round: Round) -> usize {
        let excess = self.len().saturating_sub(limit);
        let mut asked = 0;
        for _ in 0..SHARDS {
            // A scan may find more in a round than a part has.
            match self.prune_next(excess - asked, round) {
                Some(more) => asked += more,
                None => break,
            }
            if asked == excess {
                break;
            }
        }
        asked
    }

    /// Asks the kernel to forget inodes of the next part, at most so many. Returns how many that
    /// are; `None` if it cannot be asked.
    fn prune_next(&self, excess: usize, round: Round) -> Option<usize> {
        let kernel = self.kernel()?;
        let shard = self.next_pruned.fetch_add(1, Ordering::Relaxed);
        let mut found: Vec<(u64, Arc<CachedInode>)> = Vec::new();
        for inode in self.of_shard(shard) {
            let granted = || {
                let state = inode.try_lock()?;
                if state.pins.is_empty() {
                    drop(state);
                    // Nobody says that it is not needed any more, if nobody ever needed it.
                    self.note_idle(&inode);
                    return None;
                }
                let is_unused = state.pins.has_lookups() && !state.pins.is_open();
                is_unused.then(|| state.granted())
            };
            if inode.next_ask.is_due(round)
                && let Some(granted) = granted()
                && !inode.next_ask.take_use()
            {
                found.push((granted, inode));
            }
        }
        found.sort_unstable_by_key(|(granted, inode)| (*granted, inode.ino));
        // In every second round all of them: the oldest may be in use for ever.
        let lap = shard / SHARDS;
        let some = if lap.is_multiple_of(2) { found.len().div_ceil(2) } else { found.len() };
        let some = some.min(excess);
        for part in found[..some].chunks(BATCH) {
            // Before it forgets them.
            part.iter().for_each(|(_, inode)| inode.next_ask.note_asked(round));
            let inos: Vec<Ino> = part.iter().map(|(_, inode)| inode.ino).collect();
            if !kernel.forget_unused(&inos) {
                return None;
            }
        }
        Some(some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::in_flight::Asked;
    use crate::kernel::testing::TestKernel;
    use crate::locks::return_queue::ReturnQueue;
    use glint_proto::lock::{Bits, Grant};
    use glint_proto::{Attr, Timestamp};
    use std::collections::HashSet;

    const LIMIT: usize = 10;
    /// Rounds of a minute.
    const MINUTE: usize = 600;

    /// A mount whose kernel keeps more inodes than it may.
    struct Mount {
        cache: Cache,
        kernel: Arc<TestKernel>,
        memory: KernelMemory,
        /// How often the inodes were looked at.
        looked: usize,
    }

    impl Mount {
        fn new() -> Mount {
            let (cache, kernel) = (Cache::new(Arc::default()), Arc::<TestKernel>::default());
            cache.set_kernel(kernel.clone(), Ino::ROOT);
            Mount { cache, kernel, memory: KernelMemory::default(), looked: 0 }
        }

        fn look_up(&self, inos: std::ops::Range<u64>) {
            for ino in inos.map(Ino) {
                let attr = Attr::new(ino, 0o100_644, Timestamp::default());
                let (name, asked) = (ino.0.to_le_bytes(), Asked::now());
                self.cache.learn_name(Ino::ROOT, &name, &attr, &asked, true);
            }
        }

        /// What the kernel is asked for in so many rounds.
        fn asked_in(&mut self, rounds: usize) -> Vec<Ino> {
            for _ in 0..rounds {
                if self.cache.len() > LIMIT
                    && let Some(round) = self.memory.begin_to_ask(self.cache.len())
                {
                    self.looked += 1;
                    self.memory.end_to_ask(self.cache.prune(LIMIT, round));
                }
            }
            self.kernel.take_unused()
        }
    }

    #[test]
    fn an_idle_mount_asks_for_next_to_nothing() {
        let mut mount = Mount::new();
        mount.look_up(100..1100);
        let first = mount.asked_in(MINUTE);
        assert_eq!(first.iter().collect::<HashSet<_>>().len(), 1000, "each is asked for");
        assert!(first.len() < 11 * 1000, "{}", first.len());
        mount.looked = 0;
        let later = mount.asked_in(10 * MINUTE);
        assert!((5_000..15_000).contains(&later.len()), "{}", later.len());
        assert!(mount.looked < 10 * MINUTE / 10, "{}", mount.looked);
    }

    #[test]
    fn what_becomes_known_is_asked_for_beside_what_is_in_use() {
        let mut mount = Mount::new();
        mount.look_up(100..1100);
        mount.asked_in(MINUTE);
        mount.look_up(2000..2100);
        let asked: HashSet<_> = mount.asked_in(4).into_iter().collect();
        assert!((2000..2100).all(|ino| asked.contains(&Ino(ino))), "{}", asked.len());
        // What the kernel forgot, and is told of again, is as new.
        mount.asked_in(MINUTE);
        mount.cache.forget(Ino(2000), 1);
        mount.look_up(2000..2001);
        assert!(mount.asked_in(2 << PAUSE_MAX).contains(&Ino(2000)));
    }

    /// As when a call was interrupted after the answer came.
    #[test]
    fn what_only_a_lock_made_known_is_forgotten_too() {
        let (mut mount, returns) = (Mount::new(), ReturnQueue::default());
        mount.look_up(100..105);
        let grant = |ino| Grant::Bits { ino: Ino(ino), bits: Bits::SHARED, number: 1 };
        let grants: Vec<_> = (1000..1100).map(grant).collect();
        mount.cache.learn_grants(&grants, mount.cache.generation());
        mount.cache.shrink(LIMIT, 1000, &returns, |_| false);
        assert_eq!(mount.cache.len(), 105, "nobody has said that they are not needed");
        let asked: HashSet<_> = mount.asked_in(1).into_iter().collect();
        assert!(asked.iter().all(|ino| ino.0 < 105), "the kernel does not know them");
        mount.cache.shrink(LIMIT, 1000, &returns, |_| false);
        assert_eq!(mount.cache.len(), LIMIT);
        assert!((100..105).all(|ino| mount.cache.find(Ino(ino)).is_some()));
        assert_eq!(returns.take().len(), 105 - LIMIT);
    }

    #[test]
    fn files_that_are_opened_stay_while_a_scan_passes() {
        let mut mount = Mount::new();
        let (used, mut others) = (100..105, HashSet::new());
        mount.look_up(used.clone());
        for seen in 0..20 {
            for ino in used.clone() {
                mount.cache.inode(Ino(ino)).next_ask.note_use();
            }
            mount.look_up(1000 + 100 * seen..1100 + 100 * seen);
            for ino in mount.asked_in(1) {
                assert!(!used.contains(&ino.0), "{ino:?} in round {seen}");
                others.insert(ino);
            }
        }
        assert!(others.len() > 1500, "{}", others.len());
        // Nobody opens them any more.
        let asked = mount.asked_in(MINUTE);
        assert!(used.clone().all(|ino| asked.contains(&Ino(ino))));
    }

    #[test]
    fn rounds_begin_anew() {
        let next = NextAsk::default();
        for begin in [0, 1 << 28, u32::MAX - 7] {
            let at = |round: u32| Round(begin.wrapping_add(round));
            next.forgotten();
            for round in 0..20_000 {
                let was_asked = [0, 1, 3, 7, 15, 31, 63, 127, 255, 511].contains(&round)
                    || (round > 511 && (round - 511) % 512 == 0);
                assert_eq!(next.is_due(at(round)), was_asked, "{round} of {begin}");
                if was_asked {
                    next.note_asked(at(round));
                }
            }
        }
    }
}
