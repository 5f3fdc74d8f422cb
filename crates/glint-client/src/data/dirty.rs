//! Data written to a file that is not at its OSTs yet: extents of its objects.
//!
//! An extent grows as long as writes touch it, up to the aligned block that one request
//! carries, and is *full* then. So requests are formed from what is contiguous in an object,
//! whoever wrote it and in whichever order, and never from the number of dirty pages. Extents
//! that lie apart and are due together travel together, in one [`ExtentsInFlight`].
//!
//! Invariants:
//! - Extents of an object do not overlap and do not cross blocks.
//! - No extent is sent while one that overlaps it is on its way: the later write would
//!   otherwise be able to arrive first.
//! - What could not be sent comes back under what was written since.
//! - Nothing here looks at all extents to find a few: what is full and what is old has an index.

use crate::data::extents::{DirtyObject, Due, Extent, Retry};
use glint_proto::Errno;
use glint_proto::retry::Failing;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Instant;

/// Extents of one object on their way, in the order of their offsets.
pub(crate) struct ExtentsInFlight {
    pub(crate) stripe: u16,
    pub(crate) extents: SmallVec<[(u64, Extent); 1]>,
    /// See [`Dirty::discard`].
    life: u64,
}

impl ExtentsInFlight {
    /// How much data that is.
    pub(crate) fn bytes(&self) -> usize {
        self.extents.iter().map(|(_, extent)| extent.data.len()).sum()
    }
}

/// Outcome of a request that could not be executed.
#[derive(Default, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// Some of it had not failed before.
    pub(crate) first: bool,
    /// How much of it has been overwritten since, in bytes.
    pub(crate) overwritten: usize,
    /// How much of it is given up, in bytes.
    pub(crate) lost: usize,
}

/// The dirty data of a file.
pub(crate) struct Dirty {
    block: u64,
    /// In the order of their stripes.
    objects: Vec<DirtyObject>,
    life: u64,
    completions: u64,
}

impl Dirty {
    /// For requests of at most `block` bytes, a power of two.
    pub(crate) fn new(block: usize) -> Dirty {
        Dirty { block: block as u64, objects: Vec::new(), life: 0, completions: 0 }
    }

    /// Whether everything is at the OSTs.
    pub(crate) fn is_clean(&self) -> bool {
        self.objects.is_empty()
    }

    /// Whether something is on its way.
    pub(crate) fn has_in_flight(&self) -> bool {
        self.objects.iter().any(|object| !object.flights.is_empty())
    }

    /// How often requests have come back.
    pub(crate) fn completions(&self) -> u64 {
        self.completions
    }

    /// Whether an extent is full.
    pub(crate) fn has_full(&self) -> bool {
        self.objects.iter().any(|object| !object.full.is_empty())
    }

    /// How much waits.
    pub(crate) fn bytes(&self) -> usize {
        self.objects.iter().map(|object| object.bytes).sum()
    }

    /// How much waits or is on its way.
    pub(crate) fn unsent(&self) -> usize {
        let flights = self.objects.iter().flat_map(|object| &object.flights);
        self.bytes() + flights.map(|(.., bytes)| bytes).sum::<usize>()
    }

