//! Ends of files: an object that has none of its copies any more is in no list of an OST, but a
//! file ends where one of its objects does.
//!
//! Invariants:
//! - What is missing is told only if it is so at each of the later looks, before and after which
//!   the MDS has said the same of the file.
//! - Nothing is told of an object that some OST has not been asked for.

use super::{DOUBTS_MAX, LOOKS, OstList, asked};
use crate::cmd::fsck::online::OnlineCheck;
use crate::cmd::fsck::{Finding, Outcome};
use glint_proto::chain::MemberState;
use glint_proto::message::{FileEnd, NamespaceQuery, ObjectUse};
use glint_proto::{FsResult, Ino, ObjectId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::error::Error;

/// The end of a file that seems to be lost until it was looked at again.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct EndDoubt {
    end: FileEnd,
    /// How much of the object each OST has.
    sizes: BTreeMap<u16, FsResult<u64>>,
}

/// OSTs that are all to have the object; none where some may lack it.
fn places(used: &ObjectUse) -> Vec<u16> {
    match used {
        ObjectUse::Alone(ost) => vec![*ost],
        ObjectUse::Copies { members, .. }
            if members.iter().all(|member| member.state == MemberState::Serving) =>
        {
            members.iter().map(|member| member.ost).collect()
        }
        ObjectUse::Copies { .. } | ObjectUse::Nobody | ObjectUse::Unknown => Vec::new(),
    }
}

impl EndDoubt {
    /// What is wrong, if only these OSTs were asked.
    pub(super) fn finding(&self, asked: &BTreeSet<u16>) -> Option<Finding> {
        let FileEnd { object, bytes, used } = &self.end;
        let places = places(used);
        let is_known =
            |ost: &u16| asked.contains(ost) && self.sizes.get(ost).is_none_or(Result::is_ok);
        if places.is_empty() || !places.iter().all(is_known) {
            return None;
        }
        // Where one has it, others are compared with that.
        let sizes = places.iter().filter_map(|ost| self.sizes.get(ost)?.ok());
        let have = sizes.max().unwrap_or(0);
        if have >= *bytes {
            return None;
        }
        let osts: Vec<String> = places.iter().map(|ost| format!("OST {ost}")).collect();
        let (ino, osts) = (object.ino, osts.join(" and "));
        let what = format!(
            "file {ino} has lost its end: object {object} has {have} of {bytes} bytes on {osts}"
        );
        Some(Finding { what, outcome: Outcome::Repairable })
    }
}

impl OnlineCheck {
    /// Files whose ends no OST seems to have.
    pub(super) fn doubts_of_ends(
        &mut self,
        lists: &mut [OstList],
    ) -> Result<Vec<EndDoubt>, Box<dyn Error>> {
        let (mut doubts, mut files) = (Vec::new(), 0);
        let mut next = Some(NamespaceQuery::Ends(Ino(0)));
        while let Some(query) = next.filter(|_| doubts.len() <= DOUBTS_MAX) {
            let page = self.source.page(&self.reader, query)?;
            self.unless_ended()?;
            files += page.ends.len();
            self.progress.tell(|| format!("ends of {files} files"));
            doubts.extend(self.compare_ends(lists, page.ends)?);
            next = page.next;
        }
        Ok(doubts)
    }

    /// Those of some ends that no OST seems to have.
    fn compare_ends(
        &self,
        lists: &mut [OstList],
        ends: Vec<FileEnd>,
    ) -> Result<Vec<EndDoubt>, Box<dyn Error>> {
        let mut found: HashMap<ObjectId, BTreeMap<u16, FsResult<u64>>> = HashMap::new();
        for list in lists.iter_mut().filter(|list| list.failure.is_none()) {
            let its = ends.iter().filter(|end| places(&end.used).contains(&list.ost));
            let objects: Vec<ObjectId> = its.map(|end| end.object).collect();
            if objects.is_empty() {
                continue;
            }
            let query = NamespaceQuery::StoredAgain { ost: list.ost, objects };
            let Some(page) = list.ask(&query, self)? else { continue };
            for fact in page.stored {
                found.entry(fact.object).or_default().insert(list.ost, fact.size);
            }
        }
        let asked = asked(lists);
        let doubts = ends.into_iter().map(|end| {
            let sizes = found.remove(&end.object).unwrap_or_default();
            EndDoubt { end, sizes }
        });
        Ok(doubts.filter(|doubt| doubt.finding(&asked).is_some()).collect())
    }

