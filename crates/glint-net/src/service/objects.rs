//! Data: what the OSTs of a server execute.

use crate::capability::Key;
use glint_proto::{Answer, Bulk, OstReply, OstRequest, Session};
use std::future::Future;

/// Executes requests on objects.
///
/// Promises: nothing is executed for a session that is over, nor finished for it once the locks of
/// that session may be others'.
pub trait ObjectService {
    /// Executes a data request.
    fn execute_data(
        &self,
        session: &Session,
        ost: u16,
        request: OstRequest,
        bulk: Bulk<'_>,
    ) -> impl Future<Output = Answer<OstReply>>;

    /// Key that capabilities of this file system are signed with; `None` while it is not known.
    fn capability_key(&self) -> Option<&Key>;
}
