//! The rounds of a server: what it does again and again beside requests, and how often.
//!
//! Invariant: whoever runs a server runs all of its rounds ([`MdsServer::rounds`],
//! [`Oss::rounds`]), each apart from the others, because one that waits for a disk or another
//! server must not hold up the next. So a process (a thread for each) and the simulation (a task
//! for each) look after a server in the same way. Of a round that works at chains a pass that waits
//! does not hold up the next one either: each leaves to the others what they are at
//! (`replication/at_work.rs`).

use crate::mds_server::MdsServer;
use crate::oss::Oss;
use crate::replication::{KEEPING, TENDING};
use futures_lite::future::or;
use futures_util::stream::{FuturesUnordered, StreamExt};
use glint_kv::Kv;
use glint_ost::disk::Disk;
use std::pin::Pin;
use std::time::Duration;

/// Pause before most rounds.
const HOUSEKEEPING: Duration = Duration::from_millis(100);

/// Work of a round; true if there may be more to do at once.
type Work<'a> = Pin<Box<dyn Future<Output = bool> + 'a>>;

/// One kind of work of a server, and the pause before each time.
#[derive(Debug)]
pub struct Round<S> {
    /// Name of the round, as that of a thread.
    pub name: &'static str,
    /// Nobody waits for it, and it may be much: others go first.
    pub gives_way: bool,
    /// The round asks other servers.
    pub asks: bool,
    /// A pass that takes longer than the pause goes on beside the next one.
    overlaps: bool,
    pause: Duration,
    work: for<'a> fn(&'a S, Duration) -> Work<'a>,
}

impl<S> Round<S> {
    fn every(
        pause: Duration,
        name: &'static str,
        work: for<'a> fn(&'a S, Duration) -> Work<'a>,
    ) -> Round<S> {
        Round { name, gives_way: false, asks: false, overlaps: false, pause, work }
    }

    /// A round that works at chains, each apart from the others.
    fn of_chains(name: &'static str, work: for<'a> fn(&'a S, Duration) -> Work<'a>) -> Round<S> {
        Round { asks: true, overlaps: true, ..Round::every(TENDING, name, work) }
    }

    /// Does it until a `pause` says that the server stops; passes that wait then, of a round in which
    /// they overlap, end there. Objects that are left alone for `idle` are sealed.
    pub async fn keep(
        &self,
        server: &S,
        idle: impl Fn() -> Duration,
        pause: impl AsyncFn(Duration) -> bool,
    ) {
        let mut passes = FuturesUnordered::new();
        let mut is_more = false;
        loop {
            let length = if is_more { Duration::ZERO } else { self.pause };
            let paused = async { Some(pause(length).await) };
            let more = async {
                until_more(&mut passes).await;
                None
            };
            let next = or(paused, more).await;
            match next {
                Some(true) if self.overlaps => {
                    passes.push((self.work)(server, idle()));
                    is_more = false;
                }
                Some(true) => is_more = (self.work)(server, idle()).await,
                Some(false) => return,
                // The server may stop.
                None => is_more = true,
            }
        }
    }
}

/// Waits until one of these passes has ended and there is more to do at once.
async fn until_more(passes: &mut FuturesUnordered<Work<'_>>) {
    while let Some(is_more) = passes.next().await {
        if is_more {
            return;
        }
    }
    // None is under way, and the next one begins after the pause.
    std::future::pending::<()>().await;
}

/// Work of one round that leaves nothing to do at once.
fn once<'a>(work: impl Future<Output = ()> + 'a) -> Work<'a> {
    Box::pin(async move {
        work.await;
        false
    })
}

