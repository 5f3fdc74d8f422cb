//! Clients and the server's table of locks on data, with answers that come in any order or
//! never, and recalls that overtake them. Each client has a kernel with pages, which calls fill and
//! which it is given others.

use super::*;
use crate::extents::ExtentTable;
use crate::flight::Flight;
use glint_proto::lock::Recall;
use glint_proto::{ClientId, Ino};
use proptest::prelude::*;
use std::collections::VecDeque;

const INO: Ino = Ino(9);

/// A use of a lock, with its range, that began in this step.
struct HeldUse {
    id: u64,
    purpose: Use,
    range: Range,
    step: u64,
}

/// Pages that the kernel forgets for a lock, since this step. It waits for those that were being
/// filled then, and for no others.
struct Forgetting {
    id: u64,
    range: Range,
    step: u64,
}

#[derive(Default)]
struct Client {
    held: HeldData,
    /// Requests under way, and before which one the last number was heard of.
    flight: Flight,
    sent_mark: u64,
    /// Answers on their way, whether somebody waits for them, and what ends their requests.
    answers: Vec<(DataLock, bool, u64)>,
    recalls: VecDeque<u64>,
    /// Recalled and not here.
    unknown: Vec<u64>,
    uses: Vec<HeldUse>,
    /// Pages that its kernel has, and those that it is forgetting.
    pages: Vec<Range>,
    forgetting: Vec<Forgetting>,
}

impl Client {
    /// Begins to use a lock, if one may be used.
    fn begin(&mut self, range: Range, write: bool, purpose: Use, step: u64) {
        if let Some(id) = self.held.begin(range, write, purpose) {
            self.uses.push(HeldUse { id, purpose, range, step });
        }
    }

    /// Ends a use, whose pages come to the kernel only now: it may have forgotten all meanwhile.
    fn end(&mut self, ended: &HeldUse) {
        if ended.purpose != Use::Call {
            self.pages.push(ended.range);
        }
        match ended.purpose {
            Use::Store => self.held.stored(ended.id),
            Use::Call | Use::Fill(_) | Use::Bring => _ = self.held.end(ended.id),
        }
    }

    /// Goes on to have pages of a lock forgotten that is to be returned. That takes until the next
    /// time at least.
    fn drain(&mut self, id: u64, step: u64) {
        if let Some(at) = self.forgetting.iter().position(|forgetting| forgetting.id == id) {
            let Forgetting { range, step: begun, .. } = self.forgetting[at];
            let is_filling = |held: &HeldUse| {
                matches!(held.purpose, Use::Fill(pages) if pages.overlaps(range))
                    && held.step < begun
            };
            if self.uses.iter().any(is_filling) {
                return;
            }
            self.forgetting.swap_remove(at);
            self.pages.retain(|pages| !pages.overlaps(range));
            self.held.forgot(id);
        }
        if let Some(Drain::Forget(range)) = self.held.drain(id) {
            self.forgetting.push(Forgetting { id, range, step });
        }
    }
}

#[derive(Default)]
struct World {
    table: ExtentTable,
    clients: [Client; 3],
    waiting: Vec<(u64, usize, u64)>,
    granted: Vec<(u64, DataLock)>,
    out: Vec<crate::bits::Message>,
    steps: u64,
}

impl World {
    fn return_locks(&mut self, client: usize, number: u64) {
        let id = ClientId(client as u64);
        self.table.return_locks(id, INO, number, &mut self.granted, &mut self.out);
    }

    fn deliver(&mut self) {
        for (ticket, lock) in self.granted.drain(..) {
            let at = self.waiting.iter().position(|(t, ..)| *t == ticket).unwrap();
            let (_, client, request) = self.waiting.swap_remove(at);
            self.clients[client].answers.push((lock, true, request));
        }
        for (client, recall) in self.out.drain(..) {
            let Recall::Data { number, .. } = recall else { panic!("{recall:?}") };
            self.clients[client.0 as usize].recalls.push_back(number);
        }
    }

    /// Whether a client waits for its turn.
    fn waits(&self, at: usize) -> bool {
        self.waiting.iter().any(|(_, client, _)| *client == at)
    }

    /// A client forgets the inode, if it may.
    fn forget(&mut self, at: usize) {
        let waits = self.waits(at);
        let client = &mut self.clients[at];
        let is_used = waits
            || client.answers.iter().any(|(_, waits, _)| *waits)
            || !client.unknown.is_empty()
            || !client.held.is_unused();
        if is_used || !client.flight.is_past(client.sent_mark) {
            return;
        }
        let returns = client.held.return_unused();
        (client.held, client.sent_mark) = (HeldData::default(), 0);
        // The kernel has forgotten it.
        client.pages.clear();
        returns.into_iter().for_each(|number| self.return_locks(at, number));
    }

    /// A client does what it is asked, as far as it can now. If it is impatient, it waits for no
    /// answer: what it has asked for may wait for what it is to return.
    fn progress(&mut self, at: usize, impatient: bool) {
        let asks = self.waits(at);
        let client = &mut self.clients[at];
        let (mut returns, quiet) = (Vec::new(), client.answers.is_empty() && !asks);
        for number in std::mem::take(&mut client.unknown) {
            if client.held.id_of(number).is_some() {
                continue;
            }
            if client.held.is_awaited(number) && !quiet && !impatient {
                client.unknown.push(number);
                continue;
            }
            client.held.refuse(number);
            while let Some(id) = client.held.older(number) {
                client.held.begin_return(id);
            }
            if client.held.has_older(number) {
                client.unknown.push(number);
            } else {
                returns.push(number);
            }
        }
        let ids: Vec<u64> = client.held.locks.iter().map(|data| data.id).collect();
        for id in ids {
            client.drain(id, self.steps);
            if client.held.locks.iter().any(|data| data.id == id && data.closed) {
                returns.extend(client.held.remove(id));
            }
        }
        returns.into_iter().for_each(|number| self.return_locks(at, number));
    }

