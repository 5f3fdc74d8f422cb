//! Comparison of the objects that OSTs have with each other, and with what files are to have, while
//! they are used.
//!
//! Invariants:
//! - What seems wrong is told only if it is the same at each of some later looks: the objects that
//!   OSTs have, and where the MDS says that they are to be, asked before and after these, by the
//!   same version of the chain's row. An OST that has not made a change in that time is no member
//!   that serves any more. One look is not enough: a file that is cut off and written anew all the
//!   time, as the journal of a database, may be seen in the same two states twice.
//! - An OST that does not answer is left out from then on, and nothing is told of it.
//! - A file may have holes: that no OST has an object says nothing. Nor does a member that lags
//!   behind.
//! - No more is kept than a page for each OST, and what seems wrong.

use super::{NamespaceSource, OnlineCheck};
use crate::cmd::fsck::{Finding, Outcome};
use crate::cmd::storage::scrub::{Server, servers};
use crate::target::Target;
use glint_ost::list_order;
use glint_proto::chain::MemberState;
use glint_proto::limits::CHECKED_RECORDS_MAX;
use glint_proto::message::{NamespacePage, NamespaceQuery, ObjectUse, StoredFact};
use glint_proto::{FsResult, ObjectId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::error::Error;
use std::time::Duration;

/// Milliseconds before each of the later looks. An OST whose disk keeps a change for longer than the
/// first is taken for one that stands still. They differ, for changes that come at a steady pace; and
/// they are so many because two states that are there half of the time each are seen at one of four
/// looks: at all of them, of 200 000 such objects at one.
const PAUSES_MS: [u64; 8] = [5_000, 210, 340, 130, 550, 270, 890, 430];
/// Objects that are looked at again at once: an OST is asked about all of them, and its disk is
/// perhaps slow.
const LOOKS: usize = 64;
/// How often an OST is asked: it may be slow, or its server is started again.
const TRIES: usize = 3;
/// Time between two of them.
const RETRY: Duration = Duration::from_secs(1);
/// Objects that seem wrong after which no others are looked for.
const DOUBTS_MAX: usize = 1 << 16;

/// Which OSTs have an object, and how large it is there.
type Sizes = BTreeMap<u16, FsResult<u64>>;

/// Objects of an OST, as far as its list was read.
struct OstList {
    ost: u16,
    source: NamespaceSource,
    ahead: VecDeque<StoredFact>,
    next: Option<NamespaceQuery>,
    /// Why it is left out.
    failure: Option<String>,
}

/// An object that seems wrong until it was looked at again.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ObjectDoubt {
    object: ObjectId,
    used: ObjectUse,
    sizes: Sizes,
}

impl ObjectDoubt {
    /// What is wrong, if only these OSTs were asked.
    fn findings(&self, asked: &BTreeSet<u16>) -> Vec<Finding> {
        let ObjectDoubt { object, used, sizes } = self;
        let mut found = Vec::new();
        let mut find = |what, outcome| found.push(Finding { what, outcome });
        for (ost, size) in sizes {
            if let Err(errno) = size {
                find(format!("object {object} on OST {ost}: {errno}"), Outcome::Left);
            }
        }
        match used {
            ObjectUse::Nobody => sizes.keys().for_each(|ost| {
                let what = format!("object {object} on OST {ost} belongs to no file");
                find(what, Outcome::Repairable);
            }),
            ObjectUse::Copies { members, .. }
                if members.iter().all(|member| member.state == MemberState::Serving) =>
            {
                let asked =
                    members.iter().map(|member| member.ost).filter(|ost| asked.contains(ost));
                let has = |ost: &u16| Some((*ost, sizes.get(ost)?.ok()?));
                let asked: Vec<u16> = asked.collect();
                // The head, unless that has none.
                let Some((right, bytes)) = asked.iter().find_map(has) else { return found };
                let ino = object.ino;
                for ost in asked.iter().filter(|ost| **ost != right) {
                    match sizes.get(ost) {
                        None if bytes > 0 => find(
                            format!(
                                "OST {ost} lacks its copy of file {ino}: object {object}, which \
                                 OST {right} has"
                            ),
                            Outcome::Repairable,
                        ),
                        Some(Ok(size)) if *size != bytes => find(
                            format!(
                                "object {object} of file {ino} has {size} bytes on OST {ost}, and \
                                 {bytes} on OST {right}"
                            ),
                            Outcome::Left,
                        ),
                        _ => {}
                    }
                }
            }
            ObjectUse::Copies { .. } | ObjectUse::Alone(_) | ObjectUse::Unknown => {}
        }
        found
    }

    /// Whether it is so at a later look, before and after which the object was to be there.
    fn is_confirmed(&self, before: &ObjectUse, sizes: &Sizes, after: &ObjectUse) -> bool {
        self.used == *before && self.sizes == *sizes && before == after
    }
}