impl<K: Kv, D: Disk> MdsServer<K, D> {
    /// Rounds of the server with the MDS, beside requests.
    pub fn rounds(&self) -> Vec<Round<Self>> {
        vec![
            // Waits for nothing: it counts how long others stood still, and disks.
            Round::every(HOUSEKEEPING, "watch", |server, _| {
                once(async move {
                    server.look_at_disks();
                    server.mds().time_passes();
                    server.mds().hold_debts(server);
                })
            }),
            Round {
                asks: true,
                ..Round::every(TENDING, "disks", |server, _| once(server.give_up_still()))
            },
            Round::every(HOUSEKEEPING, "eviction", |server, _| once(server.expire())),
            Round {
                gives_way: true,
                ..Round::every(HOUSEKEEPING, "housekeeping", |server, _| {
                    Box::pin(server.keep_house())
                })
            },
            // Housekeeping may be waiting for a server that does not answer.
            Round::every(HOUSEKEEPING, "space", |server, _| once(async { server.watch_space() })),
            Round::every(HOUSEKEEPING, "members", |server, _| once(server.watch_members())),
            Round {
                gives_way: true,
                ..Round::every(HOUSEKEEPING, "scrub", |server, _| {
                    Box::pin(async { server.scrub_some() })
                })
            },
            Round {
                gives_way: true,
                ..Round::every(HOUSEKEEPING, "warm start", |server, _| once(server.warm_some()))
            },
            Round::of_chains("takeover", |server, _| once(server.take_over())),
            Round::of_chains("doubts", |server, _| Box::pin(server.decide_some())),
            Round::of_chains("chains", |server, _| Box::pin(server.tend_chains())),
            Round {
                asks: true,
                ..Round::every(HOUSEKEEPING, "filling", |server, _| {
                    Box::pin(async {
                        server.fill_places().await;
                        server.index_emptied().await
                    })
                })
            },
            // A walk over all files is not waited for at the end.
            Round {
                asks: true,
                overlaps: true,
                ..Round::every(KEEPING, "clearing", |server, _| once(server.clear_former()))
            },
            Round {
                asks: true,
                ..Round::every(KEEPING, "session", |server, _| {
                    once(server.replication().keep_session())
                })
            },
            Round {
                asks: true,
                ..Round::every(HOUSEKEEPING, "repair", |server, _| once(server.repair_some()))
            },
            Round::every(self.commit_interval(), "settling", |server, idle| {
                once(async move {
                    server.settle(idle).await;
                    server.note_totals();
                })
            }),
        ]
    }
}

impl<D: Disk> Oss<D> {
    /// Rounds of an OSS, beside requests, [`Oss::talk`] and [`Oss::destroy_ordered`].
    pub fn rounds(&self) -> Vec<Round<Self>> {
        vec![
            Round::every(HOUSEKEEPING, "watch", |oss, _| once(async { oss.look_at_disks() })),
            Round {
                asks: true,
                ..Round::every(TENDING, "disks", |oss, _| once(oss.give_up_still()))
            },
            Round {
                gives_way: true,
                ..Round::every(HOUSEKEEPING, "scrub", |oss, _| Box::pin(async { oss.scrub_some() }))
            },
            Round {
                gives_way: true,
                ..Round::every(HOUSEKEEPING, "warm start", |oss, _| once(async { oss.warm_some() }))
            },
            Round::of_chains("takeover", |oss, _| once(oss.take_over())),
            Round::of_chains("doubts", |oss, _| Box::pin(oss.decide_some())),
            Round::of_chains("chains", |oss, _| Box::pin(oss.tend_chains())),
            Round {
                asks: true,
                ..Round::every(KEEPING, "session", |oss, _| once(oss.replication().keep_session()))
            },
            Round {
                asks: true,
                ..Round::every(HOUSEKEEPING, "repair", |oss, _| once(oss.repair_some()))
            },
            Round::every(self.commit_interval(), "settling", |oss, idle| once(oss.settle(idle))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, yield_now};
    use std::cell::Cell;

    /// Passes that began, and those that ended.
    #[derive(Default)]
    struct Passes {
        begun: Cell<usize>,
        ended: Cell<usize>,
    }

    /// The first pass does not end.
    async fn pass(passes: &Passes) -> bool {
        passes.begun.set(passes.begun.get() + 1);
        if passes.begun.get() == 1 {
            std::future::pending::<()>().await;
        }
        passes.ended.set(passes.ended.get() + 1);
        passes.ended.get() == 2
    }

    #[test]
    fn a_pass_that_waits_does_not_hold_up_the_next_ones_nor_the_end() {
        let round = Round::<Passes>::of_chains("test", |passes, _| Box::pin(pass(passes)));
        let (passes, pauses) = (Passes::default(), Cell::new(Vec::new()));
        let pause = async |length: Duration| {
            let mut all = pauses.take();
            all.push(length);
            let goes_on = all.len() < 5;
            pauses.set(all);
            // Passes go on meanwhile.
            for _ in 0..9 {
                yield_now().await;
            }
            goes_on
        };
        block_on(round.keep(&passes, || Duration::ZERO, pause));
        assert_eq!((passes.begun.get(), passes.ended.get()), (3, 2));
        let lengths = [TENDING, TENDING, TENDING, TENDING, Duration::ZERO];
        assert_eq!(pauses.take(), lengths, "there was more to do after the second one that ended");
    }
}
