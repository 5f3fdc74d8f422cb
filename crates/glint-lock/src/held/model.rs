//! Clients and the server's table of locks on data, with answers that come in any order or
//! never, and call-backs that overtake them.

use super::*;
use crate::extents::ExtentTable;
use glint_proto::lock::Callback;
use glint_proto::{ClientId, Ino};
use proptest::prelude::*;
use std::collections::VecDeque;

const INO: Ino = Ino(9);

#[derive(Default)]
struct Client {
    held: HeldData,
    /// Answers on their way, and whether somebody waits for them.
    answers: Vec<(DataLock, bool)>,
    callbacks: VecDeque<u64>,
    /// Asked back and not here.
    unknown: Vec<u64>,
    uses: Vec<u64>,
}

#[derive(Default)]
struct World {
    table: ExtentTable,
    clients: [Client; 3],
    waiting: Vec<(u64, usize)>,
    granted: Vec<(u64, DataLock)>,
    out: Vec<crate::bits::Message>,
}

impl World {
    fn cancel(&mut self, client: usize, number: u64) {
        let id = ClientId(client as u64);
        self.table.cancel(id, INO, number, &mut self.granted, &mut self.out);
    }

    fn deliver(&mut self) {
        for (ticket, lock) in self.granted.drain(..) {
            let at = self.waiting.iter().position(|(t, _)| *t == ticket).unwrap();
            let (_, client) = self.waiting.swap_remove(at);
            self.clients[client].answers.push((lock, true));
        }
        for (client, callback) in self.out.drain(..) {
            let Callback::Data { number, .. } = callback else { panic!("{callback:?}") };
            self.clients[client.0 as usize].callbacks.push_back(number);
        }
    }

    /// A client does what it is asked, as far as it can now.
    fn progress(&mut self, at: usize) {
        let client = &mut self.clients[at];
        let (mut cancels, quiet) = (Vec::new(), client.answers.is_empty());
        for number in std::mem::take(&mut client.unknown) {
            if client.held.id_of(number).is_some() {
                continue;
            }
            if !quiet {
                client.unknown.push(number);
                continue;
            }
            client.held.is_not_coming(number);
            while let Some(id) = client.held.older(number) {
                client.held.release(id);
            }
            if client.held.has_older(number) {
                client.unknown.push(number);
            } else {
                cancels.push(number);
            }
        }
        let ids: Vec<u64> = client.held.locks.iter().map(|data| data.id).collect();
        for id in ids {
            while let Some(Drain::Forget(_)) = client.held.drain(id) {
                client.held.forgot(id);
            }
            if client.held.locks.iter().any(|data| data.id == id && data.closed) {
                cancels.extend(client.held.remove(id));
            }
        }
        cancels.into_iter().for_each(|number| self.cancel(at, number));
    }

    fn step(&mut self, (kind, at, start, len, write): (u8, usize, u64, u64, bool)) {
        let (id, range) = (ClientId(at as u64), Range::of(start, len));
        let client = &mut self.clients[at];
        let some = start as usize;
        match kind {
            0..=2 => match self.table.ask(id, INO, range, write, &mut self.out) {
                Ok(lock) => client.answers.push((lock, true)),
                Err(ticket) => self.waiting.push((ticket, at)),
            },
            3 => {
                let granted = self.table.try_all(id, INO, write);
                client.answers.extend(granted.map(|lock| (lock, false)));
            }
            4..=6 if !client.answers.is_empty() => {
                let (lock, used) = client.answers.swap_remove(some % client.answers.len());
                match client.held.add(lock, used) {
                    Some(id) => client.uses.extend(used.then_some(id)),
                    None => client.unknown.push(lock.number),
                }
            }
            7 if !client.answers.is_empty() => {
                _ = client.answers.remove(some % client.answers.len())
            }
            8 => {
                if let Some(number) = client.callbacks.pop_front()
                    && client.held.take_back(number).is_none()
                {
                    client.unknown.push(number);
                }
            }
            9 => client.uses.extend(client.held.begin(range, write, Use::Call)),
            10 if !client.uses.is_empty() => {
                let id = client.uses.swap_remove(some % client.uses.len());
                client.held.end(id);
            }
            11 => {
                let unasked = client.held.unasked();
                unasked.iter().take(some).for_each(|id| client.held.release(*id));
            }
            _ => self.progress(at),
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
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// What a client relies on, the servers have given it; and all who wait are served.
    #[test]
    fn nobody_relies_on_what_it_does_not_have(
        steps in proptest::collection::vec((0u8..15, 0usize..3, 0u64..8, 1u64..5, any::<bool>()), 0..150)
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
