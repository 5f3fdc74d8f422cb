//! Host of the tasks of a thread: its runtime, or a simulation of many machines on one thread, in
//! which the same code runs.

use crate::server::access::rights::Rights;
use crate::transport::stream::Stream;
use glint_wait::Signal;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A task.
pub type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A simulated world.
pub trait World {
    /// Runs a task, on the machine of the task that asks for it.
    fn spawn(&self, task: Task);

    /// PipeEnd when so much simulated time has passed.
    fn sleep(&self, time: Duration) -> Task;

    /// Does work that may wait, as a thread of its own would: some time after this call, on the machine
    /// of the task that asks for it.
    fn unblock(&self, work: Box<dyn FnOnce()>) {
        self.spawn(Box::pin(async move { work() }));
    }

    /// Connects to a server.
    fn connect(&self, address: &str) -> io::Result<Pipe>;
}

thread_local! {
    static WORLD: RefCell<Option<Rc<dyn World>>> = const { RefCell::new(None) };
}

/// From now on tasks of this thread run in a simulated world. `None` ends that.
pub fn simulate(world: Option<Rc<dyn World>>) {
    WORLD.replace(world);
}

pub(crate) fn world() -> Option<Rc<dyn World>> {
    WORLD.with_borrow(Clone::clone)
}

/// Whether this thread belongs to a simulated world.
pub fn is_simulated() -> bool {
    WORLD.with_borrow(Option::is_some)
}

/// Runs a task on this thread.
pub fn spawn(task: impl Future<Output = ()> + 'static) {
    match world() {
        Some(world) => world.spawn(Box::pin(task)),
        None => compio_runtime::spawn(task).detach(),
    }
}

/// Runs a task here as far as it gets at once; if it has to wait, it goes on by itself.
pub(crate) fn run_or_spawn(task: impl Future<Output = ()> + 'static) {
    let mut task = Box::pin(task);
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        // Polled again at once with a waker of its own.
        spawn(task);
    }
}

/// Does something on this thread to its end, whether or not anybody waits for it any more.
pub(crate) async fn to_its_end<R: 'static>(work: impl Future<Output = R> + 'static) -> R {
    let done = Rc::new((RefCell::new(None), Signal::default()));
    let doing = done.clone();
    spawn(async move {
        let result = work.await;
        doing.0.replace(Some(result));
        doing.1.wake();
    });
    done.1.until(|| done.0.take()).await
}

/// PipeEnd when so much time has passed.
pub async fn sleep(time: Duration) {
    match world() {
        Some(world) => world.sleep(time).await,
        None => compio_runtime::time::sleep(time).await,
    }
}

/// Work that is done beside the tasks of a thread. It may be left out if this is dropped before it
/// begins.
#[must_use = "dropped, it may never be done"]
pub enum UnblockedWork<T> {
    /// On a thread that may wait.
    Thread(blocking::Task<T>),
    /// By a task of a simulated world.
    Simulated(Pin<Box<dyn Future<Output = T>>>),
}

impl<T> UnblockedWork<T> {
    /// Has it done, though nobody waits for it.
    pub fn detach(self) {
        if let UnblockedWork::Thread(task) = self {
            task.detach();
        }
    }
}

impl<T> Future for UnblockedWork<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *self {
            UnblockedWork::Thread(task) => Pin::new(task).poll(context),
            UnblockedWork::Simulated(done) => done.as_mut().poll(context),
        }
    }
}

/// Does work that may wait for a disk or a kernel, beside the tasks of this thread.
pub fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> UnblockedWork<T> {
    let Some(world) = world() else { return UnblockedWork::Thread(blocking::unblock(work)) };
    let done = Rc::new((RefCell::new(None), Signal::default()));
    let doing = done.clone();
    world.unblock(Box::new(move || {
        doing.0.replace(Some(work()));
        doing.1.wake();
    }));
    UnblockedWork::Simulated(Box::pin(async move { done.1.until(|| done.0.take()).await }))
}

/// One direction of a simulated connection.
#[derive(Default)]
pub struct Wire {
    bytes: RefCell<VecDeque<u8>>,
    closed: Cell<bool>,
    reader: Signal,
}

impl Wire {
    /// Puts bytes on the wire.
    pub fn put(&self, bytes: &[u8]) {
        if !self.closed.get() {
            self.bytes.borrow_mut().extend(bytes);
            self.reader.wake();
        }
    }

    /// Nothing more comes, and what has not been read is lost.
    pub fn cut(&self) {
        self.closed.set(true);
        self.bytes.borrow_mut().clear();
        self.reader.wake();
    }

    /// Whether it was cut.
    pub fn is_cut(&self) -> bool {
        self.closed.get()
    }

    /// All bytes that are there, at least one; none after the end.
    pub async fn take(&self) -> Vec<u8> {
        self.take_some(usize::MAX).await
    }

    /// As many of them as there is room for.
    pub(crate) async fn take_some(&self, room: usize) -> Vec<u8> {
        let some = || {
            let mut bytes = self.bytes.borrow_mut();
            let some = room.min(bytes.len());
            (!bytes.is_empty() || self.closed.get()).then(|| bytes.drain(..some).collect())
        };
        self.reader.until(some).await
    }
}

/// An end of a simulated connection. It is closed when nobody has it any more.
#[derive(Clone)]
pub struct Pipe(Rc<PipeEnd>);

/// The wires of an end.
pub struct PipeEnd {
    pub(crate) incoming: Rc<Wire>,
    pub(crate) outgoing: Rc<Wire>,
    /// Rights of the certificate at the other end, if it showed one.
    pub(crate) rights: Option<Rights>,
}

impl Pipe {
    /// An end with its two wires.
    pub fn new(incoming: Rc<Wire>, outgoing: Rc<Wire>) -> Pipe {
        Pipe(Rc::new(PipeEnd { incoming, outgoing, rights: None }))
    }

    /// An end at a server to which a certificate with `rights` was shown.
    pub fn limited(incoming: Rc<Wire>, outgoing: Rc<Wire>, rights: Rights) -> Pipe {
        Pipe(Rc::new(PipeEnd { incoming, outgoing, rights: Some(rights) }))
    }

    /// Sends, for who speaks by hand.
    pub fn send(&self, bytes: &[u8]) {
        self.outgoing.put(bytes);
    }

    /// Received bytes, at least one; `None` after the end.
    pub async fn receive(&self) -> Option<Vec<u8>> {
        let bytes = self.incoming.take().await;
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl PipeEnd {
    pub(crate) fn close(&self) {
        self.outgoing.cut();
        self.incoming.cut();
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::ops::Deref for Pipe {
    type Target = PipeEnd;

    fn deref(&self) -> &PipeEnd {
        &self.0
    }
}

impl From<Pipe> for Stream {
    fn from(pipe: Pipe) -> Stream {
        Stream::Simulated(pipe)
    }
}
