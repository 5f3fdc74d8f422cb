//! The task of an OSS that talks to the server of the MDS: says that it lives, does what it
//! is told, asks what others want to know.
//!
//! Invariants:
//! - A session is reported as fenced when nothing of it is executed any more.
//! - Objects are destroyed only while the MDS is relied on: no change that stood still makes one
//!   again afterwards.
//! - Another run of the MDS is not relied on before it has said of each session here whether it is a
//!   good one. However many there are, it hears meanwhile that this server lives.
//! - No more than [`QUESTIONS_FOR_MDS_MAX`] questions wait for it, whoever asks and goes away.
//! - Nothing here waits for a disk: the MDS would take a slow one for an OSS that is gone. What
//!   takes its time is reported when it is done.

mod refusal;

use super::Oss;
use futures_channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use futures_channel::oneshot;
use futures_lite::StreamExt;
use futures_lite::future::or;
use glint_net::{Address, NetError, OssLink, host};
use glint_ost::disk::Disk;
use glint_proto::limits::QUESTIONS_FOR_MDS_MAX;
use glint_proto::oss::{Heartbeat, Orders, OssReply, OssRequest};
use glint_proto::{ClientId, Errno, FsResult, ObjectId, Owner, clock};
use glint_wait::Backoff;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How often it says that it lives, when there is nothing else.
const BEAT: Duration = Duration::from_millis(200);
/// Pauses before it tries to connect again.
const RETRY_MIN: Duration = Duration::from_millis(75);
const RETRY_MAX: Duration = Duration::from_millis(300);
/// How soon it looks again whether a fenced session is quiet.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long it waits to be heard when it leaves.
const LEAVE_MAX: Duration = Duration::from_secs(1);
/// Sessions that the MDS is asked about at once.
const CHECKS: usize = 32;
/// Questions of others that are asked at once.
const QUESTIONS: usize = 16;
/// How often it complains that nobody answers.
const COMPLAIN: Duration = Duration::from_secs(10);

struct Question {
    request: OssRequest,
    answer: oneshot::Sender<FsResult<OssReply>>,
    _place: Place,
}

/// A place of a question, from when it is asked until it is answered or given up. Others ask for
/// it as long as it is kept, also when who asked has gone.
struct Place(Arc<AtomicUsize>);