    /// Looks again at some ends. Returns those that nobody has still.
    pub(super) fn look_at_ends_again(
        &self,
        lists: &mut [OstList],
        doubts: Vec<EndDoubt>,
    ) -> Result<Vec<EndDoubt>, Box<dyn Error>> {
        let mut still = Vec::new();
        let mut doubts = doubts.into_iter().peekable();
        while doubts.peek().is_some() {
            let some: Vec<EndDoubt> = doubts.by_ref().take(LOOKS).collect();
            let before = self.ends_of(&some)?;
            let now = self.compare_ends(lists, before)?;
            let after = self.ends_of(&some)?;
            let is_same = |doubt: &EndDoubt| now.contains(doubt) && after.contains(&doubt.end);
            still.extend(some.into_iter().filter(is_same));
        }
        Ok(still)
    }

    /// What the MDS says of these files now.
    fn ends_of(&self, doubts: &[EndDoubt]) -> Result<Vec<FileEnd>, Box<dyn Error>> {
        let inodes = doubts.iter().map(|doubt| doubt.end.object.ino).collect();
        Ok(self.source.page(&self.reader, NamespaceQuery::EndsAgain(inodes))?.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Serving, Syncing};
    use glint_proto::Errno;
    use glint_proto::chain::{ChainId, Member};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 1 };

    /// What is found of five bytes, if OSTs 0 to 2 are asked.
    fn found(used: ObjectUse, sizes: &[(u16, FsResult<u64>)]) -> Option<String> {
        let end = FileEnd { object: OBJECT, bytes: 5, used };
        let doubt = EndDoubt { end, sizes: sizes.iter().copied().collect() };
        doubt.finding(&BTreeSet::from([0, 1, 2])).map(|finding| finding.what)
    }

    fn copies(members: &[(u16, MemberState)]) -> ObjectUse {
        let members = members.iter().map(|(ost, state)| Member { ost: *ost, state: *state });
        let chain = ChainId { copies: 2, index: 1 };
        ObjectUse::Copies { chain, version: 3, members: members.collect() }
    }

    #[test]
    fn an_end_that_no_ost_has_is_lost() {
        let lost =
            "file 0x7 has lost its end: object 0000000000000007.0001 has 0 of 5 bytes on OST 1";
        assert_eq!(found(ObjectUse::Alone(1), &[]).as_deref(), Some(lost));
        assert!(found(ObjectUse::Alone(1), &[(1, Ok(4))]).unwrap().contains("has 4 of 5 bytes"));
        assert_eq!(found(ObjectUse::Alone(1), &[(1, Ok(5))]), None);
        let both = || copies(&[(2, Serving), (1, Serving)]);
        assert!(found(both(), &[(1, Ok(4))]).unwrap().ends_with("4 of 5 bytes on OST 2 and OST 1"));
        assert_eq!(found(both(), &[(1, Ok(5))]), None, "one has it");
    }

    #[test]
    fn where_not_all_is_known_nothing_is_lost() {
        assert_eq!(found(ObjectUse::Alone(3), &[]), None);
        assert_eq!(found(ObjectUse::Alone(1), &[(1, Err(Errno::EIO))]), None);
        assert_eq!(found(copies(&[(2, Serving), (3, Serving)]), &[]), None);
        assert_eq!(found(copies(&[(2, Serving), (1, Syncing)]), &[]), None);
        assert_eq!(found(ObjectUse::Unknown, &[]), None);
    }
}