impl OstList {
    /// Asks the OST. `None` if it does not answer, and is left out.
    fn ask(
        &mut self,
        query: &NamespaceQuery,
        check: &OnlineCheck,
    ) -> Result<Option<NamespacePage>, Box<dyn Error>> {
        for left in (0..TRIES).rev() {
            check.unless_ended()?;
            match self.source.page(&check.reader, query.clone()) {
                Ok(page) => return Ok(Some(page)),
                Err(_) if left > 0 => check.pause(RETRY)?,
                Err(why) => self.leave_out(why),
            }
        }
        Ok(None)
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
fn merged(lists: &mut [OstList], most: usize) -> Vec<(ObjectId, Sizes)> {
    let mut found = Vec::new();
    while found.len() < most
        && lists.iter().all(|list| list.next.is_none() || !list.ahead.is_empty())
    {
        let heads = lists.iter().filter_map(|list| list.ahead.front());
        let Some(object) = heads.map(|fact| fact.object).min_by_key(|one| list_order(*one)) else {
            break;
        };
        let mut sizes = Sizes::new();
        for list in &mut *lists {
            if let Some(fact) = list.ahead.pop_front_if(|fact| fact.object == object) {
                sizes.insert(list.ost, fact.size);
            }
        }
        found.push((object, sizes));
    }
    found
}

/// Numbers of the OSTs of a server.
fn osts_of(server: &Server) -> Result<Vec<u16>, String> {
    let status = server.target.ask("status").map_err(|error| server.error(&error))?;
    let status: Value =
        serde_json::from_str(&status).map_err(|error| server.error(&error.to_string()))?;
    let rows = status["osts"].as_array();
    let rows = rows.ok_or_else(|| server.error("it does not know the numbers of its OSTs yet"))?;
    let number = |row: &Value| u16::try_from(row["index"].as_u64()?).ok();
    Ok(rows.iter().filter_map(number).collect())
}

/// Lists of all OSTs of a file system, and why those of some servers cannot be asked for.
fn lists_of(target: &Target) -> Result<(Vec<OstList>, Vec<String>), Box<dyn Error>> {
    let (mut lists, mut failed) = (Vec::new(), Vec::new());
    for server in servers(target.clone())? {
        match osts_of(&server) {
            Ok(osts) => {
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
        let mut doubts: Vec<ObjectDoubt> = Vec::new();
        loop {
            for list in &mut lists {
                list.read_on(self)?;
            }
            let some = merged(&mut lists, CHECKED_RECORDS_MAX);
            if some.is_empty() && lists.iter().all(|list| list.next.is_none()) {
                break;
            }
            doubts.extend(self.doubts_of(some, &asked(&lists))?);
            if doubts.len() > DOUBTS_MAX {
                break;
            }
        }
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

    /// Where some objects are to be, in their order.
    fn uses_of(&self, objects: Vec<ObjectId>) -> Result<Vec<ObjectUse>, Box<dyn Error>> {
        let count = objects.len();
        let uses = self.source.page(&self.reader, NamespaceQuery::Uses(objects))?.uses;
        match uses.len() == count {
            true => Ok(uses),
            false => Err("the server has said something else than whose objects are".into()),
        }
    }

    /// Those of some objects that seem wrong.
    fn doubts_of(
        &mut self,
        some: Vec<(ObjectId, Sizes)>,
        asked: &BTreeSet<u16>,
    ) -> Result<Vec<ObjectDoubt>, Box<dyn Error>> {
        let uses = self.uses_of(some.iter().map(|(object, _)| *object).collect())?;
        self.unless_ended()?;
        self.objects += some.len();
        self.untold += uses.iter().filter(|used| **used == ObjectUse::Unknown).count();
        let objects = self.objects;
        self.progress.tell(|| format!("{objects} objects"));
        let doubts = some.into_iter().zip(uses);
        let doubts = doubts.map(|((object, sizes), used)| ObjectDoubt { object, used, sizes });
        Ok(doubts.filter(|doubt| !doubt.findings(asked).is_empty()).collect())
    }

    /// Looks again at what seems wrong. Returns what still does.
    fn look_again(
        &self,
        lists: &mut [OstList],
        doubts: &[ObjectDoubt],
    ) -> Result<Vec<ObjectDoubt>, Box<dyn Error>> {
        let objects: Vec<ObjectId> = doubts.iter().map(|doubt| doubt.object).collect();
        let before = self.uses_of(objects.clone())?;
        let mut sizes: HashMap<ObjectId, Sizes> = HashMap::new();
        for list in lists.iter_mut().filter(|list| list.failure.is_none()) {
            let query = NamespaceQuery::StoredAgain { ost: list.ost, objects: objects.clone() };
            let Some(page) = list.ask(&query, self)? else { continue };
            for fact in page.stored {
                sizes.entry(fact.object).or_default().insert(list.ost, fact.size);
            }
        }
        let after = self.uses_of(objects)?;
        let mut still = Vec::new();
        for ((doubt, before), after) in doubts.iter().zip(&before).zip(&after) {
            let found = sizes.remove(&doubt.object).unwrap_or_default();
            if doubt.is_confirmed(before, &found, after) {
                still.push(doubt.clone());
            }
        }
        Ok(still)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Serving, Syncing};
    use glint_net::Address;
    use glint_proto::chain::{ChainId, Member};
    use glint_proto::message::StoredSeal;
    use glint_proto::{Errno, Ino};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: ObjectId::OF_CHAINS };

    fn copies(version: u32, members: &[(u16, MemberState)]) -> ObjectUse {
        let chain = ChainId { copies: 2, index: 1 };
        let members = members.iter().map(|(ost, state)| Member { ost: *ost, state: *state });
        ObjectUse::Copies { chain, version, members: members.collect() }
    }

    fn doubt(used: ObjectUse, sizes: &[(u16, FsResult<u64>)]) -> ObjectDoubt {
        ObjectDoubt { object: OBJECT, used, sizes: sizes.iter().copied().collect() }
    }

    /// What is found, if OSTs 0 to 2 are asked.
    fn found(used: ObjectUse, sizes: &[(u16, FsResult<u64>)]) -> Vec<String> {
        let findings = doubt(used, sizes).findings(&BTreeSet::from([0, 1, 2]));
        findings.into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn copies_of_a_whole_chain_are_equal() {
        let whole = || copies(3, &[(2, Serving), (1, Serving)]);
        let none: [String; 0] = [];
        assert_eq!(found(whole(), &[(1, Ok(5)), (2, Ok(5))]), none);
        assert_eq!(found(whole(), &[(1, Ok(0))]), none, "nothing is lost");
        let missing =
            "OST 1 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 2 has";
        assert_eq!(found(whole(), &[(2, Ok(5))]), [missing]);
        let head =
            "OST 2 lacks its copy of file 0x7: object 0000000000000007.8000, which OST 1 has";
        assert_eq!(found(whole(), &[(1, Ok(5))]), [head]);
        let shorter =
            "object 0000000000000007.8000 of file 0x7 has 4 bytes on OST 1, and 5 on OST 2";
        assert_eq!(found(whole(), &[(1, Ok(4)), (2, Ok(5))]), [shorter]);
        // What is left on one that is no member says nothing.
        assert_eq!(found(whole(), &[(0, Ok(9)), (1, Ok(5)), (2, Ok(5))]), none);
        let unread = found(whole(), &[(1, Err(Errno::EIO)), (2, Ok(5))]);
        assert!(unread.len() == 1 && unread[0].contains("on OST 1: "), "{unread:?}");
    }

    #[test]
    fn who_lags_behind_or_was_not_asked_lacks_nothing() {
        let none: [String; 0] = [];
        assert_eq!(found(copies(3, &[(2, Serving), (1, Syncing)]), &[(2, Ok(5))]), none);
        assert_eq!(found(copies(3, &[(2, Serving), (3, Serving)]), &[(2, Ok(5))]), none);
        assert_eq!(found(copies(3, &[(2, Serving), (3, Serving)]), &[]), none);
    }

    #[test]
    fn objects_of_nobody_are_named_where_they_are() {
        let none: [String; 0] = [];
        let lost = found(ObjectUse::Nobody, &[(0, Ok(5)), (2, Ok(0))]);
        assert!(lost.len() == 2 && lost[1].ends_with("on OST 2 belongs to no file"), "{lost:?}");
        for used in [ObjectUse::Unknown, ObjectUse::Alone(0), ObjectUse::Alone(1)] {
            assert_eq!(found(used, &[(0, Ok(5))]), none);
        }
    }

    #[test]
    fn what_has_changed_meanwhile_is_not_told() {
        let used = copies(3, &[(2, Serving), (1, Serving)]);
        let later = copies(4, &[(2, Serving), (1, Serving)]);
        let doubt = doubt(used.clone(), &[(2, Ok(5))]);
        let same = doubt.sizes.clone();
        assert!(doubt.is_confirmed(&used, &same, &used));
        assert!(!doubt.is_confirmed(&later, &same, &later), "the chain was changed");
        assert!(!doubt.is_confirmed(&used, &same, &later), "while it was looked at");
        assert!(!doubt.is_confirmed(&ObjectUse::Nobody, &same, &ObjectUse::Nobody), "removed");
        for sizes in [&[(1, Ok(5)), (2, Ok(5))][..], &[(2, Ok(6))], &[]] {
            let sizes: Sizes = sizes.iter().copied().collect();
            assert!(!doubt.is_confirmed(&used, &sizes, &used), "{sizes:?}");
        }
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
        let shown = |found: Vec<(ObjectId, Sizes)>| -> Vec<(u64, Vec<u16>)> {
            let one =
                |(object, sizes): (ObjectId, Sizes)| (object.ino.0, sizes.into_keys().collect());
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

    #[test]
    fn what_is_not_heard_of_any_more_lacks_nothing() {
        let doubt = doubt(copies(3, &[(2, Serving), (1, Serving)]), &[(2, Ok(5))]);
        assert_eq!(doubt.findings(&BTreeSet::from([1, 2])).len(), 1);
        assert!(doubt.findings(&BTreeSet::from([2])).is_empty());
    }
}
