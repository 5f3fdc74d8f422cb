//! What a change has found of its object at each member, at all its attempts.
//!
//! An attempt that comes to nothing, because the chain changes, may be made at some members all
//! the same: it has made a new object at one that had lost its own. The next attempt finds that
//! one, and says nothing about it. So what was found first counts, until the change is answered.
//!
//! Invariants:
//! - Of what a member says at several attempts the worst counts: that it had nothing of the object,
//!   or else that nobody knows what it had. But where a change that cuts off all of the object may
//!   have been made before, nothing is what that has left.
//! - A member that has refused an attempt has not made it, and that says nothing.

use super::begins::Beginning;
use glint_proto::chain::{Chain, Member, MemberState};
use glint_proto::{Errno, FsResult, ObjectId, OstReply, OstRequest};

/// What a member had of an object before a change: the worst one last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum HadBefore {
    Something,
    /// It may have made the change, and has not said what it found.
    Unknown,
    Nothing,
}

/// What members had of the object of a change, before its first attempt that they have made.
#[derive(Default, Debug)]
pub(super) struct FoundByChange(Vec<(u16, HadBefore)>);

/// The same of a change that is under way, among others of its object.
pub(super) struct ChangeFindings<'a> {
    pub(super) beginning: Beginning<'a>,
    pub(super) found: FoundByChange,
    /// The object was in doubt when an attempt began: a change of before may have made the first
    /// bytes somewhere.
    pub(super) was_in_doubt: bool,
    /// Nothing is left of the object where it was made.
    cuts_all: bool,
}

impl HadBefore {
    /// What another member has said of its object with the answer to a change; `None` if it has not
    /// made that. One that `is_out` may have made it before it refused.
    pub(super) fn by_answer(answer: &FsResult<OstReply>, is_out: bool) -> Option<HadBefore> {
        match answer {
            Ok(OstReply::WasEmpty) => Some(HadBefore::Nothing),
            Ok(_) => Some(HadBefore::Something),
            Err(Errno::EREMCHG) if !is_out => None,
            Err(_) => Some(HadBefore::Unknown),
        }
    }

    /// The same of a member here, which knows it also of a change that fails.
    pub(super) fn here(was_empty: bool, reply: &FsResult<OstReply>) -> Option<HadBefore> {
        match was_empty {
            true => Some(HadBefore::Nothing),
            false => HadBefore::by_answer(reply, false),
        }
    }
}

impl FoundByChange {
    /// A member has made an attempt.
    pub(super) fn note(&mut self, member: u16, before: HadBefore) {
        match self.0.iter_mut().find(|(other, _)| *other == member) {
            Some((_, worst)) => *worst = before.max(*worst),
            None => self.0.push((member, before)),
        }
    }

    fn at(&self, member: u16) -> Option<HadBefore> {
        self.0.iter().find(|(other, _)| *other == member).map(|(_, before)| *before)
    }

    fn differs(&self) -> bool {
        self.0.iter().any(|(_, before)| Some(*before) != self.0.first().map(|first| first.1))
    }

    /// Members that had nothing.
    pub(super) fn empty_at(&self) -> impl Iterator<Item = u16> {
        self.0.iter().filter(|(_, before)| *before == HadBefore::Nothing).map(|(member, _)| *member)
    }

    /// Whether it is known of each of these members what it had.
    pub(super) fn is_known_of(&self, mut members: impl Iterator<Item = u16>) -> bool {
        members.all(|member| self.at(member).is_some_and(|before| before != HadBefore::Unknown))
    }

    /// Whether the head had nothing of the object, and a member may have what the head has lost: one
    /// that has not said that it had nothing either.
    pub(super) fn is_begun(&self, head: u16, row: &Chain) -> bool {
        let is_empty = |member: &Member| {
            let had_nothing = self.at(member.ost) == Some(HadBefore::Nothing);
            had_nothing || member.state == MemberState::Emptied
        };
        self.at(head) == Some(HadBefore::Nothing) && !row.members.iter().all(is_empty)
    }

    /// Members that may have lost what the head had. (Of one that is out, and has not said what it
    /// found, heal looks at the rest of the object.)
    pub(super) fn may_lack(&self, head: u16, row: &Chain) -> Vec<u16> {
        if self.at(head) != Some(HadBefore::Something) {
            return Vec::new();
        }
        let may_lack = |(member, before): &&(u16, HadBefore)| match before {
            HadBefore::Something => false,
            HadBefore::Unknown => row.written().any(|other| other == *member),
            HadBefore::Nothing => true,
        };
        self.0.iter().filter(may_lack).map(|(member, _)| *member).collect()
    }
}