    fn step(&mut self, (kind, at, start, len, write): (u8, usize, u64, u64, bool)) {
        self.steps += 1;
        let (id, range, step) = (ClientId(at as u64), Range::of(start, len), self.steps);
        let client = &mut self.clients[at];
        let some = start as usize;
        match kind {
            0..=2 => {
                let request = client.flight.begin();
                match self.table.ask(id, INO, range, write, &mut self.out) {
                    Ok(lock) => client.answers.push((lock, true, request)),
                    Err(ticket) => self.waiting.push((ticket, at, request)),
                }
            }
            3 => {
                if let Some(lock) = self.table.try_all(id, INO, write) {
                    client.answers.push((lock, false, client.flight.begin()));
                }
            }
            4..=6 if !client.answers.is_empty() => {
                let (lock, used, request) = client.answers.swap_remove(some % client.answers.len());
                client.sent_mark = client.flight.sent_mark();
                client.flight.end(request);
                match client.held.add(lock, used) {
                    Some(id) if used => {
                        let (purpose, range) = (Use::Call, lock.range);
                        client.uses.push(HeldUse { id, purpose, range, step });
                    }
                    Some(_) => {}
                    None => client.unknown.push(lock.number),
                }
            }
            7 if !client.answers.is_empty() => {
                let (.., request) = client.answers.remove(some % client.answers.len());
                client.flight.end(request);
            }
            8 => {
                if let Some(number) = client.recalls.pop_front() {
                    client.sent_mark = client.flight.sent_mark();
                    if client.held.recall(number).is_none() {
                        client.unknown.push(number);
                    }
                }
            }
            9 => client.begin(range, write, Use::Call, step),
            10 if !client.uses.is_empty() => {
                let ended = client.uses.swap_remove(some % client.uses.len());
                client.end(&ended);
            }
            11 => {
                let unasked = client.held.unasked();
                unasked.iter().take(some).for_each(|id| client.held.begin_return(*id));
            }
            12..=13 => self.progress(at, false),
            14 => self.progress(at, true),
            15 => self.forget(at),
            16 => client.begin(range, write, Use::Fill(range), step),
            17 => client.begin(range, false, Use::Store, step),
            _ => {}
        }
        self.deliver();
        self.check();
    }

    fn check(&self) {
        for (at, client) in self.clients.iter().enumerate() {
            let users: u32 = client.held.locks.iter().map(|data| data.users).sum();
            assert_eq!(users as usize, client.uses.len());
            for data in client.held.locks.iter().filter(|data| !data.closed) {
                let gives = self.table.gives(ClientId(at as u64), INO, data.lock);
                assert!(gives, "{at} relies on {data:?}");
            }
            for pages in &client.pages {
                let lock = DataLock { number: 0, range: *pages, write: false };
                let gives = self.table.gives(ClientId(at as u64), INO, lock);
                assert!(gives, "the kernel of {at} has {pages:?}, which others may change");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// Locks that a client relies on were granted to it by the servers, and pages are in its kernel
    /// under such locks alone; and all who wait are served.
    #[test]
    fn nobody_relies_on_what_it_does_not_have(
        steps in proptest::collection::vec((0u8..18, 0usize..3, 0u64..8, 1u64..5, any::<bool>()), 0..150)
    ) {
        let mut world = World::default();
        steps.into_iter().for_each(|step| world.step(step));
        for _ in 0..400 {
            if world.waiting.is_empty() {
                break;
            }
            for at in 0..3 {
                for kind in [8, 8, 4, 10, 14] {
                    world.step((kind, at, 0, 1, false));
                }
            }
        }
        prop_assert!(world.waiting.is_empty(), "{:?} still wait", world.waiting);
    }
}

/// An answer that never comes, and a request of the same client that waits for the lock that it
/// would have brought: who waits for all answers waits for ever.
#[test]
fn a_lock_that_never_came_is_returned_while_its_client_asks_for_more() {
    let mut world = World::default();
    let (asks, loses, patient, impatient) = (0, 7, 13, 14);
    for (kind, at) in [(asks, 0), (loses, 0), (asks, 1), (asks, 0)] {
        world.step((kind, at, 0, 1, true));
    }
    for (progress, ends) in [(patient, false), (impatient, true)] {
        for _ in 0..10 {
            for at in 0..2 {
                for kind in [8, 4, 10, progress] {
                    world.step((kind, at, 0, 1, false));
                }
            }
        }
        assert_eq!(world.waiting.is_empty(), ends, "{:?} still wait", world.waiting);
    }
}

/// An open brings a lock, and a write asks for one that takes its place; the answer to the open
/// comes when the inode was forgotten since.
#[test]
fn a_late_answer_brings_nothing_to_an_inode_that_was_forgotten() {
    let mut world = World::default();
    let (asks, opens, hears, ends, forgets) = (0, 3, 4, 10, 15);
    for (kind, some) in [(opens, 0), (asks, 0), (hears, 1), (ends, 0), (forgets, 0), (hears, 0)] {
        world.step((kind, 0, some, 1, true));
    }
    world.step((forgets, 0, 0, 1, true));
    assert!(world.clients[0].held.is_empty() && world.table.is_empty());
}
