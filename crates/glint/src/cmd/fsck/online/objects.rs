//! Comparison of the objects on OSTs with each other and with the records of their files, while
//! they are used.
//!
//! Invariants:
//! - A doubt ([`ObjectDoubt`]) is told only if it is the same at each of some later looks: the
//!   objects that OSTs have, with their seals, and where the MDS says that they are to be, asked
//!   before and after these, by the same version of the chain's row. An OST that has not made a
//!   change in that time is no member that serves any more. One look is not enough: a file that is
//!   cut off and written anew all the time, as the journal of a database, may be seen in the same
//!   two states twice.
//! - There are so many looks and no more: an object that changes all the time is left to the next
//!   check.
//! - Each object is looked at once, but for those that seem wrong: ends of files are missed where
//!   no list had them.
//! - No end of a file is missed on an OSS that was started a short time ago: clients may be about
//!   to send it again.
//! - Servers are asked some times before they are given up. An OST that does not answer is left out
//!   from then on, and nothing is told of it; without the MDS there is no end.
//! - A file may have holes: that no OST has an object says nothing, unless the file ends in it. Nor
//!   does a member that lags behind.
//! - No more is kept than a page for each OST, the name of an object for each file, and the doubts.

use super::doubts::{CopyFacts, ObjectDoubt};
use super::{NamespaceSource, OnlineCheck};
use crate::cmd::storage::scrub::{Server, servers};
use crate::target::Target;
use glint_ost::list_order;
use glint_proto::limits::{CHECKED_RECORDS_MAX, LEASE_MS};
use glint_proto::message::{NamespacePage, NamespaceQuery, ObjectUse, StoredFact, UsedObject};
use glint_proto::{Ino, ObjectId};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::error::Error;
use std::time::Duration;

/// Milliseconds before each of the later looks. An OST whose disk keeps a change for longer than
/// the first is taken for one that stands still. They differ, for changes that come at a steady
/// pace; and they are so many because two states that are there half of the time each are seen at
/// one of four looks: at all of them, of 200 000 such objects at one.
const PAUSES_MS: [u64; 8] = [5_000, 210, 340, 130, 550, 270, 890, 430];
/// Objects that are looked at again at once: an OST is asked about all of them, and its disk is
/// perhaps slow.
const LOOKS: usize = 64;
/// How often a server is asked: it may be slow, or is started again.
const TRIES: usize = 3;
/// Time between two of them.
const RETRY: Duration = Duration::from_secs(1);
/// Time after the start of an OSS in which clients send again the writes that it has lost.
const RETURNED: Duration = Duration::from_millis(LEASE_MS);
/// Objects that seem wrong after which no others are looked for.
const DOUBTS_MAX: usize = 1 << 16;

/// Objects of an OST, as far as its list was read.
struct OstList {
    ost: u16,
    source: NamespaceSource,
    ahead: VecDeque<StoredFact>,
    next: Option<NamespaceQuery>,
    /// Why it is left out.
    failure: Option<String>,
}

impl OstList {
    /// Asks the OST. `None` if it does not answer, and is left out.
    fn ask(
        &mut self,
        query: &NamespaceQuery,
        check: &OnlineCheck,
    ) -> Result<Option<NamespacePage>, Box<dyn Error>> {
        let page = check.page_of(&self.source, query)?;
        Ok(page.map_err(|why| self.leave_out(why)).ok())
    }

    fn leave_out(&mut self, why: String) {
        self.ahead.clear();
        self.next = None;
        self.failure = Some(format!("OST {}: {why}", self.ost));
    }

    /// Reads a page if nothing is left of the one before.
    fn read_on(&mut self, check: &OnlineCheck) -> Result<(), Box<dyn Error>> {
        while self.ahead.is_empty()
            && let Some(query) = self.next.take()
        {
            if let Some(page) = self.ask(&query, check)? {
                self.ahead.extend(page.stored);
                self.next = page.next;
            }
        }
        Ok(())
    }
}

/// OSTs that were asked and have answered.
fn asked(lists: &[OstList]) -> BTreeSet<u16> {
    lists.iter().filter(|list| list.failure.is_none()).map(|list| list.ost).collect()
}

/// The objects that are next in the order of all lists, as far as these were read, and so many at
/// most. A list that may have more, of which nothing is left, ends them.
fn merged(lists: &mut [OstList], most: usize) -> Vec<(ObjectId, CopyFacts)> {
    let mut found = Vec::new();
    while found.len() < most
        && lists.iter().all(|list| list.next.is_none() || !list.ahead.is_empty())
    {
        let heads = lists.iter().filter_map(|list| list.ahead.front());
        let Some(object) = heads.map(|fact| fact.object).min_by_key(|one| list_order(*one)) else {
            break;
        };
        let mut facts = CopyFacts::new();
        for list in &mut *lists {
            if let Some(fact) = list.ahead.pop_front_if(|fact| fact.object == object) {
                facts.insert(list.ost, fact);
            }
        }
        found.push((object, facts));
    }
    found
}

