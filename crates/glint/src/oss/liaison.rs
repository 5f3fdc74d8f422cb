//! The thread of an OSS that talks to the server of the MDS: says that it lives, does what it
//! is told, asks what others want to know.

use super::Oss;
use glint_net::{Address, NetError, OssLink};
use glint_proto::oss::{Beat, Orders, OssReply, OssRequest};
use glint_proto::{Errno, FsResult, ObjectId, clock};
use parking_lot::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// How often it says that it lives, when there is nothing else.
const BEAT: Duration = Duration::from_millis(200);
/// How long it waits before it tries to connect again.
const RETRY: Duration = Duration::from_millis(300);
/// How often it complains that nobody answers.
const COMPLAIN: Duration = Duration::from_secs(10);

struct Question {
    request: OssRequest,
    answer: futures_channel::oneshot::Sender<FsResult<OssReply>>,
}

/// Where questions go.
pub struct Liaison {
    questions: Sender<Question>,
    /// Until the thread takes it.
    receiver: Mutex<Option<Receiver<Question>>>,
}

impl Liaison {
    pub fn new() -> Liaison {
        let (questions, receiver) = mpsc::channel();
        Liaison { questions, receiver: Mutex::new(Some(receiver)) }
    }

    /// Asks the server of the MDS. EAGAIN if it cannot be reached.
    pub async fn ask(&self, request: OssRequest) -> FsResult<OssReply> {
        let (answer, answered) = futures_channel::oneshot::channel();
        let question = Question { request, answer };
        self.questions.send(question).map_err(|_| Errno::EAGAIN)?;
        answered.await.unwrap_or(Err(Errno::EAGAIN))
    }

    /// The life of the thread. Reports when the OSS is a part of the file system, or why it
    /// cannot be.
    pub fn run(
        &self,
        oss: &Oss,
        mds: &Address,
        advertised: &str,
        report: &Sender<Result<(), String>>,
    ) {
        let Some(questions) = self.receiver.lock().take() else { return };
        let mut talk = Talk {
            oss,
            advertised,
            fenced: Vec::new(),
            done: (0, 0),
            failed: Vec::new(),
            joined: false,
        };
        let mut complained: Option<Instant> = None;
        while !oss.is_stopping() {
            let error = match talk.on_connection(mds, &questions, report) {
                Ok(()) => return,
                Err(error) => error,
            };
            if complained.is_none_or(|then| then.elapsed() > COMPLAIN) {
                tracing::warn!(server = %mds, "server of the MDS: {error}; trying again");
                complained = Some(Instant::now());
            }
            // Who asks meanwhile is not kept waiting.
            while let Ok(question) = questions.try_recv() {
                let _ = question.answer.send(Err(Errno::EAGAIN));
            }
            std::thread::sleep(RETRY);
        }
    }
}

/// What the thread remembers.
struct Talk<'a> {
    oss: &'a Oss,
    advertised: &'a str,
    fenced: Vec<u64>,
    done: (u64, u64),
    /// Objects that could not be removed, until the MDS knows.
    failed: Vec<ObjectId>,
    joined: bool,
}

impl Talk<'_> {
    /// Returns when the OSS stops.
    fn on_connection(
        &mut self,
        mds: &Address,
        questions: &Receiver<Question>,
        report: &Sender<Result<(), String>>,
    ) -> Result<(), NetError> {
        let mut link = OssLink::connect(mds)?;
        let mut due = Instant::now();
        while !self.oss.is_stopping() {
            match questions.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Question { request, answer }) => {
                    // Who asked may have gone.
                    let _ = answer.send(link.ask(request)?);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let sent = clock::now();
            match link.ask(OssRequest::Beat(self.beat()))? {
                Ok(OssReply::Orders { orders, secret }) => {
                    self.oss.joined(&orders, &secret).map_err(NetError::Refused)?;
                    self.failed.clear();
                    let busy = self.obey(&mut link, orders, sent)?;
                    if !self.joined {
                        self.joined = true;
                        let _ = report.send(Ok(()));
                    }
                    due = Instant::now() + if busy { Duration::ZERO } else { BEAT };
                }
                Ok(_) => return Err(NetError::Refused("it answered something else".into())),
                Err(errno) => {
                    let reason = refusal(errno);
                    let _ = report.send(Err(reason.clone()));
                    return Err(NetError::Refused(reason));
                }
            }
        }
        Ok(())
    }

    fn beat(&self) -> Beat {
        Beat {
            uuid: self.oss.data.uuid(),
            fs_uuid: self.oss.fs_uuid(),
            address: self.advertised.to_owned(),
            osts: self.oss.osts.count(),
            fenced: self.fenced.clone(),
            done: self.done,
            failed: self.failed.clone(),
            space: self.oss.osts.spaces(),
        }
    }

    /// Does what the MDS wants, whose beat was sent at this time. Returns whether to say at once
    /// that it is done.
    fn obey(
        &mut self,
        link: &mut OssLink,
        orders: Orders,
        sent: Instant,
    ) -> Result<bool, NetError> {
        let sessions = &self.oss.sessions;
        let mut fence = orders.fence.clone();
        if self.done.0 != orders.run {
            // What ended between two of its runs, it may not know any more.
            for (session, _) in sessions.all() {
                let (client, number) = (session.client(), session.number());
                let Some(owner) = session.owner() else { continue };
                let question = OssRequest::IsSession { client, session: number, owner };
                if link.ask(question)? != Ok(OssReply::Is(true)) {
                    fence.push(number);
                }
            }
            self.done = (orders.run, 0);
        }
        fence.iter().for_each(|number| sessions.fence(*number));
        while !self.oss.is_stopping() && !fence.iter().all(|number| sessions.is_quiet(*number)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let fences = !orders.fence.is_empty();
        self.fenced = orders.fence;
        let lease = Duration::from_millis(orders.lease_ms);
        if !orders.more_to_fence {
            sessions.valid_until(sent + lease / 2);
        }
        sessions.forget_absent(clock::now(), lease);
        let Some((last, _)) = orders.orders.last() else { return Ok(fences) };
        let of = |order: &(u64, glint_proto::oss::Destroy)| -> Vec<(u16, ObjectId)> {
            order.1.objects.iter().map(|object| (order.1.ost, *object)).collect()
        };
        let objects: Vec<(u16, ObjectId)> = orders.orders.iter().flat_map(of).collect();
        match self.oss.destroy(&objects) {
            Ok(failed) => {
                self.done.1 = *last;
                self.failed = failed;
                Ok(true)
            }
            Err(error) => {
                // The order is told again, at the next beat.
                tracing::error!(%error, "destroying objects");
                Ok(fences)
            }
        }
    }
}

fn refusal(errno: Errno) -> String {
    match errno {
        Errno::ESTALE => "this data directory belongs to another file system, or to one that \
                          was restored from before it joined; choose another directory"
            .into(),
        Errno::EINVAL => "it knows this data directory with another number of OSTs".into(),
        Errno::ERANGE => "the file system would have too many OSTs".into(),
        Errno::EACCES => "the certificate here does not say that this may be a server of OSTs; \
                          issue it with --oss"
            .into(),
        Errno::EPERM => "it knows this data directory under another certificate; issue one of \
                         the same name"
            .into(),
        errno => format!("it refuses this server: {errno}"),
    }
}
