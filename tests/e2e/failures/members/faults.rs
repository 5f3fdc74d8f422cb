//! What becomes of a member: each way strikes it, lasts for a while and is over.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use super::cold::Cold;
use super::crew::Course;
use super::oss_hosts::{Cluster, MDS, Member, OSSES};
use std::fs;
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::Duration;
use support::disk::{Frozen, fill};
use support::random::Random;
use support::{eventually_none, glint, run, text};

/// A way to fail.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// With SIGKILL, and started again.
    Kill,
    /// As Ctrl-C does, and started again.
    Stop,
    /// The process stands still.
    Halt,
    /// Its disk stands still.
    Freeze,
    /// Its disk stands still for a moment, again and again.
    Slow,
    /// Its disk is full.
    Fill,
    /// Its cable is pulled.
    CutOff,
    /// Only the server with the MDS is out of its reach: clients reach it, and so do other members.
    CutOffFromMds,
    /// Bits of objects are flipped, and others are removed, while it is stopped.
    Spoil,
}

/// One way that a member fails.
#[derive(Clone, Copy)]
pub(super) struct Strike {
    pub(super) fault: Fault,
    pub(super) member: Member,
    pub(super) lasts: Duration,
}

const OF_ANY: [Fault; 2] = [Fault::Kill, Fault::Stop];
const OF_OSSES: [Fault; 9] = [
    Fault::Kill,
    Fault::Stop,
    Fault::Halt,
    Fault::Freeze,
    Fault::Slow,
    Fault::Fill,
    Fault::CutOff,
    Fault::CutOffFromMds,
    Fault::Spoil,
];

/// How long a disk stands still and goes on again and again that is slow.
const STUTTER: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(60)];

fn drawn(faults: &[Fault], random: &mut Random) -> Fault {
    faults[random.below(faults.len() as u64) as usize]
}

impl Strike {
    /// Any way, of any member. The server with the MDS is struck less often, and for a shorter
    /// time: all calls wait for it.
    pub(super) fn any(random: &mut Random) -> Strike {
        if random.below(20) == 0 {
            let (fault, millis) = (drawn(&OF_ANY, random), random.below(2_000));
            return Strike { fault, member: MDS, lasts: Duration::from_millis(millis) };
        }
        let member = MDS + 1 + random.below(OSSES as u64) as Member;
        let fault = drawn(&OF_OSSES, random);
        // Who is silent for three seconds is left out.
        let millis = match fault {
            Fault::Kill | Fault::Stop | Fault::Spoil => random.below(5_000),
            _ => 1_000 + random.below(5_000),
        };
        Strike { fault, member, lasts: Duration::from_millis(millis) }
    }

    /// Who is struck, and how.
    pub(super) fn text(self) -> String {
        let Strike { fault, member, lasts } = self;
        let who = if member == MDS { "the MDS".to_owned() } else { format!("OSS {member}") };
        format!("{fault:?} of {who} for {lasts:?}")
    }

    /// Does it, and ends it; the member may lack something then.
    pub(super) fn carry_out(
        self,
        cluster: &mut Cluster<'_>,
        cold: &Arc<Mutex<Cold>>,
        course: &Course,
    ) {
        let Strike { fault, member, lasts } = self;
        match fault {
            Fault::Kill => {
                cluster.kill(member);
                sleep(lasts);
                cluster.start_server(member);
            }
            Fault::Stop => {
                cluster.stop(member);
                sleep(lasts);
                cluster.start_server(member);
            }
            Fault::Halt => {
                cluster.server(member).halt(true);
                sleep(lasts);
                cluster.server(member).halt(false);
            }
            Fault::Freeze => {
                let frozen = Frozen::new(cluster.disk(member));
                sleep(lasts);
                frozen.thaw();
            }
            Fault::Slow => {
                let begun = std::time::Instant::now();
                while begun.elapsed() < lasts {
                    let frozen = Frozen::new(cluster.disk(member));
                    sleep(STUTTER[0]);
                    frozen.thaw();
                    sleep(STUTTER[1]);
                }
            }
            Fault::Fill => {
                let filler = cluster.disk(member).join("filler");
                fill(&filler);
                sleep(lasts);
                fs::remove_file(filler).unwrap();
            }
            Fault::CutOff => {
                cluster.switch.connect(member, false);
                sleep(lasts);
                cluster.switch.connect(member, true);
            }
            Fault::CutOffFromMds => {
                cluster.switch.connect_both(MDS, member, false);
                sleep(lasts);
                cluster.switch.connect_both(MDS, member, true);
            }
            Fault::Spoil => {
                // A server that ends gives all objects their checksums.
                cluster.stop(member);
                sleep(lasts);
                let lost = cold.lock().unwrap().spoil(course, &cluster.ost(member));
                cluster.start_server(member);
                mend(cluster, cold, &lost, course);
            }
        }
    }
}

/// Spoilt objects are never read as they are, and become as the others again: before that no other
/// copy may be spoilt.
fn mend(cluster: &Cluster<'_>, cold: &Arc<Mutex<Cold>>, lost: &[usize], course: &Course) {
    cold.lock().unwrap().read_all(course);
    cluster.wait_until_whole(course);
    cold.lock().unwrap().read_all(course);
    cold.lock().unwrap().change(course, lost);
    eventually_none(&format!("{}: a spoilt copy", course.now()), || {
        course.must_be_well();
        // Finds what nobody has read there.
        run(glint().args(["scrub", "--json", text(&cluster.dirs[0])]));
        cluster.difference(|object| cold.lock().unwrap().copies_of(object))
    });
    cold.lock().unwrap().read_all(course);
}
