//! Capabilities that the MDS has given this client for the objects of one inode, for OSTs that want
//! to see that.
//!
//! Invariant: of two capabilities neither allows all that the other does.

use glint_proto::capability::that_allows;
use glint_proto::{Access, Capability, OstRequest};

/// The capabilities of one inode.
#[derive(Default)]
pub(crate) struct Capabilities(Vec<Capability>);

impl Capabilities {
    /// The MDS has allowed something more.
    pub(crate) fn add(&mut self, capability: Capability) {
        if !self.0.iter().any(|held| held.access.contains(capability.access)) {
            self.0.retain(|held| !capability.access.contains(held.access));
            self.0.push(capability);
        }
    }

    /// The capability for all of this.
    pub(crate) fn allowing(&self, access: Access) -> Option<Capability> {
        self.0.iter().find(|held| held.access.contains(access)).copied()
    }

    /// The capability for a request.
    pub(crate) fn for_request(&self, request: &OstRequest) -> Option<Capability> {
        that_allows(&self.0, request)
    }

    /// The session in which they were given is over.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
