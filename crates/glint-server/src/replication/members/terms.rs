//! Changes that disks of members make, and in which order where nobody waits for some of them any more.
//!
//! Invariant: at a member a change by a newer row begins when those by older rows are over there, and
//! none by an older row begins after it; nor does one by the same row before those are over that
//! nobody waits for any more. So a disk that stood still brings no old bytes over newer ones.

use glint_proto::{Errno, FsResult};
use glint_wait::Monitor;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// A member of a chain: its target and OST.
pub(super) type Member = (u16, u16);

/// Changes that disks make, by the terms that they were begun in.
#[derive(Default)]
pub(in crate::replication) struct Terms(Arc<Monitor<HashMap<Member, TermsOfMember>>>);

/// Version of a row, and how often a change was given up at the member before.
type MemberTerm = (u32, u64);

#[derive(Default)]
struct TermsOfMember {
    newest: u32,
    given_up: u64,
    under_way: BTreeMap<MemberTerm, usize>,
}

/// A change that a disk makes, until it is dropped.
pub(super) struct ChangeMade {
    of: Arc<Monitor<HashMap<Member, TermsOfMember>>>,
    member: Member,
    term: MemberTerm,
    _is_under_way: Arc<()>,
}

/// Somebody waits for such a change; if that one is not over when this is dropped, it is given up.
pub(super) struct ChangeAwaited {
    of: Arc<Monitor<HashMap<Member, TermsOfMember>>>,
    member: Member,
    term: MemberTerm,
    change: Weak<()>,
}

impl Terms {
    /// Waits until changes of earlier terms are over at a member: EREMCHG if one by a newer row is
    /// known. Whoever waits for the change keeps the second until then.
    pub(super) async fn enter(
        &self,
        member: Member,
        version: u32,
    ) -> FsResult<(ChangeMade, ChangeAwaited)> {
        let look = |all: &mut HashMap<Member, TermsOfMember>| {
            let its = all.entry(member).or_default();
            if version < its.newest {
                return Some(Err(Errno::EREMCHG));
            }
            its.newest = version;
            let term = (version, its.given_up);
            if its.under_way.range(..term).next().is_some() {
                return None;
            }
            *its.under_way.entry(term).or_default() += 1;
            Some(Ok(term))
        };
        let term = self.0.until(look).await?;
        let is_under_way = Arc::new(());
        let change = Arc::downgrade(&is_under_way);
        let awaited = ChangeAwaited { of: self.0.clone(), member, term, change };
        Ok((ChangeMade { of: self.0.clone(), member, term, _is_under_way: is_under_way }, awaited))
    }
}

impl Drop for ChangeMade {
    fn drop(&mut self) {
        let ChangeMade { of, member, term, .. } = self;
        of.change(|all| {
            let Some(its) = all.get_mut(member) else { return };
            if let Some(count) = its.under_way.get_mut(term) {
                *count -= 1;
                if *count == 0 {
                    its.under_way.remove(term);
                }
            }
        });
    }
}

impl Drop for ChangeAwaited {
    fn drop(&mut self) {
        let ChangeAwaited { of, member, term, change } = self;
        if change.strong_count() > 0
            && let Some(its) = of.lock().get_mut(member)
        {
            its.given_up = its.given_up.max(term.1 + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};
    use std::pin::pin;

    #[test]
    fn a_change_by_a_newer_row_waits_for_older_ones_and_none_of_them_begins_after_it() {
        let (terms, member) = (Terms::default(), (1, 2));
        let enter = |member, version| block_on(poll_once(terms.enter(member, version)));
        let (first, awaits_first) = enter(member, 3).unwrap().unwrap();
        let (second, awaits_second) = enter(member, 3).unwrap().unwrap();
        drop(enter((1, 3), 4).unwrap().unwrap());
        let mut newer = pin!(terms.enter(member, 5));
        assert!(block_on(poll_once(newer.as_mut())).is_none());
        assert_eq!(enter(member, 4).unwrap().err(), Some(Errno::EREMCHG));
        drop((first, awaits_first));
        assert!(block_on(poll_once(newer.as_mut())).is_none());
        drop((second, awaits_second));
        let newer = block_on(poll_once(newer.as_mut())).unwrap().unwrap();
        let beside = enter(member, 5).unwrap();
        assert!(beside.is_ok(), "those by one row are ordered by turns");
        drop((newer, beside));
        assert!(terms.0.lock().values().all(|its| its.under_way.is_empty()));
    }

    #[test]
    fn a_change_by_the_same_row_waits_for_those_that_nobody_waits_for_any_more() {
        let (terms, member) = (Terms::default(), (1, 2));
        let enter = |version| block_on(poll_once(terms.enter(member, version)));
        let (slow, awaits_slow) = enter(3).unwrap().unwrap();
        let (prompt, awaits_prompt) = enter(3).unwrap().unwrap();
        drop(prompt);
        drop(awaits_prompt);
        assert!(enter(3).is_some(), "what is over is not given up");
        drop(awaits_slow);
        let mut same = pin!(terms.enter(member, 3));
        assert!(block_on(poll_once(same.as_mut())).is_none());
        drop(slow);
        assert!(block_on(poll_once(same.as_mut())).unwrap().is_ok());
    }
}
