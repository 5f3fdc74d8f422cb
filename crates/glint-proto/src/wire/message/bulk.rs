//! Data that travels beside a request.

use std::sync::Arc;

/// Bulk data beside a request: what it sends, or where the answer goes.
#[derive(Debug)]
pub enum Bulk<'a> {
    /// None.
    None,
    /// Data of a write.
    Out(&'a [u8]),
    /// Data of a write that may be kept without a copy.
    Shared(&'a Arc<Vec<u8>>),
    /// Room for the data of a read.
    In(&'a mut [u8]),
    /// The same, all of it, which may be taken away until it is filled.
    Lent(&'a mut Vec<u8>),
}

impl<'a> Bulk<'a> {
    /// Lends shared data, or room, to a transport that keeps nothing.
    pub fn borrowed(self) -> Bulk<'a> {
        match self {
            Bulk::Shared(data) => Bulk::Out(data),
            Bulk::Lent(room) => Bulk::In(room),
            bulk => bulk,
        }
    }

    /// Data of a write; empty beside other requests.
    pub fn data(&self) -> &'a [u8] {
        match *self {
            Bulk::Out(data) => data,
            Bulk::Shared(data) => data,
            Bulk::None | Bulk::In(_) | Bulk::Lent(_) => &[],
        }
    }

    /// Bulk for one of several attempts, which shares what can be shared.
    pub fn lend(&mut self) -> Bulk<'_> {
        match self {
            Bulk::None => Bulk::None,
            Bulk::Out(data) => Bulk::Out(data),
            Bulk::Shared(data) => Bulk::Shared(data),
            Bulk::In(room) => Bulk::In(room),
            Bulk::Lent(room) => Bulk::Lent(room),
        }
    }
}
