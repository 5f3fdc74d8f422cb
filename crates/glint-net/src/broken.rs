//! Connections of threads that were lost, counted: a client whose connections are is told that its
//! server is away.

use crate::shared::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A connection that was lost and is not there again.
pub(crate) struct Broken(Arc<Shared>);

impl Broken {
    pub(crate) fn new(shared: &Arc<Shared>) -> Broken {
        shared.broken.fetch_add(1, Ordering::AcqRel);
        Broken(shared.clone())
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        self.0.broken.fetch_sub(1, Ordering::AcqRel);
    }
}
