//! A change that the head has under way, from its first attempt to its end, and its four ends.
//!
//! | end | when | who may have lost its object |
//! |---|---|---|
//! | made | all members have made it | those that serve get the object from the head |
//! | failed | none could make it, or not whole | the same, and all get the same part of it |
//! | unsound | it ends in between: another one is the head | is taken out, or left to heal |
//! | dropped | nobody waits for it any more | is left to heal, or in doubt |
//!
//! Invariants:
//! - What it has found of its object ([`found`](super::found)) is ended once, and before anything
//!   of the end is waited for: changes that have turns wait for that.
//! - A change that ends while it may be in some copies only is undecided.

use super::changed::{Data, parts};
use super::found::ChangeFindings;
use super::ranges::RangeTurn;
use crate::replication::{Here, PATIENCE, Replication, within};
use glint_ost::disk::Disk;
use glint_proto::OstRequest;
use glint_proto::chain::{Chain, Touched};
use std::ops::Range;

/// A change that the head has made one attempt or more at.
pub(super) struct UnderWay<'a> {
    replication: &'a Replication,
    pub(super) head: u16,
    pub(super) target: u16,
    /// OSTs of this server.
    here: Range<u16>,
    /// Range of its object that it changes, if it does.
    pub(super) touched: Option<Touched>,
    /// Numbers of the attempts.
    pub(super) numbers: Vec<u64>,
    /// Whether it is in all copies, or in none.
    pub(super) is_decided: bool,
    /// If it changes an object: what it finds of that before.
    pub(super) finding: Option<ChangeFindings<'a>>,
    /// The turn of its range.
    turn: Option<RangeTurn<'a>>,
}

impl<'a> UnderWay<'a> {
    /// A change that the head `head` of the chain `target` begins, when its range has its turn.
    pub(super) fn new(
        replication: &'a Replication,
        (head, target): (u16, u16),
        here: Range<u16>,
        (request, touched): (&OstRequest, Option<Touched>),
        turn: Option<RangeTurn<'a>>,
    ) -> UnderWay<'a> {
        let begin = |touched: Touched| {
            ChangeFindings::new(replication.lost.begins.enter(touched.object), request)
        };
        UnderWay {
            replication,
            head,
            target,
            here,
            touched,
            numbers: Vec::new(),
            is_decided: true,
            finding: touched.map(begin),
            turn,
        }
    }

    /// Whether the head had nothing of its object, and a member may have something.
    pub(super) fn is_begun(&self, row: &Chain) -> bool {
        self.finding.as_ref().is_some_and(|finding| finding.found.is_begun(self.head, row))
    }

    /// Ends it: all members have made it, of which these serve and may have lost the object.
    pub(super) async fn end_made<D: Disk>(&mut self, here: Here<'_, D>, may_lack: Vec<u16>) {
        self.is_decided = true;
        self.finding = None;
        if let Some(touched) = self.touched.filter(|_| !may_lack.is_empty()) {
            drop(self.turn.take());
            let head = (self.head, self.target);
            // Apart from the state of each change.
            let given = self.replication.give_whole(here, head, touched.object, may_lack);
            Box::pin(given).await;
        }
    }

    /// Ends it: it has failed by this row, here and elsewhere, each time perhaps after a part.
    pub(super) async fn end_failed<D: Disk>(
        &mut self,
        here: Here<'_, D>,
        row: &Chain,
        (request, data): (OstRequest, Data<'_>),
    ) {
        let found = self.finding.take().map(ChangeFindings::end).unwrap_or_default();
        let Some(touched) = self.touched else { return };
        // A part of it may be made, which absent members lack. Nobody takes what it may have cut
        // from a member before that is noted.
        let change = (&request, found.is_begun(self.head, row));
        let parts = parts(&request, data, Some(touched));
        let is_noted = self.replication.note_pending(row, change, parts).await.is_ok();
        drop(self.turn.take());
        let may_lack = found.may_lack(self.head, row);
        let head = (self.head, self.target);
        // Apart from the state of each change.
        Box::pin(self.replication.give_whole(here, head, touched.object, may_lack)).await;
        let is_equal = self.replication.make_equal(here, (self.head, row), &touched).await;
        self.is_decided = is_equal && is_noted;
    }

    /// Ends it before all members have made it: who may have lost its object gets that.
    pub(super) async fn end_unsound<D: Disk>(&mut self, here: Here<'_, D>) {
        let Some(finding) = self.finding.take() else { return };
        let (object, head) = (finding.object(), (self.head, self.target));
        // Apart from the state of each change.
        let left = Box::pin(self.replication.leave_to_others(here, head, object, finding.end()));
        // Whoever is not reached has it in doubt.
        let left = async {
            left.await;
            Ok(())
        };
        let _ = within(PATIENCE, left).await;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if let Some(finding) = &self.finding {
            self.replication.leave_to_heal(self.target, self.head, finding);
        }
        self.replication.rows.end(self.target, &self.numbers, self.is_decided, &self.here);
    }
}

impl Replication {
    /// Makes a change that has failed the same part in all copies. Returns whether it is.
    async fn make_equal<D: Disk>(
        &self,
        here: Here<'_, D>,
        (head, row): (u16, &Chain),
        touched: &Touched,
    ) -> bool {
        for member in row.written().filter(|member| *member != head) {
            if let Err(error) =
                self.copy(here, (head, row), member, (touched.object, &[*touched]), None).await
            {
                tracing::warn!(%error, "a change that failed is in some copies only");
                return false;
            }
        }
        true
    }
}
