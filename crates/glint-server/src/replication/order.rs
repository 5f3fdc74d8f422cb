//! A change as the head of a chain orders it.
//!
//! Invariants:
//! - While a change is under way its range is nobody else's turn at the head, and it is noted as
//!   recent before it is made.
//! - A change that ends while it may be in some copies only is undecided: the head takes over anew
//!   before it orders anything else.
//! - What members had of the object is kept over all attempts ([`found`]). A change does not end
//!   before who may have lost it is to get all of it.
//! - What absent members lack, also of a change that has failed, is noted before the change is
//!   answered, and acknowledged only when nobody acts by a row in which they serve.

pub(super) mod begins;
pub(super) mod changed;
mod follow;
mod forward;
mod found;
pub(super) mod lacking;
pub(super) mod ranges;
pub(super) mod size_limits;

use super::rows::Entered;
use super::takeover::doubts::Wanted;
use super::touched::UNNUMBERED;
use super::{Here, PATIENCE, Replication, within};
use changed::{Data, parts, touched};
use forward::patience;
use found::{ChangeFindings, HadBefore};
use futures_util::future::{Either, join, join_all, select};
use glint_net::host;
use glint_ost::disk::Disk;
use glint_proto::chain::{Chain, ChainVersion, Forward, MemberEvent, Touched};
use glint_proto::{Answer, ClientId, Errno, FsResult, ObjectId, OstReply, OstRequest};
use glint_telemetry::{Layer, Span, event, traced};
use ranges::RangeTurn;
use size_limits::is_of_request;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Outcome of one attempt to make a change by one row.
enum Attempt {
    /// These members serve, and may have lost what the head had of the object.
    Done(Answer<OstReply>, Vec<u16>),
    /// No member could make it, or not whole.
    Failed(Answer<OstReply>),
    /// The chain is another one now.
    Again,
}

/// A change that the head has made one attempt or more at.
struct UnderWay<'a> {
    replication: &'a Replication,
    target: u16,
    head: u16,
    /// OSTs of this server.
    here: std::ops::Range<u16>,
    /// Numbers of the attempts.
    numbers: Vec<u64>,
    /// Whether it is in all copies, or in none.
    is_decided: bool,
    /// If it changes an object: what it finds of that before.
    finding: Option<ChangeFindings<'a>>,
}

impl UnderWay<'_> {
    /// Whether the head had nothing of its object, and a member may have something.
    fn is_begun(&self, head: u16, row: &Chain) -> bool {
        self.finding.as_ref().is_some_and(|finding| finding.found.is_begun(head, row))
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let UnderWay { replication, target, head, here, numbers, is_decided, finding } = self;
        if let Some(finding) = finding {
            replication.leave_to_heal(*target, *head, finding);
        }
        replication.rows.end(*target, numbers, *is_decided, here);
    }
}

/// Range whose turn a change needs.
fn range_of(request: &OstRequest, touched: &Touched) -> (u64, u64) {
    match request.is_write() {
        true => (touched.start, touched.end),
        // Sizes and times are of the whole object.
        false => (0, u64::MAX),
    }
}

/// Whether the head serves alone, and others are synced.
fn is_alone(row: &Chain) -> bool {
    row.readable().count() == 1 && row.written().count() > 1
}

/// Whether a member was taken out by a newer row, since this one: what it was asked to do by this
/// one it may have done before.
fn is_lost_since(row: &Chain, now: &Chain, member: u16) -> bool {
    let serves = |row: &Chain| row.readable().any(|other| other == member);
    !now.written().any(|other| other == member) || serves(row) && !serves(now)
}