impl<'a> ChangeFindings<'a> {
    /// Of a change that begins: it was made nowhere yet.
    pub(super) fn new(beginning: Beginning<'a>, request: &OstRequest) -> ChangeFindings<'a> {
        let cuts_all = matches!(request, OstRequest::Truncate { size: 0, .. });
        let found = FoundByChange::default();
        ChangeFindings { beginning, found, was_in_doubt: false, cuts_all }
    }

    pub(super) fn object(&self) -> ObjectId {
        self.beginning.object()
    }

    /// Members have made an attempt, or have not: then there is nothing of them.
    pub(super) fn note(&mut self, befores: impl Iterator<Item = (u16, Option<HadBefore>)>) {
        for (member, before) in befores {
            let Some(before) = before else { continue };
            let is_cut = self.cuts_all && self.found.at(member).is_some();
            if !is_cut || before != HadBefore::Nothing {
                self.found.note(member, before);
            }
        }
        self.beginning.note(self.found.empty_at());
        self.beginning.is_known_of_all(false);
    }

    /// All members that are written by a row have made the change. Returns whether they have found
    /// different things.
    pub(super) fn differs(&mut self, row: &Chain) -> bool {
        let is_known = self.is_known_of_all(row);
        self.beginning.is_known_of_all(is_known);
        self.found.differs()
    }

    /// Whether it is known what all had, and that changes of before had nothing to do with it.
    pub(super) fn is_known_of_all(&self, row: &Chain) -> bool {
        !self.was_in_doubt && self.found.is_known_of(row.written())
    }

    /// The change is over: others wait for its end.
    pub(super) fn end(self) -> FoundByChange {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::tests::World;
    use glint_proto::chain::MemberState::{Offline, Serving, Syncing};

    #[test]
    fn what_a_member_had_before_the_first_attempt_counts_whatever_comes_later() {
        let row = World::new(&[Serving, Serving, Syncing]).row();
        let (had, empty) = (HadBefore::Something, HadBefore::Nothing);
        // What the head and another member had at each attempt, and whether that may lack it.
        let cases = [
            (vec![(Some(had), Some(had))], false),
            (vec![(Some(had), Some(empty))], true),
            (vec![(Some(had), Some(empty)), (Some(had), Some(had))], true),
            (vec![(None, Some(empty)), (Some(had), Some(had))], true),
            (vec![(Some(had), None), (Some(had), Some(had))], false),
            (vec![(Some(had), Some(HadBefore::Unknown)), (Some(had), Some(had))], true),
            (vec![(Some(had), Some(had)), (Some(had), Some(empty))], true),
            // The first bytes of a new object.
            (vec![(Some(empty), Some(empty)), (Some(had), Some(had))], false),
            (vec![(Some(empty), None), (Some(had), Some(empty))], false),
        ];
        for (attempts, lacks) in cases {
            for member in [1, 2] {
                let mut found = FoundByChange::default();
                for (own, its) in &attempts {
                    let said = [(0, *own), (member, *its)];
                    said.iter().for_each(|(at, before)| {
                        before.iter().for_each(|before| found.note(*at, *before));
                    });
                }
                let may_lack = found.may_lack(0, &row);
                assert_eq!(may_lack == [member], lacks, "{attempts:?}: {may_lack:?}");
            }
        }
    }

    #[test]
    fn of_a_member_that_is_out_it_counts_what_it_has_said_alone() {
        let row = World::new(&[Serving, Offline, Offline]).row();
        let mut found = FoundByChange::default();
        found.note(0, HadBefore::Something);
        found.note(1, HadBefore::Unknown);
        found.note(2, HadBefore::Nothing);
        assert_eq!(found.may_lack(0, &row), [2]);
        assert!(found.is_known_of([0, 2].into_iter()));
        assert!(!found.is_known_of([0, 1].into_iter()));
        assert!(!found.is_known_of([0, 3].into_iter()));
    }

    #[test]
    fn a_member_that_refuses_a_change_has_not_made_it_unless_it_is_out() {
        let refused = Err(Errno::EREMCHG);
        assert_eq!(HadBefore::by_answer(&refused, false), None);
        assert_eq!(HadBefore::by_answer(&refused, true), Some(HadBefore::Unknown));
        assert_eq!(HadBefore::by_answer(&Err(Errno::ETIMEDOUT), false), Some(HadBefore::Unknown));
        assert_eq!(HadBefore::here(true, &Err(Errno::ENOSPC)), Some(HadBefore::Nothing));
        assert_eq!(HadBefore::here(false, &refused), None);
    }
}
