//! The network: delays what is sent, repeats and reorders requests, breaks connections.
//!
//! Requests with a slot are made to be sent twice, so they may be repeated and overtake each
//! other. Whatever is broken in the middle is lost from there on, as with TCP.

use crate::world::executor::{Executor, Machine, NOWHERE};
use glint_net::host::{Pipe, Wire};
use glint_net::rights::Rights;
use glint_proto::frame::{HEADER_BYTES, Header, NO_SLOT};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

type Accept = Rc<dyn Fn(Pipe)>;

/// A connection: its four wires, the machine of the client and that of the server.
struct Connection {
    ends: [Machine; 2],
    wires: [Rc<Wire>; 4],
}

/// Two machines between which nothing goes.
#[derive(Clone, Copy)]
pub(crate) struct Parted {
    pub(crate) ends: [Machine; 2],
    pub(crate) until: Duration,
    /// Connections break; otherwise what is sent arrives later.
    pub(crate) breaks: bool,
}

/// The network.
#[derive(Default)]
pub(crate) struct Network {
    /// Listeners, by address.
    accept: RefCell<BTreeMap<String, (Machine, Accept)>>,
    /// Pairs of machines between which nothing goes, and until when; whether what is sent arrives
    /// later, or connections break.
    parted: RefCell<Vec<Parted>>,
    connections: RefCell<Vec<Connection>>,
    /// Machines whose certificate limits what they may do.
    pub(crate) limited: RefCell<BTreeMap<Machine, Rights>>,
    /// Does harm to one message in so many; never if 0.
    pub(crate) harm: Cell<u64>,
    /// How long each message takes, if that is always the same.
    pub(crate) latency: Cell<Option<Duration>>,
    /// Requests that were sent.
    pub(crate) requests: Cell<u64>,
}

impl Network {
    /// A server takes connections at an address; `None`: it is down.
    pub(crate) fn listen(&self, address: &str, accept: Option<(Machine, Accept)>) {
        let mut all = self.accept.borrow_mut();
        match accept {
            Some(accept) => all.insert(address.to_owned(), accept),
            None => all.remove(address),
        };
    }

    /// The server of a machine takes no connections any more, and closes those that it has. It keeps
    /// those that it has made to others.
    pub(crate) fn close(&self, address: &str, machine: Machine) {
        self.listen(address, None);
        self.cut_those(|[_, server]| *server == machine);
    }

    /// All connections break, or those of one machine.
    pub(crate) fn cut(&self, machine: Option<Machine>) {
        self.cut_those(|ends| machine.is_none_or(|machine| ends.contains(&machine)));
    }

    fn cut_those(&self, is_meant: impl Fn(&[Machine; 2]) -> bool) {
        let is_meant = |c: &Connection| is_meant(&c.ends);
        for connection in self.connections.borrow().iter().filter(|c| is_meant(c)) {
            connection.wires.iter().for_each(|wire| wire.cut());
        }
        self.connections.borrow_mut().retain(|c| !is_meant(c));
    }

    /// Nothing goes between two machines for a time.
    pub(crate) fn part(&self, parted: Parted) {
        self.parted.borrow_mut().push(parted);
        if parted.breaks {
            let [a, b] = parted.ends;
            self.cut_those(|ends| ends.contains(&a) && ends.contains(&b));
        }
    }

    /// Everything goes everywhere again.
    pub(crate) fn mend(&self) {
        self.parted.borrow_mut().clear();
    }

    /// Until when nothing goes between these, and whether that breaks connections.
    fn is_parted(&self, now: Duration, ends: [Machine; 2]) -> Option<Parted> {
        let mut parted = self.parted.borrow_mut();
        parted.retain(|parted| parted.until > now);
        let is_between = |parted: &&Parted| parted.ends.iter().all(|end| ends.contains(end));
        parted.iter().find(is_between).copied()
    }

    pub(crate) fn end(&self) {
        self.accept.borrow_mut().clear();
        self.connections.borrow_mut().clear();
    }

    pub(crate) fn connect(
        executor: &Rc<Executor>,
        client: Machine,
        address: &str,
    ) -> io::Result<Pipe> {
        let network = &executor.network;
        let Some((server, accept)) = network.accept.borrow().get(address).cloned() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let ends = [client, server];
        if network.is_parted(executor.now(), ends).is_some_and(|parted| parted.breaks) {
            return Err(io::ErrorKind::HostUnreachable.into());
        }
        let wires: [Rc<Wire>; 4] = Default::default();
        let [a, b, c, d] = wires.clone();
        network.connections.borrow_mut().push(Connection { ends, wires });
        executor.spawn_on(NOWHERE, carry(executor.clone(), ends, a.clone(), b.clone()));
        executor.spawn_on(NOWHERE, carry(executor.clone(), ends, c.clone(), d.clone()));
        let rights = network.limited.borrow().get(&client).cloned();
        accept(match rights {
            Some(rights) => Pipe::limited(b, c, rights),
            None => Pipe::new(b, c),
        });
        Ok(Pipe::new(d, a))
    }
}

/// Carries what is put on one wire to another.
async fn carry(executor: Rc<Executor>, ends: [Machine; 2], from: Rc<Wire>, to: Rc<Wire>) {
    let mut rest = Vec::new();
    loop {
        let bytes = from.take().await;
        if bytes.is_empty() {
            return to.cut();
        }
        let delay = match executor.below(10) {
            0 => executor.below(20_000),
            _ => executor.below(300),
        };
        let latency = executor.network.latency.get();
        executor.sleep(latency.unwrap_or(Duration::from_micros(delay))).await;
        while let Some(parted) = executor.network.is_parted(executor.now(), ends) {
            executor.sleep(parted.until.saturating_sub(executor.now())).await;
        }
        let harm = executor.network.harm.get();
        let harms = || harm > 0 && executor.one_in(harm);
        if harms() {
            let some = executor.below(bytes.len() as u64 + 1) as usize;
            to.put(&bytes[..some]);
            from.cut();
            return to.cut();
        }
        rest.extend(bytes);
        let mut frames = cut(&mut rest);
        count(&executor.network, &frames);
        for index in 0..frames.len() {
            if !frames[index].1 {
                continue;
            }
            if harms() {
                let again = frames[index].clone();
                frames.push(again);
            }
            if index > 0 && frames[index - 1].1 && harms() {
                frames.swap(index - 1, index);
            }
        }
        frames.iter().for_each(|(frame, _)| to.put(frame));
    }
}

fn count(network: &Network, frames: &[(Vec<u8>, bool)]) {
    let head = |frame: &[u8]| Header::decode(frame.first_chunk::<HEADER_BYTES>()?).ok();
    let requests = frames.iter().filter(|(frame, _)| head(frame).is_some_and(|head| !head.reply));
    network.requests.set(network.requests.get() + requests.count() as u64);
}

/// Whole frames, and whether each is a request that may be sent twice.
fn cut(bytes: &mut Vec<u8>) -> Vec<(Vec<u8>, bool)> {
    let mut frames = Vec::new();
    while let Some(head) = bytes.first_chunk::<HEADER_BYTES>() {
        let Ok(header) = Header::decode(head) else { break };
        let len = HEADER_BYTES + header.body_len as usize + header.bulk_len as usize;
        if bytes.len() < len {
            break;
        }
        let rest = bytes.split_off(len);
        let frame = std::mem::replace(bytes, rest);
        frames.push((frame, header.slot != NO_SLOT && !header.reply));
    }
    frames
}
