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
mod under_way;

use super::rows::Entered;
use super::takeover::doubts::Wanted;
use super::touched::UNNUMBERED;
use super::{Here, Replication};
use changed::{Data, parts, touched};
use forward::patience;
use found::HadBefore;
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
use under_way::UnderWay;

/// Outcome of one attempt to make a change by one row.
enum Attempt {
    /// These members serve, and may have lost what the head had of the object.
    Done(Answer<OstReply>, Vec<u16>),
    /// No member could make it, or not whole.
    Failed(Answer<OstReply>),
    /// The chain is another one now.
    Again,
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
        let turn = match &touched {
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
        let (head, osts) = ((ost, chain.target), here.first..here.first + here.osts.count());
        let mut under_way = UnderWay::new(self, head, osts, (&request, touched), turn);
        let change = (request, data);
        let ended = self.make(here, client, change, &mut entered, &mut under_way).await;
        if ended.is_err() {
            under_way.end_unsound(here).await;
        }
        ended
    }

    /// Attempts a change until all members have made it, or it has failed.
    async fn make<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        change: (OstRequest, Data<'_>),
        entered: &mut Entered,
        under_way: &mut UnderWay<'_>,
    ) -> FsResult<Answer<OstReply>> {
        loop {
            match self.attempt_if_sound(here, client, change, entered, under_way).await? {
                Attempt::Done(answer, may_lack) => {
                    under_way.end_made(here, may_lack).await;
                    return Ok(answer);
                }
                Attempt::Failed(answer) => {
                    under_way.end_failed(here, &entered.row, change).await;
                    return Ok(answer);
                }
                Attempt::Again => self.enter_anew(here, entered, under_way).await?,
            }
        }
    }

    /// Enters by the newest row, by which the change is made once more: it brings the same bytes.
    /// EREMCHG if there is none, and the client is to wait for it.
    async fn enter_anew<D: Disk>(
        &self,
        here: Here<'_, D>,
        entered: &mut Entered,
        under_way: &mut UnderWay<'_>,
    ) -> FsResult<()> {
        let before = entered.row.version;
        let now = self.rows.get(under_way.target);
        if now.is_none_or(|now| now.head() != Some(under_way.head)) {
            // While this goes on by the old row, nobody takes over by the new one.
            under_way.end_unsound(here).await;
        }
        *entered = self.rows.enter_newest(under_way.target)?;
        if entered.row.version == before { Err(Errno::EREMCHG) } else { Ok(()) }
    }

    /// Makes a change by one row, by which this is the head, and has not lost the object.
    async fn attempt_if_sound<D: Disk>(
        &self,
        here: Here<'_, D>,
        client: ClientId,
        (request, data): (OstRequest, Data<'_>),
        entered: &Entered,
        under_way: &mut UnderWay<'_>,
    ) -> FsResult<Attempt> {
        let (ost, target, touched) = (under_way.head, under_way.target, under_way.touched);
        if entered.row.head() != Some(ost) || !entered.is_active {
            return Err(Errno::EREMCHG);
        }
        if request.is_modifying() {
            self.has_enough(&entered.row)?;
        }
        let attempt = async {
            if let Some(touched) = &touched {
                let head = (ost, &*entered.row);
                self.fits(here, head, &request, touched).await?;
                if !self.unless_lost_in_doubt(here, head, touched.object).await? {
                    return Ok(Attempt::Again);
                }
                self.unless_lost_alone(here, head, touched.object).await?;
            }
            self.attempt(here, client, entered, (request, data), &mut *under_way).await
        };
        self.unless_out((target, ost), attempt).await
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
        entered: &Entered,
        (request, data): (OstRequest, Data<'_>),
        under_way: &mut UnderWay<'_>,
    ) -> FsResult<Attempt> {
        let (row, version) = (&entered.row, entered.version());
        let (ost, touched) = (under_way.head, under_way.touched);
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
            let change = (&request, under_way.is_begun(&now));
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
            let change = (&request, under_way.is_begun(&now));
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