impl Place {
    /// A place, if one is free.
    fn take(taken: &Arc<AtomicUsize>) -> Option<Place> {
        let place = Place(taken.clone());
        (taken.fetch_add(1, Ordering::AcqRel) < QUESTIONS_FOR_MDS_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Event that others send to the task.
enum Event {
    Question(Box<Question>),
    Destroyed(Destroyed),
}

/// Outcome of an order to destroy objects: those that are still there.
struct Destroyed {
    order: OrderId,
    failed: Result<Vec<ObjectId>, String>,
}

/// An order: the sequence that it belongs to, and its number there.
type OrderId = (u64, u64);

/// Objects to be destroyed, each with its OST.
type Objects = Vec<(u16, ObjectId)>;

/// Ends of the channels that the task owns: events come to it, and orders to destroy objects go
/// from it.
struct Channels {
    events: UnboundedReceiver<Event>,
    orders: UnboundedSender<(OrderId, Objects)>,
}

/// Way to the task, for the rest of the OSS.
pub(super) struct Liaison {
    mds: Address,
    advertised: String,
    failure_domain: String,
    /// No more than the questions that have a place, and one that objects were destroyed.
    event_sender: UnboundedSender<Event>,
    questions: Arc<AtomicUsize>,
    channels: Mutex<Option<Channels>>,
    ordered: Mutex<Option<UnboundedReceiver<(OrderId, Objects)>>>,
    /// Why the server of the MDS was not heard of when it was last asked.
    trouble: Mutex<Option<String>>,
}

impl Liaison {
    pub(super) fn new(mds: Address, advertised: String, failure_domain: String) -> Liaison {
        let (event_sender, events) = mpsc::unbounded();
        let (orders, ordered) = mpsc::unbounded();
        Liaison {
            mds,
            advertised,
            failure_domain,
            event_sender,
            questions: Arc::default(),
            channels: Mutex::new(Some(Channels { events, orders })),
            ordered: Mutex::new(Some(ordered)),
            trouble: Mutex::default(),
        }
    }

    /// Where the MDS is.
    pub(super) fn mds(&self) -> &Address {
        &self.mds
    }

    /// Which server was not heard of when it was last asked, and why.
    pub(super) fn trouble(&self) -> String {
        let trouble = self.trouble.lock().clone();
        let trouble = trouble.unwrap_or_else(|| "it has not answered yet".into());
        format!("the server of the MDS at {}: {trouble}", self.mds)
    }

    /// Talking does not begin any more.
    pub(super) fn stop(&self) {
        drop(self.channels.lock().take());
    }

    /// Asks the server of the MDS. EAGAIN if it cannot be reached, or too many ask.
    pub(super) async fn ask(&self, request: OssRequest) -> FsResult<OssReply> {
        let place = Place::take(&self.questions).ok_or(Errno::EAGAIN)?;
        let (answer, answered) = oneshot::channel();
        let question = Box::new(Question { request, answer, _place: place });
        let event = Event::Question(question);
        self.event_sender.unbounded_send(event).map_err(|_| Errno::EAGAIN)?;
        answered.await.unwrap_or(Err(Errno::EAGAIN))
    }
}

impl<D: Disk> Oss<D> {
    /// Talks to the server of the MDS until the OSS is to stop. Reports when the OSS is a part of
    /// the file system, or why it cannot be. On a thread that waits for nothing else.
    pub async fn talk(&self, report: &impl Fn(Result<(), String>)) {
        let Some(Channels { events, orders }) = self.liaison.channels.lock().take() else { return };
        let mut talk = Talk {
            oss: self,
            events,
            orders,
            fencing: Vec::new(),
            unchecked: Vec::new(),
            is_another_run: false,
            done: (0, 0),
            chains: 0,
            destroying: None,
            failed: Vec::new(),
            joined: false,
            heard: false,
        };
        talk.until_the_end(report).await;
    }

    /// Destroys what the MDS has ordered to be, as long as [`Oss::talk`] runs. May wait for the
    /// disk, and for changes of the same objects: who makes those may have ended when the OSS is to
    /// end, so nothing is waited for then. What was not said to be done is ordered again.
    pub async fn destroy_ordered(&self) {
        let Some(mut ordered) = self.liaison.ordered.lock().take() else { return };
        while let Some((order, objects)) = ordered.next().await {
            let ends = async {
                self.stopping().await;
                None
            };
            let Some(failed) = or(async { Some(self.destroy(&objects).await) }, ends).await else {
                return;
            };
            let destroyed = Event::Destroyed(Destroyed { order, failed });
            if self.liaison.event_sender.unbounded_send(destroyed).is_err() {
                return;
            }
        }
    }
}

/// State of the task.
struct Talk<'a, D: Disk> {
    oss: &'a Oss<D>,
    events: UnboundedReceiver<Event>,
    /// To whoever destroys objects, and what that is just now.
    orders: UnboundedSender<(OrderId, Objects)>,
    destroying: Option<OrderId>,
    /// Sessions that the MDS wants to be fenced.
    fencing: Vec<u64>,
    /// Sessions that its last run knew, until this one has said whether they are good.
    unchecked: Vec<(ClientId, u64, Owner)>,
    /// The MDS has started again, and was not relied on since.
    is_another_run: bool,
    /// The last order that was done.
    done: OrderId,
    /// The last change of the table of chains that is known, of the orders' sequence.
    chains: u64,
    /// Objects that could not be removed, until the MDS knows.
    failed: Vec<ObjectId>,
    joined: bool,
    /// The MDS has given orders on this connection.
    heard: bool,
}

impl<D: Disk> Talk<'_, D> {
    async fn until_the_end(&mut self, report: &impl Fn(Result<(), String>)) {
        let mut complained: Option<Instant> = None;
        let mut retry = Backoff::new(RETRY_MIN, RETRY_MAX);
        while !self.oss.is_stopping() {
            let error = match self.on_connection(report).await {
                Ok(()) => return,
                Err(error) => error,
            };
            if complained.is_none_or(|then| clock::since(then) > COMPLAIN) {
                let server = &self.oss.liaison.mds;
                tracing::warn!(%server, "server of the MDS: {error}; trying again");
                complained = Some(clock::now());
            }
            self.oss.liaison.trouble.lock().replace(error.to_string());
            // Questions are not kept waiting meanwhile.
            while let Ok(event) = self.events.try_recv() {
                match event {
                    Event::Question(question) => {
                        let _ = question.answer.send(Err(Errno::EAGAIN));
                    }
                    Event::Destroyed(destroyed) => _ = self.on_destroyed(destroyed),
                }
            }
            host::sleep(retry.pause(std::mem::take(&mut self.heard))).await;
        }
    }

    /// Next event before this time.
    async fn next(&mut self, due: Instant) -> Option<Event> {
        let left = due.saturating_duration_since(clock::now());
        if left.is_zero() {
            return self.events.try_recv().ok();
        }
        or(self.events.next(), async {
            host::sleep(left).await;
            None
        })
        .await
    }

    /// Returns when the OSS stops.
    async fn on_connection(
        &mut self,
        report: &impl Fn(Result<(), String>),
    ) -> Result<(), NetError> {
        let mut link = OssLink::connect(&self.oss.liaison.mds).await?;
        let mut due = clock::now();
        while !self.oss.is_stopping() {
            match self.next(due).await {
                Some(Event::Question(first)) => {
                    self.ask_for_others(&mut link, first).await?;
                    // However many ask, it says that it lives.
                    if clock::now() < due {
                        continue;
                    }
                }
                Some(Event::Destroyed(destroyed)) => {
                    // An order that failed is tried again with the next beat, not before.
                    let is_done = self.on_destroyed(destroyed);
                    if !is_done {
                        continue;
                    }
                }
                None => {}
            }
            let sent = clock::now();
            match link.ask(OssRequest::Heartbeat(Box::new(self.beat()))).await? {
                Ok(OssReply::Orders { orders, secret }) => {
                    self.oss.joined(&orders, &secret).map_err(NetError::Refused)?;
                    self.oss.replaced_is_known();
                    self.heard = true;
                    self.failed.clear();
                    let pause = self.apply(&mut link, orders, sent).await?;
                    if !self.joined {
                        self.joined = true;
                        report(Ok(()));
                    }
                    due = clock::now() + pause;
                }
                Ok(_) => return Err(NetError::Refused("it answered something else".into())),
                Err(errno) => {
                    let reason = refusal::refusal(errno);
                    report(Err(reason.clone()));
                    return Err(NetError::Refused(reason));
                }
            }
        }
        // Others stand in for it at once. If that is not heard, its silence will be.
        let leaving = link.ask(OssRequest::Heartbeat(Box::new(self.beat())));
        or(async { _ = leaving.await }, host::sleep(LEAVE_MAX)).await;
        Ok(())
    }

    /// Asks what others want to know: this, and what else waits.
    async fn ask_for_others(
        &mut self,
        link: &mut OssLink,
        first: Box<Question>,
    ) -> Result<(), NetError> {
        let mut next = Some(first);
        let (mut requests, mut waiting) = (Vec::new(), Vec::new());
        while let Some(question) = next.take() {
            let Question { request, answer, _place: place } = *question;
            // The asking task may have gone, now or meanwhile.
            if !answer.is_canceled() {
                requests.push(request);
                waiting.push((answer, place));
            }
            if requests.len() == QUESTIONS {
                break;
            }
            match self.events.try_recv() {
                Ok(Event::Question(question)) => next = Some(question),
                // The next beat says it.
                Ok(Event::Destroyed(destroyed)) => _ = self.on_destroyed(destroyed),
                Err(_) => {}
            }
        }
        if requests.is_empty() {
            return Ok(());
        }
        let answers = link.ask_all(requests).await?;
        for ((answer, _place), said) in waiting.into_iter().zip(answers) {
            let _ = answer.send(said);
        }
        Ok(())
    }

    /// Objects were destroyed. Returns whether that is to be said.
    fn on_destroyed(&mut self, destroyed: Destroyed) -> bool {
        self.destroying = None;
        match destroyed.failed {
            // An earlier run of the MDS has numbered its orders otherwise.
            Ok(_) if destroyed.order.0 != self.done.0 => false,
            Ok(failed) => {
                (self.done, self.failed) = (destroyed.order, failed);
                true
            }
            Err(error) => {
                tracing::error!(%error, "could not destroy objects; it is tried again");
                false
            }
        }
    }

    fn beat(&self) -> Heartbeat {
        let osts = &self.oss.osts;
        let those = |are: &dyn Fn(u16) -> bool| -> Vec<u16> {
            (0..osts.count()).filter(|index| are(*index)).collect()
        };
        Heartbeat {
            uuid: self.oss.records.uuid(),
            fs_uuid: self.oss.fs_uuid(),
            address: self.oss.liaison.advertised.clone(),
            osts: self.oss.osts.count(),
            fenced: self.fencing.iter().copied().filter(|number| self.is_quiet(*number)).collect(),
            done: self.done,
            failed: self.failed.clone(),
            space: self.oss.osts.spaces(),
            boot_verifier: self.oss.boot_verifier,
            chains: self.chains,
            failure_domain: self.oss.liaison.failure_domain.clone(),
            leaves: self.oss.is_stopping(),
            replaced: self.oss.replaced.lock().clone(),
            searching: those(&|index| osts.awaits_search(index)),
            failed_osts: those(&|index| osts.failure(index).is_some()),
            held_up: self.oss.held_up(),
        }
    }

    fn is_quiet(&self, session: u64) -> bool {
        self.oss.sessions.is_quiet(session)
    }

    /// Does what the MDS wants, whose beat was sent at this time. Returns when to say more.
    async fn apply(
        &mut self,
        link: &mut OssLink,
        orders: Orders,
        sent: Instant,
    ) -> Result<Duration, NetError> {
        let oss = self.oss;
        let (sessions, here) = (&oss.sessions, oss.here().await);
        let (change, everywhere) = (orders.last_change, orders.known_everywhere);
        self.oss.replication.said(here, &orders.chains, change, everywhere);
        self.chains = change;
        self.oss.replication.set_policy(orders.policy);
        self.oss.replication.heard(sent);
        if self.done.0 != orders.sequence {
            self.is_another_run = true;
            // The MDS may have forgotten what ended between two of its runs: it is asked about each.
            self.unchecked.clear();
            for (session, _) in sessions.all() {
                let Some(owner) = session.owner() else { continue };
                self.unchecked.push((session.client(), session.number(), owner));
            }
            self.done = (orders.sequence, 0);
        }
        self.check_sessions(link, clock::now() + BEAT).await?;
        self.fencing = orders.fence;
        self.fencing.iter().for_each(|number| sessions.fence(*number));
        let (lease, now) = (Duration::from_millis(orders.lease_ms), clock::now());
        // After all that it wants to be fenced is.
        let relies = !orders.more_to_fence
            && self.unchecked.is_empty()
            && sessions.rely_until(sent + lease / 2, std::mem::take(&mut self.is_another_run), now);
        sessions.forget_absent(now, lease);
        if relies
            && sessions.is_earlier_over_everywhere()
            && let Some((last, _)) = orders.orders.last()
            && self.destroying.is_none()
            && self.done.1 < *last
        {
            let of = |order: &(u64, glint_proto::oss::Destroy)| -> Objects {
                order.1.objects.iter().map(|object| (order.1.ost, *object)).collect()
            };
            let order = (orders.sequence, *last);
            let objects = orders.orders.iter().flat_map(of).collect();
            if self.orders.unbounded_send((order, objects)).is_ok() {
                self.destroying = Some(order);
            }
        }
        Ok(match relies && self.fencing.is_empty() {
            true => BEAT,
            false if !self.unchecked.is_empty() => Duration::ZERO,
            false if self.fencing.iter().any(|number| self.is_quiet(*number)) => Duration::ZERO,
            false => LOOK_AGAIN,
        })
    }

    /// Asks the MDS about sessions that it has not said to be good yet, until some time after which
    /// it wants to hear more. Fences the others.
    async fn check_sessions(&mut self, link: &mut OssLink, until: Instant) -> Result<(), NetError> {
        while !self.unchecked.is_empty() && clock::now() < until {
            let from = self.unchecked.len().saturating_sub(CHECKS);
            let question = |(client, session, owner): &(ClientId, u64, Owner)| {
                let (client, session, owner) = (*client, *session, *owner);
                OssRequest::CheckSession { client, session, owner }
            };
            let questions = self.unchecked[from..].iter().map(question).collect();
            let answers = link.ask_all(questions).await?;
            for ((_, number, _), answer) in self.unchecked.drain(from..).zip(answers) {
                if answer != Ok(OssReply::SessionIsGood(true)) {
                    self.oss.sessions.fence(number);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::{block_on, poll_once};

    /// While the MDS is away, each hello of a session that is not known is one.
    #[test]
    fn questions_of_those_who_have_gone_do_not_pile_up() {
        let liaison = Liaison::new(Address::parse("127.0.0.1:1"), "here".into(), String::new());
        let owner = Owner { certificate: None, secret: 1 };
        // Polled once and dropped: asked, and gone.
        let ask = || {
            let question = OssRequest::CheckSession { client: ClientId(1), session: 1, owner };
            block_on(poll_once(liaison.ask(question)))
        };
        for _ in 0..QUESTIONS_FOR_MDS_MAX {
            assert_eq!(ask(), None);
        }
        assert_eq!([ask(), ask()], [Some(Err(Errno::EAGAIN)), Some(Err(Errno::EAGAIN))]);
        // The task answers one.
        let mut channels = liaison.channels.lock();
        drop(channels.as_mut().unwrap().events.try_recv().unwrap());
        assert_eq!([ask(), ask()], [None, Some(Err(Errno::EAGAIN))]);
    }
}