impl Replication {
    /// Has a change made by all members, as the head.
    pub(super) async fn order<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        ost: u16,
        chain: ChainVersion,
        request: OstRequest,
        data: Data<'_>,
    ) -> FsResult<Answer<OstReply>> {
        let touched = touched(&request, data)?;
        let mut turn = match &touched {
            Some(touched) => {
                if let Some(row) = self.rows.get(chain.target).filter(|row| is_alone(row)) {
                    // In turns of its own, and apart from the state of each change.
                    Box::pin(self.take_before_use(here, (ost, &row), touched.object)).await;
                }
                let (start, end) = range_of(&request, touched);
                Some(self.turn(touched.object, start, end).await)
            }
            None => None,
        };
        let mut entered = self.rows.enter(chain)?;
        let mut under_way = UnderWay {
            replication: self,
            target: chain.target,
            head: ost,
            here: here.first..here.first + here.osts.count(),
            numbers: Vec::new(),
            is_decided: true,
            finding: touched.map(|touched| {
                ChangeFindings::new(self.lost.begins.enter(touched.object), &request)
            }),
        };
        let ended: FsResult<_> = async {
            loop {
                if entered.row.head() != Some(ost) || !entered.is_active {
                    return Err(Errno::EREMCHG);
                }
                if request.is_modifying() {
                    self.has_enough(&entered.row)?;
                }
                let change = (request, data, touched);
                let attempt = async {
                    if let Some(touched) = &touched {
                        self.fits(here, (ost, &entered.row), &request, touched).await?;
                        let head = (ost, &*entered.row);
                        if !self.unless_lost_in_doubt(here, head, touched.object).await? {
                            return Ok(Attempt::Again);
                        }
                        self.unless_lost_alone(here, head, touched.object).await?;
                    }
                    self.attempt(here, client, ost, &entered, change, &mut under_way).await
                };
                match self.unless_out((chain.target, ost), attempt).await? {
                    Attempt::Done(answer, lacking) => {
                        under_way.is_decided = true;
                        // Others wait for its end that have turns.
                        under_way.finding = None;
                        if let Some(touched) = touched.filter(|_| !lacking.is_empty()) {
                            drop(turn.take());
                            let head = (ost, chain.target);
                            // Apart from the state of each change.
                            Box::pin(self.give_whole(here, head, touched.object, lacking)).await;
                        }
                        return Ok(answer);
                    }
                    Attempt::Failed(answer) => {
                        // Others wait for its end that have turns.
                        let found = under_way.finding.take().map(ChangeFindings::end);
                        if let Some(touched) = &touched {
                            let row = &entered.row;
                            let found = found.unwrap_or_default();
                            // A part of it may be made, which absent members lack. Nobody takes what
                            // it may have cut from a member before that is noted.
                            let change = (&request, found.is_begun(ost, row));
                            let parts = parts(&request, data, Some(*touched));
                            let is_noted = self.note_pending(row, change, parts).await.is_ok();
                            drop(turn.take());
                            let lacking = found.may_lack(ost, row);
                            let head = (ost, chain.target);
                            Box::pin(self.give_whole(here, head, touched.object, lacking)).await;
                            under_way.is_decided =
                                self.make_equal(here, (ost, row), touched).await && is_noted;
                        }
                        return Ok(answer);
                    }
                    Attempt::Again => {
                        let before = entered.row.version;
                        let now = self.rows.get(chain.target);
                        if now.is_none_or(|now| now.head() != Some(ost)) {
                            // While this goes on by the old row, nobody takes over by the new one.
                            self.end_unsound(here, &mut under_way).await;
                        }
                        // The change is made once more, by the new row: it brings the same bytes.
                        entered = self.rows.enter_newest(chain.target)?;
                        if entered.row.version == before {
                            // The client waits for another row.
                            return Err(Errno::EREMCHG);
                        }
                    }
                }
            }
        }
        .await;
        if ended.is_err() {
            self.end_unsound(here, &mut under_way).await;
        }
        ended
    }

    /// A change has come to an end before all had made it: who may have lost its object gets that.
    async fn end_unsound<D: Disk>(&self, here: Here<'_, D>, under_way: &mut UnderWay<'_>) {
        if let Some(finding) = under_way.finding.take() {
            let (object, head) = (finding.object(), (under_way.head, under_way.target));
            // Apart from the state of each change.
            let left = Box::pin(self.leave_to_others(here, head, object, finding.end()));
            // Whoever is not reached has it in doubt.
            let left = async {
                left.await;
                Ok(())
            };
            let _ = within(PATIENCE, left).await;
        }
    }

    /// Waits for the turn of a range of an object.
    pub(super) async fn turn(&self, object: ObjectId, start: u64, end: u64) -> RangeTurn<'_> {
        self.turns.take(object, start, end).await
    }

    /// Makes a change by one row.
    async fn attempt<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        ost: u16,
        entered: &Entered,
        (request, data, touched): (OstRequest, Data<'_>, Option<Touched>),
        under_way: &mut UnderWay<'_>,
    ) -> FsResult<Attempt> {
        let (row, version) = (&entered.row, entered.version());
        if self.is_given_up(here, (ost, row)) {
            return self.fails_here(here, version, row, ost, Errno::ETIMEDOUT).await;
        }
        let Some((sequence, stable)) = self.rows.begin(version, here.osts.next_change()) else {
            return Ok(Attempt::Again);
        };
        under_way.numbers.push(sequence);
        if let Some(finding) = &mut under_way.finding {
            let size = Wanted { object: finding.object(), start: 0, end: 0 };
            finding.was_in_doubt |= self.doubts.of(version.target, size).is_some();
        }
        let parts = parts(&request, data, touched);
        if let Err(errno) = self.note_recent(&request, version, sequence, parts.clone()).await {
            return self.fails_here(here, version, row, ost, errno).await;
        }
        let forward = Forward { sequence, stable };
        let others: Vec<u16> = row.written().filter(|member| *member != ost).collect();
        // Each has a task's place among the spans: they run at once, and end in any order.
        let forwards = others.iter().map(async |member| {
            let made = self.forward(here, client, (*member, row), forward, request, data);
            traced(pin!(made)).await
        });
        under_way.is_decided = touched.is_none();
        let (head, was_empty) = ((ost, &**row), Arc::<AtomicBool>::default());
        let own = self.change_at_member(here, client, head, request, data.bulk(), &was_empty);
        let own = self.unless_slow(here, version, row, ost, &request, own);
        let span = (!others.is_empty()).then(|| Span::part(Layer::Forward));
        let (own, made) = join(own, join_all(forwards)).await;
        drop(span);
        if let Some(finding) = &mut under_way.finding {
            let own = (ost, HadBefore::here(was_empty.load(Ordering::Acquire), &own.reply));
            let now = self.rows.get(version.target);
            let its = others.iter().zip(&made).map(|(member, made)| {
                let is_out = now.as_ref().is_none_or(|now| is_lost_since(row, now, *member));
                (*member, HadBefore::by_answer(made, is_out))
            });
            finding.note(its.chain([own]));
        }
        if own.reply == Err(Errno::EREMCHG) {
            return Ok(Attempt::Again);
        }
        if let Err(errno) = own.reply {
            let may_have_it: Vec<u16> = others
                .iter()
                .zip(&made)
                .filter(|(_, made)| **made != Err(errno))
                .map(|(member, _)| *member)
                .collect();
            if may_have_it.is_empty() || is_of_request(errno) {
                return Ok(Attempt::Failed(own));
            }
            if row.readable().any(|member| member != ost) {
                self.take_out(here, version, ost, errno).await?;
                return Ok(Attempt::Again);
            }
            // Members that may have it are synced, and get what is here again.
            for member in &may_have_it {
                let key = (version.target, *member);
                self.pending.touch_all(key, parts.clone(), UNNUMBERED).await?;
                self.take_out(here, version, *member, errno).await?;
            }
            let now = self.rows.get(version.target).ok_or(Errno::EREMCHG)?;
            let change = (&request, under_way.is_begun(ost, &now));
            self.note_pending(&now, change, parts).await?;
            return match now.readable().all(|member| member == ost) {
                true => Ok(Attempt::Done(own, Vec::new())),
                false => Ok(Attempt::Again),
            };
        }
        if made.contains(&Err(Errno::EREMCHG)) {
            return Ok(Attempt::Again);
        }
        for (member, made) in others.iter().zip(&made) {
            match made {
                // It is the same part everywhere after this: none.
                Err(errno) if is_of_request(*errno) => {
                    return Ok(Attempt::Failed(Answer::unchanged(Err(*errno))));
                }
                Err(errno) => self.take_out(here, version, *member, *errno).await?,
                Ok(_) => {}
            }
        }
        let now = self.rows.get(version.target).ok_or(Errno::EREMCHG)?;
        let has_it = |member: u16| {
            let made = others.iter().zip(&made).find(|(other, _)| **other == member);
            member == ost || made.is_some_and(|(_, made)| made.is_ok())
        };
        if now.head() != Some(ost) || !now.written().all(has_it) {
            return Ok(Attempt::Again);
        }
        let mut lacking = Vec::new();
        if let Some(finding) = &mut under_way.finding
            && finding.differs(&now)
        {
            // Apart from the state of each change.
            match Box::pin(self.unless_lost(here, (ost, &now), finding)).await {
                Some(serving) => lacking = serving,
                None => return Ok(Attempt::Again),
            }
        }
        if now.readable().count() < now.members.len() {
            let now_is = ChainVersion { version: now.version, ..version };
            if now.missing().next().is_some() && !self.rows.until_settled(now_is).await {
                return Ok(Attempt::Again);
            }
            let change = (&request, under_way.is_begun(ost, &now));
            if let Err(errno) = self.note_pending(&now, change, parts).await {
                return self.fails_here(here, now_is, &now, ost, errno).await;
            }
        }
        let reply = match own.reply {
            Ok(OstReply::SpaceGranted { bytes, object_bytes_max }) => {
                let all = made.iter().flatten().filter_map(|reply| match reply {
                    OstReply::SpaceGranted { bytes, object_bytes_max } => {
                        Some((*bytes, *object_bytes_max))
                    }
                    _ => None,
                });
                let least =
                    |least: (u64, u64), its: (u64, u64)| (least.0.min(its.0), least.1.min(its.1));
                let (bytes, object_bytes_max) = all.fold((bytes, object_bytes_max), least);
                Ok(OstReply::SpaceGranted { bytes, object_bytes_max })
            }
            reply => reply,
        };
        Ok(Attempt::Done(Answer { reply, ..own }, lacking))
    }

    /// A change has failed, here and elsewhere, each time perhaps after a part of it. Makes it the same
    /// part in all copies. Returns whether it is.
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

    /// Notes that an object is about to be changed, for [`Replication::at_member`]; before a sync on
    /// stable storage.
    async fn note_recent(
        &self,
        request: &OstRequest,
        version: ChainVersion,
        sequence: u64,
        parts: impl Iterator<Item = Touched>,
    ) -> FsResult<()> {
        self.recent.note_for_request((version.target, 0), parts, (version.version, sequence));
        match request {
            OstRequest::Sync { .. } => self.recent.sync_for_request().await,
            _ => Ok(()),
        }
    }

    /// The head itself cannot do its part: another member has to, if one serves.
    async fn fails_here<D: Disk>(
        &self,
        here: Here<'_, D>,
        version: ChainVersion,
        row: &Chain,
        ost: u16,
        errno: Errno,
    ) -> FsResult<Attempt> {
        if row.readable().all(|member| member == ost) {
            return Err(errno);
        }
        self.take_out(here, version, ost, errno).await?;
        Ok(Attempt::Again)
    }

    /// Waits for what the disk of a member here does. If that takes too long, and another one serves,
    /// the member is taken out meanwhile, so that others go on.
    pub(super) async fn unless_slow<D: Disk, R>(
        &self,
        here: Here<'_, D>,
        version: ChainVersion,
        row: &Chain,
        ost: u16,
        request: &OstRequest,
        work: impl Future<Output = R>,
    ) -> R {
        let work = pin!(work);
        let slow = async {
            host::sleep(patience(request)).await;
            if row.readable().any(|member| member != ost) {
                // If that cannot be said, the call waits for the disk as it would have.
                let _ = self.take_out(here, version, ost, Errno::ETIMEDOUT).await;
            }
        };
        match select(work, pin!(slow)).await {
            Either::Left((done, _)) => done,
            Either::Right(((), work)) => work.await,
        }
    }

    /// Notes, durably, that the absent members of a chain lack a change, and whether they may have more
    /// of its object ([`note_begun`](Replication::note_begun)).
    pub(super) async fn note_pending(
        &self,
        row: &Chain,
        change: (&OstRequest, bool),
        parts: impl Iterator<Item = Touched> + Clone,
    ) -> FsResult<()> {
        if parts.clone().next().is_none() {
            return Ok(());
        }
        let mut is_one = self.note_begun(row, change, parts.clone());
        for absent in row.missing() {
            self.pending.note((row.id.target(), absent), parts.clone(), UNNUMBERED);
            is_one = true;
        }
        if is_one { self.pending.sync_for_request().await } else { Ok(()) }
    }

    /// Has the MDS take a member out of its chain.
    pub(super) async fn take_out<D: Disk>(
        &self,
        here: Here<'_, D>,
        chain: ChainVersion,
        member: u16,
        why: Errno,
    ) -> FsResult<()> {
        let Ok(newest) = self.row_of(chain) else { return Ok(()) };
        tracing::warn!(
            event = event::MEMBER_TAKEN_OUT,
            chain = %newest.id, ost = member, errno = %why,
            "a member of a chain cannot do what it should; it is taken out"
        );
        let told = self.peers()?.tell(chain, member, MemberEvent::Lost).await;
        let row = told.map_err(|_| Errno::EREMCHG)?;
        self.adopt(here, &row);
        self.rows.mark_settled(&row);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