/// Returns the objects with ends of files that were not `seen`, if they may be lost: all OSTs that
/// are to have them were asked.
fn missed_of(
    uses: Vec<UsedObject>,
    seen: &HashSet<ObjectId>,
    asked: &BTreeSet<u16>,
) -> Vec<ObjectDoubt> {
    let unseen = uses.into_iter().filter(|known| !seen.contains(&known.object));
    let doubts = unseen.map(|known| ObjectDoubt { known, facts: CopyFacts::new() });
    doubts.filter(|doubt| !doubt.findings(asked).is_empty()).collect()
}

/// Returns those of some objects that an OST is asked for.
fn objects_at(ost: u16, doubts: &[ObjectDoubt]) -> Vec<ObjectId> {
    let doubts = doubts.iter().filter(|doubt| doubt.concerns(ost));
    doubts.map(|doubt| doubt.known.object).collect()
}

/// OSTs of a server, as it says.
struct ServerOsts {
    osts: Vec<u16>,
    runs_for: Duration,
}

impl ServerOsts {
    /// Whether clients have sent again the writes that an OSS has lost with its power, or were
    /// evicted. The ends that the MDS says are those after these writes. (It says none while it
    /// waits for clients itself.)
    fn have_all(&self, target: &Target) -> bool {
        !matches!(target, Target::Oss(_)) || self.runs_for >= RETURNED
    }
}

/// Asks a server for its OSTs.
fn osts_of(server: &Server) -> Result<ServerOsts, String> {
    let status = server.target.ask("status").map_err(|error| server.error(&error))?;
    let status: Value =
        serde_json::from_str(&status).map_err(|error| server.error(&error.to_string()))?;
    let rows = status["osts"].as_array();
    let rows = rows.ok_or_else(|| server.error("it does not know the numbers of its OSTs yet"))?;
    let number = |row: &Value| u16::try_from(row["index"].as_u64()?).ok();
    let osts = rows.iter().filter_map(number).collect();
    Ok(ServerOsts { osts, runs_for: Duration::from_secs(status["uptime_s"].as_u64().unwrap_or(0)) })
}

/// Returns the OSTs whose server is there, and has everything that clients send again after its
/// start.
fn osts_with_all(target: &Target) -> Result<BTreeSet<u16>, Box<dyn Error>> {
    let mut found = BTreeSet::new();
    for server in servers(target.clone())? {
        let its = osts_of(&server).ok().filter(|its| its.have_all(&server.target));
        found.extend(its.into_iter().flat_map(|its| its.osts));
    }
    Ok(found)
}

/// Lists of all OSTs of a file system, and why those of some servers cannot be asked for.
fn lists_of(target: &Target) -> Result<(Vec<OstList>, Vec<String>), Box<dyn Error>> {
    let (mut lists, mut failed) = (Vec::new(), Vec::new());
    for server in servers(target.clone())? {
        match osts_of(&server) {
            Ok(ServerOsts { osts, .. }) => {
                for ost in osts {
                    let source = NamespaceSource::of(&server.target)?;
                    let next = Some(NamespaceQuery::Stored { ost, after: None });
                    let ahead = VecDeque::new();
                    lists.push(OstList { ost, source, ahead, next, failure: None });
                }
            }
            Err(error) => failed.push(error),
        }
    }
    Ok((lists, failed))
}

impl OnlineCheck {
    /// Compares all objects. An error if some could not be.
    pub(super) fn compare_objects(&mut self, target: &Target) -> Result<(), Box<dyn Error>> {
        let (mut lists, mut failed) = lists_of(target)?;
        let (mut doubts, mut seen): (Vec<ObjectDoubt>, HashSet<ObjectId>) = Default::default();
        loop {
            for list in &mut lists {
                list.read_on(self)?;
            }
            let some = merged(&mut lists, CHECKED_RECORDS_MAX);
            if some.is_empty() && lists.iter().all(|list| list.next.is_none()) {
                break;
            }
            doubts.extend(self.doubts_of(some, &asked(&lists), &mut seen)?);
            if doubts.len() > DOUBTS_MAX {
                break;
            }
        }
        self.missed_ends(&mut lists, &seen, &mut doubts)?;
        drop(seen);
        let are_all = doubts.len() <= DOUBTS_MAX;
        for pause_ms in PAUSES_MS {
            if doubts.is_empty() {
                break;
            }
            let count = doubts.len();
            self.progress.tell(|| format!("{count} objects seem wrong, looking at them again"));
            self.pause(Duration::from_millis(pause_ms))?;
            let mut still: Vec<ObjectDoubt> = Vec::new();
            for some in doubts.chunks(LOOKS) {
                still.extend(self.look_again(&mut lists, some)?);
            }
            doubts = still;
            // A change that passes by all of them as they are asked is seen otherwise then.
            lists.reverse();
        }
        if doubts.iter().any(|doubt| doubt.known.end.is_some()) {
            let have_all = osts_with_all(target)?;
            doubts.iter_mut().for_each(|doubt| doubt.keep_end(&have_all));
        }
        let asked = asked(&lists);
        self.found.findings.extend(doubts.iter().flat_map(|doubt| doubt.findings(&asked)));
        failed.extend(lists.into_iter().filter_map(|list| list.failure));
        match failed.is_empty() {
            _ if !are_all => {
                Err(format!("more than {DOUBTS_MAX} objects seem wrong; others were left").into())
            }
            true => Ok(()),
            false => Err(format!("objects were not compared: {}", failed.join("; ")).into()),
        }
    }