    /// When the oldest data that waits was written.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.objects.iter().filter_map(DirtyObject::oldest).min()
    }

    /// Whether something that was written up to this moment waits or is on its way.
    pub(crate) fn has_older(&self, then: Instant) -> bool {
        let flights = || self.objects.iter().flat_map(|object| &object.flights);
        self.oldest().is_some_and(|oldest| oldest <= then)
            || flights().any(|(_, since, _)| *since <= then)
    }

    /// Failure that has lasted longest, of extents that wait.
    pub(crate) fn failing(&self) -> Option<Failing> {
        let failed = self.objects.iter().flat_map(DirtyObject::failed).map(|(_, failing)| failing);
        failed.min_by_key(|failing| failing.since)
    }

    fn object(&mut self, stripe: u16) -> &mut DirtyObject {
        let at = match self.objects.binary_search_by_key(&stripe, |object| object.stripe) {
            Ok(at) => at,
            Err(at) => {
                self.objects.insert(at, DirtyObject::new(stripe));
                at
            }
        };
        &mut self.objects[at]
    }

    /// Writes into an object. Returns by how many bytes the dirty data grew.
    pub(crate) fn write(&mut self, stripe: u16, offset: u64, data: &[u8], now: Instant) -> usize {
        let block = self.block;
        let object = self.object(stripe);
        let (mut at, mut rest, mut grown) = (offset, data, 0);
        while !rest.is_empty() {
            let room = (block - at % block) as usize;
            let (piece, after) = rest.split_at(room.min(rest.len()));
            grown += object.write(at, piece, now, block);
            (at, rest) = (at + piece.len() as u64, after);
        }
        grown
    }

    /// Takes extents of an object out that are due and may be sent together, of some stripes
    /// only, and of those that failed the ones that have rested at `now`.
    pub(crate) fn take(
        &mut self,
        due: Due,
        now: Instant,
        stripes: impl Fn(u16) -> bool,
    ) -> Option<ExtentsInFlight> {
        let (block, life) = (self.block, self.life);
        let found = self.objects.iter_mut().find_map(|object| {
            let may = !object.extents.is_empty() && stripes(object.stripe);
            let due = if may { object.due(due, now, block) } else { SmallVec::new() };
            (!due.is_empty()).then_some((object, due))
        });
        let (object, due) = found?;
        let first = *due.first()?;
        let (mut since, mut bytes) = (now, 0);
        let mut extents = SmallVec::with_capacity(due.len());
        for offset in due {
            let Some(mut extent) = object.remove(offset) else { continue };
            // The data may be kept until it is durable, and its spare room is not used.
            if let Some(data) = Arc::get_mut(&mut extent.data) {
                data.shrink_to_fit();
            }
            object.in_flight.insert(offset, offset + extent.data.len() as u64);
            since = since.min(extent.since);
            bytes += extent.data.len();
            extents.push((offset, extent));
        }
        object.flights.push((first, since, bytes));
        Some(ExtentsInFlight { stripe: object.stripe, extents, life })
    }

    /// Whether what was taken out has not been discarded since.
    pub(crate) fn lives(&self, in_flight: &ExtentsInFlight) -> bool {
        in_flight.life == self.life
    }

    /// A request has arrived, or is given up.
    pub(crate) fn on_completed(&mut self, in_flight: &ExtentsInFlight) {
        self.object_of(in_flight);
        self.tidy();
    }

    fn object_of(&mut self, in_flight: &ExtentsInFlight) -> &mut DirtyObject {
        self.completions += 1;
        let object = self.object(in_flight.stripe);
        for (offset, _) in &in_flight.extents {
            object.in_flight.remove(offset);
        }
        if let Some((first, _)) = in_flight.extents.first() {
            object.flights.retain(|(flight, ..)| flight != first);
        }
        object
    }

    fn tidy(&mut self) {
        self.objects.retain(|object| !object.extents.is_empty() || !object.flights.is_empty());
    }

    /// A request could not be executed: what it carried waits again, or is given up because it
    /// failed for too long, or everything was given up since.
    pub(crate) fn on_failed(
        &mut self,
        request: ExtentsInFlight,
        errno: Errno,
        now: Instant,
    ) -> Failed {
        let (block, lives) = (self.block, request.life == self.life);
        let object = self.object_of(&request);
        let others = request.extents.len() > 1;
        let mut outcome = Failed::default();
        for (offset, mut extent) in request.extents {
            let before = extent.retry;
            extent.retry = Retry::after(before, errno, now, others).filter(|_| lives);
            if extent.retry.is_some() {
                outcome.first |= before.is_none();
                outcome.overwritten += object.put_back(offset, extent, block);
            } else {
                outcome.lost += extent.data.len();
            }
        }
        self.tidy();
        outcome
    }

    /// Gives all that waits up, and what is on its way if it does not arrive. Returns how much
    /// waited, by stripe.
    pub(crate) fn discard(&mut self) -> Vec<(u16, usize)> {
        self.life += 1;
        let mut discarded = Vec::new();
        for object in &mut self.objects {
            discarded.push((object.stripe, object.clear()));
        }
        self.tidy();
        discarded.retain(|(_, bytes)| *bytes > 0);
        discarded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_proto::Errno;
    use glint_proto::limits::EXTENTS_PER_WRITE_MAX;
    use std::collections::HashMap;
    use std::time::Duration;

    const BLOCK: usize = 64;

    fn take(dirty: &mut Dirty, due: Due) -> Option<ExtentsInFlight> {
        dirty.take(due, Instant::now(), |_| true)
    }

    #[test]
    fn writes_in_any_order_make_full_requests() {
        let mut dirty = Dirty::new(BLOCK);
        let now = Instant::now();
        // Two writers, strided: the even pieces, then the odd ones.
        for parity in [0, 1] {
            for piece in (0..16u64).filter(|piece| piece % 2 == parity) {
                dirty.write(0, piece * 16, &[piece as u8; 16], now);
            }
        }
        for block in 0..4u64 {
            let in_flight = take(&mut dirty, Due::Full).expect("a full extent");
            let [(offset, extent)] = &in_flight.extents[..] else { panic!("one extent") };
            assert_eq!((*offset, extent.data.len()), (block * 64, BLOCK));
            assert_eq!(extent.data[17], (block * 4 + 1) as u8);
            dirty.on_completed(&in_flight);
        }
        assert!(dirty.is_clean());
    }

    #[test]
    fn what_overlaps_a_request_on_its_way_waits() {
        let mut dirty = Dirty::new(BLOCK);
        let now = Instant::now();
        dirty.write(3, 0, b"old", now);
        let first = take(&mut dirty, Due::Before(now)).unwrap();
        dirty.write(3, 1, b"new", now);
        assert!(take(&mut dirty, Due::Before(now)).is_none() && !dirty.is_clean());
        dirty.write(3, 20, b"else", now);
        assert_eq!(take(&mut dirty, Due::Before(now)).unwrap().extents[0].0, 20);
        dirty.on_completed(&first);
        assert_eq!(take(&mut dirty, Due::Before(now)).unwrap().extents[0].1.data[..], *b"new");
        assert!(take(&mut dirty, Due::Before(now)).is_none());
    }

    #[test]
    fn extents_that_lie_apart_travel_together_and_come_back_under_newer_data() {
        let mut dirty = Dirty::new(256);
        let (then, now) = (Instant::now(), Instant::now() + Duration::from_millis(1));
        for offset in [90, 10, 50, 70, 30] {
            dirty.write(0, offset, &[1; 10], then);
        }
        dirty.write(0, 1000, &[1; 10], now);
        let in_flight = take(&mut dirty, Due::Before(then)).unwrap();
        let offsets: Vec<u64> = in_flight.extents.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, [10, 30, 50, 70, 90], "and not what is younger");
        assert_eq!(dirty.write(0, 15, &[2; 20], now), 20);
        let failed = dirty.on_failed(in_flight, Errno::EMFILE, now);
        assert_eq!(failed, Failed { first: true, overwritten: 10, lost: 0 }, "so much is newer");
        let failing = dirty.failing().expect("what failed");
        assert!(dirty.has_older(then));
        assert_eq!(dirty.bytes(), 70);
        let in_flight = dirty.take(Due::Before(then), failing.rests_until, |_| true).unwrap();
        let (offset, extent) = &in_flight.extents[0];
        assert_eq!(
            (*offset, &extent.data[..]),
            (10, &[[1; 5], [2; 5], [2; 5], [2; 5], [2; 5], [1; 5]].concat()[..])
        );
        assert_eq!(in_flight.bytes(), 60);
        dirty.on_completed(&in_flight);
        assert!(dirty.failing().is_none() && !dirty.has_older(then));
    }

    #[test]
    fn what_fails_rests_and_what_was_given_up_does_not_come_back() {
        let mut dirty = Dirty::new(BLOCK);
        let now = Instant::now();
        dirty.write(0, 0, b"data", now);
        let in_flight = take(&mut dirty, Due::Before(now)).unwrap();
        dirty.on_failed(in_flight, Errno::EIO, now);
        let rested = dirty.failing().unwrap().rests_until;
        assert!(dirty.take(Due::Before(now), now, |_| true).is_none());
        let in_flight = dirty.take(Due::Before(now), rested, |_| true).unwrap();
        dirty.on_failed(in_flight, Errno::EIO, rested);
        let again = dirty.failing().unwrap();
        assert_eq!((again.since, again.last), (now, rested));
        let in_flight = dirty.take(Due::Full, again.rests_until, |_| true).unwrap();
        dirty.write(0, 100, b"more", now);
        assert_eq!(dirty.discard(), [(0, 4)]);
        let failed = dirty.on_failed(in_flight, Errno::EIO, again.rests_until);
        assert_eq!(failed, Failed { first: false, overwritten: 0, lost: 4 });
        assert!(dirty.is_clean());
    }

    /// Sends what is due every 10 ms for a while, to an object of which one byte cannot be
    /// written. Returns what was given up, and when.
    fn with_a_bad_byte(dirty: &mut Dirty, begun: Instant, bad: u64) -> Vec<(Duration, usize)> {
        let mut given_up = Vec::new();
        for step in 0..300 {
            let now = begun + Duration::from_millis(step * 10);
            // Others write to the same object, with success, all the time.
            dirty.write(0, 1 << 20, &[3; 10], now);
            while let Some(request) = dirty.take(Due::Before(now), now, |_| true) {
                let reaches = |(offset, extent): &(u64, Extent)| {
                    (*offset..offset + extent.data.len() as u64).contains(&bad)
                };
                if request.extents.iter().any(reaches) {
                    let failed = dirty.on_failed(request, Errno::EIO, now);
                    given_up.extend((failed.lost > 0).then_some((now - begun, failed.lost)));
                } else {
                    dirty.on_completed(&request);
                }
            }
        }
        given_up
    }

    #[test]
    fn a_bad_block_is_given_up_alone_whatever_succeeds_beside_it() {
        let begun = Instant::now();
        let mut dirty = Dirty::new(4 << 20);
        for block in 0..100 {
            dirty.write(0, block * 8192, &[1; 512], begun);
        }
        let given_up = with_a_bad_byte(&mut dirty, begun, 50 * 8192 + 7);
        let [(after, 512)] = given_up[..] else { panic!("one extent: {given_up:?}") };
        assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&after), "{after:?}");
        assert!(dirty.is_clean());
    }

    #[test]
    fn a_bad_block_that_is_written_again_and_again_is_given_up() {
        let begun = Instant::now();
        let mut dirty = Dirty::new(4 << 20);
        let mut given_up = Vec::new();
        for round in 0..30 {
            let now = begun + Duration::from_millis(100 * round);
            dirty.write(0, 4096, &[round as u8; 8192], now);
            while let Some(request) = dirty.take(Due::Before(now), now, |_| true) {
                given_up.push(dirty.on_failed(request, Errno::EIO, now).lost);
            }
        }
        assert!(given_up.contains(&8192), "{given_up:?}");
    }

    #[test]
    fn many_small_extents_cost_time_in_proportion() {
        let mut dirty = Dirty::new(4 << 20);
        let now = Instant::now();
        let count = 1 << 17;
        for at in 0..count {
            // All over the object, never side by side.
            let offset = (at * 7919 % count) * 1024;
            dirty.write(0, offset, &[1; 512], now);
        }
        let mut requests = 0;
        while let Some(in_flight) = take(&mut dirty, Due::Before(now)) {
            requests += 1;
            if requests % 8 == 0 {
                dirty.on_completed(&in_flight);
            }
        }
        assert_eq!(requests, count as usize / EXTENTS_PER_WRITE_MAX);
        // Quadratic, this would have been minutes.
        assert!(now.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn random_writes_read_back() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        let mut dirty = Dirty::new(BLOCK);
        let mut model: HashMap<(u16, u64), u8> = HashMap::new();
        let mut store: HashMap<(u16, u64), u8> = HashMap::new();
        let mut bytes = 0;
        let land = |in_flight: &ExtentsInFlight, store: &mut HashMap<(u16, u64), u8>| {
            for (offset, data) in &in_flight.extents {
                for (i, byte) in data.data.iter().enumerate() {
                    store.insert((in_flight.stripe, offset + i as u64), *byte);
                }
            }
        };
        let mut away: Vec<ExtentsInFlight> = Vec::new();
        let begun = Instant::now();
        for step in 0..20_000u64 {
            let now = begun + Duration::from_millis(step * 20);
            match random(8) {
                0 => {
                    if let Some(in_flight) = dirty.take(Due::Before(now), now, |_| true) {
                        bytes -= in_flight.bytes();
                        away.push(in_flight);
                    }
                    continue;
                }
                1 if !away.is_empty() => {
                    let in_flight = away.swap_remove(random(away.len() as u64) as usize);
                    if random(2) == 0 {
                        bytes += in_flight.bytes();
                        let failed = dirty.on_failed(in_flight, Errno::EAGAIN, now);
                        bytes -= failed.overwritten + failed.lost;
                    } else {
                        dirty.on_completed(&in_flight);
                        land(&in_flight, &mut store);
                    }
                    continue;
                }
                _ => {}
            }
            let (stripe, offset, len) = (random(2) as u16, random(400), 1 + random(150));
            let data: Vec<u8> = (0..len).map(|i| (step + i) as u8).collect();
            bytes += dirty.write(stripe, offset, &data, now);
            for (i, byte) in data.iter().enumerate() {
                model.insert((stripe, offset + i as u64), *byte);
            }
            assert_eq!(dirty.bytes(), bytes, "what grew is what is there");
        }
        for in_flight in away {
            dirty.on_completed(&in_flight);
            land(&in_flight, &mut store);
        }
        let end = begun + Duration::from_secs(500);
        while let Some(in_flight) = dirty.take(Due::Before(end), end, |_| true) {
            dirty.on_completed(&in_flight);
            land(&in_flight, &mut store);
        }
        assert!(dirty.is_clean());
        assert_eq!(store, model);
    }
}
