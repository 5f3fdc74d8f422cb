//! Clients and the server's table of bits, with answers that come in any order, recalls that
//! overtake them, grants that are withheld, and clients that forget the inode.

use super::*;
use crate::bits::{BitTable, Message};
use crate::flight::Flight;
use glint_proto::lock::{Bits, Recall};
use glint_proto::{ClientId, Ino};
use proptest::prelude::*;
use std::collections::VecDeque;

const INO: Ino = Ino(9);

#[derive(Default)]
struct Client {
    held: HeldBits,
    /// Requests under way, and before which one the last number was heard of.
    flight: Flight,
    sent_mark: u64,
    /// On their way: answers with what they grant, recalls, returns.
    answers: Vec<(u64, Bits, u64)>,
    recalls: VecDeque<(Bits, u64)>,
    returns: Vec<(Bits, u64)>,
}

#[derive(Default)]
struct World {
    table: BitTable,
    clients: [Client; 3],
    wanted: Vec<Bits>,
}

impl World {
    fn deliver(&mut self, out: Vec<Message>) {
        for (client, recall) in out {
            let Recall::Bits { bits, number, .. } = recall else { panic!("{recall:?}") };
            self.clients[client.0 as usize].recalls.push_back((bits, number));
        }
    }

    fn step(&mut self, (kind, at, some, bits, withheld): (u8, usize, usize, u8, bool)) {
        let (id, bits) = (ClientId(at as u64), Bits(bits) & Bits::ALL);
        let client = &mut self.clients[at];
        match kind {
            0..=2 => {
                // The holder of a delegation does not forget the directory.
                let bits = bits & Bits::SHARED;
                let request = client.flight.begin();
                let (bits, number) = self.table.grant(id, INO, bits);
                match bits.is_empty() {
                    true => client.flight.end(request),
                    false => {
                        let told = if withheld { Bits::NONE } else { bits };
                        client.answers.push((request, told, number));
                    }
                }
            }
            3..=4 if !client.answers.is_empty() => {
                let (request, bits, number) =
                    client.answers.swap_remove(some % client.answers.len());
                client.sent_mark = client.flight.sent_mark();
                client.held.grant(bits, number);
                client.flight.end(request);
            }
            5 => {
                if let Some((bits, number)) = client.recalls.pop_front() {
                    client.sent_mark = client.flight.sent_mark();
                    client.held.recall(bits, number);
                    client.returns.push((bits, number));
                }
            }
            6 if !client.returns.is_empty() => {
                let (bits, number) = client.returns.swap_remove(some % client.returns.len());
                self.table.return_locks(id, INO, bits, number);
            }
            7 => {
                let mut out = Vec::new();
                self.table.want(id, INO, bits, &mut out);
                self.wanted.push(bits);
                self.deliver(out);
            }
            8 if !self.wanted.is_empty() => {
                let bits = self.wanted.swap_remove(some % self.wanted.len());
                self.table.unwant(INO, bits);
            }
            9 if client.flight.is_past(client.sent_mark) => {
                client.returns.extend(client.held.return_all());
                (client.held, client.sent_mark) = (HeldBits::default(), 0);
            }
            _ => {}
        }
        for (at, client) in self.clients.iter().enumerate() {
            let held = self.table.held(ClientId(at as u64), INO);
            let relied = client.held.bits();
            assert!(held.contains(relied), "{at} relies on {relied:?}, and has {held:?}");
        }
    }

    /// Everything arrives, and all clients forget the inode.
    fn end(&mut self) {
        while !self.wanted.is_empty() {
            self.step((8, 0, 0, 0, false));
        }
        for at in 0..self.clients.len() {
            for kind in [3, 5, 9, 6] {
                let on_their_way = |client: &Client| match kind {
                    3 => client.answers.len(),
                    5 => client.recalls.len(),
                    9 => 1,
                    _ => client.returns.len(),
                };
                for _ in 0..on_their_way(&self.clients[at]) {
                    self.step((kind, at, 0, 0, false));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Bits that a client relies on are granted to it at the servers; inodes that a client forgets,
    /// the servers forget, too.
    #[test]
    fn clients_and_servers_agree(
        steps in proptest::collection::vec((0u8..10, 0usize..3, 0usize..8, 0u8..=127, any::<bool>()), 0..150)
    ) {
        let mut world = World::default();
        steps.into_iter().for_each(|step| world.step(step));
        world.end();
        prop_assert!(world.table.is_empty(), "the servers count bits that nobody knows of");
    }
}

const ASKS: u8 = 0;
const HEARS: u8 = 3;
const IS_ASKED: u8 = 5;
const TELLS: u8 = 6;
const WANTS: u8 = 7;
const FORGETS: u8 = 9;

/// The answer comes when its bits were recalled and the inode was forgotten since.
#[test]
fn a_late_answer_brings_nothing_to_an_inode_that_was_forgotten() {
    let (mut world, attr) = (World::default(), Bits::ATTR.0);
    for (kind, at) in [(ASKS, 0), (WANTS, 1), (IS_ASKED, 0), (FORGETS, 0), (TELLS, 0), (HEARS, 0)] {
        world.step((kind, at, 0, attr, false));
    }
    assert!(world.clients[0].held.bits().is_empty());
}

/// A newer answer comes first, and the inode is forgotten between the two.
#[test]
fn a_late_answer_brings_nothing_that_was_returned_with_a_newer_one() {
    let (mut world, attr) = (World::default(), Bits::ATTR.0);
    for (kind, some) in [(ASKS, 0), (ASKS, 0), (HEARS, 1), (FORGETS, 0), (TELLS, 0), (HEARS, 0)] {
        world.step((kind, 0, some, attr, false));
    }
    world.end();
    assert!(world.table.is_empty());
}

/// Bits that were entered and not told go with the inode.
#[test]
fn what_was_withheld_is_returned() {
    let (mut world, attr) = (World::default(), Bits::ATTR.0);
    world.step((ASKS, 0, 0, attr, true));
    world.step((HEARS, 0, 0, 0, false));
    assert!(world.clients[0].held.bits().is_empty() && !world.table.is_empty());
    world.step((FORGETS, 0, 0, 0, false));
    world.step((TELLS, 0, 0, 0, false));
    assert!(world.table.is_empty());
}