    /// Asks a server, until it answers or was asked some times. The inner error says why it does
    /// not answer.
    fn page_of(
        &self,
        source: &NamespaceSource,
        query: &NamespaceQuery,
    ) -> Result<Result<NamespacePage, String>, Box<dyn Error>> {
        let mut tries = 1;
        loop {
            self.unless_ended()?;
            match source.page(&self.reader, query.clone()) {
                Err(_) if tries < TRIES => self.pause(RETRY)?,
                answer => return Ok(answer),
            }
            tries += 1;
        }
    }

    /// Where some objects are to be, in their order.
    fn uses_of(&self, objects: Vec<ObjectId>) -> Result<Vec<UsedObject>, Box<dyn Error>> {
        let query = NamespaceQuery::Uses(objects.clone());
        let uses = self.page_of(&self.source, &query)??.uses;
        match uses.iter().map(|known| known.object).eq(objects) {
            true => Ok(uses),
            false => Err("the server has said something else than whose objects are".into()),
        }
    }

    /// Returns the doubts among some objects. Notes that these were seen, and ends of files.
    fn doubts_of(
        &mut self,
        some: Vec<(ObjectId, CopyFacts)>,
        asked: &BTreeSet<u16>,
        seen: &mut HashSet<ObjectId>,
    ) -> Result<Vec<ObjectDoubt>, Box<dyn Error>> {
        let uses = self.uses_of(some.iter().map(|(object, _)| *object).collect())?;
        self.unless_ended()?;
        self.objects += some.len();
        self.untold += uses.iter().filter(|known| known.used == ObjectUse::Unknown).count();
        let objects = self.objects;
        self.progress.tell(|| format!("{objects} objects"));
        let mut doubts = Vec::new();
        for ((_, facts), known) in some.into_iter().zip(uses) {
            let doubt = ObjectDoubt { known, facts };
            self.unsealed += usize::from(doubt.is_unsealed(asked));
            let is_wrong = !doubt.findings(asked).is_empty();
            if is_wrong || doubt.has_end() {
                seen.insert(doubt.known.object);
            }
            if is_wrong {
                doubts.push(doubt);
            }
        }
        Ok(doubts)
    }

    /// Adds the objects with ends of files that no list had, and that are not there now, either.
    /// Those of an OST that is away are not asked for: they are as many as the files that end
    /// there.
    fn missed_ends(
        &self,
        lists: &mut [OstList],
        seen: &HashSet<ObjectId>,
        doubts: &mut Vec<ObjectDoubt>,
    ) -> Result<(), Box<dyn Error>> {
        let mut next = Some(NamespaceQuery::Ends(Ino(0)));
        while let Some(query) = next.take_if(|_| doubts.len() <= DOUBTS_MAX) {
            let page = self.page_of(&self.source, &query)??;
            let missed = missed_of(page.uses, seen, &asked(lists));
            for some in missed.chunks(LOOKS) {
                let mut facts = self.facts_of(lists, some)?;
                let asked = asked(lists);
                doubts.extend(some.iter().filter_map(|ObjectDoubt { known, .. }| {
                    let facts = facts.remove(&known.object).unwrap_or_default();
                    let doubt = ObjectDoubt { known: known.clone(), facts };
                    (!doubt.findings(&asked).is_empty()).then_some(doubt)
                }));
            }
            next = page.next;
        }
        Ok(())
    }

