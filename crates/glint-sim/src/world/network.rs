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

/// A connection: its four wires, and the machine of the client.
struct Connection {
    client: Machine,
    wires: [Rc<Wire>; 4],
}

/// The network.
#[derive(Default)]
pub(crate) struct Network {
    accept: RefCell<Option<Accept>>,
    connections: RefCell<Vec<Connection>>,
    /// Machines whose certificate limits what they may do.
    pub(crate) limited: RefCell<BTreeMap<Machine, Rights>>,
    /// Does harm to one message in so many; never if 0.
    pub(crate) harm: Cell<u64>,
    /// Requests that were sent.
    #[cfg(test)]
    pub(crate) requests: Cell<u64>,
}

impl Network {
    /// The server takes connections; `None`: it is down.
    pub(crate) fn listen(&self, accept: Option<Accept>) {
        self.accept.replace(accept);
    }

    /// All connections break, or those of one client.
    pub(crate) fn cut(&self, client: Option<Machine>) {
        let is_meant = |c: &Connection| client.is_none_or(|client| client == c.client);
        for connection in self.connections.borrow().iter().filter(|c| is_meant(c)) {
            connection.wires.iter().for_each(|wire| wire.cut());
        }
        self.connections.borrow_mut().retain(|c| !is_meant(c));
    }

    pub(crate) fn end(&self) {
        self.listen(None);
        self.connections.borrow_mut().clear();
    }

    pub(crate) fn connect(executor: &Rc<Executor>, client: Machine) -> io::Result<Pipe> {
        let network = &executor.network;
        let Some(accept) = network.accept.borrow().clone() else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        let wires: [Rc<Wire>; 4] = Default::default();
        let [a, b, c, d] = wires.clone();
        network.connections.borrow_mut().push(Connection { client, wires });
        executor.spawn_on(NOWHERE, carry(executor.clone(), a.clone(), b.clone()));
        executor.spawn_on(NOWHERE, carry(executor.clone(), c.clone(), d.clone()));
        let rights = network.limited.borrow().get(&client).cloned();
        accept(match rights {
            Some(rights) => Pipe::limited(b, c, rights),
            None => Pipe::new(b, c),
        });
        Ok(Pipe::new(d, a))
    }
}

/// Carries what is put on one wire to another.
async fn carry(executor: Rc<Executor>, from: Rc<Wire>, to: Rc<Wire>) {
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
        executor.sleep(Duration::from_micros(delay)).await;
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
        #[cfg(test)]
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

#[cfg(test)]
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