    /// Asks OSTs for the objects that they are to have, or had.
    fn facts_of(
        &self,
        lists: &mut [OstList],
        doubts: &[ObjectDoubt],
    ) -> Result<HashMap<ObjectId, CopyFacts>, Box<dyn Error>> {
        let mut facts: HashMap<ObjectId, CopyFacts> = HashMap::new();
        for list in lists.iter_mut().filter(|list| list.failure.is_none()) {
            let objects = objects_at(list.ost, doubts);
            if objects.is_empty() {
                continue;
            }
            let query = NamespaceQuery::StoredAgain { ost: list.ost, objects };
            let Some(page) = list.ask(&query, self)? else { continue };
            for fact in page.stored {
                facts.entry(fact.object).or_default().insert(list.ost, fact);
            }
        }
        Ok(facts)
    }

    /// Looks again at doubts. Returns those that are left.
    fn look_again(
        &self,
        lists: &mut [OstList],
        doubts: &[ObjectDoubt],
    ) -> Result<Vec<ObjectDoubt>, Box<dyn Error>> {
        let objects: Vec<ObjectId> = doubts.iter().map(|doubt| doubt.known.object).collect();
        let before = self.uses_of(objects.clone())?;
        let mut facts = self.facts_of(lists, doubts)?;
        let after = self.uses_of(objects)?;
        let mut still = Vec::new();
        for ((doubt, before), after) in doubts.iter().zip(&before).zip(&after) {
            let found = facts.remove(&doubt.known.object).unwrap_or_default();
            still.extend(doubt.again(before, &found, after));
        }
        Ok(still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glint_net::Address;
    use glint_proto::Ino;
    use glint_proto::message::StoredSeal;

    #[test]
    fn ends_are_asked_for_where_they_are_to_be_and_not_while_that_ost_is_away() {
        let on = |ino: u64, ost: u16| {
            let object = ObjectId { ino: Ino(ino), stripe: 0 };
            UsedObject { object, used: ObjectUse::Alone(ost), end: Some(9) }
        };
        let uses = vec![on(1, 0), on(2, 1), on(3, 2), on(4, 0)];
        let seen = HashSet::from([uses[3].object]);
        let asked = BTreeSet::from([0, 2]);
        let missed = missed_of(uses.clone(), &seen, &asked);
        let objects = |ost| objects_at(ost, &missed);
        assert_eq!(objects(0), [uses[0].object]);
        assert!(objects(1).is_empty() && missed.len() == 2, "it is away");
        assert_eq!(objects(2), [uses[2].object]);
    }

    #[test]
    fn an_oss_that_was_started_a_short_time_ago_may_lack_writes() {
        let after = |runs_for| ServerOsts { osts: vec![0], runs_for };
        let oss = Target::Oss("one:5641".into());
        assert!(!after(Duration::from_secs(5)).have_all(&oss) && after(RETURNED).have_all(&oss));
        let mount = Target::Mount("/mnt".into());
        assert!(after(Duration::ZERO).have_all(&mount), "the MDS waits for clients by itself");
    }

    #[test]
    fn lists_are_merged_as_far_as_all_of_them_were_read() {
        let fact = |ino: u64| {
            let object = ObjectId { ino: Ino(ino), stripe: 0 };
            StoredFact { object, size: Ok(ino), seal: StoredSeal::None }
        };
        let list = |ost, inos: &[u64], has_more: bool| {
            let next = has_more.then_some(NamespaceQuery::Stored { ost, after: None });
            let source = NamespaceSource::Server(Address::parse("unix:/nosuch"));
            let ahead = inos.iter().map(|ino| fact(*ino)).collect();
            OstList { ost, source, ahead, next, failure: None }
        };
        // In the order of directories, of which inodes share one.
        let other = 1 << 10;
        let last = 1 << 20;
        let mut lists = [list(0, &[1, 2, last, other], true), list(1, &[2, 3, last], true)];
        let shown = |found: Vec<(ObjectId, CopyFacts)>| -> Vec<(u64, Vec<u16>)> {
            let one = |(object, facts): (ObjectId, CopyFacts)| {
                (object.ino.0, facts.into_keys().collect())
            };
            found.into_iter().map(one).collect()
        };
        assert_eq!(shown(merged(&mut lists, 2)), [(1, vec![0]), (2, vec![0, 1])]);
        assert_eq!(shown(merged(&mut lists, 100)), [(3, vec![1]), (last, vec![0, 1])]);
        assert!(merged(&mut lists, 100).is_empty(), "the second one may have more");
        lists[1].next = None;
        assert_eq!(shown(merged(&mut lists, 100)), [(other, vec![0])]);
        lists[0].next = None;
        assert!(merged(&mut lists, 100).is_empty());

        let mut lists = [list(0, &[1, 2], false), list(1, &[1], true)];
        lists[1].leave_out("away".into());
        assert_eq!(shown(merged(&mut lists, 100)), [(1, vec![0]), (2, vec![0])]);
        assert_eq!(asked(&lists), BTreeSet::from([0]));
        assert_eq!(lists[1].failure.as_deref(), Some("OST 1: away"));
    }
}
